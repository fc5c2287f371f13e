"""A container as a runtime gets it (a bundle), or as it leaves it before its prestart hooks run (a scene).

Belongs here: making one afresh for each run, and taking it away. Does not belong here: what is run on it. Works inside
a machine of nvfakes. On a real host /proc/driver is the same in every procfs; here the container's own gets it bound.
"""

import ctypes
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.cases import SHIM_ALONE
from nvconform.bundle import CAPABILITIES, CONTAINER_PATH
from nvconform.image import shared_object
from nvfakes import kernel

CGROUP = Path("/sys/fs/cgroup/devices")
TRIPLET = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}.get(os.uname().machine, "x86_64-linux-gnu")
LIBRARY_DIRECTORY = f"usr/lib/{TRIPLET}"
LATE_LIBRARIES = 40  # of a CUDA toolkit, put into the image after its last ldconfig
MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)
# What containerd and runc allow every container: the rules that are there before any injector comes.
DEFAULT_RULES = ("c *:* m", "c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 1:8 rwm", "c 1:9 rwm", "c 5:0 rwm", "c 136:* rwm")
RUNTIME_GROUPS = ("create", "call")
# On a real host every procfs shows the driver; here the container's own has to be shown the machine's.
KERNEL_HOOK = """\
#!/bin/sh
read -r state || :
process=${state##*\\"pid\\":}
exec nsenter --mount=/proc/${process%%[,\\}]*}/ns/mnt mount --rbind /proc/driver @ROOTFS@/proc/driver
"""
NAMESPACES = ("pid", "ipc", "uts", "mount", "network")


def unmount(path: Path) -> None:
    """Take a mount away, now or when nobody uses it any more."""
    if _libc.umount2(os.fsencode(path), MNT_DETACH) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))


