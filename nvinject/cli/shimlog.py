"""What the runtime shim writes: the debug log of config.toml, and the log that the engine reads errors from.

Belongs here: the engine's two formats. Does not belong here: messages. containerd shows a user the last error of the
file that it names with --log, so an error that only went to standard error would be lost.
"""

import sys
import time

from nvinject import leanos as os
from nvinject.cli.debuglog import Log
from nvinject.formats.jsonio import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvinject.cli.ocicall import Call


class EngineLog:
    """The file that the engine names; a log that cannot be written never stops a container."""

    def __init__(self, call: "Call") -> None:
        """Remember where and how to write; opens nothing yet."""
        self._path = call.log
        self._json = call.log_format == "json"
        self._debug = call.debug

    def write(self, level: str, message: str) -> None:
        """Append one line."""
        if not self._path or (level == "debug" and not self._debug):
            return
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        text = f"nvinject: {message}"
        if self._json:
            line = dumps({"level": level, "msg": text, "time": stamp})
        else:
            line = f"time={dumps(stamp)} level={level} msg={dumps(text)}"
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            return
        try:
            os.write(descriptor, line.encode("ascii", "replace") + b"\n")
        except OSError:
            pass
        finally:
            os.close(descriptor)


class ShimLog(Log):
    """The configured debug log, with everything that the engine shall see in the engine's log as well."""

    def __init__(self, path: str, engine: EngineLog) -> None:
        """Open the configured file, making its folder if that is not there."""
        if path and path != "/dev/null":
            try:
                os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            except OSError as error:
                sys.stderr.write(f"nvinject: warning: cannot make the folder of {path}: {error.strerror}\n")
        super().__init__(path, echo=False, title="create")
        self._engine = engine

    def write(self, message: str) -> None:
        """Write one step."""
        super().write(message)
        self._engine.write("debug", message)

    def warn(self, message: str) -> None:
        """Write one step that the operator should know of even without a log."""
        super().warn(message)
        self._engine.write("warning", message)
