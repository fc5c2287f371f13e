"""Where the dynamic loader of an image looks for libraries, read from the image without trusting it.

Belongs here: ld.so.conf with what it includes, the default directories, hardware sub-directories, all opened below the
root and listed. Does not belong here: what a directory contributes (formats/ldsearch.py), the cache itself
(loadercache.py). Only regular files are opened and nothing blocks: no FIFO, device or directory is read as a file.
"""

import errno
import stat
import time

from nvinject import leanos as os
from nvinject.errors import ContainerError
from nvinject.formats import ldconf
from nvinject.formats.ldsearch import LEGACY_HWCAPS, Listing
from nvinject.linux.inroot import ignore_absence, open_in_root
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAXIMUM_CONF_SIZE = 1 << 20
PIECE = 1 << 12  # bytes that are asked for where a file should have ended
MAXIMUM_CONF_FILES = 1024
MAXIMUM_CONF_DEPTH = 8
MAXIMUM_DIRECTORIES = 1024
MAXIMUM_NAMES = 1 << 18  # of all directories together, and what matching them with patterns is worth
MAXIMUM_SECONDS = 5  # of this processor's time; real images take a tenth of one

_WALKS_BETWEEN_LOOKS = 64
_INSPECT = os.O_PATH | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC
_TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu", "ppc64le": "powerpc64le-linux-gnu"}


class Effort:
    """How many names of directories are still looked at for one image; when they are used up, the rest does not count.

    Without it a hundred links to one large directory would multiply the work, each of them a few bytes of the image.
    """

    __slots__ = ("names", "start", "walks")

    def __init__(self) -> None:
        """Begin with far more than real images have."""
        self.names = MAXIMUM_NAMES
        self.start = -1.0
        self.walks = 0

    def walk(self) -> None:
        """Count a path of the image that the kernel is about to walk; raises ContainerError for too much of it.

        One path can lead through 40 links with a thousand components each, which takes a millisecond, and an image has
        a hundred thousand of them. The clock is looked at rarely, and is the processor's: slow disks do not count.
        """
        self.walks += 1
        if self.walks % _WALKS_BETWEEN_LOOKS:
            return
        now = time.process_time()
        if self.start < 0:
            self.start = now
        elif now - self.start > MAXIMUM_SECONDS:
            raise ContainerError(
                f"the image's library directories take more than {MAXIMUM_SECONDS} seconds to look through",
                "shorten its /etc/ld.so.conf, and the links that lead to libraries",
            )

    def list_names(self, fd: int) -> "list[str]":
        """Return the names in a directory; raises OSError."""
        names: list[str] = []
        with os.scandir(fd) as entries:
            for entry in entries:
                if self.names <= 0:
                    break
                self.names -= 1
                names.append(entry.name)
        return names


class SearchDirectory(Record):
    """A directory that is searched, open; `path` as configured, `hwcaps` the name below glibc-hwcaps or ""."""

    path: str
    fd: int
    identity: tuple[int, int]
    hwcaps: str = ""


def open_regular(root_fd: int, path: str, *, flags: int = 0, one_mount: bool = False) -> int:
    """Open a regular file of the root for reading, links followed inside it; raises OSError, EINVAL for other kinds.

    `flags` are more of open(2)'s, `one_mount` is that of inroot.open_in_root.
    """
    # The first look does not open the file itself: opening a device can already do something.
    seen = open_in_root(root_fd, path, _INSPECT | flags, one_mount=one_mount)
    try:
        status = os.fstat(seen)
    finally:
        os.close(seen)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    opened = open_in_root(root_fd, path, _READ | flags, one_mount=one_mount)
    if os.path.samestat(status, os.fstat(opened)):
        return opened
    os.close(opened)
    raise OSError(errno.EINVAL, "changed while it was opened", path)


def read_own(root_fd: int, path: str, limit: int) -> bytes | None:
    """Return the same as read_regular, for content that will be written into the container again.

    A link to a file of another mount counts as no file: a secret, or a file of procfs, that the container's process
    may not read would become one that everybody reads.
    """
    content = read_regular(root_fd, path, limit, flags=os.O_NOFOLLOW)
    return read_regular(root_fd, path, limit, one_mount=True) if content is None else content


