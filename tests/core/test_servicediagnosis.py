"""Diagnosis of installation, engines, CDI specs and device rules, from observed values."""

import pytest

from nvinject.core.servicediagnosis import (
    SPEC_FAULTS,
    Access,
    Engine,
    Installation,
    SpecFault,
    judge_access,
    judge_engine,
    judge_installation,
    judge_specs,
    unit_allows,
    without_consequences,
)

INSTALLED = Installation(launcher="/usr/local/bin/nvinject", prefix="/usr/local")
INSTALLATIONS = [
    ([], INSTALLED),
    (["toolkit-missing"], Installation()),
    (["toolkit-incomplete"], INSTALLED.replace(gone=("/usr/local/bin/nvidia-ctk",), fault="x")),
    (["toolkit-changed"], INSTALLED.replace(changed=("/usr/local/bin/nvidia-ctk",))),
    (["toolkit-broken"], INSTALLED.replace(fault="no interpreter", changed=(INSTALLED.launcher,))),
    (["toolkit-shadowed"], INSTALLED.replace(hook="/usr/bin/nvidia-container-runtime-hook", is_ours=False)),
    (["config-invalid"], INSTALLED.replace(configuration_error="line 1")),
    (["config-suspicious"] * 2, INSTALLED.replace(configuration_warnings=("a", "b"))),
]


@pytest.mark.parametrize(("names", "found"), INSTALLATIONS)
def test_installations(names: list[str], found: Installation) -> None:
    """What is gone, changed, broken or in the way."""
    assert [finding.name for finding in judge_installation(found)] == names


ENGINE = Engine(name="docker", path="/etc/docker/daemon.json", serves="runtime")
ENGINES = [
    ([], ENGINE),
    ([], ENGINE.replace(serves="")),
    ([], ENGINE.replace(started=100.0, changed=100.5)),
    (["engine-config-invalid"], ENGINE.replace(error="line 1", started=1.0, changed=9.0)),
    (["engine-runtime-missing"], ENGINE.replace(broken=(("nvidia", "/gone"),))),
    (["engine-not-configured"], ENGINE.replace(serves="", started=1.0)),
    (["engine-not-restarted"], ENGINE.replace(started=1.0, changed=9.0)),
]


@pytest.mark.parametrize(("names", "engine"), ENGINES)
def test_engines(names: list[str], engine: Engine) -> None:
    """An engine that does not run misses nothing."""
    assert [finding.name for finding in judge_engine(engine)] == names


@pytest.mark.parametrize("kind", SPEC_FAULTS)
def test_every_kind_of_spec_fault_has_a_finding(kind: str) -> None:
    """With its name and a remedy."""
    (finding,) = judge_specs((SpecFault(path="/etc/cdi/a.yaml", kind=kind, problem="p"),))
    assert finding.name == SPEC_FAULTS[kind][0]
    assert finding.remedy


def test_faults_of_one_file_and_kind_are_told_together() -> None:
    """A spec of an old driver has fifty missing files."""
    faults = tuple(SpecFault(path="/a", kind="mount", problem=f"{number} is missing") for number in range(5))
    (finding,) = judge_specs(faults)
    assert finding.what == "/a: 0 is missing; 1 is missing; 2 is missing, and 2 more"


def test_an_old_spec_explains_its_missing_files() -> None:
    """But not those of another file."""
    faults = (
        SpecFault(path="/a", kind="stale", problem="old"),
        SpecFault(path="/a", kind="mount", problem="gone"),
        SpecFault(path="/b", kind="mount", problem="gone"),
    )
    assert without_consequences(faults) == (faults[0], faults[2])


def test_access() -> None:
    """What is forbidden now outweighs what will be."""
    assert judge_access(Access(name="c")) == []
    denied = Access(name="c", denied=("/dev/nvidia0",), fleeting=("/dev/nvidia0",))
    assert [finding.name for finding in judge_access(denied)] == ["container-device-denied"]
    fleeting = Access(name="c", unit="docker-c.scope", fleeting=("/dev/nvidia0",))
    assert [finding.name for finding in judge_access(fleeting)] == ["container-device-fleeting"]


CLASSES = (("nvidia", 195), ("nvidiactl", 195), ("pts", 136))
RULES = [
    ((), True),
    (("",), False),
    (("/dev/nvidia0 rw",), True),
    (("/dev/char/195:0 rwm",), True),
    (("/dev/char/195:1 rwm",), False),
    (("char-nvidia rwm",), True),
    (("char-nvid* rwm",), True),
    (("char-pts rwm",), False),
    (("char-195 rw",), True),
    (("/dev/nvidia0 rw", "", "char-pts rwm"), False),
]


@pytest.mark.parametrize(("lines", "allowed"), RULES)
def test_device_allow_lines_are_read_as_systemd_does(lines: tuple[str, ...], allowed: bool) -> None:
    """systemd.resource-control(5)."""
    assert unit_allows(lines, "/dev/nvidia0", 195, 0, CLASSES) is allowed
