"""Tegra systems: how they are recognised, what their lists lead to, and which devices there are."""

from pathlib import Path

import pytest

from nvinject.core.model import HostLink
from nvinject.core.policy import Policy
from nvinject.errors import HostError
from nvinject.host import platforms, tegra
from nvinject.host.nvml import NvmlAnswer, NvmlGpu
from nvinject.host.root import Root
from nvinject.host.tegra import Tegra, Wanted
from tests.formats.elfbuilder import build_elf

from .machine import HostTree

DIRECTORY = "/etc/nvidia-container-runtime/host-files-for-container.d"
LIBRARIES = "/usr/lib/aarch64-linux-gnu/nvidia"
ORIN = NvmlGpu(index=0, minor=0, bus_id="", uuid="7d1c-orin", brand=0, architecture="8.7", name="Orin (nvgpu)")
THOR = ORIN.replace(bus_id="00000000:01:00.0", uuid="GPU-thor", architecture="11.0", name="NVIDIA Thor")
RTX = NvmlGpu(
    index=1, minor=1, bus_id="00000005:09:00.0", uuid="GPU-rtx", brand=13, architecture="8.9", name="NVIDIA RTX 6000"
)


def answer(*gpus: NvmlGpu) -> NvmlAnswer:
    return NvmlAnswer(driver_version="540.4.0", cuda_version="12.6", gpus=gpus)


@pytest.fixture
def orin(tree: HostTree) -> HostTree:
    """Return a small Tegra system: nodes, a library with its links, a folder, and lists that name them."""
    tree.write("/etc/nv_tegra_release", "# R36 (release), REVISION: 4.3\n# KERNEL_VARIANT: oot\n")
    for number, name in enumerate(("nvhost-gpu", "nvgpu/igpu0/ctrl", "nvgpu/igpu0/power", "nvmap", "nvidia0")):
        tree.add_node(f"/dev/{name}", 505, number)
    tree.write(f"{LIBRARIES}/libcuda.so.1.1", build_elf(soname="libcuda.so.1", machine=62))
    tree.link(f"{LIBRARIES}/libcuda.so.1", "libcuda.so.1.1")
    tree.link(f"{LIBRARIES}/libcuda.so", "libcuda.so.1")
    tree.write("/usr/share/egl/10_nvidia.json", "{}")
    tree.write("/usr/lib/firmware/tegra23x/nvdec.fw", "firmware")
    write_list(tree, "devices.csv", "dev, /dev/nvhost-gpu", "dev, /dev/nvgpu/igpu0/*", "dev, /dev/nvmap")
    write_list(tree, "drivers.csv", f"lib, {LIBRARIES}/libcuda.so.1.1")
    return tree


def write_list(tree: HostTree, name: str, *lines: str) -> None:
    tree.write(f"{DIRECTORY}/{name}", "".join(f"{line}\n" for line in lines))


def policy(tree: HostTree, **changes: object) -> Policy:
    base = tree.policy
    found = base.replace(roots=base.roots.replace(dev=str(tree.root), sys=str(tree.base / "sys")))
    (tree.base / "sys").mkdir(exist_ok=True)
    return found.replace(**changes)


def system(tree: HostTree, known: NvmlAnswer | None = None, **changes: object) -> Tegra:
    return Tegra(policy(tree, **changes), answer=known)


# Recognition

# release, family, whether it is a Tegra system
SIGNS = [
    ("", None, False),
    ("", "Tegra\n", True),
    ("", "tegra234", True),
    ("", "i.MX8\n", False),
    ("", "not Tegra", False),
    ("# R36\n", None, True),
]


@pytest.mark.parametrize(("release", "family", "expected"), SIGNS)
def test_signs(tree: HostTree, release: str, family: str | None, *, expected: bool) -> None:
    """Two files tell, each below its root."""
    roots = policy(tree).roots
    if release:
        tree.write("/etc/nv_tegra_release", release)
    if family is not None:
        place = tree.base / "sys/devices/soc0"
        place.mkdir(parents=True)
        (place / "family").write_text(family)
    assert platforms.says_tegra(roots) is expected


DISCRETE: list[tuple[tuple[NvmlGpu, ...], bool]] = [
    ((), False),
    ((ORIN,), False),
    ((THOR,), False),
    ((ORIN, RTX), False),
    ((RTX,), True),
    ((RTX, RTX), True),
]


