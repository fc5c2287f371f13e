"""Operations done by a process that is in the container's mount namespace already: a createContainer hook.

Belongs here: knowing the root file system again, and doing the operations there. Does not belong here: single
operations (operations.py) and which there are. Runtimes start such a hook before they change the root, so the host's
files are still to be seen and sources are opened by their paths.

A container with a read-only root has a root file system that can be written to, below a mount that forbids it; runc
sets that flag after these hooks, crun before them. So files are made through a copy of the mount that nobody else can
reach and that goes with this process; the container's own mount never becomes writable.
"""

import os

from nvinject.core.plan import CreateSymlink, UpdateLoaderCache, WriteFile
from nvinject.errors import ContainerError
from nvinject.formats.mountinfo import parse_mountinfo
from nvinject.leanos import close_quietly
from nvinject.linux import mounts
from nvinject.render.namespaces import Container, Work, forbid_imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nvinject.core.plan import Operation
    from nvinject.render.namespaces import Execute
    from nvinject.render.operations import Source
    from nvinject.render.sharing import SharedMounts

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def find_root(places: "Iterable[str]", identity: tuple[int, int]) -> int:
    """Open the first place that is the root file system of that identity (device, inode); (0, 0) takes any directory.

    Raises ContainerError. Places are the working directory and the paths that the runtime gives: with user namespaces
    the bundle's path may be closed to this process.
    """
    tried = []
    for place in places:
        try:
            found = os.open(place, _DIRECTORY)
        except OSError as error:
            tried.append(f"{place}: {error.strerror}")
            continue
        status = os.fstat(found)
        if identity in {(0, 0), (status.st_dev, status.st_ino)}:
            return found
        os.close(found)
        tried.append(f"{place}: another directory")
    raise ContainerError(
        f"cannot find the container's root file system ({', '.join(tried)})",
        "the runtime must call the hook with the same root file system as the one it was created for",
    )


def open_writable(root_fd: int) -> int:
    """Open the same root file system so that files can be made in it, if its mount alone forbids that.

    Where that is not possible, or not needed, it is the same mount again, and writing tells why it cannot be done. A
    mount that lies on a read-only one was made so by somebody other than the runtime, and stays so: several containers
    may share what it shows.
    """
    if mounts.is_read_only(root_fd) and not lies_on_read_only(root_fd):
        try:
            return mounts.clone_writable(root_fd)
        except OSError:
            pass
    return os.dup(root_fd)


def lies_on_read_only(root_fd: int) -> bool:
    """Tell whether the mount on which the root file system's own mount lies is read-only too, or cannot be told."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        known = {mount.mount_id: mount for mount in parse_mountinfo(file.read())}
    own = known.get(mounts.mount_id(root_fd))
    below = known.get(own.parent_id) if own is not None else None
    return below is None or "ro" in below.options


def apply_here(
    operations: "tuple[Operation, ...]", root_fd: int, log: "Callable[[str], None] | None"
) -> "tuple[str, ...]":
    """Do all operations below the root or none; returns warnings. Raises ContainerError as render.namespaces does."""
    proc_fd = os.open("/proc/self", _DIRECTORY)
    warnings: list[str] = []

    def report(kind: str, *words: str) -> None:
        if kind == "warning":
            warnings.append(words[0])
        elif log is not None and kind == "log":
            log(words[0])

    try:
        _WorkHere(
            operations,
            Container(proc_fd=proc_fd, root_fd=root_fd, pid=os.getpid()),
            report,
            tells_steps=log is not None,
        ).run()
    finally:
        close_quietly(proc_fd)  # everything is done by now, or taken back
    return tuple(warnings)


class _WorkHere(Work):
    """The same work, with no namespace to enter."""

    def _enter(self) -> None:
        forbid_imports()

    def _way_to_execute(self, sharing: "SharedMounts", descriptors_fd: int) -> "Execute":
        root_fd = self._container.root_fd
        mounting = self._make_executor(root_fd, sharing, descriptors_fd)
        if not mounts.is_read_only(root_fd):
            return mounting.execute
        writing = self._make_executor(open_writable(root_fd), sharing, descriptors_fd)

        def execute(operation: "Operation", source: "Source | None") -> None:
            if isinstance(operation, (CreateSymlink, UpdateLoaderCache, WriteFile)):
                writing.execute(operation, source)
                return
            writing.make_place(operation, source)
            mounting.execute(operation, source)

        return execute
