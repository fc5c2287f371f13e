"""The toolbox on WSL 2: what there is, what is wrong, and a container through nvidia-container-cli."""

import json
from pathlib import Path

import pytest

from .conftest import Bench
from .test_container_cli import ROOTFS

STORE = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_4f1cd0b22a6bf3a1"


@pytest.fixture
def wsl() -> str:
    """Return the text of the declared machine."""
    import nvfakes

    return (Path(nvfakes.__file__).parent / "machines/wsl2.yaml").read_text()


def test_info_and_list(bench: Bench, wsl: str) -> None:
    """Versions of the driver store's NVML, the one device, the store's files."""
    document = json.loads(bench.run("nvinject info --json", machine=wsl).stdout)
    assert document["driver"] == {"version": "581.80", "cuda": "13.0"}
    assert [(gpu["index"], gpu["architecture"], gpu["node"]) for gpu in document["gpus"]] == [(0, "8.9", None)]
    assert [node["path"] for node in document["gpus"][0]["more_nodes"]] == ["/dev/dxg"]
    assert {root["name"]: root["evidence"] for root in document["roots"]}["device root"] == "/dev/dxg"
    done = bench.run("nvinject list --kind file --csv; nvinject info", machine=wsl)
    assert done.returncode == 0, done.stderr
    assert f"file,all,{STORE}/nvcubins.bin," in done.stdout
    assert "every GPU of Windows" in done.stdout


def test_the_originals_command_line(bench: Bench, wsl: str) -> None:
    """/dev/dxg and no GPU node; modules are never loaded; nothing of the store of another adapter."""
    done = bench.run("nvidia-container-cli -k list; nvidia-container-cli info", machine=wsl)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "/dev/dxg"
    assert "/usr/lib/wsl/lib/libdxcore.so" in lines
    assert f"{STORE}/libcuda.so.1.1" in lines
    assert [line for line in lines if "iigd" in line or "1111aaaa" in line or "/dev/nvidia" in line] == []
    assert "NVRM version:   581.80" in lines
    assert "Bus Location:" in [line.strip() for line in lines]


def test_configure(bench: Bench, wsl: str) -> None:
    """The container gets device, store and links, and its nvidia-smi finds the GPU; the store's NVML tells versions."""
    done = bench.run(
        ROOTFS + "nvidia-container-cli configure --no-cgroups --device all --compute --utility "
        "--require 'driver>=581,cuda>=13.0' $R\n"
        f"readlink $R/usr/bin/nvidia-smi; ls $R/dev; readlink $R{STORE}/libcuda.so.1\n"
        f"LD_LIBRARY_PATH={STORE} $R{STORE}/nvidia-smi -L",
        machine=wsl,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:3] == [f"{STORE}/nvidia-smi", "dxg", "libcuda.so.1.1"]
    assert "NVIDIA GeForce RTX 4090" in done.stdout


REFUSED = [
    ("--device 1", "device error: 1: unknown device; this host has 0 (every GPU of Windows)"),
    ("--device all --require 'driver>=600'", "requirement error: unsatisfied condition: "),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_configure_refuses(bench: Bench, wsl: str, options: str, message: str) -> None:
    """In the original's form."""
    done = bench.run(f"{ROOTFS}nvidia-container-cli configure --no-cgroups {options} $R", machine=wsl)
    assert done.returncode == 1
    assert done.stderr.startswith(f"nvidia-container-cli: {message}")


def test_specs_and_requirements(bench: Bench, wsl: str) -> None:
    """A spec stays up to date and valid; requirements are judged by what the driver store's NVML says."""
    done = bench.run(
        "mkdir -p /etc/cdi; nvinject cdi refresh --output /etc/cdi/nvidia.yaml\n"
        "nvinject cdi refresh --output /etc/cdi/nvidia.yaml; nvinject cdi validate >&2; nvinject cdi list\n"
        "nvinject check 'driver>=581,cuda>=13.0' >&2; set +e; nvinject check 'driver>=600'; echo $?",
        machine=wsl,
    )
    lines = done.stdout.splitlines()
    assert lines[:2] == ["nvidia.com/gpu=0", "nvidia.com/gpu=all"], done.stderr
    assert (lines[-1], "no: 581.80" in done.stdout) == ("1", True)
    assert "is up to date" in done.stderr


def test_doctor(bench: Bench, wsl: str) -> None:
    """Nothing is wrong with a healthy system; without its device that alone is found, with a remedy in Windows."""
    healthy = bench.run("nvinject doctor --layer module --layer nvml --layer bus", machine=wsl)
    assert (healthy.returncode, healthy.stdout.splitlines()) == (
        0,
        ["driver loaded: nothing wrong", "management library: nothing wrong"],
    )
    script = "rm /dev/dxg; set +e; nvinject doctor --json --layer module; echo $? >&2"
    broken = bench.run(script, machine=wsl)
    (finding,) = json.loads(broken.stdout)["findings"]
    assert (finding["name"], finding["severity"], broken.stderr.strip()) == ("driver-store-unusable", "error", "9")
    assert "wsl --update" in finding["remedy"]
    spoilt = bench.run(
        f"echo junk >$T/junk; mount --bind $T/junk {STORE}/libnvidia-ml.so.1; set +e; nvinject doctor --json",
        machine=wsl,
    )
    assert "nvml-fails" in [finding["name"] for finding in json.loads(spoilt.stdout)["findings"]]
