"""nvinject info and nvinject list: what a host has, for people and for programs.

Belongs here: the rows and their forms (table, JSON, CSV). Does not belong here: looking (host), judging (doctor.py),
and the forms of nvidia-container-cli, which are fixed (containerlist.py).
"""

import os
import sys

from nvinject.core import catalog
from nvinject.core.model import DeviceNode, Gpu, Inventory
from nvinject.core.policy import DRIVER_CAPABILITIES, Policy, Roots
from nvinject.errors import HostError
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

DESCRIPTION = """\
Shows what this host has: driver and CUDA version, GPUs and MIG devices, device nodes, libraries of each driver
capability, programs, sockets, firmware, and where all this was looked for.
"""
LIST_DESCRIPTION = "Lists every path of the driver that containers can be given, with its kind and capability."
EPILOG = """\
examples:
  nvinject info
  nvinject info --csv
  nvinject list --json
  nvinject list --kind library --capability compute
"""
NOT_KNOWN = "not known"
# `file` and `link` are what a host lists itself, `list` are its lists.
KINDS = ("node", "library", "binary", "socket", "firmware", "configuration", "file", "link", "list")


class Found(Record):
    """What lies in a directory below a root: the kind of files, the directory as the root shows it, and how many."""

    kind: str
    where: str
    count: int


class Evidence(Record):
    """A root: its name, its path, where that comes from, what shows that it is the right one, and what is in it."""

    name: str
    path: str
    origin: str
    evidence: str
    found: tuple[Found, ...] = ()


class Entry(Record):
    """A path of the driver; `capabilities` are those that bring it (all: whatever is asked for)."""

    kind: str
    path: str
    capabilities: tuple[str, ...]
    detail: str = ""


def parser(command: str = "info") -> "argparse.ArgumentParser":
    """Return the options of one of the two commands."""
    from nvinject.cli.parsers import new_parser

    options = new_parser(f"nvinject {command}", DESCRIPTION if command == "info" else LIST_DESCRIPTION, EPILOG)
    options.add_argument("--config", metavar="FILE", default="", help="read this config.toml; it must exist")
    forms = options.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print JSON")
    forms.add_argument("--csv", action="store_true", help="print comma-separated values")
    if command == "list":
        options.add_argument("--kind", action="append", choices=KINDS, help="only these; may be repeated")
        options.add_argument(
            "--capability", action="append", choices=DRIVER_CAPABILITIES, help="only what these bring; may be repeated"
        )
    return options


def main(arguments: "list[str]", command: str = "info") -> int:
    """Print what the host has; raises HostError where there is no driver."""
    options = parser(command).parse_args(arguments)
    from nvinject.cli.settings import load_settings

    policy, warnings = load_settings(options.config)
    for warning in warnings:
        sys.stderr.write(f"nvinject: warning: {warning}\n")
    inventory, notes = find_everything(policy)
    if command == "list":
        entries = [
            entry
            for entry in list_entries(inventory)
            if (not options.kind or entry.kind in options.kind) and _brings(options.capability, entry)
        ]
        print_entries(entries, options)
    else:
        notes = (*inventory.warnings, *inventory.notes, *notes)
        print_info(inventory, notes, find_evidence(policy, inventory), options)
    return 0


def _brings(wanted: "list[str] | None", entry: Entry) -> bool:
    return not wanted or entry.capabilities == ("all",) or any(name in entry.capabilities for name in wanted)


