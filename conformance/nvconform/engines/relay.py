"""The relay: what an engine calls as its low-level runtime, so that a container can be looked at between its steps.

Belongs here: asking the worker before `create` and before `start`, running what it answers, and handing every other
call on as it is. Does not belong here: what the answers are (engine.py). Started by a script of its own with `-IS`, by
engines that pass no environment on; standard library only.

An engine creates and starts a container in one go. The relay tells the worker of each of both calls over a socket and
does it when the answer comes. Arguments and bundle are the engine's own; what the called program writes to standard
error goes to a file first, because the engine may show it in words of its own, and then to the engine.
"""

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

WITH_VALUE = ("--root", "--log", "--log-format", "--log-level", "--criu", "--rootless", "--cgroup-manager")
HELD = ("create", "start")
# Most calls are none that is held: a shell starts in a tenth of the time that an interpreter needs.
_SCRIPT = """\
#!/bin/sh
for word; do
  case $word in create|start) exec {python} -IS -c {program} "$@" ;; esac
done
. {call}
"""
_PROGRAM = """\
import sys
sys.path.append({package!r})
from nvconform.engines.relay import main
main({address!r}, {call!r}, sys.argv[1:])
"""


def write(path: Path, python: str, address: Path, call: Path) -> None:
    """Write the script that an engine is given as its runtime; `call` is what it becomes (`write_call`)."""
    program = _PROGRAM.format(package=str(Path(__file__).parents[2]), address=str(address), call=str(call))
    path.write_text(_SCRIPT.format(python=python, program=shlex.quote(program), call=shlex.quote(str(call))))
    path.chmod(0o755)


def write_call(path: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Write the script that is run in the runtime's place: a command, with variables beside those of the engine."""
    exports = [f"export {name}={shlex.quote(text)}\n" for name, text in environment.items()]
    path.write_text(f'#!/bin/sh\n{"".join(exports)}exec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)


def main(address: str, call: str, arguments: list[str]) -> NoReturn:
    """Serve a call of the engine that may be one that is held."""
    step = subcommand(arguments)
    command = ["/bin/sh", call, *arguments]
    if step in HELD:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            stream = connection.makefile("rw")
            bundle = os.path.realpath(value(arguments, "--bundle", "-b") or ".")
            _tell(stream, {"step": step, "identifier": arguments[-1], "bundle": bundle})
            answer = _hear(stream)
            if "refuse" in answer:
                sys.exit(1)
            if step == "create":
                sys.exit(_create(stream, Path(answer["message"]), command, arguments))
    os.execv(command[0], command)


def _create(stream: IO[str], message: Path, command: list[str], arguments: list[str]) -> int:
    """Run the command, tell what came of it, and wait until it was looked at."""
    with message.open("wb") as errors:
        done = subprocess.run(command, stderr=errors, check=False)
    text = message.read_text(errors="replace")
    log, pid = (_text(value(arguments, name)) for name in ("--log", "--pid-file"))
    _tell(stream, {"code": done.returncode, "message": text, "log": log, "pid": int(pid or "0")})
    seen = "refuse" not in _hear(stream)
    sys.stderr.write(text)
    return done.returncode or (0 if seen else 1)


def subcommand(arguments: list[str]) -> str:
    """Return the first word that is neither an option nor an option's value."""
    words = iter(arguments)
    for word in words:
        if word in WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word
    return ""


def value(arguments: list[str], *names: str) -> str:
    """Return the value of an option that is written with or without an equals sign, "" where it is not given."""
    for place, word in enumerate(arguments):
        name, equals, text = word.partition("=")
        if name in names:
            return text if equals else arguments[place + 1]
    return ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace") if path else ""
    except OSError:
        return ""


def _tell(stream: IO[str], document: dict[str, Any]) -> None:
    stream.write(json.dumps(document) + "\n")
    stream.flush()


def _hear(stream: IO[str]) -> dict[str, Any]:
    """Return the worker's answer; without one the container is refused, because nobody would look at it."""
    line = stream.readline()
    answer: dict[str, Any] = json.loads(line) if line else {"refuse": True}
    return answer
