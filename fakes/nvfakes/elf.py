"""Stub ELF files: shared libraries with the right class, machine and SONAME, and programs that only exit.

Belongs here: the bytes of such files, acceptable to ldconfig, readelf and the dynamic loader. Does not belong here:
which libraries a driver has (driverfiles.py) and libraries with behaviour (nvml/). Layouts are those of elf(5).
"""

import struct
from dataclasses import dataclass

EM_386, EM_ARM, EM_X86_64, EM_AARCH64 = 3, 40, 62, 183
MACHINES = {"x86_64": EM_X86_64, "aarch64": EM_AARCH64}
MACHINES_32 = {"x86_64": EM_386, "aarch64": EM_ARM}

_PT_LOAD, _PT_DYNAMIC, _PT_NOTE, _PT_GNU_STACK = 1, 2, 4, 0x6474E551
_SHT_STRTAB, _SHT_HASH, _SHT_DYNAMIC, _SHT_NOTE, _SHT_DYNSYM = 3, 5, 6, 7, 11
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 1, 4, 5, 6, 10, 11, 14

# exit(0): the number of exit(2) is 60 on x86-64 and 93 on aarch64.
_EXIT_CODE = {
    EM_X86_64: bytes.fromhex("31ff b83c000000 0f05"),
    EM_AARCH64: bytes.fromhex("000080d2 a80b80d2 010000d4"),
}


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    data: bytes
    link: int = 0
    entry_size: int = 0


class _Strings:
    """A string table under construction."""

    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, text: str) -> int:
        offset = len(self.data)
        self.data += text.encode() + b"\0"
        return offset


def _align(value: int, step: int = 8) -> int:
    return (value + step - 1) // step * step


def shared_library(
    soname: str, *, machine: int, bits: int = 64, needed: tuple[str, ...] = ("libc.so.6",), abi_note: bool = False
) -> bytes:
    """Return a shared library without symbols; `abi_note` adds the note that marks a thread-local-storage library."""
    strings = _Strings()
    entries = [(_DT_NEEDED, strings.add(name)) for name in needed]
    if soname:
        entries.append((_DT_SONAME, strings.add(soname)))
    # Vendor "GNU", type 1: Linux, kernel 2.3.99, which the original asks of libnvidia-tls.
    note = struct.pack("<3I4s4I", 4, 16, 1, b"GNU\0", 0, 2, 3, 99) if abi_note else b""
    word = 8 if bits == 64 else 4
    symbol = bytes(24 if bits == 64 else 16)
    hash_table = struct.pack("<4I", 1, 1, 0, 0)
    sections = [
        _Section(".hash", _SHT_HASH, 2, hash_table, link=2, entry_size=4),
        _Section(".dynsym", _SHT_DYNSYM, 2, symbol, link=3, entry_size=len(symbol)),
        _Section(".dynstr", _SHT_STRTAB, 2, strings.data),
        _Section(".dynamic", _SHT_DYNAMIC, 3, bytes(2 * word * (len(entries) + 6)), link=3, entry_size=2 * word),
    ]
    if note:
        sections.append(_Section(".note.ABI-tag", _SHT_NOTE, 2, note))
    offsets = _place(sections, _header_size(bits) + (4 if note else 3) * _program_header_size(bits))
    entries += [
        (_DT_HASH, offsets[0]),
        (_DT_STRTAB, offsets[2]),
        (_DT_SYMTAB, offsets[1]),
        (_DT_STRSZ, len(strings.data)),
        (_DT_SYMENT, len(symbol)),
        (0, 0),
    ]
    packed = b"".join(struct.pack("<2Q" if bits == 64 else "<2I", *entry) for entry in entries)
    sections[3] = _Section(".dynamic", _SHT_DYNAMIC, 3, packed, link=3, entry_size=2 * word)
    end = offsets[-1] + len(sections[-1].data)
    headers = [
        (_PT_LOAD, 6, 0, end, 0x1000),
        (_PT_DYNAMIC, 6, offsets[3], len(packed), word),
        (_PT_GNU_STACK, 6, 0, 0, 16),
    ]
    if note:
        headers.append((_PT_NOTE, 4, offsets[4], len(note), 4))
    return _assemble(bits, machine, 3, 0, headers, sections, offsets)


