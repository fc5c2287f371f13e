"""Command lines as GNU argp reads them."""

import pytest

from nvinject.cli.argp import Flag, format_options, parse
from nvinject.errors import UsageError

FLAGS = (
    Flag(name="debug", letter="d", argument="FILE", help="write here"),
    Flag(name="device", argument="ID"),
    Flag(name="user", letter="u", argument="UID", optional=True),
    Flag(name="load", letter="k"),
)

GOOD: list[tuple[list[str], list[tuple[str, str | None]], list[str]]] = [
    ([], [], []),
    (["--load", "list"], [("load", None)], ["list"]),
    (["--lo", "list"], [("load", None)], ["list"]),
    (["--debug=x"], [("debug", "x")], []),
    (["--debug", "--load"], [("debug", "--load")], []),
    (["-d", "x", "list", "-k"], [("debug", "x")], ["list", "-k"]),
    (["-dx"], [("debug", "x")], []),
    (["-kdx"], [("load", None), ("debug", "x")], []),
    (["--user", "list"], [("user", None)], ["list"]),
    (["--user=0:0", "list"], [("user", "0:0")], ["list"]),
    (["-u", "list"], [("user", None)], ["list"]),
    (["-u0", "list"], [("user", "0")], ["list"]),
    (["--", "--load"], [], ["--load"]),
    (["-?"], [("help", None)], []),
]


@pytest.mark.parametrize(("words", "options", "rest"), GOOD)
def test_words_are_read(words: list[str], options: list[tuple[str, str | None]], rest: list[str]) -> None:
    """Abbreviations, bundles and optional values."""
    found = parse(words, FLAGS, in_order=True)
    assert list(found.options) == options
    assert list(found.rest) == rest


def test_options_behind_a_word_count_unless_in_order() -> None:
    """argp permutes the words of a command and stops at the command word itself."""
    assert parse(["a", "--load", "b"], FLAGS, in_order=False).rest == ("a", "b")
    assert parse(["a", "--load", "b"], FLAGS, in_order=True).rest == ("a", "--load", "b")


BAD = [
    (["--dance"], "unrecognized option '--dance'"),
    (["--de"], "option '--de' is ambiguous; possibilities: '--debug' '--device'"),
    (["--load=1"], "option '--load' doesn't allow an argument"),
    (["--debug"], "option '--debug' requires an argument"),
    (["-d"], "option requires an argument -- 'd'"),
    (["-x"], "invalid option -- 'x'"),
]


@pytest.mark.parametrize(("words", "message"), BAD)
def test_faults_are_told_as_getopt_tells_them(words: list[str], message: str) -> None:
    """One line, in words that callers know."""
    with pytest.raises(UsageError) as caught:
        parse(words, FLAGS, in_order=True)
    assert str(caught.value) == message


def test_values_are_found_by_name() -> None:
    """The last one, all of them, or whether there is any."""
    found = parse(["--device=a", "--device", "b", "-k"], FLAGS, in_order=True)
    assert found.every("device") == ("a", "b")
    assert found.last("device") == "b"
    assert found.has("load")
    assert found.last("debug") is None


def test_help_has_a_line_for_every_option() -> None:
    """Letter, name and value."""
    text = format_options(FLAGS)
    assert "  -d, --debug=FILE" in text
    assert "      --device=ID" in text
    assert "  -u, --user[=UID]" in text
