"""nvinject manual: manual pages, one a command, made of the same help texts that --help prints.

Belongs here: which pages there are, and what of a help text goes into which section. Does not belong here: the words
(each command's own module) and the language of the pages (render.manual).
"""

import os
import sys

from nvinject import __version__
from nvinject.cli.manifest import replace_file
from nvinject.errors import UsageError
from nvinject.render.manual import Definitions, Literal, Page, Part, Section, Text, format_page

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

CONFIG_PAGE = "nvinject-config.toml"
DESCRIPTION = """\
Prints a manual page, or writes all of them into a directory. They are made of the texts that --help prints, so they are
those of this version.
"""
EPILOG = """\
examples:
  nvinject manual                                    the names of all pages
  nvinject manual nvinject-doctor | man -l -         read one
  nvinject manual --output /usr/local/share/man --dry-run
  nvinject manual --output /usr/local/share/man      install them
"""


def parser() -> "argparse.ArgumentParser":
    """Return the command's options."""
    from nvinject.cli.parsers import new_parser

    options = new_parser("nvinject manual", DESCRIPTION, EPILOG)
    options.add_argument("page", metavar="PAGE", nargs="?", help="print this page, such as nvinject-cdi")
    options.add_argument(
        "--output", metavar="DIR", default="", help="write all pages into man1 and man5 of this directory"
    )
    options.add_argument("--date", metavar="TEXT", default="", help="the date at the foot of each page (default: none)")
    options.add_argument("--dry-run", action="store_true", help="print the files and write nothing")
    return options


def main(arguments: "list[str]") -> int:
    """Print names, a page, or write all."""
    parsed = parser().parse_args(arguments)
    files = make_files(parsed.date)
    if parsed.output:
        return write_all(files, parsed.output, dry_run=parsed.dry_run)
    if not parsed.page:
        sys.stdout.write("".join(f"{os.path.basename(path)}\n" for path in files))
        return 0
    found = [text for path, text in files.items() if parsed.page in {os.path.basename(path), _title(path)}]
    if not found:
        raise UsageError(f"there is no page {parsed.page}", "nvinject manual lists the pages")
    sys.stdout.write(found[0])
    return 0


def _title(path: str) -> str:
    return os.path.basename(path).rpartition(".")[0]


def write_all(files: "dict[str, str]", directory: str, *, dry_run: bool) -> int:
    """Write the pages below a directory, and print their paths."""
    for name, text in files.items():
        path = os.path.join(directory, name)
        sys.stdout.write(f"{path}\n")
        if dry_run:
            continue
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            replace_file(path, text)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}", "name another --output") from error
    sys.stdout.write("dry run: nothing was written\n" if dry_run else "")
    return 0


def make_files(date: str = "") -> "dict[str, str]":
    """Return every page by its path below a directory of manual pages; names of the original's lead to ours."""
    from nvinject.cli.main import NAMES

    files = {f"man{page.section}/{page.name}.{page.section}": format_page(page, date) for page in pages()}
    for name, words in NAMES.items():
        files[f"man1/{name}.1"] = f".so man1/nvinject-{words[0]}.1\n"
    return files


def pages() -> "Iterator[Page]":
    """Yield the page of nvinject, that of each command, and that of config.toml."""
    from nvinject.cli.main import COMMANDS, usage

    names = tuple(f"nvinject-{name}(1)" for name, _, _ in COMMANDS)
    sections = read_help(usage())
    yield _page("nvinject", "put NVIDIA GPUs into Linux containers", sections, (*names, f"{CONFIG_PAGE}(5)"))
    for name, module, summary in COMMANDS:
        yield _page(f"nvinject-{name}", summary, command_sections(name, module), ("nvinject(1)", f"{CONFIG_PAGE}(5)"))
    yield configuration_page()


def _page(name: str, summary: str, sections: tuple[Section, ...], related: tuple[str, ...], section: int = 1) -> Page:
    also = Section(title="see also", parts=(Text(words=", ".join(related)),))
    return Page(name=name, section=section, summary=summary, version=__version__, sections=(*sections, also))


