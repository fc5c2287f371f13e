"""inotify(7): being told that names in a directory come, go or change.

Belongs here: the three calls and the record that read(2) returns. Does not belong here: what is watched and why.
"""

import ctypes
import os
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_libc.inotify_init1.argtypes = (ctypes.c_int,)
_libc.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)

IN_CLOEXEC = os.O_CLOEXEC
IN_NONBLOCK = os.O_NONBLOCK
IN_ATTRIB = 0x4
IN_CLOSE_WRITE = 0x8
IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_Q_OVERFLOW = 0x4000
IN_ONLYDIR = 0x1000000

_EVENT = struct.Struct("iIII")


def inotify_init1(flags: int) -> int:
    """Return a file descriptor for watches."""
    result: int = _libc.inotify_init1(flags)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "inotify_init1")
    return result


def inotify_add_watch(fd: int, pathname: str, mask: int) -> int:
    """Watch a path for the events of `mask`; returns the watch's number."""
    result: int = _libc.inotify_add_watch(fd, os.fsencode(pathname), mask)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), pathname)
    return result


def parse_events(data: bytes) -> "list[tuple[int, int, str]]":
    """Return (watch, mask, name) of each event that was read."""
    events = []
    place = 0
    while place + _EVENT.size <= len(data):
        watch, mask, _, length = _EVENT.unpack_from(data, place)
        start = place + _EVENT.size
        name = data[start : start + length].rstrip(b"\0")
        events.append((watch, mask, os.fsdecode(name)))
        place = start + length
    return events
