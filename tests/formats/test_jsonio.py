"""jsonio against json: the same values, the same refusals, a place in every error."""

import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.formats import jsonio

DOCUMENTS: list[str | bytes] = [
    "",
    " ",
    "\n\t\r ",
    "null",
    " null ",
    "\u00a0null",
    "null\x0b",
    "true",
    "tru",
    "nul",
    "false x",
    "0",
    "-0",
    "-",
    "01",
    "1.",
    "1.5e300",
    "1e999",
    "-1e-7",
    "1E+2",
    "NaN",
    "Infinity",
    "-Infinity",
    "-Infinit",
    "[NaN]",
    '"a"',
    '"a',
    '"\\u0041\\n\\/"',
    '"\\ud83d\\ude00"',
    '"\\ud83d"',
    '"\\u12"',
    '"\\x"',
    '"\x00"',
    '"a\nb"',
    "'a'",
    "[]",
    "[ ]",
    "[1,]",
    "[1 2]",
    "[1",
    "[",
    "{}",
    '{"a"',
    '{"a":',
    '{"a":1',
    '{"a":1,}',
    '{"a":1,"a":2}',
    "{a:1}",
    '{"a" : [1, {"b": null}] }',
    "{} {}",
    "{}\n\n]",
    "[1]\x00",
    "\ufeff{}",
    '{"é": "日本"}',
    '{"a": "\U0001f600"}',
    "9" * 5000,
    b"",
    b"{}",
    b"\xef\xbb\xbf{}",
    b"\xef\xbb\xbf\xef\xbb\xbf{}",
    b'{"a": "\xff"}',
    b'\n\n {"a": "\xc3"}',
    b'"\xed\xa0\x80"',
    b"0",
    b"\x00",
    b"\x00\x00",
    b"1\x00",
    b"\x001",
    b"\x00\x00\x001",
    b"1\x00\x00\x00",
    b"\x00\x00\x00\x00",
    '{"a": 1}'.encode("utf-16"),
    '{"a": 1}'.encode("utf-16-le"),
    '{"a": 1}'.encode("utf-16-be"),
    '{"a": 1}'.encode("utf-32"),
    '{"a": 1}'.encode("utf-32-le"),
    '{"a": 1}'.encode("utf-32-be"),
    '{"a": 1}'.encode("utf-16-le")[:-1],
    bytes(range(256)),
]


def outcome_of_json(document: str | bytes) -> tuple[str, Any]:
    try:
        return ("value", json.loads(document))
    except (ValueError, RecursionError):
        return ("refused", None)


def outcome_of_jsonio(document: str | bytes) -> tuple[str, Any]:
    try:
        return ("value", jsonio.loads(document))
    except jsonio.JSONError:
        return ("refused", None)


def same(left: Any, right: Any) -> bool:
    """Equality that tells 1 from 1.0 and True, and takes NaN for equal to itself."""
    return repr(left) == repr(right)


@pytest.mark.parametrize("document", DOCUMENTS, ids=[ascii(document)[:40] for document in DOCUMENTS])
def test_agrees_with_json(document: str | bytes) -> None:
    expected = outcome_of_json(document)
    assert same(outcome_of_jsonio(document), expected)
    if isinstance(document, bytes):
        assert same(outcome_of_jsonio(bytearray(document)), expected)  # type: ignore[arg-type]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON_VALUES, st.sampled_from([None, 2]))
def test_reads_what_json_writes(value: Any, indent: int | None) -> None:
    document = json.dumps(value, indent=indent)
    assert same(jsonio.loads(document), json.loads(document))
    assert jsonio.dumps(value, indent=indent) == document


@given(st.text(alphabet='[]{}",:0123456789.eE+-truefalsn \n\\u\u00e9', max_size=40))
def test_agrees_with_json_on_any_text(document: str) -> None:
    assert same(outcome_of_jsonio(document), outcome_of_json(document))


@given(st.binary(max_size=40) | JSON_VALUES.map(lambda value: json.dumps(value).encode()[:-1]))
def test_agrees_with_json_on_any_bytes(document: bytes) -> None:
    assert same(outcome_of_jsonio(document), outcome_of_json(document))


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_nesting_is_an_error(opening: str) -> None:
    with pytest.raises(jsonio.JSONError, match="nested too deeply"):
        jsonio.loads(opening * 200_000)


PLACES = [
    ("", 1, 1),
    ("{", 1, 2),
    ("{\n  a: 1}", 2, 3),
    ("[1,\n2,\n oops]", 3, 2),
    ("{}\n{}", 2, 1),
    (b'[\n"\xff"]', 2, 2),
    ("\ufeff{}", 1, 1),
]


@pytest.mark.parametrize(("document", "line", "column"), PLACES)
def test_error_has_a_place(document: str | bytes, line: int, column: int) -> None:
    with pytest.raises(jsonio.JSONError) as caught:
        jsonio.loads(document)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert f"line {line} column {column}" in str(caught.value)


def place_in_json(document: str | bytes) -> tuple[int, int] | None:
    try:
        json.loads(document)
    except json.JSONDecodeError as error:
        return (error.lineno, error.colno)
    except ValueError:
        return None
    return None


@pytest.mark.parametrize("document", [text for text in DOCUMENTS if place_in_json(text)], ids=ascii)
def test_place_agrees_with_json(document: str | bytes) -> None:
    with pytest.raises(jsonio.JSONError) as caught:
        jsonio.loads(document)
    assert (caught.value.line, caught.value.column) == place_in_json(document)


def test_constants_are_floats() -> None:
    assert math.isnan(jsonio.loads("NaN"))
    assert jsonio.loads("[Infinity, -Infinity]") == [math.inf, -math.inf]


WITHOUT_ACCELERATOR = """
import sys
sys.modules["_json"] = None
from nvinject.formats import jsonio
assert jsonio.loads(b'{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
assert "json" in sys.modules
for document in ("{", "[1] 2", "\\ufeff1", b"\\xff", "[" * 200000):
    try:
        jsonio.loads(document)
    except jsonio.JSONError as error:
        print(error.line, error.column)
"""


def test_json_stands_in_for_a_missing_accelerator() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_ACCELERATOR], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:5] == ["1 2", "1 5", "1 1", "1 1", "0 0"]


@pytest.mark.parametrize("value", [{1, 2}, {"a": object()}, [b""]])
def test_dumps_refuses_what_json_cannot_hold(value: object) -> None:
    with pytest.raises(TypeError, match="is not JSON serializable"):
        jsonio.dumps(value)


def test_dumps_refuses_a_circle() -> None:
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(ValueError, match="Circular"):
        jsonio.dumps(circle)


READING = """
import sys
sys.path[:0] = {path!r}
from nvinject.formats import jsonio
jsonio.dumps(jsonio.loads('{{"a": [1.5]}}'))
print('json' in sys.modules, 're' in sys.modules)
"""


def test_reading_and_writing_import_neither_json_nor_re() -> None:
    command = [sys.executable, "-IS", "-c", READING.format(path=sys.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
