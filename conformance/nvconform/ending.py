"""Ending a run by a signal, with its machines and folders taken away first.

Belongs here: the signals that end a program. Does not belong here: what is taken away (matrix.py, session.py).
"""

import os
import signal
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130  # as shells have it: 128 and the signal's number


class EndedError(BaseException):
    """A signal has come that ends the program; no handler of mistakes takes it for one."""

    def __init__(self, number: int) -> None:
        """Keep the signal's number."""
        super().__init__(number)
        self.number = number

    def finish(self) -> int:
        """Return the exit code of an interrupt, or end by the signal itself, as whoever sent it expects."""
        if self.number != signal.SIGINT:
            signal.signal(self.number, signal.SIG_DFL)
            os.kill(os.getpid(), self.number)
        return INTERRUPTED


class CaughtSignals:
    """A context in which the first signal that would end the program raises EndedError, and those after it are ignored.

    For the main thread. A signal that was ignored before, as under nohup(1), stays so.
    """

    def __enter__(self) -> None:
        """Catch them."""
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        for number in self._caught():
            signal.signal(number, self._end)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Let each have its old meaning again, unless one has come: what is taken away then takes its time."""
        if kind is None or not issubclass(kind, EndedError):
            for number in self._caught():
                signal.signal(number, self._before[number])

    def _caught(self) -> list[signal.Signals]:
        return [number for number, handler in self._before.items() if handler != signal.SIG_IGN]

    def _end(self, number: int, _: FrameType | None) -> NoReturn:
        for other in self._caught():
            signal.signal(other, signal.SIG_IGN)
        raise EndedError(number)
