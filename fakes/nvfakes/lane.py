"""A machine standing in a mount namespace: building it there, and changing it while programs run on it.

Belongs here: the mounts of both lanes. Does not belong here: what the machine's files say (tree.py) and who asks for
a change (control.py). In lane root the machine stands at the real paths; in lane rootless it is a tree, because a
user namespace can make no device nodes, and mounts over /proc and /sys would keep nested user namespaces from
mounting theirs.
"""

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from nvfakes import kernel, ldcache, tree
from nvfakes.errors import SandboxError
from nvfakes.layouts import USUAL
from nvfakes.machine import Machine
from nvfakes.nvml import image
from nvfakes.userns import enter_user_namespace

_OWN_DEVICE_FOLDERS = ("dri", "char", "nvidia-caps", "nvidia-caps-imex-channels")
# Below these the machine's files change as those of a kernel do; everything else is user space.
_KERNEL_FOLDERS = ("/dev/", "/proc/", "/sys/")
# Folders of sysfs that the machine adds to; the devices of the PCI bus it replaces.
_SYSFS_FOLDERS = ("/sys/module", "/sys/bus/pci/drivers", "/sys/kernel/iommu_groups")
_PERMANENT = frozenset({"/dev", "/dev/char", "/proc", "/proc/driver", "/sys", "/sys/bus/pci/devices", "/sys/module"})


def is_kernel(path: str) -> bool:
    """Tell whether a path belongs to the kernel side of the machine."""
    return path.startswith(_KERNEL_FOLDERS)


