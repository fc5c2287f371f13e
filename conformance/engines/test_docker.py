"""`docker run --gpus …` with nvinject's hook, on machines that are only declared.

Belongs here: what a user of docker sees, through the docker SDK, testcontainers and the docker command. Does not belong
here: every rule of a request (conformance/cases). dockerd finds the hook by its name on its PATH and hands the devices
over in NVIDIA_VISIBLE_DEVICES; nothing in these tests calls nvinject.
"""

import base64
import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError, ContainerError
from docker.types import DeviceRequest

from .conftest import IMAGE, started
from .daemon import CALL_SECONDS, Daemon, DaemonError, host_state

# One group: workers of pytest-xdist would each start the daemons.
pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("docker")]

GPU_0 = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-000000a0-1111-2222-3333-000000000000)"
GPU_1 = "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-000000a1-1111-2222-3333-000000000001)"
UUID_1 = "GPU-000000a1-1111-2222-3333-000000000001"
# A container numbers its GPUs anew.
ONLY_GPU_1 = GPU_1.replace("GPU 1:", "GPU 0:")
LIST = ["nvidia-smi", "-L"]

# what `--gpus` takes, the request that the SDK sends for it, and the lines of `nvidia-smi -L`
REQUESTS = [
    pytest.param("all", {"count": -1}, [GPU_0, GPU_1], id="all"),
    pytest.param("1", {"count": 1}, [GPU_0], id="one"),
    pytest.param("2", {"count": 2}, [GPU_0, GPU_1], id="two"),
    pytest.param(f'"device={UUID_1}"', {"device_ids": [UUID_1]}, [ONLY_GPU_1], id="uuid"),
    pytest.param('"device=1"', {"device_ids": ["1"]}, [ONLY_GPU_1], id="index"),
    pytest.param('"device=0,1"', {"device_ids": ["0", "1"]}, [GPU_0, GPU_1], id="both"),
]


@contextlib.contextmanager
def connected(daemon: Daemon) -> Iterator[docker.DockerClient]:
    """Return a client and close it."""
    with contextlib.closing(daemon.client()) as client:
        yield client


def run(daemon: Daemon, command: list[str], *, family: str = "deb", **options: Any) -> str:
    """Run a container and return its output; raises docker's errors."""
    with connected(daemon) as client:
        output = client.containers.run(
            f"{IMAGE}:{family}", command, network_mode="none", remove=True, stderr=True, **options
        )
    assert isinstance(output, bytes)
    return output.decode()


def gpus(**fields: Any) -> dict[str, Any]:
    """Return the option that stands for --gpus."""
    return {"device_requests": [DeviceRequest(capabilities=[["gpu"]], **fields)]}


def shell(script: str) -> list[str]:
    """Return a command line of busybox's shell in which every applet can be called by its name."""
    return ["sh", "-c", script]


def refusal(daemon: Daemon, **options: Any) -> str:
    """Return the message with which docker refuses to start a container."""
    with pytest.raises((APIError, ContainerError)) as caught:
        run(daemon, ["sh", "-c", "exit 0"], **options)
    assert isinstance(caught.value, APIError)
    return str(caught.value.explanation)


@pytest.mark.parametrize("family", ["deb", "rpm"])
@pytest.mark.parametrize(("_flag", "fields", "lines"), REQUESTS)
def test_sdk(two_gpus: Daemon, family: str, _flag: str, fields: dict[str, Any], lines: list[str]) -> None:
    """The docker SDK's device requests."""
    assert run(two_gpus, LIST, family=family, **gpus(**fields)).splitlines() == lines


@pytest.mark.parametrize(("flag", "_fields", "lines"), REQUESTS)
def test_command(two_gpus: Daemon, tmp_path: Path, flag: str, _fields: dict[str, Any], lines: list[str]) -> None:
    """The docker command's --gpus."""
    done = docker_run(two_gpus, tmp_path, "--gpus", flag, f"{IMAGE}:deb", *LIST)
    assert done.stdout.splitlines() == lines, done.stderr
    assert done.returncode == 0


