"""nvinject system: device nodes, links of /dev/char, and the loader cache of a host.

Belongs here: options, the order of the steps and the table of what was done. Does not belong here: which nodes there
should be (core.nodesetup) and making them (render.devicenodes). The same commands answer to `nvidia-ctk system`.
"""

import os
import sys

from nvinject.cli.cdioptions import Option, add_options, parse_flag
from nvinject.cli.messages import debug, inform, is_quiet, warn
from nvinject.cli.steps import print_steps
from nvinject.core import nodesetup
from nvinject.core.nodesetup import CAPABILITIES, CONTROL, GPUS, HostNodes, Link
from nvinject.core.policy import Roots
from nvinject.errors import HostError
from nvinject.host.root import Root
from nvinject.render import devicenodes
from nvinject.render.devicenodes import MADE, MISSING, THERE, WRONG

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping
    from typing import Any

    from nvinject.core.model import DeviceNode

    Rows = list[tuple[str, str, str]]

DESCRIPTION = """\
Prepares a host for containers: makes the driver's device nodes, links them in /dev/char (runc looks there before it
gives systemd the rules of a container), and shows what the loader cache knows.
"""
EPILOG = """\
examples:
  nvinject system create-device-nodes --all-devices --dry-run   what is missing, with its numbers
  nvinject system create-device-nodes --control-devices --load-kernel-modules
  nvinject system create-dev-char-symlinks --create-all
  nvinject system print-ldcache --driver-root /run/nvidia/driver
"""

MODPROBE_FILE = "/proc/sys/kernel/modprobe"  # proc(5): the program by which the kernel loads modules
MODPROBE = "/sbin/modprobe"
# What ldconfig -p says of a library beside libc6, by machine and word size (glibc's elf/cache.c).
LOADER_KINDS = {("x86_64", 64): ",x86-64", ("aarch64", 64): ",AArch64", ("aarch64", 32): ",hard-float"}

DRY_RUN = Option(flags=("--dry-run",), kind="flag", variable="DRY_RUN", help="print what would be done, do nothing")
LOAD = "load the modules nvidia, nvidia-uvm and nvidia-modeset first"
NODE_OPTIONS = (
    Option(
        flags=("--root", "--driver-root"),
        variable="ROOT,NVIDIA_DRIVER_ROOT,DRIVER_ROOT",
        metavar="DIR",
        help="load modules from this root (default: /)",
    ),
    Option(
        flags=("--dev-root",),
        variable="NVIDIA_DEV_ROOT,DEV_ROOT",
        metavar="DIR",
        help="make nodes in DIR/dev (default: the root)",
    ),
    Option(
        flags=("--control-devices",),
        kind="flag",
        help="make nvidiactl, nvidia-modeset, nvidia-uvm and nvidia-uvm-tools",
    ),
    Option(flags=("--all-devices",), kind="flag", help="make these, and those of GPUs and MIG capabilities"),
    Option(flags=("--replace",), kind="flag", help="replace nodes that have another number"),
    Option(flags=("--load-kernel-modules",), kind="flag", help=LOAD),
    DRY_RUN,
)
LINK_OPTIONS = (
    Option(
        flags=("--dev-char-path",),
        variable="DEV_CHAR_PATH",
        default=("/dev/char",),
        metavar="DIR",
        help="make links here (default: /dev/char)",
    ),
    Option(
        flags=("--driver-root",),
        variable="NVIDIA_DRIVER_ROOT,DRIVER_ROOT",
        metavar="DIR",
        help="load modules from this root (default: /)",
    ),
    Option(flags=("--create-all",), kind="flag", variable="CREATE_ALL", help="link every node that there can be"),
    Option(flags=("--load-kernel-modules",), kind="flag", variable="LOAD_KERNEL_MODULES", help=f"{LOAD}"),
    Option(
        flags=("--create-device-nodes",),
        kind="flag",
        variable="CREATE_DEVICE_NODES",
        help="make the nodes first; with --create-all",
    ),
    Option(flags=("--watch",), kind="flag", help="stay, and link nodes as they come and go"),
    DRY_RUN,
)
CACHE_OPTIONS = (
    Option(
        flags=("--driver-root",),
        variable="NVIDIA_DRIVER_ROOT,DRIVER_ROOT",
        metavar="DIR",
        help="read the cache of this root (default: /)",
    ),
    Option(flags=("--ldcache",), metavar="FILE", help="read this file below the root (default: /etc/ld.so.cache)"),
)
COMMANDS: dict[str, tuple[tuple[Option, ...], str]] = {
    "create-device-nodes": (NODE_OPTIONS, "make the driver's device nodes"),
    "create-dev-char-symlinks": (LINK_OPTIONS, "link the driver's device nodes in /dev/char"),
    "print-ldcache": (CACHE_OPTIONS, "print what the loader cache knows of the driver"),
}


