"""The catalogue: which file, socket, device node or link belongs to which driver capability, and why.

Belongs here: one row for one thing, and the rules that pick rows for a set of capabilities. Does not belong here:
whether the thing is there (nvinject.host) and where in the container it goes (planner.py, unless a name fixes it).
Rows follow the original's tables, without its row for WSL (libdxcore.so); an empty `capabilities` means that the row is
there for every request.
"""

from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

NVIDIA_MAJOR = 195  # fixed for nvidiaN, nvidiactl and nvidia-modeset; all other classes get a number at load time
GPU_CLASSES = ("nvidia", "nvidia-frontend")  # old drivers register nvidia-frontend
CAPABILITY_CLASS = "nvidia-caps"
CAPABILITY_DIRECTORY = "/dev/nvidia-caps"
IMEX_CLASS = "nvidia-caps-imex-channels"
IMEX_DIRECTORY = "/dev/nvidia-caps-imex-channels"
IMEX_KIND = "imex-channel"  # the class of CDI devices
# No capability of images: everything that belongs to the driver, for containers of which nothing is known yet.
WHOLE_DRIVER = "whole-driver"

MPS = "nvidia-mps"
MPS_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108  # the daemon's documented default, not a file of ours
MPS_CONTROL = "control"  # the pipe below it that clients open first
MPS_PID_FILE = "nvidia-cuda-mps-control.pid"
MPS_PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
MPS_LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"
MPS_LIMIT_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


class LibraryRow(Record):
    """A library by the start of its SONAME (`libcuda.so` stands for libcuda.so.1)."""

    prefix: str
    capabilities: tuple[str, ...]
    reason: str


class BinaryRow(Record):
    """A program, by the name under which PATH finds it."""

    name: str
    capabilities: tuple[str, ...]
    reason: str


class FirmwareRow(Record):
    """Files of `directory`/<driver version>/ that start and end as given; they have that path in the container.

    `name` is what `nvinject.leave-out` of config.toml calls them; `others` are directories in place of `directory` on
    hosts that keep them elsewhere.
    """

    name: str
    directory: str
    prefix: str
    suffix: str
    capabilities: tuple[str, ...]
    reason: str
    others: tuple[str, ...] = ()


class SocketRow(Record):
    """A daemon's socket, or its directory of sockets; the first of `paths` that exists is taken.

    `name` is also what `nvinject.leave-out` of config.toml calls it. A `variable` names the directory, to the daemon
    and to its clients, in place of the first path. It is looked for only where the row `needs` was found, and shown
    read-only where clients only read.
    """

    name: str
    paths: tuple[str, ...]
    capabilities: tuple[str, ...]
    reason: str
    is_directory: bool = False
    variable: str = ""
    needs: str = ""
    read_only: bool = False


class ControlNodeRow(Record):
    """A device node that no single GPU owns.

    `classes` are names of /proc/devices that can hold its major, best first; `default_major` holds where none is
    listed (0: take the node's own). `required`: without it nothing works, so it is an error when it is missing.
    `remedy` is the command that makes it.
    """

    name: str
    classes: tuple[str, ...]
    default_major: int
    minor: int
    capabilities: tuple[str, ...]
    required: bool
    remedy: str
    reason: str

    @property
    def path(self) -> str:
        """Return the node's path below the device root."""
        return f"/dev/{self.name}"


class SymlinkRow(Record):
    """A link that programs look for and that no loader cache makes; it lies beside the library that `beside` names.

    In `target`, `{version}` stands for the driver version.
    """

    link: str
    target: str
    beside: str
    reason: str
    capabilities: tuple[str, ...] = ()


class NodeSetRow(Record):
    """Device nodes that belong together and to no GPU, and the files that go with them.

    A pattern is a path, or the start of one before `*`. A container gets the set where its `variable` is REQUESTED; a
    CDI spec has it as the device `all` of `device_class`.
    """

    name: str
    variable: str
    device_class: str
    patterns: tuple[str, ...]
    files: tuple[str, ...]
    reason: str
    remedy: str


class ConfigurationRow(Record):
    """A file that tells a dispatcher (GLVND, Vulkan, OpenCL, EGL) about the driver.

    `name` is looked up below `/etc` and the data directories of the driver root; `target` is its place in the
    container.
    """

    name: str
    target: str
    capabilities: tuple[str, ...]
    reason: str


