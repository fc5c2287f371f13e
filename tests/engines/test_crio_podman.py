"""CRI-O's and podman's drop-ins, and the hook file of both."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from nvinject.cli import main as command_line

from .configured import PROGRAM, Configured, refused

Capture = pytest.CaptureFixture[str]
HEADER = "# Written by `nvinject runtime configure`; the same command with --undo takes it back.\n"
OURS = {"runtime_path": PROGRAM, "runtime_type": "oci"}


def drop_in(done: Configured) -> Any:
    return tomllib.loads(done.drop_in.read_text())


def test_crio_from_nothing(tmp_path: Path) -> None:
    done = Configured(tmp_path, "crio")
    assert done.run() == 0
    assert not done.config.exists()
    expected = f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{PROGRAM}"\nruntime_type = "oci"\n'
    assert done.drop_in.read_text() == HEADER + expected


CRUN = """\
[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
monitor_path = "/usr/libexec/crio/conmon"
allowed_annotations = ["io.containers.trace-syscall"]
"""


def test_crio_takes_over_what_the_default_runtime_has(tmp_path: Path) -> None:
    """As in the original's reference: monitor_path comes from crun, the file itself is not touched."""
    done = Configured(tmp_path, "crio", CRUN)
    assert done.run("--set-as-default") == 0
    assert done.config.read_text() == CRUN
    copied = {"monitor_path": "/usr/libexec/crio/conmon", "allowed_annotations": ["io.containers.trace-syscall"]}
    runtime = {"default_runtime": "nvidia", "runtimes": {"nvidia": {**copied, **OURS}}}
    assert drop_in(done) == {"crio": {"runtime": runtime}}
    assert done.run() == 0
    assert drop_in(done)["crio"]["runtime"].keys() == {"runtimes"}


def test_crio_drop_ins_of_others_count(tmp_path: Path) -> None:
    """Packages put crun in 10-crio.conf, with nothing in crio.conf itself."""
    done = Configured(tmp_path, "crio", "")
    done.drop_in.parent.mkdir()
    (done.drop_in.parent / "10-crio.conf").write_text(CRUN)
    assert done.run() == 0
    assert drop_in(done)["crio"]["runtime"]["runtimes"]["nvidia"]["monitor_path"] == "/usr/libexec/crio/conmon"


def test_crio_keeps_what_somebody_wrote_into_our_drop_in(tmp_path: Path) -> None:
    done = Configured(tmp_path, "crio")
    done.drop_in.parent.mkdir()
    text = '[crio.runtime]\nlog_level = "debug" # mine\n'
    done.drop_in.write_text(text)
    assert done.run("--set-as-default") == 0
    table = "crio.runtime.runtimes.nvidia"
    added = f'default_runtime = "nvidia"\n\n[{table}]\nruntime_path = "{PROGRAM}"\nruntime_type = "oci"\n'
    assert done.drop_in.read_text() == text + added


def test_crio_itself(tmp_path: Path) -> None:
    """The original would replace the whole file by its own part."""
    done = Configured(tmp_path, "crio", CRUN)
    assert done.run("--drop-in-config=") == 0
    assert done.config.read_text().startswith(CRUN)
    assert tomllib.loads(done.config.read_text())["crio"]["runtime"]["runtimes"].keys() == {"crun", "nvidia"}


def answering(folder: Path, name: str, arguments: str, answer: str) -> Path:
    """Write a program that answers one command line."""
    program = folder / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\n[ "$*" = "{arguments}" ] || exit 3\ncat <<E\n{answer}E\n')
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("older", [False, True])
def test_crio_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: bool) -> None:
    """By `crio status config`, or by the program that older releases have for it."""
    done = Configured(tmp_path, "crio", "")
    programs = tmp_path / "bin"
    answering(programs, "crio", "status config", "" if older else CRUN)
    if older:
        (programs / "crio").write_text("#!/bin/sh\nexit 1\n")
        answering(programs, "crio-status", "config", CRUN)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    assert done.run("--config-source=command") == 0
    assert "monitor_path" in drop_in(done)["crio"]["runtime"]["runtimes"]["nvidia"]


def test_crio_needs_no_cdi_switch(tmp_path: Path, capsys: Capture) -> None:
    done = Configured(tmp_path, "crio")
    assert done.run("--cdi.enabled") == 0
    assert "--cdi.enabled changes nothing" in capsys.readouterr().err


