"""Fixtures of the host tests."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .machine import HostTree


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    """Return an empty host."""
    return HostTree(tmp_path)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Return a folder that other users can enter, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="nvinject-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
