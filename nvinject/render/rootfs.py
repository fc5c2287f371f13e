"""Links and loader cache put into a container's own file system before the container exists.

Belongs here: doing these two operations below the root, with an inverse for each. Does not belong here: which of them
are done here (oci.py), how they are done (operations.py, loadercache.py). No mount of the container is there yet and
nothing of it runs, but the image is as hostile as ever: all paths are resolved below the root's descriptor.
"""

import stat

from nvinject import leanos as os
from nvinject.core.plan import BindFile, CreateSymlink, MaskDirectory, UpdateLoaderCache
from nvinject.errors import ContainerError, NvinjectError
from nvinject.leanos import close_quietly
from nvinject.linux import mounts
from nvinject.linux.inroot import open_in_root
from nvinject.render.journal import Journal
from nvinject.render.loadercache import CACHE
from nvinject.render.operations import PARENT_MODE, Executor, check_kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvinject.core.plan import Operation, Plan
    from nvinject.render.operations import Source


SLOW_CACHE_SIZE = 1 << 15  # bytes: about 600 libraries, three milliseconds
ROOM_FACTOR = 16  # how much more room there must be than the old cache takes


class _RootfsExecutor(Executor):
    """An executor that gives what it makes to the owner of the folder it lies in: the container's root."""

    def execute(self, operation: "Operation", source: "Source | None") -> None:
        if isinstance(operation, UpdateLoaderCache):
            # The cache's own folder has to be there first: whoever puts the file would make it as ours.
            parent_fd, _ = self._parent(operation.musl_path_file or CACHE, PARENT_MODE, follow_last=False)
            os.close(parent_fd)
        super().execute(operation, source)

    def _replace_by_link(self, parent_fd: int, name: str, target: str) -> None:
        super()._replace_by_link(parent_fd, name, target)
        _give_away(parent_fd, name)

    def _give_owner(self, parent_fd: int, name: str) -> None:
        _give_away(parent_fd, name)


def _give_away(parent_fd: int, name: str) -> None:
    parent = os.fstat(parent_fd)
    made = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    if (made.st_uid, made.st_gid) != (parent.st_uid, parent.st_gid):
        os.chown(name, parent.st_uid, parent.st_gid, dir_fd=parent_fd, follow_symlinks=False)


def without_present(plan: "Plan", root_fd: int) -> "Plan":
    """Return the plan without the links that give way to what the image has at their place."""
    kept = tuple(
        operation
        for operation in plan.operations
        if not (isinstance(operation, CreateSymlink) and not operation.force and _is_taken(operation, root_fd))
    )
    return plan.replace(operations=kept)


def _is_taken(operation: CreateSymlink, root_fd: int) -> bool:
    try:
        found = open_in_root(root_fd, operation.link, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # readlink(2) of a descriptor: an earlier create may have made the very link.
        return os.readlink("", dir_fd=found) != operation.target
    except OSError:
        return True
    finally:
        os.close(found)


def check_targets(operations: "tuple[Operation, ...]", covered: "Callable[[str], bool]", root_fd: int) -> None:
    """Raise ContainerError where the image has something that a runtime cannot or should not mount over.

    A runtime would stop half-way, or mount over a FIFO that nobody expects there. Paths that the container's own mounts
    cover do not show the image and are left to the runtime.
    """
    for operation in operations:
        kind = _kind_of(operation)
        if not kind or covered(operation.target):  # type: ignore[attr-defined]
            continue
        path: str = operation.target  # type: ignore[attr-defined]
        try:
            found = open_in_root(root_fd, path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as error:
            hint = "the image must have folders there, or nothing"
            raise ContainerError(f"cannot apply {operation.describe()}: {path}: {error.strerror}", hint) from error
        try:
            check_kind(os.fstat(found).st_mode, path, kind)
        finally:
            os.close(found)


def _kind_of(operation: "Operation") -> int:
    """Return the kind of file that an operation mounts, 0 for one that mounts none of the host's."""
    if isinstance(operation, MaskDirectory):
        return stat.S_IFDIR
    if not isinstance(operation, BindFile):
        return 0
    try:
        return stat.S_IFMT(os.stat(operation.source).st_mode)
    except OSError as error:
        raise ContainerError(
            f"cannot apply {operation.describe()}: {operation.source}: {error.strerror}", "it must exist on the host"
        ) from error


def split_slow(
    operations: "tuple[Operation, ...]", root_fd: int
) -> "tuple[tuple[Operation, ...], tuple[Operation, ...]]":
    """Return what is best done at once, and what may be done while the runtime is at work: a large loader cache.

    It takes five microseconds for each library of the image. A failure is told best at once, so only a cache that there
    is no doubt can be written is put off: a regular file on a writable file system with room.
    """
    if not _is_large_and_plain(root_fd):
        return operations, ()
    slow = tuple(one for one in operations if isinstance(one, UpdateLoaderCache) and not one.musl_path_file)
    return tuple(one for one in operations if one not in slow), slow


def _is_large_and_plain(root_fd: int) -> bool:
    try:
        found = open_in_root(root_fd, CACHE, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        status, system = os.fstat(found), os.fstatvfs(found)
    finally:
        os.close(found)
    room = system.f_bavail * system.f_frsize
    return (
        stat.S_ISREG(status.st_mode)
        and SLOW_CACHE_SIZE <= status.st_size <= room // ROOM_FACTOR
        and not system.f_flag & os.ST_RDONLY
    )


def write_rootfs(operations: "tuple[Operation, ...]", root_fd: int, log: "Callable[[str], None]") -> Journal:
    """Do all operations below the root; returns the journal that can undo them.

    Raises ContainerError that names operation and cause, with everything undone.
    """
    journal = Journal()
    descriptors_fd = mounts.open_descriptors()
    executor = _RootfsExecutor(root_fd, journal, None, descriptors_fd=descriptors_fd, modern=True)  # type: ignore[arg-type]
    try:
        for operation in operations:
            try:
                log(f"{operation.describe()} [{operation.reason}]")
                executor.execute(operation, None)
            except (OSError, NvinjectError) as error:
                raise _failure(operation, error, journal.undo()) from error
    finally:
        close_quietly(descriptors_fd)
    return journal


def _failure(operation: "Operation", error: "OSError | NvinjectError", problems: "tuple[str, ...]") -> ContainerError:
    cause = error.message if isinstance(error, NvinjectError) else str(error.strerror)
    left = f"; could not undo: {', '.join(problems)}" if problems else ""
    hint = "set nvinject.write-rootfs = false in config.toml to have links and loader cache mounted instead"
    return ContainerError(f"cannot apply {operation.describe()}: {cause}{left}", hint)
