"""containerd's `ctr run` with nvinject's runtime shim in runc's place, on a machine that is only declared.

Belongs here: what ctr and a container see. Does not belong here: every rule of a request (conformance/cases), and what
Kubernetes would ask (test_trixie_cdi.py). containerd's own shim, io.containerd.runc.v2, calls what --runc-binary names.
"""

import shutil
from collections.abc import Iterator

import pytest

from nvconform.required import give_up

from .conftest import SEARCH_PATH
from .containerd import Containerd
from .daemon import install_hook, running
from .image import ImageError, build_archive, build_image
from .test_docker import GPU_0, GPU_1, ONLY_GPU_1, UUID_1

pytestmark = [pytest.mark.containerd, pytest.mark.xdist_group("containerd")]


@pytest.fixture(scope="module")
def containerd(dockerd: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containerd]:
    """Return a containerd on a machine with two H100; what dockerd needs, it needs too."""
    assert dockerd
    program = shutil.which("containerd", path=SEARCH_PATH)
    if program is None or shutil.which("ctr", path=SEARCH_PATH) is None:
        give_up("containerd", "containerd is missing; install containerd")
    folder = tmp_path_factory.mktemp("containerd")
    install_hook(folder / "prefix")
    daemon = Containerd(program, folder / "containerd.log", "two-h100", folder / "prefix", shim=True)
    with running(daemon):
        try:
            daemon.load(build_archive(build_image("deb"), "localhost/nvconform:deb"))
        except ImageError as error:
            give_up("containerd", str(error))
        yield daemon


def through_shim(daemon: Containerd, devices: str, *variables: str) -> tuple[str, ...]:
    """Return the options of a container that asks the shim for devices."""
    words = [word for entry in (f"NVIDIA_VISIBLE_DEVICES={devices}", *variables) for word in ("--env", entry)]
    return ("--runc-binary", f"{daemon.prefix}/bin/nvidia-container-runtime", *words)


REQUESTS = [
    ("all", [GPU_0, GPU_1]),
    ("0", [GPU_0]),
    ("1", [ONLY_GPU_1]),
    ("0,1", [GPU_0, GPU_1]),
    (UUID_1, [ONLY_GPU_1]),
]


@pytest.mark.parametrize("runtime", [(), ("--runtime", "io.containerd.runc.v2")], ids=["default", "named"])
@pytest.mark.parametrize(("devices", "lines"), REQUESTS)
def test_environment(containerd: Containerd, devices: str, lines: list[str], runtime: tuple[str, ...]) -> None:
    """The container asks by its environment, and nothing of it stays."""
    name = f"ask-{devices.replace(',', '-').lower()}-{len(runtime)}"
    done = containerd.run(name, "nvidia-smi -L", *runtime, *through_shim(containerd, devices))
    assert done.stdout.splitlines() == lines, done.stderr
    assert not containerd.run_directory(name)


def test_containers_without_a_request_have_nothing(containerd: Containerd) -> None:
    """With the shim or without it."""
    script = "busybox ls /dev | busybox grep -c nvidia; busybox test -e /usr/bin/nvidia-smi || echo none"
    for number, options in enumerate([(), through_shim(containerd, "void")]):
        assert containerd.run(f"void-{number}", script, *options).stdout.splitlines() == ["0", "none"]


def test_the_device_rules_are_those_of_the_one_gpu(containerd: Containerd) -> None:
    """A node of another GPU that the container makes opens nothing."""
    script = (
        "busybox ls /proc/driver/nvidia/gpus; busybox mknod /tmp/0 c 195 0; busybox mknod /tmp/1 c 195 1;"
        " busybox cat /tmp/0 2>&1; busybox cat /tmp/1 2>&1; true"
    )
    assert containerd.run("rules", script, *through_shim(containerd, "1")).stdout.splitlines() == [
        "0000:18:00.0",
        "cat: can't open '/tmp/0': Operation not permitted",
        "cat: can't open '/tmp/1': No such device or address",
    ]


def test_refusals_reach_the_user(containerd: Containerd) -> None:
    """What ctr shows is the last error of the log that containerd names to its runtime."""
    done = containerd.run("refused", "nvidia-smi -L", *through_shim(containerd, "7"))
    assert done.returncode != 0
    assert "nvinject: " in done.stderr
    assert "unknown device '7'" in done.stderr
    done = containerd.run("required", "true", *through_shim(containerd, "all", "NVIDIA_REQUIRE_CUDA=cuda>=99.0"))
    assert done.returncode != 0
    assert "cuda>=99.0" in done.stderr


def test_life_of_a_container(containerd: Containerd) -> None:
    """Start, exec, kill and removal go through the shim; what was generated goes with the task."""
    options = ("--detach", "--snapshotter", "native", *through_shim(containerd, "all"))
    done = containerd.ctr("run", *options, "localhost/nvconform:deb", "life", "busybox", "sleep", "300")
    assert done.returncode == 0, done.stderr
    assert containerd.run_directory("life")
    listed = containerd.ctr("task", "exec", "--exec-id", "one", "life", "nvidia-smi", "-L")
    assert listed.stdout.splitlines() == [GPU_0, GPU_1], listed.stderr
    assert containerd.ctr("task", "kill", "--signal", "KILL", "life").returncode == 0
    containerd.ctr("task", "delete", "--force", "life")
    assert containerd.ctr("container", "delete", "life").returncode == 0
    assert not containerd.run_directory("life")


def test_namespaces_with_a_container_of_one_id(containerd: Containerd) -> None:
    """The second is refused as long as the first lives, and what the first was given stays."""
    options = ("--detach", "--snapshotter", "native", *through_shim(containerd, "all"))
    words = ("localhost/nvconform:deb", "twin", "busybox", "sleep", "300")
    assert containerd.ctr("run", *options, *words).returncode == 0
    other = ("--namespace", "other")
    archive = str(containerd.folder / "archive.tar")
    assert containerd.ctr(*other, "image", "import", "--snapshotter", "native", archive).returncode == 0
    refused = containerd.ctr(*other, "run", *options, *words)
    assert refused.returncode != 0
    assert "/run/nvinject/twin is in use by the container of this id" in refused.stderr
    containerd.ctr(*other, "container", "delete", "twin")
    assert containerd.run_directory("twin")
    listed = containerd.ctr("task", "exec", "--exec-id", "one", "twin", "nvidia-smi", "-L")
    assert listed.stdout.splitlines() == [GPU_0, GPU_1], listed.stderr
    containerd.ctr("task", "kill", "--signal", "KILL", "twin")
    containerd.ctr("task", "delete", "--force", "twin")
    assert containerd.ctr("container", "delete", "twin").returncode == 0
    assert not containerd.run_directory("twin")
