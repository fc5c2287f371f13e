"""The request: what a container asks for, read once from its environment and mounts.

Belongs here: which variables and mounts count, their precedence, and the operator's gates. Does not belong here: what
the host has (selection.py), whether it suffices (requirements.py), parsing config.json (formats). Differences from the
original: a repeated device counts once, `none` and `void` as the name of a mount are refused instead of looked up as a
device, blank capabilities are the default ones, and IMEX channels lose leading zeros.
"""

from nvinject.core.policy import DEFAULT_DRIVER_CAPABILITIES, DRIVER_CAPABILITIES, NVIDIA_LAYOUT, Policy
from nvinject.core.sources import (
    MOUNT_PREFIX,
    Asked,
    ContainerSpec,
    asked_by_environment,
    interpret,
    is_cdi_name,
    is_legacy_image,
    lenient_environment,
    mounted_devices,
    split,
)
from nvinject.core.version import is_decimal, parse_cuda_version
from nvinject.errors import InputError, RequestError, quoted
from nvinject.record import Record

IMEX_VARIABLE = "NVIDIA_IMEX_CHANNELS"
# JetPack's variable is no requirement: it has one value, and that says which of the host's lists count.
JETPACK_VARIABLE = "NVIDIA_REQUIRE_JETPACK"
EVERY_LIST = "csv-mounts=all"
CAPABILITIES_VARIABLE = "NVIDIA_DRIVER_CAPABILITIES"

# The kernel driver has 2**20 minor numbers for channels.
_IMEX_CHANNELS = 1 << 20
_LONGEST_LIST = 16
_MOUNTS = f"mounts below {MOUNT_PREFIX}"
_TRUE = ("1", "t", "T", "TRUE", "true", "True")


class MemorySize(Record):
    """A limit of GPU memory or a request for it, in bytes, for a GPU of the container ("" for each of them)."""

    variable: str
    device: str
    size: int
    is_limit: bool


class ContainerRequest(Record):
    """What a container asks for.

    `devices` are tokens for selection.select, `("all",)` or `("none",)`; `requirements` are (variable, expression)
    pairs sorted by variable, empty where the check is disabled; `extras` are names of catalog.NODE_SETS; `mps` are
    the variables of a client of the multi-process service that the container has itself, and `mps_provided` tells that
    it mounts a pipe directory of its own there; `memory_sizes` are in bytes; `search_paths` are
    PATH and LD_LIBRARY_PATH, read where the node's layout needs them; `source` says which input won.
    `every_list` asks for all files in which a host lists what containers get, not for the usual ones alone.
    """

    devices: tuple[str, ...]
    capabilities: tuple[str, ...]
    requirements: tuple[tuple[str, str], ...] = ()
    mig_config: str = ""
    mig_monitor: str = ""
    imex_channels: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    mps: tuple[tuple[str, str], ...] = ()
    mps_provided: bool = False
    memory_sizes: tuple[MemorySize, ...] = ()
    search_paths: tuple[tuple[str, str], ...] = ()
    source: str = ""
    warnings: tuple[str, ...] = ()
    legacy_image: bool = False
    every_list: bool = False


def read_request(spec: ContainerSpec, policy: Policy) -> ContainerRequest | None:
    """Return what the container asks for, or None if it asks for no GPU.

    For a container that asks, raises InputError for an environment that cannot be read and RequestError for a request
    that cannot be granted whatever the host has.
    """
    asked = find_devices(spec, policy)
    if asked is None:
        return None
    parse_environment(spec.environment)
    _refuse_cdi_names(asked)
    return make_request(asked, spec, policy)


