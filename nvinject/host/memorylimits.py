"""Limits of GPU memory by the driver: whether it has them, and which cgroup is a container's.

Belongs here: looking. Does not belong here: setting a limit (render.nvmllimits) and other means (core.memorylimits).
Since CUDA 13.4 NVML has nvmlDeviceSetMemoryLimits_v1, which works on a cgroup of version 2 named by its full path below
/sys/fs/cgroup, needs root, and takes no MIG devices (NVIDIA's documentation of NVML and of MPS v3).
"""

import os

from nvinject.errors import HostError
from nvinject.formats.elf import ElfError, read_dynamic_strings
from nvinject.host.root import Root

FUNCTION = "nvmlDeviceSetMemoryLimits_v1"
UNIFIED = "/sys/fs/cgroup"
CONTROLLERS = "cgroup.controllers"  # cgroups(7): in the root of a hierarchy of version 2


def find_obstacle(root: Root, library: str, version: str, *, unified: str = UNIFIED) -> str:
    """Return why the driver keeps no limits here, "" where it can; `library` is NVML's path below the root."""
    if not library or not exports(root.read(library) or b"", FUNCTION):
        return f"driver {version} has no {FUNCTION}, which came with CUDA 13.4"
    if not os.path.exists(f"{unified}/{CONTROLLERS}"):
        return f"the driver keeps limits of cgroups of version 2 alone, and {unified} is none"
    return ""


def exports(data: bytes, name: str) -> bool:
    """Say whether a library exports a symbol; nothing of it has to run for that."""
    try:
        return f"\0{name}\0".encode() in read_dynamic_strings(data)
    except ElfError:
        return False


def find_cgroup(pid: int, *, unified: str = UNIFIED) -> str:
    """Return the full path of a process's cgroup of version 2; raises HostError where it has none of its own.

    A limit on the root would be one on the whole host.
    """
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise HostError(
            f"cannot read the cgroup of process {pid}: {error.strerror}", "the container's process must exist"
        ) from error
    groups = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    path = f"{unified}{groups[0]}" if groups else ""
    if not path or groups[0] in {"", "/"} or groups[0].startswith("/.."):
        raise HostError(
            f"process {pid} has no cgroup of version 2 of its own ({groups[0] if groups else 'none'})",
            "have the runtime make one (linux.cgroupsPath)",
        )
    if not os.path.isdir(path):
        raise HostError(f"the cgroup {path} of process {pid} cannot be seen", "run in the host's cgroup namespace")
    return path
