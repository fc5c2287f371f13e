"""Writing down the machine on which this runs, real or fake, as a machine file.

Belongs here: from surfaces to the keys of a machine file. Does not belong here: reading the surfaces that tests compare
(surfaces.py). Serial numbers are left out unless asked for, and host names always.
"""

import ctypes
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nvfakes import driverfiles, elf, procfs, surfaces
from nvfakes.machine import DEFAULT_MAJORS, TRIPLETS, TRIPLETS_32, Driver, Machine
from nvfakes.models import MODELS, GpuModel
from nvfakes.nvmlclient import Nvml, NvmlError

Document = dict[str, Any]
# What NVML says about a GPU, by the name of the fact and the function that answers it.
_NUMBERS = {
    "persistence_mode": "nvmlDeviceGetPersistenceMode",
    "compute_mode": "nvmlDeviceGetComputeMode",
    "power.enforced_limit_mw": "nvmlDeviceGetEnforcedPowerLimit",
    "power.default_limit_mw": "nvmlDeviceGetPowerManagementDefaultLimit",
    "power.current_draw_mw": "nvmlDeviceGetPowerUsage",
    "pcie.max_link_gen": "nvmlDeviceGetMaxPcieLinkGeneration",
    "pcie.current_link_gen": "nvmlDeviceGetCurrPcieLinkGeneration",
    "pcie.max_link_width": "nvmlDeviceGetMaxPcieLinkWidth",
    "pcie.current_link_width": "nvmlDeviceGetCurrPcieLinkWidth",
    "brand": "nvmlDeviceGetBrand",
    "architecture": "nvmlDeviceGetArchitecture",
    "performance_state": "nvmlDeviceGetPerformanceState",
}
_TEXTS = {"vbios_version": "nvmlDeviceGetVbiosVersion", "board_part_number": "nvmlDeviceGetBoardPartNumber"}


def record(root: str = "/", *, serials: bool = False) -> str:
    """Return a machine file of the machine at a root."""
    base = Path(root)
    stories = surfaces.read(root)
    document: Document = {}
    driver = _driver(base, stories)
    if driver:
        document["driver"] = driver
    document["gpus"] = _gpus(base, stories, serials=serials)
    document |= _kernel(base, stories)
    if driver:
        user_space = _user_space(base, stories, str(driver["version"]))
        missing = [*document.get("deviate", {}).get("missing", ()), *user_space.get("deviate", {}).get("missing", ())]
        document |= user_space
        if missing:
            document.setdefault("deviate", {})["missing"] = missing
    return "# Recorded by `nvfakes record`.\n" + yaml.safe_dump(document, sort_keys=False, width=110)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _library(base: Path) -> str:
    return str(base / "usr/lib" / TRIPLETS.get(Machine("").architecture, "") / "libnvidia-ml.so.1")


