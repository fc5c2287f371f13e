"""Cases through an injector that is a runtime itself, in front of the one that does the work.

Belongs here: calling it, and seeing what it added to a container. Does not belong here: what a case expects. Such an
injector leaves nothing to wrap, so the same container is created without it first; what the second one has more is the
injector's. What an implementation declares as its differences (implementations.py) is applied to the expectation.
"""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nvconform import observe
from nvconform.attempt import LOADER_CACHE, Attempt, reap
from nvconform.case import Case, Injected
from nvconform.expect import Expander
from nvconform.inside import Inside
from nvconform.runtimes import CREATE_SECONDS, STEP_SECONDS, Created, empty_input, wait_or_kill
from nvconform.setup import Setup
from nvconform.stage import Stage

GENERATED = "/run/nvinject"


@dataclass(frozen=True)
class Snapshot:
    """Mounts by their target and the device rules of a created container, and its name."""

    mounts: Mapping[str, observe.Mount] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    identifier: str = ""


class Beside(Inside):
    """Observes a container by comparing it with the one without the injector."""

    def __init__(self, stage: Stage, origins: Mapping[str, str], before: Snapshot) -> None:
        """Keep what the container without the injector has."""
        super().__init__(stage, origins)
        self.before = before
        self.cache: list[str] = []

    def look(self, pid: int, contents: Mapping[str, tuple[str, ...]]) -> None:
        """Find the new mounts and rules, then look at all else."""
        after = self.photograph(pid)
        self.mounts = {target: mount for target, mount in after.mounts.items() if not self._was_there(target, mount)}
        self.seen.rules = [rule for rule in after.rules if rule not in self.before.rules]
        self.cache = observe.loader_cache(observe.resolve(Path(f"/proc/{pid}/root"), LOADER_CACHE))
        super().look(pid, contents)

    def _was_there(self, target: str, mount: observe.Mount) -> bool:
        known = self.before.mounts.get(target)
        if known is None or known.kind != mount.kind:
            return False
        # A container shows its own cgroup, and its own of the files that an engine makes for each.
        name, other = self.stage.identifier, self.before.identifier or self.stage.identifier
        return known.root.replace(other, name) == mount.root or mount.kind in {"cgroup", "cgroup2"}

    def photograph(self, pid: int) -> Snapshot:
        """Return mounts and device rules of a created container."""
        mounts = observe.parse_mounts(observe.read(Path(f"/proc/{pid}/mountinfo")))
        listed = Path(f"{self.setup.features.device_cgroup}{self.stage.cgroup}/devices.list")
        rules = tuple(observe.read(listed).splitlines())
        return Snapshot({mount.target: mount for mount in mounts}, rules, self.stage.identifier)

    def _name_source(self, root: Path, target: str, mount: observe.Mount) -> str:
        found = super()._name_source(root, target, mount)
        # A link of the image can lead somewhere else than to what is bound: the name of the link is not the file's.
        if found.startswith("another file") and self.stage.identifier in mount.root:
            return "generated"
        return found


