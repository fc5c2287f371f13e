"""Limits of GPU memory by the driver: whether it has them, and which cgroup is a container's."""

import os
from pathlib import Path

import pytest

from nvinject.errors import HostError
from nvinject.host.memorylimits import FUNCTION, find_cgroup, find_obstacle
from nvinject.host.root import Root
from tests.formats.elfbuilder import build_elf

from .machine import HostTree

NVML = "/usr/lib/libnvidia-ml.so.1"

# A name of a library that this one needs stands in the table of dynamic strings, as an exported one does.
NEW, OTHER = (build_elf(soname="libnvidia-ml.so.1", needed=(name,)) for name in (FUNCTION, f"{FUNCTION}x"))
# bytes of the library (None: there is none), whether the hierarchy is of version 2, what is in the way
OBSTACLES = [
    (NEW, True, ""),
    (NEW, False, "cgroups of version 2 alone"),
    (OTHER, True, f"driver 570.1 has no {FUNCTION}"),
    (OTHER + f"\0{FUNCTION}\0".encode(), True, f"driver 570.1 has no {FUNCTION}"),  # a local symbol is not exported
    (b"text", True, f"driver 570.1 has no {FUNCTION}"),
    (b"", True, f"driver 570.1 has no {FUNCTION}"),
    (None, True, f"driver 570.1 has no {FUNCTION}"),
]


@pytest.mark.parametrize(("library", "unified", "obstacle"), OBSTACLES)
def test_what_keeps_the_driver_from_limiting_memory(
    tree: HostTree, tmp_path: Path, library: bytes | None, *, unified: bool, obstacle: str
) -> None:
    """The name has to be a whole one, and the hierarchy of version 2."""
    if library is not None:
        tree.write(NVML, library)
    if unified:
        (tmp_path / "cgroup.controllers").write_text("memory\n")
    with Root(str(tree.root)) as root:
        found = find_obstacle(root, NVML, "570.1", unified=str(tmp_path))
        assert find_obstacle(root, "", "570.1", unified=str(tmp_path)).startswith("driver 570.1 has no")
    assert obstacle in found if obstacle else found == ""


def own_group() -> str:
    """Return this process's cgroup of version 2."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")


def test_the_cgroup_of_a_process(tmp_path: Path) -> None:
    """One of its own is named by its full path; the root of the hierarchy would be the whole host."""
    group = own_group()
    if group in {"", "/"}:
        with pytest.raises(HostError, match=f"process {os.getpid()} has no cgroup of version 2 of its own"):
            find_cgroup(os.getpid(), unified=str(tmp_path))
        return
    with pytest.raises(HostError, match="cannot be seen"):
        find_cgroup(os.getpid(), unified=str(tmp_path))
    (tmp_path / group.lstrip("/")).mkdir(parents=True)
    assert find_cgroup(os.getpid(), unified=str(tmp_path)) == f"{tmp_path}{group}"


def test_a_process_that_has_ended() -> None:
    with pytest.raises(HostError, match="cannot read the cgroup of process 2000000000"):
        find_cgroup(2_000_000_000)
