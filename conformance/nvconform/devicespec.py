"""Cases through a CDI spec of the machine, put into the container's config.json before the runtime reads it.

Belongs here: what a case's request is called in CDI, having the spec written and applied. Does not belong here: what a
case expects, and what differs with a spec: that is the implementation's data (`expects`, `differences`, `skips`).
"""

import fnmatch
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nvconform import observe
from nvconform.case import Case, Injected, Refused
from nvconform.expect import Expander
from nvconform.runtimes import Created
from nvconform.shim import Beside, RuntimeAttempt

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
KIND = "nvidia.com/gpu"
NAME = re.compile(r"all|\d+(:\d+)?|(GPU|MIG)-[0-9a-f-]+")
GENERATE_SECONDS = 40


class NoDevices(Exception):  # noqa: N818 - not a fault: the reason for a skip
    """A request cannot be said in names of CDI devices; the message says why."""


def device_names(case: Case) -> list[str]:
    """Return the CDI names of what a case's container asks for by its environment.

    Raises: NoDevices where there are none.
    """
    values = dict(entry.partition("=")[::2] for entry in case.container.env)
    tokens = [token.strip() for token in values.get(VARIABLE, "").split(",")]
    tokens = list(dict.fromkeys(token for token in tokens if token))
    if case.call is not None:
        raise NoDevices("the case calls a hook with standard input, which a spec does not have")
    if not tokens or "void" in tokens:
        raise NoDevices("a container that names no device is not given to CDI")
    if "none" in tokens:
        raise NoDevices("CDI has no device that stands for none")
    if not all(NAME.fullmatch(token) for token in tokens):
        raise NoDevices("the request has a form that no CDI device is named by")
    return [f"{KIND}={token}" for token in (["all"] if "all" in tokens else tokens)]


def more_devices(document: Mapping[str, Any], case: Case) -> dict[str, list[str]]:
    """Return what a case asks for beside GPUs: mode of the spec -> CDI names of its devices."""
    values = dict(entry.partition("=")[::2] for entry in case.container.env)
    found: dict[str, list[str]] = {}
    for variable, more in document.get("more", {}).items():
        tokens = [token.strip() for token in values.get(variable, "").split(",")]
        names = ["all" if token == "enabled" else token for token in tokens if token == "enabled" or token.isdecimal()]
        if names:
            found[str(more["mode"])] = [f"{more['kind']}={name}" for name in names]
    return found


def unsuited(document: Mapping[str, Any], case: Case) -> str:
    """Return why a case cannot be put to a spec, "" where it can: no matching names, or declared in `skips`."""
    for pattern, reason in document.get("skips", {}).items():
        if fnmatch.fnmatchcase(case.id, pattern):
            return str(reason)
    try:
        device_names(case)
    except NoDevices as reason:
        return str(reason)
    return ""


