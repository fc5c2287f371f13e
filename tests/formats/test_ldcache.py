"""ld.so.cache: round trips, the real ldconfig's files and opinion, and hostile bytes."""

import shutil
import struct
import subprocess
from functools import cmp_to_key
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.formats.elf import EM_386, EM_AARCH64, EM_ARM, EM_PPC64, EM_X86_64, ElfHeader
from nvinject.formats.ldcache import (
    HWCAP_EXTENSION,
    Cache,
    Entry,
    LoaderCacheError,
    Table,
    flags_of,
    format_cache,
    format_table,
    is_hwcap_extension,
    library_order,
    parse_cache,
    parse_table,
)
from tests.ldconfig import find_ldconfig, write_cache

NAMES = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
PATHS = NAMES | st.builds(lambda directory, name: f"/{directory}/{name}", NAMES, NAMES)
ENTRIES = st.builds(
    Entry,
    soname=NAMES,
    path=PATHS,
    flags=st.integers(-(1 << 31), (1 << 31) - 1) | st.sampled_from([3, 0x303, 0xA03]),
    hwcap=st.integers(0, (1 << 64) - 1),
    os_version=st.integers(0, (1 << 32) - 1),
)
TAILED = st.builds(lambda name, directory: Entry(soname=name, path=f"/{directory}/{name}", flags=0x303), NAMES, NAMES)
CACHES = st.builds(
    Cache,
    entries=st.lists(ENTRIES | TAILED, max_size=12).map(tuple),
    hwcaps=st.lists(NAMES, max_size=4).map(tuple),
    generator=NAMES,
    sections=st.lists(st.tuples(st.integers(2, 99), st.integers(0, 7), st.binary(max_size=9)), max_size=3).map(tuple),
)


@given(CACHES)
def test_any_cache_comes_back_as_it_was(cache: Cache) -> None:
    assert parse_cache(format_cache(cache)) == cache


@given(st.lists(st.binary(min_size=1, max_size=20).filter(lambda name: b"\0" not in name), max_size=5))
def test_names_may_be_any_bytes(names: list[bytes]) -> None:
    texts = [name.decode("utf-8", "surrogateescape") for name in names]
    cache = Cache(entries=tuple(Entry(soname=text, path=f"/lib/{text}", flags=3) for text in texts))
    assert parse_cache(format_cache(cache)) == cache


SAMPLE = Cache(
    entries=(
        Entry(soname="libz.so.1", path="/lib/v3/libz.so.1.9", flags=0x303, hwcap=HWCAP_EXTENSION),
        Entry(soname="libz.so.1", path="/lib/libz.so.1", flags=0x303),
        Entry(soname="libc.so.6", path="/lib/libc.so.6", flags=0x303, os_version=0x030200),
    ),
    hwcaps=("x86-64-v3",),
    generator="a test",
)
BYTES = format_cache(SAMPLE)


def old_layout(entries: list[tuple[str, str, int]], *, behind: bytes = b"") -> bytes:
    """A cache in the old layout; `behind` is a cache in the new layout, put where ldconfig -c compat puts it."""
    head = b"ld.so-1.7.0\0" + struct.pack("<I", len(entries))
    gap = bytes(-(len(head) + 12 * len(entries)) % 8) + behind
    strings, cells = b"", b""
    for soname, path, flags in entries:
        key = len(gap) + len(strings)
        strings += soname.encode() + b"\0"
        value = len(gap) + len(strings)
        strings += path.encode() + b"\0"
        cells += struct.pack("<iII", flags, key, value)
    return head + cells + gap + strings


def test_old_layout_alone() -> None:
    data = old_layout([("libz.so.1", "/lib/libz.so.1", 3), ("liba.so", "/usr/lib/liba.so", 1)])
    assert parse_cache(data) == Cache(
        entries=(
            Entry(soname="libz.so.1", path="/lib/libz.so.1", flags=3),
            Entry(soname="liba.so", path="/usr/lib/liba.so", flags=1),
        )
    )


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_new_layout_behind_the_old_one(count: int) -> None:
    plain = Cache(entries=SAMPLE.entries[1:])
    data = old_layout([("libz.so.1", "/old/libz.so.1", 3)] * count, behind=format_cache(plain)[:-8])
    # The extensions are found from the file's start; without them the offset in the header is cleared.
    start = data.index(b"glibc-ld.so.cache1.1")
    data = data[: start + 32] + bytes(4) + data[start + 36 :]
    assert parse_cache(data) == plain


