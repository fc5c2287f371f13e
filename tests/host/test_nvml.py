"""NVML in a child: the answer of a small library built here, and an error of its own for each way to fail."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from nvinject.core.model import Driver, Gpu, Inventory, MigDevice
from nvinject.errors import HostError
from nvinject.host.inventory import discover
from nvinject.host.nvml import (
    NvmlAnswer,
    NvmlGpu,
    NvmlMig,
    ask_nvml,
    brand_name,
    complete_inventory,
    cuda_version_text,
    parse_answer,
)

from .machine import LIBRARY_DIRECTORY, VERSION, HostTree

# A fork in a process with threads is warned of from Python 3.12 on; pytest-xdist has threads, the hook has none.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

ANSWER = NvmlAnswer(
    driver_version=VERSION,
    cuda_version="12.8",
    gpus=(
        NvmlGpu(
            index=0,
            minor=0,
            bus_id="00000000:1A:00.0",
            uuid="GPU-0",
            brand=14,
            architecture="9.0",
            mig_devices=(
                NvmlMig(index=0, uuid="MIG-0", gpu_instance=2, compute_instance=0),
                NvmlMig(index=2, uuid="MIG-2", gpu_instance=1, compute_instance=0),
            ),
            mig_enabled=True,
        ),
        NvmlGpu(index=1, minor=1, bus_id="00000000:1B:00.0", uuid="GPU-1", brand=0, architecture="9.0"),
    ),
)


def build_library(folder: Path, *macros: str) -> str:
    """Compile the test's management library; skip where nothing compiles C."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler on PATH")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"libnvidia-ml.so.{VERSION}"
    source = Path(__file__).with_name("fake_nvml.c")
    command = [compiler, "-shared", "-fPIC", "-w", "-Wl,-soname,libnvidia-ml.so.1", *(f"-D{one}" for one in macros)]
    subprocess.run([*command, str(source), "-o", str(library)], check=True)
    return str(library)


def children() -> list[str]:
    """Return the children of this process, dead ones included."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_answer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Everything that NVML knows comes back, and what the library prints does not."""
    library = build_library(tmp_path)
    before = sorted(os.listdir("/proc/self/fd")), children()
    assert ask_nvml(library, VERSION, 10) == ANSWER
    assert (sorted(os.listdir("/proc/self/fd")), children()) == before
    assert capfd.readouterr() == ("", "")


def test_lost_gpu(tmp_path: Path) -> None:
    """A GPU that fell off the bus does not hide the others."""
    answer = ask_nvml(build_library(tmp_path, "LOSE=0"), VERSION, 10)
    assert answer.gpus == ANSWER.gpus[1:]
    assert len(answer.lost) == 1
    assert answer.lost[0].startswith("GPU 0: ")


FAILURES = [
    (("INIT=9",), "NVML fails in nvmlInit: ", "run modprobe nvidia"),
    (("INIT=4",), "NVML fails in nvmlInit: ", "run as root, or let this user open /dev/nvidiactl"),
    (("INIT=999",), "NVML fails in nvmlInit: ", "run nvidia-smi on the host"),
    (
        ("INIT=18",),
        f"the driver's parts differ in version: kernel module 580.10, libraries {VERSION}",
        "reload the kernel module (rmmod and modprobe nvidia) or reboot",
    ),
    (("CRASH",), "NVML crashed: its process died of signal 9", "run nvidia-smi on the host"),
]


@pytest.mark.parametrize(("macros", "message", "hint"), FAILURES)
def test_failures(tmp_path: Path, macros: tuple[str, ...], message: str, hint: str) -> None:
    """Each failure of NVML is one line with its remedy, and leaves no child behind."""
    library = build_library(tmp_path, *macros)
    before = children()
    with pytest.raises(HostError) as caught:
        ask_nvml(library, "580.10", 10)
    assert caught.value.message.startswith(message)
    assert caught.value.hint.startswith(hint)
    assert "\n" not in str(caught.value)
    assert children() == before


def test_time_limit(tmp_path: Path) -> None:
    """A library that hangs is given up after the time limit, and its process is ended."""
    library = build_library(tmp_path, "HANG")
    before = children()
    start = time.monotonic()
    with pytest.raises(HostError) as caught:
        ask_nvml(library, VERSION, 0.3)
    assert time.monotonic() - start < 60  # it came back at all; the limit itself is not measured
    assert caught.value.message == "NVML did not answer within 0.3 s"
    assert "persistence mode" in caught.value.hint
    assert "nvinject.nvml-timeout" in caught.value.hint
    assert children() == before


