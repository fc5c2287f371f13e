"""OCI runtimes: create, start, wait for and delete a container, each with a time limit.

Belongs here: the command lines of runc and crun (they share them) and what a runtime cannot do on this machine. Does
not belong here: the bundle (bundle.py) and what is seen in the container (observe.py).
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

CREATE_SECONDS = 40.0
STEP_SECONDS = 20.0
HYBRID_TREE = "/sys/fs/cgroup/unified"


class RuntimeUnavailableError(Exception):
    """The runtime cannot be used here; the message says why."""


@dataclass(frozen=True)
class Created:
    """What `create` did: its exit code (None: killed at the time limit), its log and the init process."""

    code: int | None
    log: str
    pid: int


class Runtime:
    """A low-level runtime with a state directory of its own."""

    def __init__(self, name: str, state: Path, *, rootless: bool) -> None:
        """Find the program.

        Raises: RuntimeUnavailableError when it is not on PATH.
        """
        program = shutil.which(name)
        if program is None:
            raise RuntimeUnavailableError(f"{name} is not installed")
        self.name = name
        self.program = program
        self.state = state
        state.mkdir(mode=0o700, exist_ok=True)
        self.options = ["--root", str(state)]
        if rootless and name == "runc":
            self.options += ["--rootless", "true"]

    def prepare_host(self) -> None:
        """Make the sandbox's cgroup view one that the runtime accepts.

        crun refuses hybrid trees (v1 controllers with a v2 tree beside them); without the v2 one it works on v1.
        Raises: RuntimeUnavailableError when the view cannot be changed.
        """
        if self.name != "crun" or not Path(HYBRID_TREE, "cgroup.procs").exists():
            return
        result = subprocess.run(["umount", HYBRID_TREE], capture_output=True, text=True, timeout=20, check=False)
        if result.returncode:
            raise RuntimeUnavailableError(
                f"crun refuses hybrid cgroups, and we cannot hide them: {result.stderr.strip()}"
            )

    def close(self) -> None:
        """End what `prepare_host` started: nothing."""

    def version(self) -> str:
        """Return the first line of the runtime's own version text."""
        result = subprocess.run([self.program, "--version"], capture_output=True, text=True, timeout=10, check=False)
        return result.stdout.splitlines()[0] if result.stdout else "unknown"

    def create(self, identifier: str, bundle: Path) -> Created:
        """Create the container; its output goes to `output` in the bundle, the runtime's messages to `log`."""
        log = bundle / "runtime.log"
        pid_file = bundle / "pid"
        words = ["--log", str(log), "create", "--bundle", str(bundle), "--pid-file", str(pid_file)]
        with (bundle / "output").open("wb") as output, empty_input() as nothing:
            process = subprocess.Popen(
                [self.program, *self.options, *words, identifier],
                stdin=nothing,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        code = wait_or_kill(process, CREATE_SECONDS)
        pid = int(pid_file.read_text() or "0") if pid_file.exists() else 0
        return Created(code, log.read_text(errors="replace") if log.exists() else "", pid)

    def start(self, identifier: str) -> int | None:
        """Let the created container run its process."""
        return self._step("start", identifier)

    def delete(self, identifier: str) -> int | None:
        """Remove the container, whatever state it is in."""
        return self._step("delete", "--force", identifier)

    def discard(self, identifier: str, pid: int) -> int | None:
        """Remove a container that was created and is not to be started.

        runc looks every 100 ms whether a process that it killed has gone, so it is given one that has.
        """
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_for_end(pid, STEP_SECONDS)
        return self.delete(identifier)

    def _step(self, *arguments: str) -> int | None:
        process = subprocess.Popen(
            [self.program, *self.options, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return wait_or_kill(process, STEP_SECONDS)


def empty_input() -> IO[bytes]:
    """Return an input that is at its end and is not /dev/null.

    crun gives the standard streams of a container with a user namespace to the container's user: the host's own
    /dev/null would be among them.
    """
    return tempfile.TemporaryFile()


def wait_or_kill(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return the exit code, or None after killing the process and its session at the time limit.

    Popen.wait looks every 50 ms where it has a time limit; a thousand containers are created here.
    """
    _wait_exactly(process, seconds)
    if process.poll() is not None:
        return process.returncode
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return None


def _wait_exactly(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until a child ends, at most for a time; pidfd_open(2): its descriptor is readable then."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return
    try:
        select.select([descriptor], [], [], seconds)
    finally:
        os.close(descriptor)


def wait_for_end(pid: int, seconds: float) -> bool:
    """Wait until a process is gone or a zombie; returns whether it ended in time.

    A container's init becomes our child when we are its subreaper, otherwise /proc is asked.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return True
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return True
        if status.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.002)
    return False
