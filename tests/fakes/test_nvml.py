"""The library as its clients see it: NVIDIA's Python bindings, structure layouts, symbols, and what a node allows."""

import _ctypes
import contextlib
import ctypes
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from nvfakes import declaration
from nvfakes.nvml import build, image

Runner = Callable[..., "subprocess.CompletedProcess[str]"]
GPU0, GPU1 = "GPU-000000a0-1111-2222-3333-000000000000", "GPU-000000a1-1111-2222-3333-000000000001"

# Runs on the machine: asks the bindings and prints what they answered.
QUESTIONS = """
import json, sys
import pynvml as n
def ask(function, *arguments):
    try:
        answer = function(*arguments)
    except n.NVMLError as error:
        return "error %d" % error.value
    return answer.decode() if isinstance(answer, bytes) else answer
def pci(gpu):
    info = n.nvmlDeviceGetPciInfo(gpu)
    text = lambda value: value.decode() if isinstance(value, bytes) else value
    return [text(info.busId), text(info.busIdLegacy), info.domain, info.bus, info.device, info.pciDeviceId]
def migs(gpu):
    found = []
    for index in range(n.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            mig = n.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except n.NVMLError_NotFound:
            continue
        attributes = n.nvmlDeviceGetAttributes(mig)
        parent = n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)
        found.append([ask(n.nvmlDeviceGetUUID, mig), ask(n.nvmlDeviceGetName, mig), n.nvmlDeviceGetGpuInstanceId(mig),
                      n.nvmlDeviceGetComputeInstanceId(mig), attributes.multiprocessorCount, attributes.memorySizeMB,
                      ask(n.nvmlDeviceGetUUID, parent), n.nvmlDeviceIsMigDeviceHandle(mig).value])
    return found
n.nvmlInit()
gpus = [n.nvmlDeviceGetHandleByIndex(index) for index in range(n.nvmlDeviceGetCount())]
print(json.dumps({
    "driver": ask(n.nvmlSystemGetDriverVersion), "nvml": ask(n.nvmlSystemGetNVMLVersion),
    "cuda": ask(n.nvmlSystemGetCudaDriverVersion), "cuda_v2": ask(n.nvmlSystemGetCudaDriverVersion_v2),
    "error": ask(n.nvmlErrorString, 15),
    "by_uuid": [ask(n.nvmlDeviceGetIndex, n.nvmlDeviceGetHandleByUUID(ask(n.nvmlDeviceGetUUID, gpu))) for gpu in gpus],
    "by_bus": [ask(n.nvmlDeviceGetIndex, n.nvmlDeviceGetHandleByPciBusId(pci(gpu)[1].lower())) for gpu in gpus],
    "unknown": [ask(n.nvmlDeviceGetHandleByUUID, "GPU-nonsense"), ask(n.nvmlDeviceGetHandleByIndex, 99)],
    "gpus": [{"name": ask(n.nvmlDeviceGetName, gpu), "uuid": ask(n.nvmlDeviceGetUUID, gpu),
              "minor": ask(n.nvmlDeviceGetMinorNumber, gpu), "brand": ask(n.nvmlDeviceGetBrand, gpu), "pci": pci(gpu),
              "cc": ask(n.nvmlDeviceGetCudaComputeCapability, gpu), "mig": ask(n.nvmlDeviceGetMigMode, gpu),
              "memory": n.nvmlDeviceGetMemoryInfo(gpu).total,
              "memory_v2": n.nvmlDeviceGetMemoryInfo(gpu, version=n.nvmlMemory_v2).total,
              "temperature": ask(n.nvmlDeviceGetTemperature, gpu, 0), "migs": migs(gpu)} for gpu in gpus],
}))
n.nvmlShutdown()
"""


def answers(on_machine: Runner, machine: str | Path, lane: str = "root", before: str = "true") -> dict[str, object]:
    library = "${NVFAKES_ROOT%/}/usr/lib/$(uname -m)-linux-gnu"
    script = f"{before} && LD_LIBRARY_PATH={library} exec {sys.executable} -c '{QUESTIONS}'"
    done = on_machine(machine, "sh", "-c", script, lane=lane)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize("lane", ["root", "rootless"])
