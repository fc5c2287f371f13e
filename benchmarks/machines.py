"""Machines that are up for a benchmark, each with a worker in it, started when it is first needed.

Belongs here: starting, asking, ending. Does not belong here: what a worker does (worker.py).
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class WorkerError(Exception):
    """A machine or the worker in it failed; the text has its last words."""


class Machines:
    """Workers by the name of their machine."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Keep the settings for the workers to come."""
        self.settings = settings
        self._running: dict[str, subprocess.Popen[str]] = {}

    def ask(self, action: str, case: dict[str, Any]) -> dict[str, Any]:
        """Have the worker on the case's machine do something, and return its answer; raises WorkerError."""
        process = self._running.get(case["machine"]) or self._start(case["machine"])
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"action": action, "case": case}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise WorkerError(f"the worker on {case['machine']} ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{case['name']} on {case['machine']}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End all workers, and with them their machines."""
        for process in self._running.values():
            assert process.stdin is not None
            process.stdin.close()
        for process in self._running.values():
            process.wait()
        self._running = {}

    def _start(self, machine: str) -> subprocess.Popen[str]:
        # The lane root alone has real paths and device numbers, which is what a container start meets.
        command = [sys.executable, "-m", "nvfakes", "run", machine, "--lane", "root", "--"]
        process = subprocess.Popen(
            [*command, sys.executable, "-m", "benchmarks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(self.settings) + "\n")
        process.stdin.flush()
        self._running[machine] = process
        return process
