"""Real containers, as little as the kernel lets them be: a process with a mount namespace of its own and a rootfs.

Three lanes: `root` (only a mount namespace), `remapped` (root of the host, container in a user namespace with other
ids), `rootless` (an ordinary user; its user namespace maps one id). As with runc at the time of a prestart hook, the
container's mount namespace still shows the host's tree, with the root file system at its path.
"""

import ctypes
import os
import pickle
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvinject.core.plan import Operation, Plan
from nvinject.errors import ContainerError
from nvinject.formats.mountinfo import Mount, parse_mountinfo
from nvinject.linux import syscalls
from nvinject.linux.const import CLONE_NEWNS, CLONE_NEWUSER, MS_BIND, MS_REC, MS_SLAVE
from nvinject.render.namespaces import apply, open_container

# "final": as root, in a process that ends afterwards and enters the container itself.
LANES = ("root", "final", "remapped", "rootless")
FIRST_MAPPED = 100000
ORDINARY = os.getuid() or 65534
PR_SET_DUMPABLE = 4
PR_SET_PDEATHSIG = 1

Entry = tuple[int, int, int, int, str]


def become(user: int) -> None:
    """Become an ordinary user whose processes may be looked into, as after an exec."""
    if user != os.geteuid():
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Leave nothing running where the tests are killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def call_in_child(function: Callable[[], Any]) -> Any:
    """Run a function in a forked process and return its result; exceptions come back as AssertionError."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            answer = pickle.dumps((True, function()))
        except BaseException as error:  # noqa: BLE001 # told to the parent
            answer = pickle.dumps((False, f"{type(error).__name__}: {error}"))
        with os.fdopen(writing, "wb") as stream:
            stream.write(answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    succeeded, result = pickle.loads(answer)
    assert succeeded, result
    return result


class Sandbox:
    """One container and its surroundings: `host` holds what may be bound, `canary` what must never change."""

    def __init__(self, lane: str) -> None:
        self.lane = lane
        self.base = Path(tempfile.mkdtemp(prefix="nvinject-"))
        self.base.chmod(0o755)
        self.rootfs = self.base / "rootfs"
        self.host = self.base / "host"
        self.canary = self.base / "canary"
        self.pid = 0
        self.user = ORDINARY if lane == "rootless" else os.geteuid()
        for directory in ("proc", "dev", "etc", "usr/lib", "usr/bin", "run", "tmp"):
            (self.rootfs / directory).mkdir(parents=True)
        (self.canary / "target-dir").mkdir(parents=True)
        (self.canary / "secret").write_text("canary")
        self.host.mkdir()
        self._state_before: object = None

    def start(self, prepare: Callable[[Path], None] | None = None) -> None:
        """Start the container; `prepare` runs in its mount namespace with the root file system's path."""
        self._give_away()
        ready_read, ready_write = os.pipe()
        mapped_read, mapped_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._be_container(ready_write, mapped_read, prepare)
        os.close(ready_write)
        os.close(mapped_read)
        with os.fdopen(ready_read, "rb") as ready, os.fdopen(mapped_write, "wb") as mapped:
            word = ready.readline()
            if word == b"map\n":
                self._write_maps()
                mapped.write(b"x")
                mapped.flush()
                word = ready.readline()
        if word != b"ready\n":
            self.stop()
            pytest.skip(f"lane {self.lane} is not possible here: {word.decode(errors='replace').strip()}")
        self._state_before = self._surroundings()

    def _give_away(self) -> None:
        owner = {"root": self.user, "final": self.user, "remapped": FIRST_MAPPED, "rootless": self.user}[self.lane]
        if owner != os.geteuid():
            try:
                for path in (self.rootfs, *self.rootfs.rglob("*")):
                    os.chown(path, owner, owner, follow_symlinks=False)
            except PermissionError as error:
                self.stop()
                pytest.skip(f"lane {self.lane} is not possible here: {error.strerror}")

    def _write_maps(self) -> None:
        for name in ("uid_map", "gid_map"):
            try:
                Path(f"/proc/{self.pid}/{name}").write_text(f"0 {FIRST_MAPPED} 65536")
            except OSError:
                return  # the container finds itself unmapped and says so

    def _be_container(self, ready: int, mapped: int, prepare: Callable[[Path], None] | None) -> None:
        try:
            self._isolate(ready, mapped)
            die_with_parent()
            syscalls.mount(None, "/", None, MS_SLAVE | MS_REC, None)
            rootfs = str(self.rootfs)
            syscalls.mount(rootfs, rootfs, None, MS_BIND | MS_REC, None)
            if (self.rootfs / "proc").is_dir() and not (self.rootfs / "proc").is_symlink():
                syscalls.mount("/proc", f"{rootfs}/proc", None, MS_BIND | MS_REC, None)
                syscalls.mount("tmpfs", f"{rootfs}/proc/driver", "tmpfs", 0, "mode=755")
                os.mkdir(f"{rootfs}/proc/driver/nvidia")
                Path(f"{rootfs}/proc/driver/nvidia/everything").write_text("of the host")
            if prepare is not None:
                prepare(self.rootfs)
            os.write(ready, b"ready\n")
            while True:
                signal.pause()
        except BaseException as error:  # noqa: BLE001 # told to the parent
            os.write(ready, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(1)

    def _isolate(self, ready: int, mapped: int) -> None:
        if self.lane in {"root", "final"}:
            syscalls.unshare(CLONE_NEWNS)
            return
        become(self.user)
        syscalls.unshare(CLONE_NEWUSER)
        if self.lane == "remapped":
            os.write(ready, b"map\n")
            os.read(mapped, 1)
        else:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {self.user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {self.user} 1")
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        syscalls.unshare(CLONE_NEWNS)

    def apply(self, *operations: Operation, no_cgroups: bool = True) -> "Outcome":
        """Apply a plan as the lane's user, in a process of its own."""

        def work() -> tuple[str, str, tuple[str, ...], list[str]]:
            become(self.user)
            lines: list[str] = []
            before = self._process()
            warnings: tuple[str, ...] = ()
            message = hint = ""
            try:
                container = open_container(self.pid, str(self.rootfs))
                before = self._process()
                plan, final = Plan(operations=operations), self.lane == "final"
                warnings = apply(plan, container, no_cgroups=no_cgroups, log=lines.append, ends_here=final)
            except ContainerError as error:
                message, hint = error.message, error.hint
            if self.lane != "final":
                assert self._process() == before
            return message, hint, warnings, lines

        return Outcome(*call_in_child(work))

    @staticmethod
    def _process() -> object:
        umask = os.umask(0)
        os.umask(umask)
        return os.listdir("/proc/self/fd"), umask, os.readlink("/proc/self/ns/mnt"), os.getcwd()

    def inside(self, path: str = "/") -> Path:
        """Return a path by which this process sees a file of the container (its parents must not be links)."""
        return Path(f"/proc/{self.pid}/root{self.rootfs}{path}")

    def tree(self) -> dict[str, Entry]:
        """Return every file below the container's root, procfs but for /proc/driver left out."""
        top = self.inside()
        return {str(path.relative_to(top)): entry(path) for path in walk(top)}

    def mounts(self) -> tuple[Mount, ...]:
        """Return the mounts of the container's namespace."""
        return parse_mountinfo(Path(f"/proc/{self.pid}/mountinfo").read_text())

    def mount_at(self, path: str) -> Mount:
        """Return the topmost mount at a path of the container."""
        return [mount for mount in self.mounts() if mount.mount_point == f"{self.rootfs}{path}"][-1]

    def state(self) -> object:
        """Return all that an operation could change in the container."""
        return self.tree(), self.mounts()

    def _surroundings(self) -> object:
        outside = {str(path): entry(path) for top in (self.canary, self.host) for path in walk(top)}
        # Other tests may mount on this host meanwhile: only what has to do with this container counts.
        table = Path("/proc/self/mountinfo").read_text().splitlines()
        return outside, [line for line in table if self.base.name in line]

    def check_host(self) -> None:
        """Assert that nothing outside of the container has changed."""
        assert self._surroundings() == self._state_before

    def stop(self) -> None:
        """End the container and remove everything."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
        if self.base.exists():
            shutil.rmtree(self.base)


class Outcome:
    """What applying gave: message and hint of the failure ("" for none), warnings, log lines."""

    def __init__(self, message: str, hint: str, warnings: tuple[str, ...], lines: list[str]) -> None:
        self.message = message
        self.hint = hint
        self.warnings = warnings
        self.lines = lines


def entry(path: Path) -> Entry:
    """Return mode, size, device, inode and link text or short content of a file."""
    status = path.lstat()
    text = ""
    if stat.S_ISLNK(status.st_mode):
        text = os.readlink(path)
    elif stat.S_ISREG(status.st_mode) and status.st_size < 4096:
        text = path.read_text(errors="replace")
    size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
    return status.st_mode, size, status.st_rdev, status.st_ino, text


def walk(top: Path) -> list[Path]:
    """Return all paths below a directory, sorted; of a procfs only /proc/driver."""
    found = []
    for directory, subdirectories, files in os.walk(top):
        if Path(directory) == top / "proc" and (top / "proc" / "driver").exists():
            subdirectories[:] = ["driver"]
            files.clear()
        found += [Path(directory, name) for name in (*subdirectories, *files)]
    return sorted(found)
