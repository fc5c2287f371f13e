"""`nvinject runtime configure`, judged by the engines themselves: each loads what was written, and runs a container.

Belongs here: what containerd, dockerd and podman make of the files. Does not belong here: how the files look
(tests/engines). What is read from an engine before and after --undo must be the same.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvconform.required import give_up

from . import test_podman_cdi
from .conftest import SEARCH_PATH, Start
from .daemon import Daemon
from .podman import IMAGE, Podman
from .test_docker import GPU_0, GPU_1, LIST, run

SECONDS = 120
PROGRAM = "/usr/bin/nvidia-container-runtime"
ENGINES = {"containerd": "containerd", "dockerd": "docker", "podman": "podman"}
KEYS = {1: "io.containerd.grpc.v1.cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}


def program(name: str) -> str:
    """Return an engine's program, or skip."""
    found = shutil.which(name, path=SEARCH_PATH)
    if found is None:
        give_up(ENGINES[name], f"{name} is missing")
    return found


def call(*command: str, **environment: str) -> str:
    """Run a program and return its output; the test fails with what it says."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=SECONDS, env={**os.environ, **environment}
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


def configure(folder: Path, engine: str, *options: str) -> None:
    """Call the command as the guide says, with the way back in a folder of the test."""
    words = ("runtime", "configure", "--runtime", engine, "--state-dir", str(folder / "state"), *options)
    call(sys.executable, "-m", "nvinject", *words)


# containerd


def major(containerd: str) -> int:
    """Return the major version of containerd."""
    words = call(containerd, "--version").split()
    return int(words[2].removeprefix("v").split(".", maxsplit=1)[0])


def dump(containerd: str, config: Path) -> dict[str, Any]:
    """Return the configuration that containerd makes of a file."""
    return tomllib.loads(call(containerd, "--config", str(config), "config", "dump"))


def cri(dumped: dict[str, Any]) -> dict[str, Any]:
    """Return the part of the plug-in that serves Kubernetes."""
    section = dumped["plugins"][KEYS[dumped["version"]]]["containerd"]
    assert isinstance(section, dict)
    return section


SYSTEMD = """\
[plugins."{key}".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."{key}".containerd.runtimes.runc.options]
    SystemdCgroup = true # the node's cgroup driver
"""
# name, text, whether runc has the option of the text, the releases that read it
FILES = [
    ("none", None, False, (1, 2)),
    ("empty", "", False, (1, 2)),
    ("comments", "# nothing here\n", False, (1, 2)),
    ("without-version", 'root = "/var/lib/containerd"\n', False, (1, 2)),
    ("one", SYSTEMD.format(key="cri").replace('"cri"', "cri"), True, (1,)),
    ("two", "version = 2\n" + SYSTEMD.format(key="io.containerd.grpc.v1.cri"), True, (1, 2)),
    (
        "two-crlf",
        ("version = 2\n" + SYSTEMD.format(key="io.containerd.grpc.v1.cri")).replace("\n", "\r\n"),
        True,
        (1, 2),
    ),
    ("two-imports", 'version = 2\nimports = [\n  "/nonexistent/*.toml", # theirs\n]\n', False, (1, 2)),
    ("three", "version = 3\n" + SYSTEMD.format(key="io.containerd.cri.v1.runtime"), True, (2,)),
]


@pytest.mark.parametrize("options", [(), ("--drop-in-config=",)], ids=["drop-in", "itself"])
@pytest.mark.parametrize(("name", "text", "systemd", "releases"), FILES, ids=[one[0] for one in FILES])
def test_containerd_loads_it(
    tmp_path: Path,
    name: str,
    text: str | None,
    systemd: bool,  # noqa: FBT001 - a column of the table
    releases: tuple[int, ...],
    options: tuple[str, ...],
) -> None:
    """The runtime is there with runc's options, runc has kept its own, and --undo is the way back."""
    containerd = program("containerd")
    if major(containerd) not in releases:
        pytest.skip(f"containerd {major(containerd)} does not read files such as {name}")
    config = tmp_path / "config.toml"
    if text is not None:
        config.write_bytes(text.encode())
    before = dump(containerd, config) if text is not None else None
    paths = ("--config", str(config), *(options or ("--drop-in-config", str(tmp_path / "conf.d" / "99-nvidia.toml"))))
    configure(tmp_path, "containerd", *paths, "--nvidia-runtime-path", PROGRAM, "--set-as-default", "--cdi.enabled")
    section = cri(dump(containerd, config))
    assert section["default_runtime_name"] == "nvidia"
    runtimes = section["runtimes"]
    assert runtimes["nvidia"]["options"]["BinaryName"] == PROGRAM
    assert {one["runtime_type"] for one in runtimes.values()} == {"io.containerd.runc.v2"}
    assert bool(runtimes["nvidia"]["options"].get("SystemdCgroup")) is systemd
    assert bool(runtimes["runc"].get("options", {}).get("SystemdCgroup")) is systemd
    configure(tmp_path, "containerd", "--config", str(config), "--undo")
    assert config.exists() is (text is not None)
    assert before is None or dump(containerd, config) == before


