"""Diagnosis of a machine: PCI bus, kernel module, versions, device nodes and NVML, from values that were observed.

Belongs here: rules, and which fault explains another, so that one fault gives one finding. Does not belong here:
looking (host.examination), and what is above the driver (servicediagnosis.py).
"""

from nvinject.core import catalog
from nvinject.core.finding import ERROR, NOTE, WARNING, Finding
from nvinject.record import Record

DRIVER = "nvidia"
_NODE_FAULTS = {"missing": "node-missing", "number": "node-wrong-number", "type": "node-not-device"}


class PciFunction(Record):
    """A GPU on the bus and the kernel driver that has it ("" for none)."""

    bus_id: str
    driver: str = ""


class NodeState(Record):
    """A node that should be there: `fault` says what is wrong with its path, `mode` is what was found.

    `kind` is one of "", missing, number and type; `wanted_mode` is what the driver wants, `remedy` makes the node.
    """

    path: str
    kind: str = ""
    fault: str = ""
    mode: int = 0
    wanted_mode: int = 0
    remedy: str = ""
    reason: str = ""

    @property
    def is_open(self) -> bool:
        """Tell whether all may use it whom the driver wants to."""
        return self.mode & self.wanted_mode == self.wanted_mode


class NvmlState(Record):
    """What came of asking NVML: an error with its remedy, or the GPUs that it shows and those it has lost."""

    error: str = ""
    remedy: str = ""
    timed_out: bool = False
    gpus: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


class MpsState(Record):
    """The multi-process service of a host that has a pipe directory, or names one; `fault` is why it does not run.

    `named_by` is the setting or variable that names the directory ("" for the usual one).
    """

    directory: str
    fault: str = ""
    named_by: str = ""


class Machine(Record):
    """Everything that was observed; None where something could not be looked at.

    `shown` are bus addresses of GPUs that the driver shows, `excluded` of those that it was told to leave alone.
    `libraries` are (start of the SONAME, version) of libraries that are not of the module's version; `has_libraries`
    tells whether one of every installation is there in the module's version. `unlinked` are nodes without their link
    in /dev/char, observed only where systemd sets device rules. `mps` is None where nothing tells of that service.
    `faults` are things that could not be read. Where nodes are given (`is_given_nodes`: the driver makes none), those
    that are missing are not this host's.
    """

    pci: tuple[PciFunction, ...] | None = None
    version: str = ""
    open_source: bool = False
    classes: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    has_libraries: bool = False
    has_management_library: bool = False
    in_loader_cache: bool = True
    libraries: tuple[tuple[str, str], ...] = ()
    firmware: int = 0
    is_given_nodes: bool = False
    nodes: tuple[NodeState, ...] = ()
    unlinked: tuple[str, ...] = ()
    nvml: NvmlState | None = None
    mps: MpsState | None = None
    faults: tuple[str, ...] = ()


def judge(machine: Machine) -> tuple[Finding, ...]:
    """Return what is wrong with the machine; a layer whose ground is missing is not judged."""
    if machine.faults:
        return tuple(judge_faults(machine))
    findings = [*judge_bus(machine), *judge_module(machine)]
    if not machine.version:
        return tuple(findings)
    findings += judge_versions(machine)
    findings += judge_nodes(machine)
    if machine.nvml is not None:
        findings += judge_nvml(machine)
    if machine.mps is not None:
        findings += judge_mps(machine.mps)
    return tuple(findings)


def judged_layers(machine: Machine) -> tuple[str, ...]:
    """Return the layers that could be judged; where something fails, what rests on it tells nothing."""
    if machine.faults:
        return ("bus",) if machine.pci is not None else ()
    layers = (
        ("bus", machine.pci is not None),
        ("module", machine.pci != () or bool(machine.version)),
        ("versions", bool(machine.version)),
        ("nodes", bool(machine.version)),
        ("nvml", machine.nvml is not None),
        ("mps", bool(machine.version) and machine.mps is not None),
        ("cgroup", bool(machine.version)),
    )
    return tuple(name for name, judged in layers if judged)


def judge_faults(machine: Machine) -> list[Finding]:
    """Return what could not be looked at."""
    return [
        Finding(
            name="unreadable",
            layer="module",
            severity=ERROR,
            what=fault,
            why="what cannot be read cannot be given to containers either",
            remedy="nvinject info",
        )
        for fault in machine.faults
    ]


def judge_bus(machine: Machine) -> list[Finding]:
    """Return what is wrong with the GPUs on the bus."""
    if machine.pci is None:
        return []
    if not machine.pci and not machine.shown:
        return [
            Finding(
                name="no-gpu",
                layer="bus",
                severity=ERROR,
                what="there is no NVIDIA GPU on the PCI bus",
                why="without one there is nothing to give to a container",
                remedy="lspci -d 10de: (look for the card, its power cable, and the hypervisor's passthrough)",
            )
        ]
    findings = [_taken(function) for function in machine.pci if function.driver not in {"", DRIVER}]
    known = {*machine.shown, *machine.excluded}
    missing = [one.bus_id for one in machine.pci if one.driver in {"", DRIVER} and one.bus_id not in known]
    if machine.version and missing:
        findings.append(
            Finding(
                name="gpu-not-shown",
                layer="bus",
                severity=ERROR,
                what=f"the driver does not show the GPU at {', '.join(missing)}, which is on the PCI bus",
                why="containers that ask for all GPUs silently get fewer",
                remedy="dmesg | grep -i -e NVRM -e Xid",
            )
        )
    return findings


