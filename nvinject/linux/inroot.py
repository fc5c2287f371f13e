"""Paths inside a root file system that an attacker may have written, resolved so that they never leave it.

Everything works on a file descriptor of the root and yields file descriptors; a path is resolved once. Belongs here:
opening, walking, creating by single component. Does not belong here: mounts, journals, messages for people.
"""

import errno
import stat

from nvinject import leanos as os
from nvinject.linux import syscalls
from nvinject.linux.const import PROC_SUPER_MAGIC, RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_XDEV

MAX_LINKS = 40  # MAXSYMLINKS of the kernel
MAX_RETRIES = 128  # openat2(2): EAGAIN when a rename or mount elsewhere raced with a ".."

# Errors that tell of this moment or this machine and not of what lies at a path.
TROUBLE = (errno.EINTR, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EPERM)

_RESOLVE = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
_ONE_MOUNT = _RESOLVE | RESOLVE_NO_XDEV
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def _error(number: int, thing: str) -> OSError:
    return OSError(number, os.strerror(number), thing)


def ignore_absence(error: OSError) -> None:
    """Return for an error that tells what lies at a path (nothing, another kind, closed to us); raises any other.

    Whoever treats what cannot be opened as absent must not do so because memory or descriptors are short just now.
    """
    if error.errno in TROUBLE:
        raise error


def open_in_root(root_fd: int, path: str, flags: int, mode: int = 0, *, one_mount: bool = False) -> int:
    """Open `path` as a process chrooted to the root would; returns a close-on-exec file descriptor.

    Magic links (/proc/self/fd/3) are refused, and with `one_mount` what lies on another mount than the root. Raises
    OSError as open(2) does, ELOOP for too many or magic links, EXDEV for another mount and where that cannot be told.
    """
    if not flags & (os.O_CREAT | os.O_TMPFILE & ~os.O_DIRECTORY):
        mode = 0  # openat2(2): EINVAL for a mode without a file to create
    for _ in range(MAX_RETRIES):
        try:
            return syscalls.openat2(root_fd, path, flags, mode, _ONE_MOUNT if one_mount else _RESOLVE)
        except OSError as error:
            if error.errno == errno.ENOSYS:
                if one_mount:
                    raise _error(errno.EXDEV, path) from None
                return open_by_walking(root_fd, path, flags, mode)
            # The C library repeats no call that a signal interrupted, as Python does for its own.
            if error.errno not in {errno.EAGAIN, errno.EINTR}:
                raise
    raise _error(errno.EAGAIN, path)


def open_by_walking(root_fd: int, path: str, flags: int, mode: int = 0) -> int:
    """Do what open_in_root does on kernels without openat2 (before 5.6)."""
    walk = _Walk(root_fd, path, None)
    try:
        name = walk.to_parent(follow_last=not flags & os.O_NOFOLLOW, must_be_named=False)
        safe = flags | os.O_NOFOLLOW | os.O_CLOEXEC
        if name is None:
            return os.open(".", safe, mode, dir_fd=walk.current())
        try:
            return os.open(name, safe, mode, dir_fd=walk.current())
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
    finally:
        walk.close()


def open_parent(
    root_fd: int, path: str, create_mode: "int | None" = None, *, follow_last: bool = False
) -> "tuple[int, str, list[tuple[int, str]]]":
    """Walk to the directory that holds the last component of `path`, creating what is missing if `create_mode` is set.

    Symbolic links count from the root, `..` stops at the root. With `follow_last` a link in the last place is followed
    too, so that the name is that of a link's final target, there or not. Returns the parent's file descriptor, the name
    in it, and the created directories, outermost first, each as (parent's file descriptor, name); the caller closes all
    of these. Umask applies. Where the walk fails after creating something, it removes that again.
    """
    walk = _Walk(root_fd, path, create_mode)
    try:
        name = walk.to_parent(follow_last=follow_last, must_be_named=True)
        assert name is not None
        return os.dup(walk.current()), name, walk.created
    except BaseException:
        walk.remove_created()
        raise
    finally:
        walk.close()


def create_file(parent_fd: int, name: str, mode: int) -> int:
    """Create an empty regular file that was not there; returns it open for writing. Umask applies."""
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=parent_fd)


