"""The real ldconfig of this machine, which other tests compare with."""

import shutil
import subprocess
from pathlib import Path

import pytest


def find_ldconfig() -> str:
    """Return its path, or skip; Debian keeps it where an ordinary user's PATH does not look."""
    found = shutil.which("ldconfig", path="/sbin:/usr/sbin")
    if found is None:
        pytest.skip("no ldconfig on this machine")
    return found


def need_ldconfig(folder: Path) -> None:
    """Skip where it cannot write the cache of a root."""
    (folder / "any" / "etc").mkdir(parents=True)
    write_cache(folder / "any")


def write_cache(root: Path, *options: str) -> None:
    """Let it write the cache of a root, or skip: it changes its root, an ordinary user's in a user namespace."""
    command = [find_ldconfig(), *options, "-r", str(root)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode and shutil.which("unshare") is not None:
        done = subprocess.run(["unshare", "--map-root-user", *command], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"ldconfig {' '.join(options)} cannot change its root here: {done.stderr.strip()}")