EXAMPLES = {
    "create-device-nodes": (
        "nvinject system create-device-nodes --all-devices --dry-run",
        "nvinject system create-device-nodes --control-devices --load-kernel-modules",
    ),
    "create-dev-char-symlinks": (
        "nvinject system create-dev-char-symlinks --create-all --dry-run",
        "nvinject system create-dev-char-symlinks --watch",
    ),
    "print-ldcache": ("nvinject system print-ldcache --driver-root /run/nvidia/driver --json",),
}


def parser() -> "argparse.ArgumentParser":
    """Return the options of all sub-commands."""
    from nvinject.cli.parsers import format_examples, new_parser

    whole = new_parser("nvinject system", DESCRIPTION, EPILOG)
    chosen = whole.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (options, words) in COMMANDS.items():
        made = chosen.add_parser(name, help=words, description=words, epilog=format_examples(EXAMPLES[name]))
        add_options(made, options)
        made.add_argument("--config", metavar="FILE", default="", help="read this config.toml; it must exist")
        made.add_argument("--json", action="store_true", help="print JSON")
    return whole


def main(arguments: "list[str]") -> int:
    """Run the sub-command that the arguments name."""
    from nvinject.cli.settings import load_settings

    parsed = parser().parse_args(arguments)
    options = read_options(parsed, COMMANDS[parsed.command][0], os.environ)
    options["json"] = parsed.json
    policy, _ = load_settings(parsed.config or os.environ.get("NVIDIA_CTK_CONFIG", ""))
    debug(f"{parsed.command}: {', '.join(f'{name}={value}' for name, value in options.items() if value)}")
    commands: dict[str, Callable[[dict[str, Any], Roots], int]] = {
        "create-device-nodes": create_device_nodes,
        "create-dev-char-symlinks": create_links,
        "print-ldcache": print_cache,
    }
    return commands[parsed.command](options, policy.roots)


def read_options(
    parsed: "argparse.Namespace", table: tuple[Option, ...], environ: "Mapping[str, str]"
) -> "dict[str, Any]":
    """Return options by destination: given, else from the first of their variables that is set, else the default."""
    values: dict[str, Any] = {}
    for option in table:
        given = getattr(parsed, option.destination)
        for variable in option.variable.split(",") if given is None else ():
            given = environ.get(variable) if given is None else given
        if option.kind == "flag":
            values[option.destination] = given is not None and parse_flag(given, option.variable)
        else:
            values[option.destination] = given if given is not None else (option.default or ("",))[0]
    return values


def load_modules(root: str, *, dry_run: bool) -> "Rows":
    """Load the driver's modules as the kernel itself would; raises HostError for one that does not load."""
    import subprocess

    prefix = [] if root in {"", "/"} else ["chroot", root]
    rows = []
    for module in nodesetup.MODULES:
        command = [*prefix, find_modprobe(), module]
        if not dry_run:
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise HostError(f"cannot run {' '.join(command)}: {error}", "install kmod") from error
            if done.returncode != 0:
                words = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
                raise HostError(f"the module {module} does not load: {words}", "look for NVRM in dmesg")
        rows.append(("module", module, " ".join(command)))
    return rows


def find_modprobe() -> str:
    """Return the program by which the kernel loads modules."""
    try:
        with open(MODPROBE_FILE) as file:
            return file.read().strip() or MODPROBE
    except OSError:
        return MODPROBE