def command_sections(name: str, module: str) -> tuple[Section, ...]:
    """Return the sections of a command: of its parser if it has one, else of its help text."""
    command = __import__(module, fromlist=["main"])
    if name == "container-cli":
        own = read_help(command.format_usage())
        return (*own, *(_nested(word, read_help(command.format_command_usage(word))) for word in command.COMMANDS))
    if name == "runtime":
        from nvinject.cli.configure import parser as configure

        return (*read_help(command.HELP), _nested("configure", read_parser(configure())))
    return read_parser(command.parser()) if hasattr(command, "parser") else read_help(command.HELP)


def _nested(name: str, sections: tuple[Section, ...]) -> Section:
    parts: list[Part] = []
    for section in sections:
        if section.title not in {"description", "synopsis"}:
            parts.append(Text(words=f"{section.title[:1].upper()}{section.title[1:]}:"))
        parts += section.parts
    return Section(title=f"the command {name}", parts=tuple(parts))


# From an argparse parser


def read_parser(parser: "argparse.ArgumentParser") -> tuple[Section, ...]:
    """Return the sections of a parser; those of sub-commands follow, and the examples come last."""
    import argparse

    actions = parser._actions  # noqa: SLF001 - argparse has no public list of options
    sections = [
        Section(title="synopsis", parts=(Literal(lines=(f"{parser.prog} {_usage(actions)}".rstrip(),)),)),
        Section(title="description", parts=_paragraphs(parser.description or "")),
    ]
    for group in parser._action_groups:  # noqa: SLF001
        rows = [_row(action) for action in group._group_actions if _is_shown(action)]  # noqa: SLF001
        title = (group.title or "options").replace("positional arguments", "arguments")
        if rows:
            sections.append(Section(title=title, parts=(Definitions(rows=tuple(rows)),)))
    for action in actions:
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            made = {id(nested): name for name, nested in reversed(action.choices.items())}  # not by its other names
            sections += [
                _nested(made[id(nested)], read_parser(nested)) for nested in dict.fromkeys(action.choices.values())
            ]
    return (*sections, *read_help(parser.epilog or "", lead=()))


def _is_shown(action: "argparse.Action") -> bool:
    import argparse

    # Every command has --help; it need not be said of each.
    return action.help != argparse.SUPPRESS and not isinstance(
        action,
        argparse._SubParsersAction | argparse._HelpAction,  # noqa: SLF001
    )


def _usage(actions: "list[argparse.Action]") -> str:
    words = ["[OPTION ...]"] if any(action.option_strings for action in actions) else []
    for action in actions:
        if action.option_strings:
            if action.required:
                words.append(f"{action.option_strings[0]} {_value(action)}")
            continue
        value = _value(action)
        many = {"?": f"[{value}]", "*": f"[{value} ...]", "+": f"{value} ...", "A...": f"{value} ..."}
        words.append(many.get(str(action.nargs), value))
    return " ".join(words)


def _value(action: "argparse.Action") -> str:
    return action.metavar if isinstance(action.metavar, str) else action.dest.upper()


def _row(action: "argparse.Action") -> tuple[tuple[str, ...], str, str]:
    value = _value(action) if action.nargs != 0 and action.option_strings else ""
    names = tuple(action.option_strings) or (_value(action),)
    words = (action.help or "").replace("%%", "%")
    if action.choices:
        words += f"; one of {', '.join(map(str, action.choices))}"
    return names, f"[{value}]" if value and action.nargs == "?" else value, words


def _paragraphs(text: str) -> tuple[Part, ...]:
    return tuple(
        Text(words=" ".join(paragraph.split())) for paragraph in text.strip().split("\n\n") if paragraph.strip()
    )


# From a help text


