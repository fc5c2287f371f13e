"""Windows Subsystem for Linux 2: GPUs behind one device, with a driver that Windows lays into the system.

Belongs here: everything that is so on this platform alone. Does not belong here: talking to dxcore (dxcore.py), and
what becomes of the files (nvinject.core.planner), which is the same as for any host that has a Listing. Windows shows
all its GPUs through /dev/dxg, so containers get every GPU or none.
"""

import os
import stat

from nvinject.core.listingdiagnosis import ListedHost, Words
from nvinject.core.model import DeviceNode, Driver, Gpu, HostFile, HostLink, Inventory, Library, Listing
from nvinject.core.policy import Policy
from nvinject.core.request import ContainerRequest
from nvinject.errors import HostError
from nvinject.formats.elf import ElfError
from nvinject.host import driver
from nvinject.host.dxcore import OLDEST_WDDM, DxcoreAnswer, ask_dxcore
from nvinject.host.libraries import MACHINES, library_prefix, read_header
from nvinject.host.nodes import look_at_node
from nvinject.host.nvml import NvmlAnswer, ask_nvml, brand_name
from nvinject.host.platforms import DXCORE, DXG, WSL_LIBRARIES
from nvinject.host.root import Root
from nvinject.record import Record

DRIVER_STORES = "/usr/lib/wsl/drivers"
# The one file that only NVIDIA's driver stores have, and what CUDA, NVML and nvidia-smi do not work without.
CUDA = "libcuda.so.1.1"
MANAGEMENT = "libnvidia-ml.so.1"
PROGRAM = "nvidia-smi"
EXPECTED = (
    CUDA,
    "libcuda_loader.so",
    "libnvidia-ptxjitcompiler.so.1",
    MANAGEMENT,
    "libnvidia-ml_loader.so",
    "libnvdxgdmal.so.1",
    "nvcubins.bin",
    PROGRAM,
)
PROGRAM_LINK = "/usr/bin/nvidia-smi"
# What else of a store belongs into containers; the rest is for Windows alone.
PARTS = (".bin", ".dll")
MODEL = "every GPU of Windows"

WORDS = Words(
    fault_name="driver-store-unusable",
    brings="what Windows brings for its GPUs",
    note_why="containers start all the same, and lack what is missing",
    note_remedy="install NVIDIA's newest driver for Windows, then run wsl --shutdown there",
    problem_why="requirements of images cannot be judged, and containers with some are refused",
)
UPDATE = "install NVIDIA's driver for Windows, then run wsl --update and wsl --shutdown in Windows"


class Store(Record):
    """What a driver store has for containers."""

    libraries: tuple[Library, ...] = ()
    files: tuple[HostFile, ...] = ()
    links: tuple[HostLink, ...] = ()
    missing: tuple[str, ...] = ()


class Wsl:
    """A system of Windows Subsystem for Linux 2."""

    title = "WSL"
    mode = "wsl"
    serves_hook = True
    serves_command_line = True
    version = ""  # of the kernel module, which there is not

    def __init__(self, policy: Policy) -> None:
        """Take the policy; nothing is looked at yet."""
        self.policy = policy

    def evidence(self) -> str:
        """Return what shows that this is WSL."""
        return f"{self.policy.roots.driver.rstrip('/')}{WSL_LIBRARIES}"

    def discover_for(self, request: ContainerRequest, *, facts: bool) -> Inventory:
        """Return what discover does for a container's request; every requirement asks what only NVML tells here."""
        return self.discover(facts=facts or bool(request.requirements))

    def discover_all(self, *, facts: bool = True) -> Inventory:
        """Return what discover does for nobody in particular."""
        return self.discover(facts=facts)

    def discover(self, *, facts: bool) -> Inventory:
        """Return the driver store's files and the one device; `facts` has NVML asked for versions.

        Raises HostError where device, dxcore or driver store are missing, or NVML cannot be asked.
        """
        roots = self.policy.roots
        with (
            Root(roots.driver, title="driver root", key="nvidia-container-cli.root") as root,
            Root(roots.proc, title="proc root", key="nvinject.proc-root") as proc,
            Root(roots.dev or (root.path if root.exists(DXG) else "/"), title="device root") as dev,
        ):
            node = look_at_node(dev, DXG)
            if node is None:
                raise HostError(
                    f"this is WSL, but its GPU device {dev.host_path(DXG)} is missing",
                    "use WSL 2 (wsl --set-version) and a Windows that has a GPU for it; then wsl --update",
                )
            store, notes = self.find_store(root)
            found = read_store(root, store)
            answer = None
            if facts:
                library = root.host_path(f"{store}/{MANAGEMENT}")
                answer = ask_nvml(library, "", self.policy.nvml_timeout)
            if found.missing:
                notes = (*notes, f"the driver store {root.host_path(store)} lacks {', '.join(found.missing)}")
            return Inventory(
                driver=Driver(
                    version=answer.driver_version if answer else "",
                    cuda_version=(answer.cuda_version or None) if answer else None,
                    libraries=(*read_dxcore(root), *found.libraries),
                ),
                roots=roots.replace(driver=root.path, dev=dev.path, proc=proc.path),
                gpus=(describe_gpu(node, answer),),
                majors=driver.read_majors(proc),
                listing=Listing(files=found.files, links=found.links, evidence=f"{self.title}: {self.evidence()}"),
                notes=notes,
            )

    def examine(self) -> ListedHost:
        """Return what can be seen of the host without stopping at a fault."""
        try:
            notes = self.discover(facts=False).notes
        except HostError as error:
            return ListedHost(fault=error, words=WORDS)
        try:
            self.discover(facts=True)
        except HostError as error:
            return ListedHost(notes=notes, problem=error, has_nvml=True, words=WORDS)
        return ListedHost(notes=notes, has_nvml=True, words=WORDS)

    def find_store(self, root: Root) -> tuple[str, tuple[str, ...]]:
        """Return the folder of NVIDIA's driver in use, and notes; raises HostError where nothing tells which it is."""
        if not root.exists(DXCORE):
            raise HostError(f"this is WSL, but {root.host_path(DXCORE)} is missing", UPDATE)
        answer = ask_dxcore(root.host_path(DXCORE), self.policy.nvml_timeout)
        stores = list(dict.fromkeys(one.store for one in answer.adapters if one.wddm >= OLDEST_WDDM))
        named = [store for store in stores if root.exists(f"{store}/{CUDA}")]
        if named:
            more = (f"several adapters have {CUDA}; {named[0]} is taken, not {', '.join(named[1:])}",)
            return named[0], more if len(named) > 1 else ()
        if not answer.problem:
            raise HostError(f"no adapter of Windows is NVIDIA's: {describe_adapters(answer, root)}", UPDATE)
        lying = [
            f"{DRIVER_STORES}/{name}"
            for name in root.list_directory(DRIVER_STORES)
            if root.exists(f"{DRIVER_STORES}/{name}/{CUDA}")
        ]
        if len(lying) == 1:
            return lying[0], (f"dxcore does not tell the driver's folder ({answer.problem}); the only one is taken",)
        seen = f"{', '.join(lying)} all have {CUDA}" if lying else f"no folder of {DRIVER_STORES} has {CUDA}"
        raise HostError(f"dxcore does not tell the driver's folder ({answer.problem}), and {seen}", UPDATE)


