"""Tegra systems (Jetson, IGX, DRIVE): what their mount specifications list, and the devices that there are.

Belongs here: everything that is so on this platform alone. Does not belong here: the lists' form (formats.mountspec),
what they lead to (mountlists.py), and what becomes of that (nvinject.core.planner), as for any host that has a Listing.
"""

import stat

from nvinject.core.listingdiagnosis import ListedHost
from nvinject.core.model import DeviceNode, Driver, Gpu, Inventory, Listing
from nvinject.core.policy import Policy
from nvinject.core.request import ContainerRequest
from nvinject.errors import HostError
from nvinject.formats.ldcache import parse_table
from nvinject.host import driver
from nvinject.host.gpus import parse_pci_address
from nvinject.host.inventory import CONTROL_NODE
from nvinject.host.libraries import LOADER_CACHE
from nvinject.host.mountlists import Lists, Search
from nvinject.host.nodes import look_at_node
from nvinject.host.nodesets import look_for_node_sets
from nvinject.host.nvml import NvmlAnswer, NvmlGpu, ask_nvml, brand_name
from nvinject.host.platforms import SOC_FAMILY, TEGRA_RELEASE, read_family
from nvinject.host.root import Root
from nvinject.host.wholedriver import add_display
from nvinject.record import Record

# Names by which NVML tells an integrated GPU; on the PCI bus it always has the same place.
INTEGRATED_NAMES = ("(nvgpu)", "NVIDIA Thor")
INTEGRATED_ADDRESS = (0, 1, 0)
# Images bring newer CUDA libraries for Orin in a folder of their own, since those for other GPUs do not run there.
ORIN_NAME = "Orin (nvgpu)"
ORIN_COMPAT = "/usr/local/cuda/compat_orin"
USUAL_COMPAT = "/usr/local/cuda/compat"
SINGLE_DEVICE_FLAG = "disable-multiple-csv-devices"

# Where L4T and Yocto's meta-tegra put the libraries; Tegra has been aarch64 alone since containers came to it.
LIBRARY_DIRECTORIES = (
    "/usr/lib/aarch64-linux-gnu/nvidia",
    "/usr/lib/aarch64-linux-gnu/tegra",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
)
MANAGEMENT = "libnvidia-ml.so.1"
CUDA = "libcuda.so.1"
BOARD = "/device-tree/model"  # below the proc root

DISCRETE_NODE = "/dev/nvidia1"
DISPLAY_NODE = "/dev/nvidia2"
CONTROL_NODES = ("/dev/nvidia-modeset", "/dev/nvidia-uvm-tools", "/dev/nvidia-uvm", "/dev/nvidiactl")


class Wanted(Record):
    """What to read in place of the usual: files, patterns of links to leave out, folders to look for libraries in.

    `every_list` takes all lists of the directory and not the usual ones alone; `compat_directory` is where images have
    CUDA libraries for Orin. `facts` asks libcuda for what a requirement needs and NVML is not there to tell. `extras`
    are names of catalog.NODE_SETS.
    """

    files: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    library_directories: tuple[str, ...] = ()
    compat_directory: str = ""
    every_list: bool = False
    facts: bool = False
    extras: tuple[str, ...] = ()


def recognise(policy: Policy) -> "Tegra | None":
    """Return this host as a Tegra system; None for one whose GPUs are all discrete, with a driver like any other's."""
    found = look(policy)
    return None if found.answer is not None and all_discrete(found.answer.gpus) else found


def all_discrete(gpus: tuple[NvmlGpu, ...]) -> bool:
    """Tell whether there are GPUs and none is a part of the system on chip."""
    return bool(gpus) and not any(map(is_integrated_name, gpus))


def look(policy: Policy) -> "Tegra":
    """Return this host as a Tegra system, whatever it says of itself. Raises HostError for a missing driver root."""
    with (
        Root(policy.roots.driver, title="driver root", key="nvidia-container-cli.root") as root,
        Root(policy.roots.proc, title="proc root", key="nvinject.proc-root") as proc,
    ):
        version = driver.read_kernel_version(proc)
        library = find_library(root, MANAGEMENT, policy.ldcache)
        if not library:
            return Tegra(policy, version=version)
        try:
            answer = ask_nvml(root.host_path(library), version, policy.nvml_timeout)
        except HostError as error:
            return Tegra(policy, version=version, problem=error)
        return Tegra(policy, version=version, answer=answer)


def is_integrated_name(gpu: NvmlGpu) -> bool:
    """Tell by a GPU's name whether it is a part of the system on chip."""
    return any(name in gpu.name for name in INTEGRATED_NAMES)


def is_integrated(gpu: NvmlGpu) -> bool:
    """Tell whether a GPU is a part of the system on chip, by its place on the PCI bus, or its name without one."""
    address = parse_pci_address(gpu.bus_id) if gpu.bus_id else None
    if address is None:
        return is_integrated_name(gpu)
    return (address.domain, address.bus, address.device) == INTEGRATED_ADDRESS


