"""A plan applied to the namespaces of a created container, whole or not at all.

Belongs here: opening the container, the order of the steps, the process that enters, and what a failure is called. Does
not belong here: single operations (operations.py), device rules (cgroup.py), what to do (the plan). The caller does not
leave its own namespaces: a child enters, so that nothing is imported or opened where an image could answer, so that
threads of a driver library do not forbid entering, and so that device rules can be taken back with the host's rights. A
caller that ends at once may do without the child, a third of the hook's own work, where only the mount namespace is
another one: that takes none of its rights, and what it still needs it has open.
"""

import errno
import sys

from nvinject import leanos as os
from nvinject.core.plan import (
    AllowDevice,
    BindDevice,
    BindFile,
    CreateSymlink,
    LimitMemory,
    MakeNode,
    MaskDirectory,
)
from nvinject.errors import ContainerError, NvinjectError
from nvinject.linux import inroot, mounts, namespaces
from nvinject.record import Record
from nvinject.render.cgroup import DeviceRules
from nvinject.render.journal import Journal
from nvinject.render.operations import Executor, Source
from nvinject.render.sharing import SharedMounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nvinject.core.plan import Operation, Plan

    Report = Callable[..., None]
    Execute = Callable[[Operation, Source | None], None]

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_SEPARATOR = b"\0"
_HINTS = {
    errno.EACCES: "run the hook with the rights of the runtime that created the container",
    errno.EDQUOT: "free space on the file system of the container",
    errno.ELOOP: "the image has too many, circular or magic symbolic links there",
    errno.EMFILE: "raise the limit of open files of the container engine",
    errno.ENOSPC: "free space on the file system of the container",
    errno.ENOTDIR: "the image has a file where a directory is needed",
    errno.EPERM: "run the hook with the rights of the runtime that created the container",
    errno.EROFS: "the file system of the container is read-only and lacks this place: add it to the image",
}


class Container(Record):
    """A created container: directory of its process in /proc, directory of its root file system, process id.

    Both are O_PATH file descriptors; `root_fd` lies in the container's mount namespace. `is_ours` says that the caller
    means the namespaces that it runs in itself.
    """

    proc_fd: int
    root_fd: int
    pid: int
    is_ours: bool = False


def open_container(pid: int, root_path: str) -> Container:
    """Open a container by the process id and the root file system's path that the runtime gives.

    Works before the runtime changes the root (the path leads to the root file system) and after it. Raises
    ContainerError.
    """
    try:
        proc_fd = os.open(f"/proc/{pid}", _DIRECTORY)
    except FileNotFoundError as error:
        raise ContainerError(
            f"the container's process {pid} does not exist", "it ended, or the state's pid is wrong"
        ) from error
    try:
        return Container(proc_fd=proc_fd, root_fd=_open_root(proc_fd, root_path), pid=pid)
    except OSError as error:
        os.close(proc_fd)
        raise ContainerError(
            f"cannot open the root file system {root_path} of process {pid}: {error.strerror}",
            _HINTS.get(error.errno or 0, "the runtime must have made it before it calls the hook"),
        ) from error


def open_surroundings(root_path: str) -> Container:
    """Open a root file system in the namespaces of this process, which its caller has made for the container.

    Raises ContainerError.
    """
    try:
        proc_fd = os.open("/proc/self", _DIRECTORY)
        root_fd = os.open(root_path, _DIRECTORY)
    except OSError as error:
        raise ContainerError(
            f"cannot open {error.filename}: {error.strerror}", "the root file system must exist, and /proc be mounted"
        ) from error
    return Container(proc_fd=proc_fd, root_fd=root_fd, pid=os.getpid(), is_ours=True)


