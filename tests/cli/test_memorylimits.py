"""Limits of GPU memory from end to end: what a child does with the driver's library, and the hook at createRuntime."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nvinject.cli.limithook import gpu_minors, parse_limit
from nvinject.cli.memorylimits import apply_limits, find_library, hook_words
from nvinject.core.plan import LimitMemory
from nvinject.errors import HostError, UsageError
from nvinject.render.nvmllimits import Limit
from tests.machines import write_machine

NEWER = """\
driver: {version: 615.43.02, cuda: "13.4"}
gpus:
  - {uuid: GPU-000000a0-1111-2222-3333-000000000000, bus: "0000:17:00.0", model: h100}
  - {uuid: GPU-000000a1-1111-2222-3333-000000000001, bus: "0000:18:00.0", model: h100}
"""
# On a machine in a lane: sets limits, prints what NVML then has for a cgroup, or what the failure says.
SCRIPT = """
import sys, pynvml as n
from nvinject.cli.memorylimits import apply_limits
from nvinject.errors import HostError
from nvinject.render.nvmllimits import Limit
library = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.615.43.02"
def limit(*limits):
    try:
        apply_limits(tuple(Limit(gpu=gpu, soft=soft, hard=hard) for gpu, soft, hard in limits), "/a group", library, 10)
    except HostError as error:
        print(error.message)
    n.nvmlInit()
    for index in range(2):
        found = n.c_nvmlGetMemoryLimits_v1_t(nameSpace=b"/a group")
        try:
            n.nvmlDeviceGetMemoryLimits_v1(n.nvmlDeviceGetHandleByIndex(index), found)
            print(index, found.softLimit, "max" if found.hardLimit == 2**64 - 1 else found.hardLimit)
        except n.NVMLError as error:
            print(index, error)
    n.nvmlShutdown()
"""


def run_newer(tmp_path: Path, calls: str) -> "subprocess.CompletedProcess[str]":
    """Run calls on a machine with the newer driver; skips where no machine can stand at the real paths."""
    (tmp_path / "newer.yaml").write_text(NEWER)
    lane = [sys.executable, "-m", "nvfakes", "run", str(tmp_path / "newer.yaml"), "--lane", "root", "--"]
    probe = subprocess.run([*lane, "true"], capture_output=True, text=True, check=False, timeout=60)
    if probe.returncode:
        pytest.skip(probe.stderr.strip())
    command = [*lane, sys.executable, "-c", SCRIPT + calls]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_limits_are_set_by_address_or_uuid(tmp_path: Path) -> None:
    """A hard limit of 0 is none."""
    done = run_newer(tmp_path, 'limit(("0000:17:00.0", 1, 2), ("GPU-000000a1-1111-2222-3333-000000000001", 3, 0))')
    assert done.stdout.splitlines() == ["0 1 2", "1 3 max"], done.stderr


def test_a_failure_takes_back_what_was_set_before(tmp_path: Path) -> None:
    """The second GPU is none: the first has no limit afterwards."""
    done = run_newer(tmp_path, 'limit(("0000:17:00.0", 1, 2), ("0000:99:00.0", 3, 4))')
    lines = done.stdout.splitlines()
    assert lines[0].startswith("NVML fails in finding GPU 0000:99:00.0 for cgroup /a group"), done.stderr
    assert lines[1:] == ["0 0 max", "1 Not Found"]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tree of a machine whose driver limits no memory."""
    base = tmp_path_factory.mktemp("machine")
    write_machine("two-h100", base / "two-h100")
    return base / "two-h100"


def test_a_driver_without_the_function(old: Path) -> None:
    library = find_library(str(old), "570.133.20")
    with pytest.raises(HostError) as caught:
        apply_limits((Limit(gpu="0000:17:00.0", hard=1 << 30),), "/sys/fs/cgroup/x", library, 10)
    assert "limiting the memory of GPU 0000:17:00.0 for cgroup /sys/fs/cgroup/x" in caught.value.message


