"""Device nodes of the host and links of /dev/char, made so that a failure leaves nothing half done.

Belongs here: making one node or one link below a root. Does not belong here: which ones (core.nodesetup). A node that
is there is left alone: programs may have it open.
"""

import os
import stat

from nvinject.core.model import DeviceNode
from nvinject.core.nodesetup import Link
from nvinject.linux.inroot import open_parent, temporary_name
from nvinject.linux.signals import Undisturbed

MADE = "made"
THERE = "there"
WRONG = "wrong"
MISSING = "missing"


def state_of_node(root_fd: int, node: DeviceNode) -> tuple[str, str]:
    """Return THERE, WRONG (with what it is) or MISSING; raises OSError."""
    try:
        parent_fd, name, created = open_parent(root_fd, node.path)
    except (FileNotFoundError, NotADirectoryError):
        return MISSING, ""
    assert not created
    try:
        found = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    except FileNotFoundError:
        return MISSING, ""
    finally:
        os.close(parent_fd)
    if not stat.S_ISCHR(found.st_mode):
        return WRONG, "no character device"
    number = (os.major(found.st_rdev), os.minor(found.st_rdev))
    return (THERE, "") if number == (node.major, node.minor) else (WRONG, f"device {number[0]}:{number[1]}")


def make_node(root_fd: int, node: DeviceNode) -> None:
    """Make a node with owner and mode, and its directory; raises OSError, FileExistsError where something is there."""
    with Undisturbed():
        _make_node(root_fd, node)


def replace_node(root_fd: int, node: DeviceNode) -> None:
    """Make a node in place of another one; raises OSError."""
    with Undisturbed():
        remove_node(root_fd, node)
        _make_node(root_fd, node)


def _make_node(root_fd: int, node: DeviceNode) -> None:
    parent_fd, name, created = open_parent(root_fd, node.path, 0o755)
    for held, _ in created:
        os.close(held)
    temporary = temporary_name(name)
    try:
        os.mknod(temporary, 0o600 | stat.S_IFCHR, os.makedev(node.major, node.minor), dir_fd=parent_fd)
        try:
            os.chown(temporary, node.uid, node.gid, dir_fd=parent_fd, follow_symlinks=False)
            os.chmod(temporary, node.mode, dir_fd=parent_fd)
            # A link, not a rename: it fails where somebody else has made the node meanwhile.
            os.link(temporary, name, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)
        finally:
            os.unlink(temporary, dir_fd=parent_fd)
    finally:
        os.close(parent_fd)


def state_of_link(directory: str, link: Link) -> tuple[str, str]:
    """Return THERE, WRONG (with what the link says) or MISSING."""
    try:
        text = os.readlink(os.path.join(directory, link.name))
    except FileNotFoundError:
        return MISSING, ""
    except OSError:
        return WRONG, "no link"
    # udev's links are relative to the directory.
    leads_to = os.path.normpath(os.path.join(directory, text))
    return (THERE, "") if link.target in {text, leads_to} else (WRONG, f"a link to {text}")


def make_link(directory: str, link: Link) -> None:
    """Make a link, and its directory; raises OSError, FileExistsError where something is there."""
    with Undisturbed():
        os.makedirs(directory, mode=0o755, exist_ok=True)
        os.symlink(link.target, os.path.join(directory, link.name))


def remove_node(root_fd: int, node: DeviceNode) -> None:
    """Remove what lies at a node's path, unless it is a directory; raises OSError."""
    parent_fd, name, _ = open_parent(root_fd, node.path)
    try:
        os.unlink(name, dir_fd=parent_fd)
    finally:
        os.close(parent_fd)