def docker_run(daemon: Daemon, configuration: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the docker command against a daemon, with no configuration of the user's."""
    command = shutil.which("docker")
    if command is None:
        # Never a failure: it sends what the SDK sends, and Debian 13 has it in a package of its own.
        pytest.skip("the docker command is missing; install docker-cli (Debian 12: docker.io)")
    return subprocess.run(
        [command, "--host", daemon.socket, "run", "--rm", "--network=none", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=CALL_SECONDS,
        env={**os.environ, "DOCKER_CONFIG": str(configuration)},
    )


@pytest.mark.parametrize(("_flag", "fields", "lines"), REQUESTS)
def test_testcontainers(
    two_gpus: Daemon, monkeypatch: pytest.MonkeyPatch, _flag: str, fields: dict[str, Any], lines: list[str]
) -> None:
    """Testcontainers, as somebody's test suite would use it."""
    # It sets DOCKER_HOST itself, too; monkeypatch puts back what was there before.
    monkeypatch.setenv("DOCKER_HOST", two_gpus.socket)
    from testcontainers.core.config import testcontainers_config
    from testcontainers.core.container import DockerContainer

    # Its garbage collector is a container from a registry.
    monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)
    container = DockerContainer(f"{IMAGE}:deb", docker_client_kw={"timeout": CALL_SECONDS}, command="busybox sleep 60")
    with container.with_kwargs(network_mode="none", **gpus(**fields)) as running:
        done = running.exec(LIST)
    assert isinstance(done.output, bytes)
    assert (done.exit_code, done.output.decode().splitlines()) == (0, lines)


def test_library_comes_from_the_loader_cache(two_gpus: Daemon) -> None:
    """The rpm family's library directory is none of those that the image's loader knows without its cache."""
    environment = {"LD_DEBUG": "libs"}  # on standard error, which docker mingles with the output
    output = run(two_gpus, LIST, family="rpm", environment=environment, stdout=False, **gpus(count=-1))
    lines = [re.sub(r"^\s*\d+:\s*", "", line) for line in output.splitlines()]
    start = next(number for number, line in enumerate(lines) if line.startswith("find library=libnvidia-ml.so.1"))
    search = lines[start : lines.index("", start)]
    assert any("search cache=/etc/ld.so.cache" in line for line in search)
    assert search[-1].startswith("trying file=/usr/lib64/libnvidia-ml.so.")
    assert not any("system search path" in line for line in search)


@pytest.mark.parametrize(("family", "folder"), [("deb", "/usr/lib/x86_64-linux-gnu"), ("rpm", "/usr/lib64")])
def test_loader_cache_names_the_libraries(two_gpus: Daemon, tmp_path: Path, family: str, folder: str) -> None:
    """What glibc's own ldconfig reads from the cache that was written into the container."""
    # As text, because docker's log keeps no other bytes.
    encoded = run(two_gpus, ["busybox", "base64", "/etc/ld.so.cache"], family=family, **gpus(count=-1))
    (tmp_path / "cache").write_bytes(base64.b64decode(encoded))
    done = subprocess.run(
        ["/sbin/ldconfig", "-p", "-C", str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        check=True,
        timeout=CALL_SECONDS,
    )
    found = dict(re.findall(r"^\t(\S+) \(.*\) => (\S+)$", done.stdout, re.MULTILINE))
    wanted = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")
    assert {name: found.get(name) for name in wanted} == {name: f"{folder}/{name}" for name in wanted}
    assert len(found) == len(done.stdout.splitlines()) - 2  # the first and the last line tell about the file


@pytest.mark.parametrize("daemon", ["two_gpus", "two_gpus_unified"])
def test_only_the_visible_gpu_can_be_opened(request: pytest.FixtureRequest, daemon: str) -> None:
    """A node that the container makes itself opens nothing: the device rules are those of the one GPU.

    The rules are lines of devices.allow on cgroup v1 and a program on v2; on a machine with v2 only, the daemons agree.
    """
    script = (
        'ls() { busybox ls "$@"; }; cd /dev; ls -d nvidia*; ls /proc/driver/nvidia/gpus; '
        "busybox mknod /tmp/0 c 195 0; busybox mknod /tmp/1 c 195 1; "
        "busybox cat /tmp/0 2>&1; busybox cat /tmp/1 2>&1; true"
    )
    output = run(request.getfixturevalue(daemon), shell(script), **gpus(device_ids=[UUID_1]))
    # ENXIO: the rules allow it, and no driver is behind the number here. EPERM: the rules forbid it.
    assert output.splitlines() == [
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia1",
        "nvidiactl",
        "0000:18:00.0",
        "cat: can't open '/tmp/0': Operation not permitted",
        "cat: can't open '/tmp/1': No such device or address",
    ]


def test_injected_files_are_read_only(two_gpus: Daemon) -> None:
    """The driver's files of the host cannot be changed from a container, not even by its root."""
    script = "for f in /usr/bin/nvidia-smi /usr/lib/*/libcuda.so.*.*; do echo x 2>&1 >>$f; done; true"
    output = run(two_gpus, shell(script), **gpus(count=-1))
    assert output.count("Read-only file system") == 2


def test_unsatisfied_requirement(two_gpus: Daemon) -> None:
    """The refusal shows what was asked and what is there."""
    message = refusal(two_gpus, environment={"NVIDIA_REQUIRE_CUDA": "cuda>=99.0"}, **gpus(count=-1))
    assert "cuda>=99.0" in message
    assert "12.8" in message


def test_satisfied_requirement(two_gpus: Daemon) -> None:
    """The other way round: what holds does not stand in the way."""
    environment = {"NVIDIA_REQUIRE_CUDA": "cuda>=12.0 driver>=470"}
    assert run(two_gpus, LIST, environment=environment, **gpus(count=1)).splitlines() == [GPU_0]


def test_unknown_device(two_gpus: Daemon) -> None:
    """The refusal names the device and those that exist."""
    message = refusal(two_gpus, **gpus(device_ids=["GPU-deadbeef"]))
    assert "GPU-deadbeef" in message
    assert UUID_1 in message


def test_machine_without_driver(no_driver: Daemon) -> None:
    """The error says what is missing and what would mend it."""
    message = refusal(no_driver, **gpus(count=-1))
    assert "nvinject: there is no NVIDIA driver: neither /proc/driver/nvidia/version nor libnvidia-ml.so.1" in message
    assert "; install the driver on the host, or set nvidia-container-cli.root" in message


SILENT = shell(
    "busybox grep -i nvidia /proc/self/mountinfo; busybox ls -d /dev/nvidia* 2>&1; busybox ls /etc/ld.so.cache 2>&1; "
    "busybox env | busybox grep NVIDIA; true"
)
NOTHING = ["ls: /dev/nvidia*: No such file or directory", "ls: /etc/ld.so.cache: No such file or directory"]


def test_container_without_gpus(two_gpus: Daemon) -> None:
    """A container that asks for no GPU is what it is without the hook."""
    assert run(two_gpus, SILENT).splitlines() == NOTHING


def test_container_without_gpus_and_driver(no_driver: Daemon) -> None:
    """It starts on a machine without a driver, too."""
    assert run(no_driver, SILENT).splitlines() == NOTHING


def test_no_hook(dockerd: str, images: dict[str, bytes], tmp_path: Path) -> None:
    """Without our hook on its PATH dockerd knows no GPUs: it is by that name that it finds them."""
    with started(Daemon(dockerd, tmp_path / "dockerd.log", "two-h100", None), images) as daemon:
        assert "could not select device driver" in refusal(daemon, **gpus(count=-1))


def start_sleeper(daemon: Daemon) -> None:
    """Start a container that outlives whoever started it."""
    with connected(daemon) as client:
        client.containers.run(
            f"{IMAGE}:deb", ["busybox", "sleep", "300"], network_mode="none", detach=True, **gpus(count=-1)
        )


def fail_beside_a_sleeper(daemon: Daemon, images: dict[str, bytes], *, kill: bool) -> None:
    """Do what a failing test does: leave the daemon's context by an exception while a container runs."""
    with started(daemon, images):
        start_sleeper(daemon)
        assert len(daemon.processes()) > 2
        if kill:
            daemon.kill()
        raise RuntimeError("a test failed")


@pytest.mark.parametrize("kill", [False, True], ids=["daemon runs", "daemon killed"])
def test_nothing_is_left_behind(dockerd: str, hook: Path, images: dict[str, bytes], tmp_path: Path, kill: bool) -> None:  # noqa: FBT001
    """A daemon whose test failed while a container ran leaves no mount, process, cgroup or path behind."""
    daemon = Daemon(dockerd, tmp_path / "dockerd.log", "two-h100", hook)
    before = host_state()
    with pytest.raises(RuntimeError, match="a test failed"):
        fail_beside_a_sleeper(daemon, images, kill=kill)
    assert daemon.leftovers() == []
    assert host_state() <= before
    assert daemon.ended


BROKEN = [
    pytest.param("two-h100", "/bin/ls", r"did not start on machine two-h100; .*\s.*unrecognized option", id="program"),
    pytest.param("/nonexistent.yaml", "/bin/ls", r"nvfakes run failed: .*/nonexistent\.yaml", id="machine"),
]


@pytest.mark.usefixtures("dockerd")
@pytest.mark.parametrize(("machine", "program", "message"), BROKEN)
def test_daemon_that_does_not_start_is_explained(tmp_path: Path, machine: str, program: str, message: str) -> None:
    """What it said is in the message, and nothing is left of that attempt either."""
    daemon = Daemon(program, tmp_path / "dockerd.log", machine, None)
    with pytest.raises(DaemonError, match=message), started(daemon, {}):
        pytest.fail("it started")
    assert daemon.leftovers() == []