@pytest.mark.parametrize(("gpus", "expected"), DISCRETE)
def test_only_discrete_gpus_are_no_platform(gpus: tuple[NvmlGpu, ...], *, expected: bool) -> None:
    """A Tegra system whose GPUs are all discrete has a driver like any other's."""
    assert tegra.all_discrete(gpus) is expected


@pytest.mark.parametrize("library", [False, True])
def test_a_system_without_a_working_nvml_is_recognised(orin: HostTree, *, library: bool) -> None:
    if library:
        orin.write(f"{LIBRARIES}/libnvidia-ml.so.1", "no library at all")
    found = platforms.find_platform(policy(orin))
    assert isinstance(found, Tegra)
    assert (found.problem is not None) is library


@pytest.mark.parametrize(("mode", "expected"), [("auto", True), ("csv", True), ("jit", False), ("legacy", False)])
def test_the_mode_chooses(orin: HostTree, mode: str, *, expected: bool) -> None:
    assert (platforms.choose_platform(policy(orin, mode=mode)) is not None) is expected


def test_mode_csv_holds_on_any_host(tree: HostTree) -> None:
    """But such a host has no lists."""
    found = platforms.choose_platform(policy(tree, mode="csv"))
    assert isinstance(found, Tegra)
    assert found.evidence() == "nvidia-container-runtime.mode is csv"
    with pytest.raises(HostError, match=f"there is no mount specification for containers: {tree.root}{DIRECTORY}/dev"):
        found.discover()


def test_the_evidence_is_the_release(orin: HostTree) -> None:
    assert system(orin).evidence() == "/etc/nv_tegra_release: R36 (release), REVISION: 4.3"


# Lists

# files beside the usual two, every_list, the paths that lead to something besides
LISTS: list[tuple[dict[str, str], bool, bool]] = [
    ({"l4t.csv": "lib, /usr/share/egl/10_nvidia.json"}, False, True),
    ({"more.csv": "lib, /usr/share/egl/10_nvidia.json"}, False, False),
    ({"more.csv": "lib, /usr/share/egl/10_nvidia.json"}, True, True),
    ({"MORE.CSV": "lib, /usr/share/egl/10_nvidia.json"}, True, True),
    ({".csv": "lib, /usr/share/egl/10_nvidia.json"}, True, False),
    ({"more.csv.bak": "lib, /usr/share/egl/10_nvidia.json"}, True, False),
]


@pytest.mark.parametrize(("files", "every", "expected"), LISTS)
def test_which_lists_count(orin: HostTree, files: dict[str, str], *, every: bool, expected: bool) -> None:
    """The usual three, or all that are there when the image says so."""
    for name, text in files.items():
        write_list(orin, name, text)
    listing = system(orin).discover(Wanted(every_list=every)).listing
    assert listing is not None
    assert any(file.path == "/usr/share/egl/10_nvidia.json" for file in listing.files) is expected


def test_the_directory_is_configured(orin: HostTree, tmp_path: Path) -> None:
    """A folder of the driver root comes before one of the host."""
    other = tmp_path / "lists"
    other.mkdir()
    (other / "devices.csv").write_text("dev, /dev/nvidia0\n")
    found = system(orin, csv_mount_spec_path=str(other)).discover()
    assert [node.path for node in found.gpus[0].more_nodes] == ["/dev/nvidia0"]
    orin.write("/lists/devices.csv", "dev, /dev/nvmap\n")
    found = system(orin, csv_mount_spec_path="/lists").discover()
    assert [node.path for node in found.gpus[0].more_nodes] == ["/dev/nvmap"]


def test_faulty_lines_name_file_and_line(orin: HostTree) -> None:
    """They are skipped, and told."""
    write_list(orin, "l4t.csv", "# comment", "lib /no/comma", "libs, /x")
    warnings = system(orin).discover().warnings
    place = f"{orin.root}{DIRECTORY}/l4t.csv"
    assert f"{place}, line 2 is skipped: no comma in 'lib /no/comma', expected TYPE, PATH" in warnings
    assert any(warning.startswith(f"{place}, line 3 is skipped: unknown type 'libs'") for warning in warnings)