def read_regular(root_fd: int, path: str, limit: int, *, flags: int = 0, one_mount: bool = False) -> bytes | None:
    """Return the content of a regular file of the root; None if there is none or it has more than `limit` bytes.

    Those of procfs have no size, and no content here: to read one can do something (proc_kmsg(5)).
    """
    try:
        fd = open_regular(root_fd, path, flags=flags, one_mount=one_mount)
    except OSError as error:
        ignore_absence(error)
        return None
    try:
        size = os.fstat(fd).st_size
        if size > limit:
            return None
        return _read_all(fd, size, limit) if size else b""
    except OSError as error:
        ignore_absence(error)
        return None
    finally:
        os.close(fd)


def _read_all(fd: int, size: int, limit: int) -> bytes | None:
    """Return what a file has that should have `size` bytes; None for more than the limit."""
    parts: list[bytes] = []
    left, wanted = limit + 1, size + 1
    while left > 0 and (part := os.read(fd, min(left, wanted))):
        parts.append(part)
        left, wanted = left - len(part), PIECE
    if left <= 0:
        return None
    return parts[0] if len(parts) == 1 else b"".join(parts)  # mostly one: to copy a large cache costs as much


def configured_directories(root_fd: int, effort: "Effort | None" = None) -> tuple[str, ...]:
    """Return the directories of /etc/ld.so.conf and its includes, in order."""
    return tuple(_Configuration(root_fd, effort or Effort()).directories("/etc/ld.so.conf", 0))


class _Configuration:
    """The reading of one ld.so.conf: counts files and bytes over all includes, so that no loop lasts."""

    def __init__(self, root_fd: int, effort: Effort) -> None:
        self._root_fd = root_fd
        self._effort = effort
        self._files_left = MAXIMUM_CONF_FILES
        self._bytes_left = MAXIMUM_CONF_SIZE

    def directories(self, path: str, depth: int) -> "Iterator[str]":
        """Yield the directories that one file names, included ones in their place."""
        if depth > MAXIMUM_CONF_DEPTH or self._files_left <= 0:
            return
        self._files_left -= 1
        self._effort.walk()
        content = read_regular(self._root_fd, path, self._bytes_left)
        if content is None:
            return
        self._bytes_left -= len(content)
        for statement in ldconf.parse_conf(content.decode("utf-8", "surrogateescape")):
            if isinstance(statement, ldconf.Directory):
                yield statement.path
            else:
                pattern = statement.pattern
                absolute = pattern if pattern.startswith("/") else f"{os.path.dirname(path)}/{pattern}"
                for included in self._expand(absolute):
                    yield from self.directories(included, depth + 1)

    def _expand(self, pattern: str) -> "list[str]":
        """Return the paths that match a pattern, in the order of their bytes."""
        found = [""]
        for component in pattern.strip("/").split("/"):
            if ldconf.has_wildcard(component):
                found = [
                    f"{parent}/{name}"
                    for parent in found
                    for name in self._names(parent or "/", len(component))
                    if ldconf.matches(component, name)
                ]
            else:
                found = [f"{parent}/{component}" for parent in found]
            del found[MAXIMUM_CONF_FILES:]
        return found

    def _names(self, path: str, length: int) -> "list[str]":
        """Return the names in a directory, which a pattern of that length will be compared with."""
        if self._files_left <= 0:
            return []
        self._files_left -= 1
        names = list_names(self._root_fd, path, self._effort)
        self._effort.names -= len(names) * length
        return sorted(names, key=os.fsencode)


def list_names(root_fd: int, path: str, effort: Effort) -> "list[str]":
    """Return the names in a directory of the root, none where there is no such directory."""
    effort.walk()
    try:
        fd = open_in_root(root_fd, path, _LIST)
    except OSError as error:
        ignore_absence(error)
        return []
    try:
        return effort.list_names(fd)
    except OSError as error:
        ignore_absence(error)
        return []
    finally:
        os.close(fd)


