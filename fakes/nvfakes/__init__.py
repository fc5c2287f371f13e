"""Declared GPU machines that programs cannot tell from real ones.

`load` gives a machine by name or file, `run` runs a command on one, `start` keeps one running. The modules behind
them are imported on first use, because the runtime wrapper imports this package for every container.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nvfakes.machine import Machine
    from nvfakes.running import Running

__all__ = ["load", "run", "start"]


def load(name_or_path: str) -> "Machine":
    """Return the machine of a file, a shipped name such as two-h100, or a generated name such as h100x8."""
    from nvfakes.declaration import load as load_machine

    return load_machine(name_or_path)


def run(machine: "Machine | str", command: Sequence[str], *, lane: str | None = None) -> int:
    """Run a command on a machine, in lane "root" or "rootless" (None: root if possible); returns its exit status."""
    from nvfakes import sandbox

    return sandbox.run(load(machine) if isinstance(machine, str) else machine, command, lane=lane)


def start(machine: "Machine | str", *, lane: str | None = None) -> "Running":
    """Start a machine that stands until it is stopped: run commands on it, unplug its GPUs, and so on."""
    from nvfakes import running

    return running.start(load(machine) if isinstance(machine, str) else machine, lane=lane)
