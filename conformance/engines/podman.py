"""podman on a declared machine: every call in a mount namespace of its own, with storage and settings in one folder.

Belongs here: settings, calls, and what a call leaves behind. Does not belong here: what containers are asked. podman 4
reads CDI specs from /etc/cdi and /var/run/cdi alone, so a call puts the specs at the machine's own /etc/cdi.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from nvconform.engines.engine import remove_cgroups
from nvconform.engines.podman import write_settings

CALL_SECONDS = 120
IMAGE = "localhost/nvconform"
# crun refuses a hybrid view of the cgroups; without the second tree it takes the first.
BEFORE = {"runc": "true", "crun": "umount /sys/fs/cgroup/unified 2>/dev/null || true"}


# The test machine as it is, but for an /etc that can be written to: no procfs can be mounted in a user namespace where
# another one is partly covered, which a declared machine's is. And with a /dev/null of its own: crun gives the standard
# input of a container, for which conmon opens it, to the container's user.
PLAIN = (
    "mkdir -p {folder}/etc && mount -t tmpfs none {folder}/etc && mkdir {folder}/etc/upper {folder}/etc/work && "
    "mknod -m 666 {folder}/etc/null c 1 3 && mount --bind {folder}/etc/null /dev/null && "
    "mount -t overlay -o lowerdir=/etc,upperdir={folder}/etc/upper,workdir={folder}/etc/work overlay /etc && "
)


@dataclass
class Podman:
    """podman with one low-level runtime on one machine; `prefix` is where nvinject was installed.

    Without a machine it is this one, as it is.
    """

    folder: Path
    machine: str
    prefix: Path
    runtime: str = "runc"
    specs: Path = field(init=False)

    def __post_init__(self) -> None:
        """Write the settings, and the runtime that shows the driver's procfs in containers."""
        self.specs = self.folder / "specs"
        self.specs.mkdir(parents=True)
        wrapper = self.folder / "runtime"
        low_level = shutil.which(self.runtime, path=f"{os.environ['PATH']}:/usr/sbin") or self.runtime
        if self.machine:
            self.nvfakes("runtime-wrapper", str(wrapper), "--runtime", low_level)
        else:
            wrapper.symlink_to(low_level)
        write_settings(self.folder, wrapper)

    def nvfakes(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of nvfakes."""
        return subprocess.run(
            [sys.executable, "-m", "nvfakes", *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=CALL_SECONDS,
        )

    def environment(self) -> dict[str, str]:
        """Return the environment of podman and of nvinject."""
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        return kept | {
            "PATH": f"{self.prefix}/bin:{os.environ['PATH']}:/usr/sbin:/sbin",
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "NVIDIA_CTK_CONFIG_FILE_PATH": str(self.folder / "config.toml"),
        }

    def on_machine(self, script: str, *, data: bytes | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a shell script on the machine, with the specs at /etc/cdi."""
        (self.folder / "config.toml").touch()
        enter = ["unshare", "--mount"]
        if self.machine:
            enter = [sys.executable, "-m", "nvfakes", "run", self.machine, "--"]
        begin = "" if self.machine else PLAIN.format(folder=self.folder)
        copy = f"mkdir -p /etc/cdi && cp -a {shlex.quote(str(self.specs))}/. /etc/cdi"
        whole = f"{begin}{copy} && {BEFORE[self.runtime]}; {script}"
        done = subprocess.run(
            [*enter, "sh", "-c", whole],
            input=data,
            capture_output=True,
            env=self.environment(),
            check=False,
            timeout=CALL_SECONDS,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace")
        )

    def generate(self, *options: str) -> str:
        """Write the machine's spec with nvinject; returns what it said."""
        output = shlex.quote(str(self.specs / "nvidia.yaml"))
        done = self.on_machine(f"nvinject cdi generate --output {output} {shlex.join(options)}")
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return done.stderr

    def call(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run podman."""
        return self.on_machine(f"exec podman {shlex.join(arguments)}")

    def run(
        self, script: str, *devices: str, options: tuple[str, ...] = (), family: str = "deb"
    ) -> "subprocess.CompletedProcess[str]":
        """Run a shell script in a container with devices."""
        asked = [word for device in devices for word in ("--device", device)]
        return self.call("run", "--rm", "--network=none", *asked, *options, f"{IMAGE}:{family}", "sh", "-c", script)

    def load(self, family: str, archive: bytes) -> None:
        """Make an image of a tar."""
        done = self.on_machine(f"podman import - {IMAGE}:{family}", data=archive)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)

    def close(self) -> None:
        """Remove containers and images, then the folder."""
        self.on_machine("podman rm --all --force; podman rmi --all --force")
        remove_cgroups("libpod_parent")
        with contextlib.suppress(OSError):
            shutil.rmtree(self.folder)
