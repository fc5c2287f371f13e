"""The pytest plugin: a GPU machine for each test that asks for one.

Belongs here: options and the fixture. Does not belong here: anything that works without pytest (running.py).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nvfakes.running import Running


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --gpu-machine and --gpu-lane."""
    group = parser.getgroup("nvfakes", "GPU machines without GPUs")
    group.addoption(
        "--gpu-machine", default="two-h100", metavar="MACHINE", help="the machine of the fixture gpu_machine"
    )
    group.addoption("--gpu-lane", choices=("root", "rootless"), help="where it stands; default: root where it works")


def pytest_configure(config: pytest.Config) -> None:
    """Describe the mark that chooses a machine for one test."""
    config.addinivalue_line("markers", "gpu_machine(name): run this test on another machine than --gpu-machine")


@pytest.fixture
def gpu_machine(request: pytest.FixtureRequest) -> "Iterator[Running]":
    """Start a machine for this test: run programs on it with .run(), change it with .unplug() and the like."""
    import nvfakes  # loaded for the tests that ask only
    from nvfakes.errors import SandboxError

    mark = request.node.get_closest_marker("gpu_machine")
    name = mark.args[0] if mark else request.config.getoption("--gpu-machine")
    machine = nvfakes.load(name)
    try:
        running = nvfakes.start(machine, lane=request.config.getoption("--gpu-lane"))
    except SandboxError as error:
        pytest.skip(f"no GPU machine can stand here: {error}")
    with running:
        yield running
