"""The planner: what a request on a host becomes, row by row."""

import pytest

from nvinject.core import catalog
from nvinject.core.model import (
    UNKNOWN_IMAGE,
    CapabilityNode,
    CompatNote,
    ContainerLayout,
    DeviceNode,
    DisplayLink,
    Driver,
    Gpu,
    HostFile,
    HostLink,
    ImexHost,
    Inventory,
    Library,
    Listing,
    MigDevice,
    NodeSet,
)
from nvinject.core.plan import (
    AllowDevice,
    BindDevice,
    BindFile,
    CreateSymlink,
    DecideCompat,
    MakeNode,
    MaskDirectory,
    Operation,
    SetEnvironment,
    UpdateLoaderCache,
    WriteFile,
)
from nvinject.core.planner import needs_nvml, plan, plan_node_set, plan_visible_proc
from nvinject.core.policy import WARN, Features, Policy, Roots
from nvinject.core.request import ContainerRequest
from nvinject.errors import HostError, NvinjectError, RequestError, RequirementError

VERSION = "570.133.20"
LIBRARY_DIRECTORY = "/usr/lib/x86_64-linux-gnu"


def library(name: str, soname: str, bits: int = 64) -> Library:
    folder = LIBRARY_DIRECTORY if bits == 64 else "/usr/lib/i386-linux-gnu"
    return Library(soname=soname, path=f"{folder}/{name}.{VERSION}", bits=bits)


def gpu(index: int, **changes: object) -> Gpu:
    bus_id = f"0000:1{index}:00.0"
    return Gpu(
        index=index,
        minor=index,
        uuid=f"GPU-{index}",
        bus_id=bus_id,
        proc_directory=f"/proc/driver/nvidia/gpus/{bus_id}",
        node=DeviceNode(path=f"/dev/nvidia{index}", major=195, minor=index),
        brand="Nvidia",
        architecture="9.0",
    ).replace(**changes)


SLICE = MigDevice(
    gpu_instance=1,
    compute_instance=0,
    index=0,
    uuid="MIG-1",
    capability_files=(
        "/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access",
        "/proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access",
    ),
    nodes=(
        DeviceNode(path="/dev/nvidia-caps/nvidia-cap12", major=237, minor=12, mode=0o444),
        DeviceNode(path="/dev/nvidia-caps/nvidia-cap13", major=237, minor=13, mode=0o444),
    ),
)

DRIVER = Driver(
    version=VERSION,
    cuda_version="12.8",
    libraries=(
        library("libcuda.so", "libcuda.so.1"),
        library("libnvidia-ml.so", "libnvidia-ml.so.1"),
        library("libnvidia-glcore.so", f"libnvidia-glcore.so.{VERSION}"),
        library("libGLX_nvidia.so", "libGLX_nvidia.so.0"),
        library("libnvidia-encode.so", "libnvidia-encode.so.1"),
        library("libcuda.so", "libcuda.so.1", bits=32),
    ),
    binaries=(
        HostFile(name="nvidia-smi", path="/usr/bin/nvidia-smi"),
        HostFile(name="nvidia-cuda-mps-server", path="/opt/mps/nvidia-cuda-mps-server"),
    ),
    firmware=(HostFile(name="gsp_ga10x.bin", path=f"/usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"),),
    sockets=(HostFile(name="nvidia-persistenced", path="/run/nvidia-persistenced/socket"),),
    configuration=(HostFile(name="vulkan/icd.d/nvidia_icd.json", path="/usr/share/vulkan/icd.d/nvidia_icd.json"),),
    control_nodes=(
        DeviceNode(path="/dev/nvidiactl", major=195, minor=255),
        DeviceNode(path="/dev/nvidia-uvm", major=235, minor=0),
        DeviceNode(path="/dev/nvidia-modeset", major=195, minor=254),
    ),
    proc_files=(("params", "ModifyDeviceFiles: 0\n"), ("version", "NVRM version: …\n")),
)

INVENTORY = Inventory(
    driver=DRIVER,
    roots=Roots(dev="/"),
    gpus=(gpu(0, mig_devices=(SLICE,), mig_capable=True), gpu(1, mig_capable=True)),
    majors=(("nvidia-caps", 237),),
    mig_capabilities=(
        CapabilityNode(name="config", minor=1),
        CapabilityNode(name="monitor", minor=2),
        CapabilityNode(name="gpu0/gi1/access", minor=12),
        CapabilityNode(name="gpu1/gi0/access", minor=138),
    ),
    imex_nodes=(DeviceNode(path="/dev/nvidia-caps-imex-channels/channel0", major=238, minor=0),),
    imex=ImexHost(there=("channel0", "channel9"), obstacle="the driver's parameter ModifyDeviceFiles is 0"),
    node_sets=(
        NodeSet(
            name="gds", nodes=(DeviceNode(path="/dev/nvidia-fs0", major=240, minor=0),), files=("/etc/cufile.json",)
        ),
        NodeSet(name="mofed", searched="/dev/infiniband/uverbs*, /dev/infiniband/rdma_cm"),
    ),
    notes=("a note",),
)
LAYOUT = ContainerLayout(library_directory=LIBRARY_DIRECTORY, library32_directory="/usr/lib/i386-linux-gnu")


