"""containerd: a drop-in file, and one line of the main file that imports it.

Belongs here: the three versions of the configuration and what older releases make of an import. Before 2.1 an imported
file replaces a plug-in's whole section instead of adding to it, so the drop-in repeats the section of the main file.
Does not belong here: the splicing, and what k3s and rke2 do with the file (rancher.py).
"""

import os

from nvinject.engines import rancher
from nvinject.engines.edit import (
    SOURCE_COMMAND,
    Edit,
    Options,
    choose_template,
    edit_document,
    explained,
    leaves,
    make_equal,
    merged,
    nest,
    parse_document,
    table_at,
)
from nvinject.engines.files import Change, Document, read_document
from nvinject.errors import ConfigurationError
from nvinject.formats import tomlscan, tomltext
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvinject.engines.edit import Run

    Path = tuple[str, ...]

DEFAULT_CONFIG = "/etc/containerd/config.toml"
DEFAULT_DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
DROP_IN_NAME = "99-nvidia.toml"
SERVICE = "containerd"
NEW_VERSION = 2  # understood by every release from 1.3 on
RUNTIME_TYPE = "io.containerd.runc.v2"
_KEYS = {1: "cri", 2: "io.containerd.grpc.v1.cri"}
_LATEST_KEY = "io.containerd.cri.v1.runtime"
_FRESH = {"runtime_type": RUNTIME_TYPE}


class Source(Record):
    """What containerd is configured with: version, key of the CRI plug-in and the plug-in's section."""

    version: int
    key: str
    section: "dict[str, Any]"  # type: ignore[type-arg, unused-ignore]

    @property
    def path(self) -> "Path":
        """Return the path of the section."""
        return ("plugins", self.key)


def plan_edit(options: Options, run: "Run") -> Edit:
    """Return the changes of main file and drop-in. Raises ConfigurationError, HostError (for the command as source)."""
    main = read_document(options.config)
    if rancher.is_template(main):
        raise rancher.refuse_template(main, _LATEST_KEY, options.name, options.path)
    values = parse_document(main)
    generator = rancher.generator_of(main)
    if generator:
        options = _for_rancher(options, main, values, generator)
    source, notes = _read_source(options, main, values, run)
    notes += _notes_about(values, source)
    changes: tuple[Change, ...]
    if not options.drop_in:
        changes = (_edit_main(options, main, source),)
    elif generator:
        changes = (_edit_drop_in(options, main, source),)
    else:
        changes = (_edit_drop_in(options, main, source), _edit_imports(options, main, values, source))
        notes += _notes_about_neighbours(options, values)
    return Edit(changes=changes, notes=notes)


def service_of(config: str) -> str:
    """Return the service that must be restarted for a configuration file to be read."""
    return rancher.generator_of(read_document(config)) or SERVICE


def _for_rancher(options: Options, main: Document, values: "dict[str, Any]", generator: str) -> Options:
    """Return the options with the drop-in where k3s or rke2 import it; the generated file is never edited."""
    directory = rancher.drop_in_directory(main, values)
    version = read_version(main, values)
    if not directory:
        key = _KEYS.get(version, _LATEST_KEY)
        raise rancher.refuse_generated(main, generator, version=version, key=key, name=options.name, path=options.path)
    name = os.path.basename(options.drop_in) or DROP_IN_NAME
    return options.replace(drop_in=os.path.join(directory, name))


def read_version(document: Document, values: "dict[str, Any]") -> int:
    """Return the version that a drop-in beside this configuration must have.

    A file that does not say has version 1, whose plug-in names containerd 2 no longer knows. Where it names no plug-in
    a drop-in of version 2 goes with it, in every release; a name of version 1 beside it stops containerd 1.
    """
    version = values.get("version", 1)
    if type(version) is not int or version < 1:
        place = f"line {tomltext.find_line(document.text, ('version',))}, column 1"
        raise ConfigurationError(f"{document.path}, {place}: version must be a number", "containerd has 1, 2, 3 and on")
    return NEW_VERSION if version == 1 and not _names_plugins(values) else version


