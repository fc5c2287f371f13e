"""The hooks of CDI specs as a runtime starts them: a process, the state on standard input, a root file system.

Each hook runs on friendly images and on those that research into earlier injectors found (links out of the root, pipes,
devices, files where folders are needed). What lies outside of the root is compared before and after.
"""

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nvinject.cli.cdihook import Call, ignore
from nvinject.formats.ldcache import parse_cache
from tests.formats.elfbuilder import build_elf
from tests.formats.test_compatnote import build as build_note

SECONDS = 20
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
CUDA = f"{LIBRARIES}/libcuda.so"
FOLDERS = "/etc/ld.so.conf.d/00-nvcr-nvinject.conf"


def call(*words: str | Path, given: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a program with a container's state on its standard input, and an environment that has nothing else."""
    return subprocess.run(
        words, input=given, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
    )


class Image:
    """A bundle with a root file system, and a folder beside it that nobody may touch."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "bundle" / "rootfs"
        self.canary = base / "canary"
        self.canary.mkdir(parents=True)
        (self.canary / "secret").write_text("secret")
        self.write("/etc/passwd", "root")
        (base / "bundle" / "config.json").write_text(json.dumps({"root": {"path": "rootfs"}}))

    def write(self, path: str, content: str | bytes = "") -> Path:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.encode())
        return place

    def link(self, path: str, target: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def outside(self) -> list[tuple[str, str]]:
        """Return what lies outside of the root."""
        found = []
        for folder, names, files in os.walk(self.base):
            if Path(folder) == self.root.parent:
                names.remove("rootfs")
            found += [(f"{folder}/{name}", (Path(folder) / name).read_text()) for name in files]
            found += [(f"{folder}/{name}", "") for name in names]
        return sorted(found)

    def run(self, *arguments: str, state: object = None, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run a hook as a runtime does."""
        given = {"bundle": str(self.base / "bundle"), "pid": 0} if state is None else state
        text = given if isinstance(given, str) else json.dumps(given)
        variables = {"NVIDIA_CTK_DEBUG": "false", **environment}
        return call(sys.executable, "-m", "nvinject", "cdi-hook", *arguments, given=text, **variables)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def test_links_are_made_below_the_root(image: Image) -> None:
    """Missing folders are made, and what is there already is replaced in one step."""
    image.link(f"{CUDA}.1", "libcuda.so.470")
    pairs = (f"libcuda.so.570::{CUDA}.1", f"libcuda.so.1::{CUDA}", "../card1::/dev/dri/by-path/pci-card")
    done = image.run("create-symlinks", *(word for pair in pairs for word in ("--link", pair)))
    assert (done.returncode, done.stderr) == (0, "")
    assert os.readlink(image.at(f"{CUDA}.1")) == "libcuda.so.570"
    assert os.readlink(image.at(CUDA)) == "libcuda.so.1"
    assert os.readlink(image.at("/dev/dri/by-path/pci-card")) == "../card1"
    assert sorted(os.listdir(image.at(LIBRARIES))) == ["libcuda.so", "libcuda.so.1"]


def test_links_that_are_there_are_left_alone(image: Image) -> None:
    """A container that is started again finds them."""
    image.link(CUDA, "libcuda.so.1")
    before = os.lstat(image.at(CUDA))
    assert image.run("create-symlinks", f"--link=libcuda.so.1::{CUDA}").returncode == 0
    assert os.lstat(image.at(CUDA)).st_ino == before.st_ino


def nothing(_: Image) -> None:
    """Leave the image as it is."""


def climb(image: Image) -> str:
    return "/../../../../../../../.." + str(image.canary)


# What is done to the image; the link; where it ends up, "" where the hook refuses.
LINKS: list[tuple[str, Callable[[Image], object], str, str]] = [
    ("folder leads out", lambda image: image.link(LIBRARIES, climb(image)), CUDA, "canary/libcuda.so"),
    ("folder is an absolute link", lambda image: image.link("/usr/lib", str(image.canary)), CUDA, "libcuda.so"),
    ("relative link", nothing, "rel/b", "rel/b"),
    ("climbing link", nothing, "/../../b", "b"),
    ("no name", nothing, "/usr/..", ""),
    ("root", nothing, "/", ""),
    ("folder is a file", lambda image: image.write("/usr/lib", "file"), CUDA, ""),
    ("folder is a loop", lambda image: image.link("/usr/lib", "lib"), CUDA, ""),
    ("a folder is in the way", lambda image: image.write(f"{CUDA}/file"), CUDA, ""),
]  # fmt: skip


@pytest.mark.parametrize(("title", "attack", "link", "place"), LINKS, ids=[title for title, *_ in LINKS])
def test_links_never_leave_the_root(
    image: Image, title: str, attack: Callable[[Image], object], link: str, place: str
) -> None:
    """A hostile image gets its link inside, or a refusal that names the link (CVE-2024-0134, CVE-2026-24260)."""
    attack(image)
    before = image.outside()
    done = image.run("create-symlinks", "--link", f"libcuda.so.1::{link}")
    assert image.outside() == before
    if place:
        assert (done.returncode, done.stderr) == (0, "")
        found = [str(path.relative_to(image.root)) for path in image.root.rglob("*") if path.is_symlink()]
        assert [path for path in found if path.endswith(place)]
    else:
        assert done.returncode == 7
        assert link in done.stderr
        assert done.stderr.count("\n") == 1


def cached(image: Image) -> dict[str, str]:
    cache = parse_cache(image.at("/etc/ld.so.cache").read_bytes())
    return {entry.soname: entry.path for entry in reversed(cache.entries)}


def add_cuda(image: Image, directory: str = LIBRARIES, version: str = "570.133.20") -> None:
    image.write(f"{directory}/libcuda.so.{version}", build_elf(soname="libcuda.so.1"))
    image.link(f"{directory}/libcuda.so.1", f"libcuda.so.{version}")


def test_the_loader_cache_knows_the_folders(image: Image) -> None:
    """Folders that the image would not search are configured for its own ldconfig too; a second run adds nothing."""
    image.write("/etc/debian_version", "12")
    add_cuda(image, "/opt/nvidia")
    image.write("/etc/ld.so.conf.d/00-local.conf", "/opt/local\n")
    image.write("/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    for _ in range(2):
        done = image.run("update-ldcache", "--folder", f"/opt/nvidia,{LIBRARIES}", "--ldconfig-path", "/sbin/ldconfig")
        assert (done.returncode, done.stderr) == (0, "")
        assert cached(image)["libcuda.so.1"] == "/opt/nvidia/libcuda.so.1"
        configured = {path.name: path.read_text() for path in image.at("/etc/ld.so.conf.d").iterdir()}
        assert configured == {"00-local.conf": "/opt/local\n", "00-nvcr-nvinject.conf": "/opt/nvidia\n"}


def test_a_configuration_that_cannot_be_written_is_a_warning(image: Image) -> None:
    """The loader cache has the libraries; only the image's own ldconfig would not find them again."""
    add_cuda(image, "/opt/nvidia")
    image.link("/etc/ld.so.conf.d", "/proc/1/root/etc")
    image.link("/proc/1", "/proc/1")
    done = image.run("update-ldcache", "--folder", "/opt/nvidia")
    assert done.returncode == 0
    assert done.stderr.startswith("nvinject: warning: /opt/nvidia cannot be configured for the container's ldconfig: ")
    assert cached(image)["libcuda.so.1"] == "/opt/nvidia/libcuda.so.1"


def test_musl_gets_its_path_file(image: Image) -> None:
    """An image without glibc has no use for a cache."""
    image.write(f"/lib/ld-musl-{os.uname().machine}.so.1", "loader")
    assert image.run("update-ldcache", "--folder", "/opt/nvidia").returncode == 0
    assert "/opt/nvidia\n" in image.at(f"/etc/ld-musl-{os.uname().machine}.path").read_text()
    assert not image.at("/etc/ld.so.cache").exists()


def fifo(image: Image, path: str) -> None:
    image.at(path).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(image.at(path))


def sparse(image: Image, path: str) -> None:
    os.truncate(image.write(path), 2 << 30)


ATTACKS: list[tuple[str, Callable[[Image], object]]] = [
    ("cache leads out", lambda image: image.link("/etc/ld.so.cache", f"{image.canary}/secret")),
    ("configuration leads out", lambda image: image.link("/etc/ld.so.conf.d", str(image.canary))),
    ("file of ours leads out", lambda image: image.link(FOLDERS, f"{image.canary}/x")),
    ("pipe as configuration", lambda image: fifo(image, "/etc/ld.so.conf")),
    ("pipe as cache", lambda image: fifo(image, "/etc/ld.so.cache")),
    ("endless configuration", lambda image: sparse(image, "/etc/ld.so.conf")),
    ("endless cache", lambda image: sparse(image, "/etc/ld.so.cache")),
    ("configuration includes itself", lambda image: image.write("/etc/ld.so.conf", "include /etc/ld.so.conf\n")),
    ("library is a pipe", lambda image: fifo(image, "/opt/nvidia/libx.so.1")),
    ("library leads out", lambda image: image.link("/opt/nvidia/libx.so.1", f"{image.canary}/secret")),
]  # fmt: skip


@pytest.mark.parametrize(("title", "attack"), ATTACKS, ids=[title for title, _ in ATTACKS])
def test_the_loader_cache_of_hostile_images(image: Image, title: str, attack: Callable[[Image], object]) -> None:
    """Nothing outside changes, nothing hangs, and the library is found (CVE-2025-23267)."""
    add_cuda(image, "/opt/nvidia")
    attack(image)
    before = image.outside()
    done = image.run("update-ldcache", "--folder", "/opt/nvidia")
    assert (done.returncode, done.stderr) == (0, "")
    assert image.outside() == before
    assert stat.S_ISREG(os.lstat(image.at("/etc/ld.so.cache")).st_mode)
    assert cached(image)["libcuda.so.1"] == "/opt/nvidia/libcuda.so.1"


def test_an_etc_that_leads_out_stays_inside(image: Image) -> None:
    """The link counts from the image's root."""
    image.at("/etc/passwd").unlink()
    image.at("/etc").rmdir()
    image.link("/etc", climb(image))
    before = image.outside()
    assert image.run("update-ldcache", "--folder", "/opt/nvidia").returncode == 0
    assert image.outside() == before
    assert (Path(f"{image.root}{image.canary}") / "ld.so.cache").exists()


COMPAT = "/usr/local/cuda-12.9/compat"


def add_compat(image: Image, version: str, drivers: list[int] | None = None) -> None:
    content = build_elf(soname="libcuda.so.1")
    if drivers is not None:
        content = build_note({"Driver": drivers, "CUDA Version": "12.9"})
    image.write(f"{COMPAT}/libcuda.so.{version}", content)
    image.link(f"{COMPAT}/libcuda.so.1", f"libcuda.so.{version}")
    image.link("/usr/local/cuda", "cuda-12.9")


CHOICES = [
    (("--host-driver-version=570.133.20",), "575.51.03", None, True),
    (("--host-driver-version", "575.51.03"), "575.51.03", None, False),
    (("--host-driver-version=580.65.6",), "580.126.1", [570, 580], True),
    (("--host-driver-version=550.1",), "580.126.1", [570, 580], False),
    (("--host-cuda-version=12.8",), "580.126.1", [570, 580], True),
    (("--host-cuda-version=12.8",), "580.126.1", None, False),
    ((), "999.1", None, False),
    (("--host-driver-version=570.1", "--cuda-compat-container-root=/opt/compat"), "575.1", None, False),
]


@pytest.mark.parametrize(("given", "version", "drivers", "used"), CHOICES)
def test_newer_cuda_libraries_of_the_image_come_first(
    image: Image, given: tuple[str, ...], version: str, drivers: list[int] | None, *, used: bool
) -> None:
    """One file configures them, and the cache of the next hook has them before the host's."""
    add_cuda(image)
    add_compat(image, version, drivers)
    done = image.run("enable-cuda-compat", *given)
    assert (done.returncode, done.stderr) == (0, "")
    conf = image.at("/etc/ld.so.conf.d/00-compat-nvinject.conf")
    assert conf.exists() is used
    if used:
        assert conf.read_text() == f"{COMPAT}\n"
    assert image.run("update-ldcache", "--folder", LIBRARIES).returncode == 0
    if drivers is None:  # the file with a note is no library
        assert cached(image)["libcuda.so.1"] == f"{COMPAT if used else LIBRARIES}/libcuda.so.1"


def test_a_decision_is_taken_back(image: Image) -> None:
    """A container that is started again on a newer driver needs the image's libraries no longer."""
    add_compat(image, "575.51.03")
    for driver, there in (("570.1", True), ("575.60", False), ("580.1", False)):
        assert image.run("enable-cuda-compat", f"--host-driver-version={driver}").returncode == 0
        assert image.at("/etc/ld.so.conf.d/00-compat-nvinject.conf").exists() is there


def test_a_compat_folder_that_leads_out_is_not_used(image: Image) -> None:
    """Libraries outside of the image are nothing to it."""
    (image.canary / "libcuda.so.999.1").write_bytes(build_elf(soname="libcuda.so.1"))
    image.link("/usr/local/cuda/compat", str(image.canary))
    assert image.run("enable-cuda-compat", "--host-driver-version=570.1").returncode == 0
    assert not image.at("/etc/ld.so.conf.d").exists()


# As crun does: the root file system's mount forbids writing before hooks run. Then what the container would see there.
READ_ONLY = """\
set -e
mount --bind {root} {root}
mkdir -p {root}/dev && touch {root}/dev/nvidia0 && mount --bind /dev/null {root}/dev/nvidia0
{before}
mount -o remount,bind,ro {root}
{hook}
! touch {root}/file 2>/dev/null
"""


def run_read_only(
    image: Image, *arguments: str, before: str = "", after: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a hook as root of a user namespace of its own, on a root file system whose mount is read-only."""
    words = shlex.join([sys.executable, "-m", "nvinject", "cdi-hook", *arguments])
    state = json.dumps({"bundle": str(image.base / "bundle"), "pid": 0})
    hook = f"echo {shlex.quote(state)} | NVIDIA_CTK_DEBUG=false {words}"
    script = READ_ONLY.format(root=image.root, hook=hook, before=before) + after
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    if "unshare" in done.stderr:
        pytest.skip(f"a user namespace is needed: {done.stderr.strip()}")
    return done


def test_a_read_only_root_file_system(image: Image) -> None:
    """Files are made although the container's mount forbids it, which stays as it is (crun, podman --read-only)."""
    add_cuda(image, "/opt/nvidia")
    for arguments in (
        ("create-symlinks", "--link", f"libcuda.so.1::{CUDA}"),
        ("update-ldcache", "--folder", "/opt/nvidia"),
    ):
        done = run_read_only(image, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
    assert os.readlink(image.at(CUDA)) == "libcuda.so.1"
    assert cached(image)["libcuda.so.1"] == "/opt/nvidia/libcuda.so.1"
    assert image.at(FOLDERS).read_text() == "/opt/nvidia\n"


def test_a_mount_on_a_read_only_root_file_system(image: Image) -> None:
    """Its place is made behind the read-only mount, and the container sees the new mount."""
    profile = "/etc/nvidia/nvidia-application-profiles-rc.d"
    done = run_read_only(image, "update-application-profile", after=f"ls {image.root}{profile}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "10-container.conf\n", "")
    assert list(image.at(profile).iterdir()) == []


def test_a_volume_that_is_read_only_stays_so(image: Image) -> None:
    """What the container mounts read-only below its root is not the hook's to write to."""
    volume = image.canary / "volume"
    (volume / "x86_64-linux-gnu").mkdir(parents=True)
    image.at("/usr/lib").mkdir(parents=True)
    before = f"mount --bind {volume} {image.root}/usr/lib; mount -o remount,bind,ro {image.root}/usr/lib"
    done = run_read_only(image, "create-symlinks", "--link", f"libcuda.so.1::{CUDA}", before=before)
    assert done.returncode == 7
    assert "Read-only file system" in done.stderr
    assert list((volume / "x86_64-linux-gnu").iterdir()) == []


def test_modes_are_changed_inside_only(image: Image) -> None:
    """What is missing is left out; a link that leads out is followed inside."""
    image.write("/dev/dri/card0")
    image.at("/dev/dri").chmod(0o700)
    image.link("/dev/out", str(image.canary))
    image.canary.chmod(0o700)
    done = image.run("chmod", "--mode", "755", "--path", "/dev/dri,/dev/out,/dev/missing")
    assert (done.returncode, done.stderr) == (0, "")
    assert stat.S_IMODE(image.at("/dev/dri").stat().st_mode) == 0o755
    assert stat.S_IMODE(image.canary.stat().st_mode) == 0o700


def test_hooks_without_their_ground_do_nothing(image: Image) -> None:
    """No driver in the container's procfs, no GPU in its /dev."""
    before = sorted(str(path) for path in image.root.rglob("*"))
    for hook in ("disable-device-node-modification", "update-application-profile", "noop"):
        done = image.run(hook)
        assert (done.returncode, done.stderr) == (0, "")
    assert sorted(str(path) for path in image.root.rglob("*")) == before


WORDS = [
    ((), 0, "No CDI hook specified"),
    (("dance", "--step", "1"), 0, "Unsupported CDI hook: dance"),
    (("--debug", "dance"), 0, "Unsupported CDI hook: dance"),
    (("create-symlinks", "--step"), 2, "has no option --step"),
    (("create-symlinks", "--link"), 2, "--link needs a value"),
    (("create-symlinks", "--link", "a"), 2, "invalid symlink specification: a"),
    (("create-symlinks", "--link", "a::b::c"), 2, "invalid symlink specification"),
    (("chmod", "--mode", "9", "--path", "/x"), 2, "--mode 9 is no octal number"),
    (("chmod", "--path", "/x"), 2, "--mode is missing"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), WORDS)
def test_arguments(image: Image, arguments: tuple[str, ...], code: int, words: str) -> None:
    """An unknown hook is let pass, so that a newer spec works; an unknown option of a known hook is not."""
    done = image.run(*arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


STATES: list[tuple[object, int, str]] = [
    ("", 3, "not JSON"),
    ("[]", 3, "not a JSON object"),
    ({"bundle": "/no/such/bundle"}, 7, "cannot find the container's root file system"),
    ({"bundle": "relative"}, 7, "cannot find the container's root file system"),
    ({"root": "/"}, 7, "is the host's"),
]


@pytest.mark.parametrize(("state", "code", "words"), STATES)
def test_states(image: Image, state: object, code: int, words: str) -> None:
    """Without a root file system of the container nothing is done; never the host's."""
    done = image.run("create-symlinks", "--link", "a::/tmp/nvinject-must-not-exist", state=state)
    assert done.returncode == code
    assert words in done.stderr
    assert not os.path.lexists("/tmp/nvinject-must-not-exist")


def test_the_root_may_be_in_the_state_and_the_state_in_a_file(image: Image, tmp_path: Path) -> None:
    """crun tells the root file system itself; --container-spec names the state."""
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"root": str(image.root)}))
    assert image.run("create-symlinks", "--link", "a::/b", "--container-spec", str(state), state="").returncode == 0
    assert os.readlink(image.at("/b")) == "a"


@pytest.mark.parametrize("variable", ["LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "PYTHONPATH", "GCONV_PATH"])
def test_an_environment_of_the_container_stops_the_hook(image: Image, variable: str) -> None:
    """runc gives hooks without env the container's; whoever wrote that spec has to know (CVE-2025-23266)."""
    done = image.run("create-symlinks", "--link", "a::/b", **{variable: "/nonexistent"})
    assert done.returncode == 7
    assert variable in done.stderr
    assert not os.path.lexists(image.at("/b"))


def test_the_same_hooks_answer_to_the_other_names(image: Image) -> None:
    """`nvinject hook NAME` and `nvidia-ctk hook NAME` are the same."""
    for number, words in enumerate((("hook",), ("ctk", "hook"), ("ctk", "--debug", "hook"))):
        hook = (sys.executable, "-m", "nvinject", *words, "create-symlinks", "--link", f"a::/{number}")
        done = call(*hook, given=json.dumps({"root": str(image.root)}))
        assert done.returncode == 0, done.stderr
        assert os.readlink(image.at(f"/{number}")) == "a"


TRACED = [
    ("create-symlinks", "--link", f"libcuda.so.1::{CUDA}", "--link", "../card1::/dev/dri/by-path/pci-card"),
    ("enable-cuda-compat", "--host-driver-version=570.1"),
    ("update-ldcache", "--folder", "/opt/nvidia"),
    ("disable-device-node-modification",),
    ("update-application-profile",),
    ("chmod", "--mode", "755", "--path", "/usr/lib"),
]
# call(folder's descriptor<its path>, "path", ...), and call("path", ...)
STEP = re.compile(r'^\d+\s+(?P<call>\w+)\((?:AT_FDCWD|\d+)(?:<(?P<place>[^>]*)>)?, "(?P<path>[^"]*)"(?P<rest>.*)')
ONE_PATH = re.compile(r'^\d+\s+(?P<call>\w+)\("(?P<path>[^"]*)"')


def judge_trace(text: str, root: str) -> tuple[list[str], int]:
    """Hold the calls of a trace to the rule; returns the calls that name the root itself, and how many go below it."""
    opened, steps = [], 0
    for line in text.splitlines():
        match = STEP.match(line) or ONE_PATH.match(line)
        if match is None:
            continue
        path, place = match["path"], match.groupdict().get("place") or ""
        if path.startswith(root):
            opened.append(match["call"])
        elif place.startswith(root):
            steps += 1
            assert match["call"] == "openat2" or "/" not in path, line
            if match["call"] == "openat" and path not in {".", ".."}:
                assert "O_NOFOLLOW" in match["rest"], line
    return opened, steps


@pytest.mark.parametrize("arguments", TRACED, ids=[arguments[0] for arguments in TRACED])
def test_no_path_of_the_image_is_resolved_twice(image: Image, arguments: tuple[str, ...], tmp_path: Path) -> None:
    """After the root is opened, every step is openat2 below it, or one component of a folder that is held open.

    That leaves nobody a moment between looking and doing, so no race needs to be won by a test (CVE-2026-24260).
    """
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is missing; install it")
    image.write("/usr/lib/file")
    add_compat(image, "575.51.03")
    add_cuda(image, "/opt/nvidia")
    trace = tmp_path / "trace"
    done = call(
        *(strace, "-f", "-y", "-e", "trace=%file", "-o", trace),
        *(sys.executable, "-m", "nvinject", "cdi-hook", *arguments),
        given=json.dumps({"root": str(image.root)}),
    )
    if "ptrace" in done.stderr.lower() and done.returncode != 0:
        pytest.skip(f"processes cannot be traced here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    opened, steps = judge_trace(trace.read_text(), str(image.root))
    assert opened == ["openat"]
    assert steps


def test_descriptors_that_cannot_be_closed_fail_no_hook(image: Image) -> None:
    """What the hook did is final by then, and a failure would leave it in a container that is not started."""
    root_fd = os.open(image.root, os.O_PATH | os.O_DIRECTORY)
    hook = Call({}, root_fd, ignore)
    for descriptor in {hook.root_fd, hook.writable_fd}:
        os.close(descriptor)
    hook.close()
