"""nvinject cdi list, explain and inject: what the specs of this host say, and putting it into a config.json.

Belongs here: words and output. Does not belong here: which file counts (nvinject.host.registry) and what edits change
(nvinject.render.injection).
"""

import os
import sys

from nvinject.cli.cdioptions import CONFIG, CTK, SPEC_DIRECTORIES, inform, read_options, warn
from nvinject.errors import InputError, UsageError
from nvinject.host.registry import Registry, explain, read_registry, resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from nvinject.host.registry import Explanation


def main(parsed: "argparse.Namespace") -> int:
    """Run the chosen command; returns 0, or 1 where a name that is explained means nothing."""
    return {"list": list_devices, "explain": explain_names, "inject": inject}[parsed.command](parsed)


def find_registry(parsed: "argparse.Namespace") -> Registry:
    """Return all specs of the directories that are asked for; raises UsageError where there is no directory."""
    options = read_options(parsed, (SPEC_DIRECTORIES, CONFIG), os.environ)
    directories: tuple[str, ...] = options["spec_dir"]
    if options["config"] and parsed.spec_dir is None and f"{CTK}SPEC_DIRS" not in os.environ:
        from nvinject.config import load_policy

        policy, _ = load_policy(options["config"], True)  # noqa: FBT003
        directories = policy.cdi_spec_dirs
    if not directories:
        raise UsageError("there is no directory to read specs from", "name one with --spec-dir")
    return read_registry(directories)


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
    """Put devices into a config.json, and print or write it."""
    import json

    from nvinject.formats.jsonio import JSONError, loads
    from nvinject.render.injection import apply_edits, collect_edits
    from nvinject.render.specfile import write_files

    path = os.path.join(parsed.container, "config.json") if os.path.isdir(parsed.container) else parsed.container
    if parsed.in_place and path == "-":
        raise UsageError("--in-place needs a file", "name one, or use --output")
    try:
        text = sys.stdin.buffer.read() if path == "-" else _read(path)
        document = loads(text)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "name a config.json or a bundle") from error
    except JSONError as error:
        raise InputError(f"{path} is no JSON: {error}", "name a config.json or a bundle") from error
    if not isinstance(document, dict):
        raise InputError(f"{path} is no JSON object", "name a config.json or a bundle")
    registry = find_registry(parsed)
    names = tuple(name for word in parsed.device for name in word.split(",") if name)
    found = resolve(registry, names)
    apply_edits(document, collect_edits((one.file.path, one.spec, one.device) for one in found))
    changed = json.dumps(document, indent=2) + "\n"
    target = path if parsed.in_place else parsed.output
    if target:
        write_files(((target, changed),))
    else:
        sys.stdout.write(changed)
    return 0


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
