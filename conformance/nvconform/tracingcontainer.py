"""A real container held in the midst of its creation, for programs that inject into it again and again.

Belongs here: letting a runtime create a container whose last prestart hook waits, and pictures of container and host
that can be compared. Does not belong here: running an injector. Works inside a fake machine, as the worker does.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nvconform import observe
from nvconform.case import Case, Container, Expectation
from nvconform.setup import Settings, Setup
from nvconform.stage import ENGINE_PATH, Stage, hook

READY_SECONDS = 20.0
RUN_SECONDS = 20.0  # of an injector, which is traced
# Waits between the kernel's hook and the container's start: `go` tells how the hook ends.
HOLDER = """#!/bin/sh
cat > "$1/held.state"
mv "$1/held.state" "$1/held.stdin"
read -r code < "$1/held.go"
exit "$code"
"""
ASKING = Container(env=("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"), loader_cache=True)


@dataclass(frozen=True)
class Picture:
    """What can be compared: thing -> description."""

    things: Mapping[str, str]

    def differences(self, other: "Picture") -> list[str]:
        """Return what the other one has differently."""
        lines = []
        for name in sorted({*self.things, *other.things}):
            mine, its = self.things.get(name), other.things.get(name)
            if mine != its:
                lines.append(f"{name}: {mine or 'nothing'} became {its or 'nothing'}")
        return lines


@dataclass
class Bench:
    """A machine with an installed launcher, on which containers can be held."""

    runtime: str = "runc"
    document: Mapping[str, Any] = field(default_factory=dict)
    cgroup: str = "host"
    count: int = 0

    def __post_init__(self) -> None:
        """Prepare the surroundings as the worker does."""
        # Orphans of a container become our children, so that none is overlooked.
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        busybox = shutil.which("busybox")
        if busybox is None:
            raise RuntimeError("busybox is not installed (package busybox-static)")
        self.work = Path(tempfile.mkdtemp(prefix="nvconform-bench-"))
        self.work.chmod(0o755)
        self.setup = Setup(
            Settings(
                lane="root",
                runtime=self.runtime,
                cgroup=self.cgroup,
                work=str(self.work),
                busybox=busybox,
                kernel_hook=[sys.executable, "-m", "nvfakes", "kernel-hook"],
                python=sys.executable,
                ordinary_user=61777,
                implementation=dict(self.document),
                sets={"machines": {}},
            )
        )

    def command(self) -> list[str]:
        """Return the command line of the injector as a prestart hook."""
        return self.setup.command("prestart")

    def stage(self, container: Container, config: Mapping[str, Any] | None = None) -> Stage:
        """Lay out a bundle; the caller clears it."""
        self.count += 1
        name = f"held{self.count}"
        case = Case(name, name, name, Expectation(untouched=True), container=container, config=config or {})
        stage = Stage(self.setup, case, self.work / name, f"nvconform-{os.getpid()}-{name}")
        case = replace(case, container=_filled(container, stage.names))
        stage.case = case
        stage.set_up()
        return stage

    @contextlib.contextmanager
    def held(
        self,
        container: Container = ASKING,
        config: Mapping[str, Any] | None = None,
        volumes: Mapping[str, str] = {},
        prepare: Callable[[Stage], None] | None = None,
    ) -> Iterator["Held"]:
        """Create a container up to its last prestart hook; `volumes` are folders of the stage -> mount points.

        `prepare` may change the bundle before.
        """
        stage = self.stage(container, config)
        held = Held(stage)
        try:
            if prepare is not None:
                prepare(stage)
            held.create(volumes)
            yield held
        finally:
            held.remove()
            stage.clear()

    def close(self) -> None:
        """Remove what was laid out."""
        subprocess.run(["umount", "-l", str(self.work)], capture_output=True, check=False, timeout=20)
        shutil.rmtree(self.work, ignore_errors=True)

    def host(self, stage: Stage) -> Picture:
        """Return what an injector must not change outside of the container."""
        things = {f"host mount {line}": "there" for line in observe.own_mounts() if str(stage.directory) not in line}
        for path in (stage.outside, Path("/etc/ld.so.cache"), Path("/etc/ld.so.conf.d"), Path("/proc/driver")):
            things |= {f"host {path}{name}": text for name, text in observe.picture(path).items()}
        nodes = observe.machine_nodes(self.setup.machine_root)
        things |= {f"host node {name}": str(number) for name, number in nodes.items()}
        for path in (Path("/run"), stage.bundle, stage.directory):
            things |= {f"host {path}/{name}": "there" for name in os.listdir(path) if name != "nvinject"}
        return Picture(things)


def _filled(container: Container, names: Mapping[str, str]) -> Container:
    def fill(text: str) -> str:
        for name, value in names.items():
            text = text.replace(f"${{{name}}}", value)
        return text

    return replace(container, env=tuple(fill(entry) for entry in container.env))


class Held:
    """One container that waits in its last prestart hook."""

    def __init__(self, stage: Stage) -> None:
        """Take the laid-out bundle."""
        self.stage = stage
        self.state = b""
        self.pid = 0
        self._process: subprocess.Popen[bytes] | None = None

    def create(self, volumes: Mapping[str, str]) -> None:
        """Let the runtime begin; raises RuntimeError when the hook is not reached."""
        bundle = self.stage.bundle
        path = bundle / "config.json"
        spec = json.loads(path.read_text())
        holder = bundle / "holder.sh"
        holder.write_text(HOLDER)
        os.mkfifo(bundle / "held.go")
        hooks = spec["hooks"]["prestart"]
        if self.stage.setup.kind == "hook":
            hooks.pop()  # the injector, which is called from outside
        hooks.append({**hook(["/bin/sh", str(holder), str(bundle)], {"PATH": ENGINE_PATH}), "timeout": 3600})
        for source, target in volumes.items():
            spec["mounts"].append(
                {
                    "type": "bind",
                    "source": str(self.stage.directory / source),
                    "destination": target,
                    "options": ["bind"],
                }
            )
        path.write_text(json.dumps(spec))
        runtime = self.stage.setup.runtime
        words = ["--log", str(bundle / "runtime.log"), "create", "--bundle", str(bundle), self.stage.identifier]
        with (bundle / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [runtime.program, *runtime.options, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_SECONDS
        while not (bundle / "held.stdin").exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the hook was not reached: {observe.read(bundle / 'runtime.log')}")
            time.sleep(0.002)
        self.state = (bundle / "held.stdin").read_bytes()
        self.pid = int(json.loads(self.state)["pid"])

    def remove(self) -> None:
        """End the hook and with it the container."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(OSError):
            descriptor = os.open(self.stage.bundle / "held.go", os.O_RDWR | os.O_NONBLOCK)
            os.write(descriptor, b"1\n")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            os.close(descriptor)
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        runtime = self.stage.setup.runtime
        if Path(runtime.state, self.stage.identifier).exists():
            runtime.delete(self.stage.identifier)

    def picture(self) -> Picture:
        """Return what an injector changes: mounts, what is in small ones, files, device rules."""
        rootfs = str(self.stage.rootfs)
        things: dict[str, str] = {}
        text = observe.read(Path(f"/proc/{self.pid}/mountinfo"))
        for line in text.splitlines():
            fields = line.split(" ")
            separator = fields.index("-")
            target = observe.unescape(fields[4])
            inside = target.removeprefix(rootfs) if target.startswith(rootfs) else f"host:{target}"
            shared = ",".join(tag.partition(":")[0] for tag in fields[6:separator])
            name = f"mount {inside}"
            while name in things:
                name += "+"
            # Another program on this machine may remove what one of the host's mounts shows.
            root = fields[3].removesuffix("//deleted")
            things[name] = f"{root} {fields[5]} {shared} {fields[separator + 1]}"
            if fields[separator + 1] == "tmpfs" and inside not in {"", "/dev"} and not inside.startswith("host:"):
                place = Path(f"/proc/{self.pid}/root{target}")
                if not place.is_dir():
                    continue
                things |= {f"file {inside}{path}": found for path, found in observe.tree(place).items()}
        things |= {f"file {path}": found for path, found in observe.tree(self.stage.rootfs).items()}
        for path in observe.walk_files(Path(f"/proc/{self.pid}/root{rootfs}/dev")):
            things[f"dev {path.name}"] = "there"
        things |= {f"device rule {rule}": "there" for rule in self.device_rules()}
        return Picture(things)

    def device_rules(self) -> list[str]:
        """Return the rules of the container's cgroup; with version 2, which nodes of the machine they let it open."""
        for line in observe.read(Path(f"/proc/{self.pid}/cgroup")).splitlines():
            _, controllers, group = line.split(":", 2)
            if "devices" in controllers.split(",") and self.stage.setup.features.device_rules_listed:
                return observe.read(Path(f"/sys/fs/cgroup/devices{group}/devices.list")).splitlines()
            if not controllers and not self.stage.setup.features.device_rules_listed:
                root = self.stage.setup.machine_root
                nodes = {name: root / "dev" / name for name in observe.machine_nodes(root)}
                return observe.reachable_nodes(f"/sys/fs/cgroup{group}", nodes)
        return []
