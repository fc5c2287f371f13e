"""Builds small host trees for tests: a driver root with files, a proc root, a device root with real device nodes."""

import os
import socket
import stat
from pathlib import Path

import pytest

from nvinject.core.policy import Policy, Roots
from nvinject.formats.ldcache import Cache, Entry, format_cache
from tests.formats.elfbuilder import build_elf

VERSION = "570.133.20"
X86_64 = 0x0303
I386 = 0x0003
LIBRARY_DIRECTORY = "/usr/lib/x86_64-linux-gnu"
PARAMS = "ModifyDeviceFiles: 1\nDeviceFileMode: 438\n"

# Name up to .so, and what its SONAME adds to that ("" stands for the version).
LIBRARIES = {
    "libcuda.so": ".1",
    "libcudadebugger.so": ".1",
    "libnvidia-ml.so": ".1",
    "libnvidia-cfg.so": ".1",
    "libnvidia-nvvm.so": ".4",
    "libnvidia-glcore.so": "",
    "libGLX_nvidia.so": ".0",
    "libnvidia-encode.so": ".1",
    "libnvidia-api.so": ".1",
}


def gpu_uuid(number: int) -> str:
    """Return a UUID made of a number."""
    return f"GPU-{number:08x}-1111-2222-3333-444444444444"


def give(path: Path, user: int) -> None:
    """Make a file belong to a user, or skip where that is not permitted (chown(2): CAP_CHOWN)."""
    if path.stat().st_uid == user:
        return
    try:
        os.chown(path, user, -1)
    except OSError as error:
        pytest.skip(f"files cannot be given to user {user} here: {error.strerror}")


class HostTree:
    """A host in a folder: `root` is driver and device root, `proc` stands for /proc."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "root"
        self.proc = base / "proc"
        self.entries: list[Entry] = []
        self.root.mkdir()
        self.proc.mkdir()

    @property
    def policy(self) -> Policy:
        """Return the policy that has its roots here."""
        return Policy(roots=Roots(driver=str(self.root), proc=str(self.proc)))

    def write(self, path: str, content: str | bytes = "") -> Path:
        """Write a file below the driver root."""
        return write(self.root, path, content)

    def link(self, path: str, target: str) -> None:
        """Make a link below the driver root."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def add_library(
        self, prefix: str, suffix: str, *, version: str = VERSION, directory: str = LIBRARY_DIRECTORY, bits: int = 64
    ) -> None:
        """Write a library with its SONAME link, and remember both names for the loader cache."""
        file = f"{prefix}.{version}"
        soname = f"{prefix}{suffix}" if suffix else file
        self.write(f"{directory}/{file}", build_elf(soname=soname, bits=bits, machine=62 if bits == 64 else 3))
        if soname != file and not (self.root / f"{directory}/{soname}".lstrip("/")).is_symlink():
            self.link(f"{directory}/{soname}", file)
        flags = X86_64 if bits == 64 else I386
        self.entries.append(Entry(soname=soname, path=f"{directory}/{soname}", flags=flags))

    def write_cache(self, path: str = "/etc/ld.so.cache") -> None:
        """Write the loader cache with all libraries so far."""
        entries = sorted(self.entries, key=lambda entry: entry.soname, reverse=True)
        self.write(path, format_cache(Cache(entries=tuple(entries))))

    def add_driver(self, version: str = VERSION) -> None:
        """Write every library, the loader cache, programs and firmware."""
        for prefix, suffix in LIBRARIES.items():
            self.add_library(prefix, suffix, version=version)
        self.write_cache()
        for name in ("nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control"):
            self.write(f"/usr/bin/{name}", "program")
        for name in ("gsp_tu10x.bin", "gsp_ga10x.bin", "readme.txt"):
            self.write(f"/usr/lib/firmware/nvidia/{version}/{name}", "firmware")
        self.link("/lib", "usr/lib")

    def add_module(self, version: str = VERSION, devices: str = "") -> None:
        """Write what the loaded kernel module shows in /proc."""
        line = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Mar  5 22:23:56 UTC 2024\n"
        write(self.proc, "/driver/nvidia/version", line)
        write(self.proc, "/driver/nvidia/params", PARAMS)
        write(self.proc, "/driver/nvidia/registry", 'Binary: ""\n')
        classes = devices or "195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n237 nvidia-caps\n511 nvidia-uvm\n"
        write(self.proc, "/devices", f"Character devices:\n  1 mem\n{classes}\nBlock devices:\n  7 loop\n")

    def add_gpu(self, minor: int, address: str, *, uuid: str = "", extra: str = "", node: bool = True) -> None:
        """Write a GPU's folder in /proc and make its node."""
        text = (
            f"Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t {uuid or gpu_uuid(minor)}\n"
            f"Bus Location: \t {address}\nDevice Minor: \t {minor}\n{extra}"
        )
        write(self.proc, f"/driver/nvidia/gpus/{address}/information", text)
        if node:
            self.add_node(f"/dev/nvidia{minor}", 195, minor)

    def add_mig(self, gpu_minor: int, gpu_instance: int, compute_instance: int, *, node: bool = True) -> None:
        """Write the capability files of a MIG device and make their nodes."""
        first = 3 + 135 * gpu_minor + 9 * gpu_instance
        base = f"/driver/nvidia/capabilities/gpu{gpu_minor}/mig/gi{gpu_instance}"
        for path, minor in ((base, first), (f"{base}/ci{compute_instance}", first + 1 + compute_instance)):
            write(self.proc, f"{path}/access", f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
            if node:
                self.add_node(f"/dev/nvidia-caps/nvidia-cap{minor}", 237, minor)

    def add_control_nodes(self) -> None:
        """Make the nodes that belong to no single GPU."""
        for name, major, minor in (
            ("nvidiactl", 195, 255),
            ("nvidia-modeset", 195, 254),
            ("nvidia-uvm", 511, 0),
            ("nvidia-uvm-tools", 511, 1),
        ):
            self.add_node(f"/dev/{name}", major, minor)

    def add_node(self, path: str, major: int, minor: int) -> None:
        """Make a character device, or skip the test where this user may not."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        try:
            os.mknod(place, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
        except OSError as error:
            pytest.skip(f"device nodes cannot be made here: {error.strerror}")
        place.chmod(0o666)

    def add_socket(self, path: str) -> None:
        """Make a socket."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        # The path of a socket has at most 107 bytes, the test's folder may be deeper.
        here = Path.cwd()
        os.chdir(place.parent)
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(place.name)
        finally:
            os.chdir(here)

    def add_everything(self) -> None:
        """Build the machine that works: two GPUs, all control nodes, the whole driver."""
        self.add_driver()
        self.add_module()
        self.add_control_nodes()
        self.add_gpu(0, "0000:17:00.0")
        self.add_gpu(1, "0000:18:00.0")


def write(root: Path, path: str, content: str | bytes) -> Path:
    """Write a file below a folder, making the folders between."""
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content.encode() if isinstance(content, str) else content)
    return place