def request(devices: str = "all", capabilities: str = "compute utility", **changes: object) -> ContainerRequest:
    return ContainerRequest(
        devices=tuple(devices.split(",")), capabilities=tuple(sorted(capabilities.split()))
    ).replace(**changes)


def operations(
    asked: ContainerRequest,
    inventory: Inventory = INVENTORY,
    layout: ContainerLayout = LAYOUT,
    policy: Policy | None = None,
) -> tuple[Operation, ...]:
    return plan(inventory, asked, policy or Policy(), layout).operations


def targets(found: tuple[Operation, ...]) -> set[str]:
    """Return the names of what a container gets: files and nodes by their last component, links with an arrow."""
    names = set()
    for operation in found:
        if isinstance(operation, BindFile | BindDevice | MaskDirectory):
            names.add(operation.target.rsplit("/", 1)[-1])
        elif isinstance(operation, CreateSymlink):
            names.add(f"{operation.link.rsplit('/', 1)[-1]} -> {operation.target}")
    return names


def rules(found: tuple[Operation, ...]) -> list[str]:
    return [f"{one.major}:{one.minor} {one.access}" for one in found if isinstance(one, AllowDevice)]


BASE = {"nvidia", "gsp_ga10x.bin", "nvidiactl"}
GPUS = {"nvidia0", "nvidia1", "0000:10:00.0", "0000:11:00.0"}
UTILITY = {"nvidia-smi", f"libnvidia-ml.so.{VERSION}", f"libnvidia-ml.so.1 -> libnvidia-ml.so.{VERSION}", "socket"}
COMPUTE_LIBRARIES = {
    f"libcuda.so.{VERSION}",
    f"libcuda.so.1 -> libcuda.so.{VERSION}",
    "libcuda.so -> libcuda.so.1",
    "nvidia-uvm",
}
COMPUTE = COMPUTE_LIBRARIES | {"nvidia-cuda-mps-server"}
VIDEO = COMPUTE_LIBRARIES | {
    f"libnvidia-encode.so.{VERSION}",
    f"libnvidia-encode.so.1 -> libnvidia-encode.so.{VERSION}",
}
GRAPHICS = {
    f"libnvidia-glcore.so.{VERSION}",
    f"libGLX_nvidia.so.{VERSION}",
    f"libGLX_nvidia.so.0 -> libGLX_nvidia.so.{VERSION}",
    f"libGLX_indirect.so.0 -> libGLX_nvidia.so.{VERSION}",
    "nvidia-application-profiles-rc.d",
    "nvidia_icd.json",
}

CAPABILITIES = [
    ("utility", UTILITY),
    ("compute", COMPUTE),
    ("compute utility", COMPUTE | UTILITY),
    ("video", VIDEO),
    ("graphics", GRAPHICS),
    ("display", GRAPHICS | {"nvidia-modeset"}),
    ("ngx", set()),
    ("compat32", set()),
]


@pytest.mark.parametrize(("capabilities", "expected"), CAPABILITIES)
def test_capabilities_choose_files_and_control_nodes(capabilities: str, expected: set[str]) -> None:
    """The catalogue decides which files, links and control nodes a capability brings."""
    slices = {"access", "nvidia-cap12", "nvidia-cap13"}
    assert targets(operations(request(capabilities=capabilities))) == BASE | GPUS | slices | expected


def test_compat32_adds_the_other_word_size_in_its_own_folder() -> None:
    """The same library appears twice, each in the folder for its word size."""
    found = operations(request(capabilities="compat32 compute"))
    folders = {one.target for one in found if isinstance(one, BindFile) and "libcuda" in one.target}
    assert folders == {f"{LIBRARY_DIRECTORY}/libcuda.so.{VERSION}", f"/usr/lib/i386-linux-gnu/libcuda.so.{VERSION}"}
    cache = next(one for one in found if isinstance(one, UpdateLoaderCache))
    assert {known.bits for known in cache.libraries} == {32, 64}


