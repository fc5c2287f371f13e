"""Which nodes and links a host should have."""

import pytest

from nvinject.core.model import DeviceNode
from nvinject.core.nodesetup import (
    CAPABILITIES,
    CONTROL,
    GPUS,
    KINDS,
    CapabilityFile,
    HostNodes,
    NodeRules,
    required_majors,
    wanted_links,
    wanted_nodes,
)
from nvinject.errors import HostError

MAJORS = (("nvidia", 195), ("nvidia-modeset", 195), ("nvidiactl", 195), ("nvidia-uvm", 511), ("nvidia-caps", 237))
HOST = HostNodes(
    majors=MAJORS,
    gpu_minors=(0, 1),
    capabilities=(CapabilityFile(path="/proc/driver/nvidia/capabilities/mig/config", minor=1, mode=0o400),),
)


def short(nodes: tuple[DeviceNode, ...]) -> list[str]:
    return [f"{node.path} {node.major}:{node.minor} {node.mode:o}" for node in nodes]


def test_everything() -> None:
    """Numbers from /proc/devices, in the original's order."""
    assert short(wanted_nodes(HOST, KINDS).nodes) == [
        "/dev/nvidiactl 195:255 666",
        "/dev/nvidia-modeset 195:254 666",
        "/dev/nvidia-uvm 511:0 666",
        "/dev/nvidia-uvm-tools 511:1 666",
        "/dev/nvidia0 195:0 666",
        "/dev/nvidia1 195:1 666",
        "/dev/nvidia-caps/nvidia-cap1 237:1 400",
    ]


def test_the_drivers_parameters_decide_owner_and_mode() -> None:
    """But not those of capabilities, which have their own."""
    host = HOST.replace(rules=NodeRules(mode=0o660, uid=1, gid=44))
    node = wanted_nodes(host, (GPUS,)).nodes[0]
    assert (node.mode, node.uid, node.gid) == (0o660, 1, 44)
    assert wanted_nodes(host, (CAPABILITIES,)).nodes[0].mode == 0o400


def test_old_drivers_register_one_class_for_all() -> None:
    """nvidia-frontend."""
    host = HostNodes(majors=(("nvidia-frontend", 195),), gpu_minors=(3,))
    wanted = wanted_nodes(host, (CONTROL, GPUS))
    assert short(wanted.nodes) == [
        "/dev/nvidiactl 195:255 666",
        "/dev/nvidia-modeset 195:254 666",
        "/dev/nvidia3 195:3 666",
    ]
    assert len(wanted.problems) == 2
    assert "nvidia-uvm is not in /proc/devices" in wanted.problems[0]


def test_imex_channels() -> None:
    """They have a class of their own."""
    host = HOST.replace(majors=(*MAJORS, ("nvidia-caps-imex-channels", 238)))
    assert short(wanted_nodes(host, (), ("7",)).nodes) == ["/dev/nvidia-caps-imex-channels/channel7 238:7 666"]
    assert wanted_nodes(HOST, (), ("7",)).problems


def test_without_a_driver_there_are_no_numbers() -> None:
    """The original's words."""
    with pytest.raises(HostError, match="no NVIDIA devices found"):
        wanted_nodes(HostNodes(majors=(("mem", 1),)), KINDS)


MISSING = [
    (HOST, ()),
    (HostNodes(majors=(("nvidia", 195),)), ("nvidia-uvm",)),
    (HostNodes(majors=(("nvidia-uvm", 511),)), ("nvidia",)),
    (HOST.replace(majors=MAJORS[:-1]), ("nvidia-caps",)),
]


@pytest.mark.parametrize(("host", "missing"), MISSING)
def test_all_links_need_all_numbers(host: HostNodes, missing: tuple[str, ...]) -> None:
    """nvidia-caps only where there are capabilities."""
    assert required_majors(host) == missing


def test_links_lead_to_nodes_by_their_absolute_paths() -> None:
    """One for each number; nodes of other drivers have none."""
    nodes = (
        DeviceNode(path="/dev/nvidia0", major=195, minor=0),
        DeviceNode(path="/dev/nvidia-fs0", major=234, minor=0),
        DeviceNode(path="/dev/nvidia-copy", major=195, minor=0),
    )
    assert [(link.name, link.target) for link in wanted_links(nodes)] == [("195:0", "/dev/nvidia0")]
    assert wanted_links(nodes[:1], "/run/nvidia/driver")[0].target == "/run/nvidia/driver/dev/nvidia0"
