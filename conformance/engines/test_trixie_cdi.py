"""nvinject with the engines of Debian 13: docker 26 with its own CDI, podman 5 with runc and with crun, containerd 1.7.

Belongs here: that these engines take our specs and that a container gets what was asked for. Does not belong here:
every view of a container (test_podman_cdi.py). The machine is a tree that the spec is made from by way of
nvidia-container-cli.root, as for a driver container; nvinject runs on Debian 13's own Python.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvconform.engines.engine import remove_cgroups
from nvconform.required import give_up
from nvfakes import declaration, tree

from .image import ImageError, build_archive, build_image, triplet
from .trixie import TrixieError, find_tree, run_in

# The first one fetches Debian 13, which deploy/test_debian.py works with too.
pytestmark = [pytest.mark.trixie, pytest.mark.timeout(1200), pytest.mark.xdist_group("deploy")]

REPOSITORY = Path(__file__).parents[2]
CONFIGURATION = """\
[nvidia-container-cli]
root = "{host}"
[nvinject]
dev-root = "{host}"
proc-root = "{host}/proc"
sys-root = "{host}/sys"
"""
PREPARE = """\
export PYTHONPATH={repository} PYTHONDONTWRITEBYTECODE=1
python3 -m nvinject install --prefix /usr/local --links >/dev/null 2>&1
unset PYTHONPATH
nvinject cdi generate --config {host}/config.toml --output /etc/cdi/nvidia.yaml {options} 2>/dev/null
"""
DOCKER = """\
folder=$(mktemp -d)
trap 'kill $(cat $folder/pid); wait' EXIT
echo '{{"features": {{"cdi": true}}}}' >$folder/daemon.json
dockerd --config-file $folder/daemon.json --host unix://$folder/s --pidfile $folder/pid --data-root $folder/data \\
    --exec-root $folder/exec --iptables=false --bridge=none --cgroup-parent=/nvconform-trixie \\
    --exec-opt native.cgroupdriver=cgroupfs >$folder/log 2>&1 &
export DOCKER_HOST=unix://$folder/s
for _ in $(seq 300); do docker version >/dev/null 2>&1 && break; kill -0 $! || break; sleep 0.2; done
docker import {image} nvconform >/dev/null || cat $folder/log >&2
engine() {{ docker run --rm --network none "$@"; }}
"""
PODMAN = """\
cat >/tmp/containers.conf <<END
[containers]
default_ulimits = []
pids_limit = 0
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "{runtime}"
END
printf '[storage]\\ndriver = "vfs"\\nrunroot = "/tmp/run"\\ngraphroot = "/tmp/graph"\\n' >/tmp/storage.conf
export CONTAINERS_CONF=/tmp/containers.conf CONTAINERS_STORAGE_CONF=/tmp/storage.conf PODMAN_IGNORE_CGROUPSV1_WARNING=1
[ {runtime} = crun ] && umount /sys/fs/cgroup/unified 2>/dev/null
podman import {image} nvconform >/dev/null 2>&1
engine() {{ podman run --rm --network none "$@"; }}
"""
# What the kubelet asks of containerd, without a kubelet (cri.py). The pod's own process runs the same image.
CONTAINERD = """\
folder=$(mktemp -d)
trap 'kill $(cat $folder/pid); wait' EXIT
cat >$folder/config.toml <<END
version = 2
root = "$folder/root"
state = "$folder/state"
[grpc]
address = "$folder/s"
[ttrpc]
address = "$folder/s.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/library/nvconform:latest"
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi"]
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/local/bin/nvidia-container-runtime"
END
NVFAKES_ROOT={host} PYTHONPATH={repository}/fakes python3 -m nvfakes runtime-wrapper $folder/low
export NVIDIA_CTK_CONFIG_FILE_PATH=$folder/nvinject.toml
printf '[nvidia-container-runtime]\\nruntimes = ["%s"]\\n' $folder/low | cat - {host}/config.toml >$folder/nvinject.toml
containerd --config $folder/config.toml >$folder/log 2>&1 &
echo $! >$folder/pid
for _ in $(seq 300); do ctr --address $folder/s version >/dev/null 2>&1 && break; kill -0 $! || break; sleep 0.2; done
ctr --address $folder/s --namespace k8s.io image import --snapshotter native {archive} >/dev/null || cat $folder/log >&2
engine() {{
    python3 {repository}/conformance/engines/cri.py --socket $folder/s --logs $folder --cgroup /nvconform-trixie "$@"
}}
"""
ENGINES = {
    "docker": DOCKER,
    "podman-runc": PODMAN.replace("{runtime}", "runc"),
    "podman-crun": PODMAN.replace("{runtime}", "crun"),
    "containerd": CONTAINERD,
}


@pytest.fixture(scope="module")
def debian() -> Path:
    """Return the tree of Debian 13, or say why there is none."""
    try:
        return find_tree()
    except TrixieError as error:
        give_up("trixie", str(error))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a machine with two H100 as a folder, with an image beside its files."""
    folder = tmp_path_factory.mktemp("host")
    if not tree.can_make_nodes(folder):
        give_up("trixie", "device nodes cannot be made here")
    tree.write_tree(declaration.load("two-h100"), folder)
    (folder / "config.toml").write_text(CONFIGURATION.format(host=folder))
    try:
        image = build_image("deb")
        (folder / "image.tar").write_bytes(image)
        (folder / "archive.tar").write_bytes(build_archive(image, "docker.io/library/nvconform:latest"))
    except ImageError as error:
        give_up("trixie", str(error))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("nvconform-trixie", "libpod_parent"):
        remove_cgroups(name)


