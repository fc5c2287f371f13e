"""What can happen to a machine while programs run on it: each verb makes another machine of one.

Belongs here: pure functions from Machine to Machine, and their refusals. Does not belong here: carrying a change out
(lane.py) and asking for it (control.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nvfakes import answers, mig
from nvfakes.errors import VerbError
from nvfakes.machine import ComputeInstance, Driver, Gpu, GpuInstance, Machine, is_whole_path
from nvfakes.mock import merge
from nvfakes.models import MigProfile

EVENT_DOUBLE_BIT, EVENT_XID = 2, 8
XID_DOUBLE_BIT, XID_OFF_THE_BUS = 48, 79

SLOWEST = 600_000  # ten minutes


def find_gpu(machine: Machine, which: str) -> int:
    """Return the place of a GPU that is named by its minor, UUID or PCI address."""
    for place, gpu in enumerate(machine.gpus):
        if which.lower() in {str(gpu.minor), gpu.uuid.lower(), gpu.bus}:
            return place
    known = ", ".join(str(gpu.minor) for gpu in machine.gpus)
    raise VerbError(f"no GPU {which}; there are {known or 'none'}")


def _with_gpu(machine: Machine, place: int, **changes: Any) -> Machine:
    gpus = list(machine.gpus)
    gpus[place] = replace(gpus[place], **changes)
    return replace(machine, gpus=tuple(gpus))


def _with_answers(machine: Machine, place: int, more: Mapping[str, Any]) -> Machine:
    return _with_gpu(machine, place, answers=merge(machine.gpus[place].answers, more))


def answer(machine: Machine, place: int, key: str, value: str) -> Machine:
    """Let NVML give another answer; `key` has dots, as in power.current_draw_mw. Raises UsageError (answers.py)."""
    return set_answer(machine, place, key, answers.read_value(key, value))


def set_answer(machine: Machine, place: int, key: str, value: str | int | None) -> Machine:
    """Let NVML give another answer, whatever it is, as when NVML itself was told to."""
    nested: Any = value
    for name in reversed(key.split(".")):
        nested = {name: nested}
    return _with_answers(machine, place, nested)


def limit_memory(machine: Machine, place: int, namespace: str, soft: int, hard: int) -> Machine:
    """Record the limits of memory that NVML was asked to set for a name space."""
    known = [entry for entry in machine.gpus[place].answers.get("memory_limits", ()) if entry["namespace"] != namespace]
    return _with_answers(
        machine, place, {"memory_limits": [*known, {"namespace": namespace, "soft": soft, "hard": hard}]}
    )


def unplug(machine: Machine, which: str) -> Machine:
    """Take a GPU out: node, proc, sysfs and NVML lose it together."""
    return _with_gpu(machine, find_gpu(machine, which), present=False)


def plug(machine: Machine, which: str) -> Machine:
    """Put an unplugged GPU back."""
    return _with_gpu(machine, find_gpu(machine, which), present=True)


def unload(machine: Machine) -> Machine:
    """Unload the kernel modules."""
    return replace(machine, deviation=replace(machine.deviation, module_loaded=False))


def load(machine: Machine) -> Machine:
    """Load the kernel modules, of the version that is installed."""
    driver = machine.driver or Driver()
    return replace(
        machine,
        driver=replace(driver, version=machine.library_version or driver.version),
        deviation=replace(machine.deviation, module_loaded=True, library_version=""),
    )


def upgrade(machine: Machine, version: str) -> Machine:
    """Install user-space files of another version, while the old kernel modules stay loaded."""
    if machine.driver is None:
        raise VerbError("no driver is installed")
    if machine.driver.packages:
        raise VerbError("files of real packages have the version that they have")
    return replace(machine, deviation=replace(machine.deviation, library_version=version))


def slow(machine: Machine, milliseconds: int) -> Machine:
    """Let every NVML call take longer."""
    if not 0 <= milliseconds <= SLOWEST:
        raise VerbError(f"{milliseconds}: a delay is 0 to {SLOWEST} milliseconds")
    return replace(machine, slow_ms=milliseconds)


def check_path(path: str) -> None:
    """Raise VerbError unless a path begins at / and goes straight to its end."""
    if not is_whole_path(path):
        raise VerbError(f"{path!r}: must be a whole path, such as /dev/nvidia0, without . and ..")


def remove(machine: Machine, path: str) -> Machine:
    """Make a file or node vanish; raises VerbError for a path that does not begin at /."""
    check_path(path)
    return replace(machine, deviation=replace(machine.deviation, missing=(*machine.deviation.missing, path)))


def restore(machine: Machine, path: str) -> Machine:
    """Undo the removal or the breaking of a file."""
    missing = tuple(pattern for pattern in machine.deviation.missing if pattern != path)
    files = {name: text for name, text in machine.files.items() if name != path}
    return replace(machine, files=files, deviation=replace(machine.deviation, missing=missing))


def break_file(machine: Machine, path: str, text: str = "broken\n") -> Machine:
    """Replace what a file says; raises VerbError for a path that does not begin at /."""
    check_path(path)
    return replace(machine, files={**machine.files, path: text})


def health(machine: Machine, which: str, what: str, number: int = 0) -> Machine:
    """Let something happen to a GPU: "xid N", "ecc N" (uncorrected errors), "lost" from the bus, or "ok" again."""
    place = find_gpu(machine, which)
    match what:
        case "xid":
            return _with_event(machine, place, EVENT_XID, number)
        case "ecc":
            return _with_ecc_errors(machine, place, number or 1)
        case "lost":
            lost = _with_answers(machine, place, {"lost": True})
            return _with_event(lost, place, EVENT_XID, XID_OFF_THE_BUS)
        case "ok":
            return _with_answers(machine, place, {"lost": False})
    raise VerbError(f"{what}: a GPU's health is xid, ecc, lost or ok")


def _with_event(machine: Machine, place: int, kind: int, value: int) -> Machine:
    return replace(machine, events=(*machine.events, (place, kind, value)))


def _with_ecc_errors(machine: Machine, place: int, number: int) -> Machine:
    counters = machine.gpus[place].answers.get("ecc", {}).get("errors", {})

    def more(kind: str) -> dict[str, Any]:
        known = counters.get(kind, {}).get("double_bit", {}).get("device_memory", 0)
        return {"double_bit": {"device_memory": known + number}}

    errors = {"volatile": more("volatile"), "aggregate": more("aggregate")}
    broken = _with_answers(machine, place, {"ecc": {"errors": errors}})
    broken = _with_event(broken, place, EVENT_DOUBLE_BIT, number)
    return _with_event(broken, place, EVENT_XID, XID_DOUBLE_BIT)


# MIG.


def _partitionable(machine: Machine, place: int) -> Gpu:
    gpu = machine.gpus[place]
    if not gpu.profiles:
        raise VerbError(f"{gpu.name} cannot be partitioned")
    return gpu


def mig_mode(machine: Machine, place: int, *, enabled: bool) -> Machine:
    """Turn MIG on or off; turning it off destroys the instances."""
    gpu = _partitionable(machine, place)
    return _with_gpu(machine, place, mig_mode=enabled, instances=gpu.instances if enabled else ())


def mig_layout(machine: Machine, which: str, names: Sequence[str]) -> Machine:
    """Turn MIG on and replace the instances of a GPU by those of a list of profiles."""
    place = find_gpu(machine, which)
    gpu = _partitionable(machine, place)
    layout: list[tuple[MigProfile, list[tuple[int, str]]]] = []
    for name in names:
        profile = mig.find_profile(gpu.profiles, name)
        if profile is None:
            raise VerbError(f"{gpu.name} has no MIG profile {name}")
        layout.append((profile, [(profile.slices, new_uuid(machine, gpu, len(layout)))]))
    instances = mig.build_instances(layout)
    if instances is None:
        raise VerbError(f"{', '.join(names)} do not fit on one {gpu.name} together")
    return _with_gpu(machine, place, mig_mode=True, instances=instances)


def new_uuid(machine: Machine, gpu: Gpu, ahead: int = 0) -> str:
    """Return a MIG UUID that the machine does not use, the same for the same machine."""
    used = {compute.uuid for other in machine.gpus for _, compute in other.mig_devices()}
    place = machine.gpus.index(gpu)
    free = (f"MIG-{place + 0xA0:08x}-5555-6666-7777-{number:012x}" for number in range(4096))
    unused = [uuid for uuid in (next(free) for _ in range(len(used) + ahead + 1)) if uuid not in used]
    return unused[ahead] if ahead < len(unused) else unused[-1]


def create_instance(machine: Machine, place: int, profile_id: int, start: int | None) -> tuple[Machine, int]:
    """Create a GPU instance as NVML does; returns the machine and the instance's number."""
    gpu = _partitionable(machine, place)
    profile = next((profile for profile in gpu.profiles if profile.profile_id == profile_id), None)
    if profile is None:
        raise VerbError("no such profile")
    taken = {slot for item in gpu.instances for slot in range(item.start, item.start + item.size)}
    used = sum(item.profile.slices for item in gpu.instances)
    fitting = [
        (first, size)
        for first, size in profile.placements
        if not taken & set(range(first, first + size)) and start in {None, first}
    ]
    same = sum(item.profile == profile for item in gpu.instances)
    if not fitting or used + profile.slices > mig.COMPUTE_SLICES or same >= profile.maximum:
        raise VerbError("no room for another such instance")
    number = mig.next_number(profile, frozenset(item.number for item in gpu.instances))
    instance = GpuInstance(profile, number, *fitting[0], ())
    return _with_gpu(machine, place, instances=(*gpu.instances, instance)), number


