"""Cases through an engine: what of an attempt is done otherwise than with a low-level runtime.

Belongs here: the steps of an attempt where the engine makes the container, and what is expected of an engine beside the
case. Does not belong here: the engine's steps (engine.py), what cases expect.

Engines add mounts, devices, device rules, environment and files of their own. They are told apart in one way: while the
engine's first call of its runtime is held, the container of its config.json is created by runc alone and looked at;
what the real one has more is the injector's. Its environment is that of config.json as the engine wrote it.
"""

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from nvconform import bundle, judge, observe
from nvconform.attempt import Attempt
from nvconform.case import Refused
from nvconform.devicespec import Described, SpecAttempt
from nvconform.engines.engine import Call, Called, Engine
from nvconform.engines.options import translate
from nvconform.expect import Expander
from nvconform.runtimes import Created
from nvconform.setup import HOOK_SECONDS
from nvconform.shim import Beside, RuntimeAttempt, Snapshot
from nvconform.stage import ENGINE_PATH, overlay, run_checked


class EngineError(Exception):
    """The engine did not make a container; the message is its own."""


class ThroughEngine(Attempt):
    """An attempt whose container is made by an engine."""

    before = Snapshot()
    called: Called | None = None

    @property
    def engine(self) -> Engine:
        """Return the engine, which stands in the runtime's place."""
        assert isinstance(self.setup.runtime, Engine)
        return self.setup.runtime

    def clear(self) -> None:
        """Remove what the case made, also after a fault."""
        self.engine.delete(self.stage.identifier)
        super().clear()

    def _rehearse_container(self) -> None:
        """Have the engine begin, and look at its container without the injector."""
        call = self._begin()
        if call is not None:
            self._look_without(call)

    def _begin(self) -> Call | None:
        """Have the engine begin with the container; None, with the reason of a skip, where it refuses this image."""
        call = self._ask(())
        if call is not None:
            self._adopt(call)
        elif "runtime-accepts-image" in self.case.needs:
            self.skipped = f"{self.engine.version()} refuses this container itself: {self.engine.said()[-160:]}"
        else:
            raise EngineError(f"{self.engine.name} made no container: {self.engine.said().strip()}")
        return call

    def _ask(self, devices: tuple[str, ...]) -> Call | None:
        """Ask the engine for the container, with CDI devices; None where it refuses."""
        stage, kind = self.stage, self.setup.kind
        if kind == "hook":
            self._write_hook()
        command, environment = self._behind_engine()
        self.engine.expect(command, environment, stage.bundle / "message", self._keep_rootfs)
        return self.engine.begin(
            stage.bundle, stage.image, translate(self.case, kind, devices), stage.identities() or ()
        )

    def _behind_engine(self) -> tuple[list[str], dict[str, str]]:
        """Return what the engine has for a runtime, and variables beside the engine's own."""
        return [self.engine.program], {}

    def _adopt(self, call: Call) -> None:
        self.stage.adopt(call.identifier, call.rootfs, tuple(call.config["process"].get("env", ())))

    def _look_without(self, call: Call) -> None:
        plain, directory = self.engine.plain, self.stage.directory / "before"
        directory, identifier = self.engine.without(call, directory)
        created = plain.create(identifier, directory)
        try:
            if created.code != 0 and "runtime-accepts-image" in self.case.needs:
                self.skipped = f"{plain.version()} refuses this container itself: {created.log[-160:]}"
                return
            if created.code != 0 or not created.pid:
                raise EngineError(f"runc refuses the container of {self.engine.name}: {created.log[-300:]}")
            self._find_cgroup(created.pid)
            self.before = Beside(self.stage, {}, Snapshot()).photograph(created.pid)
        finally:
            plain.discard(identifier, created.pid)

    def _find_cgroup(self, pid: int) -> None:
        """Note the container's cgroup, in which the engine put it (proc_pid_cgroup(5))."""
        for line in observe.read(Path(f"/proc/{pid}/cgroup")).splitlines():
            _, controllers, path = line.split(":", 2)
            if "devices" in controllers.split(",") or (not controllers and not self.setup.features.device_rules_listed):
                self.stage.cgroup = path

    def _keep_rootfs(self) -> None:
        """Keep the root file system as the injector left it, where the engine removes it with the container."""
        if not self.engine.keeps_rootfs:
            kept = self.stage.directory / "kept"
            shutil.rmtree(kept, ignore_errors=True)
            # Of what an image may hold, shutil copies no FIFOs.
            run_checked("cp", "--archive", str(self.stage.rootfs), str(kept))
            self.stage.rootfs = kept

    def _write_hook(self) -> None:
        """Write the hook that the engine starts: the injector, wrapped, in an engine's environment."""
        stage = self.stage
        wrapper = ["/bin/sh", str(self.setup.wrapper), str(stage.bundle), str(HOOK_SECONDS)]
        variables = [f"{name}={text}" for name, text in stage.environment().items()]
        words = ["env", "-i", *variables, *wrapper, *self.setup.command(self.case.container.stage)]
        path = Path(self.engine.surroundings.hook)
        path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin exec {shlex.join(words)}\n")
        path.chmod(0o755)

    def _go_on(self) -> Created:
        """Let the engine's call of its runtime go on."""
        self.called = self.engine.call()
        if self.called is None:
            self.code, self.message = None, self.engine.said()
            return Created(None, self.engine.said(), 0)
        if self.engine.pid:
            self._find_cgroup(self.engine.pid)
        return Created(self.called.code, self.called.log or self.called.message, self.engine.pid)

    def _judge_refusal(self, refused: Refused) -> list[str]:
        """Judge the injector's message, and that the engine's user reads what it names."""
        shown = self.engine.said().lower()
        lines = [
            f"message: {self.engine.name} does not show {entry!r}: {shown.strip()!r}"
            for entry in refused.names
            if not any(word.strip().lower() in shown for word in entry.split(" | "))
        ]
        return [*super()._judge_refusal(refused), *lines]

    def _processes(self) -> set[int]:
        return self.engine.processes()


