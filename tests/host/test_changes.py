"""Which kernel events and which names in directories mean that a spec may be out of date."""

import os
import threading
from pathlib import Path

import pytest

from nvinject.core.policy import Roots
from nvinject.host.changes import Changes, concerns_driver
from nvinject.host.libraries import MACHINES

EVENTS = [
    ({"SUBSYSTEM": "pci", "PCI_ID": "10DE:2330", "ACTION": "add"}, True),
    ({"SUBSYSTEM": "pci", "PCI_ID": "8086:1234", "ACTION": "add"}, False),
    ({"SUBSYSTEM": "pci", "DRIVER": "nvidia", "ACTION": "bind"}, True),
    ({"SUBSYSTEM": "module", "DEVPATH": "/module/nvidia_uvm", "ACTION": "add"}, True),
    ({"SUBSYSTEM": "module", "DEVPATH": "/module/loop", "ACTION": "add"}, False),
    ({"SUBSYSTEM": "drm", "DEVPATH": "/devices/pci0000:00/drm/card1", "ACTION": "add"}, True),
    ({"SUBSYSTEM": "drm", "DEVPATH": "/devices/pci0000:00/drm/card1", "ACTION": "change"}, False),
    ({"SUBSYSTEM": "nvidia", "DEVPATH": "/devices/virtual/nvidia/nvidia0"}, True),
    ({"SUBSYSTEM": "misc", "DEVNAME": "nvidia-uvm", "DEVPATH": "/devices/virtual/misc/x"}, True),
    ({"SUBSYSTEM": "net", "DEVPATH": "/devices/virtual/net/veth0"}, False),
    ({}, False),
]


@pytest.mark.parametrize(("event", "expected"), EVENTS)
def test_which_events_concern_the_driver(event: dict[str, str], *, expected: bool) -> None:
    assert concerns_driver(event) is expected


@pytest.fixture
def host(tmp_path: Path) -> Path:
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        pytest.skip(f"no libraries are known for {os.uname().machine}")
    for folder in (f"usr/lib/{machine.triplet}", "usr/bin", "dev"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def changes(host: Path) -> Changes:
    return Changes(Roots(driver=str(host), dev=str(host)))


def test_names_of_the_driver_count(host: Path) -> None:
    """Others come and go all the time."""
    with changes(host) as heard:
        (host / "dev/loop0").touch()
        (host / "usr/bin/ls").touch()
        assert heard.wait(0) == ()
        (host / "dev/nvidia0").touch()
        (host / "usr/bin/nvidia-smi").touch()
        assert set(heard.wait(5)) >= {f"{host}/dev/nvidia0", f"{host}/usr/bin/nvidia-smi"}


def test_lists_and_nodes_of_a_tegra_system_count(host: Path) -> None:
    """A spec of mode csv is made of them."""
    lists = host / "etc/nvidia-container-runtime/host-files-for-container.d"
    lists.mkdir(parents=True)
    with changes(host) as heard:
        (host / "dev/nvmap").touch()
        (lists / "devices.csv").touch()
        (lists / "devices.csv.dpkg-new").touch()
        assert set(heard.wait(5)) == {f"{host}/dev/nvmap", f"{lists}/devices.csv"}


def test_directories_that_come_later_are_watched_after_renewal(host: Path) -> None:
    """/dev/nvidia-caps exists only once there is a first capability."""
    with changes(host) as heard:
        (host / "dev/nvidia-caps").mkdir()
        assert heard.wait(5) == (f"{host}/dev/nvidia-caps",)
        heard.renew()
        (host / "dev/nvidia-caps/nvidia-cap1").touch()
        assert f"{host}/dev/nvidia-caps/nvidia-cap1" in heard.wait(5)


def test_waiting_ends_with_the_first_change(host: Path) -> None:
    """Whoever waits for a minute hears of a change at once."""
    with changes(host) as heard:
        started = threading.Timer(0.05, (host / "dev/nvidia1").touch)
        started.start()
        assert heard.wait(60)
        started.join()
