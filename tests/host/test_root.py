"""Root: links stay inside, missing is told apart from refused, and the root's own prefix never shows."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import nvinject
from nvinject.errors import HostError
from nvinject.host.root import Root, path_below

from .machine import write


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Build a driver root beside a neighbour whose name starts alike."""
    root = tmp_path / "driver"
    write(root, "/usr/lib/libx.so.1.2", "inside")
    write(root, "/etc/alternatives/keep", "")
    write(tmp_path, "/driver2/usr/lib/libx.so.1.2", "outside")
    (root / "etc/alternatives/libx").symlink_to("/usr/lib/libx.so.1.2")
    (root / "usr/lib/libx.so.1").symlink_to("/etc/alternatives/libx")
    (root / "lib").symlink_to("usr/lib")
    (root / "escape").symlink_to("../../driver2/usr/lib/libx.so.1.2")
    (root / "climb").symlink_to("../../../../../../usr/lib/libx.so.1.2")
    (root / "loop").symlink_to("loop")
    (root / "dangling").symlink_to("/nowhere")
    return root


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("/usr/lib/libx.so.1.2", "/usr/lib/libx.so.1.2"),
        ("/usr/lib/libx.so.1", "/usr/lib/libx.so.1.2"),
        ("/lib/libx.so.1", "/usr/lib/libx.so.1.2"),
        ("/climb", "/usr/lib/libx.so.1.2"),
        ("/", "/"),
        ("/lib", "/usr/lib"),
        ("/escape", None),
        ("/loop", None),
        ("/dangling", None),
        ("/usr/lib/libx.so.1.2/below", None),
    ],
)
def test_resolve(base: Path, path: str, resolved: str | None) -> None:
    """Links, absolute ones too, count from the root; what is outside is not there."""
    with Root(str(base)) as root:
        assert root.resolve(path) == resolved
        assert root.exists(path) == (resolved is not None)


def test_root_reached_through_a_link(base: Path) -> None:
    """A root that is itself a link gives the same paths, without the prefix of either name."""
    link = base.parent / "current"
    link.symlink_to(base)
    with Root(f"{link}/") as root:
        assert root.path == str(link)
        assert root.resolve("/lib/libx.so.1") == "/usr/lib/libx.so.1.2"
        assert root.host_path("/usr") == f"{link}/usr"


def test_host_root() -> None:
    """The host's own root has no prefix to take away."""
    with Root("/") as root:
        assert root.resolve("/proc") == "/proc"
        assert root.host_path("/proc") == "/proc"


def test_reading(base: Path) -> None:
    """Content, kinds and names are read below the root; what is not there is None or nothing."""
    with Root(str(base)) as root:
        assert root.read("/lib/libx.so.1") == b"inside"
        assert root.read_text("/usr/lib/libx.so.1.2") == "inside"
        assert root.read("/nowhere") is None
        assert root.list_directory("/lib") == ("libx.so.1", "libx.so.1.2")
        assert root.list_directory("/nowhere") == ()
        assert root.expand("/lib/*") == ("/lib/libx.so.1", "/lib/libx.so.1.2")
        assert (root.expand("/lib"), root.expand("/nowhere/*")) == (("/lib",), ())
        located = root.lstat("/lib")
        assert located is not None
        assert stat.S_ISLNK(located.st_mode)


def test_read_refused(base: Path) -> None:
    """A thing that is there and cannot be read is an error, not an absence."""
    with Root(str(base)) as root, pytest.raises(HostError) as caught:
        root.read("/usr/lib")
    assert caught.value.message == f"cannot read {base}/usr/lib: Is a directory"


@pytest.mark.parametrize("name", ["nowhere", "driver/usr/lib/libx.so.1.2"])
def test_root_that_is_none(base: Path, name: str) -> None:
    """A root that is not there is named with its key."""
    path = str(base.parent / name)
    with pytest.raises(HostError) as caught:
        Root(path, title="driver root", key="nvidia-container-cli.root")
    problem = "does not exist" if name == "nowhere" else "is not a directory"
    assert str(caught.value) == f"driver root {path} {problem}; nvidia-container-cli.root must name a directory"


def test_no_descriptor_stays_open(base: Path) -> None:
    """Looking around leaves no file descriptor behind, whatever the outcome."""
    before = sorted(os.listdir("/proc/self/fd"))
    with Root(str(base)) as root:
        for path in ("/lib/libx.so.1", "/nowhere", "/loop", "/lib"):
            root.resolve(path)
            root.stat(path)
            root.list_directory(path)
        root.read("/lib/libx.so.1")
        with pytest.raises(HostError):
            root.read("/lib")
    assert sorted(os.listdir("/proc/self/fd")) == before


READ_AS_NOBODY = """
import sys
sys.path.insert(0, sys.argv[2])
from nvinject.errors import HostError
from nvinject.host.root import Root, path_below
try:
    Root(sys.argv[1]).read("/secret/version")
except HostError as error:
    print(error)
"""


def test_permission_is_told_apart(open_directory: Path) -> None:
    """What an ordinary user may not read is said to be there."""
    write(open_directory, "/secret/version", "x")
    (open_directory / "secret").chmod(0o700)
    package = open_directory / "package"
    shutil.copytree(Path(nvinject.__file__).parent, package / "nvinject")
    said = run_as_nobody([READ_AS_NOBODY, str(open_directory), str(package)])
    expected = f"cannot read {open_directory}/secret/version: Permission denied; it is there, but this user may not"
    assert said.startswith(expected)


def run_as_nobody(arguments: list[str]) -> str:
    """Run Python code as another user, with the first interpreter that this user can start; skip without one."""
    problems = []
    for interpreter in (sys.executable, "/usr/bin/python3"):
        command = [interpreter, "-I", "-c", *arguments]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, user=65534, cwd="/").stdout
        except (OSError, subprocess.CalledProcessError) as error:
            problems.append(str(error))
    pytest.skip(f"no Python starts as another user: {problems[-1]}")


BELOW = [
    ("/", "/usr/lib", "/usr/lib"),
    ("/run/nvidia/driver", "/run/nvidia/driver", "/"),
    ("/run/nvidia/driver", "/run/nvidia/driver/usr/lib", "/usr/lib"),
    ("/run/nvidia/driver", "/run/nvidia/driver2/usr/lib", ""),
    ("/run/nvidia/driver", "/run/nvidia/driver-old", ""),
    ("/run/nvidia/driver", "/run/nvidia", ""),
    ("/run/nvidia/driver", "/run/nvidia/drive/r", ""),
]


@pytest.mark.parametrize(("root", "path", "below"), BELOW)
def test_below_a_root_at_a_component_boundary(root: str, path: str, below: str) -> None:
    """A name that begins like the root's is another folder."""
    assert path_below(root, path) == below


def test_a_root_shows_paths_that_the_host_names(base: Path) -> None:
    """What is not below it has no name there."""
    with Root(f"{base}/") as root:
        assert root.shown_below(f"{base}/usr/lib") == "/usr/lib"
        assert root.shown_below(f"{base}2/usr/lib") == ""
