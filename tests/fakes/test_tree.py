"""The tree of a machine: what is in it, the same bytes each time, and what the real ldconfig makes of it."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from nvfakes import declaration, elf, tree
from nvfakes.machine import Machine
from nvfakes.nvml import image
from tests.ldconfig import find_ldconfig, write_cache

from .conftest import Runner

DRIVER_TREE = (Path(__file__).parent / "driver-tree-570.txt").read_text().split()


def parse(text: str) -> Machine:
    return declaration.parse(text, "m.yaml", "m")


def contents(root: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        data = os.readlink(path) if path.is_symlink() else path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        stamp = 0 if path.is_dir() else status.st_mtime_ns
        found[str(path.relative_to(root))] = (status.st_mode, status.st_rdev, stamp, data)
    return found


def test_has_the_observed_driver_files() -> None:
    paths = [entry.path for entry in tree.entries(declaration.load("two-h100"))]
    driver = [path for path in paths if path.startswith(("/usr/", "/etc/")) and path != "/etc/ld.so.cache"]
    assert sorted(driver) == sorted(path.replace("x86_64-linux-gnu", Machine("").triplet) for path in DRIVER_TREE)


def test_is_the_same_every_time(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    machine = declaration.load("mig-h100")
    tree.write_tree(machine, root)
    first = contents(root)
    shutil.rmtree(root)
    tree.write_tree(machine, root)
    assert contents(root) == first


def test_can_be_written_over_itself(tmp_path: Path) -> None:
    tree.write_tree(declaration.load("two-h100"), tmp_path)
    first = contents(tmp_path)
    tree.write_tree(declaration.load("two-h100"), tmp_path)
    assert contents(tmp_path) == first


@pytest.mark.parametrize("text", ["driver: {}", "driver: {}\nlib32: true\narch: x86_64"])
def test_cache_is_what_ldconfig_makes(tmp_path: Path, text: str) -> None:
    machine = parse(text)
    tree.write_tree(machine, tmp_path, nodes=False)
    folders = [f"/usr/lib/{machine.triplet}", f"/usr/lib/{machine.triplet32}"]
    (tmp_path / "folders").write_text("".join(f"{name}\n" for name in folders if (tmp_path / name[1:]).is_dir()))
    write_cache(tmp_path, "-X", "-f", "/folders", "-C", "/real.cache")

    def listing(name: str) -> list[str]:
        command = [find_ldconfig(), "-p", "-C", str(tmp_path / name)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        return [line for line in shown.stdout.splitlines() if line.startswith("\t")]

    assert listing("etc/ld.so.cache") == listing("real.cache")


def paths(machine: Machine) -> set[str]:
    return {entry.path for entry in tree.entries(machine)}


def test_without_the_module_only_files_and_pci_remain() -> None:
    found = paths(parse("driver: {}\ngpus: [{model: h100}]\ndeviate: {module: unloaded}"))
    assert not [path for path in found if path.startswith(("/dev/nvidia", "/proc/driver", "/sys/module/"))]
    assert "/sys/bus/pci/devices/0000:17:00.0/config" in found
    assert f"/usr/lib/{Machine('').triplet}/libcuda.so.1" in found


def test_declared_missing_things_are_missing() -> None:
    healthy = paths(parse("driver: {}\ngpus: [{model: t4}]"))
    broken = paths(
        parse("driver: {}\ngpus: [{model: t4}]\ndeviate: {missing: [/dev/nvidia-uvm, '*/libnvidia-cfg.so*']}")
    )
    triplet = Machine("").triplet
    names = ("libnvidia-cfg.so.1", "libnvidia-cfg.so.570.133.20")
    assert healthy - broken == {"/dev/nvidia-uvm", *(f"/usr/lib/{triplet}/{name}" for name in names)}


def test_another_library_version_changes_no_kernel_file() -> None:
    machine = parse("driver: {version: 570.133.20}\ngpus: [{model: t4}]\ndeviate: {library_version: 570.211.01}")
    files = {entry.path: entry.data for entry in tree.entries(machine) if isinstance(entry, tree.File)}
    assert b"570.133.20" in files["/proc/driver/nvidia/version"]
    assert f"/usr/lib/{machine.triplet}/libcuda.so.570.211.01" in files


def test_a_machine_without_anything_has_no_driver() -> None:
    assert not [path for path in paths(declaration.load("no-driver")) if "nvidia" in path]


def test_extra_files_and_links() -> None:
    machine = parse("files: {/etc/nv_tegra_release: '# R36'}\nlinks: {/usr/lib/libcuda.so: libcuda.so.1}")
    found = {entry.path: entry for entry in tree.entries(machine)}
    assert found["/etc/nv_tegra_release"] == tree.File("/etc/nv_tegra_release", b"# R36")
    assert found["/usr/lib/libcuda.so"] == tree.Link("/usr/lib/libcuda.so", "libcuda.so.1")


def test_proc_params_start_with_the_keys_that_user_libraries_can_read() -> None:
    files = {entry.path: entry for entry in tree.entries(declaration.load("two-h100"))}
    params = files["/proc/driver/nvidia/params"]
    assert isinstance(params, tree.File)
    keys = [line.split(":")[0] for line in params.data.decode().splitlines()]
    assert keys[2:6] == ["ModifyDeviceFiles", "DeviceFileUID", "DeviceFileGID", "DeviceFileMode"]


def test_mig_minors_has_every_combination() -> None:
    files = {entry.path: entry for entry in tree.entries(declaration.load("mig-h100"))}
    minors = files["/proc/driver/nvidia-caps/mig-minors"]
    assert isinstance(minors, tree.File)
    lines = minors.data.decode().splitlines()
    assert len(lines) == 4322
    assert {"gpu0/gi1/access 12", "gpu0/gi1/ci0/access 13", "gpu1/gi0/access 138"} <= set(lines)


def test_a_library_of_no_driver_package_has_the_soname_that_is_given(tmp_path: Path) -> None:
    """Its link is made, and the loader cache knows it; without a SONAME the file's name tells one."""
    text = "libraries: {/usr/lib/x86_64-linux-gnu/libnvidia-nscq.so.570.1: libnvidia-nscq.so.2, /opt/libx.so.3.4: ''}\n"
    tree.write_tree(parse(f"driver: {{}}\narch: x86_64\n{text}"), tmp_path, nodes=False)
    library = tmp_path / "usr/lib/x86_64-linux-gnu/libnvidia-nscq.so.2"
    assert (library.is_symlink(), elf.read_soname(str(library))) == (True, "libnvidia-nscq.so.2")
    assert elf.read_soname(str(tmp_path / "opt/libx.so.3.4")) == "libx.so.3"
    assert b"libnvidia-nscq.so.2\0" in (tmp_path / "etc/ld.so.cache").read_bytes()