def _taken(function: PciFunction) -> Finding:
    return Finding(
        name="gpu-taken",
        layer="bus",
        severity=WARNING,
        what=f"the GPU at {function.bus_id} belongs to the kernel driver {function.driver}",
        why="NVIDIA's driver cannot use it, so containers do not see it",
        remedy=f"echo {function.bus_id} > /sys/bus/pci/drivers/{function.driver}/unbind; modprobe nvidia"
        if function.driver != "nouveau"
        else "echo 'blacklist nouveau' > /etc/modprobe.d/nouveau.conf, then reboot",
    )


def judge_module(machine: Machine) -> list[Finding]:
    """Return whether the driver is there and loaded."""
    has_gpu = machine.pci is None or any(one.driver in {"", DRIVER} for one in machine.pci)
    if not machine.version and not has_gpu:
        return []
    installed = [version for prefix, version in machine.libraries if prefix in catalog.WITNESS_LIBRARIES]
    if not machine.version and installed:
        return [
            Finding(
                name="module-not-loaded",
                layer="module",
                severity=ERROR,
                what=f"the driver {installed[0]} is installed, but its kernel module is not loaded",
                why="no GPU works without it",
                remedy="modprobe nvidia (if that fails: dmesg | grep NVRM; after a kernel update: dkms status)",
            )
        ]
    if not machine.version:
        return [
            Finding(
                name="driver-missing",
                layer="module",
                severity=ERROR,
                what="NVIDIA's driver is not installed: neither its kernel module nor its libraries are there",
                why="nvinject shows the host's driver to containers; it brings none",
                remedy="install the driver, or set nvidia-container-cli.root where a container has installed it",
            )
        ]
    if "nvidia-uvm" not in machine.classes:
        return [
            Finding(
                name="uvm-not-loaded",
                layer="module",
                severity=ERROR,
                what="the kernel module nvidia-uvm is not loaded",
                why="CUDA does not start without unified memory; nvidia-smi works nevertheless",
                remedy="modprobe nvidia-uvm",
            )
        ]
    return []


def judge_versions(machine: Machine) -> list[Finding]:
    """Return whether libraries and firmware fit the module."""
    witnesses = sorted({version for prefix, version in machine.libraries if prefix in catalog.WITNESS_LIBRARIES})
    if not machine.has_libraries and witnesses:
        return [_skew(machine.version, " and ".join(witnesses))]
    if not machine.has_libraries:
        return [
            Finding(
                name="libraries-missing",
                layer="versions",
                severity=ERROR,
                what=f"the kernel module {machine.version} is loaded, but its libraries are nowhere to be found",
                why="containers would get device nodes and no driver",
                remedy="install the driver's libraries, or set nvidia-container-cli.root to the folder that holds them",
            )
        ]
    findings = []
    if machine.libraries:
        names = ", ".join(f"{prefix}.{version}" for prefix, version in machine.libraries)
        findings.append(
            Finding(
                name="libraries-left-over",
                layer="versions",
                severity=WARNING,
                what=f"libraries of another version than the module's {machine.version}: {names}",
                why="they are left out of containers, so what needs them fails there",
                remedy=f"install them in version {machine.version}, or remove them",
            )
        )
    findings += judge_libraries(machine)
    return findings


def _skew(version: str, others: str) -> Finding:
    return Finding(
        name="version-skew",
        layer="versions",
        severity=ERROR,
        what=f"the kernel module is {version}, the libraries are {others}",
        why='the driver was updated and not reloaded: every program says "Driver/library version mismatch"',
        remedy="rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia, or reboot",
    )


def judge_libraries(machine: Machine) -> list[Finding]:
    """Return what else is missing beside libraries of the right version."""
    findings = []
    if not machine.has_management_library:
        findings.append(
            Finding(
                name="nvml-missing",
                layer="versions",
                severity=ERROR,
                what=f"{catalog.MANAGEMENT_LIBRARY}.1 is not installed",
                why="nvidia-smi and everything that watches GPUs needs it, as do requirements of images",
                remedy=f"install the package with libnvidia-ml in version {machine.version}",
            )
        )
    if not machine.in_loader_cache:
        findings.append(
            Finding(
                name="loader-cache-stale",
                layer="versions",
                severity=WARNING,
                what="the host's loader cache does not know the driver's libraries",
                why="nvinject finds them all the same; programs of the host and the original toolkit do not",
                remedy="ldconfig",
            )
        )
    if machine.open_source and not machine.firmware and not machine.is_given_nodes:
        findings.append(
            Finding(
                name="firmware-missing",
                layer="versions",
                severity=ERROR,
                what=f"there is no gsp*.bin in /lib/firmware/nvidia/{machine.version}",
                why="the open kernel module cannot start a GPU without it",
                remedy="install the package with the driver's firmware",
            )
        )
    return findings