def test_what_this_board_lacks_is_a_note(orin: HostTree) -> None:
    write_list(orin, "l4t.csv", *(f"lib, /no/such/{number}" for number in range(5)))
    (note,) = system(orin).discover().notes
    assert note.startswith("listed and not on this machine: /no/such/0 (l4t.csv, line 1), /no/such/1")
    assert note.endswith("and 2 more")


def test_unreadable_list(orin: HostTree) -> None:
    (orin.root / DIRECTORY.lstrip("/") / "l4t.csv").mkdir()
    with pytest.raises(HostError, match=r"cannot read .*l4t\.csv: Is a directory"):
        system(orin).discover()


def test_without_any_node(orin: HostTree) -> None:
    write_list(orin, "devices.csv", "dev, /dev/none", "dev, /dev/zilch")
    with pytest.raises(
        HostError, match="none of the device nodes in the mount specifications exists: /dev/none, /dev/z"
    ):
        system(orin).discover()


# Entries: lines of l4t.csv, and what they add: files, libraries by SONAME, links
ENTRIES: list[tuple[str, list[str], list[str], list[tuple[str, str]]]] = [
    ("lib, /usr/share/egl/10_nvidia.json", ["/usr/share/egl/10_nvidia.json"], [], []),
    ("lib, /usr/share/egl/*.json", ["/usr/share/egl/10_nvidia.json"], [], []),
    ("lib, /usr/share/egl", [], [], []),
    ("dir, /usr/lib/firmware/tegra23x", ["/usr/lib/firmware/tegra23x"], [], []),
    ("dir, /lib/firmware/tegra23x", ["/usr/lib/firmware/tegra23x"], [], []),
    ("dir, /usr/share/egl/10_nvidia.json", [], [], []),
    ("lib, /usr/lib/link.json", ["/usr/share/egl/10_nvidia.json"], [], []),
    (
        "sym, /usr/lib/link.json",
        ["/usr/share/egl/10_nvidia.json"],
        [],
        [("/usr/lib/link.json", "../share/egl/10_nvidia.json")],
    ),
    (
        "sym, /usr/lib/chain",
        ["/usr/share/egl/10_nvidia.json"],
        [],
        [("/usr/lib/chain", "/usr/lib/link.json"), ("/usr/lib/link.json", "../share/egl/10_nvidia.json")],
    ),
    (
        "sym, /lib/chain",
        ["/usr/share/egl/10_nvidia.json"],
        [],
        [("/lib/chain", "/usr/lib/link.json"), ("/usr/lib/link.json", "../share/egl/10_nvidia.json")],
    ),
    ("sym, /usr/lib/loop", [], [], []),
    ("sym, /usr/lib/dangling", [], [], []),
    ("sym, /usr/share/egl/10_nvidia.json", ["/usr/share/egl/10_nvidia.json"], [], []),
    ("sym, /usr/lib/escape", [], [], []),
    ("lib, /usr/lib/other.so", ["/usr/lib/other.so"], [], []),
    ("lib, /usr/lib/text.so", ["/usr/lib/text.so"], [], []),
    ("lib, /usr/lib/libplain.so", [], ["libplain.so"], []),
    ("dev, nvidia0", [], [], []),
]


@pytest.mark.parametrize(("line", "files", "sonames", "links"), ENTRIES, ids=[row[0] for row in ENTRIES])
def test_entries(orin: HostTree, line: str, files: list[str], sonames: list[str], links: list[tuple[str, str]]) -> None:
    """What an entry leads to, nothing outside of the driver root, and the release of every system."""
    orin.link("/lib", "usr/lib")
    orin.link("/usr/lib/link.json", "../share/egl/10_nvidia.json")
    orin.link("/usr/lib/chain", "/usr/lib/link.json")
    orin.link("/usr/lib/loop", "loop2")
    orin.link("/usr/lib/loop2", "loop")
    orin.link("/usr/lib/dangling", "nothing")
    orin.link("/usr/lib/escape", f"{'../' * 20}etc/passwd")
    orin.write("/usr/lib/other.so", build_elf(soname="other.so", machine=183))
    orin.write("/usr/lib/text.so", "GROUP ( libc.so.6 )\n")
    orin.write("/usr/lib/libplain.so", build_elf(soname="", machine=62))
    write_list(orin, "l4t.csv", line)
    found = system(orin).discover()
    assert found.listing is not None
    assert [file.path for file in found.listing.files] == [*files, "/etc/nv_tegra_release"]
    assert [library.soname for library in found.driver.libraries] == ["libcuda.so.1", *sonames]
    assert all(library.in_place for library in found.driver.libraries)
    assert found.listing.links == tuple(HostLink(path=path, target=target) for path, target in links)
    assert ("/dev/nvidia0" in {node.path for node in found.gpus[0].more_nodes}) is line.startswith("dev")