def test_names_share_their_tails() -> None:
    assert BYTES.count(b"libc.so.6") == 1
    assert BYTES.count(b"libz.so.1\0") == 1 + 1  # the first entry's file has another name


def patched(offset: int, form: str, *numbers: int) -> bytes:
    return BYTES[:offset] + struct.pack(form, *numbers) + BYTES[offset + struct.calcsize(form) :]


ENTRY = 48
EXTENSION = struct.unpack_from("<I", BYTES, 32)[0]

HOSTILE: list[tuple[bytes, str]] = [
    (b"", "no magic"),
    (b"glibc-ld.so.cache1.1", "no magic"),
    (BYTES[:47], "no magic"),
    (b"\x7fELF" + BYTES, "no magic"),
    (b"ld.so-1.7.0", "no magic"),
    (b"ld.so-1.7.0\0\xff\xff\xff\xff", "4294967295 entries are announced in 16 bytes"),
    (patched(20, "<I", 0xFFFFFFFF), "4294967295 entries are announced"),
    (patched(20, "<I", 40), "40 entries are announced"),
    (patched(28, "<B", 3), "big-endian"),
    (patched(ENTRY + 4, "<I", len(BYTES)), "entry 0 has a soname that does not end"),
    (patched(ENTRY + 8, "<I", 0xFFFFFFFF), "entry 0 has a path that does not end"),
    (patched(ENTRY + 24 + 4, "<I", len(BYTES) + 1), "entry 1 has a soname that does not end"),
    (patched(32, "<I", 3), "extensions at offset 3"),
    (patched(32, "<I", 0xFFFFFFFC), "extensions at offset 4294967292"),
    (patched(EXTENSION, "<I", 1), "extension sections with magic 0x1"),
    (patched(EXTENSION + 4, "<I", 0xFFFFFFFF), "4294967295 extension sections"),
    (patched(EXTENSION + 8 + 12, "<I", 0xFFFFFF), "extension section 0 does not fit"),
    (patched(EXTENSION + 24 + 12, "<I", 3), "3 bytes of glibc-hwcaps names"),
    (BYTES[:-4] + b"\xff\xff\xff\xff", "glibc-hwcaps name does not end"),
    (BYTES[:60] + b"A" * 5000, "3 entries|does not end"),
]


@pytest.mark.parametrize(("data", "message"), HOSTILE, ids=[message for _, message in HOSTILE])
def test_hostile_bytes_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(LoaderCacheError, match=message):
        parse_cache(data)


def test_many_entries_cannot_share_a_long_name() -> None:
    count = 100_000
    cells = struct.pack("<iIIIQ", 3, 48 + 24 * count, 48 + 24 * count, 0, 0) * count
    data = struct.pack("<20sIIB3xI12x", b"glibc-ld.so.cache1.1", count, 4000, 2, 0) + cells + b"A" * 4000 + b"\0"
    with pytest.raises(LoaderCacheError, match="have more than"):
        parse_table(data)


def try_to_parse(data: bytes) -> None:
    try:
        parse_cache(data)
    except LoaderCacheError:
        return


@given(st.integers(0, len(BYTES) - 1), st.binary(min_size=1, max_size=8))
def test_changed_bytes_never_crash(offset: int, new: bytes) -> None:
    try_to_parse(BYTES[:offset] + new + BYTES[offset + len(new) :])


@given(st.integers(0, len(BYTES)), st.sampled_from([BYTES, old_layout([("a", "/b", 3)], behind=BYTES)]))
def test_cut_files_never_crash(end: int, data: bytes) -> None:
    try_to_parse(data[:end])


