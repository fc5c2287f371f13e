"""JSON documents as text: setting a member so that every other byte stays.

Belongs here: finding and splicing, in the document's own indentation and line ends. Does not belong here: what a member
means, and reading JSON for its values (jsonio.py, whose errors have a place).
"""

from nvinject.formats.jsonio import JSONError, loads
from nvinject.formats.tomlscan import newline_of, place_of
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Path = tuple[str, ...]

DEFAULT_INDENT = "    "
_BLANK = " \t\r\n"


class Member(Record):
    """A member of an object: where its key begins, its value begins, and its value ends."""

    key: str
    start: int
    value: int
    end: int


def parse(text: str) -> "Any":
    """Return the value of a document, an empty object for one without content.

    Raises JSONError, which says so where the mistake is a comment or a comma too many.
    """
    if not text.strip(_BLANK):
        return {}
    try:
        return loads(text)
    except JSONError as error:
        raise _explained(error, text) from error


def _explained(error: JSONError, text: str) -> JSONError:
    if not error.line:
        return error
    lines = text.split("\n")
    rest = lines[error.line - 1][error.column - 1 :].lstrip()
    if rest.startswith(("//", "/*", "#")):
        return JSONError("JSON has no comments", error.line, error.column)
    at = sum(len(line) + 1 for line in lines[: error.line - 1]) + error.column - 1
    before = text[:at].rstrip(_BLANK)
    if rest[:1] in {"}", "]"} and before.endswith(","):
        return JSONError("A comma before the closing bracket", *place_of(text, len(before) - 1))
    if rest.startswith(",") and text[at + 1 :].lstrip(_BLANK)[:1] in {"}", "]"}:  # where newer interpreters point at
        return JSONError("A comma before the closing bracket", error.line, error.column)
    return error


def set_member(text: str, path: "Path", value: "Any") -> str:
    """Return the document with a value at a path of names; unchanged if it is there already.

    Raises JSONError if the document is no JSON, or something on the path is not an object or stands there twice.
    """
    if not text.strip(_BLANK):
        return _set(text + "{}", len(text), path, value) + "\n"
    parse(text)
    start = len(text) - len(text.lstrip(_BLANK))
    try:
        return _set(text, start, path, value)
    except RecursionError:  # our frames are not quite the parser's
        raise JSONError("The document is nested too deeply") from None


def _set(text: str, at: int, path: "Path", value: "Any") -> str:
    if text[at] != "{":
        raise JSONError("Not an object", *place_of(text, at))
    members = read_members(text, at)
    named = [member for member in members if member.key == path[0]]
    if len(named) > 1:
        raise JSONError(f"{path[0]} stands here a second time", *place_of(text, named[1].start))
    if not named:
        for name in reversed(path[1:]):
            value = {name: value}
        return _insert(text, at, members, path[0], value)
    (member,) = named
    if len(path) > 1:
        return _set(text, member.value, path[1:], value)
    there = loads(text[member.value : member.end])
    if type(there) is type(value) and there == value:
        return text
    return text[: member.value] + _dump(text, value, _depth(text, member.start)) + text[member.end :]


def read_members(text: str, at: int) -> tuple[Member, ...]:
    """Return the members of the object that begins at an offset of a valid document."""
    from json import JSONDecoder

    decode = JSONDecoder().raw_decode
    found: list[Member] = []
    at += 1
    while True:
        at = _skip(text, at, _BLANK + ",")
        if text[at] == "}":
            return tuple(found)
        key, end = decode(text, at)
        value = _skip(text, end, _BLANK + ":")
        _, end = decode(text, value)
        found.append(Member(key=key, start=at, value=value, end=end))
        at = end


def close_of(text: str, at: int) -> int:
    """Return the offset of the bracket that closes the object at an offset."""
    members = read_members(text, at)
    return _skip(text, members[-1].end if members else at + 1, _BLANK)


def _skip(text: str, at: int, characters: str) -> int:
    while at < len(text) and text[at] in characters:
        at += 1
    return at


def _insert(text: str, at: int, members: tuple[Member, ...], name: str, value: "Any") -> str:
    """Add a member behind the last one, on a line of its own if the last one has that."""
    key = _dump_plain(name)
    newline = newline_of(text)
    if not members:
        depth = _line_indent(text, at)
        inner = depth + _unit(text)
        body = f"{newline}{inner}{key}: {_dump(text, value, inner)}{newline}{depth}"
        return f"{text[: at + 1]}{body}{text[close_of(text, at) :]}"
    last = members[-1]
    depth = _depth(text, last.start)
    if depth == _INLINE:
        return f"{text[: last.end]}, {key}: {_dump_plain(value)}{text[last.end :]}"
    return f"{text[: last.end]},{newline}{depth}{key}: {_dump(text, value, depth)}{text[last.end :]}"


_INLINE = "inline"


def _depth(text: str, start: int) -> str:
    """Return the blanks before a member, _INLINE if it shares its line with something."""
    line = text[text.rfind("\n", 0, start) + 1 : start]
    return line if not line.strip(_BLANK) and "\n" in text[:start] else _INLINE


def _line_indent(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    """Return one step of the document's indentation, as its first indented line has it."""
    for line in text.split("\n"):
        blank = line[: len(line) - len(line.lstrip(" \t"))]
        if blank and line.strip(_BLANK):
            return blank
    return DEFAULT_INDENT


def _dump(text: str, value: "Any", depth: str) -> str:
    """Return a value as the document would write it behind a key that stands at a depth."""
    if depth == _INLINE:
        return _dump_plain(value)
    import json

    lines = json.dumps(value, indent=_unit(text), ensure_ascii=False).split("\n")
    return f"{newline_of(text)}{depth}".join(lines)


def _dump_plain(value: "Any") -> str:
    import json

    return json.dumps(value, ensure_ascii=False)
