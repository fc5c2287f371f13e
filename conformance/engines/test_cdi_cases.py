"""Every conformance case that names devices as CDI does, with the spec of the machine put into config.json.

Belongs here: choosing the cases and the low-level runtime. Does not belong here: what is expected; that is the same
text that the hook is held to, and what differs is data of the adapter, as are the cases that no spec can look at. So
hook, shim and spec agree in each case, but for those differences, which docs/cdi.md has to explain.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvconform import implementations, report
from nvconform.case import Case
from nvconform.casefile import cases_directory, load_all, load_sets
from nvconform.session import Session

IMPLEMENTATION = implementations.load("nvinject-cdi")
LANE = "root"
CASES = [case for case in load_all(cases_directory()) if LANE in case.lanes and not IMPLEMENTATION.skips(case, LANE)]
# What the low-level runtime does is the same for most cases; crun has those about devices.
FAMILIES = {"runc": (), "crun": ("devices",)}
RUNS = [
    pytest.param(case, runtime, id=f"{runtime}-{case.id}", marks=pytest.mark.xdist_group(f"cdi-{runtime}"))
    for runtime, families in FAMILIES.items()
    for case in CASES
    if not families or case.id.partition("/")[0] in families
]


@pytest.fixture(scope="module")
def sessions() -> Iterator[dict[str, Session]]:
    """Keep machines for the whole module."""
    found = {runtime: Session(IMPLEMENTATION, load_sets(), runtime) for runtime in FAMILIES}
    yield found
    for session in found.values():
        session.close()


@pytest.mark.parametrize(("case", "runtime"), RUNS)
def test_case(sessions: dict[str, Session], case: Case, runtime: str) -> None:
    """What the container sees is what the case says, but for the declared differences."""
    result: dict[str, Any] = sessions[runtime].run(case, LANE)
    if result["status"] == "skipped":
        pytest.skip(str(result["reason"]))
    wanted = "deviates" if IMPLEMENTATION.deviation(case) else "passed"
    assert result["status"] == wanted, report.explain(result)


def test_cases_of_each_kind_are_left() -> None:
    """The patterns of what a spec cannot look at leave the families that are about what a container sees."""
    families = {case.id.partition("/")[0] for case in CASES}
    assert {"attacks", "compat", "devices", "host", "hostile", "images", "layouts", "mig", "platforms"} <= families


def test_differences_are_documented() -> None:
    """The tables in docs/cdi.md and the data of the adapter are one."""
    flat = " ".join((Path(__file__).parents[2] / "docs" / "cdi.md").read_text().split())
    document = IMPLEMENTATION.document
    for difference in (*document["differences"], *document["additions"]):
        assert difference["because"] in flat
    for reason in (*document["skips"].values(), *document["deviations"].values()):
        assert reason in flat
