"""The OCI project's own runtime validation programs: runc alone and the shim in front of it give the same results.

Belongs here: finding or building the programs and comparing their TAP lines. Does not belong here: the programs; they
come from a checkout of opencontainers/runtime-tools, named by NVCONFORM_RUNTIME_TOOLS, which a Go toolchain builds
(`make runtimetest validation-executables`). Where either is missing the test says so and is skipped.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import SEARCH_PATH

pytestmark = [pytest.mark.xdist_group("oci-validation")]

VARIABLE = "NVCONFORM_RUNTIME_TOOLS"
BUILD_SECONDS = 1200
PROGRAM_SECONDS = 120


@pytest.fixture(scope="module")
def checkout() -> Path:
    """Return the checkout with its programs built, or say what is missing."""
    named = os.environ.get(VARIABLE, "")
    if not named:
        pytest.skip(f"{VARIABLE} names no checkout of github.com/opencontainers/runtime-tools")
    folder = Path(named)
    if not (folder / "validation").is_dir():
        pytest.fail(f"{VARIABLE}={named} has no folder validation", pytrace=False)
    if not programs(folder):
        if shutil.which("go") is None or shutil.which("make") is None:
            pytest.skip(f"the programs in {named} are not built, and go and make are not both on PATH")
        subprocess.run(["make", "runtimetest", "validation-executables"], cwd=folder, check=True, timeout=BUILD_SECONDS)
    return folder


@pytest.fixture(scope="module")
def runc() -> str:
    """Return the runtime that both sides use in the end."""
    program = shutil.which("runc", path=SEARCH_PATH)
    if program is None:
        pytest.skip("runc is not installed")
    return program


def programs(checkout: Path) -> list[Path]:
    """Return the validation programs of a checkout."""
    return sorted(path for path in (checkout / "validation").rglob("*.t") if os.access(path, os.X_OK))


def verdicts(text: str) -> list[str]:
    """Return the verdict lines of a TAP document, without what follows them: identifiers and times differ."""
    return [line.strip() for line in text.splitlines() if line.strip().startswith(("ok ", "not ok ", "Bail out!"))]


def run(program: Path, checkout: Path, runtime: str, config: Path) -> "tuple[int, list[str]]":
    """Run one program with a runtime; returns its exit code and verdicts."""
    done = subprocess.run(
        [str(program)],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
        timeout=PROGRAM_SECONDS,
        env={**os.environ, "RUNTIME": runtime, "NVIDIA_CTK_CONFIG_FILE_PATH": str(config)},
    )
    return done.returncode, verdicts(done.stdout)


def test_same_results(checkout: Path, runc: str, hook: Path, tmp_path: Path) -> None:
    """No container of these programs asks for a GPU, so the shim must not show."""
    config = tmp_path / "config.toml"
    config.write_text(f'[nvidia-container-runtime]\nruntimes = ["{runc}"]\n')
    shim = str(hook / "bin" / "nvidia-container-runtime")
    found = programs(checkout)
    assert found
    different = []
    for program in found:
        alone, through = (run(program, checkout, runtime, config) for runtime in (runc, shim))
        if alone != through:
            different.append(f"{program.relative_to(checkout)}: {alone} alone, {through} through the shim")
    assert different == []


def test_verdicts() -> None:
    """Comments, plans and diagnostics do not count."""
    text = "TAP version 13\n# comment\nok 1 - a\n  ---\n  x: 1\n  ...\nnot ok 2 - b\n1..2\nBail out! c\n"
    assert verdicts(text) == ["ok 1 - a", "not ok 2 - b", "Bail out! c"]