def _may_be_absent(node: NodeState) -> bool:
    return node.kind == "missing" and not node.path.endswith("/nvidiactl")


def judge_nodes(machine: Machine) -> list[Finding]:
    """Return what is wrong with device nodes."""
    absent = [node.path for node in machine.nodes if machine.is_given_nodes and _may_be_absent(node)]
    findings = [_not_given(absent)] if absent else []
    for node in machine.nodes:
        if node.path not in absent:
            findings += _judge_node(node)
    if machine.unlinked:
        findings.append(
            Finding(
                name="dev-char-links-missing",
                layer="nodes",
                severity=WARNING,
                what=f"/dev/char has no link to {', '.join(machine.unlinked)}",
                why="with systemd's cgroup driver runc cannot tell systemd about them: after `systemctl daemon-reload` "
                "containers lose their GPUs",
                remedy="nvinject system create-dev-char-symlinks --create-all",
            )
        )
    return findings


def _not_given(absent: list[str]) -> Finding:
    more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
    return Finding(
        name="nodes-not-given",
        layer="nodes",
        severity=NOTE,
        what=f"{', '.join(absent[:3])}{more} are missing, and the driver's parameter ModifyDeviceFiles is 0",
        why="somebody else decides which nodes there are, as for a host that is a container (kind, LXD); "
        "containers get the GPUs whose nodes are here",
        remedy="on a machine of its own make them: nvinject system create-device-nodes --all-devices",
    )


def _judge_node(node: NodeState) -> list[Finding]:
    if node.kind:
        return [
            Finding(
                name=_NODE_FAULTS[node.kind],
                layer="nodes",
                severity=ERROR,
                what=f"{node.fault} ({node.reason})" if node.reason else node.fault,
                why="a container that asks for it is refused, or gets a device that does not work",
                remedy=node.remedy if node.kind == "missing" else f"rm {node.path} && {node.remedy}",
            )
        ]
    if node.is_open:
        return []
    return [
        Finding(
            name="node-permissions",
            layer="nodes",
            severity=WARNING,
            what=f"{node.path} has mode {node.mode:04o}, the driver wants {node.wanted_mode:04o}",
            why="users in containers who are not root cannot open it",
            remedy=f"chmod {node.wanted_mode:04o} {node.path} (something such as VirtualGL changed it)",
        )
    ]


def judge_nvml(machine: Machine) -> list[Finding]:
    """Return what NVML does not do."""
    state = machine.nvml
    assert state is not None
    # A node that cannot be opened has a finding of its own, and NVML opens them all.
    closed = any(node.kind or not node.is_open for node in machine.nodes)
    if state.error and closed and not state.timed_out:
        return []
    if state.error:
        return [
            Finding(
                name="nvml-slow" if state.timed_out else "nvml-fails",
                layer="nvml",
                severity=ERROR,
                what=state.error,
                why="requirements of images and MIG devices by UUID cannot be served, and nvidia-smi fails too",
                remedy=state.remedy,
            )
        ]
    findings = [_lost(text) for text in state.lost]
    unseen = [bus_id for bus_id in machine.shown if bus_id not in state.gpus]
    if unseen and not state.lost and not closed and not machine.is_given_nodes:
        findings.append(
            Finding(
                name="gpu-unseen",
                layer="nvml",
                severity=WARNING,
                what=f"NVML does not show the GPU at {', '.join(unseen)}, which the kernel module has",
                why="nvidia-smi and schedulers count fewer GPUs than containers may get",
                remedy="ls -l /dev/nvidia*; run nvinject doctor as root",
            )
        )
    return findings


def judge_mps(state: MpsState) -> list[Finding]:
    """Return whether the multi-process service that there should be does not run."""
    if not state.fault:
        return []
    named = f" ({state.named_by} names its directory)" if state.named_by else ""
    usual = state.directory == catalog.MPS_DIRECTORY
    setting = "" if usual else f"{catalog.MPS_PIPE_VARIABLE}={state.directory} "
    return [
        Finding(
            name="mps-daemon-missing",
            layer="mps",
            severity=WARNING,
            what=f"no multi-process service serves containers{named}: {state.fault}",
            why="CUDA goes on without it: clients share no GPU, and limits of memory that it would hold do not hold",
            remedy=f"{setting}nvidia-cuda-mps-control -d",
        )
    ]


def _lost(text: str) -> Finding:
    return Finding(
        name="gpu-lost",
        layer="nvml",
        severity=ERROR,
        what=f"NVML cannot talk to {text}",
        why="programs that use it hang or fail",
        remedy="dmesg | grep -i Xid; then nvidia-smi --gpu-reset, or reboot",
    )