def test_podman_from_nothing(tmp_path: Path) -> None:
    done = Configured(tmp_path, "podman")
    assert done.run("--set-as-default", "--cdi.enabled") == 0
    assert not done.config.exists()
    assert done.drop_in.read_text() == (
        f'{HEADER}[engine]\nruntime = "nvidia"\ncdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]\n\n'
        f'[engine.runtimes]\nnvidia = ["{PROGRAM}"]\n'
    )
    assert done.run() == 0
    assert drop_in(done)["engine"].keys() == {"cdi_spec_dirs", "runtimes"}


def test_podman_keeps_the_directories_that_somebody_chose(tmp_path: Path) -> None:
    done = Configured(tmp_path, "podman", '[engine]\ncdi_spec_dirs = ["/mine"]\n')
    assert done.run("--cdi.enabled") == 0
    assert drop_in(done) == {"engine": {"runtimes": {"nvidia": [PROGRAM]}}}


def test_podman_itself(tmp_path: Path) -> None:
    text = '[containers]\n#default_ulimits = []\n\n[engine]\n#runtime = "crun"\n\n[engine.runtimes]\n# more\n'
    done = Configured(tmp_path, "podman", text)
    assert done.run("--drop-in-config=", "--set-as-default") == 0
    assert done.config.read_text() == text.replace(
        '#runtime = "crun"\n', '#runtime = "crun"\nruntime = "nvidia"\n'
    ).replace("[engine.runtimes]\n", f'[engine.runtimes]\nnvidia = ["{PROGRAM}"]\n')


def test_podman_edits_a_file_of_ones_own(tmp_path: Path) -> None:
    """A --config without --drop-in-config is what CONTAINERS_CONF names, the one file that podman then reads."""
    config = tmp_path / "containers.conf"
    words = ["runtime", "configure", "--runtime", "podman", "--config", str(config)]
    assert command_line.main([*words, "--state-dir", str(tmp_path / "state"), "--runtime-path", PROGRAM]) == 0
    assert tomllib.loads(config.read_text()) == {"engine": {"runtimes": {"nvidia": [PROGRAM]}}}


REFUSED = [
    ("crio", "crio = 3\n", "line 1, column 1: crio is not a table"),
    ("crio", "[crio]\n\nruntime = []\n", "line 3, column 1: crio.runtime is not a table"),
    ("crio", "[crio.runtime]\nruntimes = 'x'\n", "line 2, column 1: crio.runtime.runtimes is not a table"),
    ("podman", "[engine]\nruntimes = []\n", "line 2, column 1: engine.runtimes is not a table"),
    ("podman", "[[engine]]\nx = 1\n", "line 1, column 1: engine is not a table"),
    ("podman", "[engine]\nruntime = nvidia\n", "line 2, column 11: invalid value"),
    ("podman", "{{ template }}\n", "line 1, column 1: invalid statement"),
]


@pytest.mark.parametrize(("engine", "text", "says"), REFUSED)
def test_files_that_are_refused(tmp_path: Path, capsys: Capture, engine: str, text: str, says: str) -> None:
    done = Configured(tmp_path, engine, text)
    said = refused(done, capsys, "--drop-in-config=", "--set-as-default")
    assert said.startswith(f"{done.config}, ")
    assert says in said


def hook(tmp_path: Path, *words: str) -> int:
    state = ("--state-dir", str(tmp_path / "state"))
    return command_line.main(["runtime", "configure", "--config-mode=oci-hook", *state, *words])


def test_the_hook_file(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "hooks.d" / "nvidia.json"
    words = ("--nvidia-runtime-hook-path", "/opt/nv/hook")
    assert hook(tmp_path, *words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {
        "version": "1.0.0",
        "hook": {
            "path": "/opt/nv/hook",
            "args": ["hook", "prestart"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/nv"],
        },
        "when": {"always": True, "commands": [".*"]},
        "stages": ["prestart"],
    }
    assert hook(tmp_path, *words, "--oci-hook-path", str(path)) == 0
    assert json.loads(path.read_text()) == printed
    assert hook(tmp_path, "--oci-hook-path", str(path), "--undo") == 0
    assert not path.parent.exists()
