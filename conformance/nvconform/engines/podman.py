"""podman: settings, command line, and what it can be asked for.

Belongs here: facts of podman. Does not belong here: the steps of a container (engine.py).
"""

import os
import subprocess
from pathlib import Path

from nvconform.bundle import Identities
from nvconform.engines.engine import PROCESS, Engine, Surroundings, major, remove_cgroups, version_of
from nvconform.engines.options import Abilities, Options
from nvconform.runtimes import RuntimeUnavailableError

# Raising limits needs CAP_SYS_RESOURCE, which a machine for tests may lack; pids have no controller on some. Locks in
# shared memory would be those of every podman here, and they wait for one another.
SETTINGS = """\
[containers]
default_ulimits = []
pids_limit = 0
[engine]
cgroup_manager = "cgroupfs"
lock_type = "file"
events_logger = "file"
runtime = "nvfakes"
tmp_dir = "{folder}/tmp"
[engine.runtimes]
nvfakes = ["{runtime}"]
"""
STORAGE = '[storage]\ndriver = "vfs"\nrunroot = "{folder}/run"\ngraphroot = "{folder}/graph"\n'
# The hook of a container that an injector by hook is asked for by its environment alone.
HOOK = """{{"version": "1.0.0", "hook": {{"path": "{hook}", "args": ["{hook}"]}}, "when": {{"always": true}},
 "stages": ["{stage}"]}}
"""
STAGES = ("prestart", "createRuntime")
FIRST_WITH_DEVICES = 4


def write_settings(folder: Path, runtime: Path) -> dict[str, str]:
    """Write podman's settings for a storage of its own, and return the variables that lead to them."""
    (folder / "containers.conf").write_text(SETTINGS.format(runtime=runtime, folder=folder))
    (folder / "storage.conf").write_text(STORAGE.format(folder=folder))
    return {
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }


class Podman(Engine):
    """`podman run --rootfs`; no daemon."""

    name = "podman"
    package = "podman"
    programs = ("podman", "conmon")

    @classmethod
    def abilities(cls) -> Abilities:
        """Return what the installed podman can do."""
        reads_specs = major(version_of("podman")) >= FIRST_WITH_DEVICES
        cdi = "" if reads_specs else f"it reads CDI specs from {FIRST_WITH_DEVICES} on"
        return Abilities(cls.name, hooks=STAGES, identities=True, own=("/etc", "/run"), cdi=cdi)

    def __init__(self, surroundings: Surroundings) -> None:
        """Write the settings."""
        super().__init__(surroundings)
        self.settings = write_settings(self.folder, self.relay)
        self.hooks = self.folder / "hooks"
        self.hooks.mkdir()
        self.group = f"/nvconform-{os.getpid()}"

    def prepare_host(self) -> None:
        """Keep the CDI specs that it is given to this podman.

        Raises: RuntimeUnavailableError where nothing can be mounted.
        """
        if self.surroundings.lane != "root":
            return
        # Of two folders with CDI specs this is the one that counts; what the machine has there stays.
        files = {path.name: path.read_bytes() for path in self.specs.glob("*")}
        self.specs.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", "mode=0755", "nvconform-specs", str(self.specs)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        if done.returncode:
            raise RuntimeUnavailableError(f"podman's CDI specs cannot be kept apart: {done.stderr.strip()}")
        for name, content in files.items():
            (self.specs / name).write_bytes(content)

    def close(self) -> None:
        """Remove podman's cgroups."""
        super().close()
        remove_cgroups(self.group)

    def environment(self) -> dict[str, str]:
        """Return the environment with podman's settings."""
        return {**super().environment(), **self.settings}

    def use_hook(self, stage: str) -> list[str]:
        """Return the options that have a hook started for every container."""
        (self.hooks / "nvconform.json").write_text(HOOK.format(hook=self.surroundings.hook, stage=stage))
        return ["--hooks-dir", str(self.hooks)]

    @classmethod
    def words(cls, options: Options) -> list[str]:
        """Return the options of `podman run`; a hook is one of podman itself."""
        words = [f"--env={entry}" for entry in options.environment]
        words += [f"--annotation={name}={text}" for name, text in options.annotations.items()]
        for one in options.mounts:
            words.append(f"--mount=type=bind,source={one.source},target={one.target},ro={str(one.readonly).lower()}")
        words += ["--read-only", "--read-only-tmpfs=false"] if options.readonly else []
        words += [f"--cap-add={name}" for name in options.capabilities]
        return [*words, *(f"--device={name}" for name in options.devices)]

    def command(self, rootfs: Path, options: Options, identities: Identities) -> list[str]:
        """Return the command line of `podman run`."""
        before = self.use_hook(options.stage) if options.stage else []
        words = ["run", "--rm", "--network=none", "--log-driver=none", f"--cgroup-parent={self.group}"]
        words += [*self.words(options), *maps(identities)]
        return ["podman", *before, *words, "--rootfs", str(rootfs), *PROCESS]


def maps(identities: Identities) -> list[str]:
    """Return the options for a user namespace with ranges of ids, which are those of users and of groups."""
    ranges = [f"{inside}:{outside}:{size}" for inside, outside, size in identities]
    return [f"--{kind}map={one}" for one in ranges for kind in ("uid", "gid")]
