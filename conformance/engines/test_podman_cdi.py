"""`podman run --device nvidia.com/gpu=…` with specs that nvinject wrote, on machines that are only declared.

Belongs here: what a user of podman gets, and what the hooks of such a spec do beside hostile images. Does not belong
here: what is in a spec (tests/golden). podman reads the spec by itself; only the hooks are nvinject's.
"""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvconform.required import give_up

from .conftest import why_no_machine
from .image import add, triplet
from .podman import Podman

pytestmark = [pytest.mark.podman, pytest.mark.xdist_group("podman")]

GPU_0 = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-000000a0-1111-2222-3333-000000000000)"
GPU_1 = "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-000000a1-1111-2222-3333-000000000001)"
ONLY_GPU_1 = GPU_1.replace("GPU 1:", "GPU 0:")
UUID_1 = "GPU-000000a1-1111-2222-3333-000000000001"
OTHER_USER = 65534
NEEDED = {"podman": "install podman", "runc": "install runc", "cc": "install gcc and libc6-dev"}


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """Return a folder for engines, or say why there can be none.

    Its name is short: below a long one, as processes of pytest-xdist have, podman waits 20 seconds for each container.
    """
    for program, remedy in NEEDED.items():
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            give_up("podman", f"{program} is missing; {remedy}")
    problem = why_no_machine()
    if problem:
        give_up("podman", f"a machine needs root: {problem}")
    folder = Path(tempfile.mkdtemp(prefix="nvpodman-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def started(podman: Podman, images: dict[str, bytes]) -> Iterator[Podman]:
    """Yield an engine that has images and a spec, and remove it whatever happens."""
    try:
        for family, archive in images.items():
            podman.load(family, archive)
        podman.generate()
        yield podman
    finally:
        podman.close()


@pytest.fixture(scope="module", params=["runc", "crun"])
def engine(base: Path, hook: Path, images: dict[str, bytes], request: pytest.FixtureRequest) -> Iterator[Podman]:
    """Return podman on a machine with two H100, with each low-level runtime."""
    if shutil.which(request.param, path=f"{os.environ['PATH']}:/usr/sbin") is None:
        give_up("podman", f"{request.param} is missing")
    yield from started(Podman(base / request.param, "two-h100", hook, request.param), images)


@pytest.fixture(scope="module")
def mig(base: Path, hook: Path, images: dict[str, bytes]) -> Iterator[Podman]:
    """Return podman on a machine whose first GPU is cut in two."""
    yield from started(Podman(base / "mig", "mig-h100", hook), {"deb": images["deb"]})


@pytest.fixture(scope="module")
def runc(base: Path, hook: Path, images: dict[str, bytes]) -> Iterator[Podman]:
    """Return podman for hostile images: runc is the runtime that gives hooks the container's environment."""
    yield from started(Podman(base / "hostile", "two-h100", hook), {"deb": images["deb"]})


PROFILE = (
    '{"profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", 0x2]}],'
    ' "rules": [{"pattern": [], "profile": "_container_"}]}'
)
REQUESTS = [
    (("nvidia.com/gpu=all",), [GPU_0, GPU_1]),
    (("nvidia.com/gpu=0",), [GPU_0]),
    (("nvidia.com/gpu=1",), [ONLY_GPU_1]),
    ((f"nvidia.com/gpu={UUID_1}",), [ONLY_GPU_1]),
    (("nvidia.com/gpu=0", "nvidia.com/gpu=1"), [GPU_0, GPU_1]),
]


@pytest.mark.parametrize("family", ["deb", "rpm"])
@pytest.mark.parametrize(("devices", "expected"), REQUESTS)
def test_exactly_the_devices_that_are_asked_for(
    engine: Podman, devices: tuple[str, ...], expected: list[str], family: str
) -> None:
    """nvidia-smi runs, which needs the loader cache, and sees what was asked for."""
    done = engine.run("nvidia-smi -L", *devices, family=family)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected


def test_what_a_container_sees(engine: Podman) -> None:
    """Nodes, device rules, the driver's procfs, links, profile and environment are those of one GPU."""
    done = engine.run(
        "busybox ls /dev | busybox grep -E '^nvidia|^dri$'; busybox ls /proc/driver/nvidia/gpus;"
        " busybox grep ModifyDeviceFiles /proc/driver/nvidia/params;"
        " for link in /dev/dri/by-path/*; do busybox readlink $link; done;"
        " busybox cat /etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf; echo $NVIDIA_VISIBLE_DEVICES;"
        f" cd /usr/lib/{triplet()}; for link in libcuda.so libcuda.so.1; do busybox readlink $link; done",
        "nvidia.com/gpu=1",
        options=("-e", "NVIDIA_VISIBLE_DEVICES=all"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "dri",
        "nvidia-modeset",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia1",
        "nvidiactl",
        "0000:18:00.0",
        "ModifyDeviceFiles: 0",
        "../card2",
        "../renderD129",
        PROFILE,
        "void",
        "libcuda.so.1",
        "libcuda.so.570.133.20",
    ]


def test_a_container_may_be_started_again(engine: Podman) -> None:
    """The hooks find what they made the first time."""
    made = engine.call(
        "create", "--name", "again", "--network=none", "--device", "nvidia.com/gpu=0",
        "localhost/nvconform:deb", "nvidia-smi", "-L",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    try:
        for _ in range(2):
            done = engine.call("start", "--attach", "again")
            assert (done.returncode, done.stdout.splitlines()) == (0, [GPU_0]), done.stderr
    finally:
        engine.call("rm", "--force", "again")


def test_a_name_that_no_spec_has(engine: Podman) -> None:
    """Podman says that it cannot resolve it; nvinject says why."""
    done = engine.run("true", "nvidia.com/gpu=7")
    assert done.returncode != 0
    assert "unresolvable CDI devices nvidia.com/gpu=7" in done.stderr
    told = engine.on_machine("nvinject cdi explain nvidia.com/gpu=7")
    assert told.returncode == 1
    assert "is defined by no spec in /etc/cdi, /var/run/cdi" in told.stdout
    assert "nearest" in told.stdout


def test_specs_of_every_shape_are_read(engine: Podman) -> None:
    """One file a device, JSON, and the spec of channels beside them."""
    whole = (engine.specs / "nvidia.yaml").read_text()
    try:
        (engine.specs / "nvidia.yaml").unlink()
        script = (
            f"nvinject cdi generate --per-device --output {engine.specs} &&"
            f" nvinject cdi generate --mode imex --format json --output {engine.specs}/imex.json"
        )
        assert engine.on_machine(script).returncode == 0
        asked = ("nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/imex-channel=0")
        done = engine.run("nvidia-smi -L; busybox ls /dev/nvidia-caps-imex-channels", *asked)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [GPU_0, GPU_1, "channel0"]
        assert engine.on_machine("nvinject cdi validate").returncode == 0
    finally:
        for path in engine.specs.iterdir():
            path.unlink()
        (engine.specs / "nvidia.yaml").write_text(whole)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a folder that everybody may enter, unlike pytest's own: whoever runs a hook has to reach it."""
    folder = Path(tempfile.mkdtemp(prefix="nvconform-podman-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def open_python() -> str:
    """Return an interpreter that another user can start, or skip."""
    candidates = (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    found = next((path for path in candidates if succeeds_for_others(path, "-c", check)), None)
    if found is None:
        give_up("podman", f"another user can start none of {', '.join(candidates)} with Python 3.11 or newer")
    return found


def succeeds_for_others(*command: str) -> bool:
    """Tell whether a program of another user's ends well."""
    try:
        tried = subprocess.run(
            command, user=OTHER_USER, group=OTHER_USER, extra_groups=[], cwd="/", capture_output=True, check=False
        )
    except OSError:
        return False
    return tried.returncode == 0


NAMESPACE_SPEC = """\
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
  - name: '0'
    containerEdits:
      deviceNodes: [{{path: /dev/zero}}]
      hooks:
        - {{hookName: createContainer, path: {hook}, args: [h, create-symlinks, --link, "a::/usr/lib/b"], env: [A=b]}}
        - {{hookName: createContainer, path: {hook}, args: [hook, update-ldcache, --folder, /opt/nvidia], env: [A=b]}}
        - {{hookName: createContainer, path: {hook}, args: [hook, disable-device-node-modification], env: [A=b]}}
        - {{hookName: createContainer, path: {hook}, args: [hook, update-application-profile], env: [A=b]}}
"""


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_user_namespaces(base: Path, images: dict[str, bytes], open_folder: Path, runtime: str) -> None:
    """Hooks run as somebody who may not reach the bundle: the root file system is found all the same."""
    assert base.exists()
    if shutil.which(runtime, path=f"{os.environ['PATH']}:/usr/sbin") is None:
        give_up("podman", f"{runtime} is missing")
    python, here = open_python(), Path(__file__).parents[2]
    if not succeeds_for_others("test", "-r", f"{here}/nvinject/__init__.py"):
        give_up("podman", f"hooks run as an ordinary user, to whom {here} is closed")
    command = [python, "-m", "nvinject", "install", "--prefix", str(open_folder / "prefix"), "--links"]
    subprocess.run(command, check=True, capture_output=True, timeout=60, cwd=here)
    podman = Podman(open_folder / "podman", "", open_folder / "prefix", runtime)
    hook = open_folder / "prefix/bin/nvidia-cdi-hook"
    (podman.specs / "nvidia.yaml").write_text(NAMESPACE_SPEC.format(hook=hook))
    try:
        podman.load("deb", images["deb"])
        mapped = ("--uidmap=0:100000:65536", "--gidmap=0:100000:65536")
        done = podman.run(
            "busybox readlink /usr/lib/b; busybox cat /etc/ld.so.conf.d/*; busybox ls -n /etc/ld.so.cache",
            "nvidia.com/gpu=0",
            options=mapped,
        )
        if done.returncode != 0 and runtime == "crun":
            # crun 1.21 goes to the bundle first, which podman closes to the container's root.
            (podman.specs / "nvidia.yaml").write_text(NAMESPACE_SPEC.format(hook="/bin/true"))
            tried = podman.run("true", "nvidia.com/gpu=0", options=mapped)
            if tried.returncode != 0:
                pytest.skip(f"crun runs no hook at all here: {tried.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
        link, folder, cache = done.stdout.splitlines()
        assert (link, folder, cache.split()[2:4]) == ("a", "/opt/nvidia", ["0", "0"])
    finally:
        podman.close()


SLICES = [
    ("nvidia.com/gpu=0:0", ["nvidia-cap12", "nvidia-cap13"], ["gi1"]),
    ("nvidia.com/gpu=MIG-000000a0-5555-6666-7777-000000000001", ["nvidia-cap21", "nvidia-cap22"], ["gi2"]),
    ("nvidia.com/gpu=all", ["nvidia-cap12", "nvidia-cap13", "nvidia-cap21", "nvidia-cap22"], ["gi1", "gi2"]),
]


@pytest.mark.parametrize(("device", "nodes", "instances"), SLICES)
def test_slices(mig: Podman, device: str, nodes: list[str], instances: list[str]) -> None:
    """A slice comes with the capabilities of its two instances and no others, in /dev and in the driver's procfs."""
    done = mig.run(
        "busybox ls /dev/nvidia-caps /proc/driver/nvidia/capabilities/gpu0/mig | busybox grep -E '^(nvidia-cap|gi)'",
        device,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [*nodes, *instances]


class Hostile:
    """An image as an attacker would make it, and a folder of the host that it points to."""

    def __init__(self, images: dict[str, bytes], canary: Path) -> None:
        """Keep the image that the hostile ones are made of."""
        self.images = images
        self.canary = canary

    def build(self, *entries: tuple[str, str | bytes]) -> bytes:
        """Return the image with links (`-> target`) and files added."""
        buffer = io.BytesIO(self.images["deb"])
        with tarfile.open(fileobj=buffer, mode="a:") as archive:
            for name, content in entries:
                if isinstance(content, str) and content.startswith("-> "):
                    add(archive, name, tarfile.SYMTYPE, link=content[3:].replace("CANARY", str(self.canary)))
                else:
                    add(archive, name, content=content if isinstance(content, bytes) else content.encode(), mode=0o755)
        return buffer.getvalue()


@pytest.fixture
def hostile(images: dict[str, bytes], tmp_path: Path) -> Iterator[Hostile]:
    """Return the builder; whatever happens, the canary must be as it was."""
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "secret").write_text("secret")
    yield Hostile(images, canary)
    assert [path.name for path in canary.iterdir()] == ["secret"]
    assert (canary / "secret").read_text() == "secret"


UP = "-> /../../../../../../../.." + "CANARY"
ATTACKS: list[tuple[str, list[tuple[str, str | bytes]]]] = [
    ("links (CVE-2024-0134)", [("usr/local/nvidia", UP), ("etc/nvidia", UP)]),
    ("firmware (CVE-2024-0133)", [("usr/lib/firmware", UP)]),
    ("loader cache (CVE-2025-23267)", [("etc/ld.so.cache", "-> CANARY/secret"), ("etc/ld.so.conf.d", UP)]),
    ("compat (CVE-2024-0132)", [("usr/local/cuda/compat", UP)]),
    ("dispatchers", [("etc/vulkan", UP), ("etc/OpenCL", UP)]),
]


@pytest.mark.parametrize("entries", [entries for _, entries in ATTACKS], ids=[title for title, _ in ATTACKS])
def test_hostile_images_change_nothing_outside(
    runc: Podman, hostile: Hostile, entries: list[tuple[str, str | bytes]]
) -> None:
    """The container starts, and whatever was to be created was created inside."""
    runc.load("hostile", hostile.build(*entries))
    done = runc.run("nvidia-smi -L", "nvidia.com/gpu=0", family="hostile")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [GPU_0]


SITE = "open('{canary}/run', 'w').write('image code ran as host root')\n"
VARIABLES = ("PYTHONPATH=/proc/self/cwd", "PYTHONHOME=/proc/self/cwd", "PYTHONSTARTUP=/proc/self/cwd/sitecustomize.py")


def without_env(document: Any) -> Any:
    """Return a spec whose hooks have no environment."""
    for device in (*document["devices"], document):
        for hook in device["containerEdits"].get("hooks", []):
            del hook["env"]
    return document


@pytest.mark.parametrize("explicit", [True, False], ids=["env", "no env"])
def test_code_of_the_image_is_never_run_by_a_hook(runc: Podman, hostile: Hostile, *, explicit: bool) -> None:
    """Runc starts a hook in the root file system, and without env in the spec with the container's (CVE-2025-23266).

    Our specs have env. Where somebody took it out, the launcher takes no code from there, and the hook refuses.
    """
    code = SITE.format(canary=hostile.canary)
    runc.load("python", hostile.build(("sitecustomize.py", code), ("os.py", code), ("gc.py", code)))
    whole = (runc.specs / "nvidia.yaml").read_text()
    options = tuple(word for variable in VARIABLES for word in ("-e", variable))
    try:
        if not explicit:
            (runc.specs / "nvidia.yaml").write_text(yaml.safe_dump(without_env(yaml.safe_load(whole))))
            assert "has no env" in runc.on_machine("nvinject cdi validate").stdout
        done = runc.run("nvidia-smi -L", "nvidia.com/gpu=0", options=options, family="python")
    finally:
        (runc.specs / "nvidia.yaml").write_text(whole)
    if explicit:
        assert (done.returncode, done.stdout.splitlines()) == (0, [GPU_0]), done.stderr
    else:
        assert done.returncode != 0
        assert "PYTHONPATH" in done.stderr


def test_newer_cuda_libraries_of_an_image_come_first(runc: Podman, hostile: Hostile) -> None:
    """The loader takes the image's library from where it lies; nothing of the image is mounted."""
    library = f"/usr/lib/{triplet()}/libm.so.6"
    compat = "usr/local/cuda-12.9/compat"
    entries: list[tuple[str, str | bytes]] = [
        (f"{compat}/libcuda.so.575.51.03", Path(os.path.realpath(library)).read_bytes()),
        (f"{compat}/libcuda.so.1", "-> libcuda.so.575.51.03"),
        ("usr/local/cuda", "-> cuda-12.9"),
    ]
    runc.load("compat", hostile.build(*entries))
    script = "busybox cat /etc/ld.so.conf.d/00-compat-*.conf; busybox grep -c /cuda /proc/self/mountinfo"
    done = runc.run(script, "nvidia.com/gpu=0", family="compat")
    assert done.stdout.splitlines() == ["/usr/local/cuda-12.9/compat", "0"], done.stderr
