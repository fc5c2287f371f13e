"""Paths inside a hostile root: where they lead, that they never leave it, what is created and what is taken back."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvinject.linux import inroot, syscalls

Opener = Callable[[int, str, int], int]
OPENERS = [pytest.param(inroot.open_in_root, id="openat2"), pytest.param(inroot.open_by_walking, id="walking")]

LINKS = {
    "absolute": "/dir",
    "relative": "dir/sub",
    "up": "../../../../..",
    "up-to-etc": "../../../../../../etc",
    "to-host": "/etc/passwd",
    "dangling": "/new/place/file",
    "loop": "loop",
    "ping": "pong",
    "pong": "ping",
    "to-file": "dir/sub/file",
    "trailing": "dir/",
    "dir/back": "../dir/./sub/..",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root with directories, a file and links of every kind."""
    top = tmp_path / "root"
    (top / "dir" / "sub").mkdir(parents=True)
    (top / "dir" / "sub" / "file").write_text("inside")
    for name, target in LINKS.items():
        (top / name).symlink_to(target)
    return top


@pytest.fixture
def root_fd(root: Path) -> Iterator[int]:
    """Return an O_PATH descriptor of the root."""
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


OPENED = {
    "/": "",
    ".": "",
    "..": "",
    "../../dir": "dir",
    "dir/../dir/sub": "dir/sub",
    "//dir///sub/": "dir/sub",
    "absolute/sub": "dir/sub",
    "relative/file": "dir/sub/file",
    "up": "",
    "up/up/dir": "dir",
    "to-file": "dir/sub/file",
    "trailing/sub": "dir/sub",
    "dir/back/sub": "dir/sub",
}

REFUSED = {
    "": errno.ENOENT,
    "missing": errno.ENOENT,
    "to-host": errno.ENOENT,
    "up-to-etc": errno.ENOENT,
    "dangling": errno.ENOENT,
    "loop": errno.ELOOP,
    "ping/x": errno.ELOOP,
    "to-file/x": errno.ENOTDIR,
    "dir/sub/file/": errno.ENOTDIR,
}


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize(("path", "expected"), OPENED.items())
def test_path_leads_inside(opener: Opener, path: str, expected: str, root: Path, root_fd: int) -> None:
    fd = opener(root_fd, path, os.O_PATH)
    assert os.readlink(f"/proc/self/fd/{fd}") == os.path.normpath(root / expected)
    os.close(fd)


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize(("path", "expected"), REFUSED.items())
def test_path_leads_nowhere(opener: Opener, path: str, expected: int, root_fd: int) -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 # the errno is what is compared
        opener(root_fd, path, os.O_PATH)
    assert caught.value.errno == expected


@pytest.mark.parametrize("opener", OPENERS)
def test_link_itself_is_opened_with_nofollow(opener: Opener, root_fd: int) -> None:
    fd = opener(root_fd, "to-host", os.O_PATH | os.O_NOFOLLOW)
    assert stat.S_ISLNK(os.fstat(fd).st_mode)
    os.close(fd)


@pytest.mark.parametrize("opener", OPENERS)
def test_content_is_read_and_descriptor_is_not_inherited(opener: Opener, root_fd: int) -> None:
    fd = opener(root_fd, "relative/file", os.O_RDONLY)
    assert os.read(fd, 10) == b"inside"
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_another_mount_is_told_apart(root: Path, root_fd: int) -> None:
    """procfs is one wherever tests run, as are what links lead to there."""
    os.close(inroot.open_in_root(root_fd, "relative/file", os.O_RDONLY, one_mount=True))
    host = os.open("/", os.O_PATH | os.O_DIRECTORY)
    os.close(inroot.open_in_root(host, "/proc/version", os.O_PATH))
    with pytest.raises(OSError) as caught:  # noqa: PT011 # the errno is what is compared
        inroot.open_in_root(host, "/proc/version", os.O_PATH, one_mount=True)
    assert caught.value.errno == errno.EXDEV
    os.close(host)


