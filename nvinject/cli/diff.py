"""Changes of files as people read them: a unified diff, in colour on a terminal.

Belongs here: the diff's text. Does not belong here: making a change (nvinject.engines.files).
"""

import os
import sys

from nvinject.errors import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_COLOURS = {"+": "\033[32m", "-": "\033[31m", "@": "\033[36m"}
_RESET = "\033[0m"


def wants_colour() -> bool:
    """Return whether standard output is a terminal whose owner has not said NO_COLOR (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def format_diff(path: str, before: bytes | None, after: bytes | None, *, colour: bool = False) -> str:
    """Return the difference of two contents of a file, "" if there is none; None stands for no file."""
    import difflib

    names = ("/dev/null" if before is None else path, "/dev/null" if after is None else path)
    lines = difflib.unified_diff(_lines(before), _lines(after), *names, lineterm="")
    return "".join(_format(line, colour=colour) for line in lines)


def _lines(content: bytes | None) -> list[str]:
    return (content or b"").decode(errors="backslashreplace").splitlines(keepends=True)


def _format(line: str, *, colour: bool) -> str:
    """Return one line of a diff as diff(1) shows it, with whatever would steer a terminal escaped."""
    text = "".join(_printable_parts(line.rstrip("\n")))
    missing = line[:1] in {"+", "-", " "} and not line.endswith("\n") and line[:4] not in {"--- ", "+++ "}
    tint = _COLOURS.get(line[:1], "") if colour else ""
    ending = "\n\\ No newline at end of file\n" if missing else "\n"
    return f"{tint}{text}{_RESET if tint else ''}{ending}"


def _printable_parts(line: str) -> "Iterator[str]":
    parts = line.split("\t")
    yield printable(parts[0])
    for part in parts[1:]:
        yield "\t"
        yield printable(part)
