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
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, NoReturn

WITH_VALUE = ("--root", "--log", "--log-format", "--log-level", "--criu", "--rootless", "--cgroup-manager")
HELD = ("create", "start")
_SCRIPT = """\
#!{python} -IS
import sys
sys.path.append({package!r})
from nvconform.engines.relay import main
main({address!r}, {calls!r}, sys.argv[1:])
"""


def write(path: Path, python: str, address: Path, calls: Path) -> None:
    """Write the script that an engine is given as its runtime; `calls` is the file that says what runs in its place."""
    package = str(Path(__file__).parents[2])
    path.write_text(_SCRIPT.format(python=python, package=package, address=str(address), calls=str(calls)))
    path.chmod(0o755)


def main(address: str, calls: str, arguments: list[str]) -> NoReturn:
    """Serve one call of the engine."""
    step = subcommand(arguments)
    settings = json.loads(Path(calls).read_text())
    command, environment = [*settings["command"], *arguments], {**os.environ, **settings["environment"]}
    if step not in HELD:
        os.execvpe(command[0], command, environment)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        stream = connection.makefile("rw")
        bundle = os.path.realpath(value(arguments, "--bundle", "-b") or ".")
        _tell(stream, {"step": step, "identifier": arguments[-1], "bundle": bundle})
        answer = _hear(stream)
        if "refuse" in answer:
            sys.exit(1)
        if step == "create":
            sys.exit(_create(stream, Path(answer["message"]), command, environment, arguments))
    os.execvpe(command[0], command, environment)


def _create(
    stream: IO[str], message: Path, command: list[str], environment: dict[str, str], arguments: list[str]
) -> int:
    """Run the command, tell what came of it, and wait until it was looked at."""
    with message.open("wb") as errors:
        done = subprocess.run(command, env=environment, stderr=errors, check=False)
    text = message.read_text(errors="replace")
    log, pid = (_text(value(arguments, name)) for name in ("--log", "--pid-file"))
    _tell(stream, {"code": done.returncode, "message": text, "log": log, "pid": int(pid or "0")})
    _hear(stream)
    sys.stderr.write(text)
    return done.returncode


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
