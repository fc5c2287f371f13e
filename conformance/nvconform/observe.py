"""What can be seen of a container, of its files and of the host, as plain values.

Belongs here: reading mount tables, file trees, device nodes, loader caches, device rules. Does not belong here: what
should be seen (expect.py) and whether it is right (judge.py). Observing changes nothing.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nvconform import ldconfig

FLAGS = ("ro", "rw", "nosuid", "nodev", "noexec")
UNIFIED = "/sys/fs/cgroup"
LARGE_FILE = 1 << 20
# Nodes that every runtime makes.
SHOWN_NODES = ("nvidia*", "dri", "infiniband", "gdrdrv", "nvhost*", "nvgpu", "nvmap", "nvsciipc", "host1x*", "dxg")
RUNTIME_NODES = frozenset({"null", "zero", "full", "tty", "random", "urandom", "ptmx", "console", "pts"})

# Stands between the runtime and the injector: records what it gets and leaves, and passes its exit code on.
WRAPPER = """#!/bin/sh
out=$1 limit=$2
shift 2
state=$(cat)
printf '%s' "$state" > "$out/hook.stdin"
pid=${state#*'"pid":'}
pid=${pid%%[,\\}]*}
snapshot() {
  cat "/proc/$pid/mountinfo" > "$out/$1.mountinfo"
  while IFS=: read -r _ controllers path; do
    case ",$controllers," in
      *,devices,*) cat "/sys/fs/cgroup/devices$path/devices.list" > "$out/$1.devices" ;;
    esac
  done < "/proc/$pid/cgroup"
}
snapshot before 2> "$out/wrapper.stderr"
timeout -k 2 "$limit" "$@" < "$out/hook.stdin" > "$out/hook.stdout" 2> "$out/hook.stderr"
code=$?
echo "$code" > "$out/hook.code"
snapshot after 2>> "$out/wrapper.stderr"
cat "$out/hook.stderr" >&2
exit "$code"
"""


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo (proc_pid_mountinfo(5)), as far as it is judged."""

    identifier: str
    root: str
    target: str
    options: frozenset[str]
    propagation: tuple[str, ...]
    kind: str

    @property
    def flags(self) -> str:
        """Return the judged flags in a fixed order, and the propagation where it is not private."""
        return ",".join([*(name for name in FLAGS if name in self.options), *self.propagation])


def parse_mounts(text: str) -> list[Mount]:
    """Return the mounts of a mountinfo text."""
    mounts = []
    for line in text.splitlines():
        fields = line.split(" ")
        separator = fields.index("-")
        propagation = tuple(field.split(":")[0] for field in fields[6:separator])
        mounts.append(
            Mount(
                identifier=fields[0],
                root=unescape(fields[3]),
                target=unescape(fields[4]),
                options=frozenset(fields[5].split(",")),
                propagation=tuple("slave" if name == "master" else name for name in propagation),
                kind=fields[separator + 1],
            )
        )
    return mounts


def unescape(text: str) -> str:
    """Return a mountinfo field with its octal escapes undone."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def new_mounts(before: str, after: str, rootfs: str) -> dict[str, Mount]:
    """Return the mounts that a snapshot has and an earlier one lacks, by path inside the root file system.

    A mount elsewhere keeps its path with `host:` in front; of several on one path the last one counts.
    """
    known = {mount.identifier for mount in parse_mounts(before)}
    result = {}
    for mount in parse_mounts(after):
        if mount.identifier not in known:
            inside = mount.target.startswith(f"{rootfs}/") or mount.target == rootfs
            result[mount.target[len(rootfs) :] or "/" if inside else f"host:{mount.target}"] = mount
    return result


def tree(root: Path, skip: Iterable[str] = ()) -> dict[str, str]:
    """Return path -> description (type, mode, content) of everything below a directory, without following links."""
    skipped = set(skip)
    result: dict[str, str] = {}

    def walk(directory: Path, prefix: str) -> None:
        try:
            entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        except OSError as error:
            result[prefix or "."] = f"unreadable: {error.strerror}"
            return
        for entry in entries:
            path = f"{prefix}/{entry.name}"
            if path in skipped:
                continue
            result[path] = describe(Path(entry.path))
            if entry.is_dir(follow_symlinks=False):
                walk(Path(entry.path), path)

    walk(root, "")
    return result


def describe(path: Path) -> str:
    """Return type, mode, owner and content of one file system object in a few words."""
    try:
        status = path.lstat()
        mode = f"{stat.S_IMODE(status.st_mode):04o} {status.st_uid}:{status.st_gid}"
        if stat.S_ISLNK(status.st_mode):
            return f"link {path.readlink()}"
        if stat.S_ISDIR(status.st_mode):
            return f"directory {mode}"
        if stat.S_ISREG(status.st_mode):
            return f"file {mode} {status.st_size} {_digest(path, status.st_size)}"
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            return f"device {mode} {os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return f"special {stat.S_IFMT(status.st_mode):o} {mode}"


def picture(path: Path) -> dict[str, str]:
    """Return everything about a file, or about a directory and all below it."""
    return {"": describe(path), **(tree(path) if path.is_dir() else {})}


def _digest(path: Path, size: int) -> str:
    if size > LARGE_FILE:
        return "large"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Return path -> new description of what was added or changed; removed paths become `removed`."""
    result = {path: text for path, text in after.items() if before.get(path) != text}
    result.update({path: "removed" for path in before if path not in after})
    return result