def temporary_name(name: str) -> str:
    """Return a name for a temporary neighbour of `name`, unlikely to exist and valid wherever `name` is."""
    return f".nvinject-{os.urandom(6).hex()}"[: max(len(name), 22)]


class _Walk:
    """The state of one component-wise walk: a stack of held directories, the components still to come."""

    def __init__(self, root_fd: int, path: str, create_mode: "int | None") -> None:
        self.path = path
        self.create_mode = create_mode
        self.created: list[tuple[int, str]] = []
        self._stack = [os.dup(root_fd)]
        self._pending = _components(path)
        self._links = 0

    def current(self) -> int:
        """Return the directory where the walk stands."""
        return self._stack[-1]

    def to_parent(self, *, follow_last: bool, must_be_named: bool) -> "str | None":
        """Go on until one plain name is left and return it; None if the path ends at a directory without a name."""
        if self.path == "":
            raise _error(errno.ENOENT, self.path)
        while self._pending:
            name = self._pending.pop()
            last = not self._pending
            if name == ".":
                continue
            if name == "..":
                self._ascend()
            elif last and not (follow_last and self._follow_if_link(name)):
                return name
            elif not last:
                self._descend(name)
        if must_be_named:
            raise _error(errno.EINVAL, self.path)
        return None

    def _ascend(self) -> None:
        # The held parent, not the kernel's "..": a directory moved meanwhile cannot lead out of the root.
        if len(self._stack) > 1:
            os.close(self._stack.pop())

    def _descend(self, name: str) -> None:
        entry = self._open(name)
        if entry < 0:
            if self.create_mode is None:
                raise _error(errno.ENOENT, self.path)
            self._create(name, self.create_mode)
            return
        kind = os.fstat(entry).st_mode
        if stat.S_ISDIR(kind):
            self._stack.append(entry)
            return
        try:
            if not stat.S_ISLNK(kind):
                raise _error(errno.ENOTDIR, self.path)
            self._follow(entry)
        finally:
            os.close(entry)

    def _create(self, name: str, mode: int) -> None:
        parent_fd = os.dup(self.current())  # before: what was made must be known, whatever fails then
        try:
            os.mkdir(name, mode, dir_fd=parent_fd)
        except FileExistsError:
            os.close(parent_fd)
        except OSError as error:
            os.close(parent_fd)
            raise OSError(error.errno, error.strerror, self.path) from None
        else:
            self.created.append((parent_fd, name))
        self._stack.append(os.open(name, _DIRECTORY, dir_fd=self.current()))

    def _open(self, name: str) -> int:
        """Open what has this name here, links themselves; -1 if there is nothing."""
        try:
            return os.open(name, _ENTRY, dir_fd=self.current())
        except FileNotFoundError:
            return -1
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from None

    def _follow_if_link(self, name: str) -> bool:
        """Replace `name` by what the link of that name says; False if there is no link."""
        entry = self._open(name)
        if entry < 0:
            return False
        try:
            if not stat.S_ISLNK(os.fstat(entry).st_mode):
                return False
            self._follow(entry)
        finally:
            os.close(entry)
        return True

    def _follow(self, link_fd: int) -> None:
        self._links += 1
        # A link on procfs may be a magic one; its text means something else than where it leads.
        if self._links > MAX_LINKS or syscalls.fstatfs(link_fd) == PROC_SUPER_MAGIC:
            raise _error(errno.ELOOP, self.path)
        target = os.readlink("", dir_fd=link_fd)
        if target.startswith("/"):
            self._restart()
        self._pending += _components(target)

    def _restart(self) -> None:
        while len(self._stack) > 1:
            os.close(self._stack.pop())

    def remove_created(self) -> None:
        """Remove what the walk created, innermost first, as far as that is possible."""
        for parent_fd, name in reversed(self.created):
            try:
                os.rmdir(name, dir_fd=parent_fd)
            except OSError:
                continue  # somebody put a file into it: no longer ours
            finally:
                os.close(parent_fd)
        self.created = []

    def close(self) -> None:
        """Close the held directories."""
        for held in self._stack:
            os.close_quietly(held)
        self._stack = []


def _components(path: str) -> "list[str]":
    """Return the components in reverse order: the next one to visit is popped from the end."""
    found = [component for component in path.split("/") if component]
    if path.endswith("/") and found:
        found.append(".")  # path_resolution(7): a trailing slash asks for a directory
    return found[::-1]
