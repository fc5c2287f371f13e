"""The hook apply-cuda-memory-limits: limits of GPU memory at the stage createRuntime, for the shim and for CDI specs.

Belongs here: finding out what a container asks for and which GPUs it has, from its state and config.json. Does not
belong here: setting limits (memorylimits.py). The shim names the limits of its plan with --limit. A spec knows no
container: then config.json tells its variables and its GPUs, which are those that it has nodes of.
"""

import sys

from nvinject.cli.hook import read_all, read_config
from nvinject.cli.memorylimits import apply_limits, find_library
from nvinject.configfile import find_config
from nvinject.core.memorylimits import match_gpus
from nvinject.core.policy import WARN
from nvinject.core.request import parse_environment, read_memory_sizes
from nvinject.errors import HostError, UsageError, quoted
from nvinject.formats.oci import load_document, parse_state, read_leniently
from nvinject.host.driver import read_kernel_version
from nvinject.host.gpus import Nodes, find_gpus
from nvinject.host.inventory import device_root
from nvinject.host.memorylimits import find_cgroup, find_obstacle
from nvinject.host.root import Root
from nvinject.render.nvmllimits import Limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvinject.core.model import Gpu
    from nvinject.core.policy import Policy

NVIDIA_MAJOR = 195


def apply_limits_of_state(options: "dict[str, list[str]]") -> None:
    """Set the limits for the container whose state is on standard input, or in --container-spec."""
    name = options.get("container-spec", ["-"])[-1]
    state = parse_state(read_all(0, "standard input") if name in {"-", ""} else read_config(name))
    given = tuple(parse_limit(text) for text in options.get("limit", ()))
    limits = given or find_limits(f"{state.bundle}/config.json", frozenset(options.get("gpu-id", ())))
    if not limits:
        return
    policy = load_policy()
    driver_root = options.get("driver-root", [""])[-1] or policy.roots.driver
    with Root(driver_root, title="driver root") as root, Root(policy.roots.proc, title="proc root") as proc:
        version = read_kernel_version(proc)
        library = find_library(driver_root, version)
        obstacle = find_obstacle(root, library.removeprefix(driver_root.rstrip("/")), version)
    if obstacle and policy.missing_memory_limits == WARN:
        sys.stderr.write(f"nvinject: warning: {obstacle}; the container's memory is not limited\n")
    elif obstacle:
        raise HostError(
            f"limits of GPU memory cannot be kept: {obstacle}", f'set nvinject.missing-memory-limits = "{WARN}"'
        )
    else:
        dev = device_root(policy.roots.replace(driver=driver_root))
        apply_limits(limits, find_cgroup(state.pid), library, policy.nvml_timeout, device_root=dev)


def parse_limit(text: str) -> Limit:
    """Return what `GPU=SOFT:HARD` says, as the shim writes it; raises UsageError."""
    gpu, _, sizes = text.rpartition("=")
    soft, _, hard = sizes.partition(":")
    if not gpu or not (soft.isdecimal() and hard.isdecimal()):
        raise UsageError(f"--limit {quoted(text)} is not GPU=SOFT:HARD", "the runtime shim writes this option")
    return Limit(gpu=gpu, soft=int(soft), hard=int(hard))


def find_limits(path: str, only: frozenset[str]) -> tuple[Limit, ...]:
    """Return the limits that a config.json asks for, of the GPUs that it has nodes of; `only` are UUIDs of some."""
    document = load_document(read_config(path), path)
    sizes = read_memory_sizes(parse_environment(read_leniently(document).environment))
    if not sizes:
        return ()
    found = match_gpus(sizes, visible_gpus(gpu_minors(document)))
    uuids = {gpu.bus_id: gpu.uuid for gpu in host_gpus()} if only else {}
    return tuple(
        Limit(gpu=one.gpu, soft=one.soft, hard=one.hard) for one in found if not only or uuids.get(one.gpu) in only
    )


def gpu_minors(document: "dict[str, Any]") -> frozenset[int]:
    """Return the minors of the GPUs that a config.json has device nodes of."""
    linux = document.get("linux")
    listed = linux.get("devices") if isinstance(linux, dict) else None
    nodes = [node for node in (listed if isinstance(listed, list) else []) if isinstance(node, dict)]
    return frozenset(
        node["minor"]
        for node in nodes
        if node.get("major") == NVIDIA_MAJOR and isinstance(node.get("minor"), int) and _is_gpu(node)
    )


def _is_gpu(node: "dict[str, Any]") -> bool:
    return str(node.get("path", "")).rpartition("/")[2].removeprefix("nvidia").isdecimal()


def visible_gpus(minors: frozenset[int]) -> "tuple[Gpu, ...]":
    """Return the host's GPUs of these minors, in the order in which the container counts them."""
    return tuple(gpu for gpu in host_gpus() if gpu.minor in minors)


def host_gpus() -> "tuple[Gpu, ...]":
    """Return the GPUs that the driver shows."""
    policy = load_policy()
    with Root(policy.roots.proc, title="proc root") as proc, Root("/") as dev:
        return find_gpus(proc, Nodes(dev, (), strict=False))


def load_policy() -> "Policy":
    """Return the node's policy; the hook's own environment names no other file."""
    from nvinject.config import load_policy as load

    return load(*find_config({}))[0]
