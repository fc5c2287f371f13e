"""Features and profiles: what is claimed, and which cases a claim is held to."""

from pathlib import Path

import pytest

from nvconform.case import Case, Expectation
from nvconform.casefile import cases_directory, known_profiles, load_all, load_file
from nvconform.implementations import Implementation, load, names
from nvconform.profiles import load_profiles, unclaimed
from nvconform.shapes import DocumentError

UNTOUCHED = Expectation(untouched=True)


def implementation(**document: object) -> Implementation:
    return Implementation("mine", "mine", ("root",), {"name": "mine", "command": ["x"], **document})


def test_extended_includes_core_and_security_stands_alone() -> None:
    profiles = known_profiles()
    assert profiles.within("core") < profiles.within("extended")
    assert not profiles.within("security") & profiles.within("extended")
    assert profiles.holds("core", ["devices", "images"])
    assert not profiles.holds("core", ["devices", "mig"])
    assert profiles.holds("", ["attacks", "mig"])


def test_every_shipped_case_belongs_to_a_profile() -> None:
    profiles = known_profiles()
    for case in load_all(cases_directory()):
        assert case.features, case.id
        assert any(profiles.holds(name, case.features) for name in profiles.parts), case.id


def test_a_feature_that_is_not_there_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text("cases:\n- id: a/b\n  title: t\n  source: s\n  features: [flying]\n  expect: {untouched: true}\n")
    with pytest.raises(DocumentError, match=r"some\.yaml:5: .*no feature flying in profiles.yaml; known are attacks"):
        load_file(path)


def test_a_feature_of_no_profile_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "profiles.yaml"
    path.write_text("profiles:\n  core: {title: c}\nfeatures:\n  a: {title: x, profile: cores}\n")
    with pytest.raises(DocumentError, match=r"profiles\.yaml:4: features\.a\.profile: no profile cores"):
        load_profiles(path)


def test_what_is_not_claimed_is_said_by_feature() -> None:
    assert unclaimed(["mig", "imex", "devices"], ["devices"]) == "not claimed: imex, mig"
    case = Case("mig/x", "t", "s", UNTOUCHED, features=("mig",))
    assert implementation(features=["devices"]).skips(case, "root") == "not claimed: mig"
    assert implementation().skips(case, "root") == ""
    assert implementation().skips(case, "userns") == "mine does not claim the lane userns"


def test_programs_that_are_missing_are_named() -> None:
    case = Case("a/b", "t", "s", UNTOUCHED)
    assert (
        implementation(requires=["sh", "no-such-program"]).skips(case, "root") == "mine needs no-such-program on PATH"
    )


def test_failures_by_design_have_their_reason() -> None:
    case = Case("hostile/x", "t", "s", UNTOUCHED, differs="the original refuses")
    assert implementation(deviations={"hostile/*": "old"}).deviation(case) == "old"
    assert implementation(original=True).deviation(case) == "the original refuses"
    assert implementation().deviation(case) == ""


@pytest.mark.parametrize("name", names())
def test_shipped_adapters_are_well_formed_and_name_known_features(name: str) -> None:
    document = load(name).document
    assert set(document.get("features", ())) <= set(known_profiles().features)


def test_patterns_of_the_originals_deviations_match_cases() -> None:
    from fnmatch import fnmatchcase

    cases = load_all(cases_directory())
    for pattern in load("nvidia-hook").document["deviations"]:
        assert any(fnmatchcase(case.id, pattern) for case in cases), pattern
