"""Diagnosis of a host that lists itself what containers get: its lists, what they name, and NVML.

Belongs here: rules. Does not belong here: looking (the platform's module in nvinject.host), and hosts whose driver is
looked for as usual (machinediagnosis.py); what holds for both is above the driver (servicediagnosis.py).
"""

from nvinject.core.finding import ERROR, NOTE, WARNING, Finding
from nvinject.errors import HostError
from nvinject.record import Record


class Words(Record):
    """What findings say on one sort of host: what its containers get and why that matters."""

    fault_name: str = "lists-unusable"
    brings: str = "what the lists name"
    note_why: str = "the lists are written for several boards; what this one should have is missing in containers"
    note_remedy: str = "install the package that brings it, if this board should have it"
    problem_why: str = "the GPUs cannot be told apart, and images' newer CUDA libraries are not used"


class ListedHost(Record):
    """What was observed: the fault that keeps containers from everything, else what is odd about the lists.

    `faulty` are lines that are no entries, `notes` are entries that lead nowhere and the like; `problem` says why NVML
    is of no use although it is there, and `has_nvml` whether it is there. `words` are what is read about such hosts.
    """

    fault: HostError | None = None
    faulty: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problem: HostError | None = None
    has_nvml: bool = False
    words: Words = Words()


def judge(host: ListedHost) -> tuple[Finding, ...]:
    """Return what is wrong with the host."""
    findings: list[Finding] = []
    if host.fault is not None:
        findings.append(
            Finding(
                name=host.words.fault_name,
                layer="module",
                severity=ERROR,
                what=host.fault.message,
                why=f"containers get {host.words.brings}; without it none with a GPU starts",
                remedy=host.fault.hint or "nvinject info",
            )
        )
    findings += [
        Finding(
            name="list-faulty",
            layer="versions",
            severity=WARNING,
            what=line,
            why="what the line should name is missing in every container",
            remedy="write TYPE, PATH there; a comment begins with #",
        )
        for line in host.faulty
    ]
    findings += [
        Finding(
            name="list-note",
            layer="versions",
            severity=NOTE,
            what=note,
            why=host.words.note_why,
            remedy=host.words.note_remedy,
        )
        for note in host.notes
    ]
    if host.problem is not None:
        findings.append(
            Finding(
                name="nvml-fails",
                layer="nvml",
                severity=WARNING,
                what=host.problem.message,
                why=host.words.problem_why,
                remedy=host.problem.hint or "nvidia-smi",
            )
        )
    return tuple(findings)


def judged_layers(host: ListedHost) -> tuple[str, ...]:
    """Return the layers that could be judged."""
    whole = host.fault is None
    return ("module", *(("versions", "nodes", "cgroup") if whole else ()), *(("nvml",) if host.has_nvml else ()))