def create_device_nodes(options: "dict[str, Any]", roots: Roots) -> int:
    """Make nodes and print what was done; returns 1 where something is in the way."""
    root, dry_run = options["root"] or "/", options["dry_run"]
    rows = load_modules(root, dry_run=dry_run) if options["load_kernel_modules"] else []
    kinds = nodesetup.KINDS if options["all_devices"] else (CONTROL,)
    code = 0
    if options["control_devices"] or options["all_devices"]:
        from nvinject.host.nodefacts import read_host_nodes

        wanted = nodesetup.wanted_nodes(read_host_nodes(roots), kinds)
        with open_device_root(options["dev_root"] or options["root"], roots) as dev:
            made = [make_one_node(dev, node, dry_run=dry_run, replace=options["replace"]) for node in wanted.nodes]
        rows += made
        rows += [("node", problem.partition(" has no")[0], problem) for problem in wanted.problems]
        code = 1 if wanted.problems or any(what.startswith(WRONG) for _, _, what in made) else 0
    else:
        warn("nothing to make: name --control-devices or --all-devices")
    report(rows, dry_run=dry_run, as_json=options["json"])
    return code


def open_device_root(named: str, roots: Roots) -> Root:
    """Open the device root: the named one, else the configured one."""
    from nvinject.host.inventory import device_root

    return Root(named or device_root(roots), title="device root", key="nvinject.dev-root")


def make_one_node(dev: Root, node: "DeviceNode", *, dry_run: bool, replace: bool = False) -> tuple[str, str, str]:
    """Make one node unless it is there; returns the row that tells. Raises HostError."""
    path, number = dev.host_path(node.path), f"{node.major}:{node.minor} {node.mode:04o}"
    try:
        state, found = devicenodes.state_of_node(dev.fd, node)
        make = devicenodes.make_node
        if state == WRONG and replace:
            state, make = MISSING, devicenodes.replace_node
        if state == MISSING and not dry_run:
            make(dev.fd, node)
    except FileExistsError:
        return "node", path, f"{THERE}: somebody else made it"
    except OSError as error:
        raise HostError(
            f"cannot make {path} ({number}): {error.strerror}", "run as root, outside of a user namespace"
        ) from error
    words = {THERE: THERE, WRONG: f"{WRONG}: is {found}, should be {number}; --replace makes it anew"}
    return "node", path, words.get(state, f"{'would be made' if dry_run else MADE}: {number}")


def create_links(options: "dict[str, Any]", roots: Roots) -> int:
    """Link nodes in /dev/char and print what was done; a link that says something else is only told."""
    rows = link_once(options, roots)
    report(rows, dry_run=options["dry_run"], as_json=options["json"])
    if options["watch"]:
        watch(options, roots)
    return 0


def link_once(options: "dict[str, Any]", roots: Roots) -> "Rows":
    """Make the links that are missing; returns rows that tell. Raises HostError."""
    from nvinject.host.nodefacts import find_existing_nodes, read_host_nodes

    dry_run, rows = options["dry_run"], []
    if not options["create_all"]:
        for name in ("load_kernel_modules", "create_device_nodes"):
            if options[name]:
                warn(f"--{name.replace('_', '-')} is ignored: it needs --create-all")
    elif options["load_kernel_modules"]:
        rows += load_modules(options["driver_root"], dry_run=dry_run)
    with open_device_root("", roots) as dev:
        if options["create_all"]:
            host = read_host_nodes(roots)
            nodes = complete_nodes(host)
            if options["create_device_nodes"]:
                rows += [make_one_node(dev, node, dry_run=dry_run) for node in nodes]
        else:
            nodes = find_existing_nodes(dev)
        links = nodesetup.wanted_links(nodes, dev.path)
    return [*rows, *(make_one_link(options["dev_char_path"], link, dry_run=dry_run) for link in links)]


def complete_nodes(host: HostNodes) -> "tuple[DeviceNode, ...]":
    """Return every node that there can be; raises HostError where a number is not known."""
    missing = nodesetup.required_majors(host)
    if missing:
        raise HostError(f"missing required device major {missing[0]}", "load the driver's modules first")
    return nodesetup.wanted_nodes(host, (CONTROL, GPUS, CAPABILITIES)).nodes


def make_one_link(directory: str, link: Link, *, dry_run: bool) -> tuple[str, str, str]:
    """Make one link unless it is there; returns the row that tells. Raises HostError."""
    path = os.path.join(directory, link.name)
    state, found = devicenodes.state_of_link(directory, link)
    if state == MISSING and not dry_run:
        try:
            devicenodes.make_link(directory, link)
        except FileExistsError:
            state = THERE
        except OSError as error:
            raise HostError(f"cannot make the link {path}: {error.strerror}", "run as root") from error
    if state == WRONG:
        warn(f"{path} is {found}, not a link to {link.target}")
    words = {THERE: THERE, WRONG: f"{WRONG}: is {found}"}
    return "link", path, words.get(state, f"{'would be made' if dry_run else MADE}: -> {link.target}")


