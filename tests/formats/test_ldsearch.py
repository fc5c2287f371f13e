"""ldconfig's rules: which names need a look, what follows from them, where entries go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.formats.elf import EM_386, EM_AARCH64, EM_X86_64, ElfHeader
from nvinject.formats.ldcache import HWCAP_EXTENSION, library_order
from nvinject.formats.ldsearch import (
    Contribution,
    Library,
    Listing,
    Survey,
    contribute,
    is_library_name,
    legacy_hwcap,
    look_at,
    merge,
    native_flags,
    survey,
    with_sorted_hwcaps,
)

Row = tuple[str, str, int, int, int]

NAMES = [
    ("libz.so", True),
    ("libz.so.1.2", True),
    ("libz-1.2.so", True),
    ("ld-linux-x86-64.so.2", True),
    ("ld-2.31.so", True),
    ("ld.so.1", True),
    ("ld64.so.2", True),
    ("lib.so", True),
    ("libstdc++.so.6.0.30-gdb.py", True),
    ("libz.a", False),
    ("z.so", False),
    ("nss.so.1", False),
    ("ld.so", False),
    ("libz.so.1.#prelink#", False),
    ("libz.so.1.#prelink#.a1B2c3", False),
]


@pytest.mark.parametrize(("name", "expected"), NAMES)
def test_library_names(name: str, *, expected: bool) -> None:
    assert is_library_name(name) is expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/usr/lib", 0),
        ("/usr/lib/haswell", 1 << 50),
        ("/usr/lib/haswell/avx512_1", 1 << 50 | 1 << 2),
        ("/usr/lib/tls", 1 << 63),
        ("/haswell/lib", 0),
    ],
)
def test_legacy_hwcap(path: str, expected: int) -> None:
    assert legacy_hwcap(path) == expected


def test_native_flags() -> None:
    found = [native_flags(machine, bits) for machine in ("x86_64", "aarch64", "other") for bits in (64, 32)]
    assert found == [0x303, 0x003, 0xA03, 0x903, 0x003, 0x003]


def header(**changes: object) -> ElfHeader:
    return ElfHeader(bits=64, machine=EM_X86_64, kind=3, flags=0, dynamic=True, soname="libx.so.1").replace(**changes)


LOOKS: list[tuple[ElfHeader, Library | None]] = [
    (header(), Library(name="n", is_link=False, soname="libx.so.1", flags=0x303)),
    (header(soname=None), Library(name="n", is_link=False, soname="n", flags=0x303)),
    (
        header(bits=32, machine=EM_386, abi=(0, 2, 6, 32)),
        Library(name="n", is_link=False, soname="libx.so.1", flags=3, os_version=0x020620),
    ),
    (header(machine=EM_AARCH64), None),
    (header(kind=2), None),
    (header(dynamic=False), None),
    (header(soname=""), None),
    (header(soname="../x"), None),
    (header(soname="l" * 255), Library(name="n", is_link=False, soname="l" * 255, flags=0x303)),
    (header(soname="l" * 256), None),
]


@pytest.mark.parametrize(("elf", "expected"), LOOKS)
def test_which_files_are_libraries(elf: ElfHeader, expected: Library | None) -> None:
    assert look_at("n", elf, "x86_64", is_link=False) == expected


# files, links, known, gone, doubtful, unread
SURVEYS: list[tuple[str, set[str], dict[str, str], dict[str, str], set[str], set[str], set[str]]] = [
    ("nothing", set(), {}, {}, set(), set(), set()),
    ("known file", {"liba.so.1"}, {}, {"liba.so.1": "liba.so.1"}, set(), set(), set()),
    ("gone", set(), {}, {"liba.so.1": "liba.so.1"}, {"liba.so.1"}, set(), set()),
    ("new file", {"liba.so.1"}, {}, {}, set(), set(), {"liba.so.1"}),
    ("no library", {"a.so", "README.so"}, {}, {}, set(), set(), set()),
    ("pair", {"liba.so.1.2"}, {"liba.so.1": "liba.so.1.2"}, {"liba.so.1": "liba.so.1"}, set(), set(), set()),
    (
        "pair with development link",
        {"liba.so.1.2"},
        {"liba.so.1": "liba.so.1.2", "liba.so": "liba.so.1.2"},
        {"liba.so.1": "liba.so.1", "liba.so": "liba.so"},
        set(),
        set(),
        set(),
    ),
    (
        "new development link",
        {"liba.so.1.2"},
        {"liba.so.1": "liba.so.1.2", "liba.so": "liba.so.1"},
        {"liba.so.1": "liba.so.1"},
        set(),
        set(),
        {"liba.so"},
    ),
    (
        "new link in between",
        {"liba.so.1.2.3"},
        {"liba.so.1": "liba.so.1.2", "liba.so.1.2": "liba.so.1.2.3"},
        {"liba.so.1": "liba.so.1"},
        set(),
        set(),
        set(),
    ),
    (
        "development link does not own another version",
        {"liba.so.2"},
        {"liba.so": "liba.so.1"},
        {"liba.so": "liba.so"},
        {"liba.so"},
        set(),
        {"liba.so.2"},
    ),
    (
        "two files for a link",
        {"liba.so.1.2", "liba.so.1.3"},
        {"liba.so.1": "liba.so.1.3"},
        {"liba.so.1": "liba.so.1"},
        set(),
        set(),
        {"liba.so.1.2"},
    ),
    (
        "file of another name",
        {"libc-2.31.so"},
        {"libc.so.6": "libc-2.31.so"},
        {"libc.so.6": "libc.so.6"},
        set(),
        set(),
        set(),
    ),
    (
        "link elsewhere",
        set(),
        {"liba.so.1": "/opt/liba.so.1", "libb.so.1": "../b/libb.so.1"},
        {"liba.so.1": "liba.so.1", "libb.so.1": "libb.so.1"},
        set(),
        {"liba.so.1", "libb.so.1"},
        set(),
    ),
    (
        "unknown link elsewhere",
        set(),
        {"liba.so.1": "/opt/liba.so.1"},
        {},
        set(),
        set(),
        {"liba.so.1"},
    ),
    ("dangling", set(), {"liba.so.1": "liba.so.1.2"}, {"liba.so.1": "liba.so.1"}, {"liba.so.1"}, set(), set()),
    ("unknown dangling", set(), {"liba.so.1": "liba.so.1.2"}, {}, set(), set(), set()),
    ("loop", set(), {"liba.so.1": "liba.so.1"}, {"liba.so.1": "liba.so.1"}, set(), {"liba.so.1"}, set()),
    (
        "below glibc-hwcaps",
        {"liba.so.1.2"},
        {"liba.so.1": "liba.so.1.2", "liba.so": "liba.so.1"},
        {"liba.so.1.2": "liba.so.1"},
        set(),
        set(),
        {"liba.so"},
    ),
]


@pytest.mark.parametrize(
    ("files", "links", "known", "gone", "doubtful", "unread"),
    [case[1:] for case in SURVEYS],
    ids=[case[0] for case in SURVEYS],
)
def test_names_that_are_gone_doubtful_and_unread(
    files: set[str],
    links: dict[str, str],
    known: dict[str, str],
    gone: set[str],
    doubtful: set[str],
    unread: set[str],
) -> None:
    listing = Listing(files=files, links=set(links))
    expected = Survey(gone=frozenset(gone), doubtful=tuple(sorted(doubtful)), unread=tuple(sorted(unread)))
    assert survey(listing, known, lambda name: links.get(name, "")) == expected


def found(name: str, soname: str, *, link: bool = False) -> Library:
    return Library(name=name, is_link=link, soname=soname, flags=0x303)


# libraries, listing, below glibc-hwcaps; soname -> name
CONTRIBUTIONS: list[tuple[str, list[Library], set[str], bool, dict[str, str]]] = [
    ("none", [], set(), False, {}),
    ("file", [found("liba.so.1", "liba.so.1")], {"liba.so.1"}, False, {"liba.so.1": "liba.so.1"}),
    (
        "file and its link",
        [found("liba.so.1.2", "liba.so.1"), found("liba.so.1", "liba.so.1", link=True)],
        {"liba.so.1.2"},
        False,
        {"liba.so.1": "liba.so.1"},
    ),
    (
        "file and its link below glibc-hwcaps",
        [found("liba.so.1", "liba.so.1", link=True), found("liba.so.1.2", "liba.so.1")],
        {"liba.so.1.2"},
        True,
        {"liba.so.1": "liba.so.1.2"},
    ),
    (
        "the newest of several",
        [found(f"liba.so.1.{minor}", "liba.so.1") for minor in (2, 10, 9)],
        {"liba.so.1.2", "liba.so.1.10", "liba.so.1.9"},
        False,
        {"liba.so.1": "liba.so.1.10"},
    ),
    (
        "development link",
        [found("liba.so", "liba.so.1", link=True), found("liba.so.1", "liba.so.1", link=True)],
        set(),
        False,
        {"liba.so": "liba.so", "liba.so.1": "liba.so.1"},
    ),
    (
        "link of another name counts as a file",
        [found("libother.so", "liba.so.1", link=True), found("liba.so.1", "liba.so.1", link=True)],
        set(),
        False,
        {"liba.so.1": "liba.so.1"},
    ),
    (
        "link of another name alone",
        [found("libother.so", "liba.so.1", link=True)],
        set(),
        False,
        {"liba.so.1": "libother.so"},
    ),
    (
        "no link for the soname",
        [found("liba.so.1.2", "liba.so.1")],
        {"liba.so.1.2"},
        False,
        {"liba.so.1": "liba.so.1.2"},
    ),
]


@pytest.mark.parametrize(
    ("libraries", "files", "hwcaps", "expected"),
    [case[1:] for case in CONTRIBUTIONS],
    ids=[case[0] for case in CONTRIBUTIONS],
)
def test_what_injected_libraries_give_the_cache(
    libraries: list[Library], files: set[str], *, hwcaps: bool, expected: dict[str, str]
) -> None:
    listing = Listing(files=files, links={library.name for library in libraries if library.is_link})
    for order in (libraries, libraries[::-1]):
        contributed = contribute(order, listing, hwcaps=hwcaps)
        assert {entry.soname: entry.name for entry in contributed} == expected
        assert all(isinstance(entry, Contribution) and entry.flags == 0x303 for entry in contributed)


# --- the shortcut finds what a full search finds

VERSIONS = st.sets(st.sampled_from(["1", "1.0", "1.1", "1.2.3", "2.0", "2.5"]))


@st.composite
def directories(draw: st.DrawFn) -> tuple[dict[str, str], dict[str, str]]:
    """Draw a directory as packages make it: sonames by file, targets by link, some of these dangling."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    for stem in ("liba", "libb-1"):
        for version in draw(VERSIONS):
            files[f"{stem}.so.{version}"] = f"{stem}.so.{version[0]}"
        for major in ("1", "2"):
            soname = f"{stem}.so.{major}"
            if soname not in files and draw(st.booleans()):
                # A link beside a file of its version leads to one: where it does not, ldconfig makes it.
                there = sorted(name for name in files if files[name] == soname)
                links[soname] = draw(st.sampled_from(there or [f"{soname}.9"]))
        if draw(st.booleans()):
            links[f"{stem}.so"] = f"{stem}.so.{draw(st.sampled_from(['1', '2', '1.1']))}"
    return files, links


