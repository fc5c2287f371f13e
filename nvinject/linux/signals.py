"""Holding back the signals that end a program, while it does what must not be left half done.

Belongs here: pthread_sigmask(2). Does not belong here: which steps belong together.
"""

import _signal  # type: ignore[import-not-found]  # the C part alone: signal.py imports enum, 3 ms

# From closed terminals, people and service managers. SIGKILL cannot be held back, and SIGQUIT asks for a core.
_ENDING = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGTERM)


class Undisturbed:
    """A context in which SIGHUP, SIGINT and SIGTERM wait; one that came meanwhile takes effect at its end.

    For short steps on files only: nobody but SIGKILL ends a program that waits in here, and programs started in here
    would hold these signals back for good. A second one inside the first changes nothing.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        """Hold the signals back."""
        self._before: set[int] = _signal.pthread_sigmask(_signal.SIG_BLOCK, _ENDING)

    def __exit__(self, *_: object) -> None:
        """Let them come again; raises KeyboardInterrupt where SIGINT has come, unless another one is around this."""
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self._before)