def watch(options: "dict[str, Any]", roots: Roots) -> None:
    """Link nodes whenever some come or go, until interrupted."""
    from nvinject.host.changes import Changes

    with Changes(roots) as changes:
        while True:
            if not changes.wait(60.0):
                changes.renew()
            for kind, path, words in link_once(options, roots):
                if words.startswith(MADE):
                    inform(f"{kind} {path} {words}")


def load_and_create(roots: Roots, channels: tuple[str, ...] = ()) -> "list[str]":
    """Do what --load-kmods of nvidia-container-cli asks for; returns lines for the log and raises nothing.

    The driver decides by ModifyDeviceFiles whether user space makes nodes; in a user namespace nobody can.
    """
    from nvinject.host.nodefacts import read_host_nodes
    from nvinject.host.nodes import in_initial_user_namespace

    if not in_initial_user_namespace():
        return ["no nodes are made in a user namespace"]
    lines = []
    try:
        lines += [" ".join(row) for row in load_modules(roots.driver, dry_run=False)]
    except HostError as error:
        lines.append(f"warning: {error}")
    try:
        host = read_host_nodes(roots)
        if not host.rules.modify:
            return [*lines, "no nodes are made: ModifyDeviceFiles is 0"]
        wanted = nodesetup.wanted_nodes(host, nodesetup.KINDS, channels)
        lines += [f"warning: {problem}" for problem in wanted.problems]
        with open_device_root("", roots) as dev:
            lines += [" ".join(make_one_node(dev, node, dry_run=False)) for node in wanted.nodes]
    except HostError as error:
        lines.append(f"warning: {error}")
    return lines


def print_cache(options: "dict[str, Any]", roots: Roots) -> int:
    """Print the driver's libraries in the loader cache, as `ldconfig -p` does."""
    rows = read_cache(options["driver_root"] or roots.driver, options["ldcache"])
    if options["json"]:
        import json

        entries = [{"soname": soname, "bits": bits, "path": path} for soname, bits, path in rows]
        sys.stdout.write(json.dumps(entries, indent=2) + "\n")
        return 0
    for soname, bits, path in rows:
        kind = LOADER_KINDS.get((os.uname().machine, bits), "")
        sys.stdout.write(f"\t{soname} (libc6{kind}) => {path}\n")
    return 0


def read_cache(root_path: str, cache: str) -> list[tuple[str, int, str]]:
    """Return SONAME, word size and path of the driver's libraries; raises HostError without a usable cache."""
    from nvinject.core.catalog import LIBRARIES, OWN_VERSION_LIBRARIES
    from nvinject.formats.ldcache import parse_table
    from nvinject.host.libraries import ELF_FLAGS, LOADER_CACHE, MACHINES, library_prefix

    prefixes = {row.prefix for row in LIBRARIES} | set(OWN_VERSION_LIBRARIES)
    machine = MACHINES.get(os.uname().machine)
    sizes = dict(machine.cache_flags) if machine else {}
    with Root(root_path, title="driver root", key="nvidia-container-cli.root") as root:
        path = cache or LOADER_CACHE
        data = root.read(path)
        if data is None:
            raise HostError(f"there is no loader cache {root.host_path(path)}", "run ldconfig, or name it: --ldcache")
        try:
            table = parse_table(data).rows
        except ValueError as error:
            raise HostError(f"{root.host_path(path)} is of no use: {error}", "run ldconfig") from error
    return [
        (row[0], sizes[row[2] & 0xFF00], row[1])
        for row in table
        if library_prefix(row[0]) in prefixes and row[2] & 0xFF in ELF_FLAGS and row[2] & 0xFF00 in sizes
    ]


def report(rows: "Rows", *, dry_run: bool, as_json: bool) -> None:
    """Print what was done, or would be."""
    if as_json or dry_run or not is_quiet():
        print_steps(rows, ("kind", "path", "result"), dry_run=dry_run, as_json=as_json)
