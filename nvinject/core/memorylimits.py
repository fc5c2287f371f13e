"""Limits of GPU memory: how a container asks for them, and by which means they are kept.

Belongs here: the variables and their grammar, which GPU each limit is about, and the choice among the means. Does not
belong here: finding out which means a host has (nvinject.host) and setting a limit. A limit that cannot be kept is
never passed over: the node's policy says whether the container is refused or warned about.
"""

from nvinject.core import catalog
from nvinject.core.model import ContainerLayout, Gpu, Inventory
from nvinject.core.plan import LimitMemory, Operation, SetEnvironment
from nvinject.core.policy import WARN, Policy
from nvinject.core.request import ContainerRequest, MemorySize
from nvinject.core.selection import Selection
from nvinject.core.version import is_decimal
from nvinject.errors import HostError, RequestError, quoted

# Names of a limit (nobody gets more) and of a request (nobody takes this away), best known first. The ones with GPU are
# those of the original's hook apply-cuda-memory-limits, whose earlier drafts had them in the plural.
LIMIT_VARIABLES = ("NVIDIA_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_LIMITS")
REQUEST_VARIABLES = ("NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_REQUESTS")

MIB = 1 << 20
LARGEST = (1 << 63) - 1  # bytes; NVML's own value for no limit is beyond it
_UNITS = {"": MIB, "M": MIB, "G": 1 << 30, "T": 1 << 40}
_HINT = "write such as 8G, 512M or, for several GPUs, 0=8G,1=4G; a number without unit is MiB"


def read_sizes(environment: "dict[str, str]") -> tuple[MemorySize, ...]:
    """Return the limits and requests that an environment has; raises RequestError for one that cannot be read."""
    found: list[MemorySize] = []
    for is_limit, names in ((True, LIMIT_VARIABLES), (False, REQUEST_VARIABLES)):
        given = [(name, environment[name]) for name in names if environment.get(name, "").strip()]
        for name, value in given:
            if value.strip() != given[0][1].strip():
                raise RequestError(
                    f"{given[0][0]}={quoted(given[0][1])} and {name}={quoted(value)} contradict each other",
                    "set one of them",
                )
        if given:
            found += parse_sizes(*given[0], is_limit=is_limit)
    return tuple(found)


def parse_sizes(variable: str, value: str, *, is_limit: bool) -> tuple[MemorySize, ...]:
    """Return what one variable says: a size for every GPU, or `GPU=size` for several; raises RequestError."""
    sizes: list[MemorySize] = []
    for item in value.split(","):
        device, equals, text = (part.strip() for part in item.rpartition("="))
        if equals and not device:
            raise RequestError(f"{variable}: {quoted(item.strip())} names no GPU", _HINT)
        size = parse_size(text)
        if size is None:
            raise RequestError(f"{variable}: {quoted(text)} is no size of memory", _HINT)
        # What MPS is told is in MiB, and no program runs in less.
        if is_limit and size < MIB:
            raise RequestError(f"{variable}: {quoted(text)} is less than 1 MiB", _HINT)
        sizes.append(MemorySize(variable=variable, device=device, size=size, is_limit=is_limit))
    devices = [one.device for one in sizes]
    repeated = next((name for name in devices if devices.count(name) > 1), None)
    if repeated is not None or ("" in devices and len(devices) > 1):
        problem = f"names {quoted(repeated)} twice" if repeated else "mixes a size for all GPUs with others"
        raise RequestError(f"{variable}={quoted(value)} {problem}", _HINT)
    return tuple(sizes)


def parse_size(text: str) -> "int | None":
    """Return the bytes of a size such as `8G`, `8GiB` or `512`, None for anything else; units are powers of 1024."""
    digits = text.rstrip("BbIiGgMmTt")
    unit = text[len(digits) :].upper()
    unit = unit.removesuffix("IB") if unit.endswith("IB") else unit.removesuffix("B")
    if not is_decimal(digits) or unit not in _UNITS or (not unit and digits != text):
        return None
    size = int(digits) * _UNITS[unit]
    return size if size <= LARGEST else None


class GpuLimit(LimitMemory):
    """An operation with the position of its GPU among the container's."""

    position: int


