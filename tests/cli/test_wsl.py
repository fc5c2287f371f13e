"""nvinject cdi generate and info on WSL 2, where nothing but the driver store tells of the driver."""

import json
from pathlib import Path

import pytest
import yaml

from nvinject.cli.main import main
from tests.machines import write_machine

Capture = pytest.CaptureFixture[str]
STORE = "usr/lib/wsl/drivers/nv_dispi.inf_amd64_4f1cd0b22a6bf3a1"


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the machine, which nobody changes."""
    folder = tmp_path_factory.mktemp("wsl2")
    write_machine("wsl2", folder)
    return folder


def generate(folder: Path, capsys: Capture, *options: str) -> tuple[int, str, str]:
    """Return code and output of `cdi generate`."""
    config = ("--config", str(folder / "config.toml"), "--nvidia-cdi-hook-path", "/usr/bin/nvidia-cdi-hook")
    code = main(["cdi", "generate", *config, *options])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


NAMES = [
    ((), ["0", "all"]),
    (("--mode", "wsl"), ["0", "all"]),
    (("--mode", "wsl", "--no-all-device"), ["0"]),
    (("--device-name-strategy", "type-index"), ["all", "gpu0"]),
    (("--device-id", "0", "--no-all-device"), ["0"]),
    (("--device-id", "none"), ["none"]),
]


@pytest.mark.parametrize(("options", "names"), NAMES)
def test_names(laptop: Path, capsys: Capture, options: tuple[str, ...], names: list[str]) -> None:
    """One device, whatever it is called; `none` brings the files alone."""
    code, out, err = generate(laptop, capsys, *options)
    assert code == 0, err
    document = yaml.safe_load(out)
    assert [device["name"] for device in document["devices"]] == names
    nodes = [node["path"] for device in document["devices"] for node in device["containerEdits"].get("deviceNodes", [])]
    assert set(nodes) == ({"/dev/dxg"} if names != ["none"] else set())
    assert "deviceNodes" not in document["containerEdits"]


REFUSED = [
    (("--device-id", "1"), 5, "unknown device '1'; this host has 0 (every GPU of Windows)"),
    (("--device-name-strategy", "uuid"), 2, "the one device of WSL has no name by UUID"),
]


@pytest.mark.parametrize(("options", "code", "words"), REFUSED)
def test_refusals(laptop: Path, capsys: Capture, options: tuple[str, ...], code: int, words: str) -> None:
    """With the remedy."""
    got, out, err = generate(laptop, capsys, *options)
    assert (got, out) == (code, "")
    assert words in err


def test_info_without_nvml(tmp_path: Path, capsys: Capture) -> None:
    """Files and device are shown, and why the versions are not known."""
    config = write_machine("wsl2", tmp_path)
    (tmp_path / STORE / "libnvidia-ml.so.1").write_text("no library")
    assert main(["info", "--json", "--config", str(config)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["driver"] == {"version": "", "cuda": None}
    assert [node["path"] for node in document["gpus"][0]["more_nodes"]] == ["/dev/dxg"]
    assert any("NVML was not asked" in note for note in document["notes"])