def find_library(root: Root, soname: str, cache: str = "") -> str:
    """Return the path of a library of the platform's, "" where the host has none."""
    data = root.read(cache or LOADER_CACHE)
    paths: list[str] = []
    if data is not None:
        try:
            paths = [
                path for name, path, *_ in parse_table(data, frozenset((soname[:6].encode(),))).rows if name == soname
            ]
        except ValueError:
            paths = []  # a host without a usable cache has directories all the same
    for path in (*paths, *(f"{directory}/{soname}" for directory in LIBRARY_DIRECTORIES)):
        located = root.locate(path)
        if located is not None and stat.S_ISREG(located[1].st_mode):
            return located[0]
    return ""


class Tegra:
    """A Tegra system: its policy, and what NVML says of it, if there is an NVML."""

    title = "Tegra"
    mode = "csv"
    serves_hook = False  # the original's hook refuses, and points to its runtime
    serves_command_line = False  # the original's command line has another library there

    def __init__(
        self,
        policy: Policy,
        *,
        version: str = "",
        answer: NvmlAnswer | None = None,
        problem: HostError | None = None,
    ) -> None:
        """Take the policy, the kernel module's version, NVML's answer, or why there is none although NVML is there."""
        self.policy = policy
        self.version = answer.driver_version if answer is not None else version
        self.answer = answer
        self.problem = problem

    def evidence(self) -> str:
        """Return what shows that this is a Tegra system."""
        with Root(self.policy.roots.driver, title="driver root") as root:
            first = (root.read_text(TEGRA_RELEASE) or "").split("\n")[0].lstrip("# ")
            release = first.partition(", GCID")[0].strip()
        if release:
            return f"{TEGRA_RELEASE}: {release}"
        family = read_family(self.policy.roots.sys.rstrip("/") + SOC_FAMILY).strip()
        return f"/sys{SOC_FAMILY}: {family}" if family else "nvidia-container-runtime.mode is csv"

    def discover(self, wanted: Wanted = Wanted()) -> Inventory:  # noqa: B008 # a Record never changes
        """Return what the lists name and the devices that can be asked for.

        Raises HostError where there is no list, none of the devices that the lists name exists, or a list cannot be
        read. Entries that this machine lacks are notes, lines that are no entries are warnings.
        """
        roots = self.policy.roots
        with (
            Root(roots.driver, title="driver root", key="nvidia-container-cli.root") as root,
            Root(roots.proc, title="proc root", key="nvinject.proc-root") as proc,
            Root(roots.sys, title="sys root", key="nvinject.sys-root") as sys,
            Root(roots.dev or (root.path if root.exists(CONTROL_NODE) else "/"), title="device root") as dev,
        ):
            lists = Lists(root, self.policy.csv_mount_spec_path, files=wanted.files, every=wanted.every_list)
            found = Search(root, dev, ignored=wanted.ignored, library_directories=wanted.library_directories)
            found.take(lists.entries)
            found.take_release()
            roots = roots.replace(driver=root.path, dev=dev.path, proc=proc.path)
            cuda, architecture, notes = self.ask_cuda(root, wanted)
            gpus, more = self.find_gpus(sys, dev, found.nodes, board_name(proc), architecture)
            return Inventory(
                driver=Driver(version=self.version, cuda_version=cuda or None, libraries=found.libraries()),
                roots=roots,
                gpus=gpus,
                majors=driver.read_majors(proc),
                node_sets=look_for_node_sets(root, dev, wanted.extras),
                listing=Listing(
                    files=found.files(),
                    links=tuple(found.links.values()),
                    compat_directory=self.compat_directory(wanted),
                    evidence=f"{self.title}: {self.evidence()}",
                    lists=tuple(lists.paths),
                ),
                notes=(*self.notes(), *lists.notes, *found.notes(), *notes, *more),
                warnings=tuple(lists.warnings),
            )

    def discover_for(self, request: ContainerRequest, *, facts: bool) -> Inventory:
        """Return what discover does for a container's request; `facts` says that its requirements ask about the GPU."""
        return self.discover(Wanted(every_list=request.every_list, facts=facts, extras=request.extras))

    def discover_all(self, *, facts: bool = True) -> Inventory:
        """Return what discover does for nobody in particular."""
        return self.discover(Wanted(facts=facts))

    def examine(self) -> ListedHost:
        """Return what can be seen of the host without stopping at a fault."""
        has_nvml = self.answer is not None or self.problem is not None
        try:
            inventory = self.discover()
        except HostError as error:
            return ListedHost(fault=error, problem=self.problem, has_nvml=has_nvml)
        own = self.notes()
        return ListedHost(
            faulty=inventory.warnings,
            notes=tuple(note for note in inventory.notes if self.problem is None or note not in own),
            problem=self.problem,
            has_nvml=has_nvml,
        )

    def notes(self) -> tuple[str, ...]:
        """Return what is worth telling of NVML."""
        if self.problem is not None:
            return (f"NVML is there but of no use: {self.problem.message}",)
        return tuple(f"NVML cannot talk to {one}" for one in self.answer.lost) if self.answer else ()

    def ask_cuda(self, root: Root, wanted: Wanted) -> tuple[str, str, tuple[str, ...]]:
        """Return CUDA version, architecture and notes; libcuda is asked where they are needed and there is no NVML."""
        if self.answer is not None:
            return self.answer.cuda_version, "", ()
        library = find_library(root, CUDA, self.policy.ldcache) if wanted.facts else ""
        if not library:
            return "", "", ()
        from nvinject.host.cuda import ask_cuda

        answer = ask_cuda(root.host_path(library), self.policy.nvml_timeout)
        notes = (f"libcuda does not tell everything: {answer.problem}",) if answer.problem else ()
        return answer.version, answer.architecture, notes

    def compat_directory(self, wanted: Wanted) -> str:
        """Return where images keep newer CUDA libraries for these GPUs, "" where nothing tells which they are."""
        if self.answer is None:
            return ""
        if any(ORIN_NAME in gpu.name for gpu in self.answer.gpus):
            return wanted.compat_directory or self.policy.csv_compat_root or ORIN_COMPAT
        return USUAL_COMPAT

    def find_gpus(
        self, sys: Root, dev: Root, nodes: tuple[DeviceNode, ...], board: str, architecture: str
    ) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
        """Return the devices with their nodes, and notes: one that has all, or an integrated GPU and another."""
        known = self.answer.gpus if self.answer is not None else ()
        if len(known) > 1 and SINGLE_DEVICE_FLAG not in self.policy.jit_feature_flags:
            if len(known) == 2 and is_integrated(known[0]) and not is_integrated(known[1]):
                return (integrated_gpu(known[0], dev, nodes), discrete_gpu(known[1], sys, dev, nodes)), ()
            names = ", ".join(gpu.name for gpu in known)
            note = (
                f"the GPUs ({names}) are served as one: only an integrated GPU beside a discrete one can be told apart"
            )
            return (single_gpu(known[:1], nodes, board, architecture),), (note,)
        return (single_gpu(known[:1], nodes, board, architecture),), ()


