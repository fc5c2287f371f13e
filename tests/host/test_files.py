"""Programs, firmware, sockets and configuration: where they are looked for, and what does not count."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvinject.core import catalog
from nvinject.core.model import HostFile
from nvinject.host import files
from nvinject.host.root import Root

from .machine import VERSION, HostTree, give, write

SMI = catalog.binaries_for(("utility",))[:1]


@pytest.mark.parametrize(
    ("present", "search_path", "found"),
    [
        (["/opt/bin/nvidia-smi", "/usr/bin/nvidia-smi"], "/opt/bin:/usr/bin", "/opt/bin/nvidia-smi"),
        (["/opt/bin/nvidia-smi", "/usr/bin/nvidia-smi"], "/usr/bin:/opt/bin", "/usr/bin/nvidia-smi"),
        (["/usr/bin/nvidia-smi"], "", "/usr/bin/nvidia-smi"),
        (["/usr/bin/nvidia-smi"], "relative:.::/", "/usr/bin/nvidia-smi"),
        (["/nvidia-smi"], "/", "/nvidia-smi"),
        (["/usr/lib/nvidia/current/nvidia-smi"], "/usr/bin", "/usr/lib/nvidia/current/nvidia-smi"),
        (["/usr/lib/nvidia/tesla-470/nvidia-smi"], "/usr/bin", "/usr/lib/nvidia/tesla-470/nvidia-smi"),
        (["/run/current-system/sw/bin/nvidia-smi"], "/usr/bin", "/run/current-system/sw/bin/nvidia-smi"),
        (["/opt/bin/nvidia-smi"], "/usr/bin", ""),
        (["/usr/bin/nvidia-smi/folder"], "/usr/bin", ""),
    ],
)
def test_binaries(tree: HostTree, present: list[str], search_path: str, found: str) -> None:
    """The first directory of PATH with a regular file wins; the usual directories come after PATH."""
    for path in present:
        tree.write(path)
    with Root(str(tree.root)) as root:
        expected = (HostFile(name="nvidia-smi", path=found),) if found else ()
        assert files.find_binaries(root, SMI, search_path) == expected


def test_binary_behind_links(tree: HostTree) -> None:
    """The path is that of the file at the end of all links, inside the driver root."""
    tree.write("/usr/lib/nvidia/current/nvidia-smi")
    tree.link("/etc/alternatives/nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
    tree.link("/usr/bin/nvidia-smi", "/etc/alternatives/nvidia-smi")
    with Root(str(tree.root)) as root:
        found = files.find_binaries(root, SMI, "/usr/bin")
    assert found == (HostFile(name="nvidia-smi", path="/usr/lib/nvidia/current/nvidia-smi"),)


def test_a_directory_of_path_that_is_closed_is_passed_over(tree: HostTree) -> None:
    """As in a shell: what this user may not look into is no reason to fail (root's PATH in an ordinary user's hook)."""
    tree.write("/private/bin/nvidia-smi")
    tree.write("/usr/bin/nvidia-smi")
    (tree.root / "private").chmod(0)
    with Root(str(tree.root)) as root, as_ordinary_user():
        found = files.find_binaries(root, SMI, "/private/bin:/usr/bin")
    (tree.root / "private").chmod(0o755)  # or else an ordinary user's pytest cannot remove it
    assert found == (HostFile(name="nvidia-smi", path="/usr/bin/nvidia-smi"),)


@contextlib.contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Give up the rights of root for a while, where we have them."""
    before = os.geteuid()
    with contextlib.suppress(PermissionError):  # then we have none
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_firmware(tree: HostTree) -> None:
    """Only the driver's version and the catalogue's names count."""
    for version in (VERSION, "1.2"):
        for name in ("gsp_ga10x.bin", "gsp.bin", "gsp.txt", "other.bin"):
            tree.write(f"/usr/lib/firmware/nvidia/{version}/{name}")
    tree.link("/lib", "usr/lib")
    with Root(str(tree.root)) as root:
        found = files.find_firmware(root, catalog.FIRMWARE, VERSION)
        assert files.find_firmware(root, catalog.FIRMWARE, "9.9") == ()
    assert [(file.name, file.path) for file in found] == [
        (name, f"/usr/lib/firmware/nvidia/{VERSION}/{name}") for name in ("gsp.bin", "gsp_ga10x.bin")
    ]


def test_sockets(tree: HostTree) -> None:
    """/run comes before /var/run, links are followed, a file is no socket, and the MPS pipes are a folder."""
    tree.add_socket("/run/nvidia-persistenced/socket")
    tree.link("/var/run", "/run")
    tree.write("/run/nvidia-fabricmanager/socket")
    (tree.root / "tmp/nvidia-mps").mkdir(parents=True)
    with Root(str(tree.root)) as root:
        found, notes = files.find_sockets(root, catalog.SOCKETS)
    assert [(file.name, file.path) for file in found] == [
        ("nvidia-persistenced", "/run/nvidia-persistenced/socket"),
        ("nvidia-mps", "/tmp/nvidia-mps"),
    ]
    assert notes == ()


