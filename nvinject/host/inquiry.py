"""Questions to a library of the driver, asked by a child process with a time limit.

Belongs here: the child, which may be started before the question is known, and its end. Does not belong here: what is
asked and what answers mean (nvml.py, cuda.py, dxcore.py). A child, because the library may hang in the kernel, crash,
print or keep threads.
"""

import os

from nvinject.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn, Self

    Report = Callable[[str], Iterator[str]]

SIGKILL = 9
GRACE = 1.0  # seconds that a killed child has to go; one stuck in the kernel is left to init
REMEDY = "run nvidia-smi on the host, and look for NVRM in dmesg"


def ask(report: "Callable[[], Iterator[str]]", timeout: float, *, library: str = "NVML") -> str:
    """Return what a child process reports; raises HostError when it takes too long or dies.

    `timeout` is in seconds; `library` is how messages call what the child asks.
    """
    with Inquiry(lambda _question: report(), library=library) as inquiry:
        return inquiry.ask("", timeout)


class Inquiry:
    """A child process that waits for one question; use it as a context, at whose end it is gone.

    The question ends where its pipe is closed, so a second child must not be started in between: it would keep it open.
    """

    def __init__(self, report: "Report", *, prepare: "Callable[[], None] | None" = None, library: str = "NVML") -> None:
        """Start the child: it does `prepare`, then waits for the question and gives it to `report`."""
        self._library = library
        self._reader, self._writer, self._child = -1, -1, 0
        questions = answers = -1
        try:
            questions, self._writer = os.pipe()
            self._reader, answers = os.pipe()
            self._child = os.fork()
            if self._child == 0:
                os.close(self._writer)
                os.close(self._reader)
                _be_child(questions, answers, report, prepare)
        except OSError:
            self.close()
            raise
        finally:
            _close(questions)
            _close(answers)

    def __enter__(self) -> "Self":
        """Return the inquiry itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the child."""
        self.close()

    def ask(self, question: str, timeout: float) -> str:
        """Return what the child reports on the question; raises HostError when that takes too long or the child dies.

        `timeout` is in seconds from now. There is one question to a child.
        """
        self._send(question)
        text, finished = _read_until(self._reader, timeout)
        status = self._end(patience=GRACE if finished else 0.0)
        if not finished:
            raise HostError(
                f"{self._library} did not answer within {timeout} s",
                "turn on persistence mode (nvidia-persistenced, or nvidia-smi -pm 1), so that GPUs stay initialised, "
                "or raise nvinject.nvml-timeout",
            )
        if status is not None and os.WIFSIGNALED(status):
            raise HostError(f"{self._library} crashed: its process died of signal {os.WTERMSIG(status)}", REMEDY)
        return text

    def close(self) -> None:
        """End the child, asked or not; a second time it does nothing."""
        self._end(patience=0.0)

    def _send(self, question: str) -> None:
        rest = os.fsencode(question)
        try:
            while rest:
                rest = rest[os.write(self._writer, rest) :]
        except BrokenPipeError:
            pass  # the child has died already, and its status tells how
        self._writer = _close(self._writer)

    def _end(self, patience: float) -> int | None:
        """Close both pipes and return the child's wait status."""
        self._writer, self._reader = _close(self._writer), _close(self._reader)
        child, self._child = self._child, 0
        return _reap(child, patience) if child else None


def _close(descriptor: int) -> int:
    """Close a descriptor that is open, and return what stands for none."""
    if descriptor >= 0:
        os.close(descriptor)
    return -1


def _be_child(questions: int, answers: int, report: "Report", prepare: "Callable[[], None] | None") -> "NoReturn":
    """Report and end: whatever happens, a forked child must not return into its parent's code."""
    try:
        null = os.open("/dev/null", os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        if prepare is not None:
            prepare()
        question = b""
        while chunk := os.read(questions, 1 << 16):
            question += chunk
        rest = "".join(f"{line}\n" for line in report(os.fsdecode(question))).encode("utf-8", "replace")
        while rest:
            rest = rest[os.write(answers, rest) :]
    finally:
        os._exit(0)


def _read_until(reader: int, timeout: float) -> tuple[str, bool]:
    """Return what came through the pipe, and whether it was closed within the time limit."""
    import select
    import time

    deadline = time.monotonic() + timeout
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    chunks: list[bytes] = []
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return "", False
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            return b"".join(chunks).decode("utf-8", "replace"), True
        chunks.append(chunk)


def _reap(child: int, patience: float) -> int | None:
    """Return the child's wait status once it ended, killing it after `patience` seconds.

    None where it will not go: a process in an uninterruptible call of the driver does not die, and waiting for it would
    hang the container's start. It is left to init then.
    """
    status = _wait(child, patience)
    if status is None:
        try:
            os.kill(child, SIGKILL)
        except ProcessLookupError:
            return None
        status = _wait(child, GRACE)
    return status


def _wait(child: int, seconds: float) -> int | None:
    import time

    deadline = time.monotonic() + seconds
    while True:
        try:
            pid, status = os.waitpid(child, os.WNOHANG)
        except ChildProcessError:
            return None  # SIGCHLD is ignored in this process: the kernel reaps
        if pid == child:
            return status
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.0005)
