"""What only a real GPU can answer: discovery, NVML and a container that uses the driver's own nvidia-smi.

Runs on self-hosted runners (`pytest -m gpu conformance/gpu`); elsewhere each test says what it could not check.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nvconform.bundle import generate
from nvconform.case import Container
from nvconform.demo import LOADERS, find_libraries, triplet
from nvconform.image import Image

pytestmark = pytest.mark.gpu

SECONDS = 120
GPU_FOLDER = Path("/proc/driver/nvidia/gpus")


def run(*command: str) -> str:
    """Run a program that must succeed and return what it printed."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS).stdout


@pytest.fixture(scope="module")
def gpus() -> list[str]:
    """Return the lines by which the driver's own nvidia-smi lists the GPUs of this machine."""
    if not GPU_FOLDER.is_dir() or not any(GPU_FOLDER.iterdir()):
        pytest.skip("no NVIDIA GPU with a loaded driver: discovery, NVML and nvidia-smi in a container are not checked")
    if shutil.which("nvidia-smi") is None:
        pytest.skip("the driver's nvidia-smi is not on PATH: there is nothing to compare with")
    return [line for line in run("nvidia-smi", "-L").splitlines() if line.startswith("GPU ")]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Return a bundle whose container asks for all GPUs and lists them."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("busybox is missing (apt-get install busybox-static)")
    loader = LOADERS.get(os.uname().machine, LOADERS["x86_64"])
    files = {f"usr/lib/{triplet()}/{name}": {"copy": path, "mode": "0755"} for name, path in find_libraries()}
    container = Container(
        image="deb",
        env=("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_DRIVER=driver>=470"),
        files={**files, f"usr/{loader}": {"copy": f"/{loader}", "mode": "0755"}},
        spec={"process": {"args": ["/usr/bin/nvidia-smi", "-L"]}},
    )
    folder = tmp_path / "bundle"
    (folder / "rootfs").mkdir(parents=True)
    Image(folder / "rootfs", {}).build(container, Path(busybox))
    prefix = tmp_path / "prefix"
    run(sys.executable, "-m", "nvinject", "install", "--prefix", str(prefix))
    hook = {
        "path": str(prefix / "bin" / "nvinject"),
        "args": ["nvinject", "hook", "prestart"],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
    }
    document = generate(container, hooks=[hook], cgroup=f"/nvconform-gpu-{os.getpid()}", identities=None, devices=True)
    (folder / "config.json").write_text(json.dumps(document))
    return folder


def test_the_plan_has_a_node_for_each_gpu(gpus: list[str], bundle: Path) -> None:
    """Discovery without NVML finds as many GPUs as the driver lists."""
    plan = json.loads(run(sys.executable, "-m", "nvinject", "plan", str(bundle), "--json"))["plan"]
    nodes = [one["target"] for one in plan["operations"] if one["operation"] == "BindDevice"]
    assert len([node for node in nodes if node.removeprefix("/dev/nvidia").isdigit()]) == len(gpus)


def test_nvml_tells_what_requirements_ask_for(gpus: list[str]) -> None:
    """CUDA version, architecture and brand of each GPU are known."""
    assert gpus
    text = run(sys.executable, "-m", "nvinject", "check", "cuda>=1.0,arch>=1.0,brand!=none", "--json")
    results = [
        result
        for verdict in json.loads(text)["verdicts"]
        for alternative in verdict["alternatives"]
        for result in alternative["rules"]
    ]
    assert len(results) == 3 * len(gpus)
    assert all(result["observed"] for result in results)


def test_a_container_lists_the_same_gpus(gpus: list[str], bundle: Path) -> None:
    """The driver's nvidia-smi, injected by the hook, sees in the container what it sees outside."""
    if shutil.which("runc") is None:
        pytest.skip("runc is missing (apt-get install runc)")
    state = str(bundle.parent / "state")
    listed = run("runc", "--root", state, "run", "--bundle", str(bundle), f"nvconform-gpu-{os.getpid()}")
    assert [line for line in listed.splitlines() if line.startswith("GPU ")] == gpus
