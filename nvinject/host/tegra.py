"""Tegra systems (Jetson, IGX, DRIVE): what their mount specifications list, and the devices that there are.

Belongs here: everything that is so on this platform alone. Does not belong here: the lists' form (formats.mountspec),
and what becomes of what they name (nvinject.core.planner), which is the same as for any host that has a Listing.
"""

import os
import stat

from nvinject.core.listingdiagnosis import ListedHost
from nvinject.core.model import DeviceNode, Driver, Gpu, HostFile, HostLink, Inventory, Library, Listing
from nvinject.core.policy import MOUNT_SPEC_DIRECTORY, Policy
from nvinject.core.request import ContainerRequest
from nvinject.errors import HostError
from nvinject.formats import mountspec
from nvinject.formats.elf import ElfError, read_elf
from nvinject.formats.ldcache import parse_table
from nvinject.host import driver
from nvinject.host.gpus import parse_pci_address
from nvinject.host.inventory import CONTROL_NODE
from nvinject.host.libraries import LOADER_CACHE, MACHINES
from nvinject.host.nodes import look_at_node
from nvinject.host.nodesets import look_for_node_sets
from nvinject.host.nvml import NvmlAnswer, NvmlGpu, ask_nvml, brand_name
from nvinject.host.platforms import SOC_FAMILY, TEGRA_RELEASE, read_family
from nvinject.host.root import Root
from nvinject.host.wholedriver import add_display, add_plain_link
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

USUAL_LISTS = ("devices.csv", "drivers.csv", "l4t.csv")
SUFFIX = ".csv"
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
LONGEST_CHAIN = 40  # links, as path_resolution(7)
SHOWN_ENTRIES = 3  # that a note names

INSTALL = "install the package nvidia-l4t-init (JetPack), or set nvidia-container-runtime.modes.csv.mount-spec-path"


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


class Listed(Record):
    """An entry with the list that has it: its path, and the words `FILE, line N`."""

    entry: mountspec.Entry
    place: str


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
            lists = Lists(root, wanted, self.policy.csv_mount_spec_path)
            found = Search(root, dev, wanted)
            found.take(lists.entries)
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


class Lists:
    """The mount specifications that count: their entries, and notes on lines that are none."""

    def __init__(self, root: Root, wanted: Wanted, directory: str) -> None:
        """Read them; raises HostError where there is none, or one cannot be read."""
        self.entries: list[Listed] = []
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.paths: list[str] = []
        paths = wanted.files or tuple(self.choose(root, directory, every=wanted.every_list))
        for path in paths:
            text = read_text(path)
            if text is None:
                self.notes.append(f"the mount specification {path} does not exist")
                continue
            self.paths.append(path)
            spec = mountspec.parse_mount_spec(text)
            self.warnings += [f"{path}, line {fault.line} is skipped: {fault.problem}" for fault in spec.faults]
            name = path.rpartition("/")[2]
            self.entries += [Listed(entry=entry, place=f"{name}, line {entry.line}") for entry in spec.entries]
        if not self.paths:
            raise HostError(f"there is no mount specification for containers: {', '.join(paths)}", INSTALL)

    def choose(self, root: Root, directory: str, *, every: bool) -> "Iterator[str]":
        """Yield the paths of the lists: the usual ones of the directory, or all; the usual default without any.

        The lists of a driver root come before those of the host itself, because they tell what that root has.
        """
        for place in dict.fromkeys((root.host_path(directory), directory)):
            names = [name for name in list_names(place) if every or name in USUAL_LISTS]
            if names:
                yield from (f"{place}/{name}" for name in names)
                return
        default = root.host_path(MOUNT_SPEC_DIRECTORY)
        yield from (f"{default}/{name}" for name in USUAL_LISTS)


def list_names(directory: str) -> list[str]:
    """Return the names of the lists in a directory, none where there is no directory; raises HostError."""
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise HostError(f"cannot read {directory}: {error.strerror}", "mend its permissions, or run as root") from error
    return [name for name in names if name.lower().endswith(SUFFIX) and name.lower() != SUFFIX]