def test_an_image_without_a_folder_for_32_bits_gets_none() -> None:
    """An empty folder in the layout leaves the 32-bit libraries out."""
    found = operations(request(capabilities="compat32 compute"), layout=LAYOUT.replace(library32_directory=""))
    assert not any(isinstance(one, BindFile) and "i386" in one.source for one in found)


DEVICES = [
    ("none", set(), []),
    ("1", {"nvidia1", "0000:11:00.0"}, ["195:1 rw"]),
    ("0", {"nvidia0", "0000:10:00.0"}, ["195:0 rw"]),
    (
        "0:0",
        {"nvidia0", "0000:10:00.0", "access", "nvidia-cap12", "nvidia-cap13"},
        ["195:0 rw", "237:12 rw", "237:13 rw"],
    ),
    (
        "all",
        GPUS | {"access", "nvidia-cap12", "nvidia-cap13"},
        ["195:0 rw", "195:1 rw", "237:12 rw", "237:13 rw"],
    ),
]


@pytest.mark.parametrize(("devices", "expected", "expected_rules"), DEVICES)
def test_devices_choose_nodes_folders_and_rules(devices: str, expected: set[str], expected_rules: list[str]) -> None:
    """Exactly the selected GPUs and slices are given, and only they may be opened."""
    found = operations(request(devices, "ngx"))
    assert targets(found) == BASE | expected
    assert rules(found) == ["195:255 rw", *expected_rules]


MANAGEMENT = [
    ({"mig_config": "all"}, ["237:1 rw", "237:12 rw", "237:138 rw"]),
    ({"mig_monitor": "all"}, ["237:2 rw", "237:12 rw", "237:138 rw"]),
    ({"mig_config": "all", "mig_monitor": "all"}, ["237:1 rw", "237:2 rw", "237:12 rw", "237:138 rw"]),
]


@pytest.mark.parametrize(("changes", "expected"), MANAGEMENT)
def test_mig_management_shows_the_whole_folder(changes: dict[str, str], expected: list[str]) -> None:
    """Management needs every capability of the visible GPUs, so folders are bound and no single slice."""
    found = operations(request(capabilities="ngx", **changes))
    assert {"capabilities", "nvidia-caps"} <= targets(found)
    assert "nvidia-cap12" not in targets(found)
    assert rules(found)[3:] == expected


def test_sources_lie_below_their_roots() -> None:
    """Each kind of source has its own root; targets have none."""
    roots = Roots(driver="/run/nvidia/driver", dev="/host", proc="/host/proc", sys="/host/sys")
    found = operations(request("0"), inventory=INVENTORY.replace(roots=roots))
    sources = {one.target: one.source for one in found if isinstance(one, BindFile | BindDevice)}
    assert sources["/usr/bin/nvidia-smi"] == "/run/nvidia/driver/usr/bin/nvidia-smi"
    assert sources["/dev/nvidia0"] == "/host/dev/nvidia0"
    assert sources["/proc/driver/nvidia/gpus/0000:10:00.0"] == "/host/proc/driver/nvidia/gpus/0000:10:00.0"


COMPAT = [
    ("575.51.03", "ldconfig", "/usr/local/cuda-12.9/compat"),
    ("575.51.03", "mount", "/usr/local/cuda-12.9/compat"),
    ("575.51.03", "disabled", ""),
    ("575.51.03", "hook", "/usr/local/cuda-12.9/compat"),
    ("570.195.03", "ldconfig", ""),
    ("550.54.15", "ldconfig", ""),
    ("newest", "ldconfig", ""),
]


@pytest.mark.parametrize(("version", "mode", "expected"), COMPAT)
def test_only_newer_cuda_libraries_of_the_image_come_first(version: str, mode: str, expected: str) -> None:
    """Forward compatibility changes the loader's order and never mounts anything of the image."""
    layout = LAYOUT.replace(compat_directory="/usr/local/cuda-12.9/compat", compat_version=version)
    made = plan(INVENTORY, request(), Policy(cuda_compat_mode=mode), layout)
    cache = next(one for one in made.operations if isinstance(one, UpdateLoaderCache))
    assert cache.compat_directory == expected
    assert any("CUDA compatibility" in note for note in made.notes)
    assert not any(isinstance(one, BindFile) and "compat" in one.source for one in made.operations)


