"""The original's installation guide, followed word by word with nvinject in its place: docker and podman see the GPUs.

Belongs here: the guide's commands under the original's names, and nothing else that an operator would do. What tests
need beside it (folders of their own, a runtime that shows the fake driver's procfs) is in the scripts' first lines.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.image import ImageError, build_image
from nvconform.engines.engine import remove_cgroups
from nvconform.engines.podman import write_settings
from nvconform.required import give_up

from .conftest import Bench

pytestmark = pytest.mark.xdist_group("podman")

GPUS = [
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-000000a0-1111-2222-3333-000000000000)",
    "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-000000a1-1111-2222-3333-000000000001)",
]
# The machine's /etc is private already. Nothing but the installation is in its folder.
SURROUNDINGS = """\
mount -t tmpfs none /var/lib; mkdir /var/lib/containers
mkdir "$T/lane"; $PYTHON -m nvfakes runtime-wrapper "$T/lane/runc" --runtime "$(command -v runc)"
unset NVIDIA_CTK_CONFIG_FILE_PATH
export PATH="$T/usr/bin:$T/lane:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""
INSTALLATION = """\
$PYTHON -m nvinject install --prefix "$T/usr" --links >/dev/null 2>&1
"""
# Debian's docker keeps its files in /var/lib and /run; the rest is what machines without a network bridge need.
RESTART_DOCKER = """\
dockerd --host "unix://$T/s" --pidfile "$T/pid" --data-root "$T/data" --exec-root "$T/exec" \\
    --iptables=false --bridge=none --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent=/nvinject-guide \\
    >"$T/log" 2>&1 &
export DOCKER_HOST="unix://$T/s" DOCKER_CONFIG="$T"
for _ in $(seq 300); do docker version >/dev/null 2>&1 && break; kill -0 $! || break; sleep 0.2; done
docker import "$T/image.tar" ubuntu >/dev/null || { tail "$T/log" >&2; exit 1; }
"""
STOP_DOCKER = """\
kill $(cat "$T/pid"); wait
find /sys/fs/cgroup -depth -type d -path '*/nvinject-guide*' -exec rmdir {} + 2>/dev/null || true
"""
# Where podman has its files is said by settings that the test writes.
PODMAN = """\
export CONTAINERS_CONF="$T/containers.conf" CONTAINERS_STORAGE_CONF="$T/storage.conf"
podman import "$T/image.tar" ubuntu >/dev/null 2>&1
"""


@pytest.fixture
def guided(bench: Bench) -> Iterator[Bench]:
    """Return a machine with two GPUs and an image in a folder whose name is short enough for sockets of engines."""
    try:
        image = build_image("deb")
    except ImageError as error:
        give_up("root", str(error))
    folder = Path(tempfile.mkdtemp(prefix="nvguide-", dir="/tmp"))
    (folder / "config.toml").touch()
    (folder / "image.tar").write_bytes(image)
    yield Bench(bench.prefix, folder)
    shutil.rmtree(folder)


def need(engine: str, *programs: str) -> None:
    """Skip where a program is missing."""
    for program in programs:
        if shutil.which(program, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin") is None:
            give_up(engine, f"{program} is missing")


@pytest.mark.docker
def test_docker(guided: Bench) -> None:
    """Configuring the container runtime for docker, then the sample workload; --runtime=nvidia is the guide's."""
    need("docker", "dockerd", "docker", "runc")
    guide = (
        "nvidia-ctk runtime configure --runtime=docker >&2\n"
        + RESTART_DOCKER
        + "docker run --rm --network none --runtime=nvidia --gpus all ubuntu nvidia-smi -L\n"
        + "docker run --rm --network none --gpus all ubuntu nvidia-smi -L\n"
        + "docker run --rm --network none --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=1 ubuntu nvidia-smi -L\n"
    )
    done = guided.run(SURROUNDINGS + INSTALLATION + guide + STOP_DOCKER, alone=True)
    assert done.stdout.splitlines() == [*GPUS, *GPUS, GPUS[1].replace("GPU 1:", "GPU 0:")], done.stderr
    assert done.returncode == 0
    assert "Wrote updated config to /etc/docker/daemon.json" in done.stderr


@pytest.mark.podman
def test_podman(guided: Bench) -> None:
    """Generating a CDI specification, checking the names of its devices, running a workload."""
    need("podman", "podman", "runc")
    write_settings(guided.folder, guided.folder / "lane" / "runc")
    guide = (
        "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml 2>/dev/null\n"
        "nvidia-ctk cdi list 2>/dev/null\n"
        + PODMAN
        + "podman run --rm --network none --device nvidia.com/gpu=all --security-opt=label=disable "
        + "ubuntu nvidia-smi -L\n"
    )
    try:
        done = guided.run(SURROUNDINGS + INSTALLATION + guide, alone=True)
    finally:
        remove_cgroups("libpod_parent")
    names = [f"nvidia.com/gpu={name}" for name in ("0", "1", *(gpu.split()[-1].strip(")") for gpu in GPUS), "all")]
    assert done.stdout.splitlines() == [*names, *GPUS], done.stderr
    assert done.returncode == 0


def test_the_way_back(guided: Bench) -> None:
    """Undoing and uninstalling leave what was there before; the words of undoing are ours, the original has none."""
    script = (
        SURROUNDINGS
        + "mkdir -p /etc/docker; printf '{ \"debug\":true }' >/etc/docker/daemon.json; cksum /etc/docker/daemon.json\n"
        + INSTALLATION
        + "nvidia-ctk --quiet runtime configure --runtime=docker\n"
        + "grep -c nvidia-container-runtime /etc/docker/daemon.json\n"
        + "nvidia-ctk --quiet runtime configure --runtime=docker --undo\n"
        + 'cksum /etc/docker/daemon.json; nvinject uninstall --prefix "$T/usr" >/dev/null; ls "$T"\n'
    )
    done = guided.run(script, alone=True)
    before, count, after, *left = done.stdout.splitlines()
    assert (before, count) == (after, "1"), done.stderr
    assert "usr" not in left


def test_images_are_no_part_of_the_guide(guided: Bench) -> None:
    """What stands in the image that the guide's commands run: no driver file, no nvidia-smi."""
    import tarfile

    with tarfile.open(Path(guided.folder) / "image.tar") as archive:
        assert not [name for name in archive.getnames() if "nvidia" in name or "cuda" in name]
