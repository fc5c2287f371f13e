"""Device nodes that a start makes on the host: made whole, taken back, left alone if somebody else's."""

import os
import stat
from pathlib import Path

import pytest

from nvinject.core.plan import MakeNode
from nvinject.errors import HostError
from nvinject.render.hostnodes import make_nodes


@pytest.fixture(autouse=True)
def may_make_nodes(tmp_path: Path) -> None:
    """Skip where this user makes no device nodes (mknod(2): CAP_MKNOD in the first user namespace)."""
    try:
        os.mknod(tmp_path / "tried", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except OSError as error:
        pytest.skip(f"device nodes cannot be made here: {error.strerror}")
    (tmp_path / "tried").unlink()


def channel(root: Path, number: int) -> MakeNode:
    return MakeNode(
        root=str(root), path=f"/dev/channels/channel{number}", major=238, minor=number, mode=0o660, gid=7, reason="test"
    )


def ignore(_: str) -> None:
    """Drop a line of the log."""


def test_nodes_are_made_with_owner_and_mode_and_taken_back(tmp_path: Path) -> None:
    lines: list[str] = []
    journal = make_nodes([channel(tmp_path, 1), channel(tmp_path, 2)], lines.append)
    found = (tmp_path / "dev/channels/channel2").stat()
    assert (stat.S_ISCHR(found.st_mode), found.st_rdev, found.st_gid) == (True, os.makedev(238, 2), 7)
    assert stat.S_IMODE(found.st_mode) == 0o660
    assert [line.partition(" (")[0] for line in lines] == [
        f"make {tmp_path}/dev/channels/channel{number}" for number in (1, 2)
    ]
    assert journal.undo() == ()
    assert list((tmp_path / "dev/channels").iterdir()) == []


def test_a_node_that_is_there_is_not_ours_to_take_back(tmp_path: Path) -> None:
    make_nodes([channel(tmp_path, 1)], ignore)
    assert make_nodes([channel(tmp_path, 1)], ignore).undo() == ()
    assert (tmp_path / "dev/channels/channel1").exists()


def test_what_cannot_be_made_takes_the_others_back(tmp_path: Path) -> None:
    (tmp_path / "dev/channels").mkdir(parents=True)
    (tmp_path / "dev/channels/channel2").write_text("a file")
    with pytest.raises(HostError, match=r"cannot make .*channel2 \(238:2\) on the host: File exists"):
        make_nodes([channel(tmp_path, 1), channel(tmp_path, 2)], ignore)
    assert [path.name for path in (tmp_path / "dev/channels").iterdir()] == ["channel2"]


def test_a_device_root_that_has_gone(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="No such file or directory"):
        make_nodes([channel(tmp_path / "none", 1)], ignore)
