"""What the argument parsers of all commands for people have in common.

Belongs here: how help is laid out, mistakes in one line with the nearest name. Does not belong here: any option. The
hook and the runtime shim have no such parser, because argparse costs more than their own work: import this where a
parser is made, inside the function.
"""

import argparse
import difflib
from typing import Any, NoReturn

from nvinject.errors import UsageError


class Parser(argparse.ArgumentParser):
    """A parser whose mistakes are UsageErrors, and whose help keeps the lines of description and examples."""

    def __init__(self, **settings: Any) -> None:
        """Take argparse's own settings."""
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **settings})

    def error(self, message: str) -> NoReturn:
        """Tell what is wrong, and the nearest option; argparse would print all options above it."""
        _, unrecognized, words = message.partition("unrecognized arguments: ")
        if unrecognized:
            word = words.partition(" ")[0]
            message = f"unknown option or word {word!r}{suggest(word, [*options_of(self), *_options_below(self)])}"
        raise UsageError(message, f"see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            name = "/".join(action.option_strings) or str(action.metavar or action.dest)
            what = "unknown command" if name == "COMMAND" else f"{name}: unknown value"
            words = f"{what} {str(value)!r}{suggest(str(value), known)}; use one of {', '.join(known)}"
            raise argparse.ArgumentError(None, words)


def new_parser(program: str, description: str, epilog: str, *, allow_abbrev: bool = True) -> Parser:
    """Return a parser without options."""
    return Parser(prog=program, description=description, epilog=epilog, allow_abbrev=allow_abbrev)


def format_examples(lines: "tuple[str, ...]") -> str:
    """Return the end of a help text."""
    return "".join(("examples:\n", *(f"  {line}\n" for line in lines)))


def _options_below(parser: argparse.ArgumentParser) -> list[str]:
    below = commands_of(parser).values()
    return [option for one in below for option in (*options_of(one), *_options_below(one))]


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return the long options of a parser."""
    actions = parser._actions  # noqa: SLF001 - argparse has no public list of options
    return [option for action in actions for option in action.option_strings if option.startswith("--")]


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the sub-commands of a parser."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of sub-commands
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            found.update(action.choices)
    return found


def suggest(word: str, known: "list[str]") -> str:
    """Return the words `(did you mean ...?)` for the nearest name, nothing where none is near."""
    near = difflib.get_close_matches(word.partition("=")[0], known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""
