"""The worker: sits inside one fake machine and runs one case at a time, when it is asked to.

Belongs here: images, containers and the one timed run. Does not belong here: which case comes when (run.py). Speaks one
JSON document a line on standard input and output; the first one it gets are its settings.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from benchmarks import scene, timing
from nvfakes import kernel

MEBIBYTES = 2048
PRIORITY = 5  # of SCHED_FIFO
WITHOUT_CONTAINER = ("floor", "cdi")
CPU_CGROUP = Path("/sys/fs/cgroup/cpu/nvbench")  # above those of the containers
ENGINE_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class Worker:
    """Runs cases on the machine that it finds itself on."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Take the settings and make a working directory in memory."""
        self.settings = settings
        self.has_priority = False
        if settings["priority"]:
            # Everything that is started from here on runs before other work of the machine, one process at a time.
            with contextlib.suppress(PermissionError):
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
                self.has_priority = True
        if self.has_priority:
            prefer_ordinary_processes()
        self.work = Path(tempfile.mkdtemp(prefix="nvbench-"))
        kernel.mount("tmpfs", str(self.work), "tmpfs", 0, f"mode=0755,size={MEBIBYTES}m")
        self.images: dict[tuple[int, str], Path] = {}
        self.count = 0

    def close(self) -> None:
        """Take the working directory away."""
        scene.unmount(self.work)
        self.work.rmdir()

    def image(self, case: dict[str, Any]) -> Path:
        """Return the directory of the case's image, built once."""
        key = (int(case["image"]["libraries"]), str(case["image"]["cache"]))
        if key not in self.images:
            self.images[key] = self.work / f"image-{key[0]}-{key[1]}"
            scene.build_image(self.images[key], *key)
        return self.images[key]

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked: make the image of a case, time a run of it, or measure its memory."""
        action, case = request["action"], request["case"]
        if action == "prepare":
            if case["group"] not in WITHOUT_CONTAINER:
                self.image(case)
            return {}
        if case["group"] in WITHOUT_CONTAINER:
            return self._measure(case, action, self.command(case), None)
        self.count += 1
        directory, name = self.work / f"run{self.count}", f"nvbench-{os.getpid()}-{self.count}"
        if case["group"] == "hook":
            place = scene.Scene(directory, self.image(case), case, name)
            try:
                return self._measure(case, action, self.command(case), place.state)
            finally:
                place.close()
        bundle = scene.Bundle(directory, self.image(case), case, name)
        try:
            return self._run_runtime(action, case, bundle)
        finally:
            bundle.close()

    def command(self, case: dict[str, Any]) -> list[str]:
        """Return the command line of a case, up to what depends on its container."""
        if case["group"] == "floor":
            return [self.settings["interpreter"], "-IS", "-c", "pass"]
        words = list(self.settings["commands"][case["implementation"] or case["group"]])
        return [*words, "-config", self.settings["config"]] if case["config"] else words

    def _run_runtime(self, action: str, case: dict[str, Any], bundle: scene.Bundle) -> dict[str, Any]:
        """Create a container, or call the runtime about one that is there; take it away again."""
        state = ["--root", str(self.work / "runtime")]
        create = [*state, "create", "--bundle", str(bundle.bundle), bundle.name]
        runtime = str(self.settings["runtime"])
        # A process of SCHED_FIFO may not enter a cgroup of the cpu controller, where runc puts the container.
        usual = ["/usr/bin/chrt", "-o", "0"] if self.has_priority else []
        try:
            if case["group"] == "create":
                return self._measure(case, action, [*usual, *self.command(case), *create], None)
            subprocess.run([*usual, runtime, *create], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            return self._measure(case, action, [*usual, *self.command(case), *state, "state", bundle.name], None)
        finally:
            # By the shim, which also removes what it has generated.
            shim = [*self.settings["commands"]["call"], *state, "delete", "--force", bundle.name]
            path = {"PATH": f"{self.settings['prefix']}:{ENGINE_PATH}"}
            subprocess.run(shim, check=False, env=path, stderr=subprocess.DEVNULL)

    def _measure(self, case: dict[str, Any], action: str, command: list[str], stdin: Path | None) -> dict[str, Any]:
        errors = self.work / "errors"
        # Engines give runtimes their own environment, and hooks none.
        bare = case["group"] in {"floor", "hook"} and not case["implementation"]
        environment = {} if bare else {"PATH": f"{self.settings['prefix']}:{ENGINE_PATH}"}
        if action == "memory":
            interpreter = self.settings["interpreter"]
            return {"kibibytes": timing.peak_memory(interpreter, command, stdin=stdin, environment=environment)}
        timed = timing.run(command, stdin=stdin, errors=errors, environment=environment)
        message = errors.read_text(errors="replace").strip() if timed.code else ""
        return {
            "milliseconds": timed.milliseconds,
            "processor": timed.processor,
            "code": timed.code,
            "message": message,
        }


def prefer_ordinary_processes() -> None:
    """Let processes of ordinary scheduling, as runtimes and containers have to be, run before those of others too.

    Niceness counts within a session's group (sched(7), autogroup) and within a cgroup: all three have to be set.
    """
    with contextlib.suppress(PermissionError):  # a leader of its session is in a group of its own already
        os.setsid()
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("-20")
    with contextlib.suppress(OSError):
        CPU_CGROUP.mkdir(exist_ok=True)
        (CPU_CGROUP / "cpu.shares").write_text(str(1 << 18))


def main() -> int:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker(json.loads(sys.stdin.readline()))
    try:
        for line in sys.stdin:
            try:
                answer = worker.answer(json.loads(line))
            except Exception:  # noqa: BLE001 - told to the harness, which ends the run with it
                answer = {"error": traceback.format_exc()}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
