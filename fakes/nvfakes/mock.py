"""NVIDIA's mock NVML configuration, version "1.0": its keys as answers of a GPU, and a whole file as a machine.

Belongs here: what those keys mean for a machine. Does not belong here: reading YAML and complaining (declaration.py),
and what the NVML library makes of an answer (nvml/image.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from nvfakes import mig
from nvfakes.machine import Driver, Gpu, GpuInstance, Machine, NvSwitch
from nvfakes.models import MODELS, GpuModel

Answers = dict[str, Any]
Fail = Callable[[str], Exception]


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Answers:
    """Return `base` with the keys of `over` put over it, mapping by mapping."""
    merged = dict(base)
    for key, value in over.items():
        known = merged.get(key)
        merged[key] = merge(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return merged


def device_answers(block: Mapping[str, Any], index: int) -> Answers:
    """Return what a configuration says about the device with an index: the defaults, then its own keys over them."""
    merged: Answers = dict(block.get("device_defaults") or {})
    for device in block.get("devices") or []:
        if device.get("index") == index:
            merged = merge(merged, device)
    links = block.get("nvlink") or {}
    if links:
        names = {"links_per_gpu": "links", "bandwidth_per_link_mbps": "bandwidth_per_link_mbps", "version": "version"}
        known = {name: links[key] for key, name in names.items() if key in links}
        # The board of a mock answers "not supported" where it is not true.
        known["c2c_enabled"] = True if links.get("c2c_enabled") else None
        merged = merge(merged, {"nvlink": known})
    return merged


def machine(block: Mapping[str, Any], name: str, fail: Fail) -> Machine:
    """Return the machine that a whole configuration describes; `fail` makes the exception for a message."""
    system = block.get("system") or {}
    devices = block.get("devices") or [{"index": index} for index in range(int(block.get("num_devices", 0)))]
    driver = Driver(str(system.get("driver_version", Driver().version)), str(system.get("cuda_version", Driver().cuda)))
    switches = (block.get("nvlink") or {}).get("switches") or []
    return Machine(
        name=name,
        driver=driver,
        gpus=tuple(_gpu(block, int(device.get("index", place)), fail) for place, device in enumerate(devices)),
        switches=tuple(_switch(switch, number) for number, switch in enumerate(switches)),
    )


def _switch(switch: Mapping[str, Any], number: int) -> NvSwitch:
    """Return an NVSwitch; one without a device id is not on this machine's PCI bus."""
    bus = str(switch.get("bdf", f"0000:{0xE4 + number:02x}:00.0")).lower()
    device = int(switch.get("device_id", 0)) >> 16
    return NvSwitch(bus, number, device or NvSwitch("", 0).device_id, on_pci=bool(device))


def _gpu(block: Mapping[str, Any], index: int, fail: Fail) -> Gpu:
    answers = device_answers(block, index)
    pci = answers.get("pci") or {}
    bus = str(pci.get("bus_id", f"0000:{0x17 + index:02x}:00.0")).lower()
    model = _model(answers, fail)
    bare = Gpu(model, str(answers.get("uuid", f"GPU-{index + 0xA0:08x}-1111-2222-3333-{index:012x}")), bus, index)
    partition = answers.get("mig") or {}
    enabled = partition.get("mode_current") in {"enabled", True}
    return replace(
        bare,
        minor=int(answers.get("minor_number", index)),
        numa_node=_numa(block, str(pci.get("bus_id", ""))),
        card=index + 1,
        render=index + 128,
        serial=str(answers.get("serial", "")),
        mig_mode=enabled,
        instances=_instances(partition, bare, index, fail) if enabled else (),
        answers=answers,
    )


def _model(answers: Mapping[str, Any], fail: Fail) -> GpuModel:
    """Return the model of that name or device, or one made of the most alike and of what the configuration says."""
    name = str(answers.get("name", ""))
    pci = answers.get("pci") or {}
    device, subsystem = int(pci.get("device_id", 0)) >> 16, int(pci.get("subsystem_id", 0)) >> 16
    rows = [model for model in MODELS.values() if not model.integrated]
    ways: tuple[Callable[[GpuModel], bool], ...] = (
        lambda model: model.name == name,
        lambda model: bool(device) and model.device_id == device,
        lambda model: model.architecture == answers.get("architecture"),
    )
    found = next((model for way in ways for model in rows if way(model)), None)
    if found is None:
        raise fail(f"no known model is like {name!r} of architecture {answers.get('architecture')!r}")
    memory = int((answers.get("memory") or {}).get("total_bytes", found.memory_mib << 20)) >> 20
    capability = answers.get("compute_capability") or {}
    text = f"{capability['major']}.{capability['minor']}" if capability else found.compute_capability
    return replace(
        found,
        name=name or found.name,
        device_id=device or found.device_id,
        subsystem_id=subsystem or found.subsystem_id,
        memory_mib=memory,
        compute_capability=text,
    )


def _instances(partition: Mapping[str, Any], gpu: Gpu, index: int, fail: Fail) -> tuple[GpuInstance, ...]:
    """Return the GPU instances that are asked for by count, or one by one."""
    wanted = [
        str(entry.get("profile", entry.get("profile_id")))
        for entry in (*(partition.get("gpu_instances") or ()), *(partition.get("instances") or ()))
        for _ in range(int(entry.get("count", 1)))
    ]
    layout = []
    for number, name in enumerate(wanted):
        profile = mig.find_profile(gpu.profiles, name)
        if profile is None:
            raise fail(f"{gpu.name} has no MIG profile {name}")
        layout.append((profile, [(profile.slices, f"MIG-{index + 0xA0:08x}-5555-6666-7777-{number:012x}")]))
    instances = mig.build_instances(layout)
    if instances is None:
        raise fail(f"{', '.join(wanted)} do not fit on one {gpu.name} together")
    return instances


def _numa(block: Mapping[str, Any], bus: str) -> int:
    roots = (block.get("pcie_topology") or {}).get("root_complexes") or []
    return next((int(root.get("numa_node", 0)) for root in roots if bus in (root.get("devices") or [])), 0)