def _library(prefix: str, capability: str, reason: str) -> LibraryRow:
    return LibraryRow(prefix=prefix, capabilities=CAPABILITIES_THAT_IMPLY[capability], reason=reason)


# What asks for the libraries of a capability: video decodes through CUDA, display draws through the graphics libraries.
CAPABILITIES_THAT_IMPLY: dict[str, tuple[str, ...]] = {
    "utility": ("utility",),
    "compute": ("compute", "video"),
    "video": ("video",),
    "graphics": ("graphics", "display"),
    "ngx": ("ngx",),
}

LIBRARIES: tuple[LibraryRow, ...] = (
    _library("libnvidia-ml.so", "utility", "management library: nvidia-smi and monitoring"),
    _library("libnvidia-cfg.so", "utility", "GPU configuration"),
    _library("libnvidia-nscq.so", "utility", "topology of NVSwitch systems"),
    _library("libcuda.so", "compute", "CUDA driver"),
    _library("libcudadebugger.so", "compute", "debugger support of the CUDA driver"),
    _library("libnvidia-opencl.so", "compute", "OpenCL driver"),
    _library("libnvidia-gpucomp.so", "compute", "shader compiler shared by the drivers"),
    _library("libnvidia-ptxjitcompiler.so", "compute", "compiler of PTX for this GPU"),
    _library("libnvidia-fatbinaryloader.so", "compute", "loader of fat binaries (drivers before 450)"),
    _library("libnvidia-allocator.so", "compute", "memory allocator"),
    _library("libnvidia-compiler.so", "compute", "OpenCL compiler (drivers before 515)"),
    _library("libnvidia-pkcs11.so", "compute", "encrypted GPU memory, with OpenSSL 1.1"),
    _library("libnvidia-pkcs11-openssl3.so", "compute", "encrypted GPU memory, with OpenSSL 3"),
    _library("libnvidia-nvvm.so", "compute", "NVVM compiler for link-time optimisation"),
    _library("libnvidia-tileiras.so", "compute", "assembler of CUDA tile programs"),
    _library("libvdpau_nvidia.so", "video", "VDPAU video driver"),
    _library("libnvidia-encode.so", "video", "video encoder"),
    _library("libnvidia-opticalflow.so", "video", "optical flow engine"),
    _library("libnvcuvid.so", "video", "video decoder"),
    _library("libnvidia-eglcore.so", "graphics", "core of EGL"),
    _library("libnvidia-glcore.so", "graphics", "core of OpenGL and Vulkan"),
    _library("libnvidia-tls.so", "graphics", "thread-local storage of OpenGL"),
    _library("libnvidia-glsi.so", "graphics", "system interface of OpenGL"),
    _library("libnvidia-fbc.so", "graphics", "capture of the framebuffer"),
    _library("libnvidia-ifr.so", "graphics", "capture of OpenGL frames (drivers before 470)"),
    _library("libnvidia-rtcore.so", "graphics", "ray tracing core"),
    _library("libnvoptix.so", "graphics", "OptiX ray tracing"),
    _library("libGLX_nvidia.so", "graphics", "GLX driver for GLVND, Vulkan driver"),
    _library("libEGL_nvidia.so", "graphics", "EGL driver for GLVND"),
    _library("libGLESv2_nvidia.so", "graphics", "OpenGL ES 2 and 3 driver for GLVND"),
    _library("libGLESv1_CM_nvidia.so", "graphics", "OpenGL ES 1 driver for GLVND"),
    _library("libnvidia-glvkspirv.so", "graphics", "SPIR-V compiler of Vulkan"),
    _library("libnvidia-cbl.so", "graphics", "Vulkan ray tracing (drivers before 470)"),
    _library("libnvidia-ngx.so", "ngx", "NGX: deep learning for graphics"),
)

# The driver is there when one of these is: every installation has them, and their versions are the driver's.
MANAGEMENT_LIBRARY = "libnvidia-ml.so"
WITNESS_LIBRARIES = ("libcuda.so", MANAGEMENT_LIBRARY)

