"""nvinject system on a small host: rows, dry runs, and what is refused."""

import json
import os
import stat
from pathlib import Path

import pytest

from nvinject.cli import main as command_line
from nvinject.cli import system
from nvinject.errors import HostError
from tests.host.machine import HostTree, write

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostTree:
    """Return a host whose module is loaded and whose nodes are missing."""
    for name in ("ROOT", "NVIDIA_DRIVER_ROOT", "DRIVER_ROOT", "DEV_ROOT", "DRY_RUN", "CREATE_ALL", "DEV_CHAR_PATH"):
        monkeypatch.delenv(name, raising=False)
    tree = HostTree(tmp_path)
    tree.add_module()
    tree.add_gpu(0, "0000:17:00.0", node=False)
    tree.add_mig(0, 1, 0, node=False)
    config = tmp_path / "config.toml"
    config.write_text(f'[nvinject]\ndev-root = "{tree.root}"\nproc-root = "{tree.proc}"\nsys-root = "{tmp_path}"\n')
    monkeypatch.setenv("NVIDIA_CTK_CONFIG_FILE_PATH", str(config))
    return tree


def steps(text: str) -> dict[str, str]:
    return {os.path.basename(step["path"]): step["result"] for step in json.loads(text)["steps"]}


def test_a_dry_run_tells_every_node(host: HostTree, capsys: Capture) -> None:
    """With number and mode, and needs no right to make one."""
    assert command_line.main(["system", "create-device-nodes", "--all-devices", "--dry-run", "--json"]) == 0
    assert steps(capsys.readouterr().out) == {
        "nvidiactl": "would be made: 195:255 0666",
        "nvidia-modeset": "would be made: 195:254 0666",
        "nvidia-uvm": "would be made: 511:0 0666",
        "nvidia-uvm-tools": "would be made: 511:1 0666",
        "nvidia0": "would be made: 195:0 0666",
        "nvidia-cap12": "would be made: 237:12 0444",
        "nvidia-cap13": "would be made: 237:13 0444",
    }
    assert not (host.root / "dev").exists()


def test_nodes_are_made_once(host: HostTree, capsys: Capture) -> None:
    """Where this user may make them."""
    host.add_node("/dev/null", 1, 3)
    assert command_line.main(["system", "create-device-nodes", "--control-devices"]) == 0
    status = os.lstat(host.root / "dev/nvidia-uvm")
    assert stat.S_ISCHR(status.st_mode)
    assert (os.major(status.st_rdev), os.minor(status.st_rdev), stat.S_IMODE(status.st_mode)) == (511, 0, 0o666)
    capsys.readouterr()
    assert command_line.main(["system", "create-device-nodes", "--control-devices", "--json"]) == 0
    assert set(steps(capsys.readouterr().out).values()) == {"there"}


def test_something_else_in_the_way_is_told(host: HostTree, capsys: Capture) -> None:
    """And left alone, with exit code 1."""
    write(host.root, "/dev/nvidiactl", "a file")
    assert command_line.main(["system", "create-device-nodes", "--control-devices", "--dry-run", "--json"]) == 1
    assert steps(capsys.readouterr().out)["nvidiactl"].startswith("wrong: is no character device")


def test_without_a_kind_nothing_is_made(host: HostTree, capsys: Capture) -> None:
    """As with the original, which says nothing."""
    assert command_line.main(["system", "create-device-nodes"]) == 0
    assert "name --control-devices or --all-devices" in capsys.readouterr().err


def test_options_come_from_the_environment(
    host: HostTree, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    """The first variable that is set counts; a flag is a boolean of Go."""
    monkeypatch.setenv("CREATE_ALL", "t")
    monkeypatch.setenv("DRY_RUN", "true")
    monkeypatch.setenv("DEV_CHAR_PATH", str(tmp_path / "char"))
    assert command_line.main(["system", "create-dev-char-symlinks", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["dryRun"]
    assert {os.path.dirname(step["path"]) for step in document["steps"]} == {str(tmp_path / "char")}
    assert f"-> {host.root}/dev/nvidia0" in document["steps"][4]["result"]
    monkeypatch.setenv("DRY_RUN", "perhaps")
    assert command_line.main(["system", "create-dev-char-symlinks"]) == 2


def test_options_that_need_create_all_say_so(host: HostTree, tmp_path: Path, capsys: Capture) -> None:
    """None is swallowed."""
    command = ["system", "create-dev-char-symlinks", "--dev-char-path", str(tmp_path / "char")]
    assert command_line.main([*command, "--load-kernel-modules", "--create-device-nodes"]) == 0
    err = capsys.readouterr().err
    assert "--load-kernel-modules is ignored: it needs --create-all" in err
    assert "--create-device-nodes is ignored: it needs --create-all" in err


def test_modules_are_loaded_in_the_driver_root() -> None:
    """By chroot, unless it is the host's own."""
    modprobe = system.find_modprobe()
    assert [row[2] for row in system.load_modules("/", dry_run=True)] == [
        f"{modprobe} nvidia",
        f"{modprobe} nvidia-uvm",
        f"{modprobe} nvidia-modeset",
    ]
    assert system.load_modules("/run/nvidia/driver", dry_run=True)[0][2].startswith("chroot /run/nvidia/driver ")


def test_a_host_without_a_loader_cache(tmp_path: Path) -> None:
    """And one with a file that is none."""
    with pytest.raises(HostError, match="there is no loader cache"):
        system.read_cache(str(tmp_path), "")
    write(tmp_path, "/etc/ld.so.cache", "no cache")
    with pytest.raises(HostError, match="is of no use"):
        system.read_cache(str(tmp_path), "")


def test_the_loader_cache_is_read(tmp_path: Path) -> None:
    """Only the driver's libraries are told."""
    tree = HostTree(tmp_path)
    tree.add_driver()
    found = system.read_cache(str(tree.root), "")
    assert ("libcuda.so.1", 64, "/usr/lib/x86_64-linux-gnu/libcuda.so.1") in found
    assert all(soname != "libnvidia-api.so.1" for soname, _, _ in found)


def test_load_kmods_respects_the_drivers_parameter(host: HostTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """ModifyDeviceFiles: 0 leaves nodes to the administrator."""
    write(host.proc, "/driver/nvidia/params", "ModifyDeviceFiles: 0\n")
    from nvinject.core.policy import Roots
    from nvinject.host.nodes import in_initial_user_namespace

    lines = system.load_and_create(Roots(driver=str(host.root), dev=str(host.root), proc=str(host.proc)))
    expected = "no nodes are made: ModifyDeviceFiles is 0"
    assert lines[-1] == (expected if in_initial_user_namespace() else "no nodes are made in a user namespace")
    assert not (host.root / "dev").exists()
