"""ELF: what is read from built and real files, and that damage is an ElfError and nothing else."""

import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.formats.elf import EM_386, EM_AARCH64, EM_ARM, EM_X86_64, ElfError, ElfHeader, read_elf

from .elfbuilder import build_elf

HEADERS: list[tuple[dict[str, Any], ElfHeader]] = [
    ({}, ElfHeader(bits=64, machine=EM_X86_64, kind=3, flags=0, dynamic=True, soname="libx.so.1")),
    (
        {"soname": None, "needed": ("libc.so.6", "libdl.so.2")},
        ElfHeader(bits=64, machine=EM_X86_64, kind=3, flags=0, dynamic=True, needed=("libc.so.6", "libdl.so.2")),
    ),
    (
        {"bits": 32, "machine": EM_386, "soname": "libé.so"},
        ElfHeader(bits=32, machine=EM_386, kind=3, flags=0, dynamic=True, soname="libé.so"),
    ),
    (
        {"bits": 32, "machine": EM_ARM, "flags": 0x5000400, "abi": (0, 3, 2, 0)},
        ElfHeader(bits=32, machine=EM_ARM, kind=3, flags=0x5000400, dynamic=True, soname="libx.so.1", abi=(0, 3, 2, 0)),
    ),
    (
        {"machine": EM_AARCH64, "abi": (0, 3, 7, 0), "other_note": True, "padding": 20_000},
        ElfHeader(bits=64, machine=EM_AARCH64, kind=3, flags=0, dynamic=True, soname="libx.so.1", abi=(0, 3, 7, 0)),
    ),
    (
        {"machine": 22, "little": False, "soname": "l" * 3000, "abi": (0, 2, 3, 99)},
        ElfHeader(bits=64, machine=22, kind=3, flags=0, dynamic=True, soname="l" * 3000, abi=(0, 2, 3, 99)),
    ),
    (
        {"bits": 32, "machine": 20, "little": False},
        ElfHeader(bits=32, machine=20, kind=3, flags=0, dynamic=True, soname="libx.so.1"),
    ),
    ({"dynamic": False, "kind": 2}, ElfHeader(bits=64, machine=EM_X86_64, kind=2, flags=0)),
]


@pytest.mark.parametrize(("built", "expected"), HEADERS)
def test_what_a_header_tells(built: dict[str, Any], expected: ElfHeader) -> None:
    data = build_elf(**built)
    assert read_elf(data) == expected
    assert read_elf(lambda offset, size: data[offset : offset + size]) == expected
    assert read_elf(data, needed=False) == expected.replace(needed=())


def test_reads_are_few_and_bounded() -> None:
    data = build_elf(padding=1_000_000)
    reads: list[tuple[int, int]] = []

    def read_at(offset: int, size: int) -> bytes:
        reads.append((offset, size))
        return data[offset : offset + size]

    assert read_elf(read_at, needed=False).soname == "libx.so.1"
    assert len(reads) == 3
    assert max(size for _, size in reads) <= 4096


GOOD = build_elf(needed=("libc.so.6",), abi=(0, 3, 2, 0))


def with_segments(*segments: tuple[int, int]) -> bytes:
    """A file whose segments, as (type, size), all lie at 4096, in zeros."""
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 3, EM_X86_64, 1, 0, 64, 0, 0, 64, 56, len(segments), 0, 0, 0)
    rows = (struct.pack("<IIQQQQQQ", kind, 4, 4096, 0, 0, size, size, 4) for kind, size in segments)
    return b"".join((header, *rows)).ljust(4096 + (1 << 16), b"\0")


NOTES, DYNAMIC = 4, 2


@pytest.mark.parametrize("size", [32, 1 << 11, 1 << 14])
def test_a_file_costs_little_however_many_notes_it_has(size: int) -> None:
    """An image has it under thousands of names, and the notes of all segments may be the same bytes."""
    data = with_segments(*[(NOTES, size)] * 60)
    read: list[int] = []

    def read_at(offset: int, size: int) -> bytes:
        read.append(size)
        return data[offset : offset + size]

    assert read_elf(read_at).abi is None
    assert len(read) < 12
    assert sum(read) < 1 << 15


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (with_segments((DYNAMIC, 64), (DYNAMIC, 64)), "2 dynamic sections"),
        (with_segments(*[(NOTES, 32)] * 65), "65 program headers"),
        (with_segments((DYNAMIC, 1 << 14)), "a dynamic section of 16384 bytes"),
    ],
    ids=["dynamic sections", "program headers", "size"],
)
def test_what_no_linker_makes_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ElfError, match=message):
        read_elf(data)


