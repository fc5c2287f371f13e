"""The GPUs of the host, their MIG devices and the nodes that manage MIG, from the driver's procfs and the device root.

Belongs here: what can be known without NVML. Does not belong here: which of them a container gets. A fault of a single
GPU's node is recorded, not raised: it concerns only containers that get this GPU.
"""

from nvinject.core.catalog import (
    CAPABILITY_CLASS,
    CAPABILITY_DIRECTORY,
    GPU_CLASSES,
    IMEX_CLASS,
    IMEX_DIRECTORY,
    major_of,
)
from nvinject.core.model import CapabilityNode, DeviceNode, Gpu, MigDevice
from nvinject.formats import nvproc
from nvinject.host.driver import DRIVER_DIRECTORY, read_parsed
from nvinject.host.nodes import check_node
from nvinject.host.root import Root
from nvinject.record import Record

GPU_DIRECTORY = f"{DRIVER_DIRECTORY}/gpus"
CAPABILITIES = f"{DRIVER_DIRECTORY}/capabilities"
MIG_MINORS = "/driver/nvidia-caps/mig-minors"


class Nodes:
    """The device root, and what decides whether its nodes are right; `notes` collects what is worth telling."""

    def __init__(self, dev: Root, majors: tuple[tuple[str, int], ...], *, strict: bool) -> None:
        """Take the device root, the majors of /proc/devices, and whether another number is a fault."""
        self.dev = dev
        self.majors = majors
        self.strict = strict
        self.notes: list[str] = []

    def find(
        self, path: str, classes: tuple[str, ...], minor: int, default_major: int
    ) -> tuple[DeviceNode | None, str]:
        """Return a node, or None and what is wrong with it."""
        major = major_of(classes, self.majors, default_major)
        check = check_node(self.dev, path, major, minor, strict=self.strict)
        if check.note:
            self.notes.append(check.note)
        return check.node, check.fault

    def find_capability(self, minor: int) -> tuple[DeviceNode | None, str]:
        """Return the node of a capability of the driver; neither node nor fault where it makes no such nodes."""
        if all(name != CAPABILITY_CLASS for name, _ in self.majors):
            return None, ""
        return self.find(f"{CAPABILITY_DIRECTORY}/nvidia-cap{minor}", (CAPABILITY_CLASS,), minor, 0)


class PciAddress(Record):
    """Domain, bus, device and function of a PCI function."""

    domain: int
    bus: int
    device: int
    function: int

    def in_order(self) -> tuple[int, int, int, int]:
        """Return what addresses are sorted by."""
        return self.domain, self.bus, self.device, self.function

    def in_sysfs(self) -> str:
        """Return the address as sysfs writes it, `0000:17:00.0`."""
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function:x}"


def parse_pci_address(text: str) -> PciAddress | None:
    """Return the address that a text like `00000000:1A:00.0` names, whatever its width and case; None for none."""
    domain, _, rest = text.partition(":")
    bus, _, rest = rest.partition(":")
    device, _, function = rest.partition(".")
    try:
        numbers = [int(part, 16) for part in (domain, bus, device, function)]
    except ValueError:
        return None
    return PciAddress(domain=numbers[0], bus=numbers[1], device=numbers[2], function=numbers[3])


def find_gpus(proc: Root, nodes: Nodes) -> tuple[Gpu, ...]:
    """Return the GPUs in PCI order, which is the order of NVML's indices; those that the driver excludes have none."""
    addresses = []
    for name in proc.list_directory(GPU_DIRECTORY):
        address = parse_pci_address(name)
        if address is not None:
            addresses.append((address.in_order(), name, address.in_sysfs()))
    gpus: list[Gpu] = []
    for _, name, bus_id in sorted(addresses):
        information = read_parsed(proc, f"{GPU_DIRECTORY}/{name}/information", nvproc.parse_information)
        if information is None or information.excluded:
            problem = "has no information file" if information is None else "is excluded by the driver"
            nodes.notes.append(f"the GPU at {bus_id} {problem} and is left out")
            continue
        gpu = _describe_gpu(proc, nodes, len(gpus), f"/proc{GPU_DIRECTORY}/{name}", bus_id, information)
        if gpu.node_fault.endswith(" is missing") and is_given_nodes(proc):
            nodes.notes.append(f"the GPU at {bus_id} is left out: {gpu.node_fault}, and ModifyDeviceFiles is 0")
            continue
        gpus.append(gpu)
    return tuple(gpus)


