"""Diagnosis of what stands between driver and container: nvinject's installation, engines, CDI specs, device rules.

Belongs here: rules, from values that were observed. Does not belong here: looking (host, cli) and the machine itself
(machinediagnosis.py).
"""

from nvinject.core.finding import ERROR, WARNING, Finding
from nvinject.record import Record


class Installation(Record):
    """What was found of nvinject: the launcher ("" for none) with its prefix, and what is wrong with it.

    `changed` and `gone` are files that differ from what was laid down, `fault` is why the launcher does not run, `hook`
    is the prestart hook that PATH finds, `is_ours` whether that is ours.
    """

    launcher: str = ""
    prefix: str = ""
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    fault: str = ""
    hook: str = ""
    is_ours: bool = True
    configuration_error: str = ""
    configuration_warnings: tuple[str, ...] = ()
    configuration_path: str = ""


class Engine(Record):
    """A container engine: its configuration, its runtimes as (name, path), those that cannot be run, and its daemon.

    `started` and `changed` are times in seconds: of the daemon (0: it does not run) and of the last change of the
    configuration, which was that of `changed_path`. `serves` says in which way containers can get GPUs ("" for none).
    """

    name: str
    path: str
    error: str = ""
    runtimes: tuple[tuple[str, str], ...] = ()
    broken: tuple[tuple[str, str], ...] = ()
    started: float = 0.0
    changed: float = 0.0
    changed_path: str = ""
    serves: str = ""


class SpecFault(Record):
    """Something wrong with a CDI spec: its file, a kind (a key of SPEC_FAULTS), what it is, what mends it."""

    path: str
    kind: str
    problem: str
    remedy: str = ""
    is_warning: bool = False


class Access(Record):
    """A running container with GPU nodes: those that its cgroup forbids, and those that its systemd unit lacks."""

    name: str
    denied: tuple[str, ...] = ()
    unit: str = ""
    fleeting: tuple[str, ...] = ()


RESTARTS = {
    "docker": "systemctl restart docker",
    "containerd": "systemctl restart containerd",
    "cri-o": "systemctl restart crio",
    "k3s": "systemctl restart k3s (on an agent: k3s-agent)",
    "rke2": "systemctl restart rke2-server (on an agent: rke2-agent)",
}
# The engine's name for `runtime configure`, where it is another; the generated file names its engine.
CONFIGURED_AS = {
    "cri-o": "crio",
    "k3s": "containerd --config /var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "rke2": "containerd --config /var/lib/rancher/rke2/agent/etc/containerd/config.toml",
}
# kind of a fault, with the name of its finding and why it matters
SPEC_FAULTS = {
    "rejected": ("cdi-spec-invalid", "engines ignore the whole file and only say that a device is unresolvable"),
    "conflict": ("cdi-conflict", "engines know no device that two files define with the same priority"),
    "stale": ("cdi-spec-stale", "containers get files of a driver that is no longer loaded, or do not start"),
    "mount": ("cdi-file-missing", "a container that asks for the device does not start"),
    "node": ("cdi-node-wrong", "a container that asks for the device does not start, or gets another device"),
    "hook": ("cdi-hook-broken", "a container that asks for the device does not start"),
    "unsafe": ("cdi-hook-unsafe", "the hook runs with the container's environment (CVE-2025-23266)"),
    "permissions": ("cdi-spec-permissions", "who cannot read a spec has no device, who can change it is root"),
    "directory": ("cdi-directory", "the file or directory is read by no engine"),
    "absent": ("cdi-spec-missing", "every container that asks for a GPU fails with an unresolvable device"),
}


def judge_installation(found: Installation) -> list[Finding]:
    """Return what is wrong with the installation and its configuration."""
    if found.launcher:
        return [*judge_files(found), *judge_configuration(found)]
    missing = _toolkit(
        "toolkit-missing",
        ERROR,
        "nvinject is not installed: no launcher on PATH, in /usr/local or in /usr",
        "engines find neither hook nor runtime",
        "nvinject install --prefix /usr/local --links",
    )
    return [missing, *judge_configuration(found)]


def judge_files(found: Installation) -> list[Finding]:
    """Return what is wrong with installed files."""
    again = f"nvinject install --prefix {found.prefix or '/usr/local'} --links"
    # A launcher that was changed and does not run is told of once.
    changed = tuple(path for path in found.changed if not (found.fault and path == found.launcher))
    rows = (
        (
            bool(found.gone),
            "toolkit-incomplete",
            ERROR,
            f"installed files are gone: {', '.join(found.gone)}",
            "an engine that is set up for them starts no container",
            again,
        ),
        (
            bool(changed),
            "toolkit-changed",
            WARNING,
            f"installed files were changed: {', '.join(changed)}",
            "another package has replaced them, or somebody edits what runs as root",
            again,
        ),
        (
            bool(found.fault and not found.gone),
            "toolkit-broken",
            ERROR,
            f"{found.launcher} does not run: {found.fault}",
            "every container that asks for a GPU fails to start",
            again,
        ),
        (
            bool(found.hook and not found.is_ours),
            "toolkit-shadowed",
            WARNING,
            f"PATH finds another toolkit's {found.hook} first",
            "docker --gpus calls that one",
            "remove the other toolkit, or put nvinject's directory first in the engine's PATH",
        ),
    )
    return [_toolkit(*finding) for is_so, *finding in rows if is_so]


