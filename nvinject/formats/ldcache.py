"""ld.so.cache: the files that glibc's ldconfig writes and its dynamic loader searches.

Belongs here: bytes to values and back, the order of entries, the flags of a library. Does not belong here: which
libraries a directory contributes (ldsearch.py), reading or replacing the file (render/loadercache.py). Three layouts
are read: the new one (magic glibc-ld.so.cache1.1), the old one (ld.so-1.7.0), and the new one behind the old one; the
new one alone is written, which every glibc since 2.2 takes. Byte order is little-endian, as on all machines we serve.
"""

import struct

from nvinject.formats.elf import EM_386, EM_AARCH64, EM_ARM, EM_PPC64, EM_X86_64
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nvinject.formats.elf import ElfHeader

    Row = tuple[str, str, int, int, int]  # soname, path, flags, OS version, hwcap: an Entry that costs a tenth

FLAG_LIBC6 = 0x0003
FLAG_PPC64 = 0x0503
FLAG_X86_64 = 0x0303
FLAG_X32 = 0x0803
FLAG_ARM_HARD_FLOAT = 0x0903
FLAG_AARCH64 = 0x0A03
FLAG_ARM_SOFT_FLOAT = 0x0B03

HWCAP_EXTENSION = 1 << 62  # hwcap then holds 10 bits of ISA level above an index into Cache.hwcaps
_HWCAP_NO_EXTENSION = ~(0x3FF << 32 | 0xFFFFFFFF) & (1 << 64) - 1

_OLD_MAGIC = b"ld.so-1.7.0\0"
_NEW_MAGIC = b"glibc-ld.so.cache1.1"
_OLD_HEADER = struct.Struct("<12sI")
_NEW_HEADER = struct.Struct("<20sIIB3xI12x")  # count, size of strings, byte order, offset of the extensions
_OLD_ENTRY = struct.Struct("<iII")
_NEW_ENTRY = struct.Struct("<iIIIQ")
_EXTENSION_MAGIC = 0xEAA42174
_EXTENSION_HEADER = struct.Struct("<II")
_EXTENSION_SECTION = struct.Struct("<IIII")
_TAG_GENERATOR = 0
_TAG_HWCAPS = 1
_LITTLE_ENDIAN = 2

# Far above what is real (10,000 libraries make 1 MiB), and what keeps a hostile file from taking time or memory.
MAXIMUM_ENTRIES = 1 << 17
MAXIMUM_STRING = 4096
MAXIMUM_TEXT = 64 << 20
MAXIMUM_SECTIONS = 64


class LoaderCacheError(ValueError):
    """The bytes are not a loader cache, or damaged."""


class Entry(Record):
    """One library: the name that programs ask for, where it is, what it is for.

    `flags` tell the kind (0x0303 is x86-64 with libc 6), `os_version` the oldest kernel as ldconfig packs it.
    """

    soname: str
    path: str
    flags: int
    hwcap: int = 0
    os_version: int = 0


class Cache(Record):
    """A loader cache; `sections` are extensions that we do not know, as (tag, flags, content)."""

    entries: tuple[Entry, ...] = ()
    hwcaps: tuple[str, ...] = ()
    generator: str = ""
    sections: tuple[tuple[int, int, bytes], ...] = ()


class Table(Record):
    """A loader cache with rows in place of entries: for the hot path, where 10,000 Records would cost 15 ms."""

    rows: "tuple[Row, ...]" = ()
    hwcaps: tuple[str, ...] = ()
    generator: str = ""
    sections: tuple[tuple[int, int, bytes], ...] = ()


def parse_cache(data: bytes) -> Cache:
    """Return the cache in a file's bytes; raises LoaderCacheError."""
    table = parse_table(data)
    return Cache(
        entries=tuple(
            Entry(soname=soname, path=path, flags=flags, hwcap=hwcap, os_version=os_version)
            for soname, path, flags, os_version, hwcap in table.rows
        ),
        hwcaps=table.hwcaps,
        generator=table.generator,
        sections=table.sections,
    )


def format_cache(cache: Cache) -> bytes:
    """Return the bytes of a cache file, entries in the given order; raises LoaderCacheError for what has no form."""
    return format_table(
        Table(
            rows=tuple(
                (entry.soname, entry.path, entry.flags, entry.os_version, entry.hwcap) for entry in cache.entries
            ),
            hwcaps=cache.hwcaps,
            generator=cache.generator,
            sections=cache.sections,
        )
    )


