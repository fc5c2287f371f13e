"""Running commands on a machine, in namespaces that vanish with them.

Belongs here: processes. Does not belong here: mounts (lane.py) and changes while a command runs (control.py).
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from nvfakes import control, kernel, tree
from nvfakes.errors import FakeError, SandboxError
from nvfakes.lane import Lane, enter
from nvfakes.machine import Machine
from nvfakes.nvml.build import cache_directory


def run(machine: Machine, command: Sequence[str], *, lane: str | None = None) -> int:
    """Run a command on a machine, wait for it, and return its exit status (128 + N after signal N)."""
    child = kernel.fork()
    if child == 0:
        try:
            execute(machine, command, lane=lane)
        except (FakeError, OSError) as error:
            print(f"nvfakes: {error}", file=sys.stderr)
        finally:
            os._exit(126)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def execute(machine: Machine, command: Sequence[str], *, lane: str | None = None) -> NoReturn:
    """Become a command that runs on a machine; lane None tries root first."""
    directory = os.getcwd()
    built = build(machine, os.getpid(), lane)
    control.start(built, os.getpid())
    os.chdir(directory)
    become(command, environment(built, os.getpid()))


def build(machine: Machine, holder: int, lane: str | None) -> Lane:
    """Move this process into a lane with the machine; its NVML library asks the holder's socket for changes."""
    built = enter(machine, str(cache_directory() / "stage"), lane)
    built.build({"kernel.socket": control.address(holder)})
    return built


def environment(lane: Lane, holder: int) -> dict[str, str]:
    """Return the environment of a command on the machine."""
    return {
        **os.environ,
        **tree.environment(lane.machine, lane.root),
        "NVFAKES_ROOT": lane.root,
        "NVFAKES_LANE": lane.name,
        "NVFAKES_MACHINE": lane.machine.name,
        "NVFAKES_RUNNING": str(holder),
    }


def become(command: Sequence[str], environ: dict[str, str]) -> NoReturn:
    """Become a command."""
    try:
        os.execvpe(command[0], list(command), environ)
    except OSError as error:
        raise SandboxError(f"{command[0]}: {error.strerror}") from None
    except ValueError as error:  # an empty name
        raise SandboxError(f"{command[0]!r} cannot be run: {error}") from None
