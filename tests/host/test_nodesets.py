"""Sets of nodes: which of them a host has, and what is said where it has none."""

import pytest

from nvinject.core.catalog import NODE_SETS
from nvinject.errors import HostError
from nvinject.host.nodesets import find_channels, find_management_nodes, find_node_set

from .machine import HostTree, write

NODES = [
    "/dev/nvidia-fs0",
    "/dev/nvidia-fs1",
    "/dev/infiniband/uverbs0",
    "/dev/infiniband/rdma_cm",
    "/dev/infiniband/issm0",
    "/dev/gdrdrv",
    "/dev/nvidia-nvswitchctl",
    "/dev/nvidia-nvswitch0",
    "/dev/nvidia-nvlink",
    "/dev/nvidia0",
    "/dev/nvidiactl",
    "/dev/nvidia-caps/nvidia-cap1",
    "/dev/nvidia-caps-imex-channels/channel0",
    "/dev/nvidia-caps-imex-channels/channel3",
]
SETS = {row.name: row for row in NODE_SETS}
FOUND = [
    ("gds", ["/dev/nvidia-fs0", "/dev/nvidia-fs1"], ["/etc/cufile.json"]),
    ("mofed", ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"], []),
    ("gdrcopy", ["/dev/gdrdrv"], []),
    ("nvswitch", ["/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch0"], []),
]


@pytest.fixture
def full(tree: HostTree) -> HostTree:
    for number, path in enumerate(NODES):
        tree.add_node(path, 500, number)
    tree.write("/etc/cufile.json", "{}")
    write(tree.root, "/dev/nvidia-fs.log", "no node")
    return tree


@pytest.mark.parametrize(("name", "nodes", "files"), FOUND)
def test_what_a_host_has_of_a_set(full: HostTree, name: str, nodes: list[str], files: list[str]) -> None:
    found = find_node_set(full.policy.roots, SETS[name])
    assert [node.path for node in found.nodes] == nodes
    assert list(found.files) == files
    assert found.searched.startswith(f"{full.root}/dev/")


@pytest.mark.parametrize("name", list(SETS))
def test_a_host_without_the_set(tree: HostTree, name: str) -> None:
    tree.add_node("/dev/nvidiactl", 195, 255)
    with pytest.raises(HostError, match=f"{SETS[name].reason}.*{tree.root}/dev") as caught:
        find_node_set(tree.policy.roots, SETS[name])
    assert SETS[name].remedy in caught.value.hint


def test_management_sees_all_but_the_other_sets(full: HostTree, tree: HostTree) -> None:
    assert [node.path for node in find_management_nodes(full.policy.roots)] == [
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/nvidia-caps-imex-channels/channel0",
        "/dev/nvidia-caps-imex-channels/channel3",
    ]


CHANNELS = [((), ["0", "3"]), (("all",), ["0", "3"]), (("3",), ["3"]), (("3", "0", "3"), ["3", "0"])]


@pytest.mark.parametrize(("asked", "expected"), CHANNELS)
def test_channels_by_number(full: HostTree, asked: tuple[str, ...], expected: list[str]) -> None:
    found = find_channels(full.policy.roots, asked)
    assert [node.path.rpartition("channel")[2] for node in found.nodes] == expected


def test_a_channel_without_a_node_is_named(full: HostTree) -> None:
    with pytest.raises(HostError, match="IMEX channel 7 has no device node") as caught:
        find_channels(full.policy.roots, ("0", "7"))
    assert "channel0, channel3" in caught.value.hint
