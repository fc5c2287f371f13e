"""Images: families, hostile additions, and writing that follows no link."""

from pathlib import Path

import pytest

from nvconform.case import Container
from nvconform.image import Image


@pytest.fixture
def busybox(tmp_path: Path) -> Path:
    path = tmp_path / "busybox"
    path.write_bytes(b"program")
    return path


def build(tmp_path: Path, busybox: Path, container: Container) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    Image(root, {"outside": "/../../outside"}).build(container, busybox)
    return root


@pytest.mark.parametrize(
    ("family", "file", "merged"),
    [
        ("deb", "etc/debian_version", True),
        ("rpm", "etc/redhat-release", True),
        ("musl", "etc/alpine-release", False),
        ("empty", ".probe/busybox", False),
    ],
)
def test_an_image_of_each_family(tmp_path: Path, busybox: Path, family: str, file: str, *, merged: bool) -> None:
    root = build(tmp_path, busybox, Container(family))
    assert (root / file).is_file()
    assert (root / "lib").is_symlink() == merged
    assert (root / ".probe/busybox").read_bytes() == b"program"


def test_links_are_laid_down_and_not_followed(tmp_path: Path, busybox: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    container = Container(
        remove=("/usr/lib",),
        links={"/etc/passwd": "${outside}/secret", "/usr/lib": str(outside)},
        fifos=("/etc/ld.so.conf",),
        files={"/deep/file": {"text": "${outside}", "mode": "0755", "megabytes": 1}},
    )
    root = build(tmp_path, busybox, container)
    assert str((root / "etc/passwd").readlink()) == "/../../outside/secret"
    assert (root / "etc/ld.so.conf").is_fifo()
    assert (root / "deep/file").stat().st_size == 1 << 20
    assert list(outside.iterdir()) == []


def test_mount_points_of_a_case_are_there_before_the_runtime_comes(tmp_path: Path, busybox: Path) -> None:
    mounts = (
        {"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/0"},
        {"source": str(tmp_path), "destination": "/folder"},
    )
    root = build(tmp_path, busybox, Container(mounts=mounts))
    assert (root / "run/nvidia-container-devices/0").is_file()
    assert (root / "folder").is_dir()
