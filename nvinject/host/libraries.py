"""The driver's libraries: asked of the loader cache of the driver root, else looked for in the usual directories.

Belongs here: which file stands behind a row of the catalogue, for each word size. Does not belong here: the rows, other
files of the driver (files.py), and what it means that libraries are missing (inventory.py). Only files of the loaded
driver's version count; what exists in another version is remembered, so that version skew can be told from absence.
"""

import stat

from nvinject import leanos as os
from nvinject.core.catalog import (
    LIBRARY32_DIRECTORIES,
    LIBRARY_DIRECTORIES,
    LIBRARY_SUBDIRECTORIES,
    MANAGEMENT_LIBRARY,
    WITNESS_LIBRARIES,
    LibraryRow,
)
from nvinject.core.model import Library
from nvinject.errors import HostError
from nvinject.formats.elf import ElfError, ElfHeader, read_elf
from nvinject.formats.ldcache import parse_table
from nvinject.host.root import Root
from nvinject.record import Record

LOADER_CACHE = "/etc/ld.so.cache"
HEAD = 6  # letters, fewer than any name in the catalogue has
ELF_FLAGS = (1, 3)  # ld.so.cache flags & 0xff: an ELF library, one for libc 6


class Machine(Record):
    """What libraries of a host look like.

    `cache_flags` and `elf_machines` give the word size for a loader cache flag (& 0xff00) and for an e_machine.
    `triplet` and `triplet32` are Debian's names for the two library directories.
    """

    cache_flags: tuple[tuple[int, int], ...]
    elf_machines: tuple[tuple[int, int], ...]
    triplet: str
    triplet32: str


MACHINES: dict[str, Machine] = {
    "x86_64": Machine(
        cache_flags=((0x0300, 64), (0x0000, 32)),
        elf_machines=((62, 64), (3, 32)),
        triplet="x86_64-linux-gnu",
        triplet32="i386-linux-gnu",
    ),
    "aarch64": Machine(
        cache_flags=((0x0A00, 64), (0x0900, 32)),
        elf_machines=((183, 64), (40, 32)),
        triplet="aarch64-linux-gnu",
        triplet32="arm-linux-gnueabihf",
    ),
    "ppc64le": Machine(
        cache_flags=((0x0500, 64),), elf_machines=((21, 64),), triplet="powerpc64le-linux-gnu", triplet32=""
    ),
}


class LibrarySearch(Record):
    """The libraries found, and what there is to tell about the search.

    `has_witness`: at least one library that every installation has is there, asked for or not. `other_versions` are the
    rows of which only another version was seen. `management_library` is the path of NVML ("" where it was not found).
    `places` are the caches and directories that were looked at.
    """

    libraries: tuple[Library, ...]
    has_witness: bool = False
    management_library: str = ""
    other_versions: tuple[tuple[str, str], ...] = ()
    places: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_libraries(
    root: Root,
    version: str,
    rows: tuple[LibraryRow, ...],
    *,
    sizes: tuple[int, ...] = (64,),
    machine: str = "",
    cache: str = "",
    directories: tuple[str, ...] = (),
) -> LibrarySearch:
    """Return the driver's libraries of the given rows and word sizes.

    `version` is the loaded module's; "" accepts none, and only `other_versions` tells what is there. `cache` is the
    path of a loader cache below the root that replaces /etc/ld.so.cache. `directories` below the root are looked at
    before it, and what is there comes first. The witnesses of the catalogue are looked for in any case; the usual
    directories are searched only when neither of them was found.
    """
    host = MACHINES.get(machine or os.uname().machine)
    if host is None:
        return LibrarySearch(libraries=(), notes=(f"no driver libraries are known for machine {machine}",))
    wanted = tuple(row.prefix for row in rows)
    search = _Search(root, version, frozenset((*wanted, *WITNESS_LIBRARIES)), sizes, host)
    if directories:
        search.ask_directories(directories)
    search.ask_cache(cache or LOADER_CACHE)
    if not search.has_witness():
        search.ask_directories((*LIBRARY_DIRECTORIES, *(LIBRARY32_DIRECTORIES if 32 in sizes else ())))
    return search.result(wanted)


