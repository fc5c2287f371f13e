"""The loader's cache, ld.so.cache, in glibc's new format: read it, add libraries, write it.

Belongs here: the binary format and its order. Does not belong here: deciding which libraries are in a cache (tree.py).
The format is that of glibc's sysdeps/generic/dl-cache.h; offsets count from the start of the new-format header.
"""

import functools
import struct
from collections.abc import Iterable
from dataclasses import dataclass

MAGIC = b"glibc-ld.so.cache1.1"
FLAG_X86_64 = 0x0303
FLAG_AARCH64 = 0x0A03
FLAG_I386 = 0x0003
FLAG_ARM_HARD_FLOAT = 0x0903

_HEADER = struct.Struct("<20s2IB3xI3I")
_ENTRY = struct.Struct("<iIIIQ")
_EXTENSION_MAGIC = 0xEAA42174
_TAG_HWCAPS = 1
_LITTLE_ENDIAN = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One library of the cache: the name asked for, the path it has, and for which machine it is."""

    soname: str
    path: str
    flags: int
    os_version: int = 0
    hwcap: int = 0


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache: its entries and the names of the glibc-hwcaps directories that they refer to."""

    entries: tuple[Entry, ...] = ()
    hwcaps: tuple[str, ...] = ()


def parse(data: bytes) -> Cache:
    """Return the cache that the bytes hold; ValueError if they are in no known format."""
    start = data.find(MAGIC)
    if start < 0 or len(data) < start + _HEADER.size:
        raise ValueError("not a loader cache in the new format")
    data = data[start:]
    _, count, _, _, extension, *_ = _HEADER.unpack_from(data)
    entries = []
    for index in range(count):
        flags, key, value, os_version, hwcap = _ENTRY.unpack_from(data, _HEADER.size + index * _ENTRY.size)
        entries.append(Entry(_string(data, key), _string(data, value), flags, os_version, hwcap))
    return Cache(tuple(entries), _hwcaps(data, extension))


def _string(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode(errors="surrogateescape")


def _hwcaps(data: bytes, extension: int) -> tuple[str, ...]:
    if not extension:
        return ()
    magic, count = struct.unpack_from("<2I", data, extension)
    if magic != _EXTENSION_MAGIC:
        return ()
    for index in range(count):
        tag, _, offset, size = struct.unpack_from("<4I", data, extension + 8 + index * 16)
        if tag == _TAG_HWCAPS:
            return tuple(_string(data, place) for place in struct.unpack_from(f"<{size // 4}I", data, offset))
    return ()


def render(cache: Cache) -> bytes:
    """Return the bytes of a cache, its entries in the order in which the loader searches."""
    entries = sorted(cache.entries, key=functools.cmp_to_key(_compare), reverse=True)
    table = _HEADER.size + len(entries) * _ENTRY.size
    offsets: dict[str, int] = {}
    strings = bytearray()
    for text in [*cache.hwcaps, *(text for entry in entries for text in (entry.soname, entry.path))]:
        if text not in offsets:
            offsets[text] = table + len(strings)
            strings += text.encode(errors="surrogateescape") + b"\0"
    body = b"".join(
        _ENTRY.pack(entry.flags, offsets[entry.soname], offsets[entry.path], entry.os_version, entry.hwcap)
        for entry in entries
    )
    end = table + len(strings)
    padding = -end % 4
    extension = _extension([offsets[name] for name in cache.hwcaps], end + padding)
    header = _HEADER.pack(
        MAGIC, len(entries), len(strings), _LITTLE_ENDIAN, end + padding if extension else 0, 0, 0, 0
    )  # fmt: skip
    return header + body + strings + (bytes(padding) + extension if extension else b"")


def _extension(hwcaps: list[int], offset: int) -> bytes:
    if not hwcaps:
        return b""
    section = struct.pack("<4I", _TAG_HWCAPS, 0, offset + 8 + 16, 4 * len(hwcaps))
    return struct.pack("<2I", _EXTENSION_MAGIC, 1) + section + struct.pack(f"<{len(hwcaps)}I", *hwcaps)


def add(cache: Cache, entries: Iterable[Entry]) -> Cache:
    """Return a cache with more entries, which replace older ones of the same name, machine and directory."""
    new = tuple(entries)
    names = {(entry.soname, entry.flags) for entry in new}
    kept = tuple(entry for entry in cache.entries if (entry.soname, entry.flags) not in names)
    return Cache(kept + new, cache.hwcaps)


def _compare(first: Entry, second: Entry) -> int:
    order = compare_names(first.soname, second.soname)
    if order:
        return order
    one, two = (first.flags, first.hwcap, first.path), (second.flags, second.hwcap, second.path)
    return (one > two) - (one < two)


def compare_names(first: str, second: str) -> int:
    """Compare two library names as the loader's binary search does: runs of digits by their value."""
    one, two = first.encode(errors="surrogateescape") + b"\0", second.encode(errors="surrogateescape") + b"\0"
    i = j = 0
    while one[i]:
        if one[i : i + 1].isdigit() and two[j : j + 1].isdigit():
            left, i = _digits(one, i)
            right, j = _digits(two, j)
            if left != right:
                return left - right
        elif one[i : i + 1].isdigit():
            return 1
        elif two[j : j + 1].isdigit():
            return -1
        elif one[i] != two[j]:
            return one[i] - two[j]
        else:
            i += 1
            j += 1
    return one[i] - two[j]


def _digits(text: bytes, start: int) -> tuple[int, int]:
    end = start
    while text[end : end + 1].isdigit():
        end += 1
    return int(text[start:end]), end
