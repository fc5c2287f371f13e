"""Links and loader cache in a file system that no container uses yet."""

import os
from pathlib import Path

import pytest

from nvinject.core.plan import CreateSymlink, LoaderLibrary, Operation, UpdateLoaderCache
from nvinject.errors import ContainerError
from nvinject.formats.ldcache import parse_cache
from nvinject.render.rootfs import write_rootfs

LINK = CreateSymlink(reason="test", link="/usr/lib64/libcuda.so.1", target="libcuda.so.1.2", force=True)
GENTLE = CreateSymlink(reason="test", link="/usr/lib64/libcuda.so", target="libcuda.so.1")
CACHE = UpdateLoaderCache(
    reason="test",
    directories=("/usr/lib64",),
    libraries=(LoaderLibrary(soname="libcuda.so.1", path="/usr/lib64/libcuda.so.1"),),
)


def apply(root: Path, *operations: Operation) -> list[str]:
    """Do the operations for good; returns the steps."""
    steps: list[str] = []
    root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        assert write_rootfs(operations, root_fd, steps.append).commit() == ()
    finally:
        os.close(root_fd)
    return steps


def picture(root: Path) -> dict[str, str]:
    """Return path -> what lies there."""
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else "folder" if path.is_dir() else "file"
        for path in root.rglob("*")
    }


def test_links_and_cache(tmp_path: Path) -> None:
    steps = apply(tmp_path, LINK, GENTLE, CACHE)
    assert picture(tmp_path) == {
        "usr": "folder",
        "usr/lib64": "folder",
        "usr/lib64/libcuda.so.1": "libcuda.so.1.2",
        "usr/lib64/libcuda.so": "libcuda.so.1",
        "etc": "folder",
        "etc/ld.so.cache": "file",
    }
    entries = parse_cache((tmp_path / "etc/ld.so.cache").read_bytes()).entries
    assert [(entry.soname, entry.path) for entry in entries] == [("libcuda.so.1", "/usr/lib64/libcuda.so.1")]
    assert steps[0] == "link /usr/lib64/libcuda.so.1 -> libcuda.so.1.2 [test]"


def test_what_the_image_has_gives_way_only_to_sonames(tmp_path: Path) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    for name in ("libcuda.so.1", "libcuda.so"):
        (tmp_path / "usr/lib64" / name).write_text("image")
    apply(tmp_path, LINK, GENTLE)
    assert picture(tmp_path / "usr/lib64") == {"libcuda.so.1": "libcuda.so.1.2", "libcuda.so": "file"}


def test_what_was_done_can_be_undone(tmp_path: Path) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libcuda.so.1").write_text("image")
    before = picture(tmp_path)
    root_fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    journal = write_rootfs((LINK, GENTLE, CACHE), root_fd, lambda _: None)
    assert journal.undo() == ()
    os.close(root_fd)
    assert picture(tmp_path) == before
    assert (tmp_path / "usr/lib64/libcuda.so.1").read_text() == "image"


def test_a_failure_undoes_what_was_done(tmp_path: Path) -> None:
    (tmp_path / "etc").write_text("a file where a folder must be")
    before = picture(tmp_path)
    with pytest.raises(ContainerError, match=r"cannot apply loader cache: .*Not a directory.*write-rootfs = false"):
        apply(tmp_path, LINK, CACHE)
    assert picture(tmp_path) == before


def test_links_of_the_image_do_not_lead_out(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "root"
    (root / "usr").mkdir(parents=True)
    (root / "usr/lib64").symlink_to("../" * 20 + str(outside))
    apply(root, LINK)
    assert list(outside.iterdir()) == []
    assert (root / str(outside).lstrip("/") / "libcuda.so.1").is_symlink()


def test_everything_belongs_to_the_owner_of_its_folder(tmp_path: Path) -> None:
    """The root of a user namespace can change what was put into its file system."""
    (tmp_path / "usr").mkdir()
    try:
        for path in (tmp_path, tmp_path / "usr"):
            os.chown(path, 100000, 100000)
    except PermissionError as error:
        pytest.skip(f"files cannot be given away here: {error.strerror}")
    apply(tmp_path, LINK, GENTLE, CACHE)
    owners = {str(path.relative_to(tmp_path)): path.lstat().st_uid for path in tmp_path.rglob("*")}
    assert set(owners.values()) == {100000}, owners
