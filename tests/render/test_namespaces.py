"""Plans applied to real containers in three lanes: what is there afterwards, what a failure leaves, what hostile
images reach."""

import contextlib
import os
import shutil
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvinject.core.plan import (
    BindDevice,
    BindFile,
    CreateSymlink,
    LoaderLibrary,
    MaskDirectory,
    Operation,
    Plan,
    UpdateLoaderCache,
)
from nvinject.errors import ContainerError
from nvinject.linux import mounts, syscalls
from nvinject.linux.const import CLONE_NEWNS, MS_BIND, MS_PRIVATE, MS_RDONLY, MS_REC, MS_REMOUNT
from nvinject.render.namespaces import apply, open_container

from .containers import LANES, Sandbox, call_in_child, die_with_parent

# Python 3.12 and newer warn of forks beside the threads of a test runner; the children here only make system calls.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

FILE_FLAGS = ("ro", "nosuid", "nodev")
DEVICE_FLAGS = ("ro", "nosuid", "noexec")
PROC_FLAGS = ("nosuid", "nodev", "noexec")
MS_SHARED = 0x100000
MAPPED = {"root": os.geteuid(), "final": os.geteuid(), "remapped": 100000, "rootless": os.getuid() or 65534}


@pytest.fixture(params=LANES)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """Return surroundings with driver files; the container is not started yet. Nothing outside may change."""
    made = Sandbox(request.param)
    (made.host / "libcuda.so.1").write_text("library")
    (made.host / "libcuda.so.1").chmod(0o644)
    (made.host / "nvidia-smi").write_text("program")
    (made.host / "nvidia-smi").chmod(0o755)
    (made.host / "gpu" / "deep").mkdir(parents=True)
    (made.host / "gpu" / "information").write_text("Model: A")
    (made.host / "link").symlink_to("libcuda.so.1")
    os.mkfifo(made.host / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(made.host / "socket"))
    yield made
    if made.pid:
        made.check_host()
    made.stop()


