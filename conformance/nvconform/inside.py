"""A look into a created container from outside, and from inside by letting its process run.

Belongs here: filling in the view of what a container got, and the laws about single things in it (the driver's procfs,
the environment, agreement of rules and nodes). Does not belong here: comparing the view with an expectation (judge.py).
"""

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from nvconform import observe
from nvconform.expect import PROC, View
from nvconform.runtimes import wait_for_end
from nvconform.stage import Stage

END_SECONDS = 10.0
# Prints `GPU soft hard` in MiB for each GPU that has limits for a cgroup; a hard limit of 0 is none.
READ_LIMITS = """
import sys, pynvml as n
n.nvmlInit()
for index in range(n.nvmlDeviceGetCount()):
    found = n.c_nvmlGetMemoryLimits_v1_t(nameSpace=sys.argv[1].encode())
    try:
        n.nvmlDeviceGetMemoryLimits_v1(n.nvmlDeviceGetHandleByIndex(index), found)
    except n.NVMLError:
        continue
    hard = 0 if found.hardLimit == n.NVML_DEVICE_MEMORY_LIMIT_MAX else found.hardLimit
    print(index, found.softLimit >> 20, hard >> 20)
"""
# What the probe's shell sets by itself.
SHELL_VARIABLES = frozenset({"HOME", "SHLVL", "PWD", "OLDPWD"})


