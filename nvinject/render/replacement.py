"""Replacing a file of a container in one step, so that the old one can come back untouched or be let go.

Belongs here: temporary name, exchange, undo, commit; everything through file descriptors below the root. Does not
belong here: what the file contains (loadercache.py).
"""

import errno
import stat

from nvinject import leanos as os
from nvinject.linux import inroot, syscalls
from nvinject.linux.const import RENAME_EXCHANGE, RENAME_NOREPLACE

DIRECTORY_MODE = 0o755
_NO_FLAGS = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # file systems and kernels without renameat2's flags


class Replacement:
    """A file that was replaced: `commit` lets the old one go, `undo` brings it back; the first call counts."""

    __slots__ = ("_created", "_kept", "_name", "_parent_fd")

    def __init__(self, parent_fd: int, name: str, kept: str, created: "list[tuple[int, str]]") -> None:
        """Remember the place, the name under which the old file waits ("" for none), and the new directories."""
        self._parent_fd = parent_fd
        self._name = name
        self._kept = kept
        self._created = created

    def __call__(self) -> None:
        """Undo."""
        self.undo()

    def commit(self) -> None:
        """Remove the old file for good; after an OSError it can be called again."""
        if self._parent_fd < 0:
            return
        if self._kept:
            os.unlink(self._kept, dir_fd=self._parent_fd)
        self._close()

    def undo(self) -> None:
        """Put everything back as it was; raises OSError where that is not possible."""
        if self._parent_fd < 0:
            return
        try:
            if self._kept:
                os.rename(self._kept, self._name, src_dir_fd=self._parent_fd, dst_dir_fd=self._parent_fd)
            else:
                os.unlink(self._name, dir_fd=self._parent_fd)
            for directory_fd, name in reversed(self._created):
                os.rmdir(name, dir_fd=directory_fd)
        finally:
            self._close()

    def _close(self) -> None:
        _close_all(self._parent_fd, self._created)
        self._created = []
        self._parent_fd = -1


def replace_file(root_fd: int, path: str, content: bytes, mode: int) -> Replacement:
    """Put a file at `path` of the root, with its directories, in place of whatever file, link or node is there.

    Links in the directories are followed inside the root, one in the last place is replaced. The file belongs to the
    owner of what it replaces, else of its directory. Raises OSError, with nothing changed; IsADirectoryError if `path`
    is a directory.
    """
    parent_fd, name, created = inroot.open_parent(root_fd, path, DIRECTORY_MODE)
    try:
        kept = _replace(parent_fd, name, content, mode)
    except OSError as error:
        for directory_fd, directory in reversed(created):
            os.rmdir(directory, dir_fd=directory_fd)
        _close_all(parent_fd, created)
        raise OSError(error.errno, error.strerror, path) from None
    return Replacement(parent_fd, name, kept, created)


def _replace(parent_fd: int, name: str, content: bytes, mode: int) -> str:
    """Write and put the file; returns the name under which the old one is kept, "" if there was none."""
    try:
        old = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    except FileNotFoundError:
        old = None
    if old is not None and stat.S_ISDIR(old.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    temporary = inroot.temporary_name(name)
    file_fd = inroot.create_file(parent_fd, temporary, mode)
    try:
        try:
            _fill(file_fd, content, mode, os.fstat(parent_fd) if old is None else old)
        finally:
            os.close(file_fd)
        if old is None:
            _put_new(parent_fd, temporary, name)
            return ""
        return _exchange(parent_fd, temporary, name)
    except OSError:
        os.unlink(temporary, dir_fd=parent_fd)
        raise


def _fill(file_fd: int, content: bytes, mode: int, like: os.stat_result) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file_fd, rest) :]
    os.fchmod(file_fd, mode)
    if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
        try:
            os.fchown(file_fd, like.st_uid, like.st_gid)
        except OSError as error:
            # Without the right to give files away, or with an owner unknown in this user namespace, it stays ours.
            if error.errno not in (errno.EPERM, errno.EINVAL):
                raise


def _put_new(parent_fd: int, temporary: str, name: str) -> None:
    try:
        # Not over something that appeared meanwhile: undo could not bring that back.
        syscalls.renameat2(parent_fd, temporary, parent_fd, name, RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in _NO_FLAGS:
            raise
        os.rename(temporary, name, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)


def _exchange(parent_fd: int, temporary: str, name: str) -> str:
    """Exchange two files; returns the name under which the old one is kept."""
    try:
        syscalls.renameat2(parent_fd, temporary, parent_fd, name, RENAME_EXCHANGE)
    except OSError as error:
        if error.errno not in _NO_FLAGS:
            raise
    else:
        return temporary
    kept = inroot.temporary_name(name)
    os.rename(name, kept, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)
    try:
        os.rename(temporary, name, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)
    except OSError:
        os.rename(kept, name, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)
        raise
    return kept


def _close_all(parent_fd: int, created: "list[tuple[int, str]]") -> None:
    for directory_fd, _ in created:
        os.close_quietly(directory_fd)
    os.close_quietly(parent_fd)
