"""inotify: the calls and the record."""

import os
from pathlib import Path

import pytest

from nvinject.linux.inotify import (
    IN_CLOEXEC,
    IN_CREATE,
    IN_DELETE,
    IN_NONBLOCK,
    inotify_add_watch,
    inotify_init1,
    parse_events,
)


def test_names_are_told_with_their_watch(tmp_path: Path) -> None:
    descriptor = inotify_init1(IN_CLOEXEC | IN_NONBLOCK)
    try:
        watch = inotify_add_watch(descriptor, str(tmp_path), IN_CREATE | IN_DELETE)
        (tmp_path / "a name").touch()
        (tmp_path / "a name").unlink()
        events = parse_events(os.read(descriptor, 1 << 16))
    finally:
        os.close(descriptor)
    assert events == [(watch, IN_CREATE, "a name"), (watch, IN_DELETE, "a name")]


def test_faults_name_the_path(tmp_path: Path) -> None:
    descriptor = inotify_init1(0)
    try:
        with pytest.raises(FileNotFoundError, match="missing"):
            inotify_add_watch(descriptor, str(tmp_path / "missing"), IN_CREATE)
    finally:
        os.close(descriptor)
    with pytest.raises(OSError, match="inotify_init1"):
        inotify_init1(-1)


def test_a_cut_record_is_left_out() -> None:
    assert parse_events(b"") == []
    assert parse_events(bytes(8)) == []
