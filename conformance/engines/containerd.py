"""A private containerd on a declared machine, and `ctr`, which starts containers through it.

Belongs here: its configuration, calls, and what it leaves. Does not belong here: what containers are asked. Starting,
stopping and looking for leftovers are those of any daemon (daemon.py).
"""

import contextlib
import os
import subprocess
from dataclasses import dataclass

from nvconform.engines.containerd import write_settings

from .daemon import CALL_SECONDS, Daemon

IMAGE = "localhost/nvconform:deb"
SNAPSHOTTER = ("--snapshotter", "native")


@dataclass
class Containerd(Daemon):
    """A containerd; its only namespace has the folder's name, and so has the cgroup of its containers."""

    def configure(self) -> tuple[str, ...]:
        """Write the configuration of containerd, and that of nvinject."""
        write_settings(self.folder)
        runtimes = f'[nvidia-container-runtime]\nruntimes = ["{self.wrapper}"]\n'
        (self.folder / "config.toml").write_text(runtimes)
        return ()

    def command(self, options: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command line, by way of a shell that writes the process id down."""
        script = f'echo $$ >{self.folder}/pid; exec "$@"'
        return ("sh", "-c", script, "sh", self.program, "--config", f"{self.folder}/containerd.toml", *options)

    def answers(self) -> bool:
        """Tell whether the daemon answers."""
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            return self.ctr("version").returncode == 0
        return False

    def ctr(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run ctr in the daemon's mount namespace, where both have the same folder for FIFOs."""
        pid = int((self.folder / "pid").read_text())
        return subprocess.run(
            [
                *("nsenter", "--mount", "--target", str(pid)),
                *("ctr", "--address", f"{self.folder}/s", "--namespace", self.folder.name),
                *arguments,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=CALL_SECONDS,
            env=self.environment(),
        )

    def load(self, archive: bytes) -> None:
        """Import an image from an OCI archive."""
        path = self.folder / "archive.tar"
        path.write_bytes(archive)
        done = self.ctr("image", "import", *SNAPSHOTTER, str(path))
        if done.returncode != 0:
            raise RuntimeError(done.stderr)

    def run(self, name: str, script: str, *options: str) -> "subprocess.CompletedProcess[str]":
        """Run a shell script in a container until it ends."""
        return self.ctr("run", "--rm", *SNAPSHOTTER, *options, IMAGE, name, "sh", "-c", script)

    def remove_containers(self) -> None:
        """End every container while the daemon can still unmount and tidy up."""
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            for name in self.ctr("container", "list", "--quiet").stdout.split():
                self.ctr("task", "delete", "--force", name)
                self.ctr("container", "delete", name)

    def run_directory(self, name: str) -> bool:
        """Tell whether a container has a run directory of nvinject's on the machine."""
        pid = int((self.folder / "pid").read_text())
        return os.path.exists(f"/proc/{pid}/root/run/nvinject/{name}")