def test_the_bindings_see_two_gpus(on_machine: Runner, lane: str) -> None:
    found = answers(on_machine, "two-h100", lane)
    gpu = {
        "name": "NVIDIA H100 80GB HBM3", "uuid": GPU0, "minor": 0, "brand": 14, "cc": [9, 0], "mig": [0, 0],
        "pci": ["00000000:17:00.0", "0000:17:00.0", 0, 0x17, 0, 0x233010DE], "memory": 81559 << 20,
        "memory_v2": 81559 << 20, "temperature": 34, "migs": [],
    }  # fmt: skip
    other = {**gpu, "uuid": GPU1, "minor": 1, "pci": ["00000000:18:00.0", "0000:18:00.0", 0, 0x18, 0, 0x233010DE]}
    assert found == {
        "driver": "570.133.20", "nvml": "12.570.133.20", "cuda": 12080, "cuda_v2": 12080, "error": "GPU is lost",
        "by_uuid": [0, 1], "by_bus": [0, 1], "unknown": ["error 6", "error 2"], "gpus": [gpu, other],
    }  # fmt: skip


@pytest.mark.parametrize("lane", ["root", "rootless"])
def test_the_bindings_see_mig_devices(on_machine: Runner, lane: str) -> None:
    gpus = answers(on_machine, "mig-h100", lane)["gpus"]
    assert isinstance(gpus, list)
    name = "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert gpus[0]["mig"] == [1, 1]
    assert gpus[0]["migs"] == [
        ["MIG-000000a0-5555-6666-7777-000000000000", name, 1, 0, 60, 40448, GPU0, 1],
        ["MIG-000000a0-5555-6666-7777-000000000001", name, 2, 0, 60, 40448, GPU0, 1],
    ]
    assert gpus[1]["migs"] == []


def test_a_gpu_without_a_node_is_not_there(on_machine: Runner) -> None:
    found = answers(on_machine, "two-h100", before="rm /dev/nvidia0")
    assert isinstance(found["gpus"], list)
    assert [gpu["uuid"] for gpu in found["gpus"]] == [GPU1]
    assert found["by_uuid"] == [0]


@pytest.mark.parametrize("minor", [21, 22])
def test_a_mig_device_needs_both_capabilities(on_machine: Runner, minor: int) -> None:
    found = answers(on_machine, "mig-h100", before=f"rm /dev/nvidia-caps/nvidia-cap{minor}")
    assert isinstance(found["gpus"], list)
    assert [mig[0] for mig in found["gpus"][0]["migs"]] == ["MIG-000000a0-5555-6666-7777-000000000000"]


@pytest.mark.parametrize(
    ("extra", "before", "words"),
    [
        ("deviate: {module: unloaded}", "true", "Driver Not Loaded"),
        ("deviate: {library_version: 570.211.01}", "true", "version mismatch"),
        ("", "rm /dev/nvidiactl", "Driver Not Loaded"),
    ],
)
def test_initialisation_fails_as_the_real_one(
    on_machine: Runner, tmp_path: Path, extra: str, before: str, words: str
) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(f"driver: {{}}\ngpus: [{{model: t4}}]\n{extra}\n")
    done = on_machine(path, "sh", "-c", f"{before} && nvidia-smi -L")
    assert done.returncode != 0
    assert words in done.stdout


def test_nvidia_smi_lists_gpus_and_mig_devices(on_machine: Runner) -> None:
    done = on_machine("mig-h100", "nvidia-smi", "-L")
    assert done.stdout.splitlines() == [
        f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {GPU0})",
        "  MIG 3g.40gb         Device  0: (UUID: MIG-000000a0-5555-6666-7777-000000000000)",
        "  MIG 3g.40gb         Device  1: (UUID: MIG-000000a0-5555-6666-7777-000000000001)",
        f"GPU 1: NVIDIA H100 80GB HBM3 (UUID: {GPU1})",
    ]
    none = on_machine("two-h100", "sh", "-c", "rm /dev/nvidia[01] && nvidia-smi -L")
    assert (none.returncode, none.stdout) == (0, "No devices found.\n")


