"""Edits of TOML documents that leave every other byte alone.

Belongs here: splicing; the documents are people's files, with their comments, order and line ends. tomlkit would keep
comments, but it ends its new lines with a bare newline in a CRLF file, puts new keys of a table behind the comment of
the next one and refuses a byte order mark. Does not belong here: where things stand (tomlscan.py), and what a key
means. Every edit is checked by parsing the result: it differs from the document in the value that was asked for, or
EditError is raised.
"""

from nvinject.formats.tomlscan import (
    BLANK,
    COMMENT,
    PAIR,
    TABLE,
    TABLES,
    EditError,
    Statement,
    elements,
    newline_of,
    parse,
    place_of,
    scan,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from nvinject.formats.tomlscan import Path

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def lookup(values: "Mapping[str, Any]", path: "Path") -> "Any":
    """Return the value at a path, None where there is none (TOML has no null)."""
    found: Any = values
    for name in path:
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    return found


def set_value(text: str, path: "Path", value: "Any") -> str:
    """Return the document with a value at a path; unchanged if it is there already. Raises EditError."""
    before = parse(text)
    if _same(lookup(before, path), value):
        return text
    return _checked(_set(text, path, value), _with_value(before, path, value), text, path)


def remove_value(text: str, path: "Path") -> str:
    """Return the document without the pair at a path; unchanged if there is none. Raises EditError."""
    before = parse(text)
    if lookup(before, path) is None:
        return text
    return _checked(_remove(text, path), _without(before, path), text, path)


def append_value(text: str, path: "Path", value: "Any") -> str:
    """Return the document with one more element in the array at a path, which is made if need be. Raises EditError."""
    before = parse(text)
    there = lookup(before, path)
    if there is None:
        return set_value(text, path, [value])
    pair = _find_pair(text, path)
    if not isinstance(there, list):
        raise EditError(f"{dotted(path)} is not an array", *place_of(text, pair.value if pair else 0))
    if pair is None:
        return set_value(text, path, [*there, value])
    try:
        return _checked(_append(text, pair, value), _with_value(before, path, [*there, value]), text, path)
    except EditError:  # commas in odd places: the array is written anew
        return set_value(text, path, [*there, value])


def find_line(text: str, path: "Path") -> int:
    """Return the line of a pair or header, 0 where the path is not spelled out."""
    for statement in scan(text):
        if statement.kind != COMMENT and statement.key == path and not statement.listed:
            return place_of(text, statement.start)[0]
    return 0


def _same(one: "Any", other: "Any") -> bool:
    return type(one) is type(other) and bool(one == other)  # True == 1


def _checked(after: str, expected: "dict[str, Any]", before: str, path: "Path") -> str:
    try:
        if parse(after) == expected:
            return after
    except EditError:
        pass
    raise EditError(
        f"{dotted(path)} is written in a way that cannot be edited without risk", find_line(before, path[:1]), 1
    )


def _find_pair(text: str, path: "Path") -> Statement | None:
    pairs = (one for one in scan(text) if one.kind == PAIR and not one.listed)
    return next((pair for pair in pairs if pair.key == path), None)


def _set(text: str, path: "Path", value: "Any") -> str:
    for statement in scan(text):
        if statement.kind == TABLES and statement.key == path[: len(statement.key)]:
            raise EditError(f"{dotted(statement.key)} is an array of tables", *place_of(text, statement.start))
        if statement.kind != PAIR or statement.listed or statement.key != path[: len(statement.key)]:
            continue
        if statement.key == path:
            return text[: statement.value] + format_value(value) + text[statement.value_end :]
        if text[statement.value] != "{":
            raise EditError(f"{dotted(statement.key)} is not a table", *place_of(text, statement.value))
        return _set_inline(text, statement.value, path[len(statement.key) :], value)
    return _insert(text, path, value)


def _set_inline(text: str, at: int, path: "Path", value: "Any") -> str:
    """Set a value below the inline table that begins at an offset."""
    members, behind = elements(text, at)
    for member in members:
        if member.key == path:
            return text[: member.value] + format_value(value) + text[member.end :]
        if member.key == path[: len(member.key)] and text[member.value] == "{":
            return _set_inline(text, member.value, path[len(member.key) :], value)
    new = f"{dotted(path)} = {format_value(value)}"
    if not members:
        return f"{text[:at]}{{ {new} }}{text[behind:]}"
    end = members[-1].end
    return f"{text[:end]}, {new}{text[end:]}"


def _insert(text: str, path: "Path", value: "Any") -> str:
    """Add a pair for a key that the document does not have."""
    statements = scan(text)
    parent = path[:-1]
    opened = [one for one in statements if one.kind == TABLE and one.key == parent]
    if value == {} and isinstance(value, dict):
        return _append_table(text, path, "")
    if opened or not parent:
        region = _region(statements, opened[0] if opened else None)
        return _insert_in_table(text, opened[0] if opened else None, region, path, value)
    beside = [
        one
        for one in statements
        if one.kind == PAIR and not one.listed and len(one.table) < len(parent) and one.key[: len(parent)] == parent
    ]
    if beside:  # the table exists by dotted keys only: a header for it would be a second definition
        anchor = beside[-1]
        return _insert_line(text, anchor, f"{dotted(path[len(anchor.table) :])} = {format_value(value)}")
    return _append_table(text, parent, f"{dotted(path[-1:])} = {format_value(value)}")


def _region(statements: tuple[Statement, ...], header: Statement | None) -> tuple[Statement, ...]:
    """Return what stands between a header (the beginning for None) and the next one."""
    start = statements.index(header) + 1 if header else 0
    end = next((i for i in range(start, len(statements)) if statements[i].kind in {TABLE, TABLES}), len(statements))
    return statements[start:end]


def _insert_in_table(
    text: str, header: Statement | None, region: tuple[Statement, ...], path: "Path", value: "Any"
) -> str:
    commented = [(one, _commented_value(text, one, path[-1])) for one in region if one.kind == COMMENT]
    for comment, there in reversed(commented):
        if _same(there, value):
            body = text[comment.value + 1 :].lstrip(BLANK)
            return text[: comment.value] + body
    line = f"{dotted(path[-1:])} = {format_value(value)}"
    mentioned = [comment for comment, there in commented if there is not None]
    pairs = [one for one in region if one.kind == PAIR]
    anchors = mentioned or pairs or ([header] if header else [])
    if anchors:
        return _insert_line(text, anchors[-1], line)
    at = _behind_preamble(text, region)
    return f"{text[:at]}{line}{newline_of(text)}{text[at:]}"


def _commented_value(text: str, comment: Statement, name: str) -> "Any":
    """Return the value of a pair that was made a comment, None if the comment is anything else."""
    body = text[comment.value : comment.value_end].lstrip("#").strip()
    if body.partition("=")[0].strip().strip("\"'") != name:
        return None
    try:
        return parse(body).get(name)
    except EditError:
        return None


def _insert_line(text: str, anchor: Statement, line: str) -> str:
    """Put a line behind a statement, indented like it; a document without a final newline stays without."""
    first = text[anchor.start : anchor.end]
    indent = first[: len(first) - len(first.lstrip(BLANK))]
    if anchor.kind == TABLE and indent:
        indent += "  "
    newline = newline_of(text)
    if not text[: anchor.end].endswith("\n"):
        return f"{text}{newline}{indent}{line}"
    return f"{text[: anchor.end]}{indent}{line}{newline}{text[anchor.end :]}"


def _behind_preamble(text: str, region: tuple[Statement, ...]) -> int:
    """Return the offset behind the comments at the top, if an empty line parts them from the first table."""
    at = 0
    for comment in region:
        if comment.start != at:
            break
        at = comment.end
    rest = text[at:]
    blank = len(rest) - len(rest.lstrip(" \t\r\n"))
    return at + blank if at and "\n" in rest[:blank] else 0


def _append_table(text: str, path: "Path", line: str) -> str:
    newline = newline_of(text)
    ended = text.endswith("\n") or not text
    before = text if ended else text + newline
    gap = newline if before.strip() and not before.endswith(("\n\n", "\n\r\n")) else ""
    added = f"{before}{gap}[{dotted(path)}]{newline}{line}{newline if line else ''}"
    return added if ended else added[: -len(newline)]


def _append(text: str, pair: Statement, value: "Any") -> str:
    """Add an element to an array, in the way that its last element is written."""
    members, _ = elements(text, pair.value)
    new = format_value(value)
    if not members:
        return f"{text[: pair.value]}[{new}]{text[pair.value_end :]}"
    last = members[-1]
    behind = text[last.end : pair.value_end - 1]
    comma = len(behind) - len(behind.lstrip(" \t\r\n")) if behind.lstrip(" \t\r\n").startswith(",") else -1
    line_end = text.find("\n", last.end, pair.value_end)
    line_start = text.rfind("\n", 0, last.start) + 1
    if line_end < 0 or line_start <= pair.value:
        at = last.end + comma + 1 if comma >= 0 else last.end
        return f"{text[:at]}{' ' if comma >= 0 else ', '}{new}{',' if comma >= 0 else ''}{text[at:]}"
    indent = text[line_start : last.start]
    behind_line = line_end + 1
    line = f"{indent}{new}{',' if comma >= 0 else ''}{newline_of(text)}"
    separator = "" if comma >= 0 else ","
    return f"{text[: last.end]}{separator}{text[last.end : behind_line]}{line}{text[behind_line:]}"


def _remove(text: str, path: "Path") -> str:
    pair = _find_pair(text, path)
    if pair is None:
        return text
    before, after = text[: pair.start], text[pair.end :]
    if not after and not text.endswith("\n"):
        before = before.removesuffix("\n").removesuffix("\r")
    return before + after


def _with_value(values: "dict[str, Any]", path: "Path", value: "Any") -> "dict[str, Any]":
    if len(path) == 1:
        return {**values, path[0]: value}
    below = values.get(path[0], {})
    return {**values, path[0]: _with_value(below if isinstance(below, dict) else {}, path[1:], value)}


def _without(values: "dict[str, Any]", path: "Path") -> "dict[str, Any]":
    if len(path) == 1:
        return {name: value for name, value in values.items() if name != path[0]}
    return {**values, path[0]: _without(values[path[0]], path[1:])}


# Writing


def dotted(path: "Path") -> str:
    """Return a key as TOML writes it, quoted where it must be."""
    return ".".join(name if _is_bare(name) else _format_string(name) for name in path)


def _is_bare(name: str) -> bool:
    return name != "" and name.isascii() and name.replace("-", "a").replace("_", "a").isalnum()


def format_value(value: "Any") -> str:
    """Return a value as TOML writes it, tables inline."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _format_string(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(format_value, value))}]"
    if isinstance(value, dict):
        members = ", ".join(f"{dotted((name,))} = {format_value(member)}" for name, member in value.items())
        return f"{{ {members} }}" if members else "{}"
    # dates and times are written as ISO 8601; a number is what Python writes, too
    return value.isoformat() if hasattr(value, "isoformat") else repr(value)


def _format_string(value: str) -> str:
    escaped = "".join(_ESCAPES.get(c) or (c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}") for c in value)
    return f'"{escaped}"'


def format_document(values: "Mapping[str, Any]", path: "Path" = ()) -> str:
    """Return a new document: the plain values of each table below its header, then the tables in it."""
    plain = {name: value for name, value in values.items() if not isinstance(value, dict)}
    tables = {name: value for name, value in values.items() if isinstance(value, dict)}
    header = f"[{dotted(path)}]\n" if path and (plain or not tables) else ""
    lines = "".join(f"{dotted((name,))} = {format_value(value)}\n" for name, value in plain.items())
    parts = [header + lines] if header + lines else []
    parts += [part for name, table in tables.items() if (part := format_document(table, (*path, name)))]
    return "\n".join(parts)
