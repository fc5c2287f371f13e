"""The loader cache of a container, brought up to date without running anything of the image or of the host.

Belongs here: the steps from the image's cache and directories to the new cache, and musl's path file in its place.
Does not belong here: the format (formats/ldcache.py), ldconfig's rules (formats/ldsearch.py), where libraries are
looked for (loaderpaths.py), how the file is put (replacement.py). Where we differ from ldconfig on purpose: entries in
directories that are not configured stay as long as their files do, the order of what was there stays, and no link of
the image is made or removed.
"""

import stat

from nvinject import __version__
from nvinject import leanos as os
from nvinject.errors import ContainerError
from nvinject.formats import ldsearch
from nvinject.formats.elf import ElfError, read_elf
from nvinject.formats.ldcache import LoaderCacheError, Table, format_table, is_hwcap_extension, parse_table
from nvinject.linux.inroot import ignore_absence, open_in_root
from nvinject.render.loaderpaths import (
    Effort,
    SearchPath,
    configured_directories,
    default_directories,
    list_directory,
    open_regular,
    read_own,
    read_regular,
)
from nvinject.render.replacement import replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nvinject.core.plan import LoaderLibrary, UpdateLoaderCache
    from nvinject.formats.elf import ElfHeader
    from nvinject.formats.ldcache import Row
    from nvinject.formats.ldsearch import Listing
    from nvinject.render.loaderpaths import SearchDirectory
    from nvinject.render.replacement import Replacement

CACHE = "/etc/ld.so.cache"
CACHE_MODE = 0o644
MAXIMUM_CACHE_SIZE = 64 << 20
MAXIMUM_PATH_FILE_SIZE = 1 << 20
MAXIMUM_OLD_DIRECTORIES = 2048  # in an image's cache; real ones have a dozen
MAXIMUM_HEADERS = 1 << 15  # of unknown libraries; real images have a few thousand
MUSL_DEFAULT_PATH = ("/lib", "/usr/local/lib", "/usr/lib")  # ldso/dynlink.c

_GENERATOR = f"nvinject {__version__}"
_UPDATED = ", updated by "
_INSPECT = os.O_PATH | os.O_CLOEXEC
_READ_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
_INDEX = 0xFFFFFFFF
_LAST = 1 << 30


def update(root_fd: int, operation: "UpdateLoaderCache", *, machine: str = "") -> "Replacement":
    """Make the loader of the image below `root_fd` find the operation's libraries.

    `machine` is as uname(2) names it, by default this machine's. Returns what has to be committed or undone. Raises
    ContainerError, with nothing changed. An image's cache that cannot be understood is built anew.
    """
    path = operation.musl_path_file or CACHE
    content = compute(root_fd, operation, machine=machine)
    try:
        return replace_file(root_fd, path, content, CACHE_MODE)
    except OSError as error:
        hint = "the container's root file system must be writable while it is created, and /etc a directory"
        raise ContainerError(f"cannot write {path} of the container: {error.strerror}", hint) from error


def compute(root_fd: int, operation: "UpdateLoaderCache", *, machine: str = "") -> bytes:
    """Return what `update` would write, without changing anything."""
    if operation.musl_path_file:
        existing = read_own(root_fd, operation.musl_path_file, MAXIMUM_PATH_FILE_SIZE)
        return musl_path(existing, operation)
    return build_cache(root_fd, operation, machine or os.uname().machine)


def musl_path(existing: bytes | None, operation: "UpdateLoaderCache") -> bytes:
    """Return the path file of musl's loader with the operation's directories in it.

    musl takes paths separated by newlines or colons and has no cache; without a file it uses its built-in list.
    """
    if existing is None:
        known = list(MUSL_DEFAULT_PATH)
    else:
        text = existing.decode("utf-8", "surrogateescape")
        known = [path for path in text.replace(":", "\n").split("\n") if path]
    first = [operation.compat_directory] if operation.compat_directory else []
    paths = dict.fromkeys((*first, *known, *operation.directories))
    return "".join(f"{path}\n" for path in paths).encode("utf-8", "surrogateescape")


