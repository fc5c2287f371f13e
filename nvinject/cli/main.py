"""The command line: finds the command, runs it, turns errors into one line and an exit code.

Belongs here: the list of commands and the way out. Does not belong here: what a command does (its own module, imported
only when chosen). The hook comes through here too, so nothing that costs start-up time is imported, os included.
"""

import posix
import sys
from posix import _exit

from nvinject.errors import NvinjectError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import IO, NoReturn

# name, module, what it does; the module has main(arguments) -> exit code
COMMANDS = (
    ("hook", "nvinject.cli.hook", "inject GPUs into a created container (called by runtimes)"),
    ("runtime", "nvinject.cli.runtime", "stand in front of runc or crun and edit what containers are made of"),
    ("create-container", "nvinject.cli.createcontainer", "do what config.json cannot say (called by runtimes)"),
    ("cdi-hook", "nvinject.cli.cdihook", "do what a CDI spec asks for (called by runtimes)"),
    ("plan", "nvinject.cli.plan", "show what would be injected into a container, and why"),
    ("check", "nvinject.cli.check", "check an image's requirements against this host or given values"),
    ("cdi", "nvinject.cli.cdi", "generate, list, explain, validate, inject and refresh CDI specs"),
    ("ctk", "nvinject.cli.ctk", "behave as nvidia-ctk does: cdi, config, hook, runtime, system"),
    ("container-cli", "nvinject.cli.containercli", "behave as nvidia-container-cli does: info, list, configure"),
    ("info", "nvinject.cli.info", "show driver, GPUs, device nodes and files of this host"),
    ("list", "nvinject.cli.pathlist", "list every path of the driver, with its capability"),
    ("doctor", "nvinject.cli.doctor", "find out why containers get no GPUs, and what mends it"),
    ("system", "nvinject.cli.system", "make device nodes and links of /dev/char, print the loader cache"),
    ("config", "nvinject.cli.config", "show, explain, check and change config.toml"),
    ("install", "nvinject.cli.install", "lay down the launcher and the names that engines look for"),
    ("uninstall", "nvinject.cli.uninstall", "remove what install laid down, and nothing else"),
    ("completion", "nvinject.cli.completion", "print a completion script for bash, zsh or fish"),
    ("manual", "nvinject.cli.manual", "print manual pages, or write them into a directory"),
)

# What engines call us, and the command line that each name stands for.
NAMES = {
    "nvidia-container-runtime-hook": ("hook",),
    "nvidia-container-toolkit": ("hook",),
    "nvidia-cdi-hook": ("cdi-hook",),
    "nvidia-ctk": ("ctk",),
    "nvidia-container-cli": ("container-cli",),
    "nvidia-container-runtime": ("runtime", "--as", "nvidia-container-runtime", "--"),
    "nvidia-container-runtime.cdi": ("runtime", "--as", "nvidia-container-runtime.cdi", "--"),
    "nvidia-container-runtime.legacy": ("runtime", "--as", "nvidia-container-runtime.legacy", "--"),
}

EPILOG = """\
examples:
  nvinject plan /run/containers/bundle          what the prestart hook would do there
  docker image inspect cuda | nvinject check -  does this host satisfy the image?
  nvinject install --prefix /usr/local --links  make `docker run --gpus all` find the hook

exit codes:
  0  done            3  malformed container state or config.json   6  driver, device node or library missing
  1  requirements    4  malformed config.toml                      7  container could not be changed (undone)
     not satisfied   5  request cannot be served                  70  a mistake in nvinject: please report it
  2  usage                              8  doctor: warnings   9  doctor: errors
"""

ENOSPC = 28  # errno.h; the module errno is not needed for more than this
INTERRUPTED = 130  # as shells have it: 128 and the signal's number
TROUBLE = 6  # HostError's: the system refused what every program needs
INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h


def is_cdi_hook(words: "list[str]") -> bool:
    """Tell whether a command is a hook of CDI specs, whose names have a hyphen, but for chmod; stages have none."""
    if words[:1] == ["ctk"]:
        return [word for word in words if not word.startswith("-")][1:2] == ["hook"]
    name = words[1] if words[:1] == ["hook"] and len(words) > 1 else ""
    return words[:1] == ["cdi-hook"] or name == "chmod" or name.find("-") > 0


def usage() -> str:
    """Return the help text of the command line as a whole."""
    lines = ["usage: nvinject COMMAND [ARGUMENT ...]", "", "Puts NVIDIA GPUs into Linux containers.", "", "commands:"]
    lines += [f"  {name:<16} {words}" for name, _, words in COMMANDS]
    lines += ["", "nvinject COMMAND --help tells more; nvinject --version prints the version.", "", EPILOG]
    return "\n".join(lines)


def main(arguments: "Sequence[str]", name: str = "nvinject") -> int:
    """Run the command that the arguments name and return its exit code."""
    words = [*NAMES.get(name, ()), *arguments]
    return guard(lambda: dispatch(words))


