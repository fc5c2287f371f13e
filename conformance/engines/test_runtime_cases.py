"""Every conformance case through the runtime shim: in front of runc in all lanes, in front of crun as root.

Belongs here: choosing implementation and low-level runtime. Does not belong here: what is expected; that is the same
text that the hook is held to, and what differs is data of the adapter. So hook and shim agree in each case, but for
those differences, which docs/runtime.md has to explain.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvconform import implementations, report
from nvconform.case import Case
from nvconform.casefile import cases_directory, load_all, load_sets
from nvconform.session import Session

IMPLEMENTATION = "nvinject-jit"
CASES = load_all(cases_directory())
# crun needs rights on cgroups that the other lanes do not have on every machine.
LANES = {"runc": ("root", "userns", "rootless"), "crun": ("root",)}
RUNS = [
    pytest.param(
        *(case, lane, runtime),
        id=f"{runtime}-{lane}-{case.id}",
        marks=pytest.mark.xdist_group(f"{runtime}-{lane}"),
    )
    for runtime, lanes in LANES.items()
    for case in CASES
    for lane in case.lanes
    if lane in lanes
]


class Sessions:
    """The machines that are up, by low-level runtime."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self.known: dict[str, Session] = {}

    def run(self, case: Case, lane: str, runtime: str) -> dict[str, Any]:
        """Run one case."""
        if runtime not in self.known:
            self.known[runtime] = Session(implementations.load(IMPLEMENTATION), load_sets(), runtime)
        return self.known[runtime].run(case, lane)

    def close(self) -> None:
        """End the machines."""
        for session in self.known.values():
            session.close()


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    """Keep machines for the whole module."""
    found = Sessions()
    yield found
    found.close()


@pytest.mark.parametrize(("case", "lane", "runtime"), RUNS)
def test_case(sessions: Sessions, case: Case, lane: str, runtime: str) -> None:
    """What the container sees is what the case says, but for the declared differences."""
    result = sessions.run(case, lane, runtime)
    if result["status"] == "skipped":
        pytest.skip(str(result["reason"]))
    assert result["status"] == "passed", report.explain(result)


def test_differences_are_documented() -> None:
    """The table in docs/runtime.md and the data of the adapter are one."""
    text = (Path(__file__).parents[2] / "docs" / "runtime.md").read_text()
    flat = " ".join(text.split())
    document = implementations.load(IMPLEMENTATION).document
    for difference in document["differences"]:
        assert difference["because"] in flat
    for reason in document["skips"].values():
        assert reason in flat
