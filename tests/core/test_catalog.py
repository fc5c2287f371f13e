"""The catalogue against what the original was seen to inject for each capability."""

import pytest

from nvinject.core import catalog
from nvinject.core.policy import DRIVER_CAPABILITIES

UTILITY = {"libnvidia-ml.so", "libnvidia-cfg.so", "libnvidia-nscq.so"}
COMPUTE = {
    "libcuda.so",
    "libcudadebugger.so",
    "libnvidia-opencl.so",
    "libnvidia-gpucomp.so",
    "libnvidia-ptxjitcompiler.so",
    "libnvidia-fatbinaryloader.so",
    "libnvidia-allocator.so",
    "libnvidia-compiler.so",
    "libnvidia-pkcs11.so",
    "libnvidia-pkcs11-openssl3.so",
    "libnvidia-nvvm.so",
    "libnvidia-tileiras.so",
}
VIDEO = {"libvdpau_nvidia.so", "libnvidia-encode.so", "libnvidia-opticalflow.so", "libnvcuvid.so"}
GRAPHICS = {
    "libnvidia-eglcore.so",
    "libnvidia-glcore.so",
    "libnvidia-tls.so",
    "libnvidia-glsi.so",
    "libnvidia-fbc.so",
    "libnvidia-ifr.so",
    "libnvidia-rtcore.so",
    "libnvoptix.so",
    "libGLX_nvidia.so",
    "libEGL_nvidia.so",
    "libGLESv2_nvidia.so",
    "libGLESv1_CM_nvidia.so",
    "libnvidia-glvkspirv.so",
    "libnvidia-cbl.so",
}
NGX = {"libnvidia-ngx.so"}
UTILITY_BINARIES = {"nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nv-fabricmanager"}
COMPUTE_BINARIES = {"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}
UVM = {"nvidia-uvm", "nvidia-uvm-tools"}

CASES = [
    # capabilities, libraries, binaries, control nodes beside nvidiactl, sockets
    ((), set(), set(), set(), set()),
    (("utility",), UTILITY, UTILITY_BINARIES, set(), {"nvidia-persistenced", "nvidia-fabricmanager"}),
    (("compute",), COMPUTE, COMPUTE_BINARIES, UVM, {"nvidia-mps", "nvidia-mps-log"}),
    (("video",), COMPUTE | VIDEO, set(), UVM, {"nvidia-mps", "nvidia-mps-log"}),
    (("graphics",), GRAPHICS, set(), set(), set()),
    (("display",), GRAPHICS, set(), {"nvidia-modeset"}, set()),
    (("ngx",), NGX, set(), set(), set()),
    (("compat32",), set(), set(), set(), set()),
    (
        ("compute", "utility"),
        COMPUTE | UTILITY,
        COMPUTE_BINARIES | UTILITY_BINARIES,
        UVM,
        {"nvidia-mps", "nvidia-mps-log", "nvidia-persistenced", "nvidia-fabricmanager"},
    ),
    (
        DRIVER_CAPABILITIES,
        UTILITY | COMPUTE | VIDEO | GRAPHICS | NGX,
        UTILITY_BINARIES | COMPUTE_BINARIES,
        UVM | {"nvidia-modeset"},
        {"nvidia-mps", "nvidia-mps-log", "nvidia-persistenced", "nvidia-fabricmanager"},
    ),
]


@pytest.mark.parametrize(("capabilities", "libraries", "binaries", "nodes", "sockets"), CASES)
def test_rows_of_capabilities(
    capabilities: tuple[str, ...], libraries: set[str], binaries: set[str], nodes: set[str], sockets: set[str]
) -> None:
    """Each capability brings exactly the original's rows."""
    assert {row.prefix for row in catalog.libraries_for(capabilities)} == libraries
    assert {row.name for row in catalog.binaries_for(capabilities)} == binaries
    assert {row.name for row in catalog.control_nodes_for(capabilities)} == nodes | {"nvidiactl"}
    assert {row.name for row in catalog.sockets_for(capabilities)} == sockets
    assert [row.directory for row in catalog.firmware_for(capabilities)] == ["/lib/firmware/nvidia"]


def test_compat32_adds_a_word_size_only() -> None:
    """compat32 chooses no library of its own, it doubles the others."""
    assert catalog.word_sizes_for(("compute",)) == (64,)
    assert catalog.word_sizes_for(("compat32", "compute")) == (64, 32)
    assert catalog.libraries_for(("compat32", "compute")) == catalog.libraries_for(("compute",))


def test_every_row_has_a_reason_and_is_unique() -> None:
    """A row is one thing, tells why it is there, and belongs to known capabilities."""
    tables: list[list[tuple[str, str, tuple[str, ...]]]] = [
        [(row.prefix, row.reason, row.capabilities) for row in catalog.LIBRARIES],
        [(row.name, row.reason, row.capabilities) for row in catalog.BINARIES],
        [(row.name, row.reason, row.capabilities) for row in catalog.SOCKETS],
        [(row.name, row.reason, row.capabilities) for row in catalog.CONTROL_NODES],
        [(row.name, row.reason, row.capabilities) for row in catalog.CONFIGURATION_FILES],
        [(row.link, row.reason, ()) for row in catalog.SYMLINKS],
    ]
    for table in tables:
        names = [name for name, _, _ in table]
        assert len(names) == len(set(names))
        assert all(reason for _, reason, _ in table)
        assert {one for _, _, several in table for one in several} <= set(DRIVER_CAPABILITIES)


def test_library_prefixes_end_with_so() -> None:
    """Discovery finds a row by the part of a name up to `.so`, so each prefix ends there, and none starts another."""
    prefixes = [row.prefix for row in catalog.LIBRARIES]
    assert all(prefix.endswith(".so") and prefix.count(".so") == 1 for prefix in prefixes)
    assert not [(one, other) for one in prefixes for other in prefixes if one != other and other.startswith(one)]
    assert {row.beside for row in catalog.SYMLINKS} | set(catalog.WITNESS_LIBRARIES) <= set(prefixes)


@pytest.mark.parametrize(
    ("sonames", "links"),
    [
        ((), []),
        (("libcuda.so.1",), ["libcuda.so"]),
        (("libcudadebugger.so.1", "libnvidia-ml.so.1"), []),
        (
            ("libcuda.so.1", "libGLX_nvidia.so.0", "libnvidia-opticalflow.so.1"),
            ["libcuda.so", "libGLX_indirect.so.0", "libnvidia-opticalflow.so"],
        ),
    ],
)
def test_symlinks_follow_their_library(sonames: tuple[str, ...], links: list[str]) -> None:
    """A link is made only where the library is that it stands beside."""
    assert [row.link for row in catalog.symlinks_for(sonames)] == links


def test_library_row() -> None:
    """A SONAME leads back to the reason why it is there."""
    row = catalog.library_row("libnvidia-pkcs11-openssl3.so.570.133.20")
    assert row is not None
    assert row.prefix == "libnvidia-pkcs11-openssl3.so"
    assert catalog.library_row("libGL.so.1") is None


@pytest.mark.parametrize(
    ("majors", "major"),
    [
        ((("nvidia", 195), ("nvidia-modeset", 195)), 195),
        ((("nvidia-frontend", 240),), 240),
        ((("nvidia-frontend", 240), ("nvidia", 241)), 241),
        ((), 195),
    ],
)
def test_major_of_gpus(majors: tuple[tuple[str, int], ...], major: int) -> None:
    """/proc/devices decides; drivers without an entry of either name have the fixed number."""
    assert catalog.major_of(catalog.GPU_CLASSES, majors) == major


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/dev/nvidia3", "nvidia-modprobe -c 3"),
        ("/dev/nvidiactl", "nvidia-modprobe -c 255"),
        ("/dev/nvidia-uvm-tools", "nvidia-modprobe -u -c 0"),
        ("/dev/nvidia-modeset", "nvidia-modprobe -m"),
        ("/dev/dri/card0", "nvidia-smi"),
    ],
)
def test_node_remedy(path: str, command: str) -> None:
    """Every missing node has a command that makes it."""
    assert catalog.node_remedy(path) == command
