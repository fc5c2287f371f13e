"""ELF headers, as much as a library search needs: class, machine, SONAME, NEEDED, ABI note.

Belongs here: program headers, the dynamic section and the notes, read through a callable in a few bounded pieces, since
the file may be an image's. Does not belong here: opening files, sections, symbols, ISA-level properties (a library of a
glibc-hwcaps directory is chosen by the directory's name). Layouts: elf(5) and the System V gABI, chapters 4 and 5.
"""

import struct

from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    ReadAt = Callable[[int, int], bytes]
    Segment = tuple[int, int, int, int, int]  # type, offset, address, size, alignment: a Record costs ten times as much

EM_386 = 3
EM_PPC64 = 21
EM_ARM = 40
EM_X86_64 = 62
EM_AARCH64 = 183
ET_DYN = 3

_PT_LOAD = 1
_PT_DYNAMIC = 2
_PT_NOTE = 4
_DT_NULL = 0
_DT_NEEDED = 1
_DT_STRTAB = 5
_DT_STRSZ = 10
_DT_SONAME = 14
_NT_GNU_ABI_TAG = 1

# Bounds far above what linkers make, far below what would hurt: libraries have 14 segments, two of them notes with 200
# bytes, and 80 dynamic entries, where one that is linked with hundreds of others must still fit. An image has one such
# file under thousands of names, so they hold for the whole file, not for each segment.
_HEAD = 4096
_MAXIMUM_SEGMENTS = 64
_MAXIMUM_DYNAMIC = 1 << 13
_MAXIMUM_NOTES = 1 << 14
_MOST_NOTE_SEGMENTS = 8
_MOST_NOTES = 16
_MAXIMUM_STRINGS = 1 << 22
_MAXIMUM_NAME = 4096
_MAXIMUM_OFFSET = 1 << 62


class ElfError(ValueError):
    """The file is not ELF, or damaged where it was read."""


class ElfHeader(Record):
    """What is known of an ELF file.

    `bits` is 32 or 64, `machine` an EM_ constant, `kind` an ET_ constant, `flags` e_flags. `dynamic` tells whether
    there is a dynamic section with a string table, without which the dynamic loader takes no file. `abi` is (system,
    major, minor, patch) of the note NT_GNU_ABI_TAG, system 0 being Linux.
    """

    bits: int
    machine: int
    kind: int
    flags: int
    dynamic: bool = False
    soname: str | None = None
    needed: tuple[str, ...] = ()
    abi: tuple[int, int, int, int] | None = None


class _Layout(Record):
    """The structures of one class and byte order.

    `segment_fields` are the places of type, offset, address, size in the file and alignment in a program header.
    """

    bits: int
    header: struct.Struct
    segment: struct.Struct
    segment_fields: tuple[int, int, int, int, int]
    dynamic: struct.Struct
    order: str


