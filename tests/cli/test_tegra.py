"""Commands on declared Tegra systems: info, list, doctor, check, plan, cdi generate, and those that know no lists."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvinject.cli import main as command_line
from nvinject.cli.containercli import run as run_container_cli
from nvinject.errors import HostError
from tests.machines import write_machine

Capture = pytest.CaptureFixture[str]
DIRECTORY = "etc/nvidia-container-runtime/host-files-for-container.d"
HOOK = ("--nvidia-cdi-hook-path", "/usr/bin/nvidia-cdi-hook")
UUID = "7d1c3c2e-5a4b-5e8f-9b8a-2f6d1e0c9a71"


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the machines that are changed by no test."""
    base = tmp_path_factory.mktemp("tegra")
    folders = {name: base / name for name in ("jetson-orin", "jetson-thor", "igx-orin")}
    for name, folder in folders.items():
        write_machine(name, folder)
    return folders


@pytest.fixture
def orin(tmp_path: Path) -> Path:
    """Return an Orin of one's own."""
    write_machine("jetson-orin", tmp_path / "orin")
    return tmp_path / "orin"


def run(folder: Path, command: str, *words: str) -> int:
    first, *more = command.split()
    return command_line.main([first, *more, *words, "--config", str(folder / "config.toml")])


def generate(folder: Path, capsys: Capture, *words: str) -> Any:
    assert run(folder, "cdi generate", *HOOK, *words) == 0
    return yaml.safe_load(capsys.readouterr().out)


GPUS = [
    ("jetson-orin", ["Orin (nvgpu)"]),
    ("jetson-thor", ["NVIDIA Thor"]),
    ("igx-orin", ["Orin (nvgpu)", "NVIDIA RTX 6000 Ada Generation"]),
]


