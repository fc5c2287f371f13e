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
    from typing import NoReturn

# name, module, what it does; the module has main(arguments) -> exit code
COMMANDS = (
    ("hook", "nvinject.cli.hook", "inject GPUs into a created container (called by runtimes)"),
    ("runtime", "nvinject.cli.runtime", "stand in front of runc or crun and edit what containers are made of"),
    ("create-container", "nvinject.cli.createcontainer", "do what config.json cannot say (called by runtimes)"),
    ("cdi-hook", "nvinject.cli.cdihook", "do what a CDI spec asks for (called by runtimes)"),
    ("plan", "nvinject.cli.plan", "show what would be injected into a container, and why"),
    ("check", "nvinject.cli.check", "check an image's requirements against this host or given values"),
    ("cdi", "nvinject.cli.cdi", "generate, list, explain, validate, inject and refresh CDI specs"),
    ("ctk", "nvinject.cli.ctk", "behave as nvidia-ctk does in its commands cdi and hook"),
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

TROUBLE = 6  # HostError's: the system refused what every program needs
INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h


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
    except NvinjectError as error:
        complain(str(error))
        return error.exit_code
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain again while it flushes at exit.
        posix.dup2(posix.open("/dev/null", posix.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        return 130
    except (ImportError, MemoryError, OSError) as error:
        if posix.environ.get(b"NVINJECT_DEBUG"):
            raise
        complain(describe_trouble(error))
        return TROUBLE
    except Exception as error:  # the last line of defence: no traceback reaches a container's log
        if posix.environ.get(b"NVINJECT_DEBUG"):
            raise
        complain(
            f"internal error: {type(error).__name__}: {error}".replace("\n", " ")
            + "; run again with NVINJECT_DEBUG=1 for the traceback and report it"
        )
        return INTERNAL_ERROR


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
    known = ", ".join(name for name, _, _ in COMMANDS)
    raise UsageError(f"unknown command {words[0]!r}", f"use one of {known}")


def complain(message: str) -> None:
    """Write one line to standard error, where runtimes pick it up."""
    try:
        sys.stderr.write(f"nvinject: {message}\n")
    except OSError:
        with_newline = f"nvinject: {message}\n".encode(errors="backslashreplace")
        posix.write(2, with_newline)


def describe_trouble(error: "ImportError | MemoryError | OSError") -> str:
    """Say what the system refused: a module, memory, or a step on a file."""
    if isinstance(error, MemoryError):
        return "out of memory; free memory on the host or raise the limits of the container engine"
    if isinstance(error, ImportError):
        return f"cannot load a module: {error}; Python or nvinject is incomplete, or its files cannot be read".replace(
            "\n", " "
        )
    thing = f" {error.filename!r}" if error.filename is not None else ""
    return f"the system refused a step: {error.strerror or error}{thing}"


def run() -> "NoReturn":
    """Run as a program: the console script, `python -m nvinject` and the installed launcher end here."""
    code = main(sys.argv[1:], sys.argv[0].rpartition("/")[2])
    sys.stdout.flush()
    sys.stderr.flush()
    # Skips the interpreter's tear-down: 1.5 ms of every container start, and nothing of ours waits for it.
    _exit(code)
