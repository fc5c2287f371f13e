"""The GPU models that a machine file can name, with what identifies and measures each of them.

Belongs here: one row per model and per MIG profile, and the NVML answers that follow from them. Does not belong here:
anything about one particular machine (machine.py) or how an answer is packed for the library (nvml/image.py).
Sources: PCI ids and names from the driver's list of supported products; memory, power and MIG geometry from published
captures of nvidia-smi. MIG memory moves by a quarter of a GiB between drivers and is data here, not a law.
"""

from dataclasses import dataclass
from typing import Any

BRAND_GEFORCE = 5
BRAND_NVIDIA_RTX = 13
BRAND_NVIDIA = 14

CLASS_VGA = 0x030000
CLASS_3D = 0x030200

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One way to cut a GPU instance out of a GPU; counts are NVML's, memory is in MiB."""

    name: str
    profile_id: int
    enum: int
    slices: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    jpeg: int
    ofa: int
    maximum: int
    placements: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class GpuModel:
    """What every GPU of one model has in common."""

    key: str
    name: str
    device_id: int
    subsystem_id: int
    compute_capability: str
    architecture: str
    memory_mib: int
    power_watts: int
    brand: int = BRAND_NVIDIA
    pci_class: int = CLASS_3D
    nvlinks: int = 0
    nvlink_mbps: int = 0
    pcie_generation: int = 4
    multiprocessors: int = 0
    graphics_mhz: int = 1410
    memory_mhz: int = 1593
    has_fan: bool = False
    has_ecc: bool = True
    has_fabric: bool = False
    mig: str = ""
    integrated: bool = False


# Profile id, NVML enum value, GPU slices, maximum, placements (start, size) on the eight memory slices.
_MIG_SHAPES: dict[str, tuple[int, int, int, int, tuple[tuple[int, int], ...]]] = {
    "1g": (19, 0, 1, 7, tuple((start, 1) for start in range(7))),
    "1g+me": (20, 7, 1, 1, tuple((start, 1) for start in range(7))),
    "1g*2": (15, 9, 1, 4, ((0, 2), (2, 2), (4, 2), (6, 2))),
    "2g": (14, 1, 2, 3, ((0, 2), (2, 2), (4, 2))),
    "3g": (9, 2, 3, 2, ((4, 4), (0, 4))),
    "4g": (5, 3, 4, 1, ((0, 4),)),
    "7g": (0, 4, 7, 1, ((0, 8),)),
}

# Shape: name, memory MiB, multiprocessors, copy engines, decoders, JPEG engines, OFA engines.
_MIG_TABLES: dict[str, dict[str, tuple[str, int, int, int, int, int, int]]] = {
    "a100-40": {
        "1g": ("1g.5gb", 4864, 14, 1, 0, 0, 0),
        "1g+me": ("1g.5gb+me", 4864, 14, 1, 1, 1, 1),
        "1g*2": ("1g.10gb", 9856, 14, 1, 1, 0, 0),
        "2g": ("2g.10gb", 9856, 28, 2, 1, 0, 0),
        "3g": ("3g.20gb", 19968, 42, 3, 2, 0, 0),
        "4g": ("4g.20gb", 19968, 56, 4, 2, 0, 0),
        "7g": ("7g.40gb", 40192, 98, 7, 5, 1, 1),
    },
    "a100-80": {
        "1g": ("1g.10gb", 9728, 14, 1, 0, 0, 0),
        "1g+me": ("1g.10gb+me", 9728, 14, 1, 1, 1, 1),
        "1g*2": ("1g.20gb", 19968, 14, 1, 1, 0, 0),
        "2g": ("2g.20gb", 19968, 28, 2, 1, 0, 0),
        "3g": ("3g.40gb", 40192, 42, 3, 2, 0, 0),
        "4g": ("4g.40gb", 40192, 56, 4, 2, 0, 0),
        "7g": ("7g.80gb", 80896, 98, 7, 5, 1, 1),
    },
    "h100-80": {
        "1g": ("1g.10gb", 9984, 16, 1, 1, 1, 0),
        "1g+me": ("1g.10gb+me", 9984, 16, 1, 1, 1, 1),
        "1g*2": ("1g.20gb", 20096, 26, 1, 1, 1, 0),
        "2g": ("2g.20gb", 20096, 32, 2, 2, 2, 0),
        "3g": ("3g.40gb", 40448, 60, 3, 3, 3, 0),
        "4g": ("4g.40gb", 40448, 64, 4, 4, 4, 0),
        "7g": ("7g.80gb", 81152, 132, 8, 7, 7, 1),
    },
    "h200": {
        "1g": ("1g.18gb", 16384, 16, 1, 1, 1, 0),
        "1g+me": ("1g.18gb+me", 16384, 16, 1, 1, 1, 1),
        "1g*2": ("1g.35gb", 33024, 26, 1, 1, 1, 0),
        "2g": ("2g.35gb", 33280, 32, 2, 2, 2, 0),
        "3g": ("3g.71gb", 71168, 60, 3, 3, 3, 0),
        "4g": ("4g.71gb", 71168, 64, 4, 4, 4, 0),
        "7g": ("7g.141gb", 143104, 132, 8, 7, 7, 1),
    },
    "b200": {
        "1g": ("1g.23gb", 22528, 18, 2, 1, 1, 0),
        "1g+me": ("1g.23gb+me", 22528, 18, 2, 1, 1, 1),
        "1g*2": ("1g.45gb", 45312, 30, 2, 1, 1, 0),
        "2g": ("2g.45gb", 45312, 36, 4, 2, 2, 0),
        "3g": ("3g.90gb", 90880, 70, 6, 3, 3, 0),
        "4g": ("4g.90gb", 90880, 72, 8, 4, 4, 0),
        "7g": ("7g.180gb", 182272, 148, 16, 7, 7, 1),
    },
    "gb200": {
        "1g": ("1g.23gb", 22528, 18, 2, 1, 1, 0),
        "1g+me": ("1g.23gb+me", 22528, 18, 2, 1, 1, 1),
        "1g*2": ("1g.47gb", 46592, 32, 2, 1, 1, 0),
        "2g": ("2g.47gb", 46592, 38, 4, 2, 2, 0),
        "3g": ("3g.93gb", 93952, 72, 6, 3, 3, 0),
        "4g": ("4g.93gb", 93952, 74, 8, 4, 4, 0),
        "7g": ("7g.186gb", 188416, 152, 16, 7, 7, 1),
    },
}

