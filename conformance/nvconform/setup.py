"""What all cases of a worker share: lane, machine, implementation, runtime, working directory.

Belongs here: preparing these once, and filling in the implementation's command line. Does not belong here: anything of
a single case (stage.py, attempt.py). Standard library only.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvconform import observe
from nvconform.engines.engine import Surroundings
from nvconform.engines.registry import ENGINES
from nvconform.features import Features
from nvconform.runtimes import Runtime, RuntimeUnavailableError

HOOK_SECONDS = 20
UNIFIED = "/sys/fs/cgroup"


@dataclass(frozen=True)
class Settings:
    """What the session tells its worker in the first line."""

    lane: str
    runtime: str
    work: str
    busybox: str
    kernel_hook: list[str]
    python: str
    ordinary_user: int
    implementation: dict[str, Any]
    sets: dict[str, Any]
    cgroup: str = "host"


def show_unified_cgroup(lane: str) -> None:
    """Leave this mount namespace with cgroup v2 alone, as on a host that has nothing else.

    Raises: RuntimeUnavailableError where the view cannot be changed.
    """
    if Path(UNIFIED, "cgroup.controllers").exists():
        return
    if lane == "rootless":
        raise RuntimeUnavailableError("an ordinary user cannot change the view of cgroups")
    for command in (["umount", "-R", UNIFIED], ["mount", "-t", "cgroup2", "cgroup2", UNIFIED]):
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        if result.returncode:
            raise RuntimeUnavailableError(f"no view of cgroup v2 alone: {result.stderr.strip()}")


class Setup:
    """A worker's surroundings, ready for cases."""

    def __init__(self, settings: Settings) -> None:
        """Prepare the working directory, the implementation and the runtime.

        Raises: RuntimeError when the implementation cannot be installed, RuntimeUnavailableError without a runtime.
        """
        self.settings = settings
        self.lane = settings.lane
        self.implementation = settings.implementation
        self.sets = settings.sets
        self.machine_root = Path(os.environ.get("NVFAKES_ROOT", "/"))
        self.work = Path(settings.work)
        self._mount_work()
        self.busybox = self.work / "busybox"
        shutil.copy2(settings.busybox, self.busybox)
        self.wrapper = self.work / "wrapper.sh"
        self.wrapper.write_text(observe.WRAPPER)
        self.prefix = self.work / "prefix"
        self._install()
        self.runtime = self._find_runtime()
        if settings.cgroup == "v2":
            show_unified_cgroup(self.lane)
        self.runtime.prepare_host()
        if self.is_runtime:
            # An injector that cannot read its configuration looks for runc: what it finds must be this runtime.
            (self.prefix / "low").mkdir(parents=True, exist_ok=True)
            (self.prefix / "low" / "runc").symlink_to(self.runtime.program)
        self.features = Features.detect(self.lane, self.work, settings.ordinary_user)

    def close(self) -> None:
        """End what runs beside the cases."""
        self.runtime.close()

    def _find_runtime(self) -> Runtime:
        settings = self.settings
        if settings.runtime not in ENGINES:
            return Runtime(settings.runtime, self.work / "state", rootless=self.lane == "rootless")
        shows = (self.machine_root / "proc/driver/nvidia").exists()
        fakes, hook = settings.kernel_hook[:-1] if shows else None, str(self.work / "hook")
        return ENGINES[settings.runtime](Surroundings(self.work / "engine", fakes, settings.python, self.lane, hook))

    @property
    def kernel_hook(self) -> list[str]:
        """Return the command that shows the machine's /proc/driver in a container, as a kernel would."""
        return self.settings.kernel_hook

    def command(self, stage: str) -> list[str]:
        """Return the injector's command line for a hook stage."""
        return [self._fill(word, stage=stage) for word in self.implementation["command"]]

    def words(self, key: str, **names: str) -> list[str]:
        """Return another of the implementation's command lines, or the same with more names filled in."""
        return [self._fill(word, **names) for word in self.implementation[key]]

    @property
    def kind(self) -> str:
        """Return how the injector comes into a container's life: implementations.KINDS."""
        return str(self.implementation.get("kind", "hook"))

    @property
    def is_runtime(self) -> bool:
        """Tell whether the injector is a runtime in front of another one, and not a hook."""
        return self.kind == "runtime"

    def environment(self) -> dict[str, str]:
        """Return the variables that the implementation wants to have in an engine's environment."""
        return {name: self._fill(text) for name, text in self.implementation.get("environment", {}).items()}

    def configuration(self) -> dict[str, Any]:
        """Return the settings that the implementation needs in every case, such as the low-level runtime's name."""
        return {
            table: {name: [self._fill(word) for word in words] for name, words in settings.items()}
            for table, settings in self.implementation.get("configuration", {}).items()
        }

    def roots(self) -> dict[str, Any]:
        """Return the configuration that leads to a machine that is a tree; {} for one at the real paths."""
        return {} if str(self.machine_root) == "/" else self._fill_table(self.implementation.get("roots", {}))

    def driver_version(self, machine: str) -> str:
        """Return the driver version of a machine, "" for one without driver."""
        return str(self.sets["machines"].get(machine, {}).get("driver", ""))

    def _mount_work(self) -> None:
        # A tmpfs of the sandbox: faster, and gone with it. Without the right to mount, the directory itself does.
        options = "mode=0755,size=1g"
        command = ["mount", "-t", "tmpfs", "-o", options, "nvconform", str(self.work)]
        subprocess.run(command, capture_output=True, check=False, timeout=20)
        self.work.chmod(0o755)

    def _install(self) -> None:
        install = self.implementation.get("install")
        if install:
            command = [self._fill(word) for word in install]
            result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            if result.returncode:
                raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()}")

    def _fill(self, word: str, **more: str) -> str:
        known = {
            "python": self.settings.python,
            "prefix": str(self.prefix),
            "root": str(self.machine_root).rstrip("/"),
            "runtime": self.runtime.program if hasattr(self, "runtime") else "",
            **more,
        }
        for name, value in known.items():
            word = word.replace(f"{{{name}}}", value)
        return word

    def _fill_table(self, table: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: self._fill_table(value) if isinstance(value, Mapping) else self._fill(str(value))
            for key, value in table.items()
        }
