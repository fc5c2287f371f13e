"""The proof that an injector reaches a container by descriptors only: no path that an image could bend.

Belongs here: which calls take paths, and the rules for them from the moment on when a process holds the root file
system. Does not belong here: tracing itself (tracing.py), a container to inject into (tracingcontainer.py). The rules:
inside the root a path is resolved by openat2 with RESOLVE_IN_ROOT, or is one component that is not followed, relative
to a held descriptor; a mount goes from a descriptor onto a descriptor. umount2 and the old mount know paths only: they
are to be a number relative to the process's own /proc/self/fd. Nothing of the image is mounted or run.
"""

import contextlib
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

from nvconform.tracing import AT_FDCWD, Call

O_NOFOLLOW = os.O_NOFOLLOW
AT_SYMLINK_NOFOLLOW = 0x100
AT_EMPTY_PATH = 0x1000
RESOLVE_IN_ROOT = 0x10
CLONE_NEWNS = 0x20000
MOVE_MOUNT_BOTH_EMPTY = 0x04 | 0x40


@dataclass(frozen=True)
class PathArgument:
    """Where a call has a path: positions of its text and of its descriptor (None: always the working directory).

    A link in the last place is left alone always, or with the bits `mask` of the argument at `flags`, or never.
    """

    text: int
    directory: int | None = None
    leaves_links: bool = False
    flags: int | None = None
    mask: int = AT_SYMLINK_NOFOLLOW


_AT = PathArgument
CALLS: dict[str, tuple[PathArgument, ...]] = {
    "access": (_AT(0),),
    "chdir": (_AT(0),),
    "chmod": (_AT(0),),
    "chown": (_AT(0),),
    "chroot": (_AT(0),),
    "creat": (_AT(0),),
    "execve": (_AT(0),),
    "execveat": (_AT(1, 0, flags=4),),
    "faccessat": (_AT(1, 0),),
    "faccessat2": (_AT(1, 0, flags=3),),
    "fchmodat": (_AT(1, 0),),
    "fchmodat2": (_AT(1, 0, flags=3),),
    "fchownat": (_AT(1, 0, flags=4),),
    "getxattr": (_AT(0),),
    "inotify_add_watch": (_AT(1),),
    "lchown": (_AT(0, leaves_links=True),),
    "lgetxattr": (_AT(0, leaves_links=True),),
    "link": (_AT(0, leaves_links=True), _AT(1, leaves_links=True)),
    "linkat": (_AT(1, 0, leaves_links=True), _AT(3, 2, leaves_links=True)),
    "lstat": (_AT(0, leaves_links=True),),
    "mkdir": (_AT(0, leaves_links=True),),
    "mkdirat": (_AT(1, 0, leaves_links=True),),
    "mknod": (_AT(0, leaves_links=True),),
    "mknodat": (_AT(1, 0, leaves_links=True),),
    "mount": (_AT(0), _AT(1)),
    "mount_setattr": (_AT(1, 0, flags=2),),
    "move_mount": (_AT(1, 0), _AT(3, 2)),
    "newfstatat": (_AT(1, 0, flags=3),),
    "open": (_AT(0, flags=1, mask=O_NOFOLLOW),),
    "open_tree": (_AT(1, 0, flags=2),),
    "openat": (_AT(1, 0, flags=2, mask=O_NOFOLLOW),),
    "openat2": (_AT(1, 0),),
    "pivot_root": (_AT(0), _AT(1)),
    "readlink": (_AT(0, leaves_links=True),),
    "readlinkat": (_AT(1, 0, leaves_links=True),),
    "rename": (_AT(0, leaves_links=True), _AT(1, leaves_links=True)),
    "renameat": (_AT(1, 0, leaves_links=True), _AT(3, 2, leaves_links=True)),
    "renameat2": (_AT(1, 0, leaves_links=True), _AT(3, 2, leaves_links=True)),
    "rmdir": (_AT(0, leaves_links=True),),
    "setxattr": (_AT(0),),
    "stat": (_AT(0),),
    "statfs": (_AT(0),),
    "statx": (_AT(1, 0, flags=2),),
    "symlink": (_AT(1, leaves_links=True),),
    "symlinkat": (_AT(2, 1, leaves_links=True),),
    "truncate": (_AT(0),),
    "umount2": (_AT(0),),
    "unlink": (_AT(0, leaves_links=True),),
    "unlinkat": (_AT(1, 0, leaves_links=True),),
    "utimensat": (_AT(1, 0, flags=3),),
}
MOUNTING = ("mount", "umount2", "move_mount", "open_tree", "mount_setattr", "pivot_root")