LIMITS = """
import ctypes, pynvml as n
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(1)
def read(name):
    found = n.c_nvmlGetMemoryLimits_v1_t(nameSpace=name)
    try:
        n.nvmlDeviceGetMemoryLimits_v1(gpu, found)
    except n.NVMLError as error:
        return error.value
    return [found.softLimit, found.hardLimit]
for name, soft, hard in ((b"/one", 1, 2), (b"/a name", 5, n.NVML_DEVICE_MEMORY_LIMIT_MAX), (b"/one", 3, 4)):
    n.nvmlDeviceSetMemoryLimits_v1(gpu, n.c_nvmlSetMemoryLimits_v1_t(nameSpace=name, softLimit=soft, hardLimit=hard))
print(read(b"/one"), read(b"/a name"), read(b"/other"))
"""


def test_memory_limits_are_recorded(on_machine: Runner, tmp_path: Path) -> None:
    machine = tmp_path / "newer.yaml"
    machine.write_text("driver: {version: 615.43.02, cuda: '13.4'}\ngpus: [{model: h100, count: 2}]\n")
    done = on_machine(str(machine), sys.executable, "-c", LIMITS)
    assert done.stdout == f"[3, 4] [5, {2**64 - 1}] 6\n", done.stderr


def test_memory_limits_came_with_cuda_13_4(on_machine: Runner) -> None:
    """An older driver does not have the function at all."""
    done = on_machine("two-h100", sys.executable, "-c", LIMITS)
    assert "NVMLError_FunctionNotFound" in done.stderr


# Structure of layout.h and the one of the bindings.
LAYOUTS = {
    "memory": pynvml.c_nvmlMemory_t,
    "memory_v2": pynvml.c_nvmlMemory_v2_t,
    "pci_info": pynvml.nvmlPciInfo_t,
    "pci_info_ext": pynvml.nvmlPciInfoExt_v1_t,
    "bar1": pynvml.c_nvmlBAR1Memory_t,
    "utilization": pynvml.c_nvmlUtilization_t,
    "addressing_mode": pynvml.c_nvmlDeviceAddressingMode_t,
    "memory_limits": pynvml.c_nvmlGetMemoryLimits_v1_t,
    "temperature": pynvml.c_nvmlTemperature_v1_t,
    "margin_temperature": pynvml.c_nvmlMarginTemperature_v1_t,
    "sram_errors": pynvml.c_nvmlEccSramErrorStatus_v1_t,
    "fabric": pynvml.c_nvmlGpuFabricInfo_t,
    "fabric_v2": pynvml.c_nvmlGpuFabricInfo_v2_t,
    "fabric_v3": pynvml.c_nvmlGpuFabricInfo_v3_t,
    "attributes": pynvml.c_nvmlDeviceAttributes,
    "gpu_instance_profile": pynvml.c_nvmlGpuInstanceProfileInfo_t,
    "gpu_instance_profile_v2": pynvml.c_nvmlGpuInstanceProfileInfo_v2_t,
    "gpu_instance_info": pynvml.c_nvmlGpuInstanceInfo_t,
    "placement": pynvml.c_nvmlGpuInstancePlacement_t,
    "compute_instance_profile": pynvml.c_nvmlComputeInstanceProfileInfo_t,
    "compute_instance_profile_v2": pynvml.c_nvmlComputeInstanceProfileInfo_v2_t,
    "compute_instance_info": pynvml.c_nvmlComputeInstanceInfo_t,
}