@pytest.fixture(params=[True, False], ids=["new-mount-api", "old-mount-api"])
def mount_api(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test also as on a kernel that lacks the mount API of 5.12."""
    if not request.param:
        monkeypatch.setattr(mounts, "has_mount_api", lambda: False)


def bind(sandbox: Sandbox, name: str, target: str, flags: tuple[str, ...] = FILE_FLAGS) -> BindFile:
    return BindFile(reason="test", source=str(sandbox.host / name), target=target, flags=flags)


def device(source: str, target: str, minor: int = 3) -> BindDevice:
    return BindDevice(reason="test", source=source, target=target, major=1, minor=minor, mode=0o666, flags=DEVICE_FLAGS)


def mask(target: str = "/proc/driver/nvidia", flags: tuple[str, ...] = PROC_FLAGS) -> MaskDirectory:
    files = (("params", "ModifyDeviceFiles: 0\n", 0o444), ("version", "NVRM\n", 0o444))
    return MaskDirectory(reason="test", target=target, mode=0o555, files=files, flags=flags)


def link(place: str, target: str, *, force: bool = False) -> CreateSymlink:
    return CreateSymlink(reason="test", link=place, target=target, force=force)


def loader_cache() -> UpdateLoaderCache:
    library = LoaderLibrary(soname="libcuda.so.1", path="/usr/lib/new/libcuda.so.1")
    return UpdateLoaderCache(reason="test", directories=("/usr/lib/new",), libraries=(library,))


def whole_plan(sandbox: Sandbox) -> list[Operation]:
    return [
        mask(),
        bind(sandbox, "libcuda.so.1", "/usr/lib/new/libcuda.so.1"),
        bind(sandbox, "nvidia-smi", "/usr/bin/nvidia-smi"),
        bind(sandbox, "socket", "/run/nvidia-persistenced/socket", PROC_FLAGS),
        device("/dev/null", "/dev/nvidia0"),
        bind(sandbox, "gpu", "/proc/driver/nvidia/gpus/0000:01:00.0", ("ro", *PROC_FLAGS)),
        link("/usr/lib/new/libcuda.so", "libcuda.so.1"),
        link("/usr/lib/old.so", "new/libcuda.so", force=True),
        mask("/etc/nvidia/profiles", ("ro", *PROC_FLAGS)),
        loader_cache(),
    ]


@pytest.mark.usefixtures("mount_api")
def test_a_whole_plan_is_there_afterwards(sandbox: Sandbox) -> None:
    (sandbox.rootfs / "usr/lib/old.so").write_text("of the image")
    sandbox.start()
    outcome = sandbox.apply(*whole_plan(sandbox))
    assert (outcome.message, outcome.warnings) == ("", ())
    assert len(outcome.lines) == len(whole_plan(sandbox))
    library = sandbox.inside("/usr/lib/new/libcuda.so.1")
    assert library.read_text() == "library"
    assert os.readlink(sandbox.inside("/usr/lib/new/libcuda.so")) == "libcuda.so.1"
    assert os.readlink(sandbox.inside("/usr/lib/old.so")) == "new/libcuda.so"
    assert sandbox.inside("/run/nvidia-persistenced/socket").is_socket()
    assert sandbox.inside("/dev/nvidia0").lstat().st_rdev == os.makedev(1, 3)
    masked = sandbox.inside("/proc/driver/nvidia")
    assert sorted(os.listdir(masked)) == ["gpus", "params", "version"]
    assert (masked / "gpus/0000:01:00.0/information").read_text() == "Model: A"
    assert stat.S_IMODE((masked / "params").lstat().st_mode) == 0o444
    assert sorted(os.listdir(sandbox.inside("/usr/lib"))) == ["new", "old.so"]
    assert b"/usr/lib/new/libcuda.so.1\0" in sandbox.inside("/etc/ld.so.cache").read_bytes()
    assert sorted(os.listdir(sandbox.inside("/etc"))) == ["ld.so.cache", "nvidia"]


FLAGS = {
    "/usr/lib/new/libcuda.so.1": {"ro", "nosuid", "nodev"},
    "/dev/nvidia0": {"ro", "nosuid", "noexec"},
    "/proc/driver/nvidia": {"rw", "nosuid", "nodev", "noexec"},
    "/proc/driver/nvidia/gpus/0000:01:00.0": {"ro", "nosuid", "nodev", "noexec"},
    "/etc/nvidia/profiles": {"ro", "nosuid", "nodev", "noexec"},
    "/run/nvidia-persistenced/socket": {"rw", "nosuid", "nodev", "noexec"},
}


@pytest.mark.usefixtures("mount_api")
def test_mounts_are_private_and_have_exactly_their_flags(sandbox: Sandbox) -> None:
    sandbox.start()
    assert sandbox.apply(*whole_plan(sandbox)).message == ""
    seen = {path: set(sandbox.mount_at(path).options) - {"relatime"} for path in FLAGS}
    # A device node of the host may lie on a mount with flags of its own, which a user namespace cannot drop.
    seen["/dev/nvidia0"] -= {"nodev"}
    assert seen == FLAGS
    assert all(sandbox.mount_at(path).optional == () for path in FLAGS)


def test_created_files_belong_to_the_container(sandbox: Sandbox) -> None:
    sandbox.start()
    assert sandbox.apply(*whole_plan(sandbox)).message == ""
    owner = MAPPED[sandbox.lane]
    for path, mode in (("/usr/lib/new", 0o755), ("/usr/lib/new/libcuda.so", 0o777), ("/proc/driver/nvidia", 0o555)):
        status = sandbox.inside(path).lstat()
        assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (owner, owner, mode), path
    # Below the mounts, as the image's layer will keep them.
    assert stat.S_IMODE((sandbox.rootfs / "usr/bin/nvidia-smi").lstat().st_mode) == 0o755
    assert (sandbox.rootfs / "usr/lib/new/libcuda.so.1").lstat().st_size == 0


FAILING: dict[str, tuple[Callable[[Sandbox], Operation], str, str]] = {
    "missing source": (
        lambda sandbox: bind(sandbox, "absent", "/usr/lib/x"),
        "No such file or directory",
        "must exist on the host",
    ),
    "source is a link": (lambda sandbox: bind(sandbox, "link", "/usr/lib/x"), "link is a symbolic link", ""),
    "source is a FIFO": (lambda sandbox: bind(sandbox, "fifo", "/usr/lib/x"), "fifo is a FIFO", ""),
    "source is a device": (
        lambda _: BindFile(reason="test", source="/dev/null", target="/usr/lib/x", flags=FILE_FLAGS),
        "/dev/null is a character device",
        "",
    ),
    "device is a file": (
        lambda sandbox: device(str(sandbox.host / "libcuda.so.1"), "/dev/nvidia9"),
        "is a regular file",
        "must be character device 1:3",
    ),
    "wrong device": (lambda _: device("/dev/null", "/dev/nvidia9", 5), "/dev/null is device 1:3, not 1:5", "modprobe"),
    "target is a directory": (
        lambda sandbox: bind(sandbox, "libcuda.so.1", "/usr/lib"),
        "/usr/lib is a directory in the container, where a regular file is needed",
        "image",
    ),
    "target is a file": (
        lambda sandbox: bind(sandbox, "gpu", "/etc/hostname"),
        "/etc/hostname is a regular file in the container, where a directory is needed",
        "image",
    ),
    "target is a FIFO": (
        lambda sandbox: bind(sandbox, "libcuda.so.1", "/etc/fifo"),
        "/etc/fifo is a FIFO in the container",
        "image",
    ),
    "target below a file": (
        lambda sandbox: bind(sandbox, "libcuda.so.1", "/etc/hostname/deep/x"),
        "/etc/hostname/deep/x: Not a directory",
        "a file where a directory is needed",
    ),
    "target in a loop": (
        lambda sandbox: bind(sandbox, "libcuda.so.1", "/etc/loop/x"),
        "/etc/loop/x: Too many levels of symbolic links",
        "symbolic links",
    ),
    "mask without the driver": (
        lambda _: mask("/proc/driver/other"),
        "No such file or directory",
        "driver is not loaded on this kernel",
    ),
    "link over a directory": (
        lambda _: link("/etc/directory", "x", force=True),
        "Is a directory",
        "directory where a link is needed",
    ),
    "link below a file": (lambda _: link("/etc/hostname/x", "x"), "Not a directory", "where a directory is needed"),
}


def hostile_names(rootfs: Path) -> None:
    (rootfs / "etc/hostname").write_text("image")
    (rootfs / "etc/directory").mkdir()
    (rootfs / "etc/loop").symlink_to("loop")
    os.mkfifo(rootfs / "etc/fifo")


@pytest.mark.usefixtures("mount_api")
@pytest.mark.parametrize("case", FAILING)
def test_failure_undoes_everything(sandbox: Sandbox, case: str) -> None:
    make, message, hint = FAILING[case]
    hostile_names(sandbox.rootfs)
    (sandbox.rootfs / "usr/lib/old.so").write_text("of the image")
    sandbox.start()
    before = sandbox.state()
    operation = make(sandbox)
    outcome = sandbox.apply(*whole_plan(sandbox), operation)
    assert outcome.message.startswith(f"cannot apply {operation.describe()}: ")
    assert message in outcome.message
    assert "could not undo" not in outcome.message
    assert hint in outcome.hint
    assert "\n" not in outcome.message + outcome.hint
    assert sandbox.state() == before


@pytest.mark.parametrize("position", range(11))
def test_failure_at_every_position_undoes_everything(sandbox: Sandbox, position: int) -> None:
    hostile_names(sandbox.rootfs)
    (sandbox.rootfs / "usr/lib/old.so").symlink_to("somewhere")
    sandbox.start()
    before = sandbox.state()
    plan = whole_plan(sandbox)
    plan.insert(position, bind(sandbox, "libcuda.so.1", "/etc/hostname/x"))
    outcome = sandbox.apply(*plan)
    assert "Not a directory" in outcome.message
    assert len(outcome.lines) == position + 1
    assert sandbox.state() == before


# What an image may put at a place to lead us to the host; {canary} is a directory of the host.
TRAPS: dict[str, tuple[str, str]] = {
    "library directory, absolute": ("usr/lib/new", "{canary}/target-dir"),
    "library directory, upwards": ("usr/lib/new", "../../../../../../../../../..{canary}/target-dir"),
    "program, absolute": ("usr/bin/nvidia-smi", "{canary}/secret"),
    "program, upwards": ("usr/bin/nvidia-smi", "../../../../../../../../..{canary}/secret"),
    "library, dangling": ("usr/lib/new/libcuda.so.1", "{canary}/target-dir/fresh"),
    "usr": ("usr", "{canary}/target-dir"),
    "dev": ("dev", "/..{canary}/target-dir"),
    "etc": ("etc", "/..{canary}/target-dir"),
    "run": ("run", "/..{canary}/target-dir"),
    "run, to proc": ("run", "/proc/1/root{canary}/target-dir"),
    "usr, to itself in proc": ("usr", "/proc/self/cwd"),
    "link's place": ("usr/lib/old.so", "{canary}/secret"),
}


@pytest.mark.usefixtures("mount_api")
@pytest.mark.parametrize("case", TRAPS)
def test_traps_of_an_image_never_reach_the_host(sandbox: Sandbox, case: str) -> None:
    place, target = TRAPS[case]
    trap = sandbox.rootfs / place
    if trap.is_dir():
        shutil.rmtree(trap)
    trap.parent.mkdir(parents=True, exist_ok=True)
    trap.symlink_to(target.format(canary=sandbox.canary))
    sandbox.start()
    before = sandbox.state()
    outcome = sandbox.apply(*whole_plan(sandbox))
    sandbox.check_host()
    if outcome.message:
        assert sandbox.state() == before
    else:
        inside = [mount for mount in sandbox.mounts() if mount.root.startswith(str(sandbox.host))]
        assert all(mount.mount_point.startswith(f"{sandbox.rootfs}/") for mount in inside)


def swap_for_ever(sandbox: Sandbox) -> int:
    """Start a process that replaces the library directory by a link to the host and back, without a pause."""
    child = os.fork()
    if child == 0:
        try:
            die_with_parent()
            os.chdir(sandbox.rootfs / "usr/lib")
            while True:
                for old, new in (("new", "aside"), ("trap", "new"), ("new", "trap"), ("aside", "new")):
                    # Fails where the directory was missing for a moment and was made anew meanwhile.
                    with contextlib.suppress(OSError):
                        os.rename(old, new)
        finally:
            os._exit(1)
    return child


def test_directory_swapped_for_a_link_meanwhile(sandbox: Sandbox) -> None:
    (sandbox.rootfs / "usr/lib/new").mkdir()
    (sandbox.rootfs / "usr/lib/trap").symlink_to(f"../../../../../../../..{sandbox.canary}/target-dir")
    sandbox.start()
    swapper = swap_for_ever(sandbox)
    try:
        for _ in range(15):
            sandbox.apply(
                bind(sandbox, "libcuda.so.1", "/usr/lib/new/libcuda.so.1"), link("/usr/lib/new/x", "y", force=True)
            )
            sandbox.check_host()
    finally:
        os.kill(swapper, signal.SIGKILL)
        os.waitpid(swapper, 0)


class Strange(Operation):
    """An operation that no renderer knows."""

    ending: bool = False

    def describe(self) -> str:
        if self.ending:
            os.kill(os.getpid(), signal.SIGKILL)
        return "strange"


def test_faults_of_our_own_are_undone_and_told_apart(sandbox: Sandbox) -> None:
    sandbox.start()
    before = sandbox.state()
    outcome = sandbox.apply(*whole_plan(sandbox), Strange(reason="test"))
    assert outcome.message == "cannot apply strange: TypeError: no way to do Strange in a container"
    assert "fault of nvinject" in outcome.hint
    assert sandbox.state() == before


# The lane final has no helper: the runtime sees how the hook itself ended.
@pytest.mark.parametrize("sandbox", [lane for lane in LANES if lane != "final"], indirect=True)
def test_helper_that_is_killed_is_an_error(sandbox: Sandbox) -> None:
    sandbox.start()
    outcome = sandbox.apply(link("/usr/lib/x", "y"), Strange(reason="test", ending=True))
    assert outcome.message == "the process that changes the container ended before it was done"
    assert "half changed" in outcome.hint


@pytest.mark.parametrize("kind", ["symlink", "directory", "tmpfs", "sub-directory of proc"])
def test_proc_that_is_no_procfs_is_refused(sandbox: Sandbox, kind: str) -> None:
    (sandbox.rootfs / "fake/driver/nvidia").mkdir(parents=True)
    (sandbox.rootfs / "proc").rmdir()
    if kind == "symlink":
        (sandbox.rootfs / "proc").symlink_to("fake")

    def prepare(rootfs: Path) -> None:
        if kind == "symlink":
            return
        (rootfs / "proc").mkdir()
        if kind == "tmpfs":
            syscalls.mount("tmpfs", f"{rootfs}/proc", "tmpfs", 0, None)
        if kind == "sub-directory of proc":
            syscalls.mount("/proc/sys", f"{rootfs}/proc", None, MS_BIND | MS_REC, None)
        else:
            (rootfs / "proc/driver/nvidia").mkdir(parents=True)

    sandbox.start(prepare)
    before = sandbox.mounts()
    outcome = sandbox.apply(bind(sandbox, "libcuda.so.1", "/usr/lib/x"), mask())
    assert "of another file system than procfs" in outcome.message
    assert sandbox.mounts() == before


def make_read_only(rootfs: Path) -> None:
    syscalls.mount(None, str(rootfs), None, MS_REMOUNT | MS_BIND | MS_RDONLY, None)


def test_read_only_root_names_the_cause_and_is_left_alone(sandbox: Sandbox) -> None:
    sandbox.start(make_read_only)
    before = sandbox.state()
    outcome = sandbox.apply(*whole_plan(sandbox))
    assert "Read-only file system" in outcome.message
    assert "read-only" in outcome.hint
    assert sandbox.state() == before


def test_read_only_root_is_enough_where_every_place_exists(sandbox: Sandbox) -> None:
    (sandbox.rootfs / "usr/lib/libcuda.so.1").touch()
    (sandbox.rootfs / "etc/gpu").mkdir()

    sandbox.start(make_read_only)
    outcome = sandbox.apply(
        bind(sandbox, "libcuda.so.1", "/usr/lib/libcuda.so.1"), bind(sandbox, "gpu", "/etc/gpu"), mask()
    )
    assert outcome.message == ""


def test_full_file_system_names_the_cause(sandbox: Sandbox) -> None:
    def prepare(rootfs: Path) -> None:
        syscalls.mount("tmpfs", f"{rootfs}/usr", "tmpfs", 0, "nr_inodes=4")
        (rootfs / "usr/bin").mkdir()

    sandbox.start(prepare)
    before = sandbox.state()
    outcome = sandbox.apply(*whole_plan(sandbox))
    assert "No space left on device" in outcome.message
    assert "free space" in outcome.hint
    assert sandbox.state() == before


def test_existing_links_and_files_stay_without_force(sandbox: Sandbox) -> None:
    (sandbox.rootfs / "usr/lib/a").write_text("image")
    (sandbox.rootfs / "usr/lib/b").symlink_to("other")
    sandbox.start()
    before = sandbox.state()
    assert sandbox.apply(link("/usr/lib/a", "x"), link("/usr/lib/b", "x")).message == ""
    assert sandbox.state() == before
    forced = sandbox.apply(link("/usr/lib/b", "x", force=True), link("/usr/lib/a", "x", force=True))
    assert forced.message == ""
    assert [os.readlink(sandbox.inside(f"/usr/lib/{name}")) for name in "ab"] == ["x", "x"]


def test_device_of_the_runtime_is_covered(sandbox: Sandbox) -> None:
    def prepare(rootfs: Path) -> None:
        (rootfs / "dev/nvidia0").touch()
        syscalls.mount("/dev/zero", f"{rootfs}/dev/nvidia0", None, MS_BIND, None)

    sandbox.start(prepare)
    assert sandbox.apply(device("/dev/null", "/dev/nvidia0")).message == ""
    assert sandbox.inside("/dev/nvidia0").lstat().st_rdev == os.makedev(1, 3)


def change_root(rootfs: Path) -> None:
    os.chdir(rootfs)
    os.mkdir("old")
    os.chroot(".")
    os.chdir("/")


def test_container_whose_root_was_changed(sandbox: Sandbox) -> None:
    sandbox.start(change_root)
    container = open_container(sandbox.pid, str(sandbox.rootfs)) if sandbox.lane != "rootless" else None
    if container is not None:
        assert os.path.samestat(os.fstat(container.root_fd), os.stat(sandbox.rootfs))
        os.close(container.root_fd)
        os.close(container.proc_fd)
    outcome = sandbox.apply(bind(sandbox, "libcuda.so.1", "/usr/lib/x"))
    assert outcome.message == ""


def test_shared_root_does_not_leak_mounts_to_the_host() -> None:
    def host() -> str:
        made = Sandbox("root")
        try:
            syscalls.unshare(CLONE_NEWNS)
            syscalls.mount(None, "/", None, MS_PRIVATE | MS_REC, None)
        except OSError as error:
            made.stop()
            return f"skip: {error}"
        (made.host / "libcuda.so.1").write_text("library")
        syscalls.mount(str(made.rootfs), str(made.rootfs), None, MS_BIND, None)
        syscalls.mount(None, str(made.rootfs), None, MS_SHARED, None)

        def prepare(rootfs: Path) -> None:
            # The harness made everything a slave; this is what a runtime does for shared volumes.
            syscalls.mount(None, "/", None, MS_SHARED | MS_REC, None)
            (rootfs / "usr/volume").mkdir()
            syscalls.mount("tmpfs", f"{rootfs}/usr/volume", "tmpfs", 0, None)

        made.start(prepare)
        shared = [mount for mount in made.mounts() if any(tag.startswith("shared:") for tag in mount.optional)]
        outcome = made.apply(
            bind(made, "libcuda.so.1", "/usr/volume/x"), bind(made, "libcuda.so.1", "/usr/lib/x"), mask()
        )
        optional = [made.mount_at(path).optional for path in ("/usr/volume/x", "/usr/lib/x", "/usr/volume")]
        made.check_host()
        syscalls.umount2(str(made.rootfs), 2)
        made.stop()
        return f"{outcome.message} {len(shared) > 0} {optional}"

    word = call_in_child(host)
    if word.startswith("skip: "):
        pytest.skip(f"no mount namespace of our own: {word[6:]}")
    assert word == " True [(), (), ()]"


def test_process_that_is_gone() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(ContainerError, match=f"process {child} does not exist"):
        open_container(child, "/")


def test_root_that_is_not_there(sandbox: Sandbox) -> None:
    sandbox.start()
    with pytest.raises(ContainerError, match="cannot open the root file system /absent"):
        open_container(sandbox.pid, "/absent")


def test_process_in_the_mount_namespace_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "library").touch()
    bound = BindFile(reason="test", source=str(tmp_path / "library"), target="/usr/lib/x", flags=FILE_FLAGS)

    def work() -> str:
        try:
            apply(Plan(operations=(bound,)), open_container(os.getpid(), str(tmp_path)), no_cgroups=True)
        except ContainerError as error:
            return error.message
        return ""

    assert "is in the mount namespace of the host" in call_in_child(work)
    assert sorted(os.listdir(tmp_path)) == ["library"]
