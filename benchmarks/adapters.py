"""Other implementations, named by the same files as in the conformance suite.

Belongs here: from an adapter file to a command line and the cases that it takes part in. Does not belong here: the form
of the files (nvconform.implementations).
"""

import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from benchmarks.cases import MAIN, Case
from nvconform import implementations


def find_program(name: str, implementation: str) -> str:
    """Return the path of an implementation's program; ends the run with a line where it is not there."""
    path = shutil.which(name)
    if path is None:
        raise SystemExit(f"benchmarks: {implementation} cannot be measured: {name} is not on PATH; install it")
    return path


class Adapter:
    """An implementation, installed below a directory of its own."""

    def __init__(self, name: str, directory: Path, python: str) -> None:
        """Install it; `name` is that of an adapter or the path of its file."""
        self.document = implementations.load(name).document
        self.name = str(self.document["name"])
        self.is_runtime = self.document.get("kind") == "runtime"
        self._known = {"python": python, "prefix": str(directory / self.name), "root": "", "stage": "prestart"}
        self._known["runtime"] = "runc"
        if "install" in self.document:
            subprocess.run(self._fill(self.document["install"]), check=True, timeout=120, stdout=subprocess.DEVNULL)
        self.command = self._fill(self.document["command"])
        self.command[0] = find_program(self.command[0], self.name)

    def _fill(self, words: Iterable[str]) -> list[str]:
        filled = []
        for word in words:
            for name, value in self._known.items():
                word = word.replace(f"{{{name}}}", value)  # noqa: PLW2901 - each name in turn
            filled.append(word)
        return filled

    def cases(self) -> list[Case]:
        """Return the main cases for this implementation; limits are our own affair."""
        group = "create" if self.is_runtime else "hook"
        return [
            replace(case, name=f"{case.name}/{self.name}", title=f"{case.title} ({self.name})", limit=None)
            for case in (replace(case, implementation=self.name) for case in MAIN if case.implementation != "runc")
            if case.group == group and not case.config
        ]