class _Search:
    """One search: what was found by (start of the SONAME, word size), first come first kept."""

    def __init__(
        self, root: Root, version: str, wanted: frozenset[str], sizes: tuple[int, ...], machine: Machine
    ) -> None:
        self.root = root
        self.suffix = f".{version}" if version else ""
        self.wanted = wanted
        self.sizes = sizes
        self.machine = machine
        self.found: dict[tuple[str, int], Library] = {}
        self.others: dict[str, str] = {}
        self.places: list[str] = []
        self.notes: list[str] = []

    def has_witness(self) -> bool:
        """Say whether a library was found that every installation has."""
        return any((prefix, 64) in self.found for prefix in WITNESS_LIBRARIES)

    def result(self, wanted: tuple[str, ...]) -> LibrarySearch:
        """Return the libraries of the wanted rows in their order; a witness that nobody asked for is left out."""
        skipped = {prefix: version for prefix, version in self.others.items() if (prefix, 64) not in self.found}
        management = self.found.get((MANAGEMENT_LIBRARY, 64))
        chosen = [(prefix, bits) for bits in self.sizes for prefix in wanted]
        return LibrarySearch(
            libraries=tuple(self.found[key] for key in chosen if key in self.found),
            has_witness=self.has_witness(),
            management_library=management.path if management else "",
            other_versions=tuple(sorted(skipped.items())),
            places=tuple(self.places),
            notes=tuple(self.notes),
        )

    def ask_cache(self, path: str) -> None:
        """Take what the loader cache knows: its first entry for a name is the one that the host's loader takes."""
        self.places.append(self.root.host_path(path))
        data = self.root.read(path)
        if data is None:
            return
        try:
            # A host has thousands of libraries: the first letters tell nearly all of the others at little cost.
            rows = parse_table(data, frozenset(prefix[:HEAD].encode() for prefix in self.wanted)).rows
        except ValueError as error:
            self.notes.append(f"{self.root.host_path(path)} is of no use: {error}")
            return
        flags = dict(self.machine.cache_flags)
        for soname, file, kind, _, _ in rows:
            prefix = library_prefix(soname)
            if prefix not in self.wanted or kind & 0xFF not in ELF_FLAGS:
                continue
            bits = flags.get(kind & 0xFF00, 0)
            if bits in self.sizes and self._improves(prefix, bits, soname):
                located = self._locate(file, prefix)
                if located:
                    self._keep(prefix, Library(soname=soname, path=located, bits=bits))

    def ask_directories(self, templates: tuple[str, ...]) -> None:
        """Look into directories, such as those where distributions put the driver, each of them once."""
        pending = [
            directory
            for template in templates
            for directory in self.root.expand(
                template.replace("{triplet}", self.machine.triplet).replace("{triplet32}", self.machine.triplet32)
            )
        ]
        visited: set[str] = set()
        while pending:
            directory = self.root.resolve(pending.pop(0))
            if directory is None or directory in visited:
                continue
            visited.add(directory)
            self.places.append(self.root.host_path(directory))
            names = self.root.list_directory(directory)
            for name in names:
                if library_prefix(name) in self.wanted:
                    self._take_file(f"{directory.rstrip('/')}/{name}")
            if any(library_prefix(name) in WITNESS_LIBRARIES for name in names):
                subdirectories = [f"{directory}/{name}" for name in LIBRARY_SUBDIRECTORIES if name in names]
                pending = subdirectories + pending

    def _take_file(self, path: str) -> None:
        located = self._locate(path, library_prefix(path.rsplit("/", 1)[-1]))
        if not located:
            return
        try:
            header = read_header(self.root, located)
        except ElfError as error:
            self.notes.append(f"{self.root.host_path(located)} is no usable library: {error}")
            return
        bits = dict(self.machine.elf_machines).get(header.machine, 0)
        soname = header.soname or located.rsplit("/", 1)[-1]
        if bits == header.bits and bits in self.sizes:
            self._keep(library_prefix(soname), Library(soname=soname, path=located, bits=bits))

    def _improves(self, prefix: str, bits: int, soname: str) -> bool:
        # libcuda.so is a link for programs that are built; where libcuda.so.1 is known as well, that is the SONAME.
        known = self.found.get((prefix, bits))
        return known is None or (known.soname == prefix and soname != prefix)

    def _keep(self, prefix: str, library: Library) -> None:
        if prefix in self.wanted and self._improves(prefix, library.bits, library.soname):
            self.found[prefix, library.bits] = library

    def _locate(self, path: str, prefix: str) -> str:
        """Return the link-free path of a file of the driver's version, "" for anything else."""
        located = self.root.locate(path)
        if located is None or not stat.S_ISREG(located[1].st_mode):
            return ""
        name = located[0].rsplit("/", 1)[-1]
        if self.suffix and name.endswith(self.suffix):
            return located[0]
        other = name.partition(".so.")[2]
        if "." in other:
            self.others.setdefault(prefix, other)
        return ""


def read_header(root: Root, path: str) -> ElfHeader:
    """Return the ELF header of a file, without the libraries that it needs; raises ElfError, and HostError."""
    descriptor = root.open(path)
    try:
        return read_elf(lambda offset, size: os.pread(descriptor, size, offset), needed=False)
    except OSError as error:
        raise HostError(f"cannot read {root.host_path(path)}: {error.strerror}") from error
    finally:
        os.close(descriptor)


def library_prefix(name: str) -> str:
    """Return a library's name up to and including `.so`, "" for a name without it."""
    place = name.find(".so")
    return name[: place + 3] if place > 0 else ""
