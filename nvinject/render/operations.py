"""Doing the single operations of a plan on a container whose mount namespace this process has entered.

Belongs here: sources, targets, and what each operation changes, every change with its inverse in the journal. Does not
belong here: entering, the order of a whole plan, messages to the caller (namespaces.py), device rules (cgroup.py). All
that lies below the container's root may be hostile: it is reached by nvinject.linux.inroot only, and each path once.
"""

import errno
import stat

from nvinject import leanos as os
from nvinject.core.plan import BindDevice, BindFile, CreateSymlink, MaskDirectory, UpdateLoaderCache, WriteFile
from nvinject.errors import ContainerError
from nvinject.linux import inroot, mounts, syscalls
from nvinject.linux.const import PROC_ROOT_INO, PROC_SUPER_MAGIC
from nvinject.render import loadercache
from nvinject.render.journal import Journal
from nvinject.render.replacement import replace_file
from nvinject.render.sharing import SharedMounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvinject.core.plan import Operation

PARENT_MODE = 0o755
_INSPECT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {
    stat.S_IFBLK: "block device",
    stat.S_IFCHR: "character device",
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "FIFO",
    stat.S_IFLNK: "symbolic link",
    stat.S_IFREG: "regular file",
    stat.S_IFSOCK: "socket",
}
_BINDABLE = (stat.S_IFDIR, stat.S_IFREG, stat.S_IFSOCK)


class Source:
    """A file of the host that will be bound: checked once, held open, copied as a detached mount where we may."""

    def __init__(self, operation: "BindFile | BindDevice") -> None:
        """Open and check the file; raises ContainerError for a wrong kind or device number, OSError else."""
        self.operation = operation
        self.fd = os.open(operation.source, _INSPECT)
        self.mount_fd = -1
        self.status = os.fstat(self.fd)
        self.is_directory = stat.S_ISDIR(self.status.st_mode)
        try:
            _check_source(operation, self.status)
        except ContainerError:
            os.close(self.fd)
            raise

    def clone(self) -> None:
        """Make the detached mount; raises OSError EPERM where only the container's namespaces allow it."""
        self.mount_fd = mounts.clone_tree(self.fd, self.operation.flags, recursive=self.is_directory)
        # The number is checked once more, on the very thing that will be mounted.
        _check_source(self.operation, os.fstat(self.mount_fd))

    def reopen(self) -> None:
        """Open the same file again in the mount namespace entered since; raises ContainerError if it is not there."""
        found = os.open(self.operation.source, _INSPECT)
        os.close(self.fd)
        self.fd = found
        if not os.path.samestat(self.status, os.fstat(found)):
            raise ContainerError(
                f"{self.operation.source} is another file in the container's mount namespace",
                "without CAP_SYS_ADMIN on the host, files can be shown only before the runtime changes the root",
            )

    def close(self) -> None:
        """Let go of what is held."""
        for held in (self.fd, self.mount_fd):
            if held >= 0:
                os.close(held)
        self.fd = self.mount_fd = -1


def _check_source(operation: "BindFile | BindDevice", status: os.stat_result) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if isinstance(operation, BindFile):
        if kind not in _BINDABLE:
            raise ContainerError(f"{operation.source} is a {_KINDS.get(kind, 'strange file')}", "")
        return
    wanted = f"{operation.major}:{operation.minor}"
    hint = f"on the host, {operation.source} must be character device {wanted}; nvidia-modprobe makes it"
    if kind != stat.S_IFCHR:
        raise ContainerError(f"{operation.source} is a {_KINDS.get(kind, 'strange file')}", hint)
    if status.st_rdev != os.makedev(operation.major, operation.minor):
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        raise ContainerError(f"{operation.source} is device {number}, not {wanted}", hint)