def _open_root(proc_fd: int, root_path: str) -> int:
    """Open the root file system in the container's mount namespace.

    Seen from the host its path leads to the same directory; where the container's own root is that directory already,
    the runtime has changed the root.
    """
    namespace_root = os.open("root", _DIRECTORY, dir_fd=proc_fd)
    try:
        expected = os.stat(root_path)
    except OSError:
        expected = None  # the engine's mount namespace may be another one than ours
    if expected is not None and os.path.samestat(expected, os.fstat(namespace_root)):
        return namespace_root
    try:
        root_fd = inroot.open_in_root(namespace_root, root_path, _DIRECTORY)
    finally:
        os.close(namespace_root)
    if expected is not None and not os.path.samestat(expected, os.fstat(root_fd)):
        os.close(root_fd)
        raise OSError(errno.ESTALE, "the process has another directory at this path")
    return root_fd


def apply(
    plan: "Plan",
    container: Container,
    *,
    no_cgroups: bool,
    log: "Callable[[str], None] | None" = None,
    ends_here: bool = False,
) -> "tuple[str, ...]":
    """Do every operation of the plan in order; returns warnings.

    `log` gets a line before each step. `ends_here` says that the process has one thread, and that it does nothing
    afterwards but report and end: it may find itself in the container's mount namespace then. Raises ContainerError
    that names step, path and cause; then all that had been done is undone, and the error lists what could not be.
    """
    tell = log or _ignore
    rules = tuple(operation for operation in plan.operations if isinstance(operation, AllowDevice))
    nodes = tuple(operation for operation in plan.operations if isinstance(operation, MakeNode))
    elsewhere = (AllowDevice, LimitMemory, MakeNode)  # not in the container; limits are set before, by the caller
    others = tuple(operation for operation in plan.operations if not isinstance(operation, elsewhere))
    changed = DeviceRules(container.proc_fd)
    made = None
    warnings: tuple[str, ...] = ()
    try:
        if nodes:
            from nvinject.render.hostnodes import make_nodes  # few hosts let a container's start change them

            made = make_nodes(nodes, tell)
        if rules and not no_cgroups:
            warnings = changed.allow(rules, tell)
        if others:
            does = _apply_here if ends_here and _shares_user_namespace(container) else _apply_in_child
            warnings += does(others, container, log)
    except BaseException as error:
        problems = changed.undo() + (made.undo() if made is not None else ())
        if problems and isinstance(error, ContainerError):
            raise ContainerError(_with_problems(error.message, problems), error.hint) from error
        raise
    finally:
        changed.close()
    return warnings


def _ignore(_: str) -> None:
    pass


def _with_problems(message: str, problems: "tuple[str, ...]") -> str:
    return f"{message}; could not undo: {', '.join(problems)}" if problems else message


def _shares_user_namespace(container: Container) -> bool:
    try:
        user_fd = namespaces.open_namespace(container.proc_fd, "user")
    except OSError:
        return False
    try:
        return namespaces.is_ours(user_fd, "user")
    finally:
        os.close(user_fd)


def _apply_here(
    operations: "tuple[Operation, ...]", container: Container, log: "Callable[[str], None] | None"
) -> "tuple[str, ...]":
    """Do the operations in this process, which stays in the container's mount namespace."""
    warnings: list[str] = []

    def report(kind: str, *words: str) -> None:
        if kind == "warning":
            warnings.append(words[0])
        elif log is not None and kind == "log":
            log(words[0])

    try:
        Work(operations, container, report, tells_steps=log is not None).run()
    except Exception as error:
        raise _as_container_error(error) from error
    return tuple(warnings)


def _apply_in_child(
    operations: "tuple[Operation, ...]", container: Container, log: "Callable[[str], None] | None"
) -> "tuple[str, ...]":
    """Fork, let the child do the operations, relay what it reports."""
    try:
        reading, writing = os.pipe()
        child = os.fork()
    except OSError as error:
        raise ContainerError(
            f"cannot start the process that changes the container: {error.strerror}",
            _HINTS.get(error.errno or 0, "free memory or raise the limits of the container engine"),
        ) from error
    if child == 0:
        os.close_quietly(reading)
        _work_and_exit(operations, container, writing, tells_steps=log is not None)
    os.close_quietly(writing)
    try:
        return _relay(reading, log or _ignore)
    finally:
        os.close_quietly(reading)
        os.waitpid(child, 0)


