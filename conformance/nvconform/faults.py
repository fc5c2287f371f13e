"""Letting each system call of an injector fail once, and seeing that the container is whole or untouched.

Belongs here: which errors a call can plausibly give, the runs, and the verdict about each. Does not belong here:
tracing (tracing.py), the container (tracingcontainer.py). Runs inside a fake machine: `nvfakes run two-h100 -- python
-m nvconform.faults --target hook`. Prints one JSON document.
"""

import argparse
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from nvconform import implementations, tracing
from nvconform.stage import Stage
from nvconform.tracing import Call, Outcome
from nvconform.tracingcontainer import ASKING, Bench, Held, Picture
from nvconform.tracingpaths import CALLS, MOUNTING

RUN_SECONDS = 20.0
# What cannot fail, or only in a process that is broken beyond telling.
NEVER = frozenset(
    {
        # Its error is an answer, and another folder is as good.
        "access",
        "arch_prctl",
        "clock_gettime",
        "clock_nanosleep",
        "exit",
        "exit_group",
        "futex",
        "getegid",
        "geteuid",
        "getgid",
        "getgroups",
        "getpid",
        "getppid",
        "gettid",
        "getuid",
        "prctl",
        "prlimit64",
        "rseq",
        "rt_sigaction",
        "rt_sigprocmask",
        "rt_sigreturn",
        "sched_getaffinity",
        "set_robust_list",
        "set_tid_address",
        "sysinfo",
        "umask",
        "uname",
        "wait4",
        "waitid",
    }
)
_FILE = ("EIO", "ENOMEM")
_WRITE = ("EIO", "ENOSPC", "EPERM")
_MOUNT = ("ENOMEM", "ENOSPC", "EPERM")
ERRORS: dict[str, tuple[str, ...]] = {
    "brk": ("ENOMEM",),
    "chdir": _FILE,
    "clone": ("EAGAIN", "ENOMEM", "EPERM"),
    "clone3": ("EAGAIN", "ENOMEM", "EPERM"),
    "close": ("EINTR", "EIO"),
    "close_range": ("EINTR", "ENOMEM"),
    "dup": ("EMFILE",),
    "dup2": ("EMFILE", "EINTR"),
    "dup3": ("EMFILE", "EINTR"),
    "execve": ("EIO", "ENOMEM"),
    "fchdir": ("EIO", "ENOMEM"),
    "fchmod": _WRITE,
    "fchown": _WRITE,
    "fchownat": _WRITE,
    "fcntl": ("EMFILE",),
    "flock": ("EINTR", "ENOLCK"),
    "fork": ("EAGAIN", "ENOMEM"),
    "fsync": ("EINTR", "EIO", "ENOSPC"),
    "ftruncate": ("EINTR", "EIO", "EPERM"),
    "getdents64": ("EIO", "ENOMEM"),
    "getrandom": ("EINTR",),
    "ioctl": ("EIO",),
    "linkat": _WRITE,
    "lseek": ("EIO",),
    "madvise": ("ENOMEM",),
    "mkdir": _WRITE,
    "mkdirat": _WRITE,
    "mmap": ("ENOMEM",),
    "mprotect": ("ENOMEM",),
    "mremap": ("ENOMEM",),
    "munmap": ("ENOMEM",),
    "open": ("EIO", "EMFILE", "ENOMEM", "EPERM"),
    "openat": ("EINTR", "EIO", "EMFILE", "ENOMEM", "EPERM"),
    "openat2": ("EINTR", "EIO", "EMFILE", "ENOMEM", "EPERM"),
    "pipe2": ("EMFILE", "ENOMEM"),
    "poll": ("EINTR", "ENOMEM"),
    "pread64": ("EINTR", "EIO"),
    "pwrite64": ("EINTR", "EIO", "ENOSPC"),
    "read": ("EINTR", "EIO"),
    "rename": _WRITE,
    "renameat": _WRITE,
    "renameat2": _WRITE,
    "rmdir": _WRITE,
    "setns": ("ENOMEM", "EPERM"),
    "symlink": _WRITE,
    "symlinkat": _WRITE,
    "unlink": _WRITE,
    "unlinkat": _WRITE,
    "write": ("EINTR", "EIO", "ENOSPC"),
    **dict.fromkeys((*MOUNTING, "fsopen", "fsconfig", "fsmount"), _MOUNT),
}
OTHERS = _FILE
# An image whose CUDA libraries are newer than the driver: enable-cuda-compat has something to do.
COMPAT_LIBRARY = {"/usr/local/cuda/compat/libcuda.so.575.57.08": "libcuda.so.1"}
COMPAT_LINK = {"/usr/local/cuda/compat/libcuda.so.1": "libcuda.so.575.57.08"}
MEMORY = frozenset({"brk", "mmap", "mprotect", "mremap", "munmap"})
# Numbers and names that differ between calls of one kind: a sample takes one call of each kind.
RANDOM = re.compile(r"(?<=\.nvinject-)[0-9a-f]+|(?<=/proc/)\d+|(?<=nvconform-)\d+")
IDENTITY = re.compile(r"\b\d{2,}\b")
VARYING = re.compile(r"[0-9a-f]{2,}|\d+|lib[\w.+-]*\.so[\w.]*")