def find_everything(policy: Policy) -> "tuple[Inventory, tuple[str, ...]]":
    """Return everything that the host has, and why NVML's part is missing, if it is. Raises HostError."""
    from nvinject.cli.discovery import search_path
    from nvinject.host.inventory import discover
    from nvinject.host.platforms import find_platform

    platform = find_platform(policy)
    if platform is not None:
        try:
            return platform.discover_all(), ()
        except HostError as error:
            return platform.discover_all(facts=False), (f"NVML was not asked: {error}",)

    def look(*, nvml: bool, mig_management: bool) -> Inventory:
        return discover(
            policy,
            DRIVER_CAPABILITIES,
            environ_path=search_path(os.environ),
            nvml=nvml,
            mig_management=mig_management,
            daemon_directories=catalog.daemon_directories(os.environ),
        )

    notes: tuple[str, ...] = ()
    try:
        inventory = look(nvml=False, mig_management=True)
    except HostError as error:
        if not isinstance(error.__cause__, PermissionError):
            raise
        inventory = look(nvml=False, mig_management=False)
        notes = (f"MIG management was left out: {error.message}",)
    try:
        return look(nvml=True, mig_management=not notes), notes
    except HostError as error:
        return inventory, (*notes, f"NVML was not asked: {error}")


def find_evidence(policy: Policy, inventory: Inventory) -> tuple[Evidence, ...]:
    """Return the four roots with what shows that they are right, and what was found where."""
    roots, default, used = policy.roots, Roots(), inventory.roots
    entries = list_entries(inventory)
    node = next((entry.path for entry in entries if entry.kind == "node"), "no node of the driver")
    library = next((library.path for library in inventory.driver.libraries), "no library of the driver")
    version = inventory.driver.version
    dev_origin = "nvinject.dev-root" if roots.dev else "the driver root" if used.dev != "/" else "default"
    return (
        Evidence(
            name="driver root",
            path=used.driver,
            origin="default" if roots.driver == default.driver else "nvidia-container-cli.root",
            evidence=library if inventory.listing is None else inventory.listing.evidence,
            found=(*look_for_libraries(policy, inventory), *group(entry for entry in entries if entry.kind != "node")),
        ),
        Evidence(
            name="device root",
            path=used.dev,
            origin=dev_origin,
            evidence=node,
            found=group(entry for entry in entries if entry.kind == "node"),
        ),
        Evidence(
            name="proc root",
            path=used.proc,
            origin="default" if roots.proc == default.proc else "nvinject.proc-root",
            evidence=f"driver/nvidia/version: {version if version and is_loaded(used) else 'none'}",
            found=(Found(kind="GPU", where="/driver/nvidia/gpus", count=count_shown(inventory)),),
        ),
        Evidence(
            name="sys root",
            path=used.sys,
            origin="default" if roots.sys == default.sys else "nvinject.sys-root",
            evidence=f"bus/pci/devices: {count_pci_gpus(used)} NVIDIA GPUs",
            found=(Found(kind="GPU", where="/bus/pci/devices", count=count_pci_gpus(used)),),
        ),
    )


def is_loaded(roots: Roots) -> bool:
    """Tell whether the kernel has the driver; a library can tell a version without it."""
    return os.path.exists(f"{roots.proc}/driver/nvidia/version")


def count_shown(inventory: Inventory) -> int:
    """Return how many GPUs the driver's procfs shows."""
    from nvinject.host.gpus import GPU_DIRECTORY
    from nvinject.host.root import Root

    if inventory.listing is None:
        return len(inventory.gpus)
    with Root(inventory.roots.proc, title="proc root") as proc:
        return len(proc.list_directory(GPU_DIRECTORY))


def group(entries: "Iterable[Entry]") -> tuple[Found, ...]:
    """Return the directories of some paths, in their order, with the number of paths in each."""
    counts: dict[tuple[str, str], int] = {}
    for entry in entries:
        key = entry.kind, entry.path.rpartition("/")[0] or "/"
        counts[key] = counts.get(key, 0) + 1
    return tuple(Found(kind=kind, where=where, count=count) for (kind, where), count in counts.items())


def look_for_libraries(policy: Policy, inventory: Inventory) -> tuple[Found, ...]:
    """Return the loader cache that was asked, with how many of the libraries that every driver has it knew."""
    from nvinject.host.libraries import LOADER_CACHE, find_libraries
    from nvinject.host.root import Root

    if inventory.listing is not None:
        return ()
    cache = policy.ldcache or LOADER_CACHE
    with Root(inventory.roots.driver, title="driver root") as root:
        if not root.exists(cache):
            return (Found(kind="no loader cache", where=cache, count=0),)
        version = inventory.driver.version
        search = find_libraries(root, version, catalog.LIBRARIES, cache=cache)
    # The directories are searched only where the cache leads to no library of the module's version.
    known = len(search.libraries) if len(search.places) == 1 else 0
    return (Found(kind="loader cache", where=cache, count=known),)


