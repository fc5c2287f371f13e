"""What the CDI hooks do to a container, each with the root file system open and the container's mounts in place.

Belongs here: looking at the container's nodes, and the changes that no operation of a plan stands for. Does not belong
here: arguments and state (nvinject.cli.cdihook), single operations (operations.py). Everything below the root is the
image's and reached only through its descriptor.
"""

import errno
import os
import stat

from nvinject.core.catalog import FOLDERS_CONF
from nvinject.errors import ContainerError
from nvinject.formats.ldconf import Directory, parse_conf
from nvinject.linux import inroot, mounts
from nvinject.render.journal import Journal
from nvinject.render.loaderpaths import configured_directories, default_directories, read_own
from nvinject.render.operations import open_procfs
from nvinject.render.replacement import replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvinject.core.plan import CreateSymlink

COMPAT_CONF = "/etc/ld.so.conf.d/00-compat-nvinject.conf"  # before every other name
CONF_MODE = 0o644
CONF_SIZE = 1 << 16
_LOOK = os.O_PATH | os.O_CLOEXEC
# What an image can have in a folder's or a file's place.
_ODD_IMAGE = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR)
_FORGIVEN = (errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENOTDIR)


def device_minors(root_fd: int, directory: str, prefix: str) -> frozenset[int]:
    """Return N of the character devices `prefix`N in a directory of the container.

    Raises OSError for trouble of our own.
    """
    try:
        descriptor = inroot.open_in_root(root_fd, directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        inroot.ignore_absence(error)
        return frozenset()
    try:
        found = []
        for name in os.listdir(descriptor):
            number = name.removeprefix(prefix)
            if name.startswith(prefix) and number.isascii() and number.isdigit() and len(number) < 10:
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                found += [int(number)] if stat.S_ISCHR(status.st_mode) else []
        return frozenset(found)
    finally:
        os.close(descriptor)


def is_in_procfs(root_fd: int, path: str) -> bool:
    """Tell whether the container's procfs has a path below /proc.

    Raises ContainerError where /proc is missing or anything else than procfs.
    """
    try:
        proc_fd = open_procfs(root_fd)
    except OSError as error:
        raise ContainerError(
            f"cannot open /proc of the container: {error.strerror}",
            "the container's configuration must mount proc there",
        ) from error
    try:
        os.close(inroot.open_in_root(proc_fd, path.removeprefix("/proc/"), _LOOK))
    except OSError as error:
        inroot.ignore_absence(error)
        return False
    finally:
        os.close(proc_fd)
    return True


def is_needed(root_fd: int, link: "CreateSymlink") -> bool:
    """Tell whether a link is to be made: it is not there yet, and its place is the container's own.

    A container may see the host's /dev (podman run -v /dev:/dev); what is made there would be made on the host.
    """
    try:
        parent_fd, name, _ = inroot.open_parent(root_fd, link.link)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            return True
        raise ContainerError(f"cannot look at {link.link}: {error.strerror}", "the image must be mended") from error
    try:
        if os.fstat(parent_fd).st_dev == os.stat("/dev").st_dev:
            return False
        try:
            return os.readlink(name, dir_fd=parent_fd) != link.target
        except OSError as error:
            inroot.ignore_absence(error)
            return True
    finally:
        os.close(parent_fd)


def change_mode(root_fd: int, path: str, mode: int) -> str:
    """Set the mode of a file or directory; returns what was in the way, "" for nothing.

    What is missing is left out, and so is what we may not change: its mode is a nicety.
    """
    try:
        descriptor = inroot.open_in_root(root_fd, path, _LOOK)
    except OSError as error:
        return "" if error.errno in _FORGIVEN else f"{path}: {error.strerror}"
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
            # chmod(2) by descriptor: fchmod refuses O_PATH, and the path must not be resolved again.
            os.chmod(f"/proc/self/fd/{descriptor}", mode)
    except OSError as error:
        return "" if error.errno in _FORGIVEN else f"{path}: {error.strerror}"
    finally:
        os.close(descriptor)
    return ""


def remember_compat(root_fd: int, directory: str, journal: Journal) -> None:
    """Make the loader look into a directory first; "" takes an earlier decision back. Raises ContainerError."""
    _write_conf(root_fd, COMPAT_CONF, (directory,) if directory else (), journal)


def remembered_compat(root_fd: int) -> str:
    """Return the directory that remember_compat was told, "" for none."""
    content = read_own(root_fd, COMPAT_CONF, CONF_SIZE) or b""
    for statement in parse_conf(content.decode("utf-8", "surrogateescape")):
        if isinstance(statement, Directory):
            return statement.path
    return ""


def remember_folders(root_fd: int, folders: tuple[str, ...], machine: str, journal: Journal) -> str:
    """Have the image's own ldconfig find folders later that it would not look into; raises ContainerError.

    Returns what in the image is in the way, "" for nothing: without the file the loader cache still has the libraries,
    until somebody runs that ldconfig.
    """
    known = {*configured_directories(root_fd), *default_directories(root_fd, machine)}
    new = tuple(folder for folder in dict.fromkeys(folders) if folder not in known)
    if new:
        # Folders of an earlier start are configured by this very file.
        old = read_own(root_fd, FOLDERS_CONF, CONF_SIZE) or b""
        kept = [one.path for one in parse_conf(old.decode("utf-8", "surrogateescape")) if isinstance(one, Directory)]
        try:
            _write_conf(root_fd, FOLDERS_CONF, tuple(dict.fromkeys((*kept, *new))), journal)
        except ContainerError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in _ODD_IMAGE:
                raise
            return f"{', '.join(new)} cannot be configured for the container's ldconfig: {error.__cause__.strerror}"
    return ""


def _write_conf(root_fd: int, path: str, lines: tuple[str, ...], journal: Journal) -> None:
    try:
        if lines:
            content = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
            replaced = replace_file(root_fd, path, content, CONF_MODE)
            journal.record(path, replaced.undo)
            journal.at_end(f"what was at {path}", replaced.commit)
        else:
            _remove(root_fd, path)
    except OSError as error:
        hint = "the container's root file system must be writable while it is created"
        raise ContainerError(f"cannot write {path} of the container: {error.strerror}", hint) from error


def _remove(root_fd: int, path: str) -> None:
    try:
        parent_fd, name, _ = inroot.open_parent(root_fd, path)
    except OSError as error:
        inroot.ignore_absence(error)
        return
    try:
        os.unlink(name, dir_fd=parent_fd)
    except FileNotFoundError:
        pass
    finally:
        os.close(parent_fd)


def is_container_root(root_fd: int) -> bool:
    """Tell whether a directory can be a container's root: the root of a mount, and not this process's own root."""
    if os.path.samestat(os.fstat(root_fd), os.stat("/")):
        return False
    above = os.open("..", _LOOK | os.O_DIRECTORY, dir_fd=root_fd)
    try:
        return mounts.mount_id(root_fd) != mounts.mount_id(above)
    finally:
        os.close(above)
