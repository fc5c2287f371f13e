"""System calls of the hook while it injects, compared with a baseline that is kept here.

A count tells of work that a time hides in noise. `pytest conformance/budget --update-baseline` writes a new baseline.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from nvconform.required import give_up
from nvconform.systemcalls import count
from nvconform.tracing import TracingError

from .conftest import run_case

BASELINE = Path(__file__).parent / "system_calls.json"
TOLERANCE = 0.06  # interpreters differ in how they read a file, and the kernel in how much a read gives
CASES = ("devices/all", "capabilities/all")


@pytest.fixture(scope="module")
def floor() -> int:
    """Return the calls of an interpreter that does nothing."""
    try:
        return count([sys.executable, "-IS", "-c", "pass"])[1].total()
    except TracingError as error:
        give_up("tracing", str(error))


@pytest.mark.parametrize("identifier", CASES)
def test_injecting_stays_near_the_baseline(
    identifier: str, floor: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Far more calls are a regression; far fewer mean that the baseline is out of date."""
    target = tmp_path / "calls.json"
    document: dict[str, Any] = {
        "name": "counted",
        "install": ["{python}", "-m", "nvinject", "install", "--prefix", "{prefix}"],
        "command": [
            sys.executable,
            "-m",
            "nvconform.systemcalls",
            str(target),
            "{prefix}/bin/nvinject",
            "hook",
            "{stage}",
        ],
    }
    result = run_case(identifier, document)
    assert result["code"] == 0, result["message"]
    found = sum(json.loads(target.read_text()).values()) - floor
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    if request.config.getoption("--update-baseline", default=False):
        BASELINE.write_text(json.dumps({**baseline, identifier: found}, indent=1, sort_keys=True) + "\n")
        return
    assert found == pytest.approx(baseline[identifier], rel=TOLERANCE)