@given(st.binary(max_size=120), st.sampled_from([b"", b"ld.so-1.7.0\0", b"glibc-ld.so.cache1.1"]))
def test_any_bytes_never_crash(data: bytes, magic: bytes) -> None:
    try_to_parse(magic + data)


UNWRITABLE = [
    (Entry(soname="a\0b", path="/a", flags=3), "zero byte"),
    (Entry(soname="a", path="/a\ud800", flags=3), "cannot be encoded"),
    (Entry(soname="\ud800", path="/a", flags=3), "cannot be encoded"),
    (Entry(soname="a", path="/a", flags=1 << 31), "out of range"),
    (Entry(soname="a", path="/a", flags=3, hwcap=-1), "out of range"),
]


@pytest.mark.parametrize(("entry", "message"), UNWRITABLE)
def test_unwritable_entries_are_refused(entry: Entry, message: str) -> None:
    with pytest.raises(LoaderCacheError, match=message):
        format_cache(Cache(entries=(entry,)))


def compared(left: str, right: str) -> int:
    """The loader's comparison, told as a loop: character by character, runs of digits as numbers."""
    while left:
        if left[0].isdigit():
            if not right[:1].isdigit():
                return 1
            left_digits = left[: len(left) - len(left.lstrip("0123456789"))]
            right_digits = right[: len(right) - len(right.lstrip("0123456789"))]
            if int(left_digits) != int(right_digits):
                return int(left_digits) - int(right_digits)
            left, right = left[len(left_digits) :], right[len(right_digits) :]
        elif right[:1].isdigit():
            return -1
        elif left[0] != right[:1]:
            return ord(left[0]) - (ord(right[0]) if right else 0)
        else:
            left, right = left[1:], right[1:]
    return -ord(right[0]) if right else 0


SHORT_NAMES = st.text(alphabet="lib.so-019", max_size=12)


@given(SHORT_NAMES, SHORT_NAMES)
def test_order_is_the_loaders(left: str, right: str) -> None:
    left_key, right_key = library_order(left), library_order(right)
    assert (left_key > right_key) - (left_key < right_key) == (compared(left, right) > 0) - (compared(left, right) < 0)


@given(st.lists(SHORT_NAMES))
def test_sorting_by_key_is_sorting_by_comparison(names: list[str]) -> None:
    assert sorted(names, key=library_order) == sorted(names, key=cmp_to_key(compared))


ORDERED = ["a\u00e9", "a", "ab", "a1", "a9", "a10", "a010b", "a10c", "b", "lib.so", "lib.so.1", "lib1.so"]


def test_order_of_some_names() -> None:
    shuffled = ORDERED[5:] + ORDERED[:5]
    assert sorted(shuffled, key=library_order) == ORDERED


FLAGS: list[tuple[int, int, int, int | None]] = [
    (EM_X86_64, 64, 0, 0x0303),
    (EM_X86_64, 32, 0, 0x0803),
    (EM_386, 32, 0, 0x0003),
    (EM_AARCH64, 64, 0, 0x0A03),
    (EM_ARM, 32, 0x5000400, 0x0903),
    (EM_ARM, 32, 0x5000200, 0x0B03),
    (EM_ARM, 32, 0x5000000, 0x0003),
    (EM_ARM, 32, 0x4000400, 0x0003),
    (EM_PPC64, 64, 0, 0x0503),
    (EM_AARCH64, 32, 0, None),
    (8, 32, 0, None),
]


@pytest.mark.parametrize(("machine", "bits", "flags", "expected"), FLAGS)
def test_flags_of_a_library(machine: int, bits: int, flags: int, expected: int | None) -> None:
    assert flags_of(ElfHeader(bits=bits, machine=machine, kind=3, flags=flags)) == expected


@pytest.mark.parametrize(
    ("hwcap", "expected"),
    [
        (0, False),
        (1 << 62, True),
        (1 << 62 | 3 << 32 | 5, True),
        (1 << 62 | 1 << 42, False),
        (1 << 50, False),
        (1 << 63, False),
    ],
)
def test_hwcap_extension(hwcap: int, *, expected: bool) -> None:
    assert is_hwcap_extension(hwcap) is expected


