"""Running a program under ptrace, stopping it at each system call, and letting a call fail.

Belongs here: following processes, reading arguments and paths, putting an error in the place of a call. Does not belong
here: which paths are wrong (tracingpaths.py) and what has to hold after an error (faults.py). python-ptrace has the
kernel's interface, its structures and the names of calls; its own loop over several processes polls, hence one of ours.
"""

import contextlib
import errno
import logging
import os
import platform
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["AT_FDCWD", "Call", "Outcome", "TracingError", "call_names", "run", "unavailable"]

AT_FDCWD = -100
WALL = 0x40000000
PTRACE_O_EXITKILL = 0x00100000
SYSTEM_CALL_STOP = signal.SIGTRAP | 0x80
PTRACE_EVENT_EXEC = 4
LEFTOVER_SECONDS = 1.0
# Newer than python-ptrace's table; from 424 on all machines have the same numbers.
NEWER_CALLS = {441: "epoll_pwait2", 442: "mount_setattr", 443: "quotactl_fd", 452: "fchmodat2"}


class TracingError(Exception):
    """Programs cannot be traced here; the text says why."""


@dataclass(frozen=True)
class Registers:
    """Where a machine has a call's number, its arguments and its result: syscall(2), in python-ptrace's names."""

    number: str
    result: str
    arguments: tuple[str, ...]


REGISTERS = {
    "x86_64": Registers("orig_rax", "rax", ("rdi", "rsi", "rdx", "r10", "r8", "r9")),
    "aarch64": Registers("r8", "r0", ("r0", "r1", "r2", "r3", "r4", "r5")),
}


@dataclass(frozen=True)
class Call:
    """One system call at its entry: of which process (in order of birth), the how-many-eth there, its arguments."""

    process: int
    index: int
    pid: int
    name: str
    arguments: tuple[int, ...]

    def word(self, position: int) -> str | None:
        """Return the text that an argument points to; None for a null pointer."""
        address = self.arguments[position]
        return None if address == 0 else read_text(self.pid, address)

    def memory(self, position: int, size: int) -> bytes:
        """Return bytes that an argument points to."""
        with Path(f"/proc/{self.pid}/mem").open("rb", 0) as memory:
            memory.seek(self.arguments[position])
            return memory.read(size)

    def number(self, position: int) -> int:
        """Return an argument as C's int."""
        value = self.arguments[position] & 0xFFFFFFFF
        return value - (1 << 32) if value >> 31 else value


@dataclass
class Outcome:
    """How a traced run ended: exit code, standard error, what was left running.

    Without a code it was killed: by `signal`, or at the time limit where that is 0.
    """

    code: int | None = None
    signal: int = 0
    message: str = ""
    left: list[str] = field(default_factory=list)
    calls: int = 0


OnEntry = Callable[[Call], int | None]
OnExit = Callable[[Call, int], None]


def unavailable() -> str:
    """Return why calls cannot be traced and replaced here, or "" where they can; found out by doing it."""
    if platform.machine() != "x86_64":
        # arm64 takes another number from a register set of its own, NT_ARM_SYSTEM_CALL: ptrace(2) has no word of it.
        return f"calls are replaced through the registers of x86_64, and this is {platform.machine()}"
    try:
        outcome = run(["/bin/true"], on_entry=lambda _: None, seconds=10)
    except TracingError as error:
        return str(error)
    return "" if outcome.code == 0 else f"tracing /bin/true ended with {outcome.code}"


def call_names() -> dict[int, str]:
    """Return number -> name of this machine's system calls."""
    try:
        from ptrace.syscall import SYSCALL_NAMES
    except ImportError as error:
        raise TracingError(f"python-ptrace is not installed: {error}") from error
    return {**NEWER_CALLS, **SYSCALL_NAMES}


