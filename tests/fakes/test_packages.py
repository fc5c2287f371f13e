"""The machine's apt sources are read in both of their formats; nothing here reaches a network."""

import os
from pathlib import Path

import pytest

from nvfakes.packages import (
    BRANCHES,
    MARKER,
    DriverFiles,
    NoSourceError,
    PackagesError,
    Source,
    default_cache,
    fetch,
    find_sources,
    fingerprint,
    format_source,
    merge_usr,
    parse_list,
    parse_stanzas,
)

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
SIGNED = f"Signed-By: {KEYS}\n"

LINES = [
    ("deb http://a.invalid/debian bookworm main", [Source("http://a.invalid/debian")]),
    ("deb http://a.invalid/debian bookworm contrib main non-free # ours", [Source("http://a.invalid/debian")]),
    (f"deb [arch=amd64 signed-by={KEYS}] http://a.invalid/d trixie main", [Source("http://a.invalid/d", SIGNED)]),
    ("  deb file:/srv/mirror sid main", [Source("file:/srv/mirror")]),
    ("# deb http://a.invalid/debian bookworm main", []),
    ("deb-src http://a.invalid/debian bookworm main", []),
    ("deb http://a.invalid/debian bookworm-updates main", []),
    ("deb http://a.invalid/debian-security bookworm-security main", []),
    ("deb http://a.invalid/other stable tools", []),
    ("deb", []),
    ("", []),
]


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_one_line_sources(line: str, expected: list[Source]) -> None:
    assert list(parse_list(line)) == expected


STANZAS = [
    ("Types: deb\nURIs: http://a.invalid/d\nSuites: bookworm\nComponents: main\n", [Source("http://a.invalid/d")]),
    (
        f"Types: deb deb-src\nURIs: http://a.invalid/d\n# why\nSuites: sid sid-updates\nComponents: main\n{SIGNED}",
        [Source("http://a.invalid/d", SIGNED)],
    ),
    (
        "Types: deb\nURIs: http://a.invalid/1 http://a.invalid/2\nSuites: trixie\nComponents: main contrib\n",
        [Source("http://a.invalid/1"), Source("http://a.invalid/2")],
    ),
    (
        "Types: deb\nURIs: http://a.invalid/1\nSuites: trixie\nComponents: main\nSigned-By:\n -----BEGIN\n .\n key\n",
        [Source("http://a.invalid/1", "Signed-By: \n -----BEGIN\n .\n key\n")],
    ),
    (
        (
            "Types: deb\nURIs: http://a.invalid/s\nSuites: bookworm-security\nComponents: main\n\n"
            "Types: deb\nURIs: http://a.invalid/d\nSuites: bookworm\nComponents: main\n"
        ),
        [Source("http://a.invalid/d")],
    ),
    ("Enabled: no\nTypes: deb\nURIs: http://a.invalid/d\nSuites: bookworm\nComponents: main\n", []),
    ("Types: deb-src\nURIs: http://a.invalid/d\nSuites: bookworm\nComponents: main\n", []),
    ("Types: deb\nURIs: http://a.invalid/d\nSuites: nodistro\nComponents: tools\n", []),
    ("", []),
]


@pytest.mark.parametrize(("text", "expected"), STANZAS)
def test_sources_in_stanzas(text: str, expected: list[Source]) -> None:
    assert list(parse_stanzas(text)) == expected


def test_sources_of_all_files_each_uri_once(tmp_path: Path) -> None:
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (tmp_path / "sources.list").write_text("deb http://a.invalid/1 bookworm main\n")
    (parts / "two.list").write_text("deb http://a.invalid/1 trixie main\ndeb http://a.invalid/2 trixie main\n")
    (parts / "three.sources").write_text("Types: deb\nURIs: http://a.invalid/3\nSuites: sid\nComponents: main\n")
    (parts / "four.disabled").write_text("deb http://a.invalid/4 trixie main\n")
    assert [source.uri for source in find_sources(tmp_path)] == [f"http://a.invalid/{n}" for n in (1, 2, 3)]


def test_no_sources_at_all(tmp_path: Path) -> None:
    assert find_sources(tmp_path) == []


def test_stanza_names_the_suite_and_the_keys() -> None:
    text = format_source(Source("http://a.invalid/d", SIGNED), "trixie")
    assert text.splitlines()[1:3] == ["URIs: http://a.invalid/d", "Suites: trixie"]
    assert text.endswith(SIGNED)


def test_unknown_branch_names_the_known_ones() -> None:
    with pytest.raises(PackagesError, match=r"no driver branch '999'; known are 470, 535, 550"):
        fetch("999")


def test_cached_branch_needs_no_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = tmp_path / f"535-{fingerprint(BRANCHES['535'])}"
    folder.mkdir()
    (folder / MARKER).write_text("535.1.2\n")
    assert fetch("535", tmp_path) == DriverFiles(folder / "root", "535.1.2")


def test_machine_without_apt_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoSourceError, match="apt-get is missing"):
        fetch("535", tmp_path)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("/var/tmp/c", "/var/tmp/c/nvfakes/drivers"), ("relative", "/home/u/.cache/nvfakes/drivers"), ("", None)],
)
def test_cache_folder(value: str, expected: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("HOME", "/home/u")
    assert os.fspath(default_cache()) == (expected or "/home/u/.cache/nvfakes/drivers")


def test_cache_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PackagesError, match=r"cannot use the cache folder .*; set XDG_CACHE_HOME"):
        fetch("535", tmp_path / "file")


def test_folders_of_a_merged_usr_are_put_together(tmp_path: Path) -> None:
    for path in ("lib/firmware/a", "usr/lib/firmware/b", "usr/lib/c", "usr/bin/d", "sbin/e"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    (tmp_path / "lib/link").symlink_to("firmware/a")
    merge_usr(tmp_path)
    assert {path.name: os.readlink(path) for path in tmp_path.iterdir() if path.is_symlink()} == {
        "bin": "usr/bin",
        "lib": "usr/lib",
        "sbin": "usr/sbin",
    }
    assert sorted(path.name for path in (tmp_path / "lib/firmware").iterdir()) == ["a", "b"]
    assert (tmp_path / "usr/lib/link").read_text() == "lib/firmware/a"
    assert (tmp_path / "usr/sbin/e").read_text() == "sbin/e"
