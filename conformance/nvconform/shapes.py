"""Shapes of YAML documents: what a key may hold, checked with the place of the mistake.

Belongs here: reading a document with the line of every key, and the small checkers (text, list, mapping, record) that
case.py and implementations.py put together. Does not belong here: what any key means.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

Place = tuple[str | int, ...]
# The parser in C where PyYAML has it: reading all cases is a good part of a short run.
_FAST_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Checker = Callable[[Any, Place], None]


class DocumentError(Exception):
    """A file of the suite that cannot be used; the message holds file, line, key and what is wrong."""


class Mistake(Exception):  # noqa: N818 - becomes a DocumentError once file and line are known
    """What is wrong at a place of a document, before the line is known."""

    def __init__(self, place: Place, message: str) -> None:
        """Keep place and message apart."""
        super().__init__(message)
        self.place = place
        self.message = message


class Document:
    """A YAML file as plain values, with the line on which every key stands."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises: DocumentError for unreadable files, YAML that does not parse and keys that come twice.
        """
        self.path = path
        self.lines: dict[Place, int] = {}
        self._scalars = yaml.constructor.SafeConstructor()
        try:
            node = _compose(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise DocumentError(f"{path}: cannot be read: {error.strerror}") from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            line = mark.line + 1 if mark else 1
            raise DocumentError(f"{path}:{line}: not YAML: {error.problem}") from None
        self.value: Any = None if node is None else self._convert(node, ())

    def _convert(self, node: yaml.Node, place: Place) -> Any:
        self.lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._convert_mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self._convert(item, (*place, index)) for index, item in enumerate(node.value)]
        return self._scalars.construct_object(node)

    def _convert_mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        result: dict[str, Any] = {}
        own: set[str] = set()
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                result.update(self._convert(value_node, place))
                continue
            key = str(key_node.value)
            here = (*place, key)
            self.lines[here] = key_node.start_mark.line + 1
            if key in own:
                raise self.error(here, "stands twice")
            own.add(key)
            result[key] = self._convert(value_node, here)
        return result

    def error(self, place: Place, message: str) -> DocumentError:
        """Return the error that names file, line and key."""
        known = place
        while known not in self.lines:
            known = known[:-1]
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
        return DocumentError(f"{self.path}:{self.lines[known]}: {key or 'the document'}: {message}")

    def check(self, checker: Checker) -> None:
        """Check the whole document.

        Raises: DocumentError with file, line and key.
        """
        try:
            checker(self.value, ())
        except Mistake as mistake:
            raise self.error(mistake.place, mistake.message) from None


def _compose(content: str) -> yaml.Node | None:
    node: yaml.Node | None
    try:
        node = yaml.compose(content, Loader=_FAST_LOADER)
    except yaml.MarkedYAMLError:
        # Parsed again for the better place and words of the parser in Python.
        node = yaml.compose(content, Loader=yaml.SafeLoader)
    return node


def text(value: Any, place: Place) -> None:
    """Accept a string."""
    if not isinstance(value, str):
        raise Mistake(place, f"must be text (put it in quotes), not {_kind(value)}")


def flag(value: Any, place: Place) -> None:
    """Accept true or false."""
    if not isinstance(value, bool):
        raise Mistake(place, f"must be true or false, not {_kind(value)}")


def integer(value: Any, place: Place) -> None:
    """Accept a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise Mistake(place, f"must be a whole number, not {_kind(value)}")


def choice(*allowed: str) -> Checker:
    """Return a checker for one of a few words."""

    def check(value: Any, place: Place) -> None:
        if value not in allowed:
            raise Mistake(place, f"must be one of {', '.join(allowed)}, not {value!r}")

    return check


def list_of(item: Checker) -> Checker:
    """Return a checker for a list."""

    def check(value: Any, place: Place) -> None:
        if not isinstance(value, list):
            raise Mistake(place, f"must be a list, not {_kind(value)}")
        for index, element in enumerate(value):
            item(element, (*place, index))

    return check


def mapping_of(item: Checker) -> Checker:
    """Return a checker for a mapping with free keys."""

    def check(value: Any, place: Place) -> None:
        if not isinstance(value, dict):
            raise Mistake(place, f"must be a mapping, not {_kind(value)}")
        for key, element in value.items():
            item(element, (*place, key))

    return check