class SpecAttempt(RuntimeAttempt):
    """Runs a case with the machine's CDI spec."""

    reached_runtime = False

    def __init__(self, setup: Any, case: Case, directory: Path) -> None:
        """Prepare names only; the expectation is that of a spec."""
        super().__init__(setup, self._with_spec(setup.implementation, setup.sets, case), directory)
        self.more = more_devices(setup.implementation, case)
        given = {entry.partition("=")[0] for entry in case.container.env}
        self.hooks = {hook for name, hook in setup.implementation.get("hooks", {}).items() if name in given}
        self.devices = [*device_names(case), *(name for names in self.more.values() for name in names)]
        self.links: dict[str, str] = {}

    @staticmethod
    def _with_spec(implementation: Mapping[str, Any], sets: Mapping[str, Any], case: Case) -> Case:
        """Return a case with the expectation of a spec, which is written before any image or request is known."""
        refused, injected = case.expect.refused, case.expect.injected
        if refused is not None and refused.kind == "request":
            asked = [name.partition("=")[2] for name in device_names(case)]
            names = tuple(name for name in refused.names if name in asked)
            return replace(case, expect=replace(case.expect, refused=replace(refused, names=names)))
        if injected is None:
            return case
        usual = sets["library-directories"]
        own = sets["machines"].get(case.machine, {}).get("library-folder", usual["deb"])
        whole = tuple(implementation.get("expects", {}).get("capabilities", injected.capabilities))
        contents = {
            path: tuple(own if line == usual[case.container.image] else line for line in lines)
            for path, lines in injected.contents.items()
        }
        place = injected.library_directory if injected.placed else own
        changed = replace(injected, capabilities=whole, library_directory=place, contents=contents)
        return replace(case, expect=replace(case.expect, injected=changed))

    def _rehearse(self) -> None:
        """Find out where the driver's libraries come to lie, then create the container without a spec."""
        super()._rehearse()
        self.links = self._links()
        injected = self.case.expect.injected
        own = self.case.driver.libraries if self.case.driver is not None else self.stage.facts.get("library-folder", "")
        if injected is not None and own and not injected.placed:
            # In the container as on the host, behind the image's own links.
            place = observe.resolve(self.stage.rootfs, own)
            changed = replace(injected, library_directory=f"/{place.relative_to(self.stage.rootfs)}")
            self.case = replace(self.case, expect=replace(self.case.expect, injected=changed))

    def _observer(self, expander: Expander) -> Beside:
        return Described(self.stage, expander.origins, self.before)

    def _run_create(self) -> Created:
        """Have the spec written and applied, then let the runtime create the container."""
        directory = self.stage.directory / "cdi"
        words = {"specs": str(directory), "config": str(self.stage.config_file), "bundle": str(self.stage.bundle)}
        machine = self.setup.work / "machine.yaml"
        spec = directory / "nvidia.yaml"
        directory.mkdir()
        shared = self.stage.driver_root is None and self.case.config is None and not self.hooks
        enabled = [word for hook in sorted(self.hooks) for word in ("--enable-hook", hook)]
        if shared and machine.exists():
            spec.write_bytes(machine.read_bytes())
        elif not self._run([*self.setup.words("generate", **words), *enabled]):
            return Created(self.code, self.message, 0)
        elif shared:
            machine.write_bytes(spec.read_bytes())
        for mode in self.more:
            own = ["--mode", mode, "--output", f"{directory}/{mode}.yaml"]
            if not self._run([*self.setup.words("generate", **words), *own]):
                return Created(self.code, self.message, 0)
        created = self._create_with(directory)
        if not self.reached_runtime:
            return created
        failed = re.search(r'exit status (\d+).*?stderr: (nvinject: .*?)(?:\\n|")', created.log)
        if created.code:
            self.code, self.message = (int(failed[1]), failed[2] + "\n") if failed else (created.code, created.log)
        return created

    def _create_with(self, directory: Path) -> Created:
        """Apply the specs of a folder, then let the runtime create the container."""
        words = {"specs": str(directory), "config": str(self.stage.config_file), "bundle": str(self.stage.bundle)}
        devices = [word for name in self.devices for word in ("--device", name)]
        if not self._run([*self.setup.words("command", **words), *devices]):
            return Created(self.code, self.message, 0)
        self.reached_runtime = True
        return self.setup.runtime.create(self.stage.identifier, self.stage.bundle)

    def _run(self, command: list[str]) -> bool:
        """Run a command of the implementation; its message is the case's if it fails, else added to it."""
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=self.stage.environment(),
            cwd=self.stage.directory,
            timeout=GENERATE_SECONDS,
            check=False,
        )
        self.code = result.returncode
        self.message = result.stderr if self.code else self.message + result.stderr
        return result.returncode == 0

    def _apply_differences(self, expander: Expander) -> None:
        """Accept what the implementation declares to give beyond what a hook does."""
        super()._apply_differences(expander)
        expected, seen = self.expected, self.seen
        links = {path: text for path, text in self._links().items() if self.links.get(path) != text}
        for wanted, got in ((expected.mounts, seen.mounts), (expected.nodes, seen.nodes), (expected.links, links)):
            more = {path: text for path, text in got.items() if path not in wanted and self._is_more(path)}
            wanted.update(more)
            if got is seen.nodes:
                expected.rules += [f"c {text.split(' ')[0]} rw" for text in more.values()]
        known = {self._normalised(line) for line in expected.cache}
        lines = [self._normalised(line) for line in self._cache()]
        expected.cache += [line for line in lines if self._is_more(line.rpartition(" ")[2]) and line not in known]

    def _take_substitutes(self, _: Expander) -> None:
        """Accept none: what is not mounted is written into the image, as with a hook."""

    def _is_more(self, path: str) -> bool:
        additions = self.setup.implementation.get("additions", ())
        return any(fnmatch.fnmatchcase(path, pattern) for one in additions for pattern in one["paths"])

    def _judge_injection(self, injected: Injected, cache_before: list[str]) -> list[str]:
        files = (*injected.also.files, *(path for path in self.changes if self._is_more(path)))
        return super()._judge_injection(replace(injected, also=replace(injected.also, files=files)), cache_before)

    def _judge_refusal(self, refused: Refused) -> list[str]:
        # crun keeps to itself what a hook says.
        if refused.kind != "container" and not (self.reached_runtime and self.setup.runtime.name == "crun"):
            return super()._judge_refusal(refused)
        # It is the runtime that meets the image: words, exit code and what it has made by then are its own.
        if self.created is not None and self.created.code == 0:
            return ["create: the container exists, expected a refusal"]
        return []

    def _judge_untouched(self) -> list[str]:
        # What a runtime has made by the time that a hook refuses is its own.
        return [] if self.reached_runtime else super()._judge_untouched()

    def _links(self) -> dict[str, str]:
        """Return the links that the container's root file system has now, by path."""
        found = observe.tree(self.stage.rootfs)
        return {path: text.removeprefix("link ") for path, text in found.items() if text.startswith("link ")}

    def _end(self) -> None:
        self.setup.runtime.delete(self.stage.identifier)


class Described(Beside):
    """Observes a container that has what a spec says of its environment."""

    def _judge_environment(self, lines: list[str]) -> None:
        expected = self._described()
        self.problems += [f"environment: {entry} is missing" for entry in expected if entry not in lines]
        super()._judge_environment([line for line in lines if line not in expected])

    def _described(self) -> tuple[str, ...]:
        """Return the variables that the spec brings."""
        return tuple(self.setup.implementation.get("expects", {}).get("environment", ()))