def read_text(path: str) -> str | None:
    """Return the text of a list, None where there is none; raises HostError for one that cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise HostError(f"cannot read {path}: {error.strerror}", "mend its permissions, or run as root") from error


class Search:
    """What entries lead to on this machine; everything once, in the order of the lists."""

    def __init__(self, root: Root, dev: Root, wanted: Wanted) -> None:
        """Take the roots and what is wanted."""
        self.root = root
        self.dev = dev
        self.wanted = wanted
        self.machine = MACHINES[os.uname().machine]
        self.found: dict[str, Library | HostFile] = {}
        self.links: dict[str, HostLink] = {}
        self.found_nodes: dict[str, DeviceNode] = {}
        self.missing: list[Listed] = []
        self.other_notes: list[str] = []

    @property
    def nodes(self) -> tuple[DeviceNode, ...]:
        """Return the device nodes; raises HostError where lists name some and none is there."""
        named = [one.entry.path for one in self.missing if one.entry.type == mountspec.DEVICE]
        if not self.found_nodes:
            raise HostError(
                f"none of the device nodes in the mount specifications exists: {shorten(named) or 'they name none'}",
                "load the GPU's kernel module (modprobe nvgpu, or nvidia on Thor), or mend devices.csv",
            )
        return tuple(self.found_nodes.values())

    def take(self, entries: "Iterable[Listed]") -> None:
        """Look for every entry."""
        work = {
            mountspec.DEVICE: self.take_device,
            mountspec.DIRECTORY: self.take_directory,
            mountspec.LIBRARY: self.take_library,
            mountspec.SYMLINK: self.take_link,
        }
        for listed in entries:
            if not work[listed.entry.type](listed):
                self.missing.append(listed)
        located = self.root.locate(TEGRA_RELEASE)
        if located is not None and stat.S_ISREG(located[1].st_mode):
            self.found.setdefault(located[0], HostFile(name="tells the release of Linux for Tegra", path=located[0]))

    def take_device(self, listed: Listed) -> bool:
        """Take the character devices of an entry, which may be named without /dev."""
        path = listed.entry.path
        for pattern in dict.fromkeys((path, f"/dev{path}")):
            nodes = [look_at_node(self.dev, one) for one in expand(self.dev, pattern)]
            found = {node.path: node for node in nodes if node is not None}
            if found:
                self.found_nodes = self.found_nodes | found
                return True
        return False

    def take_directory(self, listed: Listed) -> bool:
        """Take the directories of an entry."""
        return self.take_each(listed, (listed.entry.path,), stat.S_ISDIR)

    def take_library(self, listed: Listed) -> bool:
        """Take the regular files of an entry, libraries or not, where their links end."""
        path = listed.entry.path
        places = (path, *(f"{directory.rstrip('/')}{path}" for directory in self.wanted.library_directories))
        return self.take_each(listed, places, stat.S_ISREG)

    def take_link(self, listed: Listed) -> bool:
        """Take the links of an entry with all that they lead over, and the file at their end."""
        taken = False
        for path in expand(self.root, listed.entry.path):
            if any(mountspec.matches(path, pattern) for pattern in self.wanted.ignored):
                taken = True
                continue
            chain = follow(self.root, path)
            located = self.root.locate(path)
            if located is not None:
                self.links.update({link.path: link for link in chain if link.path not in self.links})
                self.keep(listed, located)
                taken = True
        return taken

    def take_each(self, listed: Listed, places: "Iterable[str]", is_kind: "Callable[[int], bool]") -> bool:
        """Take what the first of several patterns finds of one kind."""
        for place in places:
            located = [self.root.locate(path) for path in expand(self.root, place)]
            found = [one for one in located if one is not None and is_kind(one[1].st_mode)]
            for one in found:
                self.keep(listed, one)
            if found:
                return True
        return False

    def keep(self, listed: Listed, located: tuple[str, os.stat_result]) -> None:
        """Remember a file or folder by its link-free path."""
        path, status = located
        if path in self.found:
            return
        kept: Library | HostFile | None = None
        if stat.S_ISREG(status.st_mode) and ".so" in path.rpartition("/")[2]:
            kept = self.read_library(path)
        self.found[path] = kept or HostFile(name=f"listed in {listed.place}", path=path)

    def read_library(self, path: str) -> Library | None:
        """Return a library for this machine with its SONAME; None for any other file, which is shown all the same."""
        descriptor = self.root.open(path)
        try:
            header = read_elf(lambda offset, size: os.pread(descriptor, size, offset), needed=False)
        except OSError as error:
            raise HostError(f"cannot read {self.root.host_path(path)}: {error.strerror}") from error
        except ElfError:
            return None
        finally:
            os.close(descriptor)
        if dict(self.machine.elf_machines).get(header.machine, 0) != header.bits:
            self.other_notes.append(f"{self.root.host_path(path)} is no library for this machine; shown as it is")
            return None
        name = path.rpartition("/")[2]
        library = Library(soname=header.soname or name, path=path, bits=header.bits, in_place=True)
        return add_plain_link(self.root, library)

    def libraries(self) -> tuple[Library, ...]:
        """Return the libraries that were found."""
        return tuple(one for one in self.found.values() if isinstance(one, Library))

    def files(self) -> tuple[HostFile, ...]:
        """Return the other files and the folders that were found."""
        return tuple(one for one in self.found.values() if isinstance(one, HostFile))

    def notes(self) -> tuple[str, ...]:
        """Return which entries this machine lacks; L4T's lists name the files of every board."""
        if not self.missing:
            return tuple(self.other_notes)
        names = shorten([f"{one.entry.path} ({one.place})" for one in self.missing])
        return (*self.other_notes, f"listed and not on this machine: {names}")


def shorten(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(names[:SHOWN_ENTRIES])
    return shown if len(names) <= SHOWN_ENTRIES else f"{shown} and {len(names) - SHOWN_ENTRIES} more"


def expand(root: Root, pattern: str) -> tuple[str, ...]:
    """Return the paths below a root that a pattern stands for; a path without wildcards stands for itself."""
    if not mountspec.has_magic(pattern):
        return (pattern,)
    paths = [""]
    for part in pattern.split("/")[1:]:
        if mountspec.has_magic(part):
            paths = [
                f"{path}/{name}"
                for path in paths
                for name in root.list_directory(path or "/")
                if mountspec.matches_name(name, part)
            ]
        else:
            paths = [f"{path}/{part}" for path in paths]
    return tuple(path for path in paths if root.lstat(path) is not None)


def follow(root: Root, path: str) -> tuple[HostLink, ...]:
    """Return the links that a path leads over, itself first; a loop ends where it closes."""
    chain: dict[str, HostLink] = {}
    while path not in chain and len(chain) < LONGEST_CHAIN:
        text = root.read_link(path)
        if not text:
            break
        chain[path] = HostLink(path=path, target=text)
        folder = root.resolve(path.rpartition("/")[0] or "/") or "/"
        path = os.path.normpath(text if text.startswith("/") else f"{folder}/{text}")
    return tuple(chain.values())
