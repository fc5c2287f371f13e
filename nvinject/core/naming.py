"""What devices are called where they have names of their own, as in CDI specs.

Belongs here: which devices a host offers, and their names by each strategy. Does not belong here: how a request spells
devices (selection.py) and which characters a format allows.
"""

from nvinject.core.model import Gpu, MigDevice
from nvinject.core.selection import Selection, select
from nvinject.record import Record

STRATEGIES = ("index", "uuid", "type-index")
DEFAULT_STRATEGIES = ("index", "uuid")


class Offer(Record):
    """A device that can be asked for: a whole GPU, or a slice of one (`mig` is set)."""

    gpu: Gpu
    mig: MigDevice | None = None

    @property
    def token(self) -> str:
        """Return how a request spells the device, whatever is known of it."""
        if self.mig is None:
            return str(self.gpu.index)
        if self.mig.index >= 0:
            return f"{self.gpu.index}:{self.mig.index}"
        return f"MIG-{self.gpu.uuid}/{self.mig.gpu_instance}/{self.mig.compute_instance}"


def offers(tokens: tuple[str, ...], gpus: tuple[Gpu, ...]) -> tuple[Offer, ...]:
    """Return the devices that tokens mean: each GPU that is not cut into slices, and each slice.

    `all` means every one of them. A GPU that is named is offered whole, whatever it is cut into. Raises RequestError
    for a token that means nothing here.
    """
    found: dict[str, Offer] = {}
    for token in tokens:
        chosen = Selection(gpus=gpus) if token.lower() == "all" else select((token,), gpus)
        for offer in _every_offer(chosen) if token.lower() == "all" else _named_offers(chosen):
            found.setdefault(offer.token, offer)
    return tuple(found.values())


def _every_offer(chosen: Selection) -> list[Offer]:
    whole = [Offer(gpu=gpu) for gpu in chosen.gpus if not gpu.mig_devices and not gpu.mig_enabled]
    return whole + [Offer(gpu=gpu, mig=mig) for gpu in chosen.gpus for mig in gpu.mig_devices]


def _named_offers(chosen: Selection) -> list[Offer]:
    if chosen.mig_devices:
        return [Offer(gpu=gpu, mig=mig) for gpu, mig in chosen.mig_devices]
    return [Offer(gpu=gpu) for gpu in chosen.gpus]


def needs_nvml(offered: tuple[Offer, ...], strategies: tuple[str, ...]) -> bool:
    """Tell whether a name depends on what only NVML knows: slices, and UUIDs of GPUs that were never used."""
    return any(offer.mig is not None or ("uuid" in strategies and not offer.gpu.uuid) for offer in offered)


def might_be_empty(gpus: tuple[Gpu, ...]) -> bool:
    """Tell whether a GPU could be in MIG mode without a MIG device, which only NVML knows: it is of no use then."""
    return any(gpu.mig_capable and not gpu.mig_devices for gpu in gpus)


def names(offer: Offer, strategies: tuple[str, ...]) -> tuple[str, ...]:
    """Return the device's names in the order of strategies; a UUID that is not known gives none."""
    found = []
    for strategy in strategies:
        if strategy == "uuid":
            uuid = offer.gpu.uuid if offer.mig is None else offer.mig.uuid
            found += [uuid] if uuid else []
        elif offer.mig is None:
            found.append(f"{'gpu' if strategy == 'type-index' else ''}{offer.gpu.index}")
        elif offer.mig.index >= 0:
            found.append(f"{'mig' if strategy == 'type-index' else ''}{offer.gpu.index}:{offer.mig.index}")
    return tuple(dict.fromkeys(found))
