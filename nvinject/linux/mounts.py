"""Mounts that go from a file descriptor onto a file descriptor, never through a path of the container.

Belongs here: the mount API of Linux 5.12 and its stand-in for older kernels, mount(2) through /proc/self/fd. Does not
belong here: which mounts there are, finding targets, undoing.
"""

import errno
import struct

from nvinject import leanos as os
from nvinject.linux import syscalls
from nvinject.linux.const import (
    AT_EMPTY_PATH,
    AT_RECURSIVE,
    FSCONFIG_CMD_CREATE,
    FSCONFIG_SET_STRING,
    FSMOUNT_CLOEXEC,
    FSOPEN_CLOEXEC,
    MNT_DETACH,
    MOUNT_ATTR_NODEV,
    MOUNT_ATTR_NOEXEC,
    MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_RDONLY,
    MOVE_MOUNT_F_EMPTY_PATH,
    MOVE_MOUNT_T_EMPTY_PATH,
    MS_BIND,
    MS_NOATIME,
    MS_NODEV,
    MS_NODIRATIME,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_RELATIME,
    MS_REMOUNT,
    MS_SLAVE,
    OPEN_TREE_CLOEXEC,
    OPEN_TREE_CLONE,
    STATX_MNT_ID,
)

_ATTRIBUTES = {
    "nodev": MOUNT_ATTR_NODEV,
    "noexec": MOUNT_ATTR_NOEXEC,
    "nosuid": MOUNT_ATTR_NOSUID,
    "ro": MOUNT_ATTR_RDONLY,
}
_OLD_FLAGS = {"nodev": MS_NODEV, "noexec": MS_NOEXEC, "nosuid": MS_NOSUID, "ro": MS_RDONLY}

# statvfs(3) f_flag -> mount(2): what a mount has already and a remount in a user namespace must not drop.
_KEPT_FLAGS = (
    (os.ST_RDONLY, MS_RDONLY),
    (os.ST_NOSUID, MS_NOSUID),
    (os.ST_NODEV, MS_NODEV),
    (os.ST_NOEXEC, MS_NOEXEC),
    (os.ST_NOATIME, MS_NOATIME),
    (os.ST_NODIRATIME, MS_NODIRATIME),
    (os.ST_RELATIME, MS_RELATIME),
)

_TMPFS_SIZE = "1m"  # a handful of files of some hundred bytes; the container shall not keep data there
_INSIDE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def attributes(flags: "tuple[str, ...]") -> int:
    """Return the MOUNT_ATTR_* bits for names of mount(8): ro, nosuid, nodev, noexec."""
    bits = 0
    for flag in flags:
        bits |= _ATTRIBUTES[flag]
    return bits


def has_mount_api() -> bool:
    """Tell whether this kernel has mount_setattr (5.12), and so the rest of the new mount API."""
    try:
        syscalls.mount_setattr(-1, "", AT_EMPTY_PATH, (MOUNT_ATTR_RDONLY, 0, 0, 0))
    except OSError as error:
        return error.errno != errno.ENOSYS
    return True


def clone_tree(fd: int, flags: "tuple[str, ...]", *, recursive: bool) -> int:
    """Make a detached, private copy of the mount at `fd` with the flags set; returns the mount's file descriptor."""
    below = AT_RECURSIVE if recursive else 0
    mount_fd = syscalls.open_tree(fd, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | below)
    try:
        set_attributes(mount_fd, flags, recursive=recursive)
    except OSError:
        os.close(mount_fd)
        raise
    return mount_fd


def set_attributes(mount_fd: int, flags: "tuple[str, ...]", *, recursive: bool = False) -> None:
    """Make a mount private and set its flags."""
    below = AT_RECURSIVE if recursive else 0
    syscalls.mount_setattr(mount_fd, "", AT_EMPTY_PATH | below, (attributes(flags), 0, MS_PRIVATE, 0))


def clone_writable(fd: int) -> int:
    """Make a detached, private copy of the mount at `fd` and all below it, of which the topmost may be written to.

    The mount itself stays as it is, and so do those below, in the copy too. Raises OSError EPERM where the mount was
    locked by another user namespace's owner (mount_namespaces(7)), ENOSYS before Linux 5.12.
    """
    mount_fd = clone_tree(fd, (), recursive=True)
    try:
        syscalls.mount_setattr(mount_fd, "", AT_EMPTY_PATH, (0, MOUNT_ATTR_RDONLY, 0, 0))
    except OSError:
        os.close(mount_fd)
        raise
    return mount_fd