def read_help(text: str, lead: tuple[str, ...] = ("usage:",)) -> tuple[Section, ...]:
    """Return the sections of a help text.

    It begins with the usage. A line that ends in a colon, with indented lines below, is a section; other indented
    lines are options with their meaning, or shown as they are.
    """
    blocks = [block.split("\n") for block in text.strip("\n").split("\n\n") if block.strip()]
    sections: list[Section] = []
    description: list[Part] = []
    for block in blocks:
        if lead and block[0].startswith(lead[0]):
            lines = (block[0].removeprefix(lead[0]), *block[1:])
            sections.append(Section(title="synopsis", parts=(Literal(lines=tuple(line.strip() for line in lines)),)))
        elif block[0].endswith(":") and len(block) > 1 and block[1].startswith("  "):
            title = block[0][:-1].replace("exit codes", "exit status")
            title = "examples" if title == "example" else title
            sections.append(Section(title=title, parts=(read_block(block[1:], is_example=title == "examples"),)))
        elif all(line.startswith(" ") for line in block):
            description.append(read_block(block, is_example=False))
        else:
            description += _paragraphs("\n".join(block))
    if description:
        place = 1 if sections and sections[0].title == "synopsis" else 0
        sections.insert(place, Section(title="description", parts=tuple(description)))
    return tuple(sections)


def read_block(lines: "list[str]", *, is_example: bool) -> "Definitions | Literal":
    """Return indented lines as terms with their meanings where each has both, else as they are."""
    rows: list[list[str]] = []
    for line in lines:
        words = line.strip()
        term, gap, meaning = words.partition("  ")
        if line[:3].strip() and gap:
            rows.append([term, meaning.strip()])
        elif rows and line.startswith("     ") and not gap:
            rows[-1][1] += f" {words}"
        else:
            rows = []
            break
    if rows and not is_example:
        return Definitions(rows=tuple(((term,), "", meaning) for term, meaning in rows))
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    return Literal(lines=tuple(line[margin:] for line in lines))


# config.toml


def configuration_page() -> Page:
    """Return the page of config.toml: every key with type, default and meaning."""
    from nvinject.cli.configschema import HELP, kinds
    from nvinject.formats.tomltext import format_value

    tables: dict[str, list[tuple[tuple[str, ...], str, str]]] = {}
    types = kinds()
    for key, entry in HELP.items():
        table, _, name = key.rpartition(".")
        facts = [f"{types[key]}, default {format_value(entry.default)}."]
        facts += [f"One of {', '.join(entry.choices)}."] if entry.choices else []
        facts += [f"Has no effect in nvinject: {entry.unused}."] if entry.unused else []
        tables.setdefault(table, []).append(((name,), "", f"{entry.text} {' '.join(facts)}"))
    words = (
        "The configuration of nvinject, in TOML: the file of NVIDIA's container toolkit, with the same keys and "
        "defaults, so that a host can go over to nvinject and back. nvinject's own keys are in the table [nvinject]. A "
        "key that is missing has its default. nvinject-config(1) shows, explains, checks and changes the file."
    )
    sections = [
        Section(title="synopsis", parts=(Literal(lines=("/etc/nvidia-container-runtime/config.toml",)),)),
        Section(title="description", parts=(Text(words=words),)),
    ]
    for table, rows in tables.items():
        title = f"table {table}" if table else "at the top"
        sections.append(Section(title=title, parts=(Definitions(rows=tuple(rows)),)))
    files = Definitions(
        rows=(
            (("$NVIDIA_CTK_CONFIG_FILE_PATH",), "", "is read if this variable is set."),
            (
                ("$XDG_CONFIG_HOME/nvidia-container-runtime/config.toml",),
                "",
                "is read if that variable is set and the first is not.",
            ),
            (("/etc/nvidia-container-runtime/config.toml",), "", "is read otherwise."),
        )
    )
    sections.append(Section(title="files", parts=(files,)))
    summary = "configuration of nvinject and of NVIDIA's container toolkit"
    return _page(CONFIG_PAGE, summary, tuple(sections), ("nvinject(1)", "nvinject-config(1)"), section=5)