def _toolkit(name: str, severity: str, what: str, why: str, remedy: str) -> Finding:
    return Finding(name=name, layer="toolkit", severity=severity, what=what, why=why, remedy=remedy)


def judge_configuration(found: Installation) -> list[Finding]:
    """Return what is wrong with config.toml."""
    findings = []
    if found.configuration_error:
        findings.append(
            _toolkit(
                "config-invalid",
                ERROR,
                found.configuration_error,
                "containers that ask for GPUs do not start",
                f"nvinject config validate (file: {found.configuration_path})",
            )
        )
    findings += [
        _toolkit(
            "config-suspicious",
            WARNING,
            warning,
            "the setting has no effect, or another one than was meant",
            "nvinject config validate",
        )
        for warning in found.configuration_warnings
    ]
    return findings


def judge_engine(engine: Engine) -> list[Finding]:
    """Return what is wrong with an engine's configuration."""
    if engine.error:
        return [
            _engine(
                "engine-config-invalid",
                ERROR,
                f"{engine.path}: {engine.error}",
                f"{engine.name} does not start with it",
                "mend the file at that place",
            )
        ]
    findings = [_broken_runtime(engine, name, path) for name, path in engine.broken]
    if engine.started and not engine.serves and not findings:
        findings.append(
            _engine(
                "engine-not-configured",
                WARNING,
                f"{engine.name} runs, and knows no way to give GPUs to containers",
                "containers that ask for GPUs fail, or start without them",
                f"nvinject runtime configure --runtime {CONFIGURED_AS.get(engine.name, engine.name)}",
            )
        )
    if engine.started and engine.changed > engine.started + 1:
        findings.append(
            _engine(
                "engine-not-restarted",
                WARNING,
                f"{engine.changed_path or engine.path} was changed after {engine.name} was started",
                "the change has no effect until then",
                RESTARTS.get(engine.name, f"restart {engine.name}"),
            )
        )
    return findings


def _broken_runtime(engine: Engine, name: str, path: str) -> Finding:
    return _engine(
        "engine-runtime-missing",
        ERROR,
        f"{engine.path} names the runtime {name} as {path}, which is no program",
        "every container with that runtime fails to start",
        "nvinject install --prefix /usr/local --links, or nvinject runtime configure with the right path",
    )


def _engine(name: str, severity: str, what: str, why: str, remedy: str) -> Finding:
    return Finding(name=name, layer="engine", severity=severity, what=what, why=why, remedy=remedy)


def judge_specs(faults: tuple[SpecFault, ...]) -> list[Finding]:
    """Return one finding for each kind of fault of each file."""
    groups: dict[tuple[str, str], list[SpecFault]] = {}
    for fault in faults:
        groups.setdefault((fault.path, fault.kind), []).append(fault)
    findings = []
    for (path, kind), several in groups.items():
        name, why = SPEC_FAULTS[kind]
        problems = list(dict.fromkeys(fault.problem for fault in several))
        more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
        findings.append(
            Finding(
                name=name,
                layer="cdi",
                severity=WARNING if all(fault.is_warning for fault in several) else ERROR,
                what=f"{path}{': ' if path else ''}{'; '.join(problems[:3])}{more}",
                why=why,
                remedy=several[0].remedy or "nvinject cdi refresh",
            )
        )
    return findings


def without_consequences(faults: tuple[SpecFault, ...]) -> tuple[SpecFault, ...]:
    """Return faults without those that the age of their file explains: an old spec names files that are gone."""
    stale = {fault.path for fault in faults if fault.kind == "stale"}
    return tuple(fault for fault in faults if fault.path not in stale or fault.kind not in {"mount", "node"})


def judge_access(access: Access) -> list[Finding]:
    """Return what a running container may not do, or will not be allowed any more."""
    findings = []
    if access.denied:
        findings.append(
            Finding(
                name="container-device-denied",
                layer="cgroup",
                severity=ERROR,
                what=f"container {access.name} has {', '.join(access.denied)}, but its cgroup forbids to open it",
                why='programs in it say "Failed to initialize NVML: Unknown Error"',
                remedy="restart the container; mode jit or cdi in config.toml keeps it from happening again",
            )
        )
    elif access.fleeting:
        findings.append(
            Finding(
                name="container-device-fleeting",
                layer="cgroup",
                severity=WARNING,
                what=f"the systemd unit {access.unit} of container {access.name} does not list "
                f"{', '.join(access.fleeting)} in DeviceAllow",
                why="the next `systemctl daemon-reload` takes the GPUs away from it",
                remedy="use the runtime or CDI instead of the prestart hook, and restart the container",
            )
        )
    return findings


def unit_allows(
    lines: tuple[str, ...], path: str, major: int, minor: int, classes: tuple[tuple[str, int], ...]
) -> bool:
    """Say whether DeviceAllow= lines of a systemd unit (systemd.resource-control(5)) cover a character device.

    An empty assignment forgets the lines before it. Without a line, nothing is restricted.
    """
    allowed: list[str] = []
    for line in lines:
        if not line:
            allowed = []
        else:
            allowed.append(line.split()[0])
    if not lines:
        return True
    names = [name for name, number in classes if number == major]
    for word in allowed:
        if word in {path, f"/dev/char/{major}:{minor}", f"char-{major}"}:
            return True
        group = word.removeprefix("char-")
        if group != word and any(_matches(group, name) for name in names):
            return True
    return False


def _matches(pattern: str, name: str) -> bool:
    # systemd knows globs; in unit files that runtimes write they are names or end in a star.
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