class Executor:
    """Does operations below one root, journalling each change.

    `descriptors_fd` is this process's /proc/self/fd; `modern` tells whether the kernel has the mount API of 5.12.
    """

    def __init__(
        self, root_fd: int, journal: Journal, sharing: SharedMounts, *, descriptors_fd: int, modern: bool
    ) -> None:
        """Keep what all operations need."""
        self._sharing = sharing
        self._root_fd = root_fd
        self._journal = journal
        self._descriptors_fd = descriptors_fd
        self._modern = modern
        # Directories that were walked to, by path: a dozen libraries go to the same one.
        self._directories: dict[str, int] = {}

    def execute(self, operation: "Operation", source: "Source | None") -> None:
        """Do one operation; raises OSError or ContainerError, with what it had changed in the journal."""
        if isinstance(operation, (BindFile, BindDevice)):
            assert source is not None
            self._bind(operation, source)
        elif isinstance(operation, MaskDirectory):
            self._mask(operation)
        elif isinstance(operation, CreateSymlink):
            self._link(operation)
        elif isinstance(operation, UpdateLoaderCache):
            updated = loadercache.update(self._root_fd, operation)
            self._journal.record("loader cache", updated.undo)
            self._journal.at_end("loader cache", updated.commit)
        elif isinstance(operation, WriteFile):
            written = replace_file(self._root_fd, operation.target, os.fsencode(operation.content), operation.mode)
            self._journal.record(f"file {operation.target}", written.undo)
            self._journal.at_end(f"old {operation.target}", written.commit)
        else:
            raise TypeError(f"no way to do {type(operation).__name__} in a container")

    def make_place(self, operation: "Operation", source: "Source | None") -> None:
        """Create the place that an operation mounts over, unless it is there; raises as `execute` does."""
        if isinstance(operation, (BindFile, BindDevice)):
            assert source is not None
            mode = operation.mode if isinstance(operation, BindDevice) else source.status.st_mode
            _, _, target_fd = self._mount_point(operation.target, source.status.st_mode, mode & 0o777)
        elif isinstance(operation, MaskDirectory) and not _is_in_proc(operation.target):
            _, _, target_fd = self._mount_point(operation.target, stat.S_IFDIR, operation.mode)
        else:
            return
        os.close(target_fd)

    def _bind(self, operation: "BindFile | BindDevice", source: Source) -> None:
        if source.mount_fd < 0:
            source.reopen()
            if self._modern:
                source.clone()
        mode = operation.mode if isinstance(operation, BindDevice) else source.status.st_mode
        parent_fd, name, target_fd = self._mount_point(operation.target, source.status.st_mode, mode & 0o777)
        try:
            self._sharing.stop(target_fd, operation.target)
            if source.is_directory:
                self._forget_directories(operation.target)
            if self._modern:
                mounts.attach(source.mount_fd, target_fd)
                self._journal_mount(source.mount_fd, operation.target)
            else:
                directory = source.is_directory
                mounts.old_bind(source.fd, target_fd, self._descriptors_fd, recursive=directory)
                self._protect(parent_fd, name, operation.target, operation.flags)
        finally:
            os.close(target_fd)

    def _mask(self, operation: MaskDirectory) -> None:
        if _is_in_proc(operation.target):
            parent_fd, name = self._parent(operation.target, None, follow_last=True)
            target_fd = os.open(name, _INSPECT | os.O_DIRECTORY, dir_fd=parent_fd)
        else:
            parent_fd, name, target_fd = self._mount_point(operation.target, stat.S_IFDIR, operation.mode)
        try:
            self._sharing.stop(target_fd, operation.target)
            self._forget_directories(operation.target)
            self._cover(operation, parent_fd, name, target_fd)
        finally:
            os.close(target_fd)

    def _cover(self, operation: MaskDirectory, parent_fd: int, name: str, target_fd: int) -> None:
        writable = tuple(flag for flag in operation.flags if flag != "ro")
        if self._modern:
            mount_fd = mounts.make_tmpfs(operation.mode, writable)
            _write_files(mount_fd, operation.files)
            mounts.attach(mount_fd, target_fd)
            self._journal_mount(mount_fd, operation.target)
        else:
            mounts.old_tmpfs(target_fd, operation.mode, self._descriptors_fd)
            mount_fd = self._protect(parent_fd, name, operation.target, writable)
            _write_files(mount_fd, operation.files)
        if "ro" in operation.flags:
            self._journal.before_commit(lambda: self._make_read_only(mount_fd, writable))

    def _make_read_only(self, mount_fd: int, flags: "tuple[str, ...]") -> None:
        if self._modern:
            mounts.set_attributes(mount_fd, ("ro", *flags))
        else:
            mounts.old_protect(mount_fd, ("ro", *flags), self._descriptors_fd)

    def _protect(self, parent_fd: int, name: str, target: str, flags: "tuple[str, ...]") -> int:
        mount_fd = mounts.open_mounted(parent_fd, name)
        self._journal_mount(mount_fd, target)
        mounts.old_protect(mount_fd, flags, self._descriptors_fd)
        return mount_fd

    def _link(self, operation: CreateSymlink) -> None:
        parent_fd, name = self._parent(operation.link, PARENT_MODE, follow_last=False)
        try:
            os.symlink(operation.target, name, dir_fd=parent_fd)
        except FileExistsError:
            if operation.force and not _is_link_to(parent_fd, name, operation.target):
                self._replace_by_link(parent_fd, name, operation.target)
            return
        self._journal_file(parent_fd, name, operation.link)

    def _replace_by_link(self, parent_fd: int, name: str, target: str) -> None:
        """Replace a file by a link in one step, keeping the file under a temporary name until the plan is done."""
        if stat.S_ISDIR(os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), name)  # link(2) would only say EPERM
        backup = inroot.temporary_name(name)
        os.link(name, backup, src_dir_fd=parent_fd, dst_dir_fd=parent_fd, follow_symlinks=False)
        self._journal.at_end(f"removal of {backup}", lambda: os.unlink(backup, dir_fd=parent_fd))
        self._journal.record(f"file {name}", lambda: _put_back(parent_fd, backup, name))
        fresh = inroot.temporary_name(name)
        os.symlink(target, fresh, dir_fd=parent_fd)
        try:
            os.rename(fresh, name, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)
        except OSError:
            os.unlink(fresh, dir_fd=parent_fd)
            raise

    def _parent(self, path: str, create_mode: "int | None", *, follow_last: bool) -> "tuple[int, str]":
        """Walk to the directory that holds the last component of `path`, journalling what had to be created.

        Where no link in the last place is to be followed, a directory is walked to once.
        """
        directory, _, last = path.rpartition("/")
        if not follow_last and directory in self._directories:
            return self._directories[directory], last
        if not _is_in_proc(path):
            parent_fd, name, created = inroot.open_parent(self._root_fd, path, create_mode, follow_last=follow_last)
            if not follow_last and name == last:
                self._directories[directory] = parent_fd
        else:
            proc_fd = open_procfs(self._root_fd)
            try:
                below = path.lstrip("/").partition("/")[2]
                parent_fd, name, created = inroot.open_parent(proc_fd, below, create_mode, follow_last=follow_last)
            finally:
                os.close(proc_fd)
        for directory_fd, directory in created:
            self._journal_directory(directory_fd, directory, path)
        for directory_fd, directory in created:
            self._give_owner(directory_fd, directory)
        return parent_fd, name

    def _forget_directories(self, target: str) -> None:
        """Walk anew after a directory was mounted over: it may hide one that is held (none of /proc is)."""
        if not _is_in_proc(target):
            self._directories = {}  # not closed: the journal may need them

    def _mount_point(self, path: str, kind: int, mode: int) -> "tuple[int, str, int]":
        """Open what shall be mounted over, creating it where it is missing; returns its directory and name as well.

        A link in the last place is followed inside the root, there or not.
        """
        parent_fd, name = self._parent(path, PARENT_MODE, follow_last=False)
        made = self._make(parent_fd, name, path, kind, mode)
        if made < 0 and _is_link(parent_fd, name):
            parent_fd, name = self._parent(path, PARENT_MODE, follow_last=True)
            made = self._make(parent_fd, name, path, kind, mode)
        if made >= 0:
            return parent_fd, name, made
        target_fd = os.open(name, _INSPECT, dir_fd=parent_fd)
        _check_mount_point(target_fd, path, kind)
        return parent_fd, name, target_fd

    def _make(self, parent_fd: int, name: str, path: str, kind: int, mode: int) -> int:
        """Create a directory or file and open it; -1 where something of that name is there."""
        if not stat.S_ISDIR(kind):
            try:
                made = inroot.create_file(parent_fd, name, mode)
            except FileExistsError:
                return -1
            self._journal_file(parent_fd, name, path)
            return made
        held = os.dup(parent_fd)  # before: what was made must be known, whatever fails then
        try:
            os.mkdir(name, mode, dir_fd=held)
        except FileExistsError:
            os.close(held)
            return -1
        self._journal_directory(held, name, path)
        self._give_owner(held, name)
        return os.open(name, _INSPECT | os.O_DIRECTORY, dir_fd=parent_fd)

    def _journal_mount(self, mount_fd: int, target: str) -> None:
        self._journal.record(f"mount on {target}", lambda: mounts.detach(mount_fd, self._descriptors_fd))

    def _journal_file(self, parent_fd: int, name: str, path: str) -> None:
        try:
            made = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
        except OSError:
            os.unlink(name, dir_fd=parent_fd)  # not in the journal yet
            raise

        def remove() -> None:
            found = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
            if not os.path.samestat(made, found):
                raise OSError(errno.ESTALE, "it was replaced by another file")
            os.unlink(name, dir_fd=parent_fd)

        self._journal.record(f"file {path}", remove)
        self._give_owner(parent_fd, name)

    def _give_owner(self, parent_fd: int, name: str) -> None:
        """Let what was made belong to whom it should; here, where we act as the container's root, it does already."""

    def _journal_directory(self, parent_fd: int, name: str, path: str) -> None:
        self._journal.record(f"directory {name} for {path}", lambda: os.rmdir(name, dir_fd=parent_fd))


