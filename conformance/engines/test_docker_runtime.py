"""`docker run --runtime nvidia` with nvinject's runtime shim, on machines that are only declared.

Belongs here: what a user of docker sees of it, and what is left behind. Does not belong here: every rule of a request
(conformance/cases, which run through the shim as well). containerd calls the shim where it would call runc.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.models.containers import Container

from .conftest import Start
from .daemon import Daemon
from .test_docker import GPU_0, GPU_1, LIST, NOTHING, ONLY_GPU_1, SILENT, UUID_1, connected, gpus, refusal, run, shell

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("docker")]


@pytest.fixture(scope="session")
def shim(start: Start) -> Iterator[Daemon]:
    """Return a daemon with the runtime shim, on a machine with two H100."""
    with start("two-h100", shim=True) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def shim_without_driver(start: Start) -> Iterator[Daemon]:
    """Return a daemon with the runtime shim, on a machine without GPU and driver."""
    with start("no-driver", shim=True) as daemon:
        yield daemon


def through_shim(devices: str = "all", **variables: str) -> dict[str, Any]:
    """Return the options of a container that asks the shim for devices."""
    return {"runtime": "nvidia", "environment": {"NVIDIA_VISIBLE_DEVICES": devices, **variables}}


def generated(daemon: Daemon, container: Container) -> bool:
    """Tell whether a container has a run directory on the daemon's machine."""
    pid = (daemon.folder / "pid").read_text()
    return Path(f"/proc/{pid}/root/run/nvinject/{container.id}").exists()


def listed(container: Container) -> list[str]:
    """Return what nvidia-smi shows in a running container."""
    output = container.exec_run(LIST).output
    assert isinstance(output, bytes)
    return output.decode().splitlines()


REQUESTS = [
    ("all", [GPU_0, GPU_1]),
    ("0", [GPU_0]),
    ("1", [ONLY_GPU_1]),
    ("0,1", [GPU_0, GPU_1]),
    (UUID_1, [ONLY_GPU_1]),
    ("none", ["No devices found."]),
]


@pytest.mark.parametrize("family", ["deb", "rpm"])
@pytest.mark.parametrize(("devices", "lines"), REQUESTS)
def test_environment(shim: Daemon, family: str, devices: str, lines: list[str]) -> None:
    """The container asks by its environment, as CUDA images do."""
    script = f"{' '.join(LIST)}; true"
    assert run(shim, shell(script), family=family, **through_shim(devices)).splitlines() == lines


@pytest.mark.parametrize("family", ["deb", "rpm"])
def test_gpus_option_and_runtime_together(shim: Daemon, family: str) -> None:
    """Docker adds the hook, the shim takes it out again: every file is mounted once."""
    script = f"{' '.join(LIST)}; busybox grep -c nvidia-smi /proc/self/mountinfo"
    options = {"runtime": "nvidia", **gpus(count=-1)}
    assert run(shim, shell(script), family=family, **options).splitlines() == [GPU_0, GPU_1, "1"]


def test_gpus_option_without_the_runtime(shim: Daemon) -> None:
    """The hook serves where the container does not use the shim."""
    assert run(shim, LIST, **gpus(count=1)).splitlines() == [GPU_0]


def test_read_only_container(shim: Daemon) -> None:
    """Links and loader cache are mounted where nothing can be written."""
    assert run(shim, LIST, family="rpm", read_only=True, **through_shim()).splitlines() == [GPU_0, GPU_1]


def test_container_without_the_right_to_make_nodes(shim: Daemon) -> None:
    """No hook is needed then, and nothing is generated."""
    options = {**through_shim("1"), "cap_drop": ["MKNOD"]}
    assert run(shim, LIST, **options).splitlines() == [ONLY_GPU_1]


def test_only_the_visible_gpu_can_be_opened(shim: Daemon) -> None:
    """A node that the container makes itself opens nothing: the device rules are those of the one GPU."""
    script = (
        "cd /dev; busybox ls -d nvidia*; busybox ls /proc/driver/nvidia/gpus; "
        "busybox grep Modify /proc/driver/nvidia/params; "
        "busybox mknod /tmp/0 c 195 0; busybox mknod /tmp/1 c 195 1; "
        "busybox cat /tmp/0 2>&1; busybox cat /tmp/1 2>&1; true"
    )
    assert run(shim, shell(script), **through_shim(UUID_1)).splitlines() == [
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia1",
        "nvidiactl",
        "0000:18:00.0",
        "ModifyDeviceFiles: 0",
        "cat: can't open '/tmp/0': Operation not permitted",
        "cat: can't open '/tmp/1': No such device or address",
    ]


def test_the_loader_cache_can_be_replaced(shim: Daemon) -> None:
    """A package manager's ldconfig renames a new cache over the old one, which fails over a mount (EBUSY)."""
    script = "busybox cp /etc/ld.so.cache /etc/new && busybox mv /etc/new /etc/ld.so.cache && echo replaced"
    assert run(shim, shell(script), **through_shim()).splitlines() == ["replaced"]


def test_refusals_reach_the_user(shim: Daemon) -> None:
    """The last error in the log that containerd names to the runtime is what docker shows."""
    assert "nvinject: " in refusal(shim, **through_shim("GPU-deadbeef"))
    message = refusal(shim, **through_shim(NVIDIA_REQUIRE_CUDA="cuda>=99.0"))
    assert "cuda>=99.0" in message
    assert "12.8" in message


def test_life_of_a_container(shim: Daemon) -> None:
    """Exec, restart and removal go through the shim, and what was generated goes with the container."""
    with connected(shim) as client:
        container = client.containers.run(
            "nvconform:deb", ["busybox", "sleep", "300"], network_mode="none", detach=True, **through_shim()
        )
        try:
            assert generated(shim, container)
            assert listed(container) == [GPU_0, GPU_1]
            container.restart(timeout=0)
            assert listed(container) == [GPU_0, GPU_1]
            assert generated(shim, container)
            container.stop(timeout=0)
            assert not generated(shim, container)
        finally:
            container.remove(force=True)
        assert not generated(shim, container)


def test_container_without_gpus(shim: Daemon) -> None:
    """A container that asks for no GPU is what it is under the other runtime."""
    assert run(shim, SILENT, runtime="nvidia").splitlines() == NOTHING


def test_container_without_gpus_and_driver(shim_without_driver: Daemon) -> None:
    """It starts on a machine without a driver, with a configuration that nobody can read."""
    config = shim_without_driver.folder / "config.toml"
    good = config.read_text()
    config.write_text(f"{good}\nthis is no TOML\n")
    try:
        assert run(shim_without_driver, SILENT, runtime="nvidia").splitlines() == NOTHING
    finally:
        config.write_text(good)


def test_machine_without_driver(shim_without_driver: Daemon) -> None:
    """The error says what is missing."""
    assert "driver" in refusal(shim_without_driver, **through_shim())
