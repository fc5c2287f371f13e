"""Commands that change the host, ended by a signal at each of their steps: everything is as before, or as it shall be.

A step is a system call that changes a file system. The signal comes while it is made, so that what follows is the first
thing that the program could leave undone.
"""

import os
import shlex
import shutil
import signal
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import pytest

from nvconform import tracing
from nvconform.tracing import Call, Outcome
from tests.machines import require_machines, write_machine

SECONDS = 60
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
CHANGING = {
    "rename", "renameat", "renameat2", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir", "symlink", "symlinkat",
    "link", "linkat", "fsync", "fchmod", "chmod", "fchmodat", "mknod", "mknodat", "fchown", "fchownat",
}  # fmt: skip

Files = Mapping[str, str]


def changes_files(call: Call) -> bool:
    """Tell whether a call of the program itself changes a file system."""
    if call.process != 0:
        return False
    if call.name == "openat":
        return bool(call.number(2) & (os.O_CREAT | os.O_TRUNC))
    return call.name in CHANGING or (call.name == "write" and call.number(0) > 2)


def run_and_signal(words: str, environment: Files, step: int = 0, number: int = 0) -> tuple[Outcome, int]:
    """Run a program, with a signal at a step of it; returns how it ended, and the number of its steps."""
    steps = 0

    def note(call: Call) -> None:
        nonlocal steps
        if changes_files(call):
            steps += 1
            if steps == step:
                os.kill(call.pid, number)

    command = [sys.executable, "-B", "-m", *shlex.split(words)]
    return tracing.run(command, on_entry=note, environment=environment, seconds=SECONDS), steps


def look(folder: Path) -> Files:
    """Return everything below a folder, by path: content and mode, or target, or number."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        mode, name = f"{status.st_mode:o}", str(path.relative_to(folder))
        if stat.S_ISLNK(status.st_mode):
            found[name] = f"-> {path.readlink()}"
        elif stat.S_ISREG(status.st_mode):
            found[name] = f"{mode} {path.read_text()}"
        else:
            found[name] = f"{mode} {status.st_rdev}"
    return found


def write(folder: Path, files: Files) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@dataclass(frozen=True)
class Changing:
    """A command, what has to be there, a command that has to have run, and the steps at which a signal comes."""

    words: str
    files: Files
    first: str = ""
    steps: range | None = None


CONTAINERD = (
    "nvinject runtime configure --runtime containerd --config DIR/c.toml --state-dir DIR --drop-in-config DIR/d/9.toml"
)
SPEC = '{"cdiVersion": "0.5.0", "kind": "a.b/c", "devices": [{"name": "0", "containerEdits": {"env": ["A=b"]}}]}'
WHOLE = {
    "configure": Changing(CONTAINERD, {"c.toml": "version = 2\n"}),
    "configure --undo": Changing(f"{CONTAINERD} --undo", {"c.toml": "version = 2\n"}, CONTAINERD),
    "config set": Changing("nvinject config set nvidia-container-cli.debug /x -c DIR/c.toml", {"c.toml": "# mine\n"}),
    "cdi transform": Changing(
        "nvinject cdi transform root --from / --to /x --input DIR/a.json --output DIR/b.json",
        {"a.json": SPEC, "b.json": "old"},
    ),
    "cdi refresh": Changing(
        "nvinject cdi refresh --per-device --nvidia-cdi-hook-path /bin/true --output DIR",
        {"nvidia.com-gpu_0.yaml": "old", "nvidia.com-gpu_9.yaml": "of a GPU that is gone"},
    ),
    # Byte code comes later: it is no part of what is laid down, and not below the prefix.
    "install": Changing("nvinject install --prefix DIR/p --links --config-file DIR/c.toml", {}, steps=range(1, 48, 4)),
    "uninstall": Changing("nvinject uninstall --prefix DIR/p", {}, "nvinject install --prefix DIR/p --links"),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Return the environment of a machine with one GPU; skips where calls cannot be traced."""
    reason = tracing.unavailable()
    if reason:
        pytest.skip(reason)
    machine = tmp_path_factory.mktemp("machine")
    config = write_machine("t4", machine)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NVIDIA_CTK_CONFIG_FILE_PATH": str(config)}


def end_at_each_step(
    words: str,
    environment: Files,
    folder: Path,
    judge: Callable[[Files, Files, Files, str], None],
    chosen: range | None = None,
) -> None:
    """Run a command anew for each of its steps, and judge what it leaves of a folder: before, whole, found, where."""
    before = folder.with_name("before")
    shutil.copytree(folder, before, symlinks=True)
    words = words.replace("DIR", str(folder))
    outcome, steps = run_and_signal(words, environment)
    assert (outcome.code, steps > 3) == (0, True), outcome.message
    whole = look(folder)
    for step, number in zip(chosen or range(1, steps + 1), cycle(ENDING), strict=False):
        shutil.rmtree(folder)
        shutil.copytree(before, folder, symlinks=True)
        outcome, _ = run_and_signal(words, environment, step, number)
        where = f"{number.name} at step {step} of {steps}: {outcome}"
        assert (outcome.code, outcome.signal) in {(None, number), (130, 0)}, where
        assert "Traceback" not in outcome.message, where
        judge(look(before), whole, look(folder), where)


@pytest.mark.parametrize("name", WHOLE)
def test_a_signal_finds_all_as_before_or_as_it_shall_be(name: str, environment: Files, tmp_path: Path) -> None:
    """Also several files at once; nothing stays under a temporary name."""
    case, folder = WHOLE[name], tmp_path / "x"
    folder.mkdir()
    write(folder, case.files)
    if case.first:
        assert run_and_signal(case.first.replace("DIR", str(folder)), environment)[0].code == 0

    def judge(before: Files, whole: Files, found: Files, where: str) -> None:
        assert found in (before, whole), where

    end_at_each_step(case.words, environment, folder, judge, case.steps)


def test_a_signal_finds_each_node_whole_or_not_made(environment: Files, tmp_path: Path) -> None:
    """With number and mode, and under no other name; the command can be run again."""
    require_machines(tmp_path)
    folder = tmp_path / "x"
    (folder / "dev").mkdir(parents=True)

    def judge(before: Files, whole: Files, found: Files, where: str) -> None:
        assert before.items() <= found.items() <= whole.items(), where

    words = "nvinject system create-device-nodes --control-devices --dev-root DIR"
    end_at_each_step(words, environment, folder, judge)
