"""Mount specifications of Tegra systems: entries, faulty lines with their numbers, patterns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.formats.mountspec import TYPES, Entry, Fault, has_magic, matches, parse_mount_spec

# text, (type, path, line) of entries, (line, words of the problem) of faults
FILES: list[tuple[str, list[tuple[str, str, int]], list[tuple[int, str]]]] = [
    ("", [], []),
    ("\n\n  \n", [], []),
    ("dev, /dev/nvmap\n", [("dev", "/dev/nvmap", 1)], []),
    ("dev,/dev/nvmap", [("dev", "/dev/nvmap", 1)], []),
    ("  lib ,  /usr/lib/a.so  \r\n", [("lib", "/usr/lib/a.so", 1)], []),
    ("sym, /a\ndir, /b\n", [("sym", "/a", 1), ("dir", "/b", 2)], []),
    ("# a comment\n#lib, /x\nlib, /y", [("lib", "/y", 3)], []),
    ("\ufeffdev, /dev/a", [("dev", "/dev/a", 1)], []),
    ("lib, /a,b", [("lib", "/a,b", 1)], []),
    ("dev, nvmap", [("dev", "/nvmap", 1)], []),
    ("dev, //dev/nvmap", [("dev", "/dev/nvmap", 1)], []),
    ("dev, /dev/nvhost-*", [("dev", "/dev/nvhost-*", 1)], []),
    ("lib /a", [], [(1, "no comma in 'lib /a'")]),
    ("lib, /a\n\nlbi, /b\n", [("lib", "/a", 1)], [(3, "unknown type 'lbi', there are dev, dir, lib, sym")]),
    ("LIB, /a", [], [(1, "unknown type 'LIB'")]),
    (", /a", [], [(1, "unknown type ''")]),
    ("lib,", [], [(1, "no path behind 'lib'")]),
    ("dir, /", [], [(1, "no path behind 'dir'")]),
    ("lib, /a\0b", [], [(1, "zero byte")]),
    ("type, path\ndev, /dev/a", [("dev", "/dev/a", 2)], [(1, "unknown type 'type'")]),
]


@pytest.mark.parametrize(("text", "entries", "faults"), FILES)
def test_entries_and_faults_of_a_list(
    text: str, entries: list[tuple[str, str, int]], faults: list[tuple[int, str]]
) -> None:
    found = parse_mount_spec(text)
    assert [(entry.type, entry.path, entry.line) for entry in found.entries] == entries
    assert [fault.line for fault in found.faults] == [line for line, _ in faults]
    for fault, (_, words) in zip(found.faults, faults, strict=True):
        assert words in fault.problem


@given(st.text())
def test_every_line_is_accounted_for_once(text: str) -> None:
    found = parse_mount_spec(text)
    lines = text.removeprefix("\ufeff").split("\n")
    plain = [number for number, line in enumerate(lines, 1) if not line.strip() or line.strip().startswith("#")]
    told: list[Entry | Fault] = [*found.entries, *found.faults]
    assert sorted([*plain, *(one.line for one in told)]) == list(range(1, len(lines) + 1))
    assert all(entry.type in TYPES and entry.path.startswith("/") for entry in found.entries)


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\n\0/,"), min_size=1).filter(
    lambda name: name.strip() == name and name != ""
)
ENTRIES = st.lists(
    st.tuples(st.sampled_from(TYPES), st.lists(NAMES, min_size=1).map(lambda parts: "/" + "/".join(parts)))
)


@given(ENTRIES)
def test_what_is_written_is_read_back(entries: list[tuple[str, str]]) -> None:
    found = parse_mount_spec("".join(f"{kind}, {path}\n" for kind, path in entries))
    assert [(entry.type, entry.path) for entry in found.entries] == entries
    assert [entry.line for entry in found.entries] == list(range(1, len(entries) + 1))
    assert found.faults == ()


# path, pattern, whether it matches
PATTERNS = [
    ("/usr/lib/libcuda.so", "/usr/lib/libcuda.so", True),
    ("/usr/lib/libcuda.so", "/usr/lib/libcuda.so.1", False),
    ("/usr/lib/libcuda.so", "/usr/lib/*.so", True),
    ("/usr/lib/libcuda.so", "/usr/*/libcuda.so", True),
    ("/usr/lib/libcuda.so", "/usr/*", False),
    ("/usr/lib/libcuda.so", "*.so", False),
    ("/usr/lib/libcuda.so", "**/*.so", True),
    ("/usr/lib/libcuda.so", "**/libcuda.so", True),
    ("/usr/lib/libcuda.so", "**/lib", False),
    ("/usr/lib/libcuda.so", "/usr/lib/libcud?.so", True),
    ("/usr/lib/libcuda.so", "/usr/lib/libcud[ab].so", True),
    ("/usr/lib/libcuda.so", "/USR/lib/libcuda.so", False),
]


@pytest.mark.parametrize(("path", "pattern", "expected"), PATTERNS)
def test_what_a_pattern_matches(path: str, pattern: str, expected: bool) -> None:
    assert matches(path, pattern) is expected


@given(st.lists(NAMES, min_size=1).map(lambda parts: "/" + "/".join(parts)))
def test_a_path_without_magic_matches_itself_alone(path: str) -> None:
    if not has_magic(path):
        assert matches(path, path)
        assert not matches(path + "x", path)
        assert matches(path, "**/" + path.rpartition("/")[2])