def make_request(asked: Asked, spec: ContainerSpec, policy: Policy) -> ContainerRequest:
    """Return the request for devices that are known already; raises what read_request raises."""
    environment = parse_environment(spec.environment)
    legacy = is_legacy_image(environment)
    channels, warnings = _read_imex_channels(spec, environment, policy)
    return ContainerRequest(
        devices=asked.devices,
        capabilities=_read_capabilities(environment, policy.supported_driver_capabilities, legacy=legacy),
        requirements=_collect_requirements(environment, policy, legacy=legacy),
        mig_config=_read_mig_management(environment, "NVIDIA_MIG_CONFIG_DEVICES", privileged=spec.privileged),
        mig_monitor=_read_mig_management(environment, "NVIDIA_MIG_MONITOR_DEVICES", privileged=spec.privileged),
        imex_channels=channels,
        extras=_read_extras(environment),
        mps=(mps := _read_mps(environment)),
        mps_provided=_mounts_pipes(spec, dict(mps)),
        memory_sizes=read_memory_sizes(environment),
        search_paths=_read_search_paths(environment, policy),
        source=asked.source,
        warnings=(*filter(None, (foreign_warning(asked),)), *warnings),
        legacy_image=legacy,
        every_list=environment.get(JETPACK_VARIABLE) == EVERY_LIST,
    )


def read_requirements(spec: ContainerSpec, policy: Policy) -> tuple[tuple[str, str], ...]:
    """Return (variable, expression) pairs, sorted: what the image demands of a host, whether it asks for GPUs or not.

    Raises InputError for a malformed environment or CUDA_VERSION.
    """
    environment = parse_environment(spec.environment)
    return _collect_requirements(environment, policy, legacy=is_legacy_image(environment))


def gate_warning(spec: ContainerSpec, policy: Policy) -> str:
    """Return why a container that asks for GPUs gets none although nothing failed, or "".

    That is the case where only privileged containers may ask by environment. For use after read_request said None.
    """
    if _environment_counts(spec, policy):
        return ""
    asked = asked_by_environment(lenient_environment(spec.environment), policy.swarm_resource)
    own = None if asked is None else asked.without_foreign(policy.cdi_default_kind)
    return _gate_text(own.source) if own is not None and own.devices else ""


def ignored_warning(spec: ContainerSpec, policy: Policy) -> str:
    """Return why a container gets nothing although it names devices: those of others, or gate_warning's reason."""
    mounted = mounted_devices(spec.mounts)[0] if policy.accept_volume_mounts else ()
    asked = asked_by_environment(lenient_environment(spec.environment), policy.swarm_resource)
    sources = (Asked(devices=mounted, source=_MOUNTS), asked or Asked(devices=(), source=""))
    foreign = (foreign_warning(source.without_foreign(policy.cdi_default_kind)) for source in sources)
    return gate_warning(spec, policy) or next(filter(None, foreign), "")


def parse_environment(entries: tuple[str, ...]) -> dict[str, str]:
    """Return the variables; the last of several entries with the same name counts.

    Raises InputError naming an entry without `=`.
    """
    for entry in entries:
        if "=" not in entry:
            raise InputError(
                f"the container's environment has the entry {quoted(entry)} without '='",
                "write NAME=value into process.env of its config.json",
            )
    return lenient_environment(entries)


def _environment_counts(spec: ContainerSpec, policy: Policy) -> bool:
    return spec.privileged or policy.accept_envvar_unprivileged


def _gate_text(source: str) -> str:
    return (
        f"{source} is ignored: the container is not privileged and "
        "accept-nvidia-visible-devices-envvar-when-unprivileged is false"
    )


def find_devices(spec: ContainerSpec, policy: Policy) -> Asked | None:
    """Return the first source that asks for something: mounts, then the environment.

    Devices of other vendors ask for nothing here.
    """
    if policy.accept_volume_mounts:
        devices, _ = mounted_devices(spec.mounts)
        for special in ("none", "void"):
            if special in devices:
                raise RequestError(
                    f"a mount below {MOUNT_PREFIX} asks for the device {quoted(special)}",
                    "name a device or 'all' there",
                )
        mounted = Asked(devices=devices, source=_MOUNTS).without_foreign(policy.cdi_default_kind)
        if mounted.devices:
            return mounted
    if not _environment_counts(spec, policy):
        return None
    asked = asked_by_environment(lenient_environment(spec.environment), policy.swarm_resource)
    own = None if asked is None else asked.without_foreign(policy.cdi_default_kind)
    return own if own is not None and own.devices else None


