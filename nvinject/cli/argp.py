"""Command lines in the manner of GNU argp, for the name nvidia-container-cli, whose callers rely on it.

Belongs here: tables of options and the reading of words: abbreviations, bundled letters, optional arguments. Does not
belong here: what an option does. argparse reads such lines otherwise (it takes `-l` for the start of a value, knows no
optional argument behind `=` alone), and the original's scripts were written against argp.
"""

from nvinject.errors import UsageError
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Flag(Record):
    """An option. `argument` is the name of its value, "" where it takes none; `optional` values come only after `=`."""

    name: str
    letter: str = ""
    argument: str = ""
    optional: bool = False
    help: str = ""


HELP = Flag(name="help", letter="?", help="print this help")
USAGE = Flag(name="usage", help="print a short usage message")


class Words(Record):
    """What was read: every option in order with its value (None where none was given), and the other words."""

    options: tuple[tuple[str, str | None], ...]
    rest: tuple[str, ...]

    def has(self, name: str) -> bool:
        """Say whether an option was given."""
        return any(name == given for given, _ in self.options)

    def last(self, name: str) -> str | None:
        """Return the last value of an option, None where it was not given or has no value."""
        return next((value for given, value in reversed(self.options) if given == name), None)

    def every(self, name: str) -> tuple[str, ...]:
        """Return all values of an option, in order."""
        return tuple(value for given, value in self.options if given == name and value is not None)


def parse(words: "Sequence[str]", flags: tuple[Flag, ...], *, in_order: bool) -> Words:
    """Read words; `in_order` stops at the first one that is no option. Raises UsageError in getopt's words."""
    pending = list(words)
    options: list[tuple[str, str | None]] = []
    rest: list[str] = []
    while pending:
        word = pending.pop(0)
        if word == "--":
            rest += pending
            break
        if word.startswith("--"):
            options.append(_read_long(word, pending, (*flags, HELP, USAGE)))
        elif word.startswith("-") and word != "-":
            options += _read_letters(word, pending, (*flags, HELP, USAGE))
        elif in_order:
            rest = [word, *pending]
            break
        else:
            rest.append(word)
    return Words(options=tuple(options), rest=tuple(rest))


def _read_long(word: str, pending: list[str], flags: tuple[Flag, ...]) -> tuple[str, str | None]:
    name, equals, value = word[2:].partition("=")
    flag = _find(name, flags)
    if not flag.argument:
        if equals:
            raise UsageError(f"option '--{flag.name}' doesn't allow an argument")
        return flag.name, None
    if equals:
        return flag.name, value
    if flag.optional:
        return flag.name, None
    if not pending:
        raise UsageError(f"option '--{flag.name}' requires an argument")
    return flag.name, pending.pop(0)


def _find(name: str, flags: tuple[Flag, ...]) -> Flag:
    near = [flag for flag in flags if flag.name.startswith(name)]
    exact = [flag for flag in near if flag.name == name]
    if exact or len(near) == 1:
        return (exact or near)[0]
    if near:
        possible = " ".join(f"'--{flag.name}'" for flag in near)
        raise UsageError(f"option '--{name}' is ambiguous; possibilities: {possible}")
    raise UsageError(f"unrecognized option '--{name}'")


def _read_letters(word: str, pending: list[str], flags: tuple[Flag, ...]) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        flag = next((flag for flag in flags if flag.letter == letter), None)
        if flag is None:
            raise UsageError(f"invalid option -- '{letter}'")
        if not flag.argument:
            found.append((flag.name, None))
            continue
        value: str | None = letters or None
        if value is None and not flag.optional:
            if not pending:
                raise UsageError(f"option requires an argument -- '{letter}'")
            value = pending.pop(0)
        found.append((flag.name, value))
        break
    return found


def format_options(flags: tuple[Flag, ...]) -> str:
    """Return one line for each option: letter, name, value and what it is for."""
    lines = []
    for flag in (*flags, HELP, USAGE):
        value = f"[={flag.argument}]" if flag.optional else f"={flag.argument}" if flag.argument else ""
        left = f"  {f'-{flag.letter},' if flag.letter else '   '} --{flag.name}{value}"
        lines.append(f"{left:<36} {flag.help}\n")
    return "".join(lines)
