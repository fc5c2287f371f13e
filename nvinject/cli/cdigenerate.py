"""nvinject cdi generate: what this host offers, written as CDI specs.

Belongs here: from settings to a spec, mode by mode, and how it is written. Does not belong here: what options mean
(cdisettings.py), what a device brings (nvinject.core.planner) and how that looks in a spec (nvinject.render.cdi).
`refresh` and `watch` make the same spec.
"""

import os
import sys

from nvinject.cli.cdioptions import GENERATE_OPTIONS, read_options
from nvinject.cli.cdisettings import HOOK_PROGRAMS, Settings, Target, read_settings, read_target
from nvinject.cli.messages import debug, inform
from nvinject.core import catalog, naming, planner
from nvinject.core.model import UNKNOWN_IMAGE, DeviceNode, Inventory
from nvinject.core.plan import DecideLimits, Operation, Plan
from nvinject.core.request import ContainerRequest
from nvinject.errors import HostError, UsageError
from nvinject.formats import cdi
from nvinject.host.nvmlreport import start_inquiry
from nvinject.record import Record
from nvinject.render.cdi import (
    APPLY_MEMORY_LIMITS,
    DevicePlan,
    make_spec,
)
from nvinject.render.specfile import (
    Stamp,
    format_document,
    stamp_annotations,
    with_extension,
    write_files,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from nvinject.host.inquiry import Inquiry


EMPTY_DEVICE = ("NVCT_EMPTY_DEVICE=",)
# Below the proc root, where the driver manages MIG (host.gpus looks at it again, through the root's descriptor).
MIG_CONFIGURATION = "/driver/nvidia/capabilities/mig/config"
# The last version that engines of 2022 (podman 4.3, containerd 1.6) read.
WIDELY_READ = "0.5.0"


class Generated(Record):
    """A spec, what it was made from, and what is worth telling about it."""

    spec: cdi.Spec
    stamp: Stamp
    notes: tuple[str, ...] = ()


def main(parsed: "argparse.Namespace") -> int:
    """Generate, write and tell; returns 0 or raises an NvinjectError."""
    options = read_options(parsed, GENERATE_OPTIONS, os.environ)
    settings, target = read_settings(options, os.environ), read_target(options)
    debug(f"mode {settings.mode}, devices {','.join(settings.device_ids)} as {settings.kind}")
    debug(f"driver root {settings.policy.roots.driver}, hook {settings.hooks.path or '(none)'}")
    generated = generate(settings)
    debug(f"driver {generated.stamp.driver_version}, {len(generated.spec.devices)} devices")
    for note in generated.notes:
        inform(f"note: {note}")
    documents = format_documents(generated, settings, target)
    if target.output:
        write_files(documents)
    else:
        sys.stdout.write("".join(text for _, text in documents))
    for path, _ in documents:
        inform(f"generated CDI spec with version {generated.spec.version}{f': {path}' if path else ''}")
    return 0


def generate(settings: Settings) -> Generated:
    """Return the spec for this host; raises HostError, RequestError."""
    if settings.mode == "nvml":
        generated = generate_gpus(settings)
    elif settings.mode == "csv":
        generated = generate_listed(settings)
    elif settings.mode == "wsl":
        generated = generate_shared(settings)
    elif settings.mode == "management":
        generated = generate_management(settings)
    else:
        generated = generate_nodes(settings)
    needs_hooks = any(edits.hooks for _, edits in generated.spec.every_edits())
    if needs_hooks and not settings.hooks.path:
        raise HostError(
            f"the spec needs hooks, but neither {' nor '.join(HOOK_PROGRAMS)} is on PATH",
            "run nvinject install, or name the program with --nvidia-cdi-hook-path",
        )
    if needs_hooks and not os.access(settings.hooks.path, os.X_OK):
        note = f"the hook {settings.hooks.path} is no program here; where it is missing, containers will not start"
        generated = generated.replace(notes=(*generated.notes, note))
    needed = cdi.needed_version(generated.spec)
    if cdi.VERSIONS.index(needed[0]) > cdi.VERSIONS.index(WIDELY_READ):
        note = f"CDI version {needed[0]} is needed for {needed[1]}; engines of 2022 read up to {WIDELY_READ}"
        return generated.replace(notes=(*generated.notes, note))
    return generated


def generate_gpus(settings: Settings) -> Generated:
    """Return the spec of GPUs and their slices."""
    ids = tuple(name for name in settings.device_ids if name != "none") or ("none",)
    if ids != ("all",) or not os.path.exists(f"{settings.policy.roots.proc}{MIG_CONFIGURATION}"):
        return generate_chosen(settings, ids, None)
    # NVML will be asked which GPUs are in MIG mode: the child gets ready while we look at the host.
    with start_inquiry() as inquiry:
        return generate_chosen(settings, ids, inquiry)


def generate_chosen(settings: Settings, ids: tuple[str, ...], inquiry: "Inquiry | None") -> Generated:
    """Return the spec of the GPUs and slices of these names; `inquiry` is the child that can ask NVML."""
    inventory = find_inventory(settings, nvml=False)
    needs = planner.needs_nvml(ContainerRequest(devices=ids, capabilities=()))
    offered = () if needs or ids == ("none",) else naming.offers(ids, inventory.gpus)
    notes: tuple[str, ...] = ()
    if needs or naming.needs_nvml(offered, settings.strategies):
        inventory = find_inventory(settings, nvml=True)
        offered = naming.offers(ids, inventory.gpus)
    elif ids == ("all",) and naming.might_be_empty(inventory.gpus):
        inventory, notes = ask_about_modes(settings, inventory, inquiry)
        offered = naming.offers(ids, inventory.gpus)
    return offer_devices(settings, inventory, offered, notes)


def generate_listed(settings: Settings) -> Generated:
    """Return the spec of a Tegra system: what its lists name, and its one device or its two."""
    from nvinject.host.tegra import look

    assert settings.lists is not None
    inventory = look(settings.policy).discover(settings.lists)
    ids = tuple(name for name in settings.device_ids if name != "none")
    gpus = inventory.gpus
    if len(gpus) == 1:
        # As the original has it: where there is one device, its index is its only name.
        gpus = (gpus[0].replace(uuid=""),)
        if settings.strategies == ("uuid",):
            raise UsageError("the one device of this system has no name by UUID", "use --device-name-strategy index")
    return offer_devices(settings, inventory, naming.offers(ids, gpus), ())


def generate_shared(settings: Settings) -> Generated:
    """Return the spec of a WSL system: the driver store, and the one device that stands for all GPUs."""
    from nvinject.host.platforms import find_wsl

    inventory = find_wsl(settings.policy).discover(facts=False)
    ids = tuple(name for name in settings.device_ids if name != "none")
    if ids and settings.strategies == ("uuid",):
        raise UsageError("the one device of WSL has no name by UUID", "use --device-name-strategy index")
    return offer_devices(settings, inventory, naming.offers(ids, inventory.gpus), ())


def offer_devices(
    settings: Settings, inventory: Inventory, offered: tuple[naming.Offer, ...], notes: tuple[str, ...]
) -> Generated:
    """Return the spec of the devices that are offered, each by all its names."""
    plans = plan_offers(inventory, settings, offered)
    devices = [
        DevicePlan(name=name, plan=plan) for offer, plan in plans for name in naming.names(offer, settings.strategies)
    ]
    common = plan_for(inventory, settings, ("none",))
    if settings.hooks.wants(APPLY_MEMORY_LIMITS):
        reason = "a container's environment may limit the memory that it takes"
        decision = DecideLimits(driver_root=inventory.roots.driver, reason=reason)
        common = common.replace(operations=(*common.operations, decision))
    if "none" in settings.device_ids:
        devices.append(DevicePlan(name="none", plan=common, environment=EMPTY_DEVICE))
    if not devices and any(gpu.mig_enabled for gpu in inventory.gpus):
        raise HostError("every GPU is in MIG mode, and none has a MIG device", "make one with nvidia-smi mig -cgi")
    if not devices:
        raise HostError("there is no GPU to write a spec for", "look for NVRM in dmesg, and run nvidia-smi")
    return finish(settings, common, tuple(devices), stamp_of(inventory), (*common.warnings, *common.notes, *notes))


def plan_offers(
    inventory: Inventory, settings: Settings, offered: tuple[naming.Offer, ...]
) -> list[tuple[naming.Offer, Plan]]:
    """Return a plan for each device.

    Raises HostError for the first one that cannot be used: a spec that silently lacks a GPU would leave nodes of a
    cluster with less than they report. Where everything was asked for, the error tells how to offer the others alone.
    """
    plans, refusal = [], None
    for offer in offered:
        try:
            plans.append((offer, plan_for(inventory, settings, (offer.token,))))
        except HostError as error:
            refusal = refusal or error
    if refusal is None:
        return plans
    if plans and settings.device_ids == ("all",):
        others = ",".join(offer.token for offer, _ in plans)
        raise HostError(refusal.message, f"{refusal.hint}, or offer the others alone with --device-id {others}")
    raise refusal


def ask_about_modes(
    settings: Settings, inventory: Inventory, inquiry: "Inquiry | None"
) -> tuple[Inventory, tuple[str, ...]]:
    """Return the inventory with what NVML knows; or as it was, with a note why NVML could not be asked."""
    from nvinject.host.nvml import ask_nvml, complete_inventory

    driver = inventory.driver
    known = [library for library in driver.libraries if library.soname.startswith(catalog.MANAGEMENT_LIBRARY)]
    library = next((planner.below(inventory.roots.driver, found.path) for found in known if found.bits == 64), "")
    try:
        if not library:
            return find_inventory(settings, nvml=True), ()
        # The host was just looked at: only the question is new.
        timeout, dev = settings.policy.nvml_timeout, inventory.roots.dev
        answer = ask_nvml(library, driver.version, timeout, device_root=dev, inquiry=inquiry)
        return complete_inventory(inventory, answer), ()
    except HostError as error:
        note = f"{error.message}; a GPU in MIG mode without a MIG device could not be told apart"
        return inventory, (note,)


def find_inventory(settings: Settings, *, nvml: bool) -> Inventory:
    """Return what this host has, as far as the settings want it."""
    from nvinject.host.inventory import discover
    from nvinject.host.wholedriver import complete_inventory

    inventory = discover(
        settings.policy,
        settings.capabilities,
        environ_path=settings.search_path,
        nvml=nvml,
        daemon_directories=catalog.daemon_directories(os.environ),
        library_directories=settings.library_directories,
        configuration_directories=settings.configuration_directories,
    )
    if catalog.WHOLE_DRIVER in settings.capabilities:
        inventory = complete_inventory(inventory)
    return inventory if settings.sockets else inventory.replace(driver=inventory.driver.replace(sockets=()))


def plan_for(inventory: Inventory, settings: Settings, tokens: tuple[str, ...]) -> Plan:
    """Return the plan for a container that nobody knows yet and that gets some devices."""
    request = ContainerRequest(devices=tokens, capabilities=settings.capabilities)
    return planner.plan(inventory, request, settings.policy, UNKNOWN_IMAGE)


def stamp_of(inventory: Inventory) -> Stamp:
    """Return what a spec of this inventory was made from."""
    devices: list[str] = []
    for gpu in inventory.gpus:
        devices.append(gpu.uuid or gpu.bus_id or gpu.model)
        devices += [f"{gpu.bus_id}/{mig.gpu_instance}/{mig.compute_instance}" for mig in gpu.mig_devices]
    return Stamp(driver_version=inventory.driver.version, devices=tuple(devices))


def generate_management(settings: Settings) -> Generated:
    """Return the spec for containers that manage the driver: one device that has every node."""
    from nvinject.host.nodesets import find_management_nodes

    inventory = find_inventory(settings, nvml=False)
    nodes = find_management_nodes(inventory.roots)
    common = plan_for(inventory, settings, ("none",))
    plan = plan_of_nodes(settings, nodes, (), "management")
    # Every node belongs to the one device, so none is common.
    listed = {node.path for node in nodes}
    rest = tuple(one for one in common.operations if getattr(one, "target", "") not in listed)
    return finish(
        settings,
        common.replace(operations=rest),
        (DevicePlan(name="all", plan=plan),),
        stamp_of(inventory),
        common.notes,
    )


def generate_nodes(settings: Settings) -> Generated:
    """Return the spec of nodes that belong to no GPU."""
    from nvinject.host.nodesets import find_channels, find_node_set

    roots = settings.policy.roots
    if settings.mode == "imex":
        ids = tuple(name.removeprefix("channel") for name in settings.device_ids)
        found = find_channels(roots, tuple(str(int(name)) if name.isdecimal() else name for name in ids))
        plans = [
            DevicePlan(name=node.path.rpartition("channel")[2], plan=plan_of_nodes(settings, (node,), (), "IMEX"))
            for node in found.nodes
        ]
    else:
        row = next(row for row in catalog.NODE_SETS if row.name == settings.mode)
        found = find_node_set(roots, row)
        plans = [DevicePlan(name="all", plan=plan_of_nodes(settings, found.nodes, found.files, row.reason))]
    stamp = Stamp(driver_version="", devices=tuple(node.path for node in found.nodes))
    return finish(settings, Plan(operations=()), tuple(plans), stamp, ())


def plan_of_nodes(settings: Settings, nodes: tuple[DeviceNode, ...], files: tuple[str, ...], reason: str) -> Plan:
    """Return the plan that exposes nodes below the roots of the settings."""
    from nvinject.host.inventory import device_root

    roots = settings.policy.roots
    operations: tuple[Operation, ...] = planner.plan_node_set(
        roots.replace(dev=device_root(roots)), nodes, files, reason
    )
    return Plan(operations=operations)


def finish(
    settings: Settings, common: Plan, devices: tuple[DevicePlan, ...], stamp: Stamp, notes: tuple[str, ...]
) -> Generated:
    """Return the spec of plans."""
    spec = make_spec(
        settings.kind,
        common,
        devices,
        settings.hooks,
        all_device=settings.all_device,
        additional_groups=settings.additional_groups,
        annotations=stamp_annotations(stamp) if settings.stamp == "annotations" else (),
    )
    return Generated(spec=spec, stamp=stamp, notes=notes)


def format_documents(generated: Generated, settings: Settings, target: Target) -> tuple[tuple[str, str], ...]:
    """Return path and text of each file."""
    stamp = generated.stamp if settings.stamp == "comment" else None
    if not target.per_device:
        path = with_extension(target.output, target.form) if target.output else ""
        return ((path, format_document(generated.spec, target.form, stamp)),)
    base = generated.spec.kind.replace("/", "-")
    files = []
    for device in generated.spec.devices:
        alone = generated.spec.replace(devices=(device,))
        alone = alone.replace(version=cdi.needed_version(alone)[0])
        name = f"{base}_{device.name.replace(':', '_')}.{target.form}"
        files.append((os.path.join(target.output, name), format_document(alone, target.form, stamp)))
    return tuple(files)
