"""The loaded kernel driver: its version, its device numbers, its texts for containers, its control nodes.

Belongs here: what /proc says about the driver as a whole. Does not belong here: single GPUs (gpus.py) and the driver's
files in user space (libraries.py, files.py).
"""

from nvinject.core.catalog import ControlNodeRow, major_of
from nvinject.core.model import DeviceNode
from nvinject.errors import HostError
from nvinject.formats import nvproc
from nvinject.host.nodes import check_node
from nvinject.host.root import Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Parsed = TypeVar("Parsed")

DRIVER_DIRECTORY = "/driver/nvidia"  # below the proc root
VERSION_FILE = f"{DRIVER_DIRECTORY}/version"
COPIED_FILES = ("params", "version", "registry")  # what the original copies


def read_parsed(proc: Root, path: str, parse: "Callable[[str], Parsed]") -> "Parsed | None":
    """Return a parsed text of the driver, None where there is no such file; HostError names file and line."""
    text = proc.read_text(path)
    if text is None:
        return None
    try:
        return parse(text)
    except nvproc.ProcFormatError as error:
        hint = "the driver writes this file: reload it, or report the file if it is a newer driver's"
        raise HostError(f"{proc.host_path(path)}: {error}", hint) from error


def read_kernel_version(proc: Root) -> str:
    """Return the version of the loaded kernel module, "" where none is loaded."""
    module = read_parsed(proc, VERSION_FILE, nvproc.parse_version_file)
    return "" if module is None else module.version


def read_majors(proc: Root) -> tuple[tuple[str, int], ...]:
    """Return name and major of the character device classes, none where the list cannot be found."""
    classes = read_parsed(proc, "/devices", nvproc.parse_devices)
    return () if classes is None else classes.character


def read_proc_files(proc: Root) -> tuple[tuple[str, str], ...]:
    """Return name and content of the driver's texts that a container gets a copy of, as it shall see them."""
    found = []
    for name in COPIED_FILES:
        text = proc.read_text(f"{DRIVER_DIRECTORY}/{name}")
        if text is not None:
            found.append((name, nvproc.mask_params(text) if name == "params" else text))
    return tuple(found)


def find_control_nodes(
    dev: Root, rows: tuple[ControlNodeRow, ...], majors: tuple[tuple[str, int], ...], *, strict: bool
) -> tuple[tuple[DeviceNode, ...], tuple[str, ...]]:
    """Return the control nodes that are there, and notes about those that are not or have another number.

    Raises HostError for a required one. The others are taken with whatever number they have, as the original does.
    """
    nodes, notes = [], []
    for row in rows:
        major = major_of(row.classes, majors, row.default_major)
        check = check_node(dev, row.path, major, row.minor, strict=strict and row.required)
        if check.fault and row.required:
            raise HostError(f"the {row.reason} cannot be used: {check.fault}", f"run {row.remedy} as root")
        if check.fault:
            notes.append(f"{check.fault} ({row.reason}); run {row.remedy} as root")
        if check.note:
            notes.append(check.note)
        if check.node is not None:
            nodes.append(check.node)
    return tuple(nodes), tuple(notes)
