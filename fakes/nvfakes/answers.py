"""Which of NVML's answers can be given anew while a machine runs, and what each may be.

Belongs here: one name per answer, by the kind of its value, as the library reads it (nvml/*.c; a test compares). Does
not belong here: what the library makes of a value (nvml/image.py), and changing a machine (verbs.py).
"""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from nvfakes.errors import UsageError
from nvfakes.nvml.image import CHOICES

NOT_SUPPORTED = "N/A"  # as NVIDIA's tools print it: NVML answers "not supported"
LONGEST = 79  # the shortest buffer that NVML's clients have for a text has 80 bytes
_PLACES = "l1_cache l2_cache device_memory register_file texture_memory texture_shm cbu sram total"

# By kind: group, then names in it.
NUMBERS = {
    "": (
        "addressing_mode board_id bus_type gpu_numa_node irq module_id multiprocessor_count num_gpu_cores "
        "recovery_action"
    ),
    "accounting": "buffer_size",
    "clocks": (
        "graphics_current graphics_max graphics_app graphics_app_default sm_current sm_max memory_current memory_max "
        "memory_app memory_app_default video_current video_max adaptive"
    ),
    "compute_capability": "major minor",
    "encoder_stats": "session_count average_fps average_latency_us",
    "fabric": "clique_id status health_mask",
    "fan": "count speed_percent",
    "fbc_stats": "session_count average_fps",
    "gpu_operation_mode": "current pending",
    "inforom": "checksum",
    "memory": "memory_bus_width",
    "mig": "max_gpu_instances",
    "nvlink": "links version bandwidth_per_link_mbps errors",
    "pci": "device_id subsystem_id class",
    "pcie": (
        "max_link_gen current_link_gen host_max_link_gen max_link_width current_link_width replay_counter "
        "replay_rollover_counter tx_throughput_kbps rx_throughput_kbps"
    ),
    "power": "current_draw_mw default_limit_mw enforced_limit_mw min_limit_mw max_limit_mw source",
    "remapped_rows": "correctable uncorrectable",
    "remapped_rows.availability_histogram": "max high partial low none",
    "retired_pages.single_bit_retirement": "count",
    "retired_pages.double_bit_retirement": "count",
    "thermal": (
        "temperature_gpu_c temperature_memory_c shutdown_threshold_c slowdown_threshold_c max_operating_c "
        "memory_max_operating_c acoustic_min_c acoustic_max_c target_temperature_c gps_c tlimit_c shutdown_tlimit_c "
        "slowdown_tlimit_c memory_tlimit_c gpu_max_tlimit_c"
    ),
    "utilization": "gpu memory encoder decoder jpeg ofa",
    "virtualization": "host_vgpu_mode",
}
LARGE_NUMBERS = {
    "bar1_memory": "total_bytes used_bytes",
    "ecc.errors.aggregate.double_bit": _PLACES,
    "ecc.errors.aggregate.single_bit": _PLACES,
    "ecc.errors.volatile.double_bit": _PLACES,
    "ecc.errors.volatile.single_bit": _PLACES,
    "ecc.sram.aggregate": "correctable uncorrectable_parity uncorrectable_secded",
    "ecc.sram.uncorrectable_sources": "l2 sm pcie microcontroller other",
    "ecc.sram.volatile": "correctable uncorrectable_parity uncorrectable_secded",
    "memory": "total_bytes reserved_bytes used_bytes",
    "power": "total_energy_consumption_mj",
}
SWITCHES = {
    "": "drain_and_reset_required multi_gpu_board persistence_mode reset_required",
    "accounting": "mode",
    "clocks_throttle_reasons": (
        "gpu_idle applications_clocks_setting sw_power_cap hw_slowdown sync_boost sw_thermal_slowdown "
        "hw_thermal_slowdown hw_power_brake_slowdown display_clocks_setting"
    ),
    "display": "mode active",
    "ecc": "mode_current mode_pending default_mode",
    "ecc.sram": "threshold_exceeded",
    "gsp_firmware": "mode",
    "nvlink": "c2c_enabled",
    "power": "management_mode",
    "remapped_rows": "pending failure_occurred",
    "retired_pages": "pending_retirement",
}
TEXTS = {
    "": "name board_part_number gpu_part_number vbios_version",
    "fabric": "cluster_uuid",
    "gsp_firmware": "version",
    "inforom": "image_version oem_object ecc_object pwr_object",
}
_HEALTH = ("not_supported", "healthy", "unhealthy", "limited_capacity")
# What the machine itself is: where it is said, or what changes it.
ELSEWHERE = {
    **dict.fromkeys(("uuid", "serial", "minor", "numa_node", "pci.bus_id"), "is what the machine's file says"),
    **dict.fromkeys(("cpus", "memory_nodes"), "follows from the machine's file"),
    **dict.fromkeys(
        ("processes", "supported_clocks.memory_clocks"), "is a list: `answers` of the machine's file has it"
    ),
    **dict.fromkeys(("mig.mode_current", "mig.mode_pending"), "follows from the instances: use nvfakes mig"),
    "lost": "is a GPU's health: use nvfakes health",
    "unplugged": "is whether the GPU is there: use nvfakes unplug",
    "memory_limits": "is what a program sets through NVML",
}
_SETTINGS = {"enabled": True, "true": True, "1": True, "disabled": False, "false": False, "0": False}


