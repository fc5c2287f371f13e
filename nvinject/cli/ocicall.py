"""The command line that an engine gives an OCI runtime, as far as a shim in front of the runtime has to know it.

Belongs here: which word is the command, where the bundle is, which log the engine reads. Does not belong here: what is
done about it (runtime.py). The words themselves are never changed. The launcher's own scan, in POSIX shell, has the
same tables (shimlauncher.py).
"""

from nvinject.errors import UsageError
from nvinject.record import Record

# Commands of the OCI runtime command line interface, and those that runc, crun and youki add.
COMMANDS = frozenset(
    [
        "checkpoint",
        "completion",
        "create",
        "delete",
        "events",
        "exec",
        "features",
        "help",
        "info",
        "init",
        "kill",
        "list",
        "mounts",
        "pause",
        "ps",
        "restore",
        "resume",
        "run",
        "spec",
        "start",
        "state",
        "update",
        "version",
    ]
)
# Options before the command that take their value from the next word (runc, crun, youki).
GLOBAL_VALUES = frozenset(
    [
        "--root",
        "-root",
        "-r",
        "--log",
        "-log",
        "-l",
        "--log-format",
        "-log-format",
        "--log-level",
        "-log-level",
        "--criu",
        "-criu",
        "--rootless",
        "-rootless",
        "--cgroup-manager",
        "-cgroup-manager",
    ]
)
CREATING = ("create", "run")


class Call(Record):
    """One call of a runtime.

    `identifier` is the container's id, "" for commands without one. `log` and `log_format` are those of the engine;
    `root` is the runtime's state directory where the engine names it.
    """

    words: tuple[str, ...]
    command: str = ""
    bundle: str = ""
    identifier: str = ""
    log: str = ""
    log_format: str = ""
    root: str = ""
    debug: bool = False
    detached: bool = False
    version: bool = False


def parse_call(words: "tuple[str, ...]") -> Call:
    """Return what the words say; raises UsageError for a creating call whose last word is --bundle."""
    options: dict[str, str] = {}
    place = _find_command(words, options)
    command = words[place] if place < len(words) else ""
    rest = words[place + 1 :]
    return Call(
        words=words,
        command=command,
        bundle=_find_bundle(rest) if command in CREATING else "",
        identifier=rest[-1] if rest and not rest[-1].startswith("-") else "",
        log=options.get("log", options.get("l", "")),
        log_format=options.get("log-format", ""),
        root=options.get("root", options.get("r", "")),
        debug="debug" in options,
        detached=any(word in {"-d", "--detach", "-detach"} for word in rest),
        version="version" in options,
    )


def _find_command(words: "tuple[str, ...]", options: "dict[str, str]") -> int:
    """Return the index of the command (the number of words if there is none), filling in the options before it.

    A word that is no known command may be the value of an option that we do not know.
    """
    place = 0
    while place < len(words):
        word = words[place]
        if word in GLOBAL_VALUES:
            options[word.lstrip("-")] = words[place + 1] if place + 1 < len(words) else ""
            place += 1
        elif word.startswith("-"):
            name, _, value = word.lstrip("-").partition("=")
            options[name] = value
        elif word in COMMANDS:
            return place
        place += 1
    return place


def _find_bundle(words: "tuple[str, ...]") -> str:
    """Return the bundle that the words after the command name, the last one if there are several; "" for none."""
    bundle = ""
    place = 0
    while place < len(words):
        name, equals, value = words[place].partition("=")
        if name.startswith("-") and name.lstrip("-") in {"bundle", "b"}:
            if not equals:
                place += 1
                if place == len(words):
                    raise UsageError("bundle option requires an argument", "give the bundle's folder after --bundle")
                value = words[place]
            bundle = value
        place += 1
    return bundle
