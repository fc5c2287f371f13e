"""One function per kernel call that Python's os module lacks: kernel name, kernel argument order.

Each raises OSError(errno, strerror, name of the thing) and returns what the kernel returns. Belongs here: marshalling.
Does not belong here: a decision, a retry, a fallback, a call that os offers already.
"""

import errno
import struct

from nvinject import leanos as os
from nvinject.linux import clibrary
from nvinject.linux.const import (
    NR_bpf,
    NR_fsconfig,
    NR_fsmount,
    NR_fsopen,
    NR_mount_setattr,
    NR_move_mount,
    NR_open_tree,
    NR_openat2,
    NR_renameat2,
    NR_statx,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvinject.linux.clibrary import Buffer

_fstatfs = clibrary.function("fstatfs")
_mount = clibrary.function("mount")
_setns = clibrary.function("setns")
_system_call = clibrary.function("syscall", returns_long=True)
_umount2 = clibrary.function("umount2")
_unshare = clibrary.function("unshare")

_STATX_SIZE = 256
_STATFS_SIZE = 256  # struct statfs has 120 bytes on 64-bit machines; the rest is room


def _syscall(number: int, thing: str, *arguments: "int | bytes | None") -> int:
    if number < 0:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), thing)
    result = _system_call(number, *arguments)
    if result < 0:
        raise clibrary.failure(thing)
    return result


def bpf(cmd: int, attr: "Buffer", size: int) -> int:
    """Run one command on BPF objects; the kernel may write into `attr`."""
    return _syscall(NR_bpf, "bpf", cmd, clibrary.address(attr), size)


def fsconfig(fd: int, cmd: int, key: "str | None", value: "str | None", aux: int) -> None:
    """Set one parameter of a file system context, or create the file system."""
    key_bytes = None if key is None else os.fsencode(key)
    value_bytes = None if value is None else os.fsencode(value)
    _syscall(NR_fsconfig, key or "fsconfig", fd, cmd, key_bytes, value_bytes, aux)


def fsmount(fs_fd: int, flags: int, attr_flags: int) -> int:
    """Make a detached mount of a configured file system; returns its file descriptor."""
    return _syscall(NR_fsmount, "fsmount", fs_fd, flags, attr_flags)


def fsopen(fs_name: str, flags: int) -> int:
    """Open a context in which a file system of this type is configured."""
    return _syscall(NR_fsopen, fs_name, os.fsencode(fs_name), flags)


def fstatfs(fd: int) -> int:
    """Return f_type, the magic number of the file system that `fd` lies on."""
    buffer = clibrary.buffer(_STATFS_SIZE)
    if _fstatfs(fd, buffer) < 0:
        raise clibrary.failure(f"file descriptor {fd}")
    (f_type,) = struct.unpack_from("l", buffer.raw)
    return int(f_type)


def mount(source: "str | None", target: str, fstype: "str | None", flags: int, data: "str | None") -> None:
    """Mount in the old way, by paths."""
    words = [None if word is None else os.fsencode(word) for word in (source, target, fstype, data)]
    if _mount(words[0], words[1], words[2], flags, words[3]) < 0:
        raise clibrary.failure(target)


def mount_setattr(dirfd: int, path: str, flags: int, attr: "tuple[int, int, int, int]") -> None:
    """Change a mount; `attr` is struct mount_attr: attr_set, attr_clr, propagation, userns_fd."""
    packed = struct.pack("=QQQQ", *attr)
    _syscall(NR_mount_setattr, path or "mount_setattr", dirfd, os.fsencode(path), flags, packed, len(packed))


def move_mount(from_dirfd: int, from_path: str, to_dirfd: int, to_path: str, flags: int) -> None:
    """Attach a detached mount, or move an attached one."""
    thing = to_path or "move_mount"
    _syscall(NR_move_mount, thing, from_dirfd, os.fsencode(from_path), to_dirfd, os.fsencode(to_path), flags)


def open_tree(dirfd: int, path: str, flags: int) -> int:
    """Open a mount, or with OPEN_TREE_CLONE make a detached copy of it; returns a file descriptor."""
    return _syscall(NR_open_tree, path or "open_tree", dirfd, os.fsencode(path), flags)


def openat2(dirfd: int, path: str, flags: int, mode: int, resolve: int) -> int:
    """Open a file with limits on how its path may be resolved; always close-on-exec."""
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, resolve)
    return _syscall(NR_openat2, path, dirfd, os.fsencode(path), how, len(how))


def renameat2(olddirfd: int, oldpath: str, newdirfd: int, newpath: str, flags: int) -> None:
    """Rename with RENAME_EXCHANGE or RENAME_NOREPLACE."""
    _syscall(NR_renameat2, newpath, olddirfd, os.fsencode(oldpath), newdirfd, os.fsencode(newpath), flags)


def setns(fd: int, nstype: int) -> None:
    """Join the namespace that `fd` refers to."""
    if _setns(fd, nstype) < 0:
        raise clibrary.failure("setns")


def statx(dirfd: int, path: str, flags: int, mask: int) -> bytes:
    """Return struct statx; its field stx_mask tells which of the fields asked for in `mask` are filled in."""
    buffer = clibrary.buffer(_STATX_SIZE)
    _syscall(NR_statx, path or "statx", dirfd, os.fsencode(path), flags, mask, clibrary.address(buffer))
    return buffer.raw


def umount2(target: str, flags: int) -> None:
    """Unmount by path."""
    if _umount2(os.fsencode(target), flags) < 0:
        raise clibrary.failure(target)


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones."""
    if _unshare(flags) < 0:
        raise clibrary.failure("unshare")
