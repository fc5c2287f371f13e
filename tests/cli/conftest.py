"""What tests of several commands begin with."""

from pathlib import Path

import pytest

from nvinject.cli import main as command_line


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a prefix with launchers and names."""
    folder = tmp_path_factory.mktemp("prefix")
    assert command_line.main(["install", "--prefix", str(folder), "--links"]) == 0
    return folder
