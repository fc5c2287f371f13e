"""What the options of nvinject cdi generate mean on this host: everything that a spec depends on, and where it goes.

Belongs here: reading and refusing options. Does not belong here: their names and forms (cdioptions.py), making the spec
(cdigenerate.py).
"""

import os

from nvinject.cli.cdioptions import MODES, STAMPS
from nvinject.cli.messages import warn
from nvinject.core import catalog, naming
from nvinject.core.policy import DRIVER_CAPABILITIES, Policy
from nvinject.errors import UsageError
from nvinject.formats import cdi
from nvinject.record import Record
from nvinject.render.cdi import (
    DISABLE_DEVICE_NODE_MODIFICATION,
    UPDATE_APPLICATION_PROFILE,
    HookSettings,
)
from nvinject.render.specfile import format_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from nvinject.host.tegra import Wanted

HOOK_PROGRAMS = ("nvidia-cdi-hook", "nvinject")
NEEDS_SUBCOMMAND = ("nvidia-ctk", "nvinject")
KNOWN_FLAGS = ("no-additional-gids-for-device-nodes", "disable-ipc-discoverer", "disable-multiple-csv-devices")
VENDOR = "nvidia.com"
# Kinds where none is given: another one for each mode, so that no two of them have devices of the same name.
KINDS = {
    "nvml": (VENDOR, "gpu"),
    "csv": (VENDOR, "gpu"),
    "wsl": (VENDOR, "gpu"),
    "management": ("management.nvidia.com", "gpu"),
    "imex": (VENDOR, "imex-channel"),
    **{row.name: (VENDOR, row.device_class) for row in catalog.NODE_SETS},
}


class Settings(Record):
    """Everything that a spec depends on besides the host; `lists` is set for mode csv."""

    policy: Policy
    mode: str
    kind: str
    hooks: HookSettings
    device_ids: tuple[str, ...] = ("all",)
    strategies: tuple[str, ...] = naming.DEFAULT_STRATEGIES
    capabilities: tuple[str, ...] = ()
    search_path: str = ""
    all_device: bool = True
    additional_groups: bool = True
    sockets: bool = True
    stamp: str = "comment"
    library_directories: tuple[str, ...] = ()
    configuration_directories: tuple[str, ...] = ()
    lists: "Wanted | None" = None


class Target(Record):
    """Where a spec goes: `output` is a file, a directory with `per_device`, or "" for standard output."""

    output: str
    form: str
    per_device: bool = False


def read_target(options: "Mapping[str, Any]") -> Target:
    """Return where the spec goes; raises UsageError for one file a device without a directory."""
    output = options["output"]
    if options["per_device"] and not output:
        raise UsageError("--per-device needs a directory", "name it with --output")
    return Target(output=output, form=format_of(output, options["format"]), per_device=options["per_device"])


def read_settings(options: "Mapping[str, Any]", environ: "Mapping[str, str]") -> Settings:
    """Return the settings that options mean; raises UsageError and ConfigurationError."""
    from nvinject.cli.discovery import search_path

    policy = read_policy(options, environ)
    mode = options["mode"].lower()
    if mode not in MODES:
        raise UsageError(f"invalid discovery mode: {options['mode']}", f"use one of {', '.join(MODES)}")
    mode = resolve_mode(mode, policy)
    flags = options["feature_flag"]
    for name in options["device_name_strategy"]:
        if name not in naming.STRATEGIES:
            raise UsageError(f"invalid device name strategy: {name}", f"use some of {', '.join(naming.STRATEGIES)}")
    if options["stamp"] not in STAMPS:
        raise UsageError(f"invalid --stamp: {options['stamp']}", f"use one of {', '.join(STAMPS)}")
    warn_about_ignored(options, mode)
    ids = options["device_id"]
    return Settings(
        policy=policy.replace(jit_feature_flags=flags),
        mode=mode,
        kind=read_kind(mode, options["vendor"], options["class"]),
        hooks=read_hooks(options, mode, environ),
        device_ids=ids,
        strategies=options["device_name_strategy"],
        capabilities=read_capabilities(options["capability"], mode),
        search_path=search_path(environ),
        all_device=not options["no_all_device"] and "none" not in ids,
        additional_groups=not (
            policy.features.no_additional_gids_for_device_nodes or "no-additional-gids-for-device-nodes" in flags
        ),
        sockets="disable-ipc-discoverer" not in flags,
        stamp=options["stamp"],
        library_directories=read_directories(options, "library_search_path"),
        configuration_directories=read_directories(options, "config_search_path"),
        lists=read_lists(options) if mode == "csv" else None,
    )


def read_lists(options: "Mapping[str, Any]") -> "Wanted":
    """Return what mode csv shall read; raises UsageError for a relative folder of containers."""
    from nvinject.host.tegra import Wanted

    compat = options["csv_compat_container_root"]
    if compat and not compat.startswith("/"):
        raise UsageError(f"--csv.compat-container-root {compat} is relative", "give a path of the container's")
    return Wanted(
        files=tuple(os.path.abspath(path) for path in options["csv_file"]),
        ignored=options["csv_ignore_pattern"],
        library_directories=read_directories(options, "library_search_path"),
        compat_directory=compat,
    )


