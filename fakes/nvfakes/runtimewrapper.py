"""An OCI runtime that is another runtime plus the stand-in for the kernel.

Belongs here: inserting the kernel hook into config.json on `create` and `run`, and handing every call on. Does not
belong here: the hook itself (kernelhook.py).
"""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

HOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernelhook.py")
# Global options of runc and crun that take a value; others are flags.
_WITH_VALUE = ("--root", "--log", "--log-format", "--log-level", "--criu", "--rootless", "--cgroup-manager")
_SCRIPT = """\
#!{python} -IS
import sys
sys.path.append({package!r})
from nvfakes.runtimewrapper import main
main({runtime!r}, {root!r}, sys.argv[1:])
"""


def write(path: str, runtime: str, root: str) -> None:
    """Write the wrapper as an executable file, in one step; `root` is where the machine stands."""
    from nvfakes.errors import SandboxError

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    text = _SCRIPT.format(python=os.path.realpath(sys.executable), package=package, runtime=runtime, root=root)
    target = Path(path)
    if target.exists() and not target.is_file():
        raise SandboxError(f"{path} is no ordinary file; name another one")
    fresh = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.chmod(0o755)
        fresh.replace(target)
    except OSError as error:
        raise SandboxError(f"cannot write {path}: {error.strerror}; name another place") from None
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()


def main(runtime: str, root: str, arguments: list[str]) -> NoReturn:
    """Insert the hook if this call makes a container, then become the runtime."""
    try:
        command = subcommand(arguments)
        if command in {"create", "run"}:
            insert_hook(os.path.join(bundle(arguments), "config.json"), root)
        os.execvp(runtime, [runtime, *arguments])
    except (OSError, ValueError) as error:
        print(f"nvfakes runtime-wrapper: {error}", file=sys.stderr)
        os._exit(1)


def subcommand(arguments: list[str]) -> str:
    """Return the first word that is neither an option nor an option's value."""
    words = iter(arguments)
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word
    return ""


def bundle(arguments: list[str]) -> str:
    """Return the bundle that the call names; the current folder if it names none."""
    for place, word in enumerate(arguments):
        if word in {"-b", "--bundle"}:
            return arguments[place + 1] if place + 1 < len(arguments) else "."
        name, equals, value = word.partition("=")
        if equals and name in {"-b", "--bundle"}:
            return value
    return "."


def insert_hook(path: str, root: str) -> None:
    """Put the kernel hook first among the prestart hooks of a config.json, once."""
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    python = os.path.realpath(sys.executable)  # also as the first argument, from which Python finds its own modules
    hook = {"path": python, "args": [python, "-IS", HOOK, root], "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]}
    hooks: dict[str, Any] = config.get("hooks") or {}
    prestart = hooks.get("prestart") or []
    if not prestart or prestart[0] != hook:
        hooks["prestart"] = [hook, *prestart]
    config["hooks"] = hooks
    temporary = f"{path}.nvfakes"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(config, file)
    os.replace(temporary, path)
