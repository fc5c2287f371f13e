"""JSON edits: in the document's own layout, and refused with line and column where they cannot be made."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.formats import jsontext
from nvinject.formats.jsonio import JSONError
from tests.engines.documents import daemon_documents

SET = [
    ("", ("a",), 1, '{\n    "a": 1\n}\n'),
    ("{}", ("a",), 1, '{\n    "a": 1\n}'),
    ("{\n}\n", ("a", "b"), 1, '{\n    "a": {\n        "b": 1\n    }\n}\n'),
    ('{"a": 1}', ("a",), 1, '{"a": 1}'),
    ('{"a": 1}', ("a",), True, '{"a": true}'),
    ('{"a": 1}\n', ("b",), [], '{"a": 1, "b": []}\n'),
    ('{\n  "a": 1\n}\n', ("b",), 2, '{\n  "a": 1,\n  "b": 2\n}\n'),
    ('{\r\n\t"a": 1\r\n}', ("b", "c"), 2, '{\r\n\t"a": 1,\r\n\t"b": {\r\n\t\t"c": 2\r\n\t}\r\n}'),
    ('{\n  "f": {"x": 1}\n}', ("f", "y"), 2, '{\n  "f": {"x": 1, "y": 2}\n}'),
    ('{\n  "f": {\n    "x": 1\n  }\n}', ("f", "y"), 2, '{\n  "f": {\n    "x": 1,\n    "y": 2\n  }\n}'),
    ('{\n  "f": {}\n}', ("f", "y"), 2, '{\n  "f": {\n    "y": 2\n  }\n}'),
    ('{ "f": {"x": "}\\""}, "z": 1 }', ("f", "x"), "ü", '{ "f": {"x": "ü"}, "z": 1 }'),
    ('{"x": {"f": 1}, "f": 2}', ("f",), 3, '{"x": {"f": 1}, "f": 3}'),
]


@pytest.mark.parametrize(("before", "path", "value", "after"), SET)
def test_a_member_is_set_and_all_else_stays(before: str, path: tuple[str, ...], value: Any, after: str) -> None:
    assert jsontext.set_member(before, path, value) == after


# document, what is said, line, column; public case 19 and the mistakes that people make
REFUSED = [
    ('{\n  "a": 1,\n}\n', "A comma before the closing bracket", 2, 9),
    ('{\n  "a": [1, ]\n}\n', "A comma before the closing bracket", 2, 10),
    ('{\n  // why\n  "a": 1\n}\n', "JSON has no comments", 2, 3),
    ('{\n  "a": 1 # why\n}\n', "JSON has no comments", 2, 10),
    ('/* why */\n{"a": 1}\n', "JSON has no comments", 1, 1),
    ('{"a": {}, "a": {}}', "a stands here a second time", 1, 11),
    ("[]", "Not an object", 1, 1),
    ('{"a": 3}', "Not an object", 1, 7),
    ('{\n "a": "x', "Unterminated string starting at", 2, 7),
    ("{'a': 1}", "Expecting property name enclosed in double quotes", 1, 2),
]


@pytest.mark.parametrize(("before", "says", "line", "column"), REFUSED)
def test_documents_that_are_refused(before: str, says: str, line: int, column: int) -> None:
    with pytest.raises(JSONError) as caught:
        jsontext.set_member(before, ("a", "b"), 1)
    assert (caught.value.reason, caught.value.line, caught.value.column) == (says, line, column)


paths = st.sampled_from(
    [("runtimes", "nvidia", "path"), ("runtimes", "new"), ("features", "cdi"), ("default-runtime",)]
)


def with_value(values: dict[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    below = value if len(path) == 1 else with_value(values.get(path[0], {}), path[1:], value)
    return {**values, path[0]: below}


@given(daemon_documents(), paths, st.booleans() | st.text(max_size=4) | st.dictionaries(st.text(max_size=2), st.none()))
def test_a_member_is_set_and_nothing_else_changes(text: str, path: tuple[str, ...], value: Any) -> None:
    before = json.loads(text) if text.strip() else {}
    expected = with_value(before, path, value)
    after = jsontext.set_member(text, path, value)
    found = json.loads(after)
    assert found == expected
    assert list(found)[: len(before)] == list(before)
    assert jsontext.set_member(after, path, value) == after
    if "\r\n" in text:
        assert "\n" not in after.replace("\r\n", "")


@given(st.text() | st.text(st.sampled_from('{}[]",: \n\\a1')))
def test_any_text_is_edited_or_refused(text: str) -> None:
    try:
        after = jsontext.set_member(text, ("a",), 1)
    except JSONError:
        return
    assert json.loads(after)["a"] == 1
