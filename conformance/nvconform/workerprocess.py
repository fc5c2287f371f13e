"""A worker in a fake machine that is up: starting it as the user of a lane, asking it, ending it.

Belongs here: an ordinary user's interpreter and environment, time limits, the pipe. Does not belong here: that user's
files (guest.py), when a worker is needed (session.py), what it does (worker.py).
"""

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from nvconform.casefile import machine_file
from nvconform.guest import ORDINARY_USER, Guest
from nvconform.runtimes import HYBRID_TREE

START_SECONDS = 120.0


class SessionError(Exception):
    """A machine or a worker could not be started, or died."""


class Unavailable(Exception):  # noqa: N818 - not a fault: the reason for a skip
    """A lane cannot be had on this machine; the message says why."""


class WorkerProcess:
    """A fake machine that is up, with a worker in it."""

    def __init__(self, machine: str, lane: str, guest: Guest, settings: Mapping[str, Any]) -> None:
        """Start the machine and wait until the worker is ready; `settings` are what it takes from the session.

        Raises: Unavailable when this lane is not possible here, SessionError when it should be and failed.
        """
        user = _user_for(lane)
        self.python = _interpreter(ORDINARY_USER if os.geteuid() == 0 else None)
        busybox = shutil.which("busybox")
        if busybox is None:
            raise Unavailable("busybox is not installed (package busybox-static)")
        self.work = Path(tempfile.mkdtemp(prefix="nvconform-"))
        self.work.chmod(0o755)
        # Beside it, because the worker covers its working directory.
        self.machine = Path(f"{self.work}.machine")
        if user is not None:
            os.chown(self.work, user, user)
        # A file and not a pipe: nobody reads while the worker runs, and a full pipe would stop it.
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        python = self.python if user is not None or lane != "root" else sys.executable
        environment = _environment(guest.home() if user is not None else None)
        path = machine_file(machine)
        if user is not None:
            environment["PYTHONPATH"] = str(guest.modules(self.python))
            path = self._own_copy(path)
        command = [*_machine_command(python, path, lane, self.machine), python, "-m", "nvconform.worker"]
        self.process = self._start(command, user, environment, str(settings["runtime"]))
        own = {
            "lane": lane,
            "work": str(self.work),
            "busybox": busybox,
            "kernel_hook": [python, "-m", "nvfakes", "kernel-hook"],
            "python": self.python,
            "ordinary_user": ORDINARY_USER,
        }
        self.hello = self._greet({**settings, **own}, f"the worker on {machine} ({lane})")

    def _own_copy(self, machine: str) -> str:
        """Return a copy of a machine's file that others can read: sessions at one time share the folder of modules."""
        if not Path(machine).is_file():
            return machine
        copy = Path(shutil.copy(machine, f"{self.work}.yaml"))
        copy.chmod(0o644)
        return str(copy)

    def _start(
        self, command: list[str], user: int | None, environment: dict[str, str], runtime: str
    ) -> "subprocess.Popen[bytes]":
        if user is not None and runtime == "crun" and Path(HYBRID_TREE, "cgroup.procs").exists():
            # An ordinary user could not hide the tree that crun refuses; whoever becomes that user can.
            command, user = [*_becoming(user), *command], None
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment,
            cwd="/",
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )

    def _greet(self, settings: Mapping[str, Any], who: str) -> dict[str, Any]:
        """Send the settings and return the answer; the worker is ended where it cannot work."""
        try:
            hello = self.ask(settings, START_SECONDS)
        except SessionError:
            self.close()
            raise
        if "unavailable" in hello:
            self.close()
            raise Unavailable(hello["unavailable"])
        if "error" in hello:
            self.close()
            raise SessionError(f"{who} cannot start: {hello['error']}")
        return hello

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Send one document and return the answer.

        Raises: SessionError when the worker dies or does not answer in time.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise SessionError(f"the worker died: {self._last_words()}") from None
        line = _read_line(self.process.stdout, seconds)
        if not line:
            raise SessionError(f"the worker died or hung: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the worker and its machine; kill what does not go."""
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.errors.close()
        for directory in (self.work, self.machine):
            shutil.rmtree(directory, ignore_errors=True)
        Path(f"{self.work}.yaml").unlink(missing_ok=True)

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace").strip()
        return f"exit code {self.process.returncode}: {text[-1500:]}"


# The lane userns needs root's device nodes, but a machine at the real paths covers parts of /proc and /sys, and then
# the kernel lets no user namespace mount its own. So the machine is a tree there, on a file system that may hold nodes.
_TREE = """
set -e
mkdir -p "$NVFAKES_ROOT"
mount -t tmpfs -o mode=0755 nvfakes "$NVFAKES_ROOT"
"$1" -m nvfakes tree "$2" "$NVFAKES_ROOT" > /dev/null
shift 2
exec "$@"
"""


def _becoming(user: int) -> list[str]:
    """Return the words that go before a command to run it as a user, without the second tree of hybrid cgroups."""
    script = f'umount {HYBRID_TREE} && exec setpriv --reuid {user} --regid {user} --clear-groups "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]


def _machine_command(python: str, machine: str, lane: str, root: Path) -> list[str]:
    """Return the words that go before a command to run it on a machine in a lane."""
    if lane == "userns":
        private = ["unshare", "--mount", "--propagation", "private", "env", f"NVFAKES_ROOT={root}"]
        return [*private, "sh", "-c", _TREE, "sh", python, machine]
    return [python, "-m", "nvfakes", "run", machine, "--lane", lane, "--"]


def _user_for(lane: str) -> int | None:
    """Return the user that a lane's worker must become, or None for the one that we are.

    Raises: Unavailable when the lane needs rights that we do not have.
    """
    if lane == "rootless":
        return ORDINARY_USER if os.geteuid() == 0 else None
    # Tried, not looked up: a user id of 0 says nothing inside a container.
    try:
        result = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError:
        raise Unavailable("unshare is not installed (package util-linux)") from None
    if result.returncode:
        raise Unavailable(f"the lane {lane} needs root: {result.stderr.strip()}")
    return None


def _interpreter(user: int | None) -> str:
    """Return an interpreter that the ordinary user can start: ours, or the distribution's where ours is private."""
    if user is None:
        return sys.executable
    candidates = [sys.executable, "/usr/bin/python3"]
    for candidate in candidates:
        check = "import sys; sys.exit(sys.version_info < (3, 11))"
        with contextlib.suppress(OSError):
            result = subprocess.run(
                [candidate, "-c", check],
                user=user,
                group=user,
                extra_groups=[],
                capture_output=True,
                timeout=20,
                check=False,
            )
            if result.returncode == 0:
                return candidate
    raise Unavailable(f"an ordinary user can start none of {', '.join(candidates)} with Python 3.11 or newer")


def _environment(home: Path | None) -> dict[str, str]:
    """Return the worker's environment: another interpreter must find the same modules, another user has no home."""
    libraries = [entry for entry in sys.path if entry and Path(entry).exists() and not _is_standard_library(entry)]
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TERM") if name in os.environ}
    own = {name: os.environ[name] for name in ("HOME", "XDG_CACHE_HOME") if name in os.environ}
    return {
        **environment,
        **(own if home is None else {"HOME": str(home)}),
        "TMPDIR": "/tmp",
        "PYTHONPATH": os.pathsep.join(libraries),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _is_standard_library(entry: str) -> bool:
    return entry.endswith(".zip") or (entry.startswith(sys.base_prefix) and "site-packages" not in entry)


def _read_line(stream: IO[bytes], seconds: float) -> bytes:
    """Return one line, or b"" at the end or when the time is over."""
    deadline = time.monotonic() + seconds
    chunks: list[bytes] = []
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                continue
            chunk = os.read(stream.fileno(), 1 << 20)
            chunks.append(chunk)
            if not chunk or chunk.endswith(b"\n"):
                break
    return b"".join(chunks)
