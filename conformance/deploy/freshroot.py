"""A Debian in an overlay: what is written into it vanishes, and it has a root directory, /dev and a dpkg of its own.

Belongs here: making one and running scripts in it, on a fake machine if wanted. Does not belong here: fetching the tree
that lies below (engines.trixie) and what is installed.
"""

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SCRIPT_SECONDS = 180
REPOSITORY = Path(__file__).parents[2]

# Folders of the machine that runs the tests, under their own names: this repository, its Python, compiled fakes.
ENTER = """\
set -e
mount --make-rprivate /
mkdir -p {folder}/root {folder}/upper {folder}/work
mount -t overlay -o lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work overlay {folder}/root
cd {folder}/root
for name in proc sys dev; do mount --rbind /$name $name; done
for name in run tmp; do mount -t tmpfs tmpfs $name; done
for name in {shared}; do mkdir -p .$name; mount --rbind $name .$name; done
[ -s .{compiler} ] || {{ touch .{compiler}; mount --bind {compiler} .{compiler}; }}
mkdir -p old; pivot_root . old; umount -l /old; rmdir /old; cd /
rm -rf /etc/cdi /etc/docker /usr/local/bin /usr/local/sbin; mkdir /usr/local/bin /usr/local/sbin
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""


def compiler() -> str:
    """Return the C compiler that nvfakes uses here."""
    return shlex.quote(
        os.path.realpath(shutil.which(os.environ.get("CC") or "gcc") or shutil.which("cc") or "/nowhere")
    )


@dataclass(frozen=True)
class FreshRoot:
    """A tree to begin with, a folder for the overlay, and the interpreter in the tree that runs nvfakes."""

    lower: Path
    folder: Path
    interpreter: str

    @property
    def fakes(self) -> str:
        """Return the command that starts nvfakes inside."""
        return f"env PYTHONPATH={REPOSITORY}/fakes {shlex.quote(self.interpreter)} -m nvfakes"

    def clean(self) -> "subprocess.CompletedProcess[str]":
        """Take away what tests of others left in the tree below, which they share."""
        return self.run("rm -rf /etc/nvidia-container-runtime /var/lib/nvinject")

    def run(self, script: str, *shared: Path) -> "subprocess.CompletedProcess[str]":
        """Run a script in the tree; what an earlier one wrote is there."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        (cache / "nvfakes").mkdir(parents=True, exist_ok=True)
        folders = [REPOSITORY, Path(sys.base_prefix), cache / "nvfakes", *shared]
        outside = [folder for folder in folders if folder != Path("/usr")]  # Debian's own Python is in the tree
        enter = ENTER.format(
            folder=shlex.quote(str(self.folder)),
            lower=shlex.quote(str(self.lower)),
            compiler=compiler(),
            shared=" ".join(shlex.quote(str(folder)) for folder in outside),
        )
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", enter + script],
            capture_output=True,
            text=True,
            check=False,
            timeout=SCRIPT_SECONDS,
            env={
                "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
                "HOME": "/root",
                "LC_ALL": "C.UTF-8",
                # What was compiled outside is known by its compiler, which is shown inside by its name.
                "XDG_CACHE_HOME": str(cache),
                "CC": compiler(),
            },
        )
