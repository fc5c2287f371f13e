"""The runtime shim in front of runc and crun in situations that a case cannot describe.

Belongs here: lives of containers (run, crash, a full disk), root file systems that appear late, settings of the shim.
Does not belong here: what a request leads to (conformance/cases). Each test is one shell script on a declared machine.
"""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from nvconform.image import shared_object
from nvconform.required import give_up

from .conftest import SEARCH_PATH
from .daemon import nvfakes
from .test_docker import GPU_0, GPU_1

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("docker")]

MACHINE = "two-h100"
SECONDS = 120
LARGE = 800  # libraries whose loader cache takes time
CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_SETGID", "CAP_SETUID")
# crun refuses hybrid cgroups; without the v2 tree it works on v1.
PREPARE = {"runc": "", "crun": "! [ -e /sys/fs/cgroup/unified ] || umount /sys/fs/cgroup/unified || exit 99\n"}


class Scene:
    """A bundle, the shim, and a low-level runtime that shows the machine's /proc/driver."""

    def __init__(self, folder: Path, prefix: Path, image: bytes, runtime: str) -> None:
        """Unpack the image and write everything."""
        self.folder = folder
        self.prefix = prefix
        self.runtime = runtime
        self.identifier = f"situation-{runtime}-{os.getpid()}-{folder.name}"
        self.bundle = folder / "bundle"
        self.rootfs = self.bundle / "rootfs"
        with tarfile.open(fileobj=io.BytesIO(image)) as archive:
            archive.extractall(self.rootfs, filter="fully_trusted")
        self.low_level = folder / "low-level"
        program = shutil.which(runtime, path=SEARCH_PATH)
        if program is None:
            give_up("docker", f"{runtime} is not installed")
        nvfakes("runtime-wrapper", "--runtime", program, str(self.low_level))
        self.settings = ""

    def write(self, *command: str, nodes: bool = True, **more: Any) -> None:
        """Write config.json and config.toml; with `nodes` the container may make device nodes."""
        capabilities = [*CAPABILITIES, *(["CAP_MKNOD"] if nodes else [])]
        spec = {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": list(command) or ["/usr/bin/nvidia-smi", "-L"],
                "env": ["PATH=/usr/bin", "NVIDIA_VISIBLE_DEVICES=all"],
                "cwd": "/",
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            },
            "root": {"path": "rootfs"},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            ],
            "linux": {
                "namespaces": [{"type": name} for name in ("pid", "ipc", "uts", "mount", "network")],
                "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            },
            **more,
        }
        (self.bundle / "config.json").write_text(json.dumps(spec))
        runtimes = f'[nvidia-container-runtime]\nruntimes = ["{self.low_level}"]\n'
        (self.folder / "config.toml").write_text(runtimes + self.settings)

    def run(self, script: str) -> list[str]:
        """Run a script on the machine and return what it prints; `shim` is the shim, `id` the container's id."""
        head = (
            f"{PREPARE[self.runtime]}cd {self.bundle}\n"
            f"export NVIDIA_CTK_CONFIG_FILE_PATH={self.folder}/config.toml\n"
            f"id={self.identifier}\n"
            f'shim() {{ "{self.prefix}/bin/nvidia-container-runtime" --root {self.folder}/state "$@"; }}\n'
        )
        done = subprocess.run(
            [sys.executable, "-m", "nvfakes", "run", MACHINE, "--", "/bin/sh", "-c", head + script],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        if done.returncode == 99:
            give_up("docker", "crun refuses hybrid cgroups, and we cannot hide them")
        assert done.stderr == "", done.stderr
        return done.stdout.splitlines()


@pytest.fixture(params=["runc", "crun"])
def scene(request: pytest.FixtureRequest, dockerd: str, tmp_path: Path, hook: Path, images: dict[str, bytes]) -> Scene:
    """Return a scene; `dockerd` is asked for only because it needs the same rights."""
    assert dockerd
    return Scene(tmp_path, hook, images["rpm"], request.param)


@pytest.mark.parametrize("nodes", [True, False])
@pytest.mark.parametrize("settings", ["", "[nvinject]\nwrite-rootfs = false\n"])
def test_run(scene: Scene, nodes: bool, settings: str) -> None:  # noqa: FBT001
    """One call from creation to removal; what was generated has gone without a call of delete."""
    scene.settings = settings
    scene.write(nodes=nodes)
    assert scene.run("shim run $id; ls -d /run/nvinject/$id 2>&1 | grep -c 'No such'") == [GPU_0, GPU_1, "1"]
    written = (scene.rootfs / "usr/lib64/libcuda.so.1").is_symlink()
    assert written is (settings == "")


def test_hooks(scene: Scene) -> None:
    """There is one where device nodes could be made, and none elsewhere."""
    scene.write(nodes=True)
    assert scene.run("shim create $id >/dev/null </dev/null; shim delete -f $id; cat config.json")[0].count("args") == 3
    scene.write(nodes=False)
    text = scene.run("shim create $id >/dev/null </dev/null; shim delete -f $id; cat config.json")[0]
    # What is left is the container's own process, and the stand-in for the kernel that the low-level runtime adds.
    assert text.count("args") == 2


def test_delete(scene: Scene) -> None:
    """The run directory is there as long as the container."""
    scene.write()
    script = """
    shim create $id </dev/null >output
    ls /run/nvinject/$id
    shim start $id
    until shim state $id | grep -q stopped; do sleep 0.1; done
    shim delete $id
    cat output
    ls -d /run/nvinject/$id 2>&1 | grep -c 'No such'
    """
    assert scene.run(script) == ["container.json", "plan.json", GPU_0, GPU_1, "1"]


def test_a_large_loader_cache(scene: Scene) -> None:
    """Beside the runtime or before it, whoever writes the cache writes the same one."""
    libraries = scene.rootfs / "usr/lib64"
    for number in range(LARGE):
        (libraries / f"libexample{number}.so.1").write_bytes(shared_object(f"libexample{number}.so.1"))
    (scene.rootfs / "etc/ld.so.conf").write_text("/usr/lib64\n")
    subprocess.run(["ldconfig", "-r", str(scene.rootfs)], check=True, timeout=SECONDS)
    cache = scene.rootfs / "etc/ld.so.cache"
    before = cache.read_bytes()
    assert len(before) >= 1 << 15
    written = []
    for nodes in (True, False):
        cache.write_bytes(before)
        scene.write(nodes=nodes)
        assert scene.run("shim run $id") == [GPU_0, GPU_1]
        written.append(cache.read_bytes())
    assert written[0] == written[1]
    assert written[0].count(b"libexample") == before.count(b"libexample")
    assert b"/libcuda.so.1\0" in written[0]


def test_what_a_crash_left_is_swept(scene: Scene) -> None:
    """The low-level runtime is called past the shim, as by an engine that was changed meanwhile."""
    scene.write()
    script = f"""
    shim create $id </dev/null >output
    {scene.low_level} --root {scene.folder}/state delete -f $id
    ls -d /run/nvinject/$id
    touch -d '1 hour ago' /run/nvinject/$id
    shim create $id-next </dev/null >output
    ls -d /run/nvinject/$id 2>&1 | grep -c 'No such'
    shim delete -f $id-next
    """
    assert scene.run(script) == [f"/run/nvinject/{scene.identifier}", "1"]


def test_root_file_system_that_comes_late(scene: Scene) -> None:
    """Some runtimes mount it themselves: the files go where the host has them, the hook does the rest."""
    scene.write()
    late = scene.folder / "late"
    late.write_text(
        f'#!/bin/sh\nfor word do [ "$word" = run ] && mount --bind {scene.folder}/image {scene.rootfs}; done\n'
        f'exec {scene.low_level} "$@"\n'
    )
    late.chmod(0o755)
    (scene.folder / "config.toml").write_text(f'[nvidia-container-runtime]\nruntimes = ["{late}"]\n')
    scene.rootfs.rename(scene.folder / "image")
    scene.rootfs.mkdir()
    assert scene.run("shim run $id") == [GPU_0, GPU_1]
    libraries = {path.name for path in (scene.folder / "image/usr/lib/x86_64-linux-gnu").iterdir()}
    assert {"libcuda.so.1", "libnvidia-ml.so.1"} <= libraries


def test_full_disk(scene: Scene) -> None:
    """The engine's config.json stays, the root file system is as before, the message names the cause."""
    scene.write()
    script = f"""
    mkdir {scene.folder}/small && mount -t tmpfs -o size=16k none {scene.folder}/small || exit 1
    cp config.json {scene.folder}/small && cd {scene.folder}/small
    sed -i 's#"rootfs"#"{scene.rootfs}"#' config.json
    cp config.json ../before
    dd if=/dev/zero of=fill bs=1k 2>/dev/null
    shim create $id 2>&1
    echo $?
    cmp config.json ../before && ls -A
    ls /run/nvinject/$id 2>&1 | grep -c 'No such'
    ls {scene.rootfs}/usr/lib64
    """
    lines = scene.run(script)
    assert lines[0].startswith(f"nvinject: cannot write {scene.folder}/small/config.json: No space left on device")
    assert lines[1:] == ["7", "config.json", "fill", "1", "ld-linux-x86-64.so.2"]


def test_failing_low_level_runtime(scene: Scene) -> None:
    """Its exit code and its message are passed on."""
    scene.write("/no/such/program")
    lines = scene.run("shim create $id 2>&1; echo $?; shim delete -f $id 2>/dev/null")
    assert lines[-1] == "1"
    assert "/no/such/program" in lines[0]
