"""What a GPU machine shows below /sys: PCI functions and the modules of the driver.

Belongs here: attribute files and links by path. Does not belong here: the formats of /proc (procfs.py).
A function's folder stands in /sys/bus/pci/devices itself, not behind a link into /sys/devices.
"""

import struct
from collections.abc import Iterator

from nvfakes.machine import Gpu, Machine, NvSwitch
from nvfakes.procfs import MODULES, interrupt

VENDOR = 0x10DE
CLASS_BRIDGE_OTHER = 0x068000
_DEVICES = "/sys/bus/pci/devices"
_MEMORY_SPACE = 0x00040200  # flags of a memory resource, as the kernel prints them
_PREFETCHABLE_64 = 0x0014220C


def files(machine: Machine) -> Iterator[tuple[str, bytes, int]]:
    """Yield (path, content, mode) of every attribute."""
    for gpu in machine.present_gpus:
        if gpu.on_pci:
            yield from _gpu_files(gpu)
    for switch in machine.own_switches:
        yield from _function(
            switch.bus, switch.device_id, switch.device_id, CLASS_BRIDGE_OTHER, 0, 90 + switch.minor, ()
        )
    if machine.driver and machine.module_loaded:
        for module in MODULES:
            yield f"/sys/module/{module}/initstate", b"live\n", 0o444
            yield f"/sys/module/{module}/refcnt", b"1\n", 0o444
            if module == "nvidia":
                yield f"/sys/module/{module}/version", f"{machine.driver.version}\n".encode(), 0o444


def directories(machine: Machine) -> Iterator[str]:
    """Yield the folders that hold no file: the DRM devices of a GPU."""
    if machine.drm and machine.module_loaded:
        for gpu in machine.present_gpus:
            if gpu.on_pci:
                yield f"{_DEVICES}/{gpu.bus}/drm/card{gpu.card}"
                yield f"{_DEVICES}/{gpu.bus}/drm/renderD{gpu.render}"


def links(machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield (path, target) of the links of each function: its driver and its IOMMU group."""
    if machine.module_loaded:
        for gpu in machine.present_gpus:
            if gpu.on_pci:
                yield f"{_DEVICES}/{gpu.bus}/driver", "../../../../bus/pci/drivers/nvidia"
    for gpu in (gpu for gpu in machine.present_gpus if gpu.on_pci):
        yield f"{_DEVICES}/{gpu.bus}/iommu_group", f"../../../../kernel/iommu_groups/{40 + gpu.minor}"


def _gpu_files(gpu: Gpu) -> Iterator[tuple[str, bytes, int]]:
    memory = max(gpu.model.memory_mib << 20, 1 << 28)
    bars = (
        (0x2000000000 * (gpu.minor + 1), 1 << 24, True),
        (0x4000000000 * (gpu.minor + 1), 1 << (memory - 1).bit_length(), True),
    )
    model = gpu.model
    yield from _function(
        gpu.bus, model.device_id, model.subsystem_id, model.pci_class, gpu.numa_node, interrupt(gpu), bars
    )  # fmt: skip


def _function(
    bus: str,
    device: int,
    subsystem: int,
    pci_class: int,
    numa_node: int,
    irq: int,
    bars: tuple[tuple[int, int, bool], ...],
) -> Iterator[tuple[str, bytes, int]]:
    base = f"{_DEVICES}/{bus}"
    yield f"{base}/config", config_space(device, subsystem, pci_class, bars), 0o644
    texts = {
        "vendor": f"0x{VENDOR:04x}", "device": f"0x{device:04x}", "subsystem_vendor": f"0x{VENDOR:04x}",
        "subsystem_device": f"0x{subsystem:04x}", "class": f"0x{pci_class:06x}", "revision": "0xa1",
        "numa_node": str(numa_node), "irq": str(irq), "enable": "1", "resource": "\n".join(_resource(bars)),
        "modalias": (
            f"pci:v{VENDOR:08X}d{device:08X}sv{VENDOR:08X}sd{subsystem:08X}"
            f"bc{pci_class >> 16:02X}sc{pci_class >> 8 & 255:02X}i{pci_class & 255:02X}"
        ),
    }  # fmt: skip
    for name, text in texts.items():
        yield f"{base}/{name}", f"{text}\n".encode(), 0o444


def _resource(bars: tuple[tuple[int, int, bool], ...]) -> list[str]:
    lines = []
    for start, size, wide in bars:
        lines.append(f"0x{start:016x} 0x{start + size - 1:016x} 0x{_PREFETCHABLE_64 if wide else _MEMORY_SPACE:016x}")
        lines += [f"0x{0:016x} 0x{0:016x} 0x{0:016x}"] if wide else []
    return lines + [f"0x{0:016x} 0x{0:016x} 0x{0:016x}"] * (13 - len(lines))


def config_space(device: int, subsystem: int, pci_class: int, bars: tuple[tuple[int, int, bool], ...]) -> bytes:
    """Return the 256 bytes of a type 0 configuration space: ids, class, base addresses, a PCI Express capability."""
    space = bytearray(256)
    struct.pack_into("<4H", space, 0, VENDOR, device, 0x0406, 0x0010)
    space[8:12] = bytes([0xA1, pci_class & 255, pci_class >> 8 & 255, pci_class >> 16])
    for number, (start, _, wide) in enumerate(bars):
        if wide:
            struct.pack_into("<Q", space, 0x10 + 8 * number, start | 0xC)
        else:
            struct.pack_into("<I", space, 0x10 + 8 * number, start)
    struct.pack_into("<2H", space, 0x2C, VENDOR, subsystem)
    space[0x34] = 0x78
    struct.pack_into("<2BH", space, 0x78, 0x10, 0, 0x0002)  # PCI Express endpoint, version 2
    space[0x3D] = 1  # interrupt pin A
    return bytes(space)


def functions(machine: Machine) -> tuple[Gpu | NvSwitch, ...]:
    """Return everything of the machine that is a PCI function."""
    return (*(gpu for gpu in machine.present_gpus if gpu.on_pci), *machine.own_switches)
