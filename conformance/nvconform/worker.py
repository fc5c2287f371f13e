"""The worker: runs cases one after the other inside a fake machine and judges them.

Belongs here: the life of one case, from the image on disk to the verdict. Does not belong here: which cases there are
and where they come from (casefile.py), starting machines (session.py). Standard library only, because the sandbox may
have to use another interpreter. Started as `python -m nvconform.worker`; speaks one JSON document a line on standard
input and output.
"""

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nvconform import bundle, judge, observe
from nvconform.case import Case, Expectation, Injected, Refused, build
from nvconform.expect import Expander, View
from nvconform.features import Features
from nvconform.image import Image
from nvconform.runtimes import Created, Runtime, wait_for_end, wait_or_kill

HOOK_SECONDS = 20
PR_SET_CHILD_SUBREAPER = 36
FIRST_USER_NAMESPACE_ID = 100000
USER_NAMESPACE_SIZE = 65536
ENGINE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UP = "/.." * 24
CANARY_FILES = {"secret": "outside\n", "ldconfig": "#!/bin/sh\n", "target-dir/.keep": ""}


@dataclass(frozen=True)
class Settings:
    """What holds for all cases of one worker; sent by the session as the first line."""

    lane: str
    runtime: str
    work: str
    busybox: str
    kernel_hook: tuple[str, ...]
    python: str
    ordinary_user: int
    implementation: Mapping[str, Any]
    sets: Mapping[str, Any]


@dataclass
class Outcome:
    """What happened in one case: the injector's own exit code and message, and everything seen before and after."""

    created: Created | None = None
    code: int | None = None
    message: str = ""
    seen: View = field(default_factory=View)
    changes: dict[str, str] = field(default_factory=dict)
    leftovers: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Worker:
    """Runs cases on the machine that it finds itself on."""

    def __init__(self, settings: Settings) -> None:
        """Prepare the working directory, the implementation and the runtime."""
        self.settings = settings
        self.machine_root = Path(os.environ.get("NVFAKES_ROOT", "/"))
        self.work = Path(settings.work)
        self._mount_work()
        self.busybox = self.work / "busybox"
        shutil.copy2(settings.busybox, self.busybox)
        self.wrapper = self.work / "wrapper.sh"
        self.wrapper.write_text(observe.WRAPPER)
        self.prefix = self.work / "prefix"
        self._install()
        self.runtime = Runtime(settings.runtime, self.work / "state", rootless=settings.lane == "rootless")
        self.features = Features.detect(settings.lane, self.work, settings.ordinary_user)
        self.count = 0
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def _mount_work(self) -> None:
        # A tmpfs of the sandbox: faster, and gone with it. Without the right to mount, the directory itself does.
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "mode=0755,size=1g", "nvconform", str(self.work)],
            capture_output=True,
            check=False,
            timeout=20,
        )
        self.work.chmod(0o755)

    def _install(self) -> None:
        install = self.settings.implementation.get("install")
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
            **more,
        }
        for name, value in known.items():
            word = word.replace(f"{{{name}}}", value)
        return word

    def command(self, stage: str) -> list[str]:
        """Return the injector's command line for a hook stage."""
        return [self._fill(word, stage=stage) for word in self.settings.implementation["command"]]

    def run(self, case: Case) -> dict[str, Any]:
        """Run one case and return its result for the report."""
        begin = time.monotonic()
        result: dict[str, Any] = {"id": case.id, "lane": self.settings.lane}
        reason = self.features.missing(case.needs)
        if reason:
            return {**result, "status": "skipped", "reason": reason, "seconds": 0.0}
        self.count += 1
        attempt = Attempt(self, case, self.work / f"case{self.count}")
        try:
            differences = attempt.run()
        except Exception:  # noqa: BLE001 - a fault of the suite must show as one case's failure, not end the run
            differences = [f"suite: {traceback.format_exc()}"]
        finally:
            attempt.clean()
        result |= {
            "status": "failed" if differences else "passed",
            "differences": differences,
            "expected": attempt.expected.as_mapping(),
            "seen": attempt.outcome.seen.as_mapping(),
            "message": attempt.outcome.message,
            "code": attempt.outcome.code,
            "seconds": round(time.monotonic() - begin, 3),
        }
        if attempt.skipped:
            result |= {"status": "skipped", "reason": attempt.skipped, "differences": []}
        return result


