"""Running many cases without pytest: implementations by runtimes by lanes, two machines at a time.

Belongs here: the order of runs and what happens to faults of the suite. Does not belong here: a single run
(session.py), words (cli.py, report.py).
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

from nvconform.case import Case
from nvconform.guest import Guest
from nvconform.implementations import Implementation
from nvconform.session import Session, SessionError

MACHINES_AT_A_TIME = 2


@dataclass(frozen=True)
class Group:
    """Cases that share a machine: one worker runs them one after the other."""

    implementation: Implementation
    runtime: str
    cgroup: str
    machine: str
    lane: str
    cases: tuple[Case, ...]


def arrange(
    cases: Iterable[Case],
    implementations: Sequence[Implementation],
    runtimes: Sequence[str],
    lanes: Sequence[str],
    cgroup: str = "host",
) -> list[Group]:
    """Return all runs, those of one machine and lane together; without lanes each case runs in all of its own."""
    shared: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        for lane in case.lanes:
            if not lanes or lane in lanes:
                shared.setdefault((case.machine, lane), []).append(case)
    return [
        Group(implementation, runtime, cgroup, machine, lane, tuple(members))
        for implementation, runtime in product(implementations, runtimes)
        for (machine, lane), members in shared.items()
    ]


def run(
    groups: Iterable[Group], sets: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]
) -> list[dict[str, Any]]:
    """Run all groups and return the results in their order; `tell` hears of each result as it comes.

    Whatever is raised meanwhile, a signal's exception included, ends all machines after the cases that run just then.
    """
    guest, stopping = Guest(), threading.Event()

    def run_group(group: Group) -> list[dict[str, Any]]:
        session = Session(group.implementation, sets, group.runtime, group.cgroup, guest)
        results = []
        try:
            for case in group.cases:
                if stopping.is_set():
                    break
                results.append(_run_one(session, case, group.lane))
                tell(results[-1])
        finally:
            session.close()
        return results

    try:
        with ThreadPoolExecutor(max_workers=MACHINES_AT_A_TIME) as pool:
            try:
                return [result for part in pool.map(run_group, groups) for result in part]
            except BaseException:
                stopping.set()
                raise
    finally:
        guest.close()


def _run_one(session: Session, case: Case, lane: str) -> dict[str, Any]:
    try:
        return session.run(case, lane)
    except SessionError as error:
        failed = {"id": case.id, "lane": lane, "status": "failed", "differences": [f"suite: {error}"], "seconds": 0.0}
        return {**failed, **session.describe(case, lane)}
