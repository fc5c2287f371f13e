"""The layout of images: distributions, 32-bit folders, musl, CUDA compatibility libraries, and hostile links."""

import os
from pathlib import Path

import pytest

from nvinject.core.model import ContainerLayout
from nvinject.host.layout import observe_layout

from .machine import write


def observe(root: Path, machine: str = "x86_64") -> ContainerLayout:
    """Observe a folder as a container's root."""
    descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        return observe_layout(descriptor, machine)
    finally:
        os.close(descriptor)


# name, entries ("path" a file, "path/" a folder, "path -> target" a link), machine, 64-bit folder, 32-bit folder, musl
IMAGES = [
    ("empty", [], "x86_64", "/usr/lib64", "/usr/lib32", ""),
    ("debian", ["etc/debian_version"], "x86_64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/i386-linux-gnu", ""),
    ("debian arm", ["etc/debian_version"], "aarch64", "/usr/lib/aarch64-linux-gnu", "", ""),
    ("debian power", ["etc/debian_version"], "ppc64le", "/usr/lib/powerpc64le-linux-gnu", "", ""),
    ("fedora", ["usr/lib64/", "usr/lib/"], "x86_64", "/usr/lib64", "/usr/lib", ""),
    ("arch", ["usr/lib/", "usr/lib64 -> lib", "usr/lib32/"], "x86_64", "/usr/lib64", "/usr/lib32", ""),
    ("merged", ["usr/lib/", "usr/lib64 -> lib"], "x86_64", "/usr/lib64", "/usr/lib32", ""),
    ("plain lib", ["usr/lib/"], "x86_64", "/usr/lib64", "/usr/lib", ""),
    ("alpine", ["etc/alpine-release"], "x86_64", "/usr/lib64", "/usr/lib32", "/etc/ld-musl-x86_64.path"),
    ("musl", ["lib/ld-musl-aarch64.so.1"], "aarch64", "/usr/lib64", "/usr/lib32", "/etc/ld-musl-aarch64.path"),
    ("other musl", ["lib/ld-musl-aarch64.so.1"], "x86_64", "/usr/lib64", "/usr/lib32", ""),
    ("link inside", ["etc/debian_version -> /etc/issue", "etc/issue"], "x86_64", "/usr/lib/x86_64-linux-gnu",
     "/usr/lib/i386-linux-gnu", ""),
    ("link out", ["etc/debian_version -> /etc/passwd"], "x86_64", "/usr/lib64", "/usr/lib32", ""),
    ("link up", ["etc/debian_version -> ../../../../../../../etc/passwd"], "x86_64", "/usr/lib64", "/usr/lib32", ""),
    ("link loop", ["etc/debian_version -> debian_version"], "x86_64", "/usr/lib64", "/usr/lib32", ""),
    ("file for folder", ["etc"], "x86_64", "/usr/lib64", "/usr/lib32", ""),
    ("unknown machine", ["etc/debian_version"], "riscv64", "/usr/lib64", "/usr/lib32", ""),
]  # fmt: skip


def build(root: Path, entries: list[str]) -> None:
    """Build an image from its entries."""
    root.mkdir()
    for entry in entries:
        path, arrow, target = entry.partition(" -> ")
        if arrow:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).symlink_to(target)
        elif path.endswith("/"):
            (root / path).mkdir(parents=True)
        else:
            write(root, path, "")


@pytest.mark.parametrize(
    ("name", "entries", "machine", "directory", "directory32", "musl"), IMAGES, ids=[image[0] for image in IMAGES]
)
def test_layout(
    tmp_path: Path, name: str, entries: list[str], machine: str, directory: str, directory32: str, musl: str
) -> None:
    """The image's own files decide, never the host's."""
    build(tmp_path / "image", entries)
    assert observe(tmp_path / "image", machine) == ContainerLayout(
        library_directory=directory, library32_directory=directory32, musl_path_file=musl
    )


@pytest.mark.parametrize(
    ("entries", "directory", "version"),
    [
        ([], "", ""),
        (["usr/local/cuda/compat/libcuda.so.580.65.06"], "/usr/local/cuda/compat", "580.65.06"),
        (
            ["usr/local/cuda -> cuda-12.8", "usr/local/cuda-12.8/compat/libcuda.so.570.133.20"],
            "/usr/local/cuda-12.8/compat",
            "570.133.20",
        ),
        (
            ["usr/local/cuda -> /opt/cuda", "opt/cuda/compat/libcuda.so.9.1", "opt/cuda/compat/libcuda.so.10.1"],
            "/opt/cuda/compat",
            "10.1",
        ),
        (["usr/local/cuda/compat/libcuda.so.1"], "", ""),
        (["usr/local/cuda/compat/libcuda.so.x.y", "usr/local/cuda/compat/libnvidia-ml.so.580.65.06"], "", ""),
        (["usr/local/cuda/compat/libcuda.so.580.1 -> /etc/passwd"], "", ""),
        (["usr/local/cuda/compat/libcuda.so.580.1/"], "", ""),
        (["usr/local/cuda/compat"], "", ""),
        (["usr/local/cuda/compat -> ../../../../../../../../etc"], "", ""),
    ],
)
def test_compat(tmp_path: Path, entries: list[str], directory: str, version: str) -> None:
    """The image's CUDA libraries count when a regular file libcuda.so.<version> is there; the folder is link-free."""
    build(tmp_path / "image", entries)
    layout = observe(tmp_path / "image")
    assert (layout.compat_directory, layout.compat_version) == (directory, version)


def test_nothing_stays_open(tmp_path: Path) -> None:
    """Looking at an image leaves no descriptor behind."""
    build(tmp_path / "image", ["etc/debian_version", "usr/local/cuda/compat/libcuda.so.580.65.06"])
    before = sorted(os.listdir("/proc/self/fd"))
    observe(tmp_path / "image")
    assert sorted(os.listdir("/proc/self/fd")) == before
