"""A machine's facts as the fake NVML library reads them, and their place inside the library's file.

Belongs here: from a Machine to sorted pairs of text, and the table in the library's data region. Does not belong here:
the meaning of a fact to a caller, which is C. Names of facts are those of NVIDIA's mock configuration, joined by dots.
"""

import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from nvfakes.machine import ComputeInstance, Driver, Gpu, GpuInstance, Machine
from nvfakes.mig import device_name
from nvfakes.mock import merge
from nvfakes.models import nvml_answers
from nvfakes.nvml import build
from nvfakes.procfs import interrupt

MAGIC = b"NVFAKES-FACTS-1\0"
REGION = 1 << 20
_PAGE = 4096
_CPUS_PER_NODE = 48
_HALVES = (64, REGION // 2)
_WORDS = {"enabled": "1", "disabled": "0", "all_on": "0", "compute": "1", "low_dp": "2"}
_NOT_APPLICABLE = ("N/A", "n/a", "Not Supported")
_BRANDS = {
    "unknown": 0, "quadro": 1, "tesla": 2, "nvs": 3, "grid": 4, "geforce": 5, "titan": 6, "quadro_rtx": 12,
    "nvidia_rtx": 13, "nvidia": 14, "geforce_rtx": 15, "titan_rtx": 16,
}  # fmt: skip
_ARCHITECTURES = {
    "kepler": 2, "maxwell": 3, "pascal": 4, "volta": 5, "turing": 6, "ampere": 7, "ada": 8, "ada_lovelace": 8,
    "hopper": 9, "blackwell": 10,
}  # fmt: skip
_CONFIGURATIONS = (
    "not_supported", "none", "incorrect_sysguid", "incorrect_chassis_sn", "no_partition", "insufficient_nvlinks",
    "incompatible_gpu_fw", "invalid_location", "gpu_state_invalid",
)  # fmt: skip
_HEALTHY = 0x1AA
CHOICES: Mapping[str, Mapping[str, int]] = {
    "brand": _BRANDS,
    "architecture": _ARCHITECTURES,
    "compute_mode": {"default": 0, "exclusive_thread": 1, "prohibited": 2, "exclusive_process": 3},
    "virtualization.mode": {"none": 0, "passthrough": 1, "vgpu": 2, "host_vgpu": 3, "host_vsga": 4},
    "fabric.state": {"not_supported": 0, "not_started": 1, "in_progress": 2, "completed": 3, "auto": 3},
}


def facts(machine: Machine, dev_directory: str = "") -> dict[str, str]:
    """Return every fact of a machine; `dev_directory` is where its nodes are when they cannot be in /dev."""
    found = {"gpus": str(len(machine.gpus)), "switches": str(len(machine.switches))}
    found |= {f"s{number}.bus_id": switch.bus for number, switch in enumerate(machine.switches)}
    driver = machine.driver
    if driver:
        found |= _driver_facts(driver, machine.library_version)
    if machine.slow_ms:
        found["slow_ms"] = str(machine.slow_ms)
    found["events"] = str(len(machine.events))
    for number, (place, kind, data) in enumerate(machine.events):
        found |= {f"e{number}.gpu": str(place), f"e{number}.kind": str(kind), f"e{number}.data": str(data)}
    if dev_directory:
        found["dev.directory"] = dev_directory
    if machine.adapters:
        found |= {"dev.control": "dxg", "adapters": str(len(machine.adapters))}
    for number, adapter in enumerate(machine.adapters):
        found |= {f"a{number}.store": adapter.store, f"a{number}.wddm": str(adapter.wddm)}
        found[f"a{number}.compute_only"] = str(int(adapter.compute_only))
    for number, gpu in enumerate(machine.gpus):
        for key, value in {**_kernel_answers(machine, gpu), **gpu_facts(gpu)}.items():
            found[f"g{number}.{key}"] = value
    return found


def _driver_facts(driver: Driver, library_version: str) -> dict[str, str]:
    major, minor = (int(part) for part in driver.cuda.split(".")[:2])
    return {
        "kernel.version": driver.version,
        "driver.version": library_version,
        "driver.branch": f"r{driver.branch}_00",
        "nvml.version": f"{major}.{library_version}",
        "cuda.version": str(major * 1000 + minor * 10),
    }


def _kernel_answers(machine: Machine, gpu: Gpu) -> dict[str, str]:
    """Return what depends on the machine around a GPU."""
    cpus = _CPUS_PER_NODE * max(gpu.numa_node, 0)
    answers = {
        "cpus": f"{cpus}:{_CPUS_PER_NODE}", "memory_nodes": f"{max(gpu.numa_node, 0)}:1", "irq": str(interrupt(gpu)),
        "module_id": str(gpu.minor + 1), "multi_gpu_board": "0", "bus_type": "2",
    }  # fmt: skip
    if gpu.on_pci:
        answers["board_id"] = str(int(gpu.bus.split(":")[1], 16) << 8)
    if machine.driver and machine.driver.open_kernel:
        answers |= {"gsp_firmware.mode": "1", "gsp_firmware.version": machine.driver.version}
    return answers


def gpu_facts(gpu: Gpu) -> dict[str, str]:
    """Return what NVML says about one GPU: its model's answers, the machine file's over them, its identity over all."""
    answers = merge(nvml_answers(gpu.model), gpu.answers)
    if "fabric" in answers:
        answers["fabric"] = _fabric_answers(answers["fabric"])
    answers |= {"uuid": gpu.uuid, "minor": gpu.minor, "serial": gpu.serial or None, "numa_node": gpu.numa_node}
    if gpu.on_pci:
        answers["pci"] = {**answers.get("pci", {}), "bus_id": gpu.bus}
    if gpu.model.mig:
        mode = "enabled" if gpu.mig_mode else "disabled"
        answers["mig"] = {**answers.get("mig", {}), "mode_current": mode, "mode_pending": mode}
    if not gpu.present:
        answers["unplugged"] = True
    answers |= _mig_answers(gpu)
    return dict(_flatten(answers, ""))


def _health_mask(health: Mapping[str, Any]) -> int:
    """Return NVML's bits for a fabric: two per condition, 1 for a fault and 2 for none, then its configuration."""
    names = ("degraded_bandwidth", "route_recovery", "route_unhealthy", "access_timeout_recovery")
    mask = sum((1 if health.get(name) else 2) << 2 * place for place, name in enumerate(names))
    return mask | _CONFIGURATIONS.index(str(health.get("incorrect_configuration", "none"))) << 8


def _health_summary(mask: int) -> int:
    """Return what a mask of healthy conditions and one of faults are called: healthy, limited, or unhealthy."""
    if mask in {0, _HEALTHY}:
        return mask and 1
    return 3 if mask == _HEALTHY - 1 else 2


def _fabric_answers(fabric: Mapping[str, Any]) -> dict[str, Any]:
    mask = int(fabric.get("health_mask", _health_mask(fabric.get("health") or {})))
    names = {"not_supported": 0, "healthy": 1, "unhealthy": 2, "limited_capacity": 3}
    summary = names.get(str(fabric.get("health_summary")), _health_summary(mask))
    return {**fabric, "health": mask, "health_summary": summary}


def _mig_answers(gpu: Gpu) -> dict[str, Any]:
    answers: dict[str, Any] = {
        "p": [
            {
                "id": profile.profile_id, "enum": profile.enum, "slices": profile.slices, "name": profile.name,
                "memory_mib": profile.memory_mib, "multiprocessors": profile.multiprocessors, "ofa": profile.ofa,
                "copy_engines": profile.copy_engines, "decoders": profile.decoders, "jpeg": profile.jpeg,
                "maximum": profile.maximum,
                "placements": ",".join(f"{start}:{size}" for start, size in sorted(profile.placements)),
            }
            for profile in gpu.profiles
        ],
        "i": [
            {
                "gi": instance.number, "profile_id": instance.profile.profile_id, "slices": instance.profile.slices,
                "start": instance.start, "size": instance.size,
            }
            for instance in gpu.instances
        ],
        "m": [_mig_device(gpu, instance, compute) for instance, compute in gpu.mig_devices()],
    }  # fmt: skip
    counts = {"profiles": len(answers["p"]), "instances": len(answers["i"]), "migs": len(answers["m"])}
    return answers | counts


def _mig_device(gpu: Gpu, instance: GpuInstance, compute: ComputeInstance) -> dict[str, Any]:
    profile = instance.profile
    share = profile.multiprocessors // profile.slices * compute.slices
    return {
        "uuid": compute.uuid, "gi": instance.number, "ci": compute.number,
        "name": f"{gpu.name} MIG {device_name(instance, compute)}",
        "multiprocessors": profile.multiprocessors if compute.slices == profile.slices else share,
        "copy_engines": profile.copy_engines, "decoders": profile.decoders, "jpeg": profile.jpeg, "ofa": profile.ofa,
        "gpu_slices": profile.slices, "compute_slices": compute.slices, "compute_start": compute.start,
        "memory_mib": profile.memory_mib,
    }  # fmt: skip


def _flatten(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flatten(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        if len(key) > 1:
            yield key, str(len(value))
        for number, item in enumerate(value):
            yield from _flatten(item, f"{key}{number}")
    elif isinstance(value, list | tuple):
        yield key, ",".join(str(item) for item in value)
    elif value is not None and value not in _NOT_APPLICABLE:
        yield key, _text(key, value)


def _text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return str(int(value))
    text = str(value)
    if key in CHOICES:
        return str(CHOICES[key].get(text.lower(), text))
    if key == "performance_state":
        return text.removeprefix("P")
    return _WORDS.get(text, text)


def render(machine: Machine, pairs: Mapping[str, str] | None = None) -> bytes:
    """Return the NVML library of a machine, with facts inside: the machine's, unless others are given."""
    return _filled(build.library(_branch(machine)), facts(machine) if pairs is None else pairs)


def render_cuda(machine: Machine, pairs: Mapping[str, str] | None = None) -> bytes:
    """Return the libcuda of a machine, with the same facts inside."""
    return _filled(build.cuda_library(_branch(machine)), facts(machine) if pairs is None else pairs)


def render_dxcore(pairs: Mapping[str, str]) -> bytes:
    """Return the libdxcore of a machine, with the same facts inside."""
    return _filled(build.dxcore_library(), pairs)


def _branch(machine: Machine) -> int:
    if machine.driver is None:
        raise ValueError("a machine without a driver has no library")
    return machine.driver.branch


def _filled(library: bytes, pairs: Mapping[str, str]) -> bytes:
    data = bytearray(library)
    region = _find_region(data)
    table = pack(pairs, _HALVES[0])
    data[region + _HALVES[0] : region + _HALVES[0] + len(table)] = table
    struct.pack_into("<I", data, region + len(MAGIC), _HALVES[0])
    return bytes(data)


def _find_region(data: bytes | bytearray | mmap.mmap) -> int:
    place = data.find(MAGIC)
    while place >= 0 and place % _PAGE:
        place = data.find(MAGIC, place + 1)
    if place < 0:
        raise ValueError("not a fake NVML library")
    return place


def pack(pairs: Mapping[str, str], offset: int) -> bytes:
    """Return the table of facts as it stands at an offset of the data region: sorted, texts after the pairs."""
    encoded = sorted((os.fsencode(key), os.fsencode(value)) for key, value in pairs.items())
    start = offset + 8 + 8 * len(encoded)
    strings = bytearray()
    known: dict[bytes, int] = {}
    words = []
    for text in (text for pair in encoded for text in pair):
        if text not in known:
            known[text] = start + len(strings)
            strings += text + b"\0"
        words.append(known[text])
    table = struct.pack(f"<2I{len(words)}I", len(encoded), 8 + 4 * len(words) + len(strings), *words) + bytes(strings)
    if len(table) > REGION // 2 - 64:
        raise ValueError(f"{len(table)} bytes of facts are more than the library has room for")
    return table


def update(file: BinaryIO, pairs: Mapping[str, str]) -> None:
    """Replace the facts inside a library that may be in use: write the other table, then make it count."""
    with mmap.mmap(file.fileno(), 0) as data:
        region = _find_region(data)
        (active,) = struct.unpack_from("<I", data, region + len(MAGIC))
        offset = _HALVES[1] if active == _HALVES[0] else _HALVES[0]
        table = pack(pairs, offset)
        data[region + offset : region + offset + len(table)] = table
        struct.pack_into("<I", data, region + len(MAGIC), offset)
        data.flush()


def read(data: bytes) -> dict[str, str]:
    """Return the facts inside a library."""
    region = _find_region(data)
    (active,) = struct.unpack_from("<I", data, region + len(MAGIC))
    (count,) = struct.unpack_from("<I", data, region + active)
    words = struct.unpack_from(f"<{2 * count}I", data, region + active + 8)
    texts = [data[region + word : data.index(b"\0", region + word)].decode() for word in words]
    return dict(zip(texts[::2], texts[1::2], strict=True))