def _find_instance(gpu: Gpu, number: int) -> GpuInstance:
    found = next((item for item in gpu.instances if item.number == number), None)
    if found is None:
        raise VerbError("no such instance")
    return found


def destroy_instance(machine: Machine, place: int, number: int) -> Machine:
    """Destroy a GPU instance; it must hold no compute instance."""
    gpu = machine.gpus[place]
    if _find_instance(gpu, number).compute:
        raise VerbError("in use")
    return _with_gpu(machine, place, instances=tuple(item for item in gpu.instances if item.number != number))


def _with_instance(machine: Machine, place: int, changed: GpuInstance) -> Machine:
    gpu = machine.gpus[place]
    instances = tuple(changed if item.number == changed.number else item for item in gpu.instances)
    return _with_gpu(machine, place, instances=instances)


def create_compute(machine: Machine, place: int, number: int, slices: int) -> tuple[Machine, int]:
    """Create a compute instance of so many slices in a GPU instance; returns the machine and its number."""
    gpu = machine.gpus[place]
    instance = _find_instance(gpu, number)
    taken = {slot for item in instance.compute for slot in range(item.start, item.start + item.slices)}
    starts = (start for start in range(instance.profile.slices - slices + 1))
    start = next((start for start in starts if not taken & set(range(start, start + slices))), None)
    if start is None:
        raise VerbError("no room for another such instance")
    free = next(number for number in range(8) if number not in {item.number for item in instance.compute})
    compute = ComputeInstance(free, slices, start, new_uuid(machine, gpu))
    changed = replace(instance, compute=tuple(sorted((*instance.compute, compute), key=lambda item: item.number)))
    return _with_instance(machine, place, changed), free


def destroy_compute(machine: Machine, place: int, number: int, compute: int) -> Machine:
    """Destroy a compute instance."""
    instance = _find_instance(machine.gpus[place], number)
    left = tuple(item for item in instance.compute if item.number != compute)
    if len(left) == len(instance.compute):
        raise VerbError("no such instance")
    return _with_instance(machine, place, replace(instance, compute=left))
