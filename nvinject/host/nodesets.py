"""Sets of device nodes that belong to no GPU: storage, network adapters, switches, channels, or all of the driver's.

Belongs here: which of them a host has. Does not belong here: the sets themselves (nvinject.core.catalog). None of
them needs the NVIDIA driver's libraries, so no inventory is made for them.
"""

from nvinject.core.catalog import (
    IMEX_DIRECTORY,
    MANAGEMENT_NODES,
    NO_MANAGEMENT_NODES,
    NodeSetRow,
    node_set,
)
from nvinject.core.model import DeviceNode, NodeSet
from nvinject.core.policy import Roots
from nvinject.errors import HostError
from nvinject.host.inventory import device_root
from nvinject.host.nodes import look_at_node
from nvinject.host.root import Root


def look_for_node_sets(root: Root, dev: Root, names: tuple[str, ...]) -> tuple[NodeSet, ...]:
    """Return what a host has of sets of the catalogue, below its driver root and its device root."""
    return tuple(look_for_node_set(root, dev, node_set(name)) for name in names)


def look_for_node_set(root: Root, dev: Root, row: NodeSetRow) -> NodeSet:
    """Return what a host has of one set; its files count only where it has nodes."""
    nodes = find_nodes(dev, row.patterns)
    files = tuple(file for file in row.files if root.exists(file)) if nodes else ()
    return NodeSet(name=row.name, nodes=nodes, files=files, searched=_patterns(dev, row.patterns))


def find_node_set(roots: Roots, row: NodeSetRow) -> NodeSet:
    """Return what a host has of a set; raises HostError where there is not one node."""
    with Root(roots.driver, title="driver root") as root, Root(device_root(roots), title="device root") as dev:
        found = look_for_node_set(root, dev, row)
        if not found.nodes:
            raise HostError(f"there is no node of {row.reason}: {found.searched}", row.remedy)
        return found


def find_management_nodes(roots: Roots) -> tuple[DeviceNode, ...]:
    """Return every node of the driver; raises HostError where there is none."""
    with Root(device_root(roots), title="device root") as dev:
        nodes = find_nodes(dev, MANAGEMENT_NODES)
        kept = tuple(node for node in nodes if not node.path.rpartition("/")[2].startswith(NO_MANAGEMENT_NODES))
        if not kept:
            raise HostError(
                f"there are no NVIDIA device nodes: {_patterns(dev, MANAGEMENT_NODES)}", "run nvidia-modprobe as root"
            )
        return kept


def find_channels(roots: Roots, channels: tuple[str, ...]) -> NodeSet:
    """Return the nodes of IMEX channels, by number or `all`; raises HostError for one that has none."""
    with Root(device_root(roots), title="device root") as dev:
        everything = find_nodes(dev, (f"{IMEX_DIRECTORY}/channel*",))
        if channels in {(), ("all",)}:
            if not everything:
                raise HostError(f"there are no IMEX channels in {dev.host_path(IMEX_DIRECTORY)}", "create one first")
            return NodeSet(name="imex", nodes=everything)
        by_path = {node.path: node for node in everything}
        for channel in channels:
            path = f"{IMEX_DIRECTORY}/channel{channel}"
            if path not in by_path:
                known = ", ".join(node.path.rpartition("/")[2] for node in everything) or "none"
                raise HostError(
                    f"IMEX channel {channel} has no device node {dev.host_path(path)}",
                    f"create it on the host first; channels there: {known}",
                )
        wanted = tuple(by_path[f"{IMEX_DIRECTORY}/channel{channel}"] for channel in dict.fromkeys(channels))
        return NodeSet(name="imex", nodes=wanted)


def find_nodes(dev: Root, patterns: tuple[str, ...]) -> tuple[DeviceNode, ...]:
    """Return the character devices that match a pattern: a path, or the start of one before `*`."""
    found: dict[str, DeviceNode] = {}
    for pattern in patterns:
        directory, _, name = pattern.rpartition("/")
        names = dev.list_directory(directory) if name.endswith("*") else (name,)
        for candidate in names:
            if name.endswith("*") and not candidate.startswith(name[:-1]):
                continue
            node = look_at_node(dev, f"{directory}/{candidate}")
            if node is not None:
                found.setdefault(node.path, node)
    return tuple(found.values())


def _patterns(dev: Root, patterns: tuple[str, ...]) -> str:
    return ", ".join(dev.host_path(pattern) for pattern in patterns)