class Lane:
    """A machine in this process's namespaces. `root` is where it stands, `stage` the folder of the files behind it."""

    def __init__(self, name: str, machine: Machine, stage: str) -> None:
        """Describe a lane that is not built yet."""
        self.name = name
        self.machine = machine
        self.stage = stage
        self.root = "/" if name == "root" else stage
        self.user = stage  # the folder of the user-space files, a new one after each change of them
        self.entries: dict[str, tree.Entry] = {}
        self.facts: dict[str, str] = {}
        self.host_cache = ldcache.Cache()
        self._overlaid: list[str] = []  # the real folders that show user-space files; beneath them others may exist

    def build(self, facts: dict[str, str]) -> None:
        """Mount everything; `facts` are put into the NVML library beside the machine's, also after changes."""
        self.facts = facts
        directory = "" if self.name == "root" else f"{self.stage}/dev"
        found = tree.entries(self.machine, dev_directory=directory, facts=facts)
        self.entries = {entry.path: entry for entry in found}
        if self.name == "root":
            self._build_root(found)
        else:
            tree.write([_emptied(entry) for entry in found], Path(self.stage), nodes=False)
            for entry in found:
                self._bind_real(entry)

    def change(self, machine: Machine) -> None:
        """Let the machine become another one: only what differs is touched, in place where programs look at it."""
        if self.machine.driver is not None and self.machine.driver.layout != USUAL:
            raise SandboxError(f"a machine with driver.layout {self.machine.driver.layout} cannot change while it runs")
        directory = "" if self.name == "root" else f"{self.stage}/dev"
        found = tree.entries(machine, dev_directory=directory, facts=self.facts)
        new = {entry.path: entry for entry in found}
        old, self.entries, self.machine = self.entries, new, machine
        libraries = machine.answering_libraries
        gone = [path for path in old if path not in new]
        fresh = [entry for path, entry in new.items() if old.get(path) != entry and path not in libraries]
        if any(not is_kernel(path) for path in (*gone, *(entry.path for entry in fresh))):
            self._replace_user_space(old)
        for path in gone:
            if is_kernel(path):
                self._remove(path)
        for entry in fresh:
            if is_kernel(entry.path):
                self._put(entry)
        if self.name == "root":
            self._remount_sysfs([*gone, *(entry.path for entry in fresh)])
        self._update_libraries()

    def _update_libraries(self) -> None:
        """Put the machine's facts into its libraries in place: whoever has them mapped sees them."""
        directory = "" if self.name == "root" else f"{self.stage}/dev"
        for path in self.machine.answering_libraries:
            if isinstance(self.entries.get(path), tree.File):
                with open(f"{self.user}{path}", "r+b") as file:
                    image.update(file, image.facts(self.machine, directory) | self.facts)

    # Changes of the kernel's side.

    def _place(self, path: str) -> str:
        """Return where a path of the machine can be written."""
        direct = self.name == "root" and path.startswith(("/dev/", "/proc/driver/"))
        return path if direct else f"{self.stage}{path}"

    def _remove(self, path: str) -> None:
        place = self._place(path)
        if os.path.isdir(place) and not os.path.islink(place):
            with contextlib.suppress(OSError):
                os.rmdir(place)
        elif os.path.lexists(place):
            if self.name == "rootless" and os.path.ismount(place):
                kernel.umount(place)
            os.unlink(place)
        parent = os.path.dirname(path)
        while parent not in _PERMANENT and len(parent) > 1:
            try:
                os.rmdir(self._place(parent))
            except OSError:
                break
            parent = os.path.dirname(parent)

    def _put(self, entry: tree.Entry) -> None:
        place = self._place(entry.path)
        if entry.path in {"/proc/devices", "/proc/modules"} and isinstance(entry, tree.File):
            # Bound onto the real files, so it must stay the same file.
            os.chmod(place, 0o644)
            Path(place).write_bytes(entry.data)
            os.chmod(place, entry.mode)
            return
        prefix = place.removesuffix(entry.path)
        tree.write([entry], Path(prefix or "/"), nodes=self.name == "root")
        if self.name == "rootless":
            self._bind_real(entry)

    def _bind_real(self, entry: tree.Entry) -> None:
        match entry:
            case tree.Node():
                kernel.bind("/dev/null", f"{self.stage}{entry.path}")
            case tree.Copy():
                kernel.bind(entry.source, f"{self.stage}{entry.path}")

    # Lane root.

    def _build_root(self, found: list[tree.Entry]) -> None:
        private = ("/dev/", "/proc/driver/")
        staged = [entry for entry in found if not isinstance(entry, tree.Copy) and not entry.path.startswith(private)]
        tree.write(staged, Path(self.stage), nodes=True)
        self._mount_root(found)
        self._overlay_user_space(self.stage)
        self._mount_etc()
        self._mount_proc(found)
        if os.path.isdir("/sys/bus/pci/devices"):
            kernel.bind(f"{self.stage}/sys/bus/pci/devices", "/sys/bus/pci/devices")
        for path in _SYSFS_FOLDERS:
            self._overlay(path, self.stage)
        self._mount_dev(found)
        self._mount_run(found)

    def _mount_root(self, found: Iterable[tree.Entry]) -> None:
        """Make a private / that shows everything of the host's, if the machine has a folder there that the host lacks.

        Whoever made such a folder in the host's own / would leave it behind.
        """
        names = {entry.path.split("/")[1] for entry in found if entry.path.count("/") > 1}
        missing = sorted(name for name in names if not os.path.lexists(f"/{name}"))
        if not missing:
            return
        fresh = f"{self.stage}/.root"
        os.mkdir(fresh)
        kernel.mount("nvfakes", fresh, "tmpfs", kernel.MS_NOSUID, "mode=0755")
        kernel.mount("none", fresh, flags=kernel.MS_UNBINDABLE)  # or it would be bound into itself with its parent
        _show_all("/", fresh, but=frozenset())
        kernel.pivot_root(fresh)
        kernel.mount("none", "/", flags=kernel.MS_PRIVATE)  # overlays take nothing from an unbindable mount
        for name in missing:
            os.mkdir(f"/{name}", 0o755)

    def _merged_folders(self) -> list[str]:
        """Return the real folders over which user-space files are laid: the deepest that exist, none inside another."""
        found: set[str] = set()
        usual = [f"/usr/lib/{triplet}" for triplet in (self.machine.triplet, self.machine.triplet32) if triplet]
        usual += ["/usr/bin", "/usr/share", "/usr/lib/firmware"]
        for path in self.entries:
            elsewhere = path.startswith(("/dev/", "/proc/", "/run/", "/etc/", "/sys/bus/pci/devices", *_SYSFS_FOLDERS))
            if elsewhere or path.count("/") == 1:  # what stands in / itself, the real machine has
                continue
            folder = next((name for name in usual if path.startswith(f"{name}/")), os.path.dirname(path))
            while not os.path.isdir(folder):
                folder = os.path.dirname(folder)
            found.add(folder)
        return sorted(name for name in found if not any(name.startswith(f"{other}/") for other in found))

    def _overlay(self, path: str, base: str, writable: str = "") -> bool:
        """Lay a folder of the machine over the real one; `base` stands for its /. Returns whether there was one."""
        packages = self.machine.driver.packages if self.machine.driver else ""
        real = [f"{packages}{path}"] if packages and os.path.isdir(f"{packages}{path}") else []
        own = [f"{base}{path}"] if os.path.isdir(f"{base}{path}") else []
        if not os.path.isdir(path) or not (own or real):
            return False
        kept = self._keep_mounts_below(path)
        kernel.mount("overlay", path, "overlay", kernel.MS_NODEV, f"lowerdir={':'.join([*own, *real, path])}{writable}")
        for keeper, place in kept:
            if os.path.exists(place):
                kernel.bind(keeper, place, recursive=True)
        return True

    def _keep_mounts_below(self, path: str) -> list[tuple[str, str]]:
        """Bind the mounts below a folder aside, because an overlay shows what is beneath them."""
        places = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
        kept: list[tuple[str, str]] = []
        for number, place in enumerate(sorted({place for place in places if place.startswith(f"{path}/")})):
            if any(place.startswith(f"{other}/") for _, other in kept):
                continue
            keeper = f"{self.stage}/.kept{path.replace('/', '-')}-{number}"
            _make_like(place, keeper)
            kernel.bind(place, keeper, recursive=True)
            kept.append((keeper, place))
        return kept

    def _mount_etc(self) -> None:
        """Lay the driver's configuration over /etc, writable, with its libraries added to the host's loader cache.

        Also without a driver: what a command writes there, a dockerd for example, belongs to the machine.
        """
        os.makedirs(f"{self.stage}/etc", exist_ok=True)
        self.host_cache = _read_cache("/etc/ld.so.cache")
        self._merge_cache(f"{self.stage}/etc/ld.so.cache")
        upper = f"{self.stage}/.etc"
        for name in ("upper", "work"):
            os.makedirs(f"{upper}/{name}")
        self._overlay("/etc", self.stage, f",upperdir={upper}/upper,workdir={upper}/work")

    def _mount_proc(self, found: Iterable[tree.Entry]) -> None:
        protected = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
        kernel.mount("nvfakes", "/proc/driver", "tmpfs", protected, "mode=0555")
        tree.write([entry for entry in found if entry.path.startswith("/proc/driver/")], Path("/"), nodes=False)
        for name in ("devices", "modules"):
            if os.path.exists(f"/proc/{name}") and os.path.exists(f"{self.stage}/proc/{name}"):
                kernel.bind(f"{self.stage}/proc/{name}", f"/proc/{name}")

    def _mount_dev(self, found: Iterable[tree.Entry]) -> None:
        """Make a private /dev: the host's nodes and folders, with the machine's in place of any NVIDIA ones."""
        fresh = f"{self.stage}/.dev"
        os.mkdir(fresh)
        kernel.mount("nvfakes", fresh, "tmpfs", kernel.MS_NOSUID, "mode=0755")
        mask = os.umask(0)
        for item in os.scandir("/dev"):
            if not item.name.startswith("nvidia") and item.name not in _OWN_DEVICE_FOLDERS:
                _copy_device(item, f"{fresh}/{item.name}")
        os.umask(mask)
        kernel.mount(fresh, "/dev", flags=kernel.MS_MOVE)
        tree.write([entry for entry in found if entry.path.startswith("/dev/")], Path("/"), nodes=True)

    def _mount_run(self, found: Iterable[tree.Entry]) -> None:
        """Make a private /run that shows everything of the host's, and the driver's sockets."""
        own = [entry for entry in found if entry.path.startswith("/run/")]
        names = {entry.path.split("/")[2] for entry in own}
        fresh = f"{self.stage}/.run"
        os.mkdir(fresh)
        nodes = any(isinstance(entry, tree.Node) for entry in own)
        flags = kernel.MS_NOSUID if nodes else kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount("nvfakes", fresh, "tmpfs", flags, "mode=0755")
        _show_all("/run", fresh, but=frozenset(names))
        kernel.mount(fresh, "/run", flags=kernel.MS_MOVE)
        tree.write(own, Path("/"), nodes=nodes)

    def _remount_sysfs(self, changed: list[str]) -> None:
        """Lay folders of sysfs anew, because an overlay remembers names that have gone beneath it."""
        for folder in _SYSFS_FOLDERS:
            if any(path.startswith(f"{folder}/") for path in changed):
                with contextlib.suppress(OSError):
                    kernel.umount(folder)
                self._overlay(folder, self.stage)

    # User space.

    def _overlay_user_space(self, base: str) -> None:
        self._overlaid = [path for path in self._merged_folders() if self._overlay(path, base)]

    def _replace_user_space(self, old: Iterable[str]) -> None:
        new = [entry for entry in self.entries.values() if not is_kernel(entry.path)]
        if self.name == "rootless":
            for path in old:
                if not is_kernel(path):
                    self._remove(path)
            for entry in new:
                tree.write([_emptied(entry)], Path(self.stage), nodes=False)
                self._bind_real(entry)
            return
        for folder in self._overlaid:
            kernel.umount(folder)
        self.user = f"{self.stage}/.user-{len(os.listdir(self.stage))}"
        direct = ("/etc/", "/run/")
        staged = [entry for entry in new if not entry.path.startswith(direct) and not isinstance(entry, tree.Copy)]
        tree.write(staged, Path(self.user), nodes=False)
        self._overlay_user_space(self.user)
        tree.write([entry for entry in new if entry.path.startswith(direct)], Path("/"), nodes=False)
        self._merge_cache("/etc/ld.so.cache")

    def _merge_cache(self, path: str) -> None:
        """Add the host's libraries to a loader cache that holds the driver's."""
        own = _read_cache(path)
        Path(path).write_bytes(ldcache.render(ldcache.add(self.host_cache, own.entries)))


