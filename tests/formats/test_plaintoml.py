"""The reader of plain TOML: what it takes it takes as tomllib does, and what it does not take is left to tomllib."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.formats.plaintoml import parse_plain

PLAIN = {
    "": {},
    "# nothing\n\n": {},
    "a = 1": {"a": 1},
    "a=true # yes\nb\t=\tfalse": {"a": True, "b": False},
    'a = "x # y"  # z\n': {"a": "x # y"},
    "a = 'C:\\x'": {"a": "C:\\x"},
    'a = ""': {"a": ""},
    "a = []\nb = [ \"x\", 'y' , ]": {"a": [], "b": ["x", "y"]},
    "x = 0\n[a] # t\nx = 1\n[a.b-c]\nx = 2": {"x": 0, "a": {"x": 1, "b-c": {"x": 2}}},
    "[a.b]\nx = 1\n[a]\ny = 2": {"a": {"b": {"x": 1}, "y": 2}},
    'a = "größe"': {"a": "größe"},
}
LEFT_ALONE = (
    "a",
    "a =",
    "= 1",
    "a = 1 2",
    "a = x",
    "a = 01",
    "a = +1",
    "a = 1.5",
    "a = 1_000",
    "a = 1979-05-27",
    f"a = {10**20}",
    'a = "x\\n"',
    'a = "x',
    'a = "x" "y"',
    'a = """x"""',
    "a = '''x'''",
    'a = """',
    "a = ['x'",
    "a = ['x' 'y']",
    "a = ['x',, 'y']",
    "a = [,]",
    "a = [1]",
    "a = [\n'x']",
    "a = {}",
    "a.b = 1",
    '"a" = 1',
    "a = 1\na = 2",
    "[a]\n[a]",
    "[a",
    "[a] x",
    "[[a]]",
    "[ a ]",
    "[]",
    "[a.]",
    "a = 1\n[a]",
    "[a.b]\n[a]\nb = 1",
    "a = 1\r\n",
    'a = "\x00"',
    "# \x7f",
    "a = 1\x0c",
    "\ufeffa = 1",
)
FRAGMENTS = st.sampled_from(
    [*"ab[]=\"'\\,# \n\t\r10-_{}é\x0b\u2028\ufeff", "a.b", "[a]", "[a.b]", " = ", '"x"', "'y'", "true", "false", "inf"]
)
LINES = st.sampled_from(
    ["a = 1", 'b = "x"', "c = true", "d = ['x', \"y\"]", "[t]", "[t.u]", "[v]", "# c", "", "a = 'z' # c", "e = []"]
)


def whole(text: str) -> dict[str, Any] | None:
    """Return what the real parser makes of a text."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


@pytest.mark.parametrize("text", PLAIN)
def test_plain_documents(text: str) -> None:
    """Every form that is in the subset."""
    assert parse_plain(text) == PLAIN[text] == whole(text)


@pytest.mark.parametrize("text", LEFT_ALONE)
def test_what_takes_a_parser(text: str) -> None:
    """Other forms and mistakes."""
    assert parse_plain(text) is None


@given(st.lists(FRAGMENTS, max_size=12).map("".join) | st.text(max_size=30))
def test_never_another_opinion(text: str) -> None:
    """Whatever it takes, tomllib takes as the same."""
    found = parse_plain(text)
    assert found is None or found == whole(text)


@given(st.lists(LINES, max_size=12).map("\n".join))
def test_documents_of_plain_lines(text: str) -> None:
    """Lines that are plain each make a plain document, unless it is wrong."""
    assert parse_plain(text) == whole(text)