def open_procfs(root_fd: int) -> int:
    """Open the container's /proc; raises ContainerError for one that is anything but procfs's root."""
    proc_fd = os.open("proc", _INSPECT, dir_fd=root_fd)
    if syscalls.fstatfs(proc_fd) != PROC_SUPER_MAGIC or os.fstat(proc_fd).st_ino != PROC_ROOT_INO:
        kind = _KINDS.get(stat.S_IFMT(os.fstat(proc_fd).st_mode), "strange file")
        os.close(proc_fd)
        raise ContainerError(
            f"/proc of the container is a {kind} of another file system than procfs",
            "the container's configuration must mount proc on /proc, which the image must not replace",
        )
    return proc_fd


def _put_back(parent_fd: int, backup: str, name: str) -> None:
    os.rename(backup, name, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)
    try:  # noqa: SIM105 # contextlib is too dear to import
        os.unlink(backup, dir_fd=parent_fd)  # rename(2): two names of one file both stay
    except FileNotFoundError:
        pass


def _is_in_proc(path: str) -> bool:
    first, _, below = path.lstrip("/").partition("/")
    return first == "proc" and below != ""


def _is_link(parent_fd: int, name: str) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mode)


def _is_link_to(parent_fd: int, name: str, target: str) -> bool:
    try:
        return os.readlink(name, dir_fd=parent_fd) == target
    except OSError as error:
        if error.errno != errno.EINVAL:  # readlink(2): not a symbolic link
            raise
        return False