def fields(structure: str) -> list[str]:
    text = (build.SOURCES / "layout.h").read_text()
    found = re.search(rf"struct {structure} \{{(.*?)\n\}};", text, re.DOTALL)
    assert found, structure
    return re.findall(r"(\w+)(?:\[\d+\])?[,;]", found[1])


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """Return the size of each structure and the offsets of its fields, as the C compiler lays them out."""
    directory = tmp_path_factory.mktemp("layouts")
    lines = []
    for name in LAYOUTS:
        numbers = [f"sizeof(struct {name})", *(f"offsetof(struct {name}, {field})" for field in fields(name))]
        lines.append(
            f'printf("{name}"); ' + " ".join(f'printf(" %zu", {number});' for number in numbers) + ' puts("");'
        )
    source = directory / "layouts.c"
    source.write_text('#include <stdio.h>\n#include "layout.h"\nint main(void) {\n' + "\n".join(lines) + "\n}\n")
    compiler = shutil.which("gcc") or "cc"
    subprocess.run([compiler, "-I", str(build.SOURCES), "-o", str(directory / "layouts"), str(source)], check=True)
    done = subprocess.run([str(directory / "layouts")], capture_output=True, text=True, check=True)
    return {line.split()[0]: [int(word) for word in line.split()[1:]] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("name", LAYOUTS)
def test_structures_have_nvidias_layout(layouts: dict[str, list[int]], name: str) -> None:
    structure = LAYOUTS[name]
    offsets = [getattr(structure, field[0]).offset for field in structure._fields_]
    assert layouts[name] == [ctypes.sizeof(structure), *offsets]


@contextlib.contextmanager
def loaded(path: Path) -> Iterator[ctypes.CDLL]:
    """Load a library for a while: one that stays would answer, by its SONAME, in the tests that come after."""
    library = ctypes.CDLL(str(path))
    try:
        yield library
    finally:
        _ctypes.dlclose(library._handle)


@pytest.mark.parametrize(("branch", "count"), [(470, 332), (535, 332), (550, 350), (570, 416), (615, 418)])
def test_exports_the_symbols_of_the_branch(tmp_path: Path, branch: int, count: int) -> None:
    path = tmp_path / "libnvidia-ml.so.1"
    path.write_bytes(build.library(branch))
    names = build.symbols(branch)
    assert len(names) == count
    with loaded(path) as library:
        assert not [name for name in names if not hasattr(library, name)]
        assert not [name for name in set(build.symbols(999)) - set(names) if hasattr(library, name)]


@pytest.mark.skipif(not shutil.which("objdump"), reason="objdump (binutils) is not installed")
def test_needs_no_version_of_the_c_library(tmp_path: Path) -> None:
    for name, data in (("library", build.library(570)), ("program", build.nvidia_smi())):
        path = tmp_path / name
        path.write_bytes(data)
        done = subprocess.run(["objdump", "-p", str(path)], capture_output=True, text=True, check=True)
        assert "libc.so.6" in done.stdout
        assert "GLIBC" not in done.stdout


def test_every_stub_refuses(tmp_path: Path) -> None:
    """Before initialisation every function answers "uninitialised" without touching its arguments."""
    path = tmp_path / "libnvidia-ml.so.1"
    path.write_bytes(image.render(declaration.load("two-h100")))
    free = (
        "nvmlInit",
        "nvmlErrorString",
        "nvmlInternalGetExportTable",
        "nvmlSystemGetNVMLVersion",
        "nvmlSystemGetCudaDriverVersion",
    )
    with loaded(path) as library:
        for name in build.symbols(570):
            if not name.startswith(free):
                assert getattr(library, name)(None, None, None, None) == 1, name


def test_facts_survive_rendering_and_updates(tmp_path: Path) -> None:
    machine = declaration.load("mig-h100")
    path = tmp_path / "library"
    path.write_bytes(image.render(machine, image.facts(machine, "/somewhere/dev")))
    wanted = image.facts(machine, "/somewhere/dev")
    assert image.read(path.read_bytes()) == wanted
    for number in range(3):
        wanted = {**wanted, "slow_ms": str(number)}
        with path.open("r+b") as file:
            image.update(file, wanted)
        assert image.read(path.read_bytes()) == wanted


def test_the_largest_machine_has_room() -> None:
    assert len(image.render(declaration.load("h100x16"))) > 0
