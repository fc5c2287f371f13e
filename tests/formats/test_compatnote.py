"""The note of CUDA compatibility libraries: found by its section, and nothing that looks a little like it."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.formats.compatnote import OWNER, SECTION, ForwardNote, read_forward_note

DESCRIPTION = {"Format": 1, "CUDA Version": "13.0", "Driver": [535, 570, 580], "Device": ["data centre"]}
NOTE = ForwardNote(cuda_version="13.0", drivers=(535, 570, 580), devices=("data centre",))


def build(
    description: Any = DESCRIPTION,
    *,
    bits: int = 64,
    little: bool = True,
    owner: bytes = OWNER,
    section: bytes = SECTION,
    kind: int = 7,
    align: int = 4,
) -> bytes:
    """Return an ELF file with an empty section, the note's and that of names."""
    order = "<" if little else ">"
    text = description if isinstance(description, bytes) else json.dumps(description).encode()
    name = owner + b"\0"
    start = (12 + len(name) + align - 1) // align * align
    content = (struct.pack(order + "3I", len(name), len(text), 1) + name).ljust(start, b"\0") + text
    names = b"\0" + section + b"\0.shstrtab\0"
    wide = bits == 64
    header_size = 64 if wide else 52
    content_at = header_size
    names_at = content_at + len(content)
    table_at = names_at + len(names)

    def row(name_at: int, row_kind: int, offset: int, size: int, row_align: int) -> bytes:
        values = (name_at, row_kind, 0, 0, offset, size, 0, 0, row_align, 0)
        return struct.pack(order + ("IIQQQQIIQQ" if wide else "10I"), *values)

    table = (
        row(0, 0, 0, 0, 0)
        + row(1, kind, content_at, len(content), align)
        + row(2 + len(section), 3, names_at, len(names), 1)
    )
    identification = b"\x7fELF" + bytes([2 if wide else 1, 1 if little else 2, 1]) + bytes(9)
    fields = (3, 62, 1, 0, 0, table_at, 0, header_size, 0, 0, len(table) // 3, 3, 2)
    head = identification + struct.pack(order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"), *fields)
    return head + content + names + table


def read(data: bytes) -> ForwardNote | None:
    return read_forward_note(lambda offset, size: data[offset : offset + size])


@pytest.mark.parametrize("bits", [64, 32])
@pytest.mark.parametrize("little", [True, False])
@pytest.mark.parametrize("align", [4, 8])
def test_reads_the_note_of_every_layout(bits: int, align: int, *, little: bool) -> None:
    assert read(build(bits=bits, little=little, align=align)) == NOTE


NO_NOTES = [
    b"",
    b"\x7fELF",
    b"#!/bin/sh\n" + bytes(100),
    build(owner=b"GNU"),
    build(section=b".note.cuda.fwd"),
    build(section=SECTION + b"2"),
    build(kind=1),
    build(b"no json"),
    build(b"\xff"),
    build([1]),
    build({"Driver": "570"}),
    build({"Driver": [True]}),
    build({"Driver": ["570"]}),
    build({"CUDA Version": "13.0"}),
]


@pytest.mark.parametrize("data", NO_NOTES)
def test_anything_else_is_no_note(data: bytes) -> None:
    assert read(data) is None


def test_missing_parts_are_empty() -> None:
    assert read(build({"Driver": [570], "CUDA Version": 13})) == ForwardNote(cuda_version="", drivers=(570,))


@given(st.data())
def test_damaged_files_do_no_harm(data: st.DataObject) -> None:
    whole = bytearray(build())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    assert read(cut) is None or isinstance(read(cut), ForwardNote)
