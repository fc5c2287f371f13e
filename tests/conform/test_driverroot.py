"""Driver roots: the machine's driver files where a distribution would keep them."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from nvconform.case import Driver
from nvconform.driverroot import DriverRoot
from tests.ldconfig import need_ldconfig

SETS: dict[str, Any] = {
    "capabilities": {
        "utility": {
            "binaries": ["nvidia-smi", "nvidia-not-there"],
            "sockets": ["/run/nvidia-persistenced/socket"],
            "configuration": ["/etc/OpenCL/vendors/nvidia.icd"],
        }
    }
}
LIBRARIES = "usr/lib/x86_64-linux-gnu"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    from nvfakes import load

    root = tmp_path / "machine"
    load("two-h100").write_tree(root)
    (root / LIBRARIES / "libc.so.6").write_text("not the driver's")
    return root


def build(machine: Path, place: Path, driver: Driver) -> DriverRoot:
    made = DriverRoot(place, driver, machine, SETS)
    made.build()
    return made


def test_files_lie_where_the_layout_says(machine: Path, tmp_path: Path) -> None:
    driver = Driver(libraries="/lib64", programs="/bin", links={"/usr/lib64": "../lib64"})
    root = build(machine, tmp_path / "host", driver).path
    assert root == tmp_path / "host/run/nvidia/driver"
    assert (root / "lib64/libcuda.so.570.133.20").is_file()
    assert os.readlink(root / "lib64/libcuda.so.1") == "libcuda.so.570.133.20"
    assert not (root / "lib64/libc.so.6").exists()
    assert os.access(root / "bin/nvidia-smi", os.X_OK)
    assert (root / "lib/firmware/nvidia/570.133.20/gsp_ga10x.bin").is_file()
    assert (root / "etc/OpenCL/vendors/nvidia.icd").is_file()
    assert stat.S_ISSOCK((root / "run/nvidia-persistenced/socket").stat().st_mode)
    assert os.readlink(root / "usr/lib64") == "../lib64"
    assert not (root / "etc/ld.so.cache").exists()


def test_files_are_found_by_name(machine: Path, tmp_path: Path) -> None:
    made = build(machine, tmp_path / "host", Driver(root="/", libraries="/opt/lib"))
    assert list(made.named("libcuda.so.570.133.20")) == [tmp_path / "host/opt/lib/libcuda.so.570.133.20"]
    assert list(made.named("nothing")) == []


def test_loader_caches(machine: Path, tmp_path: Path) -> None:
    from nvconform.observe import loader_cache

    useless = build(machine, tmp_path / "useless", Driver(loader_cache="useless")).path
    assert loader_cache(useless / "etc/ld.so.cache") == []
    need_ldconfig(tmp_path)
    made = build(machine, tmp_path / "made", Driver(loader_cache="made")).path
    entries = loader_cache(made / "etc/ld.so.cache")
    assert f"libcuda.so.1 (64) /{LIBRARIES}/libcuda.so.1" in entries
