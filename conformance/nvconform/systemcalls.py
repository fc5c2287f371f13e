"""Counting a program's system calls: a measure that does not depend on how fast a machine is.

Belongs here: running a program under ptrace and counting, its children included. Does not belong here: how many calls
are too many.
"""

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class TracingError(Exception):
    """Programs cannot be traced here; the text says why."""


def count(
    command: Sequence[str], *, stdin: Path | None = None, environment: Mapping[str, str] | None = None
) -> tuple[int, Counter[str]]:
    """Run a program and return its exit code and the number of each of its system calls.

    What it writes is lost. Raises: TracingError where there is no python-ptrace or the kernel does not let us trace.
    """
    try:
        from ptrace.debugger import (
            NewProcessEvent,
            ProcessExecution,
            ProcessExit,
            ProcessSignal,
            PtraceDebugger,
        )
        from ptrace.func_call import FunctionCallOptions
    except ImportError as error:
        raise TracingError(f"python-ptrace is not installed: {error}") from error
    calls: Counter[str] = Counter()
    code = 0
    debugger = PtraceDebugger()
    first = _start(command, stdin, dict(environment or {}))
    try:
        debugger.traceExec()
        debugger.traceFork()
        debugger.enableSysgood()
        try:
            debugger.addProcess(first, is_attached=True).syscall()
        except ProcessExit as event:
            raise TracingError(f"tracing is not permitted here, or {command[0]} cannot be started") from event
        options = FunctionCallOptions()
        while debugger:
            try:
                process: Any = debugger.waitSyscall().process
                call = process.syscall_state.event(options)
                if call is not None and call.result is None:
                    calls[call.name] += 1
                process.syscall()
            except ProcessExit as event:
                if event.process.pid == first:
                    code = event.exitcode or 0
            except ProcessSignal as event:
                event.process.syscall(event.signum)
            except NewProcessEvent as event:
                event.process.syscall()
                event.process.parent.syscall()
            except ProcessExecution as event:
                event.process.syscall()
    finally:
        debugger.quit()
    return code, calls


def _start(command: Sequence[str], stdin: Path | None, environment: dict[str, str]) -> int:
    """Start the program, stopped and traced by us; returns its process id."""
    from ptrace.binding import ptrace_traceme

    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(stdin or os.devnull, os.O_RDONLY), 0)
            for descriptor in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            ptrace_traceme()
            os.execve(command[0], list(command), environment)
        finally:
            os._exit(127)
    return child


def main(arguments: Sequence[str]) -> int:
    """Run `FILE COMMAND ...` as a hook in place of COMMAND: counts go to FILE, input and exit code stay."""
    target, *command = arguments
    with tempfile.NamedTemporaryFile() as copy:
        copy.write(sys.stdin.buffer.read())
        copy.flush()
        code, calls = count(command, stdin=Path(copy.name), environment=os.environ)
    Path(target).write_text(json.dumps(dict(sorted(calls.items())), indent=1) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
