"""What only NVML knows (CUDA version, brand, compute capability, MIG indices), asked in a child with a time limit.

Belongs here: the child, its answer as lines of text, and what NVML's errors mean for a person. Does not belong here:
anything that /proc tells as well. A child, because the library may hang in the kernel, crash, print or keep threads;
the module pynvml is imported there only.
"""

import os
import sys

from nvinject.core.model import Gpu, Inventory, MigDevice
from nvinject.errors import HostError
from nvinject.host.gpus import parse_pci_address
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

SIGKILL = 9
GRACE = 1.0  # seconds that a killed child has to go; one stuck in the kernel is left to init

# nvmlReturn_t of nvml.h
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18

REMEDIES = {
    NO_PERMISSION: "run as root, or let this user open /dev/nvidiactl and /dev/nvidia*",
    DRIVER_NOT_LOADED: "run modprobe nvidia",
    GPU_IS_LOST: "reset the GPU or reboot, and look for Xid in dmesg",
    RESET_REQUIRED: "run nvidia-smi --gpu-reset as root",
}
REMEDY = "run nvidia-smi on the host, and look for NVRM in dmesg"

# Names of nvmlBrandType_t 1 to 16 as requirements spell them.
BRANDS = (
    "Quadro", "Tesla", "NVS", "GRID", "GeForce", "TITAN", "VApps", "VPC", "VCS", "VWS", "CloudGaming", "QuadroRTX",
    "NvidiaRTX", "Nvidia", "GeForceRTX", "TitanRTX",
)  # fmt: skip


class NvmlMig(Record):
    """A MIG device as NVML counts it."""

    index: int
    uuid: str
    gpu_instance: int
    compute_instance: int


class NvmlGpu(Record):
    """A GPU as NVML shows it; `brand` is a number of nvmlBrandType_t, `architecture` the compute capability.

    An integrated GPU that is no PCI function has no `bus_id`, and its UUID may lack the usual `GPU-`.
    """

    index: int
    minor: int
    bus_id: str
    uuid: str
    brand: int
    architecture: str
    mig_devices: tuple[NvmlMig, ...] = ()
    mig_enabled: bool = False
    name: str = ""


class NvmlAnswer(Record):
    """Everything that the child found out; `lost` are GPUs that NVML cannot talk to, with the reason."""

    driver_version: str
    cuda_version: str
    gpus: tuple[NvmlGpu, ...] = ()
    lost: tuple[str, ...] = ()


def ask_nvml(
    library: str,
    kernel_version: str,
    timeout: float,
    *,
    identity: tuple[int, int] | None = None,
    device_root: str = "/",
) -> NvmlAnswer:
    """Return what NVML says, `library` being the host's path of libnvidia-ml.

    `identity` is the user and group that the child becomes before it loads the library (None: it stays what we are).
    The nodes that NVML opens by their usual paths are those of `device_root`.
    Raises HostError for every way in which that can fail, the time limit (seconds) among them.
    """
    if not library:
        raise HostError(
            f"libnvidia-ml.so.1 of version {kernel_version} is not there, and only it can tell what was asked for",
            "install the driver's management library",
        )
    text = run_child(lambda: _report_as(identity, library, device_root), timeout)
    return parse_answer(text, kernel_version, library)


def complete_inventory(inventory: Inventory, answer: NvmlAnswer) -> Inventory:
    """Return the inventory with what NVML knows of its GPUs, matched by PCI address whatever its width and case."""
    if answer.driver_version != inventory.driver.version:
        raise _skew(inventory.driver.version, answer.driver_version)
    known = {_bus_id(gpu.bus_id): gpu for gpu in answer.gpus}
    notes = [f"NVML cannot talk to {one}" for one in answer.lost]
    notes += [f"NVML does not show the GPU at {gpu.bus_id}" for gpu in inventory.gpus if gpu.bus_id not in known]
    return inventory.replace(
        driver=inventory.driver.replace(cuda_version=answer.cuda_version or None),
        gpus=tuple(_complete_gpu(gpu, known[gpu.bus_id]) if gpu.bus_id in known else gpu for gpu in inventory.gpus),
        notes=(*inventory.notes, *notes),
    )


