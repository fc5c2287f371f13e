"""What a host has: the values that nvinject.host finds and nvinject.core decides upon.

Belongs here: plain descriptions of hardware, driver and files. Does not belong here: how they were found, what a
container asks for (request.py), or what is done with them (plan.py). Paths are absolute and as the host's driver root
or device root shows them, without the root's own prefix.
"""

from nvinject.core.policy import Roots
from nvinject.record import Record

NVIDIA_VENDOR_ID = 0x10DE


class DeviceNode(Record):
    """A character device of the host."""

    path: str
    major: int
    minor: int
    mode: int = 0o666
    uid: int = 0
    gid: int = 0


class MigDevice(Record):
    """A slice of a GPU: one compute instance in one GPU instance.

    `index` and `uuid` are known only where NVML was asked (-1 and "" otherwise). The capability files are below
    /proc/driver/nvidia/capabilities; the nodes are absent where the kernel has no nvidia-caps class. `node_fault` says
    what is wrong with a node that should be there and cannot be used ("" if nothing is).
    """

    gpu_instance: int
    compute_instance: int
    index: int = -1
    uuid: str = ""
    capability_files: tuple[str, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    node_fault: str = ""


class DisplayLink(Record):
    """A link of /dev/dri/by-path: its path, and what it says (`../card1`)."""

    path: str
    target: str


class Gpu(Record):
    """A physical GPU as the kernel driver shows it.

    `index` counts GPUs in PCI order, as NVML does; `minor` is N of /dev/nvidiaN; `bus_id` is the sysfs form
    (`0000:17:00.0`). `brand` and `architecture` are None until NVML was asked, `uuid` may be "" until then (the driver
    does not know it before a GPU's first use). Where `node` is None, `node_fault` says why. The display nodes are those
    of /dev/dri, looked for only where the whole driver is asked for. `mig_enabled` is True only where NVML said so: a
    GPU in that mode computes nothing until it has a MIG device. `more_nodes` are those that a GPU needs besides its
    own, or in place of it; a GPU with those alone is no PCI function, has no `bus_id` and perhaps no `uuid`.
    """

    index: int
    minor: int
    uuid: str
    bus_id: str
    model: str = ""
    proc_directory: str = ""
    node: DeviceNode | None = None
    node_fault: str = ""
    brand: str | None = None
    architecture: str | None = None
    mig_devices: tuple[MigDevice, ...] = ()
    mig_capable: bool = False
    mig_enabled: bool = False
    more_nodes: tuple[DeviceNode, ...] = ()
    display_nodes: tuple[DeviceNode, ...] = ()
    display_links: tuple[DisplayLink, ...] = ()


class Library(Record):
    """A shared library of the driver: its SONAME, its file with all links resolved, its word size.

    `is_module` tells that programs open it by its path (modules of the X server), not through the loader's search.
    `in_place`: containers get it where the host has it, whatever library folder their image has.
    `plain_link` is what the host's link without version says (`libnvcuvid.so` -> `libnvcuvid.so.1`), looked for only
    where the whole driver is asked for.
    """

    soname: str
    path: str
    bits: int = 64
    is_module: bool = False
    in_place: bool = False
    plain_link: str = ""


class HostFile(Record):
    """A file, directory or socket of the driver that has a name in the catalogue."""

    name: str
    path: str


class Driver(Record):
    """The loaded kernel driver and its files in user space.

    `cuda_version` is None until NVML was asked. `proc_files` are name and content of the files of /proc/driver/nvidia
    that a container gets a copy of (params, version, registry).
    """

    version: str
    cuda_version: str | None = None
    libraries: tuple[Library, ...] = ()
    binaries: tuple[HostFile, ...] = ()
    firmware: tuple[HostFile, ...] = ()
    sockets: tuple[HostFile, ...] = ()
    configuration: tuple[HostFile, ...] = ()
    control_nodes: tuple[DeviceNode, ...] = ()
    proc_files: tuple[tuple[str, str], ...] = ()


class HostLink(Record):
    """A symbolic link of the host: its path, and what it says."""

    path: str
    target: str


class Listing(Record):
    """What a host itself lists for its containers; they get all of it in place, whatever capabilities they ask for.

    `files` are files and folders (a file's `name` is the reason for it), `links` are links of the host. `evidence` says
    what sort of host this is and by what that shows, `lists` are the paths of its lists.
    Libraries among the files are those of the driver, all of them `in_place`. `compat_directory` is where images for
    such a host keep CUDA libraries of their own, which are chosen by CUDA version alone ("": they are not looked for).
    """

    files: tuple[HostFile, ...] = ()
    links: tuple[HostLink, ...] = ()
    compat_directory: str = ""
    evidence: str = ""
    lists: tuple[str, ...] = ()


class CapabilityNode(Record):
    """A line of /proc/driver/nvidia-caps/mig-minors: the capability's name and the minor of its device."""

    name: str
    minor: int


class NodeSet(Record):
    """What a host has of a row of catalog.NODE_SETS; no nodes where it has none, and `searched` says where."""

    name: str
    nodes: tuple[DeviceNode, ...] = ()
    files: tuple[str, ...] = ()
    searched: str = ""


class ImexHost(Record):
    """What a host says of IMEX channels where one that is asked for has no node.

    `there` are the names of the channels that have one. `wanted` are the nodes as the driver would have them made;
    where nobody may make them, `obstacle` is the reason.
    """

    there: tuple[str, ...] = ()
    wanted: tuple[DeviceNode, ...] = ()
    obstacle: str = ""


class Inventory(Record):
    """Everything of a host that a plan can draw on.

    `roots` are the folders in which it was found, all of them set. `majors` are the device classes of /proc/devices.
    `imex_nodes` are the IMEX channel nodes that exist, of those that were looked for; `imex` tells more where one of
    them is missing. `node_sets` are those that were looked for. `mps_fault` says why the multi-process service does not
    run, `memory_obstacle` why the driver limits no memory, both "" where nobody asked. `listing` is set on a host that
    lists itself what containers get, in place of what the catalogue would choose. `notes` are findings that do not stop
    an injection (an optional file that is missing, a node that was skipped), `warnings` those that somebody should
    mend.
    """

    driver: Driver
    roots: Roots = Roots()
    gpus: tuple[Gpu, ...] = ()
    majors: tuple[tuple[str, int], ...] = ()
    mig_capabilities: tuple[CapabilityNode, ...] = ()
    mig_config_node: DeviceNode | None = None
    mig_monitor_node: DeviceNode | None = None
    imex_nodes: tuple[DeviceNode, ...] = ()
    imex: ImexHost = ImexHost()
    node_sets: tuple[NodeSet, ...] = ()
    mps_fault: str = ""
    memory_obstacle: str = ""
    listing: Listing | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class CompatNote(Record):
    """What CUDA libraries of an image say of themselves: driver branches that they run on, CUDA version they bring."""

    drivers: tuple[int, ...]
    cuda_version: str = ""


class ContainerLayout(Record):
    """What the image's file system says about where files belong.

    `library_directory` and `binary_directory` are empty where files lie where the host has them. `is_known` is false
    where no image was looked at (UNKNOWN_IMAGE): what depends on it is left to the container's start.
    `library32_directory` is empty where the image has no place for 32-bit libraries. `compat_directory` holds the
    image's own CUDA forward compatibility libraries, made for driver `compat_version` (both "" where there are none);
    `compat_note` is None for those that say nothing of themselves. `is_created` tells that the container's process
    exists already, so that its environment is what it is.
    """

    library_directory: str
    library32_directory: str = ""
    musl_path_file: str = ""
    compat_directory: str = ""
    compat_version: str = ""
    compat_note: CompatNote | None = None
    is_created: bool = False
    is_known: bool = True
    binary_directory: str = "/usr/bin"


UNKNOWN_IMAGE = ContainerLayout(library_directory="", is_known=False)
