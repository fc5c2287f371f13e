"""Mount specifications of a host: which lists count, and what their entries lead to on this machine.

Belongs here: finding the lists, and looking for what they name. Does not belong here: the lists' form
(formats.mountspec), the GPUs beside it, and when a host is asked for lists at all (tegra.py).
"""

import os
import stat

from nvinject.configfile import read_bytes
from nvinject.core.model import DeviceNode, HostFile, HostLink, Library
from nvinject.core.policy import MOUNT_SPEC_DIRECTORY
from nvinject.errors import HostError
from nvinject.formats import mountspec
from nvinject.formats.elf import ElfError
from nvinject.host.libraries import MACHINES, read_header
from nvinject.host.nodes import look_at_node
from nvinject.host.platforms import TEGRA_RELEASE
from nvinject.host.root import Root
from nvinject.host.wholedriver import add_plain_link
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

USUAL_LISTS = ("devices.csv", "drivers.csv", "l4t.csv")
SUFFIX = ".csv"
LONGEST_CHAIN = 40  # links, as path_resolution(7)
SHOWN_ENTRIES = 3  # that a note names

INSTALL = "install the package nvidia-l4t-init (JetPack), or set nvidia-container-runtime.modes.csv.mount-spec-path"


class Listed(Record):
    """An entry with the list that has it: its path, and the words `FILE, line N`."""

    entry: mountspec.Entry
    place: str


class Lists:
    """The mount specifications that count: their entries, and notes on lines that are none."""

    def __init__(self, root: Root, directory: str, *, files: tuple[str, ...] = (), every: bool = False) -> None:
        """Read the lists of a directory, the usual ones or all, or these files in their place.

        Raises HostError where there is none, or one cannot be read.
        """
        self.entries: list[Listed] = []
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.paths: list[str] = []
        paths = files or tuple(self.choose(root, directory, every=every))
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
        text = read_bytes(path).decode("utf-8", "surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise HostError(f"cannot read {path}: {error.strerror}", "mend its permissions, or run as root") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


class Search:
    """What entries lead to on this machine; everything once, in the order of the lists."""

    def __init__(
        self, root: Root, dev: Root, *, ignored: tuple[str, ...] = (), library_directories: tuple[str, ...] = ()
    ) -> None:
        """Take the roots, patterns of links to leave out, and further folders to look for libraries in."""
        self.root = root
        self.dev = dev
        self.ignored = ignored
        self.library_directories = library_directories
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

    def take_release(self) -> None:
        """Take the file that tells the release, which no list names."""
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
        places = (path, *(f"{directory.rstrip('/')}{path}" for directory in self.library_directories))
        return self.take_each(listed, places, stat.S_ISREG)

    def take_link(self, listed: Listed) -> bool:
        """Take the links of an entry with all that they lead over, and the file at their end."""
        taken = False
        for path in expand(self.root, listed.entry.path):
            if any(mountspec.matches(path, pattern) for pattern in self.ignored):
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
        try:
            header = read_header(self.root, path)
        except ElfError:
            return None
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