def _layout(bits: int, order: str) -> _Layout:
    wide = bits == 64
    return _Layout(
        bits=bits,
        header=struct.Struct(order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH")),
        segment=struct.Struct(order + ("IIQQQQQQ" if wide else "IIIIIIII")),
        segment_fields=(0, 2, 3, 5, 7) if wide else (0, 1, 2, 4, 7),
        dynamic=struct.Struct(order + ("qQ" if wide else "iI")),
        order=order,
    )


_LAYOUTS = {
    (1, 1): _layout(32, "<"),
    (1, 2): _layout(32, ">"),
    (2, 1): _layout(64, "<"),
    (2, 2): _layout(64, ">"),
}


def read_elf(source: "bytes | ReadAt", *, needed: bool = True) -> ElfHeader:
    """Return what an ELF file says about itself.

    `source` is the file's content or a function from offset and size to bytes (fewer at the end of the file). Without
    `needed` the names of DT_NEEDED are not read. Raises ElfError, and what `source` raises.
    """
    file = _File(source)
    identification = file.read(0, 16)
    if identification[:4] != b"\x7fELF":
        raise ElfError("no ELF magic")
    layout = _LAYOUTS.get((identification[4], identification[5]))
    if layout is None:
        raise ElfError(f"unknown ELF class {identification[4]} or byte order {identification[5]}")
    kind, machine, _, _, table, _, flags, _, entry_size, count, _, _, _ = layout.header.unpack(
        file.read(16, layout.header.size)
    )
    segments = _read_segments(file, layout, table, entry_size, count)
    soname, needed_names, dynamic = _read_dynamic(file, layout, segments, needed=needed)
    return ElfHeader(
        bits=layout.bits,
        machine=machine,
        kind=kind,
        flags=flags,
        dynamic=dynamic,
        soname=soname,
        needed=needed_names,
        abi=_read_abi(file, layout, segments),
    )


def read_dynamic_strings(source: "bytes | ReadAt") -> bytes:
    """Return the string table of a library's dynamic section, among it the names of all symbols that it exports.

    Each string ends in a NUL byte. Returns nothing for a file without dynamic section; raises ElfError, and what
    `source` raises.
    """
    file = _File(source)
    identification = file.read(0, 16)
    layout = _LAYOUTS.get((identification[4], identification[5])) if identification[:4] == b"\x7fELF" else None
    if layout is None:
        raise ElfError("no ELF file of a known class and byte order")
    _, _, _, _, table, _, _, _, entry_size, count, _, _, _ = layout.header.unpack(file.read(16, layout.header.size))
    segments = _read_segments(file, layout, table, entry_size, count)
    found = dict(_dynamic_entries(file, layout, segments))
    if _DT_STRTAB not in found or _DT_STRSZ not in found:
        return b""
    if found[_DT_STRSZ] > _MAXIMUM_STRINGS:
        raise ElfError(f"a string table of {found[_DT_STRSZ]} bytes")
    return file.read(_offset_of(segments, found[_DT_STRTAB]), found[_DT_STRSZ])


class _File:
    """Exact reads from a source; the first page, which holds most of what is wanted, is read once."""

    __slots__ = ("head", "read_at")

    def __init__(self, source: "bytes | ReadAt") -> None:
        if isinstance(source, bytes):
            data = source
            self.read_at: ReadAt = lambda offset, size: data[offset : offset + size]
        else:
            self.read_at = source
        self.head = self.read_at(0, _HEAD)

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes."""
        data = self.read_some(offset, size)
        if len(data) < size:
            raise ElfError(f"the file ends before offset {offset + size}")
        return data

    def read_some(self, offset: int, size: int) -> bytes:
        """Return `size` bytes, fewer at the end of the file."""
        if offset + size > _MAXIMUM_OFFSET:
            raise ElfError(f"offset {offset} is beyond any file")
        if offset + size <= len(self.head):
            return self.head[offset : offset + size]
        return self.read_at(offset, size)

    def read_name(self, offset: int) -> str:
        """Return the zero-terminated string at an offset."""
        for size in (128, _MAXIMUM_NAME):
            name, zero, _ = self.read_some(offset, size).partition(b"\0")
            if zero:
                return name.decode("utf-8", "surrogateescape")
        raise ElfError(f"the name at offset {offset} has no end")


def _read_segments(file: _File, layout: _Layout, table: int, entry_size: int, count: int) -> "list[Segment]":
    if count == 0:
        return []
    if entry_size != layout.segment.size:
        raise ElfError(f"program headers of {entry_size} bytes")
    if count > _MAXIMUM_SEGMENTS:
        raise ElfError(f"{count} program headers")
    kind, offset, address, size, align = layout.segment_fields
    return [
        (row[kind], row[offset], row[address], row[size], row[align])
        for row in layout.segment.iter_unpack(file.read(table, entry_size * count))
    ]


def _read_dynamic(
    file: _File, layout: _Layout, segments: "list[Segment]", *, needed: bool
) -> tuple[str | None, tuple[str, ...], bool]:
    """Return SONAME, NEEDED and whether there is a dynamic section with a string table."""
    entries = _dynamic_entries(file, layout, segments)
    first = dict(reversed(entries))
    strings, soname = first.get(_DT_STRTAB), first.get(_DT_SONAME)
    if strings is None:
        return None, (), False
    names = [value for tag, value in entries if tag == _DT_NEEDED] if needed else []
    start = _offset_of(segments, strings)
    return (
        None if soname is None else file.read_name(start + soname),
        tuple(file.read_name(start + name) for name in names),
        True,
    )


def _dynamic_entries(file: _File, layout: _Layout, segments: "list[Segment]") -> list[tuple[int, int]]:
    """Return the entries before the first DT_NULL, as (tag, value)."""
    found = [segment for segment in segments if segment[0] == _PT_DYNAMIC]
    if len(found) > 1:
        raise ElfError(f"{len(found)} dynamic sections")
    for _, offset, _, size, _ in found:
        if size > _MAXIMUM_DYNAMIC:
            raise ElfError(f"a dynamic section of {size} bytes")
        whole = size - size % layout.dynamic.size
        entries = list(layout.dynamic.iter_unpack(file.read(offset, whole)))
        for place, (tag, _) in enumerate(entries):
            if tag == _DT_NULL:
                return entries[:place]
        return entries
    return []


def _offset_of(segments: "list[Segment]", address: int) -> int:
    for kind, offset, start, size, _ in segments:
        if kind == _PT_LOAD and start <= address < start + size:
            return address - start + offset
    return address  # as ldconfig does: an address outside all segments is taken for an offset


def _read_abi(file: _File, layout: _Layout, segments: "list[Segment]") -> tuple[int, int, int, int] | None:
    room, left, segments_left = _MAXIMUM_NOTES, _MOST_NOTES, _MOST_NOTE_SEGMENTS
    for segment_kind, offset, _, size, align in segments:
        # The tag's note has 32 bytes; alignments other than 4 and 8 (gABI, "Note Section") are not notes we know.
        if segment_kind != _PT_NOTE or not 32 <= size <= _MAXIMUM_NOTES or align not in (0, 1, 2, 4, 8):
            continue
        room -= size
        segments_left -= 1
        if room < 0 or segments_left < 0:
            return None
        for kind, name, description in _notes(layout, file.read(offset, size), max(align, 4)):
            left -= 1
            if left < 0:
                return None
            if kind == _NT_GNU_ABI_TAG and name == b"GNU\0" and len(description) == 16:
                system, major, minor, patch = struct.unpack(layout.order + "4I", description)
                return system, major, minor, patch
    return None


def _notes(layout: _Layout, notes: bytes, align: int) -> "Iterator[tuple[int, bytes, bytes]]":
    position = 0
    while position + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from(layout.order + "3I", notes, position)
        start = position + _aligned(12 + name_size, align)
        yield kind, notes[position + 12 : position + 12 + name_size], notes[start : start + size]
        position = start + _aligned(size, align)


def _aligned(size: int, align: int) -> int:
    return (size + align - 1) // align * align