# Where images of NVIDIA's first containers expect the driver: their PATH and LD_LIBRARY_PATH name these folders.
NVIDIA_LIBRARIES = "/usr/local/nvidia/lib64"
NVIDIA_LIBRARIES32 = "/usr/local/nvidia/lib"
NVIDIA_PROGRAMS = "/usr/local/nvidia/bin"
# The image's own ldconfig finds folders later by this file; before every other name but that of CUDA libraries.
FOLDERS_CONF = "/etc/ld.so.conf.d/00-nvcr-nvinject.conf"

# Where libraries are looked for when the loader cache does not know them, below the driver root; the first hit wins.
# A last component `*` stands for every folder there.
LIBRARY_DIRECTORIES: tuple[str, ...] = (
    "/usr/lib/{triplet}",
    "/usr/lib/{triplet}/nvidia/*",  # Debian keeps each branch in a folder of its own: current, tesla-470
    "/usr/lib64",
    "/lib/{triplet}",
    "/lib/{triplet}/nvidia/*",
    "/lib64",  # Container-Optimized OS installs below <driver root>/lib64
    "/usr/lib",  # Arch
    "/usr/local/nvidia/lib64",  # Container-Optimized OS, as containers see it
    "/usr/local/glibc/usr/lib",  # Talos: a glibc world beside musl
    "/run/opengl-driver/lib",  # NixOS
    "/",
)
LIBRARY32_DIRECTORIES: tuple[str, ...] = (
    "/usr/lib/{triplet32}",
    "/usr/lib/{triplet32}/nvidia/*",
    "/lib/{triplet32}",
    "/usr/lib32",
    "/lib32",
    "/usr/lib",
    "/lib",
    "/run/opengl-driver-32/lib",
)
LIBRARY_SUBDIRECTORIES = ("vdpau", "tls")

BINARIES: tuple[BinaryRow, ...] = (
    BinaryRow(name="nvidia-smi", capabilities=("utility",), reason="shows and manages GPUs"),
    BinaryRow(name="nvidia-debugdump", capabilities=("utility",), reason="collects crash data of GPUs"),
    BinaryRow(name="nvidia-persistenced", capabilities=("utility",), reason="keeps GPUs initialised"),
    BinaryRow(name="nv-fabricmanager", capabilities=("utility",), reason="manages NVSwitch fabrics"),
    BinaryRow(name="nvidia-cuda-mps-control", capabilities=("compute",), reason="controls the multi-process service"),
    BinaryRow(name="nvidia-cuda-mps-server", capabilities=("compute",), reason="runs the multi-process service"),
)

# Parts of the driver that only whole-driver requests get: libraries with a version of their own, and modules that the X
# server opens by path, in folders beside or below the driver's library folder.
OWN_VERSION_LIBRARIES: tuple[str, ...] = (
    "libnvidia-egl-gbm.so",
    "libnvidia-egl-wayland.so",
    "libnvidia-egl-wayland2.so",
    "libnvidia-egl-xcb.so",
    "libnvidia-egl-xlib.so",
    "libnvidia-nvvm70.so",
)
MODULE_DIRECTORIES: tuple[str, ...] = (
    "nvidia/xorg",
    "xorg/modules/drivers",
    "xorg/modules/extensions",
    "xorg/modules/updates/drivers",
    "xorg/modules/updates/extensions",
)
MODULES: tuple[str, ...] = ("nvidia_drv.so", "libglxserver_nvidia.so")

# Looked at after the directories of PATH, which a container engine may have cut short.
BINARY_DIRECTORIES = (
    "/usr/bin",
    "/usr/sbin",
    "/bin",
    "/sbin",
    "/usr/local/bin",
    "/run/current-system/sw/bin",  # NixOS
    "/usr/local/nvidia/bin",  # Container-Optimized OS, as containers see it
    "/usr/lib/nvidia/*",
)
# Files of dispatchers: where the usual systems have them, NixOS, and Container-Optimized OS, whose root is flat.
CONFIGURATION_DIRECTORIES = (
    "/etc",
    "/usr/local/share",
    "/usr/share",
    "/run/opengl-driver/etc",
    "/run/opengl-driver/share",
    "/",
    "/share",
)

FIRMWARE: tuple[FirmwareRow, ...] = (
    FirmwareRow(
        name="gsp-firmware",
        directory="/lib/firmware/nvidia",
        prefix="gsp",
        suffix=".bin",
        capabilities=(),
        reason="firmware of the GPU system processor, read when a GPU is initialised",
        others=(
            "/run/current-system/firmware/nvidia",  # NixOS
            "/firmware/nvidia",  # Container-Optimized OS, below its driver root
            "/usr/local/nvidia/firmware/nvidia",  # the same, as containers see it
        ),
    ),
)

