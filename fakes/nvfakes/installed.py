"""Real driver files where NVIDIA's own installer puts them, for machines whose user space comes from real packages.

Belongs here: which file of the unpacked packages goes where. Does not belong here: fetching and unpacking
(packages.py), and the links and caches around the files (tree.py). Files are linked, not copied; nothing of them is
changed.
"""

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nvfakes import packages
from nvfakes.errors import FakeError
from nvfakes.machine import TRIPLETS, TRIPLETS_32
from nvfakes.nvml.build import cache_directory

# The CUDA version that each branch brings, which no file name tells.
CUDA_VERSIONS = {470: "11.4", 535: "12.2", 550: "12.4"}
_LAYOUT = 3  # part of the name of the folder; change it when files are laid out in another way
_PROGRAMS = (
    "nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server",
)  # fmt: skip
_LIBRARY = re.compile(r"lib\w+(-\w+)*\.so\.\d+(\.\d+)+")


@dataclass(frozen=True, slots=True)
class Installed:
    """The files of a branch: their version, its CUDA version, and the folder that stands for /."""

    version: str
    cuda: str
    root: str


def install(branch: int) -> Installed:
    """Return the files of a branch, fetching its packages the first time."""
    if branch not in CUDA_VERSIONS:
        raise FakeError(
            f"no packages of driver branch {branch} are known; there are {', '.join(map(str, CUDA_VERSIONS))}"
        )
    files = packages.fetch(str(branch))
    directory = cache_directory() / "installed" / f"{files.root.parent.name}-{files.version}-{_LAYOUT}"
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix="linking-") as scratch:
            _link_files(files.root, Path(scratch, "root"), files.version)
            try:
                Path(scratch, "root").rename(directory)
            except OSError:
                if not directory.is_dir():  # else another process was quicker
                    raise
    return Installed(files.version, CUDA_VERSIONS[branch], str(directory))


def _link_files(source: Path, root: Path, version: str) -> None:
    root.mkdir()
    for path in sorted((source / "usr").rglob("*")):
        target = _place(path, version) if path.is_file() and not path.is_symlink() else None
        if target and not (root / target).exists():
            (root / target).parent.mkdir(parents=True, exist_ok=True)
            os.link(path, root / target)


def _place(path: Path, version: str) -> str | None:
    """Return where a file belongs, or None for one that the machine needs not."""
    machine, name = os.uname().machine, path.name
    if name in _PROGRAMS and os.access(path, os.X_OK):
        return f"usr/bin/{name}"
    if name.startswith("gsp_") and name.endswith(".bin"):
        return f"usr/lib/firmware/nvidia/{version}/{name}"
    for triplet in (TRIPLETS.get(machine), TRIPLETS_32.get(machine)):
        if triplet and triplet in path.parts and _LIBRARY.fullmatch(name):
            folder = {"libvdpau_nvidia": "vdpau/", "libglxserver_nvidia": "nvidia/xorg/"}.get(name.split(".")[0], "")
            return f"usr/lib/{triplet}/{folder}{name}"
    return None
