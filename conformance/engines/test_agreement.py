"""Every conformance case by each rendering of the plan, through runc and crun, in every lane that the case claims.

Belongs here: which rendering meets which low-level runtime. Does not belong here: what is expected; that is the text of
the case, and what must be otherwise with a rendering is data of its adapter, which docs/agreement.md shows. So hook,
shim and spec agree in each case, but for those differences. The hook through runc is conformance/cases.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from nvconform import implementations, report
from nvconform.agreement import OTHERS, REFERENCE
from nvconform.case import Case
from nvconform.casefile import cases_directory, load_all, load_sets
from nvconform.guest import Guest
from nvconform.implementations import Implementation
from nvconform.required import hold
from nvconform.session import Session

CASES = load_all(cases_directory())
IMPLEMENTATIONS = {name: implementations.load(name) for name in (REFERENCE, *OTHERS)}
PAIRS = [
    (REFERENCE, "crun", "host"),
    *((name, runtime, "host") for name in OTHERS for runtime in ("runc", "crun")),
    *((name, "runc", "v2") for name in (REFERENCE, *OTHERS)),
]
# cgroup v2 alone is another way to make device rules; `nvconform run --cgroup v2` runs all other cases there as well.
RULED = ("devices", "mig", "imex", "extras")


def is_asked(implementation: Implementation, case: Case, lane: str, cgroup: str = "host") -> bool:
    """Tell whether a rendering can be asked what a case asks; the reasons why not are in docs/agreement.md."""
    family = case.id.partition("/")[0]
    if cgroup == "v2" and (lane != "root" or family not in RULED):
        return False
    return implementation.document.get("kind") != "cdi" or not implementation.skips(case, lane)


RUNS = [
    pytest.param(
        *(case, lane, (name, runtime, cgroup)),
        id=f"{name.removeprefix('nvinject-')}-{runtime}-{lane}{'' if cgroup == 'host' else f'-{cgroup}'}-{case.id}",
        marks=pytest.mark.xdist_group(f"{name}-{runtime}-{lane}-{cgroup}"),
    )
    for name, runtime, cgroup in PAIRS
    for case in sorted(CASES, key=lambda case: case.machine)  # few machines are up at once
    for lane in case.lanes
    if is_asked(IMPLEMENTATIONS[name], case, lane, cgroup)
]


class Sessions:
    """The machines that are up, by rendering, low-level runtime and view of cgroups."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self.known: dict[tuple[str, str, str], Session] = {}
        self.guest = Guest()

    def run(self, case: Case, lane: str, way: tuple[str, str, str]) -> dict[str, Any]:
        """Run one case."""
        if way not in self.known:
            name, runtime, cgroup = way
            self.known[way] = Session(IMPLEMENTATIONS[name], load_sets(), runtime, cgroup, self.guest)
        return self.known[way].run(case, lane)

    def close(self) -> None:
        """End the machines."""
        for session in self.known.values():
            session.close()
        self.guest.close()


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    """Keep machines for the whole module."""
    found = Sessions()
    yield found
    found.close()


@pytest.mark.parametrize(("case", "lane", "way"), RUNS)
def test_case(sessions: Sessions, case: Case, lane: str, way: tuple[str, str, str]) -> None:
    """What the container sees is what the case says, but for the declared differences."""
    result = sessions.run(case, lane, way)
    hold(lane, result)
    if result["status"] == "skipped":
        pytest.skip(str(result["reason"]))
    wanted = "deviates" if IMPLEMENTATIONS[way[0]].deviation(case) else "passed"
    assert result["status"] == wanted, report.explain(result)


def test_a_spec_is_asked_about_every_kind_of_thing() -> None:
    """The patterns of what no spec can look at leave the families that are about what a container sees."""
    implementation = IMPLEMENTATIONS["nvinject-cdi"]
    families = {case.id.partition("/")[0] for case in CASES if is_asked(implementation, case, "root")}
    assert {"attacks", "compat", "devices", "host", "hostile", "images", "layouts", "mig", "platforms"} <= families
