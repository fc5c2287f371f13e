"""What hook and shim load, and how much they ask of the kernel: numbers that do not depend on a machine's speed.

The lists beside this file are budgets: a module that is not in one may not be loaded. `pytest tests/cli/test_budget.py
--update` writes them anew; a longer list takes a reason.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import nvinject
from nvconform.systemcalls import count
from nvconform.tracing import TracingError

LISTS = Path(__file__).parent / "budgets"
ASKS = "NVIDIA_VISIBLE_DEVICES=all"
NO_GPU_CALLS = 130  # above an interpreter that does nothing; 93 on the machine where this was written
MARK = "modules: "
# Runs a script as the interpreter would, and tells which modules there are when the process ends in whatever way.
TRACER = f"""
import posix, sys
def tell(leave):
    def told(*arguments):
        posix.write(2, ("{MARK}" + " ".join(sys.modules)).encode())
        leave(*arguments)
    return told
posix._exit, posix.execve, posix.execv = tell(posix._exit), tell(posix.execve), tell(posix.execv)
del sys.argv[0]
with open(sys.argv[0]) as script:
    exec(script.read(), {{"__name__": "__main__"}})
posix._exit(0)
"""
# What is asked, the command after the launcher, the exit code. There is no driver in the host of these tests, which
# ends a request (6), but not before everything is loaded that serves it.
RUNS: dict[str, tuple[str, tuple[str, ...], int]] = {
    "hook-none": ("HOME=/", ("hook", "prestart"), 0),
    "hook-gpus": (ASKS, ("hook", "prestart"), 6),
    "runtime-none": ("HOME=/", ("runtime", "--low-level", "/bin/true", "--", "create", "--bundle", "BUNDLE", "x"), 0),
    "runtime-gpus": (ASKS, ("runtime", "--low-level", "/bin/true", "--", "create", "--bundle", "BUNDLE", "x"), 6),
}


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the launcher of an installation of its own, byte-compiled."""
    root = tmp_path_factory.mktemp("installation")
    source = Path(nvinject.__file__).parent
    shutil.copytree(source, root / "lib/nvinject", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "nvinject", "install", "--prefix", str(root), "--json"]
    subprocess.run(command, check=True, cwd=root / "lib", capture_output=True, timeout=120)
    return root / "bin/nvinject"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Return a bundle whose container asks for nothing, and a host without a driver."""
    (tmp_path / "rootfs").mkdir()
    (tmp_path / "host/proc").mkdir(parents=True)
    host = tmp_path / "host"
    (tmp_path / "config.toml").write_text(
        f'[nvidia-container-cli]\nroot = "{host}"\n[nvinject]\nproc-root = "{host}/proc"\ndev-root = "{host}"\n'
    )
    state = {"ociVersion": "1.0.2", "id": "x", "pid": os.getpid(), "bundle": str(tmp_path), "status": "created"}
    (tmp_path / "state.json").write_text(json.dumps(state))
    return tmp_path


def write_spec(bundle: Path, variable: str) -> None:
    """Write a config.json whose container has one variable."""
    document = {
        "ociVersion": "1.0.2",
        "process": {"args": ["/bin/true"], "env": ["PATH=/bin", variable], "cwd": "/"},
        "root": {"path": "rootfs"},
        "linux": {"namespaces": [{"type": "mount"}]},
    }
    (bundle / "config.json").write_text(json.dumps(document))


def loaded(command: Sequence[str], bundle: Path, code: int) -> set[str]:
    """Return the modules that were loaded when the launcher's process ended or became another program."""
    environment = {"NVIDIA_CTK_CONFIG_FILE_PATH": str(bundle / "config.toml"), "XDG_RUNTIME_DIR": str(bundle)}
    with (bundle / "state.json").open("rb") as state:
        done = subprocess.run(
            [sys.executable, "-IS", "-c", TRACER, *command],
            check=False,
            stdin=state,
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
        )
    assert done.returncode == code, done.stderr[-2000:]
    _, mark, names = done.stderr.partition(MARK)
    assert mark, done.stderr[-2000:]
    return set(names.split())


@pytest.mark.parametrize("name", RUNS)
def test_modules_are_within_the_budget(name: str, launcher: Path, bundle: Path, request: pytest.FixtureRequest) -> None:
    """Each import costs every container start; what start-up itself loads does not count."""
    variable, words, code = RUNS[name]
    write_spec(bundle, variable)
    command = [str(launcher), *(word.replace("BUNDLE", str(bundle)) for word in words)]
    modules = loaded(command, bundle, code) - loaded([os.devnull], bundle, 0)
    path = LISTS / f"{name}.txt"
    if request.config.getoption("--update"):
        path.write_text("".join(f"{module}\n" for module in sorted(modules)))
    beyond = modules - set(path.read_text().split())
    assert not beyond, f"{name} loads what is not in {path.name}: {', '.join(sorted(beyond))}"


@pytest.mark.parametrize("name", RUNS)
def test_nothing_expensive_is_in_a_budget(name: str) -> None:
    """The list may grow with our own modules, not with these."""
    banned = {"os", "re", "json", "ctypes", "enum", "typing", "dataclasses", "argparse", "subprocess", "collections"}
    if name.startswith("runtime"):
        banned -= {"os", "json"}  # it writes config.json, and starts another program
    assert not banned & set((LISTS / f"{name}.txt").read_text().split())


def test_system_calls_of_a_container_without_gpus(launcher: Path, bundle: Path) -> None:
    """The common case, where the hook is called for every container of a node."""
    write_spec(bundle, "HOME=/")
    try:
        _, floor = count([sys.executable, "-IS", "-c", "pass"])
        code, calls = count([str(launcher), "hook", "prestart"], stdin=(bundle / "state.json").read_bytes())
    except TracingError as error:
        pytest.skip(str(error))
    assert code == 0
    assert calls.total() - floor.total() <= NO_GPU_CALLS, calls - floor
