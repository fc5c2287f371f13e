"""The debug log: a line for each step, and a container cannot write lines of its own into it."""

import os
from pathlib import Path

import pytest

from nvinject.cli.debuglog import Log


def test_a_step_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps name what a container asks for; its names are shown, never believed."""
    path = tmp_path / "log"
    with Log(str(path), echo=True) as log:
        log.write("devices 0\n2026-01-01T00:00:00Z nvinject[1]: forged \x1b[31m")
        log.warn("left alone: \x9b31m\u202e")
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert lines[1].endswith(r"devices 0\n2026-01-01T00:00:00Z nvinject[1]: forged \x1b[31m")
    assert lines[2].endswith(r"warning: left alone: \x9b31m\u202e")
    told = capsys.readouterr().err
    assert told.count("\n") == 3
    assert told.replace("\n", "").isprintable()


def test_a_log_that_fails_when_it_is_closed_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """close(2) fails too, as on a network's file system; a container that is whole would be refused for its log."""
    path = tmp_path / "log"
    with Log(str(path), echo=False) as log:
        log.write("a step")
        for entry in Path("/proc/self/fd").iterdir():
            if entry.is_symlink() and os.path.realpath(entry) == str(path):
                os.close(int(entry.name))
    assert capsys.readouterr().err == "nvinject: warning: the log's last lines may be lost: Bad file descriptor\n"
    assert path.read_text().splitlines()[-1].endswith("a step")
