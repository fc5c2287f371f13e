"""Files that others own: read as they are, replaced in one step with everything but the content kept.

Belongs here: bytes to text and back, mode, owner, extended attributes (SELinux label, ACL) and links of a file, several
files as one change. Does not belong here: what is written (docker.py and its neighbours), going back later (undo.py).
"""

import errno
import os
import stat

from nvinject.errors import ConfigurationError, HostError
from nvinject.linux.newfile import open_new
from nvinject.linux.signals import Undisturbed
from nvinject.record import Record

FILE_MODE = 0o644
DIRECTORY_MODE = 0o755
MAXIMUM_SIZE = 16 << 20  # of a configuration: far above what is real
BYTE_ORDER_MARK = "\ufeff"
# Signatures of the old content (the kernel's IMA and EVM); what they sign is gone.
_SIGNATURES = ("security.ima", "security.evm")


class Change(Record):
    """A file's content before and after; None stands for no file."""

    path: str
    before: bytes | None
    after: bytes | None


class Document(Record):
    """The text of a file without its byte order mark; `data` is None if there is no file."""

    path: str
    data: bytes | None
    text: str
    mark: str = ""

    def change(self, text: str) -> Change:
        """Return the change that makes the file hold another text; none at all for the same one."""
        after = self.data if text == self.text else (self.mark + text).encode()
        return Change(path=self.path, before=self.data, after=after)


def read_document(path: str) -> Document:
    """Return a file as text; a missing one is empty. Raises ConfigurationError."""
    data = read_content(path)
    try:
        text = (data or b"").decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        column = error.start - error.object.rfind(b"\n", 0, error.start)
        raise ConfigurationError(
            f"{path}, line {line}, column {column}: not UTF-8 text", "engines read UTF-8 only; save the file as such"
        ) from error
    marked = text.startswith(BYTE_ORDER_MARK)
    return Document(path=path, data=data, text=text[1:] if marked else text, mark=BYTE_ORDER_MARK if marked else "")


def read_content(path: str) -> bytes | None:
    """Return the bytes of a file, None if there is none; raises ConfigurationError for what is no ordinary file."""
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for somebody to write.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}", "run as a user who may read it") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigurationError(f"{path} is not an ordinary file", "name the file itself")
        if os.fstat(descriptor).st_size > MAXIMUM_SIZE:
            raise ConfigurationError(f"{path} has more than {MAXIMUM_SIZE >> 20} MiB", "name a configuration file")
        return b"".join(iter(lambda: os.read(descriptor, 1 << 16), b""))
    finally:
        os.close(descriptor)


def carry_out(changes: "tuple[Change, ...]") -> tuple[str, ...]:
    """Make all changes or none; returns the directories that were made. Raises HostError.

    All new contents are written beside their places before the first is put there. Links are followed: the file that
    they lead to is replaced. A signal that ends this program waits until all is done.
    """
    with Undisturbed():
        return _carry_out(changes)


def _carry_out(changes: "tuple[Change, ...]") -> tuple[str, ...]:
    made: list[str] = []
    prepared: list[tuple[Change, str, str]] = []
    done: list[tuple[Change, str]] = []
    wanted = tuple(change for change in changes if change.before != change.after)
    try:
        for change in wanted:
            place = os.path.realpath(change.path)
            if change.after is not None:
                made += make_directories(os.path.dirname(place))
            prepared.append((change, place, _prepare(place, change.after)))
        for change, place, temporary in prepared:
            _check_unchanged(place, change)
            done.append((change, place))
            _put(place, temporary, change.after)
    except OSError as error:
        _take_back(done, prepared, made)
        raise _explained(error, wanted) from error
    return tuple(made)


def _check_unchanged(place: str, change: Change) -> None:
    if _content(place) != change.before:
        raise OSError(errno.EBUSY, "somebody else changed it just now", change.path)


def _content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _explained(error: OSError, changes: "tuple[Change, ...]") -> HostError:
    names = ", ".join(change.path for change in changes)
    what = f"cannot change {error.filename or names}: {error.strerror}"
    hints = {
        errno.EROFS: "its file system is read-only: change the file where it is made (an image, a system generation)",
        errno.EPERM: "run as root; lsattr shows whether the file is immutable",
        errno.EACCES: "run as root, or name another file with --config",
    }
    return HostError(what, hints.get(error.errno or 0, "nothing was changed"))


def _take_back(done: "list[tuple[Change, str]]", prepared: "list[tuple[Change, str, str]]", made: "list[str]") -> None:
    """Put back what was there before a failure, as far as the same failure permits."""
    for change, place in reversed(done):
        if _content(place) != change.before:
            _put(place, _prepare(place, change.before), change.before)
    for _, _, temporary in prepared:
        if temporary and os.path.lexists(temporary):
            os.unlink(temporary)
    remove_directories(tuple(made))


def make_directories(path: str) -> "list[str]":
    """Make a directory and those above it; returns the new ones, the outermost first."""
    missing = []
    path = os.path.abspath(path)  # the parents of a relative one never end: "" has itself for one
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        os.mkdir(directory, DIRECTORY_MODE)
    return missing[::-1]


def remove_directories(paths: tuple[str, ...]) -> None:
    """Remove directories that we made, unless somebody uses them by now."""
    for path in reversed(paths):
        try:
            os.rmdir(path)
        except OSError:
            return


def _prepare(place: str, content: bytes | None) -> str:
    """Write a content beside its place, with the attributes of what is there; returns its name ("" for none)."""
    if content is None:
        return ""
    directory, name = os.path.split(place)
    # A name that no engine takes for a drop-in file while it stands there.
    temporary = os.path.join(directory, f".{name}.{os.getpid()}.new")
    descriptor = open_new(temporary, FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            _keep_attributes(place, descriptor)
            os.fsync(descriptor)
    except OSError:
        os.unlink(temporary)
        raise
    return temporary


def _keep_attributes(place: str, descriptor: int) -> None:
    """Give a new file owner, mode and extended attributes of the one that it will replace, if there is one."""
    try:
        old = os.stat(place)
    except FileNotFoundError:
        return
    new = os.fstat(descriptor)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
    there = {name: os.getxattr(descriptor, name) for name in _attributes(descriptor)}
    for name in _attributes(place):
        value = os.getxattr(place, name)
        if name not in _SIGNATURES and there.pop(name, None) != value:
            os.setxattr(descriptor, name, value)
    for name in there:
        if name.startswith("system.posix_acl_"):  # inherited from the directory's default, which the old file has not
            os.removexattr(descriptor, name)


def _attributes(target: "str | int") -> list[str]:
    try:
        return os.listxattr(target)
    except OSError as error:
        if error.errno == errno.ENOTSUP:  # a file system without extended attributes
            return []
        raise


def _put(place: str, temporary: str, content: bytes | None) -> None:
    if content is None:
        if os.path.lexists(place):
            os.unlink(place)
        return
    try:
        os.rename(temporary, place)
    except OSError as error:
        # A file that is a mount point of its own, as in a container that was given just this file, cannot be replaced.
        if error.errno != errno.EBUSY:
            raise
        with open(place, "r+b") as file:
            file.write(content)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        os.unlink(temporary)
        return
    directory = os.open(os.path.dirname(place), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