def test_another_mount_cannot_be_told_by_old_kernels(root_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def openat2(*_: object) -> int:
        raise OSError(errno.ENOSYS, "not there")

    monkeypatch.setattr(syscalls, "openat2", openat2)
    os.close(inroot.open_in_root(root_fd, "relative/file", os.O_RDONLY))
    with pytest.raises(OSError) as caught:  # noqa: PT011 # the errno is what is compared
        inroot.open_in_root(root_fd, "relative/file", os.O_RDONLY, one_mount=True)
    assert caught.value.errno == errno.EXDEV


@pytest.mark.parametrize("opener", OPENERS)
def test_magic_links_are_refused(opener: Opener) -> None:
    root_fd = os.open("/", os.O_PATH | os.O_DIRECTORY)
    with pytest.raises(OSError, match="symbolic links"):
        opener(root_fd, f"/proc/{os.getpid()}/root/etc", os.O_PATH)
    os.close(root_fd)


PARENTS = {
    "file": ("", "file"),
    "/dir/file": ("dir", "file"),
    "absolute/file": ("dir", "file"),
    "up/etc/passwd": None,
    "to-host": ("", "to-host"),
    "loop": ("", "loop"),
    "dir/..": None,
    "dir/": None,
    "/": None,
    "dir/back/x": ("dir", "x"),
}


@pytest.mark.parametrize(("path", "expected"), PARENTS.items())
def test_parent_without_creating(path: str, expected: tuple[str, str] | None, root: Path, root_fd: int) -> None:
    if expected is None:
        with pytest.raises(OSError, match=r"No such file|Invalid argument"):
            inroot.open_parent(root_fd, path)
        return
    fd, name, created = inroot.open_parent(root_fd, path)
    assert (os.readlink(f"/proc/self/fd/{fd}"), name, created) == (
        os.path.normpath(root / expected[0]),
        expected[1],
        [],
    )
    os.close(fd)


CREATED = {
    "a/b/c": (["a", "a/b"], "a/b", "c"),
    "dir/b/c": (["dir/b"], "dir/b", "c"),
    "up-to-etc/x": (["etc"], "etc", "x"),
    "dangling": (["new", "new/place"], "new/place", "file"),
    "to-host": (["etc"], "etc", "passwd"),
    "to-file": ([], "dir/sub", "file"),
    "dangling/deeper": (["new", "new/place", "new/place/file"], "new/place/file", "deeper"),
}


@pytest.mark.parametrize(("path", "expected"), CREATED.items())
def test_missing_directories_are_made_inside(
    path: str, expected: tuple[list[str], str, str], root: Path, root_fd: int
) -> None:
    umask = os.umask(0)
    fd, name, created = inroot.open_parent(root_fd, path, 0o755, follow_last=True)
    os.umask(umask)
    made = [f"{os.readlink(f'/proc/self/fd/{parent}')}/{directory}" for parent, directory in created]
    assert made == [str(root / directory) for directory in expected[0]]
    assert (os.readlink(f"/proc/self/fd/{fd}"), name) == (str(root / expected[1]), expected[2])
    assert all(stat.S_IMODE(os.stat(directory).st_mode) == 0o755 for directory in made)
    for held in (fd, *(parent for parent, _ in created)):
        os.close(held)


def test_failed_walk_takes_its_directories_back(root: Path, root_fd: int) -> None:
    before = sorted(root.rglob("*"))
    open_before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="too long"):
        inroot.open_parent(root_fd, f"one/two/{'x' * 300}/three", 0o755)
    assert sorted(root.rglob("*")) == before
    assert os.listdir("/proc/self/fd") == open_before


def test_create_file_refuses_what_is_there(root: Path, root_fd: int) -> None:
    os.close(inroot.create_file(root_fd, "fresh", 0o600))
    for name in ("fresh", "to-host", "dangling", "dir"):
        with pytest.raises(FileExistsError):
            inroot.create_file(root_fd, name, 0o600)
    assert not (root / "new").exists()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["..", ".", "", "dir", "sub", "file", *LINKS]), min_size=1, max_size=8))
def test_walking_agrees_with_the_kernel(root_fd: int, components: list[str]) -> None:
    path = "/".join(components)
    results = []
    for opener in (inroot.open_in_root, inroot.open_by_walking):
        try:
            fd = opener(root_fd, path, os.O_PATH)
        except OSError as error:
            results.append(errno.errorcode[error.errno or 0])
        else:
            results.append(os.readlink(f"/proc/self/fd/{fd}"))
            os.close(fd)
    assert results[0] == results[1]
