"""LXC's configuration: what is written is read back, by the C library's getmntent and by LXC's own rules for lines."""

import ctypes
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.formats.lxc import (
    BEGIN,
    END,
    LxcError,
    MountEntry,
    escape,
    format_line,
    format_mount_entry,
    read_value,
    replace_block,
    rootfs_directory,
)

ESCAPED = [
    ("/plain", "/plain"),
    ("/a b", r"/a\040b"),
    ("/a\tb\nc", r"/a\011b\012c"),
    ("/back\\slash", r"/back\134slash"),
    (r"/a\040b", r"/a\134040b"),
    ("/ünï#", "/ünï#"),
]


@pytest.mark.parametrize(("text", "expected"), ESCAPED)
def test_escape(text: str, expected: str) -> None:
    """Blanks, line breaks and backslashes in octal; all else stays."""
    assert escape(text) == expected


LINES = [
    ("A=b", "key = A=b"),
    ("", "key = "),
    ("A= b ", 'key = "A= b "'),
    ("'quoted'", "key = \"'quoted'\""),
    ('A="b"', 'key = A="b"'),
]


@pytest.mark.parametrize(("value", "line"), LINES)
def test_lines_keep_what_lxc_would_cut_off(value: str, line: str) -> None:
    """Blanks and quotes at the ends are kept by a pair of quotes around the value."""
    assert format_line("key", value) == line
    assert read_value(line, "key") == value


@given(st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"])))
def test_every_value_is_read_back(value: str) -> None:
    """Whatever fits into a line."""
    assert read_value(format_line("lxc.environment", value), "lxc.environment") == value


class MountOfC(ctypes.Structure):
    """struct mntent of the C library, which LXC reads its entries with."""

    _fields_ = tuple((name, ctypes.c_char_p) for name in ("fsname", "directory", "type", "options"))


class LibraryOfC:
    """getmntent(3) on a file in memory."""

    def __init__(self) -> None:
        self.c = ctypes.CDLL(None)
        for name in ("fdopen", "getmntent"):
            getattr(self.c, name).restype = ctypes.c_void_p
        self.c.getmntent.argtypes = self.c.fclose.argtypes = [ctypes.c_void_p]

    def read(self, line: str) -> tuple[str, str, str, str]:
        """Return the four fields of a line."""
        descriptor = os.memfd_create("entries")
        os.write(descriptor, os.fsencode(line + "\n"))
        os.lseek(descriptor, 0, os.SEEK_SET)
        stream = self.c.fdopen(descriptor, b"r")
        try:
            found = ctypes.cast(self.c.getmntent(stream), ctypes.POINTER(MountOfC)).contents
            fields = (found.fsname, found.directory, found.type, found.options)
            source, target, kind, options = (os.fsdecode(field) for field in fields)
            return source, target, kind, options
        finally:
            self.c.fclose(stream)


PATHS = st.text(
    st.characters(exclude_characters="\0/", max_codepoint=0x2FF, exclude_categories=["Cs"]), min_size=1, max_size=40
).map(lambda name: f"/dir/{name}")


@given(PATHS, PATHS, st.lists(st.sampled_from(["ro", "bind", "create=file", "nosuid"]), unique=True))
def test_every_mount_is_read_back_by_the_c_library(source: str, target: str, options: list[str]) -> None:
    """Any name of a file, blanks, backslashes, digits and line breaks among it."""
    line = format_mount_entry(MountEntry(source=source, target=target, options=tuple(options)))
    value = line.partition(" = ")[2]
    assert read_value(line, "lxc.mount.entry") == value
    assert LibraryOfC().read(value) == (source, target[1:], "none", ",".join(options) or "defaults")


@pytest.mark.parametrize("value", ["A=1\n2", "A=\0"])
def test_a_value_that_breaks_the_line_is_refused(value: str) -> None:
    """It would be another setting."""
    with pytest.raises(LxcError, match=r"lxc\.environment: a line of LXC's configuration cannot hold"):
        format_line("lxc.environment", value)


@pytest.mark.parametrize("source", ["", "#tmpfs", "/a\0b"])
def test_a_source_that_is_none_is_refused(source: str) -> None:
    """Nothing, a comment, and what no path can hold."""
    with pytest.raises(LxcError, match=r"lxc\.mount\.entry: .* cannot be mounted at '/x'"):
        format_mount_entry(MountEntry(source=source, target="/x", options=("bind",)))


ROOTS = [
    ("/var/lib/lxc/c/rootfs", "/var/lib/lxc/c/rootfs"),
    ("dir:/var/lib/lxc/c/rootfs", "/var/lib/lxc/c/rootfs"),
    ("btrfs:/x", "/x"),
    ("zfs:tank/c", ""),
    ("overlay:/lower:/upper", ""),
    ("", ""),
]


@pytest.mark.parametrize(("value", "expected"), ROOTS)
def test_the_directory_of_a_root_file_system(value: str, expected: str) -> None:
    """Storage that is no directory has none."""
    assert rootfs_directory(value) == expected


def test_reading_a_value() -> None:
    """The last one counts; comments and other keys do not."""
    text = "# lxc.rootfs.path = /no\n lxc.rootfs.path=dir:/first\nlxc.rootfs.path.x = /no\n"
    text += "\tlxc.rootfs.path = '/a b' \n"
    assert read_value(text, "lxc.rootfs.path") == "/a b"
    assert read_value(text, "lxc.uts.name") == ""


def test_a_block_is_put_at_the_end_and_replaced_where_it_is() -> None:
    """Twice is once, and what stands around it stays."""
    once = replace_block("a = 1\n", ("b = 2",))
    assert once == f"a = 1\n{BEGIN}\nb = 2\n{END}\n"
    assert replace_block(once, ("b = 2",)) == once
    assert replace_block(f"{once}c = 3\n", ("d = 4",)) == f"a = 1\n{BEGIN}\nd = 4\n{END}\nc = 3\n"


BROKEN = [
    (f"a\n{BEGIN}\nb\n", "line 2: the block that begins here has no end"),
    (f"{END}\n", "line 1: the end of a block that has no beginning"),
    (f"{BEGIN}\n\n{BEGIN}\n{END}\n", "line 3: the block that begins in line 1 has no end"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_marks_without_their_other_half_are_refused(text: str, message: str) -> None:
    """Nobody's lines are taken away on a guess."""
    with pytest.raises(LxcError, match=message):
        replace_block(text, ())
