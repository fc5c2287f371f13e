"""Asking a libnvidia-ml.so.1, fake or real, the few things that surfaces.py compares and record.py writes down.

Belongs here: ctypes calls by their exported names. Does not belong here: structures beyond those few.
"""

import ctypes
from collections.abc import Iterator
from typing import Any, Self

NVML_NOT_FOUND = 6


class NvmlError(Exception):
    """A call that did not succeed; `code` is NVML's result."""

    def __init__(self, name: str, code: int) -> None:
        """Keep what was called and what it returned."""
        super().__init__(f"{name}: {code}")
        self.code = code


class _PciInfo(ctypes.Structure):
    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """An initialised library; use it in a with statement."""

    def __init__(self, path: str = "libnvidia-ml.so.1") -> None:
        """Load and initialise it; raises NvmlError or, where it is not found, OSError."""
        self.library = ctypes.CDLL(path)
        self.call("nvmlInitWithFlags", ctypes.c_uint(0))

    def __enter__(self) -> Self:
        """Return the library."""
        return self

    def __exit__(self, *_: object) -> None:
        """Shut it down."""
        self.library.nvmlShutdown()

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; raises NvmlError unless it succeeds."""
        function = getattr(self.library, name, None)
        code = function(*arguments) if function else 13
        if code:
            raise NvmlError(name, code)

    def number(self, name: str, *arguments: Any, kind: type[Any] = ctypes.c_uint) -> int | None:
        """Return a number that a function gives, or None where it does not."""
        value = kind()
        try:
            self.call(name, *arguments, ctypes.byref(value))
        except NvmlError:
            return None
        return int(value.value)

    def text(self, name: str, *arguments: Any) -> str | None:
        """Return a text that a function gives, or None where it does not."""
        buffer = ctypes.create_string_buffer(96)
        try:
            self.call(name, *arguments, buffer, ctypes.c_uint(96))
        except NvmlError:
            return None
        return buffer.value.decode()

    def gpus(self) -> Iterator[ctypes.c_void_p]:
        """Yield the handle of each GPU."""
        for index in range(self.number("nvmlDeviceGetCount_v2") or 0):
            device = ctypes.c_void_p()
            self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
            yield device

    def migs(self, gpu: ctypes.c_void_p) -> Iterator[ctypes.c_void_p]:
        """Yield the handle of each MIG device of a GPU."""
        for index in range(self.number("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0):
            device = ctypes.c_void_p()
            try:
                self.call("nvmlDeviceGetMigDeviceHandleByIndex", gpu, ctypes.c_uint(index), ctypes.byref(device))
            except NvmlError as error:
                if error.code == NVML_NOT_FOUND:
                    continue
                raise
            yield device

    def pci(self, gpu: ctypes.c_void_p) -> tuple[str, int, int] | None:
        """Return (bus id as sysfs writes it, device id, subsystem id), or None for a GPU that is not on PCI."""
        info = _PciInfo()
        try:
            self.call("nvmlDeviceGetPciInfo_v3", gpu, ctypes.byref(info))
        except NvmlError:
            return None
        bus = f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"
        return bus, int(info.device_id), int(info.subsystem_id)

    def memory(self, gpu: ctypes.c_void_p) -> int | None:
        """Return the bytes of memory of a GPU."""
        memory = _Memory()
        try:
            self.call("nvmlDeviceGetMemoryInfo", gpu, ctypes.byref(memory))
        except NvmlError:
            return None
        return int(memory.total)

    def pair(self, name: str, gpu: ctypes.c_void_p) -> tuple[int, int] | None:
        """Return two numbers that a function gives, or None where it does not."""
        one, two = ctypes.c_uint(), ctypes.c_uint()
        try:
            self.call(name, gpu, ctypes.byref(one), ctypes.byref(two))
        except NvmlError:
            return None
        return one.value, two.value
