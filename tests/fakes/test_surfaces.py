"""Every shipped machine tells one story on all surfaces, and what breaks one story leaves the others alone."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from nvfakes import declaration, surfaces
from nvfakes.surfaces import Story

Runner = Callable[..., "subprocess.CompletedProcess[str]"]

READ = "import json, os; from nvfakes import surfaces; print(json.dumps(surfaces.read(os.environ['NVFAKES_ROOT'])))"


def stories(on_machine: Runner, machine: str, *verb: str, lane: str = "root") -> dict[str, Story]:
    """Return the stories of a machine after something has happened to it."""
    script = (
        f'python={sys.executable}; {"$python -m nvfakes " + " ".join(verb) if verb else "true"} && exec $python -c "$0"'
    )
    done = on_machine(machine, "sh", "-c", script, READ, lane=lane)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", declaration.shipped())
def test_every_shipped_machine_is_consistent(on_machine: Runner, name: str) -> None:
    machine = declaration.load(name)
    found = stories(on_machine, name)
    if name == "skeleton":  # it shows how to declare what is missing
        assert "nvidia-modeset" not in found["dev"]["nodes"]
    assert surfaces.contradictions(found) == []
    # Below Windows nothing stands where a driver's files are: its NVML is in the driver store.
    assert len(found["nvml"]["gpus"]) == (0 if machine.adapters else len(machine.gpus))
    assert len(found["nvml"]["migs"]) == sum(len(gpu.mig_devices()) for gpu in machine.gpus)


@pytest.mark.parametrize("name", ["h100x8", "mig-h100", "mixed", "nvl72-tray"])
def test_the_tree_of_the_rootless_lane_is_consistent(on_machine: Runner, name: str) -> None:
    assert surfaces.contradictions(stories(on_machine, name, lane="rootless"), numbers=False) == []


CHANGES = (
    ("unplug", "1"),
    ("unload",),
    ("mig", "0", "3g.40gb", "1g.10gb", "1g.10gb"),
    ("mig", "0", "off"),
    ("slow", "1"),
    ("answer", "0", "thermal.temperature_gpu_c", "70"),
)


@pytest.mark.parametrize("lane", ["root", "rootless"])
@pytest.mark.parametrize("change", CHANGES, ids=" ".join)
def test_a_machine_that_changes_stays_consistent(on_machine: Runner, change: tuple[str, ...], lane: str) -> None:
    found = stories(on_machine, "two-h100", *change, lane=lane)
    wrong = surfaces.contradictions(found, numbers=lane == "root")
    if change == ("unload",):  # the files of a driver stay, without a kernel that could confirm their version
        assert found["nvml"]["error"] == 9
        wrong = [line for line in wrong if "versions of NVML" not in line and "firmware" not in line]
        wrong = [line for line in wrong if "PCI" not in line]  # the functions are there for the next driver
    assert wrong == []


BREAKS = (
    (("remove", "/dev/nvidia-uvm"), "dev"),
    (("remove", "/dev/nvidia-caps-imex-channels/channel0"), "dev"),
    (("remove", "/proc/driver/nvidia/gpus/0000:17:00.0"), "proc"),
    (("break", "/proc/driver/nvidia/version"), "proc"),
    (("break", "/proc/devices"), "proc"),
    (("remove", "/sys/bus/pci/devices/0000:18:00.0"), "sysfs"),
    (("break", "/sys/bus/pci/devices/0000:18:00.0/class"), "sysfs"),
    (("remove", "/sys/module/nvidia_uvm"), "sysfs"),
    (("remove", "'/usr/lib/*/libnvidia-cfg.so.5*'"), "files"),
    (("remove", "/usr/lib/firmware/nvidia"), "files"),
    (("health", "1", "lost"), "nvml"),
)


@pytest.mark.parametrize(
    ("verb", "story"), BREAKS, ids=lambda value: " ".join(value) if isinstance(value, tuple) else value
)
def test_what_breaks_one_story_leaves_the_others_alone(on_machine: Runner, verb: tuple[str, ...], story: str) -> None:
    healthy, broken = stories(on_machine, "two-h100"), stories(on_machine, "two-h100", *verb)
    assert [name for name in healthy if healthy[name] != broken[name]] == [story]


def test_an_upgrade_without_a_reboot_is_a_mismatch(on_machine: Runner) -> None:
    found = stories(on_machine, "two-h100", "upgrade", "570.211.01")
    assert found["files"]["versions"] == ["570.211.01"]
    assert found["proc"]["version"] == "570.133.20"
    assert found["nvml"]["error"] == 18
