"""TOML edits: what changes is what was asked for, and nothing else; or it is refused."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.formats import tomlscan, tomltext
from nvinject.formats.tomlscan import EditError
from tests.engines.documents import toml_documents

Path = tuple[str, ...]

# document, path, value, document afterwards
SET = [
    ("", ("a",), 1, "a = 1\n"),
    ("a = 1\n", ("a",), 1, "a = 1\n"),
    ("a = 1\n", ("a",), True, "a = true\n"),
    ("a = 1 # why\nb = 2", ("a",), 3, "a = 3 # why\nb = 2"),
    ("  a   =  'x'   # why\r\n", ("a",), "y", '  a   =  "y"   # why\r\n'),
    ("[t]\nb = 2", ("t", "c"), 3, "[t]\nb = 2\nc = 3"),
    ("[t]\nb = 2\n\n# about u\n[u]\nx = 1\n", ("t", "c"), 3, "[t]\nb = 2\nc = 3\n\n# about u\n[u]\nx = 1\n"),
    ("[t]\r\nb = 2\r\n\r\n[u]\r\n", ("t", "c"), 3, "[t]\r\nb = 2\r\nc = 3\r\n\r\n[u]\r\n"),
    ("[t]\n[u]\n", ("t", "c"), 3, "[t]\nc = 3\n[u]\n"),
    ("  [t]\n    b = 2\n", ("t", "c"), 3, "  [t]\n    b = 2\n    c = 3\n"),
    ("  [t]\n", ("t", "c"), 3, "  [t]\n    c = 3\n"),
    ("[t]\nb = 2\n", ("c",), 3, "c = 3\n[t]\nb = 2\n"),
    ("# licence\n\n[t]\nb = 2\n", ("c",), 3, "# licence\n\nc = 3\n[t]\nb = 2\n"),
    ("# about t\n[t]\nb = 2\n", ("c",), 3, "c = 3\n# about t\n[t]\nb = 2\n"),
    ("a = 1\n\n# about t\n[t]\n", ("c",), 3, "a = 1\nc = 3\n\n# about t\n[t]\n"),
    ("a = 1\n", ("t", "c"), 3, "a = 1\n\n[t]\nc = 3\n"),
    ("a = 1", ("t", "c"), 3, "a = 1\n\n[t]\nc = 3"),
    ("[t.u]\na = 1\n", ("t", "c"), 3, "[t.u]\na = 1\n\n[t]\nc = 3\n"),
    ("t.a = 1\nb = 2\n", ("t", "c"), 3, "t.a = 1\nt.c = 3\nb = 2\n"),
    ("[x]\nt.u.a = 1\n", ("x", "t", "c"), 3, "[x]\nt.u.a = 1\nt.c = 3\n"),
    ("t = { a = 1 } # why\n", ("t", "c"), 3, "t = { a = 1, c = 3 } # why\n"),
    ("t = {}\n", ("t", "c"), 3, "t = { c = 3 }\n"),
    ("t = { u = { a = 1 } }\n", ("t", "u", "a"), 3, "t = { u = { a = 3 } }\n"),
    ("t = { u = { a = 1 } }\n", ("t", "v", "a"), 3, "t = { u = { a = 1 }, v.a = 3 }\n"),
    ('a = """\n[t]\nc = 1\n"""\n', ("t", "c"), 3, 'a = """\n[t]\nc = 1\n"""\n\n[t]\nc = 3\n'),
    ("", ("x.y", "z"), 'q"\\\t\x01\x7fü', '\n["x.y"]\nz = "q\\"\\\\\\t\\u0001\\u007fü"\n'.lstrip("\n")),
    ("a = [1]\n", ("a",), ["x", "y"], 'a = ["x", "y"]\n'),
    # a commented default comes to life where it stands (NCT#1626), any other one gets a line below
    ('[t]\n#debug = "/x"\nz = 1\n', ("t", "debug"), "/x", '[t]\ndebug = "/x"\nz = 1\n'),
    ('#   debug = "/x" # note\nz = 1', ("debug",), "/x", 'debug = "/x" # note\nz = 1'),
    ('#debug = "/x"\nz = 1\n', ("debug",), "/y", '#debug = "/x"\ndebug = "/y"\nz = 1\n'),
    ('a = 1\n[t]\n#debug = "/x"\n', ("debug",), "/x", 'a = 1\ndebug = "/x"\n[t]\n#debug = "/x"\n'),
    ("#a = nonsense\nb = 1\n", ("a",), 1, "#a = nonsense\nb = 1\na = 1\n"),
]


@pytest.mark.parametrize(("before", "path", "value", "after"), SET)
def test_a_value_is_set_and_all_else_stays(before: str, path: Path, value: Any, after: str) -> None:
    assert tomltext.set_value(before, path, value) == after


# document, path, value, what is said, line and column
REFUSED = [
    ("a = 1\nb = \n", ("a",), 1, "invalid value", (2, 5)),
    ("a = 1\na = 2\n", ("a",), 1, "cannot overwrite a value", (2, 6)),
    ("x = 2\n  a = 1\n", ("a", "b"), 1, "a is not a table", (2, 7)),
    ("x = 2\n[[a]]\nb = 1\n", ("a", "b"), 1, "a is an array of tables", (2, 1)),
]


@pytest.mark.parametrize(("before", "path", "value", "says", "place"), REFUSED)
def test_documents_that_are_refused(before: str, path: Path, value: Any, says: str, place: tuple[int, int]) -> None:
    with pytest.raises(EditError) as caught:
        tomltext.set_value(before, path, value)
    assert caught.value.reason == says
    assert (caught.value.line, caught.value.column) == place


APPEND = [
    ("", 'i = ["c"]\n'),
    ("i = []\n", 'i = ["c"]\n'),
    ('i = ["a"] # why\n', 'i = ["a", "c"] # why\n'),
    ('i = ["a",]\n', 'i = ["a", "c",]\n'),
    ('i = [ "a", "b" ]\r\n', 'i = [ "a", "b", "c" ]\r\n'),
    ('i = [\n  "a", # first\n  "b" # second\n]\n', 'i = [\n  "a", # first\n  "b", # second\n  "c"\n]\n'),
    ('i = [\r\n\t"a",\r\n]\r\n', 'i = [\r\n\t"a",\r\n\t"c",\r\n]\r\n'),
    ('i = [\n  "a",\n  "b"]\n', 'i = [\n  "a",\n  "b", "c"]\n'),
    ('i = ["a",\n     "b"\n]\n', 'i = ["a",\n     "b",\n     "c"\n]\n'),
    ('i = [\n  "a"\n  ,\n]\n', 'i = ["a", "c"]\n'),
    ("i = [\n  # nothing\n]\n", 'i = ["c"]\n'),
]


@pytest.mark.parametrize(("before", "after"), APPEND)
def test_an_element_is_added_as_the_others_are_written(before: str, after: str) -> None:
    assert tomltext.append_value(before, ("i",), "c") == after


REMOVE = [
    ("a = 1\nb = 2\n", ("a",), "b = 2\n"),
    ("a = 1\nb = 2", ("b",), "a = 1"),
    ("[t]\n# about a\n  a = [\n1]\n\n[u]\n", ("t", "a"), "[t]\n# about a\n\n[u]\n"),
    ("[t]\na = 1\n", ("t", "b"), "[t]\na = 1\n"),
]


@pytest.mark.parametrize(("before", "path", "after"), REMOVE)
def test_a_value_is_removed_and_all_else_stays(before: str, path: Path, after: str) -> None:
    assert tomltext.remove_value(before, path) == after


def test_remove_inside_an_inline_table_is_refused() -> None:
    with pytest.raises(EditError, match="cannot be edited"):
        tomltext.remove_value("t = { a = 1 }\n", ("t", "a"))


def test_the_line_of_a_key() -> None:
    text = 'a = """\nb = 1\n"""\n[t]\nb = 1\n[[l]]\nc = 1\n'
    assert [tomltext.find_line(text, path) for path in ((("a",), ("t",), ("t", "b"), ("b",), ("l", "c")))] == [
        1,
        4,
        5,
        0,
        0,
    ]


def values_at(text: str) -> dict[str, Any]:
    return tomllib.loads(text)


def test_a_scan_finds_every_byte() -> None:
    """Statements and what is between them make up the document."""
    text = "# c\n\na.b = 1 # d\r\n [t] # e\n 'x y' = [\n1,\n]\n"
    kinds = [(one.kind, one.key, text[one.value : one.value_end]) for one in tomlscan.scan(text)]
    assert kinds == [
        ("comment", (), "# c"),
        ("pair", ("a", "b"), "1"),
        ("table", ("t",), "[t] "),
        ("pair", ("t", "x y"), "[\n1,\n]"),
    ]


paths = st.lists(st.sampled_from(["a", "b", "c-d", "x.y", "new"]), min_size=1, max_size=3).map(tuple)
new_values = st.booleans() | st.integers(-5, 5) | st.text(max_size=8) | st.lists(st.text(max_size=3), max_size=3)


def removed_part(before: str, after: str) -> str:
    """Return what of the old text is missing in the new one, between what both begin and end with."""
    start = next(
        (i for i, (x, y) in enumerate(zip(before, after, strict=False)) if x != y), min(len(before), len(after))
    )
    rest, new = before[start:], after[start:]
    end = next((i for i, (x, y) in enumerate(zip(rest[::-1], new[::-1], strict=False)) if x != y), len(rest))
    return rest[: len(rest) - min(end, len(rest), len(new))]


@given(toml_documents(), paths, new_values)
def test_an_edit_takes_away_the_old_value_and_nothing_else(text: str, path: Path, value: Any) -> None:
    """Or the mark that made the new one a comment; every other byte stays in its place."""
    there = tomltext.lookup(values_at(text), path)
    try:
        after = tomltext.set_value(text, path, value)
    except EditError:
        return
    assert tomltext.lookup(values_at(after), path) == value
    assert tomltext.set_value(after, path, value) == after
    removed = removed_part(text, after)
    if there is None:
        assert removed.strip("# \t{}") == ""
    else:
        spelled = [text[one.value : one.value_end] for one in tomlscan.scan(text) if one.kind == tomlscan.PAIR]
        assert any(removed in one for one in spelled)


@given(toml_documents(), st.sampled_from([("a",), ("new",), ("b", "a"), ("t", "i")]), st.text(max_size=4))
def test_append_adds_one_element(text: str, path: Path, value: str) -> None:
    before = tomltext.lookup(values_at(text), path)
    try:
        after = tomltext.append_value(text, path, value)
    except EditError:
        assert before is not None or path[:-1]
        return
    assert tomltext.lookup(values_at(after), path) == [*(before or []), value]


@given(toml_documents())
def test_every_document_is_scanned_as_the_parser_reads_it(text: str) -> None:
    """What the scan calls a pair has the parser's value."""
    values = values_at(text)
    for one in tomlscan.scan(text):
        if one.kind == tomlscan.PAIR and not one.listed:
            spelled = tomllib.loads(f"key = {text[one.value : one.value_end]}\n")["key"]
            assert tomltext.lookup(values, one.key) == spelled


@given(toml_documents())
def test_written_documents_are_read_back(text: str) -> None:
    values = values_at(text)
    assert tomllib.loads(tomltext.format_document(values)) == values


@given(st.text() | st.text(st.sampled_from("ab-.=[]{}\"'\n#, 01te\\")))
def test_any_text_is_edited_or_refused(text: str) -> None:
    try:
        after = tomltext.set_value(text, ("a", "b"), 1)
    except EditError:
        return
    assert tomltext.lookup(values_at(after), ("a", "b")) == 1
