"""The devices controller of cgroup v1: what a list grants already, and a real cgroup where we may make one."""

import os
from collections.abc import Iterator

import pytest

from nvinject.linux import cgroup

RUNC_LIST = "c *:* m\nb *:* m\nc 1:3 rwm\nc 136:* rwm\nc 195:0 r\n"

# list, (major, minor, access), letters that are missing
MISSING = [
    ("a *:* rwm\n", (195, 0, "rw"), ""),
    ("", (195, 0, "rw"), "rw"),
    (RUNC_LIST, (195, 0, "rw"), "w"),
    (RUNC_LIST, (195, 1, "rw"), "rw"),
    (RUNC_LIST, (195, 1, "rwm"), "rw"),
    (RUNC_LIST, (136, 7, "rw"), ""),
    ("b 195:0 rwm\n", (195, 0, "rw"), "rw"),
]


@pytest.mark.parametrize(("device_list", "asked", "missing"), MISSING)
def test_missing_access(device_list: str, asked: tuple[int, int, str], missing: str) -> None:
    assert cgroup.missing_access(device_list, *asked) == missing


@pytest.fixture
def devices_cgroup() -> Iterator[int]:
    """Make a cgroup below the devices hierarchy, or skip."""
    path = f"/sys/fs/cgroup/devices/nvinject-test-{os.getpid()}"
    try:
        os.mkdir(path)
    except OSError as error:
        pytest.skip(f"no cgroup v1 devices hierarchy to write to: {error}")
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)
    os.rmdir(path)


def test_rules_of_a_real_cgroup(devices_cgroup: int) -> None:
    try:
        cgroup.deny_device(devices_cgroup, "a")
    except OSError as error:
        pytest.skip(f"device rules cannot be written: {error}")
    cgroup.allow_device(devices_cgroup, "c 1:3 rwm")
    cgroup.allow_device(devices_cgroup, "c 195:0 rw")
    assert cgroup.read_device_list(devices_cgroup) == "c 1:3 rwm\nc 195:0 rw\n"
    cgroup.deny_device(devices_cgroup, "c 195:0 rw")
    assert cgroup.read_device_list(devices_cgroup) == "c 1:3 rwm\n"
