"""CDI specs as files: YAML or JSON, stamped with what they were made from, put in place in one step.

Belongs here: the text of a document and writing it. Does not belong here: what is in a spec (cdi.py) and reading specs
(nvinject.host.registry). A reader sees the old file or the new one, never a part.
"""

import os

from nvinject.errors import HostError, UsageError
from nvinject.formats import cdi
from nvinject.formats.jsonio import dumps
from nvinject.linux.newfile import open_new
from nvinject.linux.signals import Undisturbed
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FORMATS = ("yaml", "json")
FILE_MODE = 0o644  # rootless engines read specs too
DIRECTORY_MODE = 0o755
YAML_REMEDY = "install PyYAML (python3-yaml), or use --format json"
STAMP_PREFIX = "# nvinject: "
STAMP_KEYS = ("nvinject.driver-version", "nvinject.devices")


class Stamp(Record):
    """What a spec was made from: the driver's version and the devices of the host, by UUID or bus address."""

    driver_version: str
    devices: tuple[str, ...]


def stamp_annotations(stamp: Stamp) -> tuple[tuple[str, str], ...]:
    """Return the stamp as annotations, which need CDI 0.6.0."""
    return tuple(zip(STAMP_KEYS, (stamp.driver_version, ",".join(stamp.devices)), strict=True))


def format_document(spec: cdi.Spec, form: str, stamp: Stamp | None = None) -> str:
    """Return the text of a spec; a stamp becomes a comment, which only YAML has and every version allows."""
    values = cdi.format_spec(spec)
    if form == "json":
        return dumps(values) + "\n"
    comment = ""
    if stamp is not None:
        comment = STAMP_PREFIX + dumps({"driver": stamp.driver_version, "devices": list(stamp.devices)}) + "\n"
    return f"---\n{comment}{format_yaml(values)}"


def format_yaml(values: "dict[str, Any]") -> str:
    """Return plain values as YAML with indented lists, in the order that they have."""
    try:
        import yaml  # commands of people only
    except ImportError as error:
        raise HostError("YAML cannot be written: the Python module yaml is missing", YAML_REMEDY) from error

    class Indented(yaml.SafeDumper):
        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
            super().increase_indent(flow, indentless=False)

    text: str = yaml.dump(values, Dumper=Indented, sort_keys=False, width=1 << 20, allow_unicode=True)
    return text


def format_of(path: str, given: str) -> str:
    """Return the format of a file: as given, else by its extension, else YAML; raises UsageError for an unknown one."""
    form = given.lower() or {".json": "json"}.get(os.path.splitext(path)[1], "yaml")
    if form not in FORMATS:
        raise UsageError(f"invalid output format: {given}", f"use one of {', '.join(FORMATS)}")
    return form


def with_extension(path: str, form: str) -> str:
    """Return the path with the extension that makes engines read the file."""
    return path if path.endswith((".json", ".yaml")) else f"{path}.{form}"


def write_files(files: "tuple[tuple[str, str], ...]") -> None:
    """Write several (path, text), each in one step; directories are made as needed.

    All are written under other names before the first is put in place, so that a full disk changes nothing. A signal
    that ends this program waits until all is done. Raises HostError.
    """
    with Undisturbed():
        _write_files(files)


def _write_files(files: "tuple[tuple[str, str], ...]") -> None:
    prepared: list[tuple[str, str]] = []
    try:
        for path, text in files:
            prepared.append((_prepare(path, text), path))
        for temporary, path in list(prepared):
            os.rename(temporary, path)
            prepared.remove((temporary, path))
    except OSError as error:
        place = error.filename2 or error.filename or "a spec"
        raise HostError(
            f"cannot write {place}: {error.strerror}", "the directory of specs must be writable, and have space"
        ) from error
    finally:
        for temporary, _ in prepared:
            os.unlink(temporary)


def _prepare(path: str, text: str) -> str:
    """Write a file beside its place and return its name; a failure leaves nothing behind."""
    if os.path.exists(path) and not os.path.isfile(path):
        # As root, a device such as /dev/null would be replaced.
        raise UsageError(
            f"{path} is no ordinary file", "name another one; without --output all goes to standard output"
        )
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, DIRECTORY_MODE, exist_ok=True)
    # Not ending in .yaml or .json: engines that watch the directory must not read it.
    temporary = f"{path}.{os.getpid()}.new"
    descriptor = open_new(temporary, FILE_MODE)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), FILE_MODE)
            os.fsync(file.fileno())
    except OSError:
        os.unlink(temporary)
        raise
    return temporary