def run(
    command: Sequence[str],
    *,
    on_entry: OnEntry,
    on_exit: OnExit | None = None,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    seconds: float = 20,
    until_exec: str = "",
) -> Outcome:
    """Run a program and its children to their end, calling back at each system call.

    `on_entry` returns an error number that the call shall fail with instead of being made, or None. `on_exit` gets the
    result. A process that executes the program `until_exec` is let go. Raises: TracingError.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(stdin)
        given.seek(0)
        tracer = _Tracer(on_entry, on_exit, until_exec)
        outcome = tracer.run(command, dict(environment or {}), given.fileno(), said.fileno(), seconds)
        said.seek(0)
        outcome.message = said.read().decode(errors="replace")
    return outcome


def read_text(pid: int, address: int, limit: int = 4096) -> str:
    """Return the zero-terminated text at an address of a stopped process."""
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        memory.seek(address)
        found = b""
        while b"\0" not in found and len(found) < limit:
            # Not over the end of a page: the next one may not be mapped.
            part = memory.read(4096 - (address + len(found)) % 4096)
            if not part:
                break
            found += part
    return os.fsdecode(found.split(b"\0")[0])


@dataclass
class _Process:
    order: int
    index: int = 0
    inside: bool = False
    call: Call | None = None
    failure: int | None = None
    fresh: bool = True


class _Tracer:
    """One traced run."""

    def __init__(self, on_entry: OnEntry, on_exit: OnExit | None, until_exec: str) -> None:
        try:
            from ptrace import binding
        except ImportError as error:
            raise TracingError(f"python-ptrace is not installed: {error}") from error
        # It would say through logging that its optional parts are missing.
        logging.getLogger("ptrace").setLevel(logging.CRITICAL)
        self.binding: Any = binding
        try:
            self.registers = REGISTERS[platform.machine()]
        except KeyError as error:
            raise TracingError(f"which registers hold calls is not known of {platform.machine()}") from error
        self.names = call_names()
        self.on_entry = on_entry
        self.on_exit = on_exit
        self.until_exec = until_exec
        self.known: dict[int, _Process] = {}
        self.outcome = Outcome()
        self.expired = False

    def run(
        self, command: Sequence[str], environment: dict[str, str], given: int, said: int, seconds: float
    ) -> Outcome:
        first = self._start(command, environment, given, said)
        options = self._options()
        self.binding.ptrace_setoptions(first, options)
        self.known[first] = _Process(0, fresh=False)
        self.group = first
        with self._time_limit(seconds):
            self.binding.ptrace_syscall(first)
            try:
                self._follow(first)
            finally:
                self._end(first)
        return self.outcome

    @staticmethod
    def _options() -> int:
        from ptrace.binding.func import (
            PTRACE_O_TRACECLONE,
            PTRACE_O_TRACEEXEC,
            PTRACE_O_TRACEFORK,
            PTRACE_O_TRACESYSGOOD,
            PTRACE_O_TRACEVFORK,
        )

        options: int = (
            PTRACE_O_TRACESYSGOOD
            | PTRACE_O_TRACEFORK
            | PTRACE_O_TRACEVFORK
            | PTRACE_O_TRACECLONE
            | PTRACE_O_TRACEEXEC
            | PTRACE_O_EXITKILL
        )
        return options

    def _start(self, command: Sequence[str], environment: dict[str, str], given: int, said: int) -> int:
        child = os.fork()
        if child == 0:
            try:
                os.setpgid(0, 0)
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(given, 0)
                os.dup2(null, 1)
                os.dup2(said, 2)
                os.closerange(3, 1024)
                self.binding.ptrace_traceme()
                os.execve(command[0], list(command), environment)
            finally:
                os._exit(127)
        _, status = os.waitpid(child, 0)
        if not os.WIFSTOPPED(status):
            raise TracingError(f"ptrace is not permitted here, or {command[0]} cannot be started")
        return child

    @contextlib.contextmanager
    def _time_limit(self, seconds: float) -> Iterator[None]:
        """Kill the group after a time; the caller's own alarm is set again afterwards."""
        handler = signal.signal(signal.SIGALRM, self._expire)
        begun = time.monotonic()
        delay, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 0.2)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            if delay:
                signal.setitimer(signal.ITIMER_REAL, max(0.001, delay - time.monotonic() + begun), interval)

    def _expire(self, _number: int, _frame: FrameType | None) -> None:
        self.expired = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)

    def _follow(self, first: int) -> None:
        """Handle stops until the first process has ended and all of its group, or the others had their time."""
        deadline = 0.0
        while True:
            try:
                pid, status = os.waitpid(-self.group, WALL | (os.WNOHANG if deadline else 0))
            except ChildProcessError:
                return
            if pid == 0:
                if time.monotonic() > deadline:
                    self.outcome.left += [describe(other) for other in self.known]
                    return
                time.sleep(0.002)
                continue
            if os.WIFSTOPPED(status):
                self._stop(pid, status)
                continue
            self.known.pop(pid, None)
            if pid == first:
                if os.WIFSIGNALED(status):
                    self.outcome.signal = 0 if self.expired else os.WTERMSIG(status)
                else:
                    self.outcome.code = os.WEXITSTATUS(status)
                if not self.known:
                    return
                deadline = time.monotonic() + LEFTOVER_SECONDS

    def _stop(self, pid: int, status: int) -> None:
        process = self.known.setdefault(pid, _Process(len(self.known)))
        number = os.WSTOPSIG(status)
        event = status >> 16
        try:
            if number == SYSTEM_CALL_STOP:
                self._system_call(pid, process)
            if event == PTRACE_EVENT_EXEC and self._is_let_go(pid):
                del self.known[pid]
                self.binding.ptrace_detach(pid)
                return
            begins = process.fresh and number == signal.SIGSTOP
            is_ours = number == SYSTEM_CALL_STOP or event or begins
            process.fresh = False
            self.binding.ptrace_syscall(pid, 0 if is_ours else number)
        except Exception as error:
            # Killed meanwhile; the next wait tells.
            if getattr(error, "errno", None) != errno.ESRCH and not isinstance(error, ProcessLookupError):
                raise

    def _is_let_go(self, pid: int) -> bool:
        return bool(self.until_exec) and os.path.realpath(f"/proc/{pid}/exe") == self.until_exec

    def _system_call(self, pid: int, process: _Process) -> None:
        registers = self.binding.ptrace_getregs(pid)
        if process.inside:
            self._leave(pid, process, registers)
        else:
            self._enter(pid, process, registers)
        process.inside = not process.inside

    def _enter(self, pid: int, process: _Process, registers: Any) -> None:
        number = getattr(registers, self.registers.number)
        arguments = tuple(int(getattr(registers, name)) for name in self.registers.arguments)
        process.call = Call(process.order, process.index, pid, self.names.get(number, f"call{number}"), arguments)
        process.index += 1
        self.outcome.calls += 1
        process.failure = self.on_entry(process.call)
        if process.failure is not None:
            if process.call.name == "brk":
                setattr(registers, self.registers.arguments[0], 0)
            else:
                setattr(registers, self.registers.number, (1 << 64) - 1)  # no such call: nothing is done
            self.binding.ptrace_setregs(pid, registers)

    def _leave(self, pid: int, process: _Process, registers: Any) -> None:
        if process.failure is not None:
            if process.call is not None and process.call.name == "brk":
                # brk(2), "C library/kernel differences": it tells no error, but the break as it is. So does one for 0,
                # which was made in its place; the C library compares the result with what it had asked for.
                setattr(registers, self.registers.arguments[0], process.call.arguments[0])
            else:
                setattr(registers, self.registers.result, (1 << 64) - process.failure)
            self.binding.ptrace_setregs(pid, registers)
        elif self.on_exit is not None and process.call is not None:
            result = int(getattr(registers, self.registers.result))
            self.on_exit(process.call, result - (1 << 64) if result >> 63 else result)

    def _end(self, first: int) -> None:
        """Kill what is left of the group and collect it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(first, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-first, WALL)


def describe(pid: int) -> str:
    """Return process id and command line."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(bytes(1), b" ")
        return f"{pid} {words.decode(errors='replace').strip()}"
    return str(pid)


def restrict_to_one_processor(which: int = 0) -> None:
    """Let tracer and traced programs share one processor: each stop then costs a switch and no message between two."""
    with contextlib.suppress(OSError):
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[which % len(allowed)]})