@dataclass
class PathProof:
    """Watches one traced run; `problems` are broken rules, `judged` counts what was held to them, by call."""

    rootfs: Path
    container: int
    problems: list[str] = field(default_factory=list)
    judged: dict[str, int] = field(default_factory=dict)
    holds: set[int] = field(default_factory=set)
    entered: set[int] = field(default_factory=set)
    detached: dict[int, set[int]] = field(default_factory=dict)
    _mounts: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Remember which directory the root is and which mounts are the container's."""
        status = os.stat(f"/proc/{self.container}/root{self.rootfs}")
        self.identity = status.st_dev, status.st_ino
        self._read_mounts()

    def entry(self, call: Call) -> None:
        """Judge a call before it is made; never lets it fail."""
        if call.process not in self.holds and not self._inherits(call):
            return
        if call.name in {"execve", "execveat"} and call.process in self.entered:
            self.problems.append(f"{call.name}({call.word(0)!r}): a program is run in the container's namespaces")
        for argument in CALLS.get(call.name, ()):
            self._judge(call, argument)

    def exit(self, call: Call, result: int) -> None:
        """Learn from a result: who holds the root, who is in the container's mount namespace."""
        if result < 0:
            return
        if call.name in {"openat", "openat2", "open", "dup"} and self._is_root(call.pid, result):
            self.holds.add(call.process)
        elif call.name in {"setns", "unshare"} and call.number(1 if call.name == "setns" else 0) & CLONE_NEWNS:
            self.entered.add(call.process)
        elif call.name in {"move_mount", "mount"}:
            self._read_mounts()

    def _inherits(self, call: Call) -> bool:
        """Tell whether a new process got the root's descriptor from its parent."""
        if call.index == 0 and call.process > 0:
            with contextlib.suppress(OSError):
                for name in os.listdir(f"/proc/{call.pid}/fd"):
                    if self._is_root(call.pid, int(name)):
                        self.holds.add(call.process)
                        return True
        return False

    def _is_root(self, pid: int, descriptor: int) -> bool:
        with contextlib.suppress(OSError):
            status = os.stat(f"/proc/{pid}/fd/{descriptor}")
            return (status.st_dev, status.st_ino) == self.identity
        return False

    def _read_mounts(self) -> None:
        """Note the ids of all mounts that are the root or lie below it."""
        below = str(self.rootfs)
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.container}/mountinfo").read_text().splitlines():
                fields = line.split(" ")
                if fields[4] == below or fields[4].startswith(f"{below}/"):
                    self._mounts.add(int(fields[0]))

    def _is_inside(self, call: Call, descriptor: int) -> bool:
        """Tell whether a descriptor lies in the container, by the mount that it is on."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{call.pid}/fdinfo/{descriptor}").read_text().splitlines():
                if line.startswith("mnt_id:"):
                    return int(line.split()[1]) in self._mounts
        return False

    def _judge(self, call: Call, argument: PathArgument) -> None:
        path = call.word(argument.text)
        if path is None:
            return
        directory = AT_FDCWD if argument.directory is None else call.number(argument.directory)
        self.judged[call.name] = self.judged.get(call.name, 0) + 1
        problem = self._problem(call, argument, path, directory)
        if problem:
            self.problems.append(f"{call.name}({directory}, {path!r}) of process {call.process}: {problem}")

    def _problem(  # noqa: PLR0911 # one line for each rule
        self, call: Call, argument: PathArgument, path: str, directory: int
    ) -> str:
        if call.name in MOUNTING:
            return self._mount_problem(call, path, directory)
        if path == "":
            return ""  # the descriptor itself, or an error
        if call.name == "openat2" and directory >= 0 and _resolves_in_root(call):
            return ""
        if path.startswith("/") or directory == AT_FDCWD:
            return self._absolute_problem(call, path)
        if not self._is_inside(call, directory):
            return ""  # a directory of the host, such as the /proc directory of the container's process
        if call.name == "openat2":
            return "openat2 without RESOLVE_IN_ROOT"
        if "/" in path or path == "..":
            return "more than one component inside the root"
        return self._link_problem(call, argument, path)

    @staticmethod
    def _link_problem(call: Call, argument: PathArgument, path: str) -> str:
        """Return what is wrong with one component: it must not be followed where it is a link."""
        if path == "." or argument.leaves_links:
            return ""
        flags = 0 if argument.flags is None else call.arguments[argument.flags]
        if call.name in {"openat", "open"} and flags & os.O_CREAT and flags & os.O_EXCL:
            return ""
        return "" if flags & argument.mask else "follows a link in the last place"

    def _absolute_problem(self, call: Call, path: str) -> str:
        """Return what is wrong with a path that does not begin at a descriptor."""
        if call.process in self.entered:
            return "" if path == "/" else "a path without descriptor in the container's mount namespace"
        place = path if path.startswith("/") else f"{os.readlink(f'/proc/{call.pid}/cwd')}/{path}"
        leads_in = place == str(self.rootfs) or place.startswith(f"{self.rootfs}/")
        through_proc = f"/proc/{self.container}/root" in place or f"/proc/{self.container}/cwd" in place
        return "a path into the root file system" if leads_in or through_proc else ""

    def _mount_problem(self, call: Call, path: str, directory: int) -> str:
        """Return what is wrong with a path of a call about mounts."""
        if path == "" and directory != AT_FDCWD:
            if call.name == "move_mount" and call.arguments[4] & MOVE_MOUNT_BOTH_EMPTY != MOVE_MOUNT_BOTH_EMPTY:
                return "does not go from descriptor to descriptor"
            if call.name == "open_tree" and self._is_inside(call, directory):
                return "mounts something of the image"
            return ""
        if call.name in {"mount", "umount2"}:
            if path in {"tmpfs", ""} and call.name == "mount":
                return ""
            if path.isdigit() and self._stands_in_own_descriptors(call):
                return ""
        return "does not go from descriptor to descriptor"

    @staticmethod
    def _stands_in_own_descriptors(call: Call) -> bool:
        """Tell whether the working directory is the process's own /proc/self/fd, the real one."""
        with contextlib.suppress(OSError):
            here, own = os.stat(f"/proc/{call.pid}/cwd"), os.stat(f"/proc/{call.pid}/fd")
            return (here.st_dev, here.st_ino) == (own.st_dev, own.st_ino)
        return False


def _resolves_in_root(call: Call) -> bool:
    (resolve,) = struct.unpack_from("=Q", call.memory(2, 24), 16)
    return bool(resolve & RESOLVE_IN_ROOT)
