"""What the tests of the fakes share: running programs on a machine, and probing what this host allows by trying."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Runner = Callable[..., "subprocess.CompletedProcess[str]"]


def run_nvfakes(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "nvfakes", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="session")
def nvfakes() -> Runner:
    """Return a function that runs the nvfakes program."""
    return run_nvfakes


@pytest.fixture(scope="session")
def lanes() -> dict[str, str]:
    """Return for each lane why it does not work here, or an empty text."""
    reasons = {}
    for lane in ("root", "rootless"):
        done = run_nvfakes("run", "two-h100", "--lane", lane, "--", "true")
        reasons[lane] = done.stderr.strip() if done.returncode else ""
    return reasons


@pytest.fixture
def on_machine(lanes: dict[str, str]) -> Runner:
    """Return a function that runs a command on a machine in a lane, skipping where the lane does not work."""

    def run(machine: str | Path, *command: str, lane: str = "root") -> "subprocess.CompletedProcess[str]":
        if lanes[lane]:
            pytest.skip(lanes[lane])
        return run_nvfakes("run", str(machine), "--lane", lane, "--", *command)

    return run