def program(machine: int) -> bytes:
    """Return a static 64-bit program that exits with 0 at once."""
    base = 0x400000
    code = _EXIT_CODE[machine]
    start = _header_size(64) + _program_header_size(64)
    sections = [_Section(".text", 1, 6, code)]
    headers = [(_PT_LOAD, 5, 0, start + len(code), 0x1000)]
    return _assemble(64, machine, 2, base, headers, sections, [start])


def _header_size(bits: int) -> int:
    return 64 if bits == 64 else 52


def _program_header_size(bits: int) -> int:
    return 56 if bits == 64 else 32


def _place(sections: list[_Section], start: int) -> list[int]:
    offsets = []
    for section in sections:
        start = _align(start)
        offsets.append(start)
        start += len(section.data)
    return offsets


def _assemble(
    bits: int,
    machine: int,
    kind: int,
    base: int,
    headers: list[tuple[int, int, int, int, int]],
    sections: list[_Section],
    offsets: list[int],
) -> bytes:
    """Put the file together; `headers` are (type, flags, offset, size, alignment)."""
    names = _Strings()
    name_offsets = [names.add(section.name) for section in sections]
    own_name = names.add(".shstrtab")
    end = offsets[-1] + len(sections[-1].data)
    table = _align(end + len(names.data))
    entry = base + offsets[0] if kind == 2 else 0
    data = bytearray(_file_header(bits, machine, kind, entry, len(headers), len(sections) + 2, table))
    for header in headers:
        data += _program_header(bits, base, *header)
    for section, offset in zip(sections, offsets, strict=True):
        data += bytes(offset - len(data)) + section.data
    data += names.data + bytes(table - end - len(names.data))
    layout = "<2I4Q2I2Q" if bits == 64 else "<10I"
    data += bytes(struct.calcsize(layout))
    for section, offset, name in zip(sections, offsets, name_offsets, strict=True):
        address = base + offset
        data += struct.pack(
            layout, name, section.kind, section.flags, address, offset, len(section.data), section.link,
            1 if section.kind == _SHT_DYNSYM else 0, 8, section.entry_size,
        )  # fmt: skip
    data += struct.pack(layout, own_name, _SHT_STRTAB, 0, 0, end, len(names.data), 0, 0, 1, 0)
    return bytes(data)


def _file_header(bits: int, machine: int, kind: int, entry: int, headers: int, sections: int, table: int) -> bytes:
    ident = b"\x7fELF" + bytes([2 if bits == 64 else 1, 1, 1, 0]) + bytes(8)
    size = _header_size(bits)
    flags = 0x05000400 if machine == EM_ARM else 0  # EABI 5, hard float
    return ident + struct.pack(
        "<2HI3QI6H" if bits == 64 else "<2HI3II6H",
        kind, machine, 1, entry, size, table, flags, size, _program_header_size(bits), headers,
        64 if bits == 64 else 40, sections, sections - 1,
    )  # fmt: skip


def _program_header(bits: int, base: int, kind: int, flags: int, offset: int, size: int, alignment: int) -> bytes:
    address = base + offset
    if bits == 64:
        return struct.pack("<2I6Q", kind, flags, offset, address, address, size, size, alignment)
    return struct.pack("<8I", kind, offset, address, address, size, size, flags, alignment)


def read_soname(path: str) -> str:
    """Return the SONAME of a 64-bit little-endian library, or an empty text for anything else."""
    with open(path, "rb") as file:
        data = file.read(64)
        if data[:6] != b"\x7fELF\x02\x01":
            return ""
        (table,) = struct.unpack_from("<Q", data, 32)
        size, count = struct.unpack_from("<2H", data, 54)
        file.seek(table)
        headers = file.read(size * count)
        segments = [struct.unpack_from("<2I6Q", headers, index * size) for index in range(count)]
        dynamic = next((segment for segment in segments if segment[0] == _PT_DYNAMIC), None)
        if dynamic is None:
            return ""
        file.seek(dynamic[2])
        tags = dict(reversed(list(struct.iter_unpack("<qQ", file.read(dynamic[5])))))
        if _DT_SONAME not in tags or _DT_STRTAB not in tags:
            return ""
        strings = tags[_DT_STRTAB]
        load = next(s for s in segments if s[0] == _PT_LOAD and s[3] <= strings < s[3] + s[6])
        file.seek(load[2] + strings - load[3] + tags[_DT_SONAME])
        return file.read(256).split(b"\0")[0].decode()
