"""Modes of the runtime shim: which devices a container names for it, and by which mechanism it gets them.

Belongs here: the precedence of annotations, mounts and environment, and the way from config.toml's mode to the one
that is carried out. Does not belong here: the carrying out. The mode is a word of the command line and never reaches
the planner. Differences from the original: a repeated name counts once, and a device that is named by its index, UUID
or address beside CDI names is qualified with the kind of the configuration instead of refused.
"""

from nvinject.core.policy import CDI_ANNOTATION_PREFIX, Policy
from nvinject.core.request import find_devices
from nvinject.core.sources import Asked, ContainerSpec, is_cdi_name, is_foreign
from nvinject.errors import ConfigurationError, RequestError, quoted

JIT = "jit"
CDI = "cdi"
LEGACY = "legacy"
CSV = "csv"
# What config.toml may say; jit-cdi is the original's word.
MODES = {"auto": "", "jit": JIT, "jit-cdi": JIT, "cdi": CDI, "legacy": LEGACY, "csv": CSV}

# The original's own kind: names of it are served from this host's devices, not from the registry.
JIT_KIND = "runtime.nvidia.com/gpu"


def annotated_devices(annotations: tuple[tuple[str, str], ...], prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the devices that annotations with one of the prefixes name, keys in order, each device once."""
    values = [value for key, value in sorted(annotations) if key.startswith(prefixes)] if prefixes else []
    return tuple(dict.fromkeys(name for value in values for name in value.split(",") if name))


def might_name_devices(annotations: tuple[tuple[str, str], ...]) -> bool:
    """Tell, without any configuration, whether an annotation could name a CDI device.

    Where the configuration has other prefixes than the usual one, only its full name tells a device.
    """
    return any(
        key.startswith(CDI_ANNOTATION_PREFIX) or any(is_cdi_name(name) for name in value.split(","))
        for key, value in annotations
    )


def names_own_devices(annotations: tuple[tuple[str, str], ...]) -> bool:
    """Tell, without any configuration, whether an annotation of the usual prefix names more than others' devices."""
    values = [value for key, value in annotations if key.startswith(CDI_ANNOTATION_PREFIX)]
    return any(not is_foreign(name, "") for value in values for name in value.split(",") if name)


def find_asked(spec: ContainerSpec, annotations: tuple[tuple[str, str], ...], policy: Policy) -> Asked | None:
    """Return the devices that a container asks the shim for, or None; the first of annotations, mounts, environment.

    Annotations count only where all their names are qualified or the mode is cdi. Devices of other vendors that an
    annotation names are the engine's, which has served them by now or will not.
    """
    named = Asked(devices=annotated_devices(annotations, policy.cdi_annotation_prefixes), source="annotations")
    annotated = named.without_foreign(policy.cdi_default_kind).devices
    if annotated and (MODES.get(policy.mode) == CDI or (policy.mode == "auto" and all(map(is_cdi_name, annotated)))):
        return Asked(devices=annotated, source="annotations")
    return find_devices(spec, policy)


def resolve_mode(asked: Asked, policy: Policy) -> str:
    """Return the mode for a container that asks for devices: JIT, CDI, LEGACY or CSV.

    With `auto` JIT means that this host's platform decides how it is looked at. Raises ConfigurationError for a mode
    that nobody knows, RequestError for devices that cannot be had together.
    """
    if policy.mode not in MODES:
        known = ", ".join(MODES)
        raise ConfigurationError(
            f"invalid mode {quoted(policy.mode)} in nvidia-container-runtime.mode", f"use one of {known}"
        )
    mode = MODES[policy.mode]
    if mode == LEGACY:
        return mode
    own = [name for name in asked.devices if name.startswith(f"{JIT_KIND}=")]
    if own and len(own) < len(asked.devices):
        other = next(name for name in asked.devices if not name.startswith(f"{JIT_KIND}="))
        raise RequestError(
            f"{asked.source}: devices of kind {JIT_KIND} cannot be combined with {quoted(other)}",
            "ask for one sort of devices",
        )
    if own:
        return CSV if mode == CSV else JIT
    # Devices of a registry come from there even in modes jit and csv.
    if mode == CDI or any(map(is_cdi_name, asked.devices)):
        return CDI
    return CSV if mode == CSV else JIT


def qualify(devices: tuple[str, ...], kind: str) -> tuple[str, ...]:
    """Return the full CDI names of devices; those without a kind are of the given one."""
    return tuple(dict.fromkeys(name if is_cdi_name(name) else f"{kind}={name}" for name in devices))


def plain_devices(devices: tuple[str, ...]) -> tuple[str, ...]:
    """Return the devices without the original's own kind, as the planner knows them."""
    return tuple(dict.fromkeys(name.removeprefix(f"{JIT_KIND}=") for name in devices))
