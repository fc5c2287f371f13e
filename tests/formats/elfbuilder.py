"""Builds small ELF files for tests: header, program headers, one loaded segment with dynamic section and notes."""

import struct


def build_elf(
    *,
    bits: int = 64,
    machine: int = 62,
    little: bool = True,
    kind: int = 3,
    flags: int = 0,
    soname: str | None = "libx.so.1",
    needed: tuple[str, ...] = (),
    abi: tuple[int, int, int, int] | None = None,
    other_note: bool = False,
    dynamic: bool = True,
    address: int = 0x10000,
    padding: int = 0,
) -> bytes:
    """Return the bytes of an ELF file; `padding` moves the dynamic section away from the file's first page."""
    order = "<" if little else ">"
    wide = bits == 64
    header_size, segment_size = (64, 56) if wide else (52, 32)
    strings, places = b"\0", {}
    for name in (*([] if soname is None else [soname]), *needed):
        places[name] = len(strings)
        strings += name.encode("utf-8", "surrogateescape") + b"\0"
    notes = b""
    if other_note:
        notes += struct.pack(order + "3I", 4, 20, 3) + b"GNU\0" + bytes(20)
    if abi is not None:
        notes += struct.pack(order + "3I", 4, 16, 1) + b"GNU\0" + struct.pack(order + "4I", *abi)
    count = 1 + dynamic + bool(notes)
    start = header_size + count * segment_size + padding
    notes_at, strings_at = start, start + len(notes)
    dynamic_at = (strings_at + len(strings) + 7) // 8 * 8
    rows = [(1, places[name]) for name in needed]
    rows += [(5, address + strings_at), (10, len(strings))]
    rows += [*([] if soname is None else [(14, places[soname])]), (0, 0)]
    section = b"".join(struct.pack(order + ("qQ" if wide else "iI"), *row) for row in rows)
    end = dynamic_at + len(section)

    def segment(type_: int, offset: int, size: int, align: int) -> bytes:
        where = address + offset
        if wide:
            return struct.pack(order + "IIQQQQQQ", type_, 4, offset, where, where, size, size, align)
        return struct.pack(order + "IIIIIIII", type_, offset, where, where, size, size, 4, align)

    table = segment(1, 0, end, 4096)
    if dynamic:
        table += segment(2, dynamic_at, len(section), 8)
    if notes:
        table += segment(4, notes_at, len(notes), 4)
    identification = b"\x7fELF" + bytes([2 if wide else 1, 1 if little else 2, 1]) + bytes(9)
    fields = (kind, machine, 1, 0, header_size, 0, flags, header_size, segment_size, count, 0, 0, 0)
    head = identification + struct.pack(order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"), *fields)
    body = head + table + bytes(padding) + notes + strings
    return body + bytes(dynamic_at - len(body)) + section
