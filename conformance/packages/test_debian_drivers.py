"""Discovery on real driver files: the packages of Debian's non-free section, unpacked as a driver root.

Belongs here: what `nvinject plan` must find in trees that NVIDIA and Debian made. Does not belong here: how packages
are fetched (nvfakes.packages) and what is done with a plan. What is expected is computed without nvinject: by walking
the tree and asking readelf, against tables of our own; nvinject is a program that is run.
"""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nvconform.required import give_up
from nvfakes.packages import BRANCHES, DriverFiles, NoSourceError, PackagesError, fetch

# One group: workers of pytest-xdist would wait for each other while one of them fetches.
pytestmark = [pytest.mark.packages, pytest.mark.xdist_group("packages")]

SECONDS = 60
OTHER_VERSION = "525.60.13"  # a release that none of the branches has
BUS = "0000:17:00.0"
UUID = "GPU-000000a0-1111-2222-3333-000000000000"
NODES = {
    "nvidia0": (195, 0),
    "nvidiactl": (195, 255),
    "nvidia-modeset": (195, 254),
    "nvidia-uvm": (235, 0),
    "nvidia-uvm-tools": (235, 1),
}

# Libraries by capability, from the names that libnvidia-container looks for.
COMPUTE = {
    "libcuda",
    "libcudadebugger",
    "libnvidia-allocator",
    "libnvidia-compiler",
    "libnvidia-fatbinaryloader",
    "libnvidia-gpucomp",
    "libnvidia-nvvm",
    "libnvidia-opencl",
    "libnvidia-pkcs11",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-ptxjitcompiler",
    "libnvidia-tileiras",
}
UTILITY = {"libnvidia-ml", "libnvidia-cfg", "libnvidia-nscq"}
VIDEO = {"libvdpau_nvidia", "libnvidia-encode", "libnvidia-opticalflow", "libnvcuvid"}
GRAPHICS = {
    "libEGL_nvidia",
    "libGLESv1_CM_nvidia",
    "libGLESv2_nvidia",
    "libGLX_nvidia",
    "libnvidia-cbl",
    "libnvidia-eglcore",
    "libnvidia-fbc",
    "libnvidia-glcore",
    "libnvidia-glsi",
    "libnvidia-glvkspirv",
    "libnvidia-ifr",
    "libnvidia-rtcore",
    "libnvidia-tls",
    "libnvoptix",
}
NGX = {"libnvidia-ngx"}
LIBRARIES = {
    "utility": UTILITY,
    "compute": COMPUTE,
    "video": VIDEO | COMPUTE,
    "graphics": GRAPHICS,
    "display": GRAPHICS,
    "ngx": NGX,
    "compute,utility": COMPUTE | UTILITY,
    "all": COMPUTE | UTILITY | VIDEO | GRAPHICS | NGX,
}
# Without these in the tree an expectation would be empty and hold for a program that finds nothing.
FLOOR = {
    "470": {"libnvidia-compiler", "libnvidia-cbl", "libnvidia-ifr"},
    "535": {"libnvidia-nvvm", "libnvidia-pkcs11-openssl3", "libcudadebugger"},
    "550": {"libnvidia-nvvm", "libnvidia-gpucomp", "libcudadebugger"},
}
COMMON_FLOOR = {"libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-opencl", "libnvcuvid", "libnvoptix"}

BINARIES = {
    "utility": {"nvidia-smi", "nvidia-debugdump", "nvidia-persistenced"},
    "compute": {"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"},
    "graphics": set[str](),
}


@dataclass(frozen=True)
class Driver:
    """A branch with its unpacked files, and the device nodes that any driver has."""

    branch: str
    files: DriverFiles
    devices: Path


