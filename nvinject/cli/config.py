"""nvinject config: shows, explains, checks and changes config.toml.

Belongs here: the sub-commands, and the form of `nvidia-ctk config`, which has options in place of sub-commands. Does
not belong here: what keys mean (configschema.py), what a file says (nvinject.config), the splicing (formats.tomltext).
"""

import os
import sys

from nvinject.cli.configschema import HELP, format_default, host_defaults, kinds
from nvinject.cli.messages import debug, is_quiet, warn
from nvinject.config import BOOLEAN, INTEGER, STRINGS, check_text
from nvinject.configfile import find_config
from nvinject.engines.files import Change, Document, carry_out, read_document
from nvinject.errors import ConfigurationError, UsageError, printable, quoted
from nvinject.formats import tomlscan, tomltext
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from typing import Any

DESCRIPTION = """\
Works on config.toml, the NVIDIA Container Toolkit's own: the file that --config-file names, else
$NVIDIA_CTK_CONFIG_FILE_PATH, else $XDG_CONFIG_HOME/nvidia-container-runtime/config.toml, else
/etc/nvidia-container-runtime/config.toml. Changes leave comments, order and all other bytes of the file as they are.
"""

EPILOG = """\
examples:
  nvinject config show --changed                                        what differs from the defaults
  nvinject config explain nvidia-container-runtime.mode                 what it means, what it is here
  nvinject config set nvidia-container-runtime.mode cdi --dry-run       the difference that it would make
  nvinject config set nvidia-container-runtime.runtimes=crun:runc       lists are separated by colons
  nvinject config create-default --documented --output config.toml     a new file with help for every key
  nvinject config --set nvidia-container-cli.debug=/var/log/x.log --in-place   as nvidia-ctk has it
"""

# name, other names of the original's, what it does
COMMANDS = (
    ("show", (), "print every key, its value and where that comes from"),
    ("get", (), "print the value of a key"),
    ("set", (), "set keys"),
    ("unset", (), "take keys out, so that they have their defaults"),
    ("create-default", ("default", "generate-default"), "print a new file, or write one"),
    ("validate", (), "find what is wrong with the file"),
    ("explain", (), "tell what keys mean"),
)
NAMES = {name: chosen for chosen, others, _ in COMMANDS for name in (chosen, *others)}
SEPARATOR = ":"


class Entry(Record):
    """A key of a file: its value in effect, and the line that sets it (0: the default)."""

    key: str
    value: "Any"
    line: int


EXAMPLES = {
    "show": ("nvinject config show", "nvinject config show --changed --json"),
    "get": ("nvinject config get nvidia-container-runtime.runtimes",),
    "set": (
        "nvinject config set nvidia-container-runtime.mode cdi --dry-run",
        "nvinject config set nvidia-container-runtime.runtimes=crun:runc",
    ),
    "unset": ("nvinject config unset nvidia-container-runtime.mode --dry-run",),
    "create-default": (
        "nvinject config create-default --documented",
        "nvinject config create-default --output config.toml",
    ),
    "validate": ("nvinject config validate", "nvinject config validate --config-file ./config.toml --json"),
    "explain": ("nvinject config explain nvidia-container-runtime.mode", "nvinject config explain nvinject"),
}


def parser() -> "argparse.ArgumentParser":
    """Return the options of all sub-commands and of the original's form."""
    import argparse

    from nvinject.cli.parsers import format_examples, new_parser

    whole = new_parser("nvinject config", DESCRIPTION, EPILOG, allow_abbrev=False)
    _add_file(whole, default="")
    original = whole.add_argument_group("without a command, as nvidia-ctk config")
    original.add_argument("--set", metavar="KEY[=VALUE]", action="append", default=[], help="set a key")
    original.add_argument("--set-list-separator", metavar="TEXT", default=SEPARATOR, help=argparse.SUPPRESS)
    where = original.add_mutually_exclusive_group()
    where.add_argument("--in-place", "-i", action="store_true", help="change the file")
    where.add_argument("--output", "-o", metavar="FILE", default="", help="write here (default: standard output)")
    chosen = whole.add_subparsers(dest="command", metavar="COMMAND")
    made = {}
    for name, others, words in COMMANDS:
        made[name] = chosen.add_parser(
            name,
            aliases=others,
            help=words,
            description=words[:1].upper() + words[1:] + ".",
            epilog=format_examples(EXAMPLES[name]),
            allow_abbrev=False,
        )
        _add_file(made[name], default=argparse.SUPPRESS)
    _add_reading_options(made)
    _add_writing_options(made)
    return whole


