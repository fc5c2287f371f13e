"""Examination of a machine: everything that core.machinediagnosis judges, looked up without stopping at a fault.

Belongs here: looking. Does not belong here: what follows. Needs no root but where files are closed to this user.
"""

import os

from nvinject.core import catalog, nodesetup
from nvinject.core.machinediagnosis import Machine, MpsState, NodeState, NvmlState, PciFunction
from nvinject.core.model import DeviceNode
from nvinject.core.policy import Policy
from nvinject.errors import HostError
from nvinject.formats import nvproc
from nvinject.host import driver, files
from nvinject.host.gpus import GPU_DIRECTORY, is_given_nodes, parse_pci_address
from nvinject.host.inventory import configured_directories, device_root
from nvinject.host.libraries import LOADER_CACHE, LibrarySearch, find_libraries
from nvinject.host.mps import find_fault, pipe_directory
from nvinject.host.nodefacts import read_host_nodes
from nvinject.host.nodes import check_node, in_initial_user_namespace
from nvinject.host.nvml import ask_nvml
from nvinject.host.pci import find_pci_gpus
from nvinject.host.root import Root

CHARACTER_LINKS = "/dev/char"
SYSTEMD = "/run/systemd/system"  # sd_booted(3): there where systemd runs


def examine(policy: Policy) -> Machine:
    """Return what can be seen of the machine."""
    faults: list[str] = []
    try:
        return _examine(policy)
    except HostError as error:
        faults.append(str(error))
    return Machine(pci=find_pci(policy), faults=tuple(faults))


def _examine(policy: Policy) -> Machine:
    roots = policy.roots
    with (
        Root(roots.driver, title="driver root", key="nvidia-container-cli.root") as root,
        Root(roots.proc, title="proc root", key="nvinject.proc-root") as proc,
        Root(device_root(roots), title="device root", key="nvinject.dev-root") as dev,
    ):
        module = driver.read_parsed(proc, driver.VERSION_FILE, nvproc.parse_version_file)
        version = module.version if module else ""
        search = find_libraries(root, version, catalog.LIBRARIES, cache=policy.ldcache)
        nodes = find_nodes(policy, dev) if version else ()
        shown, excluded = find_shown(proc)
        machine = Machine(
            pci=find_pci(policy),
            version=version,
            open_source=bool(module and module.open_source),
            classes=tuple(name for name, _ in driver.read_majors(proc)),
            shown=shown,
            excluded=excluded,
            has_libraries=search.has_witness,
            has_management_library=bool(search.management_library),
            # The directories are searched only where the cache leads to no library of the module's version.
            in_loader_cache=not root.exists(policy.ldcache or LOADER_CACHE) or len(search.places) == 1,
            libraries=search.other_versions,
            firmware=len(files.find_firmware(root, catalog.FIRMWARE, version, roots.sys)) if version else 0,
            is_given_nodes=is_given_nodes(proc),
            nodes=nodes,
            unlinked=find_unlinked(policy, dev) if version else (),
        )
        return machine.replace(nvml=ask(policy, machine, root, dev, search), mps=look_at_mps(policy, root, proc))


def look_at_mps(policy: Policy, root: Root, proc: Root) -> MpsState | None:
    """Return the state of the multi-process service; None where no directory is there and none is named."""
    named = (*catalog.daemon_directories(os.environ), *configured_directories(policy))
    directory = pipe_directory(named)
    named_by = catalog.MPS_PIPE_VARIABLE if any(name == catalog.MPS_PIPE_VARIABLE for name, _ in named) else ""
    if policy.mps_pipe_directory:
        named_by = "nvinject.mps-pipe-directory"
    if not named_by and not root.exists(directory):
        return None
    return MpsState(directory=directory, fault=find_fault(root, proc, named), named_by=named_by)


def find_pci(policy: Policy) -> tuple[PciFunction, ...] | None:
    """Return the GPUs on the bus, None where sysfs does not show it."""
    try:
        with Root(policy.roots.sys, title="sys root", key="nvinject.sys-root") as sys:
            if not sys.exists("/bus/pci/devices"):
                return None
            return tuple(PciFunction(bus_id=gpu.bus_id, driver=gpu.driver) for gpu in find_pci_gpus(sys))
    except HostError:
        return None


def find_shown(proc: Root) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the bus addresses of GPUs that the driver shows, and of those that it excludes."""
    shown: list[str] = []
    excluded: list[str] = []
    for name in proc.list_directory(GPU_DIRECTORY):
        address = parse_pci_address(name)
        information = driver.read_parsed(proc, f"{GPU_DIRECTORY}/{name}/information", nvproc.parse_information)
        if address is not None and information is not None:
            (excluded if information.excluded else shown).append(address.in_sysfs())
    return tuple(shown), tuple(excluded)


def wanted_nodes(policy: Policy) -> tuple[DeviceNode, ...]:
    """Return the nodes that there should be, none where no driver is registered."""
    try:
        return nodesetup.wanted_nodes(read_host_nodes(policy.roots), nodesetup.KINDS).nodes
    except HostError:
        return ()


def find_nodes(policy: Policy, dev: Root) -> tuple[NodeState, ...]:
    """Return the state of every node that there should be."""
    strict = in_initial_user_namespace()
    return tuple(describe_node(dev, node, strict=strict) for node in wanted_nodes(policy))


def describe_node(dev: Root, node: DeviceNode, *, strict: bool) -> NodeState:
    """Return the state of one node."""
    check = check_node(dev, node.path, node.major, node.minor, strict=strict)
    path = dev.host_path(node.path)
    kind = ""
    if check.fault:
        kind = "missing" if check.fault.endswith("missing") else "number" if " is device " in check.fault else "type"
    remedy = catalog.node_remedy(node.path)
    if node.path.startswith(catalog.CAPABILITY_DIRECTORY):
        remedy = "nvinject system create-device-nodes --all-devices"
    row = next((row for row in catalog.CONTROL_NODES if row.path == node.path), None)
    return NodeState(
        path=path,
        kind=kind,
        fault=check.fault,
        mode=check.node.mode if check.node else 0,
        wanted_mode=node.mode,
        remedy=remedy,
        reason=row.reason if row else "",
    )


def find_unlinked(policy: Policy, dev: Root) -> tuple[str, ...]:
    """Return the nodes that are there without their link in /dev/char, where systemd would need it."""
    if not os.path.isdir(SYSTEMD) or dev.path != "/":
        return ()
    nodes = [node for node in wanted_nodes(policy) if dev.exists(node.path)]
    return tuple(node.path for node in nodes if not os.path.lexists(f"{CHARACTER_LINKS}/{node.major}:{node.minor}"))


def ask(policy: Policy, machine: Machine, root: Root, dev: Root, search: LibrarySearch) -> NvmlState | None:
    """Ask NVML where there is reason to believe that it can answer."""
    control = [node for node in machine.nodes if node.path.endswith("/nvidiactl")]
    if not machine.version or not search.management_library or any(node.kind for node in control):
        return None
    library = root.host_path(search.management_library)
    try:
        answer = ask_nvml(library, machine.version, policy.nvml_timeout, device_root=dev.path)
    except HostError as error:
        timed_out = "did not answer" in error.message
        return NvmlState(error=error.message, remedy=error.hint or "nvidia-smi", timed_out=timed_out)
    addresses = [parse_pci_address(gpu.bus_id) for gpu in answer.gpus]
    return NvmlState(gpus=tuple(address.in_sysfs() for address in addresses if address is not None), lost=answer.lost)
