"""A session: the machines that are up, the workers in them, and sending cases there.

Belongs here: starting `nvfakes run MACHINE -- worker` once for each machine and lane, finding an ordinary user and an
interpreter that this user can start, time limits. Does not belong here: that user's files (guest.py), running a case
(worker.py), counting results (report.py).
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
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from nvconform.case import Case
from nvconform.casefile import machine_file
from nvconform.engines.options import unexpressed
from nvconform.engines.registry import ENGINES
from nvconform.guest import ORDINARY_USER, Guest
from nvconform.implementations import Implementation
from nvconform.runtimes import HYBRID_TREE

START_SECONDS = 120.0
CASE_SECONDS = 120.0
MOST_WORKERS = 8  # of all sessions of a process: a machine holds its driver files in memory, up to 200 MiB


class SessionError(Exception):
    """A machine or a worker could not be started, or died."""


class Unavailable(Exception):  # noqa: N818 - not a fault: the reason for a skip
    """A lane cannot be had on this machine; the message says why."""


class Session:
    """Starts workers when they are needed and keeps them until `close`."""

    def __init__(
        self,
        implementation: Implementation,
        sets: Mapping[str, Any],
        runtime: str = "runc",
        cgroup: str = "host",
        guest: Guest | None = None,
    ) -> None:
        """Keep what all workers need; nothing is started yet. `cgroup` is `host` (as it is here) or `v2`.

        Sessions that are given the same guest share its folders; whoever gives it closes it.
        """
        self.implementation = implementation
        self.sets = sets
        self.runtime = runtime
        self.abilities = ENGINES[runtime].abilities() if runtime in ENGINES else None
        self.cgroup = cgroup
        self.workers: dict[tuple[str, str], WorkerProcess | Exception] = {}
        self.guest = guest or Guest()
        self._owns_guest = guest is None

    def run(self, case: Case, lane: str) -> dict[str, Any]:
        """Run a case in a lane and return its result; what is not claimed or possible is skipped, with why."""
        reason = self.implementation.skips(case, lane) or self._unexpressed(case, lane)
        result = _skipped(case, lane, reason) if reason else self._run(case, lane)
        deviation = self.implementation.deviation(case)
        if result["status"] == "failed" and deviation:
            result |= {"status": "deviates", "reason": deviation}
        return {**result, **self.describe(case, lane)}

    def describe(self, case: Case, lane: str) -> dict[str, Any]:
        """Return what a report has to know of a result: by whom, with what, and what the case is about."""
        worker = self.workers.get((case.machine, lane))
        hello = worker.hello if isinstance(worker, WorkerProcess) else {}
        return {
            "implementation": self.implementation.name,
            "runtime": self.runtime,
            "runtime-version": hello.get("runtime", ""),
            "cgroup": self.cgroup,
            "machine": case.machine,
            "title": case.title,
            "source": case.source,
            "level": case.level,
            "features": list(case.features),
            "place": f"{Path(case.file).name}:{case.line}",
        }

    def _unexpressed(self, case: Case, lane: str) -> str:
        """Return why an engine cannot be asked for a case, "" where it can, and for a low-level runtime."""
        if self.abilities is None:
            return ""
        return ENGINES[self.runtime].missing() or unexpressed(
            case, lane, str(self.implementation.document.get("kind", "hook")), self.abilities
        )

    def _run(self, case: Case, lane: str) -> dict[str, Any]:
        try:
            worker = self._worker(case.machine, lane)
        except Unavailable as reason:
            return _skipped(case, lane, str(reason))
        try:
            return worker.ask(asdict(case), CASE_SECONDS)
        except SessionError:
            worker.close()
            del self.workers[case.machine, lane]
            raise

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers.values():
            if isinstance(worker, WorkerProcess):
                worker.close()
        self.workers.clear()
        if self._owns_guest:
            self.guest.close()

    def _worker(self, machine: str, lane: str) -> "WorkerProcess":
        key = machine, lane
        if key not in self.workers:
            make_room()
            try:
                self.workers[key] = WorkerProcess(self, machine, lane)
                _up.append((self, key))
            except (SessionError, Unavailable) as error:
                self.workers[key] = error
        worker = self.workers[key]
        if isinstance(worker, Exception):
            raise worker
        return worker


_up: list[tuple[Session, tuple[str, str]]] = []  # the workers of all sessions, the oldest first


def make_room() -> None:
    """End the oldest workers where there are too many; they are started again when they are needed again."""
    _up[:] = [(session, key) for session, key in _up if isinstance(session.workers.get(key), WorkerProcess)]
    while len(_up) >= MOST_WORKERS:
        session, key = _up.pop(0)
        worker = session.workers.pop(key)
        assert isinstance(worker, WorkerProcess)
        worker.close()


class WorkerProcess:
    """A fake machine that is up, with a worker in it."""

    def __init__(self, session: Session, machine: str, lane: str) -> None:
        """Start the machine and wait until the worker is ready.

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
        environment = _environment(session.guest.home() if user is not None else None)
        machine_path = machine_file(machine)
        if user is not None:
            modules = session.guest.modules(self.python)
            if Path(machine_path).is_file():
                # A copy of its own: sessions at the same time share the folder of modules.
                machine_path = str(shutil.copy(machine_path, f"{self.work}.yaml"))
                Path(machine_path).chmod(0o644)
            environment["PYTHONPATH"] = str(modules)
        python = self.python if user is not None or lane != "root" else sys.executable
        become: list[str] = []
        if user is not None and session.runtime == "crun" and Path(HYBRID_TREE, "cgroup.procs").exists():
            # An ordinary user could not hide the tree that crun refuses; whoever becomes that user can.
            become, user = _becoming(user), None
        self.process = subprocess.Popen(
            [*become, *_machine_command(python, machine_path, lane, self.machine), python, "-m", "nvconform.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment,
            cwd="/",
            start_new_session=True,
            **({"user": user, "group": user, "extra_groups": []} if user is not None else {}),  # type: ignore[call-overload]
        )
        settings = {
            "lane": lane,
            "runtime": session.runtime,
            "cgroup": session.cgroup,
            "work": str(self.work),
            "busybox": busybox,
            "kernel_hook": [python, "-m", "nvfakes", "kernel-hook"],
            "python": self.python,
            "ordinary_user": ORDINARY_USER,
            "implementation": session.implementation.document,
            "sets": session.sets,
        }
        try:
            self.hello = self.ask(settings, START_SECONDS)
        except SessionError:
            self.close()
            raise
        if "unavailable" in self.hello:
            self.close()
            raise Unavailable(self.hello["unavailable"])
        if "error" in self.hello:
            self.close()
            raise SessionError(f"the worker on {machine} ({lane}) cannot start: {self.hello['error']}")

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
    result = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, timeout=20, check=False)
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


def _skipped(case: Case, lane: str, reason: str) -> dict[str, Any]:
    return {"id": case.id, "lane": lane, "status": "skipped", "reason": reason, "differences": [], "seconds": 0.0}
