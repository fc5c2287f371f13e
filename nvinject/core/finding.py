"""Findings: what is wrong with a node, why that matters, and what mends it.

Belongs here: the value, its severities and the layers in the order in which people debug them. Does not belong here:
the rules that lead to a finding (machinediagnosis.py, servicediagnosis.py).
"""

from nvinject.record import Record

ERROR = "error"
WARNING = "warning"
NOTE = "note"
SEVERITIES = (NOTE, WARNING, ERROR)

LAYERS = (
    ("bus", "GPU on the PCI bus"),
    ("module", "driver loaded"),
    ("versions", "versions of the driver's parts"),
    ("nodes", "device nodes"),
    ("nvml", "management library"),
    ("mps", "multi-process service"),
    ("toolkit", "nvinject installed"),
    ("engine", "container engine configured"),
    ("cdi", "CDI specs"),
    ("cgroup", "device access of running containers"),
    ("container", "options of the container"),
    ("image", "requirements of the image"),
)


class Finding(Record):
    """One fault: a name for programs, its layer, and three clauses for people.

    `remedy` is a command where there is one.
    """

    name: str
    layer: str
    severity: str
    what: str
    why: str
    remedy: str


def worst(findings: tuple[Finding, ...]) -> str:
    """Return the worst severity, "" where there is no finding."""
    found = {finding.severity for finding in findings}
    return next((severity for severity in reversed(SEVERITIES) if severity in found), "")


def in_order(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return findings in the order of their layers, within a layer as they came."""
    places = {name: place for place, (name, _) in enumerate(LAYERS)}
    return tuple(sorted(findings, key=lambda finding: places[finding.layer]))
