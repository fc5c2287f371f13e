"""Case files: reading and checking conformance/cases/**.yaml.

Belongs here: reading, and errors with file, line and key. Does not belong here: the shape of a case file
(case.schema.json) and the meaning of its fields (case.py, expect.py). A file holds `defaults`, laid below each case,
and a list of `cases`.
"""

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nvconform.case import Case, build, environment
from nvconform.profiles import Profiles, load_profiles
from nvconform.shapes import Document, DocumentError, from_schema

SCHEMA_FILE = Path(__file__).parent / "case.schema.json"
DATA_FILES = ("sets.yaml", "profiles.yaml")
MACHINE_FOLDER = "machines"


@functools.cache
def load_schema() -> dict[str, Any]:
    """Return the JSON schema of a case file."""
    schema: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return schema


FAILURES: tuple[str, ...] = tuple(load_schema()["$defs"]["refused"]["properties"]["kind"]["enum"])


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
    document.check(from_schema(load_schema(), load_schema()))
    profiles = known_profiles()
    defaults = document.value.get("defaults", {})
    cases: list[Case] = []
    for index, own in enumerate(document.value["cases"]):
        place = ("cases", index)
        merged = overlay(defaults, own)
        for key in ("title", "source", "expect"):
            if key not in merged:
                raise document.error(place, f"the key {key} is missing")
        family = own["id"].split("/", maxsplit=1)[0]
        merged.setdefault("features", [family] if family in profiles.features else [])
        for name in merged["features"]:
            if name not in profiles.features:
                known = ", ".join(sorted(profiles.features))
                raise document.error((*place, "features"), f"no feature {name} in profiles.yaml; known are {known}")
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
    if not directory.is_dir():
        raise DocumentError(f"{directory}: no such folder of case files; name one with --cases")
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


@functools.cache
def known_profiles() -> Profiles:
    """Return the features and profiles of profiles.yaml."""
    return load_profiles(cases_directory() / "profiles.yaml")


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