def guard(work: "Callable[[], int]") -> int:
    """Do the work and return its exit code; what it raises becomes one line on standard error, and an exit code."""
    try:
        return work()
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - the last line of defence
        return explain(error)


def explain(error: BaseException) -> int:
    """Tell an error in one line, where there is something to tell, and return the exit code that it stands for."""
    if isinstance(error, NvinjectError):
        complain(str(error))
        return error.exit_code
    if isinstance(error, SystemExit):  # argparse's way out, after --help
        return error.code if isinstance(error.code, int) else 0
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has gone; Python would complain again while it flushes at exit.
        posix.dup2(posix.open("/dev/null", posix.O_WRONLY), 1)
        return 1
    if posix.environ.get(b"NVINJECT_DEBUG"):
        raise error
    code, message = describe(error)
    complain(message)
    return code


def describe(error: BaseException) -> "tuple[int, str]":
    """Return exit code and words for an error that no code of ours foresaw: no traceback reaches a container's log."""
    if isinstance(error, UnicodeEncodeError):
        # Arguments may have any bytes; config.json, daemon.json and config.toml are UTF-8.
        wrong = error.object[max(error.start - 40, 0) : error.end].rpartition("\n")[2]
        hint = "is not UTF-8 text and cannot be written into a file that is; name something else"
        return UsageError.exit_code, f"{wrong!r} {hint}"
    if isinstance(error, ImportError | MemoryError | OSError):
        return TROUBLE, describe_trouble(error)
    words = f"internal error: {type(error).__name__}: {error}".replace("\n", " ")
    return INTERNAL_ERROR, f"{words}; run again with NVINJECT_DEBUG=1 for the traceback and report it"


def dispatch(words: "list[str]") -> int:
    """Import the module of the command and hand it the rest of the arguments."""
    if not words or words[0] in {"-h", "--help", "help"}:
        sys.stdout.write(usage())
        return 0 if words else 2
    if words[0] in {"-V", "--version", "-version"}:
        from nvinject import __version__

        sys.stdout.write(f"nvinject {__version__}\n")
        return 0
    for name, module, _ in COMMANDS:
        if name == words[0]:
            command = __import__(module, fromlist=["main"])
            code: int = command.main(words[1:])
            return code
    from difflib import get_close_matches

    known = [name for name, _, _ in COMMANDS]
    near = get_close_matches(words[0], known, n=1)
    guess = f" (did you mean {near[0]}?)" if near else ""
    raise UsageError(f"unknown command {words[0]!r}{guess}", f"use one of {', '.join(known)}")


def complain(message: str) -> None:
    """Write one line to standard error, where runtimes pick it up; it is lost where nobody takes it."""
    try:
        sys.stderr.write(f"nvinject: {message}\n")
        sys.stderr.flush()
    except OSError:
        pass


def describe_trouble(error: "ImportError | MemoryError | OSError") -> str:
    """Say what the system refused: a module, memory, or a step on a file."""
    if isinstance(error, MemoryError):
        return "out of memory; free memory on the host or raise the limits of the container engine"
    if isinstance(error, ImportError):
        return f"cannot load a module: {error}; Python or nvinject is incomplete, or its files cannot be read".replace(
            "\n", " "
        )
    if error.filename is None and error.errno == ENOSPC:
        return f"cannot write: {error.strerror}; make room, or let standard output go to another place"
    thing = f" {error.filename!r}" if error.filename is not None else ""
    return f"the system refused a step: {error.strerror or error}{thing}"


def describe_lost_output(error: OSError) -> str:
    """Say that what was asked for could not be written."""
    return f"cannot write to standard output: {error.strerror or error}; let it go to another place"


def replace_closed_streams() -> None:
    """Let a program that was started without standard input, output or error go on: Python has None there."""
    sys.stdin = sys.stdin or open_nowhere("r")
    sys.stdout = sys.stdout or open_nowhere("w")
    sys.stderr = sys.stderr or open_nowhere("w")


def open_nowhere(mode: str) -> "IO[str]":
    """Return a stream that has nothing to read and forgets what is written."""
    return open("/dev/null", mode)


def show_every_character() -> None:
    """Let what the locale or UTF-8 cannot write, such as a file name of other bytes, be written as an escape.

    Python asks for the position in a file here; a disk that fails is told of when something is written.
    """
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is None:
        return
    try:
        reconfigure(errors="backslashreplace")
    except OSError:
        return


def finish(code: int) -> int:
    """Write out what is buffered and return the exit code: another one where that fails, as on a full disk."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return code or 1
    except OSError as error:
        complain(describe_lost_output(error))
        return code or TROUBLE
    return code


def run() -> "NoReturn":
    """Run as a program: the console script, `python -m nvinject` and the installed launcher end here."""
    try:
        replace_closed_streams()
        show_every_character()
        code = finish(main(sys.argv[1:], sys.argv[0].rpartition("/")[2]))
    except KeyboardInterrupt:
        code = INTERRUPTED
    # Skips the interpreter's tear-down: 1.5 ms of every container start, and nothing of ours waits for it.
    _exit(code)
