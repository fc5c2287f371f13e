"""OCI documents as a hook gets them: the container's state on standard input and the bundle's config.json.

Belongs here: reading the parts that nvinject needs, and one error for each way in which they can be wrong. Unknown
fields are nobody's business here and pass. Does not belong here: reading files, what an environment variable means
(core/request.py), changing a config.json (render/oci.py).
"""

from nvinject.errors import InputError
from nvinject.formats.jsonio import JSONError, loads
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_STATE_HINT = "a hook gets the container's state as JSON on standard input from the runtime"
_SPEC_HINT = "the runtime needs a config.json that follows the OCI runtime specification"
_SYS_ADMIN = "CAP_SYS_ADMIN"


class State(Record):
    """The container's state (OCI runtime specification, State); `root` is an addition of some runtimes."""

    pid: int
    bundle: str
    id: str = ""
    status: str = ""
    root: str = ""


class Spec(Record):
    """What a config.json says about process, mounts and root; `root_path` is as written there.

    `environment` holds raw KEY=VALUE entries, `mounts` pairs of (source, destination).
    """

    environment: tuple[str, ...]
    mounts: tuple[tuple[str, str], ...]
    privileged: bool
    root_path: str


def parse_state(data: bytes) -> State:
    """Return the state that a runtime wrote; raises InputError, with its own text for each kind of fault."""
    if not data.strip():
        raise InputError("the container's state is empty", _STATE_HINT)
    document = _load_object(data, "the container's state", _STATE_HINT)
    pid = document.get("pid")
    if pid is None:
        raise InputError("the container's state has no pid", "the hook runs after the container's process exists")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        raise InputError(f"pid {_shown(pid)} in the container's state is not a positive integer", _STATE_HINT)
    # bundlePath is how runtimes before 1.0.0-rc2 called it.
    bundle = document.get("bundle") or document.get("bundlePath")
    if bundle is None or bundle == "":
        raise InputError("the container's state has no bundle", _STATE_HINT)
    if not isinstance(bundle, str):
        raise InputError(f"bundle {_shown(bundle)} in the container's state is not a path", _STATE_HINT)
    extras = {name: document.get(name) for name in ("id", "status", "root")}
    known = {name: value for name, value in extras.items() if isinstance(value, str)}
    return State(pid=pid, bundle=bundle, **known)


def parse_spec(data: bytes, path: str) -> Spec:
    """Return what a config.json says; `path` is for messages. Raises InputError."""
    return read_document(load_document(data, path), path)


def load_document(data: bytes, path: str) -> "dict[str, Any]":
    """Return a config.json as plain values; raises InputError unless it is a JSON object."""
    if not data.strip():
        raise InputError(f"{path} is empty", _SPEC_HINT)
    return _load_object(data, path, _SPEC_HINT)


def read_document(document: "dict[str, Any]", path: str) -> Spec:
    """Return what the values of a config.json say; raises InputError."""
    _required(document, "ociVersion", str, "a string", path)
    process = _required(document, "process", dict, "an object", path)
    root = _required(document, "root", dict, "an object", path)
    root_path = _required(root, "root.path", str, "a string", path)
    return Spec(
        environment=_read_environment(process.get("env"), path),
        mounts=_read_mounts(document.get("mounts"), path),
        privileged=_SYS_ADMIN in _bounding_set(process.get("capabilities")),
        root_path=root_path,
    )


def read_leniently(document: "dict[str, Any]") -> Spec:
    """Return what the values of a config.json say, without what is missing or malformed. Never raises.

    For containers that are none of our business: whether their config.json is valid is for the runtime to say.
    """
    process, root = (_object(document.get(name)) for name in ("process", "root"))
    environment, mounts = process.get("env"), document.get("mounts")
    known = [mount for mount in (mounts if isinstance(mounts, list) else []) if isinstance(mount, dict)]
    return Spec(
        environment=tuple(
            entry for entry in (environment if isinstance(environment, list) else []) if isinstance(entry, str)
        ),
        mounts=tuple((str(mount.get("source") or ""), str(mount.get("destination") or "")) for mount in known),
        privileged=_SYS_ADMIN in _bounding_set(process.get("capabilities")),
        root_path=str(root.get("path") or ""),
    )


def read_annotations(document: "dict[str, Any]") -> tuple[tuple[str, str], ...]:
    """Return the container's annotations; those whose value is no text are left out."""
    pairs = _object(document.get("annotations")).items()
    return tuple((key, value) for key, value in pairs if isinstance(value, str))


def _object(value: "Any") -> "dict[str, Any]":
    return value if isinstance(value, dict) else {}


def rootfs_path(spec: Spec, bundle: str) -> str:
    """Return the absolute path of the root file system.

    A relative root.path is relative to the bundle, as the specification says. (The original takes it as relative to
    its working directory, which is the same place only under runtimes that start hooks there.)
    """
    return spec.root_path if spec.root_path.startswith("/") else f"{bundle.rstrip('/')}/{spec.root_path}"


def _load_object(data: bytes, what: str, hint: str) -> "dict[str, Any]":
    try:
        document = loads(data)
    except JSONError as error:
        raise InputError(f"{what} is not JSON: {error}", hint) from None
    if not isinstance(document, dict):
        raise InputError(f"{what} is not a JSON object but {_kind(document)}", hint)
    return document


def _required(document: "dict[str, Any]", name: str, kind: type, wanted: str, path: str) -> "Any":
    value = document.get(name.rpartition(".")[2])
    if value is None or value == "":
        raise InputError(f"{name} is missing in {path}", _SPEC_HINT)
    if not isinstance(value, kind):
        raise InputError(f"{name} is not {wanted} but {_kind(value)} in {path}", _SPEC_HINT)
    return value


def _read_environment(value: "Any", path: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise InputError(f"process.env is not a list of strings in {path}", _SPEC_HINT)
    return tuple(value)


def _read_mounts(value: "Any", path: str) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(mount, dict) for mount in value):
        raise InputError(f"mounts is not a list of objects in {path}", _SPEC_HINT)
    pairs = tuple((mount.get("source") or "", mount.get("destination") or "") for mount in value)
    for number, pair in enumerate(pairs):
        if not all(isinstance(end, str) for end in pair):
            raise InputError(f"mounts[{number}] has a source or destination that is no string in {path}", _SPEC_HINT)
    return pairs


def _bounding_set(value: "Any") -> "tuple[Any, ...]":
    # Specifications 1.0.0-rc1 to rc4 had one flat list where later ones have an object of five lists.
    bounding = value.get("bounding") if isinstance(value, dict) else value
    return tuple(bounding) if isinstance(bounding, list) else ()


def _kind(value: "Any") -> str:
    if value is None:
        return "null"
    kinds = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return kinds[type(value)]


def _shown(value: "Any") -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
