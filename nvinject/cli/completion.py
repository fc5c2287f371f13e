"""nvinject completion: scripts that complete commands, options and their values in bash, zsh and fish.

Belongs here: the three scripts, made from a table of places, and the values that argparse does not know. Does not
belong here: the options themselves; each parser is asked for its own.
"""

import sys

from nvinject.errors import UsageError
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

HELP = """\
usage: nvinject completion (bash | zsh | fish)

Prints a script that completes commands and options of nvinject, nvidia-ctk, nvidia-container-cli and nvidia-cdi-hook.

examples:
  nvinject completion bash > /etc/bash_completion.d/nvinject
  nvinject completion zsh > /usr/share/zsh/vendor-completions/_nvinject
  nvinject completion fish > ~/.config/fish/completions/nvinject.fish
"""
SHELLS = ("bash", "zsh", "fish")
# Names of the original that complete too, and the place where each begins.
PROGRAMS = {"nvidia-ctk": " ctk", "nvidia-container-cli": " container-cli", "nvidia-cdi-hook": " cdi-hook"}

_PROGRAMS = " ".join(PROGRAMS)
# The script keeps, as context, the commands that stand before the word, each after a space.
BASH = """\
_nvinject() {{
    local context="" word cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
    case "${{COMP_WORDS[0]##*/}}" in
{names}
    esac
    # bash parts words at = too
    if [ "$cur" = "=" ]; then cur=""; elif [ "$prev" = "=" ]; then prev="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$context $word" in
            {contexts}) context="$context $word" ;;
        esac
    done
    case "$context $prev" in
{values}
        *)
            case "$context" in
{words}
            esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    [ "${{#COMPREPLY[@]}}" -gt 0 ] || COMPREPLY=($(compgen -f -- "$cur"))
}}
complete -o filenames -F _nvinject nvinject {programs}
"""
ZSH = """\
#compdef nvinject {programs}
local context="" word
case "${{words[1]:t}}" in
{names}
esac
for word in ${{words[2,CURRENT-1]}}; do
    case "$context $word" in
        ({contexts}) context="$context $word" ;;
    esac
done
case "$context $words[CURRENT-1]" in
{values}
esac
case "$context" in
{words}
esac
_files
"""
FISH = """\
function __nvinject_at --description 'succeeds where these commands stand before the word'
    set -l context ""
    set -l words (commandline -opc)
    switch (string replace -r '.*/' '' -- "$words[1]")
{names}
    end
    for word in $words[2..-1]
        switch "$context $word"
            case {contexts}
                set context "$context $word"
        end
    end
    test "$context" = "$argv[1]"
end
"""


class Word(Record):
    """A word that can stand in a place. `values` are those that follow it; `takes` tells of one that takes any."""

    text: str
    help: str = ""
    values: tuple[str, ...] = ()
    takes: bool = False


class Place(Record):
    """What can follow after some commands: "" is the beginning, " cdi generate" a command with its sub-command."""

    context: str
    words: tuple[Word, ...]


def main(arguments: "list[str]") -> int:
    """Print the script for the shell that is named."""
    if arguments[:1] in (["-h"], ["--help"]):
        sys.stdout.write(HELP)
        return 0
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise UsageError("which shell?", f"use one of {', '.join(SHELLS)}")
    formats = {"bash": format_bash, "zsh": format_zsh, "fish": format_fish}
    sys.stdout.write(formats[arguments[0]](find_words()))
    return 0


def find_words() -> "tuple[Place, ...]":
    """Return all places and the words that can stand there."""
    from nvinject.cli.main import COMMANDS

    beginning = tuple(Word(text=name, help=summary) for name, _, summary in COMMANDS)
    found = [Place(context="", words=beginning)]
    for name, module, _ in COMMANDS:
        found += _places(name, __import__(module, fromlist=["main"]))
    return tuple(found)


def _places(name: str, command: "object") -> "Iterator[Place]":
    """Return the places after a command."""
    from nvinject.cli import cdihook, configure, containercli, ctk, hook

    context = f" {name}"
    plain = {
        "hook": (*hook.WORKING_STAGES, *hook.IDLE_STAGES, "-config", "-debug", "-version"),
        "runtime": ("configure", "--as", "--low-level", "--help"),
        "create-container": ("--help",),
        "cdi-hook": (*cdihook.OPTIONS, "--help"),
        "ctk": (*ctk.COMMANDS, "--help"),
        "container-cli": (*containercli.COMMANDS, *(f"--{flag.name}" for flag in containercli.GLOBAL_FLAGS)),
        "completion": SHELLS,
    }
    if name in plain:
        yield Place(context=context, words=tuple(Word(text=word, takes=word == "-config") for word in plain[name]))
    else:
        yield from _places_of(context, command.parser())  # type: ignore[attr-defined]
    if name == "runtime":
        yield from _places_of(f"{context} configure", configure.parser())
    if name == "ctk":
        yield from _places_of_ctk(context)
    if name == "container-cli":
        for below, (flags, _, _) in containercli.COMMANDS.items():
            words = tuple(Word(text=f"--{flag.name}", help=flag.help, takes=bool(flag.argument)) for flag in flags)
            yield Place(context=f"{context} {below}", words=words)


def _places_of_ctk(context: str) -> "Iterator[Place]":
    """Return the places after nvidia-ctk's commands, which are nvinject's."""
    from nvinject.cli import cdi, cdihook, config, configure, system

    for name, parser in (("cdi", cdi.parser()), ("config", config.parser()), ("system", system.parser())):
        yield from _places_of(f"{context} {name}", parser)
    yield Place(context=f"{context} hook", words=tuple(Word(text=word) for word in (*cdihook.OPTIONS, "--help")))
    yield Place(context=f"{context} runtime", words=(Word(text="configure"),))
    yield from _places_of(f"{context} runtime configure", configure.parser())