def either(*checkers: Checker) -> Checker:
    """Return a checker that accepts what one of several accepts; the last one's complaint is told."""

    def check(value: Any, place: Place) -> None:
        for checker in checkers[:-1]:
            try:
                checker(value, place)
            except Mistake:
                continue
            return
        checkers[-1](value, place)

    return check


def record(keys: Mapping[str, Checker], required: tuple[str, ...] = ()) -> Checker:
    """Return a checker for a mapping with known keys; an unknown key is answered with the nearest known one."""

    def check(value: Any, place: Place) -> None:
        if not isinstance(value, dict):
            raise Mistake(place, f"must be a mapping, not {_kind(value)}")
        for key, element in value.items():
            if key not in keys:
                near = get_close_matches(key, keys, 1)
                advice = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(sorted(keys))}"
                raise Mistake((*place, key), f"unknown key; {advice}")
            keys[key](element, (*place, key))
        for key in required:
            if key not in value:
                raise Mistake(place, f"the key {key} is missing")

    return check


def from_schema(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Checker:
    """Return the checker that a JSON schema describes; `root` is the document that `$ref` refers to.

    Understands what the suite's own schema uses and no more (see `unknown_keywords`).
    """
    checkers: list[Checker] = []
    if "$ref" in schema:
        checkers.append(_reference(str(schema["$ref"]), root))
    checkers += [from_schema(part, root) for part in schema.get("allOf", ())]
    if "anyOf" in schema:
        checkers.append(either(*(from_schema(part, root) for part in schema["anyOf"])))
    if "enum" in schema:
        checkers.append(choice(*schema["enum"]))
    if "type" in schema:
        checkers.append(_typed(schema, root))
    elif "required" in schema:
        checkers.append(_required(tuple(schema["required"])))
    if "oneOf" in schema:
        checkers.append(_one_of([key for part in schema["oneOf"] for key in part["required"]]))

    def check(value: Any, place: Place) -> None:
        for checker in checkers:
            checker(value, place)

    return check


def unknown_keywords(schema: Any) -> set[str]:
    """Return the keywords of a JSON schema that `from_schema` would overlook."""
    notes = {"$schema", "$defs", "title", "description"}
    used = {
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
        "enum",
        "type",
        "items",
        "properties",
        "additionalProperties",
        "required",
    }
    if not isinstance(schema, Mapping):
        return set()
    found = set(schema) - notes - used
    for key in ("allOf", "anyOf", "oneOf"):
        found.update(*(unknown_keywords(part) for part in schema.get(key, ())))
    for key in ("$defs", "properties"):
        found.update(*(unknown_keywords(part) for part in schema.get(key, {}).values()))
    return found.union(*(unknown_keywords(schema.get(key)) for key in ("items", "additionalProperties")))


def _reference(name: str, root: Mapping[str, Any]) -> Checker:
    target = root["$defs"][name.removeprefix("#/$defs/")]

    # Looked at when it is needed: a definition may lead back to itself.
    def check(value: Any, place: Place) -> None:
        from_schema(target, root)(value, place)

    return check


def _typed(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Checker:
    kind = schema["type"]
    if kind == "array":
        return list_of(from_schema(schema.get("items", {}), root))
    if kind == "object" and "properties" in schema:
        keys = {key: from_schema(part, root) for key, part in schema["properties"].items()}
        return record(keys, tuple(schema.get("required", ())))
    if kind == "object":
        return mapping_of(from_schema(schema.get("additionalProperties", {}), root))
    return {"string": text, "boolean": flag, "integer": integer}[kind]


def _required(keys: tuple[str, ...]) -> Checker:
    def check(value: Any, place: Place) -> None:
        for key in keys:
            if key not in value:
                raise Mistake(place, f"the key {key} is missing")

    return check


def _one_of(keys: list[str]) -> Checker:
    def check(value: Any, place: Place) -> None:
        if len([key for key in keys if key in value]) != 1:
            raise Mistake(place, f"needs exactly one of {', '.join(keys[:-1])} and {keys[-1]}")

    return check


def _kind(value: Any) -> str:
    names = {
        dict: "a mapping",
        list: "a list",
        str: "text",
        bool: "true or false",
        int: "a number",
        type(None): "nothing",
    }
    return names.get(type(value), type(value).__name__)
