"""The report: what came out, as JSON for machines and as a short table for people.

Belongs here: counting, writing and reading results. Does not belong here: deciding them (judge.py), JUnit (junit.py),
the page (page.py). A result's status is passed, failed, skipped, or deviates: failed, as the implementation's adapter
says by design. A failure of a SHOULD is counted apart from one of a MUST.
"""

import json
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from nvconform.shapes import DocumentError

LONGEST_LIST = 25
LARGEST = 256 << 20  # characters: all cases by many implementations make a tenth of it
COLUMNS = ("passed", "failed", "should", "deviates", "skipped")
HEADINGS = {"should": "failed SHOULD", "deviates": "by design"}
Result = Mapping[str, Any]
# What is no text in a result.
KINDS: Mapping[str, type | tuple[type, ...]] = {
    "differences": list, "features": list, "expected": dict, "seen": dict, "seconds": (int, float),
    "code": (int, type(None)),
}  # fmt: skip


def write_json(path: Path, implementation: str, results: Sequence[Result]) -> None:
    """Write all results with their expected and seen views."""
    document = {
        "implementation": implementation,
        "environment": environment(results),
        "summary": summary(results),
        "results": list(results),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read what `write_json` wrote.

    Raises: DocumentError.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise DocumentError(f"{path}: more than {LARGEST >> 20} MiB: not a result of nvconform run --json")
        document: dict[str, Any] = json.loads(text)
        known = all(map(_is_result, document["results"])) and isinstance(document.get("environment", {}), dict)
        json.dumps(document, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DocumentError(f"{path}: not a result of nvconform run --json: {error}") from None
    if not known:
        raise DocumentError(f"{path}: not a result of nvconform run --json")
    return document


def _is_result(result: Any) -> bool:
    return {"id", "lane", "status"} <= set(result) and all(
        isinstance(value, KINDS.get(name, str)) and _is_filled(value) for name, value in result.items()
    )


def _is_filled(value: Any) -> bool:
    """Tell whether a list holds texts, and a view what page.py makes lines of."""
    if isinstance(value, dict):
        return all(isinstance(part, dict) or (isinstance(part, list) and _is_filled(part)) for part in value.values())
    return not isinstance(value, list) or all(isinstance(item, str) for item in value)


def environment(results: Iterable[Result]) -> dict[str, str]:
    """Return what a reader needs to judge whether results hold for them: versions, kernel, date."""
    try:
        own = version("nvinject")
    except PackageNotFoundError:
        own = "unknown"
    runtimes = {str(result.get("runtime-version") or "") for result in results} - {""}
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "nvconform": own,
        "runtime": ", ".join(sorted(runtimes)),
        "system": _system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def verdict(result: Result) -> str:
    """Return the column that a result is counted in: its status, or `should` for a failure of a SHOULD."""
    status = str(result["status"])
    return "should" if status == "failed" and result.get("level") == "SHOULD" else status


def summary(results: Iterable[Result]) -> dict[str, Any]:
    """Return the counts by lane, and the reasons of the skips and of what fails by design."""
    lanes: dict[str, Counter[str]] = {}
    reasons: dict[str, Counter[str]] = {"skipped": Counter(), "deviates": Counter()}
    for result in results:
        lanes.setdefault(str(result["lane"]), Counter())[verdict(result)] += 1
        if result["status"] in reasons:
            reasons[str(result["status"])][str(result["reason"])] += 1
    return {
        "lanes": {lane: dict(counts) for lane, counts in lanes.items()},
        "skips": dict(reasons["skipped"]),
        "deviations": dict(reasons["deviates"]),
    }


def table(results: Sequence[Result]) -> list[str]:
    """Return the summary as lines of text; columns that nothing is in are left out."""
    counted = summary(results)
    used = {name for counts in counted["lanes"].values() for name in counts}
    columns = [name for name in COLUMNS if name in used or name in {"passed", "failed", "skipped"}]
    headings = [HEADINGS.get(name, name) for name in columns]
    widths = [max(8, len(heading) + 2) for heading in headings]
    heads = "".join(f"{heading:>{width}}" for heading, width in zip(headings, widths, strict=True))
    lines = [f"{'lane':<10}{'cases':>7}{heads}"]
    for lane, counts in counted["lanes"].items():
        cells = (f"{counts.get(name, 0):>{width}}" for name, width in zip(columns, widths, strict=True))
        lines.append(f"{lane:<10}{sum(counts.values()):>7}{''.join(cells)}")
    lines += [f"skipped {count}: {reason}" for reason, count in sorted(counted["skips"].items())]
    lines += [f"by design {count}: {reason}" for reason, count in sorted(counted["deviations"].items())]
    return lines


def explain(result: Result) -> str:
    """Return a failure for people: each difference on its line, then what the injector said."""
    differences = list(result.get("differences", ()))
    lines = [f"{result['id']} ({result['lane']}):", *(f"  {line}" for line in differences[:LONGEST_LIST])]
    if len(differences) > LONGEST_LIST:
        lines.append(f"  and {len(differences) - LONGEST_LIST} more")
    if result.get("message"):
        lines.append(f"  the injector (exit {result.get('code')}) said: {str(result['message']).strip()}")
    return "\n".join(lines)