SOCKETS: tuple[SocketRow, ...] = (
    SocketRow(
        name="nvidia-persistenced",
        paths=("/run/nvidia-persistenced/socket", "/var/run/nvidia-persistenced/socket"),
        capabilities=("utility",),
        reason="persistence daemon",
    ),
    SocketRow(
        name="nvidia-fabricmanager",
        paths=("/run/nvidia-fabricmanager/socket", "/var/run/nvidia-fabricmanager/socket"),
        capabilities=("utility",),
        reason="fabric manager",
    ),
    SocketRow(
        name=MPS,
        paths=(MPS_DIRECTORY,),
        capabilities=CAPABILITIES_THAT_IMPLY["compute"],
        reason="pipes of the multi-process service",
        is_directory=True,
        variable=MPS_PIPE_VARIABLE,
    ),
    SocketRow(
        name="nvidia-mps-log",
        paths=("/var/log/nvidia-mps",),
        capabilities=CAPABILITIES_THAT_IMPLY["compute"],
        reason="logs of the multi-process service",
        is_directory=True,
        variable=MPS_LOG_VARIABLE,
        needs=MPS,
        read_only=True,
    ),
)

CONTROL_NODES: tuple[ControlNodeRow, ...] = (
    ControlNodeRow(
        name="nvidiactl",
        classes=("nvidiactl", *GPU_CLASSES),
        default_major=NVIDIA_MAJOR,
        minor=255,
        capabilities=(),
        required=True,
        remedy="nvidia-modprobe -c 255",
        reason="control device of the driver",
    ),
    ControlNodeRow(
        name="nvidia-uvm",
        classes=("nvidia-uvm",),
        default_major=0,
        minor=0,
        capabilities=CAPABILITIES_THAT_IMPLY["compute"],
        required=False,
        remedy="nvidia-modprobe -u -c 0",
        reason="unified memory, without which CUDA does not start",
    ),
    ControlNodeRow(
        name="nvidia-uvm-tools",
        classes=("nvidia-uvm",),
        default_major=0,
        minor=1,
        capabilities=CAPABILITIES_THAT_IMPLY["compute"],
        required=False,
        remedy="nvidia-modprobe -u -c 0",
        reason="events of unified memory, for profilers",
    ),
    ControlNodeRow(
        name="nvidia-modeset",
        classes=("nvidia-modeset", *GPU_CLASSES),
        default_major=NVIDIA_MAJOR,
        minor=254,
        capabilities=("display",),
        required=False,
        remedy="nvidia-modprobe -m",
        reason="display modes",
    ),
)

SYMLINKS: tuple[SymlinkRow, ...] = (
    SymlinkRow(
        link="libcuda.so",
        target="libcuda.so.1",
        beside="libcuda.so",
        reason="programs built against the CUDA stub open it by this name",
    ),
    SymlinkRow(
        link="libGLX_indirect.so.0",
        target="libGLX_nvidia.so.{version}",
        beside="libGLX_nvidia.so",
        reason="GLVND opens it for indirect rendering",
    ),
    SymlinkRow(
        link="libnvidia-opticalflow.so",
        target="libnvidia-opticalflow.so.1",
        beside="libnvidia-opticalflow.so",
        reason="the optical flow API is opened by this name",
    ),
    SymlinkRow(
        link="gbm/nvidia-drm_gbm.so",
        target="../libnvidia-allocator.so.1",
        beside="libnvidia-allocator.so",
        reason="GBM opens its back end by the name of the DRM driver",
        capabilities=(WHOLE_DRIVER,),
    ),
)


def _shared(name: str, reason: str) -> ConfigurationRow:
    return ConfigurationRow(
        name=name, target=f"/usr/share/{name}", capabilities=CAPABILITIES_THAT_IMPLY["graphics"], reason=reason
    )


def _etc(name: str, capability: str, reason: str) -> ConfigurationRow:
    return ConfigurationRow(
        name=name, target=f"/etc/{name}", capabilities=CAPABILITIES_THAT_IMPLY[capability], reason=reason
    )