def resolve(name: str, files: dict[str, str], links: dict[str, str]) -> str | None:
    for _ in range(10):
        if name in files:
            return files[name]
        if name not in links:
            return None
        name = links[name]
    return None


def search(names: set[str], files: dict[str, str], links: dict[str, str], *, hwcaps: bool) -> dict[str, str]:
    """Read all the given names; returns file names by soname."""
    libraries = []
    for name in sorted(names):
        soname = resolve(name, files, links)
        if soname is not None:
            libraries.append(found(name, soname, link=name in links))
    listing = Listing(files=set(files), links=set(links))
    return {entry.soname: entry.name for entry in contribute(libraries, listing, hwcaps=hwcaps)}


@given(directories(), directories(), st.booleans())
def test_the_shortcut_finds_what_a_full_search_finds(
    old: tuple[dict[str, str], dict[str, str]], new: tuple[dict[str, str], dict[str, str]], hwcaps: bool
) -> None:
    known = {name: soname for soname, name in search({*old[0], *old[1]}, *old, hwcaps=hwcaps).items()}
    files, links = new
    seen = survey(Listing(files=set(files), links=set(links)), known, lambda name: links.get(name, ""))
    gone = seen.gone | {name for name in seen.doubtful if resolve(name, files, links) is None}
    kept = {soname: name for name, soname in known.items() if name not in gone}
    added = search(set(seen.unread), files, links, hwcaps=hwcaps)
    everything = search({*files, *links}, files, links, hwcaps=hwcaps)
    assert {**added, **kept}.keys() == everything.keys()


