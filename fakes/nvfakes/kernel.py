"""The kernel calls that Python lacks, one function each, under their kernel names.

Belongs here: ctypes prototypes and their errors. Does not belong here: which mounts a lane needs (sandbox.py).
"""

import ctypes
import os
import warnings

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_MOVE = 8192
MS_REC = 16384
MS_UNBINDABLE = 1 << 17
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)


def fork() -> int:
    """Copy this process; the copy of a process with threads, as a test runner may be, goes on with this one only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of the other threads' locks
        return os.fork()


def _check(result: int, path: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)


def unshare(flags: int) -> None:
    """Give this process new namespaces."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(fd: int, kind: int) -> None:
    """Enter the namespace behind a descriptor."""
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(kind)), "setns")


def mount(source: str, target: str, fstype: str = "", flags: int = 0, data: str = "") -> None:
    """Attach a file system, or change or move a mount."""
    words = (os.fsencode(source), os.fsencode(target), fstype.encode() or None, flags, data.encode() or None)
    _check(_libc.mount(*words), target)


def bind(source: str, target: str, *, recursive: bool = False) -> None:
    """Make a file or folder appear at a second place."""
    mount(source, target, flags=MS_BIND | (MS_REC if recursive else 0))


def umount(target: str) -> None:
    """Detach a mount at once, and free it when nobody uses it any more."""
    _check(_libc.umount2(os.fsencode(target), ctypes.c_int(MNT_DETACH)), target)


def pivot_root(new: str) -> None:
    """Make a mount point the root of this mount namespace, and detach the old one."""
    os.chdir(new)
    _check(_libc.pivot_root(b".", b"."), new)
    umount(".")
    os.chdir("/")
