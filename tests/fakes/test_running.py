"""Machines that stand while tests change them, and the pytest plugin that starts them."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO

import pytest

import nvfakes
from nvfakes.errors import SandboxError, VerbError
from nvfakes.running import Running
from nvfakes.uevent import NETLINK_KOBJECT_UEVENT


@pytest.fixture(params=["root", "rootless"])
def machine(request: pytest.FixtureRequest) -> Iterator[Running]:
    try:
        running = nvfakes.start("two-h100", lane=request.param)
    except SandboxError as error:
        pytest.skip(str(error))
    with running:
        yield running


def listing(machine: Running) -> list[str]:
    script = (
        "PATH=$NVFAKES_ROOT/usr/bin:$PATH LD_LIBRARY_PATH=$NVFAKES_ROOT/usr/lib/$(uname -m)-linux-gnu nvidia-smi -L"
    )
    done = machine.run(["sh", "-c", script], capture_output=True, text=True)
    return [line.split(" (")[0].strip() for line in done.stdout.splitlines()]


@contextlib.contextmanager
def entered(machine: Running, script: str) -> Iterator[IO[str]]:
    """Run a script in the machine while it may change; what it prints can be read."""
    if machine.lane != "root":
        pytest.skip(f"lane root is not possible here, and in lane {machine.lane} no loader finds the machine's library")
    enter = [sys.executable, "-m", "nvfakes", "enter", "--running", str(machine.process), "--"]
    words = [*enter, sys.executable, "-c", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout


BOTH = ["GPU 0: NVIDIA H100 80GB HBM3", "GPU 1: NVIDIA H100 80GB HBM3"]


def test_verbs_change_what_programs_see(machine: Running) -> None:
    assert listing(machine) == BOTH
    machine.unplug(0)
    assert listing(machine) == BOTH[:1]
    machine.plug(0)
    assert listing(machine) == BOTH
    machine.set_mig(1, ["3g.40gb", "4g.40gb"])
    assert listing(machine) == [*BOTH, "MIG 3g.40gb         Device  0:", "MIG 4g.40gb         Device  1:"]
    machine.set_mig(1, None)
    machine.unload()
    assert listing(machine) == ["Failed to initialize NVML: Driver Not Loaded"]
    machine.load()
    machine.remove("/dev/nvidia1")
    assert listing(machine) == BOTH[:1]
    machine.restore("/dev/nvidia1")
    machine.slow_down(1)
    machine.answer(0, "name", "Another")
    assert listing(machine) == ["GPU 0: Another", BOTH[1]]


def test_listeners_hear_of_an_unplugged_gpu() -> None:
    with (
        nvfakes.start("two-h100") as machine,
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_KOBJECT_UEVENT) as listener,
    ):
        try:
            listener.bind((0, 1))
        except OSError as error:
            pytest.skip(f"this process may not listen to the kernel: {error.strerror}")
        if machine.lane != "root":
            pytest.skip("only an administrator of the network namespace may send what a kernel sends")
        listener.settimeout(5)
        machine.unplug(1)
        fields = listener.recv(4096).split(b"\0")
        assert fields[0] == b"remove@/devices/pci0000:00/0000:18:00.0"
        assert {b"ACTION=remove", b"SUBSYSTEM=pci", b"PCI_SLOT_NAME=0000:18:00.0", b"PCI_ID=10DE:2330"} <= set(fields)


def test_refusals_are_one_line(machine: Running) -> None:
    refused: list[Callable[[], None]] = [
        lambda: machine.unplug(9),
        lambda: machine.set_mig(0, ["9g.90gb"]),
        lambda: machine.set_mig(0, ["4g.40gb", "4g.40gb"]),
        lambda: machine.set_health(0, "tired"),
    ]
    for verb in refused:
        with pytest.raises(VerbError) as caught:
            verb()
        assert "\n" not in str(caught.value)
    assert listing(machine) == BOTH


def test_a_stopped_machine_is_gone() -> None:
    with nvfakes.start("no-driver") as machine:
        process = machine.process
        assert Path(f"/proc/{process}").exists()
    assert not Path(f"/proc/{process}").exists()
    with pytest.raises(VerbError, match="no machine runs as process"):
        Running(process)


EVENTS = """
import sys, pynvml as n
n.nvmlInit()
events = n.nvmlEventSetCreate()
gpu = n.nvmlDeviceGetHandleByIndex(1)
n.nvmlDeviceRegisterEvents(gpu, n.nvmlEventTypeXidCriticalError, events)
print("waiting", flush=True)
event = n.nvmlEventSetWait_v2(events, 10000)
print(event.eventType, event.eventData, flush=True)
print(n.nvmlDeviceGetTotalEccErrors(gpu, 1, 0), flush=True)
"""


def test_a_program_learns_of_an_xid_while_it_waits() -> None:
    with nvfakes.start("two-h100") as machine, entered(machine, EVENTS) as output:
        assert output.readline() == "waiting\n"
        machine.set_health(0, "xid", 13)  # nobody waits for this one
        machine.set_health(1, "ecc", 2)
        assert output.read() == "8 48\n2\n"


THREADS = """
import sys, threading, pynvml as n
n.nvmlInit()
wrong = []
def ask():
    for _ in range(300):
        n.nvmlInit()
        gpu = n.nvmlDeviceGetHandleByIndex(0)
        if n.nvmlDeviceGetUUID(gpu) != "GPU-000000a0-1111-2222-3333-000000000000":
            wrong.append(n.nvmlDeviceGetUUID(gpu))
        n.nvmlShutdown()
threads = [threading.Thread(target=ask) for _ in range(8)]
print("go", flush=True)
for thread in threads: thread.start()
for thread in threads: thread.join()
print(wrong)
"""


def test_threads_ask_while_the_machine_changes() -> None:
    with nvfakes.start("two-h100") as machine, entered(machine, THREADS) as output:
        assert output.readline() == "go\n"
        for celsius in range(30, 60):
            machine.answer(0, "thermal.temperature_gpu_c", celsius)
        assert output.read() == "[]\n"


PLUGIN_TEST = """
import pytest

def test_count(gpu_machine):
    done = gpu_machine.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    assert done.stdout.count("NVIDIA H100") == 8
    gpu_machine.unplug(0)
    done = gpu_machine.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    assert done.stdout.count("NVIDIA H100") == 7

@pytest.mark.gpu_machine("t4")
def test_other(gpu_machine):
    assert "Tesla T4" in gpu_machine.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
"""


def test_the_plugin_gives_each_test_a_machine(tmp_path: Path, lanes: dict[str, str]) -> None:
    if lanes["root"]:
        pytest.skip(lanes["root"])
    (tmp_path / "test_it.py").write_text(PLUGIN_TEST)
    installed = any(entry.value == "nvfakes.plugin" for entry in entry_points(group="pytest11"))
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--gpu-machine", "h100x8", str(tmp_path)]
    words += [] if installed else ["-p", "nvfakes.plugin"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "2 passed" in done.stdout, done.stdout
