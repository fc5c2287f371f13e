"""nvinject cdi refresh and watch: the spec of this host, kept up to date.

Belongs here: comparing the driver's GPUs with the PCI bus before anything is written, and when to do it again. Does not
belong here: making the spec (cdigenerate.py) and hearing of changes (nvinject.host.changes). A refresh that fails
leaves the old spec as it was: a spec that lacks a GPU would look like a working one.
"""

import os
import time

from nvinject.cli.cdigenerate import Generated, format_documents, generate
from nvinject.cli.cdioptions import (
    DEFAULT_OUTPUT,
    GENERATE_OPTIONS,
    REFRESH_OPTIONS,
    WATCH_OPTIONS,
    read_options,
)
from nvinject.cli.cdisettings import Settings, Target, read_settings, read_target
from nvinject.cli.messages import inform, warn
from nvinject.errors import HostError, NvinjectError, UsageError
from nvinject.linux.signals import Undisturbed
from nvinject.render.specfile import write_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

FIRST_RETRY = 1.0  # seconds; doubled for each failure in a row
LONGEST_RETRY = 60.0


def main(parsed: "argparse.Namespace") -> int:
    """Refresh once, or whenever something changes."""
    watching = parsed.command == "watch"
    table = (*GENERATE_OPTIONS, *REFRESH_OPTIONS, *(WATCH_OPTIONS if watching else ()))
    options = read_options(parsed, table, os.environ)
    if not options["output"]:
        options["output"] = DEFAULT_OUTPUT
    if watching:
        return watch(options)
    refresh(options)
    return 0


def refresh(options: "dict[str, Any]") -> None:
    """Write the spec if it is another one than that which is there; raises HostError and writes nothing otherwise."""
    settings, target = read_settings(options, os.environ), read_target(options)
    generated = generate(settings)
    if settings.mode == "nvml" and not options["allow_missing"]:
        check_complete(settings, generated)
    for note in generated.notes:
        inform(f"note: {note}")
    documents = format_documents(generated, settings, target)
    changed = {path: text for path, text in documents if read_text(path) != text}
    with Undisturbed():
        write_files(tuple(changed.items()))
        removed = remove_old_files(generated, target)
    for path, _ in documents:
        if path in changed:
            inform(f"wrote {path}: CDI {generated.spec.version}, {len(generated.spec.devices)} devices")
        else:
            inform(f"{path} is up to date")
    for path in removed:
        inform(f"removed {path}: the device is gone")


def check_complete(settings: Settings, generated: Generated) -> None:
    """Raise HostError where the PCI bus has GPUs that the driver does not show."""
    from nvinject.cli.cdigenerate import find_inventory
    from nvinject.host.pci import find_pci_gpus
    from nvinject.host.root import Root

    with Root(settings.policy.roots.sys, title="sys root", key="nvinject.sys-root") as sys:
        expected = [gpu.bus_id for gpu in find_pci_gpus(sys) if gpu.is_expected]
    shown = {gpu.bus_id for gpu in find_inventory(settings, nvml=False).gpus}
    missing = [bus_id for bus_id in expected if bus_id not in shown]
    if missing:
        raise HostError(
            f"the PCI bus has {len(expected)} GPUs, the driver shows {len(shown)}: {', '.join(missing)} is missing",
            "wait until the driver has started, look for NVRM in dmesg, or use --allow-missing; no spec was written",
        )
    assert generated.spec.devices


def read_text(path: str) -> str:
    """Return the text of a file, "" where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""


def remove_old_files(generated: Generated, target: Target) -> list[str]:
    """Remove files of devices that are gone, where each device has a file of its own; returns their paths."""
    if not target.per_device:
        return []
    base = generated.spec.kind.replace("/", "-") + "_"
    current = {f"{base}{device.name.replace(':', '_')}.{target.form}" for device in generated.spec.devices}
    names = [name for name in os.listdir(target.output) if name.startswith(base) and name not in current]
    old = [os.path.join(target.output, name) for name in names if name.endswith((".yaml", ".json"))]
    for path in old:
        os.unlink(path)
    return old


def watch(options: "dict[str, Any]") -> int:
    """Refresh now and whenever GPUs, nodes or files of the driver change, until interrupted."""
    from nvinject.host.changes import Changes

    settle, interval = read_seconds(options, "settle"), read_seconds(options, "interval")
    settings = read_settings(options, os.environ)
    with Changes(settings.policy.roots) as changes:
        for problem in changes.problems:
            warn(problem)
        failures = 0
        while True:
            try:
                refresh(options)
                failures = 0
            except NvinjectError as error:
                failures += 1
                warn(f"{error}; the spec stays as it was")
            retry = min(LONGEST_RETRY, FIRST_RETRY * 2 ** (failures - 1)) if failures else interval
            for reason in changes.wait(min(retry, interval)):
                inform(f"changed: {reason}")
            # Loading a driver changes hundreds of things within a second: one refresh is enough.
            deadline = time.monotonic() + max(interval, settle)
            while changes.wait(settle) and time.monotonic() < deadline:
                changes.renew()
            changes.renew()


def read_seconds(options: "dict[str, Any]", name: str) -> float:
    """Return an option as a number of seconds; raises UsageError."""
    try:
        seconds = float(options[name])
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise UsageError(f"--{name} {options[name]} is no number of seconds", "use a number such as 2 or 0.5")
    return seconds
