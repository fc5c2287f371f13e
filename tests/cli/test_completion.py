"""Completion as the shells themselves do it: commands, sub-commands, options, values, files."""

import shutil
import subprocess
from pathlib import Path

import pytest

from nvinject.cli import completion
from nvinject.cli.main import COMMANDS

# What each shell is told, with the script in $1 and the words after it: one completion a line.
SHELLS = {
    "bash": (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _nvinject; printf "%s\\n" "${COMPREPLY[@]}"'
    ),
    # Inside a widget compadd filters by the word itself, _describe takes `word:help` from an array, _files looks for
    # files.
    "zsh": """
        compadd() { shift; local -a found=(${(M)@:#${words[CURRENT]}*}); print -l -- $found; (( $#found )) }
        _describe() { local -a all=(${(P)2}); compadd -- ${all%%:*} }
        _files() { print -l -- ${words[CURRENT]}*(N) }
        complete_it() { local script=$1; shift; local -a words=("$@"); local CURRENT=$#; source $script }
        complete_it "$@"
    """,
    "fish": 'source "$argv[1]"; complete -C "$(string join " " -- $argv[2..-1])" | cut -f 1',
}
TYPED = [
    (["pl"], ["plan"]),
    (["cdi", "ge"], ["generate"]),
    (["cdi", "generate", "--mo"], ["--mode"]),
    (["cdi", "generate", "--mode", "n"], ["nvml", "nvswitch"]),
    (["cdi", "inject", "--format", ""], ["oci", "lxc"]),
    (["cdi", "transform", "root", "--rel"], ["--relative-to"]),
    (["runtime", "configure", "--runtime", "c"], ["containerd", "crio"]),
    (["runtime", "co"], ["configure"]),
    (["doctor", "--layer", "n"], ["nodes", "nvml"]),
    (["config", "get", "nvidia-container-runtime.log"], ["nvidia-container-runtime.log-level"]),
    (["system", "print"], ["print-ldcache"]),
    (["container-cli", "list", "--lib"], ["--libraries"]),
    (["completion", "f"], ["fish"]),
    (["plan", "--config", "FOLDER/conf"], ["FOLDER/config.toml"]),
    (["ctk", "cdi", "generate", "--mode", "n"], ["nvml", "nvswitch"]),
]
# Names of the original.
NAMED = [
    (["nvidia-ctk", "sys"], ["system"]),
    (["nvidia-ctk", "cdi", "tr"], ["transform"]),
    (["nvidia-ctk", "runtime", "configure", "--runtime", "c"], ["containerd", "crio"]),
    (["/usr/bin/nvidia-ctk", "config", "--in"], ["--in-place"]),
    (["nvidia-container-cli", "list", "--lib"], ["--libraries"]),
    (["nvidia-container-cli", "conf"], ["configure"]),
    (["nvidia-cdi-hook", "update-l"], ["update-ldcache"]),
]


@pytest.mark.parametrize("shell", sorted(SHELLS))
@pytest.mark.parametrize(("words", "expected"), TYPED)
def test_what_a_shell_completes(shell: str, words: list[str], expected: list[str], tmp_path: Path) -> None:
    """The shell runs the script as it would when the user presses tab."""
    complete(shell, ["nvinject", *words], expected, tmp_path)


@pytest.mark.parametrize("shell", sorted(SHELLS))
@pytest.mark.parametrize(("words", "expected"), NAMED)
def test_names_of_the_original_complete_too(shell: str, words: list[str], expected: list[str], tmp_path: Path) -> None:
    """They begin where nvinject's command for them does."""
    complete(shell, words, expected, tmp_path)


def complete(shell: str, words: list[str], expected: list[str], tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed: its completion was not run")
    script = tmp_path / "script"
    formats = {"bash": completion.format_bash, "zsh": completion.format_zsh, "fish": completion.format_fish}
    script.write_text(formats[shell](completion.find_words()), encoding="utf-8")
    (tmp_path / "config.toml").touch()
    typed = [word.replace("FOLDER", str(tmp_path)) for word in words]
    # Of these three fish alone takes the words after its script for its own arguments from the first one on.
    command = [program, "-c", SHELLS[shell], *([] if shell == "fish" else ["-"]), str(script), *typed]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, cwd=tmp_path)
    assert done.stderr == ""
    assert set(done.stdout.split()) == {word.replace("FOLDER", str(tmp_path)) for word in expected}


def test_bash_takes_a_value_behind_an_equals_sign(tmp_path: Path) -> None:
    """bash gives the option, the sign and the value as three words."""
    script = tmp_path / "script"
    script.write_text(completion.format_bash(completion.find_words()), encoding="utf-8")
    words = ["nvinject", "cdi", "generate", "--mode", "=", "ne"]
    for typed, expected in ((words, ""), ([*words[:-1], "cs"], "csv"), (words[:-1], "auto")):
        command = ["bash", "-c", SHELLS["bash"], "-", str(script), *typed]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30, cwd=tmp_path)
        assert done.stdout.split("\n")[0] == expected


def test_every_command_has_a_place() -> None:
    """What follows a command is known for each of them."""
    contexts = {place.context for place in completion.find_words() if place.words}
    assert {f" {name}" for name, _, _ in COMMANDS} <= contexts
