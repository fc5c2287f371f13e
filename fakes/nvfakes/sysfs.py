"""What a GPU machine shows below /sys: PCI functions and the modules of the driver.

Belongs here: attribute files and links by path. Does not belong here: the formats of /proc (procfs.py).
A function's folder stands in /sys/bus/pci/devices itself, not behind a link into /sys/devices.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from nvfakes.machine import Gpu, Machine, NvSwitch
from nvfakes.models import bar1_bytes
from nvfakes.procfs import MODULES, interrupt

VENDOR = 0x10DE
CLASS_BRIDGE_OTHER = 0x068000
_DEVICES = "/sys/bus/pci/devices"
_PREFETCHABLE_64 = 0x0014220C  # flags of a region, as the kernel prints them
_SPEEDS = {3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}


def files(machine: Machine) -> Iterator[tuple[str, bytes, int]]:
    """Yield (path, content, mode) of every attribute."""
    for gpu in machine.pci_gpus:
        yield from _attributes(_gpu_function(gpu))
    for switch in machine.own_switches:
        yield from _attributes(_switch_function(switch))
    if machine.driver and machine.module_loaded:
        for module in MODULES:
            yield f"/sys/module/{module}/initstate", b"live\n", 0o444
            yield f"/sys/module/{module}/refcnt", b"1\n", 0o444
            if module == "nvidia":
                yield f"/sys/module/{module}/version", f"{machine.driver.version}\n".encode(), 0o444


def directories(machine: Machine) -> Iterator[str]:
    """Yield the folders that hold no file: the DRM devices of a GPU."""
    if machine.drm and machine.module_loaded:
        for gpu in machine.pci_gpus:
            yield f"{_DEVICES}/{gpu.bus}/drm/card{gpu.card}"
            yield f"{_DEVICES}/{gpu.bus}/drm/renderD{gpu.render}"


def links(machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield (path, target) of the links of each function: its driver and its IOMMU group."""
    if machine.module_loaded:
        for gpu in machine.pci_gpus:
            yield f"{_DEVICES}/{gpu.bus}/driver", "../../../../bus/pci/drivers/nvidia"
            yield f"/sys/bus/pci/drivers/nvidia/{gpu.bus}", f"../../devices/{gpu.bus}"
    for gpu in machine.pci_gpus:
        yield f"{_DEVICES}/{gpu.bus}/iommu_group", f"../../../../kernel/iommu_groups/{40 + gpu.minor}"
        yield f"/sys/kernel/iommu_groups/{40 + gpu.minor}/devices/{gpu.bus}", f"../../../../bus/pci/devices/{gpu.bus}"


@dataclass(frozen=True, slots=True)
class _Function:
    """A PCI function; `bars` are (start, size) of 64-bit prefetchable regions, `generation` is of PCI Express."""

    bus: str
    device: int
    subsystem: int
    pci_class: int
    numa_node: int
    irq: int
    bars: tuple[tuple[int, int], ...] = ()
    generation: int = 4


def _gpu_function(gpu: Gpu) -> _Function:
    model = gpu.model
    bars = ((0x1000000000 + (gpu.minor << 24), 1 << 24), (gpu.minor + 1 << 40, bar1_bytes(model)))
    return _Function(
        gpu.bus, model.device_id, model.subsystem_id, model.pci_class, gpu.numa_node, interrupt(gpu), bars,
        model.pcie_generation,
    )  # fmt: skip


def _switch_function(switch: NvSwitch) -> _Function:
    return _Function(switch.bus, switch.device_id, switch.device_id, CLASS_BRIDGE_OTHER, 0, 90 + switch.minor)


def _attributes(function: _Function) -> Iterator[tuple[str, bytes, int]]:
    base = f"{_DEVICES}/{function.bus}"
    device, subsystem, pci_class = function.device, function.subsystem, function.pci_class
    yield f"{base}/config", config_space(function), 0o644
    texts = {
        "vendor": f"0x{VENDOR:04x}", "device": f"0x{device:04x}", "subsystem_vendor": f"0x{VENDOR:04x}",
        "subsystem_device": f"0x{subsystem:04x}", "class": f"0x{pci_class:06x}", "revision": "0xa1",
        "numa_node": str(function.numa_node), "irq": str(function.irq), "enable": "1",
        "resource": "\n".join(_resource(function.bars)),
        "current_link_speed": f"{_SPEEDS[function.generation]} GT/s PCIe", "current_link_width": "16",
        "max_link_speed": f"{_SPEEDS[function.generation]} GT/s PCIe", "max_link_width": "16",
        "modalias": (
            f"pci:v{VENDOR:08X}d{device:08X}sv{VENDOR:08X}sd{subsystem:08X}"
            f"bc{pci_class >> 16:02X}sc{pci_class >> 8 & 255:02X}i{pci_class & 255:02X}"
        ),
    }  # fmt: skip
    for name, text in texts.items():
        yield f"{base}/{name}", f"{text}\n".encode(), 0o444


def _resource(bars: tuple[tuple[int, int], ...]) -> list[str]:
    nothing = f"0x{0:016x} 0x{0:016x} 0x{0:016x}"
    lines = []
    for start, size in bars:
        lines += [f"0x{start:016x} 0x{start + size - 1:016x} 0x{_PREFETCHABLE_64:016x}", nothing]
    return lines + [nothing] * (13 - len(lines))


def config_space(function: _Function) -> bytes:
    """Return the 256 bytes of a type 0 configuration space: ids, class, base addresses, a PCI Express capability."""
    space = bytearray(256)
    struct.pack_into("<4H", space, 0, VENDOR, function.device, 0x0406, 0x0010)
    pci_class = function.pci_class
    space[8:12] = bytes([0xA1, pci_class & 255, pci_class >> 8 & 255, pci_class >> 16])
    for number, (start, _) in enumerate(function.bars):
        struct.pack_into("<Q", space, 0x10 + 8 * number, start | 0xC)
    struct.pack_into("<2H", space, 0x2C, VENDOR, function.subsystem)
    space[0x34] = 0x78
    link = function.generation | 16 << 4  # speed and width, as PCI Express puts them in link capabilities and status
    struct.pack_into("<2BHIHHIHH", space, 0x78, 0x10, 0, 0x0002, 0x8001, 0x2810, 0, link, 0x0040, link | 1 << 12)
    space[0x3C:0x3E] = bytes([function.irq & 255, 1])  # interrupt line, pin A
    return bytes(space)