def test_a_library_that_is_not_there(old: Path) -> None:
    with pytest.raises(HostError, match=r"NVML fails in loading NVML .*No such file"):
        apply_limits((Limit(gpu="x"),), "/x", f"{old}/none.so", 10)
    with pytest.raises(HostError, match=r"libnvidia-ml.so.1 of version 1.2 is not in"):
        find_library(str(old), "1.2")


def test_the_words_of_a_plan_are_those_that_the_hook_reads() -> None:
    operation = LimitMemory(gpu="0000:17:00.0", soft=1, hard=2, reason="test")
    words = hook_words((operation,), "/run/nvidia/driver/")
    assert words == (
        *("cdi-hook", "apply-cuda-memory-limits", "--driver-root", "/run/nvidia/driver"),
        *("--limit", "0000:17:00.0=1:2"),
    )
    assert parse_limit(words[-1]) == Limit(gpu="0000:17:00.0", soft=1, hard=2)


@pytest.mark.parametrize("text", ["", "=1:2", "x=1", "x=1:", "x=a:1", "x=1:-2", "1:2"])
def test_limits_that_nobody_wrote(text: str) -> None:
    with pytest.raises(UsageError, match="--limit"):
        parse_limit(text)


NODES = [
    ({}, set()),
    ({"linux": []}, set()),
    ({"linux": {"devices": [{"path": "/dev/nvidia1", "major": 195, "minor": 1}, "x", {}]}}, {1}),
    ({"linux": {"devices": [{"path": "/dev/nvidiactl", "major": 195, "minor": 255}]}}, set()),
    ({"linux": {"devices": [{"path": "/dev/nvidia-modeset", "major": 195, "minor": 254}]}}, set()),
    ({"linux": {"devices": [{"path": "/dev/nvidia2", "major": 1, "minor": 2}]}}, set()),
    ({"linux": {"devices": [{"path": "/dev/nvidia2", "major": 195, "minor": "2"}]}}, set()),
]


@pytest.mark.parametrize(("document", "minors"), NODES)
def test_the_gpus_of_a_container_are_those_that_it_has_nodes_of(document: dict[str, Any], minors: set[int]) -> None:
    assert gpu_minors(document) == minors


# environment, words; exit code and what is said
CALLS = [
    ((), (), 0, ""),
    (("NVIDIA_MEMORY_LIMIT=much",), (), 5, "NVIDIA_MEMORY_LIMIT: 'much' is no size"),
    (("NVIDIA_MEMORY_LIMIT=1G",), (), 0, ""),  # it has no GPU to limit
    (("NVIDIA_MEMORY_LIMIT=0=1G",), (), 5, "the container has no GPU '0'"),
    ((), ("--limit", "x"), 2, "--limit 'x' is not GPU=SOFT:HARD"),
    ((), ("--limit", "0000:17:00.0=0:1", "--driver-root", "/nowhere"), 6, "/nowhere does not exist"),
    ((), ("--container-spec", "/nowhere"), 3, "/nowhere does not exist"),
]


@pytest.mark.parametrize(("environment", "words", "code", "says"), CALLS)
def test_the_hook_of_a_spec(
    environment: tuple[str, ...], words: tuple[str, ...], code: int, says: str, tmp_path: Path
) -> None:
    """A container that asks for nothing costs nothing; every fault is one line."""
    document = {"ociVersion": "1.0.2", "process": {"env": list(environment)}, "root": {"path": "rootfs"}}
    (tmp_path / "config.json").write_text(json.dumps(document))
    state = {"ociVersion": "1.0.2", "id": "x", "pid": 1, "bundle": str(tmp_path), "status": "created"}
    (tmp_path / "state.json").write_text(json.dumps(state))
    hook = ["apply-cuda-memory-limits", "--container-spec", str(tmp_path / "state.json")]
    done = subprocess.run(
        [sys.executable, "-m", "nvinject", "cdi-hook", *hook, *words],
        env={"NVIDIA_CTK_DEBUG": "false"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert done.stderr.count("\n") == bool(says)
