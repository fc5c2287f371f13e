"""Diagnosis of a host that lists itself what containers get."""

import pytest

from nvinject.core.finding import worst
from nvinject.core.listingdiagnosis import ListedHost, judge, judged_layers
from nvinject.errors import HostError

HEALTHY = ListedHost(has_nvml=True)
FAULT = HostError("there is no mount specification for containers: /a.csv", "install it")
# host, names of findings, worst severity, layers that were judged
HOSTS = [
    (HEALTHY, [], "", ("module", "versions", "nodes", "cgroup", "nvml")),
    (ListedHost(), [], "", ("module", "versions", "nodes", "cgroup")),
    (
        HEALTHY.replace(notes=("listed and not on this machine: /x",)),
        ["list-note"],
        "note",
        ("module", "versions", "nodes", "cgroup", "nvml"),
    ),
    (
        HEALTHY.replace(faulty=("a.csv, line 1", "a.csv, line 2")),
        ["list-faulty", "list-faulty"],
        "warning",
        ("module", "versions", "nodes", "cgroup", "nvml"),
    ),
    (
        HEALTHY.replace(problem=HostError("NVML fails in nvmlInit: no", "run nvidia-smi")),
        ["nvml-fails"],
        "warning",
        ("module", "versions", "nodes", "cgroup", "nvml"),
    ),
    (ListedHost(fault=FAULT), ["lists-unusable"], "error", ("module",)),
]


@pytest.mark.parametrize(("host", "names", "severity", "layers"), HOSTS)
def test_what_is_found_has_a_reason_and_a_remedy(
    host: ListedHost, names: list[str], severity: str, layers: tuple[str, ...]
) -> None:
    found = judge(host)
    assert [finding.name for finding in found] == names
    assert worst(found) == severity
    assert judged_layers(host) == layers
    assert all(finding.why and finding.remedy for finding in found)


def test_a_fault_is_told_with_its_remedy() -> None:
    (finding,) = judge(ListedHost(fault=FAULT))
    assert (finding.what, finding.remedy) == (FAULT.message, "install it")