def build_image(root: Path, libraries: int, cache: str) -> None:
    """Write a Debian-like root file system."""
    for name in ("dev", "proc", "sys", "tmp", "run", "etc/ld.so.conf.d", "root", "var", LIBRARY_DIRECTORY, "usr/bin"):
        (root / name).mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    (root / "bin").symlink_to("usr/bin")
    (root / "etc/debian_version").write_text("12.8\n")
    (root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    (root / "etc/ld.so.conf.d/x86_64-linux-gnu.conf").write_text(f"/lib/{TRIPLET}\n/{LIBRARY_DIRECTORY}\n")
    busybox = shutil.which("busybox")
    if busybox:
        shutil.copy2(busybox, root / "usr/bin/busybox")
    for number in range(libraries):
        (root / LIBRARY_DIRECTORY / f"libexample{number}.so.1.{number}").write_bytes(
            shared_object(f"libexample{number}.so.1")
        )
    subprocess.run(["ldconfig", "-r", str(root)], check=True, timeout=60, capture_output=True)
    if cache == "none":
        (root / "etc/ld.so.cache").unlink()
    elif cache == "stale":
        late = root / "usr/local/cuda-12.8/lib64"
        late.mkdir(parents=True)
        for number in range(LATE_LIBRARIES):
            (late / f"libcutool{number}.so.12.8").write_bytes(shared_object(f"libcutool{number}.so.12"))
            (late / f"libcutool{number}.so.12").symlink_to(f"libcutool{number}.so.12.8")
        (root / "etc/ld.so.conf.d/990_cuda-12.conf").write_text("/usr/local/cuda-12.8/lib64\n")
        for number in range(min(5, libraries)):
            (root / LIBRARY_DIRECTORY / f"libexample{number}.so.1").unlink()


class Bundle:
    """A bundle on an overlay of its own: what a runtime gets."""

    def __init__(self, directory: Path, image: Path, case: dict[str, Any], name: str) -> None:
        """Lay everything out."""
        self.directory = directory
        self.name = name
        self.bundle = directory / "bundle"
        self.rootfs = self.bundle / "rootfs"
        self.rootfs.mkdir(parents=True)
        for part in ("upper", "work"):
            (directory / part).mkdir()
        layers = f"lowerdir={image},upperdir={directory}/upper,workdir={directory}/work"
        kernel.mount("overlay", str(self.rootfs), "overlay", 0, layers)
        document = specification(case, f"/nvbench/{name}")
        if case["group"] in RUNTIME_GROUPS:
            hook = directory / "kernel-hook"
            hook.write_text(KERNEL_HOOK.replace("@ROOTFS@", str(self.rootfs)))
            hook.chmod(0o755)
            document["hooks"] = {"prestart": [{"path": str(hook), "env": ["PATH=/usr/bin:/bin"]}]}
        (self.bundle / "config.json").write_text(json.dumps(document, indent=1))

    def close(self) -> None:
        """Remove what is left."""
        unmount(self.rootfs)
        shutil.rmtree(self.directory)


class Scene(Bundle):
    """One created container on its bundle, in its own mount namespace, with its own device rules."""

    def __init__(self, directory: Path, image: Path, case: dict[str, Any], name: str) -> None:
        """Lay everything out and start the container's process."""
        super().__init__(directory, image, case, name)
        self.cgroup = CGROUP / f"nvbench-{os.getpid()}-{name}" if (CGROUP / "devices.allow").exists() else None
        self.process, self._hold = self._start(int(case["mounts"]))
        self._set_rules(int(case["rules"]))
        self.state = directory / "state.json"
        state = {"ociVersion": "1.0.2", "id": name, "pid": self.process, "bundle": str(self.bundle)}
        self.state.write_text(json.dumps({**state, "status": "created"}))

    def close(self) -> None:
        """End the container and remove what it left."""
        os.close(self._hold)
        os.waitpid(self.process, 0)
        if self.cgroup is not None:
            os.rmdir(self.cgroup)
        super().close()

    def _start(self, mounts: int) -> tuple[int, int]:
        """Start a process in a mount namespace of its own, before it changes its root, as runc has it."""
        hold_read, hold = os.pipe()
        ready_read, ready = os.pipe()
        process = os.fork()
        if process == 0:
            try:
                os.close(hold)
                os.close(ready_read)
                self._enter(mounts)
                os.write(ready, b"1")
                os.read(hold_read, 1)
                os._exit(0)
            finally:
                os._exit(1)
        os.close(hold_read)
        os.close(ready)
        answer = os.read(ready_read, 1)
        os.close(ready_read)
        if not answer:
            raise RuntimeError("the container's process could not be set up")
        return process, hold

    def _enter(self, mounts: int) -> None:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        root = str(self.rootfs)
        protected = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
        kernel.mount("proc", f"{root}/proc", "proc", protected)
        kernel.bind("/proc/driver", f"{root}/proc/driver", recursive=True)
        kernel.mount("tmpfs", f"{root}/dev", "tmpfs", kernel.MS_NOSUID, "mode=0755")
        for number in range(mounts):
            target = f"{root}/dev/mount{number}"
            os.mkdir(target)
            kernel.bind("/tmp", target)

    def _set_rules(self, rules: int) -> None:
        if self.cgroup is None:
            return
        self.cgroup.mkdir()
        (self.cgroup / "devices.deny").write_text("a")
        more = [f"c {major}:{minor} rw" for major, minor in more_devices(rules)]
        for rule in (*DEFAULT_RULES, *more):
            (self.cgroup / "devices.allow").write_text(rule)
        (self.cgroup / "cgroup.procs").write_text(str(self.process))


def more_devices(count: int) -> list[tuple[int, int]]:
    """Return numbers (major, minor) of devices that other rules are about."""
    return [(250 + number // 200, number % 200) for number in range(count)]


def specification(case: dict[str, Any], cgroup: str) -> dict[str, Any]:
    """Return a config.json; for a hook as large as an engine's, with its long list of allowed system calls."""
    binds = [
        {"destination": f"/data/{n}", "type": "bind", "source": f"/var/lib/data/{n}", "options": ["rbind", "rw"]}
        for n in range(int(case["mounts"]))
    ]
    capabilities = [name for name in CAPABILITIES if name != "CAP_MKNOD" or case["implementation"] != SHIM_ALONE]
    rules = [
        {"allow": True, "type": "c", "major": major, "minor": minor, "access": "rw"}
        for major, minor in more_devices(int(case["rules"]))
    ]
    document: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": ["/usr/bin/busybox", "true"],
            "env": [CONTAINER_PATH, "HOSTNAME=bench", "HOME=/root", *case["environment"]],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs"},
        "hostname": "bench",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            *binds,
        ],
        "linux": {
            "cgroupsPath": cgroup,
            "namespaces": [{"type": name} for name in NAMESPACES],
            "resources": {"devices": [{"allow": False, "access": "rwm"}, *rules]},
        },
    }
    if case["group"] not in RUNTIME_GROUPS:
        document["linux"]["seccomp"] = {
            "defaultAction": "SCMP_ACT_ERRNO",
            "architectures": ["SCMP_ARCH_X86_64"],
            "syscalls": [{"names": [f"call_{n}" for n in range(380)], "action": "SCMP_ACT_ALLOW"}],
        }
    return document