@given(directories(), st.booleans())
def test_a_fresh_cache_needs_no_look(directory: tuple[dict[str, str], dict[str, str]], hwcaps: bool) -> None:
    files, links = directory
    sonames = search({*files, *links}, files, links, hwcaps=hwcaps)
    if not hwcaps and any(name != soname for soname, name in sonames.items()):
        return  # a SONAME link is missing: not a directory after ldconfig
    known = {name: soname for soname, name in sonames.items()}
    seen = survey(Listing(files=set(files), links=set(links)), known, lambda name: links.get(name, ""))
    assert {name for name in seen.unread if name in files} <= {
        name for name in files if sum(other.startswith(files[name]) for other in files) > 1
    }


# --- merging

SHORT = st.sampled_from(["libb.so.1", "liba.so.10", "liba.so.9", "liba.so.09", "liba.so"])
DIRECTORIES = st.sampled_from(["/a", "/b", "/c"])
ROWS = st.builds(
    lambda soname, directory, flags, hwcap: (soname, f"{directory}/{soname}", flags, 0, hwcap),
    SHORT,
    DIRECTORIES,
    st.sampled_from([0x303, 0x003]),
    st.sampled_from([0, HWCAP_EXTENSION, HWCAP_EXTENSION | 1, 1 << 50]),
)
HWCAPS = ("v3", "v2")


