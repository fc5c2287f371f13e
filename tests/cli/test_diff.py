"""Differences as people see them: on a terminal in colour, never with a byte that steers it."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from nvinject.cli.diff import format_diff

SHOWN = [
    (b"a\nb\n", b"a\nc\n", "--- /x\n+++ /x\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"),
    (None, b"a\n", "--- /dev/null\n+++ /x\n@@ -0,0 +1 @@\n+a\n"),
    (b"a\n", None, "--- /x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"),
    (b"a", b"a\n", "--- /x\n+++ /x\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n"),
    (b"\ta\r\n", b"\ta\n", "--- /x\n+++ /x\n@@ -1 +1 @@\n-\ta\\r\n+\ta\n"),
    (b"", b"\x1b[31m\xff\n", "--- /x\n+++ /x\n@@ -0,0 +1 @@\n+\\x1b[31m\\xff\n"),
    (b"a", b"a", ""),
    (None, None, ""),
]


@pytest.mark.parametrize(("before", "after", "expected"), SHOWN)
def test_what_a_difference_shows(before: bytes | None, after: bytes | None, expected: str) -> None:
    assert format_diff("/x", before, after) == expected


def test_a_terminal_gets_colours() -> None:
    shown = format_diff("/x", b"a\n", b"b\n", colour=True)
    assert "\033[31m-a\033[0m\n\033[32m+b\033[0m\n" in shown


def on_terminal(tmp_path: Path, **environment: str) -> str:
    """Return what a dry run shows on a terminal."""
    controller, terminal = pty.openpty()
    words = ["runtime", "configure", "--dry-run", "--config", str(tmp_path / "x"), "--state-dir", str(tmp_path)]
    with os.fdopen(controller, "rb", buffering=0) as screen:
        done = subprocess.run(
            [sys.executable, "-m", "nvinject", *words],
            stdout=terminal,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=60,
            env={**os.environ, "TERM": "xterm", "NO_COLOR": "", **environment},
        )
        os.close(terminal)
        assert done.returncode == 0
        shown = b""
        try:
            while part := screen.read(4096):
                shown += part
        except OSError:  # the kernel's word for a terminal that nobody holds any more
            pass
    return shown.decode()


def test_a_terminal_gets_colour(tmp_path: Path) -> None:
    assert "\033[32m+{\033[0m" in on_terminal(tmp_path)
    assert "\033" not in on_terminal(tmp_path, NO_COLOR="1")