def match_gpus(sizes: tuple[MemorySize, ...], gpus: tuple[Gpu, ...]) -> tuple[GpuLimit, ...]:
    """Return one operation for each GPU that has a limit or a request, in the container's order.

    A GPU is named by its number among the container's, as CUDA counts them there, or by its UUID. Raises RequestError
    for one that the container has not, and for a request beyond its limit.
    """
    amounts: dict[int, dict[bool, int]] = {}
    for one in sizes:
        for position in _positions(one, gpus):
            amounts.setdefault(position, {})[one.is_limit] = one.size
    found = []
    for position, both in sorted(amounts.items()):
        gpu, soft, hard = gpus[position], both.get(False, 0), both.get(True, 0)
        if hard and soft > hard:
            raise RequestError(
                f"GPU {position} of the container: a request of {show_size(soft)} is beyond the limit of "
                f"{show_size(hard)}",
                "lower the request or raise the limit",
            )
        reason = f"GPU {gpu.index} ({gpu.uuid}) is GPU {position} of the container"
        found.append(GpuLimit(gpu=gpu.bus_id, soft=soft, hard=hard, position=position, reason=reason))
    return tuple(found)


def _positions(one: MemorySize, gpus: tuple[Gpu, ...]) -> "list[int]":
    if not one.device:
        return list(range(len(gpus)))
    if is_decimal(one.device) and int(one.device) < len(gpus):
        return [int(one.device)]
    named = [position for position, gpu in enumerate(gpus) if gpu.uuid and gpu.uuid == one.device]
    if not named:
        there = ", ".join(f"{position} ({gpu.uuid})" for position, gpu in enumerate(gpus)) or "none"
        raise RequestError(
            f"{one.variable}: the container has no GPU {quoted(one.device)}", f"the container's GPUs are {there}"
        )
    return named


def show_size(size: int) -> str:
    """Return a number of bytes for people."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", MIB)):
        if size and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} bytes"


def plan_limits(
    inventory: Inventory, request: ContainerRequest, policy: Policy, layout: ContainerLayout, selection: Selection
) -> tuple[list[Operation], tuple[str, ...]]:
    """Return the operations that keep the limits, and warnings about those that cannot be kept.

    The multi-process service keeps limits of its clients, the driver those of a cgroup. Raises RequestError for limits
    that make no sense, HostError where there is no means and the policy says so.
    """
    limits = match_gpus(request.memory_sizes, selection.gpus)
    if not limits:
        return [], ()
    by_service, no_service = limit_clients(limits, inventory, request, layout)
    if not no_service:
        requested = any(one.soft for one in limits)
        lost = "the multi-process service keeps limits, no requests: NVIDIA_GPU_MEMORY_REQUEST has no effect with it"
        return by_service, (lost,) if requested else ()
    no_driver = inventory.memory_obstacle
    if selection.mig_devices:
        no_driver = "the driver limits no MIG devices, whose memory is that of their profile"
    if not no_driver:
        return [LimitMemory(gpu=one.gpu, soft=one.soft, hard=one.hard, reason=one.reason) for one in limits], ()
    problem = f"{request.memory_sizes[0].variable} cannot be kept: {no_service}; {no_driver}"
    if policy.missing_memory_limits != WARN:
        raise HostError(
            problem,
            "start nvidia-cuda-mps-control -d, install a driver with CUDA 13.4 on cgroup v2, or set "
            f'nvinject.missing-memory-limits = "{WARN}"',
        )
    return [], (f"{problem}; the container's memory is not limited",)


def limit_clients(
    limits: tuple[GpuLimit, ...], inventory: Inventory, request: ContainerRequest, layout: ContainerLayout
) -> tuple[list[Operation], str]:
    """Return what has the multi-process service keep the limits, or why it cannot.

    Raises RequestError where the container has told it otherwise itself.
    """
    has_pipes = request.mps_provided or any(one.name == catalog.MPS for one in inventory.driver.sockets)
    if not has_pipes or inventory.mps_fault or "compute" not in request.capabilities:
        fault = inventory.mps_fault or "the container is no client of it"
        return [], f"no multi-process service serves the container ({fault})"
    if not all(one.hard for one in limits):
        return [], "the multi-process service knows limits and no requests"
    value = ",".join(f"{one.position}={one.hard // MIB}M" for one in limits)
    own = dict(request.mps).get(catalog.MPS_LIMIT_VARIABLE, "")
    if own and own != value:
        raise RequestError(
            f"{catalog.MPS_LIMIT_VARIABLE}={quoted(own)} of the container contradicts "
            f"{request.memory_sizes[0].variable}, which stands for {value}",
            "set one of them",
        )
    if own:
        return [], ""
    if layout.is_created:
        return [], (
            f"the multi-process service takes limits from {catalog.MPS_LIMIT_VARIABLE}, which a prestart hook cannot "
            f"set any more (set it to {value} yourself, or let the engine use the runtime)"
        )
    reason = "the multi-process service keeps its clients within it"
    return [SetEnvironment(name=catalog.MPS_LIMIT_VARIABLE, value=value, reason=reason)], ""
