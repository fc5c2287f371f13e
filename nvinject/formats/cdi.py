"""CDI specs: plain values (as JSON or YAML give them) to Records and back, strictly.

Belongs here: the document's model, its names, its versions, and an error that says where in the document a fault is.
Does not belong here: reading files and which of several files wins (nvinject.host.registry), making a spec from a plan
and putting one into a config.json (nvinject.render). Rules: Container Device Interface specification, SPEC.md, and the
checks of its reference library, which engines use.
"""

from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    Value = TypeVar("Value")

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
BASELINE_VERSION = "0.3.0"
HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
NODE_TYPES = ("", "b", "c", "u", "p")

_UINT32 = (1 << 32) - 1
_INT64 = (1 << 63) - 1


class CdiError(ValueError):
    """The document is no valid CDI spec; `where` is a path in it like `.devices[0].containerEdits.mounts[1]`."""

    def __init__(self, where: str, reason: str) -> None:
        """Keep place and reason; the text is both."""
        super().__init__(f"{where}: {reason}" if where else reason)
        self.where = where
        self.reason = reason


class NodeEdit(Record):
    """A device node; `host_path` is empty where it is `path`. What is 0 or None the engine finds out itself."""

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class NetworkEdit(Record):
    """A network interface of the host and its name in the container."""

    host_interface_name: str
    name: str