# The original's prestart hook injects none of these; its OCI modifier and its CDI specs do. Kept apart for that reason,
# as are the libraries that carry a version of their own (libnvidia-egl-gbm.so.1.1.2 and its like), which it skips too.
CONFIGURATION_FILES: tuple[ConfigurationRow, ...] = (
    _shared("glvnd/egl_vendor.d/10_nvidia.json", "tells GLVND about the EGL driver"),
    _shared("egl/egl_external_platform.d/15_nvidia_gbm.json", "EGL on GBM"),
    _shared("egl/egl_external_platform.d/10_nvidia_wayland.json", "EGL on Wayland"),
    _shared("egl/egl_external_platform.d/09_nvidia_wayland2.json", "EGL on Wayland, second generation"),
    _shared("egl/egl_external_platform.d/20_nvidia_xcb.json", "EGL on X11 through XCB"),
    _shared("egl/egl_external_platform.d/20_nvidia_xlib.json", "EGL on X11 through Xlib"),
    _shared("nvidia/nvoptix.bin", "denoiser weights of OptiX"),
    _shared("X11/xorg.conf.d/10-nvidia.conf", "X server set-up"),
    _shared("X11/xorg.conf.d/nvidia-drm-outputclass.conf", "X server set-up for DRM devices"),
    _etc("vulkan/icd.d/nvidia_icd.json", "graphics", "tells the Vulkan loader about the driver"),
    _etc("vulkan/icd.d/nvidia_icd.x86_64.json", "graphics", "tells the Vulkan loader about the driver"),
    _etc("vulkan/icd.d/nvidia_icd.aarch64.json", "graphics", "tells the Vulkan loader about the driver"),
    _etc("vulkan/icd.d/nvidia_layers.json", "graphics", "Vulkan layer for switchable graphics"),
    _etc("vulkan/implicit_layer.d/nvidia_layers.json", "graphics", "Vulkan layer for switchable graphics"),
    _etc("OpenCL/vendors/nvidia.icd", "compute", "tells the OpenCL loader about the driver"),
)


REQUESTED = "enabled"  # the one value of a node set's variable that counts

NODE_SETS: tuple[NodeSetRow, ...] = (
    NodeSetRow(
        name="gds",
        variable="NVIDIA_GDS",
        device_class="gds",
        patterns=("/dev/nvidia-fs*",),
        files=("/run/udev", "/etc/cufile.json"),
        reason="GPUDirect Storage",
        remedy="load the module nvidia-fs",
    ),
    NodeSetRow(
        name="mofed",
        variable="NVIDIA_MOFED",
        device_class="mofed",
        patterns=("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"),
        files=(),
        reason="RDMA network adapters",
        remedy="load the modules ib_uverbs and rdma_ucm",
    ),
    NodeSetRow(
        name="gdrcopy",
        variable="NVIDIA_GDRCOPY",
        device_class="gdrcopy",
        patterns=("/dev/gdrdrv",),
        files=(),
        reason="GDRCopy",
        remedy="load the module gdrdrv",
    ),
    NodeSetRow(
        name="nvswitch",
        variable="NVIDIA_NVSWITCH",
        device_class="nvswitch",
        patterns=("/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch*"),
        files=(),
        reason="NVSwitch",
        remedy="this machine needs NVSwitches, and nvidia-modprobe makes their nodes",
    ),
)

# What a node can leave out of every container, by the names of nvinject.leave-out.
SOCKET_NAMES: tuple[str, ...] = tuple(row.name for row in SOCKETS)
OPTIONAL_PARTS: tuple[str, ...] = (*SOCKET_NAMES, *(row.name for row in FIRMWARE))
NO_SOCKETS_FLAG = "disable-ipc-discoverer"  # the original's word for all sockets left out, in CDI specs and mode jit

# Every node of the driver, for containers that manage it; what begins with one of the last names has a set of its own.
MANAGEMENT_NODES: tuple[str, ...] = (
    "/dev/nvidia*",
    f"{CAPABILITY_DIRECTORY}/nvidia-cap*",
    f"{IMEX_DIRECTORY}/channel*",
)
NO_MANAGEMENT_NODES: tuple[str, ...] = ("nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink")


def is_wanted(row_capabilities: tuple[str, ...], capabilities: tuple[str, ...]) -> bool:
    """Say whether a row belongs to a request; a row without capabilities belongs to each."""
    return not row_capabilities or any(capability in row_capabilities for capability in capabilities)


