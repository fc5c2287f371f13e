"""What doctor looks at above the driver: our installation, engines, CDI specs.

Belongs here: looking. Does not belong here: what follows (core.servicediagnosis).
"""

import os

from nvinject.cli.discovery import discover_host, search_path
from nvinject.cli.install import LAUNCHER_NAME
from nvinject.cli.manifest import CHANGED, GONE, read_manifest
from nvinject.core.policy import Policy
from nvinject.core.servicediagnosis import Engine, Installation, SpecFault, without_consequences
from nvinject.core.sources import is_foreign
from nvinject.errors import NvinjectError, UsageError
from nvinject.host.enginefiles import HOOK, find_engines, find_program, read_text
from nvinject.host.registry import Registry, SpecFile, read_registry
from nvinject.host.speccheck import (
    ERROR,
    WARNING,
    Finding,
    HostState,
    check_age,
    check_hook,
    check_mount,
    check_node,
    check_permissions,
)

LAUNCHER_MARK = "# Written by `nvinject install`"
HEAD = 4096
RUN_SECONDS = 60
PREFIXES = ("/usr/local", "/usr", "/opt/nvinject")


def find_installation(prefix: str = "") -> Installation:
    """Return what is installed, in the given prefix or where PATH and the usual prefixes have it."""
    searched = search_path(os.environ)
    directories = [f"{prefix}/bin"] if prefix else [*searched.split(":"), *(f"{one}/bin" for one in PREFIXES)]
    launcher = next((path for one in directories if is_launcher(path := f"{one}/{LAUNCHER_NAME}")), "")
    if not launcher:
        return Installation()
    home = os.path.dirname(os.path.dirname(os.path.realpath(launcher)))
    try:
        entries = read_manifest(home).entries
    except UsageError:
        entries = ()
    hook = find_program(HOOK, searched)
    return Installation(
        launcher=launcher,
        prefix=home,
        changed=tuple(entry.path for entry in entries if entry.state() == CHANGED),
        gone=tuple(entry.path for entry in entries if entry.state() == GONE),
        fault=try_launcher(launcher),
        hook=hook,
        is_ours=not hook or os.path.realpath(hook) == os.path.realpath(launcher),
    )


def is_launcher(path: str) -> bool:
    """Say whether a file is a launcher that install wrote."""
    return LAUNCHER_MARK in read_text(path)[:HEAD]


def try_launcher(launcher: str) -> str:
    """Return why a launcher does not run, "" where it does."""
    import subprocess

    try:
        done = subprocess.run(
            [launcher, "--version"], capture_output=True, text=True, check=False, env={}, timeout=RUN_SECONDS
        )
    except FileNotFoundError:
        interpreter = read_text(launcher).splitlines()[0].removeprefix("#!").split(" ")[0]
        return f"its interpreter {interpreter} does not exist"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no output"])[-1]


def list_engines() -> tuple[Engine, ...]:
    """Return the engines of this host."""
    return find_engines(search_path(os.environ))


def find_spec_faults(policy: Policy, engines: tuple[Engine, ...] = ()) -> tuple[SpecFault, ...]:
    """Return what is wrong with the CDI specs that engines read."""
    registry = read_registry(policy.cdi_spec_dirs)
    found = [SpecFault(path="", kind="directory", problem=problem, is_warning=True) for problem in registry.problems]
    ours = [file for file in registry.files if file.spec is None or "nvidia" in file.spec.kind]
    host = find_host_state(policy) if ours else HostState()
    for file in ours:
        found += check_file(file, host)
    for name, paths in registry.conflicts().items():
        problem = f"{' and '.join(paths)} define {name} with the same priority"
        remedy = f"rm {paths[-1]} (or the other one)"
        foreign = is_foreign(name, policy.cdi_default_kind)
        found.append(SpecFault(path="", kind="conflict", problem=problem, remedy=remedy, is_warning=foreign))
    found += find_absence(policy, registry, tuple(engine.name for engine in engines if engine.serves == "cdi"))
    return without_consequences(tuple(found))


def check_file(file: SpecFile, host: HostState) -> list[SpecFault]:
    """Return what is wrong with one file."""
    if file.spec is None:
        # Whose it is, only its name tells: other tools' files keep nobody from NVIDIA's devices.
        ours = "nvidia" in os.path.basename(file.path)
        remedy = "nvinject cdi refresh" if ours else "mend it with the tool that wrote it, or remove it"
        return [SpecFault(path=file.path, kind="rejected", problem=file.error, remedy=remedy, is_warning=not ours)]
    found = [_fault("permissions", finding) for finding in check_permissions(file.path)]
    found += [_fault("stale", finding) for finding in check_age(file, host)]
    for where, edits in file.spec.every_edits():
        for number, hook in enumerate(edits.hooks):
            for finding in check_hook(file.path, f"{where}.hooks[{number}]", hook):
                found.append(_fault("unsafe" if "has no env" in finding.problem else "hook", finding))
        for mount in edits.mounts:
            found += [_fault("mount", finding) for finding in check_mount(file.path, where, mount)]
        for node in edits.device_nodes:
            found += [_fault("node", finding) for finding in check_node(file.path, where, node)]
    return found


def _fault(kind: str, finding: Finding) -> SpecFault:
    assert finding.severity in {ERROR, WARNING}
    remedy = finding.remedy if kind == "permissions" else ""
    return SpecFault(
        path=finding.path,
        kind=kind,
        problem=finding.problem,
        remedy=remedy,
        is_warning=finding.severity == WARNING,
    )


def find_absence(policy: Policy, registry: Registry, engines: tuple[str, ...]) -> list[SpecFault]:
    """Return whether specs are needed and there is none of ours; `engines` have no other way to give GPUs."""
    if any(name.startswith(f"{policy.cdi_default_kind}=") for name in registry.devices()) or registry.rejected():
        return []
    users = ["nvidia-container-runtime.mode is cdi"] if policy.mode == "cdi" else []
    users += [f"{engine} gives GPUs by CDI alone" for engine in engines]
    if not users:
        return []
    problem = f"{' and '.join(users)}, but no spec in {', '.join(policy.cdi_spec_dirs)} has devices"
    return [
        SpecFault(
            path="",
            kind="absent",
            problem=f"{problem} of kind {policy.cdi_default_kind}",
            remedy="nvinject cdi generate --output /etc/cdi/nvidia.yaml",
        )
    ]


def find_host_state(policy: Policy) -> HostState:
    """Return driver and devices of this host, nothing where it has none."""
    from nvinject.cli.cdigenerate import stamp_of

    try:
        stamp = stamp_of(discover_host(policy, (), os.environ, nvml=False))
    except NvinjectError:
        return HostState()
    return HostState(driver_version=stamp.driver_version, devices=stamp.devices)
