"""Timing of one process: from before it is spawned until it was waited for.

Belongs here: the clock, and the highest resident memory. Does not belong here: what is run.
"""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# Forks and waits, because a process that is spawned directly counts the memory of its parent before exec as its own.
MEASURE_MEMORY = """\
import posix, sys
child = posix.fork()
if not child:
    posix.execve(sys.argv[1], sys.argv[1:], posix.environ)
print(posix.wait4(child, 0)[2].ru_maxrss)
"""


class Timed(NamedTuple):
    """Milliseconds on the wall clock and of processor time (children that were waited for included), exit code."""

    milliseconds: float
    processor: float
    code: int


def run(command: Sequence[str], *, stdin: Path | None, errors: Path, environment: Mapping[str, str]) -> Timed:
    """Run a command; its messages go to the file `errors`."""
    written = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    actions: list[Any] = [
        (os.POSIX_SPAWN_OPEN, 0, str(stdin or "/dev/null"), os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, str(errors), written, 0o600),
    ]
    begin = time.perf_counter_ns()
    child = os.posix_spawn(command[0], list(command), dict(environment), file_actions=actions)
    _, status, usage = os.wait4(child, 0)
    end = time.perf_counter_ns()
    used = (usage.ru_utime + usage.ru_stime) * 1e3
    return Timed((end - begin) / 1e6, used, os.waitstatus_to_exitcode(status))


def peak_memory(interpreter: str, command: Sequence[str], *, stdin: Path | None, environment: Mapping[str, str]) -> int:
    """Run a command and return the highest resident memory, in KiB, of the largest among it and its children."""
    reading, writing = os.pipe()
    actions: list[Any] = [
        (os.POSIX_SPAWN_OPEN, 0, str(stdin or "/dev/null"), os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, writing, 1),
    ]
    words = [interpreter, "-IS", "-c", MEASURE_MEMORY, *command]
    child = os.posix_spawn(interpreter, words, dict(environment), file_actions=actions)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        output = stream.read()
    os.waitpid(child, 0)
    return int(output.splitlines()[-1])
