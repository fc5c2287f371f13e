"""Verdicts: what is missing and what is too much, messages, order of the loader cache."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvconform import judge
from nvconform.case import Refused
from nvconform.expect import View

WORDS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("xyz"))

MESSAGES = [
    (Refused(names=("GPU 9",)), "nvinject: unknown device gpu 9; there are 2\n", []),
    (Refused(names=("9",)), "nvinject: unknown device\n", ["does not name '9'"]),
    (Refused(names=("either | or",)), "nvinject: or\n", []),
    (Refused(hides=("secret",)), "nvinject: the Secret\n", ["says 'secret'"]),
    (Refused(), "Traceback (most recent call last):\nnvinject: x\n", ["shows a traceback", "has 2 lines"]),
    (Refused(), "error: x\n", ["no line begins with 'nvinject: '"]),
    (Refused(), "nvinject: one\nnvinject: two\n", ["has 2 lines"]),
    (Refused(), "nvinject: warning: odd\nnvinject: two\n", []),
    (Refused(), "", ["no line begins with"]),
]

ORDERS = [
    (["a 1", "b 1"], ["a 1", "x 1", "b 1"], {}, 0),
    (["a 1", "b 1"], ["b 1", "a 1"], {}, 1),
    (["a 1", "b 1"], ["a 1"], {}, 1),
    (["unreadable: junk"], ["a 1"], {}, 0),
    ([], ["a (64) /x/a", "a (64) /y/a"], {"a": "/x/a"}, 0),
    ([], ["a (64) /x/a", "a (64) /y/a"], {"a": "/y/a"}, 1),
    ([], [], {"a": "/y/a"}, 1),
]


@given(WORDS)
def test_equal_views_do_not_differ(mapping: dict[str, str]) -> None:
    view = View(mounts=mapping, nodes=mapping, links=mapping, cache=list(mapping), rules=list(mapping))
    assert judge.compare_views(view, view, rules=True) == []


@given(WORDS, WORDS)
def test_every_difference_is_found_from_both_sides(one: dict[str, str], other: dict[str, str]) -> None:
    expected = {key for key in {**one, **other} if one.get(key) != other.get(key)}
    assert len(judge.compare_mappings("mounts", one, other)) == len(expected)
    assert len(judge.compare_mappings("mounts", other, one)) == len(expected)


def test_differences_are_told_with_both_sides() -> None:
    lines = judge.compare_mappings("mounts", {"/a": "ro", "/b": "ro"}, {"/a": "rw", "/c": "ro"})
    assert lines == [
        "mounts: /a is rw, expected ro",
        "mounts: /b is missing (expected ro)",
        "mounts: /c is too much (ro)",
    ]


def test_numbers_count_in_lists() -> None:
    assert judge.compare_lists("rules", ["a"], ["a", "a"]) == ["rules: a is too much"]


def test_rules_do_not_count_where_they_cannot_be_seen() -> None:
    assert judge.compare_views(View(rules=["c 195:0 rw"]), View(), rules=False) == []


def test_mount_points_and_their_directories_explain_changes_and_nothing_else_does() -> None:
    view = View(mounts={"/usr/bin/tool": "ro tool"}, links={"/usr/lib/x": "y"})
    changes = {
        "/usr": "directory 0755 0:0",
        "/usr/bin/tool": "file 0644 0:0 0 e3b0",
        "/usr/lib/x": "link y",
        "/etc/passwd": "file 0644 0:0 5 abcd",
        "/etc/ld.so.cache": "file 0644 0:0 900 ffff",
    }
    lines = judge.unexplained_changes(changes, view, ["/etc/ld.so.cache"])
    assert lines == ["root file system: /etc/passwd changed to file 0644 0:0 5 abcd"]


def test_a_mount_point_that_was_written_to_is_a_fault() -> None:
    view = View(mounts={"/tool": "ro tool"})
    lines = judge.unexplained_changes({"/tool": "file 0755 0:0 512 abcd"}, view, [])
    assert lines == ["root file system: mount point /tool is no empty file"]


@pytest.mark.parametrize(("refused", "message", "problems"), MESSAGES)
def test_messages_are_held_to_their_words(refused: Refused, message: str, problems: list[str]) -> None:
    found = judge.judge_message(refused, message, prefix="nvinject: ", lines=1)
    assert len(found) == len(problems), found
    assert all(problem in line for problem, line in zip(problems, found, strict=True))


def test_an_implementation_without_a_style_is_free_in_its_lines() -> None:
    assert judge.judge_message(Refused(names=("x",)), "a\nb x\n", prefix="", lines=0) == []


def test_warnings_are_held_to_their_words() -> None:
    assert judge.judge_warnings(["key"], "nvinject: warning: Key is unknown\n") == []
    assert judge.judge_warnings(["key"], "") == ["warning: nothing names 'key': ''"]


@pytest.mark.parametrize(("before", "after", "first", "count"), ORDERS)
def test_the_loader_cache_keeps_its_order(
    before: list[str], after: list[str], first: dict[str, str], count: int
) -> None:
    assert len(judge.judge_cache_order(before, after, first)) == count
