"""GPUs on the PCI bus, whether or not the driver has them.

Belongs here: sysfs's view of NVIDIA functions. Does not belong here: what the driver shows (gpus.py). Comparing both
tells a host whose driver has not finished starting from one that has lost a GPU.
"""

from nvinject.core.model import NVIDIA_VENDOR_ID
from nvinject.host.root import Root
from nvinject.record import Record

PCI_DEVICES = "/bus/pci/devices"  # below the sys root
DISPLAY_CLASS = 0x03  # PCI Code and ID Assignment Specification: display controllers, of which 0x0302 are 3D ones
DRIVER_NAME = "nvidia"


class PciGpu(Record):
    """An NVIDIA display controller; `driver` is the kernel driver that has it, "" for none."""

    bus_id: str
    driver: str

    @property
    def is_expected(self) -> bool:
        """Tell whether the NVIDIA driver should show it: others (vfio-pci, nouveau) have taken the rest on purpose."""
        return self.driver in {"", DRIVER_NAME}


def find_pci_gpus(sys: Root) -> tuple[PciGpu, ...]:
    """Return the GPUs in the order of their addresses."""
    found = []
    for bus_id in sys.list_directory(PCI_DEVICES):
        directory = f"{PCI_DEVICES}/{bus_id}"
        if _read_number(sys, f"{directory}/vendor") != NVIDIA_VENDOR_ID:
            continue
        if (_read_number(sys, f"{directory}/class") or 0) >> 16 == DISPLAY_CLASS:
            driver = sys.read_link(f"{directory}/driver").rpartition("/")[2]
            found.append(PciGpu(bus_id=bus_id, driver=driver))
    return tuple(found)


def _read_number(sys: Root, path: str) -> int | None:
    text = sys.read_text(path)
    try:
        return None if text is None else int(text, 16)
    except ValueError:
        return None
