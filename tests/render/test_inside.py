"""The root file system of a container as its createContainer hook finds it: what of it may be written to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# The mounts of each story, made in a mount namespace of its own below $1; the last line says where the container is.
STORIES = [
    ("crun makes its own bind read-only", "mkdir a\nmount --bind a a\nmount -o remount,bind,ro a", "a", True),
    (
        "somebody has shown the tree read-only, and a runtime binds that",
        "mkdir tree a\nmount --bind tree a\nmount -o remount,bind,ro a\nmount --bind a a",
        "a",
        False,
    ),
    (
        "the same, and the runtime makes its bind read-only once more",
        "mkdir tree a\nmount --bind tree a\nmount -o remount,bind,ro a\nmount --bind a a\nmount -o remount,bind,ro a",
        "a",
        False,
    ),
    ("nothing is read-only", "mkdir a\nmount --bind a a", "a", True),
    ("the file system itself is read-only", "mkdir a\nmount -t tmpfs -o ro none a\nmount --bind a a", "a", False),
]
PROBE = """
import os, sys
from nvinject.render.inside import open_writable
root_fd = os.open(sys.argv[1], os.O_PATH | os.O_DIRECTORY)
writable_fd = open_writable(root_fd)
try:
    os.close(os.open("made", os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=writable_fd))
    print("written")
except OSError as error:
    print(error.strerror)
"""


def need_mount_namespaces() -> None:
    """Skip where none can be made, with the reason."""
    tried = subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no mount namespace can be made here: {tried.stderr.strip()}")


@pytest.mark.parametrize(("title", "mounts", "place", "writable"), STORIES, ids=[story[0] for story in STORIES])
def test_only_what_the_runtime_made_read_only_is_written(
    tmp_path: Path, title: str, mounts: str, place: str, *, writable: bool
) -> None:
    """A tree that somebody else shows read-only may be shared by several containers."""
    need_mount_namespaces()
    script = f'set -e\nmount -t tmpfs none .\ncd .\ncd $PWD\n{mounts}\nexec $0 -c "$1" {place}'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, sys.executable, PROBE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.strip() == ("written" if writable else "Read-only file system"), (title, done.stderr)


CLOSING = """
import os, sys
from nvinject import leanos
from nvinject.core.plan import WriteFile
from nvinject.render.inside import apply_here
close = os.close

def close_badly(descriptor):
    lost = os.readlink(f"/proc/self/fd/{descriptor}") == f"/proc/{os.getpid()}"
    close(descriptor)
    if lost:
        raise OSError(5, "Input/output error")

os.close = leanos.close = close_badly
root_fd = os.open(sys.argv[1], os.O_PATH | os.O_DIRECTORY)
print(apply_here((WriteFile(reason="tried", target="/made", content="text", mode=0o644),), root_fd, print))
"""


def test_a_descriptor_that_cannot_be_closed_refuses_nothing(tmp_path: Path) -> None:
    """By then everything is done, and nothing would take it back."""
    need_mount_namespaces()
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", CLOSING, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1:] == ["()"], done.stderr
    assert (tmp_path / "made").read_text() == "text"
