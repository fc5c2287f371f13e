"""Results as JUnit XML, which CI systems show.

Belongs here: the format, and no counting but what it asks for. A test suite is a column of the report.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from typing import Any

from nvconform import report

Result = Mapping[str, Any]


def column(result: Result) -> str:
    """Return by whom and with what a result came about: one column of the report."""
    parts = [result.get("implementation", ""), result.get("runtime", ""), result["lane"]]
    if result.get("cgroup", "host") != "host":
        parts.append(f"cgroup {result['cgroup']}")
    return " / ".join(part for part in parts if part)


def render(results: Iterable[Result]) -> str:
    """Return the XML document."""
    suites: dict[str, list[Result]] = {}
    for result in results:
        suites.setdefault(column(result), []).append(result)
    root = ET.Element("testsuites", name="nvconform")
    for name, members in suites.items():
        verdicts = [report.verdict(result) for result in members]
        attributes = {
            "name": name,
            "tests": str(len(members)),
            "failures": str(verdicts.count("failed")),
            "errors": "0",
            "skipped": str(len(members) - verdicts.count("passed") - verdicts.count("failed")),
            "time": f"{sum(result.get('seconds', 0.0) for result in members):.3f}",
        }
        suite = ET.SubElement(root, "testsuite", attributes)
        for result in members:
            _add_case(suite, name, result)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_case(suite: ET.Element, name: str, result: Result) -> None:
    seconds = f"{result.get('seconds', 0.0):.3f}"
    case = ET.SubElement(suite, "testcase", {"classname": name, "name": result["id"], "time": seconds})
    match report.verdict(result):
        case "failed":
            first = str(next(iter(result.get("differences", ())), ""))
            failure = ET.SubElement(case, "failure", {"message": _printable(first), "type": "MUST"})
            failure.text = _printable(report.explain(result))
        case "should":
            words = f"SHOULD, not held: {report.explain(result)}"
            ET.SubElement(case, "skipped", {"message": _printable(words)})
        case "skipped" | "deviates":
            ET.SubElement(case, "skipped", {"message": _printable(str(result.get("reason", "")))})


def _printable(text: str) -> str:
    """Return text without the control characters that XML cannot hold."""
    return "".join(letter if letter in "\n\t" or letter.isprintable() else "?" for letter in text)
