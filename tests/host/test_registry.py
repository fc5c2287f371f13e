"""The registry: which file counts for a name, and what is told about the others."""

import json
import os
from pathlib import Path

import pytest

from nvinject.errors import RequestError
from nvinject.host.registry import Registry, explain, nearest_names, parse_document, read_registry, resolve

SPEC = """\
cdiVersion: "{version}"
kind: {kind}
devices:
{devices}
"""


def spec(*names: str, kind: str = "nvidia.com/gpu", version: str = "0.5.0", node: str = "/dev/null") -> str:
    devices = "\n".join(f'- name: "{name}"\n  containerEdits: {{deviceNodes: [{{path: {node}}}]}}' for name in names)
    return SPEC.format(kind=kind, version=version, devices=devices)


def spec_json(*names: str) -> str:
    devices = [{"name": name, "containerEdits": {"env": ["A=1"]}} for name in names]
    return json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices})


@pytest.fixture
def zoo(tmp_path: Path) -> Registry:
    """Return the zoo of public case 29."""
    etc, run = tmp_path / "etc", tmp_path / "run"
    for directory, files in (
        (
            etc,
            {
                "a.yaml": spec("0", node="/dev/zero"),
                "b.json": spec_json("1", "5"),
                "c.json": spec_json("1"),
                "d.yaml": spec("7", version="9.9.9"),
                "f.yml": spec("8"),
                "notes.txt": "no spec",
                "g.yaml": spec("all", kind="management.nvidia.com/gpu"),
            },
        ),
        (run, {"a.yaml": spec("0", "all")}),
    ):
        directory.mkdir()
        for name, text in files.items():
            (directory / name).write_text(text)
    (etc / "h.yaml").symlink_to("nowhere")
    return read_registry((str(etc), str(run), str(tmp_path / "missing")))


def names(registry: Registry) -> list[str]:
    return list(registry.devices())


def test_later_directories_win_and_equals_exclude_each_other(zoo: Registry) -> None:
    assert names(zoo) == [
        "management.nvidia.com/gpu=all",
        "nvidia.com/gpu=0",
        "nvidia.com/gpu=5",
        "nvidia.com/gpu=all",
    ]
    assert zoo.devices()["nvidia.com/gpu=0"].file.path.endswith("run/a.yaml")
    assert [Path(path).name for path in zoo.conflicts()["nvidia.com/gpu=1"]] == ["b.json", "c.json"]


def test_rejected_files_and_problems_are_named(zoo: Registry) -> None:
    assert [Path(file.path).name for file in zoo.rejected()] == ["d.yaml", "h.yaml"]
    assert "unknown version '9.9.9'" in zoo.rejected()[0].error
    assert "No such file" in zoo.rejected()[1].error
    assert len(zoo.problems) == 1
    assert "f.yml is not read" in zoo.problems[0]


EXPLAINED = [
    ("nvidia.com/gpu=0", "is defined by", ["run/a.yaml", "etc/a.yaml"], ()),
    ("nvidia.com/gpu=1", "same priority by", ["etc/b.json", "etc/c.json"], ()),
    ("nvidia.com/gpu=9", "is defined by no spec", [], ("nvidia.com/gpu=0", "nvidia.com/gpu=5")),
    ("nvidia.com/gpus=0", "of which none has devices of kind nvidia.com/gpus", [], ("nvidia.com/gpu=0",)),
    ("gpu=0", "is no name of a device", [], ("nvidia.com/gpu=0",)),
]


@pytest.mark.parametrize(("name", "reason", "files", "nearest"), EXPLAINED)
def test_explains_every_outcome(
    zoo: Registry, name: str, reason: str, files: list[str], nearest: tuple[str, ...]
) -> None:
    found = explain(zoo, name)
    assert reason in found.reason
    told = [
        *([found.used.file.path] if found.used else []),
        *(one.file.path for one in found.shadowed),
        *found.conflicting,
    ]
    assert ["/".join(path.split("/")[-2:]) for path in told] == files
    assert set(nearest) <= set(found.nearest)


def test_a_conflict_in_a_lower_directory_spoils_the_name(zoo: Registry, tmp_path: Path) -> None:
    (tmp_path / "run/z.yaml").write_text(spec("1"))
    again = read_registry(zoo.directories)
    assert "nvidia.com/gpu=1" not in again.devices()


def test_of_many_unresolvable_names_some_are_explained(zoo: Registry) -> None:
    with pytest.raises(RequestError, match=r"gpu=x15 is defined by no spec in .*; and 99984 more"):
        resolve(zoo, tuple(f"nvidia.com/gpu=x{number}" for number in range(100_000)))


def test_unresolvable_names_tell_causes_files_and_near_names(zoo: Registry) -> None:
    assert [one.name for one in resolve(zoo, ("nvidia.com/gpu=5", "nvidia.com/gpu=0", "nvidia.com/gpu=5"))] == [
        "nvidia.com/gpu=5",
        "nvidia.com/gpu=0",
    ]
    with pytest.raises(RequestError) as caught:
        resolve(zoo, ("nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/gpu=9"))
    text = str(caught.value)
    assert "\n" not in text
    for word in (
        "gpu=1 is defined with",
        "gpu=9 is defined by no spec",
        "d.yaml",
        "9.9.9",
        "nearest names",
        "f.yml",
        "run/a.yaml",
    ):
        assert word in text
    assert "nvidia.com/gpu=0 " not in text.partition(";")[0]


def test_no_directory_at_all_hints_at_generate(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cdi generate"):
        resolve(read_registry((str(tmp_path / "none"),)), ("nvidia.com/gpu=0",))


def test_unreadable_files_and_directories_are_named(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(spec("0"))
    (tmp_path / "e.yaml").chmod(0)
    (tmp_path / "pipe.json").touch()
    (tmp_path / "pipe.json").unlink()
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.yaml").mkdir()
    registry = read_registry((str(tmp_path), str(tmp_path / "e.yaml")))
    errors = {Path(file.path).name: file.error for file in registry.rejected()}
    if os.access(tmp_path / "e.yaml", os.R_OK):
        errors["e.yaml"] = "cannot be read: Permission denied, make it readable"  # a user whom modes do not bind
    assert "make it readable" in errors["e.yaml"]
    assert "cannot be read" in errors["folder.yaml"]
    assert errors["pipe.json"]
    assert "e.yaml: Not a directory" in registry.problems[0]


TEXTS = [
    ("a: 1\na: 2\n", False, "the field 'a' is there twice at line 1"),
    ("a: [", False, "at line"),
    ("\x00", False, "is no YAML"),
    ("{", True, "is no JSON"),
    ("? [a]\n: 1\n", False, "is no YAML"),
]


@pytest.mark.parametrize(("text", "is_json", "message"), TEXTS)
def test_bad_documents(text: str, message: str, *, is_json: bool) -> None:
    with pytest.raises(ValueError, match=message):
        parse_document(text, json=is_json)


def test_nearest_prefers_the_same_device_of_another_kind(zoo: Registry) -> None:
    assert nearest_names("amd.com/gpu=all", zoo)[:2] == ("management.nvidia.com/gpu=all", "nvidia.com/gpu=all")
