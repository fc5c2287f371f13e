"""What libcuda says without any management library: its CUDA version, and the compute capability of the first GPU.

Belongs here: the questions, asked in a child as NVML's are (inquiry.py), because the library may hang, crash or print.
Does not belong here: what NVML tells as well; hosts that have NVML are asked there.
"""

from nvinject.host import inquiry
from nvinject.host.nvml import cuda_version_text
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# CUdevice_attribute of cuda.h
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76


class CudaAnswer(Record):
    """CUDA version and compute capability, each "" where the library does not tell it; `problem` says why."""

    version: str = ""
    architecture: str = ""
    problem: str = ""


def ask_cuda(library: str, timeout: float) -> CudaAnswer:
    """Return what the libcuda at a path says; `timeout` is in seconds. Raises HostError where it hangs or crashes."""
    return parse_answer(inquiry.ask(lambda: _report(library), timeout, library="libcuda"))


def parse_answer(text: str) -> CudaAnswer:
    """Return the child's lines as a value."""
    known = dict(line.partition(" ")[::2] for line in text.splitlines())
    return CudaAnswer(
        version=cuda_version_text(int(known["version"])) if "version" in known else "",
        architecture=known.get("architecture", ""),
        problem=known.get("problem", ""),
    )


def _report(library: str) -> "Iterator[str]":
    """Yield what the library knows; runs in the child."""
    import ctypes

    try:
        cuda = ctypes.CDLL(library)
    except OSError as error:
        yield f"problem {' '.join(str(error).split())}"
        return
    number, device = ctypes.c_int(), ctypes.c_int()
    code = cuda.cuDriverGetVersion(ctypes.byref(number))
    if code:
        yield f"problem cuDriverGetVersion fails with {code}"
        return
    yield f"version {number.value}"
    # Unlike the version, the capability needs the device nodes.
    code = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
    if code:
        yield f"problem cuInit fails with {code}"
        return
    capability = []
    for attribute in (CAPABILITY_MAJOR, CAPABILITY_MINOR):
        if cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device):
            return
        capability.append(str(number.value))
    yield f"architecture {'.'.join(capability)}"