def _relay(reading: int, log: "Callable[[str], None]") -> "tuple[str, ...]":
    """Read records (kind, words, empty line's newline) until the child ends; raises the error that it reports."""
    warnings: list[str] = []
    failure: ContainerError | None = None
    finished = False
    for line in _lines(reading):
        kind, *words = [os.fsdecode(word) for word in line.split(_SEPARATOR)]
        if kind == "log":
            log(words[0])
        elif kind == "warning":
            warnings.append(words[0])
        elif kind == "failure":
            failure = ContainerError(words[0], words[1])
        finished = finished or kind in {"done", "failure"}
    if failure is not None:
        raise failure
    if not finished:
        raise ContainerError(
            "the process that changes the container ended before it was done", "the container may be half changed"
        )
    return tuple(warnings)


def _lines(reading: int) -> "Iterator[bytes]":
    """Yield what the child reports, line by line; nothing here may fail while the child goes on with its work."""
    rest = b""
    attempts = 2
    while attempts:
        try:
            part = os.read(reading, 65536)
        except OSError:
            attempts -= 1
            continue
        if not part:
            return
        *lines, rest = (rest + part).split(b"\n")
        yield from lines


def _work_and_exit(
    operations: "tuple[Operation, ...]", container: Container, writing: int, *, tells_steps: bool
) -> None:
    def report(kind: str, *words: str) -> None:
        line = _SEPARATOR.join(os.fsencode(word.replace("\n", " ").replace("\0", " ")) for word in (kind, *words))
        os.write(writing, line + b"\n")

    try:
        Work(operations, container, report, tells_steps=tells_steps).run()
    except BaseException as error:  # noqa: BLE001 # the parent tells it; here nothing may print a traceback
        failure = _as_container_error(error)
        report("failure", failure.message, failure.hint)
    finally:
        os._exit(0)  # noqa: SLF001 # as os names it


def _as_container_error(error: BaseException) -> NvinjectError:
    if isinstance(error, NvinjectError):
        return error
    if isinstance(error, OSError):
        thing = f"{error.filename}: " if error.filename else ""
        return ContainerError(
            f"cannot prepare the change of the container: {thing}{error.strerror}", _HINTS.get(error.errno or 0, "")
        )
    return ContainerError(f"{type(error).__name__}: {error}", "this is a fault of nvinject: please report it")