IGNORED = [((), 2), (("**/chain",), 0), (("/usr/lib/ch*",), 0), (("chain",), 2), (("**/link.json",), 2)]


@pytest.mark.parametrize(("patterns", "links"), IGNORED)
def test_ignored_links(orin: HostTree, patterns: tuple[str, ...], links: int) -> None:
    """A pattern leaves out entries, with all that they lead over; what an ignored one leads to is not missed."""
    orin.link("/usr/lib/link.json", "../share/egl/10_nvidia.json")
    orin.link("/usr/lib/chain", "link.json")
    write_list(orin, "l4t.csv", "sym, /usr/lib/chain")
    found = system(orin).discover(Wanted(ignored=patterns))
    assert found.listing is not None
    assert (len(found.listing.links), found.notes) == (links, ())


def test_library_directories(orin: HostTree) -> None:
    """Entries are looked for below other folders as well."""
    orin.write("/opt/l4t/libextra.so.2", build_elf(soname="libextra.so.2", machine=62))
    write_list(orin, "l4t.csv", "lib, libextra.so.2")
    assert system(orin).discover().notes != ()
    found = system(orin).discover(Wanted(library_directories=("/opt/l4t/",)))
    assert "/opt/l4t/libextra.so.2" in {library.path for library in found.driver.libraries}


def test_given_files(orin: HostTree, tmp_path: Path) -> None:
    """In place of the usual ones; one that is missing is a note as long as another is there."""
    path = tmp_path / "mine.csv"
    path.write_text("dev, /dev/nvmap\n")
    found = system(orin).discover(Wanted(files=(str(path), "/no/such.csv")))
    assert [node.path for node in found.gpus[0].more_nodes] == ["/dev/nvmap"]
    assert found.notes == ("the mount specification /no/such.csv does not exist",)
    with pytest.raises(HostError, match=r"/no/such\.csv"):
        system(orin).discover(Wanted(files=("/no/such.csv",)))


# Devices

SINGLE_NODES = ["/dev/nvhost-gpu", "/dev/nvgpu/igpu0/ctrl", "/dev/nvgpu/igpu0/power", "/dev/nvmap"]


def test_a_single_device_has_every_node(orin: HostTree) -> None:
    (gpu,) = system(orin, answer(ORIN)).discover().gpus
    assert (gpu.index, gpu.uuid, gpu.model, gpu.architecture) == (0, "7d1c-orin", "Orin (nvgpu)", "8.7")
    assert [node.path for node in gpu.more_nodes] == SINGLE_NODES
    assert gpu.node is None


def test_a_single_device_without_nvml(orin: HostTree) -> None:
    path = orin.proc / "device-tree"
    path.mkdir()
    (path / "model").write_bytes(b"NVIDIA Jetson AGX Orin Developer Kit\0")
    found = system(orin).discover()
    assert [(gpu.index, gpu.uuid, gpu.model) for gpu in found.gpus] == [(0, "", "NVIDIA Jetson AGX Orin Developer Kit")]
    assert (found.driver.version, found.driver.cuda_version) == ("", None)
    assert found.listing is not None
    assert found.listing.compat_directory == ""


def add_discrete(tree: HostTree) -> None:
    for name, minor in (("nvidia1", 1), ("nvidia2", 2), ("nvidiactl", 255), ("nvidia-modeset", 254)):
        tree.add_node(f"/dev/{name}", 195, minor)
    write_list(
        tree, "devices.csv", "dev, /dev/nvhost-gpu", "dev, /dev/nvmap", "dev, /dev/nvidia[0-9]", "dev, /dev/nvidiactl"
    )


def test_an_integrated_and_a_discrete_gpu(orin: HostTree) -> None:
    """Each has its own nodes, and the ones that both need."""
    add_discrete(orin)
    first, second = system(orin, answer(ORIN, RTX)).discover().gpus
    assert [node.path for node in first.more_nodes] == [
        *("/dev/nvhost-gpu", "/dev/nvmap", "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia2")
    ]
    assert second.node is not None
    assert second.node.path == "/dev/nvidia1"
    assert [node.path for node in second.more_nodes] == [
        *("/dev/nvidia-modeset", "/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvmap")
    ]
    assert (second.bus_id, second.brand) == ("0005:09:00.0", "NvidiaRTX")