def changed(offset: int, new: bytes, data: bytes = GOOD) -> bytes:
    return data[:offset] + new + data[offset + len(new) :]


DAMAGED = [
    (b"", "ends before"),
    (b"\x7fELF", "ends before"),
    (b"#!/bin/sh\nexit 0 # libx.so", "no ELF magic"),
    (b"GROUP ( /lib/libc.so.6 AS_NEEDED ( /lib/ld-linux.so.2 ) )", "no ELF magic"),
    (changed(4, b"\x03"), "unknown ELF class 3"),
    (changed(5, b"\x00"), "byte order 0"),
    (changed(54, b"\x20\x00"), "program headers of 32 bytes"),
    (changed(56, b"\xff\xff"), "65535 program headers"),
    (changed(32, b"\xff" * 8), "beyond any file"),
    (changed(32, b"\xff\xff\xff\x0f"), "ends before"),
    (changed(64 + 56 + 32, b"\xff\xff\xff\xff"), "a dynamic section of 4294967295 bytes"),
    (changed(64 + 56 + 8, b"\xff\xff\xff\x7f"), "ends before"),
    (build_elf(needed=tuple(f"lib{number}.so" for number in range(600))), "a dynamic section of"),
    (build_elf(soname="l" * 5000), "has no end"),
]


@pytest.mark.parametrize(("data", "message"), DAMAGED, ids=[message for _, message in DAMAGED])
def test_damage_is_named(data: bytes, message: str) -> None:
    with pytest.raises(ElfError, match=message):
        read_elf(data)


def test_many_needed_libraries() -> None:
    needed = tuple(f"lib{number}.so" for number in range(300))
    assert read_elf(build_elf(needed=needed)).needed == needed


def try_to_read(data: bytes) -> None:
    try:
        header = read_elf(data)
    except ElfError:
        return
    assert header.bits in (32, 64)


@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=16), st.booleans())
def test_changed_bytes_never_crash(offset: int, new: bytes, other: bool) -> None:
    data = (
        build_elf(bits=32, machine=EM_386, needed=("libc.so.6",), abi=(0, 3, 2, 0), other_note=True) if other else GOOD
    )
    try_to_read(changed(offset, new, data))


@given(st.integers(0, len(GOOD)))
def test_cut_files_never_crash(end: int) -> None:
    try_to_read(GOOD[:end])


@given(st.binary(max_size=200))
def test_any_bytes_never_crash(data: bytes) -> None:
    try_to_read(b"\x7fELF" + data)


def real_file() -> bytes:
    path = os.path.realpath("/bin/true")
    data = Path(path).read_bytes() if os.path.exists(path) else b""
    if not data.startswith(b"\x7fELF"):
        pytest.skip("/bin/true is not an ELF file here")
    return data


def test_real_file_and_its_slices() -> None:
    data = real_file()
    header = read_elf(data)
    assert header.dynamic or header.kind == 2
    for end in [*range(0, 512, 7), *range(512, len(data), 997)]:
        try_to_read(data[:end])
    for offset in range(1024):
        try_to_read(changed(offset, b"\xff\xff", data))


def test_agrees_with_readelf(tmp_path: Path) -> None:
    compiler, readelf = shutil.which("cc"), shutil.which("readelf")
    if compiler is None or readelf is None:
        pytest.skip("no cc or readelf here")
    source, library = tmp_path / "x.c", tmp_path / "libx.so.1.2"
    source.write_text("int x(void) { return 1; }\n")
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libx.so.1", "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    header = read_elf(library.read_bytes())
    shown = subprocess.run([readelf, "-d", str(library)], check=True, capture_output=True, text=True).stdout
    assert header.soname == "libx.so.1"
    assert "[libx.so.1]" in shown
    assert all(f"[{name}]" in shown for name in header.needed)
    assert shown.count("(NEEDED)") == len(header.needed)
