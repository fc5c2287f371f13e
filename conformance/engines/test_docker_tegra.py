"""`docker run --runtime nvidia` on a declared Jetson, which lists itself what containers get.

Belongs here: what a user of docker sees of it. Does not belong here: every rule of the lists
(conformance/cases/csv.yaml).
"""

from collections.abc import Iterator

import pytest

from .conftest import Start
from .daemon import Daemon
from .test_docker import NOTHING, SILENT, gpus, refusal, run, shell
from .test_docker_runtime import through_shim

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("docker")]

LIBRARIES = "/usr/lib/aarch64-linux-gnu/nvidia"
NODES = ["as", "channel", "ctrl", "power"]


@pytest.fixture(scope="module")
def orin(start: Start) -> Iterator[Daemon]:
    """Return a daemon with hook and runtime shim, on a Jetson Orin."""
    with start("jetson-orin", shim=True) as daemon:
        yield daemon


@pytest.mark.parametrize("family", ["deb", "rpm"])
def test_what_is_listed_is_there(orin: Daemon, family: str) -> None:
    """Nodes, a library behind its link, the release of L4T; and the loader knows the library's name."""
    script = (
        f"cd /dev/nvgpu/igpu0; busybox ls; busybox readlink {LIBRARIES}/libcuda.so.1; "
        f"busybox grep -c {LIBRARIES}/libcuda.so.1.1 /proc/self/mountinfo; "
        "busybox grep -c libnvrm_gpu.so /etc/ld.so.cache; busybox grep -c R36 /etc/nv_tegra_release"
    )
    lines = run(orin, shell(script), family=family, **through_shim()).splitlines()
    assert lines == [*NODES, "libcuda.so.1.1", "1", "1", "1"]


def test_nodes_can_be_opened(orin: Daemon) -> None:
    """No driver stands behind them, which is what a process is told that may open them."""
    script = "busybox cat /dev/nvmap 2>&1; busybox mknod /tmp/x c 505 9; busybox cat /tmp/x 2>&1; true"
    assert run(orin, shell(script), **through_shim("0")).splitlines() == [
        "cat: can't open '/dev/nvmap': No such device",
        "cat: can't open '/tmp/x': Operation not permitted",
    ]


def test_all_lists(orin: Daemon) -> None:
    """An image of JetPack's may ask for them."""
    script = shell("busybox ls /usr/src 2>&1; true")
    assert run(orin, script, **through_shim(NVIDIA_REQUIRE_JETPACK="csv-mounts=all")).split() == [
        "jetson_multimedia_api"
    ]
    assert "jetson_multimedia_api" not in run(orin, script, **through_shim())


def test_gpus_without_the_runtime(orin: Daemon) -> None:
    """The hook says what to do instead."""
    message = refusal(orin, **gpus(count=-1))
    assert "this is a Tegra system" in message
    assert "--runtime nvidia" in message


def test_refusals(orin: Daemon) -> None:
    """Docker passes the shim's line on."""
    assert "unknown device '1'" in refusal(orin, **through_shim("1"))
    assert "cuda>=13" in refusal(orin, **through_shim(NVIDIA_REQUIRE_CUDA="cuda>=13"))


def test_a_container_that_asks_for_nothing(orin: Daemon) -> None:
    """It is what it is anywhere."""
    assert run(orin, SILENT, runtime="nvidia").splitlines() == NOTHING
