"""leanos is os, as far as it goes."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject import leanos

# What os gives another meaning than posix does.
DIFFERENT = {"environ", "path"}
PATHS = st.text(alphabet="/a.\udcff", max_size=8)


def test_names_are_those_of_os() -> None:
    """Whatever is in both is the same thing, so that nothing depends on which of them is imported."""
    names = [name for name in dir(leanos) if not name.startswith("__") and name in dir(os)]
    same = {name for name in names if getattr(leanos, name) is getattr(os, name)}
    assert {"open", "stat", "O_RDONLY", "_exit", "getpid"} <= same
    assert set(names) - same == {"fsencode", "fsdecode", "fdopen", "makedirs", "path", "sys"} - same


def test_it_does_not_import_os() -> None:
    """That is all there is to it."""
    probe = "import sys; sys.path.append(sys.argv[1]); import nvinject.leanos; print('os' in sys.modules)"
    package = os.path.dirname(os.path.dirname(leanos.__file__))
    command = [sys.executable, "-IS", "-c", probe, package]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "False\n"


def test_environ_is_left_out() -> None:
    """It would be bytes."""
    assert not hasattr(leanos, "environ")


@given(PATHS)
def test_paths(path: str) -> None:
    """Encoding, decoding, directories."""
    assert leanos.fsencode(path) == os.fsencode(path)
    assert leanos.fsdecode(leanos.fsencode(path)) == path
    assert leanos.path.dirname(path) == os.path.dirname(path)
    assert leanos.path.abspath(path) == os.path.abspath(path)
    for test in ("exists", "isdir", "isfile"):
        assert getattr(leanos.path, test)(path) == getattr(os.path, test)(path)


@given(PATHS, PATHS)
def test_joined_paths(first: str, second: str) -> None:
    """As os joins them."""
    assert leanos.path.join(first, second) == os.path.join(first, second)


@pytest.mark.parametrize("path", ["/", "/etc/passwd", "/proc/self/exe", "/no/such", "nul\0"])
def test_kinds(path: str) -> None:
    """Behind links too."""
    for test in ("exists", "isdir", "isfile"):
        assert getattr(leanos.path, test)(path) == getattr(os.path, test)(path)


@pytest.mark.parametrize("other", ["/", "/etc/passwd"])
def test_samestat(other: str) -> None:
    """Device and inode number count."""
    first, second = os.stat("/"), os.stat(other)
    assert leanos.path.samestat(first, second) == os.path.samestat(first, second)


def test_descriptors_become_files() -> None:
    """Text and bytes."""
    reading, writing = os.pipe()
    with leanos.fdopen(writing, "w") as file:
        file.write("x")
    with leanos.fdopen(reading, "rb") as file:
        assert file.read() == b"x"
