"""A GPU machine as a value: its driver, its GPUs, its kernel side, and what about it deviates from a healthy machine.

Belongs here: the declared facts and what follows from them by arithmetic (minors of capabilities, branches, names).
Does not belong here: reading YAML (declaration.py), and any bytes that a program could read (tree.py, nvml/image.py).
"""

import platform
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nvfakes.layouts import LAYOUTS, USUAL, Places
from nvfakes.models import GpuModel, MigProfile, mig_profiles

if TYPE_CHECKING:
    from pathlib import Path

MAJOR_NVIDIA = 195
MAJOR_DRM = 226
MINOR_CTL = 255
MINOR_MODESET = 254

CAP_MIG_CONFIG = 1
CAP_MIG_MONITOR = 2
CAP_IMEX_MANAGEMENT = 4323
CAPS_PER_GPU = 135
CAPS_PER_INSTANCE = 9
GPU_SLOTS = 32
INSTANCE_SLOTS = 15
COMPUTE_SLOTS = 8

DEFAULT_MAJORS = {
    "nvidia-uvm": 235,
    "nvidia-nvswitch": 236,
    "nvidia-caps": 237,
    "nvidia-caps-imex-channels": 238,
    "nvidia-nvlink": 239,
}
TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
TRIPLETS_32 = {"x86_64": "i386-linux-gnu", "aarch64": "arm-linux-gnueabihf"}


def is_whole_path(path: str) -> bool:
    """Say whether a path begins at / and goes straight to its end."""
    return path.startswith("/") and posixpath.normpath(path) == path


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver's versions, which of the two kernel modules it is, and the folder of real files, if it has some.

    `layout` names a row of layouts.LAYOUTS: where its files in user space are. One that is not `packaged` has none but
    the machine file's own libraries, as on a Jetson.
    """

    version: str = "570.133.20"
    cuda: str = "12.8"
    open_kernel: bool = True
    packages: str = ""
    layout: str = USUAL
    packaged: bool = True

    @property
    def branch(self) -> int:
        """The branch number, such as 570."""
        return int(self.version.split(".", maxsplit=1)[0])


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A compute instance inside a GPU instance, which together are one MIG device."""

    number: int
    slices: int
    start: int
    uuid: str


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance: a profile, its number as the driver counts, and the memory slices that it holds."""

    profile: MigProfile
    number: int
    start: int
    size: int
    compute: tuple[ComputeInstance, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; `minor` is N of /dev/nvidiaN, `answers` what the machine file adds to the model's NVML answers.

    A GPU that is not `present` has been unplugged; it keeps its place in the machine.
    """

    model: GpuModel
    uuid: str
    bus: str
    minor: int
    numa_node: int = 0
    card: int = 0
    render: int = 0
    serial: str = ""
    present: bool = True
    mig_mode: bool = False
    instances: tuple[GpuInstance, ...] = ()
    answers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The product name, which the machine file may override."""
        return str(self.answers.get("name", self.model.name))

    @property
    def profiles(self) -> tuple[MigProfile, ...]:
        """The MIG profiles that this GPU can be cut into."""
        return mig_profiles(self.model)

    @property
    def on_pci(self) -> bool:
        """Whether the GPU is a PCI function (Orin's is not; Thor's is, although it is integrated as well)."""
        return self.model.device_id != 0

    def mig_devices(self) -> tuple[tuple[GpuInstance, ComputeInstance], ...]:
        """Return the MIG devices in NVML's order: by GPU instance, then by compute instance."""
        ordered = sorted(self.instances, key=lambda instance: instance.number)
        return tuple((instance, compute) for instance in ordered for compute in instance.compute)


