"""A private dockerd on a declared machine: started, reached through its own socket, and gone without a trace.

Belongs here: starting, stopping, cleaning up, and looking for what was left behind. Does not belong here: what the
containers are asked. Everything lies below one folder but for what the kernel keeps elsewhere: mounts (in the machine's
own mount namespace), cgroups (below one name) and processes (marked by a variable of their environment).
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import docker
from docker.errors import DockerException

from nvconform.engines import docker as docker_engine

PREPARE_SECONDS = 300
START_SECONDS = 60
STOP_SECONDS = 30
CALL_SECONDS = 60
MARK = "NVCONFORM_ENGINE"
# In the machine's own mount namespace; the first argument stands for the name of the script.
UNIFIED_VIEW = (
    "sh",
    "-c",
    'umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"',
    "unified-view",
)
# What a dockerd leaves outside its own folders when it is not kept in a machine of its own.
HOST_PATHS = ("/etc/docker", "/run/docker", "/run/containerd", "/var/lib/docker", "/var/lib/containerd")


class DaemonError(Exception):
    """The daemon cannot be had; the message says why, with the end of its log."""


@dataclass
class Daemon:
    """A dockerd; `machine` is the declaration that it runs on, `prefix` where the hook was installed.

    Its log is written to `log`. `unified` lets it see cgroup v2 only, as on a machine that has no v1 hierarchies.
    `shim` gives it the runtime `nvidia`, which is the runtime shim of the prefix.
    """

    program: str
    log: Path
    machine: str
    prefix: Path | None
    unified: bool = False
    shim: bool = False
    folder: Path = field(init=False)
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Make the folder: with a short name, because the paths of its sockets have at most 107 bytes (unix(7))."""
        self.folder = Path(tempfile.mkdtemp(prefix="nvengine-", dir="/tmp"))

    @property
    def socket(self) -> str:
        """Return the address for clients."""
        return f"unix://{self.folder}/docker.sock"

    @property
    def cgroup(self) -> str:
        """Return the name of the cgroup that holds all containers of this daemon."""
        return self.folder.name

    def environment(self) -> dict[str, str]:
        """Return the environment of the daemon, which is also that of its hooks."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DOCKER_", "NVIDIA_"))}
        directories = [value for value in (str(self.prefix / "bin") if self.prefix else "", kept["PATH"]) if value]
        # The machine that runs the tests may have a configuration of its own.
        configuration = {"NVIDIA_CTK_CONFIG_FILE_PATH": str(self.folder / "config.toml")}
        return kept | configuration | {"PATH": ":".join([*directories, "/usr/sbin", "/sbin"]), MARK: str(self.folder)}

    def client(self) -> docker.DockerClient:
        """Return a client whose every call has a time limit."""
        return docker.DockerClient(base_url=self.socket, timeout=CALL_SECONDS)

    @property
    def wrapper(self) -> Path:
        """Return the low-level runtime, which shows the driver's procfs in containers."""
        return self.folder / "runtime"

    def configure(self) -> tuple[str, ...]:
        """Write the configuration, and return the options that tell the daemon about runtimes."""
        runtimes = f'[nvidia-container-runtime]\nruntimes = ["{self.wrapper}"]\n' if self.shim else ""
        (self.folder / "config.toml").write_text(f"# the defaults\n{runtimes}")
        (self.folder / "daemon.json").write_text("{}\n")  # not /etc/docker/daemon.json of this machine
        options = ("--add-runtime", f"nvfakes={self.wrapper}", "--default-runtime", "nvfakes")
        return (
            *options,
            *(("--add-runtime", f"nvidia={self.prefix}/bin/nvidia-container-runtime") if self.shim else ()),
        )

    def start(self) -> None:
        """Start dockerd on its machine and wait until it answers."""
        options = self.configure()
        nvfakes("runtime-wrapper", str(self.wrapper))
        # What a machine needs is compiled and unpacked the first time; the daemon's time limit is not for that.
        nvfakes("run", self.machine, "--", "true", seconds=PREPARE_SECONDS)
        command = [
            *(sys.executable, "-m", "nvfakes", "run", self.machine, "--"),
            *(UNIFIED_VIEW if self.unified else ()),
            *self.command(options),
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
                cwd=self.folder,
                start_new_session=True,
            )
        self.wait_until_ready()

    def command(self, options: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command line of the daemon."""
        return docker_engine.daemon_command(self.program, self.folder, self.cgroup, options)

    def wait_until_ready(self) -> None:
        """Wait for the first answer; raises DaemonError if the process ends or says nothing in time."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.ended:
                break
            if self.answers():
                return
            time.sleep(0.1)
        end = self.log.read_text(errors="replace")[-3000:]
        raise DaemonError(f"{self.program} did not start on machine {self.machine}; the end of its log:\n{end}")

    @property
    def ended(self) -> bool:
        """Say whether the daemon's process has ended, or never was."""
        return self.process is None or self.process.poll() is not None

    def answers(self) -> bool:
        """Say whether a daemon answers; the SDK would leave a socket open where none does."""
        return docker_engine.answers(self.folder / "docker.sock", CALL_SECONDS)

    def kill(self) -> None:
        """End the daemon at once, without a chance to tidy up."""
        os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)

    def stop(self) -> None:
        """End every container, the daemon and what outlives it; never raises for something that is already gone."""
        if self.answers():
            self.remove_containers()
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((self.folder / "pid").read_text()), signal.SIGTERM)
        if self.process is not None:
            wait_or_kill(self.process)
        self.end_processes()
        for path in self.cgroups():
            for directory, _, _ in os.walk(path, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(directory)
        shutil.rmtree(self.folder, ignore_errors=True)

    def remove_containers(self) -> None:
        """End every container while the daemon can still unmount and tidy up."""
        with contextlib.suppress(DockerException, OSError), contextlib.closing(self.client()) as client:
            for container in client.containers.list(all=True):
                with contextlib.suppress(DockerException, OSError):
                    container.remove(force=True)

    def end_processes(self) -> None:
        """Kill shims and container processes that outlived the daemon, by the marks that only they carry."""
        deadline = time.monotonic() + STOP_SECONDS
        while (left := self.processes()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def processes(self) -> list[int]:
        """Return the processes that descend from this daemon: by their environment, or by their cgroup."""
        mark = f"{MARK}={self.folder}".encode()
        found = set()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
        for path in self.cgroups():
            for members in path.rglob("cgroup.procs"):
                with contextlib.suppress(OSError):
                    found |= {int(word) for word in members.read_text().split()}
        return sorted(found - {os.getpid()})

    def cgroups(self) -> list[Path]:
        """Return this daemon's cgroup in every mounted hierarchy."""
        lines = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
        mounted = (Path(words[4]) for words in lines if words[words.index("-") + 1] in {"cgroup", "cgroup2"})
        return [path / self.cgroup for path in mounted if (path / self.cgroup).is_dir()]

    def leftovers(self) -> list[str]:
        """Return what is still there of this daemon, in words; empty after a clean stop."""
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        return [
            *(f"process {pid}: {describe_process(pid)}" for pid in self.processes()),
            *(f"cgroup {path}" for path in self.cgroups()),
            *(f"mount {line}" for line in mounts if str(self.folder) in line),
            *(f"path {path}" for path in [self.folder] if path.exists()),
        ]


def wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that was asked to end; kill it and its session's first group if it takes too long."""
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_SECONDS)


def describe_process(pid: int) -> str:
    """Return a process's command line."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return "gone"


@contextlib.contextmanager
def running(daemon: Daemon) -> Iterator[Daemon]:
    """Run a daemon and stop it whatever happens; what was there before must be all that is there afterwards."""
    before = host_state()
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.stop()
    left = [*daemon.leftovers(), *sorted(host_state() - before)]
    if left:
        raise DaemonError(f"{daemon.program} left something behind:\n" + "\n".join(left))


def host_state() -> set[str]:
    """Return what a dockerd can leave on the host outside of its folder: paths that it makes, and mounts that name it.

    Other mounts are left out, because other tests of this machine may make them at the same time.
    """
    mounts = (line.split(" ", 1)[1] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    named = {f"mount {line}" for line in mounts if "docker" in line or "containerd" in line or "nvidia" in line}
    return named | {f"path {path}" for path in HOST_PATHS if Path(path).exists()}


def nvfakes(*arguments: str, seconds: int = CALL_SECONDS) -> None:
    """Run a command of nvfakes; raises DaemonError with what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "nvfakes", *arguments], capture_output=True, text=True, check=False, timeout=seconds
    )
    if done.returncode != 0:
        raise DaemonError(f"nvfakes {arguments[0]} failed: {done.stderr.strip()}")


def install_hook(prefix: Path) -> None:
    """Install nvinject under the names that engines look for."""
    command = [sys.executable, "-m", "nvinject", "install", "--prefix", str(prefix), "--links"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CALL_SECONDS)
    if done.returncode != 0:
        raise DaemonError(f"nvinject install failed: {done.stderr.strip()}")
