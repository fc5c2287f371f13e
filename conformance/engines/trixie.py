"""Debian 13 in a folder, for engines that Debian 12 is too old for: docker with CDI of its own, podman 5.

Belongs here: fetching the tree once, and running a script in it. Does not belong here: what containers are asked. The
tree is fetched by debootstrap from the mirror that this machine's own apt uses; NVCONFORM_TRIXIE names one that is
there already.
"""

import fcntl
import os
import shlex
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "NVCONFORM_TRIXIE"
# debootstrap does not look at what packages provide: libre2-11 stands for a dependency of python3-grpcio.
PACKAGES = (
    "docker.io,docker-cli,containerd,podman,runc,crun,busybox-static,python3,python3-yaml,python3-grpcio,libre2-11,"
    "ca-certificates"
)
FETCH_SECONDS = 900
SCRIPT_SECONDS = 240
COMPLETE = ".nvconform-complete"

# A private mount namespace whose root is the tree: engines need pivot_root, which a chroot forbids.
ENTER = """\
set -e
mount --make-rprivate /
mount --bind {tree} {tree}
for folder in proc sys dev; do mount --rbind /$folder {tree}/$folder; done
mount -t tmpfs tmpfs {tree}/dev/shm
mount -t tmpfs tmpfs {tree}/run
mount -t tmpfs tmpfs {tree}/tmp
for folder in {shared}; do mkdir -p {tree}$folder && mount --rbind $folder {tree}$folder; done
mkdir -p {tree}/old {tree}/etc/cdi && rm -f {tree}/etc/cdi/*
cd {tree} && pivot_root . old && umount -l /old && cd /
"""


class TrixieError(Exception):
    """The tree cannot be had; the message says why."""


def find_tree() -> Path:
    """Return the tree, fetching it the first time; raises TrixieError."""
    given = os.environ.get(VARIABLE, "")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # A tree that has other packages is left alone: tests of another checkout may be running in it.
    tree = Path(given) if given else cache / "nvconform" / f"trixie-{zlib.crc32(PACKAGES.encode()):08x}"
    if given and not (tree / "usr/bin/dockerd").exists() and not (tree / "usr/sbin/dockerd").exists():
        raise TrixieError(f"{VARIABLE} names {tree}, which has no dockerd")
    if not given:
        tree.parent.mkdir(parents=True, exist_ok=True)
        with tree.with_suffix(".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another process of the suite may be fetching it
            if not (tree / COMPLETE).exists():
                fetch(tree)
    return tree


def fetch(tree: Path) -> None:
    """Unpack Debian 13 with its engines; raises TrixieError."""
    program = shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise TrixieError("debootstrap is missing; install it")
    mirror = next(mirrors(), "")
    if not mirror:
        raise TrixieError("this machine's apt has no mirror of Debian")
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    done = subprocess.run(
        [program, "--variant=minbase", f"--include={PACKAGES}", "trixie", str(tree), mirror],
        capture_output=True,
        text=True,
        check=False,
        timeout=FETCH_SECONDS,
    )
    if done.returncode != 0:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise TrixieError(f"debootstrap failed: {' '.join(last)}")
    (tree / COMPLETE).touch()


def mirrors() -> Iterator[str]:
    """Yield the addresses of Debian's main archive in this machine's apt sources."""
    for path in sorted(Path("/etc/apt").glob("sources.list.d/*.sources")):
        for paragraph in path.read_text().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line)
            suites = fields.get("Suites", "").split()
            if "main" in fields.get("Components", "").split() and not any("security" in suite for suite in suites):
                yield from fields.get("URIs", "").split()
    for path in (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt").glob("sources.list.d/*.list"))):
        for line in path.read_text().splitlines() if path.exists() else ():
            words = [word for word in line.split() if not word.startswith("[") and not word.endswith("]")]
            if words[:1] == ["deb"] and "main" in words[3:] and "security" not in words[2] and "debian" in words[1]:
                yield words[1]


def run_in(tree: Path, script: str, *shared: Path) -> "subprocess.CompletedProcess[str]":
    """Run a script in the tree; the shared folders are there under their own paths."""
    folders = " ".join(shlex.quote(str(path)) for path in shared)
    whole = ENTER.format(tree=shlex.quote(str(tree)), shared=folders) + script
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", whole],
        capture_output=True,
        text=True,
        check=False,
        timeout=SCRIPT_SECONDS,
        env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TERM": "dumb"},
    )
