"""NVIDIA's own nvidia-smi in a container: docker on a machine whose user-space driver is the real package's.

Belongs here: that the real program runs on what was injected. Does not belong here: which files discovery finds
(conformance/packages) and the requests of --gpus (test_docker.py). Only the management library is that of nvfakes,
because the real one asks a kernel module.
"""

from collections.abc import Iterator

import pytest

from nvconform.required import give_up
from nvfakes.packages import NoSourceError, fetch

from .conftest import Start
from .daemon import Daemon
from .test_docker import GPU_0, GPU_1, LIST, ONLY_GPU_1, UUID_1, gpus, run

pytestmark = [pytest.mark.docker, pytest.mark.packages, pytest.mark.xdist_group("docker")]

CUDA = {"535": "12.2", "550": "12.4"}
MACHINE = """\
driver: {{branch: {branch}}}
gpus:
  - {{uuid: GPU-000000a0-1111-2222-3333-000000000000, bus: "0000:17:00.0", model: h100}}
  - {{uuid: GPU-000000a1-1111-2222-3333-000000000001, bus: "0000:18:00.0", model: h100}}
"""


@pytest.fixture(scope="module", params=sorted(CUDA))
def branch(request: pytest.FixtureRequest, dockerd: str) -> str:
    """Return a driver branch whose packages are in the cache; comes after the question whether dockerd can run."""
    del dockerd
    try:
        fetch(request.param)
    except NoSourceError as error:
        give_up("docker", str(error))
    return str(request.param)


@pytest.fixture(scope="module")
def daemon(branch: str, start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Return a daemon on a machine with two H100 and the real files of the branch."""
    machine = tmp_path_factory.mktemp("real") / "machine.yaml"
    machine.write_text(MACHINE.format(branch=branch))
    with start(str(machine)) as running:
        yield running


@pytest.mark.parametrize("family", ["deb", "rpm"])
def test_lists_all(daemon: Daemon, family: str) -> None:
    """The real program finds the management library through the loader cache and the nodes where it looks."""
    assert run(daemon, LIST, family=family, **gpus(count=-1)).splitlines() == [GPU_0, GPU_1]


def test_lists_one(daemon: Daemon) -> None:
    """It sees the one GPU that was asked for."""
    assert run(daemon, LIST, **gpus(device_ids=[UUID_1])).splitlines() == [ONLY_GPU_1]


def test_table(daemon: Daemon, branch: str) -> None:
    """The table that everybody knows shows program, driver and CUDA in the versions of this machine."""
    head = run(daemon, ["nvidia-smi"], **gpus(count=-1))
    version = fetch(branch).version
    assert f"NVIDIA-SMI {version}" in head
    assert f"Driver Version: {version}" in head
    assert f"CUDA Version: {CUDA[branch]}" in head
    assert head.count("NVIDIA H100 80GB HBM3") == 2