def _names_plugins(values: "dict[str, Any]") -> bool:
    """Return whether something in a file of version 1 would mean nothing in a later one."""
    lists = (values.get(name) for name in ("disabled_plugins", "required_plugins"))
    listed = any(isinstance(one, list) and one for one in lists)
    return listed or bool(values.get("plugins"))


def _read_source(
    options: Options, main: Document, values: "dict[str, Any]", run: "Run"
) -> "tuple[Source, tuple[str, ...]]":
    """Return what is configured, from the files or from containerd's own answer, and notes about it."""
    if options.source == SOURCE_COMMAND:
        return _ask(options, main, values, run), ()
    version = read_version(main, values)
    source = Source(version=version, key=_KEYS.get(version, _LATEST_KEY), section={})
    section = table_at(main, values, source.path)
    imported = []
    for path in find_imports(options, values):
        neighbour = read_document(path)
        theirs = table_at(neighbour, parse_document(neighbour), source.path)
        section = merged(section, theirs)
        imported += [path] if theirs else []
    notes: tuple[str, ...] = ()
    if imported:
        names = ", ".join(imported)
        notes = (f"{names} configures the CRI plug-in too; --config-source=command sees what containerd makes of it",)
    return source.replace(section=section), notes


def _ask(options: Options, main: Document, values: "dict[str, Any]", run: "Run") -> Source:
    """Return what containerd says that it is configured with, built-in defaults and our own earlier drop-in included.

    It answers in its latest version, and a drop-in in another version than the main file makes it forget what that says
    about other plug-ins.
    """
    chosen = ("--config", options.config) if main.data is not None else ()
    text = run(options.executable or "containerd", (*chosen, "config", "dump"))
    answer = Document(path="the answer of containerd", data=b"", text=text)
    said = parse_document(answer)
    version = read_version(answer, said)
    bound = values.get("version", 1) != 1 or _names_plugins(values)
    if bound and version != read_version(main, values):
        raise ConfigurationError(
            f"containerd answers in version {version}, but {options.config} has version {read_version(main, values)}",
            "use --config-source=file, or bring the file up to date with `containerd config migrate`",
        )
    source = Source(version=version, key=_KEYS.get(version, _LATEST_KEY), section={})
    section = table_at(answer, said, source.path)
    if table_at(answer, said, (*source.path, "containerd")).get("default_runtime_name") == options.name:
        section = _without_default(section)
    return source.replace(section=section)


def _without_default(section: "dict[str, Any]") -> "dict[str, Any]":
    kept = {name: value for name, value in section["containerd"].items() if name != "default_runtime_name"}
    return {**section, "containerd": kept}


def find_imports(options: Options, values: "dict[str, Any]") -> list[str]:
    """Return the files that the main file imports, in order and without our drop-in."""
    import glob

    found = []
    for pattern in _patterns(options, values):
        found += sorted(glob.glob(pattern)) if "*" in pattern else [pattern]
    return [path for path in found if path != options.drop_in and os.path.isfile(path)]


def _patterns(options: Options, values: "dict[str, Any]") -> list[str]:
    imports = values.get("imports", [])
    if not isinstance(imports, list):
        return []
    base = os.path.dirname(os.path.abspath(options.config))
    return [os.path.join(base, one) for one in imports if isinstance(one, str)]


def _settings(options: Options, source: Source) -> "list[tuple[Path, Any]]":
    """Return what the section must say, with paths from the root of the document."""
    containerd = source.section.get("containerd", {})
    runtimes = containerd.get("runtimes", {}) if isinstance(containerd, dict) else {}
    runtimes = runtimes if isinstance(runtimes, dict) else {}
    # The options of another shim (gVisor, Kata) mean nothing to runc's.
    usable = {name: one for name, one in runtimes.items() if isinstance(one, dict) and _is_runc(one)}
    template = choose_template(usable, containerd.get("default_runtime_name")) or _FRESH
    entry = {**template, "runtime_type": template.get("runtime_type") or RUNTIME_TYPE}
    program = {"BinaryName": options.path, **({"Runtime": options.path} if source.version == 1 else {})}
    below = entry.pop("options", {})
    entry["options"] = {**(below if isinstance(below, dict) else {}), **program}

    wanted: list[tuple[Path, Any]] = []
    if options.cdi:
        wanted.append(((*source.path, "enable_cdi"), True))
    path = (*source.path, "containerd")
    if options.set_as_default:
        wanted.append(((*path, "default_runtime_name"), options.name))
    if not runtimes:
        # A section with runtimes takes the place of the built-in ones, runc with them, which is still the default.
        wanted.append(((*path, "runtimes", "runc", "runtime_type"), RUNTIME_TYPE))
    return wanted + [((*path, "runtimes", options.name, *key), value) for key, value in leaves(entry)]


