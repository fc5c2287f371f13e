"""Limits of GPU memory: their grammar, the GPUs that they are about, and the means that keep them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.core.memorylimits import (
    LARGEST,
    MIB,
    match_gpus,
    parse_size,
    parse_sizes,
    plan_limits,
    read_sizes,
    show_size,
)
from nvinject.core.model import ContainerLayout, Driver, Gpu, HostFile, Inventory, MigDevice
from nvinject.core.plan import LimitMemory, Operation, SetEnvironment
from nvinject.core.policy import WARN, Policy
from nvinject.core.request import ContainerRequest, MemorySize
from nvinject.core.selection import Selection
from nvinject.errors import HostError, NvinjectError, RequestError

GIB = 1 << 30
LIMIT, REQUEST = "NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_REQUEST"

SIZES = [
    ("8G", 8 * GIB),
    ("8g", 8 * GIB),
    ("8GB", 8 * GIB),
    ("8GiB", 8 * GIB),
    ("512M", 512 * MIB),
    ("512", 512 * MIB),  # as the original's hook
    ("1T", 1 << 40),
    ("0", 0),
    ("", None),
    ("G", None),
    ("8K", None),
    ("8B", None),
    ("8iB", None),
    ("-8G", None),
    ("+8", None),
    ("1.5G", None),
    ("8 G", None),
    ("0x8", None),
    ("\u0668G", None),
    ("9" * 30, None),
    ("8GG", None),
    ("8MG", None),
]


@pytest.mark.parametrize(("text", "size"), SIZES)
def test_sizes_are_read_in_bytes(text: str, size: int | None) -> None:
    assert parse_size(text) == size


@given(st.integers(0, LARGEST // MIB), st.sampled_from(["", "M", "MB", "MiB", "m"]))
def test_every_number_of_mebibytes_is_a_size(number: int, unit: str) -> None:
    assert parse_size(f"{number}{unit}") == number * MIB


@given(st.text())
def test_any_text_is_a_size_or_is_none(text: str) -> None:
    """And a size is never more than what a signed 64-bit number holds."""
    size = parse_size(text)
    assert size is None or 0 <= size <= LARGEST


@given(st.text())
def test_any_value_is_read_or_refused_by_name(value: str) -> None:
    error: RequestError | None = None
    found: tuple[MemorySize, ...] = ()
    try:
        found = parse_sizes(LIMIT, value, is_limit=True)
    except RequestError as caught:
        error = caught
    if error is not None:
        assert LIMIT in error.message
        assert error.hint
    else:
        assert all(one.size >= MIB for one in found)
        assert len({one.device for one in found}) == len(found) > 0


@given(st.dictionaries(st.integers(0, 63), st.integers(1, 1 << 20), min_size=1))
def test_a_size_for_each_gpu_is_read_back(sizes: dict[int, int]) -> None:
    value = ", ".join(f"{device} = {number}M" for device, number in sizes.items())
    found = parse_sizes(LIMIT, value, is_limit=True)
    assert {int(one.device): one.size for one in found} == {device: number * MIB for device, number in sizes.items()}


# environment, what is read as (device, size, whether a limit)
READ = [
    ({}, []),
    ({LIMIT: "", REQUEST: " "}, []),
    ({LIMIT: "8G"}, [("", 8 * GIB, True)]),
    ({"NVIDIA_MEMORY_LIMIT": "8G", LIMIT: " 8G"}, [("", 8 * GIB, True)]),
    (
        {"NVIDIA_GPU_MEMORY_LIMITS": "1024", "NVIDIA_GPU_MEMORY_REQUESTS": "512"},
        [("", GIB, True), ("", GIB // 2, False)],
    ),
    ({LIMIT: "0=8G,GPU-1=4G", REQUEST: "0"}, [("0", 8 * GIB, True), ("GPU-1", 4 * GIB, True), ("", 0, False)]),
]


@pytest.mark.parametrize(("environment", "found"), READ)
def test_variables_name_devices_and_sizes(environment: dict[str, str], found: list[tuple[str, int, bool]]) -> None:
    assert [(one.device, one.size, one.is_limit) for one in read_sizes(environment)] == found


# environment, what the refusal names
WRONG = [
    ({LIMIT: "much"}, [LIMIT, "'much'", "0=8G,1=4G"]),
    ({LIMIT: "0=8G,"}, [LIMIT, "''"]),
    ({LIMIT: "=8G"}, [LIMIT, "names no GPU"]),
    ({LIMIT: "0"}, [LIMIT, "less than 1 MiB"]),
    ({LIMIT: "0=8G,0=4G"}, [LIMIT, "'0' twice"]),
    ({LIMIT: "8G,4G"}, [LIMIT, "mixes"]),
    ({LIMIT: "8G,1=4G"}, [LIMIT, "mixes"]),
    ({"NVIDIA_MEMORY_LIMIT": "8G", LIMIT: "4G"}, ["NVIDIA_MEMORY_LIMIT='8G'", f"{LIMIT}='4G'", "contradict"]),
    ({REQUEST: "1K"}, [REQUEST, "'1K'"]),
]


@pytest.mark.parametrize(("environment", "names"), WRONG)
def test_what_cannot_be_read_is_refused_by_name(environment: dict[str, str], names: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        read_sizes(environment)
    for name in names:
        assert name in str(caught.value)


GPUS = tuple(Gpu(index=index, minor=index, uuid=f"GPU-{index}", bus_id=f"0000:1{index}:00.0") for index in (2, 5))


def sizes(limit: str = "", request: str = "") -> tuple[MemorySize, ...]:
    return read_sizes({LIMIT: limit, REQUEST: request})


# limit, request, (bus address, soft, hard) of each GPU
MATCHED = [
    ("8G", "", [("0000:12:00.0", 0, 8 * GIB), ("0000:15:00.0", 0, 8 * GIB)]),
    ("", "4G", [("0000:12:00.0", 4 * GIB, 0), ("0000:15:00.0", 4 * GIB, 0)]),
    ("1=4G", "1G", [("0000:12:00.0", GIB, 0), ("0000:15:00.0", GIB, 4 * GIB)]),
    ("GPU-2=4G", "", [("0000:12:00.0", 0, 4 * GIB)]),
]


@pytest.mark.parametrize(("limit", "request_", "found"), MATCHED)
def test_gpus_are_counted_as_in_the_container(limit: str, request_: str, found: list[tuple[str, int, int]]) -> None:
    assert [(one.gpu, one.soft, one.hard) for one in match_gpus(sizes(limit, request_), GPUS)] == found


@pytest.mark.parametrize(
    ("limit", "request_", "words"),
    [
        ("2=4G", "", "no GPU '2'; the container's GPUs are 0 (GPU-2), 1 (GPU-5)"),
        ("GPU-=4G", "", "no GPU 'GPU-'"),
        ("1G", "2G", "GPU 0 of the container: a request of 2 GiB is beyond the limit of 1 GiB"),
    ],
)
def test_limits_that_make_no_sense(limit: str, request_: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        match_gpus(sizes(limit, request_), GPUS)
    assert words in str(caught.value)


def test_sizes_for_people() -> None:
    assert [show_size(size) for size in (0, 5, MIB, GIB, 3 * GIB // 2)] == [
        "0 bytes",
        "5 bytes",
        "1 MiB",
        "1 GiB",
        "1536 MiB",
    ]


DRIVER_TOO_OLD = "driver 570 has no nvmlDeviceSetMemoryLimits_v1"
NO_DAEMON = "/tmp/nvidia-mps is missing"
PIPES = (HostFile(name="nvidia-mps", path="/tmp/nvidia-mps"),)
LAYOUT = ContainerLayout(library_directory="/usr/lib64")
CREATED = LAYOUT.replace(is_created=True)
SELECTED = Selection(gpus=GPUS, mig_devices=())
PINNED = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


def host(*, daemon: bool, driver: bool) -> Inventory:
    return Inventory(
        driver=Driver(version="570", sockets=PIPES if daemon else ()),
        gpus=GPUS,
        mps_fault="" if daemon else NO_DAEMON,
        memory_obstacle="" if driver else DRIVER_TOO_OLD,
    )


def asking(limit: str = "8G", request: str = "", **more: object) -> ContainerRequest:
    return ContainerRequest(
        devices=("all",), capabilities=("compute", "utility"), memory_sizes=sizes(limit, request)
    ).replace(**more)


def limited(
    inventory: Inventory,
    request: ContainerRequest,
    layout: ContainerLayout = LAYOUT,
    policy: Policy | None = None,
    selection: Selection = SELECTED,
) -> tuple[list[Operation], tuple[str, ...]]:
    return plan_limits(inventory, request, policy or Policy(), layout, selection)


VARIABLE = [(PINNED, "0=8192M,1=8192M")]
CALLS = [("0000:12:00.0", 0, 8 * GIB), ("0000:15:00.0", 0, 8 * GIB)]
OWN = ((PINNED, "0=8192M,1=8192M"),)

# daemon, driver, layout, request; variables that are set, calls of NVML
MEANS = [
    (True, False, LAYOUT, asking(), VARIABLE, []),
    (True, True, LAYOUT, asking(), VARIABLE, []),
    (False, True, LAYOUT, asking(), [], CALLS),
    (True, True, CREATED, asking(), [], CALLS),  # a hook comes too late for the variable
    (True, False, CREATED, asking(mps=OWN), [], []),  # which the container has already
    (True, True, LAYOUT, asking("", "4G"), [], [("0000:12:00.0", 4 * GIB, 0), ("0000:15:00.0", 4 * GIB, 0)]),
    (True, True, LAYOUT, asking(capabilities=("utility",)), [], CALLS),
    (False, False, LAYOUT, asking(mps_provided=True).replace(), None, None),
    (False, False, CREATED, ContainerRequest(devices=("all",), capabilities=()), [], []),
]


@pytest.mark.parametrize(("daemon", "driver", "layout", "request_", "variables", "calls"), MEANS)
def test_which_means_is_taken(
    daemon: bool,
    driver: bool,
    layout: ContainerLayout,
    request_: ContainerRequest,
    variables: list[tuple[str, str]] | None,
    calls: list[tuple[str, int, int]] | None,
) -> None:
    """The multi-process service first, then the driver."""
    inventory = host(daemon=daemon, driver=driver)
    if variables is None:  # pipes that somebody else shows: their daemon is not ours to look at
        inventory, variables, calls = inventory.replace(mps_fault=""), VARIABLE, []
    found, warnings = limited(inventory, request_, layout)
    assert [(one.name, one.value) for one in found if isinstance(one, SetEnvironment)] == variables
    assert [(one.gpu, one.soft, one.hard) for one in found if isinstance(one, LimitMemory)] == calls
    assert len(found) == len(variables) + len(calls or ())
    assert warnings == ()


def test_the_service_keeps_no_requests() -> None:
    found, (warning,) = limited(host(daemon=True, driver=True), asking("8G", "4G"))
    assert isinstance(found[0], SetEnvironment)
    assert "NVIDIA_GPU_MEMORY_REQUEST" in warning


SLICED = SELECTED.replace(mig_devices=((GPUS[0], MigDevice(gpu_instance=1, compute_instance=0)),))
# host, request, layout, selection, error, what it names
REFUSED = [
    (
        host(daemon=False, driver=False),
        asking(),
        LAYOUT,
        SELECTED,
        HostError,
        [LIMIT, NO_DAEMON, DRIVER_TOO_OLD, "warn"],
    ),
    (host(daemon=True, driver=False), asking(), CREATED, SELECTED, HostError, [PINNED, "0=8192M,1=8192M", "runtime"]),
    (host(daemon=True, driver=False), asking("", "1G"), LAYOUT, SELECTED, HostError, [REQUEST, "no requests"]),
    (host(daemon=False, driver=True), asking(), LAYOUT, SLICED, HostError, ["MIG"]),
    (
        host(daemon=True, driver=True),
        asking(mps=((PINNED, "0=1G"),)),
        LAYOUT,
        SELECTED,
        RequestError,
        ["0=1G", "0=8192M"],
    ),
    (host(daemon=True, driver=True), asking("7=1G"), LAYOUT, SELECTED, RequestError, ["'7'"]),
]


@pytest.mark.parametrize(("inventory", "request_", "layout", "selection", "kind", "names"), REFUSED)
def test_limits_that_cannot_be_kept_are_refused_with_the_reasons(
    inventory: Inventory,
    request_: ContainerRequest,
    layout: ContainerLayout,
    selection: Selection,
    kind: type[NvinjectError],
    names: list[str],
) -> None:
    with pytest.raises(kind) as caught:
        limited(inventory, request_, layout, selection=selection)
    for name in names:
        assert name in str(caught.value)


def test_policy_can_make_a_warning_of_it() -> None:
    found, (warning,) = limited(host(daemon=False, driver=False), asking(), policy=Policy(missing_memory_limits=WARN))
    assert found == []
    for name in (LIMIT, NO_DAEMON, DRIVER_TOO_OLD, "not limited"):
        assert name in warning
