"""The nvfakes command: argv, words and exit codes.

Belongs here: one small function per command. Does not belong here: what the commands do. Exit codes: 0, 1 for a
machine or lane that cannot be used, 2 for wrong arguments, 70 for a mistake of ours, and of `run` the command's own.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import IO

    from nvfakes.machine import Machine


# The verbs of a running machine: what follows each, and what it does.
_VERBS = {
    "unplug": ("gpu", "take a GPU out of a running machine"),
    "plug": ("gpu", "put an unplugged GPU back"),
    "unload": ("", "unload the kernel modules"),
    "load": ("", "load the kernel modules of the version that is installed"),
    "upgrade": ("version", "install user-space files of another version"),
    "mig": ("gpu profiles*", "cut a GPU into MIG profiles; no profile: only turn MIG on; off: turn it off"),
    "health": ("gpu what number*", "let something happen to a GPU: xid N, ecc N, lost, ok"),
    "slow": ("milliseconds", "let every NVML call take longer"),
    "answer": ("gpu key value", "let NVML give another answer, such as power.current_draw_mw 650000"),
    "remove": ("path", "make a file or node vanish"),
    "break": ("path", "make a file say something wrong"),
    "restore": ("path", "undo remove or break"),
}
DIGITS = 9
_RUNNING = "the machine's first process; default: the machine that this command runs on, or the only one"


def run() -> None:
    """Entry point of the nvfakes program."""
    _replace_closed_streams()
    status = main(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError as error:
        status = status or _tell_write_error(error)
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    sys.exit(status)


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    if arguments[:1] == ["kernel-hook"]:  # a container start waits for it: no further import
        from nvfakes import kernelhook

        return kernelhook.main(os.environ.get("NVFAKES_ROOT", "/"))
    try:
        return _dispatch(arguments)
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - the last line of defence
        return _explain(error)


def _explain(error: BaseException) -> int:
    from nvfakes.errors import FakeError, UsageError

    if isinstance(error, SystemExit):  # argparse's way out, after --help
        return int(error.code or 0)
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, FakeError):
        return _complain(str(error), 2 if isinstance(error, UsageError) else 1)
    if isinstance(error, OSError):
        if error.filename is None and error.errno in {errno.EPIPE, errno.ENOSPC}:
            return _tell_write_error(error)
        return _complain(f"{error.filename or 'cannot go on'}: {error.strerror or error}", 1)
    if os.environ.get("NVFAKES_DEBUG"):
        raise error
    words = f"internal error: {type(error).__name__}: {error}"
    return _complain(f"{words}; run again with NVFAKES_DEBUG=1 for the traceback and report it", 70)


def _dispatch(arguments: Sequence[str]) -> int:
    own, command = _split(arguments)
    options = _parser(_answers_help() if own[:1] == ["answer"] else "").parse_args(own)
    if command:
        options.command = command
    return int(options.action(options) or 0)


def _complain(message: str, status: int) -> int:
    from nvfakes.errors import printable

    with contextlib.suppress(OSError):  # a full disk takes no message either
        print(f"nvfakes: {printable(message)}", file=sys.stderr, flush=True)
    return status


def _tell_write_error(error: OSError) -> int:
    """Give up standard output, which Python would flush once more at its end; a closed pipe is nobody's mistake."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1 if error.errno == errno.EPIPE else _complain(f"cannot write: {error.strerror}", 1)


def _replace_closed_streams() -> None:
    """Let a program that was started without standard input, output or error go on: Python has None there."""
    sys.stdin = sys.stdin or _open_nowhere("r")
    sys.stdout = sys.stdout or _open_nowhere("w")
    sys.stderr = sys.stderr or _open_nowhere("w")