REFUSALS: list[tuple[ContainerRequest, Inventory, type[NvinjectError], list[str]]] = [
    (request("7"), INVENTORY, RequestError, ["7", "unknown device"]),
    (
        request("0"),
        INVENTORY.replace(gpus=(gpu(0, node=None),)),
        HostError,
        ["/dev/nvidia0", "GPU 0", "nvidia-modprobe -c 0"],
    ),
    (
        request("0"),
        INVENTORY.replace(gpus=(gpu(0, node=None, node_fault="/dev/nvidia0 is device 1:3, the driver's is 195:0"),)),
        HostError,
        ["GPU 0", "/dev/nvidia0 is device 1:3, the driver's is 195:0", "nvidia-modprobe -c 0"],
    ),
    (
        request("0", requirements=(("NVIDIA_REQUIRE_CUDA", "cuda>=99"),)),
        INVENTORY,
        RequirementError,
        ["NVIDIA_REQUIRE_CUDA", "cuda>=99", "12.8"],
    ),
    (request("0", imex_channels=("7",)), INVENTORY, RequestError, ["channel7", "channels there: channel0, channel9"]),
    (
        request("0", extras=("gds", "mofed")),
        INVENTORY,
        HostError,
        ["NVIDIA_MOFED=enabled", "RDMA", "/dev/infiniband/uverbs*", "ib_uverbs", "nvinject.missing-extras"],
    ),
    (request("0:0", mig_config="all"), INVENTORY, RequestError, ["NVIDIA_MIG_CONFIG_DEVICES"]),
]


@pytest.mark.parametrize(("asked", "inventory", "kind", "names"), REFUSALS)
def test_what_cannot_be_served_is_refused_by_name(
    asked: ContainerRequest, inventory: Inventory, kind: type[NvinjectError], names: list[str]
) -> None:
    """A refusal names the device, node or variable, and the remedy."""
    with pytest.raises(kind) as caught:
        plan(inventory, asked, Policy(), LAYOUT)
    for name in names:
        assert name in str(caught.value)


def test_extras_that_are_asked_for() -> None:
    """Nodes with their right, files that go with them; nothing of it without a request."""
    assert not targets(operations(request("0"))) & {"nvidia-fs0", "cufile.json"}
    found = operations(request("none", extras=("gds",)))
    assert {"nvidia-fs0", "cufile.json"} <= targets(found)
    assert AllowDevice(major=240, minor=0, access="rw", reason="GPUDirect Storage") in found


def test_extras_that_the_host_has_not_can_be_a_warning() -> None:
    made = plan(INVENTORY, request("0", extras=("gds", "mofed")), Policy(missing_extras=WARN), LAYOUT)
    (warning,) = made.warnings
    assert "NVIDIA_MOFED=enabled" in warning
    assert "nvidia-fs0" in targets(made.operations)


CHANNEL7 = DeviceNode(path="/dev/nvidia-caps-imex-channels/channel7", major=238, minor=7, mode=0o660, gid=44)
MAKING = INVENTORY.replace(roots=Roots(dev="/host"), imex=ImexHost(there=("channel0",), wanted=(CHANNEL7,)))


def test_a_missing_channel_is_made_where_that_is_allowed() -> None:
    """The host's node comes first, then the container's; a channel that is there is not made."""
    found = operations(request("0", imex_channels=("0", "7")), MAKING, policy=Policy(create_imex_channels=True))
    (made,) = [one for one in found if isinstance(one, MakeNode)]
    assert (made.root, made.path, made.major, made.minor, made.mode, made.gid) == (
        "/host",
        CHANNEL7.path,
        238,
        7,
        0o660,
        44,
    )
    shown = [one for one in found if isinstance(one, BindDevice) and one.target == CHANNEL7.path]
    assert found.index(made) < found.index(shown[0])
    assert "/host/dev/nvidia-caps-imex-channels/channel7 (238:7) on the host" in made.describe()


# policy, inventory, what the refusal says
NOT_MADE = [
    (Policy(), MAKING, "nvinject.create-imex-channels = true"),
    (
        Policy(create_imex_channels=True, features=Features(disable_imex_channel_creation=True)),
        MAKING,
        "nvinject.create-imex-channels = true",
    ),
    (Policy(create_imex_channels=True), INVENTORY, "cannot get one: the driver's parameter ModifyDeviceFiles is 0"),
]