class Attempt:
    """One run of one case: its directories, its container and what was seen."""

    def __init__(self, worker: Worker, case: Case, directory: Path) -> None:
        """Lay out the directories of the case; nothing is mounted or started yet."""
        self.worker = worker
        self.settings = worker.settings
        self.directory = directory
        self.bundle = directory / "bundle"
        self.rootfs = self.bundle / "rootfs"
        self.outside = directory / "outside"
        machine = worker.settings.sets["machines"].get(case.machine, {})
        self.names = {
            "outside": f"{UP}{self.outside}",
            "outside-absolute": str(self.outside),
            "driver": str(machine.get("driver", "")),
            "bundle": str(self.bundle),
        }
        self.case = case
        self.identifier = f"nvconform-{os.getpid()}-{worker.count}"
        self.cgroup = f"/nvconform/{self.identifier}"
        self.outcome = Outcome()
        self.expected = View()
        self.skipped = ""
        self.mounted = False

    def run(self) -> list[str]:
        """Go through the whole case and return the differences."""
        self._prepare()
        host_before = self._host()
        files_before = observe.tree(self.rootfs)
        cache_before = observe.loader_cache(observe.resolve(self.rootfs, "/etc/ld.so.cache"))
        if self.case.call is not None:
            self._call()
        else:
            self._create()
        self.outcome.changes = observe.changes(files_before, observe.tree(self.rootfs))
        cache_after = observe.loader_cache(observe.resolve(self.rootfs, "/etc/ld.so.cache"))
        for line in cache_before:
            if line in cache_after:
                cache_after.remove(line)
        self.outcome.seen.cache = cache_after
        self._see_links()
        differences = [*self._judge(cache_before), *self._judge_host(host_before)]
        return [*self.outcome.problems, *differences]

    # -- preparation ---------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self.rootfs.mkdir(parents=True)
        for name, text in CANARY_FILES.items():
            path = self.outside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        filesystem = self.case.container.filesystem
        if filesystem is not None:
            size = f"size={filesystem.kilobytes}k,mode=0755"
            _checked("mount", "-t", "tmpfs", "-o", size, "nvconform-rootfs", str(self.rootfs))
            self.mounted = True
        Image(self.rootfs, self.names).build(self.case.container, self.worker.busybox)
        if self.settings.lane == "userns":
            self._give_to(FIRST_USER_NAMESPACE_ID)
        if filesystem is not None and filesystem.full:
            _fill_up(self.rootfs)
        if filesystem is not None and filesystem.readonly:
            _checked("mount", "-o", "remount,ro", str(self.rootfs))
        self._write_config()
        self._write_bundle()

    def _expect(self) -> Expectation:
        """Return the expectation with `${name}` filled in, once all names are known."""
        return build(Expectation, _substituted(asdict(self.case.expect), self.names))

    def _give_to(self, owner: int) -> None:
        for directory, names, files in os.walk(self.rootfs):
            for name in (*names, *files):
                path = Path(directory, name)
                if path.name == "busybox":
                    # The hard link is shared by all cases.
                    path.unlink()
                    shutil.copy2(self.worker.busybox, path)
                os.chown(path, owner, owner, follow_symlinks=False)
        os.chown(self.rootfs, owner, owner)

    def _write_config(self) -> None:
        config = self.case.config
        if isinstance(config, str):
            text = config
        else:
            roots: Mapping[str, Any] = {}
            if str(self.worker.machine_root) != "/":
                roots = _filled(self.settings.implementation.get("roots", {}), self.worker)
            text = bundle.to_toml(dict(_overlay(roots, config or {})))
        self.config_file.write_text(text)

    @property
    def config_file(self) -> Path:
        """Return where the configuration of this case lies."""
        return self.directory / "config.toml"

    def _write_bundle(self) -> None:
        spec = bundle.generate(
            self.case.container,
            hooks=self._hooks(),
            cgroup=self.cgroup,
            identities=self._identities(),
            devices=self.settings.lane != "rootless",
        )
        (self.bundle / "config.json").write_text(json.dumps(spec))

    def _identities(self) -> tuple[int, int] | None:
        if self.settings.lane == "userns":
            return FIRST_USER_NAMESPACE_ID, USER_NAMESPACE_SIZE
        if self.settings.lane == "rootless":
            return os.geteuid(), 1
        return None

    def _environment(self) -> dict[str, str]:
        variable = self.settings.implementation.get("config-variable", "")
        environment = {"PATH": ENGINE_PATH, **self.case.engine}
        if variable:
            environment[variable] = str(self.config_file)
        return environment

    def _hooks(self) -> list[dict[str, Any]]:
        hooks = []
        if self.settings.kernel_hook and (self.worker.machine_root / "proc/driver/nvidia").exists():
            inherited = {name: os.environ[name] for name in ("NVFAKES_ROOT", "PYTHONPATH") if name in os.environ}
            hooks.append(_hook(list(self.settings.kernel_hook), {"PATH": ENGINE_PATH, **inherited}))
        wrapper = ["/bin/sh", str(self.worker.wrapper), str(self.bundle), str(HOOK_SECONDS)]
        hooks.append(_hook([*wrapper, *self.worker.command(self.case.container.stage)], self._environment()))
        return hooks

    # -- running -------------------------------------------------------------------------------------------------------

    def _create(self) -> None:
        outcome = self.outcome
        outcome.created = self.worker.runtime.create(self.identifier, self.bundle)
        try:
            outcome.message = observe.read(self.bundle / "hook.stderr")
            code = observe.read(self.bundle / "hook.code").strip()
            outcome.code = int(code) if code else None
            if outcome.code is None:
                self._explain_no_hook()
            self._see_snapshots()
            if outcome.created.code == 0 and outcome.created.pid:
                self._look_inside(outcome.created.pid)
        finally:
            self.worker.runtime.delete(self.identifier)
            outcome.leftovers = _reap()

    def _explain_no_hook(self) -> None:
        created = self.outcome.created
        log = created.log.strip() if created else ""
        if "runtime-accepts-image" in self.case.needs:
            self.skipped = f"{self.worker.runtime.version()} refuses this image itself: {log[-200:]}"
        else:
            self.outcome.problems.append(f"suite: the injector was not started; the runtime says: {log}")

    def _see_snapshots(self) -> None:
        before, after = (observe.read(self.bundle / f"{when}.mountinfo") for when in ("before", "after"))
        mounts = observe.new_mounts(before, after, str(self.rootfs)) if before and after else {}
        self.outcome.seen.mounts = {target: f"{mount.flags} {mount.root}" for target, mount in mounts.items()}
        self.mount_details = mounts
        rules = [observe.read(self.bundle / f"{when}.devices").splitlines() for when in ("before", "after")]
        self.outcome.seen.rules = [rule for rule in rules[1] if rule not in rules[0]]

    def _look_inside(self, pid: int) -> None:
        root = Path(f"/proc/{pid}/root")
        seen = self.outcome.seen
        for target, mount in self.mount_details.items():
            seen.mounts[target] = f"{mount.flags} {self._source_of(root, target, mount)}"
        seen.nodes = observe.device_nodes(root)
        for path, lines in (self.case.expect.injected.contents if self.case.expect.injected else {}).items():
            text = observe.read(observe.resolve(root, path))
            self.outcome.problems += [f"content: {path} lacks {line!r}" for line in lines if line not in text]
        if seen.mounts.get("/proc/driver/nvidia", "").endswith("tmpfs"):
            self._look_at_proc(root)
        if self.worker.features.device_cgroup:
            self._look_at_rules(seen)
        self._run_inside(pid)

    def _source_of(self, root: Path, target: str, mount: observe.Mount) -> str:
        """Return the name of the machine's file that a mount shows, or what is shown instead."""
        if mount.kind == "tmpfs" and mount.root == "/" and not (root / target.lstrip("/")).is_file():
            return "tmpfs"
        name = target.rsplit("/", 1)[-1]
        with contextlib.suppress(OSError):
            shown = (root / target.lstrip("/")).stat()
            for source in self._possible_sources(target, name):
                with contextlib.suppress(OSError):
                    status = source.stat()
                    if (status.st_dev, status.st_ino) == (shown.st_dev, shown.st_ino):
                        return name
        return f"another file: {mount.root}"

    def _possible_sources(self, target: str, name: str) -> Iterator[Path]:
        root = self.worker.machine_root
        for folder in (target.rsplit("/", 1)[0], *self.settings.sets["source-directories"]):
            yield root / folder.lstrip("/").replace("<driver>", self.names["driver"]) / name

    def _look_at_proc(self, root: Path) -> None:
        params = observe.read(root / "proc/driver/nvidia/params")
        if params and "ModifyDeviceFiles: 0" not in params:
            self.outcome.problems.append("proc: params does not say ModifyDeviceFiles: 0")
        version = observe.read(root / "proc/driver/nvidia/version")
        if version != observe.read(self.worker.machine_root / "proc/driver/nvidia/version"):
            self.outcome.problems.append("proc: version is not the machine's")

    def _look_at_rules(self, seen: View) -> None:
        cgroup = self.worker.features.device_cgroup + self.cgroup
        nodes = observe.machine_nodes(self.worker.machine_root)
        paths = {name: self.worker.machine_root / "dev" / name for name in nodes}
        allowed = observe.reachable_nodes(cgroup, paths)
        text = {f"{major}:{minor}" for name, (major, minor, _) in nodes.items() if name in allowed}
        if not self.worker.features.device_rules_listed:
            seen.rules = [f"c {number} rw" for number in sorted(text)]
            return
        listed = {rule.split(" ")[1] for rule in seen.rules}
        numbers = {f"{major}:{minor}" for major, minor, _ in nodes.values()}
        if text != listed & numbers:
            wrong = ", ".join(sorted(text ^ (listed & numbers)))
            self.outcome.problems.append(f"device rules: opening {wrong} does not agree with the listed rules")

    def _run_inside(self, pid: int) -> None:
        self.worker.runtime.start(self.identifier)
        if not wait_for_end(pid, 10):
            self.outcome.problems.append("suite: the container's process does not end")
        output = observe.read(self.bundle / "output")
        environment = {line for line in output.splitlines() if "=" in line and not line.startswith("open:")}
        given = {bundle.CONTAINER_PATH, *self.case.container.env}
        extra = {line for line in environment - given if line.split("=")[0] not in {"HOME", "SHLVL", "PWD", "OLDPWD"}}
        extra = {line for line in extra if not any(line == entry.split("\n")[0] for entry in given)}
        if extra:
            self.outcome.problems.append(f"environment: the container has {', '.join(sorted(extra))} too much")
        self.opened = {
            line.split(":")[1]: line.split(":", 2)[2] for line in output.splitlines() if line.startswith("open:")
        }
        if self.settings.lane == "rootless" or not self.worker.features.device_cgroup:
            return
        allowed = {rule.split(" ")[1] for rule in self.outcome.seen.rules}
        for path, text in self.outcome.seen.nodes.items():
            answer = self.opened.get(path, "")
            if answer and ("not permitted" in answer) == (text.split(" ")[0] in allowed):
                self.outcome.problems.append(f"nodes: opening {path} inside says {answer!r} against the device rules")

    def _call(self) -> None:
        call = self.case.call
        assert call is not None
        sleeper = subprocess.Popen([str(self.worker.busybox), "sleep", "60"])
        dead = subprocess.Popen([str(self.worker.busybox), "true"])
        dead.wait()
        self._damage_bundle()
        self.names |= {"pid": str(sleeper.pid), "dead": str(dead.pid)}
        stdin = str(_substituted(call.stdin, self.names))
        user = self.settings.ordinary_user if call.bundle == "closed" else None
        process = subprocess.Popen(
            self.worker.command("prestart"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self._environment(),
            cwd=self.directory,
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=[] if user is not None else None,
        )
        try:
            _, message = process.communicate(stdin.encode(), timeout=HOOK_SECONDS)
            self.outcome.message = message.decode(errors="replace")
            self.outcome.code = process.returncode
        except subprocess.TimeoutExpired:
            wait_or_kill(process, 0)
            self.outcome.problems.append(f"time: the injector did not end within {HOOK_SECONDS} s")
        finally:
            sleeper.kill()
            sleeper.wait()
            self._repair_bundle()
            self.outcome.leftovers = _reap()

    def _damage_bundle(self) -> None:
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

    def _repair_bundle(self) -> None:
        if (self.directory / "elsewhere").exists():
            (self.directory / "elsewhere").rename(self.bundle)

    # -- judging -------------------------------------------------------------------------------------------------------

    def _host(self) -> dict[str, Any]:
        watched = [
            self.worker.machine_root / "dev",
            *(Path(path) for path in ("/etc/ld.so.cache", "/etc/ld.so.conf.d")),
        ]
        watched += [self.worker.machine_root / "proc/driver", self.worker.machine_root / "run"]
        return {
            "mounts": observe.own_mounts(),
            "descriptors": observe.own_descriptors(),
            "outside": observe.tree(self.outside),
            "machine": {str(path): _picture(path) for path in watched if str(path) not in {"/dev", "/run"}},
            "nodes": {name: str(number) for name, number in observe.machine_nodes(self.worker.machine_root).items()},
        }

    def _judge_host(self, before: Mapping[str, Any]) -> list[str]:
        after = self._host()
        lines = []
        for what in ("mounts", "descriptors"):
            lines += judge.compare_lists(f"host {what}", before[what], after[what])
        for what in ("outside", "nodes", "machine"):
            if before[what] != after[what]:
                different = [
                    key for key in {**before[what], **after[what]} if before[what].get(key) != after[what].get(key)
                ]
                lines.append(f"host: {what} changed: {', '.join(different)}")
        return [*lines, *(f"host: process left behind: {text}" for text in self.outcome.leftovers)]

    def _see_links(self) -> None:
        self.outcome.seen.links = {
            path: text.removeprefix("link ") for path, text in self.outcome.changes.items() if text.startswith("link ")
        }

    def _judge(self, cache_before: list[str]) -> list[str]:
        if self.skipped:
            return []
        expect = self._expect()
        if expect.refused is not None:
            return self._judge_refusal(expect.refused)
        differences = [] if self.outcome.code == 0 else [f"exit: the injector exits {self.outcome.code}, expected 0"]
        if self.outcome.created is not None and self.outcome.created.code != 0:
            differences.append(
                f"create: {self.worker.runtime.name} exits {self.outcome.created.code}: {self.outcome.message}"
            )
        if differences:
            return [*differences, *self._judge_nothing()] if expect.untouched else [*differences, self.outcome.message]
        words = expect.injected.says if expect.injected is not None else expect.says
        differences += judge.judge_warnings(words, self.outcome.message)
        if expect.untouched:
            return [*differences, *self._judge_nothing()]
        return [*differences, *self._judge_injection(expect.injected or Injected(), cache_before)]

    def _judge_injection(self, injected: Injected, cache_before: list[str]) -> list[str]:
        nodes = observe.machine_nodes(self.worker.machine_root)
        rootless = self.settings.lane == "rootless"
        expander = Expander(self.case, injected, self.settings.sets, nodes, real_numbers=not rootless)
        self.expected = expander.expand()
        rules = not rootless and bool(self.worker.features.device_cgroup)
        differences = judge.compare_views(self.expected, self.outcome.seen, rules=rules)
        files = [*injected.also.files, *([expander.cache_file] if self.expected.cache else [])]
        differences += judge.unexplained_changes(self.outcome.changes, self.expected, files)
        now = observe.loader_cache(observe.resolve(self.rootfs, "/etc/ld.so.cache"))
        if not judge.keeps_order(cache_before, now):
            differences.append("loader cache: entries that were there are gone or in another order")
        for soname, path in injected.cache_first.items():
            first = next((line for line in now if line.split(" ")[0] == soname), "nothing")
            if not first.endswith(f" {path}"):
                differences.append(f"loader cache: {soname} is found as {first}, expected {path}")
        return differences

    def _judge_nothing(self) -> list[str]:
        seen = self.outcome.seen
        lines = judge.compare_views(View(), seen, rules=self.settings.lane != "rootless")
        lines += [f"root file system: {path} changed to {text}" for path, text in sorted(self.outcome.changes.items())]
        return lines

    def _judge_refusal(self, refused: Refused) -> list[str]:
        implementation = self.settings.implementation
        differences = []
        if self.outcome.created is not None and self.outcome.created.code == 0:
            differences.append("create: the container exists, expected a refusal")
        wanted = implementation.get("exit-codes", {}).get(refused.kind)
        if self.outcome.code == 0 or (wanted is not None and self.outcome.code != wanted):
            differences.append(f"exit: the injector exits {self.outcome.code}, expected {wanted or 'a failure'}")
        message = implementation.get("message", {})
        differences += judge.judge_message(
            refused, self.outcome.message, prefix=message.get("prefix", ""), lines=message.get("lines", 0)
        )
        return [*differences, *self._judge_nothing()]

    def clean(self) -> None:
        """Remove everything that the case made."""
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.rootfs)], check=False, capture_output=True, timeout=20)
        for directory in Path("/sys/fs/cgroup").glob(f"*{self.cgroup}"):
            with contextlib.suppress(OSError):
                directory.rmdir()
        shutil.rmtree(self.directory, ignore_errors=True)