def read_value(key: str, text: str) -> "str | int | bool | None":
    """Return the value that an answer shall have; raises UsageError for an unknown answer or another kind of value."""
    if key in ELSEWHERE:
        raise UsageError(f"{key} {ELSEWHERE[key]}")
    if key not in READERS:
        near = difflib.get_close_matches(key, READERS, n=1)
        guess = f" (did you mean {near[0]}?)" if near else ""
        raise UsageError(f"NVML has no answer {key!r}{guess}; nvfakes answer --help lists them")
    return None if text == NOT_SUPPORTED else READERS[key](key, text)


def _read_number(most: int) -> "Callable[[str, str], int]":
    def read(key: str, text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or len(text) > len(str(most)) or int(text) > most:
            raise UsageError(f"{key}: {text!r} is not a whole number from 0 to {most}, nor {NOT_SUPPORTED}")
        return int(text)

    return read


def _read_switch(key: str, text: str) -> bool:
    if text not in _SETTINGS:
        raise UsageError(f"{key}: {text!r} is not {', '.join(_SETTINGS)} or {NOT_SUPPORTED}")
    return _SETTINGS[text]


def _read_text(key: str, text: str) -> str:
    if not text or not text.isprintable() or len(text.encode()) > LONGEST:
        raise UsageError(f"{key}: {text!r} is not a text of 1 to {LONGEST} printable bytes")
    return text


def _read_choice(known: "tuple[str, ...]") -> "Callable[[str, str], str]":
    def read(key: str, text: str) -> str:
        if text not in known:
            raise UsageError(f"{key}: {text!r} is not {', '.join(known)} or {NOT_SUPPORTED}")
        return text

    return read


def _names(groups: Mapping[str, str]) -> "tuple[str, ...]":
    return tuple(f"{group}.{name}".lstrip(".") for group, names in groups.items() for name in names.split())


READERS: "dict[str, Callable[[str, str], str | int | bool]]" = {
    **dict.fromkeys(_names(NUMBERS), _read_number((1 << 32) - 1)),
    **dict.fromkeys(_names(LARGE_NUMBERS), _read_number((1 << 64) - 1)),
    **dict.fromkeys(_names(SWITCHES), _read_switch),
    **dict.fromkeys(_names(TEXTS), _read_text),
    **{key: _read_choice(tuple(known)) for key, known in CHOICES.items()},
    "performance_state": _read_choice(tuple(f"P{number}" for number in range(16))),
    "fabric.health_summary": _read_choice(_HEALTH),
}


GROUPS = {key[:place] for key in (*READERS, *ELSEWHERE) for place, sign in enumerate(key) if sign == "."}


def find_misplaced(values: Mapping[str, Any], above: str = "") -> str:
    """Return the name of a group of answers in whose place something else stands, "" where there is none."""
    for name, value in values.items():
        key = f"{above}.{name}" if above else str(name)
        if isinstance(value, Mapping):
            if found := find_misplaced(value, key):
                return found
        elif key in GROUPS and value is not None:
            return key
    return ""


def format_help() -> str:
    """Return all answers with their kinds, for a help text."""
    kinds = {
        "whole numbers": NUMBERS, "large whole numbers": LARGE_NUMBERS, "enabled or disabled": SWITCHES, "texts": TEXTS,
    }  # fmt: skip
    lines = [f"answers (each can be {NOT_SUPPORTED}: NVML does not support it):"]
    for title, groups in kinds.items():
        lines.append(f"  {title}")
        lines += [f"    {group}: {names}" if group else f"    {names}" for group, names in groups.items()]
    lines.append("  one of")
    lines += [f"    {key}: {' '.join(known)}" for key, known in CHOICES.items()]
    lines += ["    performance_state: P0 to P15", f"    fabric.health_summary: {' '.join(_HEALTH)}"]
    return "\n".join(lines) + "\n\n"