def is_read_only(fd: int) -> bool:
    """Tell whether nothing can be written where `fd` lies, for its mount or its file system."""
    return bool(os.fstatvfs(fd).f_flag & os.ST_RDONLY)


def mount_id(fd: int) -> int:
    """Return the id, as in mountinfo, of the mount that `fd` lies on; 0 where the kernel (before 5.8) does not tell."""
    status = syscalls.statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID)
    (mask,) = struct.unpack_from("=I", status)
    (identifier,) = struct.unpack_from("=Q", status, 0x90)
    return int(identifier) if mask & STATX_MNT_ID else 0


def stop_sharing(mount_fd: int, descriptors_fd: int) -> None:
    """Let mounts below no longer appear in the mount's peers, only theirs here; changes the current directory."""
    os.fchdir(descriptors_fd)
    syscalls.mount(None, str(mount_fd), None, MS_SLAVE, None)


def make_tmpfs(mode: int, flags: "tuple[str, ...]") -> int:
    """Make a small detached tmpfs whose root has this mode; returns the mount's file descriptor."""
    context = syscalls.fsopen("tmpfs", FSOPEN_CLOEXEC)
    try:
        for key, value in (("source", "tmpfs"), ("mode", f"{mode:o}"), ("size", _TMPFS_SIZE)):
            syscalls.fsconfig(context, FSCONFIG_SET_STRING, key, value, 0)
        syscalls.fsconfig(context, FSCONFIG_CMD_CREATE, None, None, 0)
        return syscalls.fsmount(context, FSMOUNT_CLOEXEC, attributes(flags))
    finally:
        os.close(context)


def attach(mount_fd: int, target_fd: int) -> None:
    """Attach a detached mount where `target_fd` is."""
    syscalls.move_mount(mount_fd, "", target_fd, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH)


def open_descriptors() -> int:
    """Open this process's own /proc/self/fd, for detach and the old calls after entering other namespaces."""
    return os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def detach(mount_fd: int, descriptors_fd: int) -> None:
    """Unmount the mount at `mount_fd`; changes the current directory.

    umount2(2) knows paths only, and /proc may be another one by now: the path is relative to the held /proc/self/fd.
    """
    os.fchdir(descriptors_fd)
    syscalls.umount2(str(mount_fd), MNT_DETACH)


def old_bind(source_fd: int, target_fd: int, descriptors_fd: int, *, recursive: bool) -> None:
    """Bind `source_fd` on `target_fd` in the old way; for a moment its flags are those of the source.

    Both must lie in the present mount namespace. Follow with old_protect. Changes the current directory.
    """
    os.fchdir(descriptors_fd)
    syscalls.mount(str(source_fd), str(target_fd), None, MS_BIND | (MS_REC if recursive else 0), None)


def old_protect(mount_fd: int, flags: "tuple[str, ...]", descriptors_fd: int) -> None:
    """Make a mount private and set its flags, not those of mounts below it, in the old way.

    Changes the current directory.
    """
    os.fchdir(descriptors_fd)
    bits = 0
    for flag in flags:
        bits |= _OLD_FLAGS[flag]
    present = os.fstatvfs(mount_fd).f_flag
    for seen, kept in _KEPT_FLAGS:
        bits |= kept if present & seen else 0
    syscalls.mount(None, str(mount_fd), None, MS_PRIVATE | MS_REC, None)
    syscalls.mount(None, str(mount_fd), None, MS_REMOUNT | MS_BIND | bits, None)


def old_tmpfs(target_fd: int, mode: int, descriptors_fd: int) -> None:
    """Mount a small tmpfs on `target_fd` in the old way; follow with old_protect. Changes the current directory."""
    os.fchdir(descriptors_fd)
    syscalls.mount("tmpfs", str(target_fd), "tmpfs", 0, f"mode={mode:o},size={_TMPFS_SIZE}")


def open_mounted(parent_fd: int, name: str) -> int:
    """Open what is mounted on `name`, a single component, after old_bind or old_tmpfs."""
    return os.open(name, _INSIDE, dir_fd=parent_fd)