def _add_file(options: "argparse.ArgumentParser", default: "Any") -> None:
    options.add_argument(
        "--config-file", "--config", "-c", metavar="FILE", default=default, help="the config.toml (default: see above)"
    )


def _add_reading_options(made: "Mapping[str, argparse.ArgumentParser]") -> None:
    for name in ("show", "get", "validate", "explain"):
        made[name].add_argument("--json", action="store_true", help="print JSON")
    made["show"].add_argument("--changed", action="store_true", help="only keys that the file sets")
    made["get"].add_argument("key", metavar="KEY", help="a key, such as nvidia-container-runtime.mode")
    made["explain"].add_argument("keys", metavar="KEY", nargs="*", help="a key or the begin of some (default: all)")


def _add_writing_options(made: "Mapping[str, argparse.ArgumentParser]") -> None:
    made["set"].add_argument(
        "settings", metavar="KEY=VALUE", nargs="+", help="a key and its value, also as two words; lists as a:b"
    )
    made["set"].add_argument("--set-list-separator", metavar="TEXT", default=SEPARATOR, help="between items of a list")
    made["unset"].add_argument("keys", metavar="KEY", nargs="+", help="a key")
    made["create-default"].add_argument("--documented", action="store_true", help="with help above every key, and ours")
    made["create-default"].add_argument("--force", action="store_true", help="write over another file")
    for name in ("set", "unset", "create-default"):
        made[name].add_argument("--dry-run", action="store_true", help="print the difference and change nothing")
        made[name].add_argument(
            "--output", "-o", metavar="FILE", default="", help="write here, and leave the file as it is"
        )


def main(arguments: "list[str]", *, as_original: bool = False) -> int:
    """Run the sub-command that the arguments name; the original writes over any --output of its default file."""
    parsed = parser().parse_args(arguments)
    path = parsed.config_file or find_config(os.environ)[0]
    command = NAMES.get(parsed.command or "", "")
    debug(f"config.toml: {path}")
    if command in {"show", "get", "validate", "explain"}:
        required = bool(parsed.config_file) or find_config(os.environ)[1]
        return READERS[command](read_file(path, required=required), parsed)
    if command == "create-default":
        return create_default(parsed, force=parsed.force or as_original)
    document = read_document(path)
    if command == "unset":
        edits = [(checked_key(key), None) for key in parsed.keys]
    else:
        words = split_settings(parsed.settings) if command == "set" else parsed.set
        edits = [parse_setting(word, parsed.set_list_separator) for word in words]
    if document.data is None:
        debug("the file does not exist: it begins as the default one")
    text = edited(document, edits)
    for key, value in edits:
        debug(f"{key}: {'taken out' if value is None else tomltext.format_value(value)}")
    if not command:
        return write_as_original(document, text, parsed)
    return write(document, text, parsed)


def read_file(path: str, *, required: bool) -> Document:
    """Return the file, empty if it is missing and may be."""
    document = read_document(path)
    if document.data is None and required:
        raise ConfigurationError(f"{path} does not exist", "nvinject config create-default writes one")
    return document


# Keys and values


def checked_key(key: str) -> str:
    """Return the key, or raise UsageError naming the nearest one."""
    if key in HELP:
        return key
    import difflib

    near = difflib.get_close_matches(key, HELP, n=1) or [known for known in HELP if known.endswith(f".{key}")][:1]
    hint = f"did you mean {near[0]}?" if near else "nvinject config explain lists the keys"
    raise UsageError(f"undefined key {quoted(key)}", hint)


def split_settings(words: "list[str]") -> "list[str]":
    """Return settings as KEY=VALUE; two words without = in the first are one setting."""
    if len(words) == 2 and "=" not in words[0]:
        return [f"{words[0]}={words[1]}"]
    return words


def parse_setting(word: str, separator: str) -> "tuple[str, Any]":
    """Return key and value of KEY=VALUE; the value None (nil in the original's words) takes a feature out."""
    key, equals, text = word.partition("=")
    checked_key(key)
    kind = kinds()[key]
    if not equals and kind != BOOLEAN:
        raise UsageError(f"invalid format: {key} needs a value", f"write {key}=VALUE")
    if kind == BOOLEAN:
        if key.startswith("features.") and text == "nil":
            return key, None
        return key, parse_boolean(key, text if equals else "true")
    if kind == INTEGER:
        if not text.removeprefix("-").isdecimal():
            raise UsageError(f"{key} must be {INTEGER}, not {quoted(text)}", "write for example 10")
        return key, int(text)
    if kind == STRINGS:
        if not separator:
            raise UsageError("--set-list-separator is empty", f"use for example {SEPARATOR}")
        return key, text.split(separator if separator in text else ",") if text else []
    return key, text