def _places_of(context: str, parser: "argparse.ArgumentParser") -> "Iterator[Place]":
    """Return the place of a parser and those of its sub-commands."""
    from nvinject.cli.parsers import commands_of

    below = commands_of(parser)
    commands = [Word(text=name, help=one.description or "") for name, one in below.items()]
    options = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of options
        values = _values(context, action)
        if action.option_strings:
            options += [
                Word(text=option, help=action.help or "", values=values, takes=action.nargs != 0)
                for option in action.option_strings
                if option.startswith("--")
            ]
        elif not below:
            commands += [Word(text=value) for value in values]
    yield Place(context=context, words=(*commands, *options))
    for name, one in below.items():
        yield from _places_of(f"{context} {name}", one)


def _values(context: str, action: "argparse.Action") -> tuple[str, ...]:
    """Return what can be given to an option: argparse's choices, or those that the command checks by itself."""
    from nvinject.cli import cdioptions, configure
    from nvinject.config import KEYS
    from nvinject.core.naming import STRATEGIES
    from nvinject.core.policy import DRIVER_CAPABILITIES

    if action.choices is not None:
        return tuple(str(choice) for choice in action.choices)
    known: dict[str, tuple[str, ...]] = {
        "ENGINE": configure.ENGINES,
        "STRATEGY": tuple(STRATEGIES),
        "HOW": cdioptions.STAMPS,
        "FORMAT": ("yaml", "json"),
        "SOURCE": ("file", "command") if "configure" in context else (),
        "MODE": ("config-file", "oci-hook") if "configure" in context else cdioptions.MODES,
        "SIDE": ("host", "container"),
        "KEY": tuple(key for key, _, _ in KEYS),
        "KEY=VALUE": tuple(key for key, _, _ in KEYS),
        "[true|false]": ("true", "false"),
        "NAME": tuple(DRIVER_CAPABILITIES) if "--capability" in action.option_strings else (),
    }
    return known.get(str(action.metavar), ())


def format_bash(places: "tuple[Place, ...]") -> str:
    """Return the script for bash."""
    values = [
        f'        "{place.context} {word.text}") words="{" ".join(word.values)}" ;;'
        for place in places
        for word in place.words
        if word.takes
    ]
    words = [f'                "{place.context}") words="{" ".join(_texts(place))}" ;;' for place in places]
    names = "\n".join(f'        {program}) context="{context}" ;;' for program, context in PROGRAMS.items())
    return BASH.format(
        contexts=_contexts(places, "|"),
        values="\n".join(values),
        words="\n".join(words),
        names=names,
        programs=_PROGRAMS,
    )


def format_zsh(places: "tuple[Place, ...]") -> str:
    """Return the script for zsh."""
    values = [
        f'("{place.context} {word.text}") '
        + (f"compadd -- {' '.join(word.values)}; return ;;" if word.values else "_files; return ;;")
        for place in places
        for word in place.words
        if word.takes
    ]
    first, *others = places
    described = " ".join(_quoted(f"{word.text}:{word.help}") for word in first.words)
    words = [f'("") local -a commands=({described}); _describe command commands; return ;;']
    words += [f'("{place.context}") compadd -- {" ".join(_texts(place))} && return ;;' for place in others]
    names = "\n".join(f'({program}) context="{context}" ;;' for program, context in PROGRAMS.items())
    return ZSH.format(
        contexts=_contexts(places, "|"),
        values="\n".join(values),
        words="\n".join(words),
        names=names,
        programs=_PROGRAMS,
    )


def format_fish(places: "tuple[Place, ...]") -> str:
    """Return the script for fish."""
    begins = [f'        case {program}\n            set context "{context}"' for program, context in PROGRAMS.items()]
    lines = [FISH.format(contexts=_contexts(places, " "), names="\n".join(begins))]
    for place in places:
        names = [name for name, context in PROGRAMS.items() if f"{place.context} ".startswith(f"{context} ")]
        programs = " ".join(f"-c {name}" for name in ("nvinject", *names))
        start = f"complete {programs} -n '__nvinject_at \"{place.context}\"'"
        if not all(word.text.startswith("-") for word in place.words):
            lines.append(f"{start} -f\n")  # no files where there are other words
        for word in place.words:
            help_text = _quoted(word.help.partition("\n")[0])
            if word.text.startswith("--"):
                values = f" -x -a {_quoted(' '.join(word.values))}" if word.values else " -r -F" if word.takes else ""
                lines.append(f"{start} -l {word.text[2:]}{values} -d {help_text}\n")
            elif word.text.startswith("-"):
                lines.append(f"{start} -o {word.text[1:]}{' -r -F' if word.takes else ''} -d {help_text}\n")
            else:
                lines.append(f"{start} -a {word.text} -d {help_text}\n")
    return "".join(lines)


def _texts(place: Place) -> list[str]:
    return [word.text for word in place.words]


def _contexts(places: "tuple[Place, ...]", separator: str) -> str:
    return separator.join(f'"{place.context}"' for place in places if place.context)


def _quoted(text: str) -> str:
    """Return a text in quotes that all three shells take alike."""
    return "'" + text.replace("\\", "").replace("'", "").replace("%%", "%").replace("\n", " ") + "'"
