"""Replacing a bundle's config.json: a whole one is there at every moment, and the engine's own stays on failure."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nvinject.errors import ContainerError
from nvinject.render import bundle

ORIGINAL = b'{"a": 1}'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_bytes(ORIGINAL)
    return path


def test_mode_and_owner_stay(config: Path) -> None:
    config.chmod(0o640)
    before = config.stat()
    bundle.write_config(str(config.parent), {"b": [1, "é"]})
    after = config.stat()
    assert json.loads(config.read_bytes()) == {"b": [1, "é"]}
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino
    assert os.listdir(config.parent) == ["config.json"]


def test_an_owner_that_is_not_us(config: Path) -> None:
    try:
        os.chown(config, 12345, 54321)
    except PermissionError as error:
        pytest.skip(f"files cannot be given away here: {error.strerror}")
    config.chmod(0o600)
    bundle.write_config(str(config.parent), {})
    status = config.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (12345, 54321, 0o600)


def test_a_missing_bundle_is_named(tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match=f"cannot write {tmp_path}/none/config.json: No such file"):
        bundle.write_config(f"{tmp_path}/none", {})


FULL_DISK = """
import resource, signal, sys
from nvinject.errors import ContainerError
from nvinject.render import bundle
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    bundle.write_config(sys.argv[1], {"long": "x" * 10000})
except ContainerError as error:
    print(error)
"""


def test_the_original_stays_when_writing_fails(config: Path) -> None:
    """A limit on the size of files stands in for a full disk, which takes a mount to make."""
    done = subprocess.run(
        # -B: a module imported under the limit would leave cut byte code behind, for every later start to trip over.
        [sys.executable, "-B", "-c", FULL_DISK, str(config.parent)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith(f"cannot write {config}: File too large; the container's configuration is unchanged")
    assert config.read_bytes() == ORIGINAL
    assert os.listdir(config.parent) == ["config.json"]
