"""nvinject completion: scripts that complete commands and options in bash, zsh and fish.

Belongs here: the three scripts, made from the list of commands. Does not belong here: the commands' options themselves;
each parser is asked for its own.
"""

import sys

from nvinject.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

BASH = """\
_nvinject() {{
    local words="{commands}"
    if [ "$COMP_CWORD" -gt 1 ]; then
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
    [ "${{#COMPREPLY[@]}}" -gt 0 ] || COMPREPLY=($(compgen -f -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -F _nvinject nvinject
"""

HELP = """\
usage: nvinject completion (bash | zsh | fish)

Prints a script that completes nvinject's commands and options.

examples:
  nvinject completion bash > /etc/bash_completion.d/nvinject
  nvinject completion zsh > /usr/share/zsh/vendor-completions/_nvinject
  nvinject completion fish > ~/.config/fish/completions/nvinject.fish
"""


def main(arguments: "list[str]") -> int:
    """Print the script for the shell that is named."""
    shells = {"bash": format_bash, "zsh": format_zsh, "fish": format_fish}
    if arguments[:1] in (["-h"], ["--help"]):
        sys.stdout.write(HELP)
        return 0
    if len(arguments) != 1 or arguments[0] not in shells:
        raise UsageError("which shell?", f"use one of {', '.join(shells)}")
    sys.stdout.write(shells[arguments[0]](find_words()))
    return 0


def find_words() -> "dict[str, tuple[str, list[str]]]":
    """Return, for each command, what it does and the words that can follow it."""
    from nvinject.cli import hook
    from nvinject.cli.main import COMMANDS

    found: dict[str, tuple[str, list[str]]] = {}
    for name, module, summary in COMMANDS:
        command = __import__(module, fromlist=["main"])
        if name == "hook":
            following = [*hook.WORKING_STAGES, *hook.IDLE_STAGES, "-config", "-debug"]
        elif name == "runtime":
            from nvinject.cli.configure import parser

            following = ["configure", "--as", "--low-level", "--help", *find_options(parser())]
        elif name in {"create-container", "cdi-hook", "ctk"}:
            following = ["--help"]
        elif name in {"cdi", "config"}:
            following = [word for word, _, _ in command.COMMANDS]
        elif name in {"container-cli", "system"}:
            following = list(command.COMMANDS)
        elif name == "completion":
            following = ["bash", "zsh", "fish"]
        else:
            following = find_options(command.parser())
        found[name] = (summary, following)
    return found


def find_options(parser: "argparse.ArgumentParser") -> "list[str]":
    """Return the long options of a parser."""
    actions = parser._actions  # noqa: SLF001 - argparse has no public list of options
    return [option for action in actions for option in action.option_strings if option.startswith("--")]


def format_bash(words: "dict[str, tuple[str, list[str]]]") -> str:
    """Return the script for bash."""
    cases = "\n".join(f'            {name}) words="{" ".join(following)}" ;;' for name, (_, following) in words.items())
    return BASH.format(commands=" ".join(words), cases=cases)


def format_zsh(words: "dict[str, tuple[str, list[str]]]") -> str:
    """Return the script for zsh."""
    lines = ["#compdef nvinject", "if (( CURRENT == 2 )); then", "  local -a commands=("]
    lines += [f"    '{name}:{summary.replace(chr(39), '')}'" for name, (summary, _) in words.items()]
    lines += ["  )", "  _describe command commands", "else", "  case $words[2] in"]
    lines += [f"    {name}) compadd -- {' '.join(following)} ;;" for name, (_, following) in words.items()]
    lines += ["  esac", "  _files", "fi", ""]
    return "\n".join(lines)


def format_fish(words: "dict[str, tuple[str, list[str]]]") -> str:
    """Return the script for fish."""
    lines = []
    for name, (summary, following) in words.items():
        quoted = summary.replace("'", "")
        lines.append(f"complete -c nvinject -n __fish_use_subcommand -a {name} -d '{quoted}'")
        lines += [
            f"complete -c nvinject -n '__fish_seen_subcommand_from {name}' "
            + (f"-l {word[2:]}" if word.startswith("--") else f"-a '{word}'")
            for word in following
        ]
    return "\n".join(lines) + "\n"
