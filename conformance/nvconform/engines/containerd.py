"""containerd: its daemon, the command line of ctr, and what that can be asked for.

Belongs here: facts of containerd and ctr. Does not belong here: the steps of a container (engine.py), starting a daemon
(daemon.py). In containerd the client writes config.json; ctr is the one that comes with it.
"""

import contextlib
import itertools
import subprocess
from collections.abc import Sequence
from pathlib import Path

from nvconform.bundle import Identities
from nvconform.engines.daemon import DaemonEngine
from nvconform.engines.engine import PROCESS, Surroundings, find
from nvconform.engines.options import Abilities, Bind, Options

# The plug-in for Kubernetes would want a network.
SETTINGS = """\
version = 2
root = "{folder}/data"
state = "{folder}/exec"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{folder}/s"
[ttrpc]
address = "{folder}/s.ttrpc"
"""
SECONDS = 20


def write_settings(folder: Path) -> Path:
    """Write the settings of a containerd that keeps everything in a folder, and return their file."""
    path = folder / "containerd.toml"
    path.write_text(SETTINGS.format(folder=folder))
    return path


class Containerd(DaemonEngine):
    """`ctr run --rootfs`."""

    name = "containerd"
    package = "containerd"
    programs = ("containerd", "ctr")

    @classmethod
    def abilities(cls) -> Abilities:
        """Return what ctr can do."""
        return Abilities(cls.name, covers=("/run",), cdi="ctr gives containers devices by path alone")

    def __init__(self, surroundings: Surroundings) -> None:
        """Write the settings."""
        super().__init__(surroundings)
        self.settings = write_settings(self.folder)
        self.numbers = itertools.count(1)
        self.ctr = ("ctr", "--address", f"{self.folder}/s", "--namespace", self.group)

    def daemon_command(self) -> Sequence[str]:
        """Return the daemon's command line."""
        return (find("containerd") or "containerd", "--config", str(self.settings))

    def answers(self) -> bool:
        """Tell whether the daemon answers."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            words = [*self.ctr, "version"]
            return not subprocess.run(
                words, capture_output=True, timeout=SECONDS, check=False, env=self.environment()
            ).returncode
        return False

    @classmethod
    def words(cls, options: Options) -> list[str]:
        """Return the options of `ctr run`."""
        words = []
        for option, entries in (
            ("--env", options.environment),
            ("--annotation", [f"{name}={text}" for name, text in options.annotations.items()]),
            ("--cap-add", [f"CAP_{name}" for name in options.capabilities]),
            ("--mount", [_describe(one) for one in options.mounts]),
        ):
            words += [word for entry in entries for word in (option, entry)]
        return [*words, *["--read-only"] * options.readonly]

    def command(self, rootfs: Path, options: Options, identities: Identities) -> list[str]:
        """Return the command line of `ctr run`; the cgroup of a container is named after ctr's namespace."""
        assert not identities
        # A tree of cgroup v2 may have no controller for shares of CPU time, which ctr asks for otherwise.
        words = [*self.ctr, "run", "--rm", "--cpu-shares=0", "--runc-binary", str(self.relay), *self.words(options)]
        return [*words, "--rootfs", str(rootfs), f"{self.group}-{next(self.numbers)}", *PROCESS]


def _describe(mount: Bind) -> str:
    return f"type=bind,src={mount.source},dst={mount.target},options=rbind{':ro' * mount.readonly}"