@dataclass(frozen=True)
class Fault:
    """One call to fail: which it is, and how it fails.

    A call is known by its process (in order of birth), name, paths, and how many such calls there were before: numbers
    would shift with every line that a file of the host has more.
    """

    process: int
    name: str
    about: str
    occurrence: int
    error: str

    def describe(self) -> str:
        """Return the fault in one line."""
        return f"{self.error} for {self.name}({self.about}) #{self.occurrence} of process {self.process}"


@dataclass
class Report:
    """What came of all runs."""

    target: str
    calls: int = 0
    possible: int = 0
    runs: int = 0
    injected: int = 0
    refused: int = 0
    crashed: int = 0
    missed: int = 0
    seconds: float = 0
    problems: list[str] = field(default_factory=list)
    messages: dict[str, int] = field(default_factory=dict)


def errors_of(name: str) -> tuple[str, ...]:
    """Return the errors that a call is to fail with."""
    return () if name in NEVER else ERRORS.get(name, OTHERS)


class Recorder:
    """Notes the calls of a run from the moment on when the injector's own code works."""

    def __init__(self, begins: str) -> None:
        """Begin with nothing; `begins` is the text of the call at which it begins: the start-up before is Python's."""
        self.calls: list[tuple[int, str, str, int]] = []
        self._count: Counter[tuple[int, str, str]] = Counter()
        self._begins = begins
        self.begun = False

    def entry(self, call: Call) -> None:
        """Note a call."""
        about = about_call(call)
        self.begun = self.begun or self._begins in f"{call.name} {about}"
        key = call.process, call.name, about
        if self.begun:
            self.calls.append((*key, self._count[key]))
        self._count[key] += 1


def about_call(call: Call) -> str:
    """Return the paths of a call, which say what it is for, without what differs from run to run."""
    words = [call.word(argument.text) or "" for argument in CALLS.get(call.name, ())]
    return RANDOM.sub("*", ", ".join(word for word in words if word))


def faults_of(calls: Sequence[tuple[int, str, str, int]]) -> list[Fault]:
    """Return every fault that the calls of a run can have."""
    return [
        Fault(process, name, about, occurrence, error)
        for process, name, about, occurrence in calls
        for error in errors_of(name)
    ]


def sample(faults: Sequence[Fault]) -> list[Fault]:
    """Return the first fault of each kind: process, call, paths with numbers and libraries left out, error."""
    chosen: dict[tuple[Any, ...], Fault] = {}
    for fault in faults:
        about = VARYING.sub("*", fault.about)
        chosen.setdefault((fault.process, fault.name, about, fault.error), fault)
    return list(chosen.values())


class Failing:
    """Lets one call fail."""

    def __init__(self, fault: Fault) -> None:
        """Take the fault."""
        self.fault = fault
        self.done = False
        self._seen = 0

    def entry(self, call: Call) -> int | None:
        """Return the error number when the call is the one."""
        fault = self.fault
        if self.done or (call.process, call.name) != (fault.process, fault.name) or about_call(call) != fault.about:
            return None
        self._seen += 1
        if self._seen <= fault.occurrence:
            return None
        self.done = True
        return int(getattr(errno, fault.error))


