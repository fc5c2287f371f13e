"""dxcore: what Windows tells a Linux system below it of its adapters, and where their drivers' files lie.

Belongs here: the questions, asked in a child as NVML's are (nvml.py), because the library may hang or crash. Does not
belong here: which adapter is NVIDIA's (wsl.py). Structures and numbers are those of Windows' d3dkmthk.h and d3dukmdt.h;
on Linux their wide characters have four bytes.
"""

from nvinject.errors import HostError
from nvinject.host import inquiry
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

QUERY_DRIVER_VERSION = 13  # KMTQAITYPE_DRIVERVERSION
QUERY_REGISTRY = 48  # KMTQAITYPE_QUERYREGISTRY
DRIVER_STORE_PATH = 2  # D3DDDI_QUERYREGISTRY_DRIVERSTOREPATH
WITH_COMPUTE_ONLY = 1  # D3DKMT_ENUMADAPTERS_FILTER.IncludeComputeOnly
MAX_PATH = 260
WIDE = 4  # bytes of a wide character
REMEDY = "run wsl --shutdown in Windows and start again, or raise nvinject.nvml-timeout"
OLDEST_WDDM = 2700  # adapters of earlier driver models are of no use below Windows


class Adapter(Record):
    """An adapter of Windows: the version of its driver's model, and the folder of its driver as Linux sees it."""

    wddm: int
    store: str


class DxcoreAnswer(Record):
    """The adapters in Windows' order; `problem` says why there is none or not every one ("" if nothing is wrong)."""

    adapters: tuple[Adapter, ...] = ()
    problem: str = ""


def ask_dxcore(library: str, timeout: float) -> DxcoreAnswer:
    """Return what the libdxcore at a path says; `timeout` is in seconds. Raises HostError where it hangs or crashes."""
    try:
        text = inquiry.ask(lambda: _report(library), timeout, library="libdxcore")
    except HostError as error:
        raise HostError(error.message, REMEDY) from error
    return parse_answer(text)


def parse_answer(text: str) -> DxcoreAnswer:
    """Return the child's lines as a value."""
    adapters: list[Adapter] = []
    problems: list[str] = []
    for line in text.splitlines():
        kind, _, rest = line.partition("\t")
        if kind == "adapter":
            wddm, _, store = rest.partition("\t")
            adapters.append(Adapter(wddm=int(wddm), store=store))
        else:
            problems.append(rest)
    return DxcoreAnswer(adapters=tuple(adapters), problem="; ".join(problems))


def _report(library: str) -> "Iterator[str]":
    """Yield what the library knows, one adapter a line; runs in the child."""
    import ctypes

    try:
        dxcore = ctypes.CDLL(library)
    except OSError as error:
        yield f"problem\t{' '.join(str(error).split())}"
        return
    missing = [name for name in ("D3DKMTEnumAdapters2", "D3DKMTQueryAdapterInfo") if not hasattr(dxcore, name)]
    if missing:
        yield f"problem\t{library} has no {' and no '.join(missing)}"
        return
    handles, code = _enumerate(dxcore)
    if code:
        yield f"problem\tadapters cannot be listed: {_status(code)}"
        return
    for handle in handles:
        version = ctypes.c_uint32()
        code = _query(dxcore, handle, QUERY_DRIVER_VERSION, version)
        if code:
            yield f"problem\tadapter {handle:#x} does not tell its version: {_status(code)}"
            continue
        store, code = _driver_store(dxcore, handle)
        if code:
            yield f"problem\tadapter {handle:#x} does not tell its driver's folder: {_status(code)}"
            continue
        yield f"adapter\t{version.value}\t{' '.join(store.split())}"


def _status(code: int) -> str:
    """Return an NTSTATUS as it is written."""
    return f"status {code & 0xFFFFFFFF:#010x}"


def _enumerate(dxcore: "Any") -> "tuple[list[int], int]":
    """Return the handles of all adapters, and 0 or the status of the call that failed."""
    import ctypes

    class Information(ctypes.Structure):
        _fields_ = (
            ("handle", ctypes.c_uint32),
            ("luid_low", ctypes.c_uint32),
            ("luid_high", ctypes.c_int32),
            ("sources", ctypes.c_uint32),
            ("moves", ctypes.c_uint32),
        )

    class Enumeration(ctypes.Structure):
        _fields_ = (("count", ctypes.c_uint32), ("adapters", ctypes.POINTER(Information)))

    class Filtered(ctypes.Structure):
        _fields_ = (("filter", ctypes.c_uint64), *Enumeration._fields_)

    # The newer call also shows adapters that only compute, as GPUs of data centres do.
    newer = hasattr(dxcore, "D3DKMTEnumAdapters3")
    ask = dxcore.D3DKMTEnumAdapters3 if newer else dxcore.D3DKMTEnumAdapters2
    asked: Any = Filtered(filter=WITH_COMPUTE_ONLY) if newer else Enumeration()
    code = ask(ctypes.byref(asked))
    if code or not asked.count:
        return [], code
    room = (Information * asked.count)()
    asked.adapters = ctypes.cast(room, ctypes.POINTER(Information))
    code = ask(ctypes.byref(asked))
    return [one.handle for one in room[: asked.count]], code


def _query(dxcore: "Any", handle: int, kind: int, answer: "Any") -> int:
    """Ask one thing about an adapter; returns the status."""
    import ctypes

    class Query(ctypes.Structure):
        _fields_ = (
            ("handle", ctypes.c_uint32),
            ("type", ctypes.c_uint32),
            ("data", ctypes.c_void_p),
            ("size", ctypes.c_uint32),
        )

    data = ctypes.cast(ctypes.pointer(answer), ctypes.c_void_p)
    code: int = dxcore.D3DKMTQueryAdapterInfo(
        ctypes.byref(Query(handle=handle, type=kind, data=data, size=ctypes.sizeof(answer)))
    )
    return code


def _driver_store(dxcore: "Any", handle: int) -> tuple[str, int]:
    """Return the folder of an adapter's driver, and 0 or the status of the call that failed.

    Asked twice, as Windows' documentation has it: the first answer is the size in bytes, for which room is made then.
    """
    import ctypes

    fields = (
        ("type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("name", ctypes.c_uint32 * MAX_PATH),
        ("value_type", ctypes.c_uint32),
        ("physical", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("status", ctypes.c_uint32),
    )

    class Size(ctypes.Structure):
        _fields_ = (*fields, ("output", ctypes.c_uint64))

    size = Size(type=DRIVER_STORE_PATH)
    code = _query(dxcore, handle, QUERY_REGISTRY, size)
    if code or not 0 < size.size <= WIDE * MAX_PATH:
        return "", code or -1

    class Path(ctypes.Structure):
        _fields_ = (*fields, ("output", ctypes.c_uint32 * (ctypes.sizeof(ctypes.c_uint64) // WIDE + size.size // WIDE)))

    path = Path(type=DRIVER_STORE_PATH, size=size.size)
    code = _query(dxcore, handle, QUERY_REGISTRY, path)
    if code or path.status:
        return "", code or -1
    return "".join(map(chr, path.output[: size.size // WIDE])).partition("\0")[0], 0