def _bus_id(text: str) -> str:
    address = parse_pci_address(text)
    return text if address is None else address.in_sysfs()


def _complete_gpu(gpu: Gpu, known: NvmlGpu) -> Gpu:
    slices = {(mig.gpu_instance, mig.compute_instance): mig for mig in known.mig_devices}
    completed = [_complete_mig(mig, slices) for mig in gpu.mig_devices]
    return gpu.replace(
        uuid=known.uuid or gpu.uuid,
        brand=brand_name(known.brand),
        architecture=known.architecture or None,
        mig_devices=tuple(sorted(completed, key=lambda mig: (mig.index < 0, mig.index))),
        mig_enabled=known.mig_enabled,
    )


def _complete_mig(mig: MigDevice, slices: dict[tuple[int, int], NvmlMig]) -> MigDevice:
    known = slices.get((mig.gpu_instance, mig.compute_instance))
    return mig if known is None else mig.replace(index=known.index, uuid=known.uuid)


def brand_name(number: int) -> str:
    """Return the name of a brand as requirements spell it."""
    return BRANDS[number - 1] if 0 < number <= len(BRANDS) else "Unknown"


def cuda_version_text(number: int) -> str:
    """Return NVML's number of a CUDA version (12080) as text (`12.8`)."""
    return f"{number // 1000}.{number % 100 // 10}"


def parse_answer(text: str, kernel_version: str, library: str) -> NvmlAnswer:
    """Return the child's lines as values; raises HostError for a reported failure and for an answer that breaks off."""
    lines = [line.split("\t") for line in text.splitlines()]
    versions = {line[0]: line[1] for line in lines if line[0] in {"driver", "cuda"}}
    slices = [line[1:] for line in lines if line[0] == "mig"]
    enabled = {line[1] for line in lines if line[0] == "mig-mode"}
    found = [line[1:] for line in lines if line[0] == "gpu"]
    for line in lines:
        if line[0] == "failed":
            raise _failure(line[1], int(line[2]), line[3], kernel_version, library)
    if not lines or lines[-1] != ["end"]:
        raise HostError("NVML's answer breaks off", REMEDY)
    return NvmlAnswer(
        driver_version=versions["driver"],
        cuda_version=cuda_version_text(int(versions["cuda"])) if "cuda" in versions else "",
        gpus=tuple(
            NvmlGpu(
                index=int(index),
                minor=int(minor),
                bus_id=bus_id,
                uuid=uuid,
                brand=int(brand),
                architecture=architecture,
                mig_devices=tuple(
                    NvmlMig(index=int(place), uuid=name, gpu_instance=int(gi), compute_instance=int(ci))
                    for parent, place, name, gi, ci in slices
                    if parent == index
                ),
                mig_enabled=index in enabled,
                name=name,
            )
            for index, minor, bus_id, uuid, brand, architecture, name in found
        ),
        lost=tuple(f"GPU {line[1]}: {line[2]}" for line in lines if line[0] == "lost"),
    )


def _failure(step: str, code: int, text: str, kernel_version: str, library: str) -> HostError:
    if step == "import":
        return HostError(f"the Python module pynvml cannot be imported: {text}", "install nvidia-ml-py")
    if step == "identity":
        return HostError(f"the driver library cannot be loaded as another user: {text}", "run as root")
    if step == "load":
        return HostError(f"NVML cannot be loaded: {text}", "reinstall the driver's management library")
    if code == LIB_RM_VERSION_MISMATCH:
        return _skew(kernel_version, library.partition(".so.")[2])
    return HostError(f"NVML fails in {step}: {text}", REMEDIES.get(code, REMEDY))


def _skew(kernel_version: str, library_version: str) -> HostError:
    return HostError(
        f"the driver's parts differ in version: kernel module {kernel_version}, libraries {library_version}",
        "reload the kernel module (rmmod and modprobe nvidia) or reboot, so that both are of one version",
    )