def libraries_for(capabilities: tuple[str, ...]) -> tuple[LibraryRow, ...]:
    """Return the rows of libraries; the same rows hold for 64 and, with compat32, for 32 bits."""
    return tuple(row for row in LIBRARIES if is_wanted(row.capabilities, capabilities))


def word_sizes_for(capabilities: tuple[str, ...]) -> tuple[int, ...]:
    """Return which word sizes of libraries are wanted: always 64, with compat32 also 32."""
    return (64, 32) if "compat32" in capabilities else (64,)


def binaries_for(capabilities: tuple[str, ...]) -> tuple[BinaryRow, ...]:
    """Return the rows of programs."""
    return tuple(row for row in BINARIES if is_wanted(row.capabilities, capabilities))


def firmware_for(capabilities: tuple[str, ...], left_out: tuple[str, ...] = ()) -> tuple[FirmwareRow, ...]:
    """Return the rows of firmware files, less those whose name the node leaves out."""
    return tuple(row for row in FIRMWARE if is_wanted(row.capabilities, capabilities) and row.name not in left_out)


def sockets_for(capabilities: tuple[str, ...], left_out: tuple[str, ...] = ()) -> tuple[SocketRow, ...]:
    """Return the rows of sockets and socket directories, less those whose name the node leaves out."""
    return tuple(row for row in SOCKETS if is_wanted(row.capabilities, capabilities) and row.name not in left_out)


def daemon_directories(environment: "Mapping[str, str]") -> tuple[tuple[str, str], ...]:
    """Return the directories of daemons that an environment names, as (variable, absolute path)."""
    pairs = [(row.variable, environment.get(row.variable, "")) for row in SOCKETS if row.variable]
    return tuple((variable, path) for variable, path in pairs if path.startswith("/"))


def node_set(name: str) -> NodeSetRow:
    """Return the row of a node set; raises StopIteration for a name that the catalogue does not have."""
    return next(row for row in NODE_SETS if row.name == name)


def requested_node_sets(environment: "Mapping[str, str]") -> tuple[str, ...]:
    """Return the names of the node sets that a container's environment asks for."""
    return tuple(row.name for row in NODE_SETS if environment.get(row.variable) == REQUESTED)


def control_nodes_for(capabilities: tuple[str, ...]) -> tuple[ControlNodeRow, ...]:
    """Return the rows of device nodes that no single GPU owns."""
    return tuple(row for row in CONTROL_NODES if is_wanted(row.capabilities, capabilities))


def configuration_files_for(capabilities: tuple[str, ...]) -> tuple[ConfigurationRow, ...]:
    """Return the rows of configuration files (see CONFIGURATION_FILES for who injects them)."""
    return tuple(row for row in CONFIGURATION_FILES if is_wanted(row.capabilities, capabilities))


def library_row(soname: str) -> LibraryRow | None:
    """Return the row of a SONAME, or None where the catalogue does not know it."""
    return next((row for row in LIBRARIES if soname.startswith(row.prefix)), None)


def symlinks_for(sonames: tuple[str, ...], capabilities: tuple[str, ...] = ()) -> tuple[SymlinkRow, ...]:
    """Return the links that go beside the given libraries."""
    return tuple(
        row
        for row in SYMLINKS
        if any(soname.startswith(row.beside) for soname in sonames) and is_wanted(row.capabilities, capabilities)
    )


def major_of(classes: tuple[str, ...], majors: tuple[tuple[str, int], ...], default: int = NVIDIA_MAJOR) -> int:
    """Return the device major of the first class that /proc/devices lists, else the default."""
    listed = dict(majors)
    return next((listed[name] for name in classes if name in listed), default)


def node_remedy(path: str) -> str:
    """Return the command that makes a device node; run as root, nvidia-smi makes those without a better one."""
    name = path.rsplit("/", 1)[-1]
    for row in CONTROL_NODES:
        if row.name == name:
            return row.remedy
    minor = name.removeprefix("nvidia")
    return f"nvidia-modprobe -c {minor}" if minor.isdigit() else "nvidia-smi"


def capability_remedy(capability_file: str) -> str:
    """Return the command that makes the device node of a file below /proc/driver/nvidia/capabilities."""
    return f"nvidia-modprobe -f {capability_file}"
