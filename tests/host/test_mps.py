"""The multi-process service: what its pipe directory tells of the daemon."""

import os

import pytest

from nvinject.host.mps import find_fault, pipe_directory
from nvinject.host.root import Root

from .machine import HostTree, give, write

PIPES = "/tmp/nvidia-mps"

# files of the pipe directory (None: there is none), processes of /proc, what is wrong
STATES: list[tuple[dict[str, str] | None, tuple[int, ...], str]] = [
    (None, (1,), "/tmp/nvidia-mps is missing"),
    ({}, (1,), "/tmp/nvidia-mps/control is missing"),
    ({"control": ""}, (1,), ""),
    ({"control": "", "nvidia-cuda-mps-control.pid": ""}, (1,), ""),
    ({"control": "", "nvidia-cuda-mps-control.pid": "77\n"}, (1, 77), ""),
    ({"control": "", "nvidia-cuda-mps-control.pid": "77\n"}, (1,), "names process 77, which has ended"),
    ({"control": "", "nvidia-cuda-mps-control.pid": "77\n"}, (), ""),
    ({"control": "", "nvidia-cuda-mps-control.pid": "text"}, (1,), ""),
]


@pytest.mark.parametrize(("names", "processes", "fault"), STATES)
def test_what_is_wrong_with_a_daemon(
    tree: HostTree, names: dict[str, str] | None, processes: tuple[int, ...], fault: str
) -> None:
    """A folder that stands for /proc may hold no processes; then a pid file says nothing."""
    for name, text in (names or {}).items():
        write(tree.root, f"{PIPES}/{name}", text)
    if names is not None:
        os.makedirs(tree.root / "tmp/nvidia-mps", exist_ok=True)
    for pid in processes:
        write(tree.proc, f"/{pid}/stat", "")
    with Root(str(tree.root)) as root, Root(str(tree.proc)) as proc:
        found = find_fault(root, proc, ())
    assert found.removeprefix(str(tree.root)).endswith(fault) if fault else found == ""


def test_a_directory_of_another_user_serves_no_containers_unless_it_is_named(tree: HostTree) -> None:
    """They are not shown it (files.find_sockets), however well its daemon is."""
    write(tree.root, f"{PIPES}/control", "")
    give(tree.root / PIPES[1:], 1000)
    with Root(str(tree.root)) as root, Root(str(tree.proc)) as proc:
        assert f"{PIPES} belongs to user 1000" in find_fault(root, proc, ())
        assert find_fault(root, proc, (("CUDA_MPS_PIPE_DIRECTORY", PIPES),)) == ""


def test_where_the_pipes_should_be() -> None:
    assert pipe_directory(()) == PIPES
    assert pipe_directory((("CUDA_MPS_PIPE_DIRECTORY", "/run/mps"), ("CUDA_MPS_LOG_DIRECTORY", "/log"))) == "/run/mps"


@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "large"])
def test_what_anybody_may_put_below_tmp_is_harmless(tree: HostTree, kind: str) -> None:
    """Nobody waits for a pipe's writer, follows a link or reads a file without end."""
    write(tree.root, f"{PIPES}/control", "")
    write(tree.proc, "/1/stat", "")
    place = tree.root / f"{PIPES[1:]}/nvidia-cuda-mps-control.pid"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "link":
        place.symlink_to("/dev/zero")
    elif kind == "folder":
        place.mkdir()
    else:
        with place.open("wb") as file:
            file.truncate(1 << 40)
    with Root(str(tree.root)) as root, Root(str(tree.proc)) as proc:
        assert find_fault(root, proc, ()) == ""
