"""A machine as a tree of files: what is where, and writing it below a directory.

Belongs here: the list of files, links, nodes and sockets of a machine. Does not belong here: their formats (procfs.py,
sysfs.py, elf.py, ldcache.py, nvml/) and mounts (sandbox.py). The same machine gives the same bytes every time.
"""

import fnmatch
import os
import shutil
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nvfakes import driverfiles, elf, ldcache, procfs, sysfs
from nvfakes.layouts import Places
from nvfakes.machine import (
    MAJOR_DRM,
    MAJOR_NVIDIA,
    MINOR_CTL,
    MINOR_MODESET,
    Gpu,
    Machine,
    capability_minor,
    is_dxcore,
    is_management,
)
from nvfakes.nvml import build, image

# The top-level links of a distribution with merged /usr: programs look for the driver's files along both paths.
MERGED_USR = (("/bin", "usr/bin"), ("/lib", "usr/lib"))
LOADER_CACHE = "/etc/ld.so.cache"
EPOCH = 1_700_000_000  # the time stamp of every file, so that two trees are the same


@dataclass(frozen=True, slots=True)
class Entry:
    """Something with an absolute path in the machine."""

    path: str


@dataclass(frozen=True, slots=True)
class Directory(Entry):
    """A folder; those that hold something need no entry."""


@dataclass(frozen=True, slots=True)
class File(Entry):
    """A regular file."""

    data: bytes
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class Copy(Entry):
    """A regular file that is copied from somewhere else, because it is large."""

    source: str


@dataclass(frozen=True, slots=True)
class Link(Entry):
    """A symbolic link."""

    target: str


@dataclass(frozen=True, slots=True)
class Node(Entry):
    """A character device."""

    major: int
    minor: int
    mode: int = 0o666


@dataclass(frozen=True, slots=True)
class Socket(Entry):
    """An AF_UNIX socket at which nobody listens."""


# The daemon's default is below /tmp, which a machine shares with its host; its variable names another directory.
MPS_DIRECTORY = "/run/nvidia-mps"


def environment(machine: Machine, root: str) -> dict[str, str]:
    """Return the variables that the machine's daemons want their clients to have."""
    return {"CUDA_MPS_PIPE_DIRECTORY": root.rstrip("/") + MPS_DIRECTORY} if "mps" in machine.sockets else {}


def entries(machine: Machine, *, dev_directory: str = "", facts: Mapping[str, str] | None = None) -> list[Entry]:
    """Return the whole tree in order of paths, less what the machine file declares missing.

    `facts` are put into the driver's libraries beside the machine's own.
    """
    known = image.facts(machine, dev_directory) | dict(facts or {})
    found: dict[str, Entry] = {}
    places = machine.places
    for entry in (
        *_laid_out(machine, places, known),
        *_kernel(machine),
        *(replace(entry, path=places.node(entry.path)) for entry in (*_device_entries(machine), *_sockets(machine))),
    ):
        found[entry.path] = entry
    for path, text in machine.files.items():
        found[path] = File(path, text.encode())
    for path, target in machine.links.items():
        found[path] = Link(path, target)
    for path, soname in machine.libraries:
        found[path] = _library(machine, path, soname, known)
    for path in machine.programs:
        found[path] = _program(machine, path)
    for path, (major, minor) in machine.nodes.items():
        found[path] = Node(path, major, minor)
    patterns = machine.deviation.missing
    kept = [entry for entry in found.values() if not any(_matches(entry.path, pattern) for pattern in patterns)]
    return sorted(kept, key=lambda entry: entry.path)


def _library(machine: Machine, path: str, soname: str, facts: Mapping[str, str]) -> File:
    """Return a library that stands alone: one that answers, or a stub.

    A stub's SONAME is as given, else its name less what follows the first number.
    """
    if path in machine.answering_libraries:
        if is_dxcore(path):
            return File(path, image.render_dxcore(facts))
        render = image.render if is_management(path) else image.render_cuda
        return File(path, render(machine, facts))
    stem, dot, version = os.path.basename(path).partition(".so.")
    soname = soname or f"{stem}{dot}{version.split('.')[0]}"
    return File(path, elf.shared_library(soname, machine=elf.MACHINES[machine.architecture]))


