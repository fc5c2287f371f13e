"""ld.so.conf: the directories that ldconfig searches, one a line, and include lines with patterns.

Belongs here: text to statements, and the two wildcards of include patterns. Does not belong here: opening included
files, limits on their number and size (render/loadercache.py).
"""

from nvinject.record import Record


class Directory(Record):
    """A directory to search, without trailing slashes; always absolute."""

    path: str


class Include(Record):
    """A pattern of files to read in place of the line; absolute, or relative to the including file's directory."""

    pattern: str


def parse_conf(text: str) -> "tuple[Directory | Include, ...]":
    """Return the statements in order.

    What ldconfig ignores or warns about is left out: comments, hwcap lines, relative directories, the library type
    after `=` (it told libc5 from libc6).
    """
    statements: list[Directory | Include] = []
    for line in text.split("\n"):
        words = line.partition("#")[0].partition("\0")[0].strip()
        keyword = words[:8].rstrip()
        if keyword == "include" and words[7:8] in ("", " ", "\t"):
            statements += (Include(pattern=pattern) for pattern in words[8:].split())
        elif words[:5].lower() == "hwcap" and words[5:6] in (" ", "\t"):
            continue
        elif words.startswith("/"):
            path = words.partition("=")[0].rstrip().rstrip("/")
            if path:
                statements.append(Directory(path=path))
    return tuple(statements)


def has_wildcard(pattern: str) -> bool:
    """Tell whether the text is a pattern and not a plain name."""
    return "*" in pattern or "?" in pattern


def matches(pattern: str, name: str) -> bool:
    """Tell whether a file name matches a pattern with `*` and `?`; as in a shell, a leading dot must be written out.

    Brackets stand for themselves. An image has many patterns and names: what lies between stars is searched for as a
    whole, which takes a hundredth of the time of a comparison by characters.
    """
    if name.startswith(".") and not pattern.startswith("."):
        return False
    first, *rest = pattern.split("*")
    if not rest:
        return len(first) == len(name) and _lies_at(first, name, 0)
    *middle, last = rest
    at, end = len(first), len(name) - len(last)
    if at > end or not _lies_at(first, name, 0) or not _lies_at(last, name, end):
        return False
    for part in middle:
        at = _find(part, name, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def _find(part: str, name: str, start: int, end: int) -> int:
    """Return where a part without stars lies first, before `end`; -1 for nowhere."""
    if "?" not in part:
        return name.find(part, start, end)
    return next((at for at in range(start, end - len(part) + 1) if _lies_at(part, name, at)), -1)


def _lies_at(part: str, name: str, at: int) -> bool:
    """Tell whether a part without stars, which is not longer than the rest of the name, lies at a place."""
    for piece in part.split("?"):
        if not name.startswith(piece, at):
            return False
        at += len(piece) + 1
    return True
