"""A machine for people and for scripts: a table, or JSON.

Belongs here: words about a Machine. Does not belong here: what programs on the machine see.
"""

import json
from typing import Any

from nvfakes.machine import Gpu, Machine
from nvfakes.mig import device_name


def as_json(machine: Machine) -> str:
    """Return what identifies the machine and its GPUs as JSON."""
    driver = machine.driver
    data: dict[str, Any] = {
        "name": machine.name,
        "driver": {"version": driver.version, "cuda": driver.cuda, "open": driver.open_kernel} if driver else None,
        "library_version": machine.library_version or None,
        "module_loaded": machine.module_loaded,
        "gpus": [_gpu(gpu) for gpu in machine.gpus],
        "nvswitches": [switch.bus for switch in machine.switches],
        "majors": dict(machine.majors),
        "imex_channels": list(machine.imex_channels),
        "sockets": list(machine.sockets),
        "missing": list(machine.deviation.missing),
        "triplet": machine.triplet,
    }
    return json.dumps(data, indent=2)


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return {
        "model": gpu.model.key,
        "name": gpu.name,
        "uuid": gpu.uuid,
        "bus": gpu.bus,
        "minor": gpu.minor,
        "numa_node": gpu.numa_node,
        "card": gpu.card,
        "render": gpu.render,
        "memory_mib": gpu.model.memory_mib,
        "compute_capability": gpu.model.compute_capability,
        "mig": [
            {
                "profile": device_name(instance, compute),
                "uuid": compute.uuid,
                "gpu_instance": instance.number,
                "compute_instance": compute.number,
            }
            for instance, compute in gpu.mig_devices()
        ],
    }


def as_table(machine: Machine) -> str:
    """Return the machine as lines of text."""
    driver = machine.driver
    kind = "open" if driver and driver.open_kernel else "proprietary"
    lines = [f"{machine.name}: " + (f"driver {driver.version} ({kind}), CUDA {driver.cuda}" if driver else "no driver")]
    if machine.library_version and driver and machine.library_version != driver.version:
        lines.append(f"  user-space files of {machine.library_version}")
    lines += [f"  adapter of Windows: {adapter.store} (WDDM {adapter.wddm})" for adapter in machine.adapters]
    if driver and not machine.module_loaded and not machine.adapters:
        lines.append("  kernel module not loaded")
    for gpu in machine.gpus:
        lines.append(f"  GPU {gpu.minor}: {gpu.name}  {gpu.bus}  {gpu.uuid}  NUMA {gpu.numa_node}")
        for number, (instance, compute) in enumerate(gpu.mig_devices()):
            lines.append(
                f"    MIG {number}: {device_name(instance, compute)}  {compute.uuid}  "
                f"gi {instance.number} ci {compute.number}, {instance.size} memory slices from {instance.start}"
            )
    lines += [f"  NVSwitch {switch.minor}: {switch.bus}" for switch in machine.switches]
    if machine.imex_channels:
        lines.append("  IMEX channels: " + ", ".join(map(str, machine.imex_channels)))
    lines += [f"  missing: {pattern}" for pattern in machine.deviation.missing]
    return "\n".join(lines)
