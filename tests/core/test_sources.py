"""Paths of mounts are cleaned as the standard library does it; what asks for devices is in test_request.py."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.core.sources import clean_path


@given(st.lists(st.sampled_from(["a", "..", ".", "", "b c"]), max_size=8).map("/".join))
def test_absolute_paths(path: str) -> None:
    """The same as the standard library's, whose import takes longer than reading the file."""
    assert clean_path(f"/{path}") == "/" + os.path.normpath(f"/{path}").lstrip("/")


@pytest.mark.parametrize(("path", "cleaned"), [("", ""), (".", ""), ("a//b/.", "a/b"), ("a/../b", "b"), ("../b", "b")])
def test_relative_paths_stay_below_where_they_begin(path: str, cleaned: str) -> None:
    assert clean_path(path) == cleaned
