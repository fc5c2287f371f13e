"""The JSON schema of case files: it is a schema, the shipped cases keep to it, and our checker agrees with others."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from nvconform.casefile import case_files, cases_directory, load_schema
from nvconform.cli import main
from nvconform.shapes import Document, DocumentError, from_schema, unknown_keywords

CASE: dict[str, Any] = {"id": "a/b", "title": "t", "source": "s", "expect": {"untouched": True}}
DOCUMENTS: list[tuple[dict[str, Any], bool]] = [
    ({"cases": [CASE]}, True),
    ({"cases": []}, True),
    ({}, False),
    ({"cases": [{**CASE, "titel": "x"}]}, False),
    ({"cases": [{"title": "without id"}]}, False),
    ({"cases": [{**CASE, "lanes": ["moon"]}]}, False),
    ({"cases": [{**CASE, "container": {"env": {"A": "1"}}}]}, True),
    ({"cases": [{**CASE, "container": {"env": ["A=1"]}}]}, True),
    ({"cases": [{**CASE, "container": {"env": {"A": 1}}}]}, False),
    ({"cases": [{**CASE, "expect": {}}]}, False),
    ({"cases": [{**CASE, "expect": {"untouched": True, "refused": {}}}]}, False),
    ({"cases": [{**CASE, "expect": {"injected": {"gpus": [True]}}}]}, False),
    ({"cases": [{**CASE, "config": "text = 1"}]}, True),
    ({"cases": [{**CASE, "config": {"a": {"b": [1]}}}]}, True),
    ({"cases": [{**CASE, "container": {"mounts": [{"source": "/x"}]}}]}, False),
    ({"cases": [{**CASE, "driver": {"loader-cache": "stale"}}]}, False),
]


def test_it_is_a_schema_of_which_nothing_is_overlooked() -> None:
    jsonschema.Draft202012Validator.check_schema(load_schema())
    assert unknown_keywords(load_schema()) == set()
    assert unknown_keywords({"items": {"minLength": 1}, "anyOf": [{"not": {}}]}) == {"minLength", "not"}


@pytest.mark.parametrize("path", case_files(cases_directory()), ids=lambda path: path.name)
def test_shipped_files_keep_to_it(path: Path) -> None:
    jsonschema.validate(yaml.safe_load(path.read_text()), load_schema())


@pytest.mark.parametrize(("document", "good"), DOCUMENTS)
def test_both_checkers_agree(tmp_path: Path, document: dict[str, Any], good: bool) -> None:
    path = tmp_path / "case.yaml"
    path.write_text(json.dumps(document))
    assert jsonschema.Draft202012Validator(load_schema()).is_valid(document) is good
    if good:
        Document(path).check(from_schema(load_schema(), load_schema()))
    else:
        with pytest.raises(DocumentError, match=r"case\.yaml:1: "):
            Document(path).check(from_schema(load_schema(), load_schema()))


def test_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == load_schema()
