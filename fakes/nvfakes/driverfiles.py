"""The user-space files of a driver: which libraries, programs, firmware and configuration a package installs.

Belongs here: names, SONAMEs and links, one row per library. Does not belong here: the bytes (elf.py, nvml/) and where
the tree is written (tree.py). The list is that of branch 570 as observed, and holds for its neighbours.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Library:
    """A library `stem`.so.<version>; `soname` is the number after .so, or empty for the version itself.

    `since` and `until` are the first and the last branch that have it, as far as the branches used here tell.
    """

    stem: str
    soname: str = "1"
    version: str = ""
    directory: str = ""
    plain_link: bool = False
    tls_note: bool = False
    in_32_bit: bool = False
    since: int = 0
    until: int = 9999


LIBRARIES: tuple[Library, ...] = (
    Library("libEGL_nvidia", "0", in_32_bit=True),
    Library("libGLESv1_CM_nvidia", "1", in_32_bit=True),
    Library("libGLESv2_nvidia", "2", in_32_bit=True),
    Library("libGLX_nvidia", "0", in_32_bit=True),
    Library("libcuda", plain_link=True, in_32_bit=True),
    Library("libcudadebugger", since=515),
    Library("libnvcuvid", in_32_bit=True),
    Library("libnvidia-allocator", in_32_bit=True),
    Library("libnvidia-api", since=515),
    Library("libnvidia-cbl", "", until=470),
    Library("libnvidia-cfg"),
    Library("libnvidia-compiler", "", in_32_bit=True, until=515),
    Library("libnvidia-egl-gbm", version="1.1.2"),
    Library("libnvidia-egl-wayland", version="1.1.19"),
    Library("libnvidia-eglcore", "", in_32_bit=True),
    Library("libnvidia-encode", in_32_bit=True),
    Library("libnvidia-fbc", in_32_bit=True),
    Library("libnvidia-glcore", "", in_32_bit=True),
    Library("libnvidia-glsi", "", in_32_bit=True),
    Library("libnvidia-glvkspirv", "", in_32_bit=True),
    Library("libnvidia-gpucomp", "", in_32_bit=True, since=545),
    Library("libnvidia-ifr", in_32_bit=True, until=470),
    Library("libnvidia-ml", plain_link=True, in_32_bit=True),
    Library("libnvidia-ngx"),
    Library("libnvidia-nvvm", "4", in_32_bit=True),
    Library("libnvidia-opencl", in_32_bit=True),
    Library("libnvidia-opticalflow", in_32_bit=True),
    Library("libnvidia-pkcs11-openssl3", "", since=530),
    Library("libnvidia-pkcs11", "", since=530),
    Library("libnvidia-present", "", since=560),
    Library("libnvidia-ptxjitcompiler", in_32_bit=True),
    Library("libnvidia-rtcore", ""),
    Library("libnvidia-tls", "", tls_note=True, in_32_bit=True),
    Library("libnvoptix"),
    Library("libglxserver_nvidia", "", directory="nvidia/xorg"),
    Library("libvdpau_nvidia", directory="vdpau", in_32_bit=True),
)

PROGRAMS = (
    "nv-fabricmanager",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-smi",
)

FIRMWARE = ("gsp_ga10x.bin", "gsp_tu10x.bin")

_ICD = '{{"file_format_version": "{0}", "ICD": {{"library_path": "{1}"{2}}}}}\n'
_LAYER = (
    '{{"file_format_version": "1.0.0", "layer": {{"name": "VK_LAYER_NV_optimus", "type": "INSTANCE", '
    '"library_path": "libGLX_nvidia.so.0", "api_version": "1.4.303", "implementation_version": "1", '
    '"description": "Chooses the GPU", "enable_environment": {{"__NV_PRIME_RENDER_OFFLOAD": "1"}}, '
    '"disable_environment": {{"DISABLE_LAYER_NV_OPTIMUS_1": ""}}}}}}\n'
)
_VULKAN = _ICD.format("1.0.1", "libGLX_nvidia.so.0", ', "api_version": "1.4.303"')

CONFIGURATION: dict[str, str] = {
    "/etc/OpenCL/vendors/nvidia.icd": "libnvidia-opencl.so.1\n",
    "/etc/vulkan/icd.d/nvidia_icd.json": _VULKAN,
    "/etc/vulkan/implicit_layer.d/nvidia_layers.json": _LAYER.format(),
    "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf": (
        'Section "OutputClass"\n    Identifier "nvidia"\n'
        '    MatchDriver "nvidia-drm"\n    Driver "nvidia"\nEndSection\n'
    ),
    "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json": _ICD.format(
        "1.0.0", "libnvidia-egl-wayland.so.1", ""
    ),
    "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json": _ICD.format("1.0.0", "libnvidia-egl-gbm.so.1", ""),
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": _ICD.format("1.0.0", "libEGL_nvidia.so.0", ""),
    "/usr/share/nvidia/nvoptix.bin": "nvoptix\n",
    "/usr/share/vulkan/icd.d/nvidia_icd.json": _VULKAN,
}


def libraries(branch: int) -> tuple[Library, ...]:
    """Return the libraries of a driver branch."""
    return tuple(library for library in LIBRARIES if library.since <= branch <= library.until)


def file_name(library: Library, version: str) -> str:
    """Return the name of the library's file, such as libcuda.so.570.133.20."""
    return f"{library.stem}.so.{library.version or version}"


def soname(library: Library, version: str) -> str:
    """Return the library's SONAME, such as libcuda.so.1."""
    return f"{library.stem}.so.{library.soname or library.version or version}"
