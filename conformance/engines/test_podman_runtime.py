"""`podman --runtime nvidia-container-runtime` with nvinject's shim in front of runc and crun.

Belongs here: what a user of podman gets through the shim, with devices named in every way that it knows. Does not
belong here: podman's own CDI (test_podman_cdi.py).
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvconform.required import give_up

from . import test_podman_cdi
from .podman import IMAGE, Podman
from .test_podman_cdi import GPU_0, GPU_1, ONLY_GPU_1, started

pytestmark = [pytest.mark.podman, pytest.mark.xdist_group("podman")]

base = test_podman_cdi.base  # the fixture

# podman makes no containers with this right unless asked; the shim then needs no hook.
MAKES_NODES = ("--cap-add", "MKNOD")


@pytest.fixture(scope="module", params=["runc", "crun"])
def engine(base: Path, hook: Path, images: dict[str, bytes], request: pytest.FixtureRequest) -> Iterator[Podman]:
    """Return podman on a machine with two H100, with the shim in front of each low-level runtime."""
    if shutil.which(request.param, path=f"{os.environ['PATH']}:/usr/sbin") is None:
        give_up("podman", f"{request.param} is missing")
    podman = Podman(base / f"shim-{request.param}", "two-h100", hook, request.param)
    runtimes = f'[nvidia-container-runtime]\nruntimes = ["{podman.folder}/runtime"]\n'
    (podman.folder / "config.toml").write_text(runtimes)
    yield from started(podman, {"deb": images["deb"]})


def run(
    podman: Podman, script: str, *options: str, name: str = "nvidia-container-runtime"
) -> "subprocess.CompletedProcess[str]":
    """Run a shell script in a container through the shim."""
    shim = str(podman.prefix / "bin" / name)
    words = ["--runtime", shim, "run", "--rm", "--network=none", *options, f"{IMAGE}:deb", "sh", "-c", script]
    # podman gives runtimes an environment of its own making: the configuration has to be where everybody looks.
    place = "/etc/nvidia-container-runtime"
    copy = f"mkdir -p {place} && cp {shlex.quote(str(podman.folder / 'config.toml'))} {place}"
    return podman.on_machine(f"{copy} && exec podman {shlex.join(words)}")


def devices(value: str) -> tuple[str, str]:
    """Return the option that asks for devices by the environment."""
    return "-e", f"NVIDIA_VISIBLE_DEVICES={value}"


# name of the shim, options, lines of nvidia-smi
REQUESTS = [
    ("nvidia-container-runtime", devices("all"), [GPU_0, GPU_1]),
    ("nvidia-container-runtime", devices("1"), [ONLY_GPU_1]),
    ("nvidia-container-runtime", (*devices("1"), *MAKES_NODES), [ONLY_GPU_1]),
    ("nvidia-container-runtime", (*devices("all"), "--read-only"), [GPU_0, GPU_1]),
    ("nvidia-container-runtime", devices("nvidia.com/gpu=1"), [ONLY_GPU_1]),
    ("nvidia-container-runtime", ("--annotation", "cdi.k8s.io/test=nvidia.com/gpu=0"), [GPU_0]),
    ("nvidia-container-runtime.cdi", devices("0,1"), [GPU_0, GPU_1]),
    ("nvidia-container-runtime.legacy", devices("1"), [ONLY_GPU_1]),
]


@pytest.mark.parametrize("engine", ["runc"], indirect=True)
@pytest.mark.parametrize(("name", "options", "expected"), REQUESTS)
def test_devices(engine: Podman, name: str, options: tuple[str, ...], expected: list[str]) -> None:
    """Every way to ask, every mode to serve."""
    done = run(engine, "nvidia-smi -L", *options, name=name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected


def test_hook_and_no_hook(engine: Podman) -> None:
    """The same through both low-level runtimes, of which each has its own idea of a createContainer hook."""
    for options in ((), MAKES_NODES):
        done = run(engine, "nvidia-smi -L", *devices("1"), *options)
        assert done.stdout.splitlines() == [ONLY_GPU_1], done.stderr


def test_container_without_gpus(engine: Podman) -> None:
    """It has nothing of a GPU's."""
    done = run(engine, "busybox ls /dev | busybox grep -c nvidia; busybox grep -c nvidia /proc/self/mountinfo; true")
    assert done.stdout.split() == ["0", "0"]


OTHERS = """{"cdiVersion": "0.5.0", "kind": "acme.com/card", "containerEdits": {"env": ["ACME=here"]}, "devices": [
  {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/acme0", "hostPath": "/dev/null"}]}}]}"""
ANNOTATED = ("--annotation", "cdi.k8s.io/acme=acme.com/card=0")
# options, what the container sees of both vendors
MIXED = [
    (("--device", "acme.com/card=0"), ["here", "/dev/acme0"]),
    (("--device", "acme.com/card=0", *devices("1")), ["here", "/dev/acme0", ONLY_GPU_1]),
    (("--device", "acme.com/card=0", "--device", "nvidia.com/gpu=0"), ["here", "/dev/acme0", GPU_0]),
    ((*ANNOTATED, *devices("1")), [ONLY_GPU_1]),
    (ANNOTATED, []),
    (devices("acme.com/card=0"), []),
]


@pytest.mark.parametrize("engine", ["runc"], indirect=True)
@pytest.mark.parametrize(("options", "expected"), MIXED)
def test_devices_of_another_vendor(engine: Podman, options: tuple[str, ...], expected: list[str]) -> None:
    """Podman serves them by their spec, whatever the shim does; what names them elsewhere is passed on."""
    spec = engine.specs / "acme.json"
    spec.write_text(OTHERS)
    try:
        script = "echo $ACME; ls /dev/acme0; nvidia-smi -L 2>/dev/null || true"
        done = run(engine, script, *options)
        assert done.returncode == 0, done.stderr
        assert [line for line in done.stdout.splitlines() if line] == expected
        assert engine.on_machine("nvinject cdi list").stdout.split()[0] == "acme.com/card=0"
        assert engine.on_machine("nvinject cdi validate").returncode == 0
    finally:
        spec.unlink()


def test_refusal(engine: Podman) -> None:
    """The user reads the cause."""
    done = run(engine, "true", *devices("9"))
    assert done.returncode != 0
    assert "unknown device" in done.stderr


def test_unresolvable_cdi_device(engine: Podman) -> None:
    """The user reads which specs were read and what is near."""
    done = run(engine, "true", *devices("nvidia.com/gpu=9"))
    assert done.returncode != 0
    assert "/etc/cdi/nvidia.yaml" in done.stderr
    assert "nvidia.com/gpu=0" in done.stderr
