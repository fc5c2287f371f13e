"""Placing MIG instances on a GPU as the driver does: numbers, memory slices, and what cannot be placed.

Belongs here: the arithmetic of GPU and compute instances. Does not belong here: reading a layout from a machine file
(declaration.py) and telling programs about it (procfs.py, nvml/).
"""

from collections.abc import Sequence

from nvfakes.machine import ComputeInstance, GpuInstance
from nvfakes.models import INSTANCE_IDS, MigProfile

COMPUTE_SLICES = 7


def find_profile(profiles: Sequence[MigProfile], name: str) -> MigProfile | None:
    """Return the profile of that name ("3g.40gb", "MIG 3g.40gb") or number ("9"), or None."""
    wanted = name.removeprefix("MIG ")
    return next((profile for profile in profiles if wanted in {profile.name, str(profile.profile_id)}), None)


def place(profiles: Sequence[MigProfile]) -> list[int] | None:
    """Return a start slice for each profile in order, or None when they do not fit on one GPU together."""
    if sum(profile.slices for profile in profiles) > COMPUTE_SLICES:
        return None
    if any(profiles.count(profile) > profile.maximum for profile in profiles):
        return None
    return _search(list(profiles), frozenset())


def _search(profiles: list[MigProfile], taken: frozenset[int]) -> list[int] | None:
    if not profiles:
        return []
    for start, size in profiles[0].placements:
        wanted = frozenset(range(start, start + size))
        if wanted & taken:
            continue
        rest = _search(profiles[1:], taken | wanted)
        if rest is not None:
            return [start, *rest]
    return None


def next_number(profile: MigProfile, used: frozenset[int]) -> int:
    """Return the number that the driver gives to a new GPU instance of this profile: the lowest free of its range."""
    size = profile.placements[0][1]
    return next(number for number in INSTANCE_IDS[size] if number not in used)


def build_instances(
    layout: Sequence[tuple[MigProfile, Sequence[tuple[int, str]]]],
) -> tuple[GpuInstance, ...] | None:
    """Return the instances of a layout: profiles with (slices, uuid) per compute instance; None if they do not fit."""
    starts = place([profile for profile, _ in layout])
    if starts is None:
        return None
    instances: list[GpuInstance] = []
    for (profile, compute), start in zip(layout, starts, strict=True):
        number = next_number(profile, frozenset(instance.number for instance in instances))
        size = next(size for first, size in profile.placements if first == start)
        instances.append(GpuInstance(profile, number, start, size, _compute_instances(compute)))
    return tuple(instances)


def _compute_instances(wanted: Sequence[tuple[int, str]]) -> tuple[ComputeInstance, ...]:
    placed: list[ComputeInstance] = []
    start = 0
    for number, (slices, uuid) in enumerate(wanted):
        placed.append(ComputeInstance(number, slices, start, uuid))
        start += slices
    return tuple(placed)


def device_name(instance: GpuInstance, compute: ComputeInstance) -> str:
    """Return a MIG device's short name: "3g.40gb", or "1c.3g.40gb" when it holds only a part of its GPU instance."""
    whole = compute.slices == instance.profile.slices
    return instance.profile.name if whole else f"{compute.slices}c.{instance.profile.name}"
