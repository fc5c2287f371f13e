"""Limits of GPU memory set through NVML: what a child process does, one line for each step.

Belongs here: the calls, and taking back what was set when one fails. Does not belong here: which limits (core), which
cgroup and library (host), and the child with its time limit (host.inquiry). nvmlSetMemoryLimits_v1_t is a pointer to
the cgroup's path and two 64-bit numbers, as in the bindings nvidia-ml-py 13.615; older bindings do not have it, so
it is declared here.
"""

import ctypes

from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

NO_LIMIT = (1 << 64) - 1  # NVML_DEVICE_MEMORY_LIMIT_MAX
FUNCTION_NOT_FOUND = 13


class Limit(Record):
    """What one GPU, by bus address or UUID, may give to a cgroup: both in bytes, `hard` 0 for no limit."""

    gpu: str
    soft: int = 0
    hard: int = 0


class _Limits(ctypes.Structure):
    _fields_ = (("name_space", ctypes.c_char_p), ("soft", ctypes.c_ulonglong), ("hard", ctypes.c_ulonglong))


def set_limits(library: str, cgroup: str, limits: tuple[Limit, ...]) -> "Iterator[str]":
    """Set all limits or none; yields `end`, or a line `failed`, step, NVML's number and its text, parted by tabs.

    `library` is the host's path of NVML. Runs in a child, which may hang or crash in the driver.
    """
    try:
        # pynvml asks the loader for libnvidia-ml.so.1: a library of that SONAME that is loaded already is what it gets.
        loaded = ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        import pynvml
    except (OSError, ImportError) as error:
        yield _line("failed", "loading NVML", 0, error)
        return
    step = "nvmlInit"
    done: list[Any] = []
    try:
        pynvml.nvmlInit()
        for limit in limits:
            step = f"finding GPU {limit.gpu}"
            by_uuid = limit.gpu.startswith("GPU-")
            find = pynvml.nvmlDeviceGetHandleByUUID if by_uuid else pynvml.nvmlDeviceGetHandleByPciBusId
            gpu = find(limit.gpu.encode())
            step = f"limiting the memory of GPU {limit.gpu}"
            _set(loaded, gpu, cgroup, limit)
            done.append(gpu)
    except pynvml.NVMLError as error:
        for gpu in done:
            _set_quietly(loaded, gpu, cgroup)
        yield _line("failed", step, error.value, error)
        return
    yield "end"


def _set(loaded: "Any", gpu: "Any", cgroup: str, limit: Limit) -> None:
    import pynvml

    values = _Limits(cgroup.encode("utf-8", "surrogateescape"), limit.soft, limit.hard or NO_LIMIT)
    try:
        call = loaded.nvmlDeviceSetMemoryLimits_v1
    except AttributeError:
        raise pynvml.NVMLError(FUNCTION_NOT_FOUND) from None
    code = call(gpu, ctypes.byref(values))
    if code:
        raise pynvml.NVMLError(code)


def _set_quietly(loaded: "Any", gpu: "Any", cgroup: str) -> None:
    import pynvml

    try:  # noqa: SIM105 # the failure that led here is what is told; the limit goes with the cgroup
        _set(loaded, gpu, cgroup, Limit(gpu=""))
    except pynvml.NVMLError:
        pass


def _line(*fields: object) -> str:
    return "\t".join(" ".join(str(field).split()) for field in fields)