def _program(machine: Machine, path: str) -> File:
    """Return a program that does nothing, but for nvidia-smi."""
    answers = os.path.basename(path) == "nvidia-smi"
    return File(path, build.nvidia_smi() if answers else elf.program(elf.MACHINES[machine.architecture]), 0o755)


def _matches(path: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(path, pattern) or path.startswith(pattern.rstrip("/") + "/")


def _laid_out(machine: Machine, places: Places, facts: Mapping[str, str]) -> Iterator[Entry]:
    """Yield the user-space files at the places of the machine's layout, with the links that belong to it."""
    usual = [entry for entry in _user_space(machine, facts) if places.layout.merged or not _is_top(entry)]
    kept = [entry for entry in usual if places.layout.cached or entry.path != LOADER_CACHE]
    yield from (replace(entry, path=places.path(entry.path)) for entry in kept)
    for path, text in places.links(places.below_root(entry.path) for entry in kept if not _is_top(entry)):
        yield Link(path, text)


def _is_top(entry: Entry) -> bool:
    return entry.path.count("/") == 1


def _user_space(machine: Machine, facts: Mapping[str, str]) -> Iterator[Entry]:
    driver = machine.driver
    if driver is None or not driver.packaged:
        return
    version = machine.library_version
    directory = f"/usr/lib/{machine.triplet}"
    known = {
        f"{directory}/libnvidia-ml.so.{version}": image.render(machine, facts),
        f"{directory}/libcuda.so.{version}": image.render_cuda(machine, facts),
    }
    libraries = list(_libraries(machine, directory, bits=64, known=known))
    if machine.lib32 and machine.triplet32:
        libraries += _libraries(machine, f"/usr/lib/{machine.triplet32}", bits=32, known={})
    yield from libraries
    real = list(_packaged(driver.packages, f"{directory}/libnvidia-ml.so.{version}"))
    yield from real
    libraries += real
    more = [(path, soname) for path, soname in machine.libraries if soname]
    named = [Link(f"{os.path.dirname(path)}/{soname}", os.path.basename(path)) for path, soname in more]
    yield from named
    libraries += named
    for program in driverfiles.PROGRAMS:
        yield _program(machine, f"/usr/bin/{program}")
    for link, target in MERGED_USR:
        yield Link(link, target)
    for name in driverfiles.FIRMWARE:
        yield File(f"/usr/lib/firmware/nvidia/{version}/{name}", f"{name} {version}\n".encode())
    yield from (entry for entry in real if entry.path.startswith("/usr/bin/"))
    for path, text in driverfiles.CONFIGURATION.items():
        yield File(path, text.encode())
    yield File(LOADER_CACHE, ldcache.render(ldcache.Cache(tuple(cache_entries(machine, libraries)))))


def _packaged(root: str, ours: str) -> Iterator[Entry]:
    """Yield the real files of a driver package, but for NVML, and the links that the loader wants."""
    for folder, _, names in os.walk(root) if root else ():
        for name in names:
            path = f"{folder.removeprefix(root)}/{name}"
            if path == ours:
                continue
            yield Copy(path, f"{folder}/{name}")
            soname = elf.read_soname(f"{folder}/{name}") if ".so." in name else ""
            if soname and soname != name:
                yield Link(f"{os.path.dirname(path)}/{soname}", name)


def _libraries(machine: Machine, directory: str, *, bits: int, known: dict[str, bytes]) -> Iterator[Entry]:
    version = machine.library_version
    kind = (elf.MACHINES if bits == 64 else elf.MACHINES_32)[machine.architecture]
    branch = machine.driver.branch if machine.driver else 0
    for library in driverfiles.libraries(branch):
        if bits == 32 and not library.in_32_bit:
            continue
        place = f"{directory}/{library.directory}".rstrip("/")
        name, soname = driverfiles.file_name(library, version), driverfiles.soname(library, version)
        data = known.get(f"{place}/{name}")
        yield File(
            f"{place}/{name}", data or elf.shared_library(soname, machine=kind, bits=bits, abi_note=library.tls_note)
        )
        if soname != name:
            yield Link(f"{place}/{soname}", name)
        if library.plain_link:
            yield Link(f"{place}/{library.stem}.so", soname)
    if bits == 64:
        yield Link(f"{directory}/gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1")
        yield File(f"{directory}/nvidia/xorg/nvidia_drv.so", elf.shared_library("", machine=kind))


def cache_entries(machine: Machine, libraries: Iterable[Entry]) -> Iterator[ldcache.Entry]:
    """Yield what ldconfig would enter for the driver's libraries: every name in the library folders but file names."""
    wide = ldcache.FLAG_X86_64 if machine.architecture == "x86_64" else ldcache.FLAG_AARCH64
    narrow = ldcache.FLAG_I386 if machine.architecture == "x86_64" else ldcache.FLAG_ARM_HARD_FLOAT
    flags = {f"/usr/lib/{machine.triplet}": wide, f"/usr/lib/{machine.triplet32}": narrow}
    sonames = {driverfiles.soname(library, machine.library_version) for library in driverfiles.LIBRARIES}
    for path in dict.fromkeys(entry.path for entry in libraries if _is_loadable(entry, sonames)):
        directory, _, name = path.rpartition("/")
        if directory in flags:
            yield ldcache.Entry(name, machine.places.below_root(path), flags[directory])


def _is_loadable(entry: Entry, sonames: set[str]) -> bool:
    """Tell whether ldconfig enters a name: a link, or a file that has its SONAME as its name."""
    return isinstance(entry, Link) or os.path.basename(entry.path) in sonames


def _kernel(machine: Machine) -> Iterator[Entry]:
    for path, text, mode in procfs.files(machine):
        yield File(path, text.encode(), mode)
    if machine.module_loaded:
        yield Directory("/proc/driver/nvidia-uvm")
    yield File("/proc/devices", procfs.devices(machine, _host_text("/proc/devices")).encode(), 0o444)
    yield File("/proc/modules", procfs.modules(machine, _host_text("/proc/modules")).encode(), 0o444)
    yield Directory("/sys/bus/pci/devices")
    yield Directory("/sys/module")
    for path, data, mode in sysfs.files(machine):
        yield File(path, data, mode)
    for path in sysfs.directories(machine):
        yield Directory(path)
    for path, target in sysfs.links(machine):
        yield Link(path, target)


def _host_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _device_entries(machine: Machine) -> Iterator[Entry]:
    """Yield what stands below /dev."""
    yield Directory("/dev/char")
    if machine.driver is None or not machine.module_loaded:
        return
    mode = procfs.device_file_mode(machine)
    yield Node("/dev/nvidiactl", MAJOR_NVIDIA, MINOR_CTL, mode)
    yield Node("/dev/nvidia-modeset", MAJOR_NVIDIA, MINOR_MODESET, mode)
    yield Node("/dev/nvidia-uvm", machine.majors["nvidia-uvm"], 0, mode)
    yield Node("/dev/nvidia-uvm-tools", machine.majors["nvidia-uvm"], 1, mode)
    for gpu in machine.present_gpus:
        yield Node(f"/dev/nvidia{gpu.minor}", MAJOR_NVIDIA, gpu.minor, mode)
        if machine.drm and gpu.on_pci:
            yield from _drm(gpu)
    for minor, bits in capabilities(machine):
        yield Node(f"/dev/nvidia-caps/nvidia-cap{minor}", machine.majors["nvidia-caps"], minor, bits)
    for channel in machine.imex_channels:
        path = f"/dev/nvidia-caps-imex-channels/channel{channel}"
        yield Node(path, machine.majors["nvidia-caps-imex-channels"], channel, mode)
    if machine.own_switches:
        yield Node("/dev/nvidia-nvswitchctl", machine.majors["nvidia-nvswitch"], 255, mode)
    for switch in machine.own_switches:
        yield Node(f"/dev/nvidia-nvswitch{switch.minor}", machine.majors["nvidia-nvswitch"], switch.minor, mode)


def _drm(gpu: Gpu) -> Iterator[Entry]:
    yield Node(f"/dev/dri/card{gpu.card}", MAJOR_DRM, gpu.card, 0o660)
    yield Node(f"/dev/dri/renderD{gpu.render}", MAJOR_DRM, gpu.render, 0o660)
    yield Link(f"/dev/dri/by-path/pci-{gpu.bus}-card", f"../card{gpu.card}")
    yield Link(f"/dev/dri/by-path/pci-{gpu.bus}-render", f"../renderD{gpu.render}")


def capabilities(machine: Machine) -> Iterator[tuple[int, int]]:
    """Yield (minor, mode) of each nvidia-caps node that exists."""
    if machine.has_mig:
        yield 1, 0o400
        yield 2, 0o444
    for gpu in machine.present_gpus:
        for instance in gpu.instances:
            yield capability_minor(gpu.minor, instance.number), 0o444
            for compute in instance.compute:
                yield capability_minor(gpu.minor, instance.number, compute.number), 0o444


def _sockets(machine: Machine) -> Iterator[Entry]:
    for name in machine.sockets:
        if name == "mps":
            yield Socket(f"{MPS_DIRECTORY}/control")
            yield File(f"{MPS_DIRECTORY}/nvidia-cuda-mps-control.pid", b"")
        else:
            yield Socket(f"/run/nvidia-{name}/socket")


def can_make_nodes(directory: Path) -> bool:
    """Try to make a device node in a directory and to open it; a node that cannot be opened there is of no use."""
    path = directory / ".nvfakes-node"
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        try:
            os.close(os.open(path, os.O_RDONLY))
        finally:
            path.unlink()
    except OSError:
        return False
    return True


def write_tree(
    machine: Machine, directory: Path | str, *, nodes: bool | None = None, copies: bool = True
) -> list[Entry]:
    """Write a machine's tree below a directory; with nodes=None, real nodes are made where that is possible.

    A node that is not made, or with copies=False a large file, is an empty file, onto which a lane can bind the real
    thing. Returns what was written.
    """
    root = Path(directory).absolute()
    root.mkdir(parents=True, exist_ok=True)
    real = can_make_nodes(root) if nodes is None else nodes
    found = entries(machine, dev_directory=f"{root}/dev")
    write([entry if copies else _emptied(entry) for entry in found], root, nodes=real)
    return found


def _emptied(entry: Entry) -> Entry:
    return File(entry.path, b"", 0o755) if isinstance(entry, Copy) else entry


def write(found: Iterable[Entry], root: Path, *, nodes: bool) -> None:
    """Write entries below a directory."""
    made: set[str] = set()
    mask = os.umask(0)
    try:
        for entry in found:
            path = f"{root}{entry.path}"
            _make_directories(path if isinstance(entry, Directory) else os.path.dirname(path), made)
            _write_entry(entry, path, nodes=nodes)
    finally:
        os.umask(mask)


def _make_directories(path: str, made: set[str]) -> None:
    if path in made or os.path.isdir(path):
        return
    _make_directories(os.path.dirname(path), made)
    os.mkdir(path, 0o755)
    made.add(path)


def _write_entry(entry: Entry, path: str, *, nodes: bool) -> None:
    match entry:
        case Directory():
            return
        case File():
            _write_file(path, entry.data, entry.mode)
        case Copy():
            _remove(path)
            shutil.copy(entry.source, path)
        case Link():
            _remove(path)
            os.symlink(entry.target, path)
        case Node() if nodes:
            _remove(path)
            os.mknod(path, entry.mode | stat.S_IFCHR, os.makedev(entry.major, entry.minor))
        case Node():
            _write_file(path, b"", entry.mode)
        case Socket():
            _remove(path)
            _write_socket(path)
    os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)


def _remove(path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)


def _write_file(path: str, data: bytes, mode: int) -> None:
    _remove(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(data)


def _write_socket(path: str) -> None:
    """Bind a socket through its directory's descriptor, because a socket's address holds only 108 bytes."""
    parent = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.bind(f"/proc/self/fd/{parent}/{os.path.basename(path)}")
    finally:
        os.close(parent)
