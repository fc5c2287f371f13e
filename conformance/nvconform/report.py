"""The report: what came out, as JSON for machines and as a short table for people.

Belongs here: counting and writing results. Does not belong here: deciding them (judge.py).
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

LONGEST_LIST = 25
Result = Mapping[str, Any]


def write_json(path: Path, implementation: str, results: Sequence[Result]) -> None:
    """Write all results with their expected and seen views."""
    document = {"implementation": implementation, "summary": summary(results), "results": list(results)}
    path.write_text(json.dumps(document, indent=1) + "\n")


def summary(results: Iterable[Result]) -> dict[str, Any]:
    """Return the counts by lane, and the reasons of the skips."""
    lanes: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    for result in results:
        lanes.setdefault(str(result["lane"]), Counter())[str(result["status"])] += 1
        if result["status"] == "skipped":
            reasons[str(result["reason"])] += 1
    return {"lanes": {lane: dict(counts) for lane, counts in lanes.items()}, "skips": dict(reasons)}


def table(results: Sequence[Result]) -> list[str]:
    """Return the summary as lines of text."""
    counted = summary(results)
    lines = [f"{'lane':<10}{'cases':>7}{'passed':>8}{'failed':>8}{'skipped':>9}"]
    for lane, counts in counted["lanes"].items():
        columns = [counts.get(name, 0) for name in ("passed", "failed", "skipped")]
        lines.append(f"{lane:<10}{sum(columns):>7}{columns[0]:>8}{columns[1]:>8}{columns[2]:>9}")
    lines += [f"skipped {count}: {reason}" for reason, count in sorted(counted["skips"].items())]
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
