"""Whole GPUs are injected without NVML, which takes from tens of milliseconds to seconds to start on a real node.

The machine's NVML is covered by a library that leaves a mark when it is loaded, and then sleeps for longer than anybody
waits.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nvconform.required import give_up

from .conftest import run_case

SLEEPER = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void begin(void) { close(open(MARK, O_CREAT | O_WRONLY, 0600)); sleep(600); }
"""
# Covers the library in the machine's own mount namespace, once, then becomes the hook.
WRAPPER = """#!/bin/sh
library=$(readlink -f /usr/lib/*-linux-gnu/libnvidia-ml.so.1)
mount --bind @SLEEPER@ "$library" || exit 99
exec "$@"
"""


@pytest.fixture
def covered(tmp_path: Path) -> tuple[dict[str, Any], Path]:
    """Return an adapter whose NVML sleeps, and the file that tells that it was loaded."""
    compiler = shutil.which("cc")
    if compiler is None:
        give_up("root", "no C compiler (package gcc)")
    source, sleeper, mark, wrapper = (tmp_path / name for name in ("sleeper.c", "sleeper.so", "mark", "wrapper"))
    source.write_text(SLEEPER)
    build = [compiler, "-shared", "-fPIC", f'-DMARK="{mark}"', "-o", str(sleeper), str(source)]
    subprocess.run(build, check=True, timeout=60)
    wrapper.write_text(WRAPPER.replace("@SLEEPER@", str(sleeper)))
    wrapper.chmod(0o755)
    document: dict[str, Any] = {
        "name": "sleeping",
        "install": [sys.executable, "-m", "nvinject", "install", "--prefix", "{prefix}"],
        "command": [str(wrapper), "{prefix}/bin/nvinject", "hook", "{stage}"],
    }
    return document, mark


@pytest.mark.parametrize("identifier", ["devices/all", "devices/uuid", "capabilities/all"])
def test_whole_gpus_do_without(identifier: str, covered: tuple[dict[str, Any], Path]) -> None:
    """All that a case expects is there, and the library was never loaded."""
    document, mark = covered
    result = run_case(identifier, document)
    assert result["code"] == 0, result["message"]
    assert not mark.exists()


def test_a_cuda_requirement_does_not(covered: tuple[dict[str, Any], Path]) -> None:
    """The library is loaded where only it knows, and its sleep becomes an error: the cover works."""
    document, mark = covered
    result = run_case("requirements/first-alternative", document)
    assert mark.exists()
    assert result["code"] == 6
    assert "NVML" in result["message"]