@pytest.mark.parametrize(("name", "models"), GPUS)
def test_info(machines: dict[str, Path], capsys: Capture, name: str, models: list[str]) -> None:
    """Driver, GPUs, what is listed, and what shows that this is a Tegra system."""
    assert run(machines[name], "info", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [gpu["model"] for gpu in document["gpus"]] == models
    assert {file["kind"] for file in document["files"]} >= {"node", "library", "file", "list"}
    roots = {root["name"]: root for root in document["roots"]}
    assert roots["driver root"]["evidence"].startswith("Tegra: /etc/nv_tegra_release: R3")
    assert run(machines[name], "info") == 0
    assert models[0] in capsys.readouterr().out


def test_list(machines: dict[str, Path], capsys: Capture) -> None:
    """Each path once, with what says that containers get it."""
    assert run(machines["igx-orin"], "list", "--json") == 0
    entries = json.loads(capsys.readouterr().out)
    paths = [(entry["kind"], entry["path"]) for entry in entries]
    assert len(paths) == len(set(paths))
    assert ("node", "/dev/nvidia1") in paths
    assert ("link", "/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1") in paths
    assert {entry["capabilities"][0] for entry in entries if entry["kind"] == "library"} == {"all"}


LAYERS = ("--layer", "bus", "--layer", "module", "--layer", "versions", "--layer", "nodes", "--layer", "nvml")


@pytest.mark.parametrize("name", ["jetson-orin", "jetson-thor", "igx-orin"])
def test_doctor_finds_nothing_wrong(machines: dict[str, Path], capsys: Capture, name: str) -> None:
    assert run(machines[name], "doctor", *LAYERS, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert {finding["name"] for finding in document["findings"]} <= {"list-note"}
    assert document["layers"] == ["module", "versions", "nodes", "nvml"]


def test_doctor_finds_what_is_wrong(orin: Path, capsys: Capture) -> None:
    """A line that is no entry, then no lists at all."""
    (orin / DIRECTORY / "l4t.csv").write_text("lib\n")
    assert run(orin, "doctor", *LAYERS) == 8
    assert "warning [list-faulty]" in capsys.readouterr().out
    shutil.rmtree(orin / DIRECTORY)
    assert run(orin, "doctor", *LAYERS) == 9
    text = capsys.readouterr().out
    assert "ERROR [lists-unusable] there is no mount specification for containers" in text
    assert "nvidia-l4t-init" in text


def test_check(machines: dict[str, Path], capsys: Capture) -> None:
    """Requirements are held against what NVML tells."""
    assert run(machines["jetson-orin"], "check", "cuda>=12.6,arch=8.7") == 0
    assert run(machines["jetson-thor"], "check", "cuda>=13.1") == 1
    assert "no: 13.0" in capsys.readouterr().out


def test_plan(machines: dict[str, Path], tmp_path: Path, capsys: Capture) -> None:
    """The operations are those of any plan, with the list that has each as reason."""
    (tmp_path / "rootfs").mkdir()
    document = {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}, "root": {"path": "rootfs"}, "linux": {}}
    (tmp_path / "config.json").write_text(json.dumps({"ociVersion": "1.0.2", **document}))
    assert run(machines["jetson-orin"], "plan", str(tmp_path), "--json") == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    reasons = {operation["reason"] for operation in plan["operations"]}
    assert {"listed in drivers.csv, line 12", f"GPU 0 ({UUID})"} <= reasons
    assert {one["operation"] for one in plan["operations"]} == {
        *("BindFile", "CreateSymlink", "BindDevice", "AllowDevice", "WriteFile", "UpdateLoaderCache")
    }


def names(spec: Any) -> list[str]:
    return [device["name"] for device in spec["devices"]]


def links(spec: Any) -> list[str]:
    hooks = {hook["args"][1]: hook["args"] for hook in spec["containerEdits"].get("hooks", [])}
    return [word for word in hooks.get("create-symlinks", []) if "::" in word]


NAMES: list[tuple[str, tuple[str, ...], list[str]]] = [
    ("jetson-orin", (), ["0", "all"]),
    ("jetson-orin", ("--mode=csv",), ["0", "all"]),
    ("jetson-orin", ("--no-all-device",), ["0"]),
    ("jetson-orin", ("--device-name-strategy", "type-index"), ["all", "gpu0"]),
    ("jetson-orin", ("--device-id", "0"), ["0", "all"]),
    ("jetson-orin", ("--device-id", "none"), ["none"]),
    (
        "igx-orin",
        (),
        ["0", "1", "9a6b0d54-1f0e-5c2b-8d43-66c1f7e2b815", "GPU-000000a1-1111-2222-3333-000000000001", "all"],
    ),
    ("igx-orin", ("--feature-flag", "disable-multiple-csv-devices"), ["0", "all"]),
    ("igx-orin", ("--device-id", "1", "--device-name-strategy", "index"), ["1", "all"]),
]


@pytest.mark.parametrize(("name", "words", "expected"), NAMES)
def test_names_in_a_spec(
    machines: dict[str, Path], capsys: Capture, name: str, words: tuple[str, ...], expected: list[str]
) -> None:
    assert names(generate(machines[name], capsys, *words)) == expected


def test_common_edits_have_no_nodes(machines: dict[str, Path], capsys: Capture) -> None:
    """And no hook that is about the driver's procfs or about EGL."""
    spec = generate(machines["jetson-orin"], capsys)
    assert "deviceNodes" not in spec["containerEdits"]
    assert [hook["args"][1:3] for hook in spec["containerEdits"]["hooks"]] == [
        ["create-symlinks", "--link"],
        ["enable-cuda-compat", "--host-cuda-version=12.6"],
        ["update-ldcache", "--folder"],
    ]
    assert all(hook["env"] for hook in spec["containerEdits"]["hooks"])


COMPAT = [
    ("jetson-orin", (), "/usr/local/cuda/compat_orin"),
    ("jetson-orin", ("--csv.compat-container-root=/opt/compat",), "/opt/compat"),
    ("jetson-thor", (), "/usr/local/cuda/compat"),
]


@pytest.mark.parametrize(("name", "words", "expected"), COMPAT)
def test_where_images_have_cuda_libraries(
    machines: dict[str, Path], capsys: Capture, name: str, words: tuple[str, ...], expected: str
) -> None:
    hooks = generate(machines[name], capsys, *words)["containerEdits"]["hooks"]
    assert hooks[1]["args"][3] == f"--cuda-compat-container-root={expected}"


def test_given_files(orin: Path, tmp_path: Path, capsys: Capture) -> None:
    """In place of all others."""
    mine = tmp_path / "mine.csv"
    mine.write_text("dev, /dev/nvmap\nsym, /usr/lib/aarch64-linux-gnu/nvidia/libcuda.so\n")
    spec = generate(orin, capsys, "--csv.file", str(mine))
    assert [node["path"] for node in spec["devices"][0]["containerEdits"]["deviceNodes"]] == ["/dev/nvmap"]
    mounts = [mount["containerPath"] for mount in spec["containerEdits"]["mounts"]]
    assert mounts == ["/etc/nv_tegra_release", "/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1.1"]


CUDA_LINKS = {"libcuda.so", "libcuda.so.1", "libnvidia-nvvm.so.4"}
IGNORED: list[tuple[tuple[str, ...], set[str]]] = [
    ((), {*CUDA_LINKS, "libv4l2.so.0", "libv4l2.so.0.0.999999"}),
    (("/usr/lib/aarch64-linux-gnu/libv4l2.so.0",), CUDA_LINKS),
    (("**/libv4l2*", "**/nothing"), CUDA_LINKS),
    (("**/*",), CUDA_LINKS),
    (("*/libv4l2.so.0",), {*CUDA_LINKS, "libv4l2.so.0", "libv4l2.so.0.0.999999"}),
]


@pytest.mark.parametrize(("patterns", "expected"), IGNORED)
def test_ignored_links(
    machines: dict[str, Path], capsys: Capture, patterns: tuple[str, ...], expected: set[str]
) -> None:
    """Patterns are about the lists: libraries have the links of their SONAMEs, and the host's plain ones, anyway."""
    words = [word for pattern in patterns for word in ("--csv.ignore-pattern", pattern)]
    found = links(generate(machines["jetson-orin"], capsys, *words))
    assert {pair.rpartition("/")[2] for pair in found} == expected


def test_refresh(orin: Path, tmp_path: Path, capsys: Capture) -> None:
    """Written once, then again where a list has changed; the PCI bus, which has no GPU, is no measure."""
    output = tmp_path / "nvidia.yaml"
    for words in ("wrote", "is up to date"):
        assert run(orin, "cdi refresh", *HOOK, "--output", str(output)) == 0
        assert words in capsys.readouterr().err
    (orin / DIRECTORY / "devices.csv").write_text("dev, /dev/nvmap\n")
    assert run(orin, "cdi refresh", *HOOK, "--output", str(output)) == 0
    assert "wrote" in capsys.readouterr().err
    spec = yaml.safe_load(output.read_text())
    assert [node["path"] for node in spec["devices"][0]["containerEdits"]["deviceNodes"]] == ["/dev/nvmap"]


def test_faulty_lines_are_told(orin: Path, capsys: Capture) -> None:
    """With file and line, and the spec is made of the others."""
    (orin / DIRECTORY / "l4t.csv").write_text("lib, /etc/nv_tegra_release\nbil, /x\n")
    assert run(orin, "cdi generate", *HOOK) == 0
    captured = capsys.readouterr()
    assert f"{orin}/{DIRECTORY}/l4t.csv, line 2 is skipped: unknown type 'bil'" in captured.err
    assert names(yaml.safe_load(captured.out)) == ["0", "all"]


REFUSED = [
    (("--device-id", "1"), 5, "unknown device '1'; this host has 0 (Orin (nvgpu))"),
    (("--device-name-strategy", "uuid"), 2, "has no name by UUID"),
    (("--csv.file", "/no/such.csv"), 6, "no mount specification for containers: /no/such.csv"),
    (("--csv.compat-container-root", "opt"), 2, "opt is relative"),
    (("--mode", "nvml"), 6, "of that version is not in"),
]


@pytest.mark.parametrize(("words", "code", "expected"), REFUSED)
def test_what_is_refused_and_why(
    machines: dict[str, Path], capsys: Capture, words: tuple[str, ...], code: int, expected: str
) -> None:
    assert run(machines["jetson-orin"], "cdi generate", *HOOK, *words) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected in captured.err


@pytest.mark.parametrize("command", ["info", "list"])
def test_container_cli_tells_who_knows_the_lists(machines: dict[str, Path], command: str) -> None:
    """Its form has no place for them."""
    folder = machines["jetson-orin"]
    environ = {"NVIDIA_CTK_CONFIG_FILE_PATH": str(folder / "config.toml")}
    with pytest.raises(HostError, match="this is a Tegra system") as caught:
        run_container_cli(["--root", str(folder), command], environ)
    assert "nvinject list" in caught.value.hint
