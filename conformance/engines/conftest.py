"""The daemons that the tests of engines share: one with two GPUs, one without a driver.

Belongs here: starting them once, and telling why they cannot be had. Does not belong here: any expectation.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvconform.required import give_up

from .daemon import Daemon, install_hook, running
from .image import FAMILIES, ImageError, build_image

MISSING = {"dockerd": "install docker.io", "runc": "install runc", "cc": "install gcc and libc6-dev"}
IMAGE = "nvconform"
Start = Callable[..., contextlib.AbstractContextManager[Daemon]]
# Debian keeps system programs where an ordinary user's PATH does not look.
SEARCH_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


@pytest.fixture(scope="session")
def images() -> dict[str, bytes]:
    """Build the images, or say what the host lacks."""
    try:
        return {family: build_image(family) for family in FAMILIES}
    except ImageError as error:
        give_up("docker", str(error))


@pytest.fixture(scope="session")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install nvinject and return the prefix."""
    prefix = tmp_path_factory.mktemp("prefix")
    install_hook(prefix)
    return prefix


def why_no_machine() -> str:
    """Return why there can be no fake machine, which has mounts and device nodes of its own, "" where it can."""
    tried = subprocess.run(
        ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt && mknod /mnt/node c 195 255"],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    return "" if tried.returncode == 0 else tried.stderr.strip().splitlines()[-1]


@pytest.fixture(scope="session")
def dockerd() -> str:
    """Return the program, or skip where a private one cannot run; what is permitted is found out by doing it."""
    for program, remedy in MISSING.items():
        if shutil.which(program, path=SEARCH_PATH) is None:
            give_up("docker", f"{program} is missing; {remedy}")
    problem = why_no_machine()
    if problem:
        give_up("docker", f"a private dockerd needs root: {problem}")
    return shutil.which("dockerd", path=SEARCH_PATH) or ""


@contextlib.contextmanager
def started(daemon: Daemon, images: dict[str, bytes]) -> Iterator[Daemon]:
    """Run a daemon that has the images."""
    with running(daemon), contextlib.closing(daemon.client()) as client:
        for family, archive in images.items():
            client.api.import_image_from_data(archive, repository=IMAGE, tag=family)
        yield daemon


@pytest.fixture(scope="session")
def start(dockerd: str, hook: Path, images: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Return a function of a machine that starts a daemon there, with nvinject and the images."""

    def start_on(
        machine: str, kind: type[Daemon] = Daemon, **options: bool
    ) -> contextlib.AbstractContextManager[Daemon]:
        log = tmp_path_factory.mktemp(Path(machine).stem) / "dockerd.log"
        return started(kind(dockerd, log, machine, hook, **options), images)

    return start_on


@pytest.fixture(scope="session")
def two_gpus(start: Start) -> Iterator[Daemon]:
    """Return a daemon on a machine with two H100."""
    with start("two-h100") as daemon:
        yield daemon


@pytest.fixture(scope="session")
def two_gpus_unified(start: Start) -> Iterator[Daemon]:
    """Return a daemon on a machine with two H100 and cgroup v2 only."""
    known = Path("/proc/filesystems").read_text().split()
    if "cgroup2" not in known:
        give_up("docker", "this kernel has no cgroup v2")
    with start("two-h100", unified=True) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def no_driver(start: Start) -> Iterator[Daemon]:
    """Return a daemon on a machine without GPU and driver."""
    with start("no-driver") as daemon:
        yield daemon