def run_child(report: "Callable[[], Iterator[str]]", timeout: float, *, library: str = "NVML") -> str:
    """Return what a child process reports; raises HostError when it takes too long or dies.

    `library` is how messages call what the child asks.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _be_child(report, writer)
    os.close(writer)
    finished = False
    try:
        text, finished = _read_until(reader, timeout)
    finally:
        os.close(reader)
        status = _reap(child, patience=GRACE if finished else 0.0)
    if not finished:
        raise HostError(
            f"{library} did not answer within {timeout} s",
            "turn on persistence mode (nvidia-persistenced, or nvidia-smi -pm 1), so that GPUs stay initialised, "
            "or raise nvinject.nvml-timeout",
        )
    if status is not None and os.WIFSIGNALED(status):
        raise HostError(f"{library} crashed: its process died of signal {os.WTERMSIG(status)}", REMEDY)
    return text


def _be_child(report: "Callable[[], Iterator[str]]", writer: int) -> None:
    """Report and end: whatever happens, a forked child must not return into its parent's code."""
    try:
        null = os.open("/dev/null", os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        rest = "".join(f"{line}\n" for line in report()).encode("utf-8", "replace")
        while rest:
            rest = rest[os.write(writer, rest) :]
    finally:
        os._exit(0)


def _read_until(reader: int, timeout: float) -> tuple[str, bool]:
    """Return what came through the pipe, and whether it was closed within the time limit."""
    import select
    import time

    deadline = time.monotonic() + timeout
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    chunks: list[bytes] = []
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return "", False
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            return b"".join(chunks).decode("utf-8", "replace"), True
        chunks.append(chunk)


def _reap(child: int, patience: float) -> int | None:
    """Return the child's wait status once it ended, killing it after `patience` seconds.

    None where it will not go: a process in an uninterruptible call of the driver does not die, and waiting for it would
    hang the container's start. It is left to init then.
    """
    status = _wait(child, patience)
    if status is None:
        try:
            os.kill(child, SIGKILL)
        except ProcessLookupError:
            return None
        status = _wait(child, GRACE)
    return status


def _wait(child: int, seconds: float) -> int | None:
    import time

    deadline = time.monotonic() + seconds
    while True:
        try:
            pid, status = os.waitpid(child, os.WNOHANG)
        except ChildProcessError:
            return None  # SIGCHLD is ignored in this process: the kernel reaps
        if pid == child:
            return status
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.0005)


def _report_as(identity: tuple[int, int] | None, library: str, device_root: str) -> "Iterator[str]":
    """Yield what NVML knows, as another user; runs in the child."""
    if device_root != "/":
        show_devices(device_root)
    _spare_imports()
    try:
        import pynvml  # noqa: F401 # now, because the other user may not reach its file
    except ImportError as error:
        yield _line("failed", "import", 0, str(error))
        return
    if identity is not None and identity != (os.geteuid(), os.getegid()):
        try:
            os.setgroups([])
            os.setresgid(identity[1], identity[1], identity[1])
            os.setresuid(identity[0], identity[0], identity[0])
        except OSError as error:
            yield _line("failed", "identity", 0, str(error))
            return
    yield from _report(library)


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


def _spare_imports() -> None:
    """Put an empty module in place of ctypes.util, which brings subprocess, shutil and tempfile: 9 of pynvml's 27 ms.

    pynvml asks it for a library on Windows alone; elsewhere, and so here, it asks the loader.
    """
    util = type(sys)("ctypes.util")
    util.find_library = lambda _name: None  # type: ignore[attr-defined]
    sys.modules.setdefault("ctypes.util", util)


def _report(library: str) -> "Iterator[str]":
    """Yield what NVML knows, one fact a line, fields separated by tabs; runs in the child."""
    import ctypes

    try:
        # pynvml asks the loader for libnvidia-ml.so.1: a library of that SONAME that is loaded already is what it gets.
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    except OSError as error:
        yield _line("failed", "load", 0, str(error))
        return
    try:
        import pynvml
    except ImportError as error:
        yield _line("failed", "import", 0, str(error))
        return
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
