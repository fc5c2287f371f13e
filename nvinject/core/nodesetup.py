"""Node set-up: which device nodes a host should have, and which links of /dev/char belong to them.

Belongs here: the rules, from values that somebody has looked up. Does not belong here: looking (host.nodefacts) and
making (render.devicenodes). The rules are those of nvidia-modprobe: numbers come from /proc/devices, owner and mode
from the driver's parameters.
"""

from nvinject.core import catalog
from nvinject.core.model import DeviceNode
from nvinject.errors import HostError
from nvinject.record import Record

CONTROL = "control"
GPUS = "gpus"
CAPABILITIES = "capabilities"
KINDS = (CONTROL, GPUS, CAPABILITIES)
MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset")
# In the original's order, in which it stops at the first one that has no number.
CONTROL_ORDER = ("nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools")
# Nodes of other drivers whose names begin like ours.
NO_LINKS = ("nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink")


class NodeRules(Record):
    """How the driver wants its nodes to be made; `modify` says whether user space may make them at all."""

    mode: int = 0o666
    uid: int = 0
    gid: int = 0
    modify: bool = True


class CapabilityFile(Record):
    """A file below /proc/driver/nvidia/capabilities: its path, and minor and mode of its node."""

    path: str
    minor: int
    mode: int
    modify: bool = True


class HostNodes(Record):
    """What is known of the host: classes of /proc/devices, the driver's rules, minors of GPUs, capabilities."""

    majors: tuple[tuple[str, int], ...]
    rules: NodeRules = NodeRules()
    gpu_minors: tuple[int, ...] = ()
    capabilities: tuple[CapabilityFile, ...] = ()


class Wanted(Record):
    """The nodes that should be there, and why others cannot be told."""

    nodes: tuple[DeviceNode, ...]
    problems: tuple[str, ...] = ()


class Link(Record):
    """A link of /dev/char: `MAJOR:MINOR`, and the device's path."""

    name: str
    target: str


def wanted_nodes(host: HostNodes, kinds: tuple[str, ...], channels: tuple[str, ...] = ()) -> Wanted:
    """Return the nodes of the kinds and of IMEX channels; raises HostError where no NVIDIA driver is registered."""
    classes = {name for name, _ in host.majors}
    if not classes & {*catalog.GPU_CLASSES, "nvidiactl"}:
        raise HostError("no NVIDIA devices found in /proc/devices", "load the driver first: modprobe nvidia")
    nodes: list[DeviceNode] = []
    problems: list[str] = []
    if CONTROL in kinds:
        for row in sorted(catalog.CONTROL_NODES, key=lambda row: CONTROL_ORDER.index(row.name)):
            major = catalog.major_of(row.classes, host.majors, 0)
            if major:
                nodes.append(_node(host.rules, row.path, major, row.minor))
            else:
                problems.append(f"{row.path} has no number: {' or '.join(row.classes)} is not in /proc/devices")
    if GPUS in kinds:
        major = catalog.major_of(catalog.GPU_CLASSES, host.majors)
        nodes += [_node(host.rules, f"/dev/nvidia{minor}", major, minor) for minor in host.gpu_minors]
    if CAPABILITIES in kinds and host.capabilities:
        nodes += _capability_nodes(host, problems)
    if channels:
        nodes += _channel_nodes(host, channels, problems)
    return Wanted(nodes=tuple(nodes), problems=tuple(problems))


def _node(rules: NodeRules, path: str, major: int, minor: int) -> DeviceNode:
    return DeviceNode(path=path, major=major, minor=minor, mode=rules.mode, uid=rules.uid, gid=rules.gid)


def _capability_nodes(host: HostNodes, problems: list[str]) -> list[DeviceNode]:
    major = catalog.major_of((catalog.CAPABILITY_CLASS,), host.majors, 0)
    if not major:
        problems.append(f"capabilities have no numbers: {catalog.CAPABILITY_CLASS} is not in /proc/devices")
        return []
    return [
        DeviceNode(
            path=f"{catalog.CAPABILITY_DIRECTORY}/nvidia-cap{one.minor}", major=major, minor=one.minor, mode=one.mode
        )
        for one in host.capabilities
    ]


def _channel_nodes(host: HostNodes, channels: tuple[str, ...], problems: list[str]) -> list[DeviceNode]:
    major = catalog.major_of((catalog.IMEX_CLASS,), host.majors, 0)
    if not major:
        problems.append(f"IMEX channels have no numbers: {catalog.IMEX_CLASS} is not in /proc/devices")
        return []
    return [
        _node(host.rules, f"{catalog.IMEX_DIRECTORY}/channel{channel}", major, int(channel)) for channel in channels
    ]


def required_majors(host: HostNodes) -> tuple[str, ...]:
    """Return the classes without which not all links can be told (create-dev-char-symlinks --create-all)."""
    needed = ["nvidia-uvm", *([catalog.CAPABILITY_CLASS] if host.capabilities else [])]
    classes = {name for name, _ in host.majors}
    missing = [name for name in needed if name not in classes]
    return tuple(missing if classes & set(catalog.GPU_CLASSES) else [catalog.GPU_CLASSES[0], *missing])


def wanted_links(nodes: tuple[DeviceNode, ...], dev_root: str = "/") -> tuple[Link, ...]:
    """Return the links for nodes, one for each device; the target is the absolute path of the node."""
    prefix = "" if dev_root == "/" else dev_root.rstrip("/")
    found: dict[str, Link] = {}
    for node in nodes:
        if not node.path.rpartition("/")[2].startswith(NO_LINKS):
            name = f"{node.major}:{node.minor}"
            found.setdefault(name, Link(name=name, target=f"{prefix}{node.path}"))
    return tuple(found.values())