def foreign_warning(asked: Asked) -> str:
    """Return which devices of other vendors are left to others, "" where there are none."""
    if not asked.foreign:
        return ""
    return (
        f"{asked.source}: {_enumerate(asked.foreign)} is not NVIDIA's and is left alone; "
        "an engine that has CDI serves it (--device, or an annotation)"
    )


def _refuse_cdi_names(asked: Asked) -> None:
    names = tuple(token for token in asked.devices if is_cdi_name(token))
    if names:
        raise RequestError(
            f"{asked.source}: the hook cannot inject CDI devices ({_enumerate(names)})",
            "name them with --device of an engine that has CDI, or use a runtime shim in place of the hook",
        )


def _enumerate(names: tuple[str, ...]) -> str:
    """Return names for a message; an image can give a hundred thousand."""
    shown = ", ".join(map(quoted, names[:_LONGEST_LIST]))
    return shown if len(names) <= _LONGEST_LIST else f"{shown} and {len(names) - _LONGEST_LIST} more"


def _read_capabilities(environment: dict[str, str], supported: tuple[str, ...], *, legacy: bool) -> tuple[str, ...]:
    """Return the driver capabilities, sorted; raises RequestError naming each that is not supported."""
    value = environment.get(CAPABILITIES_VARIABLE)
    if value is None and legacy:
        return tuple(sorted(supported))
    tokens = split(value or "") or [name for name in DEFAULT_DRIVER_CAPABILITIES if name in supported]
    if "all" in tokens:
        return tuple(sorted(supported))
    refused = tuple(token for token in dict.fromkeys(tokens) if token not in supported)
    if refused:
        disallowed = all(token in DRIVER_CAPABILITIES for token in refused)
        raise RequestError(
            f"{CAPABILITIES_VARIABLE} asks for {_enumerate(refused)}, allowed are all, {', '.join(sorted(supported))}",
            "supported-driver-capabilities in config.toml sets the limit" if disallowed else "",
        )
    return tuple(sorted(set(tokens)))


def _collect_requirements(environment: dict[str, str], policy: Policy, *, legacy: bool) -> tuple[tuple[str, str], ...]:
    """Return what the image demands of the host; JetPack's variables mean something else and do not count."""
    if policy.disable_require or environment.get("NVIDIA_DISABLE_REQUIRE", "") in _TRUE:
        return ()
    found = [
        (name, value)
        for name, value in environment.items()
        if value and name.startswith("NVIDIA_REQUIRE_") and not name.startswith(JETPACK_VARIABLE)
    ]
    if legacy:
        major, minor = parse_cuda_version(environment["CUDA_VERSION"])
        found.append(("CUDA_VERSION", f"cuda>={major}.{minor}"))
    return tuple(sorted(found))


def _read_mig_management(environment: dict[str, str], variable: str, *, privileged: bool) -> str:
    value = environment.get(variable, "")
    if not value:
        return ""
    if not privileged:
        raise RequestError(
            f"{variable} is set in a container that is not privileged", "give it CAP_SYS_ADMIN or remove the variable"
        )
    if value.strip().lower() != "all":
        raise RequestError(f"{variable}={quoted(value)} is not supported", "only the value all is")
    return "all"


def read_limited(spec: ContainerSpec, devices: tuple[str, ...]) -> ContainerRequest | None:
    """Return a request for the limits of GPU memory alone, for devices that come another way; None without limits.

    Raises InputError for a malformed environment, RequestError for a limit that cannot be read.
    """
    environment = parse_environment(spec.environment)
    sizes = read_memory_sizes(environment)
    if not sizes:
        return None
    mps = _read_mps(environment)
    return ContainerRequest(
        devices=devices,
        capabilities=DEFAULT_DRIVER_CAPABILITIES,
        mps=mps,
        mps_provided=_mounts_pipes(spec, dict(mps)),
        memory_sizes=sizes,
    )


