"""GPUs on the PCI bus, and which of them the driver should show."""

from pathlib import Path

from nvinject.host.pci import PciGpu, find_pci_gpus
from nvinject.host.root import Root

FUNCTIONS = [
    # address, vendor, class, driver
    ("0000:18:00.0", "0x10de", "0x030200", "nvidia"),
    ("0000:17:00.0", "0x10de", "0x030000", "vfio-pci"),
    ("0000:19:00.0", "0x10de", "0x030200", ""),
    ("0000:1a:00.0", "0x10de", "0x068000", "nvidia"),
    ("0000:1b:00.0", "0x1002", "0x030000", "amdgpu"),
    ("0000:1c:00.0", "nonsense", "0x030000", ""),
    ("0000:1d:00.0", "0x10de", "", ""),
]


def test_only_display_controllers_of_nvidia_count(tmp_path: Path) -> None:
    for address, vendor, pci_class, driver in FUNCTIONS:
        folder = tmp_path / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        if pci_class:
            (folder / "class").write_text(f"{pci_class}\n")
        if driver:
            (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
    with Root(str(tmp_path)) as sys:
        found = find_pci_gpus(sys)
    assert [(gpu.bus_id, gpu.is_expected) for gpu in found] == [
        ("0000:17:00.0", False),
        ("0000:18:00.0", True),
        ("0000:19:00.0", True),
    ]


def test_no_bus_is_no_gpu(tmp_path: Path) -> None:
    with Root(str(tmp_path)) as sys:
        assert find_pci_gpus(sys) == ()
    assert PciGpu(bus_id="", driver="nouveau").is_expected is False
