"""Case files: reading and checking conformance/cases/**.yaml.

Belongs here: the shape of a case file and its errors with file, line and key. Does not belong here: the meaning of the
fields (case.py, expect.py). A file holds `defaults`, laid below each case, and a list of `cases`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nvconform.case import LANES, Case, build, environment
from nvconform.shapes import (
    Document,
    DocumentError,
    anything,
    choice,
    either,
    flag,
    integer,
    list_of,
    mapping_of,
    record,
    text,
)

CAPABILITIES = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")
FAILURES = ("requirement", "usage", "input", "configuration", "request", "host", "container")
DATA_FILES = ("sets.yaml",)
MACHINE_FOLDER = "machines"

_TEXTS = list_of(text)
_TEXT_MAPPING = mapping_of(text)

CONTAINER = record(
    {
        "image": choice("deb", "rpm", "musl", "empty"),
        "remove": _TEXTS,
        "directories": _TEXTS,
        "files": mapping_of(
            either(text, record({"text": text, "mode": text, "megabytes": integer, "copy": text})),
        ),
        "libraries": _TEXT_MAPPING,
        "links": _TEXT_MAPPING,
        "fifos": _TEXTS,
        "loader-cache": flag,
        "env": either(mapping_of(text), _TEXTS),
        "mounts": list_of(
            record({"source": text, "destination": text, "type": text, "options": _TEXTS}, ("source", "destination"))
        ),
        "privileged": flag,
        "readonly": flag,
        "filesystem": record({"kilobytes": integer, "full": flag, "readonly": flag}),
        "spec": mapping_of(anything),
        "stage": choice("prestart", "createRuntime"),
    }
)
INJECTED = record(
    {
        "gpus": list_of(integer),
        "capabilities": list_of(choice(*CAPABILITIES)),
        "mig": _TEXTS,
        "mig-management": list_of(choice("config", "monitor")),
        "imex": list_of(integer),
        "library-directory": text,
        "library32-directory": text,
        "rules": flag,
        "cache": flag,
        "moved": _TEXT_MAPPING,
        "also": record(
            {
                "mounts": _TEXT_MAPPING,
                "nodes": _TEXT_MAPPING,
                "links": _TEXT_MAPPING,
                "cache": _TEXTS,
                "rules": _TEXTS,
                "files": _TEXTS,
            }
        ),
        "without": record(dict.fromkeys(("mounts", "nodes", "links", "cache", "rules"), _TEXTS)),
        "cache-first": _TEXT_MAPPING,
        "contents": mapping_of(_TEXTS),
        "says": _TEXTS,
    }
)
REFUSED = record({"kind": choice(*FAILURES), "names": _TEXTS, "hides": _TEXTS})
CASE_KEYS = {
    "id": text,
    "title": text,
    "source": text,
    "level": choice("MUST", "SHOULD"),
    "observed": text,
    "differs": text,
    "machine": text,
    "lanes": list_of(choice(*LANES)),
    "needs": _TEXTS,
    "container": CONTAINER,
    "config": either(mapping_of(anything), text),
    "engine": _TEXT_MAPPING,
    "call": record({"stdin": text, "config": text, "bundle": choice("present", "missing", "file", "closed")}),
    "expect": record({"injected": INJECTED, "refused": REFUSED, "untouched": flag, "says": _TEXTS}),
}
FILE = record(
    {"defaults": record(CASE_KEYS), "cases": list_of(record(CASE_KEYS, ("id",)))},
    ("cases",),
)


def case_files(directory: Path) -> list[Path]:
    """Return the case files below a directory in a stable order."""
    return sorted(path for path in directory.rglob("*.yaml") if is_case_file(path))


def is_case_file(path: Path) -> bool:
    """Tell case files from the tables and the machines that lie beside them."""
    return path.suffix == ".yaml" and path.name not in DATA_FILES and path.parent.name != MACHINE_FOLDER


def load_file(path: Path) -> list[Case]:
    """Read the cases of one file.

    Raises: DocumentError.
    """
    document = Document(path)
    document.check(FILE)
    defaults = document.value.get("defaults", {})
    cases: list[Case] = []
    for index, own in enumerate(document.value["cases"]):
        place = ("cases", index)
        merged = overlay(defaults, own)
        for key in ("title", "source", "expect"):
            if key not in merged:
                raise document.error(place, f"the key {key} is missing")
        outcomes = [key for key in ("injected", "refused", "untouched") if key in merged["expect"]]
        if len(outcomes) != 1:
            raise document.error((*place, "expect"), "needs exactly one of injected, refused and untouched")
        container = merged.get("container", {})
        if "env" in container:
            merged["container"] = {**container, "env": environment(container["env"])}
        merged["file"] = str(path)
        merged["line"] = document.lines[place]
        cases.append(build(Case, merged))
    return cases


def load_all(directory: Path) -> list[Case]:
    """Read all cases below a directory.

    Raises: DocumentError, also when an id is used twice.
    """
    seen: dict[str, Case] = {}
    for path in case_files(directory):
        for case in load_file(path):
            if case.id in seen:
                other = seen[case.id]
                raise DocumentError(f"{path}:{case.line}: id: {case.id} is used already in {other.file}:{other.line}")
            seen[case.id] = case
    return list(seen.values())


def cases_directory() -> Path:
    """Return the folder of the cases: beside the package in a checkout, inside it when installed."""
    here = Path(__file__).parent
    return here.parent / "cases" if (here.parent / "cases" / "sets.yaml").exists() else here / "cases"


def load_sets() -> dict[str, Any]:
    """Return the tables of sets.yaml."""
    value: dict[str, Any] = Document(cases_directory() / "sets.yaml").value
    return value


def machine_file(machine: str) -> str:
    """Return what to call a case's machine: a shipped name as it is, `./FILE` as a file beside the cases."""
    return str(cases_directory() / MACHINE_FOLDER / machine) if machine.startswith("./") else machine


def find(cases: Iterable[Case], identifier: str) -> Case:
    """Return the case with an id.

    Raises: DocumentError when there is none.
    """
    for case in cases:
        if case.id == identifier:
            return case
    raise DocumentError(f"no case has the id {identifier}; nvconform list shows them")


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `below` with the keys of `above` laid over it, mappings merged, except `expect`, which replaces."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and key != "expect":
            result[key] = overlay(old, value)
        else:
            result[key] = value
    return result
