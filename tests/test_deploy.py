"""Unit files: commands that exist, and what systemd itself says about them."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from nvinject.cli import cdi

FOLDER = Path(__file__).parent.parent / "deploy" / "systemd"
UNITS = sorted(FOLDER.iterdir())
PROGRAM = "/usr/local/bin/nvinject"


def commands(unit: Path) -> list[list[str]]:
    """Return the command lines of nvinject in a unit."""
    lines = [line.partition("=")[2] for line in unit.read_text().splitlines() if line.startswith("Exec")]
    return [words[1:] for words in map(shlex.split, lines) if words[0] == PROGRAM]


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.suffix == ".service"], ids=lambda unit: unit.name)
def test_commands_exist(unit: Path) -> None:
    """What a unit starts is understood."""
    found = commands(unit)
    assert found
    for words in found:
        assert words[0] == "cdi"
        cdi.parser().parse_args(words[1:])


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """systemd-analyze finds nothing to complain about."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is missing; install systemd")
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace(PROGRAM, "/bin/true"))
    done = subprocess.run(
        [analyze, "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