def _is_runc(runtime: "dict[str, Any]") -> bool:
    kind = str(runtime.get("runtime_type") or RUNTIME_TYPE)
    return kind.startswith(("io.containerd.runc.", "io.containerd.runtime."))


def _edit_drop_in(options: Options, main: Document, source: Source) -> Change:
    copied = {"version": source.version, "plugins": {source.key: source.section}}
    runtime = (*source.path, "containerd", "runtimes")
    table_at(main, copied, runtime)
    section = copied["plugins"]
    assert isinstance(section, dict)
    wanted = merged(_without_runtime(copied, runtime, options.name), nest(_settings(options, source)))
    comment = (
        f"# It repeats the CRI plug-in's section of {options.config}, because containerd before 2.1 takes this\n"
        "# section instead of that one: configure again when you have changed it there.\n\n"
    )
    return make_equal(read_document(options.drop_in), wanted, comment)


def _without_runtime(values: "dict[str, Any]", path: "Path", name: str) -> "dict[str, Any]":
    """Return the values without a runtime of our name, whose options are chosen anew."""
    if not path:
        return {key: value for key, value in values.items() if key != name}
    if path[0] not in values:
        return values
    return {**values, path[0]: _without_runtime(values[path[0]], path[1:], name)}


def _edit_main(options: Options, main: Document, source: Source) -> Change:
    """Return the change of the main file where no drop-in is wanted."""
    wanted = _settings(options, source)
    if parse_document(main).get("version", 1) != source.version:
        wanted.insert(0, (("version",), source.version))
    return edit_document(main, wanted)


def _edit_imports(options: Options, main: Document, values: "dict[str, Any]", source: Source) -> Change:
    """Return the change of the main file that makes it import the drop-in; none if it does."""
    text = main.text
    try:
        if not text.strip():
            text = tomltext.set_value(text, ("version",), source.version)
        if not is_imported(options, values):
            directory, name = os.path.split(options.drop_in)
            pattern = os.path.join(directory, "*.toml" if name.endswith(".toml") else name)
            text = tomltext.append_value(text, ("imports",), pattern)
    except tomlscan.EditError as error:
        raise explained(main, error) from error
    return main.change(text)


def is_imported(options: Options, values: "dict[str, Any]") -> bool:
    """Return whether a pattern of the main file covers the drop-in."""
    import fnmatch

    directory, name = os.path.split(options.drop_in)
    patterns = (os.path.split(os.path.normpath(pattern)) for pattern in _patterns(options, values))
    return any(there == directory and fnmatch.fnmatchcase(name, pattern) for there, pattern in patterns)


def _notes_about(values: "dict[str, Any]", source: Source) -> tuple[str, ...]:
    disabled = values.get("disabled_plugins")
    found = []
    # containerd 2 has the service of CRI and its runtime as two plug-ins; Kubernetes needs both.
    names = {*_KEYS.values(), _LATEST_KEY}
    if isinstance(disabled, list) and names & {str(one) for one in disabled}:
        found.append(
            "the CRI plug-in is in disabled_plugins: Kubernetes cannot use this containerd until it is taken out"
        )
    if source.version == 1:
        found.append("containerd 2 does not read version 1: `containerd config migrate` brings the file up to date")
    return tuple(found)


def _notes_about_neighbours(options: Options, values: "dict[str, Any]") -> tuple[str, ...]:
    """Tell which other files a new pattern makes containerd read."""
    directory = os.path.dirname(options.drop_in)
    if is_imported(options, values) or not os.path.isdir(directory):
        return ()
    own = os.path.basename(options.drop_in)
    others = sorted(name for name in os.listdir(directory) if name.endswith(".toml") and name != own)
    return (f"the new import makes containerd read these too: {', '.join(others)} in {directory}",) if others else ()
