"""Whether nodes can be mended here: the initial user namespace, or any other."""

import os

import pytest

from nvinject.host.nodes import in_initial_user_namespace
from nvinject.linux import syscalls

CLONE_NEWUSER = 0x10000000


def test_user_namespace_is_told_from_the_initial_one() -> None:
    """A child in a namespace of its own knows that it is in one, mapped or not."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = "error"
            try:
                syscalls.unshare(CLONE_NEWUSER)
                answer = str(in_initial_user_namespace())
            except OSError as error:
                answer = f"skip {error.strerror}"
            os.write(writer, answer.encode())
        finally:
            os._exit(0)
    os.close(writer)
    answer = os.read(reader, 100).decode()
    os.close(reader)
    os.waitpid(child, 0)
    if answer.startswith("skip"):
        pytest.skip(f"user namespaces cannot be made here: {answer}")
    assert answer == "False"


def test_agrees_with_the_kernel() -> None:
    """Here the answer is what the map says."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        mapped = file.read().split()
    assert in_initial_user_namespace() == (mapped == ["0", "0", "4294967295"])
