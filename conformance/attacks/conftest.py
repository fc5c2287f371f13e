"""What the attacks need, found out by trying; the mark for what takes longer than an ordinary run may.

Belongs here: running a proof inside a fake machine. Does not belong here: any expectation.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from nvconform import tracing
from nvconform.required import give_up

PROOF_SECONDS = 600
Proof = Callable[..., dict[str, Any]]


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark."""
    config.addinivalue_line("markers", "mutations: plants faults in a copy of the injector; run with -m mutations")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was not asked for by its mark."""
    if "mutations" not in str(config.getoption("-m")):
        for item in items:
            if item.get_closest_marker("mutations"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: run with -m mutations"))


@pytest.fixture(scope="session")
def machine() -> list[str]:
    """Return the command that runs Python on a machine with two GPUs, or skip with the reason."""
    for program in ("runc", "busybox"):
        if shutil.which(program) is None:
            give_up("root", f"{program} is not installed")
    reason = tracing.unavailable()
    if reason:
        give_up("tracing", reason)
    command = [sys.executable, "-m", "nvfakes", "run", "two-h100", "--lane", "root", "--", sys.executable, "-m"]
    done = subprocess.run([*command, "this"], capture_output=True, text=True, timeout=120, check=False, cwd="/")
    if done.returncode:
        give_up("root", f"a fake machine needs root: {(done.stderr.strip().splitlines() or ['it fails'])[-1]}")
    return command


@pytest.fixture(scope="session")
def prove(machine: list[str]) -> Proof:
    """Return a function that runs a module with arguments on the machine and returns its JSON."""

    def run(*words: str) -> dict[str, Any]:
        done = subprocess.run(
            [*machine, *words], capture_output=True, text=True, timeout=PROOF_SECONDS, check=False, cwd="/"
        )
        try:
            result: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            pytest.fail(f"{' '.join(words)} exits {done.returncode}: {done.stderr[-3000:]}", pytrace=False)
        return result

    return run
