"""Layouts: where the driver's files of a declared machine lie, and that none of them is lost on the way."""

import os

import pytest

from nvfakes import declaration, tree
from nvfakes.errors import MachineError
from nvfakes.layouts import LAYOUTS, Places
from nvfakes.machine import Machine

VERSION = "570.133.20"


def machine(layout: str, more: str = "") -> Machine:
    return declaration.parse(f"driver: {{layout: {layout}}}\nlib32: true\narch: x86_64\n{more}", "m.yaml", "m")


def places(layout: str) -> Places:
    return machine(layout).places


MOVES = [
    ("usual", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
    ("driver-container", "/usr/bin/nvidia-smi", "/run/nvidia/driver/usr/bin/nvidia-smi"),
    ("fedora", "/usr/lib/x86_64-linux-gnu/vdpau/x.so", "/usr/lib64/vdpau/x.so"),
    ("fedora", "/usr/lib/i386-linux-gnu/libcuda.so.1", "/usr/lib/libcuda.so.1"),
    ("cos", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/home/kubernetes/bin/nvidia/lib64/libcuda.so.1"),
    ("cos", "/etc/vulkan/icd.d/nvidia_icd.json", "/home/kubernetes/bin/nvidia/vulkan/icd.d/nvidia_icd.json"),
    ("talos", "/usr/lib/firmware/nvidia/1/gsp.bin", "/usr/lib/firmware/nvidia/1/gsp.bin"),
    ("debian-split", "/usr/bin/nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi"),
]


@pytest.mark.parametrize(("layout", "usual", "moved"), MOVES)
def test_a_file_lies_where_its_layout_has_it(layout: str, usual: str, moved: str) -> None:
    assert places(layout).path(usual) == moved


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_no_file_is_lost(layout: str) -> None:
    usual = [entry for entry in tree.entries(machine("usual")) if isinstance(entry, tree.File)]
    moved = {entry.path for entry in tree.entries(machine(layout)) if isinstance(entry, tree.File)}
    expected = {
        places(layout).path(entry.path) if entry.path.startswith(("/usr/", "/etc/")) else entry.path
        for entry in usual
        if LAYOUTS[layout].cached or entry.path != tree.LOADER_CACHE
    }
    assert moved == expected


def resolve(path: str, links: dict[str, str]) -> str:
    """Return where a path leads, all of its links followed."""
    done = ""
    pending = path.strip("/").split("/")
    while pending:
        step = pending.pop(0)
        here = os.path.normpath(f"{done}/{step}")
        text = links.get(here)
        if text is None:
            done = "" if here == "/" else here
        else:
            pending = [*text.strip("/").split("/"), *pending]
            done = "" if text.startswith("/") else done
    return done


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_every_link_of_the_driver_leads_to_a_file(layout: str) -> None:
    found = tree.entries(machine(layout))
    links = {entry.path: entry.target for entry in found if isinstance(entry, tree.Link)}
    paths = {entry.path for entry in found}
    own = [path for path in links if not path.startswith(("/sys/", "/dev/"))]
    assert own
    for path in own:
        target = resolve(path, links)
        assert any(other == target or other.startswith(f"{target}/") for other in paths), path


def test_debian_goes_through_its_alternatives() -> None:
    found = tree.entries(machine("debian-split"))
    links = {entry.path: entry.target for entry in found if isinstance(entry, tree.Link)}
    assert links["/usr/bin/nvidia-smi"] == "/etc/alternatives/nvidia--nvidia-smi"
    assert links["/etc/alternatives/nvidia--nvidia-smi"] == "/usr/lib/nvidia/current/nvidia-smi"
    assert "/usr/lib/x86_64-linux-gnu/libnvidia-cfg.so.1" not in links


def test_nixos_has_nothing_where_others_have_it() -> None:
    paths = [entry.path for entry in tree.entries(machine("nixos", "gpus: [{model: t4}]"))]
    assert [path for path in paths if path.startswith(("/usr/", "/etc/", "/lib", "/bin"))] == []
    assert f"/run/current-system/firmware/nvidia/{VERSION}/gsp_ga10x.bin" in paths


def test_a_driver_container_has_the_nodes_and_the_sockets() -> None:
    more = "gpus: [{model: t4}]\nsockets: [persistenced]"
    paths = {entry.path for entry in tree.entries(machine("driver-container", more))}
    assert {"/run/nvidia/driver/dev/nvidia0", "/run/nvidia/driver/run/nvidia-persistenced/socket"} <= paths
    assert "/dev/nvidia0" not in paths
    beside = {entry.path for entry in tree.entries(machine("driver-container-host-nodes", more))}
    assert {"/dev/nvidia0", "/run/nvidia-persistenced/socket"} <= beside


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("driver: {layout: gentoo}", "m.yaml:1: driver.layout: 'gentoo' is none of "),
        ("driver: {branch: 550, layout: nixos}", "m.yaml:1: driver.layout: real files of a branch lie where"),
    ],
)
def test_a_wrong_layout_is_told(text: str, message: str) -> None:
    with pytest.raises(MachineError) as caught:
        declaration.parse(text, "m.yaml", "m")
    assert str(caught.value).startswith(message)
