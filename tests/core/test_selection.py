"""Selection: every spelling of a device, what is refused and what a refusal tells."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.core.model import Gpu, MigDevice
from nvinject.core.selection import Selection, needs_nvml, select
from nvinject.errors import RequestError

UUID0 = "GPU-000000a0-1111-2222-3333-000000000000"
UUID1 = "GPU-000000a0-1111-2222-3333-000000000001"
MIG0 = "MIG-000000a0-5555-6666-7777-000000000000"
MIG1 = "MIG-000000a0-5555-6666-7777-000000000001"
GPUS = (
    Gpu(
        index=0,
        minor=4,
        uuid=UUID0,
        bus_id="0000:17:00.0",
        mig_devices=(
            MigDevice(gpu_instance=1, compute_instance=0, index=0, uuid=MIG0),
            MigDevice(gpu_instance=2, compute_instance=0, index=1, uuid=MIG1),
        ),
    ),
    Gpu(index=1, minor=0, uuid=UUID1, bus_id="0001:3b:00.0"),
)
WITHOUT_NVML = tuple(
    gpu.replace(mig_devices=tuple(mig.replace(index=-1, uuid="") for mig in gpu.mig_devices)) for gpu in GPUS
)

# tokens, indices of GPUs, GPU instances of the MIG devices
SELECTED = [
    (("all",), [0, 1], [1, 2]),
    (("ALL",), [0, 1], [1, 2]),
    (("1", "all", "bogus"), [0, 1], [1, 2]),
    (("none",), [], []),
    ((), [], []),
    (("0",), [0], []),
    (("1", "0"), [0, 1], []),
    (("0", UUID0.upper()), [0], []),
    ((UUID1,), [1], []),
    (("0000:17:00.0",), [0], []),
    (("00000001:3B:00.0",), [1], []),  # public case 27
    (("1:3b:0.0",), [1], []),
    ((MIG1,), [0], [2]),
    ((MIG0.lower(), MIG0, "1"), [0, 1], [1]),
    ((f"MIG-{UUID0}/2/0",), [0], [2]),
    ((f"mig-{UUID0.lower()}/1/0",), [0], [1]),
    (("0:0",), [0], [1]),
    (("0:1", "0:0"), [0], [1, 2]),
]

UNKNOWN = [
    ("9", f"this host has 0 ({UUID0}, 0000:17:00.0), 0:0 ({MIG0}), 0:1 ({MIG1}), 1 ({UUID1}, 0001:3b:00.0)"),
    ("GPU-deadbeef", "this host has 0 (GPU-"),
    ("foo", "this host has"),
    ("0:9", "this host has"),
    ("1:0", "this host has"),
    ("-1", "this host has"),
    ("+1", "this host has"),
    ("0x0", "this host has"),
    ("1_0", "this host has"),
    ("none", "this host has"),  # not alone, see the test
    ("", "this host has"),
    ("GPU-", "this host has"),
    ("0000:17:00.1", "this host has"),
    ("17:00.0", "this host has"),
    ("0000:17:00", "this host has"),
    ("000000000:17:00.0", "this host has"),
    ("0000:0x17:00.0", "this host has"),
    (":17:00.0", "this host has"),
    (f"MIG-{UUID0}/7/0", "this host has"),
    (f"MIG-{UUID0}/1", "this host has"),
    (f"MIG-{UUID0}/1/x", "this host has"),
    (UUID1[:-2], f"write the whole UUID: {UUID0}, {UUID1}"),
    ("gpu-000000A0", f"a prefix of a UUID is not enough, write the whole UUID: {UUID0}, {UUID1}"),
    ("GPU-000000a0-1111-2222-3333-00000000000", f"{UUID0}, {UUID1}"),
    (MIG0[:10], f"{MIG0}, {MIG1}"),
    ("/var/run/nvidia-container-devices", "accept-nvidia-visible-devices-as-volume-mounts"),
    ("\x1b[31mred", "this host has"),
]

NEEDS_NVML = [
    (("all",), False),
    (("ALL", MIG0), False),
    (("none",), False),
    (("0", UUID0, "0000:17:00.0"), False),
    ((f"MIG-{UUID0}/1/0",), False),
    ((MIG0,), True),
    ((MIG0.lower(),), True),
    (("1", "0:0"), True),
    ((f"MIG-{UUID0}/1",), True),
]


@pytest.mark.parametrize(("tokens", "gpus", "migs"), SELECTED)
def test_what_tokens_select(tokens: tuple[str, ...], gpus: list[int], migs: list[int]) -> None:
    selection = select(tokens, GPUS)
    assert [gpu.index for gpu in selection.gpus] == gpus
    assert [mig.gpu_instance for _, mig in selection.mig_devices] == migs
    assert all(gpu in selection.gpus for gpu, _ in selection.mig_devices)


@pytest.mark.parametrize(("token", "hint"), UNKNOWN)
def test_unknown_tokens_are_refused(token: str, hint: str) -> None:
    with pytest.raises(RequestError) as caught:
        select(("0", token), GPUS)
    assert caught.value.message.startswith("unknown device '")
    assert token.replace("\x1b", "\\x1b") in caught.value.message
    assert hint in caught.value.hint
    assert str(caught.value).isprintable()


def test_a_unique_prefix_is_refused_too_and_completed() -> None:
    with pytest.raises(RequestError, match=rf"prefix of a UUID is not enough, write the whole UUID: {UUID1}$"):
        select(("GPU-000000a0-1111-2222",), GPUS[1:])


def test_a_host_without_gpus() -> None:
    assert select(("all",), ()) == Selection()
    assert select(("none",), ()) == Selection()
    with pytest.raises(RequestError, match="this host has no GPU"):
        select(("0",), ())


def test_a_long_list_is_cut() -> None:
    many = tuple(Gpu(index=i, minor=i, uuid=f"GPU-{i}", bus_id=f"0000:{i:02x}:00.0") for i in range(20))
    with pytest.raises(RequestError, match=r"and 4 more$"):
        select(("99",), many)


def test_instances_are_found_without_nvml() -> None:
    ((gpu, mig),) = select((f"MIG-{UUID0}/2/0",), WITHOUT_NVML).mig_devices
    assert (gpu.index, mig.gpu_instance) == (0, 2)
    assert len(select(("all",), WITHOUT_NVML).mig_devices) == 2
    with pytest.raises(RequestError, match="unknown device"):
        select(("0:0",), WITHOUT_NVML)


def test_gpus_without_uuid_are_not_found_by_an_empty_token() -> None:
    with pytest.raises(RequestError):
        select(("",), (GPUS[1].replace(uuid=""),))


@pytest.mark.parametrize(("tokens", "expected"), NEEDS_NVML)
def test_which_tokens_only_nvml_knows(tokens: tuple[str, ...], expected: bool) -> None:
    assert needs_nvml(tokens) is expected


@pytest.mark.parametrize("variable", ["mig_config", "mig_monitor"])
def test_management_of_all_excludes_single_mig_devices(variable: str) -> None:
    assert len(select(("all",), GPUS, **{variable: "all"}).mig_devices) == 2
    assert select(("0",), GPUS, **{variable: "all"}).mig_devices == ()
    for token in ("0:0", MIG0):
        with pytest.raises(RequestError, match="cannot be combined with single MIG devices"):
            select(("1", token), GPUS, **{variable: "all"})


spellings = st.sampled_from(["0", "1", "2", UUID0, UUID1, MIG0, MIG1, "0:0", "0:1", "1:0", "0000:17:00.0", "none"])
tokens_strategy = st.lists(spellings | st.text(max_size=6), max_size=5).map(tuple)


def try_select(tokens: tuple[str, ...], gpus: tuple[Gpu, ...]) -> Selection | RequestError:
    try:
        return select(tokens, gpus)
    except RequestError as error:
        return error


@given(tokens_strategy)
def test_what_was_not_asked_for_is_never_selected(tokens: tuple[str, ...]) -> None:
    outcome = try_select(tokens, GPUS)
    if isinstance(outcome, RequestError) or any(token.lower() == "all" for token in tokens):
        return
    for gpu in outcome.gpus:
        own = {str(gpu.index), gpu.uuid, gpu.bus_id, *(mig.uuid for mig in gpu.mig_devices)}
        assert any(token in own or token.startswith(f"{gpu.index}:") for token in tokens)
    for gpu, mig in outcome.mig_devices:
        assert mig.uuid in tokens or f"{gpu.index}:{mig.index}" in tokens


@given(tokens_strategy, st.randoms())
def test_order_and_repetition_do_not_matter(tokens: tuple[str, ...], random: Random) -> None:
    shuffled = list(tokens * 2)
    random.shuffle(shuffled)
    first, second = try_select(tokens, GPUS), try_select(tuple(shuffled), GPUS)
    if isinstance(first, Selection) and tokens != ("none",) and not any(t.lower() == "all" for t in tokens):
        assert first == second