def shown(path: Path) -> list[str]:
    done = subprocess.run([find_ldconfig(), "-p", "-C", str(path)], check=True, capture_output=True, text=True)
    return done.stdout.split("\n")


def test_ldconfig_reads_ours(tmp_path: Path) -> None:
    file = tmp_path / "cache"
    file.write_bytes(BYTES)
    lines = shown(file)
    assert lines[0].startswith("3 libs found")
    assert lines[1] == '\tlibz.so.1 (libc6,x86-64, hwcap: "x86-64-v3") => /lib/v3/libz.so.1.9'
    assert lines[2] == "\tlibz.so.1 (libc6,x86-64) => /lib/libz.so.1"
    assert lines[3].endswith("=> /lib/libc.so.6")
    assert lines[4] == "Cache generated by: a test"


def test_this_machine(tmp_path: Path) -> None:
    original = Path("/etc/ld.so.cache")
    if not original.exists():
        pytest.skip("this machine has no /etc/ld.so.cache")
    table = parse_table(original.read_bytes())
    assert parse_table(format_table(table)) == table
    names = [row[0] for row in table.rows]
    assert names == sorted(names, key=library_order, reverse=True)
    copy = tmp_path / "cache"
    copy.write_bytes(format_table(table))
    assert shown(copy)[1:] == shown(original)[1:]


@pytest.mark.parametrize("layout", ["old", "compat", "new"])
def test_layouts_of_the_real_ldconfig(tmp_path: Path, layout: str) -> None:
    library = next((path for path in Path("/lib").glob("*-linux-gnu*/libz.so.1")), None)
    if library is None:
        pytest.skip("no libz.so.1 to build a tree from")
    directory = tmp_path / "opt"
    (tmp_path / "etc").mkdir()
    for name in ("liba.so.1", "libb.so.2", "glibc-hwcaps/x86-64-v3/libz.so.1"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, directory / name)
    (tmp_path / "etc/ld.so.conf").write_text("/opt\n")
    write_cache(tmp_path, "-c", layout)
    cache = parse_cache((tmp_path / "etc/ld.so.cache").read_bytes())
    paths = ["/opt/glibc-hwcaps/x86-64-v3/libz.so.1", "/opt/libz.so.1"]
    assert [(entry.soname, entry.path) for entry in cache.entries] == [("libz.so.1", path) for path in paths]
    if layout != "old":  # it has no place for hwcaps
        assert cache.hwcaps == ("x86-64-v3",)
        assert [is_hwcap_extension(entry.hwcap) for entry in cache.entries] == [True, False]


@pytest.mark.parametrize("old", [False, True], ids=["new layout", "old layout"])
def test_rows_by_the_beginning_of_their_sonames(old: bool) -> None:
    """Of a host's thousands of libraries a search reads only those that it might want."""
    names = ("libcuda.so.1", "libc.so.6", "libcudart.so.12", "lib.so", "libnvidia-ml.so.1")
    rows = tuple((name, f"/usr/lib/{name}", 0x303, 0, 0) for name in names)
    data = old_layout([row[:3] for row in rows]) if old else format_table(Table(rows=rows))
    found = parse_table(data, frozenset({b"libcud", b"libnvi"})).rows
    assert [row[0] for row in found] == ["libcuda.so.1", "libcudart.so.12", "libnvidia-ml.so.1"]
    assert found == tuple(row for row in parse_table(data).rows if row[0][:6] in {"libcud", "libnvi"})


def test_a_cache_that_ends_within_its_last_string() -> None:
    """Without extensions nothing follows the strings, not even a second zero."""
    row = ("libz.so.1", "/lib/libz.so.1", 0x303, 0, 0)
    whole = format_table(Table(rows=(row,)))
    end = whole.index(b"/lib/libz.so.1\0") + len("/lib/libz.so.1\0")
    bare = whole[:32] + bytes(4) + whole[36:end]  # offset of extensions: none
    assert parse_table(bare).rows == (row,)
    with pytest.raises(LoaderCacheError, match="does not end"):
        parse_table(bare[:-1])
