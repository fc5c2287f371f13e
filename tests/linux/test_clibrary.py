"""The C library without the ctypes package, and the same through it."""

import errno
import os
import subprocess
import sys

import pytest

from nvinject.linux import clibrary, syscalls

PROBE = """
import sys
if {hidden!r}:
    import _ctypes
    del _ctypes.dlsym
from nvinject.linux import syscalls
try:
    syscalls.umount2("/nowhere", 0)
except OSError as error:
    print(error.errno, error.filename)
print(syscalls.fstatfs(0), len(syscalls.statx(0, "", 0x1000, 0x1000)), "ctypes" in sys.modules)
"""


def probe(*, hidden: bool) -> list[str]:
    """Run some calls in a fresh interpreter, with the C module's parts hidden or not."""
    with open(os.devnull, "rb") as nothing:
        text = subprocess.run(
            [sys.executable, "-c", PROBE.format(hidden=hidden)],
            check=True,
            stdin=nothing,
            capture_output=True,
            text=True,
        ).stdout
    return text.split()


def test_both_ways_give_the_same() -> None:
    """Only what is imported differs."""
    lean, full = probe(hidden=False), probe(hidden=True)
    assert lean[:-1] == full[:-1]
    assert (lean[-1], full[-1]) == ("False", "True")


def test_a_failure_names_errno_and_thing() -> None:
    """Errno is that of the call, though Python makes calls of its own meanwhile."""
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        syscalls.fstatfs(-1)
    assert caught.value.errno == errno.EBADF


def test_integers_are_passed_as_words() -> None:
    """A plain int would be cut to 32 bits."""
    memory = clibrary.buffer(b"abc\0")
    assert clibrary.function("strlen", returns_long=True)(clibrary.address(memory)) == 3
    assert memory.raw == b"abc\0"
    assert clibrary.buffer(3).raw == b"\0\0\0"