def _driver(base: Path, stories: Mapping[str, surfaces.Story]) -> Document | None:
    versions = stories["files"]["versions"]
    version = stories["proc"]["version"] or (versions[-1] if versions else None)
    if version is None:
        return None
    found: Document = {"version": version}
    try:
        with Nvml(_library(base)) as nvml:
            cuda = nvml.number("nvmlSystemGetCudaDriverVersion_v2", kind=ctypes.c_int) or 0
            found["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    except (NvmlError, OSError, UnicodeError):  # of the last one: a loader message about a name of other bytes
        pass  # without NVML the default stands
    text = _text(base / "proc/driver/nvidia/version")
    if text and "Open Kernel Module" not in text:
        found["open"] = False
    return found


def _gpus(base: Path, stories: Mapping[str, surfaces.Story], *, serials: bool) -> list[Document]:
    answers: dict[str, Document] = {}
    try:
        with Nvml(_library(base)) as nvml:
            for gpu in nvml.gpus():
                answers[str(nvml.text("nvmlDeviceGetUUID", gpu))] = _nvml_gpu(nvml, gpu, serials=serials)
    except (NvmlError, OSError, UnicodeError):  # of the last one: a loader message about a name of other bytes
        pass  # the kernel's files tell which GPUs there are
    known = {uuid: [minor, uuid, bus] for minor, uuid, bus in (*stories["proc"]["gpus"], *stories["nvml"]["gpus"])}
    return [_gpu(base, known[uuid], answers.get(uuid, {})) for uuid in sorted(known, key=lambda item: str(known[item]))]


def _gpu(base: Path, identity: list[Any], answers: Document) -> Document:
    minor, uuid, bus = identity
    found: Document = {"model": answers.pop("model", "h100"), "uuid": uuid, "minor": minor}
    if bus:
        found["bus"] = bus
        folder = base / "sys/bus/pci/devices" / bus
        found["numa_node"] = int(_text(folder / "numa_node") or 0)
        for path in (folder / "drm").glob("*"):
            match = re.fullmatch(r"(card|render)D?(\d+)", path.name)
            if match:
                found[match[1]] = int(match[2])
    return found | answers


def _nvml_gpu(nvml: Nvml, gpu: ctypes.c_void_p, *, serials: bool) -> Document:
    found: Document = {"model": _model(nvml, gpu)}
    serial = nvml.text("nvmlDeviceGetSerial", gpu)
    found["serial"] = serial if serials and serial else "0"
    mode = nvml.pair("nvmlDeviceGetMigMode", gpu)
    if mode and mode[0]:
        found["mig_mode"] = True
        found["mig"] = _mig(nvml, gpu)
    facts: Document = {}
    for key, function in _NUMBERS.items():
        _put(facts, key, nvml.number(function, gpu))
    _put(facts, "thermal.temperature_gpu_c", _temperature(nvml, gpu))
    for key, function in _TEXTS.items():
        _put(facts, key, nvml.text(function, gpu))
    found["answers"] = facts
    return found


def _temperature(nvml: Nvml, gpu: ctypes.c_void_p) -> int | None:
    return nvml.number("nvmlDeviceGetTemperature", gpu, ctypes.c_uint(0))


def _put(facts: Document, key: str, value: Any) -> None:
    if value is None:
        return
    *folders, name = key.split(".")
    for folder in folders:
        facts = facts.setdefault(folder, {})
    facts[name] = value


def _model(nvml: Nvml, gpu: ctypes.c_void_p) -> str | Document:
    """Return a known model's name, or what differs from the one that is most like it."""
    name = nvml.text("nvmlDeviceGetName", gpu) or ""
    pci = nvml.pci(gpu)
    capability = nvml.pair("nvmlDeviceGetCudaComputeCapability", gpu)
    device, subsystem = (pci[1] >> 16, pci[2] >> 16) if pci else (0, 0)
    memory = (nvml.memory(gpu) or 0) >> 20
    if "(nvgpu)" in name:
        return "orin"
    for model in MODELS.values():
        if (model.name, model.device_id, model.subsystem_id, model.memory_mib) == (name, device, subsystem, memory):
            return model.key
    text = f"{capability[0]}.{capability[1]}" if capability else "8.0"
    return {
        "like": _closest(name, device, text, memory).key, "name": name, "device": device, "subsystem": subsystem,
        "capability": text, "memory_mib": memory,
    }  # fmt: skip


def _closest(name: str, device: int, capability: str, memory: int) -> GpuModel:
    def distance(model: GpuModel) -> tuple[bool, bool, bool, int]:
        return (
            model.name != name, model.device_id != device, model.compute_capability != capability,
            abs(model.memory_mib - memory),
        )  # fmt: skip

    return min((model for model in MODELS.values() if not model.integrated), key=distance)


def _mig(nvml: Nvml, gpu: ctypes.c_void_p) -> list[Document]:
    """Return the layout: one entry per GPU instance, with its compute instances where it is shared."""
    instances: dict[int, list[tuple[str, str]]] = {}
    for mig in nvml.migs(gpu):
        number = nvml.number("nvmlDeviceGetGpuInstanceId", mig) or 0
        name = (nvml.text("nvmlDeviceGetName", mig) or "").partition(" MIG ")[2]
        instances.setdefault(number, []).append((name, nvml.text("nvmlDeviceGetUUID", mig) or ""))
    layout: list[Document] = []
    for number in sorted(instances):
        devices = instances[number]
        part = re.match(r"(\d+c)\.(.*)", devices[0][0])
        if part is None:
            layout.append({"profile": devices[0][0], "uuid": devices[0][1]})
        else:
            compute = [{"size": name.partition(".")[0], "uuid": uuid} for name, uuid in devices]
            layout.append({"profile": part[2], "compute": compute})
    return layout


def _kernel(base: Path, stories: Mapping[str, surfaces.Story]) -> Document:
    found: Document = {}
    majors = {name: number for name, number in stories["proc"]["majors"].items() if name in DEFAULT_MAJORS}
    if majors:
        found["majors"] = majors
    switches = sorted(path.name for path in (base / "proc/driver/nvidia-nvswitch/devices").glob("*"))
    if switches:
        found["nvswitches"] = switches
    nodes = stories["dev"]["nodes"]
    channels = sorted(int(name.rpartition("channel")[2]) for name in nodes if "imex-channels/channel" in name)
    if channels:
        found["imex"] = {"channels": channels}
    if (base / "proc/driver/nvidia/capabilities/fabric-imex-mgmt").exists():
        found.setdefault("imex", {})["management"] = True
    sockets = [name for name in ("persistenced", "fabricmanager") if (base / f"run/nvidia-{name}/socket").exists()]
    if any((base / folder / "control").exists() for folder in ("run/nvidia-mps", "tmp/nvidia-mps")):
        sockets.append("mps")
    if sockets:
        found["sockets"] = sockets
    lines = (line.partition(":") for line in _text(base / "proc/driver/nvidia/params").splitlines())
    params = {key: value.strip() for key, _, value in lines}
    usual = procfs.params(Machine(""))
    changed = {key: value for key, value in params.items() if usual.get(key) != value}
    if changed:
        found["params"] = changed
    if not any(name.startswith("dri/") for name in nodes):
        found["drm"] = False
    missing = [f"/dev/{name}" for name in ("nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools") if name not in nodes]
    if missing and nodes:
        found["deviate"] = {"missing": missing}
    return found


def _user_space(base: Path, stories: Mapping[str, surfaces.Story], version: str) -> Document:
    """Return how the driver's files differ from those that the version usually has."""
    found: Document = {}
    folder = base / "usr/lib" / TRIPLETS.get(Machine("").architecture, "")
    installed = stories["files"]["versions"]
    library_version = installed[-1] if installed else version
    rows = driverfiles.libraries(Driver(version).branch)
    usual = {driverfiles.file_name(row, library_version) for row in rows}
    nested = {driverfiles.file_name(row, library_version) for row in driverfiles.LIBRARIES if row.directory}
    names = set(stories["files"]["names"])
    missing = sorted(name for name in usual - nested if not (folder / name).exists())
    extra = sorted(names - usual)
    if missing:
        found["deviate"] = {"missing": [f"*/{name.partition('.so.')[0]}.so*" for name in missing]}
    if extra:
        found["libraries"] = [f"/{(folder / name).relative_to(base)}" for name in extra]
        links = {name: elf.read_soname(str(folder / name)) for name in extra}
        found["links"] = {
            f"/{(folder / soname).relative_to(base)}": name
            for name, soname in links.items()
            if soname and soname != name
        }
    if library_version != version:
        found.setdefault("deviate", {})["library_version"] = library_version
    if (base / "usr/lib" / TRIPLETS_32.get(Machine("").architecture, "none") / "libcuda.so.1").exists():
        found["lib32"] = True
    return found