def test_socket_in_var_run(tree: HostTree) -> None:
    """Where /var/run is a folder of its own the socket is found there."""
    tree.add_socket("/var/run/nvidia-persistenced/socket")
    with Root(str(tree.root)) as root:
        found, _ = files.find_sockets(root, catalog.SOCKETS)
    assert found == (HostFile(name="nvidia-persistenced", path="/var/run/nvidia-persistenced/socket"),)


def test_configured_mps_directory(tree: HostTree) -> None:
    """CUDA_MPS_PIPE_DIRECTORY replaces the usual folder; a relative one does not count."""
    (tree.root / "tmp/nvidia-mps").mkdir(parents=True)
    (tree.root / "run/mps").mkdir(parents=True)
    named = catalog.daemon_directories({"CUDA_MPS_PIPE_DIRECTORY": "/run/mps", "CUDA_MPS_LOG_DIRECTORY": "log"})
    relative = catalog.daemon_directories({"CUDA_MPS_PIPE_DIRECTORY": "run/mps"})
    with Root(str(tree.root)) as root:
        chosen, _ = files.find_sockets(root, catalog.SOCKETS, named)
        ignored, _ = files.find_sockets(root, catalog.SOCKETS, relative)
    assert [file.path for file in chosen] == ["/run/mps"]
    assert [file.path for file in ignored] == ["/tmp/nvidia-mps"]


def test_the_logs_of_a_daemon_come_with_its_pipes(tree: HostTree) -> None:
    (tree.root / "var/log/nvidia-mps").mkdir(parents=True)
    with Root(str(tree.root)) as root:
        assert files.find_sockets(root, catalog.SOCKETS)[0] == ()
        (tree.root / "tmp/nvidia-mps").mkdir(parents=True)
        found, _ = files.find_sockets(root, catalog.SOCKETS)
    assert [file.path for file in found] == ["/tmp/nvidia-mps", "/var/log/nvidia-mps"]


def test_configuration(tree: HostTree) -> None:
    """/etc comes before the data directories; the driver root itself comes last."""
    tree.write("/etc/OpenCL/vendors/nvidia.icd")
    tree.write("/usr/share/vulkan/icd.d/nvidia_icd.json")
    tree.write("/etc/vulkan/icd.d/nvidia_icd.json")
    tree.write("/vulkan/implicit_layer.d/nvidia_layers.json")
    with Root(str(tree.root)) as root:
        found = files.find_configuration(root, catalog.CONFIGURATION_FILES)
    assert [file.path for file in found] == [
        "/etc/vulkan/icd.d/nvidia_icd.json",
        "/vulkan/implicit_layer.d/nvidia_layers.json",
        "/etc/OpenCL/vendors/nvidia.icd",
    ]


def test_named_directories_come_before_the_usual_ones(tree: HostTree) -> None:
    """For files of dispatchers; where a name is not there it is looked for as usual."""
    tree.write("/etc/vulkan/icd.d/nvidia_icd.json")
    tree.write("/etc/OpenCL/vendors/nvidia.icd")
    tree.write("/opt/driver/vulkan/icd.d/nvidia_icd.json")
    with Root(str(tree.root)) as root:
        found = files.find_configuration(root, catalog.CONFIGURATION_FILES, ("/opt/driver",))
    assert [file.path for file in found] == [
        "/opt/driver/vulkan/icd.d/nvidia_icd.json",
        "/etc/OpenCL/vendors/nvidia.icd",
    ]


FIRMWARE_PLACES = [
    (["/lib/firmware/nvidia", "/firmware/nvidia"], "/lib/firmware/nvidia"),
    (["/run/current-system/firmware/nvidia"], "/run/current-system/firmware/nvidia"),
    (["/firmware/nvidia"], "/firmware/nvidia"),
    (["/opt/nvidia/nvidia"], "/opt/nvidia/nvidia"),  # what the kernel was told
    ([f"/lib/firmware/updates/{os.uname().release}/nvidia", "/lib/firmware/updates/nvidia"], "with release"),
    (["/lib/firmware/updates/nvidia"], "/lib/firmware/updates/nvidia"),
    (["/srv/nvidia"], ""),
]


@pytest.mark.parametrize(("places", "found"), FIRMWARE_PLACES)
def test_firmware_of_other_systems(tree: HostTree, tmp_path: Path, places: list[str], found: str) -> None:
    """The usual folder, those of other systems, then those of the kernel, its own path as the driver root shows it."""
    for place in places:
        tree.write(f"{place}/{VERSION}/gsp_ga10x.bin")
    write(tmp_path, "/sys/module/firmware_class/parameters/path", f"{tree.root}/opt/nvidia\n")
    expected = f"{places[0] if found == 'with release' else found}/{VERSION}/gsp_ga10x.bin"
    with Root(str(tree.root)) as root:
        firmware = files.find_firmware(root, catalog.FIRMWARE, VERSION, str(tmp_path / "sys"))
        assert [file.path for file in firmware] == ([expected] if found else [])