def default_directories(root_fd: int, machine: str) -> tuple[str, ...]:
    """Return the directories that the image's own ldconfig would search last."""
    try:
        os.close(open_in_root(root_fd, "/etc/debian_version", _INSPECT))
    except OSError as error:
        ignore_absence(error)
        return ("/lib", "/usr/lib", "/lib64", "/usr/lib64")
    triplet = _TRIPLETS.get(machine, f"{machine}-linux-gnu")
    return (f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib", "/usr/lib")


class SearchPath:
    """The directories in the order of the search; each is open until `close`, none is there twice.

    The same directory under a second path (merged /usr) counts under its first one, as with ldconfig.
    """

    def __init__(self, root_fd: int, effort: Effort) -> None:
        """Begin with no directory."""
        self._root_fd = root_fd
        self._effort = effort
        self._by_identity: dict[tuple[int, int], SearchDirectory] = {}
        self.directories: list[SearchDirectory] = []

    def add(self, paths: "Iterable[str]") -> None:
        """Add directories with their glibc-hwcaps sub-directories; those that are not there do not count."""
        for path in paths:
            directory = self.open(path)
            if directory is not None and self._append(directory):
                for name in self._names_below(f"{path}/glibc-hwcaps"):
                    below = self.open(f"{path}/glibc-hwcaps/{name}", hwcaps=name)
                    if below is not None:
                        self._append(below)

    def add_one(self, path: str) -> None:
        """Add one directory alone."""
        directory = self.open(path)
        if directory is not None:
            self._append(directory)

    def canonical(self, path: str) -> str:
        """Return the path under which a directory is among those added; the same path if it is not."""
        if any(directory.path == path for directory in self.directories):
            return path
        directory = self.open(path)
        if directory is None:
            return path
        os.close(directory.fd)
        known = self._by_identity.get(directory.identity)
        return path if known is None else known.path

    def rename(self, path: str, other: str) -> None:
        """Let a directory be known under another of its paths."""
        for number, directory in enumerate(self.directories):
            if directory.path == path:
                renamed = directory.replace(path=other)
                self.directories[number] = self._by_identity[directory.identity] = renamed

    def open(self, path: str, *, hwcaps: str = "") -> "SearchDirectory | None":
        """Open a directory of the root; None if there is none."""
        self._effort.walk()
        try:
            fd = open_in_root(self._root_fd, path, _LIST)
            status = os.fstat(fd)
        except OSError as error:
            ignore_absence(error)
            return None
        return SearchDirectory(path=path, fd=fd, identity=(status.st_dev, status.st_ino), hwcaps=hwcaps)

    def _append(self, directory: SearchDirectory) -> bool:
        if directory.identity in self._by_identity or len(self.directories) >= MAXIMUM_DIRECTORIES:
            os.close(directory.fd)
            return False
        self._by_identity[directory.identity] = directory
        self.directories.append(directory)
        return True

    def _names_below(self, path: str) -> "list[str]":
        """Return names that can be glibc-hwcaps sub-directories: neither hidden nor with the colon of search paths."""
        names = list_names(self._root_fd, path, self._effort)
        return sorted(name for name in names if not name.startswith(".") and ":" not in name)

    def close(self) -> None:
        """Close all directories."""
        for directory in self.directories:
            os.close(directory.fd)
        self.directories = []
        self._by_identity = {}


def list_directory(fd: int, effort: Effort) -> "tuple[Listing, list[str]]":
    """Return the names of a directory that look like libraries, and the hardware sub-directories that are there.

    What is no link counts as a file here: types cost time, and are looked at again before anything is opened.
    """
    files: list[str] = []
    links: list[str] = []
    hardware: list[str] = []
    left = effort.names
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                if left <= 0:
                    break
                left -= 1
                name = entry.name
                if ".so" in name:
                    if entry.is_symlink():
                        links.append(name)
                    else:
                        files.append(name)
                elif name in LEGACY_HWCAPS:
                    hardware.append(name)
    except OSError as error:
        ignore_absence(error)
        return Listing(files=set(), links=set()), []
    finally:
        effort.names = left
    return Listing(files=set(files), links=set(links)), sorted(hardware)
