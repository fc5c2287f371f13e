"""Limits of GPU memory put on a container's cgroup: by the prestart hook, and by the hook of specs and of the shim.

Belongs here: putting cgroup, library and calls together, and what a failure is called. Does not belong here: which
limits (core.memorylimits), looking (host.memorylimits), the calls (render.nvmllimits).
"""

import os

from nvinject.errors import HostError
from nvinject.host import inquiry
from nvinject.host.memorylimits import find_cgroup
from nvinject.host.nvmlreport import NO_PERMISSION, NOT_FOUND, prepare, show_devices
from nvinject.render.nvmllimits import Limit, set_limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nvinject.core.model import Inventory
    from nvinject.core.plan import LimitMemory
    from nvinject.core.policy import Policy

HOOK = "apply-cuda-memory-limits"  # the original's name for it
STAGE = "createRuntime"  # the container's cgroup is there, and we are in the host's namespaces
REMEDIES = {
    NO_PERMISSION: "only root sets limits of memory: run the container as root, or without them",
    # NVIDIA's documentation of memory partitioning: a cgroup without dmem files is not found
    NOT_FOUND: "the cgroup needs the controller dmem: +dmem in cgroup.subtree_control of its parents",
}


def limit_container(
    operations: "tuple[LimitMemory, ...]",
    pid: int,
    inventory: "Inventory",
    policy: "Policy",
    log: "Callable[[str], None]",
) -> "Callable[[], None]":
    """Set the limits of a plan for the container of a process; returns what takes them back. Raises HostError."""
    cgroup, library = find_cgroup(pid), management_library(inventory)
    for operation in operations:
        log(f"{operation.describe()} in {cgroup} [{operation.reason}]")
    limits = tuple(Limit(gpu=one.gpu, soft=one.soft, hard=one.hard) for one in operations)
    apply_limits(limits, cgroup, library, policy.nvml_timeout, device_root=inventory.roots.dev)

    def take_back() -> None:
        none = tuple(Limit(gpu=one.gpu) for one in limits)
        apply_limits(none, cgroup, library, policy.nvml_timeout, device_root=inventory.roots.dev)

    return take_back


def apply_limits(
    limits: tuple[Limit, ...], cgroup: str, library: str, timeout: float, *, device_root: str = "/"
) -> None:
    """Set limits of a cgroup in a child with a time limit (seconds); raises HostError with none set.

    The nodes that NVML opens by their usual paths are those of `device_root`.
    """

    def report() -> "Iterator[str]":
        if device_root != "/":
            show_devices(device_root)
        prepare()
        return set_limits(library, cgroup, limits)

    text = inquiry.ask(report, timeout)
    lines = [line.split("\t") for line in text.splitlines()]
    if lines == [["end"]]:
        return
    if not lines or lines[0][0] != "failed":
        raise HostError("NVML's answer breaks off", "run nvidia-smi on the host, and look for NVRM in dmesg")
    _, step, code, words = lines[0]
    remedy = REMEDIES.get(int(code), "look for NVRM in dmesg, or start the container without limits of memory")
    raise HostError(f"NVML fails in {step} for cgroup {cgroup}: {words}", remedy)


def management_library(inventory: "Inventory") -> str:
    """Return the host's path of NVML in an inventory; raises HostError where it was not looked for or not found."""
    from nvinject.core.catalog import MANAGEMENT_LIBRARY
    from nvinject.core.planner import below

    for library in inventory.driver.libraries:
        if library.soname.startswith(MANAGEMENT_LIBRARY) and library.bits == 64:
            return below(inventory.roots.driver, library.path)
    return find_library(inventory.roots.driver, inventory.driver.version)


def find_library(driver_root: str, version: str) -> str:
    """Return the host's path of NVML below a driver root; raises HostError where there is none of the version."""
    from nvinject.core.catalog import MANAGEMENT_LIBRARY, library_row
    from nvinject.host.libraries import find_libraries
    from nvinject.host.root import Root

    row = library_row(MANAGEMENT_LIBRARY)
    assert row is not None
    with Root(driver_root, title="driver root") as root:
        search = find_libraries(root, version, (row,))
        if not search.management_library:
            raise HostError(
                f"{MANAGEMENT_LIBRARY}.1 of version {version} is not in {driver_root}",
                "install the driver's management library",
            )
        return root.host_path(search.management_library)


def hook_words(operations: "tuple[LimitMemory, ...]", driver_root: str) -> tuple[str, ...]:
    """Return the words after the launcher that have the hook set the limits of a plan."""
    limits = (word for one in operations for word in ("--limit", f"{one.gpu}={one.soft}:{one.hard}"))
    return ("cdi-hook", HOOK, "--driver-root", os.path.abspath(driver_root), *limits)
