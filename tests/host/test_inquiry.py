"""The child process that asks a library of the driver: it answers once, and it never outlives its use."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvinject.errors import HostError
from nvinject.host import inquiry
from nvinject.host.inquiry import Inquiry

# A fork in a process with threads is warned of from Python 3.12 on; pytest-xdist has threads, the hook has none.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

QUESTIONS = ["", "GPU-1", "a\0b\0", "/dir\nwith/\udcff", "x" * (1 << 17)]


def echo(question: str) -> Iterator[str]:
    """Report the question's bytes, as numbers."""
    yield os.fsencode(question).hex()


def hang(_question: str) -> Iterator[str]:
    """Report nothing, ever."""
    while True:
        os.read(os.pipe()[0], 1)
        yield ""


def surroundings() -> tuple[list[str], list[str]]:
    """Return the open descriptors and the children of this process, dead ones included."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return sorted(os.listdir("/proc/self/fd")), children


@pytest.mark.parametrize("question", QUESTIONS, ids=range(len(QUESTIONS)))
def test_question(question: str) -> None:
    """A question arrives as it was put, whatever is in it, though the child was there before; nothing is left."""
    before = surroundings()
    with Inquiry(echo) as asked:
        assert bytes.fromhex(asked.ask(question, 10)) == os.fsencode(question)
        assert surroundings() == before
    assert surroundings() == before


@pytest.mark.parametrize("report", [echo, hang])
def test_question_that_is_never_put(report: "inquiry.Report") -> None:
    """A child that was not needed is ended, and ending it again does nothing."""
    before = surroundings()
    with Inquiry(report) as asked:
        assert len(surroundings()[1]) == len(before[1]) + 1
    asked.close()
    assert surroundings() == before


def test_preparation(capfd: pytest.CaptureFixture[str]) -> None:
    """What is done while the question is unknown is there for the report, and what it prints is not seen."""
    done: list[str] = []

    def prepare() -> None:
        os.write(1, b"printed")
        done.append("prepared")

    with Inquiry(lambda question: iter([*done, question]), prepare=prepare) as asked:
        assert asked.ask("asked", 10) == "prepared\nasked\n"
    assert done == []
    assert capfd.readouterr() == ("", "")


def die() -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    """Raise what nobody expects."""
    raise RuntimeError


def test_crash_before_the_question() -> None:
    """A child that has died when the question comes is told as one that dies of it."""
    before = surroundings()
    with Inquiry(echo, prepare=die, library="libexample") as asked:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        with pytest.raises(HostError, match=r"^libexample crashed: its process died of signal 9; run nvidia-smi"):
            asked.ask("x" * (1 << 17), 10)
    assert surroundings() == before


def test_failing_preparation() -> None:
    """A child whose preparation fails reports nothing, and does not run on in its parent's code."""
    with Inquiry(echo, prepare=fail) as asked:
        assert asked.ask("", 10) == ""


def test_time_limit() -> None:
    """The time counts from the question; a child that does not answer is ended."""
    before = surroundings()
    with Inquiry(hang, library="libexample") as asked, pytest.raises(HostError, match=r"^libexample did not answer"):
        asked.ask("", 0.2)
    assert surroundings() == before


@pytest.mark.parametrize("free", [0, 1, 2, 3])
def test_no_descriptors(free: int) -> None:
    """Without descriptors for both pipes there is no child, and what was opened is closed."""
    before = surroundings()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    holes = [os.dup(0) for _ in range(64)]  # so that the numbers below the limit are all taken but the free ones
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(holes) + 1, limits[1]))
        for _ in range(free):
            os.close(holes.pop())
        with pytest.raises(OSError, match="Too many open files"):
            Inquiry(echo)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in holes:
            os.close(descriptor)
    assert surroundings() == before


LOAD = """
import sys
{load}
import pynvml
names = sorted(name for name in vars(pynvml) if name.startswith(("nvml", "NVML", "c_nvml")))
errors = sorted((one.__name__, number) for number, one in pynvml.NVMLError._valClassMapping.items())
print([names, errors])
import ctypes.util, string
print(string.Template("$a").substitute(a="still"), ctypes.util.find_library.__module__)
"""
SPARINGLY = "from nvinject.host.nvmlreport import load_pynvml; load_pynvml(); assert 're' not in sys.modules"


def test_pynvml_loaded_sparingly() -> None:
    """The bindings have every name and error that they have otherwise, and no module is missing afterwards."""
    answers = [
        subprocess.run(
            [sys.executable, "-ISc", f"import sys; sys.path += {sys.path}\n" + LOAD.format(load=load)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for load in (SPARINGLY, "")
    ]
    assert answers[0] == answers[1]
    assert answers[0].splitlines()[1] == "still ctypes.util"


def test_bindings_that_take_more() -> None:
    """Bindings that use other functions of the modules that are stood in for find them."""
    code = """
import sys
from nvinject.host import nvmlreport
stand_in = sys.modules["string"] = nvmlreport._stand_in("string", capwords=str.upper)
from string import Template
assert Template("$a").substitute(a="1") == "1" and stand_in.capwords("a") == "A"
try:
    stand_in.nothing
except AttributeError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-ISc", f"import sys; sys.path += {sys.path}\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "nothing" in done.stdout
