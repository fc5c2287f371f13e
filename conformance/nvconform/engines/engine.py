"""An engine in a runtime's place: the same steps (create, start, delete) on a container that the engine makes.

Belongs here: the order of the steps, what is said to the relay, and the same container without injector and engine.
Does not belong here: command lines and daemons (podman.py, docker.py, containerd.py), judging (through.py).

One container is started at a time. `begin` has the engine make it until the engine calls its runtime, `create` lets
that call go on, `start` lets the container's process run, `delete` waits for the engine to have removed it all.
"""

import contextlib
import functools
import json
import os
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from nvconform.bundle import PROBE, Identities
from nvconform.engines import relay
from nvconform.engines.options import Abilities, Options
from nvconform.image import PROBE_DIRECTORY
from nvconform.runtimes import CREATE_SECONDS, STEP_SECONDS, Created, Runtime, RuntimeUnavailableError, wait_or_kill

PROCESS = (f"/{PROBE_DIRECTORY}/busybox", "sh", "-c", PROBE)
# Debian keeps system programs where an ordinary user's PATH does not look.
SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Surroundings:
    """What an engine finds: a folder of its own, an interpreter for the relay, and where a case's hook will lie.

    `fakes` is how nvfakes is called, None on a machine that shows nothing in /proc/driver.
    """

    folder: Path
    fakes: Sequence[str] | None
    python: str
    lane: str
    hook: str = ""


@dataclass(frozen=True)
class Call:
    """The engine's call of its runtime, held: the container's identifier, its bundle and what config.json says."""

    identifier: str
    bundle: Path
    config: dict[str, Any]

    @property
    def rootfs(self) -> Path:
        """Return the root file system, whose path may be relative to the bundle (config.md of the OCI)."""
        return self.bundle / str(self.config["root"]["path"])


@dataclass(frozen=True)
class Called:
    """What came of `create`: exit code, standard error and log of the called program, and the container's process."""

    code: int
    message: str
    log: str
    pid: int