class MountEdit(Record):
    """A mount of something of the host; `options` as mount(8) has them."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class HookEdit(Record):
    """A hook; `env` None means that the runtime chooses its environment (with runc: the container's)."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] | None = None
    timeout: int | None = None


class RdtEdit(Record):
    """Cache and bandwidth allocation of Intel processors."""

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool = False


class Edits(Record):
    """What is changed in a container's specification."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[NodeEdit, ...] = ()
    net_devices: tuple[NetworkEdit, ...] = ()
    hooks: tuple[HookEdit, ...] = ()
    mounts: tuple[MountEdit, ...] = ()
    intel_rdt: RdtEdit | None = None
    additional_gids: tuple[int, ...] = ()

    def is_empty(self) -> bool:
        """Tell whether nothing would be changed."""
        return self == Edits()


class Device(Record):
    """A device: a name and the edits that make it available."""

    name: str
    edits: Edits
    annotations: tuple[tuple[str, str], ...] = ()


class Spec(Record):
    """A CDI spec: devices of one kind (`vendor/class`), and edits that come with each of them."""

    version: str
    kind: str
    devices: tuple[Device, ...]
    edits: Edits = Edits()
    annotations: tuple[tuple[str, str], ...] = ()

    def every_edits(self) -> tuple[tuple[str, Edits], ...]:
        """Return all edits with their places in the document."""
        own = [(f".devices[{number}].containerEdits", device.edits) for number, device in enumerate(self.devices)]
        return ((".containerEdits", self.edits), *own)


class QualifiedName(Record):
    """A device's full name, `vendor/class=device`."""

    vendor: str
    device_class: str
    device: str

    @property
    def kind(self) -> str:
        """Return vendor and class, as specs write them."""
        return f"{self.vendor}/{self.device_class}"

    def __str__(self) -> str:
        """Return the name as people write it."""
        return f"{self.kind}={self.device}"


def _is_alphanumeric(character: str) -> bool:
    return character.isascii() and character.isalnum()


def _check_name(name: str, what: str, inner: str, *, starts_with_letter: bool) -> None:
    if not name:
        raise CdiError("", f"the {what} is empty")
    if starts_with_letter and not (name[0].isascii() and name[0].isalpha()):
        raise CdiError("", f"the {what} {name!r} does not start with a letter")
    if not (_is_alphanumeric(name[0]) and _is_alphanumeric(name[-1])):
        raise CdiError("", f"the {what} {name!r} does not start and end with a letter or digit")
    for character in name:
        if not _is_alphanumeric(character) and character not in inner:
            raise CdiError("", f"the {what} {name!r} has the character {character!r}")


def check_vendor(name: str) -> None:
    """Raise CdiError unless this can be a vendor: letters, digits, `_`, `-`, `.`, a letter first."""
    _check_name(name, "vendor", "_-.", starts_with_letter=True)


def check_class(name: str) -> None:
    """Raise CdiError unless this can be a class of devices; the same characters as a vendor."""
    _check_name(name, "class", "_-.", starts_with_letter=True)


def check_device_name(name: str) -> None:
    """Raise CdiError unless this can be a device's name: letters, digits, `_`, `-`, `.`, `:`."""
    _check_name(name, "device name", "_-.:", starts_with_letter=False)


def parse_kind(kind: str) -> tuple[str, str]:
    """Return vendor and class; raises CdiError."""
    vendor, slash, device_class = kind.partition("/")
    if not slash:
        raise CdiError("", f"the kind {kind!r} is not of the form vendor/class")
    check_vendor(vendor)
    check_class(device_class)
    return vendor, device_class


def parse_name(text: str) -> QualifiedName:
    """Return the parts of `vendor/class=device`; raises CdiError saying what is wrong."""
    kind, equals, device = text.partition("=")
    if not equals:
        raise CdiError("", f"{text!r} is not of the form vendor/class=device")
    vendor, device_class = parse_kind(kind)
    check_device_name(device)
    return QualifiedName(vendor=vendor, device_class=device_class, device=device)


def _uses_network(spec: Spec) -> bool:
    rdts = [edits.intel_rdt for _, edits in spec.every_edits() if edits.intel_rdt is not None]
    newer_rdt = any(rdt.schemata or rdt.enable_monitoring for rdt in rdts)
    return newer_rdt or any(edits.net_devices for _, edits in spec.every_edits())


def _uses_rdt_or_groups(spec: Spec) -> bool:
    return any(edits.intel_rdt is not None or edits.additional_gids for _, edits in spec.every_edits())


def _uses_annotations(spec: Spec) -> bool:
    annotated = bool(spec.annotations) or any(device.annotations for device in spec.devices)
    return annotated or "." in spec.kind.partition("/")[2]


def _uses_digits_or_host_path(spec: Spec) -> bool:
    named = any(not device.name[:1].isalpha() for device in spec.devices)
    return named or any(node.host_path for _, edits in spec.every_edits() for node in edits.device_nodes)


def _uses_mount_type(spec: Spec) -> bool:
    return any(mount.type for _, edits in spec.every_edits() for mount in edits.mounts)


# Newest first: the first version whose features a spec uses is the one it needs.
FEATURES: "tuple[tuple[str, Callable[[Spec], bool], str], ...]" = (
    ("1.1.0", _uses_network, "netDevices, intelRdt.schemata or intelRdt.enableMonitoring"),
    ("0.7.0", _uses_rdt_or_groups, "intelRdt or additionalGids"),
    ("0.6.0", _uses_annotations, "annotations or a class with a dot"),
    ("0.5.0", _uses_digits_or_host_path, "a device name that starts with a digit, or deviceNodes[].hostPath"),
    ("0.4.0", _uses_mount_type, "mounts[].type"),
)


def needed_version(spec: Spec) -> tuple[str, str]:
    """Return the lowest version that has everything the spec uses, and which feature needs it ("" for none)."""
    for version, uses, words in FEATURES:
        if uses(spec):
            return version, words
    return BASELINE_VERSION, ""


class _Fields:
    """One object of the document while it is read: knows its place, its fields, and refuses others."""

    __slots__ = ("values", "where")

    def __init__(self, value: "Any", where: str, known: tuple[str, ...]) -> None:
        if not isinstance(value, dict):
            raise CdiError(where or ".", f"an object is needed, this is {_kind_of(value)}")
        for key in value:
            if key not in known:
                raise CdiError(f"{where}.{key}", f"unknown field; known are {', '.join(known)}")
        self.values = value
        self.where = where

    def at(self, name: str) -> str:
        return f"{self.where}.{name}"

    def text(self, name: str, *, required: bool = False) -> str:
        value = self.values.get(name)
        if value is None:
            value = ""
        if not isinstance(value, str):
            raise CdiError(self.at(name), f"a string is needed, this is {_kind_of(value)}")
        if required and not value:
            raise CdiError(self.at(name), "is missing or empty")
        return value

    def flag(self, name: str) -> bool:
        value = self.values.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise CdiError(self.at(name), f"a boolean is needed, this is {_kind_of(value)}")
        return value

    def number(self, name: str, low: int, high: int) -> int | None:
        value = self.values.get(name)
        return None if value is None else _number(value, self.at(name), low, high)

    def strings(self, name: str) -> tuple[str, ...] | None:
        if self.values.get(name) is None:
            return None
        return self.items(name, _string)

    def items(self, name: str, read: "Callable[[Any, str], Value]") -> "tuple[Value, ...]":
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise CdiError(self.at(name), f"a list is needed, this is {_kind_of(value)}")
        return tuple(read(item, f"{self.at(name)}[{number}]") for number, item in enumerate(value))

    def annotations(self) -> tuple[tuple[str, str], ...]:
        value = self.values.get("annotations")
        if value is None:
            return ()
        if not isinstance(value, dict):
            raise CdiError(self.at("annotations"), f"an object is needed, this is {_kind_of(value)}")
        pairs = []
        for key, text in value.items():
            if not isinstance(key, str) or not isinstance(text, str):
                raise CdiError(f"{self.at('annotations')}.{key}", "name and value have to be strings")
            pairs.append((key, text))
        return tuple(sorted(pairs))


def parse(document: "Any") -> Spec:
    """Return the spec that a document holds; raises CdiError.

    Unknown fields, unknown versions, a version that lacks what is used, bad names and devices of the same name are
    refused, as engines refuse them.
    """
    fields = _Fields(document, "", ("cdiVersion", "kind", "annotations", "devices", "containerEdits"))
    spec = Spec(
        version=fields.text("cdiVersion", required=True),
        kind=fields.text("kind", required=True),
        devices=fields.items("devices", _read_device),
        edits=_read_edits(fields.values.get("containerEdits"), ".containerEdits"),
        annotations=fields.annotations(),
    )
    check(spec)
    return spec


def check(spec: Spec) -> None:
    """Raise CdiError for what no single field can show: versions, names, missing or repeated devices."""
    version = spec.version.removeprefix("v")
    if version not in VERSIONS:
        raise CdiError(".cdiVersion", f"unknown version {spec.version!r}; known are {', '.join(VERSIONS)}")
    needed, feature = needed_version(spec)
    if VERSIONS.index(version) < VERSIONS.index(needed) and feature:
        raise CdiError(".cdiVersion", f"{spec.version} is too low: {feature} needs {needed}")
    _at(".kind", parse_kind, spec.kind)
    if not spec.devices:
        raise CdiError(".devices", "there is no device")
    seen: set[str] = set()
    for number, device in enumerate(spec.devices):
        where = f".devices[{number}]"
        _at(f"{where}.name", check_device_name, device.name)
        if device.name in seen:
            raise CdiError(f"{where}.name", f"a device {device.name!r} is there already")
        seen.add(device.name)
        if device.edits.is_empty():
            raise CdiError(f"{where}.containerEdits", f"the device {device.name!r} changes nothing")


def _at(where: str, checker: "Callable[[str], object]", text: str) -> None:
    try:
        checker(text)
    except CdiError as error:
        raise CdiError(where, error.reason) from None


def _read_device(value: "Any", where: str) -> Device:
    fields = _Fields(value, where, ("name", "annotations", "containerEdits"))
    return Device(
        name=fields.text("name", required=True),
        edits=_read_edits(fields.values.get("containerEdits"), fields.at("containerEdits")),
        annotations=fields.annotations(),
    )


_EDITS_FIELDS = ("env", "deviceNodes", "netDevices", "hooks", "mounts", "intelRdt", "additionalGids")


def _read_edits(value: "Any", where: str) -> Edits:
    if value is None:
        return Edits()
    fields = _Fields(value, where, _EDITS_FIELDS)
    rdt = fields.values.get("intelRdt")
    edits = Edits(
        env=fields.items("env", _variable),
        device_nodes=fields.items("deviceNodes", _read_node),
        net_devices=fields.items("netDevices", _read_network),
        hooks=fields.items("hooks", _read_hook),
        mounts=fields.items("mounts", _read_mount),
        intel_rdt=None if rdt is None else _read_rdt(rdt, fields.at("intelRdt")),
        additional_gids=fields.items("additionalGids", _group),
    )
    interfaces = [device.name for device in edits.net_devices]
    if len(set(interfaces)) != len(interfaces):
        raise CdiError(fields.at("netDevices"), "two interfaces have the same name in the container")
    return edits


def _read_node(value: "Any", where: str) -> NodeEdit:
    known = ("path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid")
    fields = _Fields(value, where, known)
    node = NodeEdit(
        path=fields.text("path", required=True),
        host_path=fields.text("hostPath"),
        type=fields.text("type"),
        major=fields.number("major", -_INT64, _INT64) or 0,
        minor=fields.number("minor", -_INT64, _INT64) or 0,
        file_mode=fields.number("fileMode", 0, _UINT32),
        permissions=fields.text("permissions"),
        uid=fields.number("uid", 0, _UINT32),
        gid=fields.number("gid", 0, _UINT32),
    )
    if node.type not in NODE_TYPES:
        raise CdiError(fields.at("type"), f"{node.type!r} is none of b, c, u, p")
    if node.permissions.strip("rwm"):
        raise CdiError(fields.at("permissions"), f"{node.permissions!r} has other letters than r, w and m")
    return node


def _read_network(value: "Any", where: str) -> NetworkEdit:
    fields = _Fields(value, where, ("hostInterfaceName", "name"))
    return NetworkEdit(
        host_interface_name=fields.text("hostInterfaceName", required=True), name=fields.text("name", required=True)
    )


def _read_mount(value: "Any", where: str) -> MountEdit:
    fields = _Fields(value, where, ("hostPath", "containerPath", "options", "type"))
    return MountEdit(
        host_path=fields.text("hostPath", required=True),
        container_path=fields.text("containerPath", required=True),
        options=fields.strings("options") or (),
        type=fields.text("type"),
    )


def _read_hook(value: "Any", where: str) -> HookEdit:
    fields = _Fields(value, where, ("hookName", "path", "args", "env", "timeout"))
    hook = HookEdit(
        hook_name=fields.text("hookName", required=True),
        path=fields.text("path", required=True),
        args=fields.strings("args") or (),
        # An empty list is no environment to an engine: JSON and YAML writers of Go leave it out.
        env=fields.items("env", _variable) or None,
        timeout=fields.number("timeout", 0, _UINT32),
    )
    if hook.hook_name not in HOOK_NAMES:
        raise CdiError(fields.at("hookName"), f"{hook.hook_name!r} is none of {', '.join(HOOK_NAMES)}")
    return hook


def _read_rdt(value: "Any", where: str) -> RdtEdit:
    known = ("closID", "l3CacheSchema", "memBwSchema", "schemata", "enableMonitoring")
    fields = _Fields(value, where, known)
    rdt = RdtEdit(
        clos_id=fields.text("closID"),
        l3_cache_schema=fields.text("l3CacheSchema"),
        mem_bw_schema=fields.text("memBwSchema"),
        schemata=fields.strings("schemata") or (),
        enable_monitoring=fields.flag("enableMonitoring"),
    )
    if rdt.clos_id in {".", ".."} or len(rdt.clos_id) >= 4096 or any(letter in rdt.clos_id for letter in "/\n"):
        raise CdiError(fields.at("closID"), f"{rdt.clos_id!r} cannot name a directory of resctrl")
    return rdt


def _string(value: "Any", where: str) -> str:
    if not isinstance(value, str):
        raise CdiError(where, f"a string is needed, this is {_kind_of(value)}")
    return value


def _variable(value: "Any", where: str) -> str:
    text = _string(value, where)
    if text.find("=") < 1:
        raise CdiError(where, f"{text!r} is not of the form NAME=value")
    return text


def _group(value: "Any", where: str) -> int:
    return _number(value, where, 0, _UINT32)


def _number(value: "Any", where: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise CdiError(where, f"an integer is needed, this is {_kind_of(value)}")
    if not low <= value <= high:
        raise CdiError(where, f"{value} is out of range")
    return value


def _kind_of(value: object) -> str:
    kinds = {
        "NoneType": "nothing",
        "bool": "a boolean",
        "dict": "an object",
        "float": "a number",
        "int": "a number",
        "list": "a list",
        "str": "a string",
    }
    return kinds.get(type(value).__name__, f"a {type(value).__name__}")


def format_spec(spec: Spec) -> "dict[str, Any]":
    """Return the spec as plain values in the order of the specification; what is empty or zero is left out."""
    return _object(
        ("cdiVersion", spec.version),
        ("kind", spec.kind),
        ("annotations", dict(spec.annotations)),
        ("devices", [_format_device(device) for device in spec.devices]),
        ("containerEdits", format_edits(spec.edits)),
    )


def _format_device(device: Device) -> "dict[str, Any]":
    values = _object(("name", device.name), ("annotations", dict(device.annotations)))
    values["containerEdits"] = format_edits(device.edits)
    return values


def format_edits(edits: Edits) -> "dict[str, Any]":
    """Return edits as plain values."""
    values = _object(
        ("env", list(edits.env)),
        ("deviceNodes", [_format_node(node) for node in edits.device_nodes]),
        (
            "netDevices",
            [_object(("hostInterfaceName", net.host_interface_name), ("name", net.name)) for net in edits.net_devices],
        ),
        ("hooks", [_format_hook(hook) for hook in edits.hooks]),
        ("mounts", [_format_mount(mount) for mount in edits.mounts]),
    )
    if edits.intel_rdt is not None:
        values["intelRdt"] = _format_rdt(edits.intel_rdt)
    if edits.additional_gids:
        values["additionalGids"] = list(edits.additional_gids)
    return values


def _object(*pairs: "tuple[str, Any]") -> "dict[str, Any]":
    return dict(_filled(pairs))


def _filled(pairs: "tuple[tuple[str, Any], ...]") -> "Iterator[tuple[str, Any]]":
    return ((name, value) for name, value in pairs if value)


def _format_node(node: NodeEdit) -> "dict[str, Any]":
    values = _object(
        ("path", node.path),
        ("hostPath", node.host_path),
        ("type", node.type),
        ("major", node.major),
        ("minor", node.minor),
    )
    _put(values, "fileMode", node.file_mode)
    values.update(_object(("permissions", node.permissions)))
    _put(values, "uid", node.uid)
    _put(values, "gid", node.gid)
    return values


def _format_hook(hook: HookEdit) -> "dict[str, Any]":
    values = _object(
        ("hookName", hook.hook_name), ("path", hook.path), ("args", list(hook.args)), ("env", list(hook.env or ()))
    )
    _put(values, "timeout", hook.timeout)
    return values


def _format_mount(mount: MountEdit) -> "dict[str, Any]":
    return _object(
        ("hostPath", mount.host_path),
        ("containerPath", mount.container_path),
        ("options", list(mount.options)),
        ("type", mount.type),
    )


def _format_rdt(rdt: RdtEdit) -> "dict[str, Any]":
    return _object(
        ("closID", rdt.clos_id),
        ("l3CacheSchema", rdt.l3_cache_schema),
        ("memBwSchema", rdt.mem_bw_schema),
        ("schemata", list(rdt.schemata)),
        ("enableMonitoring", rdt.enable_monitoring),
    )


def _put(values: "dict[str, Any]", name: str, value: "int | None") -> None:
    if value is not None:
        values[name] = value
