"""nvinject cdi list, explain and inject: what the specs of this host say, and putting it into a container.

Belongs here: words and output. Does not belong here: which file counts (nvinject.host.registry) and what edits change
(nvinject.render.injection, nvinject.render.lxc).
"""

import os
import sys

from nvinject.cli.cdioptions import CONFIG, CTK, SPEC_DIRECTORIES, read_options
from nvinject.cli.messages import debug, inform, warn
from nvinject.errors import InputError, UsageError
from nvinject.host.registry import Registry, explain, read_registry, resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from nvinject.formats.cdi import Edits
    from nvinject.host.registry import Explanation


def main(parsed: "argparse.Namespace") -> int:
    """Run the chosen command; returns 0, or 1 where a name that is explained means nothing."""
    return {"list": list_devices, "explain": explain_names, "inject": inject}[parsed.command](parsed)


def find_registry(parsed: "argparse.Namespace") -> Registry:
    """Return all specs of the directories that are asked for; raises UsageError where there is no directory."""
    options = read_options(parsed, (SPEC_DIRECTORIES, CONFIG), os.environ)
    directories: tuple[str, ...] = options["spec_dir"]
    if options["config"] and parsed.spec_dir is None and f"{CTK}SPEC_DIRS" not in os.environ:
        from nvinject.cli.settings import load_settings

        policy, _ = load_settings(options["config"])
        directories = policy.cdi_spec_dirs
    if not directories:
        raise UsageError("there is no directory to read specs from", "name one with --spec-dir")
    registry = read_registry(directories)
    for file in registry.files:
        debug(f"read {file.path} (priority {file.priority})")
    return registry


def complain_about(registry: Registry) -> None:
    """Write what is wrong with files and directories to standard error."""
    for file in registry.rejected():
        warn(f"{file.path} is rejected: {file.error}")
    for problem in registry.problems:
        warn(problem)
    for name, paths in registry.conflicts().items():
        warn(f"conflicting device {name} (specs {', '.join(paths)}): of no use until one of them is gone")


def list_devices(parsed: "argparse.Namespace") -> int:
    """Print the names of all devices, one a line."""
    registry = find_registry(parsed)
    complain_about(registry)
    devices = registry.devices()
    if parsed.json:
        import json

        rows = [{"name": name, "file": found.file.path} for name, found in devices.items()]
        sys.stdout.write(json.dumps({"devices": rows}, indent=2) + "\n")
    else:
        sys.stdout.write("".join(f"{name}\n" for name in devices))
    inform(f"found {len(devices)} CDI devices")
    return 0


def explain_names(parsed: "argparse.Namespace") -> int:
    """Print for each name which file defines it, or why none does."""
    registry = find_registry(parsed)
    found = [explain(registry, name) for name in parsed.names]
    if parsed.json:
        import json

        sys.stdout.write(json.dumps([explanation_values(registry, one) for one in found], indent=2) + "\n")
    else:
        sys.stdout.write("".join(format_explanation(registry, one) for one in found))
        sys.stdout.write(format_files(registry))
    return 0 if all(one.used for one in found) else 1


def format_explanation(registry: Registry, one: "Explanation") -> str:
    """Return an explanation as lines."""
    lines = [f"{one.name} {one.reason}"]
    if one.used is not None:
        lines.append(f"  used      {one.used.file.path} (priority {one.used.file.priority})")
    lines += [f"  hidden    {shadow.file.path} (priority {shadow.file.priority})" for shadow in one.shadowed]
    lines += [f"  conflict  {path}" for path in one.conflicting]
    if one.nearest:
        lines.append(f"  nearest   {', '.join(one.nearest)}")
    elif one.used is None and not one.conflicting and registry.devices():
        lines.append(f"  known     {', '.join(list(registry.devices())[:10])}")
    return "".join(f"{line}\n" for line in lines)


def format_files(registry: Registry) -> str:
    """Return what was read, as a table."""
    from nvinject.render.text import format_table

    rows = []
    for file in sorted(registry.files, key=lambda file: -file.priority):
        state = f"rejected: {file.error}" if file.spec is None else f"read, {len(file.spec.devices)} devices"
        rows.append((str(file.priority), file.path, state))
    rows += [("", problem, "") for problem in registry.problems]
    directories = ", ".join(f"{directory} ({number})" for number, directory in enumerate(registry.directories))
    head = f"\ndirectories with priority: {directories}\n"
    return head + (format_table(("priority", "file", "state"), rows) if rows else "no spec was found\n")


