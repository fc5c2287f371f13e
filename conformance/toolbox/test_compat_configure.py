"""Every option of the original's `runtime configure` and `config` is walked as in test_compat.py, without a machine.

TOOLBOX_UPDATE=1 in the environment writes the tables into docs/compat.md.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from .options import Option
from .test_compat import check_document

RUNTIME = "nvidia-ctk runtime configure"
PLACES = "--state-dir $T/state --config $T/daemon.json"
CONTAINERD = f"{RUNTIME} --runtime containerd --state-dir $T/state --config $T/c.toml --drop-in-config $T/d/n.toml"
HOOK = f"{RUNTIME} --state-dir $T/state --config-mode=oci-hook"
CONFIG = "nvidia-ctk config --config-file $T/config.toml"
SECONDS = 60

RUNTIME_OPTIONS = (
    Option(RUNTIME, "--dry-run", f"{RUNTIME} {PLACES} @", "--dry-run"),
    Option(
        RUNTIME,
        "--runtime",
        f"{RUNTIME} --state-dir $T/state --config $T/c.toml @",
        "--runtime=podman",
        why="podman is known, too",
    ),
    Option(RUNTIME, "--config", f"{RUNTIME} --state-dir $T/state --dry-run @", "--config $T/daemon.json"),
    Option(
        RUNTIME,
        "--drop-in-config",
        f"{RUNTIME} --runtime=crio --state-dir $T/state --config $T/c.toml --dry-run --json @",
        "--drop-in-config $T/n.toml",
        why="an empty one edits the main file; an existing one is edited, not overwritten",
    ),
    Option(RUNTIME, "--executable-path", f"{CONTAINERD} --config-source=command @", "--executable-path $T/bin/fake"),
    Option(
        RUNTIME,
        "--config-mode",
        f"{RUNTIME} {PLACES} --dry-run @",
        "--config-mode=oci-hook",
        why="an unknown one is refused",
    ),
    Option(
        RUNTIME,
        "--config-source",
        f"{CONTAINERD} --executable-path $T/bin/fake @",
        "--config-source=command",
        why="an answer in another version than the file's is refused",
    ),
    Option(RUNTIME, "--oci-hook-path", f"{HOOK} @", "--oci-hook-path $T/hooks.d/n.json"),
    Option(RUNTIME, "--nvidia-runtime-name", f"{RUNTIME} {PLACES} @", "--nvidia-runtime-name=gpu"),
    Option(
        RUNTIME,
        "--nvidia-runtime-path, --runtime-path",
        f"{CONTAINERD} @",
        "--runtime-path=/opt/runtime",
        why="without it the program on PATH is named, else /usr/bin/nvidia-container-runtime",
    ),
    Option(RUNTIME, "--nvidia-runtime-hook-path", f"{HOOK} @", "--nvidia-runtime-hook-path=/opt/hook"),
    Option(RUNTIME, "--nvidia-set-as-default, --set-as-default", f"{RUNTIME} {PLACES} @", "--set-as-default"),
    Option(
        RUNTIME,
        "--cdi.enabled, --cdi.enable, --enable-cdi",
        f"{RUNTIME} {PLACES} @",
        "--enable-cdi",
        why="docker's other features stay",
    ),
)
CONFIG_OPTIONS = (
    Option(
        "nvidia-ctk config",
        "--config-file, --config, -c",
        "nvidia-ctk config @",
        "-c $T/config.toml",
        why="comments, order and other bytes of the file stay",
    ),
    Option(
        "nvidia-ctk config",
        "--set",
        f"{CONFIG} @",
        "--set nvidia-container-runtime.runtimes=crun:runc",
        why="a comma separates the items of a list; values that cannot be are refused",
    ),
    Option(
        "nvidia-ctk config",
        "--set-list-separator",
        f"{CONFIG} --set nvidia-container-runtime.runtimes=a:b @",
        "--set-list-separator=+",
    ),
    Option(
        "nvidia-ctk config",
        "--in-place, -i",
        f"{CONFIG} --set disable-require @",
        "-i",
        why="together with --output it is refused",
    ),
    Option("nvidia-ctk config", "--output, -o", f"{CONFIG} --set disable-require @", "-o $T/new/out.toml"),
    Option("nvidia-ctk config default", "--output, -o", "nvidia-ctk config default @", "--output $T/default.toml"),
)
SECTIONS = {RUNTIME: RUNTIME_OPTIONS, "nvidia-ctk config": CONFIG_OPTIONS}
# The original's own list.
ORIGINAL = {
    RUNTIME: "dry-run runtime config drop-in-config executable-path config-mode config-source oci-hook-path "
    "nvidia-runtime-name nvidia-runtime-path nvidia-runtime-hook-path nvidia-set-as-default cdi.enabled",
    "nvidia-ctk config": "config-file set set-list-separator in-place output",
    "nvidia-ctk config default": "output",
}
ANSWER = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\nruntime_path = "/said"\n'


def fill(folder: Path) -> Path:
    """Fill a folder with files to work on, and programs under the names that scripts use."""
    (folder / "daemon.json").write_text('{"features": {"buildkit": true}}\n')
    (folder / "c.toml").write_text("# mine\nversion = 2\n")
    (folder / "config.toml").write_text('# mine\n[nvidia-container-runtime]\nruntimes = ["runc"] # why\n')
    programs = folder / "bin"
    programs.mkdir()
    (programs / "nvidia-ctk").write_text(f'#!/bin/sh\nexec {sys.executable} -m nvinject ctk "$@"\n')
    (programs / "fake").write_text(f"#!/bin/sh\ncat <<E\n{ANSWER}E\n")
    (programs / "containerd").write_text("#!/bin/sh\nexit 1\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    return folder


def run(folder: Path, line: str) -> str:
    """Return everything that can be seen of a run: what it says, its exit code, and the files afterwards."""
    environment = {
        "PATH": f"{folder}/bin:/usr/bin:/bin",
        "T": str(folder),
        "NVIDIA_CTK_CONFIG_FILE_PATH": f"{folder}/none.toml",
    }
    # The virtual environment is found by its interpreter; nothing else of the caller's environment counts.
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, check=False, timeout=SECONDS, env=environment, cwd=folder
    )
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "state" not in path.parts)
    contents = "".join(f"{path.relative_to(folder)}:\n{path.read_text()}" for path in files if "bin" not in path.parts)
    return f"{done.stdout}{done.stderr}exit code {done.returncode}\n{contents}".replace(str(folder), "T")


ALL = [*RUNTIME_OPTIONS, *CONFIG_OPTIONS]
NAMES = [
    pytest.param(option, name, id=f"{option.program} {name}") for option in ALL for name in option.name.split(", ")
]


@pytest.mark.parametrize("option", ALL, ids=lambda option: f"{option.program} {option.name}")
def test_an_option_does_its_work(tmp_path: Path, option: Option) -> None:
    """The run with it succeeds and comes out otherwise than the run without it."""
    folders = (tmp_path / "with", tmp_path / "without")
    for folder in folders:
        folder.mkdir()
    with_it, without = (
        run(fill(folder), option.line.replace("@", given))
        for folder, given in zip(folders, (option.given, ""), strict=True)
    )
    assert "exit code 0" in with_it, with_it
    assert with_it != without


@pytest.mark.parametrize(("option", "name"), NAMES)
def test_every_name_is_known(tmp_path: Path, option: Option, name: str) -> None:
    """An option has all of the original's names."""
    first, equals, value = option.given.partition("=")
    if " " in first:  # the value is a word of its own
        first, equals, value = option.given.partition(" ")
    given = f"{name}{' ' if name[:2] != '--' and equals else equals}{value}"
    said = run(fill(tmp_path), option.line.replace("@", given))
    assert "exit code 0" in said, said


@pytest.mark.parametrize("section", SECTIONS)
def test_the_document_has_every_option(section: str) -> None:
    """Between its marks, row by row."""
    check_document(section, SECTIONS[section])


@pytest.mark.parametrize("program", ORIGINAL)
def test_the_tables_have_all_options_of_the_original(program: str) -> None:
    """None is forgotten."""
    walked = {option.name.partition(",")[0].removeprefix("--") for option in ALL if option.program == program}
    assert walked == set(ORIGINAL[program].split())
