"""Verbs as they are: a machine in, another machine out, and refusals that change nothing."""

from collections.abc import Callable

import pytest

from nvfakes import declaration, verbs
from nvfakes.errors import VerbError
from nvfakes.machine import Machine


@pytest.fixture
def machine() -> Machine:
    return declaration.load("two-h100")


def test_finds_a_gpu_by_minor_uuid_or_address(machine: Machine) -> None:
    for name in (
        "1",
        "GPU-000000a1-1111-2222-3333-000000000001",
        "gpu-000000A1-1111-2222-3333-000000000001",
        "0000:18:00.0",
    ):
        assert verbs.find_gpu(machine, name) == 1


def test_unplugging_and_plugging_is_no_change(machine: Machine) -> None:
    without = verbs.unplug(machine, "0")
    assert [gpu.minor for gpu in without.present_gpus] == [1]
    assert verbs.plug(without, "0") == machine


def test_unloading_and_loading_is_no_change(machine: Machine) -> None:
    assert not verbs.unload(machine).module_loaded
    assert verbs.load(verbs.unload(machine)) == machine


def test_loading_after_an_upgrade_ends_the_mismatch(machine: Machine) -> None:
    upgraded = verbs.upgrade(machine, "570.211.01")
    assert upgraded.driver is not None
    assert (upgraded.driver.version, upgraded.library_version) == ("570.133.20", "570.211.01")
    loaded = verbs.load(upgraded)
    assert loaded.driver is not None
    assert (loaded.driver.version, loaded.library_version) == ("570.211.01", "570.211.01")


def test_removing_and_restoring_is_no_change(machine: Machine) -> None:
    assert verbs.restore(verbs.remove(machine, "/dev/nvidia0"), "/dev/nvidia0") == machine
    assert verbs.restore(verbs.break_file(machine, "/proc/devices"), "/proc/devices") == machine


@pytest.mark.parametrize("path", ["dev/nvidia0", "", "-", "/dev/../etc/passwd", "/dev/"])
@pytest.mark.parametrize("verb", [verbs.remove, verbs.break_file])
def test_files_are_named_by_whole_paths(machine: Machine, verb: Callable[[Machine, str], Machine], path: str) -> None:
    with pytest.raises(VerbError, match="must be a whole path"):
        verb(machine, path)


def test_ecc_errors_add_up(machine: Machine) -> None:
    broken = verbs.health(verbs.health(machine, "0", "ecc", 2), "0", "ecc", 3)
    errors = broken.gpus[0].answers["ecc"]["errors"]
    assert errors["volatile"]["double_bit"]["device_memory"] == 5
    assert [kind for _, kind, _ in broken.events] == [verbs.EVENT_DOUBLE_BIT, verbs.EVENT_XID] * 2


# What is created in order, each by profile id and start, and the numbers that the driver gives.
CREATIONS = (
    ([(9, None), (9, None)], [1, 2], [4, 0]),
    ([(9, 0), (9, None)], [1, 2], [0, 4]),
    ([(19, None)] * 7, [7, 8, 9, 10, 11, 12, 13], [0, 1, 2, 3, 4, 5, 6]),
    ([(14, None), (9, None), (19, None)], [3, 1, 7], [0, 4, 2]),
    ([(0, None)], [0], [0]),
)


@pytest.mark.parametrize(("wanted", "numbers", "starts"), CREATIONS)
def test_creates_gpu_instances_as_the_driver_does(
    machine: Machine, wanted: list[tuple[int, int | None]], numbers: list[int], starts: list[int]
) -> None:
    given = []
    for profile, start in wanted:
        machine, number = verbs.create_instance(machine, 0, profile, start)
        given.append(number)
    assert given == numbers
    assert [instance.start for instance in machine.gpus[0].instances] == starts


REFUSALS = (
    ([(9, None), (9, None), (9, None)], "no room"),
    ([(5, None), (5, None)], "no room"),
    ([(9, 4), (9, 4)], "no room"),
    ([(9, 3)], "no room"),
    ([(20, None), (20, None)], "no room"),
    ([(99, None)], "no such profile"),
)


@pytest.mark.parametrize(("wanted", "message"), REFUSALS)
def test_refuses_what_does_not_fit(machine: Machine, wanted: list[tuple[int, int | None]], message: str) -> None:
    *first, last = wanted
    for profile, start in first:
        machine, _ = verbs.create_instance(machine, 0, profile, start)
    with pytest.raises(VerbError, match=message):
        verbs.create_instance(machine, 0, *last)


def test_compute_instances_share_a_gpu_instance(machine: Machine) -> None:
    machine, number = verbs.create_instance(machine, 0, 9, None)
    machine, first = verbs.create_compute(machine, 0, number, 1)
    machine, second = verbs.create_compute(machine, 0, number, 2)
    assert (first, second) == (0, 1)
    with pytest.raises(VerbError, match="no room"):
        verbs.create_compute(machine, 0, number, 1)
    with pytest.raises(VerbError, match="in use"):
        verbs.destroy_instance(machine, 0, number)
    uuids = {compute.uuid for _, compute in machine.gpus[0].mig_devices()}
    assert len(uuids) == 2
    machine = verbs.destroy_compute(machine, 0, number, first)
    machine, again = verbs.create_compute(machine, 0, number, 1)
    assert again == first
    for compute in (first, second):
        machine = verbs.destroy_compute(machine, 0, number, compute)
    assert verbs.destroy_instance(machine, 0, number).gpus[0].instances == ()


def test_only_some_models_can_be_partitioned() -> None:
    with pytest.raises(VerbError, match="cannot be partitioned"):
        verbs.mig_layout(declaration.load("t4"), "0", ["1g.5gb"])