def test_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    """A damaged library is told with the loader's words."""
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_text("no library")
    with pytest.raises(HostError, match=r"^NVML cannot be loaded: .*libnvidia-ml\.so\.1: .*; reinstall the driver's"):
        ask_nvml(str(library), VERSION, 10)


def test_without_library() -> None:
    """A driver without its management library is told by name."""
    with pytest.raises(HostError, match=r"^libnvidia-ml\.so\.1 of version 580\.10 is not there"):
        ask_nvml("", "580.10", 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "NVML's answer breaks off"),
        (f"driver\t{VERSION}\ncuda\t12080\n", "NVML's answer breaks off"),
        ("failed\timport\t0\tNo module named 'pynvml'\n", "the Python module pynvml cannot be imported: No module"),
    ],
)
def test_parse_broken_answer(text: str, message: str) -> None:
    """An answer that is not whole is no answer."""
    with pytest.raises(HostError) as caught:
        parse_answer(text, VERSION, "/usr/lib/libnvidia-ml.so.1")
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("number", "name"),
    [(0, "Unknown"), (1, "Quadro"), (2, "Tesla"), (5, "GeForce"), (14, "Nvidia"), (16, "TitanRTX"), (17, "Unknown")],
)
def test_brand_names(number: int, name: str) -> None:
    """Brands have the names that requirements use."""
    assert brand_name(number) == name


@pytest.mark.parametrize(("number", "text"), [(12080, "12.8"), (11040, "11.4"), (13000, "13.0"), (9020, "9.2")])
def test_cuda_version(number: int, text: str) -> None:
    """NVML's number of a CUDA version is thousands and tens."""
    assert cuda_version_text(number) == text


def inventory() -> Inventory:
    """Return two GPUs as procfs shows them, the first with two slices."""
    slices = (MigDevice(gpu_instance=1, compute_instance=0), MigDevice(gpu_instance=2, compute_instance=0))
    return Inventory(
        driver=Driver(version=VERSION),
        gpus=(
            Gpu(index=0, minor=0, uuid="", bus_id="0000:1a:00.0", mig_devices=slices),
            Gpu(index=1, minor=1, uuid="GPU-1", bus_id="0000:1b:00.0"),
        ),
    )


def test_complete_inventory() -> None:
    """GPUs are matched by address whatever its width; slices get NVML's index, UUID and order."""
    completed = complete_inventory(inventory(), ANSWER)
    assert completed.driver.cuda_version == "12.8"
    assert [(gpu.uuid, gpu.brand, gpu.architecture) for gpu in completed.gpus] == [
        ("GPU-0", "Nvidia", "9.0"),
        ("GPU-1", "Unknown", "9.0"),
    ]
    assert [(mig.index, mig.uuid, mig.gpu_instance) for mig in completed.gpus[0].mig_devices] == [
        (0, "MIG-0", 2),
        (2, "MIG-2", 1),
    ]
    assert completed.notes == ()


def test_complete_inventory_tells_what_nvml_lacks() -> None:
    """A GPU that only procfs shows stays, without what NVML would know, and with a note."""
    completed = complete_inventory(inventory(), ANSWER.replace(gpus=ANSWER.gpus[:1], lost=("GPU 1: gone",)))
    assert completed.gpus[1].architecture is None
    assert completed.notes == ("NVML cannot talk to GPU 1: gone", "NVML does not show the GPU at 0000:1b:00.0")


def test_skew_that_only_nvml_sees() -> None:
    """Libraries whose names lie about their version are found out."""
    with pytest.raises(HostError, match=rf"kernel module {VERSION}, libraries 580\.20; reload the kernel module"):
        complete_inventory(inventory(), ANSWER.replace(driver_version="580.20"))


def test_discovery_with_nvml(tree: HostTree) -> None:
    """The library of the driver root is asked, not one of this machine."""
    tree.add_everything()
    shutil.rmtree(tree.proc / "driver/nvidia/gpus")
    tree.add_gpu(0, "0000:1a:00.0", uuid="GPU-????????-????-????-????-????????????")
    tree.add_gpu(1, "0000:1b:00.0", uuid="GPU-1")
    build_library(tree.root / LIBRARY_DIRECTORY.lstrip("/"))
    found = discover(tree.policy, ("utility",), environ_path="", nvml=True)
    assert found.driver.cuda_version == "12.8"
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-0", "GPU-1"]
    assert [gpu.brand for gpu in found.gpus] == ["Nvidia", "Unknown"]
