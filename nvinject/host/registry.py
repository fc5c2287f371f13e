"""The registry: all CDI specs of a host's spec directories, which of them counts for a name, and why not another.

Belongs here: reading the directories and the rules between files (priority, conflicts). Does not belong here: the form
of a spec (nvinject.formats.cdi) and what is done with a device (nvinject.render). The rules are those of the reference
library, which podman, docker, containerd and CRI-O use, so that a name means here what it means there.
"""

import errno
import os

from nvinject.errors import RequestError
from nvinject.formats import cdi
from nvinject.formats.jsonio import JSONError, loads
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXTENSIONS = (".json", ".yaml")
MAXIMUM_SIZE = 16 << 20  # bytes; a host with 8 GPUs of 7 slices each has a spec of half a megabyte
MOST_EXPLAINED = 16
NEAREST = 5


class SpecFile(Record):
    """One file of a spec directory. `priority` is the directory's place in the list; the higher one wins.

    `spec` is None where the file was rejected, with the reason in `error`.
    """

    path: str
    priority: int
    spec: cdi.Spec | None = None
    error: str = ""
    text: str = ""


class Definition(Record):
    """A device as one file defines it."""

    name: str
    file: SpecFile
    spec: cdi.Spec
    device: cdi.Device


class Registry(Record):
    """What was read. `problems` are about directories and files that no engine would read."""

    directories: tuple[str, ...]
    files: tuple[SpecFile, ...] = ()
    problems: tuple[str, ...] = ()

    def definitions(self) -> dict[str, list[Definition]]:
        """Return every definition by qualified name, those of higher priority first."""
        found: dict[str, list[Definition]] = {}
        for file in sorted(self.files, key=lambda file: -file.priority):
            if file.spec is not None:
                for device in file.spec.devices:
                    name = f"{file.spec.kind}={device.name}"
                    found.setdefault(name, []).append(Definition(name=name, file=file, spec=file.spec, device=device))
        return found

    def conflicts(self) -> dict[str, tuple[str, ...]]:
        """Return the files that define the same name with the same priority; such a name is of no use to anybody.

        That holds even where a directory of higher priority defines it too: the reference library works so.
        """
        found = {}
        for name, several in self.definitions().items():
            priorities = [one.file.priority for one in several]
            paths = tuple(one.file.path for one in several if priorities.count(one.file.priority) > 1)
            if paths:
                found[name] = paths
        return found

    def devices(self) -> dict[str, Definition]:
        """Return the definition that counts, by qualified name in order."""
        conflicts = self.conflicts()
        found = {name: several[0] for name, several in self.definitions().items() if name not in conflicts}
        return dict(sorted(found.items()))

    def rejected(self) -> tuple[SpecFile, ...]:
        """Return the files that are no valid specs or could not be read."""
        return tuple(file for file in self.files if file.error)


class Explanation(Record):
    """Why a name means what it does, or nothing.

    `used` is the definition that counts, `shadowed` those of lower priority, `conflicting` the paths that contradict
    each other; `nearest` are names of devices that are like it.
    """

    name: str
    reason: str
    used: Definition | None = None
    shadowed: tuple[Definition, ...] = ()
    conflicting: tuple[str, ...] = ()
    nearest: tuple[str, ...] = ()


def read_registry(directories: tuple[str, ...]) -> Registry:
    """Read all specs of the directories, the later of which win; a directory that is not there is no problem."""
    files: list[SpecFile] = []
    problems: list[str] = []
    for priority, directory in enumerate(directories):
        try:
            names = sorted(os.listdir(directory))
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"cannot read the directory {directory}: {error.strerror}")
            continue
        for name in names:
            path = os.path.join(directory, name)
            if name.endswith(EXTENSIONS):
                files.append(read_file(path, priority))
            elif name.endswith(".yml"):
                problems.append(f"{path} is not read: specs end in .json or .yaml")
    return Registry(directories=directories, files=tuple(files), problems=tuple(problems))


def read_file(path: str, priority: int = 0) -> SpecFile:
    """Read one spec; a fault is recorded, not raised."""
    try:
        text = _read_text(path)
        spec = cdi.parse(parse_document(text, json=path.endswith(".json")))
    except OSError as error:
        hint = ", make it readable for everybody (chmod 0644)" if error.errno == errno.EACCES else ""
        return SpecFile(path=path, priority=priority, error=f"cannot be read: {error.strerror}{hint}")
    except ValueError as error:
        return SpecFile(path=path, priority=priority, error=str(error).replace("\n", " "))
    return SpecFile(path=path, priority=priority, spec=spec, text=text)