def test_containerd_is_asked_for_its_configuration(tmp_path: Path) -> None:
    """With what containerd itself says as the source, every option of runc is the runtime's, too."""
    containerd = program("containerd")
    config = tmp_path / "config.toml"
    config.write_text('root = "/var/lib/containerd"\n')
    paths = ("--config", str(config), "--drop-in-config", str(tmp_path / "conf.d" / "99-nvidia.toml"))
    words = (*paths, "--config-source", "command", "--executable-path", containerd, "--nvidia-runtime-path", PROGRAM)
    for options in (("--set-as-default",), ()):
        configure(tmp_path, "containerd", *words, *options)
        runtimes = cri(dump(containerd, config))["runtimes"]
        expected = {**runtimes["runc"], "options": {**runtimes["runc"]["options"], "BinaryName": PROGRAM}}
        assert runtimes["nvidia"] == expected
        assert cri(dump(containerd, config))["default_runtime_name"] == ("nvidia" if options else "runc")


def test_containerd_starts_with_it(tmp_path: Path) -> None:
    """A dump checks no plug-in; a start refuses a default runtime that is not there."""
    containerd = program("containerd")
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False, timeout=SECONDS)
    if tried.returncode != 0:
        give_up("containerd", f"containerd needs root: {tried.stderr.strip()}")
    config = tmp_path / "config.toml"
    config.write_text(f'version = 2\nroot = "{tmp_path}/root"\nstate = "{tmp_path}/run"\n')
    drop_in = tmp_path / "conf.d" / "99-nvidia.toml"
    configure(tmp_path, "containerd", "--config", str(config), "--drop-in-config", str(drop_in), "--set-as-default")
    command = [containerd, "--config", str(config), "--address", f"{tmp_path}/sock", "--log-level", "info"]
    log = tmp_path / "log"
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            said = wait_for(log, process)
        finally:
            process.terminate()
            process.wait(SECONDS)
    assert "containerd successfully booted" in said
    # Other plug-ins may fail on a machine for tests; this one's complaints about runtimes would name them.
    failed = [line for line in said.splitlines() if "failed to load plugin" in line and "v1.cri" in line]
    assert not [line for line in failed if "runtime" in line.partition("error=")[2].replace("v1.runtime", "")], failed


def wait_for(log: Path, process: "subprocess.Popen[bytes]") -> str:
    """Return a daemon's log as soon as it says that it is up, or at its end."""
    for _ in range(SECONDS):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
        said = log.read_text(errors="replace")
        if process.returncode is not None or "successfully booted" in said:
            return said
    return log.read_text(errors="replace")


# docker

DAEMONS = [
    None,
    "",
    "{}",
    '{"log-level": "warn"}',
    '\ufeff{\r\n\t"features": {\r\n\t\t"containerd-snapshotter": true\r\n\t},\r\n\t"debug": false\r\n}',
    '{"runtimes": {"crun": {"path": "/usr/bin/crun"}}, "default-runtime": "crun"}',
]


