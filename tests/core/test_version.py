"""Versions: the original's way of comparing, and CUDA_VERSION of old images."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.core.version import compare_versions, format_version, parse_cuda_version, parse_version
from nvinject.errors import InputError

versions = st.lists(st.integers(0, 10**9), min_size=1, max_size=6).map(tuple)

ORDER = [
    ("450.80", "450.80.00", 0),
    ("450.80", "450.80.02", -1),
    ("12", "12.0", 0),
    ("12", "12.0.0.0", 0),
    ("12.0.1", "12", 1),
    ("535.161.08", "535.161.8", 0),
    ("9.2", "10.0", -1),
    ("570.133.20", "570.86.15", 1),
    ("0", "0.0", 0),
    ("999", "1000", -1),
]

BROKEN = ["", ".", "1.", ".1", "1..2", "v1", "1.a", "1 ", " 1", "+1", "1_0", "-1", "\u0661", "1.2-rc1", "9" * 5000]

CUDA = [
    ("11.4.2", (11, 4)),
    ("10.1", (10, 1)),
    ("12", (12, 0)),
    ("v12.2", (12, 2)),
    ("12.2.0-rc.1", (12, 2)),
    ("12.2+build-7", (12, 2)),
    ("10.2.89", (10, 2)),
]

BROKEN_CUDA = ["eleven", "x.y", "10.2.89.1", "", "11.", "v", "11-", "11+", "11-a..b", "11.4\n", "11.4-rc_1"]


@pytest.mark.parametrize(("left", "right", "order"), ORDER)
def test_versions_are_ordered_both_ways(left: str, right: str, order: int) -> None:
    assert compare_versions(parse_version(left), parse_version(right)) == order
    assert compare_versions(parse_version(right), parse_version(left)) == -order


@pytest.mark.parametrize("text", BROKEN)
def test_broken_versions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no version"):
        parse_version(text)


@pytest.mark.parametrize(("text", "expected"), CUDA)
def test_cuda_version(text: str, expected: tuple[int, int]) -> None:
    assert parse_cuda_version(text) == expected


@pytest.mark.parametrize("text", BROKEN_CUDA)
def test_broken_cuda_version_names_variable_and_value(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_cuda_version(text)
    assert "CUDA_VERSION" in caught.value.message
    assert text.encode("unicode_escape").decode() in caught.value.message
    assert "\n" not in str(caught.value)


@given(versions)
def test_what_is_written_is_read_back(version: tuple[int, ...]) -> None:
    assert parse_version(format_version(version)) == version


@given(versions, versions)
def test_comparison_is_antisymmetric(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    assert compare_versions(left, right) == -compare_versions(right, left)


@given(versions, versions, versions)
def test_comparison_is_transitive(first: tuple[int, ...], second: tuple[int, ...], third: tuple[int, ...]) -> None:
    if compare_versions(first, second) <= 0 and compare_versions(second, third) <= 0:
        assert compare_versions(first, third) <= 0


@given(versions, st.integers(1, 3))
def test_trailing_zeros_say_nothing(version: tuple[int, ...], zeros: int) -> None:
    assert compare_versions(version, version + (0,) * zeros) == 0


def refusal(read: Callable[[str], object], text: str) -> Exception | None:
    try:
        read(text)
    except (ValueError, InputError) as error:
        return error
    return None


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (parse_version, parse_cuda_version):
        error = refusal(read, text)
        assert error is None or str(error).isprintable()
