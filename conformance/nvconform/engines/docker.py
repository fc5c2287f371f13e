"""docker: its daemon, command line, images, and what it can be asked for.

Belongs here: facts of docker. Does not belong here: the steps of a container (engine.py), starting a daemon
(daemon.py).

docker has no containers of a folder: a root file system is imported as an image, once for all cases that have the same.
`docker run --gpus` adds a prestart hook, the program nvidia-container-runtime-hook of dockerd's PATH. A request for 0
GPUs leaves the container's environment as it is.
"""

import contextlib
import hashlib
import io
import json
import os
import socket
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from nvconform.bundle import Identities
from nvconform.engines.daemon import DaemonEngine, DaemonError
from nvconform.engines.engine import PROCESS, Surroundings, find, major, version_of
from nvconform.engines.options import Abilities, Options

HOOK_NAME = "nvidia-container-runtime-hook"
FIRST_WITH_ANNOTATIONS = 24
FIRST_WITH_DEVICES = 25
SECONDS = 60


def daemon_command(program: str, folder: Path, group: str, options: Sequence[str]) -> tuple[str, ...]:
    """Return the command line of a dockerd that keeps everything in a folder and below one cgroup, without network."""
    return (
        *(program, "--host", f"unix://{folder}/docker.sock", "--pidfile", f"{folder}/pid"),
        *("--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"),
        *("--iptables=false", "--bridge=none", "--config-file", f"{folder}/daemon.json"),
        *("--exec-opt", "native.cgroupdriver=cgroupfs", f"--cgroup-parent=/{group}"),
        *options,
    )


def answers(path: Path, seconds: float) -> bool:
    """Say whether a dockerd answers at its socket."""
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.settimeout(seconds)
        connection.connect(str(path))
        connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
        return b" 200 " in connection.recv(64)
    return False


class Docker(DaemonEngine):
    """`docker run` of an imported image."""

    name = "docker"
    package = "docker.io"
    programs = ("dockerd", "docker")
    keeps_rootfs = False

    @classmethod
    def abilities(cls) -> Abilities:
        """Return what the installed docker can do."""
        found = major(version_of("dockerd"))
        return Abilities(
            cls.name,
            annotations=""
            if found >= FIRST_WITH_ANNOTATIONS
            else f"it knows annotations from {FIRST_WITH_ANNOTATIONS} on",
            hooks=("prestart",),
            own=("/etc", "/proc", "/sys", "/dev"),
            imports=True,
            cdi="" if found >= FIRST_WITH_DEVICES else f"it reads CDI specs from {FIRST_WITH_DEVICES} on",
        )

    def __init__(self, surroundings: Surroundings) -> None:
        """Write configuration and hook."""
        super().__init__(surroundings)
        self.images: set[str] = set()
        self.specs = self.folder / "cdi"
        self.specs.mkdir()
        settings = {} if self.abilities().cdi else {"features": {"cdi": True}, "cdi-spec-dirs": [str(self.specs)]}
        # Not /etc/docker/daemon.json of this machine.
        (self.folder / "daemon.json").write_text(json.dumps(settings))
        hook = self.folder / "bin" / HOOK_NAME
        hook.parent.mkdir()
        hook.write_text(f'#!/bin/sh\nexec {surroundings.hook} "$@"\n')
        hook.chmod(0o755)

    def daemon_command(self) -> Sequence[str]:
        """Return the daemon's command line, with the relay as the runtime of all containers."""
        options = ["--add-runtime", f"nvconform={self.relay}", "--default-runtime", "nvconform"]
        return daemon_command(find("dockerd") or "dockerd", self.folder, self.group, options)

    def answers(self) -> bool:
        """Tell whether the daemon answers."""
        return answers(self.folder / "docker.sock", SECONDS)

    def environment(self) -> dict[str, str]:
        """Return the environment of dockerd and docker, without what leads to other daemons."""
        kept = {name: text for name, text in super().environment().items() if not name.startswith("DOCKER_")}
        settings = {"DOCKER_HOST": f"unix://{self.folder}/docker.sock", "DOCKER_CONFIG": str(self.folder)}
        return {**kept, **settings, "PATH": f"{self.folder}/bin:{kept['PATH']}"}

    @classmethod
    def words(cls, options: Options) -> list[str]:
        """Return the options of `docker run`."""
        words = [f"--env={entry}" for entry in options.environment]
        words += [f"--annotation={name}={text}" for name, text in options.annotations.items()]
        for one in options.mounts:
            words.append(f"--mount=type=bind,source={one.source},target={one.target}{',readonly' * one.readonly}")
        words += ["--read-only"] * options.readonly
        words += [f"--cap-add={name}" for name in options.capabilities]
        words += [f"--device={name}" for name in options.devices]
        return [*words, *(["--gpus=count=0"] if options.stage else [])]

    def command(self, rootfs: Path, options: Options, identities: Identities) -> list[str]:
        """Return the command line of `docker run`."""
        assert not identities
        words = ["docker", "run", "--rm", "--network=none", "--log-driver=none", *self.words(options)]
        return [*words, self._image(rootfs), *PROCESS]

    def _image(self, rootfs: Path) -> str:
        """Return the name of the image with a root file system; it is made when it is first asked for.

        Raises: DaemonError when docker refuses it.
        """
        archive = pack(rootfs)
        name = f"nvconform:{hashlib.sha256(archive).hexdigest()[:32]}"
        if name not in self.images:
            done = subprocess.run(
                ["docker", "import", "-", name],
                input=archive,
                capture_output=True,
                env=self.environment(),
                timeout=SECONDS,
                check=False,
            )
            if done.returncode:
                raise DaemonError(f"docker import: {done.stderr.decode(errors='replace').strip()}")
            self.images.add(name)
        return name


def pack(rootfs: Path) -> bytes:
    """Return a tar of a folder, the same for the same content, owners and modes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder, folders, files in os.walk(rootfs):
            folders.sort()
            for name in sorted([*folders, *files]):
                path = Path(folder, name)
                entry = archive.gettarinfo(path, str(path.relative_to(rootfs)))
                entry.mtime = 0
                if entry.islnk():
                    # Hard links to what other cases share are files of their own in an image.
                    entry.type, entry.size = tarfile.REGTYPE, path.stat().st_size
                with path.open("rb") if entry.isreg() else contextlib.nullcontext() as content:
                    archive.addfile(entry, content)
    return buffer.getvalue()
