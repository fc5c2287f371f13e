"""NVCONFORM_REQUIRE: which skips are failures."""

from typing import Any

import pytest

from nvconform import required
from nvconform.case import LANES
from nvconform.engines.registry import ENGINES
from nvconform.features import Features

READ = [
    ("", set()),
    ("root", {"root"}),
    ("root, docker,", {"root", "docker"}),
]


@pytest.mark.parametrize(("text", "names"), READ)
def test_the_variable_is_a_list(monkeypatch: pytest.MonkeyPatch, text: str, names: set[str]) -> None:
    monkeypatch.setenv(required.VARIABLE, text)
    assert required.required() == names


def test_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would make no skip a failure, and nobody would see that."""
    monkeypatch.setenv(required.VARIABLE, "root,dokcer")
    with pytest.raises(pytest.UsageError, match="NVCONFORM_REQUIRE: unknown dokcer; known are root, "):
        required.required()


def test_lanes_and_engines_can_be_required() -> None:
    assert {*LANES, *ENGINES} <= set(required.NAMES)


@pytest.mark.parametrize("listed", [True, False])
def test_giving_up_is_a_skip_or_a_failure(monkeypatch: pytest.MonkeyPatch, *, listed: bool) -> None:
    monkeypatch.setenv(required.VARIABLE, "docker" if listed else "root")
    if listed:
        with pytest.raises(pytest.fail.Exception, match="docker is required here, but runc is missing"):
            required.give_up("docker", "runc is missing")
    else:
        with pytest.raises(pytest.skip.Exception, match="runc is missing"):
            required.give_up("docker", "runc is missing")


HELD: list[tuple[str, dict[str, Any], bool]] = [
    ("root", {"status": "skipped", "unproven": "busybox is not installed"}, True),
    ("root", {"status": "passed", "unproven": "no device cgroup"}, True),
    ("root", {"status": "skipped", "reason": "not claimed: mig"}, False),
    ("root", {"status": "passed", "unproven": ""}, False),
    ("userns", {"status": "skipped", "unproven": "busybox is not installed"}, False),
]


@pytest.mark.parametrize(("lane", "result", "fails"), HELD)
def test_a_case_that_proves_less_than_its_lane_should(
    monkeypatch: pytest.MonkeyPatch, lane: str, result: dict[str, Any], *, fails: bool
) -> None:
    monkeypatch.setenv(required.VARIABLE, "root")
    if not fails:
        required.hold(lane, result)
        return
    with pytest.raises(pytest.fail.Exception, match=f"root is required here, but {result['unproven']}"):
        required.hold(lane, result)


def test_what_the_caller_chose_is_not_unproven() -> None:
    """A case of cgroup v2 has its own run; the rest of what is missing is the machine's."""
    reasons = {"cgroup-v2": "not v2", "device-rules": "no device cgroup", "mount": "cannot mount"}
    found = Features("", device_rules_listed=False, reasons=reasons, chosen=frozenset({"cgroup-v2"}))
    assert found.missing(["cgroup-v2"]) == "not v2"
    assert found.unproven(["cgroup-v2"]) == "no device cgroup"
    assert found.unproven(["mount"]) == "no device cgroup; cannot mount"
