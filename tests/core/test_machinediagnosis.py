"""Diagnosis of a machine: one observed fault gives one finding."""

import pytest

from nvinject.core.machinediagnosis import (
    Machine,
    MpsState,
    NodeState,
    NvmlState,
    PciFunction,
    judge,
    judged_layers,
)

A, B = "0000:17:00.0", "0000:18:00.0"
HEALTHY = Machine(
    pci=(PciFunction(bus_id=A, driver="nvidia"), PciFunction(bus_id=B, driver="nvidia")),
    version="570.133.20",
    open_source=True,
    classes=("nvidia", "nvidia-uvm"),
    shown=(A, B),
    has_libraries=True,
    has_management_library=True,
    firmware=2,
    nodes=(NodeState(path="/dev/nvidiactl", mode=0o666, wanted_mode=0o666),),
    nvml=NvmlState(gpus=(A, B)),
)
NODE = NodeState(path="/dev/nvidia0", wanted_mode=0o666, remedy="nvidia-modprobe -c 0")
OLD = (("libcuda.so", "560.1"), ("libnvidia-ml.so", "560.1"))

FAULTS = [
    ("no-gpu", Machine(pci=())),
    (
        "gpu-taken",
        HEALTHY.replace(pci=(PciFunction(bus_id=A, driver="nvidia"), PciFunction(bus_id=B, driver="vfio-pci"))),
    ),
    ("gpu-taken", HEALTHY.replace(pci=(PciFunction(bus_id=A, driver="nouveau"), HEALTHY.pci[1]))),  # type: ignore[index]
    ("gpu-not-shown", HEALTHY.replace(shown=(A,), nvml=NvmlState(gpus=(A,)))),
    ("driver-missing", Machine(pci=(PciFunction(bus_id=A),))),
    ("module-not-loaded", Machine(pci=(PciFunction(bus_id=A),), libraries=OLD)),
    ("uvm-not-loaded", HEALTHY.replace(classes=("nvidia",))),
    ("version-skew", HEALTHY.replace(has_libraries=False, libraries=OLD, nvml=None)),
    ("libraries-missing", HEALTHY.replace(has_libraries=False, has_management_library=False, nvml=None)),
    ("libraries-left-over", HEALTHY.replace(libraries=(("libnvidia-encode.so", "560.1"),))),
    ("nvml-missing", HEALTHY.replace(has_management_library=False, nvml=None)),
    ("loader-cache-stale", HEALTHY.replace(in_loader_cache=False)),
    ("firmware-missing", HEALTHY.replace(firmware=0)),
    ("node-missing", HEALTHY.replace(nodes=(NODE.replace(kind="missing", fault="/dev/nvidia0 is missing"),))),
    (
        "nodes-not-given",
        HEALTHY.replace(
            nodes=(NODE.replace(kind="missing", fault="/dev/nvidia0 is missing"),), firmware=0, is_given_nodes=True
        ),
    ),
    ("node-wrong-number", HEALTHY.replace(nodes=(NODE.replace(kind="number", fault="/dev/nvidia0 is device 1:1"),))),
    ("node-not-device", HEALTHY.replace(nodes=(NODE.replace(kind="type", fault="/dev/nvidia0 is a regular file"),))),
    ("node-permissions", HEALTHY.replace(nodes=(NODE.replace(mode=0o660),))),
    ("dev-char-links-missing", HEALTHY.replace(unlinked=("/dev/nvidia0",))),
    ("nvml-fails", HEALTHY.replace(nvml=NvmlState(error="NVML cannot be loaded", remedy="reinstall it"))),
    ("nvml-slow", HEALTHY.replace(nvml=NvmlState(error="NVML did not answer", remedy="x", timed_out=True))),
    ("gpu-lost", HEALTHY.replace(nvml=NvmlState(gpus=(A,), lost=("GPU 1: GPU is lost",)))),
    ("gpu-unseen", HEALTHY.replace(nvml=NvmlState(gpus=(A,)))),
    ("mps-daemon-missing", HEALTHY.replace(mps=MpsState(directory="/tmp/nvidia-mps", fault="control is missing"))),
    ("unreadable", HEALTHY.replace(faults=("cannot read /proc",))),
]


@pytest.mark.parametrize(("name", "machine"), FAULTS)
def test_a_fault_gives_one_finding(name: str, machine: Machine) -> None:
    """With all three clauses."""
    (found,) = judge(machine)
    assert found.name == name
    assert found.what
    assert found.why
    assert found.remedy


WELL = [
    HEALTHY,
    HEALTHY.replace(pci=None),
    HEALTHY.replace(open_source=False, firmware=0),
    # The proprietary module leaves a GPU alone that it was told to leave alone.
    HEALTHY.replace(shown=(A,), excluded=(B,), nvml=NvmlState(gpus=(A,))),
    HEALTHY.replace(mps=MpsState(directory="/tmp/nvidia-mps")),
    # A node may be open to more than the driver asks for.
    HEALTHY.replace(nodes=(NODE.replace(mode=0o666, wanted_mode=0o660),)),
]


@pytest.mark.parametrize("machine", WELL)
def test_nothing_is_said_about_a_healthy_machine(machine: Machine) -> None:
    """No finding."""
    assert judge(machine) == ()


def test_the_remedy_starts_the_daemon_for_the_directory_that_is_named() -> None:
    state = MpsState(directory="/run/mps", fault="/run/mps is missing", named_by="nvinject.mps-pipe-directory")
    (found,) = judge(HEALTHY.replace(mps=state))
    assert "nvinject.mps-pipe-directory names its directory" in found.what
    assert found.remedy == "CUDA_MPS_PIPE_DIRECTORY=/run/mps nvidia-cuda-mps-control -d"
    assert judged_layers(HEALTHY.replace(mps=state))[-2:] == ("mps", "cgroup")


def test_a_missing_node_explains_what_nvml_does_not_show() -> None:
    """One fault, one finding."""
    machine = HEALTHY.replace(
        nodes=(NODE.replace(kind="missing", fault="/dev/nvidia0 is missing"),), nvml=NvmlState(gpus=(B,))
    )
    assert [finding.name for finding in judge(machine)] == ["node-missing"]


def test_a_closed_node_explains_what_nvml_cannot_do() -> None:
    """It opens them as this user."""
    machine = HEALTHY.replace(nodes=(NODE.replace(mode=0o600),), nvml=NvmlState(error="Insufficient Permissions"))
    assert [finding.name for finding in judge(machine)] == ["node-permissions"]


def test_what_rests_on_a_missing_driver_is_not_judged() -> None:
    """So that nobody reads `nothing wrong` about it."""
    assert judged_layers(HEALTHY) == ("bus", "module", "versions", "nodes", "nvml", "cgroup")
    assert judged_layers(Machine(pci=())) == ("bus",)
    assert judged_layers(Machine(pci=None, faults=("x",))) == ()
    assert judged_layers(Machine(pci=(PciFunction(bus_id=A),))) == ("bus", "module")