def run(debian: Path, host: Path, engine: str, script: str, options: str = "") -> list[str]:
    """Run a script in which `engine` starts a container, and return its output line by line."""
    prepare = PREPARE.format(repository=REPOSITORY, host=host, options=options)
    begin = ENGINES[engine].format(
        image=host / "image.tar", archive=host / "archive.tar", host=host, repository=REPOSITORY
    )
    done = run_in(debian, f"{prepare}{begin}{script}", REPOSITORY, host)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


SEEN = (
    f"nvconform sh -c 'cd /usr/lib/{triplet()}; busybox ls /dev | busybox grep ^nvidia; echo $NVIDIA_VISIBLE_DEVICES;"
    " busybox readlink libcuda.so; busybox readlink libcuda.so.1; busybox test -s /etc/ld.so.cache && echo cache'"
)
COMMON = ["nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"]
REST = ["nvidiactl", "void", "libcuda.so.1", "libcuda.so.570.133.20", "cache"]
REQUESTS = [
    ("--device nvidia.com/gpu=0", ["nvidia0"]),
    ("--device nvidia.com/gpu=all", ["nvidia0", "nvidia1"]),
    ("--device nvidia.com/gpu=GPU-000000a1-1111-2222-3333-000000000001", ["nvidia1"]),
    ("--device nvidia.com/gpu=0 --device nvidia.com/gpu=1", ["nvidia0", "nvidia1"]),
]


@pytest.mark.parametrize("engine", list(ENGINES))
def test_exactly_the_devices_that_are_asked_for(debian: Path, host: Path, engine: str) -> None:
    """Every spelling, in one engine."""
    script = "\n".join(f"engine {asked} {SEEN}; echo end" for asked, _ in REQUESTS)
    expected = [line for _, gpus in REQUESTS for line in (*COMMON, *gpus, *REST, "end")]
    assert run(debian, host, engine, script) == expected


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("options", ["--stamp annotations", "--per-device --output /etc/cdi"], ids=["0.6.0", "files"])
def test_specs_of_other_shapes(debian: Path, host: Path, engine: str, options: str) -> None:
    """A newer version of CDI, and a file for each device."""
    found = run(debian, host, engine, f"engine --device nvidia.com/gpu=1 {SEEN}", options)
    assert found == [*COMMON, "nvidia1", *REST]


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_name_that_no_spec_has(debian: Path, host: Path, engine: str) -> None:
    """The engine refuses; nvinject explains."""
    script = (
        f"engine --device nvidia.com/gpu=7 {SEEN} 2>&1 | grep -o 'unresolvable CDI devices nvidia.com/gpu=7';"
        " nvinject cdi explain nvidia.com/gpu=7 | grep -o 'is defined by no spec'"
    )
    assert run(debian, host, engine, script) == ["unresolvable CDI devices nvidia.com/gpu=7", "is defined by no spec"]


def test_kubernetes_asks_by_annotations_too(debian: Path, host: Path) -> None:
    """Device plug-ins of Kubernetes before 1.28 have no field for CDI devices."""
    script = f"engine --annotation cdi.k8s.io/nvconform_gpu=nvidia.com/gpu=1 {SEEN}"
    assert run(debian, host, "containerd", script) == [*COMMON, "nvidia1", *REST]


def test_the_shim_as_a_runtime_of_kubernetes(debian: Path, host: Path) -> None:
    """A runtime class names it in containerd's configuration; the container asks by its environment."""
    script = (
        "engine --handler nvidia --env NVIDIA_VISIBLE_DEVICES=1"
        " nvconform sh -c 'busybox ls /dev | busybox grep ^nvidia; busybox ls /proc/driver/nvidia/gpus'\n"
        "engine --handler nvidia --env NVIDIA_VISIBLE_DEVICES=7 nvconform true 2>&1 | grep -o \"unknown device '7'\"\n"
        "engine --handler nvidia nvconform sh -c 'busybox ls /dev | busybox grep -c ^nvidia || true'"
    )
    found = run(debian, host, "containerd", script)
    assert found == [
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia1",
        "nvidiactl",
        "0000:18:00.0",
        "unknown device '7'",
        "0",
    ]