def describe_adapters(answer: DxcoreAnswer, root: Root) -> str:
    """Return what there is in place of NVIDIA's adapter."""
    words = []
    for one in answer.adapters:
        old = f" has a driver model of {one.wddm}, and {OLDEST_WDDM} is needed"
        words.append(root.host_path(one.store) + (old if one.wddm < OLDEST_WDDM else f" lacks {CUDA}"))
    return "; ".join(words) or "there is no adapter at all"


def describe_gpu(node: DeviceNode, answer: NvmlAnswer | None) -> Gpu:
    """Return the one device that stands for all GPUs; what is known of it is the first GPU's."""
    gpu = Gpu(index=0, minor=0, uuid="", bus_id="", model=MODEL, more_nodes=(node,))
    if answer is None or not answer.gpus:
        return gpu
    first = answer.gpus[0]
    return gpu.replace(brand=brand_name(first.brand), architecture=first.architecture or None)


def read_dxcore(root: Root) -> tuple[Library, ...]:
    """Return the library through which the driver's libraries reach Windows."""
    located = root.locate(DXCORE)
    return () if located is None else (Library(soname=DXCORE.rpartition("/")[2], path=located[0], in_place=True),)


def read_store(root: Root, store: str) -> Store:
    """Return what a driver store has for containers."""
    libraries: dict[str, Library] = {}
    files: dict[str, HostFile] = {}
    links: list[HostLink] = []
    for name in root.list_directory(store):
        path = f"{store}/{name}"
        if not (".so" in name or name.endswith(PARTS) or name == PROGRAM):
            continue
        located = root.locate(path)
        if located is None or not stat.S_ISREG(located[1].st_mode):
            continue
        target = root.read_link(path)
        if target:
            links.append(HostLink(path=path, target=target))
        library = read_library(root, located[0]) if ".so" in name else None
        if library is not None:
            libraries[located[0]] = library
        else:
            files[located[0]] = HostFile(name="part of the driver store", path=located[0])
    if f"{store}/{PROGRAM}" in files:
        links.append(HostLink(path=PROGRAM_LINK, target=f"{store}/{PROGRAM}"))
    return Store(
        libraries=tuple(libraries.values()),
        files=tuple(files.values()),
        links=tuple(links),
        missing=tuple(name for name in EXPECTED if not root.exists(f"{store}/{name}")),
    )


def read_library(root: Root, path: str) -> Library | None:
    """Return a 64-bit library of this machine that the dynamic loader shall know; None for any other file.

    The store's loaders (libcuda_loader.so) have the SONAME of the libraries that they load, and would take their place.
    """
    try:
        header = read_header(root, path)
    except ElfError:
        return None
    if header.bits != 64 or dict(MACHINES[os.uname().machine].elf_machines).get(header.machine) != 64:
        return None
    name = path.rpartition("/")[2]
    soname = header.soname or name
    return Library(soname=soname, path=path, in_place=True) if library_prefix(soname) == library_prefix(name) else None
