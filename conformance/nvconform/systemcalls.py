"""Counting a program's system calls: a measure that does not depend on how fast a machine is.

Belongs here: running a program under ptrace and counting, its children included. Does not belong here: how many calls
are too many.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from nvconform import tracing
from nvconform.tracing import Call, TracingError

SECONDS = 120


def count(
    command: Sequence[str], *, stdin: bytes = b"", environment: Mapping[str, str] | None = None
) -> tuple[int, Counter[str]]:
    """Run a program and return its exit code and the number of each of its system calls.

    What it writes is lost. Raises: TracingError where programs cannot be traced, or where this one was killed.
    """
    calls: Counter[str] = Counter()

    def note(call: Call) -> None:
        calls[call.name] += 1

    outcome = tracing.run(command, on_entry=note, stdin=stdin, environment=environment, seconds=SECONDS)
    if outcome.code is None:
        reason = f"killed by signal {outcome.signal}" if outcome.signal else f"not done after {SECONDS} seconds"
        raise TracingError(f"{command[0]} was {reason}")
    return outcome.code, calls


def main(arguments: Sequence[str]) -> int:
    """Run `FILE COMMAND ...` as a hook in place of COMMAND: counts go to FILE, input and exit code stay."""
    target, *command = arguments
    code, calls = count(command, stdin=sys.stdin.buffer.read(), environment=os.environ)
    Path(target).write_text(json.dumps(dict(sorted(calls.items())), indent=1) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
