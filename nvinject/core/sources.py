"""Sources: the places of a container's specification where devices are named, and how a list of names is read.

Belongs here: splitting, special tokens, the mounts that ask for devices with the cleaning of their paths, and whether
there is any of these. Does not belong here: which source may be used and wins (request.py).
"""

from nvinject.record import Record

OWN_VENDOR = "nvidia.com"
DEVICES_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
MOUNT_PREFIX = "/var/run/nvidia-container-devices"


class ContainerSpec(Record):
    """The parts of a container's config.json that can ask for a GPU.

    `environment` has raw `NAME=value` entries, `mounts` pairs of source and destination; `privileged` means that
    CAP_SYS_ADMIN is in the bounding set.
    """

    environment: tuple[str, ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    privileged: bool = False


class Asked(Record):
    """Device tokens and where they came from; `foreign` are CDI names of other vendors that stood among them."""

    devices: tuple[str, ...]
    source: str
    foreign: tuple[str, ...] = ()

    def without_foreign(self, own_kind: str) -> "Asked":
        """Return the same with other vendors' devices set apart; `own_kind` is one whose vendor is not another."""
        foreign = tuple(name for name in self.devices if is_foreign(name, own_kind))
        apart = frozenset(foreign)  # an environment can have a hundred thousand of them
        own = tuple(name for name in self.devices if name not in apart)
        return self.replace(devices=own, foreign=foreign) if foreign else self


def might_ask(spec: ContainerSpec, swarm: tuple[str, ...] | None = ()) -> bool:
    """Tell, without any configuration but the swarm-resource names, whether the container could ask for a GPU.

    Never raises. False means that read_request returns None under every policy with these swarm-resource names. Names
    that are not known (None) could be any variable, so every container might ask.
    """
    if swarm is None:
        return True
    environment = lenient_environment(spec.environment)
    return bool(mounted_devices(spec.mounts)[0]) or asked_by_environment(environment, swarm) is not None


def lenient_environment(entries: tuple[str, ...]) -> dict[str, str]:
    """Return the variables; the last of several entries with the same name counts, one without `=` does not."""
    return {name: value for name, separator, value in (entry.partition("=") for entry in entries) if separator}


def asked_by_environment(environment: dict[str, str], swarm: tuple[str, ...]) -> Asked | None:
    """Return what the environment asks for, or None.

    The swarm-resource variables count if one of them is set, all together; else NVIDIA_VISIBLE_DEVICES does; where that
    is not set either, an old CUDA image asks for everything.
    """
    names = [name for name in swarm if name in environment]
    if not names and DEVICES_VARIABLE in environment:
        names = [DEVICES_VARIABLE]
    if names:
        devices = interpret([token for name in names for token in split(environment[name])])
        return Asked(devices=devices, source=", ".join(names)) if devices else None
    if is_legacy_image(environment):
        return Asked(devices=("all",), source=f"CUDA_VERSION without {DEVICES_VARIABLE}")
    return None


def is_legacy_image(environment: dict[str, str]) -> bool:
    """Tell whether this is a CUDA image from before NVIDIA_REQUIRE_CUDA, which asks for all without saying so."""
    return bool(environment.get("CUDA_VERSION")) and not environment.get("NVIDIA_REQUIRE_CUDA")


def split(value: str) -> list[str]:
    """Return the tokens of a comma-separated value, trimmed, without empty ones."""
    return [token for token in (part.strip() for part in value.split(",")) if token]


def interpret(tokens: list[str]) -> tuple[str, ...]:
    """Apply the special tokens: `void` anywhere is no request, else the first of `all` and `none` decides."""
    if "void" in tokens:
        return ()
    for token in tokens:
        if token in {"all", "none"}:
            return (token,)
    return tuple(dict.fromkeys(tokens))


def mounted_devices(mounts: tuple[tuple[str, str], ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the devices and the IMEX channels that are asked for by mounts of /dev/null.

    The destination has to begin with the text of the prefix; as in the original, no separator needs to follow it.
    """
    devices: list[str] = []
    channels: list[str] = []
    for source, destination in mounts:
        cleaned = clean_path(destination)
        if not cleaned.startswith(MOUNT_PREFIX) or clean_path(source) != "/dev/null":
            continue
        name = cleaned[len(MOUNT_PREFIX) :].strip("/")
        if name.startswith("imex/"):
            channels.append(name[len("imex/") :])
        elif name.startswith("cdi/"):
            devices += _mounted_cdi_name(name[len("cdi/") :])
        elif name:
            devices.append(name)
    return tuple(dict.fromkeys(devices)), tuple(dict.fromkeys(channels))


def is_cdi_name(token: str) -> bool:
    """Tell whether the token is a fully qualified CDI name, vendor/class=device (CDI specification, "Kinds")."""
    kind, equals, device = token.partition("=")
    vendor, slash, device_class = kind.partition("/")
    if not (equals and slash and vendor[:1].isalpha() and device_class[:1].isalpha() and device):
        return False
    parts = ((vendor, "_-."), (device_class, "_-"), (device, "_-.:"))
    return all(
        character.isascii() and (character.isalnum() or character in extra)
        for part, extra in parts
        for character in part
    )


def _mounted_cdi_name(name: str) -> list[str]:
    """Return the name as `vendor/class=device`; nothing if it is malformed, which the original ignores as well."""
    if "=" not in name and name.count("/") == 2:
        name = "=".join(name.rsplit("/", 1))
    return [name] if is_cdi_name(name) else []


def clean_path(path: str) -> str:
    """Return the path without empty, `.` and `..` components; a relative one stays below where it begins."""
    kept: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del kept[-1:]
        elif part not in {"", "."}:
            kept.append(part)
    return ("/" if path.startswith("/") else "") + "/".join(kept)


def is_foreign(token: str, own_kind: str) -> bool:
    """Tell whether the token is a CDI name of another vendor's device, which is served by whoever has its specs.

    NVIDIA's vendors are nvidia.com and what ends in .nvidia.com (runtime, management, the device plug-in's);
    `own_kind` is the kind that the configuration gives to names without one, whoever its vendor is.
    """
    if not is_cdi_name(token):
        return False
    vendor = token.partition("/")[0]
    return vendor not in {OWN_VENDOR, own_kind.partition("/")[0]} and not vendor.endswith(f".{OWN_VENDOR}")
