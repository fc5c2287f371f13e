"""Selection: which of the host's GPUs and MIG devices the tokens of a request mean.

Belongs here: the spelling of devices, and refusing what the host does not have. Does not belong here: how tokens were
found in a container (request.py) and what becomes of a selected device (planner.py). Differences from the original: on
a host without a GPU a named device is refused as everywhere else, not ignored.
"""

from nvinject.core.model import Gpu, MigDevice
from nvinject.core.version import is_decimal
from nvinject.errors import RequestError, quoted
from nvinject.record import Record

# A refusal lists at most so many devices, which is two full 8-GPU machines without MIG.
_LONGEST_LIST = 16
_HEXADECIMAL = "0123456789abcdefABCDEF"


class Selection(Record):
    """The selected devices in the host's order; `gpus` includes the parents of `mig_devices`."""

    gpus: tuple[Gpu, ...] = ()
    mig_devices: tuple[tuple[Gpu, MigDevice], ...] = ()


def needs_nvml(tokens: tuple[str, ...]) -> bool:
    """Tell whether a token names a MIG device by UUID or index, which only NVML knows.

    `MIG-GPU-<uuid>/<gi>/<ci>` spells out the instances and needs no NVML.
    """
    for token in tokens:
        folded = token.lower()
        if folded == "all":
            return False
        if _mig_index(token) or (folded.startswith("mig-") and not _mig_instances(token)):
            return True
    return False


def select(tokens: tuple[str, ...], gpus: tuple[Gpu, ...], *, mig_config: str = "", mig_monitor: str = "") -> Selection:
    """Return the devices that the tokens name; the single token `none` names no device.

    Accepted are: `all` in any case (every GPU and every MIG device; what follows is ignored), a whole GPU UUID in any
    case, a PCI bus id with any width of the domain and function 0, a decimal index, `MIG-<uuid>`,
    `MIG-GPU-<uuid>/<gi>/<ci>`, and `<GPU index>:<MIG index>`. Raises RequestError for anything else, and when MIG
    devices are named although `mig_config` or `mig_monitor` ask for all of them.
    """
    if tokens == ("none",):
        return Selection()
    chosen_gpus: set[int] = set()
    chosen_migs: set[tuple[int, int]] = set()
    for token in tokens:
        if token.lower() == "all":
            return _everything(gpus)
        gpu, mig = _find(token, gpus)
        chosen_gpus.add(gpu)
        if mig is not None:
            chosen_migs.add((gpu, mig))
    if chosen_migs:
        _refuse_management(mig_config, mig_monitor)
    return Selection(
        gpus=tuple(gpu for place, gpu in enumerate(gpus) if place in chosen_gpus),
        mig_devices=tuple(
            (gpu, mig)
            for place, gpu in enumerate(gpus)
            for inner, mig in enumerate(gpu.mig_devices)
            if (place, inner) in chosen_migs
        ),
    )


def _everything(gpus: tuple[Gpu, ...]) -> Selection:
    return Selection(gpus=gpus, mig_devices=tuple((gpu, mig) for gpu in gpus for mig in gpu.mig_devices))


def _refuse_management(mig_config: str, mig_monitor: str) -> None:
    for value, variable in ((mig_config, "NVIDIA_MIG_CONFIG_DEVICES"), (mig_monitor, "NVIDIA_MIG_MONITOR_DEVICES")):
        if value:
            raise RequestError(
                f"{variable}={value} cannot be combined with single MIG devices",
                "ask for whole GPUs or for all devices",
            )


def _find(token: str, gpus: tuple[Gpu, ...]) -> tuple[int, int | None]:
    """Return the places of the GPU and of its MIG device (None for a whole GPU) in the host's lists."""
    for place, gpu in enumerate(gpus):
        if _means_gpu(token, gpu):
            return place, None
        for inner, mig in enumerate(gpu.mig_devices):
            if _means_mig(token, gpu, mig):
                return place, inner
    raise RequestError(f"unknown device {quoted(token)}", _hint_for_unknown(token, gpus))


def _means_gpu(token: str, gpu: Gpu) -> bool:
    if is_decimal(token):
        return int(token) == gpu.index
    address = _bus_address(token)
    if address:
        return address == _bus_address(gpu.bus_id)
    return bool(gpu.uuid) and token.lower() == gpu.uuid.lower()


def _means_mig(token: str, gpu: Gpu, mig: MigDevice) -> bool:
    index = _mig_index(token)
    if index:
        return index == (gpu.index, mig.index)
    if mig.uuid and token.lower() == mig.uuid.lower():
        return True
    return _mig_instances(token) == (gpu.uuid.lower(), mig.gpu_instance, mig.compute_instance)


def _bus_address(text: str) -> tuple[int, int, int] | None:
    """Return domain, bus and device of `domain:bus:device.0`, whatever its case and width."""
    parts = text.removesuffix(".0").split(":")
    if not text.endswith(".0") or len(parts) != 3:
        return None
    widths = zip(parts, (8, 2, 2), strict=True)
    if not all(0 < len(part) <= width and not part.strip(_HEXADECIMAL) for part, width in widths):
        return None
    domain, bus, device = (int(part, 16) for part in parts)
    return domain, bus, device


def _mig_index(token: str) -> tuple[int, int] | None:
    """Return GPU index and MIG index of `i:j`."""
    gpu, _, mig = token.partition(":")
    return (int(gpu), int(mig)) if is_decimal(gpu) and is_decimal(mig) else None


def _mig_instances(token: str) -> tuple[str, int, int] | None:
    """Return GPU UUID (lower case), GPU instance and compute instance of `MIG-GPU-<uuid>/<gi>/<ci>`."""
    parts = token.lower().removeprefix("mig-").split("/")
    if not token.lower().startswith("mig-gpu-") or len(parts) != 3 or not all(map(is_decimal, parts[1:])):
        return None
    return parts[0], int(parts[1]), int(parts[2])


def _hint_for_unknown(token: str, gpus: tuple[Gpu, ...]) -> str:
    if token.startswith("/var/run/nvidia-container-devices"):
        return "this asks for devices by volume mounts: turn accept-nvidia-visible-devices-as-volume-mounts on"
    uuids = [gpu.uuid for gpu in gpus] + [mig.uuid for gpu in gpus for mig in gpu.mig_devices]
    meant = [uuid for uuid in uuids if len(token) > len("GPU-") and uuid.lower().startswith(token.lower())]
    if meant:
        return f"a prefix of a UUID is not enough, write the whole UUID: {_enumerate(meant)}"
    if not gpus:
        return "this host has no GPU"
    return f"this host has {_enumerate(_known_devices(gpus))}"


def _known_devices(gpus: tuple[Gpu, ...]) -> list[str]:
    known = []
    for gpu in gpus:
        names = ", ".join(name for name in (gpu.uuid, gpu.bus_id) if name) or gpu.model
        known.append(f"{gpu.index} ({names})")
        known += [f"{gpu.index}:{mig.index} ({mig.uuid})" for mig in gpu.mig_devices if mig.uuid]
    return known


def _enumerate(names: list[str]) -> str:
    shown = ", ".join(names[:_LONGEST_LIST])
    return shown if len(names) <= _LONGEST_LIST else f"{shown} and {len(names) - _LONGEST_LIST} more"
