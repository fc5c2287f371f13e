"""Manual pages in the language of man(7), from sections of text, of terms, and of lines that are shown as they are.

Belongs here: the language, its escapes above all. Does not belong here: what pages say (cli.manual).
"""

from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Text(Record):
    """A paragraph, which is filled."""

    words: str


class Literal(Record):
    """Lines that are shown as they are."""

    lines: tuple[str, ...]


class Definitions(Record):
    """Terms with their meanings, as (names, value, meaning); the value is set apart from the names."""

    rows: tuple[tuple[tuple[str, ...], str, str], ...]


class Section(Record):
    """A section: its title in lower case, and what is in it."""

    title: str
    parts: "tuple[Any, ...]"  # of Text, Literal, Definitions


class Page(Record):
    """A page: its name, its section of the manual, one line about it, and its sections."""

    name: str
    section: int
    summary: str
    version: str
    sections: tuple[Section, ...]


if TYPE_CHECKING:
    Part = Text | Literal | Definitions
else:
    Part = object

_MANUALS = {1: "User Commands", 5: "File Formats"}


def format_page(page: Page, date: str = "") -> str:
    """Return the page's source."""
    title, source = page.name.upper(), f"nvinject {page.version}"
    lines = [
        '.\\" Made by `nvinject manual` from the texts that --help prints.',
        f'.TH {escape(title)} {page.section} "{escape(date)}" "{escape(source)}" "{_MANUALS[page.section]}"',
        # Neither words are broken nor lines stretched: most words are options and paths.
        ".nh",
        ".ad l",
        ".SH NAME",
        f"{escape(page.name)} \\- {escape(page.summary)}",
    ]
    for section in page.sections:
        lines.append(f'.SH "{escape(section.title.upper())}"')
        for part in section.parts:
            lines += format_part(part)
    return "\n".join(lines) + "\n"


def format_part(part: "Part") -> list[str]:
    """Return the lines of one part."""
    if isinstance(part, Text):
        return [".PP", _guarded(escape(part.words))]
    if isinstance(part, Literal):
        return [".PP", ".nf", ".RS", *(_guarded(escape(line)) for line in part.lines), ".RE", ".fi"]
    assert isinstance(part, Definitions)
    lines = []
    for names, value, meaning in part.rows:
        term = ", ".join(f"\\fB{escape(name)}\\fR" for name in names)
        lines += [".TP", f"{term} \\fI{escape(value)}\\fR" if value else term, _guarded(escape(meaning) or "\\&")]
    return lines


def escape(text: str) -> str:
    """Return text as it must be written: signs that mean something, and hyphens that shall stay ASCII hyphens."""
    signs = {
        "\\": "\\e",
        "-": "\\-",
        "'": "\\(aq",
        "`": "\\(ga",
        "^": "\\(ha",
        "~": "\\(ti",
        '"': "\\(dq",
        "\u2026": "...",
    }
    return "".join(signs.get(sign, sign) for sign in text)


def _guarded(line: str) -> str:
    # A line that begins with a dot would be a request.
    return f"\\&{line}" if line.startswith((".", "'")) else line
