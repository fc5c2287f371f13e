"""Makes `pytest conformance` collect the case files, and holds the whole suite to leaving this machine as it was."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvconform.plugin import (
    pytest_addoption,
    pytest_collect_file,
    pytest_configure,
    pytest_sessionfinish,
    pytest_terminal_summary,
)

__all__ = [
    "pytest_addoption",
    "pytest_collect_file",
    "pytest_configure",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
]

# Every container has its own or a binding of the host's.
SHARED_NODES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")


def look_at_devices() -> dict[str, tuple[int, int, int]]:
    """Return mode, user and group of the host's own device nodes: the shared ones, and those of GPUs if it has some."""
    paths = [*SHARED_NODES, *(str(path) for path in Path("/dev").glob("nvidia*")), "/dev/dri"]
    found = [(path, os.stat(path)) for path in paths if os.path.lexists(path)]
    return {path: (state.st_mode, state.st_uid, state.st_gid) for path, state in found}


@pytest.fixture(scope="session", autouse=True)
def devices_of_the_host() -> Iterator[None]:
    """Fail at the end where a container changed a node of the host; no test looks for what it does not expect."""
    before = look_at_devices()
    yield
    assert look_at_devices() == before
