"""Device programs of cgroup v2: reading, rewriting, loading and replacing them.

A cgroup of version 2 has no list of devices: a BPF program decides about each open and mknod. Belongs here:
instructions and bpf(2) commands. Does not belong here: which cgroup, which rules, when to undo. Layouts are those of
union bpf_attr, struct bpf_prog_info and struct bpf_insn in include/uapi/linux/bpf.h.
"""

import errno
import os
import struct

from nvinject.linux import clibrary, syscalls
from nvinject.linux.const import (
    BPF_CGROUP_DEVICE,
    BPF_DEVCG_ACC_MKNOD,
    BPF_DEVCG_ACC_READ,
    BPF_DEVCG_ACC_WRITE,
    BPF_DEVCG_DEV_CHAR,
    BPF_F_ALLOW_MULTI,
    BPF_F_REPLACE,
    BPF_OBJ_GET_INFO_BY_FD,
    BPF_PROG_ATTACH,
    BPF_PROG_GET_FD_BY_ID,
    BPF_PROG_LOAD,
    BPF_PROG_QUERY,
    BPF_PROG_TYPE_CGROUP_DEVICE,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvinject.linux.clibrary import Buffer

INSTRUCTION_SIZE = 8

_ACCESS = {"m": BPF_DEVCG_ACC_MKNOD, "r": BPF_DEVCG_ACC_READ, "w": BPF_DEVCG_ACC_WRITE}
_ALL_ACCESS = BPF_DEVCG_ACC_MKNOD | BPF_DEVCG_ACC_READ | BPF_DEVCG_ACC_WRITE

# Opcodes, from the classes and modes of bpf.h.
_LDX_W = 0x61  # dst = *(u32 *)(src + off)
_MOV32_X = 0xBC
_AND32_K = 0x54
_RSH32_K = 0x74
_JNE_K = 0x55
_MOV64_K = 0xB7
_EXIT = 0x95
_CALL = 0x85
_LD_IMM64 = 0x18

_ATTR_SIZE = 128  # larger than any command here needs: kernels write fields back that are newer than this file
_INFO_SIZE = 256
_MAX_PROGRAMS = 64  # BPF_CGROUP_MAX_PROGS


def access_mask(access: str) -> int:
    """Return the BPF_DEVCG_ACC_* bits for letters of `rwm`."""
    mask = 0
    for letter in access:
        mask |= _ACCESS[letter]
    return mask


def prepend_rules(instructions: bytes, rules: "tuple[tuple[int, int, str], ...]") -> bytes:
    """Return a program that allows the given character devices and asks the old program about all else.

    Each rule is (major, minor, letters of `rwm`); it allows accesses that ask for nothing beyond its letters. Raises
    ValueError for a program that cannot be moved because it refers to maps or functions.
    """
    _check_movable(instructions)
    checks = b"".join(_check_of_rule(*rule) for rule in rules)
    if not checks:
        return instructions
    # On entry r1 points to struct bpf_cgroup_dev_ctx {access_type, major, minor}; the old program expects no more.
    head = (
        _instruction(_LDX_W, 2, 1, 0)  # r2 = access << 16 | type
        + _instruction(_LDX_W, 3, 1, 4)
        + _instruction(_LDX_W, 4, 1, 8)
        + _instruction(_MOV32_X, 5, 2)
        + _instruction(_AND32_K, 5, immediate=0xFFFF)
        + _instruction(_JNE_K, 5, offset=1 + len(checks) // INSTRUCTION_SIZE, immediate=BPF_DEVCG_DEV_CHAR)
        + _instruction(_RSH32_K, 2, immediate=16)
    )
    return head + checks + instructions


def _check_of_rule(major: int, minor: int, access: str) -> bytes:
    allow = _instruction(_MOV64_K, 0, immediate=1) + _instruction(_EXIT)
    number = _instruction(_JNE_K, 3, offset=3, immediate=major) + _instruction(_JNE_K, 4, offset=2, immediate=minor)
    beyond = _ALL_ACCESS & ~access_mask(access)
    if not beyond:
        return number + allow
    return (
        _instruction(_MOV32_X, 5, 2)
        + _instruction(_AND32_K, 5, immediate=beyond)
        + _instruction(_JNE_K, 5, offset=4, immediate=0)
        + number
        + allow
    )


def _instruction(code: int, destination: int = 0, source: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    return struct.pack("=BBhi", code, destination | source << 4, offset, immediate)


def _check_movable(instructions: bytes) -> None:
    wide = False
    for code, registers, _, _ in struct.iter_unpack("=BBhi", instructions):
        if wide:
            wide = False  # the second half of a 16-byte instruction
            continue
        wide = code == _LD_IMM64
        if code == _CALL or (wide and registers >> 4):
            raise ValueError("the program refers to maps or functions")


def query_programs(cgroup_fd: int) -> "tuple[int, tuple[int, ...]]":
    """Return the attach flags and the ids of the device programs attached to this very cgroup, in order."""
    identifiers = clibrary.buffer(4 * _MAX_PROGRAMS)
    attr = _attr("=IIIIQI", cgroup_fd, BPF_CGROUP_DEVICE, 0, 0, clibrary.address(identifiers), _MAX_PROGRAMS)
    syscalls.bpf(BPF_PROG_QUERY, attr, _ATTR_SIZE)
    _, _, _, flags, _, count = struct.unpack_from("=IIIIQI", attr.raw)
    return flags, struct.unpack_from(f"={count}I", identifiers.raw)


def open_program(identifier: int) -> int:
    """Open a loaded program by its id."""
    return syscalls.bpf(BPF_PROG_GET_FD_BY_ID, _attr("=I", identifier), _ATTR_SIZE)


def read_instructions(program_fd: int) -> bytes:
    """Return the instructions of a loaded program as the verifier left them.

    Raises OSError EPERM where the kernel does not show them (net.core.bpf_jit_harden=2, missing rights).
    """
    size, _ = _program_info(program_fd, 0, 0)
    instructions = clibrary.buffer(max(size, INSTRUCTION_SIZE))
    size, address = _program_info(program_fd, size, clibrary.address(instructions))
    if not size or not address:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), "instructions of a device program")
    return instructions.raw[:size]


def _program_info(program_fd: int, size: int, address: int) -> "tuple[int, int]":
    # struct bpf_prog_info: xlated_prog_len at 20, xlated_prog_insns at 32.
    info = clibrary.buffer(struct.pack(f"=20xI8xQ{_INFO_SIZE - 40}x", size, address))
    attr = _attr("=IIQ", program_fd, _INFO_SIZE, clibrary.address(info))
    syscalls.bpf(BPF_OBJ_GET_INFO_BY_FD, attr, _ATTR_SIZE)
    return struct.unpack_from("=I", info.raw, 20)[0], struct.unpack_from("=Q", info.raw, 32)[0]


def load_program(instructions: bytes) -> int:
    """Load a device program; returns its file descriptor. Before Linux 5.11 RLIMIT_MEMLOCK bounds it (EPERM)."""
    code = clibrary.buffer(instructions)
    licence = clibrary.buffer(b"Apache-2.0\0")
    attr = _attr(
        "=IIQQIIQII16s",
        BPF_PROG_TYPE_CGROUP_DEVICE,
        len(instructions) // INSTRUCTION_SIZE,
        clibrary.address(code),
        clibrary.address(licence),
        0,
        0,
        0,
        0,
        0,
        b"nvinject",
    )
    return syscalls.bpf(BPF_PROG_LOAD, attr, _ATTR_SIZE)


def attach_program(cgroup_fd: int, program_fd: int, flags: int) -> None:
    """Attach a program; without BPF_F_ALLOW_MULTI in `flags` it takes the place of the present one."""
    attr = _attr("=IIIII", cgroup_fd, program_fd, BPF_CGROUP_DEVICE, flags, 0)
    syscalls.bpf(BPF_PROG_ATTACH, attr, _ATTR_SIZE)


def replace_program(cgroup_fd: int, old_fd: int, new_fd: int, flags: int) -> None:
    """Put one program in the place of another, with no moment between; `flags` are those of query_programs."""
    if flags & BPF_F_ALLOW_MULTI:
        attr = _attr("=IIIII", cgroup_fd, new_fd, BPF_CGROUP_DEVICE, flags | BPF_F_REPLACE, old_fd)
        syscalls.bpf(BPF_PROG_ATTACH, attr, _ATTR_SIZE)
    else:
        attach_program(cgroup_fd, new_fd, flags)


def _attr(layout: str, *fields: "int | bytes") -> "Buffer":
    return clibrary.buffer(struct.pack(layout, *fields).ljust(_ATTR_SIZE, b"\0"))