def resolve(root: Path, path: str) -> Path:
    """Return where a path of a container is on disk, links followed inside the root, `..` stopping at it."""
    pending = [part for part in path.split("/") if part][::-1]
    current: list[str] = []
    for _ in range(400):
        if not pending:
            break
        part = pending.pop()
        if part in {".", ""}:
            continue
        if part == "..":
            current = current[:-1]
            continue
        here = root.joinpath(*current, part)
        if here.is_symlink():
            target = str(here.readlink())
            current = [] if target.startswith("/") else current
            pending += [piece for piece in target.split("/") if piece][::-1]
        else:
            current.append(part)
    return root.joinpath(*current)


def device_nodes(root: Path) -> dict[str, str]:
    """Return path -> `major:minor mode` of the character and block devices below /dev that no runtime makes."""
    top = resolve(root, "/dev")
    result: dict[str, str] = {}
    for path in walk_files(top):
        relative = path.relative_to(top)
        if relative.parts[0] in RUNTIME_NODES:
            continue
        status = path.lstat()
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
            result[f"/{path.relative_to(root)}"] = f"{number} {stat.S_IMODE(status.st_mode):04o}"
    return result


def walk_files(top: Path) -> Iterator[Path]:
    """Yield everything below a directory that is no directory, links not followed."""
    for directory, _, names in os.walk(top):
        for name in sorted(names):
            yield Path(directory, name)


def machine_nodes(root: Path) -> dict[str, tuple[int, int, int]]:
    """Return name below /dev -> (major, minor, mode) of the machine's device nodes that an injector may show."""
    top = root / "dev"
    result = {}
    for entry in sorted(path for pattern in SHOWN_NODES for path in top.glob(pattern)):
        for path in [entry] if not entry.is_dir() else walk_files(entry):
            status = path.lstat()
            if stat.S_ISCHR(status.st_mode):
                number = os.major(status.st_rdev), os.minor(status.st_rdev)
                result[str(path.relative_to(top))] = (*number, stat.S_IMODE(status.st_mode))
    return result


def loader_cache(path: Path) -> list[str]:
    """Return the entries of a loader cache in file order as `SONAME (bits) path`; [] where there is no file.

    The host's ldconfig reads it, so that a cache which only the injector can read is found out.
    """
    if path.is_symlink() or not path.is_file():
        return []
    return ldconfig.read_cache(path)


def read(path: Path) -> str:
    """Return a file's text, or "" where there is none."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def reachable_nodes(cgroup: str, nodes: Mapping[str, Path]) -> list[str]:
    """Return which device nodes a process in the container's device cgroup may open.

    A child joins the cgroup and tries: only EPERM means that the rules forbid it (ENXIO: no driver behind the node).
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
            allowed = [name for name, path in nodes.items() if _may_open(path)]
            os.write(writer, "\n".join(allowed).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return text.split("\n") if text else []


def _may_open(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def children_of(pid: int) -> list[str]:
    """Return `pid command` of the living children of a process."""
    result = []
    for name in _child_numbers(pid):
        fields = read(Path("/proc", name, "stat")).rpartition(")")[2].split()
        if len(fields) > 1 and fields[1] == str(pid) and fields[0] != "Z":
            result.append(f"{name} {read(Path('/proc', name, 'cmdline')).replace(chr(0), ' ').strip()}")
    return result


def _child_numbers(pid: int) -> list[str]:
    """Return candidates: the kernel's list where it keeps one (CONFIG_PROC_CHILDREN), else every process."""
    lists = list(Path(f"/proc/{pid}/task").glob("*/children"))
    if lists:
        return " ".join(read(path) for path in lists).split()
    return [name for name in os.listdir("/proc") if name.isdigit()]


def own_mounts() -> list[str]:
    """Return this process's mount table, without the numbers that the kernel gives out anew."""
    return sorted(f"{mount.target} {mount.kind} {mount.root} {sorted(mount.options)}" for mount in _self_mounts())


def _self_mounts() -> list[Mount]:
    return parse_mounts(Path("/proc/self/mountinfo").read_text())


def own_descriptors() -> list[str]:
    """Return what this process has open."""
    result = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if not target.startswith("/proc/"):
                result.append(f"{name} {target}")
    return sorted(result)