KERNEL_PATHS = [
    ("{root}/firmware\n", "/firmware"),
    ("{root}2/firmware\n", "{root}2/firmware"),
    ("/var/lib/nvidia/firmware", "/var/lib/nvidia/firmware"),
    ("\n", ""),
    ("firmware\n", ""),
]


@pytest.mark.parametrize(("text", "first"), KERNEL_PATHS)
def test_the_path_that_the_kernel_was_told(tree: HostTree, tmp_path: Path, text: str, first: str) -> None:
    """At a component boundary below the driver root; a path that is none is left out."""
    write(tmp_path, "/sys/module/firmware_class/parameters/path", text.replace("{root}", str(tree.root)))
    with Root(str(tree.root)) as root:
        found = files.kernel_firmware_directories(root, str(tmp_path / "sys"))
        assert len(found) == (4 if first else 3)
        assert not first or found[0] == first.replace("{root}", str(tree.root))
        assert len(files.kernel_firmware_directories(root, "/no/such/folder")) == 3


@pytest.mark.parametrize(
    "place", ["/run/opengl-driver/share/vulkan/icd.d", "/vulkan/icd.d", "/share/vulkan/icd.d", "/etc/vulkan/icd.d"]
)
def test_configuration_of_other_systems(tree: HostTree, place: str) -> None:
    """NixOS has such files behind one link, Container-Optimized OS in its flat folder."""
    tree.write(f"{place}/nvidia_icd.json")
    with Root(str(tree.root)) as root:
        found = files.find_configuration(root, catalog.CONFIGURATION_FILES)
    assert [file.path for file in found] == [f"{place}/nvidia_icd.json"]


def test_a_pipe_directory_that_is_a_link_is_not_followed(tree: HostTree) -> None:
    """Below /tmp anybody can make one, to have containers shown whatever they like."""
    tree.write("/etc/secret", "")
    tree.link("/tmp/nvidia-mps", "/etc")
    with Root(str(tree.root)) as root:
        found, notes = files.find_sockets(root, catalog.sockets_for(("compute",)))
    assert found == ()
    assert notes == (f"{tree.root}/tmp/nvidia-mps is a link and not followed (pipes of the multi-process service)",)


EXCHANGING = """
import ctypes, sys
rename = ctypes.CDLL(None, use_errno=True).renameat2
exchange = -100, b"own", -100, b"nvidia-mps", 2  # AT_FDCWD, RENAME_EXCHANGE
if rename(*exchange):
    sys.exit(ctypes.get_errno())
print(flush=True)
while True:
    rename(*exchange)
"""


def test_a_link_that_is_exchanged_meanwhile_is_not_followed(tree: HostTree) -> None:
    """A folder in its place after the first look would make what the link had led to seem harmless."""
    tree.write("/etc/secret", "")
    tree.link("/tmp/nvidia-mps", "/etc")
    (tree.root / "tmp/own").mkdir()
    paths: set[str] = set()
    exchanging = subprocess.Popen([sys.executable, "-c", EXCHANGING], cwd=tree.root / "tmp", stdout=subprocess.PIPE)
    try:
        assert exchanging.stdout is not None
        if not exchanging.stdout.readline():
            pytest.skip(f"names cannot be exchanged here: {os.strerror(exchanging.wait())}")
        with Root(str(tree.root)) as root:
            for _ in range(20000):
                found, _ = files.find_sockets(root, catalog.sockets_for(("compute",)))
                paths.update(file.path for file in found)
    finally:
        exchanging.kill()
        exchanging.communicate()
    assert paths <= {"/tmp/nvidia-mps", "/tmp/own"}


@pytest.mark.parametrize(("owner", "named", "shown"), [(0, False, True), (1000, False, False), (1000, True, True)])
def test_a_pipe_directory_of_another_user_has_to_be_named(
    tree: HostTree, owner: int, *, named: bool, shown: bool
) -> None:
    """Anybody can make one below /tmp, and put a link in its place between our look and the runtime's mount."""
    tree.write("/tmp/nvidia-mps/control", "")
    give(tree.root / "tmp/nvidia-mps", owner)
    directories = ((catalog.MPS_PIPE_VARIABLE, "/tmp/nvidia-mps"),) if named else ()
    with Root(str(tree.root)) as root:
        found, notes = files.find_sockets(root, catalog.sockets_for(("compute",)), directories)
    assert [file.path for file in found] == (["/tmp/nvidia-mps"] if shown else [])
    wanted = (
        f"{tree.root}/tmp/nvidia-mps belongs to user 1000 and is not shown (pipes of the multi-process service); "
        "config.toml, or CUDA_MPS_PIPE_DIRECTORY of the engine, can name it"
    )
    assert notes == (() if shown else (wanted,))
