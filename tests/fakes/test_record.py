"""A recorded machine, replayed, tells on every surface what the first one told."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nvfakes import declaration

Runner = Callable[..., "subprocess.CompletedProcess[str]"]

READ = "import json, os; from nvfakes import surfaces; print(json.dumps(surfaces.read(os.environ['NVFAKES_ROOT'])))"

ODD = """
driver: {version: 560.28.03, cuda: "12.6", open: false}
gpus:
  - model: {like: l40s, name: NVIDIA L40, device: 0x26b5, subsystem: 0x169d, capability: "8.9", memory_mib: 46068}
    bus: "0001:c1:00.0"
    minor: 3
    card: 0
    render: 131
majors: {nvidia-uvm: 511, nvidia-caps: 510}
params: {DeviceFileMode: 432, DeviceFileGID: 27}
libraries: [/usr/lib/TRIPLET/libnvidia-tileiras.so.560.28.03]
drm: false
deviate: {missing: [/dev/nvidia-modeset, "*/libnvidia-ngx.so*", "*/libnvoptix.so*"]}
"""


@pytest.mark.parametrize("lane", ["root", "rootless"])
@pytest.mark.parametrize(
    "name", ["two-h100", "mig-h100", "mig-a100", "mixed", "dgx-h100", "nvl72-tray", "no-driver", "odd"]
)
def test_a_replay_tells_the_same(on_machine: Runner, tmp_path: Path, name: str, lane: str) -> None:
    machine: str | Path = name
    if name == "odd":
        machine = tmp_path / "odd.yaml"
        machine.write_text(ODD.replace("TRIPLET", declaration.load("no-driver").triplet))
    script = '"$1" -m nvfakes record > "$2" && exec "$1" -c "$0"'
    recording = tmp_path / "recorded.yaml"
    first = on_machine(machine, "sh", "-c", script, READ, sys.executable, str(recording), lane=lane)
    assert first.returncode == 0, first.stderr
    again = on_machine(recording, sys.executable, "-c", READ, lane=lane)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == json.loads(first.stdout)


def test_serials_are_recorded_only_when_asked_for(on_machine: Runner) -> None:
    command = [sys.executable, "-m", "nvfakes", "record"]
    assert "1320000000001" not in on_machine("two-h100", *command).stdout
    assert "1320000000001" in on_machine("two-h100", *command, "--serials").stdout
