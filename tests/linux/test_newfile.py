"""Files beside the place of another one."""

import os
from pathlib import Path

import pytest

from nvinject.bundle import write_bundle
from nvinject.cli.install import link
from nvinject.cli.manifest import replace_file
from nvinject.engines.files import Change, carry_out
from nvinject.linux.newfile import open_new
from nvinject.render.specfile import write_files


def test_what_an_ended_process_left_is_removed(tmp_path: Path) -> None:
    """A link too, which is not followed."""
    (tmp_path / "other").write_text("other")
    (tmp_path / "left").symlink_to("other")
    descriptor = open_new(str(tmp_path / "left"), 0o600)
    os.write(descriptor, b"new")
    os.close(descriptor)
    assert (tmp_path / "left").read_text() == "new"
    assert not (tmp_path / "left").is_symlink()
    assert (tmp_path / "other").read_text() == "other"


def test_a_directory_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "left").mkdir()
    with pytest.raises(OSError, match="left"):
        open_new(str(tmp_path / "left"), 0o600)


def test_every_writer_gets_over_what_was_left(tmp_path: Path) -> None:
    """In a container the next process has the number of the one that was killed."""
    number = os.getpid()
    places = {
        "record.json": f"record.json.{number}",
        "name": f"name.{number}",
        "daemon.json": f".daemon.json.{number}.new",
        "spec.yaml": f"spec.yaml.{number}.new",
    }
    for left in places.values():
        (tmp_path / left).write_text("half")
    replace_file(str(tmp_path / "record.json"), "whole")
    link(str(tmp_path / "name"), "record.json")
    carry_out((Change(path=str(tmp_path / "daemon.json"), before=None, after=b"whole"),))
    write_files(((str(tmp_path / "spec.yaml"), "whole"),))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(places, "whole")


def test_byte_code_gets_over_what_was_left(tmp_path: Path) -> None:
    (tmp_path / "nvinject").mkdir()
    for name in ("__init__.py", "bundlefinder.py"):
        (tmp_path / "nvinject" / name).write_text("")
    written = Path(write_bundle(str(tmp_path / "nvinject")))
    Path(f"{written}.{os.getpid()}").write_text("half")
    assert write_bundle(str(tmp_path / "nvinject")) == str(written)
    assert list(written.parent.iterdir()) == [written]
