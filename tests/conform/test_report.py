"""Reports: counting, explaining, and the descriptions of implementations."""

import json
from pathlib import Path
from typing import Any

import pytest

from nvconform import implementations, report
from nvconform.shapes import DocumentError

RESULTS: list[dict[str, Any]] = [
    {"id": "a", "lane": "root", "status": "passed"},
    {
        "id": "b",
        "lane": "root",
        "status": "failed",
        "differences": ["mounts: /x"],
        "message": "no",
        "code": 6,
    },
    {"id": "a", "lane": "rootless", "status": "skipped", "reason": "no runc"},
    {"id": "b", "lane": "rootless", "status": "skipped", "reason": "no runc"},
]


def test_the_table_counts_by_lane_and_names_reasons() -> None:
    assert report.table(RESULTS) == [
        "lane        cases  passed  failed  skipped",
        "root            2       1       1        0",
        "rootless        2       0       0        2",
        "skipped 2: no runc",
    ]


def test_a_failure_is_explained_with_what_the_injector_said() -> None:
    assert report.explain(RESULTS[1]) == ("b (root):\n  mounts: /x\n  the injector (exit 6) said: no")


def test_long_lists_of_differences_are_cut() -> None:
    text = report.explain({"id": "a", "lane": "root", "differences": [str(number) for number in range(100)]})
    assert "and 75 more" in text


def test_results_are_written_as_json(tmp_path: Path) -> None:
    report.write_json(tmp_path / "out.json", "some", RESULTS)
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["implementation"] == "some"
    assert document["summary"]["lanes"]["root"] == {"passed": 1, "failed": 1}
    assert len(document["results"]) == 4


def test_the_shipped_implementation_is_well_formed() -> None:
    ours = implementations.load(implementations.DEFAULT)
    assert ours.lanes == ("root", "rootless", "userns")
    assert ours.document["exit-codes"]["host"] == 6


def test_an_unknown_implementation_lists_the_known_ones() -> None:
    with pytest.raises(DocumentError, match=r"no implementation other: known are .*nvinject-hook"):
        implementations.load("other")


def test_an_adapter_with_a_mistake_names_the_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\ncommand: [x]\nlane: [root]\n")
    with pytest.raises(DocumentError, match=r"mine\.yaml:3: lane: unknown key; did you mean"):
        implementations.load(str(path))


WRONG: list[tuple[str, object]] = [
    ("id", None), ("lane", ["root"]), ("status", {}), ("implementation", 3), ("title", "\ud800"), ("features", None),
    ("features", [1]), ("differences", "x"), ("seen", []), ("expected", {"mounts": None}),
    ("expected", {"mounts": [None]}), ("seconds", "long"), ("code", "0"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_result_with_a_value_of_another_kind_is_refused(key: str, value: object, tmp_path: Path) -> None:
    """Before a report is made of it."""
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"results": [{"id": "a", "lane": "root", "status": "passed", key: value}]}))
    with pytest.raises(DocumentError, match=r"result\.json: not a result of nvconform run --json"):
        report.read_json(file)
