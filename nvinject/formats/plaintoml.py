"""TOML as people write config.toml: read without a parser for all of TOML, whose import alone costs 10 ms.

Belongs here: a strict reader of a subset, line by line: comments, [table] headers, and bare keys with a string without
escapes, an integer, true, false, or an array of such strings on one line. For anything else it answers that it cannot
say (None), and tomllib has to; for what it takes, it gives what tomllib gives. Does not belong here: what values mean
(config.py), errors for people (tomllib's).
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BARE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_MAXIMUM_DIGITS = 18


class _NotPlainError(Exception):
    """The text is beyond the subset."""


def parse_plain(text: str) -> "dict[str, Any] | None":
    """Return the document's values, or None where it takes a whole parser to say what it holds."""
    document: dict[str, Any] = {}
    table = document
    headers: set[str] = set()
    try:
        for raw in text.split("\n"):
            line = raw.strip(" \t")
            if not line.isprintable() and not line.replace("\t", " ").isprintable():
                return None
            if not line or line.startswith("#"):
                continue
            if line.startswith("["):
                table = _open_table(document, _read_header(line), headers)
            else:
                key, equals, value = line.partition("=")
                key = key.rstrip(" \t")
                if not equals or not _is_bare(key) or key in table:
                    return None
                table[key] = _read_value(value.lstrip(" \t"))
    except _NotPlainError:
        return None
    return document


def _is_bare(key: str) -> bool:
    return bool(key) and _BARE.issuperset(key)


def _read_header(line: str) -> str:
    name, closing, rest = line[1:].partition("]")
    if not closing or not _is_end(rest) or not all(_is_bare(part) for part in name.split(".")):
        raise _NotPlainError
    return name


def _open_table(document: "dict[str, Any]", name: str, headers: "set[str]") -> "dict[str, Any]":
    if name in headers:
        raise _NotPlainError
    headers.add(name)
    table = document
    for part in name.split("."):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise _NotPlainError
    return table


def _is_end(rest: str) -> bool:
    """Tell whether nothing but a comment follows."""
    rest = rest.lstrip(" \t")
    return not rest or rest.startswith("#")


def _read_value(text: str) -> "Any":
    if text.startswith(('"', "'")):
        value: Any
        value, rest = _read_string(text)
    elif text.startswith("["):
        value, rest = _read_array(text)
    else:
        word, mark, _ = text.partition("#")
        value, rest = _read_word(word.rstrip(" \t")), mark
    if not _is_end(rest):
        raise _NotPlainError
    return value


def _read_string(text: str) -> tuple[str, str]:
    """Return the string at the beginning of the text, and what follows it."""
    value, closing, rest = text[1:].partition(text[0])
    # An empty string with a quote behind it begins a string over several lines.
    if not closing or (text[0] == '"' and "\\" in value) or rest.startswith(text[0]):
        raise _NotPlainError
    return value, rest


def _read_array(text: str) -> "tuple[list[str], str]":
    """Return the strings of the array at the beginning of the text, and what follows it."""
    values = []
    rest = text[1:].lstrip(" \t")
    while not rest.startswith("]"):
        if not rest.startswith(('"', "'")):
            raise _NotPlainError
        value, rest = _read_string(rest)
        values.append(value)
        rest = rest.lstrip(" \t")
        if rest.startswith(","):
            rest = rest[1:].lstrip(" \t")
        elif not rest.startswith("]"):
            raise _NotPlainError
    return values, rest[1:]


def _read_word(word: str) -> "bool | int":
    if word in {"true", "false"}:
        return word == "true"
    if not (word.isascii() and word.isdigit()) or len(word) > _MAXIMUM_DIGITS or (word[0] == "0" and word != "0"):
        raise _NotPlainError
    return int(word)
