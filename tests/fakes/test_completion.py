"""Completion of nvfakes and nvconform as the shells themselves do it: commands, options, values, files."""

import shutil
import subprocess
from pathlib import Path

import pytest

from nvconform import cli as conform
from nvfakes import cli as fakes
from nvfakes.completion import SHELLS, script
from nvfakes.errors import UsageError
from tests.cli import test_completion

MAINS = {"nvfakes": fakes.main, "nvconform": conform.main}
TYPED = [
    ("nvfakes", ["unpl"], ["unplug"]),
    ("nvfakes", ["show", "two-"], ["two-h100"]),
    ("nvfakes", ["run", "t4", "--lane", "root"], ["root", "rootless"]),
    ("nvfakes", ["run", "--dri"], ["--driver"]),
    ("nvfakes", ["run", "--driver", "5"], ["535", "550"]),
    ("nvfakes", ["run", "t4", "--", "FOLDER/conf"], ["FOLDER/config.toml"]),
    ("nvfakes", ["answer", "0", "power.cur"], ["power.current_draw_mw"]),
    ("nvfakes", ["completion", "f"], ["fish"]),
    ("nvfakes", ["record", "--root", "FOLDER/conf"], ["FOLDER/config.toml"]),
    ("nvfakes", ["runtime-wrapper", "FOLDER/conf"], ["FOLDER/config.toml"]),
    ("nvconform", ["val"], ["validate"]),
    ("nvconform", ["run", "--lane", "user"], ["userns"]),
    ("nvconform", ["run", "--profile", "c"], ["core"]),
    ("nvconform", ["run", "--implementation", "nvinject-j"], ["nvinject-jit"]),
    ("nvconform", ["--cases", "FOLDER", "run", "--runtime", "cr"], ["crun"]),
    ("nvconform", ["list", "--js"], ["--json"]),
    ("nvconform", ["report", "FOLDER/conf"], ["FOLDER/config.toml"]),
]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("program", "words", "expected"), TYPED)
def test_what_a_shell_completes(
    shell: str, program: str, words: list[str], expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shell runs the printed script as it would when the user presses tab."""
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed: its completion was not run")
    assert MAINS[program](["completion", shell]) == 0
    file = tmp_path / "script"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    (tmp_path / "config.toml").touch()
    typed = [word.replace("FOLDER", str(tmp_path)) for word in [program, *words]]
    told = test_completion.SHELLS[shell].replace("_nvinject", f"_{program}")
    command = [found, "-c", told, *([] if shell == "fish" else ["-"]), str(file), *typed]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, cwd=tmp_path)
    assert done.stderr == ""
    assert set(done.stdout.split()) == {word.replace("FOLDER", str(tmp_path)) for word in expected}


def test_another_shell_is_refused() -> None:
    with pytest.raises(UsageError, match="'ksh' is no shell that is known here; use one of bash, zsh, fish"):
        script("ksh", conform.parser(), {})
