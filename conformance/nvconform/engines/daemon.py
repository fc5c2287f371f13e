"""An engine with a daemon: one is kept up for all cases of a machine.

Belongs here: starting, waiting for the first answer, ending. Does not belong here: the daemons' own options (docker.py,
containerd.py).
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence

from nvconform import observe
from nvconform.engines.engine import Engine, Surroundings, remove_cgroups

START_SECONDS = 60
STOP_SECONDS = 20


class DaemonError(Exception):
    """The daemon cannot be had; the message says why, with the end of its log."""


class DaemonEngine(Engine):
    """An engine whose daemon lives in this process's mount namespace, and so on the machine."""

    def __init__(self, surroundings: Surroundings) -> None:
        """Name everything; the daemon is started by `prepare_host`."""
        super().__init__(surroundings)
        self.log = self.folder / "daemon.log"
        self.group = f"nvconform-{os.getpid()}"
        self.daemon: subprocess.Popen[bytes] | None = None

    def daemon_command(self) -> Sequence[str]:
        """Return the daemon's command line."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Tell whether the daemon answers."""
        raise NotImplementedError

    def prepare_host(self) -> None:
        """Start the daemon and wait for its first answer.

        Raises: DaemonError when it ends or says nothing in time.
        """
        with self.log.open("wb") as log:
            # In this process's group: who kills that at a time limit must not leave a daemon behind.
            self.daemon = subprocess.Popen(
                self.daemon_command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
                cwd=self.folder,
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.daemon.poll() is None:
            if self.answers():
                return
            time.sleep(0.05)
        self.close()
        raise DaemonError(f"{self.programs[0]} does not start; the end of its log: {observe.read(self.log)[-2000:]}")

    def close(self) -> None:
        """End the daemon."""
        super().close()
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.terminate()
            try:
                self.daemon.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()
        for line in observe.children_of(os.getpid()):
            # A shim whose daemon is gone is nobody's.
            if str(self.folder) in line:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(line.split(" ")[0]), signal.SIGKILL)
        remove_cgroups(self.group)

    def processes(self) -> set[int]:
        """Return the daemon's process."""
        return {self.daemon.pid} if self.daemon is not None else set()
