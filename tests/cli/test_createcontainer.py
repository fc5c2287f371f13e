"""The runtime shim's createContainer hook: finding plan and root file system, with what each runtime tells."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nvinject.cli.createcontainer import adapt, read_places
from nvinject.core.plan import BindFile, CreateSymlink, LoaderLibrary, UpdateLoaderCache
from nvinject.errors import ContainerError, InputError
from nvinject.render.inside import find_root
from nvinject.render.planfile import HookPlan, format_plan_file

SECONDS = 60
LINK = CreateSymlink(reason="test", link="/usr/lib/libcuda.so.1", target="libcuda.so.1.2", force=True)
CACHE = UpdateLoaderCache(
    reason="test",
    directories=("/usr/lib",),
    libraries=(LoaderLibrary(soname="libcuda.so.1", path="/usr/lib/libcuda.so.1"),),
)


def identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    (folder / "rootfs" / "etc").mkdir(parents=True)
    (folder / "config.json").write_text('{"root": {"path": "rootfs"}}')
    return folder


def test_places(bundle: Path) -> None:
    """Crun tells the root and no pid, runc the bundle; neither is a reason to stop."""
    state: dict[str, Any] = {"ociVersion": "1.0.2", "id": "x", "pid": 0, "status": "created", "bundle": str(bundle)}
    rootfs = f"{bundle}/rootfs"
    assert read_places(json.dumps(state).encode()) == (rootfs,)
    assert read_places(json.dumps({**state, "root": "/r"}).encode()) == ("/r", rootfs)
    assert read_places(json.dumps({**state, "root": "relative", "bundle": "/none"}).encode()) == ()
    assert read_places(b"{}") == ()


@pytest.mark.parametrize(("data", "words"), [(b"", "is not JSON"), (b"[]", "not a JSON object")])
def test_malformed_state(data: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_places(data)


def test_find_root(bundle: Path) -> None:
    """The directory that was planned for counts, wherever it is found first."""
    rootfs = bundle / "rootfs"
    found = find_root((f"{bundle}/none", str(bundle), str(rootfs)), identity(rootfs))
    assert os.path.samestat(os.fstat(found), rootfs.stat())
    os.close(found)
    found = find_root((str(bundle), str(rootfs)), (0, 0))
    assert os.path.samestat(os.fstat(found), bundle.stat())
    os.close(found)
    with pytest.raises(ContainerError, match=r"none: No such file or directory, .*: another directory"):
        find_root((f"{bundle}/none", str(bundle)), identity(rootfs))


def test_an_image_that_was_not_there_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "alpine-release").touch()
    root_fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    try:
        plan = HookPlan(operations=(LINK, CACHE), driver_version="570.1", compat_mode="ldconfig")
        link, cache = adapt(plan, root_fd)
    finally:
        os.close(root_fd)
    assert link == LINK
    assert isinstance(cache, UpdateLoaderCache)
    assert cache.musl_path_file == f"/etc/ld-musl-{os.uname().machine}.path"


@pytest.mark.parametrize(
    ("mode", "models", "used"),
    [
        ("ldconfig", (), True),
        ("hook", ("NVIDIA H100 80GB HBM3",), True),
        ("ldconfig", ("NVIDIA GeForce RTX 4090",), False),
        ("disabled", (), False),
    ],
)
def test_an_image_that_was_not_there_may_bring_cuda_libraries(
    tmp_path: Path, mode: str, models: tuple[str, ...], *, used: bool
) -> None:
    """The choice is that of a plan for a known image: configuration and GPUs count."""
    compat = tmp_path / "usr" / "local" / "cuda" / "compat"
    compat.mkdir(parents=True)
    (compat / "libcuda.so.575.57.08").write_bytes(b"")
    root_fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    try:
        plan = HookPlan(operations=(CACHE,), driver_version="570.1", compat_mode=mode, models=models)
        (cache,) = adapt(plan, root_fd)
    finally:
        os.close(root_fd)
    assert isinstance(cache, UpdateLoaderCache)
    assert cache.compat_directory == ("/usr/local/cuda/compat" if used else "")


def call(folder: Path, bundle: Path, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run the hook as a runtime does."""
    return subprocess.run(
        [sys.executable, "-m", "nvinject", "create-container", str(folder)],
        input=json.dumps({"pid": 1, "bundle": str(bundle)}),
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        cwd=cwd,
        env={"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )


def test_whole_hook(bundle: Path, tmp_path: Path) -> None:
    """Links and loader cache need no namespace: they show that the working directory is where the work is done."""
    rootfs = bundle / "rootfs"
    (tmp_path / "plan.json").write_bytes(format_plan_file(HookPlan(operations=(LINK, CACHE), root=identity(rootfs))))
    done = call(tmp_path, Path("/none"), cwd=rootfs)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.readlink(rootfs / "usr/lib/libcuda.so.1") == "libcuda.so.1.2"
    assert (rootfs / "etc/ld.so.cache").exists()


def test_a_failure_is_one_line_and_undone(bundle: Path, tmp_path: Path) -> None:
    rootfs = bundle / "rootfs"
    missing = BindFile(reason="test", source="/none", target="/x", flags=("ro",))
    plan = HookPlan(operations=(LINK, missing), root=identity(rootfs))
    (tmp_path / "plan.json").write_bytes(format_plan_file(plan))
    done = call(tmp_path, bundle, cwd=tmp_path)
    assert done.returncode == 7
    (line,) = done.stderr.splitlines()
    assert "/none" in line
    assert not (rootfs / "usr").exists()


@pytest.mark.parametrize("content", [None, "{"])
def test_without_a_plan(bundle: Path, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "plan.json").write_text(content)
    done = call(tmp_path, bundle, cwd=bundle / "rootfs")
    assert done.returncode == 3
    assert f"{tmp_path}/plan.json" in done.stderr