def parse_boolean(key: str, text: str) -> bool:
    """Return a boolean as Go's strconv.ParseBool reads it."""
    from nvinject.cli.cdioptions import parse_flag

    if not text:
        raise UsageError(f"invalid format: {key}= has no value", "use true or false")
    return parse_flag(text, key)


def edited(document: Document, edits: "list[tuple[str, Any]]") -> str:
    """Return the text with the keys set, or taken out for the value None; a missing file begins as the default one.

    Raises ConfigurationError for a file that cannot be edited, and for values that nvinject would refuse to start with.
    """
    text = document.text if document.data is not None else format_default()
    for key, value in edits:
        path = tuple(key.split("."))
        try:
            text = tomltext.remove_value(text, path) if value is None else tomltext.set_value(text, path, value)
        except tomlscan.EditError as error:
            place = f", line {error.line}, column {error.column}" if error.line else ""
            raise ConfigurationError(
                f"{document.path}{place}: {error.reason}", "mend it by hand; nothing was written"
            ) from error
        if HELP[key].choices and value is not None and value not in HELP[key].choices:
            raise UsageError(f"{key} cannot be {quoted(value)}", f"use one of {', '.join(HELP[key].choices)}")
    if edits:
        check_text(document.path, text)
    return text


# Writing


def write(document: Document, text: str, parsed: "argparse.Namespace") -> int:
    """Put the new text in its place, or show the difference."""
    from nvinject.cli.diff import format_diff, wants_colour

    target = read_document(parsed.output) if parsed.output else document
    change = target.change(text)
    if parsed.output:
        change = change.replace(after=(document.mark + text).encode())
    if change.before == change.after:
        sys.stdout.write("" if is_quiet() else "nothing to change\n")
    elif parsed.dry_run:
        sys.stdout.write(format_diff(change.path, change.before, change.after, colour=wants_colour()))
        sys.stdout.write("dry run: nothing was changed\n")
    else:
        carry_out((change,))
        if not is_quiet():
            sys.stdout.write(f"Wrote {change.path}\n")
    return 0


def write_as_original(document: Document, text: str, parsed: "argparse.Namespace") -> int:
    """Write where the original's options say; nothing but the text goes to standard output."""
    content = (document.mark + text).encode()
    target = document if parsed.in_place else read_document(parsed.output) if parsed.output else None
    if target is None:
        sys.stdout.write(text)
    else:
        carry_out((Change(path=target.path, before=target.data, after=content),))
        debug(f"wrote {target.path}")
    return 0


def create_default(parsed: "argparse.Namespace", *, force: bool) -> int:
    """Print the default file, or write it; raises UsageError where another file would be lost."""
    text = format_default(documented=parsed.documented)
    if not parsed.output:
        sys.stdout.write(text)
        return 0
    target = read_document(parsed.output)
    if target.data not in {None, text.encode()} and not force and not parsed.dry_run:
        raise UsageError(f"{parsed.output} exists and differs", "look with --dry-run; --force writes over it")
    return write(target, text, parsed)


# Reading


def read_entries(document: Document) -> "list[Entry]":
    """Return every key with its value in effect; raises ConfigurationError if the file is wrong."""
    _, warnings = check_text(document.path, document.text)
    for warning in warnings:
        warn(warning)
    there = {entry.key: entry for entry in set_entries(document)}
    return [there.get(key) or Entry(key=key, value=value, line=0) for key, value in host_defaults().items()]


def set_entries(document: Document) -> "list[Entry]":
    """Return the keys that the file sets, with the lines that do."""
    values = tomlscan.parse(document.text)
    found = []
    for key in HELP:
        path = tuple(key.split("."))
        value = tomltext.lookup(values, path)
        if value is not None:
            # A key in an inline table stands where the table does.
            lines = (tomltext.find_line(document.text, path[:length]) for length in range(len(path), 0, -1))
            found.append(Entry(key=key, value=value, line=next(line for line in lines if line)))
    return found


def origin_of(entry: Entry) -> str:
    """Return where a value comes from, in words."""
    return f"line {entry.line}" if entry.line else "default"


def show(document: Document, parsed: "argparse.Namespace") -> int:
    """Print every key with its value and its origin."""
    entries = [entry for entry in read_entries(document) if entry.line or not parsed.changed]
    if parsed.json:
        rows = [{"key": entry.key, "value": entry.value, "line": entry.line or None} for entry in entries]
        return print_json({"file": document.path, "exists": document.data is not None, "keys": rows})
    from nvinject.render.text import format_table

    missing = "" if document.data is not None else " (does not exist)"
    sys.stdout.write(f"{printable(document.path)}{missing}\n\n")
    cells = [(entry.key, printable(tomltext.format_value(entry.value)), origin_of(entry)) for entry in entries]
    sys.stdout.write(format_table(("key", "value", "from"), cells))
    return 0


