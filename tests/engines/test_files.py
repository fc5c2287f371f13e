"""Replacing files: several at once or none, what is kept, and a file that cannot be replaced."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.engines.files import Change, carry_out, read_document
from nvinject.engines.undo import take_back
from nvinject.errors import HostError


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_failure_takes_back_what_was_done(tmp_path: Path) -> None:
    one, two, new = tmp_path / "one", tmp_path / "two", tmp_path / "new" / "deep" / "file"
    one.write_bytes(b"1")
    two.write_bytes(b"somebody was quicker")
    changes = (
        Change(path=str(one), before=b"1", after=b"2"),
        Change(path=str(new), before=None, after=b"3"),
        Change(path=str(two), before=b"2", after=None),
    )
    with pytest.raises(HostError, match="somebody else changed it just now"):
        carry_out(changes)
    assert one.read_bytes() == b"1"
    assert two.read_bytes() == b"somebody was quicker"
    assert names(tmp_path) == ["one", "two"]


def test_a_place_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(HostError, match="cannot change"):
        carry_out((Change(path=str(tmp_path / "file" / "x"), before=None, after=b""),))
    assert names(tmp_path) == ["file"]


def test_new_files_and_directories_are_readable(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        made = carry_out((Change(path=str(tmp_path / "a" / "b" / "c"), before=None, after=b"x"),))
    finally:
        os.umask(mask)
    assert made == (str(tmp_path / "a"), str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b" / "c").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o755


def configure_behind(mount: str, target: Path, config: Path, state: Path) -> "subprocess.CompletedProcess[str]":
    """Configure docker in a mount namespace of its own where a script has changed something about a target; or skip."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare (util-linux) is missing")
    words = ["runtime", "configure", "--config", str(config), "--state-dir", str(state)]
    script = f'{{ {mount}; }} || exit 77; exec "$@"'
    command = ["sh", "-c", script, str(target), sys.executable, "-m", "nvinject", *words]
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", *command], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"cannot make a mount here: {done.stderr.strip()}")
    return done


def test_a_file_that_is_a_mount_is_rewritten(tmp_path: Path) -> None:
    """In a container that was given just /etc/docker/daemon.json, the file is a mount and cannot be renamed over."""
    config = tmp_path / "daemon.json"
    config.write_text("{}\n")
    done = configure_behind('mount --bind "$0" "$0"', config, config, tmp_path / "state")
    assert done.returncode == 0, done.stderr
    assert "nvidia" in config.read_text()
    assert names(tmp_path) == ["daemon.json", "state", *(f"state/{name}" for name in os.listdir(tmp_path / "state"))]


def test_a_read_only_file_system(tmp_path: Path) -> None:
    """As on systems whose /etc is an image; nothing is kept of the attempt."""
    config = tmp_path / "etc" / "daemon.json"
    config.parent.mkdir()
    config.write_text("{}\n")
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'
    done = configure_behind(mount, config.parent, config, tmp_path / "state")
    assert done.returncode == 6
    assert "its file system is read-only" in done.stderr
    assert names(tmp_path) == ["etc", "etc/daemon.json"]


def test_a_byte_order_mark_is_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\xef\xbb\xbfa\r\n")
    document = read_document(str(path))
    assert document.text == "a\r\n"
    assert document.change("a\r\n") == Change(path=str(path), before=b"\xef\xbb\xbfa\r\n", after=b"\xef\xbb\xbfa\r\n")
    assert document.change("b").after == b"\xef\xbb\xbfb"


# written by us, before us, as it is now, as it shall be
MERGES = [
    (b"a\nours\nb\n", b"a\nb\n", b"a\nours\nb\nc\n", b"a\nb\nc\n"),
    (b"a\nours\nb\n", b"a\nb\n", b"x\nours\nb\n", b"x\nb\n"),
    (b"a\nours\nb\n", b"a\nb\n", b"a\nb\n", b"a\nb\n"),
    (b"a\nours\nb\n", b"a\nb\n", b"a\nours!\nb\n", None),
    (b"ours\n", b"", b"ours\nmore\n", b"more\n"),
    (b"a\n", b"a", b"a\n", b"a"),
]


@pytest.mark.parametrize(("ours", "original", "current", "expected"), MERGES)
def test_only_our_own_changes_are_taken_back(
    ours: bytes, original: bytes, current: bytes, expected: bytes | None
) -> None:
    assert take_back(ours, original, current) == expected


texts = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d"]), max_size=6).map(b"".join)


@given(texts, texts)
def test_taking_back_from_what_nobody_changed_is_the_original(ours: bytes, original: bytes) -> None:
    assert take_back(ours, original, ours) == original
    assert take_back(ours, ours, original) == original
    assert take_back(ours, original, original) == original
