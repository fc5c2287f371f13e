"""nvinject install: what lies in the prefix afterwards, and that it runs as a hook must."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nvinject.cli import main as command_line
from nvinject.cli.install import LINK_NAMES, SHIM_HOOK_NAME, SHIM_LINK_NAMES, SHIM_NAME, find_changeable

Capture = pytest.CaptureFixture[str]
SECONDS = 60
VERSIONED = ("nvinject", "nvidia-cdi-hook", "nvidia-ctk", "nvidia-container-cli")


def run(program: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, check=False, timeout=SECONDS, env=environment
    )


def test_launcher_is_isolated_and_absolute(prefix: Path) -> None:
    """The first line keeps PYTHON* variables, the working directory and site-packages' start-up code out."""
    first = (prefix / "bin" / "nvinject").read_text().splitlines()[0]
    assert first == f"#!{sys.executable} -IS"


@pytest.mark.parametrize("name", ["nvinject", *LINK_NAMES])
def test_each_name_runs(prefix: Path, name: str) -> None:
    """Under its own name it shows its version, under the engines' names it is the hook."""
    arguments = ["--version"] if name in VERSIONED else ["poststop"]
    done = run(prefix / "bin" / name, *arguments)
    assert (done.returncode, done.stderr) == (0, "")


def test_code_of_the_working_directory_and_environment_is_not_run(prefix: Path, tmp_path: Path) -> None:
    """A hook runs as root in a folder and with an environment that an image may have chosen (CVE-2025-23266)."""
    canary = tmp_path / "canary"
    for module in ("sitecustomize", "usercustomize", "os", "gc", "nvinject", "posix"):
        (tmp_path / f"{module}.py").write_text(f"open({str(canary)!r}, 'w')\n")
    done = subprocess.run(
        [str(prefix / "bin" / "nvidia-container-runtime-hook"), "poststop"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": str(tmp_path / "os.py"), "PYTHONINSPECT": ""},
        capture_output=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0
    assert not canary.exists()


def test_a_hook_keeps_no_inherited_descriptor(prefix: Path, tmp_path: Path) -> None:
    """What a runtime leaves open must not reach code that handles a container (CVE-2024-21626)."""
    inherited = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    log = tmp_path / "log"
    config = tmp_path / "config.toml"
    config.write_text(f'[nvidia-container-cli]\ndebug = "{log}"\n')
    try:
        done = subprocess.run(
            [str(prefix / "bin" / "nvinject"), "hook", "-config", str(config), "prestart"],
            input=json.dumps({"pid": 1, "bundle": f"/proc/self/fd/{inherited}"}),
            pass_fds=(inherited,),
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            env={},
        )
    finally:
        os.close(inherited)
    assert f"bundle /proc/self/fd/{inherited} does not exist" in done.stderr


def test_a_second_installation_changes_nothing(prefix: Path) -> None:
    """The same text, the same links, no litter."""
    before = {path.name: path.read_bytes() for path in (prefix / "bin").iterdir()}
    assert command_line.main(["install", "--prefix", str(prefix), "--links"]) == 0
    assert {path.name: path.read_bytes() for path in (prefix / "bin").iterdir()} == before


def test_dry_run_changes_nothing(tmp_path: Path, capsys: Capture) -> None:
    """It names every file and writes none."""
    assert command_line.main(["install", "--prefix", str(tmp_path), "--links", "--dry-run", "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [Path(step["path"]).name for step in steps] == [
        "nvinject",
        SHIM_NAME,
        SHIM_HOOK_NAME,
        *LINK_NAMES,
        *SHIM_LINK_NAMES,
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_program_of_another_toolkit_stays(tmp_path: Path, capsys: Capture) -> None:
    """A file that is no link is somebody else's; it is named and left alone."""
    other = tmp_path / "bin" / LINK_NAMES[0]
    other.parent.mkdir()
    other.write_text("original")
    assert command_line.main(["install", "--prefix", str(tmp_path), "--links"]) == 2
    assert str(other) in capsys.readouterr().err
    assert other.read_text() == "original"


@pytest.mark.parametrize("name", LINK_NAMES)
def test_a_half_done_installation_is_taken_back(tmp_path: Path, capsys: Capture, name: str) -> None:
    """Whatever is in the way, and however late it is met: nothing new stays, and what was there is as it was."""
    other, config = tmp_path / "usr" / "bin" / name, tmp_path / "etc" / "nvidia" / "config.toml"
    other.parent.mkdir(parents=True)
    other.write_text("original")
    words = ["install", "--prefix", str(tmp_path / "usr"), "--links", "--config-file", str(config)]
    assert command_line.main(words) == 2
    assert str(other) in capsys.readouterr().err
    assert sorted(path for path in tmp_path.rglob("*") if not path.is_dir()) == [other]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["usr"]
    assert [path.name for path in (tmp_path / "usr").iterdir()] == ["bin"]


def test_an_installation_whose_list_cannot_be_written_is_taken_back(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "share").write_text("in the way of share/nvinject")
    assert command_line.main(["install", "--prefix", str(tmp_path), "--links"]) == 2
    assert str(tmp_path / "share") in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["share"]


def test_a_prefix_that_cannot_be_written_is_named(tmp_path: Path, capsys: Capture) -> None:
    """A file where a folder should be stops the installation with one line."""
    (tmp_path / "file").touch()
    assert command_line.main(["install", "--prefix", str(tmp_path / "file")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_a_runtime_of_another_toolkit_stays(tmp_path: Path, capsys: Capture) -> None:
    """The same holds for the runtime shim, which is no link."""
    other = tmp_path / "bin" / SHIM_NAME
    other.parent.mkdir()
    other.write_text("original")
    assert command_line.main(["install", "--prefix", str(tmp_path), "--links"]) == 2
    assert str(other) in capsys.readouterr().err
    assert other.read_text() == "original"


SURROUNDINGS = [
    ("hook -config CONFIG prestart", False, True),
    ("hook prestart", False, True),
    ("hook", False, True),
    ("hook create-symlinks", True, True),
    ("hook chmod", True, True),
    ("cdi-hook chmod", True, True),
    ("create-container", True, True),
    ("ctk hook chmod", True, True),
    ("ctk --debug hook create-symlinks", True, True),
    ("ctk cdi list", True, False),
    ("plan some-bundle", True, False),
    ("runtime -- state some-container", True, False),
]


@pytest.mark.parametrize(("line", "stays", "closes"), SURROUNDINGS, ids=[row[0] for row in SURROUNDINGS])
def test_what_commands_leave(line: str, *, stays: bool, closes: bool, tmp_path: Path) -> None:
    """What runtimes call closes what it inherited; only stages of the hook leave the directory as well."""
    config = tmp_path / "some-config.toml"
    code = f"""
import os
from nvinject.cli.launch import leave_surroundings
inherited, bundle = os.open("/", os.O_PATH), os.open("/", os.O_PATH)
leave_surroundings({line!r}.replace("CONFIG", {str(config)!r}).split(), bundle)
print(os.getcwd() == {str(tmp_path)!r}, not os.path.exists(f"/proc/self/fd/{{inherited}}"))
os.fstat(bundle), os.fstat(2)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=SECONDS
    )
    assert done.stdout.split() == [str(stays), str(closes)]


@pytest.mark.parametrize(("words", "kept"), [(["-config", "CONFIG", "prestart"], False), (["create-symlinks"], True)])
def test_a_hook_leaves_the_working_directory(prefix: Path, tmp_path: Path, words: list[str], *, kept: bool) -> None:
    """Only the hooks of CDI specs stay: there it may be the one way to the container's root file system."""
    (tmp_path / "config.json").write_text("{}")
    config = tmp_path / "config.toml"
    config.touch()
    done = subprocess.run(
        [str(prefix / "bin" / "nvinject"), "hook", *(str(config) if word == "CONFIG" else word for word in words)],
        input=json.dumps({"pid": 1, "bundle": "."}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env={},
    )
    assert ("./config.json does not exist" not in done.stderr) is kept, done.stderr


def nothing(_: Path) -> None:
    """Leave all as it is."""


# What is done to the folder `user`, in which root has made `venv/bin/python`, a link to `system/python`; what can be
# changed then.
WEAKENED: list[tuple[str, Callable[[Path], None], str]] = [
    ("all is root's", nothing, ""),
    ("the link", lambda base: os.lchown(base / "user/venv/bin/python", 1000, -1), "user/venv/bin/python"),
    ("the link's target", lambda base: os.chown(base / "system/python", 1000, -1), "system/python"),
    ("its mode", lambda base: os.chmod(base / "system/python", 0o775), "system/python"),
    ("the directory above", lambda base: os.chown(base / "user", 1000, -1), "user"),
    ("a directory where all may write", lambda base: os.chmod(base / "user", 0o777), "user"),
    ("such a one whose files stay their owners'", lambda base: os.chmod(base / "user", 0o1777), ""),
]


@pytest.mark.parametrize(("title", "weaken", "found"), WEAKENED, ids=[title for title, _, _ in WEAKENED])
def test_what_others_than_root_can_change_is_found(
    tmp_path: Path, title: str, weaken: Callable[[Path], None], found: str
) -> None:
    """Root runs the interpreter of a hook, wherever it lies; a user who owns the way to it could put another there."""
    (tmp_path / "user/venv/bin").mkdir(parents=True)
    (tmp_path / "system").mkdir()
    (tmp_path / "system/python").touch(0o755)
    (tmp_path / "user/venv/bin/python").symlink_to(tmp_path / "system/python")
    if find_changeable(str(tmp_path / "user/venv/bin/python")):
        pytest.skip("needs a folder for temporary files that is root's alone, and root's rights")
    try:
        weaken(tmp_path)
    except PermissionError as error:
        pytest.skip(f"files cannot be given to another user here: {error.strerror}")
    wanted = str(tmp_path / found) if found else ""
    assert find_changeable(str(tmp_path / "user/venv/bin/python")) == wanted, title