# GPU instance ids that the driver hands out, by slices of the profile's memory: the lowest free one of the range.
INSTANCE_IDS: dict[int, range] = {1: range(7, 14), 2: range(3, 7), 4: range(1, 3), 8: range(1)}

_ROWS = (
    GpuModel(
        "t4", "Tesla T4", 0x1EB8, 0x12A2, "7.5", "turing", 15360, 70,
        pcie_generation=3, multiprocessors=40, graphics_mhz=1590, memory_mhz=5001,
    ),
    GpuModel(
        "l4", "NVIDIA L4", 0x27B8, 0x16CA, "8.9", "ada", 23034, 72,
        multiprocessors=58, graphics_mhz=2040, memory_mhz=6251,
    ),
    GpuModel(
        "l40s", "NVIDIA L40S", 0x26B9, 0x1851, "8.9", "ada", 46068, 350,
        multiprocessors=142, graphics_mhz=2520, memory_mhz=9001,
    ),
    GpuModel(
        "a100-40gb", "NVIDIA A100-SXM4-40GB", 0x20B0, 0x134F, "8.0", "ampere", 40960, 400,
        nvlinks=12, nvlink_mbps=25000, multiprocessors=108, memory_mhz=1215, mig="a100-40",
    ),
    GpuModel(
        "a100-80gb", "NVIDIA A100-SXM4-80GB", 0x20B2, 0x1463, "8.0", "ampere", 81920, 400,
        nvlinks=12, nvlink_mbps=25000, multiprocessors=108, memory_mhz=1593, mig="a100-80",
    ),
    GpuModel(
        "a100-pcie-40gb", "NVIDIA A100-PCIE-40GB", 0x20F1, 0x145F, "8.0", "ampere", 40960, 250,
        multiprocessors=108, memory_mhz=1215, mig="a100-40",
    ),
    GpuModel(
        "a100-pcie-80gb", "NVIDIA A100 80GB PCIe", 0x20B5, 0x1533, "8.0", "ampere", 81920, 300,
        multiprocessors=108, memory_mhz=1512, mig="a100-80",
    ),
    GpuModel(
        "h100", "NVIDIA H100 80GB HBM3", 0x2330, 0x16C1, "9.0", "hopper", 81559, 700,
        nvlinks=18, nvlink_mbps=26562, pcie_generation=5, multiprocessors=132, graphics_mhz=1980, memory_mhz=2619,
        has_fabric=True, mig="h100-80",
    ),
    GpuModel(
        "h100-pcie", "NVIDIA H100 PCIe", 0x2331, 0x1626, "9.0", "hopper", 81559, 350,
        pcie_generation=5, multiprocessors=114, graphics_mhz=1755, memory_mhz=1593, mig="h100-80",
    ),
    GpuModel(
        "h200", "NVIDIA H200", 0x2335, 0x18BE, "9.0", "hopper", 143771, 700,
        nvlinks=18, nvlink_mbps=26562, pcie_generation=5, multiprocessors=132, graphics_mhz=1980, memory_mhz=3201,
        has_fabric=True, mig="h200",
    ),
    GpuModel(
        "b200", "NVIDIA B200", 0x2901, 0x1999, "10.0", "blackwell", 183359, 1000,
        nvlinks=18, nvlink_mbps=53125, pcie_generation=6, multiprocessors=148, graphics_mhz=1965, memory_mhz=3996,
        has_fabric=True, mig="b200",
    ),
    GpuModel(
        "gb200", "NVIDIA GB200", 0x2941, 0x2046, "10.0", "blackwell", 189471, 1200,
        nvlinks=18, nvlink_mbps=53125, pcie_generation=6, multiprocessors=152, graphics_mhz=2062, memory_mhz=3996,
        has_fabric=True, mig="gb200",
    ),
    GpuModel(
        "rtx-4090", "NVIDIA GeForce RTX 4090", 0x2684, 0x167C, "8.9", "ada", 24564, 450,
        brand=BRAND_GEFORCE, pci_class=CLASS_VGA, multiprocessors=128, graphics_mhz=3105, memory_mhz=10501,
        has_fan=True, has_ecc=False,
    ),
    GpuModel(
        "rtx-6000-ada", "NVIDIA RTX 6000 Ada Generation", 0x26B1, 0x16A1, "8.9", "ada", 49140, 300,
        brand=BRAND_NVIDIA_RTX, pci_class=CLASS_VGA, multiprocessors=142, graphics_mhz=3105, memory_mhz=10001,
        has_fan=True,
    ),
    GpuModel(
        "orin", "Orin (nvgpu)", 0, 0, "8.7", "ampere", 0, 0, has_ecc=False, integrated=True,
    ),
    GpuModel(
        "thor", "NVIDIA Thor", 0x2B00, 0x0000, "11.0", "blackwell", 0, 0, has_ecc=False, integrated=True,
    ),
)  # fmt: skip