def get(document: Document, parsed: "argparse.Namespace") -> int:
    """Print one value: text as it is, a list with an item a line."""
    key = checked_key(parsed.key)
    value = next(entry.value for entry in read_entries(document) if entry.key == key)
    if parsed.json:
        return print_json(value)
    if isinstance(value, bool):
        value = tomltext.format_value(value)
    lines = value if isinstance(value, list) else [str(value)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def validate(document: Document, parsed: "argparse.Namespace") -> int:
    """Print what is wrong with the file; the exit code is 4 if it is an error, 0 for warnings."""
    findings = [{"level": level, "message": message} for level, message in find_faults(document)]
    failed = any(one["level"] == "error" for one in findings)
    if parsed.json:
        print_json({"file": document.path, "valid": not failed, "findings": findings})
    else:
        for one in findings:
            sys.stdout.write(f"{one['level']}: {one['message']}\n")
        verdict = "is wrong" if failed else "is right"
        missing = " (it does not exist: every key has its default)" if document.data is None else ""
        sys.stdout.write(f"{printable(document.path)} {verdict}{missing}\n")
    return ConfigurationError.exit_code if failed else 0


def find_faults(document: Document) -> "list[tuple[str, str]]":
    """Return what is wrong, as pairs of error or warning and text."""
    try:
        _, warnings = check_text(document.path, document.text)
    except ConfigurationError as error:
        return [("error", str(error))]
    found = [("warning", warning) for warning in warnings]
    for entry in set_entries(document):
        choices = HELP[entry.key].choices
        # An unknown compatibility mode has a meaning, and its warning already.
        if choices and entry.value not in choices and not entry.key.endswith("cuda-compat-mode"):
            place = f"{printable(document.path)}, line {entry.line}: {entry.key}"
            found.append(("error", f"{place} cannot be {quoted(entry.value)}; use one of {', '.join(choices)}"))
        if entry.line and HELP[entry.key].unused and entry.value != HELP[entry.key].default:
            place = f"{printable(document.path)}, line {entry.line}: {entry.key}"
            found.append(("warning", f"{place} has no effect in nvinject: {HELP[entry.key].unused}"))
    return found


def explain(document: Document, parsed: "argparse.Namespace") -> int:
    """Print what keys mean, and what they are set to."""
    chosen = [key for key in HELP if not parsed.keys or any(is_named(key, name) for name in parsed.keys)]
    if not chosen:
        checked_key(parsed.keys[0])
    try:
        entries = {entry.key: entry for entry in read_entries(document)}
    except ConfigurationError as error:
        warn(str(error))
        entries = {}
    facts = [facts_of(key, entries.get(key)) for key in chosen]
    if parsed.json:
        return print_json(facts)
    for number, fact in enumerate(facts):
        sys.stdout.write(("\n" if number else "") + format_facts(fact, document.path))
    return 0


def is_named(key: str, name: str) -> bool:
    """Return whether a name is the key, or a table that holds it."""
    return key == name or key.startswith(f"{name}.")


def facts_of(key: str, entry: "Entry | None") -> "dict[str, Any]":
    """Return what is known about a key."""
    help_text = HELP[key]
    facts: dict[str, Any] = {"key": key, "type": kinds()[key], "default": host_defaults()[key]}
    if help_text.choices:
        facts["choices"] = list(help_text.choices)
    if entry is not None:
        facts["value"] = entry.value
        facts["line"] = entry.line or None
    facts["help"] = help_text.text
    if help_text.unused:
        facts["unused"] = help_text.unused
    return facts


def format_facts(facts: "dict[str, Any]", path: str) -> str:
    """Return the facts about a key as text."""
    import textwrap

    lines = [facts["key"], *(f"  {line}" for line in textwrap.wrap(facts["help"], 100))]
    lines.append(f"  type:    {facts['type']}")
    if "choices" in facts:
        lines.append(f"  one of:  {', '.join(facts['choices'])}")
    lines.append(f"  default: {tomltext.format_value(facts['default'])}")
    if facts.get("line"):
        lines.append(f"  now:     {printable(tomltext.format_value(facts['value']))} ({path}, line {facts['line']})")
    if "unused" in facts:
        lines.append(f"  note:    has no effect in nvinject: {facts['unused']}")
    return "\n".join(lines) + "\n"


def print_json(value: "Any") -> int:
    """Print a value as JSON."""
    import json

    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")
    return 0


READERS = {"show": show, "get": get, "validate": validate, "explain": explain}
