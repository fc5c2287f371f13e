"""The daemons that the tests of engines share: one with two GPUs, one without a driver.

Belongs here: starting them once, and telling why they cannot be had. Does not belong here: any expectation.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from .daemon import Daemon, install_hook, running
from .image import FAMILIES, ImageError, build_image

MISSING = {"dockerd": "install docker.io", "runc": "install runc", "cc": "install gcc and libc6-dev"}
IMAGE = "nvconform"
# Debian keeps system programs where an ordinary user's PATH does not look.
SEARCH_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


def give_up(reason: str) -> NoReturn:
    """Skip with the reason; where NVCONFORM_REQUIRE lists `docker`, nothing may be skipped, and it is a failure."""
    if "docker" in os.environ.get("NVCONFORM_REQUIRE", "").split(","):
        pytest.fail(f"docker is required here, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def images() -> dict[str, bytes]:
    """Build the images, or say what the host lacks."""
    try:
        return {family: build_image(family) for family in FAMILIES}
    except ImageError as error:
        give_up(str(error))


@pytest.fixture(scope="session")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install nvinject and return the prefix."""
    prefix = tmp_path_factory.mktemp("prefix")
    install_hook(prefix)
    return prefix


@pytest.fixture(scope="session")
def dockerd() -> str:
    """Return the program, or skip where a private one cannot run; what is permitted is found out by doing it."""
    for program, remedy in MISSING.items():
        if shutil.which(program, path=SEARCH_PATH) is None:
            give_up(f"{program} is missing; {remedy}")
    # A fake machine needs a mount namespace and device nodes of its own.
    tried = subprocess.run(
        ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt && mknod /mnt/node c 195 255"],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    if tried.returncode != 0:
        give_up(f"a private dockerd needs root: {tried.stderr.strip().splitlines()[-1]}")
    return shutil.which("dockerd", path=SEARCH_PATH) or ""


@contextlib.contextmanager
def started(daemon: Daemon, images: dict[str, bytes]) -> Iterator[Daemon]:
    """Run a daemon that has the images."""
    with running(daemon), contextlib.closing(daemon.client()) as client:
        for family, archive in images.items():
            client.api.import_image_from_data(archive, repository=IMAGE, tag=family)
        yield daemon


@pytest.fixture(scope="session")
def two_gpus(
    dockerd: str, hook: Path, images: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Daemon]:
    """Return a daemon on a machine with two H100."""
    with started(Daemon(dockerd, tmp_path_factory.mktemp("two") / "dockerd.log", "two-h100", hook), images) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def two_gpus_unified(
    dockerd: str, hook: Path, images: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Daemon]:
    """Return a daemon on a machine with two H100 and cgroup v2 only."""
    known = Path("/proc/filesystems").read_text().split()
    if "cgroup2" not in known:
        give_up("this kernel has no cgroup v2")
    log = tmp_path_factory.mktemp("unified") / "dockerd.log"
    with started(Daemon(dockerd, log, "two-h100", hook, unified=True), images) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def no_driver(
    dockerd: str, hook: Path, images: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Daemon]:
    """Return a daemon on a machine without GPU and driver."""
    with started(Daemon(dockerd, tmp_path_factory.mktemp("none") / "dockerd.log", "no-driver", hook), images) as daemon:
        yield daemon