MODELS: dict[str, GpuModel] = {row.key: row for row in _ROWS}


def mig_profiles(model: GpuModel) -> tuple[MigProfile, ...]:
    """Return the MIG profiles of a model, in NVML's order of enum values; none for a model without MIG."""
    table = _MIG_TABLES.get(model.mig, {})
    profiles = []
    for key, (name, memory, multiprocessors, copy_engines, decoders, jpeg, ofa) in table.items():
        number, enum, slices, maximum, placements = _MIG_SHAPES[key]
        counts = (memory, multiprocessors, copy_engines, decoders, jpeg, ofa)
        profiles.append(MigProfile(name, number, enum, slices, *counts, maximum, placements))
    return tuple(sorted(profiles, key=lambda profile: profile.enum))


def bar1_bytes(model: GpuModel) -> int:
    """Return the size of the region through which the host sees a GPU's memory."""
    if model.brand == BRAND_GEFORCE:
        return 1 << 28
    return 1 << max((model.memory_mib * MEBIBYTE - 1).bit_length(), 28)


def nvml_answers(model: GpuModel) -> dict[str, Any]:
    """Return what NVML says about an idle GPU of this model, in the vocabulary of NVIDIA's mock configuration 1.0."""
    major, minor = model.compute_capability.split(".")
    answers: dict[str, Any] = {
        "name": model.name,
        "brand": model.brand,
        "architecture": model.architecture,
        "compute_capability": {"major": int(major), "minor": int(minor)},
        "persistence_mode": "enabled",
        "compute_mode": "default",
        "performance_state": "P0",
    }
    if model.integrated:
        return answers | (_function(model) if model.device_id else {})
    return answers | _board(model) | _activity(model) | _features(model)


def _function(model: GpuModel) -> dict[str, Any]:
    ids = {"device_id": model.device_id << 16 | 0x10DE, "subsystem_id": model.subsystem_id << 16 | 0x10DE}
    return {"pci": {**ids, "class": model.pci_class}}