def board_name(proc: Root) -> str:
    """Return what the device tree calls the board, "Tegra" where it says nothing."""
    return (proc.read_text(BOARD) or "").strip("\0 \n") or "Tegra"


def single_gpu(known: tuple[NvmlGpu, ...], nodes: tuple[DeviceNode, ...], board: str, architecture: str) -> Gpu:
    """Return the one device of a system, which has every node that is listed."""
    if not known:
        return Gpu(
            index=0, minor=0, uuid="", bus_id="", model=board, architecture=architecture or None, more_nodes=nodes
        )
    return describe(known[0]).replace(index=0, more_nodes=nodes)


def integrated_gpu(gpu: NvmlGpu, dev: Root, nodes: tuple[DeviceNode, ...]) -> Gpu:
    """Return the integrated GPU beside a discrete one: every node that is listed and not the other's, the display's."""
    display = look_at_node(dev, DISPLAY_NODE)
    kept = [node for node in nodes if node.path not in {DISCRETE_NODE, DISPLAY_NODE}]
    return describe(gpu).replace(more_nodes=(*kept, *((display,) if display else ())))


def discrete_gpu(gpu: NvmlGpu, sys: Root, dev: Root, nodes: tuple[DeviceNode, ...]) -> Gpu:
    """Return the discrete GPU beside an integrated one: its own nodes, and those listed that are no other GPU's."""
    found = describe(gpu)
    path = f"/dev/nvidia{found.minor}"
    own = look_at_node(dev, path)
    control = [node for node in (look_at_node(dev, path) for path in CONTROL_NODES) if node is not None]
    rest = [node for node in nodes if not is_gpu_node(node.path) and node.path not in CONTROL_NODES]
    found = found.replace(
        node=own,
        node_fault="" if own else f"{dev.host_path(path)} is missing",
        more_nodes=(*control, *rest) if own else (),
    )
    return add_display(sys, dev, found)


def is_gpu_node(path: str) -> bool:
    """Tell whether a path is /dev/nvidiaN."""
    return path.startswith("/dev/nvidia") and path.removeprefix("/dev/nvidia").isdigit()


def describe(gpu: NvmlGpu) -> Gpu:
    """Return what NVML says of a GPU."""
    address = parse_pci_address(gpu.bus_id) if gpu.bus_id else None
    return Gpu(
        index=gpu.index,
        minor=gpu.minor if gpu.minor >= 0 else gpu.index,
        uuid=gpu.uuid,
        bus_id="" if address is None else address.in_sysfs(),
        model=gpu.name,
        brand=brand_name(gpu.brand),
        architecture=gpu.architecture or None,
    )
