"""The debug log: a line for each step, and a container cannot write lines of its own into it."""

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