class Work:
    """What the child does: sources, entering, operations, and undoing them all when one fails."""

    def __init__(
        self, operations: "tuple[Operation, ...]", container: Container, report: "Report", *, tells_steps: bool
    ) -> None:
        """Take what is to be done, where, and whom to tell warnings, and steps if they are wanted."""
        self._tells_steps = tells_steps
        self._operations = operations
        self._container = container
        self._report = report
        self._journal = Journal()
        self._sources: list[Source | None] = []
        self._modern = mounts.has_mount_api()

    def run(self) -> None:
        """Do all operations or none."""
        os.umask(0)  # modes are those of the plan
        descriptors_fd = mounts.open_descriptors()
        self._open_sources()
        self._enter()
        execute = self._way_to_execute(SharedMounts(self._container.proc_fd, descriptors_fd), descriptors_fd)
        for operation, source in zip(self._operations, self._sources, strict=True):
            try:
                if self._tells_steps:
                    self._report("log", f"{operation.describe()} [{operation.reason}]")
                execute(operation, source)
            except BaseException as error:
                raise _explain(operation, error, self._journal.undo()) from error
        try:
            self._journal.finish()
            self._report("done")
        except OSError as error:
            problems = self._journal.undo()
            message = f"cannot complete the change of the container: {error.strerror}"
            raise ContainerError(_with_problems(message, problems), _HINTS.get(error.errno or 0, "")) from error
        for problem in self._journal.commit():
            self._report("warning", f"left behind in the container: {problem}")

    def _way_to_execute(self, sharing: SharedMounts, descriptors_fd: int) -> "Execute":
        return self._make_executor(self._container.root_fd, sharing, descriptors_fd).execute

    def _make_executor(self, root_fd: int, sharing: SharedMounts, descriptors_fd: int) -> Executor:
        return Executor(root_fd, self._journal, sharing, descriptors_fd=descriptors_fd, modern=self._modern)

    def _open_sources(self) -> None:
        """Open and check every source; make the detached mounts now if our rights on the host allow it."""
        clone = self._modern
        for operation in self._operations:
            source = None
            if isinstance(operation, (BindFile, BindDevice)):
                try:
                    source = Source(operation)
                    if clone:
                        clone = _try_to_clone(source)
                except (OSError, ContainerError) as error:
                    raise _explain(operation, error, ()) from error
            self._sources.append(source)

    def _enter(self) -> None:
        try:
            _enter(self._container)
        except OSError as error:
            raise ContainerError(
                f"cannot enter the namespaces of process {self._container.pid}: {error.strerror}",
                _HINTS.get(error.errno or 0, "the process must be that of a created container"),
            ) from error
        forbid_imports()


def _try_to_clone(source: Source) -> bool:
    try:
        source.clone()
    except PermissionError:
        return False
    return True


def _enter(container: Container) -> None:
    if container.is_ours:
        return
    user_fd = namespaces.open_namespace(container.proc_fd, "user")
    mount_fd = namespaces.open_namespace(container.proc_fd, "mnt")
    try:
        if namespaces.is_ours(mount_fd, "mnt"):
            raise ContainerError(
                f"process {container.pid} is in the mount namespace of the host",
                "a container needs a mount namespace of its own",
            )
        if not namespaces.is_ours(user_fd, "user"):
            namespaces.enter_user_namespace(user_fd, container.proc_fd)
        namespaces.enter_mount_namespace(mount_fd)
    finally:
        os.close(user_fd)
        os.close(mount_fd)


def forbid_imports() -> None:
    """From here on a module's path could lead into the image: only what is built into the interpreter may load."""
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if getattr(finder, "__name__", "") in {"BuiltinImporter", "FrozenImporter"}
    ]


def _explain(operation: "Operation", error: BaseException, problems: "tuple[str, ...]") -> ContainerError:
    """Say in one line which operation failed, on what and why."""
    what = f"cannot apply {operation.describe()}"
    if isinstance(error, NvinjectError):
        return ContainerError(_with_problems(f"{what}: {error.message}", problems), error.hint)
    if not isinstance(error, OSError):
        fault = f"{what}: {type(error).__name__}: {error}"
        return ContainerError(_with_problems(fault, problems), "this is a fault of nvinject: please report it")
    thing = error.filename if isinstance(error.filename, str) and error.filename.startswith("/") else ""
    cause = f"{thing}: {error.strerror}" if thing else str(error.strerror)
    return ContainerError(_with_problems(f"{what}: {cause}", problems), _remedy(operation, error))


def _remedy(operation: "Operation", error: OSError) -> str:
    if error.errno == errno.ENOENT:
        if isinstance(operation, MaskDirectory) and operation.target.startswith("/proc/"):
            return "the driver is not loaded on this kernel: load the nvidia module on the host"
        if isinstance(operation, (BindFile, BindDevice)) and error.filename == operation.source:
            return "it must exist on the host"
    if error.errno == errno.EISDIR and isinstance(operation, CreateSymlink):
        return "the image has a directory where a link is needed"
    return _HINTS.get(error.errno or 0, "")
