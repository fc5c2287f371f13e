"""Device rules of containers: which cgroup is theirs, and rules of real cgroups of both versions."""

import errno
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvinject.core.plan import AllowDevice, BindFile
from nvinject.formats.mountinfo import parse_mountinfo
from nvinject.linux import devicebpf, syscalls
from nvinject.linux.const import BPF_F_ALLOW_MULTI, CLONE_NEWNS, MNT_DETACH, MS_PRIVATE, MS_REC
from nvinject.render.cgroup import DeviceCgroup, NoDeviceCgroupError, find_device_cgroup

from .containers import Outcome, Sandbox, call_in_child

# Python 3.12 and newer warn of forks beside the threads of a test runner; the children here only make system calls.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

V1 = "33 31 0:29 / /cg/cpu rw - cgroup cgroup rw,cpu\n36 31 0:33 {root} /cg/devices rw - cgroup cgroup rw,devices\n"
V2 = "41 31 0:38 {root} /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = "5:devices:/a/b\n1:cpu:/x\n0::/u\n"
UNIFIED = "0::/u/v\n"

# /proc/pid/cgroup, our mountinfo, version and path
FOUND = [
    (HYBRID, V1.format(root="/") + V2.format(root="/"), (1, "/cg/devices/a/b")),
    (HYBRID, V2.format(root="/"), (2, "/sys/fs/cgroup/u")),
    (UNIFIED, V1.format(root="/") + V2.format(root="/"), (2, "/sys/fs/cgroup/u/v")),
    (UNIFIED, V2.format(root="/u"), (2, "/sys/fs/cgroup/v")),
    (UNIFIED, V2.format(root="/u/v"), (2, "/sys/fs/cgroup")),
    (UNIFIED, V2.format(root="/other") + V2.format(root="/u"), (2, "/sys/fs/cgroup/v")),
    ("0::/\n", V2.format(root="/"), (2, "/sys/fs/cgroup")),
    ("6:memory,devices:/a:b\n0::/\n", V1.format(root="/"), (1, "/cg/devices/a:b")),
    ("1:name=systemd:/s\n0::/u\n", V1.format(root="/") + V2.format(root="/"), (2, "/sys/fs/cgroup/u")),
]

NOT_FOUND = [
    ("", V2.format(root="/"), "in no cgroup that has device rules"),
    ("1:name=systemd:/s\n", V1.format(root="/"), "in no cgroup that has device rules"),
    ("5:devices:/a/b\n", V2.format(root="/"), "no mount of cgroup version 1 shows the container's cgroup /a/b"),
    (UNIFIED, V2.format(root="/u/vw"), "no mount of cgroup version 2"),
    ("0::/../x\n", V2.format(root="/"), "outside of this cgroup namespace"),
]


@pytest.mark.parametrize(("membership", "mountinfo", "expected"), FOUND)
def test_cgroup_is_found(membership: str, mountinfo: str, expected: tuple[int, str]) -> None:
    found = find_device_cgroup(membership, parse_mountinfo(mountinfo))
    assert found == DeviceCgroup(version=expected[0], path=expected[1])


@pytest.mark.parametrize(("membership", "mountinfo", "message"), NOT_FOUND)
def test_cgroup_is_not_found(membership: str, mountinfo: str, message: str) -> None:
    with pytest.raises(NoDeviceCgroupError, match=message):
        find_device_cgroup(membership, parse_mountinfo(mountinfo))


def allow(minor: int, access: str = "rw") -> AllowDevice:
    return AllowDevice(reason="test", major=195, minor=minor, access=access)


def failing() -> BindFile:
    return BindFile(reason="test", source="/absent", target="/x", flags=())


class Version1:
    """A container in a devices cgroup of version 1 that allows /dev/null only."""

    def __init__(self, lane: str) -> None:
        self.path = Path(f"/sys/fs/cgroup/devices/nvinject-test-{os.getpid()}")
        self.sandbox = Sandbox(lane)
        self.home = Path("/sys/fs/cgroup/devices/cgroup.procs")
        try:
            self.path.mkdir()
            (self.path / "devices.deny").write_text("a")
            (self.path / "devices.allow").write_text("c 1:3 rwm")
        except OSError as error:
            self.stop()
            pytest.skip(f"no cgroup v1 devices hierarchy to write to: {error.strerror}")
        self.sandbox.start()
        (self.path / "cgroup.procs").write_text(str(self.sandbox.pid))

    def rules(self) -> list[str]:
        """Return devices.list."""
        return (self.path / "devices.list").read_text().splitlines()

    def stop(self) -> None:
        """Remove container and cgroup."""
        self.sandbox.stop()
        if self.path.exists():
            self.path.rmdir()


@pytest.fixture(params=["root", "remapped"])
def version1(request: pytest.FixtureRequest) -> Iterator[Version1]:
    """Return a container with real rules of version 1, or skip."""
    made = Version1(request.param)
    yield made
    made.sandbox.check_host()
    made.stop()


def test_version_1_rules_are_added(version1: Version1) -> None:
    outcome = version1.sandbox.apply(allow(0), allow(255), allow(0, "r"), no_cgroups=False)
    assert (outcome.message, outcome.warnings) == ("", ())
    assert version1.rules() == ["c 1:3 rwm", "c 195:0 rw", "c 195:255 rw"]


def test_version_1_rules_are_taken_back(version1: Version1) -> None:
    (version1.path / "devices.allow").write_text("c 195:0 r")
    before = version1.rules()
    outcome = version1.sandbox.apply(allow(0), allow(255), failing(), no_cgroups=False)
    assert "No such file or directory" in outcome.message
    assert "could not undo" not in outcome.message
    assert version1.rules() == before


