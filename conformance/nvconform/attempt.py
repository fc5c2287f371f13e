"""One run of one case: from the stage to the verdict.

Belongs here: the order of what happens and which judge is asked. Does not belong here: how anything is written
(stage.py), observed (inside.py, observe.py) or compared (judge.py).
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nvconform import judge, observe
from nvconform.case import Case, Expectation, Injected, Refused, build
from nvconform.expect import Expander, View
from nvconform.inside import Inside
from nvconform.runtimes import Created, wait_or_kill
from nvconform.setup import HOOK_SECONDS, Setup
from nvconform.stage import Stage

LOADER_CACHE = "/etc/ld.so.cache"
FOLDERS_CONF = "/etc/ld.so.conf.d/00-nvcr-nvinject.conf"


class Attempt:
    """Runs a case and keeps what came out for the report."""

    def __init__(self, setup: Setup, case: Case, directory: Path) -> None:
        """Prepare names only."""
        self.setup = setup
        self.case = case
        self.stage = Stage(setup, case, directory, f"nvconform-{os.getpid()}-{directory.name}")
        self.expected = View()
        self.seen = View()
        self.created: Created | None = None
        self.code: int | None = None
        self.message = ""
        self.changes: dict[str, str] = {}
        self.leftovers: list[str] = []
        self.problems: list[str] = []
        self.skipped = ""

    def run(self) -> list[str]:
        """Go through the whole case and return the differences."""
        self.stage.set_up()
        host = self._look_at_host()
        self._rehearse()
        files = observe.tree(self.stage.rootfs)
        cache = self._cache()
        if self.case.call is not None:
            self._call()
        else:
            self._create()
        self.changes = observe.changes(files, observe.tree(self.stage.rootfs))
        self.seen.links = {
            path: text.removeprefix("link ") for path, text in self.changes.items() if text.startswith("link ")
        }
        self.seen.cache = self._new_cache_entries(cache)
        if self.skipped:
            return []
        return [*self.problems, *self._judge(cache), *self._judge_host(host)]

    def clear(self) -> None:
        """Remove what the case made."""
        self.stage.clear()

    # -- running

    def _rehearse(self) -> None:
        """Do what has to be known before the container is created; a hook is wrapped and tells it all itself."""

    def _create(self) -> None:
        """Let the runtime create the container, and with it the injector work; then look at the result."""
        injected = self._expectation().injected
        expander = self._expander(injected or Injected())
        if injected is not None:
            self.expected = expander.expand()
        inside = Inside(self.stage, expander.origins)
        self.created = self._run_create()
        try:
            self.message = self.stage.report("hook.stderr")
            code = self.stage.report("hook.code").strip()
            self.code = int(code) if code else None
            if self.code is None:
                self._explain_no_hook(self.created)
            inside.read_snapshots()
            if self.created.code == 0 and self.created.pid:
                inside.look(self.created.pid, injected.contents if injected is not None else {})
            self._look_at_memory(inside, injected)
        finally:
            self.setup.runtime.delete(self.stage.identifier)
            self.leftovers = reap(self._processes())
        self.seen = inside.seen
        self.problems += inside.problems
        if injected is not None:
            self._apply_differences(expander)

    def _run_create(self) -> Created:
        """Have the container created."""
        return self.setup.runtime.create(self.stage.identifier, self.stage.bundle)

    def _processes(self) -> set[int]:
        """Return our children that stay when the container is gone."""
        return set()

    def _look_at_memory(self, inside: Inside, injected: Injected | None) -> None:
        """Look at limits of GPU memory, in the cases that are about them; a container that is refused has none."""
        if "cgroup-v2" in self.case.needs:
            inside.look_at_memory(injected.memory if injected is not None else {})

    def _explain_no_hook(self, created: Created) -> None:
        log = created.log.strip()
        if "runtime-accepts-image" in self.case.needs:
            self.skipped = f"{self.setup.runtime.version()} refuses this container itself: {log[-160:]}"
        else:
            self.problems.append(f"suite: the injector was not started; the runtime says: {log}")

    def _call(self) -> None:
        """Call the injector without a runtime."""
        call = self.case.call
        assert call is not None
        sleeper = subprocess.Popen([str(self.setup.busybox), "sleep", "60"])
        dead = subprocess.Popen([str(self.setup.busybox), "true"])
        dead.wait()
        self.stage.names |= {"pid": str(sleeper.pid), "dead": str(dead.pid)}
        self.stage.damage()
        user = self.setup.settings.ordinary_user if call.bundle == "closed" else None
        process = subprocess.Popen(
            self.setup.command("prestart"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self.stage.environment(),
            cwd=self.stage.directory,
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        try:
            stdin = str(substituted(call.stdin, self.stage.names))
            _, message = process.communicate(stdin.encode(), timeout=HOOK_SECONDS)
            self.message = message.decode(errors="replace")
            self.code = process.returncode
        except subprocess.TimeoutExpired:
            wait_or_kill(process, 0)
            self.problems.append(f"time: the injector did not end within {HOOK_SECONDS} s")
        finally:
            sleeper.kill()
            sleeper.wait()
            self.stage.repair()
            self.leftovers = reap()

    # -- observing

    def _cache(self) -> list[str]:
        return observe.loader_cache(observe.resolve(self.stage.rootfs, LOADER_CACHE))

    def _new_cache_entries(self, before: list[str]) -> list[str]:
        entries = self._cache()
        for line in before:
            with contextlib.suppress(ValueError):
                entries.remove(line)
        return [self._normalised(line) for line in entries]

    def _normalised(self, line: str) -> str:
        """Return a cache entry with the links of its folder followed: /lib and /usr/lib can be the same."""
        name, _, path = line.rpartition(" ")
        folder, _, file = path.rpartition("/")
        resolved = observe.resolve(self.stage.rootfs, folder)
        return f"{name} /{resolved.relative_to(self.stage.rootfs)}/{file}"

    def _look_at_host(self) -> dict[str, Any]:
        root = self.setup.machine_root
        machine = [root / "proc/driver", Path("/etc/ld.so.cache"), Path("/etc/ld.so.conf.d")]
        if str(root) != "/":
            machine += [root / "dev", root / "run", root / "etc"]
        return {
            "mounts": observe.own_mounts(),
            "descriptors": observe.own_descriptors(),
            "outside": observe.tree(self.stage.outside),
            "machine": {str(path): observe.picture(path) for path in machine},
            "nodes": {name: str(number) for name, number in observe.machine_nodes(root).items()},
        }

    # -- judging

    def _expectation(self) -> Expectation:
        """Return the expectation with `${name}` filled in, as far as the names are known by now."""
        expect = build(Expectation, substituted(asdict(self.case.expect), self.stage.names))
        injected, lists = expect.injected, self.setup.sets["machines"].get(self.case.machine, {}).get("lists", {})
        # Such libraries do not lie where the image's own ldconfig looks; no shim can note that in read-only containers.
        noted = not (self.case.container.readonly and self.setup.is_runtime)
        if injected is None or not injected.cache or not lists.get("cache") or not noted:
            return expect
        files = (*injected.also.files, FOLDERS_CONF)
        return replace(expect, injected=replace(injected, also=replace(injected.also, files=files)))

    def _expander(self, injected: Injected) -> Expander:
        nodes = observe.machine_nodes(self.stage.device_root)
        real = self.setup.lane != "rootless"
        return Expander(self.case, injected, self.setup.sets, nodes, real_numbers=real)

    def _apply_differences(self, _: Expander) -> None:
        """Turn the expectation into what the implementation's adapter says that it does instead."""
        conditions = {self.setup.lane, *(["read-only"] if self.case.container.readonly else [])}
        for difference in self.setup.implementation.get("differences", []):
            runtimes = difference.get("runtimes", [self.setup.runtime.name])
            if conditions & set(difference.get("when", conditions)) and self.setup.runtime.name in runtimes:
                self._apply_difference(difference["path"], difference.get("becomes", ""))

    def _apply_difference(self, path: str, becomes: str) -> None:
        mounts = self.expected.mounts
        if path == "writable":
            mounts |= {target: _without_flags(shown) for target, shown in mounts.items()}
            return
        nodes = self.expected.nodes if path == "nodes" else {}
        for target in [one for one in mounts if one == path or one.startswith(f"{path}/") or one in nodes]:
            if becomes:
                mounts[target] = becomes
            else:
                del mounts[target]

    def _judge(self, cache_before: list[str]) -> list[str]:
        expect = self._expectation()
        if expect.refused is not None:
            return self._judge_refusal(expect.refused)
        differences = [] if self.code == 0 else [f"exit: the injector exits {self.code}, expected 0"]
        if self.created is not None and self.created.code != 0:
            differences.append(
                f"create: {self.setup.runtime.name} exits {self.created.code}: {self.created.log.strip()}"
            )
        if expect.injected is None:
            return [*differences, *judge.judge_warnings(expect.says, self.message), *self._judge_untouched()]
        if differences:
            return differences
        differences += judge.judge_warnings(expect.injected.says, self.message)
        return [*differences, *self._judge_injection(expect.injected, cache_before)]

    def _judge_injection(self, injected: Injected, cache_before: list[str]) -> list[str]:
        self.expected.cache = [self._normalised(line) for line in self.expected.cache]
        rules = bool(self.setup.features.device_cgroup)
        if rules and not self.setup.features.device_rules_listed:
            # A device program does not tell its rules: what can be opened is all that shows, and that needs a node.
            nodes = observe.machine_nodes(self.stage.device_root).values()
            known = {f"c {major}:{minor} rw" for major, minor, _ in nodes}
            known |= {f"c {text.split(' ')[0]} rw" for text in self.seen.nodes.values()}
            self.expected.rules = [rule for rule in self.expected.rules if rule in known]
        differences = judge.compare_views(self.expected, self.seen, rules=rules)
        files = [*injected.also.files]
        if self.expected.cache:
            resolved = observe.resolve(self.stage.rootfs, LOADER_CACHE)
            files.append(f"/{resolved.relative_to(self.stage.rootfs)}")
        differences += judge.unexplained_changes(self.changes, self.expected, files)
        differences += judge.judge_cache_order(cache_before, self._cache(), injected.cache_first)
        return differences

    def _judge_untouched(self) -> list[str]:
        lines = judge.compare_views(View(), self.seen, rules=bool(self.setup.features.device_cgroup))
        return [*lines, *(f"root file system: {path} changed to {text}" for path, text in sorted(self.changes.items()))]

    def _judge_refusal(self, refused: Refused) -> list[str]:
        implementation = self.setup.implementation
        differences = []
        if self.created is not None and self.created.code == 0:
            differences.append("create: the container exists, expected a refusal")
        wanted = implementation.get("exit-codes", {}).get(refused.kind)
        if self.code == 0 or (wanted is not None and self.code != wanted):
            differences.append(f"exit: the injector exits {self.code}, expected {wanted or 'a failure'}")
        style = implementation.get("message", {})
        differences += judge.judge_message(
            refused, self.message, prefix=style.get("prefix", ""), lines=style.get("lines", 0)
        )
        return [*differences, *self._judge_untouched()]

    def _judge_host(self, before: Mapping[str, Any]) -> list[str]:
        after = self._look_at_host()
        lines = self._take_made_nodes(after["nodes"])
        for what in ("mounts", "descriptors"):
            lines += judge.compare_lists(f"host {what}", before[what], after[what])
        for what in ("outside", "nodes", "machine"):
            changed = [key for key in {**before[what], **after[what]} if before[what].get(key) != after[what].get(key)]
            lines += [f"host: {what}: {key} changed" for key in changed]
        return [*lines, *(f"host: process left behind: {text}" for text in self.leftovers)]

    def _take_made_nodes(self, nodes: dict[str, str]) -> list[str]:
        """Remove the nodes that the injector was to make on the host, from the host and from what was seen of it."""
        injected = self._expectation().injected
        lines = []
        for name in injected.makes if injected is not None else ():
            if nodes.pop(name, None) is None:
                lines.append(f"host: /dev/{name} was not made")
            else:
                (self.setup.machine_root / "dev" / name).unlink()
        return lines


def _without_flags(shown: str) -> str:
    """Return a mount's text without flags if it is of something of the host that can be written to."""
    flags, _, source = shown.partition(" ")
    return f"rw {source}" if flags.startswith("rw") and source != "tmpfs" else shown


def substituted(value: Any, names: Mapping[str, str]) -> Any:
    """Return a value with `${name}` replaced in all its texts, also in keys."""
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace(f"${{{name}}}", text)
        return value
    if isinstance(value, Mapping):
        return {substituted(key, names): substituted(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [substituted(item, names) for item in value]
    return value


def reap(staying: Collection[int] = ()) -> list[str]:
    """Collect ended orphans; return what still runs as our child: something that an injector left behind.

    `staying` are the process ids of children that are to run on.
    """
    deadline = time.monotonic() + 1
    left: list[str] = []
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = [text for text in observe.children_of(os.getpid()) if int(text.split(" ")[0]) not in staying]
        if not left:
            break
        time.sleep(0.01)
    return left
