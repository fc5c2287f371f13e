"""Names of devices, by strategy and by what is known of the device."""

import pytest

from nvinject.core.model import Gpu, MigDevice
from nvinject.core.naming import Offer, might_be_empty, names, needs_nvml, offers
from nvinject.errors import RequestError

SLICES = tuple(
    MigDevice(gpu_instance=number + 1, compute_instance=0, index=number, uuid=f"MIG-{number}") for number in (0, 1)
)
UNNAMED = SLICES[0].replace(index=-1, uuid="")
WHOLE = Gpu(index=0, minor=0, uuid="GPU-a", bus_id="0000:17:00.0")
CUT = Gpu(index=1, minor=1, uuid="GPU-b", bus_id="0000:18:00.0", mig_devices=SLICES, mig_capable=True)
GPUS = (WHOLE, CUT)

OFFERS = [
    (("all",), ["0", "1:0", "1:1"]),
    (("ALL",), ["0", "1:0", "1:1"]),
    (("0",), ["0"]),
    (("1",), ["1"]),
    (("GPU-b",), ["1"]),
    (("1:1",), ["1:1"]),
    (("MIG-0", "0", "1:0"), ["1:0", "0"]),
    ((), []),
]


@pytest.mark.parametrize(("tokens", "expected"), OFFERS)
def test_offers(tokens: tuple[str, ...], expected: list[str]) -> None:
    """`all` leaves out GPUs that are cut; a name gives what it names."""
    assert [offer.token for offer in offers(tokens, GPUS)] == expected


def test_a_device_that_is_not_there_is_refused() -> None:
    """The refusal is that of every other request."""
    with pytest.raises(RequestError, match="unknown device '7'"):
        offers(("7",), GPUS)


def test_a_gpu_in_mig_mode_without_slices_is_not_offered_unasked() -> None:
    """Nothing runs on it; by its name it can still be had."""
    empty = WHOLE.replace(mig_capable=True, mig_enabled=True)
    assert offers(("all",), (empty,)) == ()
    assert [offer.token for offer in offers(("0",), (empty,))] == ["0"]
    assert might_be_empty((empty,))
    assert not might_be_empty((WHOLE, CUT))


NAMES = [
    (Offer(gpu=WHOLE), ("index",), ("0",)),
    (Offer(gpu=WHOLE), ("uuid",), ("GPU-a",)),
    (Offer(gpu=WHOLE), ("type-index",), ("gpu0",)),
    (Offer(gpu=WHOLE), ("uuid", "index", "index"), ("GPU-a", "0")),
    (Offer(gpu=WHOLE.replace(uuid="")), ("index", "uuid"), ("0",)),
    (Offer(gpu=CUT, mig=SLICES[1]), ("index", "uuid", "type-index"), ("1:1", "MIG-1", "mig1:1")),
    (Offer(gpu=CUT, mig=UNNAMED), ("index", "uuid"), ()),
]


@pytest.mark.parametrize(("offer", "strategies", "expected"), NAMES)
def test_names(offer: Offer, strategies: tuple[str, ...], expected: tuple[str, ...]) -> None:
    """Each strategy has a form for GPUs and one for slices; what is not known has no name."""
    assert names(offer, strategies) == expected


def test_a_slice_is_spelled_without_nvml() -> None:
    """Instances are known from procfs, so a request for the slice needs no NVML."""
    assert Offer(gpu=CUT, mig=UNNAMED).token == "MIG-GPU-b/1/0"


NEEDS = [
    ((Offer(gpu=WHOLE),), ("index", "uuid"), False),
    ((Offer(gpu=WHOLE.replace(uuid="")),), ("index",), False),
    ((Offer(gpu=WHOLE.replace(uuid="")),), ("uuid",), True),
    ((Offer(gpu=CUT, mig=SLICES[0]),), ("index",), True),
]


@pytest.mark.parametrize(("offered", "strategies", "expected"), NEEDS)
def test_nvml_is_needed_for_slices_and_unknown_uuids(
    offered: tuple[Offer, ...], strategies: tuple[str, ...], *, expected: bool
) -> None:
    """Whole GPUs need no NVML."""
    assert needs_nvml(offered, strategies) is expected