def test_a_driver_that_no_package_brings_has_the_listed_libraries_alone() -> None:
    """NVML and CUDA among them answer; the kernel's side is there as usual."""
    machine = parse(
        "driver: {version: 540.4.0, packaged: false}\n"
        "gpus: [{model: orin}]\n"
        "libraries: [/usr/lib/tegra/libnvidia-ml.so.1, /usr/lib/tegra/libcuda.so.1.1, /usr/lib/tegra/libnvrm_gpu.so]"
    )
    found = {entry.path: entry for entry in tree.entries(machine)}
    assert [path for path in found if path.startswith(("/usr/", "/etc/"))] == [
        *("/usr/lib/tegra/libcuda.so.1.1", "/usr/lib/tegra/libnvidia-ml.so.1", "/usr/lib/tegra/libnvrm_gpu.so")
    ]
    assert {"/dev/nvidia0", "/dev/nvidiactl", "/proc/driver/nvidia/version"} <= set(found)
    nvml, stub = found["/usr/lib/tegra/libnvidia-ml.so.1"], found["/usr/lib/tegra/libnvrm_gpu.so"]
    assert isinstance(nvml, tree.File)
    assert isinstance(stub, tree.File)
    assert image.read(nvml.data)["g0.name"] == "Orin (nvgpu)"
    assert len(stub.data) < 4096
    assert machine.answering_libraries == ("/usr/lib/tegra/libnvidia-ml.so.1", "/usr/lib/tegra/libcuda.so.1.1")


def test_a_directory_that_holds_something_is_left_alone(nvfakes: Runner, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine\n")
    refused = nvfakes("tree", "t4", str(tmp_path))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        f"nvfakes: {tmp_path} is not empty; name a new directory, or lay the files over it by --merge\n"
    )
    assert os.listdir(tmp_path) == ["mine"]
    assert nvfakes("tree", "t4", str(tmp_path), "--merge").returncode == 0
    assert {"mine", "dev", "proc"} <= set(os.listdir(tmp_path))
    assert nvfakes("tree", "t4", str(tmp_path / "new")).returncode == 0