class Inside:
    """Observes one container; `problems` collects broken laws."""

    def __init__(self, stage: Stage, origins: Mapping[str, str]) -> None:
        """Take the stage and, for targets that links of the image move, the path that an injector asked for."""
        self.stage = stage
        self.setup = stage.setup
        self.origins = origins
        self.seen = View()
        self.problems: list[str] = []
        self.mounts: dict[str, observe.Mount] = {}

    def read_snapshots(self) -> None:
        """Take mounts and device rules from the wrapper's snapshots around the injector."""
        before, after = (self.stage.report(f"{when}.mountinfo") for when in ("before", "after"))
        if before and after:
            self.mounts = observe.new_mounts(before, after, str(self.stage.container_rootfs))
        self.seen.mounts = {target: f"{mount.flags} {mount.root}" for target, mount in self.mounts.items()}
        rules = [self.stage.report(f"{when}.devices").splitlines() for when in ("before", "after")]
        self.seen.rules = [rule for rule in rules[1] if rule not in rules[0]]

    def look(self, pid: int, contents: Mapping[str, tuple[str, ...]]) -> None:
        """Look at the container of a process that has not started its program yet, then let it start."""
        root = Path(f"/proc/{pid}/root")
        for target, mount in self.mounts.items():
            self.seen.mounts[target] = f"{mount.flags} {self._name_source(root, target, mount)}"
        self.seen.nodes = observe.device_nodes(root)
        for path, lines in contents.items():
            text = observe.read(observe.resolve(root, path))
            self.problems += [f"content: {path} lacks {line!r}: {text[:200]!r}" for line in lines if line not in text]
        if PROC in self.seen.mounts:
            self._look_at_proc(root)
        if self.setup.features.device_cgroup:
            self._look_at_rules()
        self._run(pid)

    def _name_source(self, root: Path, target: str, mount: observe.Mount) -> str:
        """Return the name of the machine's file that a mount shows, or what is shown instead."""
        shown = root / target.lstrip("/")
        with contextlib.suppress(OSError):
            if mount.kind == "tmpfs" and mount.root == "/" and shown.is_dir():
                return "tmpfs"
            status = shown.stat()
            for source in self._possible_sources(self.origins.get(target, target)):
                with contextlib.suppress(OSError):
                    candidate = source.stat()
                    if (candidate.st_dev, candidate.st_ino) == (status.st_dev, status.st_ino):
                        return source.name
        return f"another file: {mount.root}"

    def _possible_sources(self, path: str) -> Iterator[Path]:
        folder, _, name = path.rpartition("/")
        if self.stage.driver_root is not None:
            yield from self.stage.driver_root.named(name)
            if not path.startswith(("/dev/", "/proc/")):
                return
        for place in (folder, *self.stage.facts.get("places", ()), *self.setup.sets["source-directories"]):
            inside = place.replace("<driver>", self.stage.names["driver"]).lstrip("/")
            yield self.setup.machine_root / inside / name

    def look_at_memory(self, expected: Mapping[str, str]) -> None:
        """Compare the limits of GPU memory that the driver has for the container's cgroup, by GPU in MiB."""
        command = [self.setup.settings.python, "-c", READ_LIMITS, f"{observe.UNIFIED}{self.stage.cgroup}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        found = dict(line.split(" ", 1) for line in done.stdout.splitlines() if not line.endswith(" 0 0"))
        if found != dict(expected) or done.returncode:
            self.problems.append(f"memory: limits are {found}, expected {dict(expected)} {done.stderr[-300:]}")

    def _look_at_proc(self, root: Path) -> None:
        params = observe.read(root / "proc/driver/nvidia/params")
        if params and "ModifyDeviceFiles: 0" not in params:
            self.problems.append("proc: params does not say ModifyDeviceFiles: 0")
        version = observe.read(root / "proc/driver/nvidia/version")
        if version != observe.read(self.setup.machine_root / "proc/driver/nvidia/version"):
            self.problems.append("proc: version is not the machine's")

    def _look_at_rules(self) -> None:
        features = self.setup.features
        nodes = observe.machine_nodes(self.stage.device_root)
        paths = {name: self.stage.device_root / "dev" / name for name in nodes}
        reachable = observe.reachable_nodes(features.device_cgroup + self.stage.cgroup, paths)
        numbers = {name: f"{major}:{minor}" for name, (major, minor, _) in nodes.items()}
        opened = {numbers[name] for name in reachable}
        if not features.device_rules_listed:
            self.seen.rules = [
                f"c {number} rw" for number in sorted(opened | self._other_opened(set(numbers.values())))
            ]
            return
        listed = {rule.split(" ")[1] for rule in self.seen.rules} & set(numbers.values())
        if opened != listed:
            wrong = ", ".join(sorted(opened ^ listed))
            self.problems.append(f"device rules: opening {wrong} contradicts the listed rules")

    def _other_opened(self, known: set[str]) -> set[str]:
        """Return the numbers of the container's other nodes that its processes may open: those that draw."""
        others = {path: text.split(" ")[0] for path, text in self.seen.nodes.items()}
        paths = {
            number: self.setup.machine_root / path.lstrip("/") for path, number in others.items() if number not in known
        }
        return set(observe.reachable_nodes(self.setup.features.device_cgroup + self.stage.cgroup, paths))

    def _run(self, pid: int) -> None:
        self.setup.runtime.start(self.stage.identifier)
        if not wait_for_end(pid, END_SECONDS):
            self.problems.append("suite: the container's process does not end")
        lines = self.stage.report("output").splitlines()
        self._judge_environment([line for line in lines if not line.startswith("open:")])
        answers = {line.split(":")[1]: line.split(":", 2)[2] for line in lines if line.startswith("open:")}
        if not self.setup.features.device_cgroup:
            return
        allowed = {rule.split(" ")[1] for rule in self.seen.rules}
        for path, text in self.seen.nodes.items():
            answer = answers.get(path, "")
            if answer and ("not permitted" in answer) == (text.split(" ")[0] in allowed):
                self.problems.append(f"nodes: opening {path} inside says {answer!r} against the device rules")

    def _judge_environment(self, lines: list[str]) -> None:
        given = {entry.partition("\n")[0] for entry in (*self.stage.surroundings, *self.stage.case.container.env)}
        injected = self.stage.case.expect.injected
        if injected is not None and self.setup.kind != "hook":
            self.problems += [
                f"environment: {entry} is missing" for entry in injected.environment if entry not in lines
            ]
            given |= set(injected.environment)
        # A shell that finds no search path sets its own.
        own = SHELL_VARIABLES if any(entry.startswith("PATH=") for entry in given) else {*SHELL_VARIABLES, "PATH"}
        extra = {line for line in lines if "=" in line and line.split("=")[0] not in own} - given
        if extra:
            self.problems.append(f"environment: the container has {', '.join(sorted(extra))} too much")
