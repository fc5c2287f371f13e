"""docs/support.md: every shipped machine stands in it, every row names cases that exist, and no mark is without one."""

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nvconform.case import Case
from nvconform.casefile import cases_directory, load_all
from nvconform.implementations import Implementation, load
from nvfakes.declaration import shipped

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "support.md"
MODES = {"hook": "nvinject-hook", "jit": "nvinject-jit", "cdi": "nvinject-cdi"}
MARKS = frozenset({"✓", "✗", "n/a"})
HEAD = ("host", "machines", *MODES, "cases", "not tried here")
BARE_HEAD = ("machine", "what it is for", "tests")


@dataclass(frozen=True)
class Row:
    """A row of one of the page's tables: its line, and its cells by the heads of their columns."""

    line: int
    cells: dict[str, str]

    def names(self, column: str) -> list[str]:
        """What stands in backticks in a cell."""
        return self.cells[column].split("`")[1::2]


def rows_of(text: str, head: tuple[str, ...]) -> Iterator[Row]:
    """Every row of every table with the given head."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        cells = tuple(cell.strip() for cell in line.strip().strip("|").split("|")) if line.startswith("|") else ()
        if cells == head:
            inside = True
        elif not cells:
            inside = False
        elif inside and not set(cells[0]) <= {"-"}:
            yield Row(number, dict(zip(head, cells, strict=True)))


def shipped_machines() -> set[str]:
    """The names of all machine files in the repository."""
    return {*shipped(), *(path.stem for path in (cases_directory() / "machines").glob("*.yaml"))}


def is_skipped(implementation: Implementation, case: Case) -> bool:
    """Tell whether a case is not about an implementation, whatever the low-level runtime is."""
    return any(fnmatch.fnmatchcase(case.id, pattern) for pattern in implementation.document.get("skips", {}))


def problems(text: str, cases: list[Case], machines: set[str]) -> list[str]:
    """Everything that is wrong with a page, each with its line."""
    found: list[str] = []
    mentioned: set[str] = set()
    adapters = {mode: load(name) for mode, name in MODES.items()}
    for row in rows_of(text, HEAD):
        mentioned.update(row.names("machines"))
        meant: list[Case] = []
        for pattern in row.names("cases"):
            if pattern.endswith(".py"):
                found += [] if (REPOSITORY / pattern).is_file() else [f"{row.line}: no file {pattern}"]
                continue
            matching = [case for case in cases if fnmatch.fnmatchcase(case.id, pattern)]
            meant += matching
            found += [] if matching else [f"{row.line}: no case {pattern}"]
        found += [] if row.names("cases") else [f"{row.line}: names no case"]
        found += _unproved(row, meant, adapters)
    for row in rows_of(text, BARE_HEAD):
        mentioned.update(row.names("machine"))
        found += [f"{row.line}: no file {name}" for name in row.names("tests") if not (REPOSITORY / name).is_file()]
        found += [] if row.names("tests") else [f"{row.line}: names no test"]
    found += [f"machine {name} is missing" for name in sorted(machines - mentioned)]
    return found + [f"there is no machine {name}" for name in sorted(mentioned - machines)]


def _unproved(row: Row, meant: list[Case], adapters: dict[str, Implementation]) -> Iterator[str]:
    """What a row claims without a case that could show it."""
    by_test = any(name.endswith(".py") for name in row.names("cases"))
    stems = {Path(case.machine).stem for case in meant}
    for name in row.names("machines"):
        if meant and name not in stems and not by_test:
            yield f"{row.line}: no case of the row is about {name}"
    for mode, adapter in adapters.items():
        if row.cells[mode] not in MARKS:
            yield f"{row.line}: {row.cells[mode]!r} is no mark"
        elif row.cells[mode] == "✓" and meant and not by_test and all(is_skipped(adapter, case) for case in meant):
            yield f"{row.line}: every case of the row is skipped in {mode}"


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return load_all(cases_directory())


def test_the_page_is_true_to_the_suite(cases: list[Case]) -> None:
    assert problems(PAGE.read_text(encoding="utf-8"), cases, shipped_machines()) == []


def test_the_page_has_rows() -> None:
    assert len(list(rows_of(PAGE.read_text(encoding="utf-8"), HEAD))) >= 20


GOOD = "| two GPUs | `two-h100` | ✓ | ✓ | ✓ | `devices/*` | |"
TABLE = "| " + " | ".join(HEAD) + " |\n|---|---|---|---|---|---|---|\n"
WRONG = [
    ("", ["machine two-h100 is missing"]),
    (GOOD.replace("devices/*", "devices/nothing"), ["3: no case devices/nothing"]),
    (GOOD.replace("`devices/*`", ""), ["3: names no case"]),
    (GOOD.replace("`devices/*`", "`tests/nothing.py`"), ["3: no file tests/nothing.py"]),
    (GOOD.replace("`devices/*`", "`mig/all`"), ["3: no case of the row is about two-h100"]),
    (
        GOOD.replace("`two-h100`", "`two-h100`, `mars`"),
        ["3: no case of the row is about mars", "there is no machine mars"],
    ),
    (GOOD.replace("✓ | ✓ | ✓", "✓ | yes | ✓"), ["3: 'yes' is no mark"]),
    (GOOD.replace("devices/*", "capabilities/*"), ["3: every case of the row is skipped in cdi"]),
]


def test_a_good_page_has_no_problems(cases: list[Case]) -> None:
    assert problems(TABLE + GOOD, cases, {"two-h100"}) == []


@pytest.mark.parametrize(("row", "expected"), WRONG)
def test_what_is_wrong_is_told_with_its_line(cases: list[Case], row: str, expected: list[str]) -> None:
    assert problems(TABLE + row, cases, {"two-h100"}) == expected


def test_a_machine_without_cases_names_its_tests() -> None:
    table = "| " + " | ".join(BARE_HEAD) + " |\n|---|---|---|\n"
    good = "| `wsl2` | a store | `tests/fakes/test_surfaces.py` |"
    assert problems(table + good, [], {"wsl2"}) == []
    assert problems(table + good.replace("surfaces", "nothing"), [], {"wsl2"}) == [
        "3: no file tests/fakes/test_nothing.py"
    ]
