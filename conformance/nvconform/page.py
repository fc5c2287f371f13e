"""Results as one self-contained HTML page: a matrix of cases and implementations that can be searched and opened.

Belongs here: preparing the data of the page. Does not belong here: how it looks and what it does (page.html). Lines of
the views are kept once and numbered, because most containers see the same things.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nvconform import report
from nvconform.junit import column
from nvconform.profiles import Profiles

TEMPLATE = Path(__file__).parent / "page.html"
PLACE = "/*RESULTS*/"
Result = Mapping[str, Any]


class Lines:
    """Texts and their numbers."""

    def __init__(self) -> None:
        """Start without a text."""
        self.texts: list[str] = []
        self.known: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text."""
        if text not in self.known:
            self.known[text] = len(self.texts)
            self.texts.append(text)
        return self.known[text]


def render(results: Sequence[Result], environments: Iterable[Mapping[str, str]], profiles: Profiles) -> str:
    """Return the page."""
    data = json.dumps(prepare(results, environments, profiles), separators=(",", ":"), ensure_ascii=False)
    # Nothing of a result may end the script element.
    return TEMPLATE.read_text(encoding="utf-8").replace(PLACE, data.replace("<", "\\u003c"))


def prepare(results: Sequence[Result], environments: Iterable[Mapping[str, str]], profiles: Profiles) -> dict[str, Any]:
    """Return the data of the page: columns, cases with their cells, and numbered lines."""
    columns = list(dict.fromkeys(column(result) for result in results))
    lines = Lines()
    cases: dict[str, dict[str, Any]] = {}
    for result in results:
        case = cases.setdefault(str(result["id"]), _case(result))
        case["cells"][columns.index(column(result))] = _cell(result, lines)
    # Runs are in the order of machines; a reader looks for families.
    families = list(dict.fromkeys(identifier.split("/", maxsplit=1)[0] for identifier in cases))
    ordered = sorted(cases.values(), key=lambda case: families.index(str(case["id"]).split("/", maxsplit=1)[0]))
    known = [name for name in profiles.features if any(name in case["features"] for case in cases.values())]
    return {
        "columns": [{"name": name, "counts": _counts(results, name)} for name in columns],
        "features": {name: {"title": profiles.features[name], "profile": profiles.profile_of[name]} for name in known},
        "environments": _distinct(environments),
        "cases": ordered,
        "lines": lines.texts,
    }


def view_lines(view: Mapping[str, Any]) -> list[str]:
    """Return a view of a container as sorted lines."""
    found: list[str] = []
    for what, content in view.items():
        if isinstance(content, Mapping):
            arrow = " -> " if what == "links" else "  "
            found += [f"{what}: {path}{arrow}{text}" for path, text in sorted(content.items())]
        else:
            found += [f"{what}: {entry}" for entry in sorted(content)]
    return found


def _case(result: Result) -> dict[str, Any]:
    names = ("title", "source", "level", "machine", "place")
    known = {name: str(result.get(name, "")) for name in names}
    return {"id": result["id"], **known, "features": list(result.get("features", ())), "cells": {}}


def _cell(result: Result, lines: Lines) -> dict[str, Any]:
    return {
        "status": report.verdict(result),
        "reason": str(result.get("reason") or ""),
        "differences": list(result.get("differences", ())),
        "message": str(result.get("message") or ""),
        "code": result.get("code"),
        "seconds": result.get("seconds", 0.0),
        "runtime": str(result.get("runtime-version") or result.get("runtime") or ""),
        "expected": [lines.number(line) for line in view_lines(result.get("expected") or {})],
        "seen": [lines.number(line) for line in view_lines(result.get("seen") or {})],
    }


def _counts(results: Iterable[Result], name: str) -> dict[str, int]:
    verdicts = [report.verdict(result) for result in results if column(result) == name]
    return {verdict: verdicts.count(verdict) for verdict in report.COLUMNS if verdict in verdicts}


def _distinct(environments: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for environment in environments:
        if dict(environment) not in found:
            found.append(dict(environment))
    return found
