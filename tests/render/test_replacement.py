"""Replacing a file: what stays, what comes back, also where the kernel knows no exchange."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvinject.linux import syscalls
from nvinject.render.replacement import replace_file


@pytest.fixture
def root(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    place = tmp_path / "root"
    place.mkdir()
    fd = os.open(place, os.O_PATH | os.O_DIRECTORY)
    yield place, fd
    os.close(fd)


@pytest.fixture(params=["renameat2 with flags", "renameat2 without flags"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel or file system that has the flags of renameat2, and one that has not."""
    if request.param == "renameat2 without flags":

        def refuse(*_: object) -> None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

        monkeypatch.setattr(syscalls, "renameat2", refuse)


def state(place: Path) -> list[tuple[str, int, bytes | str]]:
    """Return name, inode and content of everything below a directory."""
    found: list[tuple[str, int, bytes | str]] = []
    for path in sorted(place.rglob("*")):
        content: bytes | str = ""
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = path.read_bytes()
        found.append((str(path.relative_to(place)), path.lstat().st_ino, content))
    return found


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("before", ["file", "link", "node", "nothing"])
def test_undo_and_commit(root: tuple[Path, int], before: str) -> None:
    place, fd = root
    (place / "d").mkdir()
    target = place / "d" / "f"
    if before == "file":
        target.write_text("old")
    elif before == "link":
        target.symlink_to("/etc/passwd")
    elif before == "node":
        os.mkfifo(target)
    old = state(place)

    replaced = replace_file(fd, "/d/f", b"new", 0o644)
    assert target.read_bytes() == b"new"
    replaced.undo()
    assert state(place) == old

    replace_file(fd, "/d/f", b"newer", 0o640).commit()
    assert [name for name, _, _ in state(place)] == ["d", "d/f"]
    assert target.read_bytes() == b"newer"
    assert stat.S_IMODE(target.lstat().st_mode) == 0o640


@pytest.mark.usefixtures("kernel")
def test_directories_are_made_and_removed(root: tuple[Path, int]) -> None:
    place, fd = root
    (place / "a").symlink_to("/b")
    (place / "b").mkdir()
    old = state(place)
    replaced = replace_file(fd, "/a/c/d/f", b"", 0o600)
    assert (place / "b/c/d/f").is_file()
    replaced.undo()
    assert state(place) == old


def test_undo_leaves_directories_that_others_use(root: tuple[Path, int]) -> None:
    place, fd = root
    replaced = replace_file(fd, "/a/f", b"", 0o600)
    (place / "a/other").write_text("somebody's")
    with pytest.raises(OSError, match="not empty"):
        replaced.undo()
    assert [name for name, _, _ in state(place)] == ["a", "a/other"]
    replaced.undo()


def test_error_names_the_path(root: tuple[Path, int]) -> None:
    place, fd = root
    (place / "d/f").mkdir(parents=True)
    with pytest.raises(IsADirectoryError) as caught:
        replace_file(fd, "/d/f", b"", 0o600)
    assert caught.value.filename == "/d/f"