def build_cache(root_fd: int, operation: "UpdateLoaderCache", machine: str) -> bytes:
    """Return the bytes of the cache that the image should have."""
    old = _read_cache(root_fd)
    effort = Effort()
    search = SearchPath(root_fd, effort)
    try:
        if operation.compat_directory:
            search.add((operation.compat_directory,))
        search.add(configured_directories(root_fd, effort))
        search.add(operation.directories)
        search.add(default_directories(root_fd, machine))
        table = _Builder(root_fd, search, old, operation, machine, effort).build()
    finally:
        search.close()
    try:
        return format_table(table)
    except LoaderCacheError as error:
        raise ContainerError(f"cannot build {CACHE} for the container: {error}", "") from error


def _read_cache(root_fd: int) -> Table:
    content = read_regular(root_fd, CACHE, MAXIMUM_CACHE_SIZE)
    if content is None:
        return Table()
    try:
        return parse_table(content)
    except LoaderCacheError:
        return Table()  # built anew; ldconfig does not even look at the old one


class _Builder:
    """One building of a cache: the old rows that stay, and the rows that come."""

    def __init__(
        self,
        root_fd: int,
        search: SearchPath,
        old: Table,
        operation: "UpdateLoaderCache",
        machine: str,
        effort: Effort,
    ) -> None:
        self._root_fd = root_fd
        self._effort = effort
        self._search = search
        self._old = old
        self._machine = machine
        self._headers_left = MAXIMUM_HEADERS
        self._hwcaps = list(old.hwcaps)
        self._rows: list[Row | None] = list(old.rows)
        self._additions: list[Row] = []
        self._kept: list[object] = []
        # Old rows and libraries to inject, by directory and file name; rows are numbers, second ones of a file apart.
        self._groups: dict[str, dict[str, int]] = {}
        self._doubles: dict[int, list[int]] = {}
        self._injected: dict[str, dict[str, LoaderLibrary]] = {}
        self._aliases: dict[str, str] = {}
        # ldconfig records no OS versions since glibc 2.36 and no haswell directories since 2.37: do as the image's.
        self._records_versions = self._searches_hardware = False
        self._group_rows()
        self._compat_directory = self._canonical(operation.compat_directory) if operation.compat_directory else ""
        for library in operation.libraries:
            directory, _, name = library.path.rpartition("/")
            self._injected.setdefault(self._canonical(directory), {})[name] = library

    def _group_rows(self) -> None:
        groups = self._groups
        for number, (_, path, _, os_version, hwcap) in enumerate(self._old.rows):
            if os_version:
                self._records_versions = True
            if hwcap and not self._takes_hwcap(hwcap):
                self._rows[number] = None  # points to a name that is not there
                continue
            directory, _, name = path.rpartition("/")
            group = groups.get(directory)
            if group is None:
                group = groups[directory] = {}
            first = group.setdefault(name, number)
            if first != number:
                self._doubles.setdefault(first, []).append(number)
        for count, path in enumerate(list(groups)):
            if count >= MAXIMUM_OLD_DIRECTORIES:
                group = groups.pop(path)
                self._drop(group, list(group))
                continue
            canonical = self._canonical(path)
            if canonical == path:
                continue
            if canonical not in groups:
                # The image's ldconfig met the directory under another path first; what it wrote stays as it is.
                self._search.rename(canonical, path)
                self._aliases[canonical] = path
                self._aliases[path] = path
            else:
                self._rename_rows(groups.pop(path), canonical)

    def _takes_hwcap(self, hwcap: int) -> bool:
        """Tell whether an old row's hwcap means something, and note if it is of the kind before glibc 2.37."""
        if is_hwcap_extension(hwcap):
            return hwcap & _INDEX < len(self._old.hwcaps)
        self._searches_hardware = True
        return True

    def _canonical(self, path: str) -> str:
        """Return the path under which a directory is searched; the same path if it is not."""
        known = self._aliases.get(path)
        if known is None:
            known = self._aliases[path] = self._search.canonical(path)
        return known

    def _rename_rows(self, group: "dict[str, int]", canonical: str) -> None:
        """Move rows of a directory's second path to its first one."""
        there = self._groups[canonical]
        for name, first in group.items():
            for number in (first, *self._doubles.get(first, ())):
                soname, _, *rest = self._old.rows[number]
                row: Row = (soname, f"{canonical}/{name}", rest[0], rest[1], rest[2])
                self._rows[number] = None if name in there else row
            there.setdefault(name, first)

    def build(self) -> Table:
        """Return the new cache."""
        position = 0
        while position < len(self._search.directories):  # hardware sub-directories come to its end meanwhile
            directory = self._search.directories[position]
            self._update_directory(directory, self._groups.pop(directory.path, {}))
            position += 1
        for path, group in self._groups.items():
            self._check_other_directory(path, group)
        for libraries in self._injected.values():
            self._additions += (
                (library.soname, library.path, ldsearch.native_flags(self._machine, library.bits), 0, 0)
                for library in libraries.values()
            )
        kept = [row for row in self._rows if row is not None]
        rows = ldsearch.merge(kept, self._additions, self._rank(), self._hwcaps)
        ordered, hwcaps = ldsearch.with_sorted_hwcaps(rows, self._hwcaps)
        return Table(rows=tuple(ordered), hwcaps=hwcaps, generator=self._generator(), sections=self._old.sections)

    def _generator(self) -> str:
        before = self._old.generator.partition(_UPDATED)[0]
        return f"{before}{_UPDATED}{_GENERATOR}" if before and before != _GENERATOR else _GENERATOR

    def _rank(self) -> "Callable[[str], int]":
        ranks = {directory.path: rank for rank, directory in enumerate(self._search.directories)}
        aliases = self._aliases

        def rank(path: str) -> int:
            directory = path.rpartition("/")[0]
            return ranks.get(aliases.get(directory, directory), _LAST)

        return rank

    def _update_directory(self, directory: "SearchDirectory", group: "dict[str, int]") -> None:
        listing, hardware = list_directory(directory.fd, self._effort)
        if self._searches_hardware and not directory.hwcaps:
            for name in hardware:
                self._search.add_one(f"{directory.path}/{name}")
        self._drop_misplaced(directory, group)
        injected = self._injected.get(directory.path, {})
        known = self._sonames(group)
        if injected:
            self._drop_replaced(group, known, injected)
            known.update((name, library.soname) for name, library in injected.items())
        link_target = _link_reader(directory.fd)
        survey = ldsearch.survey(listing, known, link_target)
        self._kept += (listing, known, survey)  # the process ends soon: freeing thousands of names one by one is waste
        self._drop(group, survey.gone)
        self._drop(group, self._dangling(directory.path, survey.doubtful))
        if survey.unread:
            have = {self._old.rows[number][0] for number in group.values()}
            have.update(library.soname for library in injected.values())
            self._add_unread(directory, listing, survey.unread, have, link_target)
        if directory.path == self._compat_directory:
            self._move_to_additions(group)

    def _sonames(self, group: "dict[str, int]") -> "dict[str, str]":
        """Return the sonames of rows by file name."""
        rows = self._old.rows
        return {name: rows[number][0] for name, number in group.items()}

    def _dangling(self, path: str, names: "Iterable[str]") -> "list[str]":
        return [name for name in names if not self._leads_to_file(f"{path}/{name}")]

    def _drop(self, group: "dict[str, int]", names: "Iterable[str]") -> None:
        for name in names:
            first = group.pop(name, None)
            if first is not None:
                for number in (first, *self._doubles.get(first, ())):
                    self._rows[number] = None

    def _drop_misplaced(self, directory: "SearchDirectory", group: "dict[str, int]") -> None:
        """Drop rows whose hwcap does not say what their directory is for: the old layout has no place for it."""
        if directory.hwcaps or self._old.hwcaps:
            self._drop(group, [name for name, row in group.items() if self._hwcaps_of(row) != directory.hwcaps])

    def _hwcaps_of(self, number: int) -> str:
        """Return the glibc-hwcaps name of a row, "" for one without."""
        hwcap = self._old.rows[number][4]
        return self._old.hwcaps[hwcap & _INDEX] if hwcap and is_hwcap_extension(hwcap) else ""

    def _drop_replaced(
        self, group: "dict[str, int]", sonames: "dict[str, str]", injected: "dict[str, LoaderLibrary]"
    ) -> None:
        """Drop rows in whose place a library of the same soname and kind comes."""
        flags = {library.soname: ldsearch.native_flags(self._machine, library.bits) for library in injected.values()}
        rows = self._old.rows
        candidates = [name for name, soname in sonames.items() if soname in flags]
        self._drop(group, [name for name in candidates if rows[group[name]][2] == flags[sonames[name]]])

    def _add_unread(
        self,
        directory: "SearchDirectory",
        listing: "Listing",
        names: "Iterable[str]",
        have: "set[str]",
        link_target: "Callable[[str], str]",
    ) -> None:
        """Read the headers of unknown names and add what follows from them."""
        headers: dict[str, ElfHeader | None] = {}
        libraries = []
        for name in names:
            is_link = name in listing.links
            header = self._header_behind(directory, listing, name, link_target(name) if is_link else name, headers)
            library = None if header is None else ldsearch.look_at(name, header, self._machine, is_link=is_link)
            if library is not None:
                libraries.append(library)
        if not libraries:
            return
        hwcap = self._hwcap_for(directory)
        for found in ldsearch.contribute(libraries, listing, hwcaps=bool(directory.hwcaps)):
            if found.soname not in have:
                version = found.os_version if self._records_versions else 0
                self._additions.append((found.soname, f"{directory.path}/{found.name}", found.flags, version, hwcap))

    def _hwcap_for(self, directory: "SearchDirectory") -> int:
        if not directory.hwcaps:
            return ldsearch.legacy_hwcap(directory.path) if self._searches_hardware else 0
        if directory.hwcaps not in self._hwcaps:
            self._hwcaps.append(directory.hwcaps)
        return ldsearch.hwcap_for(self._hwcaps.index(directory.hwcaps))

    def _header_behind(
        self,
        directory: "SearchDirectory",
        listing: "Listing",
        name: str,
        file: str,
        headers: "dict[str, ElfHeader | None]",
    ) -> "ElfHeader | None":
        """Return the header of what a name stands for; that of a file in the directory is read once for all names."""
        if file not in listing.files:
            return self._header_of(directory, name, is_link=True)
        if file not in headers:
            headers[file] = self._header_of(directory, file, is_link=False)
        return headers[file]

    def _header_of(self, directory: "SearchDirectory", name: str, *, is_link: bool) -> "ElfHeader | None":
        if self._headers_left <= 0:
            return None
        self._headers_left -= 1
        self._effort.walk()
        try:
            if is_link:
                fd = open_regular(self._root_fd, f"{directory.path}/{name}")
            elif stat.S_ISREG(os.lstat(name, dir_fd=directory.fd).st_mode):
                fd = os.open(name, _READ_FILE, dir_fd=directory.fd)
            else:
                return None
        except OSError as error:
            ignore_absence(error)
            return None
        try:
            return _read_header(fd)
        finally:
            os.close(fd)

    def _leads_to_file(self, path: str) -> bool:
        self._effort.walk()
        try:
            fd = open_in_root(self._root_fd, path, _INSPECT)
        except OSError as error:
            ignore_absence(error)
            return False
        try:
            return stat.S_ISREG(os.fstat(fd).st_mode)
        finally:
            os.close(fd)

    def _move_to_additions(self, group: "dict[str, int]") -> None:
        """Let rows of the first directory be put anew, before those that the old cache had before them."""
        for first in group.values():
            for number in (first, *self._doubles.get(first, ())):
                row = self._rows[number]
                if row is not None:
                    self._additions.append(row)
                    self._rows[number] = None

    def _check_other_directory(self, path: str, group: "dict[str, int]") -> None:
        """Drop rows of a directory that is not configured where their files are gone; add nothing from there."""
        directory = self._search.open(path)
        if directory is None:
            self._drop(group, list(group))
            return
        try:
            listing, _ = list_directory(directory.fd, self._effort)
            survey = ldsearch.survey(listing, self._sonames(group), _link_reader(directory.fd))
            self._drop(group, survey.gone)
            self._drop(group, self._dangling(path, survey.doubtful))
        finally:
            os.close(directory.fd)


def _link_reader(directory_fd: int) -> "Callable[[str], str]":
    """Return a function from the name of a link to its text, "" where there is none; each is read once."""
    known: dict[str, str] = {}

    def link_target(name: str) -> str:
        text = known.get(name)
        if text is None:
            try:
                text = os.readlink(name, dir_fd=directory_fd)
            except OSError as error:
                ignore_absence(error)
                text = ""
            known[name] = text
        return text

    return link_target


def _read_header(fd: int) -> "ElfHeader | None":
    """Return the header of an open file, None for a file that is no ELF library."""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            return None
        return read_elf(lambda offset, size: os.pread(fd, size, offset), needed=False)
    except ElfError:
        return None
    except OSError as error:
        ignore_absence(error)
        return None