def count_pci_gpus(roots: Roots) -> int:
    """Return how many NVIDIA GPUs are on the PCI bus, 0 where sysfs cannot be read."""
    from nvinject.host.pci import find_pci_gpus
    from nvinject.host.root import Root

    try:
        with Root(roots.sys, title="sys root") as sys_root:
            return len(find_pci_gpus(sys_root))
    except HostError:
        return 0


def list_entries(inventory: Inventory) -> list[Entry]:
    """Return every path of the driver with its capabilities."""
    driver = inventory.driver
    control = {row.path: row.capabilities for row in catalog.CONTROL_NODES}
    binaries = {row.name: row.capabilities for row in catalog.BINARIES}
    sockets = {row.name: row.capabilities for row in catalog.SOCKETS}
    configuration = {row.name: row.capabilities for row in catalog.CONFIGURATION_FILES}
    nodes = [(node, control.get(node.path, ())) for node in driver.control_nodes]
    nodes += [(gpu.node, ()) for gpu in inventory.gpus if gpu.node]
    more = {node.path: node for gpu in inventory.gpus for node in gpu.more_nodes}
    nodes += [(node, ()) for node in more.values() if node not in [known for known, _ in nodes]]
    nodes += [(node, ()) for gpu in inventory.gpus for mig in gpu.mig_devices for node in mig.nodes]
    nodes += [(node, ()) for node in (inventory.mig_config_node, inventory.mig_monitor_node) if node]
    entries = [
        Entry(kind="node", path=node.path, capabilities=names or ("all",), detail=_number(node))
        for node, names in nodes
    ]
    for library in driver.libraries:
        row = catalog.library_row(library.soname) if not library.in_place else None
        names = row.capabilities if row else ("all",)
        if library.bits == 32:
            names = (*names, "compat32")
        entries.append(Entry(kind="library", path=library.path, capabilities=names, detail=library.soname))
    for kind, files, table in (
        ("binary", driver.binaries, binaries),
        ("socket", driver.sockets, sockets),
        ("firmware", driver.firmware, {}),
        ("configuration", driver.configuration, configuration),
    ):
        entries += [
            Entry(kind=kind, path=file.path, capabilities=table.get(file.name, ()) or ("all",)) for file in files
        ]
    return entries + list_listing(inventory)


def list_listing(inventory: Inventory) -> list[Entry]:
    """Return the paths that a host lists itself beside libraries and nodes, and its lists."""
    listing = inventory.listing
    if listing is None:
        return []
    everybody = ("all",)
    return [
        *(Entry(kind="file", path=file.path, capabilities=everybody, detail=file.name) for file in listing.files),
        *(Entry(kind="link", path=link.path, capabilities=everybody, detail=link.target) for link in listing.links),
        *(Entry(kind="list", path=path, capabilities=everybody) for path in listing.lists),
    ]


def _number(node: DeviceNode) -> str:
    return f"{node.major}:{node.minor} {node.mode:04o}"


def print_entries(entries: list[Entry], options: "argparse.Namespace") -> None:
    """Print a list of paths."""
    from nvinject.render.text import format_table, plain

    if options.json:
        print_json([plain({}, entry) for entry in entries])
        return
    rows = [(entry.kind, ",".join(entry.capabilities), entry.path, entry.detail) for entry in entries]
    head = ("kind", "capability", "path", "detail")
    sys.stdout.write(format_csv(head, rows) if options.csv else format_table(head, rows))


