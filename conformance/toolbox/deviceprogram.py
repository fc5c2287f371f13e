"""Attach a device program that answers every question alike to a cgroup, as a runtime does: bpf(2) by itself.

Belongs here: the two calls. Does not belong here: what such a program is to say. The structures are those of the
kernel's include/uapi/linux/bpf.h; run as `python deviceprogram.py CGROUP 0|1`, where 1 permits.
"""

import ctypes
import os
import platform
import struct
import sys

NUMBERS = {"x86_64": 321, "aarch64": 280}
PROG_LOAD, PROG_ATTACH = 5, 8
TYPE_CGROUP_DEVICE, ATTACH_CGROUP_DEVICE = 15, 6
MOVE_TO_R0, EXIT = 0xB7, 0x95


def bpf(command: int, attributes: bytes) -> int:
    """Make the call; raises OSError."""
    buffer = ctypes.create_string_buffer(attributes)
    library = ctypes.CDLL(None, use_errno=True)
    result: int = library.syscall(NUMBERS[platform.machine()], command, buffer, len(attributes))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def attach(group: str, answer: int) -> None:
    """Load a program of two instructions and attach it to a cgroup of version 2; raises OSError."""
    code = ctypes.create_string_buffer(struct.pack("<BBhiBBhi", MOVE_TO_R0, 0, 0, answer, EXIT, 0, 0, 0))
    licence = ctypes.create_string_buffer(b"GPL")
    addresses = ctypes.addressof(code), ctypes.addressof(licence)
    program = bpf(PROG_LOAD, struct.pack("=IIQQIIQII", TYPE_CGROUP_DEVICE, 2, *addresses, 0, 0, 0, 0, 0))
    bpf(PROG_ATTACH, struct.pack("=IIII", os.open(group, os.O_RDONLY), program, ATTACH_CGROUP_DEVICE, 0))


if __name__ == "__main__":
    attach(sys.argv[1], int(sys.argv[2]))