def read_directories(options: "Mapping[str, Any]", name: str) -> tuple[str, ...]:
    """Return the directories of an option; raises UsageError for a relative one."""
    directories: tuple[str, ...] = options[name]
    for directory in directories:
        if not directory.startswith("/"):
            raise UsageError(
                f"--{name.replace('_', '-')} {directory} is relative", "give it as it is below the driver root"
            )
    return directories


def read_policy(options: "Mapping[str, Any]", environ: "Mapping[str, str]") -> Policy:
    """Return the node's policy with the roots that options name."""
    from nvinject.config import load_policy
    from nvinject.configfile import find_config

    path, required = (options["config"], True) if options["config"] else find_config(environ)
    policy, warnings = load_policy(path, required=required)
    for warning in warnings:
        warn(warning)
    roots = policy.roots
    if options["driver_root"]:
        # The original looks for nodes below the driver root too, unless told otherwise.
        roots = roots.replace(driver=os.path.abspath(options["driver_root"]), dev="")
    if options["dev_root"]:
        roots = roots.replace(dev=os.path.abspath(options["dev_root"]))
    return policy.replace(roots=roots)


def resolve_mode(mode: str, policy: Policy) -> str:
    """Return the mode that is meant: with auto that of the host's platform."""
    if mode != "auto":
        return mode
    from nvinject.host.platforms import find_platform

    platform = find_platform(policy)
    return "nvml" if platform is None else platform.mode


def read_kind(mode: str, vendor: str, device_class: str) -> str:
    """Return vendor/class: as given, else as is usual for the mode; raises UsageError for names that cannot be."""
    default_vendor, default_class = KINDS[mode]
    parts = (vendor or default_vendor, device_class or default_class)
    for part, checker, what in zip(parts, (cdi.check_vendor, cdi.check_class), ("vendor", "class"), strict=True):
        try:
            checker(part)
        except cdi.CdiError as error:
            raise UsageError(f"invalid CDI {what} name: {error.reason}", "use letters, digits, - and .") from None
    return "/".join(parts)


def read_hooks(options: "Mapping[str, Any]", mode: str, environ: "Mapping[str, str]") -> HookSettings:
    """Return the program that runs as hook and which hooks are wanted."""
    enabled, disabled = frozenset(options["enable_hook"]), frozenset(options["disable_hook"])
    if "all" in enabled:
        raise UsageError("enabling all hooks is not supported", "name the hooks")
    if mode == "management":
        # Such containers make device nodes, and draw nothing.
        disabled |= {DISABLE_DEVICE_NODE_MODIFICATION, UPDATE_APPLICATION_PROFILE}
        enabled -= {DISABLE_DEVICE_NODE_MODIFICATION, UPDATE_APPLICATION_PROFILE}
    path = find_hook_program(options["nvidia_cdi_hook_path"], environ)
    name = os.path.basename(path)
    return HookSettings(
        path=path,
        words=(name, "hook") if name in NEEDS_SUBCOMMAND else (name,),
        disabled=disabled,
        enabled=enabled,
        ldconfig_path=options["ldconfig_path"],
    )


def find_hook_program(given: str, environ: "Mapping[str, str]") -> str:
    """Return the absolute path of the program that runs as hook ("" where there is none).

    A path that is given is taken as it is, since it may lie elsewhere when containers start. Raises UsageError for a
    relative one: a runtime would look for it in the container's root file system.
    """
    if "/" in given:
        if not given.startswith("/"):
            raise UsageError(f"the hook's path {given} is relative", "give an absolute path")
        return given
    directories = [entry for entry in environ.get("PATH", "").split(":") if entry.startswith("/")]
    for name in (given,) if given else HOOK_PROGRAMS:
        for directory in (*directories, "/usr/bin", "/usr/local/bin"):
            path = os.path.join(directory, name)
            if os.access(path, os.X_OK) and not os.path.isdir(path):
                return path
    if given:
        raise UsageError(f"the hook {given} is not on PATH", "give its absolute path")
    return ""


def read_capabilities(given: tuple[str, ...], mode: str) -> tuple[str, ...]:
    """Return the driver capabilities whose files a spec has: those given, else the whole driver."""
    unknown = [name for name in given if name not in DRIVER_CAPABILITIES]
    if unknown:
        raise UsageError(f"unknown driver capability: {unknown[0]}", f"use some of {', '.join(DRIVER_CAPABILITIES)}")
    if given:
        return tuple(sorted(given))
    left_out = {"compat32", "graphics", "display"} if mode == "management" else {"compat32"}
    return (*(name for name in DRIVER_CAPABILITIES if name not in left_out), catalog.WHOLE_DRIVER)


def warn_about_ignored(options: "Mapping[str, Any]", mode: str) -> None:
    """Tell which options and feature flags have no effect here."""
    for name in ("file", "ignore-pattern", "compat-container-root"):
        if options[f"csv_{name.replace('-', '_')}"] and mode != "csv":
            warn(f"--csv.{name} is ignored: the mode is {mode}")
    for flag in options["feature_flag"]:
        if flag not in KNOWN_FLAGS:
            warn(f"feature flag {flag} is ignored; known are {', '.join(KNOWN_FLAGS)}")
