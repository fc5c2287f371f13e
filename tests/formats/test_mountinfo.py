"""mountinfo: the kernel's lines, real ones of this machine, and broken ones."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.formats.mountinfo import Mount, MountInfoError, parse_mountinfo, unescape

LINES: list[tuple[str, Mount]] = [
    (
        "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue",
        Mount(
            mount_id=36,
            parent_id=35,
            device=(98, 0),
            root="/mnt1",
            mount_point="/mnt2",
            options=("rw", "noatime"),
            optional=("master:1",),
            fstype="ext3",
            source="/dev/root",
            super_options=("rw", "errors=continue"),
        ),
    ),
    (
        r"1 0 0:1 / /a\040b\134c\011\012 ro - tmpfs  rw",
        Mount(
            mount_id=1,
            parent_id=0,
            device=(0, 1),
            root="/",
            mount_point="/a b\\c\t\n",
            options=("ro",),
            optional=(),
            fstype="tmpfs",
            source="",
            super_options=("rw",),
        ),
    ),
    (
        "2 1 0:2 / /- rw shared:3 master:4 propagate_from:5 - fuse.- - rw",
        Mount(
            mount_id=2,
            parent_id=1,
            device=(0, 2),
            root="/",
            mount_point="/-",
            options=("rw",),
            optional=("shared:3", "master:4", "propagate_from:5"),
            fstype="fuse.-",
            source="-",
            super_options=("rw",),
        ),
    ),
]

BROKEN = [
    "36",
    "36 35 98:0 / /mnt rw",
    "36 35 98:0 / /mnt rw - ext4 /dev/root",
    "36 35 980 / /mnt rw - ext4 /dev/root rw",
    "36 35 9:8:0 / /mnt rw - ext4 /dev/root rw",
    "x 35 98:0 / /mnt rw - ext4 /dev/root rw",
    "36 35 98:0 / /mnt rw master:1 ext4 /dev/root rw",
]


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_what_a_line_tells(line: str, expected: Mount) -> None:
    assert parse_mountinfo(f"{line}\n") == (expected,)


def test_lines_keep_their_order() -> None:
    assert parse_mountinfo("\n".join(line for line, _ in LINES)) == tuple(mount for _, mount in LINES)
    assert parse_mountinfo("") == ()


@pytest.mark.parametrize("line", BROKEN)
def test_broken_line_is_named(line: str) -> None:
    with pytest.raises(MountInfoError, match="line 2 is not a mountinfo line"):
        parse_mountinfo(f"{LINES[0][0]}\n{line}\n")


def test_this_machine() -> None:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = parse_mountinfo(file.read())
    assert {"/", "/proc"} <= {mount.mount_point for mount in mounts}
    top = [mount for mount in mounts if mount.mount_point == "/proc"][-1]
    device = os.stat("/proc").st_dev
    assert (os.major(device), os.minor(device)) == top.device


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", ""), ("a", "a"), (r"\0", r"\0"), (r"\04", r"\04"), (r"\048", r"\048"), (r"\777", r"\777"), (r"\\040", "\\ ")],
)
def test_octal_escapes_are_undone(text: str, expected: str) -> None:
    assert unescape(text) == expected


@given(st.text())
def test_unescape_undoes_the_kernel(text: str) -> None:
    escaped = "".join(f"\\{ord(letter):03o}" if letter in " \t\n\\#" else letter for letter in text)
    assert unescape(escaped) == text


@given(st.text(alphabet="0123 :-/\\,ar\n"))
def test_any_text_is_read_or_refused_with_its_line(text: str) -> None:
    try:
        parse_mountinfo(text)
    except MountInfoError as error:
        assert "line" in str(error)  # noqa: PT017  # most texts are refused, some are not