def _substituted(value: Any, names: Mapping[str, str]) -> Any:
    """Return a value with `${name}` replaced in all its texts, also in keys."""
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace(f"${{{name}}}", text)
        return value
    if isinstance(value, Mapping):
        return {_substituted(key, names): _substituted(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_substituted(item, names) for item in value]
    return value


def _hook(command: list[str], environment: Mapping[str, str]) -> dict[str, Any]:
    return {
        "path": command[0],
        "args": command,
        "env": [f"{name}={value}" for name, value in environment.items()],
        "timeout": HOOK_SECONDS + 10,
    }


def _checked(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)


def _fill_up(directory: Path) -> None:
    """Use up the blocks and then the inodes of a file system."""
    with contextlib.suppress(OSError), (directory / ".fill").open("wb") as stream:
        while True:
            stream.write(b"\0" * 65536)
            stream.flush()
    with contextlib.suppress(OSError):
        for number in range(1_000_000):
            (directory / f".fill{number}").touch()


def _overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = _overlay(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def _filled(table: Mapping[str, Any], worker: Worker) -> dict[str, Any]:
    return {
        key: _filled(value, worker) if isinstance(value, Mapping) else worker._fill(str(value))  # noqa: SLF001
        for key, value in table.items()
    }


def _picture(path: Path) -> Any:
    return observe.tree(path) if path.is_dir() else observe.describe(path)


def _reap() -> list[str]:
    """Collect ended orphans; return what still runs as our child: something that an injector left behind."""
    deadline = time.monotonic() + 1
    left: list[str] = []
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = observe.children_of(os.getpid())
        if not left:
            break
        time.sleep(0.01)
    return left


def main() -> int:
    """Answer requests until standard input ends."""
    # The protocol keeps its own descriptor: whatever a child prints must not get into it.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    try:
        worker = Worker(Settings(**settings))
    except Exception as error:  # noqa: BLE001 - told to the session, which knows what to do
        answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        answers.flush()
        return 1
    answers.write(json.dumps({"ready": worker.features.as_mapping(), "runtime": worker.runtime.version()}) + "\n")
    answers.flush()
    for line in sys.stdin:
        case = build(Case, json.loads(line))
        answers.write(json.dumps(worker.run(case)) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
