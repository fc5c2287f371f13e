"""A session: the machines that are up, the workers in them, and sending cases there.

Belongs here: one worker for each machine and lane, which cases are skipped, how many workers may be up. Does not belong
here: starting a worker (workerprocess.py), running a case (worker.py), counting results (report.py).
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nvconform.case import Case
from nvconform.engines.options import unexpressed
from nvconform.engines.registry import ENGINES
from nvconform.guest import Guest
from nvconform.implementations import Implementation
from nvconform.workerprocess import SessionError, Unavailable, WorkerProcess

__all__ = ["Session", "SessionError", "Unavailable"]

CASE_SECONDS = 120.0
MOST_WORKERS = 8  # of all sessions of a process: a machine holds its driver files in memory, up to 200 MiB


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
        if self.abilities is not None and not self.abilities.hooks and "legacy" in implementation.document:
            self.abilities = replace(self.abilities, hooks=("prestart",))
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

    def _settings(self) -> dict[str, Any]:
        """Return what every worker has to know of this session."""
        return {
            "runtime": self.runtime,
            "cgroup": self.cgroup,
            "implementation": self.implementation.document,
            "sets": self.sets,
        }

    def _run(self, case: Case, lane: str) -> dict[str, Any]:
        try:
            worker = self._worker(case.machine, lane)
        except Unavailable as reason:
            return {**_skipped(case, lane, str(reason)), "unproven": str(reason)}
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
                self.workers[key] = WorkerProcess(machine, lane, self.guest, self._settings())
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


def _skipped(case: Case, lane: str, reason: str) -> dict[str, Any]:
    return {"id": case.id, "lane": lane, "status": "skipped", "reason": reason, "differences": [], "seconds": 0.0}
