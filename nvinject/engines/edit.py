"""What an engine shall know, and the edit of its files that tells it so.

Belongs here: the values that every engine's module takes and gives, and TOML edits with errors that name the file.
Does not belong here: what one engine's settings are called (docker.py, containerd.py, crio.py, podman.py).
"""

from nvinject.engines.files import Change, Document
from nvinject.errors import ConfigurationError
from nvinject.formats import tomlscan, tomltext
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    Path = tuple[str, ...]
    # (program, arguments) -> what it prints
    Run = Callable[[str, tuple[str, ...]], str]

HEADER = "# Written by `nvinject runtime configure`; the same command with --undo takes it back.\n"
SOURCE_FILE, SOURCE_COMMAND = "file", "command"


class Options(Record):
    """What to tell an engine. `drop_in` is empty where `config` itself shall be edited.

    `source` says where the options of other runtimes are read, the file or what the engine (`executable`) answers.
    """

    config: str
    drop_in: str = ""
    name: str = "nvidia"
    path: str = "nvidia-container-runtime"
    set_as_default: bool = False
    cdi: bool = False
    source: str = SOURCE_FILE
    executable: str = ""


class Edit(Record):
    """The changes of files, and what their owner should know about them."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()


def parse_document(document: Document) -> "dict[str, Any]":
    """Return the values of a TOML file; raises ConfigurationError with line and column."""
    try:
        return tomlscan.parse(document.text)
    except tomlscan.EditError as error:
        raise explained(document, error) from error


def explained(document: Document, error: tomlscan.EditError) -> ConfigurationError:
    """Return the error for a document that cannot be edited."""
    place = f", line {error.line}, column {error.column}" if error.line else ""
    return ConfigurationError(f"{document.path}{place}: {error.reason}", "mend it by hand; the file is untouched")


def edit_document(
    document: Document, settings: "Sequence[tuple[Path, Any]]", removals: "Sequence[Path]" = ()
) -> Change:
    """Return the change that sets and removes keys of a TOML file, a new one if there is none.

    Raises ConfigurationError where that cannot be done without risk.
    """
    text = document.text
    try:
        for path in removals:
            text = tomltext.remove_value(text, path)
        if not text.strip() and document.data is None:
            return document.change(HEADER + tomltext.format_document(nest(settings)))
        for path, value in settings:
            text = tomltext.set_value(text, path, value)
    except tomlscan.EditError as error:
        raise explained(document, error) from error
    return document.change(text)


def make_equal(document: Document, wanted: "dict[str, Any]", comment: str = "") -> Change:
    """Return the change after which a TOML file holds just the wanted values, in as few lines as it can be done.

    Where that cannot be done by single edits the file is written anew.
    """
    if document.data is None or not document.text.strip():
        return document.change(HEADER + comment + tomltext.format_document(wanted))
    values = parse_document(document)
    text = document.text
    if values == wanted:
        return document.change(text)
    try:
        for path, _ in leaves(values):
            if tomltext.lookup(wanted, path) is None:
                text = tomltext.remove_value(text, path)
        for path, value in leaves(wanted):
            text = tomltext.set_value(text, path, value)
        if tomlscan.parse(text) == wanted:
            return document.change(text)
    except tomlscan.EditError:
        pass
    return document.change(HEADER + comment + tomltext.format_document(wanted))


def leaves(values: "dict[str, Any]", path: "Path" = ()) -> "Iterator[tuple[Path, Any]]":
    """Yield every value that is no table, or an empty one, with its path."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value


def nest(settings: "Sequence[tuple[Path, Any]]") -> "dict[str, Any]":
    """Return the values at some paths as tables in tables."""
    values: dict[str, Any] = {}
    for path, value in settings:
        table = values
        for name in path[:-1]:
            table = table.setdefault(name, {})
        table[path[-1]] = value
    return values


def merged(one: "dict[str, Any]", other: "dict[str, Any]") -> "dict[str, Any]":
    """Return two sets of values as one; where both have a value, the other's counts."""
    result = dict(one)
    for name, value in other.items():
        there = result.get(name)
        result[name] = merged(there, value) if isinstance(there, dict) and isinstance(value, dict) else value
    return result


def table_at(document: Document, values: "dict[str, Any]", path: "Path") -> "dict[str, Any]":
    """Return the table at a path, an empty one if there is none; raises ConfigurationError for anything else."""
    for length in range(1, len(path) + 1):
        found = tomltext.lookup(values, path[:length])
        if found is not None and not isinstance(found, dict):
            line = tomltext.find_line(document.text, path[:length])
            place = f", line {line}, column 1" if line else ""
            raise ConfigurationError(
                f"{document.path}{place}: {tomltext.dotted(path[:length])} is not a table", "mend it by hand"
            )
    table: dict[str, Any] | None = tomltext.lookup(values, path)
    return table or {}


def choose_template(runtimes: "dict[str, Any]", default: object) -> "dict[str, Any]":
    """Return the options of the runtime that ours stands before: the default one, else runc's, else crun's."""
    usual = isinstance(default, str) and default and not default.startswith("nvidia")
    for name in (*((default,) if usual else ()), "runc", "crun"):
        options = runtimes.get(str(name))
        if isinstance(options, dict):
            return options
    return {}