@dataclass(frozen=True)
class Machine:
    """A machine around a driver root: procfs, device nodes and sysfs as trees, and a bundle that asks for its GPU."""

    folder: Path
    version: str

    def plan(self, capabilities: str) -> subprocess.CompletedProcess[str]:
        """Run `nvinject plan` for a container that asks for these capabilities."""
        environment = ["PATH=/usr/bin", "NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"]
        spec = {
            "ociVersion": "1.0.2",
            "process": {"args": ["sh"], "cwd": "/", "env": environment},
            "root": {"path": "rootfs"},
            "mounts": [],
            "linux": {},
        }
        (self.folder / "config.json").write_text(json.dumps(spec))
        command = [sys.executable, "-m", "nvinject", "plan", str(self.folder), "--json"]
        return subprocess.run(
            [*command, "--config", str(self.folder / "config.toml")],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            cwd=self.folder,
        )

    def operations(self, capabilities: str) -> list[dict[str, Any]]:
        """Return the operations of the plan."""
        done = self.plan(capabilities)
        assert done.returncode == 0, done.stderr
        operations: list[dict[str, Any]] = json.loads(done.stdout)["plan"]["operations"]
        return operations

    def sources(self, capabilities: str) -> set[Path]:
        """Return the host's files that the plan binds."""
        return {Path(found["source"]) for found in self.operations(capabilities) if found["operation"] == "BindFile"}


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a device root with one GPU; comes before the driver, so that nothing is fetched to be skipped."""
    root = tmp_path_factory.mktemp("devices")
    (root / "dev").mkdir()
    for name, (major, minor) in NODES.items():
        try:
            os.mknod(root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        except PermissionError:
            give_up("packages", "mknod of a device is not permitted here; run as root")
    return root


@pytest.fixture(scope="module", params=sorted(BRANCHES))
def driver(request: pytest.FixtureRequest, devices: Path) -> Driver:
    """Fetch a branch, or say why this machine cannot."""
    try:
        return Driver(request.param, fetch(request.param), devices)
    except NoSourceError as error:
        give_up("packages", str(error))
    except PackagesError as error:
        pytest.fail(f"driver packages could not be fetched: {error}", pytrace=False)


@pytest.fixture
def machine(driver: Driver, tmp_path: Path) -> Machine:
    """Return a machine whose kernel module and files are the branch's."""
    return make_machine(tmp_path, driver)


@pytest.fixture
def copy(driver: Driver, tmp_path: Path) -> Path:
    """Return a copy of the driver files that a test may add to; unchanged files are shared with the cache."""
    root = tmp_path / "driver"
    try:
        shutil.copytree(driver.files.root, root, symlinks=True, copy_function=os.link)
    except shutil.Error:  # the cache is on another file system
        shutil.rmtree(root)
        shutil.copytree(driver.files.root, root, symlinks=True)
    return root


def make_machine(folder: Path, driver: Driver, root: Path | None = None, version: str = "") -> Machine:
    """Lay down what a kernel with one GPU shows, and a configuration that points there.

    `root` and `version` replace the driver's own files and the version of its kernel module.
    """
    root, version = root or driver.files.root, version or driver.files.version
    proc, rootfs = folder / "proc", folder / "rootfs"
    gpu = proc / "driver/nvidia/gpus" / BUS
    for directory in (gpu, folder / "sys/bus/pci/devices" / BUS, rootfs / "etc"):
        directory.mkdir(parents=True)
    (rootfs / "etc/debian_version").write_text("12.0\n")
    (proc / "devices").write_text("Character devices:\n195 nvidia\n195 nvidiactl\n235 nvidia-uvm\n\nBlock devices:\n")
    nvidia = proc / "driver/nvidia"
    (nvidia / "version").write_text(
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Mar  5 22:23:56 UTC 2024\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
    )
    (nvidia / "params").write_text(
        "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\nInitializeSystemMemory: 1\n"
    )
    (nvidia / "registry").write_text('Binary: ""\n')
    (gpu / "information").write_text(
        f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 187\nGPU UUID: \t {UUID}\nVideo BIOS: \t 96.00.74.00.01\n"
        f"Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t {BUS}\n"
        "Device Minor: \t 0\nGPU Excluded:\t No\n"
    )
    (folder / "config.toml").write_text(
        f'[nvidia-container-cli]\nroot = "{root}"\n\n'
        f'[nvinject]\ndev-root = "{driver.devices}"\nproc-root = "{proc}"\nsys-root = "{folder / "sys"}"\n'
    )
    return Machine(folder, version)


def walk_libraries(root: Path, version: str, names: set[str]) -> Iterator[tuple[Path, int]]:
    """Yield file and word size of each ELF library of exactly this version, wherever it lies below the root."""
    for directory, _, entries in os.walk(root):
        for entry in entries:
            path = Path(directory, entry)
            stem, separator, suffix = entry.partition(".so.")
            if not separator or stem not in names or suffix != version or path.is_symlink():
                continue
            head = path.read_bytes()[:5] if path.stat().st_size < 5 else read_head(path)
            if head[:4] == b"\x7fELF":
                yield path, {1: 32, 2: 64}[head[4]]


