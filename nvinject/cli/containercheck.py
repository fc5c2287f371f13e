"""What doctor tells about one container: what it asks for, whether it can be served, whether the host suffices.

Belongs here: finding the container's description, and turning refusals into findings. Does not belong here: the rules
for requests and plans, which are the hook's own.
"""

import os

from nvinject.cli.discovery import discover_for
from nvinject.cli.hook import read_spec
from nvinject.core import planner
from nvinject.core.finding import ERROR, NOTE, WARNING, Finding
from nvinject.core.mode import CDI, MODES
from nvinject.core.model import UNKNOWN_IMAGE
from nvinject.core.policy import Policy
from nvinject.core.request import ContainerRequest, gate_warning, ignored_warning, read_request
from nvinject.core.sources import ContainerSpec
from nvinject.errors import HostError, InputError, NvinjectError, RequestError, RequirementError, UsageError

# Where engines keep the bundles of containers; `*` stands for one name.
BUNDLES = (
    "/run/containerd/io.containerd.runtime.v2.task/*/*",
    "/run/docker/containerd/daemon/io.containerd.runtime.v2.task/*/*",
    "/var/run/docker/containerd/daemon/io.containerd.runtime.v2.task/*/*",
    "/var/lib/containers/storage/overlay-containers/*/userdata",
    "/run/containers/storage/overlay-containers/*/userdata",
    "/var/lib/containers/storage/vfs-containers/*/userdata",
)
SHORTEST_ID = 4


def check_container(name: str, policy: Policy, *, host_is_well: bool) -> list[Finding]:
    """Return what is wrong with a container; raises UsageError where there is none of this name.

    A fault of the host has its own finding, so it is not told again unless the host seemed to be well.
    """
    try:
        spec = read_spec(find_config(name))
    except InputError as error:
        return [_options("container-unreadable", ERROR, error, "the runtime could not start it either")]
    asked = ContainerSpec(environment=spec.environment, mounts=spec.mounts, privileged=spec.privileged)
    try:
        request = read_request(asked, policy)
    except RequestError as error:
        return [_options("request-refused", ERROR, error, "the container does not start")]
    except InputError as error:
        return [_options("request-malformed", ERROR, error, "the container does not start")]
    if request is None:
        return explain_nothing(asked, policy)
    return [*check_request(request), *try_request(request, policy, host_is_well=host_is_well)]


def find_config(name: str, patterns: tuple[str, ...] = BUNDLES) -> str:
    """Return the config.json of a bundle, of a file, or of the container whose id begins so; raises UsageError."""
    if os.path.isdir(name):
        return os.path.join(name, "config.json")
    if os.path.exists(name):
        return name
    found = [bundle for pattern in patterns for bundle in match(pattern) if id_of(bundle).startswith(name)]
    found = [
        bundle for bundle in dict.fromkeys(map(os.path.realpath, found)) if os.path.exists(f"{bundle}/config.json")
    ]
    if len(found) == 1 and len(name) >= SHORTEST_ID:
        return f"{found[0]}/config.json"
    if found:
        raise UsageError(f"{name} could be {' or '.join(found)}", "write more of the id, or the bundle's path")
    raise UsageError(f"there is no running container {name}", "give its id, its bundle or its config.json, as root")


def match(pattern: str) -> list[str]:
    """Return the paths that a pattern stands for."""
    import glob

    return sorted(glob.glob(pattern))


def id_of(bundle: str) -> str:
    """Return the id of the container whose bundle this is."""
    return bundle.removesuffix("/userdata").rpartition("/")[2]


def explain_nothing(asked: ContainerSpec, policy: Policy) -> list[Finding]:
    """Return why a container gets no GPU although nothing is wrong."""
    foreign = ignored_warning(asked, policy)
    ignored = gate_warning(asked, policy)
    if foreign and not ignored:
        return [
            Finding(
                name="request-foreign",
                layer="container",
                severity=WARNING,
                what=foreign,
                why="the container starts without these devices, unless the engine has given it them",
                remedy="name them with --device of an engine that has CDI",
            )
        ]
    if ignored:
        return [
            Finding(
                name="request-ignored",
                layer="container",
                severity=WARNING,
                what=ignored,
                why="the container starts without GPUs",
                remedy="nvinject config set accept-nvidia-visible-devices-envvar-when-unprivileged=true, or use --gpus",
            )
        ]
    return [
        Finding(
            name="asks-for-nothing",
            layer="container",
            severity=NOTE,
            what="the container asks for no GPU: NVIDIA_VISIBLE_DEVICES is unset, empty or void",
            why="it gets none",
            remedy="docker run --gpus all, podman run --device nvidia.com/gpu=all, or -e NVIDIA_VISIBLE_DEVICES=all",
        )
    ]


def check_request(request: ContainerRequest) -> list[Finding]:
    """Return what is suspicious about a request that can be served."""
    found = [_partly_ignored(warning, "change the variable") for warning in request.warnings]
    if "compute" not in request.capabilities and "utility" not in request.capabilities:
        found.append(
            Finding(
                name="capabilities-without-compute",
                layer="container",
                severity=NOTE,
                what=f"the container asks for the driver capabilities {', '.join(request.capabilities)} only",
                why="it has neither CUDA nor nvidia-smi",
                remedy="-e NVIDIA_DRIVER_CAPABILITIES=compute,utility (or all)",
            )
        )
    return found


def _partly_ignored(warning: str, remedy: str) -> Finding:
    return Finding(
        name="request-partly-ignored",
        layer="container",
        severity=WARNING,
        what=warning,
        why="the container gets less than it asks for",
        remedy=remedy,
    )


def try_request(request: ContainerRequest, policy: Policy, *, host_is_well: bool) -> list[Finding]:
    """Plan for the request, and return why it cannot be served, or what of it is lost."""
    if MODES.get(policy.mode) == CDI:
        return []  # its devices are those of CDI specs, which have a layer of their own
    try:
        plan = planner.plan(discover_for(request, policy, os.environ), request, policy, UNKNOWN_IMAGE)
    except RequirementError as error:
        return [_image("requirement-unsatisfied", error)]
    except InputError as error:
        return [_image("requirement-malformed", error)]
    except RequestError as error:
        name = "device-unknown" if "unknown device" in error.message else "request-refused"
        return [_options(name, ERROR, error, "the container does not start")]
    except HostError as error:
        return [_options("host-lacks", ERROR, error, "the container does not start")] if host_is_well else []
    return [_partly_ignored(warning, "mend the host, or change the variable") for warning in plan.warnings]


def _options(name: str, severity: str, error: NvinjectError, why: str) -> Finding:
    return Finding(
        name=name, layer="container", severity=severity, what=error.message, why=why, remedy=error.hint or "see above"
    )


def _image(name: str, error: NvinjectError) -> Finding:
    return Finding(
        name=name,
        layer="image",
        severity=ERROR,
        what=error.message,
        why="the container does not start",
        remedy=error.hint or "mend the image's NVIDIA_REQUIRE_ variable",
    )