@dataclass(frozen=True, slots=True)
class NvSwitch:
    """An NVSwitch: its PCI address, the minor of its node, and whether this machine's own PCI bus shows it."""

    bus: str
    minor: int
    device_id: int = 0x22A3
    on_pci: bool = True


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter of the Windows below which a machine runs: its driver's folder, the version of the driver's model."""

    store: str
    wddm: int = 3200
    compute_only: bool = False


@dataclass(frozen=True, slots=True)
class Deviation:
    """How the machine differs from a healthy one; `missing` holds patterns of absolute paths that do not exist."""

    missing: tuple[str, ...] = ()
    library_version: str = ""
    module_loaded: bool = True


@dataclass(frozen=True, slots=True)
class Machine:
    """A whole machine; `driver` is None where none is installed, `files` are extra or replaced files by path.

    `libraries` (path and SONAME, "" for one that follows from the name) and `nodes` are further libraries and device
    nodes, as a Jetson or WSL has them; NVML and CUDA among the libraries answer where the machine has a driver that is
    not packaged, the others are stubs. With `adapters` the machine is a Linux below Windows, which has no driver of its
    own: no kernel module, no PCI function, and dxcore among the libraries answers; `programs` are further programs.
    `events` are (place of the GPU, NVML kind, value) of what has happened; NVML takes `slow_ms` longer for each answer.
    """

    name: str
    driver: Driver | None = None
    gpus: tuple[Gpu, ...] = ()
    switches: tuple[NvSwitch, ...] = ()
    majors: Mapping[str, int] = field(default_factory=lambda: dict(DEFAULT_MAJORS))
    imex_channels: tuple[int, ...] = ()
    imex_management: bool = False
    sockets: tuple[str, ...] = ()
    params: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    libraries: tuple[tuple[str, str], ...] = ()
    nodes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    adapters: tuple[Adapter, ...] = ()
    programs: tuple[str, ...] = ()
    events: tuple[tuple[int, int, int], ...] = ()
    slow_ms: int = 0
    lib32: bool = False
    drm: bool = True
    deviation: Deviation = field(default_factory=Deviation)
    architecture: str = field(default_factory=platform.machine)

    @property
    def triplet(self) -> str:
        """The multiarch directory of the machine's libraries."""
        return TRIPLETS.get(self.architecture, f"{self.architecture}-linux-gnu")

    @property
    def triplet32(self) -> str:
        """The multiarch directory of the machine's 32-bit libraries."""
        return TRIPLETS_32.get(self.architecture, "")

    @property
    def present_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that are plugged in."""
        return tuple(gpu for gpu in self.gpus if gpu.present)

    @property
    def own_switches(self) -> tuple[NvSwitch, ...]:
        """The NVSwitches that this machine manages itself."""
        return tuple(switch for switch in self.switches if switch.on_pci)

    @property
    def module_loaded(self) -> bool:
        """Whether the kernel side of the driver is there."""
        return self.driver is not None and self.deviation.module_loaded and not self.adapters

    @property
    def pci_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that are functions of this machine's own PCI bus."""
        return () if self.adapters else tuple(gpu for gpu in self.present_gpus if gpu.on_pci)

    @property
    def library_version(self) -> str:
        """The version of the user-space files, which differs from the module's after an upgrade without a reboot."""
        return self.deviation.library_version or (self.driver.version if self.driver else "")

    @property
    def places(self) -> Places:
        """Where the driver's files in user space are."""
        layout = LAYOUTS[self.driver.layout if self.driver else USUAL]
        return Places(layout, version=self.library_version, triplet=self.triplet, triplet32=self.triplet32)

    @property
    def answering_libraries(self) -> tuple[str, ...]:
        """The paths of the libraries that hold facts of the machine: NVML, CUDA and dxcore."""
        dxcore = tuple(path for path, _ in self.libraries if is_dxcore(path)) if self.adapters else ()
        if self.driver is None:
            return dxcore
        if not self.driver.packaged:
            return (*dxcore, *(path for path, _ in self.libraries if is_management(path) or is_cuda(path)))
        folder, version = f"/usr/lib/{self.triplet}", self.library_version
        usual = (f"{folder}/libnvidia-ml.so.{version}", f"{folder}/libcuda.so.{version}")
        return tuple(self.places.path(path) for path in usual)

    @property
    def has_mig(self) -> bool:
        """Whether any GPU can be partitioned, which makes the driver create the MIG capabilities."""
        return any(gpu.model.mig for gpu in self.gpus)

    def write_tree(self, directory: "Path | str") -> None:
        """Write all files of the machine below a directory."""
        from nvfakes import tree  # which knows machines

        tree.write_tree(self, directory)


def is_management(path: str) -> bool:
    """Tell whether a path is that of the NVML library."""
    return "/libnvidia-ml.so" in path


def is_cuda(path: str) -> bool:
    """Tell whether a path is that of the CUDA library."""
    return "/libcuda.so" in path


def is_dxcore(path: str) -> bool:
    """Tell whether a path is that of the library that speaks to Windows."""
    return path.endswith("/libdxcore.so")


def capability_minor(gpu: int, instance: int, compute: int | None = None) -> int:
    """Return the nvidia-caps minor of a GPU instance, or of a compute instance in it; `gpu` is the GPU's minor."""
    base = 3 + CAPS_PER_GPU * gpu + CAPS_PER_INSTANCE * instance
    return base if compute is None else base + 1 + compute