def _open_nowhere(mode: str) -> "IO[str]":
    return open(os.devnull, mode)


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part the words at the first --, to which argparse gives different meanings in different versions."""
    words = list(arguments)
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


def _answers_help() -> str:
    from nvfakes import answers

    return answers.format_help()


def _parser(answers_help: str = "") -> "argparse.ArgumentParser":
    """Return the options of all commands; the help for `answer` imports much, and nothing else needs it."""
    from nvfakes import usage

    parser = usage.Parser(
        prog="nvfakes", description="GPU machines that are declared in a short file.", epilog=usage.EPILOG
    )
    parser.add_argument("--version", action="version", version=f"nvfakes {_version()}", help="print the version")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, action: Any, text: str) -> "argparse.ArgumentParser":
        sub = commands.add_parser(name, help=text, description=text, epilog=usage.examples(name))
        sub.set_defaults(action=action)
        return sub

    _add_machine_commands(command)
    sub = command("enter", _enter, "run a command on a machine that is already running")
    sub.add_argument("--running", type=int, required=True, metavar="PID", help="the machine's first process")
    sub.add_argument("command", nargs="*", help="after --")
    sub = command("record", _record, "write down the machine on which this runs as a machine file")
    sub.add_argument("--root", default=os.environ.get("NVFAKES_ROOT", "/"), help="where the machine stands")
    sub.add_argument("--serials", action="store_true", help="with the serial numbers of the boards")
    sub = command("ps", _ps, "list the machines that run on this host: process, name, lane, root")
    sub.add_argument("--json", action="store_true", help="print JSON")
    for name, (words, text) in _VERBS.items():
        sub = command(name, _change, text)
        sub.set_defaults(verb=name)
        if name == "answer":
            sub.epilog = f"{answers_help}{sub.epilog}"
        sub.add_argument("--running", type=int, default=os.environ.get("NVFAKES_RUNNING"), metavar="PID", help=_RUNNING)
        for word in words.split():
            sub.add_argument(word.rstrip("*"), nargs="*" if word.endswith("*") else None)
    sub = command("completion", _completion, "print a script for bash, zsh or fish that completes commands and options")
    sub.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    command("kernel-hook", None, "OCI prestart hook that shows /proc/driver in a container")
    sub = command("runtime-wrapper", _runtime_wrapper, "write an OCI runtime that adds the kernel hook")
    sub.add_argument("file", help="the program to write")
    sub.add_argument("--runtime", default="/usr/sbin/runc", help="the runtime behind it (default: %(default)s)")
    return parser


def _add_machine_commands(command: "Callable[[str, Any, str], argparse.ArgumentParser]") -> None:
    """Add the commands that begin with a machine."""
    sub = command("list", _list, "list the machines that need no file")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub = command("show", _show, "show what a machine has")
    sub.add_argument("machine", help="a file or a name")
    form = sub.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--svg", action="store_true", help="print a picture of GPUs, buses, links and MIG slices")
    sub = command("tree", _tree, "write a machine's files below a directory")
    sub.add_argument("machine", help="a file or a name")
    sub.add_argument("directory", help="made if need be")
    sub.add_argument("--merge", action="store_true", help="into a directory that is not empty, over what it holds")
    sub.add_argument("--driver", type=int, metavar="BRANCH", help="real user-space files: 470, 535 or 550")
    for name, text in (("run", "run a command on a machine"), ("shell", "run a shell on a machine")):
        sub = command(name, _run, text)
        sub.add_argument("machine", help="a file or a name")
        sub.add_argument("--driver", type=int, metavar="BRANCH", help="real user-space files: 470, 535 or 550")
        sub.add_argument("--lane", choices=("root", "rootless"), help="default: root where it works")
        if name == "run":
            sub.add_argument("command", nargs="*", help="after --")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("nvinject")
    except PackageNotFoundError:
        return "of a checkout"


def _ps(options: "argparse.Namespace") -> int:
    from nvfakes import control
    from nvfakes.errors import VerbError

    machines = []
    for process in control.running():
        try:
            status = control.ask(process, "status")
        except VerbError:
            continue  # gone meanwhile
        machines.append({"pid": process, **{key: status[key] for key in ("machine", "lane", "root")}})
    if options.json:
        import json

        print(json.dumps(machines, indent=2))
    else:
        for machine in machines:
            print("\t".join(str(value) for value in machine.values()))
    return 0


def _record(options: "argparse.Namespace") -> int:
    from nvfakes import record
    from nvfakes.errors import SandboxError

    if not os.path.isdir(options.root):
        raise SandboxError(f"--root {options.root}: no such directory")
    print(record.record(options.root, serials=options.serials), end="")
    return 0


def _enter(options: "argparse.Namespace") -> int:
    from nvfakes import running

    running.enter(options.running, options.command or [os.environ.get("SHELL", "/bin/sh")])


def _change(options: "argparse.Namespace") -> int:
    from nvfakes import control
    from nvfakes.errors import VerbError

    values = [getattr(options, word.rstrip("*")) for word in _VERBS[options.verb][0].split()]
    request = _request(options.verb, values)
    process = options.running
    if process is None:
        found = control.running()
        if len(found) != 1:
            raise VerbError(f"{len(found)} machines run on this host; choose one with --running")
        process = found[0]
    control.ask(int(process), *request)
    return 0


def _request(verb: str, values: list[Any]) -> list[Any]:
    """Return what a command asks of the machine."""
    if verb == "slow":
        return ["slow", _number(values[0], "milliseconds")]
    if verb == "health":
        return ["health", values[0], values[1], *(_number(number, values[1]) for number in values[2][:1])]
    if verb == "answer":
        from nvfakes import answers

        answers.read_value(values[1], values[2])
    if verb == "mig" and values[1] == ["off"]:
        return ["mig_off", values[0]]
    return [verb, *values]


def _number(text: str, what: str) -> int:
    from nvfakes.errors import UsageError

    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS):
        raise UsageError(f"{what}: {text!r} is not a whole number of up to {DIGITS} digits")
    return int(text)


def _load(options: "argparse.Namespace") -> "Machine":
    from nvfakes.declaration import load, on_packages

    machine = load(options.machine)
    branch = getattr(options, "driver", None)
    return on_packages(machine, branch) if branch else machine


def _list(options: "argparse.Namespace") -> int:
    from nvfakes.declaration import shipped
    from nvfakes.models import MODELS

    names = shipped()
    if options.json:
        import json

        print(json.dumps({"machines": names, "models": sorted(MODELS)}, indent=2))
        return 0
    print("\n".join(names))
    print("\nMODELxN, N from 1 to 16, for the models " + ", ".join(sorted(MODELS)))
    return 0


def _show(options: "argparse.Namespace") -> int:
    from nvfakes import show

    machine = _load(options)
    if options.svg:
        from nvfakes import drawing

        print(drawing.as_svg(machine), end="")
    else:
        print(show.as_json(machine) if options.json else show.as_table(machine))
    return 0


def _tree(options: "argparse.Namespace") -> int:
    from nvfakes import tree
    from nvfakes.errors import SandboxError

    machine = _load(options)
    # With root's rights it would replace what a whole system stands on, were the directory /.
    if os.path.lexists(options.directory) and not options.merge and os.listdir(options.directory):
        raise SandboxError(
            f"{options.directory} is not empty; name a new directory, or lay the files over it by --merge"
        )
    tree.write_tree(machine, options.directory)
    return 0


def _run(options: "argparse.Namespace") -> int:
    from nvfakes import sandbox

    command = getattr(options, "command", None) or [os.environ.get("SHELL", "/bin/sh")]
    sandbox.execute(_load(options), command, lane=options.lane)


def _completion(options: "argparse.Namespace") -> int:
    from nvfakes import answers, completion
    from nvfakes.declaration import shipped

    known = {"machine": tuple(shipped()), "key": tuple(answers.READERS), "driver": ("470", "535", "550")}
    sys.stdout.write(completion.script(options.shell, _parser(), known))
    return 0


def _runtime_wrapper(options: "argparse.Namespace") -> int:
    from nvfakes import runtimewrapper

    runtimewrapper.write(options.file, options.runtime, os.environ.get("NVFAKES_ROOT", "/"))
    return 0
