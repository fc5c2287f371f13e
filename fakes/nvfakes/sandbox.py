"""The two lanes: running a command on a machine, in namespaces that vanish with it.

Belongs here: namespaces and mounts of a lane. Does not belong here: what the machine's files say (tree.py). In lane
root the machine stands at the real paths; in lane rootless it is a tree, because a user namespace can make no device
nodes and mounts over /proc and /sys would keep nested user namespaces from mounting their own.
"""

import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from nvfakes import kernel, ldcache, tree
from nvfakes.errors import SandboxError
from nvfakes.machine import Machine
from nvfakes.nvml.build import cache_directory

LANES = ("root", "rootless")
# The upper layer of /etc takes what programs in the lane write, for example with ldconfig.
_MERGED = ("/usr/bin", "/usr/share", "/usr/lib/firmware")
_OWN_DEVICE_FOLDERS = ("dri", "char", "nvidia-caps", "nvidia-caps-imex-channels")
_IDENTITY_COUNT = 65536


def run(machine: Machine, command: Sequence[str], *, lane: str | None = None) -> int:
    """Run a command on a machine, wait for it, and return its exit status (128 + N after signal N)."""
    child = os.fork()
    if child == 0:
        try:
            execute(machine, command, lane=lane)
        except (SandboxError, OSError) as error:
            print(f"nvfakes: {error}", file=sys.stderr)
        finally:
            os._exit(126)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def execute(machine: Machine, command: Sequence[str], *, lane: str | None = None) -> NoReturn:
    """Become a command that runs on a machine; lane None tries root first."""
    directory = os.getcwd()
    root, chosen = enter(machine, lane)
    os.chdir(directory)
    environment = {**os.environ, "NVFAKES_ROOT": root, "NVFAKES_LANE": chosen, "NVFAKES_MACHINE": machine.name}
    try:
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        raise SandboxError(f"{command[0]}: {error.strerror}") from None


def enter(machine: Machine, lane: str | None = None) -> tuple[str, str]:
    """Move this process into a lane; returns the root under which the machine stands, and the lane's name."""
    stage = str(cache_directory() / "stage")
    os.makedirs(stage, exist_ok=True)
    if lane in {None, "root"}:
        try:
            _make_private_stage(stage)
        except OSError as error:
            if lane == "root":
                raise SandboxError(
                    f"lane root needs the right to mount: {error.strerror}; try --lane rootless"
                ) from None
        else:
            if tree.can_make_nodes(Path(stage)):
                _build_root_lane(machine, stage)
                return "/", "root"
            if lane == "root":
                raise SandboxError("lane root needs the right to make device nodes; try --lane rootless")
    _build_rootless_lane(machine, stage)
    return stage, "rootless"


def _make_private_stage(stage: str) -> None:
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("nvfakes", stage, "tmpfs", data="mode=0755")


def _build_root_lane(machine: Machine, stage: str) -> None:
    entries = tree.entries(machine)
    private = ("/dev/", "/proc/driver/")
    staged = [entry for entry in entries if not isinstance(entry, tree.Copy) and not entry.path.startswith(private)]
    tree.write(staged, Path(stage), nodes=True)
    _merge_user_space(machine, stage)
    _mount_proc(entries, stage)
    _mount_sys(stage)
    _mount_dev(entries, stage)
    _mount_run(entries, stage)


def _merge_user_space(machine: Machine, stage: str) -> None:
    libraries = [f"/usr/lib/{triplet}" for triplet in (machine.triplet, machine.triplet32) if triplet]
    for path in (*libraries, *_MERGED):
        if os.path.isdir(f"{stage}{path}"):
            _overlay(path, stage, packages=machine.driver.packages if machine.driver else "")
    # Also without a driver: what a command writes below /etc, a dockerd for example, belongs to the machine.
    os.makedirs(f"{stage}/etc", exist_ok=True)
    _merge_cache(f"{stage}/etc/ld.so.cache")
    upper = f"{stage}/.etc"
    for name in ("upper", "work"):
        os.makedirs(f"{upper}/{name}")
    _overlay("/etc", stage, f",upperdir={upper}/upper,workdir={upper}/work")