def rank(path: str) -> int:
    return "abc".index(path[1])


def is_sorted(rows: list[Row]) -> bool:
    keys = [library_order(row[0]) for row in rows]
    return keys == sorted(keys, reverse=True)


def sorted_rows(rows: list[Row]) -> list[Row]:
    return merge([], rows, rank, HWCAPS)


@given(st.lists(ROWS), st.lists(ROWS))
def test_merge_keeps_all_rows_and_the_order_of_old_ones(old: list[Row], new: list[Row]) -> None:
    old = sorted(old, key=lambda row: library_order(row[0]), reverse=True)
    merged = merge(old, new, rank, HWCAPS)
    assert sorted(merged) == sorted([*old, *new])
    assert is_sorted(merged)
    rest = iter(merged)
    assert all(row in rest for row in old)  # a subsequence


@given(st.lists(ROWS), st.lists(ROWS))
def test_merging_in_two_steps_is_merging_at_once(old: list[Row], new: list[Row]) -> None:
    at_once = sorted_rows([*old, *new])
    in_steps = merge(sorted_rows(old), new, rank, HWCAPS)
    assert [(row[0], row[1]) for row in in_steps] == [(row[0], row[1]) for row in at_once]


def test_merging_many_rows_of_one_soname_looks_at_each_a_few_times() -> None:
    """An image's cache has a hundred thousand of them, and each could be compared with all the others."""
    old: list[Row] = [("libx.so", f"/a/{number}", 0x303, 0, 0) for number in range(500)]
    new: list[Row] = [("libx.so", f"/b/{number}", 0x303, 0, 0) for number in range(500)]
    looks: list[str] = []

    def counting(path: str) -> int:
        looks.append(path)
        return rank(path)

    assert merge(old, new, counting, HWCAPS) == [*old, *new]
    assert len(looks) < 4 * (len(old) + len(new))


@given(st.lists(ROWS), st.lists(ROWS, min_size=1))
def test_added_rows_can_be_found_in_an_unsorted_cache(old: list[Row], new: list[Row]) -> None:
    merged = merge(old, new, rank, HWCAPS)
    for name in {row[0] for row in new}:
        assert lookup(merged, name)


def lookup(rows: list[Row], name: str) -> bool:
    """The loader's binary search."""
    left, right, key = 0, len(rows) - 1, library_order(name)
    while left <= right:
        middle = (left + right) // 2
        there = library_order(rows[middle][0])
        if there == key:
            return True
        left, right = (middle + 1, right) if key < there else (left, middle - 1)
    return False


def test_order_within_a_soname() -> None:
    rows: list[Row] = [
        ("liba.so", "/a/liba.so", 0x003, 0, 0),
        ("liba.so", "/b/liba.so", 0x303, 0, 0),
        ("liba.so", "/a/liba.so", 0x303, 0, 0),
        ("liba.so", "/a/haswell/liba.so", 0x303, 0, 1 << 50),
        ("liba.so", "/c/liba.so", 0x303, 0x030200, 0),
        ("liba.so", "/a/v3/liba.so", 0x303, 0, HWCAP_EXTENSION),
        ("liba.so", "/a/v2/liba.so", 0x303, 0, HWCAP_EXTENSION | 1),
    ]
    assert [rows.index(row) for row in sorted_rows(rows)] == [6, 5, 3, 4, 2, 1, 0]


def test_hwcap_names_are_sorted_and_used() -> None:
    rows: list[Row] = [
        ("liba.so", "/a", 3, 0, HWCAP_EXTENSION | 2),
        ("liba.so", "/b", 3, 0, HWCAP_EXTENSION | 5 << 32),
        ("liba.so", "/c", 3, 0, 1 << 50),
    ]
    ordered, names = with_sorted_hwcaps(rows, ("v3", "unused", "v2"))
    assert names == ("v2", "v3")
    assert [row[4] for row in ordered] == [HWCAP_EXTENSION, HWCAP_EXTENSION | 5 << 32 | 1, 1 << 50]
    assert with_sorted_hwcaps(ordered, names) == (ordered, names)