def _read_text(path: str) -> str:
    # O_NONBLOCK: a pipe in the directory must not hold up the reader.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(MAXIMUM_SIZE + 1)
    if len(data or b"") > MAXIMUM_SIZE:
        raise ValueError(f"has more than {MAXIMUM_SIZE >> 20} MiB")
    return (data or b"").decode("utf-8")


def parse_document(text: str, *, json: bool) -> "Any":
    """Return the values of a document; raises ValueError with line and column."""
    if json:
        try:
            return loads(text)
        except JSONError as error:
            raise ValueError(f"is no JSON: {error}") from None
    return _parse_yaml(text)


def _parse_yaml(text: str) -> "Any":
    try:
        import yaml  # commands of people, and the runtime in mode cdi where a spec is YAML
    except ImportError:
        raise ValueError("is YAML, and the Python module yaml is missing: install PyYAML (python3-yaml)") from None

    class Strict(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        pass

    def refuse_repeats(loader: "Any", node: "Any") -> "Any":
        keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the field {key!r} is there twice", node.start_mark
                )
        return loader.construct_mapping(node, deep=True)

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, refuse_repeats)
    try:
        return yaml.load(text, Loader=Strict)  # noqa: S506 - a subclass of the safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1} column {mark.column + 1}" if mark else ""
        raise ValueError(f"is no YAML: {error.problem}{place}") from None
    except (yaml.YAMLError, RecursionError, TypeError) as error:
        raise ValueError(f"is no YAML: {error}") from None


def explain(registry: Registry, name: str) -> Explanation:
    """Return why a name means what it does; `reason` is one clause."""
    definitions = registry.definitions().get(name, [])
    conflicting = registry.conflicts().get(name, ())
    if conflicting:
        reason = f"is defined with the same priority by {' and '.join(conflicting)}"
        return Explanation(name=name, reason=reason, conflicting=conflicting)
    if definitions:
        used = definitions[0]
        return Explanation(
            name=name, reason=f"is defined by {used.file.path}", used=used, shadowed=tuple(definitions[1:])
        )
    try:
        parsed = cdi.parse_name(name)
    except cdi.CdiError as error:
        reason = f"is no name of a device: {error.reason}"
    else:
        kinds = {file.spec.kind for file in registry.files if file.spec is not None}
        reason = f"is defined by no spec in {', '.join(registry.directories)}"
        if parsed.kind not in kinds:
            reason += f", of which none has devices of kind {parsed.kind}"
    return Explanation(name=name, reason=reason, nearest=nearest_names(name, registry))


def nearest_names(name: str, registry: Registry) -> tuple[str, ...]:
    """Return the names that are most like a name, at most five."""
    import difflib  # only for a name that is not there

    known = list(registry.devices())
    _, _, device = name.partition("=")
    same = [one for one in known if device and one.partition("=")[2] == device]
    return tuple(dict.fromkeys([*same, *difflib.get_close_matches(name, known, n=NEAREST, cutoff=0.5)]))[:NEAREST]


def resolve(registry: Registry, names: tuple[str, ...]) -> tuple[Definition, ...]:
    """Return the definitions of all names, in their order; raises RequestError that tells the cause for each."""
    devices = registry.devices()
    lacking = [name for name in dict.fromkeys(names) if name not in devices]
    if lacking:
        # An environment can have a hundred thousand of them, and explaining one looks at all that are there.
        missing = [explain(registry, name) for name in lacking[:MOST_EXPLAINED]]
        more = f"; and {len(lacking) - MOST_EXPLAINED} more" if len(lacking) > MOST_EXPLAINED else ""
        raise RequestError(
            "unresolvable CDI devices: " + "; ".join(f"{one.name} {one.reason}" for one in missing) + more,
            _hint(registry, missing),
        )
    return tuple(devices[name] for name in dict.fromkeys(names))


def _hint(registry: Registry, missing: list[Explanation]) -> str:
    words = [f"rejected {file.path}: {file.error}" for file in registry.rejected()]
    words += registry.problems
    nearest = dict.fromkeys(name for one in missing for name in one.nearest)
    if nearest:
        words.append(f"nearest names: {', '.join(nearest)}")
    read = [file.path for file in registry.files if not file.error]
    words.append(f"read {', '.join(read)}" if read else "no spec was read; nvinject cdi generate makes one")
    return "; ".join(words)
