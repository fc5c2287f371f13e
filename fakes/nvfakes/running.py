"""A machine that stands for as long as Python wants it, with commands run on it and verbs that change it.

Belongs here: starting and ending such a machine, and one method per verb. Does not belong here: what the verbs do
(verbs.py) and how they are carried out (control.py, lane.py).
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Self

from nvfakes import control, kernel
from nvfakes.errors import FakeError, SandboxError
from nvfakes.machine import Machine


class Running:
    """A running machine; ended by stop() or at the end of a with statement. Verbs raise VerbError when refused."""

    def __init__(self, process: int, *, owned: bool = False) -> None:
        """Refer to the machine whose first process this is."""
        self.process = process
        self.owned = owned
        status = control.ask(process, "status")
        self.lane: str = status["lane"]
        self.root: str = status["root"]

    def __enter__(self) -> Self:
        """Return the machine."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the machine."""
        self.stop()

    def stop(self) -> None:
        """End the machine; programs that still run on it keep their files."""
        if self.owned:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.process, signal.SIGKILL)
                os.waitpid(self.process, 0)
            self.owned = False

    def run(self, command: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[Any]":
        """Run a command on the machine; the options are those of subprocess.run."""
        words = [sys.executable, "-m", "nvfakes", "enter", "--running", str(self.process), "--", *command]
        return subprocess.run(words, check=options.pop("check", False), **options)

    def unplug(self, gpu: int | str) -> None:
        """Take a GPU out; GPUs are named by minor, UUID or PCI address."""
        control.ask(self.process, "unplug", str(gpu))

    def plug(self, gpu: int | str) -> None:
        """Put an unplugged GPU back."""
        control.ask(self.process, "plug", str(gpu))

    def unload(self) -> None:
        """Unload the kernel modules."""
        control.ask(self.process, "unload")

    def load(self) -> None:
        """Load the kernel modules of the version that is installed."""
        control.ask(self.process, "load")

    def upgrade(self, version: str) -> None:
        """Install user-space files of another version; the loaded modules stay."""
        control.ask(self.process, "upgrade", version)

    def set_mig(self, gpu: int | str, profiles: Sequence[str] | None) -> None:
        """Cut a GPU into MIG profiles; an empty list only turns MIG on, None turns it off."""
        if profiles is None:
            control.ask(self.process, "mig_off", str(gpu))
        else:
            control.ask(self.process, "mig", str(gpu), list(profiles))

    def set_health(self, gpu: int | str, what: str, number: int = 0) -> None:
        """Let something happen to a GPU: "xid" N, "ecc" N, "lost" or "ok"."""
        control.ask(self.process, "health", str(gpu), what, number)

    def slow_down(self, milliseconds: int) -> None:
        """Let every NVML call take longer."""
        control.ask(self.process, "slow", milliseconds)

    def answer(self, gpu: int | str, key: str, value: object) -> None:
        """Let NVML give another answer, such as power.current_draw_mw."""
        control.ask(self.process, "answer", str(gpu), key, str(value))

    def remove(self, path: str) -> None:
        """Make a file or node vanish."""
        control.ask(self.process, "remove", path)

    def break_file(self, path: str, text: str = "broken\n") -> None:
        """Make a file say something else."""
        control.ask(self.process, "break", path, text)

    def restore(self, path: str) -> None:
        """Undo remove or break_file."""
        control.ask(self.process, "restore", path)


def start(machine: Machine, *, lane: str | None = None) -> Running:
    """Start a machine that stands until it is stopped or this process ends."""
    ready, tell = os.pipe()
    child = kernel.fork()
    if child == 0:
        os.close(ready)
        _hold(machine, lane, tell, os.getppid())
    os.close(tell)
    with os.fdopen(ready, "rb") as pipe:
        message = pipe.read()
    if message != b"ready":
        os.waitpid(child, 0)
        raise SandboxError(message.decode() or "the machine did not start")
    return Running(child, owned=True)


def _hold(machine: Machine, lane: str | None, tell: int, parent: int) -> NoReturn:
    """Stand in a lane and carry out its changes until the parent is gone."""
    from nvfakes import sandbox  # which starts machines for commands

    try:
        os.setsid()
        built = sandbox.build(machine, os.getpid(), lane)
        with control.listen(os.getpid()) as server:
            os.write(tell, b"ready")
            os.close(tell)
            control.serve(built, parent, control.detach(server))
    except (FakeError, OSError) as error:
        with contextlib.suppress(OSError):
            os.write(tell, str(error).encode())
    finally:
        os._exit(0)


def enter(process: int, command: Sequence[str]) -> NoReturn:
    """Become a command that runs on a machine that is already there."""
    from nvfakes.sandbox import become

    status = control.ask(process, "status")
    directory = os.getcwd()
    namespaces = {kind: os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY) for kind in ("user", "mnt")}
    try:
        if status["lane"] == "rootless":
            kernel.setns(namespaces["user"], kernel.CLONE_NEWUSER)
        kernel.setns(namespaces["mnt"], kernel.CLONE_NEWNS)
    except OSError as error:
        raise SandboxError(f"cannot enter the machine of process {process}: {error.strerror}") from None
    for fd in namespaces.values():
        os.close(fd)
    os.chdir(directory if os.path.isdir(directory) else "/")
    environ = {
        **os.environ,
        "NVFAKES_ROOT": status["root"],
        "NVFAKES_LANE": status["lane"],
        "NVFAKES_MACHINE": status["machine"],
        "NVFAKES_RUNNING": str(process),
    }
    become(command, environ)
