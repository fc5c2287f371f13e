"""Scripts that complete a program's commands, options and their values in bash, zsh and fish.

Belongs here: the three scripts, made from an argparse parser with one level of commands. Does not belong here: options
(each program's cli.py); nvconform's scripts are made here too.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nvfakes.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
DESCRIPTION = "Prints a script that completes commands, options and their values."

# A command is the first word that is one; behind -- begins another program's command line.
_BASH = """\
_{program}() {{
    local command="" word cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
    # bash parts words at = too
    if [ "$cur" = "=" ]; then cur=""; elif [ "$prev" = "=" ]; then prev="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$word" in
            --) COMPREPLY=($(compgen -c -f -- "$cur")); return ;;
            {commands}) command="${{command:-$word}}" ;;
        esac
    done
    case "$command $prev" in
{values}
        *)
            case "$command" in
{words}
            esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    [ "${{#COMPREPLY[@]}}" -gt 0 ] || COMPREPLY=($(compgen -f -- "$cur"))
}}
complete -o filenames -F _{program} {program}
"""
_ZSH = """\
#compdef {program}
local command="" word
for word in ${{words[2,CURRENT-1]}}; do
    case "$word" in
        (--) _files; return ;;
        ({commands}) command="${{command:-$word}}" ;;
    esac
done
case "$command $words[CURRENT-1]" in
{values}
esac
case "$command" in
{words}
esac
_files
"""
_FISH = """\
function __{program}_at --description 'succeeds where this command stands before the word'
    set -l command ""
    for word in (commandline -opc)[2..-1]
        switch "$word"
            case --
                return 1
            case {commands}
                test -z "$command"; and set command "$word"
        end
    end
    test "$command" = "$argv[1]"
end
"""


@dataclass(frozen=True)
class Word:
    """A word that can stand somewhere; `values` are those that follow it, `takes` tells of one that takes any."""

    text: str
    help: str = ""
    values: tuple[str, ...] = ()
    takes: bool = False


Places = Mapping[str, tuple[Word, ...]]


def script(shell: str, parser: argparse.ArgumentParser, known: Mapping[str, tuple[str, ...]]) -> str:
    """Return the script for a shell; `known` has the values of arguments that argparse does not know, by their names.

    Raises UsageError for another shell.
    """
    writers = {"bash": _write_bash, "zsh": _write_zsh, "fish": _write_fish}
    if shell not in writers:
        raise UsageError(f"{shell!r} is no shell that is known here; use one of {', '.join(SHELLS)}")
    return writers[shell](parser.prog, find_places(parser, known))


def find_places(parser: argparse.ArgumentParser, known: Mapping[str, tuple[str, ...]]) -> Places:
    """Return the words that can follow each command, and those that can stand first ("")."""
    below = _commands(parser)
    first = [Word(name, one.description or "") for name, one in below.items()]
    found = {"": (*first, *_words(parser, known))}
    return {**found, **{name: tuple(_words(one, known)) for name, one in below.items()}}


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of sub-commands
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            found.update(action.choices)
    return found


def _words(parser: argparse.ArgumentParser, known: Mapping[str, tuple[str, ...]]) -> Iterator[Word]:
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            continue
        values = tuple(map(str, action.choices)) if action.choices else known.get(action.dest, ())
        if not action.option_strings:
            yield from (Word(value) for value in values)
        for option in action.option_strings:
            if option != "-h":
                yield Word(option, action.help or "", values, takes=action.nargs != 0)


def _texts(words: tuple[Word, ...]) -> str:
    return " ".join(word.text for word in words)


def _taking(places: Places) -> Iterator[tuple[str, Word]]:
    return ((place, word) for place, words in places.items() for word in words if word.takes)


def _write_bash(program: str, places: Places) -> str:
    values = [f'        "{place} {word.text}") words="{" ".join(word.values)}" ;;' for place, word in _taking(places)]
    words = [f'                "{place}") words="{_texts(known)}" ;;' for place, known in places.items()]
    return _fill(_BASH, program, places, "|", values, words)


def _write_zsh(program: str, places: Places) -> str:
    values = []
    for place, word in _taking(places):
        follows = f"compadd -- {' '.join(word.values)}" if word.values else "_files"
        values.append(f'("{place} {word.text}") {follows}; return ;;')
    first, *others = places.items()
    described = " ".join(_quoted(f"{word.text}:{word.help}") for word in first[1])
    words = [f'("") local -a commands=({described}); _describe command commands; return ;;']
    words += [f'("{place}") compadd -- {_texts(known)} && return ;;' for place, known in others]
    return _fill(_ZSH, program, places, "|", values, words)


def _write_fish(program: str, places: Places) -> str:
    lines = [_fill(_FISH, program, places, " ", [], [])]
    for place, words in places.items():
        start = f"complete -c {program} -n '__{program}_at \"{place}\"'"
        if not all(word.text.startswith("-") for word in words):
            lines.append(f"{start} -f\n")  # no files where there are other words
        for word in words:
            form = f"-l {word.text[2:]}" if word.text.startswith("--") else f"-s {word.text[1:]}"
            form = form if word.text.startswith("-") else f"-a {word.text}"
            follows = f" -x -a {_quoted(' '.join(word.values))}" if word.values else " -r -F" if word.takes else ""
            lines.append(f"{start} {form}{follows} -d {_quoted(word.help)}\n")
    return "".join(lines)


def _fill(form: str, program: str, places: Places, separator: str, values: list[str], words: list[str]) -> str:
    commands = separator.join(f'"{place}"' for place in places if place)
    return form.format(program=program, commands=commands, values="\n".join(values), words="\n".join(words))


def _quoted(text: str) -> str:
    """Return a text in quotes that all three shells take alike."""
    return "'" + text.replace("\\", "").replace("'", "").replace("%%", "%").replace("\n", " ") + "'"
