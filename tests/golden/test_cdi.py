"""CDI specs of whole machines, compared with golden files; `pytest --update tests/golden` writes them anew.

A golden file that changes is a change of what every container on such a machine gets: read its difference.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvfakes import declaration
from nvinject.cli.main import main
from nvinject.formats import cdi
from tests.formats.cdischema import load_validator
from tests.machines import require_machines, write_machine

Capture = pytest.CaptureFixture[str]
FOLDER = Path(__file__).parent / "cdi"
VALIDATOR = load_validator()
HOOK = "/usr/bin/nvidia-cdi-hook"
# Machines that have no spec yet, with exit code and a word of the reason.
REFUSED = {"no-driver": (6, "no NVIDIA driver")}
SHIPPED = [name for name in declaration.shipped() if name not in REFUSED]
WHOLE = ("two-h100", "mig-h100", "jetson-orin", "jetson-thor", "igx-orin", "wsl2")
# The other machines have the same files in user space: what differs are devices.
SHORT = ("--capability", "utility,display", "--device-name-strategy", "index", "--disable-hook", "all")

# name of the golden file, machine, options
CASES = [
    *((f"{name}.yaml", name, () if name in WHOLE else SHORT) for name in SHIPPED),
    ("two-h100.management.yaml", "two-h100", ("--mode", "management")),
    ("two-h100.imex.yaml", "two-h100", ("--mode", "imex", "--no-all-device")),
    ("two-h100.one.yaml", "two-h100", ("--device-id", "1", "--device-name-strategy", "type-index", "--no-all-device")),
    ("two-h100.compute.yaml", "two-h100", ("--capability", "compute,utility", "--stamp", "annotations")),
    ("mig-h100.slice.json", "mig-h100", ("--device", "0:1", "--format", "json", "--disable-hook", "all")),
    ("dgx-h100.nvswitch.yaml", "dgx-h100", ("--mode", "nvswitch", "--stamp", "none")),
]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the trees that were written so far."""
    base = tmp_path_factory.mktemp("machines")
    require_machines(base)
    return {"": base}


def machine(machines: dict[str, Path], name: str) -> Path:
    """Return the folder of a machine's tree, written the first time that it is asked for."""
    if name not in machines:
        folder = machines[""] / name
        write_machine(name, folder)
        machines[name] = folder
    return machines[name]


def generate(folder: Path, capsys: Capture, *options: str) -> str:
    """Return the spec of a machine, its folder shown as /host."""
    config = ("--config", str(folder / "config.toml"), "--nvidia-cdi-hook-path", HOOK)
    code = main(["cdi", "generate", *config, *options])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out.replace(str(folder), "/host")


def parse(text: str, name: str) -> Any:
    return json.loads(text) if name.endswith(".json") else yaml.safe_load(text)


@pytest.mark.parametrize(("name", "described", "options"), CASES, ids=[case[0] for case in CASES])
def test_golden(
    name: str,
    described: str,
    options: tuple[str, ...],
    machines: dict[str, Path],
    capsys: Capture,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The spec is the golden one, follows schema and version, and names what every hook needs."""
    monkeypatch.setenv("PATH", "/usr/bin")
    text = generate(machine(machines, described), capsys, *options)
    golden = FOLDER / name
    if request.config.getoption("--update"):
        golden.write_text(text)
    assert golden.exists(), f"{golden} is missing: run pytest --update tests/golden and read what it wrote"
    assert text == golden.read_text()
    document = parse(text, name)
    assert list(VALIDATOR.iter_errors(document)) == []
    spec = cdi.parse(document)
    assert spec.version == cdi.needed_version(spec)[0]
    hooks = [hook for _, edits in spec.every_edits() for hook in edits.hooks]
    assert all(hook.env and hook.path.startswith("/") for hook in hooks)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_machine_has_a_valid_spec_that_is_always_the_same(
    name: str, machines: dict[str, Path], capsys: Capture
) -> None:
    """Nothing in a spec depends on when or how often it was made, and the schema holds for the whole driver."""
    folder = machine(machines, name)
    text = generate(folder, capsys)
    assert list(VALIDATOR.iter_errors(yaml.safe_load(text))) == []
    assert cdi.parse(yaml.safe_load(text)).devices
    assert generate(folder, capsys) == text


@pytest.mark.parametrize("name", list(REFUSED))
def test_machines_without_a_spec_say_why(name: str, machines: dict[str, Path], capsys: Capture) -> None:
    """Nothing is printed that could be taken for a spec."""
    folder = machine(machines, name)
    code, words = REFUSED[name]
    assert main(["cdi", "generate", "--config", str(folder / "config.toml")]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