def test_a_discrete_gpu_without_its_node(orin: HostTree) -> None:
    """That is a fault of this GPU alone."""
    add_discrete(orin)
    (orin.root / "dev/nvidia1").unlink()
    first, second = system(orin, answer(ORIN, RTX)).discover().gpus
    assert first.more_nodes
    assert (second.node, second.more_nodes) == (None, ())
    assert second.node_fault == f"{orin.root}/dev/nvidia1 is missing"


TOGETHER: list[tuple[NvmlAnswer, dict[str, object], bool]] = [
    (answer(ORIN, RTX), {}, False),
    (answer(ORIN, RTX), {"jit_feature_flags": ("disable-multiple-csv-devices",)}, False),
    (answer(RTX.replace(index=0), ORIN.replace(index=1)), {}, True),
    (answer(ORIN, RTX, RTX.replace(index=2)), {}, True),
    (answer(ORIN, ORIN.replace(index=1)), {}, True),
]


@pytest.mark.parametrize(("known", "changes", "noted"), TOGETHER)
def test_gpus_that_are_served_as_one(
    orin: HostTree, known: NvmlAnswer, changes: dict[str, object], *, noted: bool
) -> None:
    """What cannot be told apart is one device, and that is said unless it was asked for."""
    add_discrete(orin)
    found = system(orin, known, **changes).discover()
    assert len(found.gpus) == (1 if noted or changes else 2)
    assert any("served as one" in note for note in found.notes) is noted
    if len(found.gpus) == 1:
        assert "/dev/nvidia1" in {node.path for node in found.gpus[0].more_nodes}


INTEGRATED = [(ORIN, True), (THOR, True), (RTX, False), (THOR.replace(bus_id="0000:02:00.0"), False)]


@pytest.mark.parametrize(("gpu", "expected"), INTEGRATED)
def test_is_integrated(gpu: NvmlGpu, *, expected: bool) -> None:
    assert tegra.is_integrated(gpu) is expected


# NVML's answer, what is asked for and configured, where images have CUDA libraries
COMPAT: list[tuple[NvmlAnswer | None, str, str, str]] = [
    (None, "", "", ""),
    (answer(ORIN), "", "", "/usr/local/cuda/compat_orin"),
    (answer(ORIN), "", "/opt/compat", "/opt/compat"),
    (answer(ORIN), "/mine", "/opt/compat", "/mine"),
    (answer(THOR), "/mine", "/opt/compat", "/usr/local/cuda/compat"),
]


@pytest.mark.parametrize(("known", "wanted", "configured", "expected"), COMPAT)
def test_compat_directory(
    orin: HostTree, known: NvmlAnswer | None, wanted: str, configured: str, expected: str
) -> None:
    listing = system(orin, known, csv_compat_root=configured).discover(Wanted(compat_directory=wanted)).listing
    assert listing is not None
    assert listing.compat_directory == expected


def test_what_nvml_could_not_tell_is_a_note(orin: HostTree) -> None:
    lost = answer(ORIN).replace(lost=("GPU 1: GPU is lost",))
    assert system(orin, lost).discover().notes == ("NVML cannot talk to GPU 1: GPU is lost",)
    broken = Tegra(policy(orin), problem=HostError("NVML fails in nvmlInit: Not Found"))
    assert broken.discover().notes == ("NVML is there but of no use: NVML fails in nvmlInit: Not Found",)


def test_find_library_asks_the_loader_cache_first(tree: HostTree) -> None:
    tree.add_library("libnvidia-ml.so", ".1", version="540.4.0", directory="/opt/nvidia/lib")
    tree.write_cache()
    with Root(str(tree.root)) as root:
        assert tegra.find_library(root, "libnvidia-ml.so.1") == "/opt/nvidia/lib/libnvidia-ml.so.540.4.0"
        assert tegra.find_library(root, "libcuda.so.1") == ""
        tree.write("/usr/lib/libcuda.so.1", "")
        tree.write("/etc/ld.so.cache", "no cache")
        assert tegra.find_library(root, "libcuda.so.1") == "/usr/lib/libcuda.so.1"