class RuntimeThroughEngine(ThroughEngine, RuntimeAttempt):
    """An injector that is the engine's runtime."""

    def _behind_engine(self) -> tuple[list[str], dict[str, str]]:
        return self.setup.command(self.case.container.stage), self.stage.environment()

    def _run_create(self) -> Created:
        created = self._go_on()
        if self.called is not None:
            self._take_message(self.called.code, self.called.message, self.called.log)
        return created

    def _end(self) -> None:
        self.engine.delete(self.stage.identifier)


class HookThroughEngine(ThroughEngine):
    """An injector that is a hook, which the engine adds to its containers, or a runtime of its own kind does."""

    @property
    def _is_added_by_runtime(self) -> bool:
        return not self.engine.abilities().hooks

    def _rehearse(self) -> None:
        self._rehearse_container()

    def _behind_engine(self) -> tuple[list[str], dict[str, str]]:
        if not self._is_added_by_runtime:
            return super()._behind_engine()
        settings = {
            "nvidia-container-runtime": {"runtimes": [self.engine.program]},
            "nvidia-container-runtime-hook": {"path": self.engine.surroundings.hook},
        }
        # The node's configuration is one file for both; one that cannot be read is the hook's matter.
        config = self.case.config if isinstance(self.case.config, Mapping) else {}
        path = self.stage.directory / "legacy.toml"
        path.write_text(bundle.to_toml(overlay(config, settings)))
        variable = str(self.setup.implementation["config-variable"])
        return self.setup.words("legacy"), {"PATH": ENGINE_PATH, variable: str(path)}

    def _create(self) -> None:
        if not self.skipped:
            super()._create()

    def _run_create(self) -> Created:
        return self._go_on()

    def _explain_no_hook(self, created: Created) -> None:
        """Such a runtime adds no hook where nothing is asked for, or refuses by itself what the hook would refuse."""
        if self._is_added_by_runtime and self.called is not None and (created.code == 0 or self.called.message):
            self.code, self.message = self.called.code, self.called.message
        else:
            super()._explain_no_hook(created)


class DescribedByEngine(Described):
    """Observes a container whose user sets variables that the spec sets as well: which of both holds is the engine's.

    podman 4.3 writes either, now one, now the other.
    """

    def _described(self) -> tuple[str, ...]:
        asked = {entry.partition("=")[0] for entry in self.stage.case.container.env}
        return tuple(entry for entry in super()._described() if entry.partition("=")[0] not in asked)


class SpecThroughEngine(ThroughEngine, SpecAttempt):
    """CDI specs that the engine reads.

    An engine puts a spec into config.json before it calls its runtime, so it makes the container once more without.
    """

    refused_by_engine = False

    def _observer(self, expander: Expander) -> Beside:
        return DescribedByEngine(self.stage, expander.origins, self.before)

    def _rehearse_container(self) -> None:
        super()._rehearse_container()
        if not self.skipped:
            self._keep_rootfs()
            self.engine.delete(self.stage.identifier)

    def _create_with(self, directory: Path) -> Created:
        """Give the engine the specs, and have it make the container with the devices."""
        self.engine.use_specs(sorted(directory.iterdir()))
        call = self._ask(tuple(self.devices))
        if call is None:
            self.refused_by_engine = True
            self.code, self.message = self.engine.delete(self.stage.identifier), self.engine.said()
            return Created(self.code, self.message, 0)
        self.reached_runtime = True
        self.code = 0
        self._adopt(call)
        return self._go_on()

    def _judge_refusal(self, refused: Refused) -> list[str]:
        """Judge what the engine says of a device that no spec has; all else is as without an engine."""
        if self.refused_by_engine:
            return judge.judge_message(refused, self.message, prefix="", lines=0)
        return super(ThroughEngine, self)._judge_refusal(refused)

    def _end(self) -> None:
        self.engine.delete(self.stage.identifier)