def _check_mount_point(target_fd: int, path: str, kind: int) -> None:
    try:
        check_kind(os.fstat(target_fd).st_mode, path, kind)
        _refuse_procfs(target_fd, path)
    except ContainerError:
        os.close(target_fd)
        raise


def _refuse_procfs(target_fd: int, path: str) -> None:
    """Raise ContainerError for a file of procfs that a link leads to: a runtime still writes there (CVE-2019-19921)."""
    if not _is_in_proc(path) and syscalls.fstatfs(target_fd) == PROC_SUPER_MAGIC:
        raise ContainerError(f"{path} leads into procfs", "the image must not have a link to procfs there")


def check_kind(present_mode: int, path: str, kind: int) -> None:
    """Raise ContainerError unless what is at a path of the container can be mounted over by a file of that kind."""
    present, wanted = stat.S_IFMT(present_mode), stat.S_IFMT(kind)
    if present == wanted or (present == stat.S_IFREG and wanted != stat.S_IFDIR):
        return
    raise ContainerError(
        f"{path} is a {_KINDS.get(present, 'strange file')} in the container, where a {_KINDS[wanted]} is needed",
        "the image must not have anything else there",
    )


def _write_files(mount_fd: int, files: "tuple[tuple[str, str, int], ...]") -> None:
    for path, content, mode in files:
        parent_fd, name, created = inroot.open_parent(mount_fd, path, PARENT_MODE)
        for directory_fd, _ in created:
            os.close(directory_fd)
        file_fd = inroot.create_file(parent_fd, name, mode)
        try:
            os.write(file_fd, os.fsencode(content))
        finally:
            os.close(file_fd)
            os.close(parent_fd)
