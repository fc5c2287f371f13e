"""Tests of one daemon or machine stay in one process (xdist_group), which pytest 9.2 with xdist 3.8 loses."""

import os
import subprocess
import sys
from pathlib import Path

GROUPED = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("one", "two")])
def test_it(name, number):
    with open(pathlib.Path(__file__).with_name(name), "a") as seen:
        print(os.environ["PYTEST_XDIST_WORKER"], file=seen)
"""


def test_a_group_stays_in_one_worker(tmp_path: Path) -> None:
    (tmp_path / "test_grouped.py").write_text(GROUPED)
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider", "."]
    subprocess.run(command, cwd=tmp_path, env=outer, check=True, capture_output=True, timeout=120)
    workers = {name: (tmp_path / name).read_text().split() for name in ("one", "two")}
    assert {name: len(seen) for name, seen in workers.items()} == {"one": 6, "two": 6}
    assert {name: len(set(seen)) for name, seen in workers.items()} == {"one": 1, "two": 1}
