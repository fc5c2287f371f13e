"""Reading the options of `cdi generate` without argparse: what is taken is taken as argparse does."""

import contextlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.cli.cdi import parser
from nvinject.cli.cdioptions import GENERATE_OPTIONS, read_plainly

FLAGS = [flag for option in GENERATE_OPTIONS for flag in option.flags]
WORDS = st.sampled_from(
    [*FLAGS, "--", "-", "-h", "--help", "x", "a,b", "", "-1", "--out", "--format=", "--format=json"]
)
LINES = st.lists(WORDS | st.sampled_from(FLAGS).map(lambda flag: f"{flag}=v"), max_size=5)


def whole(words: list[str]) -> dict[str, object] | None:
    """Return what argparse makes of a command line, None where it ends the program."""
    silence = io.StringIO()
    with contextlib.redirect_stderr(silence), contextlib.redirect_stdout(silence):
        try:
            return vars(parser().parse_args(["generate", *words]))
        except SystemExit:
            return None


@pytest.mark.parametrize("words", [[], ["--format", "json"], ["--format=json", "--output", "/x"], ["--per-device"]])
def test_lines_that_are_written_out(words: list[str]) -> None:
    """Nothing but names and values."""
    found = read_plainly(words, GENERATE_OPTIONS)
    assert found is not None
    assert {**vars(found), "command": "generate"} == whole(words)


@given(LINES)
def test_never_another_opinion(words: list[str]) -> None:
    """Whatever is taken, argparse takes as the same."""
    found = read_plainly(words, GENERATE_OPTIONS)
    assert found is None or {**vars(found), "command": "generate"} == whole(words)