def _board(model: GpuModel) -> dict[str, Any]:
    total = model.memory_mib * MEBIBYTE
    reserved = model.memory_mib * 7 // 1000 * MEBIBYTE
    bar1 = bar1_bytes(model)
    return {
        "vbios_version": "96.00.74.00.01",
        "board_part_number": f"900-{model.device_id:05X}-0000-000"[:20],
        "inforom": {"image_version": "G520.0200.00.05", "oem_object": "2.1", "ecc_object": "7.16"},
        "memory": {"total_bytes": total, "reserved_bytes": reserved, "used_bytes": 0, "free_bytes": total - reserved},
        "bar1_memory": {"total_bytes": bar1, "used_bytes": MEBIBYTE, "free_bytes": bar1 - MEBIBYTE},
        **_function(model),
        "pcie": {
            "max_link_gen": model.pcie_generation,
            "current_link_gen": model.pcie_generation,
            "max_link_width": 16,
            "current_link_width": 16,
            "replay_counter": 0,
            "replay_rollover_counter": 0,
            "tx_throughput_kbps": 0,
            "rx_throughput_kbps": 0,
        },
    }


def _activity(model: GpuModel) -> dict[str, Any]:
    milliwatts = model.power_watts * 1000
    graphics, memory = model.graphics_mhz, model.memory_mhz
    return {
        "power": {
            "management_mode": "enabled",
            "default_limit_mw": milliwatts,
            "enforced_limit_mw": milliwatts,
            "min_limit_mw": milliwatts * 2 // 7,
            "max_limit_mw": milliwatts,
            "current_draw_mw": milliwatts // 10,
            "total_energy_consumption_mj": 600000,
        },
        "thermal": {
            "temperature_gpu_c": 34,
            "temperature_memory_c": 38,
            "shutdown_threshold_c": 92,
            "slowdown_threshold_c": 89,
            "max_operating_c": 87,
        },
        "fan": {"count": 1, "speed_percent": 30} if model.has_fan else {"count": 0},
        "clocks": {
            "graphics_current": 345,
            "graphics_max": graphics,
            "graphics_app": graphics,
            "graphics_app_default": graphics,
            "sm_current": 345,
            "sm_max": graphics,
            "memory_current": memory,
            "memory_max": memory,
            "memory_app": memory,
            "memory_app_default": memory,
            "video_current": 765,
            "video_max": graphics * 4 // 5,
        },
        "clocks_throttle_reasons": {"gpu_idle": True},
        "supported_clocks": {
            "memory_clocks": [{"freq_mhz": memory, "graphics_clocks": list(range(graphics, 344, -15))}],
        },
        "utilization": {"gpu": 0, "memory": 0, "encoder": 0, "decoder": 0, "jpeg": 0, "ofa": 0},
        "encoder_stats": {"session_count": 0, "average_fps": 0, "average_latency_us": 0},
        "fbc_stats": {"session_count": 0, "average_fps": 0, "average_latency_us": 0},
        "accounting": {"mode": "disabled", "buffer_size": 4000},
    }


def _features(model: GpuModel) -> dict[str, Any]:
    answers: dict[str, Any] = {
        "display": {"mode": "disabled", "active": "disabled"},
        "virtualization": {"mode": "none"},
        "multiprocessor_count": model.multiprocessors,
    }
    if model.architecture != "turing":
        answers["remapped_rows"] = {"correctable": 0, "uncorrectable": 0, "pending": False, "failure_occurred": False}
        answers["remapped_rows"]["availability_histogram"] = {"max": 640, "high": 0, "partial": 0, "low": 0, "none": 0}
    else:
        none = {"count": 0, "addresses": []}
        answers["retired_pages"] = {"single_bit_retirement": none, "double_bit_retirement": none}
        answers["retired_pages"]["pending_retirement"] = False
    if model.has_ecc:
        answers["ecc"] = {"mode_current": "enabled", "mode_pending": "enabled", "default_mode": "enabled"}
    if model.mig:
        answers["mig"] = {"mode_current": "disabled", "mode_pending": "disabled", "max_gpu_instances": 7}
    if model.has_fabric:
        answers["fabric"] = {
            "cluster_uuid": "00000000-0000-0000-0000-000000000000",
            "clique_id": 0,
            "state": "completed",
        }
    if model.nvlinks:
        version = {"ampere": 3, "hopper": 4, "blackwell": 5}[model.architecture]
        answers["nvlink"] = {"links": model.nvlinks, "bandwidth_per_link_mbps": model.nvlink_mbps, "version": version}
        if model.architecture != "ampere":
            answers["nvlink"]["c2c_enabled"] = model.key == "gb200"
    return answers
