"""Fixtures: the Debian package, built once, and a fresh Debian to install it in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engines.trixie import TrixieError, find_tree
from nvconform.required import give_up
from toolbox.conftest import can_be_root as can_be_root  # noqa: PLC0414 - a fixture that tests of this folder ask for

from .freshroot import REPOSITORY, FreshRoot

BUILDER = REPOSITORY / "deploy" / "debian" / "build.py"
BUILD_SECONDS = 120


def build_package(output: Path, **environment: str) -> Path:
    """Build the Debian package."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is missing: this is no Debian")
    done = subprocess.run(
        [sys.executable, str(BUILDER), "--output", str(output)],
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_SECONDS,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package's file."""
    return build_package(tmp_path_factory.mktemp("package"))


@pytest.fixture(params=["this", "trixie"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> FreshRoot:
    """Return a Debian to change: the one that runs the tests, and Debian 13 as debootstrap makes it."""
    folder = tmp_path / "fresh"
    folder.mkdir()
    if request.param == "trixie":
        try:
            root = FreshRoot(find_tree(), folder, "/usr/bin/python3")
        except TrixieError as error:
            give_up("trixie", str(error))
    else:
        root = FreshRoot(Path("/"), folder, sys.executable)
    tried = root.clean()
    if tried.returncode != 0:
        give_up("root", f"an overlay cannot be mounted: {(tried.stderr.strip().splitlines() or ['?'])[-1]}")
    return root
