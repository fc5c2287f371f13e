"""The kernel's stand-in: a container's new procfs shows the machine, through the runtimes that are installed."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nvfakes import runtimewrapper

Runner = Callable[..., "subprocess.CompletedProcess[str]"]
BUSYBOX = "/bin/busybox"
SPEC = {
    "ociVersion": "1.0.2",
    "process": {
        "user": {"uid": 0, "gid": 0},
        "cwd": "/",
        "env": ["PATH=/bin"],
        "args": ["/bin/busybox", "head", "-n3", "/proc/driver/nvidia/params"],
    },
    "root": {"path": "rootfs"},
    "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
    "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]},
}


def write_bundle(directory: Path) -> None:
    for name in ("bin", "proc", "dev", "sys"):
        (directory / "rootfs" / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, directory / "rootfs/bin/busybox")
    (directory / "config.json").write_text(json.dumps(SPEC))


@pytest.mark.skipif(not Path(BUSYBOX).exists(), reason="busybox-static is not installed")
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_container_sees_proc_driver(on_machine: Runner, tmp_path: Path, runtime: str) -> None:
    program = shutil.which(runtime, path="/usr/sbin:/usr/bin:/usr/local/bin")
    if not program:
        pytest.skip(f"{runtime} is not installed")
    write_bundle(tmp_path)
    script = (
        "umount /sys/fs/cgroup/unified 2>/dev/null; "  # crun refuses the hybrid view of cgroups
        '"$1" -m nvfakes runtime-wrapper "$2/runtime" --runtime "$3" && '
        'exec timeout 20 "$2/runtime" --root "$2/state" run --bundle "$2" nvfakes-test'
    )
    done = on_machine("two-h100", "sh", "-c", script, "sh", sys.executable, str(tmp_path), program)
    assert done.stdout.splitlines() == ["ResmanDebugLevel: 4294967295", "RmLogonRC: 1", "ModifyDeviceFiles: 1"], (
        done.stderr
    )


CALLS: tuple[tuple[list[str], str, str], ...] = (
    (["create", "--bundle", "/b", "id"], "create", "/b"),
    (["--root", "create", "--log=x", "run", "-b", "/c", "id"], "run", "/c"),
    (["--debug", "start", "id"], "start", "."),
    (["--systemd-cgroup", "create", "--bundle=/d", "id"], "create", "/d"),
    ([], "", "."),
)


@pytest.mark.parametrize(("arguments", "command", "bundle"), CALLS)
def test_reads_the_runtimes_command_line(arguments: list[str], command: str, bundle: str) -> None:
    assert runtimewrapper.subcommand(arguments) == command
    assert runtimewrapper.bundle(arguments) == bundle


def test_the_hook_is_first_and_inserted_once(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"hooks": {"prestart": [{"path": "/other"}], "poststop": []}}))
    runtimewrapper.insert_hook(str(path), "/")
    runtimewrapper.insert_hook(str(path), "/")
    hooks = json.loads(path.read_text())["hooks"]
    assert [hook["path"] for hook in hooks["prestart"]][1:] == ["/other"]
    assert hooks["prestart"][0]["args"][-1] == "/"
    assert hooks["prestart"][0]["env"]