def _merge_cache(path: str) -> None:
    """Add the driver's libraries to the machine's own loader cache."""
    own = Path(path)
    try:
        host = ldcache.parse(Path("/etc/ld.so.cache").read_bytes())
        driver = ldcache.parse(own.read_bytes())
    except (OSError, ValueError):
        return
    own.write_bytes(ldcache.render(ldcache.add(host, driver.entries)))


def _overlay(path: str, stage: str, writable: str = "", packages: str = "") -> None:
    """Lay the stage's folder over the real one; where there is none, over the nearest parent that exists."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    kept = _keep_mounts_below(path, stage)
    real = [f"{packages}{path}"] if packages and os.path.isdir(f"{packages}{path}") else []
    layers = [f"{stage}{path}", *real, path]
    kernel.mount("overlay", path, "overlay", kernel.MS_NODEV, f"lowerdir={':'.join(layers)}{writable}")
    for keeper, place in kept:
        if os.path.exists(place):
            kernel.bind(keeper, place, recursive=True)


def _keep_mounts_below(path: str, stage: str) -> list[tuple[str, str]]:
    """Bind the mounts below a folder aside, because an overlay shows what is beneath them."""
    places = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
    kept: list[tuple[str, str]] = []
    for number, place in enumerate(sorted({place for place in places if place.startswith(f"{path}/")})):
        if any(place.startswith(f"{other}/") for _, other in kept):
            continue
        keeper = f"{stage}/.kept{path.replace('/', '-')}-{number}"
        _make_like(place, keeper)
        kernel.bind(place, keeper, recursive=True)
        kept.append((keeper, place))
    return kept


def _make_like(source: str, target: str) -> None:
    """Make an empty folder or file, whichever the source is, to mount it there."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        Path(target).touch()


def _mount_proc(entries: Iterable[tree.Entry], stage: str) -> None:
    protected = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("nvfakes", "/proc/driver", "tmpfs", protected, "mode=0555")
    tree.write([entry for entry in entries if entry.path.startswith("/proc/driver/")], Path("/"), nodes=False)
    for name in ("devices", "modules"):
        if os.path.exists(f"/proc/{name}") and os.path.exists(f"{stage}/proc/{name}"):
            kernel.bind(f"{stage}/proc/{name}", f"/proc/{name}")


def _mount_sys(stage: str) -> None:
    if os.path.isdir("/sys/bus/pci/devices"):
        kernel.bind(f"{stage}/sys/bus/pci/devices", "/sys/bus/pci/devices")
    if os.listdir(f"{stage}/sys/module"):
        _overlay("/sys/module", stage)


def _mount_dev(entries: Iterable[tree.Entry], stage: str) -> None:
    """Make a private /dev: the host's nodes and folders, with the machine's in place of any NVIDIA ones."""
    fresh = f"{stage}/.dev"
    os.mkdir(fresh)
    kernel.mount("nvfakes", fresh, "tmpfs", kernel.MS_NOSUID, "mode=0755")
    mask = os.umask(0)
    for found in os.scandir("/dev"):
        if not found.name.startswith("nvidia") and found.name not in _OWN_DEVICE_FOLDERS:
            _copy_device(found, f"{fresh}/{found.name}")
    os.umask(mask)
    moved = [entry for entry in entries if entry.path.startswith("/dev/")]
    kernel.mount(fresh, "/dev", flags=kernel.MS_MOVE)
    tree.write(moved, Path("/"), nodes=True)


def _copy_device(found: "os.DirEntry[str]", target: str) -> None:
    status = found.stat(follow_symlinks=False)
    if found.is_symlink():
        os.symlink(os.readlink(found.path), target)
    elif found.is_dir():
        os.mkdir(target)
        kernel.bind(found.path, target, recursive=True)
    elif stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        try:
            os.mknod(target, status.st_mode, status.st_rdev)
            os.chown(target, status.st_uid, status.st_gid)
        except OSError:
            Path(target).touch()
            kernel.bind(found.path, target)
    else:
        Path(target).touch()
        kernel.bind(found.path, target)


