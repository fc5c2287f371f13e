"""TOML documents as text: which statements there are, and where each of them and of its values stands.

Belongs here: finding places, in a document that tomllib accepts. Does not belong here: changing it (tomltext.py), and
what a key means.
"""

from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Path = tuple[str, ...]

PAIR, TABLE, TABLES, COMMENT = "pair", "table", "array of tables", "comment"
BLANK = " \t"


class EditError(ValueError):
    """The document cannot be edited this way; `line` and `column` count from 1, 0 where there is no place."""

    def __init__(self, reason: str, line: int = 0, column: int = 0) -> None:
        """Keep reason and place."""
        super().__init__(reason)
        self.reason = reason
        self.line = line
        self.column = column


class Statement(Record):
    """A pair, a header or a comment line: `key` is absolute, `value` to `value_end` the value (or the whole text).

    `start` and `end` bound its lines, line end included; `table` is the table that a pair stands in. What stands
    below an array of tables has `listed` set.
    """

    kind: str
    key: "Path" = ()
    table: "Path" = ()
    start: int
    end: int
    value: int
    value_end: int
    listed: bool = False


class Element(Record):
    """An element of an array, or a member of an inline table, with its span; `key` is empty in arrays."""

    key: "Path" = ()
    start: int
    value: int
    end: int


def parse(text: str) -> "dict[str, Any]":
    """Return the values of a document; raises EditError with the place of the first mistake."""
    import tomllib  # commands of people only

    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise EditError("nested too deeply") from error
    except ValueError as error:
        reason, line, column = locate(str(error), text)
        raise EditError(reason, line, column) from error


def locate(message: str, text: str) -> tuple[str, int, int]:
    """Split tomllib's message in reason, line and column (0 where it has none)."""
    reason, found, place = message.partition(" (at ")
    reason = reason[:1].lower() + reason[1:]
    place = place.rstrip(")")
    if place == "end of document":
        return reason, *place_of(text, len(text))
    numbers = [word.rstrip(",") for word in place.split() if word.rstrip(",").isdecimal()]
    return (reason, int(numbers[0]), int(numbers[1])) if found and len(numbers) == 2 else (reason, 0, 0)


def place_of(text: str, offset: int) -> tuple[int, int]:
    """Return line and column of an offset."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def newline_of(text: str) -> str:
    """Return how the document ends its lines, as its first line does."""
    end = text.find("\n")
    return "\r\n" if end > 0 and text[end - 1] == "\r" else "\n"


def scan(text: str) -> tuple[Statement, ...]:
    """Return the statements of a valid document in order; for an invalid one the result means nothing."""
    try:
        return tuple(_Scanner(text).statements())
    except RecursionError as error:  # our frames are not quite the parser's
        raise EditError("nested too deeply") from error


def elements(text: str, at: int) -> "tuple[list[Element], int]":
    """Return what the array or inline table that begins at an offset holds, and where it ends."""
    scanner = _Scanner(text, at)
    return scanner.elements(), scanner.at


class _Scanner:
    """Goes through a document that tomllib accepts; hence it looks for ends and checks nothing."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text = text
        self.at = at
        self.lists: list[Path] = []

    def statements(self) -> "Iterator[Statement]":
        table: Path = ()
        listed = False
        while self.at < len(self.text):
            start = self.at
            self.skip(BLANK)
            character = self.text[self.at : self.at + 1]
            first = self.at
            if character in {"", "\r", "\n"}:
                self.finish_line()
            elif character == "#":
                self.finish_line()
                end = len(self.text[first : self.at].rstrip("\r\n")) + first
                yield Statement(kind=COMMENT, table=table, start=start, end=self.at, value=first, value_end=end)
            elif character == "[":
                kind = TABLES if self.text.startswith("[[", self.at) else TABLE
                self.skip("[")
                table = self.key()
                self.skip("] \t")
                end = self.at
                listed = self.is_listed(kind, table)
                self.finish_line()
                yield Statement(kind=kind, key=table, start=start, end=self.at, value=first, value_end=end)
            else:
                key = (*table, *self.key())
                self.skip("= \t")
                value = self.at
                self.value()
                end = self.at
                self.finish_line()
                yield Statement(
                    kind=PAIR, key=key, table=table, start=start, end=self.at, value=value, value_end=end, listed=listed
                )

    def is_listed(self, kind: str, table: "Path") -> bool:
        """Return whether a header opens an array of tables or stands below one."""
        if kind == TABLES:
            self.lists.append(table)
        return any(table[: len(one)] == one for one in self.lists)

    def skip(self, characters: str) -> None:
        while self.at < len(self.text) and self.text[self.at] in characters:
            self.at += 1

    def finish_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end + 1

    def key(self) -> "Path":
        """Read a dotted key and the blanks around it."""
        parts = []
        while True:
            self.skip(BLANK)
            start = self.at
            if self.text[start : start + 1] in {'"', "'"}:
                self.string()
                parts.append(parse(f"key = {self.text[start : self.at]}")["key"])
            else:
                while self.at < len(self.text) and self.text[self.at] not in " \t.=]":
                    self.at += 1
                parts.append(self.text[start : self.at])
            self.skip(BLANK)
            if self.text[self.at : self.at + 1] != ".":
                return tuple(parts)
            self.at += 1

    def value(self) -> None:
        character = self.text[self.at : self.at + 1]
        if character in {'"', "'"}:
            self.string()
        elif character in {"[", "{"}:
            self.elements()
        else:
            start = self.at
            while self.at < len(self.text) and self.text[self.at] not in ",]}#\r\n":
                self.at += 1
            self.at = start + len(self.text[start : self.at].rstrip())

    def string(self) -> None:
        quote = self.text[self.at]
        delimiter = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(delimiter)
        while self.at < len(self.text) and not self.text.startswith(delimiter, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(delimiter)
        if len(delimiter) == 3:  # up to two quotes may stand before the closing three
            extra = len(self.text[self.at : self.at + 2]) - len(self.text[self.at : self.at + 2].lstrip(quote))
            self.at += extra

    def elements(self) -> "list[Element]":
        """Read an array or an inline table; ends behind its bracket."""
        found: list[Element] = []
        keyed = self.text[self.at] == "{"
        self.at += 1
        while True:
            self.skip_between()
            start = self.at
            if self.text[start : start + 1] in {"]", "}", ""}:
                self.at += 1
                return found
            key: Path = ()
            if keyed:
                key = self.key()
                self.skip("= \t")
            value = self.at
            self.value()
            found.append(Element(key=key, start=start, value=value, end=self.at))

    def skip_between(self) -> None:
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                self.finish_line()
            elif self.text[self.at] in " \t\r\n,":
                self.at += 1
            else:
                return