def test_no_cgroups_leaves_the_rules_alone(version1: Version1) -> None:
    before = version1.rules()
    assert version1.sandbox.apply(allow(0), no_cgroups=True).message == ""
    assert version1.rules() == before


def test_rootless_container_gets_a_warning() -> None:
    sandbox = Sandbox("rootless")
    try:
        sandbox.start()
        outcome = sandbox.apply(allow(0), no_cgroups=False)
        sandbox.check_host()
    finally:
        sandbox.stop()
    assert outcome.message == ""
    # As root of a machine whose devices cgroup of the tests allows everything already, there is nothing to do.
    assert [warning.partition(":")[0] for warning in outcome.warnings] in ([], ["device rules are left as they are"])


DENY_ALL_BUT_NULL = b"".join(
    struct.pack("=BBhi", *instruction)
    for instruction in (
        (0x61, 0x12, 4, 0),  # r2 = major
        (0x55, 0x02, 4, 1),  # if r2 != 1 goto deny
        (0x61, 0x12, 8, 0),  # r2 = minor
        (0x55, 0x02, 2, 3),  # if r2 != 3 goto deny
        (0xB7, 0x00, 0, 1),
        (0x95, 0x00, 0, 0),
        (0xB7, 0x00, 0, 0),
        (0x95, 0x00, 0, 0),
    )
)

Version2Body = Callable[[Sandbox, str, Path], object]


def with_version_2(body: Version2Body, programs: int, flags: int = BPF_F_ALLOW_MULTI) -> object:
    """Run `body` where only cgroup v2 is mounted, with a container in a cgroup that has some device programs.

    Device nodes are opened by a process in that cgroup. Skips where the kernel or our rights do not allow it.
    """

    def work() -> object:
        sandbox = Sandbox("root")
        group = Path(f"/sys/fs/cgroup/nvinject-test-{os.getpid()}")
        node = sandbox.host / "nvidia0"
        try:
            syscalls.unshare(CLONE_NEWNS)
            syscalls.mount(None, "/", None, MS_PRIVATE | MS_REC, None)
            syscalls.umount2("/sys/fs/cgroup", MNT_DETACH)
            syscalls.mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, None)
            group.mkdir()
            os.mknod(node, 0o20666, os.makedev(195, 0))
            group_fd = os.open(group, os.O_RDONLY)
            for _ in range(programs):
                devicebpf.attach_program(group_fd, devicebpf.load_program(DENY_ALL_BUT_NULL), flags)
        except OSError as error:
            sandbox.stop()
            return f"skip: {error}"
        try:
            sandbox.start()
            (group / "cgroup.procs").write_text(str(sandbox.pid))
            return body(sandbox, str(node), group)
        finally:
            sandbox.stop()
            group.rmdir()

    word = call_in_child(work)
    if isinstance(word, str) and word.startswith("skip: "):
        pytest.skip(f"no view of cgroup v2 with device programs can be made here: {word[6:]}")
    return word


def open_in_group(group: Path, path: str, flags: int = os.O_RDWR) -> str:
    """Return the name of the error that a process in the cgroup gets for opening a file, "" for none."""

    def work() -> str:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        try:
            os.close(os.open(path, flags))
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return ""

    return str(call_in_child(work))


def program_ids(group: Path) -> tuple[int, ...]:
    fd = os.open(group, os.O_RDONLY)
    try:
        return devicebpf.query_programs(fd)[1]
    finally:
        os.close(fd)


def told(outcome: Outcome) -> str:
    return f"{outcome.message}{outcome.warnings}"


@pytest.mark.parametrize(
    ("programs", "flags"), [(1, BPF_F_ALLOW_MULTI), (1, 0), (2, BPF_F_ALLOW_MULTI)], ids=["multi", "single", "two"]
)
def test_version_2_program_lets_the_device_pass(programs: int, flags: int) -> None:
    def body(sandbox: Sandbox, node: str, group: Path) -> object:
        before = open_in_group(group, node), open_in_group(group, "/dev/null"), open_in_group(group, "/dev/zero")
        outcome = sandbox.apply(allow(0), allow(255), no_cgroups=False)
        after = open_in_group(group, node), open_in_group(group, "/dev/null"), open_in_group(group, "/dev/zero")
        return told(outcome), before, after, len(program_ids(group))

    # ENXIO: allowed, and no driver serves the number.
    expected = ("()", ("EPERM", "", "EPERM"), ("ENXIO", "", "EPERM"), programs)
    assert with_version_2(body, programs, flags) == expected


def test_version_2_program_is_put_back() -> None:
    def body(sandbox: Sandbox, node: str, group: Path) -> object:
        before = program_ids(group)
        outcome = sandbox.apply(allow(0), failing(), no_cgroups=False)
        return outcome.message.partition(": ")[2], open_in_group(group, node), program_ids(group) == before

    assert with_version_2(body, 2) == ("/absent: No such file or directory", "EPERM", True)


def test_version_2_without_a_program_needs_nothing() -> None:
    def body(sandbox: Sandbox, node: str, group: Path) -> object:
        outcome = sandbox.apply(allow(0), no_cgroups=False)
        return told(outcome), open_in_group(group, node), program_ids(group), outcome.lines[-1]

    expected = ("()", "ENXIO", (), "no device program is attached to the cgroup: every device is allowed already")
    assert with_version_2(body, 0) == expected
