"""Random specs, environments and configuration: no crash, and never a device that was not asked for."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.config import check_text
from nvinject.core.model import ContainerLayout, DeviceNode, Driver, Gpu, Inventory, MigDevice
from nvinject.core.plan import AllowDevice, BindDevice
from nvinject.core.planner import plan
from nvinject.core.policy import Policy
from nvinject.core.request import read_request
from nvinject.core.sources import ContainerSpec, might_ask
from nvinject.errors import ConfigurationError, NvinjectError
from tests.fuzz.seeds import CONFIG, SEEDS
from tests.fuzz.targets import TARGETS

WORDS = st.sampled_from(
    [
        "all",
        "ALL",
        "none",
        "void",
        "0",
        "1",
        "2",
        "00",
        "+1",
        "-1",
        "0:0",
        "1:0",
        "0x1",
        "GPU-a",
        "gpu-B",
        "GPU-",
        "GPU-c",
        "0000:10:00.0",
        "00000000:11:00.0",
        "10:00.0",
        "MIG-1",
        "MIG-GPU-b/1/0",
        "MIG-GPU-a/1/0",
        "nvidia.com/gpu=0",
        "٣",
        "²",
        "..",
    ]
)
JUNK = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TOKENS = st.lists(st.one_of(WORDS, JUNK), max_size=5).map(",".join)
NAMES = st.sampled_from(
    [
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "NVIDIA_REQUIRE_CUDA",
        "CUDA_VERSION",
        "NVIDIA_MIG_CONFIG_DEVICES",
        "NVIDIA_MIG_MONITOR_DEVICES",
        "NVIDIA_IMEX_CHANNELS",
        "NVIDIA_DISABLE_REQUIRE",
        "DOCKER_RESOURCE_GPU",
        "PATH",
        "X",
    ]
)
VALUES = st.one_of(TOKENS, st.sampled_from(["compute", "utility,compute", "11.4", "cuda>=1", "cuda>=99", "1", "all"]))
ENTRIES = st.lists(st.tuples(NAMES, VALUES).map("=".join), max_size=6).map(tuple)
MOUNTS = st.lists(
    st.tuples(
        st.sampled_from(["/dev/null", "/x"]),
        st.one_of(WORDS, JUNK).map(lambda word: f"/var/run/nvidia-container-devices/{word}"),
    ),
    max_size=2,
).map(tuple)
POLICIES = st.builds(
    Policy,
    accept_envvar_unprivileged=st.booleans(),
    accept_volume_mounts=st.booleans(),
    swarm_resource=st.sampled_from([(), ("DOCKER_RESOURCE_GPU",)]),
    disable_require=st.booleans(),
)


def gpu(index: int, letter: str) -> Gpu:
    slices = (
        MigDevice(
            gpu_instance=1,
            compute_instance=0,
            index=0,
            uuid="MIG-1",
            capability_files=("/proc/driver/nvidia/capabilities/gpu1/mig/gi1/access",),
            nodes=(DeviceNode(path="/dev/nvidia-caps/nvidia-cap21", major=237, minor=21),),
        ),
    )
    return Gpu(
        index=index,
        minor=index,
        uuid=f"GPU-{letter}",
        bus_id=f"0000:1{index}:00.0",
        proc_directory=f"/proc/driver/nvidia/gpus/0000:1{index}:00.0",
        node=DeviceNode(path=f"/dev/nvidia{index}", major=195, minor=index),
        mig_devices=slices if index else (),
        mig_capable=True,
    )


INVENTORY = Inventory(driver=Driver(version="570.133.20", cuda_version="12.8"), gpus=(gpu(0, "a"), gpu(1, "b")))
LAYOUT = ContainerLayout(library_directory="/usr/lib64")
# Every spelling of a GPU or of a slice of it, in lower case, as the documentation has them.
SPELLINGS = {
    0: {"0", "gpu-a", "0000:10:00.0", "00000000:10:00.0"},
    1: {"1", "gpu-b", "0000:11:00.0", "00000000:11:00.0", "1:0", "mig-1", "mig-gpu-b/1/0"},
}


def words_of(spec: ContainerSpec, policy: Policy) -> set[str]:
    """Return every word that may ask for a device, in lower case, found without the code under test."""
    words: set[str] = set()
    names = {"NVIDIA_VISIBLE_DEVICES", *policy.swarm_resource}
    if spec.privileged or policy.accept_envvar_unprivileged:
        for entry in spec.environment:
            name, _, value = entry.partition("=")
            if name in names:
                words |= {token.strip().lower() for token in value.split(",")}
            if name == "CUDA_VERSION":
                words.add("all")
    if policy.accept_volume_mounts:
        words |= {target.rpartition("/")[2].lower() for source, target in spec.mounts if source == "/dev/null"}
        words |= {
            target.removeprefix("/var/run/nvidia-container-devices/").lower()
            for source, target in spec.mounts
            if source == "/dev/null"
        }
    return words


def may_have(minor: int, words: set[str]) -> bool:
    """Tell whether a GPU was asked for; numbers may have leading zeros."""
    plain = {word.lstrip("0") or "0" if word.isascii() and word.isdigit() else word for word in words}
    shortened = {word.lstrip("0") for word in words if ":" in word}
    known = SPELLINGS[minor]
    return "all" in words or bool(known & (words | plain)) or bool({name.lstrip("0") for name in known} & shortened)


@given(ENTRIES, MOUNTS, st.booleans(), POLICIES)
def test_no_device_that_was_not_asked_for(
    entries: tuple[str, ...], mounts: tuple[tuple[str, str], ...], privileged: bool, policy: Policy
) -> None:
    spec = ContainerSpec(environment=entries, mounts=mounts, privileged=privileged)
    try:
        request = read_request(spec, policy)
        if request is None:
            return
        operations = plan(INVENTORY, request, policy, LAYOUT).operations
    except NvinjectError:
        return
    assert might_ask(spec, policy.swarm_resource)
    words = words_of(spec, policy)
    granted = {one.minor for one in operations if isinstance(one, (AllowDevice, BindDevice)) and one.major == 195}
    assert granted <= {minor for minor in (0, 1) if may_have(minor, words)}
    slices = [one for one in operations if isinstance(one, (AllowDevice, BindDevice)) and one.major == 237]
    asked_for_slices = bool(words & {"all", "1:0", "mig-1", "mig-gpu-b/1/0"}) or any(":" in word for word in words)
    assert not slices or asked_for_slices or any(entry.startswith("NVIDIA_MIG_") for entry in entries)


def nested(leaf: Any) -> Any:
    return st.recursive(
        leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(JUNK, inner, max_size=3), max_leaves=6
    )


JSON = nested(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | JUNK)


@given(st.data())
def test_specs_with_one_part_replaced(data: st.DataObject) -> None:
    document = json.loads(json.dumps(CONFIG))
    place = document
    for _ in range(data.draw(st.integers(0, 3))):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        inner = [key for key in keys if isinstance(place[key], (dict, list)) and place[key]]
        if not inner:
            break
        place = place[data.draw(st.sampled_from(inner))]
    keys = list(place) if isinstance(place, dict) else list(range(len(place)))
    place[data.draw(st.sampled_from(keys))] = data.draw(JSON)
    TARGETS["config"](json.dumps(document).encode())


@pytest.mark.parametrize("name", sorted(TARGETS))
@given(data=st.data())
def test_bytes_near_the_seeds(name: str, data: st.DataObject) -> None:
    seed = bytearray(data.draw(st.sampled_from(SEEDS[name])))
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, max(len(seed) - 1, 0)))
        replacement = data.draw(st.binary(max_size=4) | st.sampled_from([struct.pack("<I", 0xFFFFFFFF), b"\0" * 8]))
        seed[place : place + data.draw(st.integers(0, 8))] = replacement
    TARGETS[name](bytes(seed))


@pytest.mark.parametrize("name", sorted(TARGETS))
@given(data=st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(name: str, data: bytes) -> None:
    TARGETS[name](data)


LINES = st.sampled_from(
    [
        "[nvidia-container-cli]",
        "[nvidia-container-runtime]",
        "[nvinject]",
        "[features]",
        "disable-require = true",
        "x = 1",
        'root = "/x"',
        "no-cgroups = 1",
        'mode = "auto"',
        'runtimes = ["runc"]',
        "swarm-resource = 3",
        "[",
        '"""',
        "\x00",
    ]
)


@given(st.lists(LINES | JUNK, max_size=8).map("\n".join))
def test_configuration(text: str) -> None:
    try:
        check_text("config.toml", text)
    except ConfigurationError as error:
        message = error.message
    else:
        message = "config.toml"
    assert "config.toml" in message