def enter(machine: Machine, stage: str, name: str | None) -> Lane:
    """Move this process into new namespaces for a lane; name None tries root first."""
    os.makedirs(stage, exist_ok=True)
    if name in {None, "root"}:
        try:
            _make_private_stage(stage)
        except OSError as error:
            if name == "root":
                raise SandboxError(
                    f"lane root needs the right to mount: {error.strerror}; try --lane rootless"
                ) from None
        else:
            if tree.can_make_nodes(Path(stage)):
                return Lane("root", machine, stage)
            if name == "root":
                raise SandboxError("lane root needs the right to make device nodes; try --lane rootless")
    enter_user_namespace()
    try:
        _make_private_stage(stage)
    except OSError as error:
        raise SandboxError(f"lane rootless cannot mount in its user namespace: {error.strerror}") from None
    return Lane("rootless", machine, stage)


def _make_private_stage(stage: str) -> None:
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("nvfakes", stage, "tmpfs", data="mode=0755")


def _emptied(entry: tree.Entry) -> tree.Entry:
    """Return an empty file in place of one that is bound from elsewhere."""
    return tree.File(entry.path, b"", 0o755) if isinstance(entry, tree.Copy) else entry


def _read_cache(path: str) -> ldcache.Cache:
    try:
        return ldcache.parse(Path(path).read_bytes())
    except (OSError, ValueError):
        return ldcache.Cache()


def _show_all(source: str, target: str, *, but: frozenset[str]) -> None:
    """Show everything of a folder in another one, mounts below it included, except for some names."""
    for item in os.scandir(source):
        place = f"{target}/{item.name}"
        if item.name in but:
            continue
        if item.is_symlink():
            os.symlink(os.readlink(item.path), place)
        else:
            _make_like(item.path, place)
            kernel.bind(item.path, place, recursive=True)


def _make_like(source: str, target: str) -> None:
    """Make an empty folder or file, whichever the source is, to mount it there."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        Path(target).touch()


def _copy_device(item: "os.DirEntry[str]", target: str) -> None:
    status = item.stat(follow_symlinks=False)
    if item.is_symlink():
        os.symlink(os.readlink(item.path), target)
    elif item.is_dir():
        os.mkdir(target)
        kernel.bind(item.path, target, recursive=True)
    elif stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        try:
            os.mknod(target, status.st_mode, status.st_rdev)
            os.chown(target, status.st_uid, status.st_gid)
        except OSError:
            Path(target).touch()
            kernel.bind(item.path, target)
    else:
        Path(target).touch()
        kernel.bind(item.path, target)