def _mount_run(entries: Iterable[tree.Entry], stage: str) -> None:
    """Make a private /run that shows everything of the host's, and the driver's sockets."""
    own = [entry for entry in entries if entry.path.startswith("/run/")]
    names = {entry.path.split("/")[2] for entry in own}
    fresh = f"{stage}/.run"
    os.mkdir(fresh)
    kernel.mount("nvfakes", fresh, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0755")
    for found in os.scandir("/run"):
        target = f"{fresh}/{found.name}"
        if found.name in names:
            continue
        if found.is_symlink():
            os.symlink(os.readlink(found.path), target)
        else:
            _make_like(found.path, target)
            kernel.bind(found.path, target, recursive=True)
    kernel.mount(fresh, "/run", flags=kernel.MS_MOVE)
    tree.write(own, Path("/"), nodes=False)


def _build_rootless_lane(machine: Machine, stage: str) -> None:
    _enter_user_namespace()
    try:
        _make_private_stage(stage)
    except OSError as error:
        raise SandboxError(f"lane rootless cannot mount in its user namespace: {error.strerror}") from None
    for entry in tree.write_tree(machine, stage, nodes=False, copies=False):
        match entry:
            case tree.Node():
                kernel.bind("/dev/null", f"{stage}{entry.path}")
            case tree.Copy():
                kernel.bind(entry.source, f"{stage}{entry.path}")


def _enter_user_namespace() -> None:
    """Become root of a new user namespace, with a range of ids where the system grants one, else with one id."""
    uid, gid = os.getuid(), os.getgid()
    mapper, go = _start_mapper(uid, gid)
    try:
        kernel.unshare(kernel.CLONE_NEWUSER)
    except OSError as error:
        raise SandboxError(
            f"lane rootless needs user namespaces: {error.strerror}; sysctl kernel.unprivileged_userns_clone "
            "or user.max_user_namespaces may forbid them"
        ) from None
    finally:
        os.close(go)
        _, status = os.waitpid(mapper, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        _write_map("setgroups", "deny")
        _write_map("uid_map", f"0 {uid} 1")
        _write_map("gid_map", f"0 {gid} 1")


def _write_map(name: str, text: str) -> None:
    Path(f"/proc/self/{name}").write_text(text, encoding="ascii")


def _start_mapper(uid: int, gid: int) -> tuple[int, int]:
    """Start a process that stays outside and maps ids once the returned descriptor is closed."""
    parent = os.getpid()
    ready, go = os.pipe()
    child = os.fork()
    if child:
        os.close(ready)
        return child, go
    try:
        os.close(go)
        os.read(ready, 1)
        os._exit(0 if _map_range(parent, uid, gid) else 1)
    finally:
        os._exit(1)


def _map_range(process: int, uid: int, gid: int) -> bool:
    if uid == 0:
        try:
            for name in ("uid_map", "gid_map"):
                count = min(_IDENTITY_COUNT, int(Path(f"/proc/self/{name}").read_text(encoding="ascii").split()[2]))
                Path(f"/proc/{process}/{name}").write_text(f"0 0 {count}", encoding="ascii")
        except OSError:
            return False
        return True
    commands = (
        ("newuidmap", uid, _subordinate("/etc/subuid", uid)),
        ("newgidmap", gid, _subordinate("/etc/subgid", uid)),
    )
    for program, own, granted in commands:
        if granted is None:
            return False
        words = [program, str(process), "0", str(own), "1", "1", *map(str, granted)]
        try:
            if subprocess.run(words, capture_output=True, check=False).returncode:
                return False
        except OSError:
            return False
    return True


def _subordinate(file: str, uid: int) -> tuple[int, int] | None:
    """Return (first, count) of the ids that a user may map, or None."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
        names = {str(uid), pwd.getpwuid(uid).pw_name}
    except (OSError, KeyError):
        return None
    for line in lines:
        parts = line.split(":")
        if len(parts) == 3 and parts[0] in names:
            return int(parts[1]), int(parts[2])
    return None
