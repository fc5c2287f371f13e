"""Device nodes of the host, compared with the numbers that the driver registered.

Belongs here: looking at one node and saying what is wrong with it. Does not belong here: which nodes there should be
(nvinject.core.catalog) and whether a fault stops an injection (the caller).
"""

import stat

from nvinject import leanos as os
from nvinject.core.model import DeviceNode
from nvinject.host.root import Root
from nvinject.record import Record

INITIAL_UID_MAP = ["0", "0", "4294967295"]  # user_namespaces(7): what /proc/self/uid_map holds outside of any

_KINDS = {
    stat.S_IFBLK: "a block device",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFREG: "a regular file",
    stat.S_IFSOCK: "a socket",
}


class NodeCheck(Record):
    """What was found at a node's path: the node, or `fault`, a clause like `/dev/nvidia0 is missing`; or a `note`."""

    node: DeviceNode | None
    fault: str = ""
    note: str = ""


def in_initial_user_namespace() -> bool:
    """Say whether device nodes can be mended from here: mknod works in the initial user namespace only."""
    try:
        descriptor = os.open("/proc/self/uid_map", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        return os.read(descriptor, 4096).decode("ascii").split() == INITIAL_UID_MAP
    finally:
        os.close(descriptor)


def look_at_node(dev: Root, path: str) -> DeviceNode | None:
    """Return the character device at a path, whatever its number; None for anything else."""
    found = dev.lstat(path)
    if found is None or not stat.S_ISCHR(found.st_mode):
        return None
    return _describe(path, found)


def _describe(path: str, found: os.stat_result) -> DeviceNode:
    return DeviceNode(
        path=path,
        major=os.major(found.st_rdev),
        minor=os.minor(found.st_rdev),
        mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid,
        gid=found.st_gid,
    )


def check_node(dev: Root, path: str, major: int, minor: int, *, strict: bool) -> NodeCheck:
    """Look at the node `path` of a device root, which should be the character device major:minor.

    A `major` of 0 means that the driver's number is not known; then the node's own counts. Where not `strict`, a node
    of another number is taken as it is, with a note.
    """
    shown = dev.host_path(path)
    found = dev.lstat(path)
    if found is None:
        return NodeCheck(node=None, fault=f"{shown} is missing")
    if not stat.S_ISCHR(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        return NodeCheck(node=None, fault=f"{shown} is {kind}, not a character device")
    node = _describe(path, found)
    expected = (major or node.major, minor)
    if (node.major, node.minor) == expected:
        return NodeCheck(node=node)
    difference = f"{shown} is device {node.major}:{node.minor}, the driver's is {expected[0]}:{expected[1]}"
    if strict:
        return NodeCheck(node=None, fault=difference)
    return NodeCheck(node=node, note=f"{difference}; taken as it is")
