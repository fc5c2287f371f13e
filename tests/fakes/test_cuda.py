"""The small libcuda: devices as CUDA's own programs find them, and a clear refusal of everything else."""

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nvfakes import declaration
from nvfakes.nvml import build, image

Runner = Callable[..., "subprocess.CompletedProcess[str]"]

# Runs on the machine: initialises CUDA and prints what it tells about each device.
QUESTIONS = """
import ctypes, json, os
folder = os.environ["NVFAKES_ROOT"].rstrip("/") + "/usr/lib/" + os.uname().machine + "-linux-gnu"
cuda = ctypes.CDLL(folder + "/libcuda.so.1")
number = lambda function, *arguments: (lambda out: (function(ctypes.byref(out), *arguments), out.value))(ctypes.c_int())
found = {"init": cuda.cuInit(0), "version": number(cuda.cuDriverGetVersion), "count": number(cuda.cuDeviceGetCount)}
devices = []
for device in range(found["count"][1]):
    name, uuid, size = ctypes.create_string_buffer(96), ctypes.create_string_buffer(16), ctypes.c_size_t()
    cuda.cuDeviceGetName(name, 96, device)
    cuda.cuDeviceGetUuid_v2(uuid, device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    attributes = [number(cuda.cuDeviceGetAttribute, attribute, device)[1] for attribute in (16, 33, 75, 76)]
    devices.append([name.value.decode(), uuid.raw.hex(), size.value >> 20, attributes])
found["devices"] = devices
print(json.dumps(found))
"""


def cuda(on_machine: Runner, machine: str | Path, before: str = "true", lane: str = "root") -> dict[str, object]:
    done = on_machine(machine, "sh", "-c", f'{before}; exec {sys.executable} -c "$0"', QUESTIONS, lane=lane)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


FIRST = ["NVIDIA H100 80GB HBM3", "000000a0111122223333000000000000", 80989, [132, 0x17, 9, 0]]
SECOND = ["NVIDIA H100 80GB HBM3", "000000a1111122223333000000000001", 80989, [132, 0x18, 9, 0]]
SLICE = ["NVIDIA H100 80GB HBM3 MIG 3g.40gb", "000000a0555566667777000000000000", 40448, [60, 0x17, 9, 0]]

CASES = (
    ("two-h100", "true", [FIRST, SECOND]),
    ("two-h100", "export CUDA_VISIBLE_DEVICES=1,0", [SECOND, FIRST]),
    ("two-h100", "export CUDA_VISIBLE_DEVICES=GPU-000000a1", [SECOND]),
    ("two-h100", "export CUDA_VISIBLE_DEVICES=1,7,0", [SECOND]),
    ("two-h100", "rm /dev/nvidia0", [SECOND]),
    ("mig-h100", "true", [SECOND]),
    ("mig-h100", "rm /dev/nvidia1", [SLICE]),
    ("mig-h100", "export CUDA_VISIBLE_DEVICES=MIG-000000a0-5555-6666-7777-000000000000", [SLICE]),
)


@pytest.mark.parametrize(("machine", "before", "devices"), CASES)
def test_cuda_sees_the_declared_devices(on_machine: Runner, machine: str, before: str, devices: list[object]) -> None:
    found = cuda(on_machine, machine, before)
    assert found == {"init": 0, "version": [0, 12080], "count": [0, len(devices)], "devices": devices}


def test_the_tree_of_the_rootless_lane_has_the_same_devices(on_machine: Runner) -> None:
    assert cuda(on_machine, "two-h100", lane="rootless")["devices"] == [FIRST, SECOND]


@pytest.mark.parametrize(
    ("extra", "before", "code"),
    [
        ("", "rm /dev/nvidiactl", 100),
        ("", "rm /dev/nvidia[0-9]", 100),
        ("deviate: {library_version: 570.211.01}", "true", 803),
    ],
)
def test_initialisation_fails_as_the_real_one(
    on_machine: Runner, tmp_path: Path, extra: str, before: str, code: int
) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(f"driver: {{}}\ngpus: [{{model: t4}}]\n{extra}\n")
    found = cuda(on_machine, path, before)
    assert (found["init"], found["count"]) == (code, [3, 0])


def test_everything_else_is_not_supported(tmp_path: Path) -> None:
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(image.render_cuda(declaration.load("two-h100")))
    library = ctypes.CDLL(str(path))
    own = ("cuInit", "cuDriverGetVersion", "cuDevice", "cuGetError", "cuGetProcAddress")
    for name in build.symbols(570, "cuda"):
        if not name.startswith(own):
            assert getattr(library, name)(None, None, None, None) == 801, name


def test_addresses_are_found_by_name(tmp_path: Path) -> None:
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(image.render_cuda(declaration.load("two-h100")))
    library, found = ctypes.CDLL(str(path)), ctypes.c_void_p()
    assert library.cuGetProcAddress(b"cuDeviceTotalMem", ctypes.byref(found), 12000, ctypes.c_uint64(0)) == 0
    assert found.value == ctypes.cast(library.cuDeviceTotalMem_v2, ctypes.c_void_p).value
    assert library.cuGetProcAddress(b"cuNothing", ctypes.byref(found), 12000, ctypes.c_uint64(0)) == 500
    assert found.value is None
