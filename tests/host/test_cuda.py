"""What libcuda says of itself: asked of small libraries that answer, refuse and crash."""

import shutil
import subprocess
from pathlib import Path

import pytest

from nvinject.errors import HostError
from nvinject.host.cuda import CudaAnswer, ask_cuda

SOURCE = """
#include <signal.h>
int cuDriverGetVersion(int *version) { *version = 12060; return VERSION_CODE; }
int cuInit(unsigned flags) { if (CRASHES) raise(SIGKILL); return INIT_CODE; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 8 : 7;
    return attribute != 75 && attribute != 76;
}
"""


def build(folder: Path, *, version: int = 0, init: int = 0, crashes: int = 0) -> str:
    """Compile a libcuda; skip where nothing compiles C."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler on PATH")
    (folder / "cuda.c").write_text(SOURCE)
    macros = [f"-DVERSION_CODE={version}", f"-DINIT_CODE={init}", f"-DCRASHES={crashes}"]
    library = str(folder / "libcuda.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", *macros, str(folder / "cuda.c"), "-o", library], check=True)
    return library


ANSWERS = [
    ({}, CudaAnswer(version="12.6", architecture="8.7")),
    ({"init": 100}, CudaAnswer(version="12.6", problem="cuInit fails with 100")),
    ({"version": 3}, CudaAnswer(problem="cuDriverGetVersion fails with 3")),
]


@pytest.mark.parametrize(("macros", "expected"), ANSWERS)
def test_answers(tmp_path: Path, macros: dict[str, int], expected: CudaAnswer) -> None:
    """The version needs no device; the capability does."""
    assert ask_cuda(build(tmp_path, **macros), 10) == expected


def test_a_crash_is_told(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="libcuda crashed: its process died of signal 9"):
        ask_cuda(build(tmp_path, crashes=1), 10)


def test_what_is_no_library_is_told(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("text")
    answer = ask_cuda(str(tmp_path / "libcuda.so.1"), 10)
    assert (answer.version, answer.architecture) == ("", "")
    assert "invalid ELF header" in answer.problem or "file too short" in answer.problem
