"""Root: a directory of the host below which a part of the machine is looked at (driver root, device root, /proc).

Belongs here: reading names, texts and links below one directory, so that links (absolute ones too) never leave it. Does
not belong here: which names, and what they mean. Paths given and returned are absolute as that directory shows them.
"""

import errno
import stat

from nvinject import leanos as os
from nvinject.errors import HostError
from nvinject.linux.inroot import open_in_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY
_LOOK = os.O_PATH | os.O_CLOEXEC
_CHUNK = 1 << 16
_SUSPICIOUS = 1 << 10  # chunks; libraries can be larger

# ENXIO and ENODEV: a socket or a device without driver that was opened to be read.
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV)


class Root:
    """An opened directory of the host, and what can be asked about the paths below it.

    The methods raise HostError where something is there but cannot be read, and say so by returning None or nothing
    where it is not there. Not safe against being closed while in use.
    """

    def __init__(self, path: str, *, title: str = "root", key: str = "") -> None:
        """Open the directory; `title` and `key` (of config.toml) name it in the HostError for one that is not there."""
        self.path = path.rstrip("/") or "/"
        try:
            self.fd = os.open(self.path, _LOOK | os.O_DIRECTORY)
        except OSError as error:
            what = {errno.ENOENT: "does not exist", errno.ENOTDIR: "is not a directory"}
            problem = what.get(error.errno or 0, f"cannot be opened: {error.strerror}")
            hint = f"{key} must name a directory" if key else ""
            raise HostError(f"{title} {path} {problem}", hint) from error
        self._prefix = "/" if self.path == "/" else os.readlink(f"/proc/self/fd/{self.fd}")

    def close(self) -> None:
        """Close the directory; the Root is of no use afterwards."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> "Self":
        """Return the Root itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the directory."""
        self.close()

    def host_path(self, path: str) -> str:
        """Return how the host itself names a path below this root, for messages and mounts."""
        return path if self.path == "/" else self.path + path

    def shown_below(self, path: str) -> str:
        """Return how this root shows a path that the host itself names, "" for one that is not below this root."""
        return path_below(self.path, path)

    def open(self, path: str, flags: int = _READ) -> int:
        """Give a file descriptor of what lies at a path; raises OSError as the system call does."""
        if self.path == "/" and path.startswith("/"):
            # Nothing leads out of this one, and the short way costs a fifth; /proc, whose links may, has its own root.
            return os.open(path, flags | os.O_CLOEXEC)
        return open_in_root(self.fd, path, flags)

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, None where there is none."""
        try:
            descriptor = self.open(path)
        except OSError as error:
            self._raise_unless_absent(error, path)
            return None
        try:
            chunks = []
            while chunk := os.read(descriptor, _CHUNK):
                chunks.append(chunk)
                if len(chunks) == _SUSPICIOUS and not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise HostError(f"cannot read {self.host_path(path)}: it does not end", "name a regular file")
            return b"".join(chunks)
        except OSError as error:
            raise self._refusal(error, path) from error
        finally:
            os.close(descriptor)

    def read_start(self, path: str, size: int) -> bytes | None:
        """Return the first bytes of a regular file, None for anything else: for places that anybody may write to.

        Never waits, as opening a FIFO would, and follows no link in the last component.
        """
        try:
            descriptor = self.open(path, _READ | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError as error:
            self._raise_unless_absent(error, path)
            return None
        try:
            return os.read(descriptor, size) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
        except OSError as error:
            raise self._refusal(error, path) from error
        finally:
            os.close(descriptor)

    def read_text(self, path: str) -> str | None:
        """Return the content of a file as text (undecodable bytes survive as surrogates), None where there is none."""
        data = self.read(path)
        return None if data is None else data.decode("utf-8", "surrogateescape")

    def stat(self, path: str) -> os.stat_result | None:
        """Return what a path leads to, None where it leads nowhere."""
        return self._stat(path, _LOOK)

    def lstat(self, path: str) -> os.stat_result | None:
        """Return what lies at a path, without following a link in its last component; None where nothing does."""
        return self._stat(path, _LOOK | os.O_NOFOLLOW)

    def exists(self, path: str) -> bool:
        """Say whether a path leads to something."""
        return self.stat(path) is not None

    def locate(self, path: str, *, follow_last: bool = True) -> tuple[str, os.stat_result] | None:
        """Return the link-free path of what a path leads to, and what that is; None where it leads nowhere.

        Without `follow_last` a link in the last component is what is there. Both values are of one look, between two
        of which a user could put something else there.
        """
        try:
            descriptor = self.open(path, _LOOK if follow_last else _LOOK | os.O_NOFOLLOW)
        except OSError as error:
            self._raise_unless_absent(error, path)
            return None
        try:
            return self._path_of(descriptor, path), os.fstat(descriptor)
        finally:
            os.close(descriptor)

    def resolve(self, path: str) -> str | None:
        """Return the link-free path of what a path leads to, None where it leads nowhere."""
        located = self.locate(path)
        return None if located is None else located[0]

    def read_link(self, path: str) -> str:
        """Return what the symbolic link at a path says, "" where there is no link."""
        try:
            descriptor = self.open(path, _LOOK | os.O_NOFOLLOW)
        except OSError as error:
            self._raise_unless_absent(error, path)
            return ""
        try:
            return os.readlink("", dir_fd=descriptor) if stat.S_ISLNK(os.fstat(descriptor).st_mode) else ""
        finally:
            os.close(descriptor)

    def list_directory(self, path: str) -> tuple[str, ...]:
        """Return the names in a directory in order, none where there is no directory."""
        try:
            descriptor = self.open(path, _READ | os.O_DIRECTORY)
        except OSError as error:
            self._raise_unless_absent(error, path)
            return ()
        try:
            return tuple(sorted(os.listdir(descriptor)))
        except OSError as error:
            raise self._refusal(error, path) from error
        finally:
            os.close(descriptor)

    def expand(self, directory: str) -> tuple[str, ...]:
        """Return the paths that a directory's name stands for: a last component `*` means every name in its parent."""
        parent, _, last = directory.rpartition("/")
        return tuple(f"{parent}/{name}" for name in self.list_directory(parent)) if last == "*" else (directory,)

    def _stat(self, path: str, flags: int) -> os.stat_result | None:
        try:
            descriptor = self.open(path, flags)
        except OSError as error:
            self._raise_unless_absent(error, path)
            return None
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    def _path_of(self, descriptor: int, path: str) -> str:
        found = os.readlink(f"/proc/self/fd/{descriptor}")
        if self._prefix == "/":
            return found
        below = path_below(self._prefix, found)
        if not below:
            raise HostError(f"{self.host_path(path)} was moved out of {self.path} while it was looked at", "try again")
        return below

    def _raise_unless_absent(self, error: OSError, path: str) -> None:
        if error.errno not in ABSENT:
            raise self._refusal(error, path) from error

    def _refusal(self, error: OSError, path: str) -> HostError:
        hint = ""
        if error.errno in {errno.EACCES, errno.EPERM}:
            hint = "it is there, but this user may not read it: run as root or mend its permissions"
        return HostError(f"cannot read {self.host_path(path)}: {error.strerror}", hint)


def path_below(root: str, path: str) -> str:
    """Return a path as a root shows it, "" for a path that is not below it.

    At a component boundary: /run/nvidia/driver2 is not below /run/nvidia/driver. Both are absolute.
    """
    if root == "/":
        return path
    if path == root:
        return "/"
    return path[len(root) :] if path.startswith(root + "/") else ""