def read_head(path: Path) -> bytes:
    """Return the first five bytes: the ELF magic and the class (elf(5), EI_CLASS)."""
    with path.open("rb") as file:
        return file.read(5)


def expected_libraries(root: Path, version: str, capabilities: str, sizes: tuple[int, ...] = (64,)) -> set[Path]:
    """Return the files that a container with these capabilities must get."""
    return {path for path, bits in walk_libraries(root, version, LIBRARIES[capabilities]) if bits in sizes}


def is_library(path: Path) -> bool:
    """Tell a library from a program or firmware by its name."""
    return re.fullmatch(r"lib.+\.so(\..+)?", path.name) is not None


def read_soname(path: Path) -> str | None:
    """Return the SONAME that readelf sees."""
    command = shutil.which("readelf")
    if command is None:
        give_up("packages", "readelf is missing; install binutils")
    done = subprocess.run([command, "-d", str(path)], capture_output=True, text=True, check=True, timeout=SECONDS)
    found = re.search(r"\(SONAME\)\s+Library soname: \[(.+)\]", done.stdout)
    return found[1] if found else None


def test_packages_hold_what_the_tests_count_on(driver: Driver) -> None:
    """An expectation computed from an incomplete tree would prove nothing."""
    names = {
        path.name.partition(".so.")[0] for path in expected_libraries(driver.files.root, driver.files.version, "all")
    }
    assert names >= COMMON_FLOOR | FLOOR[driver.branch]
    assert driver.files.version.startswith(f"{driver.branch}.")


@pytest.mark.parametrize("capabilities", [name for name in LIBRARIES if name != "all"])
def test_finds_every_library_and_no_other(driver: Driver, machine: Machine, capabilities: str) -> None:
    """Debian splits a driver over the library directory and a folder of the branch; both must be searched."""
    expected = expected_libraries(driver.files.root, driver.files.version, capabilities)
    assert expected
    assert {path for path in machine.sources(capabilities) if is_library(path)} == expected


def test_finds_all_libraries_of_both_word_sizes(driver: Driver, machine: Machine) -> None:
    """All capabilities include compat32: the 32-bit libraries of /usr/lib/i386-linux-gnu."""
    expected = expected_libraries(driver.files.root, driver.files.version, "all", (64, 32))
    assert any("i386-linux-gnu" in str(path) for path in expected)
    assert {path for path in machine.sources("all") if is_library(path)} == expected


def test_sonames_are_those_of_readelf(driver: Driver, machine: Machine) -> None:
    """The loader cache gets each library under the SONAME that its file carries."""
    operations = machine.operations("compute,utility,video,graphics,ngx")
    files = {Path(found["target"]): Path(found["source"]) for found in operations if found["operation"] == "BindFile"}
    links = {
        link: (link.parent / found["target"])
        for found in operations
        if found["operation"] == "CreateSymlink" and (link := Path(found["link"]))
    }
    (update,) = [found for found in operations if found["operation"] == "UpdateLoaderCache"]
    paths = {Path(library["path"]): library["soname"] for library in update["libraries"]}
    named = {files[links.get(path, path)]: soname for path, soname in paths.items()}
    expected = expected_libraries(driver.files.root, driver.files.version, "all")
    assert named == {path: soname for path in expected if (soname := read_soname(path)) is not None}


@pytest.mark.parametrize("capability", BINARIES)
def test_finds_every_program(driver: Driver, machine: Machine, capability: str) -> None:
    """Programs lie in /usr/bin, /usr/sbin and in the folder of the branch."""
    root = driver.files.root
    expected = {
        path
        for directory in ("usr/bin", "usr/sbin", "usr/lib/nvidia/current", "usr/lib/nvidia/tesla-470")
        for path in (root / directory).glob("*")
        if path.name in BINARIES[capability]
    }
    found = {path for path in machine.sources(capability) if path.name.startswith("nvidia-")}
    assert found == expected


def test_finds_the_firmware_of_this_version(driver: Driver, machine: Machine) -> None:
    """The GSP firmware lies below /lib or /usr/lib, as the release has it."""
    expected = {path.resolve() for path in driver.files.root.rglob(f"firmware/nvidia/{driver.files.version}/gsp*.bin")}
    if driver.branch != "470":  # its package holds no GSP firmware in Debian
        assert expected
    assert {path.resolve() for path in machine.sources("utility") if path.suffix == ".bin"} == expected


