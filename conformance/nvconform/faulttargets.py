"""What is run with a call that fails: the hook, the runtime shim, the hooks of the stage createContainer.

Belongs here: a container for each, a run without a fault to compare with, and what a fault must not have changed. Does
not belong here: which calls fail (faultmodel.py), the container itself (tracingcontainer.py).
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nvconform import observe, tracing
from nvconform.faultmodel import Failing, Fault, Recorder, judge_words
from nvconform.stage import Stage
from nvconform.tracing import Outcome
from nvconform.tracingcontainer import ASKING, RUN_SECONDS, Bench, Held, Picture

# An image whose CUDA libraries are newer than the driver: enable-cuda-compat has something to do.
COMPAT_LIBRARY = {"/usr/local/cuda/compat/libcuda.so.575.57.08": "libcuda.so.1"}
COMPAT_LINK = {"/usr/local/cuda/compat/libcuda.so.1": "libcuda.so.575.57.08"}
IDENTITY = re.compile(r"\b\d{2,}\b")


class HookRuns:
    """The prestart hook, on one container as long as that stays untouched."""

    begins = "/__pycache__/bundle."  # the launcher opens the byte code before anything of ours is loaded

    def __init__(self, bench: Bench) -> None:
        """Take the machine."""
        self.bench = bench
        self.container = replace(ASKING, env=ASKING.env[:1], links={"/usr/lib/x86_64-linux-gnu/libcuda.so.1": "old"})
        self._scope: Any = None
        self._held: Held | None = None
        self.untouched = Picture({})
        self.host = Picture({})
        self.golden = Picture({})

    def reference(self) -> Recorder:
        """Inject once without a fault."""
        recorder = Recorder(self.begins)
        held = self._fresh()
        outcome = self._run(held, recorder.entry)
        if outcome.code != 0:
            raise RuntimeError(f"without a fault: {outcome}")
        self.golden = held.picture()
        self.drop()
        return recorder

    def try_fault(self, fault: Fault) -> tuple[Outcome, bool, list[str]]:
        """Inject with a fault; returns the outcome, whether the fault happened, and the problems."""
        held = self._held or self._fresh()
        failing = Failing(fault)
        outcome = self._run(held, failing.entry)
        problems = judge_words(outcome, fault)
        after = held.picture()
        expected = self.golden if outcome.code == 0 else self.untouched
        kind = "injected in part" if outcome.code == 0 else "refused but changed"
        problems += [f"{kind}: {line}" for line in expected.differences(after)[:5]]
        problems += [f"host changed: {line}" for line in self.host.differences(self.bench.host(held.stage))[:5]]
        if outcome.code == 0 or problems:
            self.drop()
        return outcome, failing.done, problems

    def _run(self, held: Held, on_entry: tracing.OnEntry) -> Outcome:
        return tracing.run(
            self.bench.command(),
            on_entry=on_entry,
            stdin=held.state,
            environment=held.stage.environment(),
            seconds=RUN_SECONDS,
        )

    def _scope_of_container(self) -> Any:
        return self.bench.held(self.container)

    def _fresh(self) -> Held:
        self._scope = self._scope_of_container()
        held: Held = self._scope.__enter__()
        self._held = held
        self.untouched = held.picture()
        self.host = self.bench.host(held.stage)
        return held

    def drop(self) -> None:
        """Remove the container."""
        if self._scope is not None:
            self._scope.__exit__(None, None, None)
        self._scope = self._held = None
        self.bench.count = 0  # the same names each time


class ContainerHookRuns(HookRuns):
    """A createContainer hook, in the mount namespace of a container that is held just before that stage.

    The bundle is what the shim (mode jit) or an engine with a CDI spec makes of it; the hook's words and environment
    are those that it wrote, and it is the only one of its stage that has run.
    """

    def __init__(self, bench: Bench, name: str) -> None:
        """Take the machine and the hook's name."""
        super().__init__(bench)
        self.container = replace(
            self.container, libraries=COMPAT_LIBRARY, links={**self.container.links, **COMPAT_LINK}
        )
        self.name = name
        self.entry: dict[str, Any] = {}
        self.spec = self.bench.work / "spec.yaml"

    def _scope_of_container(self) -> Any:
        settings = {"nvidia-container-runtime": {"mode": "jit", "runtimes": [ShimRuns.LOW_LEVEL]}}
        return self.bench.held(self.container, settings, prepare=self._prepare)

    def _prepare(self, stage: Stage) -> None:
        setup, path = self.bench.setup, stage.bundle / "config.json"
        words = {"specs": str(stage.directory), "config": str(stage.config_file), "bundle": str(stage.bundle)}
        if setup.kind == "runtime":
            launcher = setup.prefix / "bin" / "nvidia-container-runtime"
            self._call([str(launcher), "create", "--bundle", str(stage.bundle), stage.identifier], stage)
        else:
            spec = stage.directory / "nvidia.yaml"
            if self.spec.exists():
                spec.write_bytes(self.spec.read_bytes())
            else:
                self._call(setup.words("generate", **words), stage)
                self.spec.write_bytes(spec.read_bytes())
            self._call([*setup.words("command", **words), "--device", "nvidia.com/gpu=all"], stage)
            spec.unlink()
        document = json.loads(path.read_text())
        hooks = document["hooks"].pop("createContainer")
        self.entry = next((one for one in hooks if self.name in (*one["args"], Path(one["path"]).name)), {})
        if not self.entry:
            raise RuntimeError(f"{self.name} is none of the hooks: {hooks}")
        path.write_text(json.dumps(document))

    def _call(self, command: list[str], stage: Stage) -> None:
        done = subprocess.run(
            command, capture_output=True, text=True, env=stage.environment(), timeout=RUN_SECONDS, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")

    def _run(self, held: Held, on_entry: tracing.OnEntry) -> Outcome:
        return tracing.run(
            [
                shutil.which("nsenter") or "nsenter",
                f"--mount=/proc/{held.pid}/ns/mnt",
                "--",
                self.entry["path"],
                *self.entry["args"][1:],
            ],
            on_entry=on_entry,
            stdin=held.state,
            environment=dict(variable.split("=", 1) for variable in self.entry["env"]),
            seconds=RUN_SECONDS,
        )

    def drop(self) -> None:
        """Remove the container, and what the shim generated for it."""
        held = self._held
        super().drop()
        if held is not None:
            shutil.rmtree(Path("/run/nvinject", held.stage.identifier), ignore_errors=True)


class ShimRuns:
    """The runtime shim's create, up to the moment when it becomes the low-level runtime."""

    begins = "config.json"
    LOW_LEVEL = "/bin/true"

    def __init__(self, bench: Bench) -> None:
        """Lay out one bundle, which each run begins anew with."""
        self.bench = bench
        self.container = replace(ASKING, env=ASKING.env[:1], links={"/usr/lib/x86_64-linux-gnu/libcuda.so.1": "old"})
        self.golden = Picture({})
        self.untouched = Picture({})
        self.stage: Stage | None = None
        self.original = b""

    def _prepare(self) -> Stage:
        if self.stage is not None:
            return self.stage
        settings = {"nvidia-container-runtime": {"mode": "jit", "runtimes": [self.LOW_LEVEL]}}
        self.stage = stage = self.bench.stage(self.container, settings)
        self.original = (stage.bundle / "config.json").read_bytes()
        self.untouched = self._picture(stage)
        return stage

    def _picture(self, stage: Stage) -> Picture:
        things = dict(self.bench.host(stage).things)
        text = (stage.bundle / "config.json").read_text()
        things |= {f"file {path}": found for path, found in observe.tree(stage.rootfs).items()}
        for top in self._run_directories(stage):
            # Either of the two places will do.
            text = text.replace(str(top), "RUN")
            if top.exists():
                for path, found in observe.picture(top).items():
                    # A FIFO is where two processes meet; the one that stands by removes it in its own time.
                    if not found.startswith("special 10000 "):
                        things[f"RUN{path}"] = found
                # The root's identity, device and inode, is another one each time.
                for file in top.glob("*.json"):
                    things[f"RUN/{file.name}"] = IDENTITY.sub("N", file.read_text().replace(str(top), "RUN"))
        things["config.json"] = text
        return Picture(things)

    def _run_directories(self, stage: Stage) -> tuple[Path, ...]:
        """Return where the shim keeps what it makes for this container: other containers have theirs beside it."""
        return tuple(top / "nvinject" / stage.identifier for top in (Path("/run"), self.bench.setup.prefix))

    def _run(self, on_entry: tracing.OnEntry) -> Outcome:
        stage = self._prepare()
        launcher = self.bench.setup.prefix / "bin" / "nvidia-container-runtime"
        return tracing.run(
            [str(launcher), "create", "--bundle", str(stage.bundle), stage.identifier],
            on_entry=on_entry,
            environment={**stage.environment(), "XDG_RUNTIME_DIR": str(self.bench.setup.prefix)},
            seconds=RUN_SECONDS,
            until_exec=os.path.realpath(self.LOW_LEVEL),
        )

    def reference(self) -> Recorder:
        """Call it once without a fault."""
        recorder = Recorder(self.begins)
        outcome = self._run(recorder.entry)
        if outcome.code not in {0, None} or outcome.message:
            raise RuntimeError(f"without a fault: {outcome}")
        assert self.stage is not None
        self.golden = self._picture(self.stage)
        self.drop()
        return recorder

    def try_fault(self, fault: Fault) -> tuple[Outcome, bool, list[str]]:
        """Call it with a fault; returns as HookRuns does."""
        failing = Failing(fault)
        stage = self._prepare()
        outcome = self._run(failing.entry)
        problems = judge_words(outcome, fault)
        after = self._picture(stage)
        expected = self.golden if outcome.code == 0 else self.untouched
        if fault.name == "execve" and outcome.code:
            expected = self._untouched_but_files()
        kind = "edited in part" if outcome.code == 0 else "refused but changed"
        problems += [f"{kind}: {line[:400]}" for line in expected.differences(after)[:5]]
        if outcome.code == 0 or problems:
            self.drop()
        return outcome, failing.done, problems

    def _untouched_but_files(self) -> Picture:
        """Return what may be left when the low-level runtime, the very last step, cannot be executed.

        The files that were replaced are gone by then. What was written to the root file system stays: that of a
        container which is not created, and the next create finds what it would write.
        """
        files = {name: text for name, text in self.golden.things.items() if name.startswith("file ")}
        others = {name: text for name, text in self.untouched.things.items() if not name.startswith("file ")}
        return Picture({**others, **files})

    def drop(self) -> None:
        """Remove the bundle, and what the shim made for it."""
        if self.stage is not None:
            for directory in self._run_directories(self.stage):
                shutil.rmtree(directory, ignore_errors=True)
            self.stage.clear()
        self.bench.count = 0  # the same names each time
        self.stage = None


# Target: how it is run, and the implementation that has it. The first two, then hooks of the stage createContainer.
TARGETS: dict[str, tuple[Callable[[Bench], HookRuns | ShimRuns], str]] = {
    "hook": (HookRuns, "nvinject-hook"),
    "shim": (ShimRuns, "nvinject-jit"),
    "create-container": (partial(ContainerHookRuns, name="nvinject-create-container"), "nvinject-jit"),
    **{
        name: (partial(ContainerHookRuns, name=name), "nvinject-cdi")
        for name in (
            "create-symlinks",
            "enable-cuda-compat",
            "update-ldcache",
            "disable-device-node-modification",
            "update-application-profile",
        )
    },
}