def explanation_values(registry: Registry, one: "Explanation") -> "dict[str, object]":
    """Return an explanation for programs."""
    return {
        "name": one.name,
        "reason": one.reason,
        "used": None if one.used is None else one.used.file.path,
        "hidden": [shadow.file.path for shadow in one.shadowed],
        "conflicting": list(one.conflicting),
        "nearest": list(one.nearest),
        "rejected": [{"file": file.path, "error": file.error} for file in registry.rejected()],
        "problems": list(registry.problems),
    }


def inject(parsed: "argparse.Namespace") -> int:
    """Put devices into a container's configuration, and print or write it."""
    if parsed.in_place and parsed.container in {"", "-"}:
        raise UsageError("--in-place needs a file", "name one, or use --output")
    if parsed.format == "oci" and not parsed.container:
        raise UsageError("no config.json is named", "name one, a bundle, or - for standard input")
    names = tuple(name for word in parsed.device for name in word.split(",") if name)
    if not names:
        raise UsageError("--device names no device", "name one, such as nvidia.com/gpu=0; nvinject cdi list shows all")
    change = {"oci": inject_into_document, "lxc": inject_into_lxc}[parsed.format]
    path, before, changed = change(parsed, names)
    if parsed.in_place:
        from nvinject.engines.files import Change, carry_out

        carry_out((Change(path=path, before=before, after=changed.encode("utf-8", "surrogateescape")),))
    elif parsed.output:
        from nvinject.render.specfile import write_files

        write_files(((parsed.output, changed),))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(changed.encode("utf-8", "surrogateescape"))
    return 0


def find_edits(parsed: "argparse.Namespace", names: tuple[str, ...]) -> "Edits":
    """Return the edits of all devices; raises RequestError for one that no spec defines."""
    from nvinject.render.injection import collect_edits

    found = resolve(find_registry(parsed), names)
    return collect_edits((one.file.path, one.spec, one.device) for one in found)


def inject_into_document(parsed: "argparse.Namespace", names: tuple[str, ...]) -> tuple[str, bytes, str]:
    """Return the path of a config.json, what it holds and its new text; raises InputError."""
    import json

    from nvinject.formats.jsonio import JSONError, loads
    from nvinject.render.injection import apply_edits

    path = _inside(parsed.container, "config.json")
    data = _read(path, "a config.json or a bundle")
    try:
        document = loads(data)
    except JSONError as error:
        raise InputError(f"{path} is no JSON: {error}", "name a config.json or a bundle") from error
    if not isinstance(document, dict):
        raise InputError(f"{path} is no JSON object", "name a config.json or a bundle")
    apply_edits(document, find_edits(parsed, names))
    return path, data, json.dumps(document, indent=2) + "\n"


def inject_into_lxc(parsed: "argparse.Namespace", names: tuple[str, ...]) -> tuple[str, bytes, str]:
    """Return the path of an LXC configuration, what it holds and its new text; the lines alone where none is named."""
    from nvinject.formats.lxc import LxcError, read_value, replace_block, rootfs_directory
    from nvinject.render.lxc import format_edits

    path = _inside(parsed.container, "config")
    data = _read(path, "a container's configuration or its folder") if path else b""
    text = data.decode("utf-8", "surrogateescape")
    rootfs = parsed.rootfs or rootfs_directory(read_value(text, "lxc.rootfs.path"))
    edits = find_edits(parsed, names)
    lines = (f"# {', '.join(names)}", *format_edits(edits, find_settler(rootfs)))
    if not path:
        return "", b"", "".join(f"{line}\n" for line in lines)
    try:
        return path, data, replace_block(text, lines)
    except LxcError as error:
        raise InputError(f"{path}: {error}", "take the marks of nvinject out of the file") from error


def find_settler(rootfs: str) -> "Callable[[str], str]":
    """Return what takes the links of a root file system out of paths; paths stay as they are where it is not known."""
    from nvinject.host.root import Root

    if not rootfs or not os.path.isdir(rootfs):
        inform("note: the container's root file system is not known; LXC mounts nothing below links, so use --rootfs")
        return str
    root = Root(rootfs, title="root file system")

    def settle(path: str) -> str:
        known = path.rstrip("/")
        # These are mounts of LXC's own, whatever the root file system has there.
        while known and not path.startswith(("/dev/", "/proc/", "/sys/")):
            found = root.resolve(known)
            if found is not None:
                return found.rstrip("/") + path[len(known) :]
            known = known.rpartition("/")[0]
        return path

    return settle


def _inside(path: str, name: str) -> str:
    return os.path.join(path, name) if os.path.isdir(path) else path


def _read(path: str, what: str) -> bytes:
    from nvinject.cli.hook import read_all

    try:
        if path == "-":
            return read_all(sys.stdin.fileno(), "standard input")
        with open(path, "rb", buffering=0) as file:
            return read_all(file.fileno(), path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", f"name {what}") from error