def read_memory_sizes(environment: dict[str, str]) -> tuple[MemorySize, ...]:
    """Return the limits of GPU memory that are asked for; raises RequestError for one that cannot be read."""
    if not any("_MEMORY_" in name and name.startswith("NVIDIA_") for name in environment):
        return ()
    from nvinject.core.memorylimits import read_sizes  # few containers ask

    return read_sizes(environment)


def _read_search_paths(environment: dict[str, str], policy: Policy) -> tuple[tuple[str, str], ...]:
    if policy.library_layout != NVIDIA_LAYOUT:
        return ()
    return tuple((name, environment[name]) for name in ("PATH", "LD_LIBRARY_PATH") if environment.get(name))


def _read_mps(environment: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the variables by which a container is a client of the multi-process service."""
    return tuple((name, value) for name, value in sorted(environment.items()) if name.startswith("CUDA_MPS_") and value)


def _mounts_pipes(spec: ContainerSpec, mps: dict[str, str]) -> bool:
    """Say whether somebody else shows the container a pipe directory: a device plug-in does, and sets the variable."""
    place = mps.get("CUDA_MPS_PIPE_DIRECTORY", "")
    if not place:
        return False
    # A source that is no path is a file system of the container's own, such as a tmpfs on /tmp.
    return any(
        source.startswith("/") and (place == target or place.startswith(f"{target.rstrip('/')}/"))
        for source, target in spec.mounts
    )


def read_extras(spec: ContainerSpec, policy: Policy) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the CDI names of node sets and IMEX channels that a container asks for by other means, and warnings.

    Raises InputError for a malformed environment, RequestError for a channel that cannot be.
    """
    environment = parse_environment(spec.environment)
    names = _read_extras(environment)
    channels, warnings = _read_imex_channels(spec, environment, policy)
    if not names and not channels:
        return (), warnings
    from nvinject.core.catalog import IMEX_KIND, node_set

    vendor = policy.cdi_default_kind.partition("/")[0]
    sets = tuple(f"{vendor}/{node_set(name).device_class}=all" for name in names)
    return (*sets, *(f"{vendor}/{IMEX_KIND}={channel}" for channel in channels)), warnings


def _read_extras(environment: dict[str, str]) -> tuple[str, ...]:
    """Return the node sets that are asked for. As in the original, no gate stands before them."""
    if "enabled" not in environment.values():
        return ()
    from nvinject.core.catalog import requested_node_sets  # few containers ask, and the shim reads requests of all

    return requested_node_sets(environment)


def _read_imex_channels(
    spec: ContainerSpec, environment: dict[str, str], policy: Policy
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the channel numbers and warnings: mounts come before the environment, as for devices."""
    if policy.features.ignore_imex_channel_requests:
        return (), ()
    mounted = mounted_devices(spec.mounts)[1] if policy.accept_volume_mounts else ()
    if mounted:
        return (() if mounted == ("all",) else _read_channel_numbers(mounted)), ()
    asked = interpret(split(environment.get(IMEX_VARIABLE, "")))
    if not asked or asked == ("none",):
        return (), ()
    if not _environment_counts(spec, policy):
        return (), (_gate_text(IMEX_VARIABLE),)
    if asked == ("all",):
        return (), (f"{IMEX_VARIABLE}=all is ignored: channels are asked for by number",)
    return _read_channel_numbers(asked), ()


def _read_channel_numbers(tokens: tuple[str, ...]) -> tuple[str, ...]:
    for token in tokens:
        if not is_decimal(token) or int(token) >= _IMEX_CHANNELS:
            raise RequestError(
                f"{IMEX_VARIABLE}: unsupported IMEX channel {quoted(token)}",
                f"channels are numbered from 0 to {_IMEX_CHANNELS - 1}",
            )
    return tuple(dict.fromkeys(str(int(token)) for token in tokens))
