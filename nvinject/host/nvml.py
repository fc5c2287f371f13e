"""What only NVML knows (CUDA version, brand, compute capability, MIG indices), and what its errors mean for a person.

Belongs here: the child's lines as values. Does not belong here: asking NVML (nvmlreport.py), the child (inquiry.py),
and anything that /proc tells as well.
"""

from nvinject.core.model import Gpu, Inventory, MigDevice
from nvinject.errors import HostError
from nvinject.host.gpus import parse_pci_address
from nvinject.host.inquiry import REMEDY
from nvinject.host.nvmlreport import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIB_RM_VERSION_MISMATCH,
    NO_PERMISSION,
    RESET_REQUIRED,
    format_question,
    start_inquiry,
)
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvinject.host.inquiry import Inquiry

REMEDIES = {
    NO_PERMISSION: "run as root, or let this user open /dev/nvidiactl and /dev/nvidia*",
    DRIVER_NOT_LOADED: "run modprobe nvidia",
    GPU_IS_LOST: "reset the GPU or reboot, and look for Xid in dmesg",
    RESET_REQUIRED: "run nvidia-smi --gpu-reset as root",
}
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
    inquiry: "Inquiry | None" = None,
) -> NvmlAnswer:
    """Return what NVML says, `library` being the host's path of libnvidia-ml.

    `identity` is the user and group that the child becomes before it loads the library (None: it stays what we are).
    The nodes that NVML opens by their usual paths are those of `device_root`. `inquiry` is a child that waits for this
    question already (nvmlreport.start_inquiry). Raises HostError for every way in which that can fail, the time limit
    (seconds) among them.
    """
    if not library:
        raise HostError(
            f"libnvidia-ml.so.1 of version {kernel_version} is not there, and only it can tell what was asked for",
            "install the driver's management library",
        )
    with inquiry or start_inquiry() as asked:
        text = asked.ask(format_question(identity, library, device_root), timeout)
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