class RuntimeAttempt(Attempt):
    """Runs a case with the injector in front of the runtime."""

    before = Snapshot()
    inside: Beside | None = None

    def __init__(self, setup: Setup, case: Case, directory: Path) -> None:
        """Prepare names only."""
        super().__init__(setup, case, directory)
        self.bound: list[str] = []

    def _rehearse(self) -> None:
        """Create and remove the container without the injector."""
        skips = self.setup.implementation.get("skips", {})
        reason = skips.get(self.case.id) or skips.get(f"{self.case.id} ({self.setup.runtime.name})", "")
        if self.case.call is not None:
            reason = "a runtime has no standard input to be called with: the case is about a hook"
        if reason:
            self.skipped = reason
        else:
            self._rehearse_container()

    def _rehearse_container(self) -> None:
        created = self.setup.runtime.create(self.stage.identifier, self.stage.bundle)
        try:
            if created.code == 0 and created.pid:
                self.before = Beside(self.stage, {}, Snapshot()).photograph(created.pid)
            elif "runtime-accepts-image" in self.case.needs:
                self.skipped = f"{self.setup.runtime.version()} refuses this container itself: {created.log[-160:]}"
        finally:
            self.setup.runtime.discard(self.stage.identifier, created.pid)
            for name in ("runtime.log", "pid", "output"):
                (self.stage.bundle / name).unlink(missing_ok=True)
            reap()

    def _call(self) -> None:
        """Not done: see _rehearse."""

    def _create(self) -> None:
        """Create the container through the injector, and delete it through the injector."""
        if self.skipped:
            return
        injected = self._expectation().injected
        expander = self._expander(injected or Injected())
        if injected is not None:
            self.expected = expander.expand()
        self.inside = self._observer(expander)
        self.created = self._run_create()
        try:
            if self.created.code == 0 and self.created.pid:
                self.inside.look(self.created.pid, injected.contents if injected is not None else {})
            self._look_at_memory(self.inside, injected)
        finally:
            self._run_delete()
            self.leftovers = reap(self._processes())
        self.seen = self.inside.seen
        self.problems += self.inside.problems
        if injected is not None:
            self._apply_differences(expander)

    def _observer(self, expander: Expander) -> Beside:
        return Beside(self.stage, expander.origins, self.before)

    def _command(self) -> list[str]:
        return [*self.setup.command(self.case.container.stage), *self.setup.runtime.options]

    def _run_create(self) -> Created:
        stage = self.stage
        log, pid_file, message = (stage.bundle / name for name in ("runtime.log", "pid", "message"))
        words = ["--log", str(log), "create", "--bundle", str(stage.bundle), "--pid-file", str(pid_file)]
        output_file = stage.bundle / "output"
        with output_file.open("wb") as output, message.open("wb") as errors, empty_input() as nothing:
            process = subprocess.Popen(
                [*self._command(), *words, stage.identifier],
                stdin=nothing,
                stdout=output,
                stderr=errors,
                env=stage.environment(),
                cwd=stage.directory,
                start_new_session=True,
            )
        code = wait_or_kill(process, CREATE_SECONDS)
        text = observe.read(log)
        self._take_message(code, observe.read(message), text)
        pid = int(observe.read(pid_file) or "0")
        return Created(code, text, pid)

    def _take_message(self, code: int | None, message: str, text: str) -> None:
        """Note exit code and message of the injector, which may stand in the log of the runtime behind it."""
        self.code, self.message = code, message
        # What a createContainer hook says reaches us through the runtime, with its exit code.
        failed = re.search(r'exit status (\d+).*?stderr: (nvinject: .*?)(?:\\n|")', text)
        if code and failed and not self.message.startswith("nvinject: "):
            self.code, self.message = int(failed[1]), failed[2] + "\n"

    def _run_delete(self) -> None:
        """Remove the container, and see to it that the injector's own files are gone with it."""
        self._end()
        user = self.setup.environment().get("XDG_RUNTIME_DIR", "")
        for base in (GENERATED, *([f"{user}/nvinject"] if user else [])):
            if Path(base, self.stage.identifier).exists():
                self.problems.append(f"host: {base}/{self.stage.identifier} is left of the container")

    def _end(self) -> None:
        process = subprocess.Popen(
            [*self._command(), "delete", "--force", self.stage.identifier],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self.stage.environment(),
            start_new_session=True,
        )
        wait_or_kill(process, STEP_SECONDS)

    # -- what is different with this implementation

    def _cache(self) -> list[str]:
        """Return the loader cache as the container sees it, mounted or not."""
        if self.inside is not None and LOADER_CACHE in self.inside.mounts:
            return list(self.inside.cache)
        return super()._cache()

    def _apply_differences(self, expander: Expander) -> None:
        """Turn the expectation into what this implementation says that it does instead."""
        super()._apply_differences(expander)
        self._take_substitutes(expander)

    def _take_substitutes(self, expander: Expander) -> None:
        """Accept mounts that stand for what is written into the image with a hook."""
        if self.case.container.readonly:
            # What would be written into the image is generated beside it and bound.
            for path in (*([LOADER_CACHE] if self.expected.cache else []), *expander.expected.also.files):
                self.expected.mounts[path] = f"{expander.sets['flags']['proc-part']} generated"
        self._take_bound_links()

    def _take_bound_links(self) -> None:
        """Accept a file bound where a link is expected, if it is the file that the link leads to."""
        expected, seen = self.expected, self.seen.mounts
        for link in list(expected.links):
            flags = expected.mounts.get(self._end_of(link), "").partition(" ")[0]
            # The observer names a file by the machine's path that leads to it: there, too, it is a link.
            if flags and seen.get(link) == f"{flags} {link.rsplit('/', 1)[-1]}":
                self.bound.append(link)
        for link in self.bound:
            expected.mounts[link] = seen[link]
        for link in self.bound:
            del expected.links[link]

    def _end_of(self, link: str) -> str:
        """Return the expected mount that a link leads to over other expected links, "" if none."""
        path = link
        for _ in range(8):
            target = self.expected.links.get(path)
            if target is None:
                return path if path in self.expected.mounts else ""
            folder = path.rpartition("/")[0]
            path = target if target.startswith("/") else os.path.normpath(f"{folder}/{target}")
        return ""