def is_given_nodes(proc: Root) -> bool:
    """Tell whether somebody else decides which nodes there are, as injectors do for a node that is a container itself.

    The kernel shows a nested node (kind, LXD) all GPUs of the machine. It has those whose nodes it was given, and NVML
    counts no others: an index means one of these.
    """
    return "ModifyDeviceFiles: 0" in (proc.read_text(f"{DRIVER_DIRECTORY}/params") or "").splitlines()


def _describe_gpu(
    proc: Root, nodes: Nodes, index: int, proc_directory: str, bus_id: str, information: nvproc.GpuInformation
) -> Gpu:
    minor = information.minor
    node, fault = nodes.find(f"/dev/nvidia{minor}", GPU_CLASSES, minor, major_of(GPU_CLASSES, ()))
    mig_devices = find_mig_devices(proc, nodes, minor)
    return Gpu(
        index=index,
        minor=minor,
        uuid=information.uuid,
        bus_id=bus_id,
        model=information.model,
        proc_directory=proc_directory,
        node=node,
        node_fault=fault,
        mig_devices=mig_devices,
        # The kernel shows which instances a GPU has, not which GPUs could have some; only NVML tells those apart. Where
        # the driver manages MIG at all, a GPU without it has no capability that a container could be given by mistake.
        mig_capable=proc.exists(f"{CAPABILITIES}/mig/config"),
    )


def find_mig_devices(proc: Root, nodes: Nodes, gpu_minor: int) -> tuple[MigDevice, ...]:
    """Return the MIG devices of a GPU, by GPU instance and compute instance; NVML's indices are not known here."""
    mig = f"{CAPABILITIES}/gpu{gpu_minor}/mig"
    devices = []
    for gpu_instance in _numbered(proc.list_directory(mig), "gi"):
        of_gpu = f"{mig}/gi{gpu_instance}"
        for compute_instance in _numbered(proc.list_directory(of_gpu), "ci"):
            files = (f"{of_gpu}/access", f"{of_gpu}/ci{compute_instance}/access")
            found, fault = _capability_nodes(proc, nodes, files)
            devices.append(
                MigDevice(
                    gpu_instance=gpu_instance,
                    compute_instance=compute_instance,
                    capability_files=tuple(f"/proc{file}" for file in files),
                    nodes=found,
                    node_fault=fault,
                )
            )
    return tuple(devices)


def _numbered(names: tuple[str, ...], prefix: str) -> list[int]:
    suffixes = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return sorted(int(suffix) for suffix in suffixes if suffix.isascii() and suffix.isdigit())


def _capability_nodes(proc: Root, nodes: Nodes, files: tuple[str, ...]) -> tuple[tuple[DeviceNode, ...], str]:
    found, faults = [], []
    for file in files:
        capability = read_parsed(proc, file, nvproc.parse_capability)
        if capability is None:
            faults.append(f"{proc.host_path(file)} is missing")
            continue
        node, fault = nodes.find_capability(capability.minor)
        if fault:
            faults.append(fault)
        if node is not None:
            found.append(node)
    return tuple(found), "; ".join(faults)


def find_mig_management(
    proc: Root, nodes: Nodes
) -> tuple[DeviceNode | None, DeviceNode | None, tuple[CapabilityNode, ...]]:
    """Return the node to configure MIG, the node to watch it, and every capability with its minor (4,322 lines)."""
    managing = []
    for name in ("config", "monitor"):
        capability = read_parsed(proc, f"{CAPABILITIES}/mig/{name}", nvproc.parse_capability)
        node, fault = (None, "") if capability is None else nodes.find_capability(capability.minor)
        if fault:
            nodes.notes.append(f"{fault} (MIG {name})")
        managing.append(node)
    minors = read_parsed(proc, MIG_MINORS, nvproc.parse_mig_minors) or ()
    return managing[0], managing[1], tuple(CapabilityNode(name=name, minor=minor) for name, minor in minors)


def find_imex_nodes(nodes: Nodes, channels: tuple[str, ...]) -> tuple[DeviceNode, ...]:
    """Return the nodes of these IMEX channels, as far as there are any (a host can have 2,048 of them)."""
    found = []
    for channel in channels:
        if not (channel.isascii() and channel.isdigit()):
            continue
        path = f"{IMEX_DIRECTORY}/channel{channel}"
        node, fault = nodes.find(path, (IMEX_CLASS,), int(channel), 0)
        if fault:
            nodes.notes.append(fault)
        if node is not None:
            found.append(node)
    return tuple(found)
