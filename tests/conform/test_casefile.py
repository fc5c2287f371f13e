"""Case files: mistakes are told with file, line and key; the shipped cases are complete."""

from collections import Counter
from pathlib import Path

import pytest

from nvconform.case import LANES, Case, Refused, build, environment
from nvconform.casefile import cases_directory, find, load_all, load_file, load_sets, overlay
from nvconform.shapes import DocumentError

GOOD = """\
defaults:
  source: a sentence
  container: {image: rpm, env: {A: "1"}}
cases:
- id: one
  title: first
  container: {env: {NVIDIA_VISIBLE_DEVICES: all}}
  expect: {injected: {gpus: [0], library-directory: /lib}}
- id: two
  title: second
  expect: {refused: {kind: host, names: [x]}}
"""

BROKEN = [
    ("cases: [", 1, "not YAML"),
    ("cases:\n- id: a\n  title: [1\n", 4, "not YAML"),
    ("- id: a\n", 1, "must be a mapping, not a list"),
    ("defaults: {}\n", 1, "the key cases is missing"),
    ("cases:\n- title: x\n", 2, "cases[0]: the key id is missing"),
    ("cases:\n- id: a\n  title: x\n", 2, "cases[0]: the key source is missing"),
    ("cases:\n- id: a\n  titel: x\n", 3, "cases[0].titel: unknown key; did you mean title?"),
    ("cases:\n- id: 7\n", 2, "cases[0].id: must be text (put it in quotes), not a number"),
    ("cases:\n- id: a\n  id: b\n", 3, "cases[0].id: stands twice"),
    ("cases:\n- id: a\n  lanes: [root, moon]\n", 3, "cases[0].lanes[1]: must be one of root, rootless, userns"),
    (
        "cases:\n- id: a\n  title: x\n  source: y\n  expect: {}\n",
        5,
        "needs exactly one of injected, refused and untouched",
    ),
    ("cases:\n- id: a\n  expect:\n    injected: {gpus: 0}\n", 4, "cases[0].expect.injected.gpus: must be a list"),
    ("cases:\n- id: a\n  container: {env: {A: 1}}\n", 3, "cases[0].container.env: must be a list"),
    ("cases:\n- id: a\n  container: {readonly: 1}\n", 3, "must be true or false, not a number"),
]

# Every situation of the observed original that goes through its hook.
# fmt: off
OBSERVED = [
    "01-all", "02-idx0", "03-idx0_1", "04-uuid", "05-void", "06-none", "07-empty", "08-unset", "09-idx9",
    "09b-baduuid", "09c-idx0_9", "09d-garbage", "09e-space", "09f-dup", "09g-uuidprefix", "10-caps-all",
    "11-caps-utility", "12-caps-compute_utility", "13-caps-graphics", "14-caps-video", "15-caps-bogus",
    "15b-caps-display", "15c-caps-empty", "15d-caps-ngx", "15e-caps-compat32", "15f-caps-restricted", "16-req-ok",
    "17-req-unsat", "18-req-malformed", "18b-req-unknown", "18c-req-brand", "18d-req-brandmiss", "18e-req-arch",
    "18f-req-empty", "19-req-disabled", "19b-req-disabled-cfg", "20-legacy-image", "20b-legacy-image-new",
    "20c-legacy-image-void", "20d-legacy-bad", "21-compat-newer", "21b-compat-older", "21c-compat-same",
    "21d-compat-mount", "21e-compat-disabled", "21f-compat-mount-older", "22-unpriv-denied",
    "22b-unpriv-denied-but-sysadmin", "23-volmounts", "23b-volmounts-off", "23c-volmounts-all", "24-evil-libdir-rel",
    "24b-evil-libdir-abs", "24c-evil-libfile", "25-evil-ldcache", "25b-evil-ldcache-dotdot", "26-evil-dev",
    "27-evil-nvidia-smi", "28-evil-ldsoconf", "29-evil-firmware", "30-evil-run", "31-evil-libcuda-so",
    "32-evil-compat", "33-rpm-rootfs", "34-no-cgroups", "35-sysadmin", "36-imex", "36b-imex-bad",
    "37-migconfig-unpriv", "37b-migconfig-priv", "38-cfg-syntax-error", "38b-cfg-unknown-key", "m1-all", "m2-0:0",
    "m3-miguuid", "m4-1", "m5-0", "m6-0:9", "m9-migmon", "m10-migcfg",
]
# fmt: on


@pytest.fixture(scope="module")
def shipped() -> list[Case]:
    return load_all(cases_directory())


def write(folder: Path, text: str, name: str = "some.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_defaults_lie_below_each_case_and_expect_is_the_cases_own(tmp_path: Path) -> None:
    one, two = load_file(write(tmp_path, GOOD))
    assert (one.id, one.source, one.line) == ("one", "a sentence", 5)
    assert one.container.image == "rpm"
    assert one.container.env == ("A=1", "NVIDIA_VISIBLE_DEVICES=all")
    assert one.expect.injected is not None
    assert one.expect.injected.gpus == (0,)
    assert one.expect.injected.library_directory == "/lib"
    assert two.expect.refused == Refused(kind="host", names=("x",))


@pytest.mark.parametrize(("text", "line", "message"), BROKEN)
def test_mistakes_name_file_line_and_key(tmp_path: Path, text: str, line: int, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(DocumentError) as caught:
        load_file(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert message in str(caught.value)


def test_an_id_used_twice_names_both_places(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "a.yaml")
    write(tmp_path, GOOD, "b.yaml")
    with pytest.raises(DocumentError, match=r"b\.yaml:5: id: one is used already in .*a\.yaml:5"):
        load_all(tmp_path)


def test_an_unreadable_file_says_why(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="cannot be read"):
        load_file(tmp_path / "missing.yaml")


def test_unknown_ids_are_told(shipped: list[Case]) -> None:
    assert find(shipped, "devices/all").id == "devices/all"
    with pytest.raises(DocumentError, match="no case has the id devices/none-such"):
        find(shipped, "devices/none-such")


def test_an_environment_can_be_a_list_for_what_a_mapping_cannot_say() -> None:
    assert environment({"A": "1"}) == ["A=1"]
    assert environment(["A=1", "A=2", "B"]) == ["A=1", "A=2", "B"]


def test_overlay_merges_mappings_but_replaces_expectations() -> None:
    below = {"a": {"b": 1, "c": 2}, "expect": {"untouched": True}}
    assert overlay(below, {"a": {"b": 3}, "expect": {"refused": {}}}) == {
        "a": {"b": 3, "c": 2},
        "expect": {"refused": {}},
    }


def test_a_case_survives_the_way_to_the_worker(shipped: list[Case]) -> None:
    import json
    from dataclasses import asdict

    for case in shipped:
        assert build(Case, json.loads(json.dumps(asdict(case)))) == case


def test_the_shipped_cases_are_enough(shipped: list[Case]) -> None:
    runs = Counter(lane for case in shipped for lane in case.lanes)
    assert len(shipped) >= 250
    assert all(runs[lane] >= 50 for lane in LANES)


@pytest.mark.parametrize("situation", OBSERVED)
def test_every_observed_situation_has_a_case(shipped: list[Case], situation: str) -> None:
    assert [case.id for case in shipped if case.observed == situation]


def test_every_case_names_its_source_and_a_known_machine(shipped: list[Case]) -> None:
    machines = load_sets()["machines"]
    assert [case.id for case in shipped if len(case.source) < 10 or case.machine not in machines] == []
