"""Device programs of cgroup v2, evaluated for one device."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.formats.devicefilter import UnknownInstructionError, allows
from nvinject.linux.devicebpf import prepend_rules


def instruction(code: int, destination: int = 0, source: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    return struct.pack("<BBhi", code, source << 4 | destination, offset, immediate)


def answer(value: int) -> bytes:
    return instruction(0xB7, immediate=value) + instruction(0x95)


DENY, ALLOW = answer(0), answer(1)
# What runc begins with: r2 = type, r3 = access, r4 = major, r5 = minor.
PROLOGUE = (
    instruction(0x61, 2, 1)
    + instruction(0x54, 2, immediate=0xFFFF)
    + instruction(0x61, 3, 1)
    + instruction(0x74, 3, immediate=16)
    + instruction(0x61, 4, 1, 4)
    + instruction(0x61, 5, 1, 8)
)
# c 195:* rw
RULE = (
    instruction(0x55, 2, offset=7, immediate=2)
    + instruction(0xBC, 1, 3)
    + instruction(0x54, 1, immediate=6)
    + instruction(0x5D, 1, 3, 3)
    + instruction(0x55, 4, offset=2, immediate=195)
    + ALLOW
)
PROGRAMS = [
    (ALLOW, "rwm", 195, 0, True),
    (DENY, "rw", 195, 0, False),
    (PROLOGUE + RULE + DENY, "rw", 195, 3, True),
    (PROLOGUE + RULE + DENY, "r", 195, 3, True),
    (PROLOGUE + RULE + DENY, "rwm", 195, 3, False),
    (PROLOGUE + RULE + DENY, "rw", 196, 3, False),
]


@pytest.mark.parametrize(("program", "access", "major", "minor", "allowed"), PROGRAMS)
def test_programs_as_runc_writes_them(program: bytes, access: str, major: int, minor: int, allowed: bool) -> None:
    """Type, access, major and minor are compared."""
    assert allows(program, access, major, minor) is allowed


@given(st.integers(0, 4095), st.integers(0, (1 << 20) - 1), st.sampled_from(["r", "w", "m", "rw", "rwm"]))
def test_rules_that_the_hook_adds_have_their_effect(major: int, minor: int, access: str) -> None:
    """The program that forbids everything allows what was put before it, and nothing else."""
    program = prepend_rules(DENY, ((major, minor, access),))
    assert allows(program, access, major, minor)
    assert not allows(program, access, major, minor + 1)


WIDE = [
    (instruction(0xB7, 1, immediate=3) + instruction(0x07, 1, immediate=4) + instruction(0xBF, 0, 1), 7),
    (instruction(0xB7, 0, immediate=6) + instruction(0x67, 0, immediate=1) + instruction(0x77, 0, immediate=2), 3),
    (instruction(0xB7, 0, immediate=6) + instruction(0xA7, 0, immediate=6), 0),
    (instruction(0xB7, 0, immediate=6) + instruction(0x17, 0, immediate=6) + instruction(0x47, 0, immediate=1), 1),
    (instruction(0xB7, 0, immediate=1) + instruction(0x25, 0, 0, 1, 0) + instruction(0xB7, 0, immediate=0), 1),
    (instruction(0xB7, 0, immediate=1) + instruction(0x05, offset=1) + instruction(0xB7, 0, immediate=0), 1),
    (instruction(0xB4, 0, immediate=-1) + instruction(0x57, 0, immediate=0), 0),
]


@pytest.mark.parametrize(("program", "value"), WIDE)
def test_arithmetic(program: bytes, value: int) -> None:
    """Moves, sums, shifts and jumps."""
    assert allows(program + instruction(0x95), "r", 1, 1) is bool(value)


UNKNOWN = [
    instruction(0x85, immediate=1) + ALLOW,
    instruction(0x05, offset=-1) + ALLOW,
    instruction(0x05, offset=99) + ALLOW,
    instruction(0x61, 2, 1, 12) + ALLOW,
    instruction(0x27, 2, immediate=2) + ALLOW,
    instruction(0x65, 2, immediate=2) + ALLOW,
    b"",
]


@pytest.mark.parametrize("program", UNKNOWN)
def test_what_no_device_filter_does_has_no_answer(program: bytes) -> None:
    """Calls, loops, jumps and loads out of range, multiplication."""
    with pytest.raises(UnknownInstructionError):
        allows(program, "r", 1, 1)


@given(st.binary(max_size=256))
def test_any_bytes_end(program: bytes) -> None:
    """With an answer or without."""
    with contextlib.suppress(UnknownInstructionError):
        allows(program, "rw", 195, 0)
