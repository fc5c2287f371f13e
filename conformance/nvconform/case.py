"""A conformance case as values: machine, container, configuration, and what must be seen afterwards.

Belongs here: the fields of a case, their defaults, and turning the plain mapping of a document (or of a message between
processes) into them. Does not belong here: reading and checking files (casefile.py), running (worker.py), judging
(judge.py). Standard library only: the worker runs with whatever interpreter the sandbox can start.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

LANES = ("root", "rootless", "userns")

Value = TypeVar("Value")


@dataclass(frozen=True)
class Filesystem:
    """The root file system as a file system of its own: how large, how full, and whether it is read-only."""

    kilobytes: int = 4096
    full: bool = False
    readonly: bool = False


@dataclass(frozen=True)
class Container:
    """What is created before the injector runs: the image's file tree and the OCI configuration.

    `files`, `links`, `directories`, `fifos` and `libraries` are laid over the image in this order after `remove`.
    `libraries` are path -> SONAME of generated shared objects, or a mapping of soname and note. `spec` is a JSON merge
    patch for config.json. `identities` names a map of user ids (stage.py); nobody but root may enter a `closed` bundle.
    """

    image: str = "deb"
    remove: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    files: Mapping[str, Any] = field(default_factory=dict)
    libraries: Mapping[str, Any] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    fifos: tuple[str, ...] = ()
    loader_cache: bool = False
    env: tuple[str, ...] = ()
    mounts: tuple[Mapping[str, Any], ...] = ()
    privileged: bool = False
    readonly: bool = False
    filesystem: Filesystem | None = None
    identities: str = "range"
    closed: bool = False
    spec: Mapping[str, Any] = field(default_factory=dict)
    stage: str = "prestart"


@dataclass(frozen=True)
class Driver:
    """The driver's files in a folder of their own, laid out as some distributions do, instead of where the machine is.

    `root` is the name of that folder (the configuration leads to it), the other paths are below it. `loader_cache` is
    `missing`, `useless` (it knows nothing of the driver) or `made` by ldconfig. `nodes`: it has a /dev of its own.
    """

    root: str = "/run/nvidia/driver"
    libraries: str = "/usr/lib/x86_64-linux-gnu"
    programs: str = "/usr/bin"
    firmware: str = "/lib/firmware"
    loader_cache: str = "missing"
    links: Mapping[str, str] = field(default_factory=dict)
    nodes: bool = False


@dataclass(frozen=True)
class Call:
    """The injector called directly with `stdin`, without a runtime; `bundle` says what there is for config.json."""

    stdin: str = '{"ociVersion": "1.0.2", "id": "call", "status": "created", "pid": ${pid}, "bundle": "${bundle}"}'
    config: str = ""
    bundle: str = "present"


@dataclass(frozen=True)
class More:
    """Single things that differ from what an injection of the named GPUs and capabilities usually holds."""

    mounts: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    cache: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Less:
    """Names of usual things that must not be there in this case."""

    mounts: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    cache: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Injected:
    """The container exists and sees exactly the named GPUs with the files of the named capabilities."""

    gpus: tuple[int, ...] = ()
    capabilities: tuple[str, ...] = ("compute", "utility")
    mig: tuple[str, ...] = ()
    mig_management: tuple[str, ...] = ()
    imex: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    memory: Mapping[str, str] = field(default_factory=dict)
    library_directory: str = ""
    library32_directory: str = ""
    placed: bool = False
    rules: bool = True
    cache: bool = True
    moved: Mapping[str, str] = field(default_factory=dict)
    also: More = field(default_factory=More)
    without: Less = field(default_factory=Less)
    cache_first: Mapping[str, str] = field(default_factory=dict)
    contents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    says: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refused:
    """The container is not created, nothing is left of the attempt, and the message names cause and thing.

    `kind` is a class of failure that the implementation's description maps to exit codes. An entry of `names` is a text
    or several alternatives separated by ` | `; case does not matter.
    """

    kind: str = ""
    names: tuple[str, ...] = ()
    hides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expectation:
    """Exactly one of three outcomes; `untouched` means created, with nothing added by the injector."""

    injected: Injected | None = None
    refused: Refused | None = None
    untouched: bool = False
    says: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One situation and its verdict. `source` is the sentence that it enforces, `level` MUST or SHOULD.

    `features` are what an implementation must claim, `kinds` how it comes into a container's life, `needs` what the
    test machine must be able to do.
    """

    id: str
    title: str
    source: str
    expect: Expectation
    level: str = "MUST"
    observed: str = ""
    differs: str = ""
    machine: str = "two-h100"
    lanes: tuple[str, ...] = ("root",)
    features: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    container: Container = field(default_factory=Container)
    driver: Driver | None = None
    config: Any = None
    engine: Mapping[str, str] = field(default_factory=dict)
    call: Call | None = None
    file: str = ""
    line: int = 0


def build(kind: type[Value], mapping: Mapping[str, Any]) -> Value:
    """Return a value of a dataclass of this module from a checked mapping, whose keys have dashes for underscores."""
    arguments: dict[str, Any] = {}
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    for key, value in mapping.items():
        name = key.replace("-", "_")
        arguments[name] = _nested(str(known[name].type), value)
    return kind(**arguments)


_NESTED: dict[str, type[Any]] = {
    item.__name__: item for item in (Filesystem, Container, Driver, Call, More, Less, Injected, Refused, Expectation)
}


def _nested(annotation: str, value: Any) -> Any:
    name = annotation.split("|", maxsplit=1)[0].strip().split(".")[-1].removeprefix("<class '").removesuffix("'>")
    if name in _NESTED and isinstance(value, Mapping):
        return build(_NESTED[name], value)
    if annotation.startswith(("Mapping", "collections.abc.Mapping")):
        return {
            key: tuple(item) if isinstance(item, list) and "tuple" in annotation else item
            for key, item in value.items()
        }
    return tuple(value) if isinstance(value, list) and "Any" not in annotation.split("[", maxsplit=1)[0] else value


def environment(entries: Any) -> list[str]:
    """Return KEY=VALUE entries from a mapping or from a list that is used as it is."""
    if isinstance(entries, Mapping):
        return [f"{key}={value}" for key, value in entries.items()]
    return list(entries)