def print_info(
    inventory: Inventory, notes: "Sequence[str]", roots: tuple[Evidence, ...], options: "argparse.Namespace"
) -> None:
    """Print driver, GPUs, MIG devices, counts of files, roots and notes."""
    if options.json:
        print_json(info_values(inventory, notes, roots))
        return
    from nvinject.render.text import format_table

    form = format_csv if options.csv else format_table
    tables = [form(head, rows) for head, rows in info_tables(inventory, roots) if rows]
    sys.stdout.write("\n".join(tables))
    for note in notes:
        sys.stderr.write(f"nvinject: note: {note}\n")


def info_tables(
    inventory: Inventory, roots: tuple[Evidence, ...]
) -> "list[tuple[tuple[str, ...], list[tuple[str, ...]]]]":
    """Return heads and rows of the tables."""
    driver = inventory.driver
    gpus: list[tuple[str, ...]] = [
        (
            str(gpu.index),
            gpu.uuid or NOT_KNOWN,
            gpu.bus_id or "none",
            gpu.model,
            gpu.brand or NOT_KNOWN,
            gpu.architecture or NOT_KNOWN,
            name_nodes(gpu),
        )
        for gpu in inventory.gpus
    ]
    migs: list[tuple[str, ...]] = [
        (
            f"{gpu.index}:{mig.index if mig.index >= 0 else '?'}",
            mig.uuid or NOT_KNOWN,
            str(mig.gpu_instance),
            str(mig.compute_instance),
            mig.node_fault or ", ".join(node.path for node in mig.nodes),
        )
        for gpu in inventory.gpus
        for mig in gpu.mig_devices
    ]
    files: list[tuple[str, ...]] = [
        (kind, name, str(count)) for kind, name, count in count_files(list_entries(inventory))
    ]
    found: list[tuple[str, ...]] = [
        (one.name, what.kind, what.where, str(what.count)) for one in roots for what in one.found
    ]
    return [
        (("driver", "CUDA"), [(driver.version or NOT_KNOWN, driver.cuda_version or NOT_KNOWN)]),
        (("GPU", "UUID", "bus", "model", "brand", "arch", "node"), gpus),
        (("MIG", "UUID", "GPU instance", "compute instance", "nodes"), migs),
        (("kind", "capability", "count"), files),
        (("root", "path", "from", "evidence"), [(one.name, one.path, one.origin, one.evidence) for one in roots]),
        (("below", "found", "where", "count"), found),
    ]


def name_nodes(gpu: Gpu) -> str:
    """Return a GPU's node, what is wrong with it, or the first of several with their number."""
    if gpu.node is not None:
        return gpu.node.path
    if not gpu.more_nodes:
        return gpu.node_fault
    first, *others = gpu.more_nodes
    return f"{first.path} and {len(others)} more" if others else first.path


def count_files(entries: list[Entry]) -> list[tuple[str, str, int]]:
    """Return how many paths there are of each kind and capability."""
    counts: dict[tuple[str, str], int] = {}
    for entry in entries:
        for name in entry.capabilities:
            counts[entry.kind, name] = counts.get((entry.kind, name), 0) + 1
    return [
        (kind, name, count) for (kind, name), count in sorted(counts.items(), key=lambda item: KINDS.index(item[0][0]))
    ]


def info_values(inventory: Inventory, notes: "Sequence[str]", roots: tuple[Evidence, ...]) -> "dict[str, object]":
    """Return everything as values that JSON knows."""
    from nvinject.render.text import plain

    driver = inventory.driver
    return {
        "driver": {"version": driver.version, "cuda": driver.cuda_version},
        "roots": [plain({}, one) for one in roots],
        "gpus": [plain({}, gpu) for gpu in inventory.gpus],
        "files": [plain({}, entry) for entry in list_entries(inventory)],
        "majors": dict(inventory.majors),
        "notes": list(notes),
    }


def print_json(document: object) -> None:
    """Print values for programs."""
    import json

    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def format_csv(head: "Sequence[str]", rows: "Sequence[Sequence[str]]") -> str:
    """Return rows as RFC 4180 has them, but for the ends of lines."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([head, *rows])
    return text.getvalue()
