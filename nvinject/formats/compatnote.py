"""The note in which CUDA forward compatibility libraries say which drivers they are for.

Belongs here: finding the section `.note.cuda.fwd_compatibility` of an ELF file and reading its JSON. Does not belong
here: whether the libraries are used (nvinject.core.compat). The file is an image's: everything is bounded, and whatever
is not as expected counts as no note. Layout: elf(5); the JSON is that of CUDA's own compatibility packages.
"""

import struct

from nvinject.formats.jsonio import JSONError, loads
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    ReadAt = Callable[[int, int], bytes]

SECTION = b".note.cuda.fwd_compatibility"
OWNER = b"NVIDIA Corporation"
SHT_NOTE = 7
MAXIMUM_SECTIONS = 4096
MAXIMUM_SIZE = 1 << 16

# By class: the header from e_type on, with the places of e_shoff, e_shentsize, e_shnum, e_shstrndx; a section header,
# with the places of sh_name, sh_type, sh_offset, sh_size, sh_addralign.
_LAYOUTS = {
    1: ("HHIIIIIHHHHHH", (5, 10, 11, 12), "10I", (0, 1, 4, 5, 8)),
    2: ("HHIQQQIHHHHHH", (5, 10, 11, 12), "IIQQQQIIQQ", (0, 1, 4, 5, 8)),
}


class ForwardNote(Record):
    """What the libraries say: the CUDA version that they bring, and the major versions of drivers that they run on."""

    cuda_version: str
    drivers: tuple[int, ...]
    devices: tuple[str, ...] = ()


class _Section(Record):
    name: int
    kind: int
    offset: int
    size: int
    align: int


def read_forward_note(read_at: "ReadAt") -> ForwardNote | None:
    """Return the note of a file that is read through a function from offset and size to bytes; None for none."""
    try:
        found = _find_section(read_at)
        return None if found is None else _parse_note(*found)
    except (struct.error, JSONError, UnicodeDecodeError):
        return None


def _find_section(read_at: "ReadAt") -> tuple[bytes, str, int] | None:
    """Return content, byte order and alignment of the section."""
    identification = read_at(0, 16)
    if identification[:4] != b"\x7fELF" or len(identification) < 16:
        return None
    layout = _LAYOUTS.get(identification[4])
    order = {1: "<", 2: ">"}.get(identification[5])
    if layout is None or order is None:
        return None
    header = struct.Struct(order + layout[0])
    fields = header.unpack(read_at(16, header.size))
    start, entry_size, count, names_at = (fields[place] for place in layout[1])
    sections = _read_sections(read_at, struct.Struct(order + layout[2]), layout[3], (start, entry_size, count))
    if names_at >= len(sections):
        return None
    names = _content(read_at, sections[names_at])
    for section in sections:
        if section.kind == SHT_NOTE and names[section.name : section.name + len(SECTION) + 1] == SECTION + b"\0":
            return _content(read_at, section), order, max(section.align, 4)
    return None


def _read_sections(
    read_at: "ReadAt", row: struct.Struct, places: tuple[int, ...], table: tuple[int, int, int]
) -> list[_Section]:
    start, entry_size, count = table
    if entry_size != row.size or count > MAXIMUM_SECTIONS:
        return []
    sections = []
    for values in row.iter_unpack(read_at(start, entry_size * count)):
        name, kind, offset, size, align = (values[place] for place in places)
        sections.append(_Section(name=name, kind=kind, offset=offset, size=size, align=align))
    return sections


def _content(read_at: "ReadAt", section: _Section) -> bytes:
    if section.size > MAXIMUM_SIZE or section.offset > 1 << 62:
        return b""
    return read_at(section.offset, section.size)


def _parse_note(content: bytes, order: str, align: int) -> ForwardNote | None:
    name_size, size, _ = struct.unpack_from(order + "3I", content)
    if content[12 : 12 + name_size].rstrip(b"\0") != OWNER:
        return None
    start = (12 + name_size + align - 1) // align * align
    return _parse_description(loads(content[start : start + size].rstrip(b"\0")))


def _parse_description(values: "Any") -> ForwardNote | None:
    if not isinstance(values, dict):
        return None
    drivers, cuda, devices = values.get("Driver"), values.get("CUDA Version"), values.get("Device")
    if not isinstance(drivers, list) or not all(type(driver) is int for driver in drivers):
        return None
    named = [str(device) for device in devices] if isinstance(devices, list) else []
    return ForwardNote(cuda_version=cuda if isinstance(cuda, str) else "", drivers=tuple(drivers), devices=tuple(named))
