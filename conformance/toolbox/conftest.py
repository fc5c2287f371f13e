"""Fixtures: an installation, and a way to run a script on a declared machine as root.

Belongs here: what all tests of the toolbox share. Does not belong here: any expectation.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from nvconform.required import give_up

SECONDS = 120
TWO_H100 = """\
driver: {version: 570.133.20, cuda: "12.8"}
gpus:
  - {uuid: GPU-000000a0-1111-2222-3333-000000000000, bus: "0000:17:00.0", model: h100}
  - {uuid: GPU-000000a1-1111-2222-3333-000000000001, bus: "0000:18:00.0", model: h100}
majors: {nvidia-uvm: 235, nvidia-caps: 237, nvidia-caps-imex-channels: 238}
imex: {channels: [0]}
sockets: [persistenced, fabricmanager]
"""
# A process space of its own, so that containers of other tests on this machine are not seen; a fresh procfs lacks what
# the fake machine shows in the old one.
ALONE = """\
set -e
new=$(mktemp -d)
mount -t proc proc "$new"
if [ -e /proc/driver/nvidia ]; then mount --rbind /proc/driver "$new/driver"; fi
mount --bind /proc/devices "$new/devices"
mount --rbind "$new" /proc
"""

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Bench:
    """A prefix with nvinject, and a folder for files of one test."""

    prefix: Path
    folder: Path

    def run(self, script: str, *, machine: str = TWO_H100, alone: bool = False) -> Done:
        """Run a script of the shell on a machine; `$T` is the folder, PATH begins with the prefix."""
        declaration = self.folder / "machine.yaml"
        declaration.write_text(machine)
        start = [sys.executable, "-m", "nvfakes", "run", "--lane", "root", str(declaration), "--"]
        own = ["unshare", "--mount", *(["--pid", "--fork", "--kill-child"] if alone else [])]
        return subprocess.run(
            [*start, *own, "sh", "-c", (ALONE if alone else "set -e\n") + script],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            env={
                "PATH": f"{self.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "T": str(self.folder),
                "PREFIX": str(self.prefix),
                "NVIDIA_CTK_CONFIG_FILE_PATH": str(self.folder / "config.toml"),
                "PYTHON": sys.executable,
                "HOME": str(Path.home()),
            },
        )


def install(prefix: Path) -> Path:
    """Install nvinject with all its names."""
    command = [sys.executable, "-m", "nvinject", "install", "--prefix", str(prefix), "--links"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return prefix


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a prefix that no test changes."""
    return install(tmp_path_factory.mktemp("prefix"))


@pytest.fixture(scope="session")
def can_be_root() -> str:
    """Return why a fake machine cannot stand at the real paths here, "" where it can; found out by trying."""
    start = [sys.executable, "-m", "nvfakes", "run", "--lane", "root", "two-h100", "--"]
    tried = subprocess.run(
        [*start, "unshare", "--mount", "--pid", "--fork", "true"],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    return (tried.stderr.strip().splitlines() or ["it fails"])[-1] if tried.returncode != 0 else ""


@pytest.fixture
def bench(prefix: Path, tmp_path: Path, can_be_root: str) -> Bench:
    """Return what runs scripts, or skip where no fake machine can be had."""
    if can_be_root:
        give_up("root", f"a fake machine at the real paths needs root: {can_be_root}")
    (tmp_path / "config.toml").touch()
    return Bench(prefix, tmp_path)


@pytest.fixture
def own_bench(bench: Bench, tmp_path: Path) -> Bench:
    """Return the same with an installation that the test may damage."""
    return Bench(install(tmp_path / "own"), bench.folder)