@pytest.mark.parametrize(("policy", "inventory", "says"), NOT_MADE)
def test_a_missing_channel_is_refused_otherwise(policy: Policy, inventory: Inventory, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        plan(inventory, request("0", imex_channels=("7",)), policy, LAYOUT)
    assert says in str(caught.value)
    assert "channels there: channel0" in str(caught.value)


RPM = ContainerLayout(library_directory="/usr/lib64", library32_directory="/usr/lib")
MUSL = RPM.replace(musl_path_file="/etc/ld-musl-x86_64.path")
PLAIN = RPM.replace(library32_directory="")
NVIDIA, NVIDIA32, PROGRAMS = "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/local/nvidia/bin"
HOST = LIBRARY_DIRECTORY
# the node's word, layout, capabilities; folders of libraries, folder of programs, folders that ldconfig is told
PLACES = [
    ("auto", RPM, "utility", {"/usr/lib64"}, "/usr/bin", ""),
    ("image", RPM, "utility", {"/usr/lib64"}, "/usr/bin", ""),
    ("host", RPM, "utility", {HOST}, "/usr/bin", f"{HOST}\n"),
    ("host", LAYOUT, "utility", {HOST}, "/usr/bin", ""),
    ("host", RPM, "compute", {HOST}, "/opt/mps", f"{HOST}\n"),
    ("nvidia", RPM, "utility", {NVIDIA}, PROGRAMS, f"{NVIDIA}\n"),
    ("nvidia", MUSL, "utility", {NVIDIA}, PROGRAMS, ""),
    ("nvidia", RPM, "utility compute compat32", {NVIDIA, NVIDIA32}, PROGRAMS, f"{NVIDIA}\n{NVIDIA32}\n"),
    ("nvidia", PLAIN, "compute compat32", {NVIDIA}, PROGRAMS, f"{NVIDIA}\n"),
    ("auto", UNKNOWN_IMAGE, "utility", {HOST}, "/usr/bin", ""),
    ("image", UNKNOWN_IMAGE, "compute", {HOST}, "/usr/bin", ""),
    ("nvidia", UNKNOWN_IMAGE, "utility", {NVIDIA}, PROGRAMS, ""),
]


@pytest.mark.parametrize(("word", "layout", "capabilities", "folders", "programs", "told"), PLACES)
def test_where_the_node_wants_files(
    word: str, layout: ContainerLayout, capabilities: str, folders: set[str], programs: str, told: str
) -> None:
    """Libraries, their cache entries and links, and programs; a note where the word has no meaning."""
    made = plan(INVENTORY, request("0", capabilities), Policy(library_layout=word), layout)
    files = [one.target for one in made.operations if isinstance(one, BindFile)]
    assert {path.rpartition("/")[0] for path in files if ".so" in path} == folders
    assert {path.rpartition("/")[0] for path in files if "/nvidia-smi" in path or "mps-server" in path} == {programs}
    (cache,) = [one for one in made.operations if isinstance(one, UpdateLoaderCache)]
    assert set(cache.directories) == folders
    written = [one for one in made.operations if isinstance(one, WriteFile)]
    assert "".join(one.content for one in written) == told
    assert any("library-layout is image" in note for note in made.notes) is (word == "image" and not layout.is_known)
    decided = any(isinstance(one, DecideCompat) for one in made.operations)
    assert decided is (not layout.is_known and "compute" in capabilities)


# the container's search paths, the variables that are set
SEARCH = [
    ((("PATH", "/bin"), ("LD_LIBRARY_PATH", "/l")), {"PATH": f"{PROGRAMS}:/bin", "LD_LIBRARY_PATH": f"{NVIDIA}:/l"}),
    ((("PATH", f"/bin:{PROGRAMS}"),), {}),
    ((("LD_LIBRARY_PATH", f"{NVIDIA}x"),), {"LD_LIBRARY_PATH": f"{NVIDIA}:{NVIDIA}x"}),
    ((), {}),
]


@pytest.mark.parametrize(("own", "variables"), SEARCH)
def test_search_paths_lead_to_nvidias_folders(own: tuple[tuple[str, str], ...], variables: dict[str, str]) -> None:
    """A process that exists keeps its environment, which is noted where its PATH leads elsewhere."""
    asked, policy = request("0", search_paths=own), Policy(library_layout="nvidia")
    found = operations(asked, policy=policy)
    assert {one.name: one.value for one in found if isinstance(one, SetEnvironment)} == variables
    assert all(one.replaces for one in found if isinstance(one, SetEnvironment))
    created = plan(INVENTORY, asked, policy, LAYOUT.replace(is_created=True))
    assert not any(isinstance(one, SetEnvironment) for one in created.operations)
    lacks = PROGRAMS not in dict(own).get("PATH", "").split(":")
    assert any(f"PATH lacks {PROGRAMS}" in note for note in created.notes) is lacks
    assert not any(isinstance(one, SetEnvironment) for one in operations(asked))


SERVED = INVENTORY.replace(
    driver=DRIVER.replace(
        sockets=(
            HostFile(name="nvidia-mps", path="/run/nvidia-mps"),
            HostFile(name="nvidia-mps-log", path="/var/log/mps"),
        )
    )
)
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
CREATED = LAYOUT.replace(is_created=True)

# the container's own variables, layout, targets of pipes and logs, variables that are set
MPS = [
    ((), LAYOUT, ["/tmp/nvidia-mps", "/var/log/nvidia-mps"], {PIPE: "/tmp/nvidia-mps", LOG: "/var/log/nvidia-mps"}),
    ((), CREATED, ["/tmp/nvidia-mps", "/var/log/nvidia-mps"], {}),
    (((PIPE, "/mps/pipe"),), LAYOUT, ["/mps/pipe", "/var/log/nvidia-mps"], {LOG: "/var/log/nvidia-mps"}),
    (((PIPE, "/mps/pipe"), (LOG, "/mps/log")), CREATED, ["/mps/pipe", "/mps/log"], {}),
    *[
        (((PIPE, place),), CREATED, ["/tmp/nvidia-mps", "/var/log/nvidia-mps"], {})
        for place in ("/", "/etc", "/proc/driver", "/dev/x", "/sys/a/b", "/a/../../b", "/a//b", "/a/.", "relative/a")
    ],
]


@pytest.mark.parametrize(("own", "layout", "places", "variables"), MPS)
def test_the_multi_process_service(
    own: tuple[tuple[str, str], ...], layout: ContainerLayout, places: list[str], variables: dict[str, str]
) -> None:
    """Its folders lie where the container's variables say, or where CUDA looks without; never over the system's."""
    found = operations(request("0", mps=own), SERVED, layout)
    shown = {
        one.source: one
        for one in found
        if isinstance(one, BindFile) and one.source in {"/run/nvidia-mps", "/var/log/mps"}
    }
    assert [shown[source].target for source in ("/run/nvidia-mps", "/var/log/mps")] == places
    assert ["ro" in shown[source].flags for source in ("/run/nvidia-mps", "/var/log/mps")] == [False, True]
    assert {one.name: one.value for one in found if isinstance(one, SetEnvironment)} == variables


def test_a_container_with_pipes_of_its_own_gets_no_others() -> None:
    found = operations(request("0", mps=((PIPE, "/mps/pipe"),), mps_provided=True), SERVED)
    assert not any(isinstance(one, SetEnvironment) for one in found)
    assert not targets(found) & {"nvidia-mps", "pipe"}
    assert not targets(operations(request("0", "utility"), SERVED)) & {"nvidia-mps"}


def test_a_client_without_a_daemon_is_told_so() -> None:
    missing = INVENTORY.replace(mps_fault="/tmp/nvidia-mps is missing")
    asked = request("0", mps=(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50"),))
    (warning,) = plan(missing, asked, Policy(), LAYOUT).warnings
    assert warning.startswith("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
    assert "/tmp/nvidia-mps is missing" in warning
    assert "nvidia-cuda-mps-control -d" in warning
    assert plan(SERVED, asked, Policy(), LAYOUT).warnings == ()
    assert plan(missing, asked.replace(capabilities=("utility",)), Policy(), LAYOUT).warnings == ()
    assert plan(missing, request("0"), Policy(), LAYOUT).warnings == ()


NVML = [
    (request("all"), False),
    (request("0,GPU-1"), False),
    (request("0:0"), True),
    (request("MIG-1"), True),
    (request("0", requirements=(("NVIDIA_REQUIRE_DRIVER", "driver>=470"),)), False),
    (request("0", requirements=(("NVIDIA_REQUIRE_CUDA", "cuda>=12"),)), True),
    (request("0", requirements=(("NVIDIA_REQUIRE_CUDA", "driver>=470 brand=tesla"),)), True),
]


@pytest.mark.parametrize(("asked", "expected"), NVML)
def test_nvml_is_asked_only_for_what_only_nvml_knows(asked: ContainerRequest, *, expected: bool) -> None:
    """Whole GPUs and driver versions are read from procfs."""
    assert needs_nvml(asked) is expected


def test_no_operation_appears_twice() -> None:
    """Two slices of one GPU instance share its capability; the plan names it once."""
    second = SLICE.replace(compute_instance=1, index=1, uuid="MIG-2")
    found = operations(request("all"), inventory=INVENTORY.replace(gpus=(gpu(0, mig_devices=(SLICE, second)),)))
    places = [one.target for one in found if isinstance(one, BindFile | BindDevice)]
    assert len(places) == len(set(places))


def test_covers_come_before_what_is_bound_below_them() -> None:
    """The order is part of the plan: a bind below a cover that comes later would be hidden."""
    found = operations(request("all"))
    places = [one.target for one in found if isinstance(one, BindFile | MaskDirectory)]
    cover = places.index("/proc/driver/nvidia")
    assert all(cover < position for position, place in enumerate(places) if place.startswith("/proc/driver/nvidia/"))
    assert isinstance(found[-1], UpdateLoaderCache)


UNKNOWN = [
    ("ldconfig", f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}", True),
    ("disabled", f"/usr/lib/i386-linux-gnu/libcuda.so.{VERSION}", False),
]


@pytest.mark.parametrize(("mode", "place", "later"), UNKNOWN)
def test_an_unknown_image_gets_libraries_where_the_host_has_them(mode: str, place: str, *, later: bool) -> None:
    """What depends on the image is decided when a container starts."""
    found = operations(
        request(capabilities="compute compat32"), layout=UNKNOWN_IMAGE, policy=Policy(cuda_compat_mode=mode)
    )
    assert place in {one.target for one in found if isinstance(one, BindFile)}
    assert any(isinstance(one, DecideCompat) and one.driver_version == VERSION for one in found) is later
    assert isinstance(found[-1], UpdateLoaderCache)
    assert found[-1].directories == ("/usr/lib/x86_64-linux-gnu", "/usr/lib/i386-linux-gnu")


DISPLAY = {
    "display_nodes": (DeviceNode(path="/dev/dri/card1", major=226, minor=1, mode=0o660, gid=44),),
    "display_links": (DisplayLink(path="/dev/dri/by-path/pci-0000:10:00.0-card", target="../card1"),),
}


@pytest.mark.parametrize(
    ("slices", "expected"), [((), {"card1", "pci-0000:10:00.0-card -> ../card1"}), ((SLICE,), set())]
)
def test_only_whole_gpus_draw(slices: tuple[MigDevice, ...], expected: set[str]) -> None:
    """Display nodes that were looked for belong to their GPU, with their group."""
    found = operations(request(), inventory=INVENTORY.replace(gpus=(gpu(0, mig_devices=slices, **DISPLAY),)))
    assert {name for name in targets(found) if "card" in name} == expected
    assert all(one.gid == 44 for one in found if isinstance(one, BindDevice) and "card" in one.target)


def test_the_whole_driver_has_more_than_the_catalogue() -> None:
    """Libraries that no row names come with the whole driver only, and modules keep their place."""
    extra = (
        Library(soname="libnvidia-api.so.1", path=f"/usr/lib/x/libnvidia-api.so.{VERSION}"),
        Library(
            soname="libglxserver_nvidia.so", path=f"/usr/lib/x/xorg/libglxserver_nvidia.so.{VERSION}", is_module=True
        ),
    )
    inventory = INVENTORY.replace(driver=DRIVER.replace(libraries=(*DRIVER.libraries, *extra)))
    whole = operations(request(capabilities=f"compute {catalog.WHOLE_DRIVER}"), inventory=inventory)
    places = {one.target for one in whole if isinstance(one, BindFile)}
    assert {f"{LIBRARY_DIRECTORY}/libnvidia-api.so.{VERSION}", extra[1].path} <= places
    assert "libglxserver_nvidia.so -> libglxserver_nvidia.so." + VERSION in targets(whole)
    assert isinstance(whole[-1], UpdateLoaderCache)
    assert whole[-1].directories == (LIBRARY_DIRECTORY,)
    assert not any("api" in name for name in targets(operations(request(), inventory=inventory)))


def test_a_set_of_nodes_needs_no_driver() -> None:
    """Storage and network nodes are exposed with the files that go with them, each below its root."""
    node = DeviceNode(path="/dev/nvidia-fs0", major=500, minor=0)
    found = plan_node_set(Roots(driver="/run/driver", dev="/host"), (node,), ("/etc/cufile.json",), "storage")
    shown = [(one.source, one.target) for one in found if isinstance(one, BindFile | BindDevice)]
    assert shown == [
        ("/host/dev/nvidia-fs0", "/dev/nvidia-fs0"),
        ("/run/driver/etc/cufile.json", "/etc/cufile.json"),
    ]
    assert rules(found) == ["500:0 rw"]


VISIBLE: list[tuple[set[int], set[int], set[str]]] = [
    (set(), set(), {"nvidia"}),
    ({1}, set(), {"nvidia", "0000:11:00.0"}),
    ({0}, {12, 13}, {"nvidia", "0000:10:00.0", "access"}),
    ({0, 7}, {99}, {"nvidia", "0000:10:00.0"}),
    ({0}, {1}, {"nvidia", "0000:10:00.0", "capabilities"}),
]


@pytest.mark.parametrize(("gpus", "capabilities", "expected"), VISIBLE)
def test_the_nodes_of_a_container_tell_what_of_procfs_it_sees(
    gpus: set[int], capabilities: set[int], expected: set[str]
) -> None:
    """Somebody else chose the devices; a container that may manage MIG sees all of it."""
    config = DeviceNode(path="/dev/nvidia-caps/nvidia-cap1", major=237, minor=1)
    inventory = INVENTORY.replace(mig_config_node=config)
    assert targets(plan_visible_proc(inventory, frozenset(gpus), frozenset(capabilities))) == expected


LISTED = Library(soname="libcuda.so.1", path="/usr/lib/tegra/libcuda.so.1.1", in_place=True)
LISTING = Inventory(
    driver=Driver(version="540.4.0", cuda_version="12.6", libraries=(LISTED,)),
    roots=Roots(dev="/"),
    gpus=(
        Gpu(
            index=0,
            minor=0,
            uuid="",
            bus_id="",
            model="Orin (nvgpu)",
            more_nodes=(
                DeviceNode(path="/dev/nvmap", major=10, minor=124),
                DeviceNode(path="/dev/nvhost-gpu", major=505, minor=1),
            ),
        ),
    ),
    listing=Listing(
        files=(HostFile(name="listed in drivers.csv, line 3", path="/usr/lib/firmware/tegra23x"),),
        links=(HostLink(path="/usr/lib/tegra/libcuda.so", target="libcuda.so.1.1"),),
        compat_directory="/usr/local/cuda/compat_orin",
    ),
)
LISTED_FILES = {"/usr/lib/firmware/tegra23x", "/usr/lib/tegra/libcuda.so.1.1"}


@pytest.mark.parametrize(("devices", "nodes"), [("all", 2), ("0", 2), ("none", 0)])
@pytest.mark.parametrize("capabilities", ["utility", "compute utility", "graphics"])
def test_a_host_that_lists_what_containers_get(devices: str, nodes: int, capabilities: str) -> None:
    """All of it in place, whatever the capabilities and the image; its driver's procfs and profile are left alone."""
    found = operations(request(devices, capabilities=capabilities), inventory=LISTING)
    assert {one.target for one in found if isinstance(one, BindFile)} == LISTED_FILES
    assert len([one for one in found if isinstance(one, BindDevice)]) == nodes
    assert len([one for one in found if isinstance(one, AllowDevice)]) == nodes
    assert not [one for one in found if isinstance(one, MaskDirectory)]
    assert [(one.link, one.target) for one in found if isinstance(one, CreateSymlink)] == [
        ("/usr/lib/tegra/libcuda.so", "libcuda.so.1.1"),
        ("/usr/lib/tegra/libcuda.so.1", "libcuda.so.1.1"),
    ]
    (folders,) = [one for one in found if isinstance(one, WriteFile)]
    assert folders.content == "/usr/lib/tegra\n"
    (cache,) = [one for one in found if isinstance(one, UpdateLoaderCache)]
    assert (cache.directories, cache.libraries[0].path) == (("/usr/lib/tegra",), "/usr/lib/tegra/libcuda.so.1")


def test_reasons_name_the_list() -> None:
    found = operations(request("all"), inventory=LISTING)
    assert "listed in drivers.csv, line 3" in {one.reason for one in found}
    assert "GPU 0 (Orin (nvgpu))" in {one.reason for one in found}


# CUDA version that the image's libraries bring, whether they come first
LISTED_COMPAT = [("12.9", True), ("12.6", False), ("12.2", False), ("", False)]


@pytest.mark.parametrize(("cuda", "used"), LISTED_COMPAT)
def test_cuda_alone_decides_on_a_host_with_lists(cuda: str, *, used: bool) -> None:
    """The branches that a note names are those of other drivers."""
    layout = ContainerLayout(
        library_directory=LIBRARY_DIRECTORY,
        compat_directory="/usr/local/cuda/compat_orin",
        compat_version="1.1.595",
        compat_note=CompatNote(drivers=(575,), cuda_version=cuda),
    )
    (cache,) = [
        one
        for one in operations(request("all"), inventory=LISTING, layout=layout)
        if isinstance(one, UpdateLoaderCache)
    ]
    assert bool(cache.compat_directory) is used


def test_a_host_with_lists_leaves_the_choice_for_an_unknown_image() -> None:
    """Where the CUDA version is known, and only then."""
    found = operations(request("all"), inventory=LISTING, layout=UNKNOWN_IMAGE)
    (later,) = [one for one in found if isinstance(one, DecideCompat)]
    assert (later.driver_version, later.cuda_version, later.directory) == ("", "12.6", "/usr/local/cuda/compat_orin")
    silent = LISTING.replace(driver=LISTING.driver.replace(cuda_version=None))
    found = operations(request("all"), inventory=silent, layout=UNKNOWN_IMAGE)
    assert not [one for one in found if isinstance(one, DecideCompat)]


@pytest.mark.parametrize(("token", "words"), [("1", "this host has 0 (Orin (nvgpu))"), ("0:0", "0:0")])
def test_a_device_that_a_host_with_lists_lacks(token: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        operations(request(token), inventory=LISTING)
    assert words in str(caught.value)
