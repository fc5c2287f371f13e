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

    Brackets stand for themselves. The work is bounded by the product of both lengths.
    """
    if name.startswith(".") and not pattern.startswith("."):
        return False
    at, here = 0, 0
    star, resume = -1, 0
    while here < len(name):
        if at < len(pattern) and pattern[at] == "*":
            star, resume = at, here
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", name[here]):
            at += 1
            here += 1
        elif star >= 0:
            resume += 1
            at, here = star + 1, resume
        else:
            return False
    return not pattern[at:].strip("*")
