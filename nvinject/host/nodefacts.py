"""What has to be known before device nodes can be made: numbers, the driver's rules, GPUs and capabilities.

Belongs here: reading /proc and sysfs for that. Does not belong here: which nodes follow from it (core.nodesetup).
"""

from nvinject.core.model import DeviceNode
from nvinject.core.nodesetup import CapabilityFile, HostNodes, NodeRules
from nvinject.core.policy import Roots
from nvinject.errors import HostError
from nvinject.formats import nvproc
from nvinject.host.driver import DRIVER_DIRECTORY, read_majors, read_parsed
from nvinject.host.gpus import CAPABILITIES, GPU_DIRECTORY
from nvinject.host.nodesets import find_nodes
from nvinject.host.pci import find_pci_gpus
from nvinject.host.root import Root

# What create-dev-char-symlinks links where it shall link what is there.
EXISTING_NODES = ("/dev/nvidia*", "/dev/nvidia-caps/nvidia-*")
DEEPEST = 4  # gpu0/mig/gi1/ci0


def read_host_nodes(roots: Roots) -> HostNodes:
    """Return what is known; the minors of GPUs are counted on the PCI bus where the driver shows none yet."""
    with Root(roots.proc, title="proc root", key="nvinject.proc-root") as proc:
        minors = read_gpu_minors(proc) or count_gpus(roots)
        return HostNodes(
            majors=read_majors(proc),
            rules=read_rules(proc),
            gpu_minors=minors,
            capabilities=tuple(find_capability_files(proc)),
        )


def read_rules(proc: Root) -> NodeRules:
    """Return what the parameters of the module say about nodes, the driver's defaults where they say nothing."""
    parameters = read_parsed(proc, f"{DRIVER_DIRECTORY}/params", nvproc.parse_params) or ()
    numbers = {one.name: int(one.value) for one in parameters if one.value.isascii() and one.value.isdecimal()}
    return NodeRules(
        mode=numbers.get("DeviceFileMode", 0o666),
        uid=numbers.get("DeviceFileUID", 0),
        gid=numbers.get("DeviceFileGID", 0),
        modify=bool(numbers.get("ModifyDeviceFiles", 1)),
    )


def read_gpu_minors(proc: Root) -> tuple[int, ...]:
    """Return the minors of the GPUs that the driver shows."""
    found = []
    for name in proc.list_directory(GPU_DIRECTORY):
        information = read_parsed(proc, f"{GPU_DIRECTORY}/{name}/information", nvproc.parse_information)
        if information is not None:
            found.append(information.minor)
    return tuple(sorted(found))


def count_gpus(roots: Roots) -> tuple[int, ...]:
    """Return the numbers from 0 for as many GPUs as the PCI bus has."""
    with Root(roots.sys, title="sys root", key="nvinject.sys-root") as sys:
        return tuple(range(len(find_pci_gpus(sys))))


def find_capability_files(proc: Root, directory: str = CAPABILITIES, depth: int = 0) -> list[CapabilityFile]:
    """Return every capability that exists, by walking the driver's folder."""
    found = []
    for name in proc.list_directory(directory):
        path = f"{directory}/{name}"
        if name in {"access", "config", "monitor"}:
            capability = read_capability(proc, path)
            if capability is not None:
                found.append(
                    CapabilityFile(
                        path=f"/proc{path}", minor=capability.minor, mode=capability.mode, modify=capability.modify
                    )
                )
        elif depth < DEEPEST:
            found += find_capability_files(proc, path, depth + 1)
    return found


def read_capability(proc: Root, path: str) -> nvproc.Capability | None:
    """Return what a capability's file says, None where there is none or this user may not know (MIG configuration)."""
    try:
        return read_parsed(proc, path, nvproc.parse_capability)
    except HostError as error:
        if isinstance(error.__cause__, PermissionError):
            return None
        raise


def find_existing_nodes(dev: Root) -> tuple[DeviceNode, ...]:
    """Return the driver's nodes that are there."""
    return find_nodes(dev, EXISTING_NODES)