class Engine(Runtime):
    """One engine; `command` and what it keeps up are its subclass's."""

    name = ""
    package = ""
    programs: tuple[str, ...] = ()
    # Whether the container's root file system is the folder that it was given.
    keeps_rootfs = True

    def __init__(self, surroundings: Surroundings) -> None:
        """Find the programs, and write the relay and the runtime behind it, which shows /proc/driver in containers.

        Raises: RuntimeUnavailableError when a program is not on PATH.
        """
        if reason := self.missing():
            raise RuntimeUnavailableError(reason)
        self.surroundings = surroundings
        self.folder = surroundings.folder
        self.folder.mkdir(mode=0o755)
        self.plain = Runtime("runc", self.folder / "state", rootless=False)
        self.options = self.plain.options
        low_level = self.folder / "runtime"
        if surroundings.fakes is None:
            low_level.symlink_to(self.plain.program)
        else:
            words = ("runtime-wrapper", str(low_level), "--runtime", self.plain.program)
            subprocess.run([*surroundings.fakes, *words], check=True, capture_output=True, timeout=STEP_SECONDS)
        self.program = self.plain.program = str(low_level)
        self.relay = self.folder / "relay"
        address = self.folder / "relay.sock"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(address))
        self.listener.listen()
        self.next_call = self.folder / "call"
        relay.write(self.relay, surroundings.python, address, self.next_call)
        self.process: subprocess.Popen[bytes] | None = None
        self.stream: IO[str] | None = None
        self.shown = Path(os.devnull)
        self.answer: dict[str, Any] = {}
        self.specs = Path("/run/cdi")
        self.given: list[Path] = []
        self.created: Callable[[], None] = lambda: None

    # -- what is an engine's own

    @classmethod
    def abilities(cls) -> Abilities:
        """Return what the installed engine can do."""
        return Abilities(cls.name)

    @classmethod
    def missing(cls) -> str:
        """Return which program is not installed, "" where all are."""
        for program, package in (*((name, cls.package) for name in cls.programs), ("runc", "runc")):
            if find(program) is None:
                return f"{program} is not installed (package {package})"
        return ""

    def prepare_host(self) -> None:
        """Start what has to be up before a container can be made."""

    def close(self) -> None:
        """End what `prepare_host` started."""
        self.listener.close()

    def command(self, rootfs: Path, options: Options, identities: Identities) -> list[str]:
        """Return the command line that makes a container, runs it to its end and removes it."""
        raise NotImplementedError

    @classmethod
    def words(cls, options: Options) -> list[str]:
        """Return the words that ask for options of a container."""
        raise NotImplementedError

    def use_specs(self, specs: Iterable[Path]) -> None:
        """Put CDI specs where the engine reads them, in place of those that it was given before."""
        for path in self.given:
            path.unlink()
        self.given = [Path(shutil.copy(path, self.specs)) for path in specs]

    def environment(self) -> dict[str, str]:
        """Return the environment of the engine."""
        return {**os.environ, "PATH": search_path()}

    def version(self) -> str:
        """Return what the engine says of its version, with the runtime behind it."""
        words = [self.programs[0], "--version"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False, env=self.environment())
        return f"{done.stdout.splitlines()[0] if done.stdout else 'unknown'}, {self.plain.version()}"

    def processes(self) -> set[int]:
        """Return the children of this process that belong to the engine and stay."""
        return set()

    # -- the steps

    pid = 0

    def begin(
        self,
        directory: Path,
        rootfs: Path,
        options: Options,
        identities: Identities = (),
    ) -> Call | None:
        """Have the engine make a container until it calls its runtime; None where it refuses by itself."""
        self.shown = directory / "engine.stderr"
        with (directory / "output").open("wb") as output, self.shown.open("wb") as errors:
            self.process = subprocess.Popen(
                self.command(rootfs, options, identities),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=self.environment(),
                cwd="/",
                start_new_session=True,
            )
        request = self._accept()
        if request is None:
            return None
        bundle = Path(request["bundle"])
        return Call(request["identifier"], bundle, json.loads((bundle / "config.json").read_text()))

    def expect(
        self, command: Sequence[str], environment: Mapping[str, str], message: Path, created: Callable[[], None]
    ) -> None:
        """Say what runs in the runtime's place for the next container, and what is done when `create` has come back."""
        relay.write_call(self.next_call, command, environment)
        self.answer = {"message": str(message)}
        self.created = created

    def create(self, _identifier: str, _bundle: Path) -> Created:
        """Let the engine's call go on, until it starts the container or gives up."""
        called = self.call()
        return Created(called.code if called is not None else None, called.log if called is not None else "", self.pid)

    def call(self) -> Called | None:
        """Let the engine's call go on; None when it does not come back in time."""
        self.pid = 0
        self._tell(self.answer)
        document = self._hear()
        if document is None:
            return None
        called = Called(**document)
        self.created()
        self._tell({})
        self._drop()
        if called.code == 0 and self._accept() is not None:
            self.pid = called.pid
        return called

    def start(self, _identifier: str) -> int | None:
        """Let the container's process run."""
        self._tell({})
        self._drop()
        return 0

    def delete(self, _identifier: str) -> int | None:
        """Wait until the engine has removed the container; one that was not started is refused."""
        self._drop()
        process, self.process = self.process, None
        if process is None:
            return 0
        self._refuse_until_end(process)
        return wait_or_kill(process, 0)

    def said(self) -> str:
        """Return what the engine showed to its user."""
        with contextlib.suppress(OSError):
            return self.shown.read_text(errors="replace")
        return ""

    def without(self, call: Call, directory: Path) -> tuple[Path, str]:
        """Return a bundle and an identifier of the same container for the low-level runtime alone.

        Hooks are left out: they are the engine's and the injector's, and see to it that the real one is set up.
        """
        config = dict(call.config)
        config.pop("hooks", None)
        config["root"] = {**config["root"], "path": str(call.rootfs)}
        config["process"] = {**config["process"], "terminal": False}
        group = config.get("linux", {}).get("cgroupsPath", "")
        config["linux"] = {**config["linux"], "cgroupsPath": f"{group}-before"}
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config))
        return directory, f"{call.identifier[:40]}-before"

    # -- the relay's side

    def _refuse_until_end(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for the engine; calls that it still makes are of a container that nobody looks at any more."""
        deadline = time.monotonic() + STEP_SECONDS
        descriptor = os.pidfd_open(process.pid)
        try:
            while (left := deadline - time.monotonic()) > 0:
                ready, _, _ = select.select([self.listener.fileno(), descriptor], [], [], left)
                if descriptor in ready:
                    break
                if ready:
                    self.listener.accept()[0].close()
        finally:
            os.close(descriptor)

    def _accept(self) -> dict[str, Any] | None:
        """Return the next call of the relay, None where the engine ends before."""
        assert self.process is not None
        deadline = time.monotonic() + CREATE_SECONDS
        descriptor = os.pidfd_open(self.process.pid)
        try:
            while (left := deadline - time.monotonic()) > 0:
                ready, _, _ = select.select([self.listener.fileno(), descriptor], [], [], left)
                if self.listener.fileno() in ready:
                    connection, _ = self.listener.accept()
                    connection.settimeout(CREATE_SECONDS)
                    self.stream = connection.makefile("rw")
                    connection.close()  # the stream keeps it
                    return self._hear()
                if ready:
                    return None
        finally:
            os.close(descriptor)
        return None

    def _tell(self, document: Mapping[str, Any]) -> None:
        if self.stream is not None:
            with contextlib.suppress(OSError):
                self.stream.write(json.dumps(document) + "\n")
                self.stream.flush()

    def _hear(self) -> dict[str, Any] | None:
        with contextlib.suppress(OSError):
            line = self.stream.readline() if self.stream is not None else ""
            document: dict[str, Any] | None = json.loads(line) if line else None
            return document
        return None

    def _drop(self) -> None:
        if self.stream is not None:
            with contextlib.suppress(OSError):
                self.stream.close()
        self.stream = None


def search_path() -> str:
    """Return PATH with the folders of system programs."""
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:{SYSTEM_FOLDERS}"


def find(program: str) -> str | None:
    """Return the path of a program, None where it is not installed."""
    return shutil.which(program, path=search_path())


@functools.cache
def version_of(program: str) -> str:
    """Return what a program says of its version, "" where it is not installed."""
    path = find(program)
    if path is None:
        return ""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.strip()


def major(version: str) -> int:
    """Return the first number of a text such as `Docker version 20.10.24+dfsg1, build 5d6db84`, 0 without one."""
    for word in version.split():
        number = word.lstrip("v").partition(".")[0]
        if number.isdigit():
            return int(number)
    return 0


def remove_cgroups(name: str) -> None:
    """Remove what an engine leaves of its cgroups in all hierarchies; one that is in use cannot be removed."""
    top, name = Path("/sys/fs/cgroup"), name.strip("/")
    for parent in (top / name, *top.glob(f"*/{name}")):
        for folder, _, _ in os.walk(parent, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