def parse_table(data: bytes, heads: "frozenset[bytes]" = frozenset()) -> Table:
    """Return the same as parse_cache, as rows.

    `heads` are beginnings of sonames, all of one length; if there are any, only rows that begin so are read.
    """
    start = _start_of_new_layout(data)
    if start is None:
        return Table(rows=_parse_old_rows(data, heads))
    _, count, _, byte_order, extensions = _NEW_HEADER.unpack_from(data, start)
    if byte_order & 3 not in (0, _LITTLE_ENDIAN):
        raise LoaderCacheError("the cache is big-endian")
    first = start + _NEW_HEADER.size
    if count > min(MAXIMUM_ENTRIES, (len(data) - first) // _NEW_ENTRY.size):
        raise LoaderCacheError(f"{count} entries are announced in {len(data)} bytes")
    strings = first + count * _NEW_ENTRY.size
    cells = memoryview(data)[first:strings]
    rows = None if heads else _rows_in_one_pass(data, strings, strings - start, _NEW_ENTRY.iter_unpack(cells), count)
    if rows is None:
        some = _with_heads(data, start, _NEW_ENTRY.iter_unpack(cells), heads)
        rows = _rows_with_names(data, start, some)
    hwcaps, generator, sections = _parse_extensions(data, start, extensions)
    return Table(rows=rows, hwcaps=hwcaps, generator=generator, sections=sections)


def _start_of_new_layout(data: bytes) -> int | None:
    """Return where the new layout begins, None for a file in the old layout alone."""
    if data.startswith(_NEW_MAGIC) and len(data) >= _NEW_HEADER.size:
        return 0
    if not data.startswith(_OLD_MAGIC[:11]) or len(data) < _OLD_HEADER.size:
        raise LoaderCacheError("no magic of a loader cache")
    count: int = _OLD_HEADER.unpack_from(data)[1]
    if count > min(MAXIMUM_ENTRIES, (len(data) - _OLD_HEADER.size) // _OLD_ENTRY.size):
        raise LoaderCacheError(f"{count} entries are announced in {len(data)} bytes")
    end = _OLD_HEADER.size + count * _OLD_ENTRY.size
    for alignment in (8, 4):  # of struct cache_file_new: 8 on 64-bit machines, 4 on i386
        start = (end + alignment - 1) // alignment * alignment
        if data.startswith(_NEW_MAGIC, start) and len(data) >= start + _NEW_HEADER.size:
            return start
    return None


def _parse_old_rows(data: bytes, heads: "frozenset[bytes]") -> "tuple[Row, ...]":
    _, count = _OLD_HEADER.unpack_from(data)
    strings = _OLD_HEADER.size + count * _OLD_ENTRY.size
    cells = _OLD_ENTRY.iter_unpack(memoryview(data)[_OLD_HEADER.size : strings])
    rows = ((flags, key, value, 0, 0) for flags, key, value in cells)
    return _rows_with_names(data, strings, _with_heads(data, strings, rows, heads))


def _with_heads(
    data: bytes, base: int, cells: "Iterable[tuple[int, int, int, int, int]]", heads: "frozenset[bytes]"
) -> "Iterable[tuple[int, int, int, int, int]]":
    """Return the cells of rows whose soname begins with one of the heads, all of them if there are no heads."""
    size = len(next(iter(heads), b""))
    return [cell for cell in cells if data[base + cell[1] : base + cell[1] + size] in heads] if size else cells


def _rows_in_one_pass(
    data: bytes, strings: int, place: int, cells: "Iterable[tuple[int, int, int, int, int]]", count: int
) -> "tuple[Row, ...] | None":
    """Return the rows of a cache as ldconfig writes it, in three quarters of the time: a string for each, all in ASCII.

    `strings` is where they begin, `place` what offsets call that. None for any other cache, damaged ones among them.
    """
    end = data.find(b"\0\0", strings)  # padding and extensions follow
    if end - strings > MAXIMUM_TEXT or data[end] != 0:
        return None
    try:
        text = str(memoryview(data)[strings:end], "ascii")
    except UnicodeDecodeError:
        return None
    paths: dict[int, str] = {}
    for path in text.split("\0"):
        paths[place] = path
        place += len(path) + 1
    if len(paths) < count:
        return None
    try:
        rows = [
            (path[key - value :], path, flags, os_version, hwcap)
            for flags, key, value, os_version, hwcap in cells
            if 0 <= key - value <= len(path := paths[value]) < MAXIMUM_STRING
        ]
    except KeyError:
        return None
    return tuple(rows) if len(rows) == count else None


def _rows_with_names(data: bytes, base: int, cells: "Iterable[tuple[int, int, int, int, int]]") -> "tuple[Row, ...]":
    """Return the rows, with the strings at `base` plus offset in place of the offsets."""
    # One character a byte, so that offsets hold; a name that is not ASCII is decoded again.
    text = data.decode("latin-1")
    find = text.find
    rows: list[Row] = []
    append = rows.append
    room = MAXIMUM_TEXT
    for flags, key, value, os_version, hwcap in cells:
        first = base + value
        end = find("\0", first, first + MAXIMUM_STRING)
        if end < 0:
            raise LoaderCacheError(f"entry {len(rows)} has a path that does not end in the file")
        path = text[first:end]
        room -= end - first
        start = base + key
        # ldconfig stores a string that is the tail of another only once: the soname mostly ends where the path does.
        if not first <= start <= end:
            end = find("\0", start, start + MAXIMUM_STRING)
            if end < 0:
                raise LoaderCacheError(f"entry {len(rows)} has a soname that does not end in the file")
            room -= end - start
        soname = text[start:end]
        if room < 0:
            raise LoaderCacheError(f"the names of {len(rows)} entries have more than {MAXIMUM_TEXT} bytes")
        if not (path.isascii() and soname.isascii()):
            path, soname = _decoded(path), _decoded(soname)
        append((soname, path, flags, os_version, hwcap))
    return tuple(rows)


def _decoded(text: str) -> str:
    return text.encode("latin-1").decode("utf-8", "surrogateescape")


def _parse_extensions(
    data: bytes, start: int, offset: int
) -> tuple[tuple[str, ...], str, tuple[tuple[int, int, bytes], ...]]:
    """Return glibc-hwcaps names, generator, and the sections with other tags."""
    if offset == 0:
        return (), "", ()
    if offset % 4 or offset + _EXTENSION_HEADER.size > len(data):
        raise LoaderCacheError(f"extensions at offset {offset}")
    magic, count = _EXTENSION_HEADER.unpack_from(data, offset)
    table = offset + _EXTENSION_HEADER.size
    if magic != _EXTENSION_MAGIC or count > MAXIMUM_SECTIONS or table + count * _EXTENSION_SECTION.size > len(data):
        raise LoaderCacheError(f"{count} extension sections with magic {magic:#x}")
    hwcaps: tuple[str, ...] = ()
    generator = ""
    sections: list[tuple[int, int, bytes]] = []
    for number in range(count):
        tag, flags, where, size = _EXTENSION_SECTION.unpack_from(data, table + number * _EXTENSION_SECTION.size)
        content = data[where : where + size]
        if len(content) != size:
            raise LoaderCacheError(f"extension section {tag} does not fit into the file")
        if tag == _TAG_GENERATOR:
            generator = content.decode("utf-8", "surrogateescape")
        elif tag == _TAG_HWCAPS:
            hwcaps = _parse_hwcap_names(data, start, content)
        else:
            sections.append((tag, flags, content))
    return hwcaps, generator, tuple(sections)


def _parse_hwcap_names(data: bytes, start: int, content: bytes) -> tuple[str, ...]:
    if len(content) % 4 or len(content) > 4 * MAXIMUM_STRING:
        raise LoaderCacheError(f"{len(content)} bytes of glibc-hwcaps names")
    names: list[str] = []
    for (offset,) in struct.iter_unpack("<I", content):
        # Behind an old layout ldconfig counts from the new header here, though the loader counts from the file's start.
        first = start + offset
        end = data.find(b"\0", first, first + MAXIMUM_STRING)
        if end < 0:
            raise LoaderCacheError("a glibc-hwcaps name does not end in the file")
        names.append(data[first:end].decode("utf-8", "surrogateescape"))
    return tuple(names)


def format_table(table: Table) -> bytes:
    """Return the same as format_cache, from rows."""
    strings = _Strings(_NEW_HEADER.size + len(table.rows) * _NEW_ENTRY.size)
    cells = strings.add_rows(table.rows)
    hwcap_places = [strings.add(name) for name in table.hwcaps]
    text = strings.finish()
    extensions = (strings.base + len(text) + 3) // 4 * 4
    try:
        entries = struct.pack("<" + "iIIIQ" * len(table.rows), *cells)
    except struct.error as error:
        raise LoaderCacheError(f"an entry has a number out of range: {error}") from None
    header = _NEW_HEADER.pack(_NEW_MAGIC, len(table.rows), len(text), _LITTLE_ENDIAN, extensions)
    padding = bytes(extensions - strings.base - len(text))
    return b"".join((header, entries, text, padding, _format_extensions(table, hwcap_places, extensions)))


class _Strings:
    """The string table under construction; offsets count from the header."""

    def __init__(self, base: int) -> None:
        self.base = base
        self._texts: list[str] = []
        self._next = base
        self._known: dict[str, int] = {}

    def add_rows(self, rows: "Sequence[Row]") -> list[int]:
        """Add soname and path of every row; returns the numbers of all entries, one after the other."""
        texts = [row[1] for row in rows]
        self._texts = texts
        size = len if all(map(str.isascii, texts)) else _encoded_size
        cells: list[int] = []
        position = self._next
        apart: list[tuple[int, str]] = []
        for soname, path, flags, os_version, hwcap in rows:
            end = position + size(path)
            if path.endswith(soname):
                cells += (flags, end - size(soname), position, os_version, hwcap)
            else:
                apart.append((len(cells) + 1, soname))
                cells += (flags, 0, position, os_version, hwcap)
            position = end + 1
        self._next = position
        for cell, soname in apart:
            cells[cell] = self.add(soname)
        return cells

    def add(self, text: str) -> int:
        """Add one string, or find the one that is there; returns its offset."""
        place = self._known.get(text)
        if place is None:
            place = self._known[text] = self._next
            self._texts.append(text)
            self._next += _encoded_size(text) + 1
        return place

    def finish(self) -> bytes:
        """Return all strings, each with its zero."""
        texts = self._texts
        try:
            joined = "\0".join([*texts, ""]).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise LoaderCacheError(f"a name cannot be encoded: {error.reason}") from None
        if joined.count(b"\0") != len(texts):
            raise LoaderCacheError("a name contains a zero byte")
        return joined


def _encoded_size(text: str) -> int:
    try:
        return len(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise LoaderCacheError(f"a name cannot be encoded: {error.reason}") from None


def _format_extensions(table: Table, hwcap_places: list[int], offset: int) -> bytes:
    contents: list[tuple[int, int, bytes]] = []
    if table.generator:
        contents.append((_TAG_GENERATOR, 0, table.generator.encode("utf-8", "surrogateescape")))
    if hwcap_places:
        contents.append((_TAG_HWCAPS, 0, struct.pack(f"<{len(hwcap_places)}I", *hwcap_places)))
    contents += table.sections
    if len(contents) > MAXIMUM_SECTIONS:
        raise LoaderCacheError(f"{len(contents)} extension sections")
    where = offset + _EXTENSION_HEADER.size + len(contents) * _EXTENSION_SECTION.size
    head = [_EXTENSION_HEADER.pack(_EXTENSION_MAGIC, len(contents))]
    body: list[bytes] = []
    for tag, flags, content in contents:
        padding = -where % 4
        where += padding
        head.append(_EXTENSION_SECTION.pack(tag, flags, where, len(content)))
        body += (bytes(padding), content)
        where += len(content)
    return b"".join(head + body)


_FLAGS = {
    (EM_X86_64, 64): FLAG_X86_64,
    (EM_X86_64, 32): FLAG_X32,
    (EM_386, 32): FLAG_LIBC6,
    (EM_AARCH64, 64): FLAG_AARCH64,
    (EM_PPC64, 64): FLAG_PPC64,
}


def flags_of(header: "ElfHeader") -> int | None:
    """Return the flags of a library, None for a machine that we do not serve (glibc's readelflib.c, per machine)."""
    if header.machine == EM_ARM and header.bits == 32:
        if header.flags & 0xFF000000 == 0x05000000:  # EABI version 5 tells the way floats are passed
            if header.flags & 0x400:
                return FLAG_ARM_HARD_FLOAT
            if header.flags & 0x200:
                return FLAG_ARM_SOFT_FLOAT
        return FLAG_LIBC6
    return _FLAGS.get((header.machine, header.bits))


def is_hwcap_extension(hwcap: int) -> bool:
    """Tell whether the number points to a glibc-hwcaps name; other non-zero ones are bits of glibc before 2.37."""
    return hwcap & _HWCAP_NO_EXTENSION == HWCAP_EXTENSION


def library_order(name: str) -> tuple[int, ...]:
    """Return a key that sorts names as the loader's binary search expects them, smallest first.

    Digits form numbers and come after everything else; bytes are signed (glibc's _dl_cache_libcmp on x86-64).
    """
    key: list[int] = []
    number = -1
    for byte in name.encode("utf-8", "surrogateescape"):
        if 48 <= byte <= 57:
            number = (number * 10 if number >= 0 else 0) + byte - 48
            continue
        if number >= 0:
            key.append(_number_key(number))
            number = -1
        key.append(byte if byte < 128 else byte - 256)
    if number >= 0:
        key.append(_number_key(number))
    key.append(0)
    return tuple(key)


def _number_key(number: int) -> int:
    return 256 + ((number + (1 << 31)) & 0xFFFFFFFF)  # the loader's int wraps around