def judge_words(outcome: Outcome, fault: Fault) -> list[str]:
    """Return what is wrong with the end of a run, whatever came of the container.

    Without memory the C library or Python may crash before anything of the injector's runs again: then it is enough
    that nothing was changed.
    """
    if outcome.code is None:
        how = f"is killed by signal {outcome.signal}" if outcome.signal else "hangs"
        if outcome.signal and fault.name in MEMORY:
            return []
        return [f"{how}: {outcome.message.strip()[-200:]!r}"]
    problems = [f"leaves a process: {left}" for left in outcome.left]
    text = outcome.message.strip()
    if "Traceback" in text:
        problems.append(f"shows a traceback: {text[-300:]!r}")
    if outcome.code and not any(line.startswith("nvinject: ") and len(line) > 20 for line in text.splitlines()):
        problems.append(f"says nothing of use: {text[-200:]!r}")
    if outcome.code == 70 or "this is a fault of nvinject" in text or "internal error" in text:
        problems.append(f"takes it for a mistake of its own: {text[-300:]!r}")
    return problems


class HookRuns:
    """The prestart hook, on one container as long as that stays untouched."""

    # Closing inherited descriptors is what the launcher does before anything of ours is loaded.
    begins = "/proc/self/fd"

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
        from nvconform import observe

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


def run_all(
    target: str,
    *,
    everything: bool,
    part: tuple[int, int],
    only: str = "",
    limit: int = 0,
    runtime: str = "runc",
    cgroup: str = "host",
) -> Report:
    """Do all runs of a target; `part` is (which, of how many)."""
    kind, adapter = TARGETS[target]
    begin = time.monotonic()
    tracing.restrict_to_one_processor(part[0])
    bench = Bench(runtime, implementations.load(adapter).document, cgroup)
    report = Report(target)
    try:
        runs = kind(bench)
        calls = runs.reference().calls
        faults = faults_of(calls)
        report.calls, report.possible = len(calls), len(faults)
        chosen = faults if everything else sample(faults)
        chosen = [fault for fault in chosen if only in fault.describe()]
        for fault in _limited(chosen[part[0] :: part[1]], limit):
            _one(runs, fault, report)
        runs.drop()
    finally:
        bench.close()
    report.seconds = round(time.monotonic() - begin, 1)
    return report


def _limited(faults: list[Fault], limit: int) -> Iterator[Fault]:
    step = max(1, -(-len(faults) // limit)) if limit else 1
    yield from faults[::step]


def _one(runs: HookRuns | ShimRuns, fault: Fault, report: Report) -> None:
    outcome, happened, problems = runs.try_fault(fault)
    report.runs += 1
    if not happened:
        report.missed += 1
    elif outcome.code is None:
        report.crashed += 1
    elif outcome.code == 0:
        report.injected += 1
    else:
        report.refused += 1
        first = outcome.message.strip().splitlines()[:1]
        text = VARYING.sub("*", first[0] if first else "")
        report.messages[text] = report.messages.get(text, 0) + 1
    report.problems += [f"{fault.describe()}: {problem}" for problem in problems]


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(prog="python -m nvconform.faults", description=__doc__.split("\n")[0])
    options.add_argument("--target", choices=sorted(TARGETS), default="hook", help="whose calls fail")
    options.add_argument("--faults", choices=("sample", "all"), default="sample", help="one of each kind, or every one")
    options.add_argument("--part", default="0/1", metavar="I/N", help="every Nth fault, from the Ith on")
    options.add_argument("--only", default="", metavar="TEXT", help="faults whose description contains this")
    options.add_argument("--runtime", choices=("runc", "crun"), default="runc", help="who makes the container")
    options.add_argument(
        "--cgroup", choices=("host", "v2"), default="host", help="cgroups as they are here, or v2 alone"
    )
    options.add_argument("--limit", type=int, default=0, metavar="N", help="at most N of them, spread evenly")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print the report."""
    chosen = parser().parse_args(arguments)
    which, _, count = chosen.part.partition("/")
    report = run_all(
        chosen.target,
        everything=chosen.faults == "all",
        part=(int(which), int(count)),
        only=chosen.only,
        limit=chosen.limit,
        runtime=chosen.runtime,
        cgroup=chosen.cgroup,
    )
    sys.stdout.write(json.dumps(asdict(report), indent=1) + "\n")
    return 1 if report.problems else 0


def merge(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum of the reports of several parts."""
    total: dict[str, Any] = {"problems": [], "messages": {}}
    for report in reports:
        for name in ("runs", "injected", "refused", "crashed", "missed"):
            total[name] = total.get(name, 0) + report[name]
        total |= {name: report[name] for name in ("target", "calls", "possible")}
        total["seconds"] = max(total.get("seconds", 0), report["seconds"])
        total["problems"] += report["problems"]
        for text, count in report["messages"].items():
            total["messages"][text] = total["messages"].get(text, 0) + count
    return total


if __name__ == "__main__":
    sys.exit(main())
