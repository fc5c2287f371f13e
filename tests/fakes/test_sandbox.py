"""The lanes: what stands where, and that nothing is left behind."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from nvfakes import control, declaration
from nvfakes.nvml.build import cache_directory

Runner = Callable[..., "subprocess.CompletedProcess[str]"]
FOLDERS = ("/dev", "/run", "/etc", "/usr/bin", "/proc/driver")


def host_state() -> dict[str, object]:
    mounts = [line.split(" ", 2)[2] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    state: dict[str, object] = {"mounts": sorted(mounts)}
    # Other programs of this host may come and go meanwhile.
    state.update({folder: sorted(name for name in os.listdir(folder) if "nv" in name) for folder in FOLDERS})
    stage = cache_directory() / "stage"
    state["stage"] = sorted(os.listdir(stage)) if stage.exists() else []
    return state


def test_root_lane_stands_at_the_real_paths(on_machine: Runner) -> None:
    script = (
        "stat -c '%n %t:%T %a' /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools "
        "/dev/nvidia-modeset /dev/nvidia-caps-imex-channels/channel0 /dev/dri/card1 /dev/dri/renderD129; "
        "readlink /dev/dri/by-path/pci-0000:18:00.0-card; cat /dev/nvidia0 2>&1; "
        "grep -E 'nvidia' /proc/devices; cat /sys/module/nvidia/initstate; "
        "test -S /run/nvidia-persistenced/socket && test -S /run/nvidia-fabricmanager/socket && echo sockets; "
        "echo $NVFAKES_ROOT $NVFAKES_LANE $NVFAKES_MACHINE; test -c /dev/null && test -d /dev/pts && echo host"
    )
    done = on_machine("two-h100", "sh", "-c", script)
    assert done.stdout.splitlines() == [
        "/dev/nvidia0 c3:0 666",
        "/dev/nvidia1 c3:1 666",
        "/dev/nvidiactl c3:ff 666",
        "/dev/nvidia-uvm eb:0 666",
        "/dev/nvidia-uvm-tools eb:1 666",
        "/dev/nvidia-modeset c3:fe 666",
        "/dev/nvidia-caps-imex-channels/channel0 ee:0 666",
        "/dev/dri/card1 e2:1 660",
        "/dev/dri/renderD129 e2:81 660",
        "../card2",
        "cat: /dev/nvidia0: No such device or address",
        "195 nvidia",
        "195 nvidia-modeset",
        "195 nvidiactl",
        "235 nvidia-uvm",
        "237 nvidia-caps",
        "238 nvidia-caps-imex-channels",
        "live",
        "sockets",
        "/ root two-h100",
        "host",
    ]


def test_the_multi_process_service_has_its_pipes(on_machine: Runner, tmp_path: Path) -> None:
    """The folder is private to the machine, and its clients are told where it is."""
    machine = tmp_path / "mps.yaml"
    machine.write_text("driver: {version: 570.133.20, cuda: '12.8'}\ngpus: [{model: h100}]\nsockets: [mps]\n")
    done = on_machine(str(machine), "sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY; ls $CUDA_MPS_PIPE_DIRECTORY")
    assert done.stdout.split() == ["/run/nvidia-mps", "control", "nvidia-cuda-mps-control.pid"]
    assert not Path("/run/nvidia-mps").exists()


def test_the_hosts_loader_and_lspci_see_the_machine(on_machine: Runner) -> None:
    listing = on_machine("two-h100", "ldconfig", "-p").stdout
    assert "libcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1" in listing or "aarch64" in listing
    assert "libc.so.6 " in listing
    if not shutil.which("lspci"):
        pytest.skip("lspci (pciutils) is not installed")
    lines = on_machine("two-h100", "lspci", "-n", "-d", "10de:").stdout.splitlines()
    assert lines == ["17:00.0 0302: 10de:2330 (rev a1)", "18:00.0 0302: 10de:2330 (rev a1)"]
    assert on_machine("two-h100", "lspci", "-k", "-s", "17:00.0").stdout.count("Kernel driver in use: nvidia") == 1


def test_rootless_lane_is_a_tree(on_machine: Runner) -> None:
    script = (
        "cd $NVFAKES_ROOT && test -c dev/nvidia0 && test -e proc/driver/nvidia/version && test ! -e /dev/nvidia0 && "
        "unshare --user --map-root-user --pid --fork --mount --mount-proc true && echo $NVFAKES_LANE"
    )
    done = on_machine("two-h100", "sh", "-c", script, lane="rootless")
    assert done.stdout == "rootless\n", done.stderr


@pytest.mark.parametrize("lane", ["root", "rootless"])
def test_nothing_is_left(on_machine: Runner, lane: str) -> None:
    before = host_state()
    assert on_machine("mig-h100", "true", lane=lane).returncode == 0
    assert host_state() == before


def test_nothing_is_left_after_a_kill(lanes: dict[str, str]) -> None:
    if lanes["root"]:
        pytest.skip(lanes["root"])
    before = host_state()
    command = [sys.executable, "-m", "nvfakes", "run", "two-h100", "--", "sh", "-c", "echo there; exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        assert not Path("/dev/nvidia0").exists()
        assert process.pid in control.running()
        process.send_signal(signal.SIGKILL)
    for _ in range(100):
        if host_state() == before and process.pid not in control.running():
            break
        time.sleep(0.05)
    assert process.pid not in control.running()
    assert host_state() == before


def test_exit_status_and_messages(nvfakes: Runner) -> None:
    assert nvfakes("run", "no-driver", "--", "sh", "-c", "exit 7").returncode == 7
    missing = nvfakes("run", "no-driver", "--", "/no/such/program")
    assert (missing.returncode, missing.stderr) == (1, "nvfakes: /no/such/program: No such file or directory\n")
    unknown = nvfakes("show", "no-such-machine")
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("nvfakes: no-such-machine: no such machine")


@pytest.mark.parametrize("name", ["dgx-h100", "mig-a100", "no-driver", "jetson-orin", "nvl72-tray"])
def test_draws_a_machine(nvfakes: Runner, name: str) -> None:
    drawn = nvfakes("show", "--svg", name).stdout
    assert drawn == nvfakes("show", "--svg", name).stdout
    picture = ET.fromstring(drawn)
    texts = [element.text or "" for element in picture.iter() if element.tag.endswith("text")]
    machine = declaration.load(name)
    assert [text for text in texts if text.startswith("GPU ")] == [f"GPU {gpu.minor}" for gpu in machine.gpus]
    for gpu in machine.gpus:
        assert gpu.bus in texts


def test_list_and_show(nvfakes: Runner) -> None:
    assert "two-h100" in nvfakes("list").stdout.splitlines()
    assert '"h100"' in nvfakes("list", "--json").stdout
    assert "GPU 1: NVIDIA H100 80GB HBM3  0000:18:00.0" in nvfakes("show", "two-h100").stdout
    assert '"uuid": "MIG-000000a0-5555-6666-7777-000000000001"' in nvfakes("show", "--json", "mig-h100").stdout