def add_leftovers(root: Path, version: str) -> set[Path]:
    """Put files of another version beside the driver's, as a half-finished upgrade leaves them."""
    leftovers = set()
    library_directory = root / "usr/lib/x86_64-linux-gnu"
    for path, bits in list(walk_libraries(root, version, LIBRARIES["all"])):
        stem = path.name.partition(".so.")[0]
        if bits != 64:
            continue
        for directory in {path.parent, library_directory}:
            leftover = directory / f"{stem}.so.{OTHER_VERSION}"
            if not leftover.exists():
                os.link(path, leftover)
                leftovers.add(leftover)
    firmware = root / f"lib/firmware/nvidia/{OTHER_VERSION}"
    firmware.mkdir(parents=True)
    (firmware / "gsp_ga10x.bin").write_bytes(b"")
    return leftovers | {firmware / "gsp_ga10x.bin"}


@pytest.mark.parametrize("links", ["no links", "links to the leftovers"])
def test_finds_nothing_of_another_version(driver: Driver, copy: Path, tmp_path: Path, links: str) -> None:
    """Neither the name of a leftover nor a SONAME link that still points to it may bring it into a container."""
    leftovers = add_leftovers(copy, driver.files.version)
    if links != "no links":
        for path in leftovers:
            if path.parent == copy / "usr/lib/x86_64-linux-gnu" and (soname := read_soname(path)):
                link = path.with_name(soname)
                if not link.exists():
                    link.symlink_to(path.name)
    machine = make_machine(tmp_path, driver, copy)
    expected = expected_libraries(copy, driver.files.version, "all", (64, 32))
    found = machine.sources("all")
    assert not found & leftovers
    assert not [path for path in found if OTHER_VERSION in str(path)]
    assert {path for path in found if is_library(path)} == expected


def install_alternatives(root: Path) -> None:
    """Link the branch's files to their public names through /etc/alternatives and write the loader cache.

    That is what the maintainer scripts of nvidia-alternative and glx-alternative-nvidia do; the links are absolute, so
    they lead nowhere unless they are followed inside the root.
    """
    alternatives = root / "etc/alternatives"
    alternatives.mkdir(parents=True)
    for triplet in ("x86_64-linux-gnu", "i386-linux-gnu"):
        for path in sorted((root / "usr/lib" / triplet / "nvidia").glob("*/lib*.so*")):
            if path.is_symlink():
                add_alternative(root, f"/usr/lib/{triplet}/{path.name}", f"nvidia--{path.name}-{triplet}", path)
    for path in sorted((root / "usr/lib/nvidia").glob("*/nvidia-*")):
        if path.name in {"nvidia-smi", "nvidia-debugdump"}:
            add_alternative(root, f"/usr/bin/{path.name}", f"nvidia--{path.name}", path)
    (root / "etc/ld.so.conf").write_text("/usr/lib/x86_64-linux-gnu\n/usr/lib/i386-linux-gnu\n")
    subprocess.run(["/sbin/ldconfig", "-X", "-r", str(root)], check=True, timeout=SECONDS, capture_output=True)


def add_alternative(root: Path, public: str, name: str, path: Path) -> None:
    """Make public -> /etc/alternatives/name -> path, all as the installed system would see them."""
    link = root / public.removeprefix("/")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"/etc/alternatives/{name}")
    (root / "etc/alternatives" / name).symlink_to("/" + str(path.relative_to(root)))


def test_installed_driver_through_alternatives_and_loader_cache(driver: Driver, copy: Path, tmp_path: Path) -> None:
    """On an installed Debian the public names are absolute links, and the loader cache lists those names."""
    install_alternatives(copy)
    machine = make_machine(tmp_path, driver, copy)
    found = machine.sources("all")
    expected = expected_libraries(copy, driver.files.version, "all", (64, 32))
    assert {path for path in found if is_library(path)} == expected
    (smi,) = [path for path in found if path.name == "nvidia-smi"]
    assert smi.is_relative_to(copy / "usr/lib/nvidia")


def test_kernel_module_of_another_version_is_an_error(driver: Driver, tmp_path: Path) -> None:
    """Files and kernel module that differ in version never work together; the message names both versions."""
    machine = make_machine(tmp_path, driver, version=OTHER_VERSION)
    done = machine.plan("compute,utility")
    assert done.returncode == 6, done.stderr
    assert done.stderr.count("\n") == 1
    assert driver.files.version in done.stderr
    assert OTHER_VERSION in done.stderr
