"""How far the renderings of one plan agree: hook, runtime shim and CDI spec, as a text for people.

Belongs here: the tables of docs/agreement.md, made of the adapters, so that what the tests accept and what is told are
one. Does not belong here: applying a difference (attempt.py, shim.py, devicespec.py).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from nvconform.implementations import Implementation

# The rendering that the cases describe, and the ones that are compared with it.
REFERENCE = "nvinject-hook"
OTHERS = ("nvinject-jit", "nvinject-cdi")
BEGIN, END = "<!-- begin of what the adapters say -->", "<!-- end of what the adapters say -->"


def render(implementations: Iterable[Implementation]) -> str:
    """Return two tables in Markdown: what a container sees otherwise, and which cases are left out."""
    seen: list[tuple[str, str, str, str]] = []
    left_out: list[tuple[str, str, str]] = []
    for one in implementations:
        seen += [(row[0], one.title, *row[1:]) for row in _differences(one.document)]
        left_out += [(cases, one.title, reason) for reason, cases in _left_out(one.document).items()]
    lines = ["| what a container sees | with | where | why |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in seen]
    lines += ["", "| cases | with | why they are left out |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in left_out]
    return "\n".join(lines) + "\n"


def _differences(document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    rows = [(one["what"], _where(one), one["because"]) for one in document.get("differences", ())]
    rows += [(one["what"], "everywhere", one["because"]) for one in document.get("additions", ())]
    return rows + [(one["what"], one["where"], one["because"]) for one in document.get("by-kind", ())]


def _where(difference: Mapping[str, Any]) -> str:
    places = ", ".join(f"lane {name}" for name in difference.get("when", ())) or "everywhere"
    runtimes = ", ".join(difference.get("runtimes", ()))
    return f"{places}; {runtimes}" if runtimes else places


def _left_out(document: Mapping[str, Any]) -> dict[str, str]:
    """Return patterns of ids by their reason; those that a low-level runtime has to do with name it."""
    found: dict[str, list[str]] = {}
    for key in ("skips", "deviations"):
        for pattern, reason in document.get(key, {}).items():
            found.setdefault(str(reason), []).append(f"`{pattern}`")
    return {reason: ", ".join(patterns) for reason, patterns in found.items()}