@pytest.mark.parametrize("text", DAEMONS)
def test_dockerd_accepts_it(tmp_path: Path, text: str | None) -> None:
    """Other settings, other runtimes and other features stay as they were."""
    dockerd = program("dockerd")
    if "--validate" not in call(dockerd, "--help"):
        pytest.skip("this dockerd cannot check a file without starting (it can from 23.0 on)")
    config = tmp_path / "daemon.json"
    if text is not None:
        config.write_bytes(text.encode())
    configure(
        tmp_path, "docker", "--config", str(config), "--set-as-default", "--cdi.enabled", "--runtime-path", "/bin/sh"
    )
    done = subprocess.run(
        [dockerd, "--validate", "--config-file", str(config)],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert "configuration OK" in done.stdout + done.stderr
    values = json.loads(config.read_text(encoding="utf-8-sig"))
    before = json.loads(text.removeprefix("\ufeff")) if text else {}
    assert {name: value for name, value in values.items() if name in before and name not in CHANGED} == {
        name: value for name, value in before.items() if name not in CHANGED
    }
    assert values["features"] == {**before.get("features", {}), "cdi": True}
    configure(tmp_path, "docker", "--config", str(config), "--undo")
    assert (config.read_bytes().decode() if config.exists() else None) == text


CHANGED = {"runtimes", "default-runtime", "features"}


class ConfiguredDaemon(Daemon):
    """A dockerd whose runtime is told by its file alone."""

    def configure(self) -> tuple[str, ...]:
        """Write a daemon.json as somebody may have it, and let the command add the runtime."""
        super().configure()
        config = self.folder / "daemon.json"
        fakes = {"runtimes": {"nvfakes": {"path": str(self.wrapper)}}, "default-runtime": "nvfakes"}
        config.write_text(json.dumps(fakes, indent=2))
        runtime = f"{self.prefix}/bin/nvidia-container-runtime"
        words = ("--config", str(config), "--nvidia-runtime-path", runtime, "--set-as-default")
        configure(self.folder, "docker", *words)
        return ()


@pytest.fixture(scope="module")
def configured(start: Start) -> Iterator[Daemon]:
    """Return a dockerd that was configured by the command, on a machine with two H100."""
    with start("two-h100", ConfiguredDaemon, shim=True) as daemon:
        yield daemon


@pytest.mark.docker
@pytest.mark.xdist_group("docker")
@pytest.mark.parametrize("runtime", [None, "nvidia"])
def test_docker_runs_a_container_with_it(configured: Daemon, runtime: str | None) -> None:
    """As the default runtime and by its name."""
    output = run(configured, LIST, runtime=runtime, environment={"NVIDIA_VISIBLE_DEVICES": "all"})
    assert output.splitlines() == [GPU_0, GPU_1]


@pytest.mark.docker
@pytest.mark.xdist_group("docker")
def test_docker_knows_it(configured: Daemon) -> None:
    """Beside the runtimes that were there."""
    with contextlib.closing(configured.client()) as client:
        info = client.info()
    assert info["DefaultRuntime"] == "nvidia"
    assert {"nvidia", "nvfakes", "runc"} <= set(info["Runtimes"])


# podman


@pytest.fixture
def storage() -> Iterator[str]:
    """Return options that keep podman's files in a folder whose name is short: it refuses more than 50 characters."""
    folder = tempfile.mkdtemp(prefix="nvp-", dir="/tmp")
    yield f"--root {folder}/root --runroot {folder}/run --storage-driver vfs --events-backend file"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def runtime() -> str:
    """Return a program that podman can ask for its version, or skip."""
    program("podman")
    found = shutil.which("runc", path=SEARCH_PATH) or shutil.which("crun", path=SEARCH_PATH)
    if found is None:
        give_up("podman", "no low-level runtime (runc, crun) that podman could ask for its version")
    return found


def podman_info(storage: str, **environment: str) -> dict[str, Any]:
    """Return what podman says about its runtime."""
    document = json.loads(call(program("podman"), *storage.split(), "info", "--format", "json", **environment))
    runtime = document["host"]["ociRuntime"]
    assert isinstance(runtime, dict)
    return runtime


PODMAN_FILES = [None, "", "# mine\n[engine]\nevents_logger = 'file'\n", '[engine.runtimes]\nother = ["/bin/false"]\n']


@pytest.mark.parametrize("text", PODMAN_FILES)
@pytest.mark.parametrize("where", ["drop-in", "itself"])
def test_podman_loads_it(tmp_path: Path, storage: str, runtime: str, text: str | None, where: str) -> None:
    """It names the runtime and its program; the runtimes that are built in are still known."""
    config = tmp_path / "containers.conf"
    if text is not None:
        config.write_text(text)
    drop_in = tmp_path / "99-nvidia.conf"
    place = ("--drop-in-config", str(drop_in)) if where == "drop-in" else ("--drop-in-config=",)
    words = ("--config", str(config), *place, "--nvidia-runtime-path", runtime, "--cdi.enabled")
    configure(tmp_path, "podman", *words, "--set-as-default")
    written = drop_in if where == "drop-in" else config
    found = podman_info(storage, CONTAINERS_CONF=str(written))
    assert (found["name"], found["path"]) == ("nvidia", runtime)
    configure(tmp_path, "podman", *words)
    assert podman_info(storage, CONTAINERS_CONF=str(written))["name"] in {"crun", "runc"} or where == "itself"
    configure(tmp_path, "podman", "--config", str(config), "--undo")
    assert (config.read_text() if config.exists() else None) == text
    assert not drop_in.exists()


base = test_podman_cdi.base  # the fixture


@pytest.fixture(scope="module")
def engine(base: Path, hook: Path, images: dict[str, bytes]) -> Iterator[Podman]:
    """Return podman on a machine with two H100; nothing of nvinject is told to it yet."""
    podman = Podman(base / "configured", "two-h100", hook)
    runtimes = f'[nvidia-container-runtime]\nruntimes = ["{podman.folder}/runtime"]\n'
    (podman.folder / "config.toml").write_text(runtimes)
    yield from test_podman_cdi.started(podman, {"deb": images["deb"]})


@pytest.mark.podman
@pytest.mark.xdist_group("podman")
def test_podman_runs_a_container_with_it(engine: Podman) -> None:
    """By the runtime's name, which the command has added to the file that podman reads; without it podman refuses."""
    place = "/etc/nvidia-container-runtime"
    copy = f"mkdir -p {place} && cp {engine.folder}/config.toml {place}"
    words = f"--runtime nvidia run --rm --network=none -e NVIDIA_VISIBLE_DEVICES=all {IMAGE}:deb nvidia-smi -L"
    refused = engine.on_machine(f"{copy} && exec podman {words}")
    assert refused.returncode != 0
    assert "nvidia" in refused.stderr
    options = f"--config {engine.folder}/containers.conf --drop-in-config= --state-dir {engine.folder}/state"
    configured = engine.on_machine(f"nvinject runtime configure --runtime podman {options}")
    assert configured.returncode == 0, configured.stderr
    done = engine.on_machine(f"{copy} && exec podman {words}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [GPU_0, GPU_1]


# The places that engines look at by themselves, in a mount namespace with an /etc of its own.
OWN_ETC = (
    "mkdir -p {0}/etc && mount -t tmpfs none {0}/etc && mkdir {0}/etc/upper {0}/etc/work && "
    "mount -t overlay -o lowerdir=/etc,upperdir={0}/etc/upper,workdir={0}/etc/work overlay /etc && "
)


def in_own_etc(tmp_path: Path, script: str) -> str:
    """Run a script with an /etc that can be written to, or skip."""
    nvinject = f"{sys.executable} -m nvinject runtime configure --state-dir {tmp_path}/state"
    body = OWN_ETC.format(tmp_path) + script.replace("CONFIGURE", nvinject)
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{OWN_ETC.format(tmp_path)}true"],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    if done.returncode != 0:
        give_up("podman", f"no overlay of /etc can be made here: {done.stderr.strip()}")
    return call("unshare", "--mount", "--propagation", "private", "sh", "-ec", body)


def test_podman_finds_the_drop_in_by_itself(tmp_path: Path, storage: str, runtime: str) -> None:
    """With the defaults of the command and of podman."""
    said = in_own_etc(
        tmp_path,
        f"CONFIGURE --runtime podman --set-as-default --nvidia-runtime-path {runtime} >&2;"
        f" podman {storage} info --format '{{{{.Host.OCIRuntime.Name}}}} {{{{.Host.OCIRuntime.Path}}}}'",
    )
    assert said.split() == ["nvidia", runtime]


def test_containerd_finds_the_drop_in_by_itself(tmp_path: Path) -> None:
    """With the defaults of the command and of containerd, and whatever file this machine has."""
    containerd = program("containerd")
    said = in_own_etc(tmp_path, f"CONFIGURE --runtime containerd --set-as-default >&2; {containerd} config dump")
    assert cri(tomllib.loads(said))["default_runtime_name"] == "nvidia"
