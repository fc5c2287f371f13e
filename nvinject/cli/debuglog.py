"""The debug log of a hook: the steps that were done for a container, in the file that config.toml names.

Belongs here: writing lines. Does not belong here: what is told.
"""

import sys

from nvinject import leanos as os
from nvinject.errors import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self


class Log:
    """The debug log: steps go to the configured file, warnings also to standard error.

    A log that cannot be written never stops a container; it says so once on standard error.
    """

    def __init__(self, path: str, *, echo: bool, title: str = "prestart") -> None:
        """Open the file for appending, unless there is none to write."""
        self._echo = echo
        self._title = title
        self._descriptor = -1
        if path and path != "/dev/null":
            try:
                self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                sys.stderr.write(f"nvinject: warning: cannot write the log {path}: {error.strerror}\n")

    def __enter__(self) -> "Self":
        """Start with the process, so that lines of several containers can be told apart."""
        self.write(self._title)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        if self._descriptor < 0:
            return
        try:
            os.close(self._descriptor)
        except OSError as error:  # a network's file system writes only now; the container has what it needs
            sys.stderr.write(f"nvinject: warning: the log's last lines may be lost: {error.strerror}\n")
        self._descriptor = -1

    @property
    def is_kept(self) -> bool:
        """Say whether anybody will see the steps."""
        return self._echo or self._descriptor >= 0

    def write(self, message: str) -> None:
        """Write one step, in one line whatever names of a container's own choosing are in it."""
        if self._echo:
            sys.stderr.write(f"nvinject: {printable(message)}\n")
        if self._descriptor >= 0:
            line = f"{_time_stamp()} nvinject[{os.getpid()}]: {printable(message)}\n"
            try:
                os.write(self._descriptor, line.encode(errors="surrogateescape"))
            except OSError as error:
                os.close_quietly(self._descriptor)
                self._descriptor = -1
                sys.stderr.write(f"nvinject: warning: the log is not written any more: {error.strerror}\n")

    def warn(self, message: str) -> None:
        """Write one step that the operator should know of even without a log."""
        self.write(f"warning: {message}")
        if not self._echo:
            sys.stderr.write(f"nvinject: warning: {printable(message)}\n")


def _time_stamp() -> str:
    """Return the time in UTC; not by strftime(3), which reads /etc/localtime, at the end perhaps a container's."""
    import time

    now = time.gmtime()
    return f"{now.tm_year:04}-{now.tm_mon:02}-{now.tm_mday:02}T{now.tm_hour:02}:{now.tm_min:02}:{now.tm_sec:02}Z"
