"""ld.so.conf: statements and wildcards, the latter against fnmatch."""

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.formats.ldconf import Directory, Include, has_wildcard, matches, parse_conf

LINES: list[tuple[str, tuple[Directory | Include, ...]]] = [
    ("", ()),
    ("# comment", ()),
    ("/usr/local/lib", (Directory(path="/usr/local/lib"),)),
    ("  /usr/local/lib//  # comment", (Directory(path="/usr/local/lib"),)),
    ("/a b/c", (Directory(path="/a b/c"),)),
    ("/lib=libc6", (Directory(path="/lib"),)),
    ("/lib = libc5", (Directory(path="/lib"),)),
    ("/", ()),
    ("lib", ()),
    ("../lib", ()),
    ("/lib\0/x", (Directory(path="/lib"),)),
    ("/lib\r", (Directory(path="/lib"),)),
    ("include /etc/ld.so.conf.d/*.conf", (Include(pattern="/etc/ld.so.conf.d/*.conf"),)),
    ("\tinclude\ta.conf  b/*.conf", (Include(pattern="a.conf"), Include(pattern="b/*.conf"))),
    ("include", ()),
    ("includes /lib", ()),
    ("include/lib", ()),
    ("hwcap 0 nosegneg", ()),
    ("HWCAP 0 nosegneg", ()),
    (
        "/a\n\n/b\ninclude c\n/a\n",
        (Directory(path="/a"), Directory(path="/b"), Include(pattern="c"), Directory(path="/a")),
    ),
]


@pytest.mark.parametrize(("text", "expected"), LINES)
def test_statements_of_a_file(text: str, expected: tuple[Directory | Include, ...]) -> None:
    assert parse_conf(text) == expected


@given(st.text(alphabet="includehwap /=#\n\t\0x*", max_size=60))
def test_directories_are_absolute(text: str) -> None:
    for statement in parse_conf(text):
        if isinstance(statement, Directory):
            assert statement.path.startswith("/")
            assert not statement.path.endswith("/")
        else:
            assert statement.pattern


@given(st.text(alphabet="ab*?.", max_size=8), st.text(alphabet="ab.c", max_size=8))
def test_wildcards_are_fnmatchs(pattern: str, name: str) -> None:
    hidden = name.startswith(".") and not pattern.startswith(".")
    assert matches(pattern, name) == (fnmatch.fnmatchcase(name, pattern) and not hidden)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("*.conf", "a.conf", True),
        ("*.conf", ".a.conf", False),
        (".*", ".a", True),
        ("*.conf", "a.conf~", False),
        ("[a]", "a", False),
        ("[a]", "[a]", True),
        ("*", "", True),
        ("?", "", False),
        ("a" * 50 + "*" * 50 + "b", "a" * 5000, False),
    ],
)
def test_what_a_wildcard_matches(pattern: str, name: str, *, expected: bool) -> None:
    assert matches(pattern, name) is expected


def test_has_wildcard() -> None:
    assert [has_wildcard(text) for text in ("a", "a*", "?", "[a]")] == [False, True, True, False]
