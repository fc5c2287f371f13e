"""What a child process asks NVML, and reports as lines of text; the module pynvml is imported there only.

Belongs here: the question, the calls and the lines. Does not belong here: what the lines mean (nvml.py) and the child
with its time limit (inquiry.py). The child may be started before anything else is known of the host, so that it loads
pynvml, 12 ms, while its parent looks around: hence no import that the child does not need.
"""

import os
import sys

from nvinject.host.inquiry import Inquiry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

# nvmlReturn_t of nvml.h
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18


def start_inquiry() -> Inquiry:
    """Return a child that loads pynvml and waits for what format_question makes."""
    return Inquiry(report, prepare=prepare)


def format_question(identity: tuple[int, int] | None, library: str, device_root: str) -> str:
    """Return the question about all GPUs: as which user and group, of which library, with whose device nodes."""
    user, group = ("", "") if identity is None else identity
    return f"{user}\0{group}\0{library}\0{device_root}"


def prepare() -> None:
    """Load pynvml; where that fails, the report tells it."""
    try:
        load_pynvml()
    except ImportError:
        return


def report(question: str) -> "Iterator[str]":
    """Yield what NVML knows, one fact a line, fields separated by tabs; runs in the child."""
    user, group, library, device_root = question.split("\0")
    if device_root != "/":
        show_devices(device_root)
    try:
        load_pynvml()  # before the user changes: the other one may not reach its file
    except ImportError as error:
        yield _line("failed", "import", 0, str(error))
        return
    if user and (int(user), int(group)) != (os.geteuid(), os.getegid()):
        try:
            os.setgroups([])
            os.setresgid(int(group), int(group), int(group))
            os.setresuid(int(user), int(user), int(user))
        except OSError as error:
            yield _line("failed", "identity", 0, str(error))
            return
    yield from _report_all(library)


def show_devices(device_root: str) -> None:
    """Let this process see the device root's /dev in place of the host's, in a mount namespace of its own.

    A driver container has its nodes in its own /dev, and the host may have none. The original changes its root for
    this, which takes /proc and /sys away where the container has no mounts of them. Who may not mount keeps the host's
    /dev; NVML says what is missing there.
    """
    from nvinject.linux.const import CLONE_NEWNS, MS_BIND, MS_REC, MS_SLAVE
    from nvinject.linux.syscalls import mount, unshare

    try:
        unshare(CLONE_NEWNS)
        mount(None, "/", None, MS_REC | MS_SLAVE, None)  # or the host would see the next one
        mount(f"{device_root}/dev", "/dev", None, MS_BIND | MS_REC, None)
    except OSError:
        return


def load_pynvml() -> None:
    """Import pynvml without what it does not need on Linux, 13 of its 27 ms; raises ImportError.

    It asks ctypes.util for a library on Windows alone; elsewhere, and so here, it asks the loader. Of string, which
    brings the regular expressions, it takes capwords. What else a later version may take is there all the same.
    """
    if "pynvml" in sys.modules:
        return
    stand_ins = {
        "ctypes.util": _stand_in("ctypes.util", find_library=lambda _name: None),
        "string": _stand_in("string", capwords=_capitalise_words),
    }
    ours = {name: module for name, module in stand_ins.items() if sys.modules.setdefault(name, module) is module}
    try:
        import pynvml  # noqa: F401
    finally:
        for name, module in ours.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def _stand_in(name: str, **content: "Callable[..., Any]") -> "ModuleType":
    """Return a module with some functions, whose other names are those of the real one, loaded when it is needed."""
    module = type(sys)(name)

    def find(wanted: str) -> "Any":
        if wanted.startswith("__"):  # the import system asks whether it is a package
            raise AttributeError(wanted)
        if sys.modules.get(name) is module:
            del sys.modules[name]
        return getattr(__import__(name, fromlist=[wanted]), wanted)

    vars(module).update(content, __getattr__=find)
    return module


def _capitalise_words(text: str, separator: str | None = None) -> str:
    """Do what string.capwords does."""
    return (separator or " ").join(word.capitalize() for word in text.split(separator))


def _report_all(library: str) -> "Iterator[str]":
    import ctypes

    try:
        # pynvml asks the loader for libnvidia-ml.so.1: a library of that SONAME that is loaded already is what it gets.
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    except OSError as error:
        yield _line("failed", "load", 0, str(error))
        return
    import pynvml

    step = "nvmlInit"
    try:
        pynvml.nvmlInit()
        step = "nvmlSystemGetDriverVersion"
        yield _line("driver", _text(pynvml.nvmlSystemGetDriverVersion()))
        step = "nvmlSystemGetCudaDriverVersion"
        yield _line("cuda", pynvml.nvmlSystemGetCudaDriverVersion())
        step = "nvmlDeviceGetCount"
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        yield _line("failed", step, error.value, str(error))
        return
    for index in range(count):
        try:
            yield from list(_report_gpu(index))
        except pynvml.NVMLError as error:
            yield _line("lost", index, str(error))
    yield "end"


def _report_gpu(index: int) -> "Iterator[str]":
    import pynvml

    gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
    capability = _optional(None, pynvml.nvmlDeviceGetCudaComputeCapability, gpu)
    address = _optional(None, pynvml.nvmlDeviceGetPciInfo, gpu)  # an integrated GPU has none
    yield _line(
        "gpu",
        index,
        _optional(-1, pynvml.nvmlDeviceGetMinorNumber, gpu),
        _text(address.busId) if address is not None else "",
        _text(pynvml.nvmlDeviceGetUUID(gpu)),
        _optional(0, pynvml.nvmlDeviceGetBrand, gpu),
        "{}.{}".format(*capability) if capability else "",
        _text(_optional("", pynvml.nvmlDeviceGetName, gpu)),
    )
    current_mode, _ = _optional((0, 0), pynvml.nvmlDeviceGetMigMode, gpu)
    if current_mode:
        yield _line("mig-mode", index)
    slots = _optional(0, pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu) if current_mode else 0
    for place in range(slots):
        mig = _optional(None, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, place)
        if mig is None:
            continue  # a free slot; used ones may follow it
        yield _line(
            "mig",
            index,
            place,
            _text(pynvml.nvmlDeviceGetUUID(mig)),
            pynvml.nvmlDeviceGetGpuInstanceId(mig),
            pynvml.nvmlDeviceGetComputeInstanceId(mig),
        )


def _optional(default: "Any", ask: "Callable[..., Any]", *arguments: "Any") -> "Any":
    """Return an answer of NVML, or the default where this GPU or this driver has none."""
    import pynvml

    try:
        return ask(*arguments)
    except pynvml.NVMLError as error:
        if error.value in {NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND}:
            return default
        raise


def _text(value: "str | bytes") -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _line(*fields: object) -> str:
    return "\t".join(" ".join(str(field).split()) for field in fields)
