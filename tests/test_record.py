"""Record: the base class of every value."""

import pytest

from nvinject.record import Record


class Point(Record):
    """Two numbers, one of them optional."""

    x: int
    y: int = 2


class Named(Point):
    """A point with a name."""

    name: str


BROKEN = [
    ({}, "needs a value for x"),
    ({"x": 1, "z": 3}, "has no field z"),
    ({"x": 1, "y": 2, "a": 0, "b": 0}, "has no field a, b"),
]


@pytest.mark.parametrize(("values", "message"), BROKEN)
def test_a_wrong_field_is_named(values: dict[str, int], message: str) -> None:
    """Missing and unknown fields are a TypeError that says which."""
    with pytest.raises(TypeError, match=message):
        Point(**values)


def test_values_are_compared_hashed_and_shown_by_content() -> None:
    """Two records of one kind with the same content are one value."""
    assert Point(x=1) == Point(x=1, y=2)
    assert Point(x=1) != Point(x=2)
    assert Point(x=1) != Named(x=1, name="")
    assert len({Point(x=1), Point(x=1, y=2)}) == 1
    assert repr(Point(x=1)) == "Point(x=1, y=2)"


def test_a_record_never_changes() -> None:
    """Neither assignment nor deletion, also of unknown names; replace makes another."""
    point = Point(x=1)
    with pytest.raises(AttributeError):
        point.x = 3  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del point.x
    with pytest.raises(AttributeError):
        point.z = 3
    assert point.replace(y=5) == Point(x=1, y=5)


def test_fields_are_inherited_and_can_be_matched() -> None:
    """A subclass adds to the fields of its base."""
    match Named(x=1, name="origin"):
        case Named(x=x, y=y, name=name):
            assert (x, y, name) == (1, 2, "origin")
