"""The stage of a case: its directories, image, configuration and config.json, and the wrapper's reports afterwards.

Belongs here: everything that lies on disk before the runtime is called, and removing it. Does not belong here: calling
anything (attempt.py).
"""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvconform import bundle, observe
from nvconform.case import Case
from nvconform.driverroot import DriverRoot
from nvconform.image import Image
from nvconform.setup import HOOK_SECONDS, Setup

FIRST_USER_NAMESPACE_ID = 100000
USER_NAMESPACES: dict[str, bundle.Identities] = {
    "range": ((0, FIRST_USER_NAMESPACE_ID, 65536),),
    "single": ((0, FIRST_USER_NAMESPACE_ID, 1),),
    "split": ((0, FIRST_USER_NAMESPACE_ID, 1000), (1000, 300000, 64536)),
    "reordered": ((1, 300000, 1000), (0, FIRST_USER_NAMESPACE_ID, 1)),
    "identity": ((0, 0, 65536),),
}
ENGINE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UP = "/.." * 24
# What lies outside of the root file system and must never change.
CANARY_FILES = {"secret": "outside\n", "ldconfig": "#!/bin/sh\n", "target-dir/.keep": ""}


class Stage:
    """The directories of one case below the worker's working directory."""

    def __init__(self, setup: Setup, case: Case, directory: Path, identifier: str) -> None:
        """Name everything; nothing is written yet."""
        self.setup = setup
        self.case = case
        self.directory = directory
        self.identifier = identifier
        self.cgroup = f"/{identifier}"
        self.bundle = directory / "bundle"
        self.image = self.rootfs = self.container_rootfs = self.bundle / "rootfs"
        # What the container's environment holds beside what the case gives it.
        self.surroundings: tuple[str, ...] = (bundle.CONTAINER_PATH,)
        self.outside = directory / "outside"
        self.config_file = directory / "config.toml"
        self.mounted = False
        # What cases/sets.yaml says of the machine.
        self.facts: Mapping[str, Any] = setup.sets["machines"].get(case.machine, {})
        self.device_root = setup.machine_root / str(self.facts.get("device-root", "/")).lstrip("/")
        self.driver_root = (
            None if case.driver is None else DriverRoot(directory / "host", case.driver, setup.machine_root, setup.sets)
        )
        self.names = {
            "outside": f"{UP}{self.outside}",
            "outside-absolute": str(self.outside),
            "driver": setup.driver_version(case.machine),
            "bundle": str(self.bundle),
        }

    def set_up(self) -> None:
        """Write image, canary, configuration and bundle."""
        self.rootfs.mkdir(parents=True)
        for name, text in CANARY_FILES.items():
            path = self.outside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self._mount_rootfs()
        Image(self.rootfs, self.names).build(self.case.container, self.setup.busybox)
        if self.setup.lane == "userns":
            ranges = USER_NAMESPACES[self.case.container.identities]
            self._give_to(next(outside for inside, outside, _ in ranges if inside == 0))
        filesystem = self.case.container.filesystem
        if filesystem is not None and filesystem.full:
            fill_up(self.rootfs)
        if filesystem is not None and filesystem.readonly:
            run_checked("mount", "-o", "remount,ro", str(self.rootfs))
        if self.driver_root is not None:
            self.driver_root.build()
        self._write_config()
        self._write_bundle()
        if self.case.container.closed:
            self.bundle.chmod(0o700)

    def adopt(self, identifier: str, rootfs: Path, environment: tuple[str, ...]) -> None:
        """Take over what an engine makes of the container: its name, its root file system and its environment."""
        self.identifier = identifier
        self.rootfs = self.container_rootfs = rootfs
        self.surroundings = environment

    def report(self, name: str) -> str:
        """Return what the wrapper around the injector wrote down under a name, or "" when it did not run."""
        return observe.read(self.bundle / name)

    def environment(self) -> dict[str, str]:
        """Return the environment that an engine gives to the injector."""
        variable = self.setup.implementation.get("config-variable", "")
        configuration = {variable: str(self.config_file)} if variable else {}
        return {"PATH": ENGINE_PATH, **self.setup.environment(), **configuration, **self.case.engine}

    def damage(self) -> None:
        """Do to the bundle what a direct call of the injector is to meet."""
        call = self.case.call
        assert call is not None
        config = self.bundle / "config.json"
        if call.config:
            config.write_text(call.config)
        if call.bundle == "missing":
            self.bundle.rename(self.directory / "elsewhere")
        elif call.bundle == "file":
            config.unlink()
            config.mkdir()
        elif call.bundle == "closed":
            config.chmod(0)

    def repair(self) -> None:
        """Put the bundle back to where it was."""
        if (self.directory / "elsewhere").exists():
            (self.directory / "elsewhere").rename(self.bundle)

    def clear(self) -> None:
        """Remove everything that the case made."""
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.rootfs)], check=False, capture_output=True, timeout=20)
        for directory in Path("/sys/fs/cgroup").glob(f"*{self.cgroup}"):
            with contextlib.suppress(OSError):
                directory.rmdir()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _mount_rootfs(self) -> None:
        filesystem = self.case.container.filesystem
        if filesystem is not None:
            options = f"size={filesystem.kilobytes}k,nr_inodes=256,mode=0755"
            run_checked("mount", "-t", "tmpfs", "-o", options, "nvconform-rootfs", str(self.rootfs))
            self.mounted = True

    def _give_to(self, owner: int) -> None:
        for directory, names, files in os.walk(self.rootfs):
            for name in (*names, *files):
                path = Path(directory, name)
                if name == "busybox":
                    # The hard link is shared by all cases.
                    path.unlink()
                    shutil.copy2(self.setup.busybox, path)
                os.chown(path, owner, owner, follow_symlinks=False)
        os.chown(self.rootfs, owner, owner)

    def _write_config(self) -> None:
        config = self.case.config
        if isinstance(config, str):
            self.config_file.write_text(config)
        else:
            below = overlay(self.setup.roots(), self.setup.configuration())
            if self.driver_root is not None:
                below = overlay(below, {"nvidia-container-cli": {"root": str(self.driver_root.path)}})
            self.config_file.write_text(bundle.to_toml(overlay(below, config or {})))

    def _write_bundle(self) -> None:
        spec = bundle.generate(
            self.case.container,
            hooks=self._hooks(),
            cgroup=self.cgroup,
            identities=self.identities(),
            devices=self.setup.lane != "rootless",
        )
        (self.bundle / "config.json").write_text(json.dumps(spec))

    def identities(self) -> bundle.Identities | None:
        """Return the map of the container's user namespace, None where it has none."""
        if self.setup.lane == "userns":
            return USER_NAMESPACES[self.case.container.identities]
        if self.setup.lane == "rootless":
            return ((0, os.geteuid(), 1),)
        return None

    def _hooks(self) -> list[dict[str, Any]]:
        hooks = []
        if self.setup.kernel_hook and (self.setup.machine_root / "proc/driver/nvidia").exists():
            inherited = {name: os.environ[name] for name in ("NVFAKES_ROOT", "PYTHONPATH") if name in os.environ}
            hooks.append(hook(self.setup.kernel_hook, {"PATH": ENGINE_PATH, **inherited}))
        if self.setup.kind != "hook":
            return hooks
        wrapper = ["/bin/sh", str(self.setup.wrapper), str(self.bundle), str(HOOK_SECONDS)]
        hooks.append(hook([*wrapper, *self.setup.command(self.case.container.stage)], self.environment()))
        return hooks


def hook(command: list[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return an entry of config.json's hooks."""
    return {
        "path": command[0],
        "args": command,
        "env": [f"{name}={value}" for name, value in environment.items()],
        "timeout": HOOK_SECONDS + 10,
    }


def run_checked(*command: str) -> None:
    """Run a command of the suite itself; raises when it fails."""
    subprocess.run(command, check=True, capture_output=True, timeout=20)


def fill_up(directory: Path) -> None:
    """Use up the blocks and then the inodes of a small file system."""
    with contextlib.suppress(OSError), (directory / ".fill").open("wb") as stream:
        while True:
            stream.write(b"\0" * 65536)
            stream.flush()
    with contextlib.suppress(OSError):
        for number in range(100_000):
            (directory / f".fill{number}").touch()


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with another one laid over it, tables within merged."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = overlay(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result
