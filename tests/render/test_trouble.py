"""Trouble of our own (no descriptors, no memory) is not taken for something that is absent, and nothing is left."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvinject.host.layout import observe_layout
from nvinject.linux.inroot import ignore_absence
from nvinject.render.hooks import device_minors
from nvinject.render.journal import Journal
from nvinject.render.loaderpaths import configured_directories, read_regular
from nvinject.render.operations import _put_back
from nvinject.render.rundirectory import is_left_over


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let no further descriptor be had."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "ld.so.conf").write_text("/opt/lib\n")
    (tmp_path / "etc" / "debian_version").write_text("12\n")
    descriptor = os.open(tmp_path, os.O_PATH)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.ENXIO, errno.EINVAL])
def test_what_tells_of_the_path_is_ignored(number: int) -> None:
    ignore_absence(OSError(number, "x"))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EINTR, errno.EPERM])
def test_trouble_is_raised(number: int) -> None:
    with pytest.raises(OSError, match="x"):
        ignore_absence(OSError(number, "x"))


def test_image_is_not_read_as_empty_without_descriptors(root: int) -> None:
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        read_regular(root, "/etc/ld.so.conf", 100)
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        configured_directories(root)
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        observe_layout(root, "x86_64")
    assert configured_directories(root) == ("/opt/lib",)
    assert observe_layout(root, "x86_64").library_directory == "/usr/lib/x86_64-linux-gnu"


def test_a_container_has_its_devices_without_descriptors_too(root: int, tmp_path: Path) -> None:
    """Nothing would be left of the driver's procfs, in a container that starts as if that were right."""
    assert device_minors(root, "/dev", "nvidia") == frozenset()
    (tmp_path / "dev").mkdir()
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        device_minors(root, "/dev", "nvidia")


def test_run_directory_of_a_living_container_is_not_swept_without_descriptors(tmp_path: Path) -> None:
    (tmp_path / "container.json").write_text("{}")
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        is_left_over(str(tmp_path), 1e12)
    assert is_left_over(str(tmp_path), 1e12)


def fail() -> None:
    """Fail as a system call does."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_what_completes_a_change_must_succeed() -> None:
    done: list[str] = []
    journal = Journal()
    journal.record("mount", lambda: done.append("undone"))
    journal.before_commit(fail)
    with pytest.raises(OSError, match="Input/output error"):
        journal.finish()
    assert journal.undo() == ()
    assert done == ["undone"]


def test_tidying_up_is_tried_twice() -> None:
    attempts: list[str] = []

    def second_time() -> None:
        attempts.append("tried")
        if len(attempts) < 2:
            fail()

    journal = Journal()
    journal.at_end("backup", second_time)
    assert journal.commit() == ()
    journal.at_end("backup", fail)
    assert journal.commit() == ("backup (Input/output error)",)


@pytest.mark.parametrize("replaced", [False, True])
def test_no_backup_stays_when_a_file_is_put_back(tmp_path: Path, *, replaced: bool) -> None:
    (tmp_path / "name").write_text("old")
    (tmp_path / "backup").hardlink_to(tmp_path / "name")
    if replaced:
        (tmp_path / "name").unlink()
        (tmp_path / "name").symlink_to("new")
    descriptor = os.open(tmp_path, os.O_PATH)
    _put_back(descriptor, "backup", "name")
    os.close(descriptor)
    assert [path.name for path in tmp_path.iterdir()] == ["name"]
    assert (tmp_path / "name").read_text() == "old"
