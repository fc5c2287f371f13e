"""The texts of the NVIDIA kernel modules in /proc, and /proc/devices.

Belongs here: text to values, and back. Does not belong here: which file is read (nvinject.host) and what a value means
for a request. Every reader is strict about the lines it needs and indifferent to lines that newer drivers may add.
"""

from nvinject.record import Record


class ProcFormatError(ValueError):
    """A line of a /proc file that cannot be what the driver writes; `number` counts from 1, 0 means a missing line."""

    def __init__(self, problem: str, number: int = 0, line: str = "") -> None:
        """Keep where and what, for a caller that knows the file's name."""
        where = f"line {number}: " if number else ""
        shown = f": {line!r}" if number else ""
        super().__init__(f"{where}{problem}{shown}")
        self.problem = problem
        self.number = number
        self.line = line


class KernelModule(Record):
    """What /proc/driver/nvidia/version says; `open_source` tells the open kernel modules from the proprietary ones."""

    version: str
    open_source: bool


class Parameter(Record):
    """A line of /proc/driver/nvidia/params; `value` is the text as it stands, with the quotes of strings."""

    name: str
    value: str


class GpuInformation(Record):
    """What /proc/driver/nvidia/gpus/<address>/information says.

    `uuid` is "" where the driver does not know it (before the GPU's first use it shows question marks).
    """

    minor: int
    uuid: str
    bus_location: str
    model: str = ""
    firmware: str = ""
    excluded: bool = False


class DeviceClasses(Record):
    """The (name, major) pairs of /proc/devices, in the file's order; a name can stand there more than once."""

    character: tuple[tuple[str, int], ...]
    block: tuple[tuple[str, int], ...] = ()


class Capability(Record):
    """A file below /proc/driver/nvidia/capabilities: the minor of its device, and how a node for it is to be made."""

    minor: int
    mode: int = 0o444
    modify: bool = True


def parse_version_file(text: str) -> KernelModule:
    """Return the module's version from the line `NVRM version: ...`.

    The version is the first word of digits and dots, as in `NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5`.
    Raises ProcFormatError when there is no such line or word.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("NVRM version:"):
            continue
        for word in line.split():
            if _is_version(word):
                return KernelModule(version=word, open_source="Open Kernel Module" in line)
        raise ProcFormatError("no driver version", number, line)
    raise ProcFormatError("no line 'NVRM version:'")


def _is_version(word: str) -> bool:
    parts = word.split(".")
    return len(parts) > 1 and all(_is_number(part) for part in parts)


def _is_number(text: str) -> bool:
    # str.isdigit() takes superscripts and other digits that int() refuses or that no kernel prints.
    return text.isascii() and text.isdigit()


def parse_params(text: str) -> tuple[Parameter, ...]:
    """Return the module parameters in the file's order; raises ProcFormatError for a line that is no `Name: value`."""
    parameters = []
    for number, line in enumerate(text.split("\n"), 1):
        name, separator, value = line.partition(": ")
        if not line:
            continue
        if not separator or not name:
            raise ProcFormatError("not a parameter", number, line)
        parameters.append(Parameter(name=name, value=value))
    return tuple(parameters)


def mask_params(text: str) -> str:
    """Return the parameters with device files taken out of user space's hands: `ModifyDeviceFiles: 0`.

    With 1 the driver's libraries in the container would make device nodes there. Nothing else changes, not even an
    unknown line.
    """
    masked = "ModifyDeviceFiles: 0"
    return "\n".join(masked if line == "ModifyDeviceFiles: 1" else line for line in text.split("\n"))


def parse_information(text: str) -> GpuInformation:
    """Return what the driver says about one GPU.

    Lines are `Key: value` with tabs between; a line without a colon is ignored. Raises ProcFormatError when the device
    minor is missing or no number.
    """
    values: dict[str, str] = {}
    minor = -1
    for number, line in enumerate(text.splitlines(), 1):
        key, separator, value = line.partition(":")
        value = value.strip()
        if not separator:
            continue
        if key == "Device Minor":
            if not _is_number(value):
                raise ProcFormatError("the device minor is no number", number, line)
            minor = int(value)
        values.setdefault(key.strip(), value)
    if minor < 0:
        raise ProcFormatError("no line 'Device Minor:'")
    uuid = values.get("GPU UUID", "")
    return GpuInformation(
        minor=minor,
        uuid="" if "?" in uuid else uuid,
        bus_location=values.get("Bus Location", ""),
        model=values.get("Model", ""),
        firmware=values.get("GPU Firmware", ""),
        excluded=values.get("GPU Excluded") == "Yes",
    )


def parse_devices(text: str) -> DeviceClasses:
    """Return the device classes of /proc/devices; raises ProcFormatError for a line that is no `major name`."""
    sections: dict[str, list[tuple[str, int]]] = {"Character devices:": [], "Block devices:": []}
    current: list[tuple[str, int]] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if line in sections:
            current = sections[line]
            continue
        if not line.strip():
            continue
        major, _, name = line.strip().partition(" ")
        if current is None or not _is_number(major) or not name:
            raise ProcFormatError("not a device class", number, line)
        current.append((name, int(major)))
    character, block = sections.values()
    return DeviceClasses(character=tuple(character), block=tuple(block))


def parse_mig_minors(text: str) -> tuple[tuple[str, int], ...]:
    """Return (capability, minor) for each line of /proc/driver/nvidia-caps/mig-minors.

    The file has a line for every capability that a GPU could have, so one that exists is not thereby in use. Raises
    ProcFormatError for a line that is no `name minor`.
    """
    minors = []
    for number, line in enumerate(text.splitlines(), 1):
        name, _, minor = line.partition(" ")
        if not name or not _is_number(minor):
            raise ProcFormatError("not a capability and its minor", number, line)
        minors.append((name, int(minor)))
    return tuple(minors)


def parse_capability(text: str) -> Capability:
    """Return the device of a capability file; raises ProcFormatError without a `DeviceFileMinor` that is a number."""
    values = {"DeviceFileMinor": -1, "DeviceFileMode": 0o444, "DeviceFileModify": 1}
    for number, line in enumerate(text.splitlines(), 1):
        key, _, value = line.partition(": ")
        if key not in values:
            continue
        if not _is_number(value):
            raise ProcFormatError(f"{key} is no number", number, line)
        values[key] = int(value)
    if values["DeviceFileMinor"] < 0:
        raise ProcFormatError("no line 'DeviceFileMinor:'")
    return Capability(
        minor=values["DeviceFileMinor"], mode=values["DeviceFileMode"], modify=bool(values["DeviceFileModify"])
    )
