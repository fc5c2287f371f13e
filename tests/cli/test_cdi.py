"""nvinject cdi, command by command, on a declared machine and on specs that somebody damaged."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvinject.cli.main import main
from tests.machines import write_machine

Capture = pytest.CaptureFixture[str]
Run = Callable[..., tuple[int, str, str]]
SECONDS = 30


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a machine with two GPUs; tests do not change it."""
    base = tmp_path_factory.mktemp("host")
    write_machine("two-h100", base / "two-h100")
    return base / "two-h100"


@pytest.fixture
def run(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a command of nvinject cdi: code, standard output, standard error."""
    for name in [name for name in os.environ if name.startswith("NVIDIA_CTK")]:
        monkeypatch.delenv(name)

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        try:
            code = main(["cdi", *map(str, arguments)])
        except SystemExit as error:  # argparse
            code = int(error.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def options(host: Path, *more: str | Path) -> tuple[str | Path, ...]:
    return ("--config", host / "config.toml", "--nvidia-cdi-hook-path", sys.executable, *more)


def names_of(text: str) -> list[str]:
    return [device["name"] for device in yaml.safe_load(text)["devices"]]


UUIDS = ["GPU-000000a0-1111-2222-3333-000000000000", "GPU-000000a1-1111-2222-3333-000000000001"]
NAMES: list[tuple[list[str], dict[str, str], list[str]]] = [
    ([], {}, ["0", "1", *UUIDS, "all"]),
    (["--device-name-strategy", "index"], {}, ["0", "1", "all"]),
    (["--device-name-strategy=type-index,uuid"], {}, [*UUIDS, "all", "gpu0", "gpu1"]),
    (["--no-all-device", "--device-id", "1"], {}, ["1", UUIDS[1]]),
    (["--device", UUIDS[0], "--device-ids", "1"], {}, ["0", "1", *UUIDS, "all"]),
    (["--device-id", "none"], {}, ["none"]),
    ([], {"NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS": "0", "NVIDIA_CTK_CDI_GENERATE_NO_ALL_DEVICE": "true"}, ["0", UUIDS[0]]),
    ([], {"NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES": "index"}, ["0", "1", "all"]),
    (["--device-id", "1"], {"NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS": "0"}, ["1", UUIDS[1], "all"]),
]


@pytest.mark.parametrize(("given", "environment", "expected"), NAMES)
def test_generate_names_devices(
    host: Path,
    run: Run,
    given: list[str],
    environment: dict[str, str],
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Options win over variables, variables over defaults."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code, out, _ = run("generate", *options(host, *given))
    assert code == 0
    assert names_of(out) == expected


@pytest.mark.parametrize(
    ("output", "form", "written"),
    [
        ("a.yaml", "", "a.yaml"),
        ("a.json", "", "a.json"),
        ("a", "", "a.yaml"),
        ("a", "JSON", "a.json"),
        ("b/a.yml", "", "b/a.yml.yaml"),
    ],
)
def test_generate_writes_files(host: Path, run: Run, tmp_path: Path, output: str, form: str, written: str) -> None:
    """The extension decides the form and the form the extension; the file is readable for everybody."""
    old = os.umask(0o077)
    try:
        code, out, err = run("generate", *options(host, "--output", tmp_path / output, "--format", form))
    finally:
        os.umask(old)
    assert (code, out) == (0, "")
    assert f"version 0.5.0: {tmp_path / written}" in err
    text = (tmp_path / written).read_text()
    document = json.loads(text) if written.endswith(".json") else yaml.safe_load(text)
    assert document["kind"] == "nvidia.com/gpu"
    assert (tmp_path / written).stat().st_mode & 0o777 == 0o644
    assert [path.name for path in (tmp_path / written).parent.iterdir()] == [Path(written).name]


def test_generate_writes_one_file_a_device(host: Path, run: Run, tmp_path: Path) -> None:
    """Each file stands alone; an engine merges what they share."""
    given = ("--per-device", "--device-name-strategy", "index", "--output", tmp_path)
    assert run("generate", *options(host, *given))[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "nvidia.com-gpu_0.yaml",
        "nvidia.com-gpu_1.yaml",
        "nvidia.com-gpu_all.yaml",
    ]
    assert run("list", "--spec-dir", tmp_path)[1].split() == [
        "nvidia.com/gpu=0",
        "nvidia.com/gpu=1",
        "nvidia.com/gpu=all",
    ]


LINKS, COMPAT, CACHE = "create-symlinks", "enable-cuda-compat", "update-ldcache"
NODES, PROFILE = "disable-device-node-modification", "update-application-profile"
IDLE_MIG = """\
driver: {version: 570.133.20, cuda: "12.8"}
gpus:
  - {model: h100, mig_mode: true}
  - {model: h100}
"""


def test_generate_leaves_out_gpus_in_mig_mode_without_slices(run: Run, tmp_path: Path) -> None:
    """Only NVML knows the mode; where it cannot be asked, the GPU is offered with a note."""
    described = tmp_path / "idle.yaml"
    described.write_text(IDLE_MIG)
    host = tmp_path / "host"
    write_machine(str(described), host)
    code, out, err = run("generate", *options(host, "--device-name-strategy", "index"))
    assert (code, names_of(out)) == (0, ["1", "all"]), err
    assert names_of(run("generate", *options(host, "--device-name-strategy", "index", "--device", "0"))[1]) == [
        "0",
        "all",
    ]
    library = next(host.glob("usr/lib/*/libnvidia-ml.so.570*"))
    library.write_bytes(library.read_bytes()[:64])
    code, out, err = run("generate", *options(host, "--device-name-strategy", "index"))
    assert (code, names_of(out)) == (0, ["0", "1", "all"]), err
    assert "could not be told apart" in err


ONE_NODE_MISSING = """\
driver: {version: 570.133.20, cuda: "12.8"}
gpus: [{model: h100}, {model: h100}, {model: h100}]
deviate: {missing: [/dev/nvidia1]}
"""


@pytest.mark.parametrize("command", ["generate", "refresh"])
def test_a_gpu_without_its_node_is_never_left_out_silently(run: Run, tmp_path: Path, command: str) -> None:
    """The line names the GPU, what makes the node, and how to offer the others without it."""
    described = tmp_path / "described.yaml"
    described.write_text(ONE_NODE_MISSING)
    host, spec = tmp_path / "host", tmp_path / "nvidia.yaml"
    write_machine(str(described), host)
    spec.write_text("old\n")
    code, _, err = run(command, *options(host, "--output", spec))
    assert (code, spec.read_text()) == (6, "old\n")
    last = err.splitlines()[-1]
    for words in ("GPU 1 (", "/dev/nvidia1 is missing", "nvidia-modprobe -c 1", "--device-id 0,2"):
        assert words in last
    code, _, err = run(command, *options(host, "--output", spec, "--device-id", "0,2", "--device-name-strategy=index"))
    assert (code, names_of(spec.read_text())) == (0, ["0", "2", "all"]), err
    code, _, err = run(command, *options(host, "--output", spec, "--device-id", "1"))
    assert (code, "--device-id" in err.splitlines()[-1]) == (6, False)


HOOKS = [
    ((), [LINKS, COMPAT, CACHE, NODES, PROFILE]),
    (("--disable-hook", f"{COMPAT},{CACHE}"), [LINKS, NODES, PROFILE]),
    (("--disable-hooks", "all"), []),
    (("--disable-hook", "all", "--enable-hook", CACHE), [CACHE]),
    (("--mode", "management"), [LINKS, COMPAT, CACHE]),
]


@pytest.mark.parametrize(("given", "expected"), HOOKS)
def test_generate_leaves_hooks_out(host: Path, run: Run, given: tuple[str, ...], expected: list[str]) -> None:
    """Hooks are switched off by name or altogether, and on again by name."""
    code, out, _ = run("generate", *options(host, *given))
    assert code == 0
    assert [hook["args"][1] for hook in yaml.safe_load(out)["containerEdits"].get("hooks", [])] == expected


def test_the_hook_for_limits_of_memory_is_written_on_demand(host: Path, run: Run) -> None:
    """At the stage at which the container's cgroup is there; it knows the driver root and nothing of GPUs."""
    _, text, _ = run("generate", *options(host))
    assert "apply-cuda-memory-limits" not in text
    code, text, _ = run("generate", *options(host, "--enable-hook", "apply-cuda-memory-limits"))
    assert code == 0
    (hook,) = [one for one in yaml.safe_load(text)["containerEdits"]["hooks"] if one["hookName"] == "createRuntime"]
    assert hook["args"][1:] == ["apply-cuda-memory-limits", "--driver-root", str(host)]
    assert hook["env"]


def test_generate_uses_ctk_with_its_subcommand(host: Path, run: Run, tmp_path: Path) -> None:
    """nvidia-ctk and nvinject have hooks below a word."""
    (tmp_path / "nvidia-ctk").symlink_to(sys.executable)
    config = ("--config", host / "config.toml", "--nvidia-ctk-path", tmp_path / "nvidia-ctk")
    hook = yaml.safe_load(run("generate", *config)[1])["containerEdits"]["hooks"][0]
    assert hook["args"][:3] == ["nvidia-ctk", "hook", "create-symlinks"]
    assert hook["path"] == str(tmp_path / "nvidia-ctk")


REFUSED = [
    (("--mode", "csv"), 6, "no mount specification"),
    (("--mode", "csv", "--csv.compat-container-root", "x"), 2, "x is relative"),
    (("--mode", "wsl"), 6, "this is WSL, but its GPU device"),
    (("--mode", "dance"), 2, "invalid discovery mode: dance"),
    (("--format", "toml"), 2, "invalid output format: toml"),
    (("--device-name-strategy", "colour"), 2, "invalid device name strategy: colour"),
    (("--vendor", "1st"), 2, "invalid CDI vendor name"),
    (("--class", "a/b"), 2, "invalid CDI class name"),
    (("--enable-hook", "all"), 2, "enabling all hooks is not supported"),
    (("--nvidia-cdi-hook-path", "bin/hook"), 2, "bin/hook is relative"),
    (("--nvidia-cdi-hook-path", "no-such-hook"), 2, "not on PATH"),
    (("--per-device",), 2, "--per-device needs a directory"),
    (("--stamp", "wax"), 2, "invalid --stamp: wax"),
    (("--capability", "magic"), 2, "unknown driver capability: magic"),
    (("--device-id", "7"), 5, "unknown device '7'"),
    (("--mode", "gds"), 6, "no node of GPUDirect Storage"),
    (("--mode", "mofed"), 6, "no node of RDMA"),
    (("--mode", "gdrcopy"), 6, "no node of GDRCopy"),
    (("--mode", "nvswitch"), 6, "no node of NVSwitch"),
    (("--mode", "imex", "--device-id", "9"), 6, "IMEX channel 9 has no device node"),
    (("--driver-root", "/no/such/root"), 6, "driver root /no/such/root does not exist"),
    (("--output", "/dev/null/a.yaml"), 6, "cannot write"),
]


@pytest.mark.parametrize(("given", "code", "words"), REFUSED)
def test_generate_refuses_in_one_line(host: Path, run: Run, given: tuple[str, ...], code: int, words: str) -> None:
    """Nothing is written, and the line names cause and thing."""
    got, out, err = run("generate", *options(host, *given))
    assert got == code
    assert out == ""
    assert words in err.splitlines()[-1]


def test_a_full_disk_leaves_the_old_spec(host: Path, run: Run, tmp_path: Path) -> None:
    """Writing fails before anything is put in place, and nothing stays behind."""
    spec = tmp_path / "nvidia.yaml"
    spec.write_text("old\n")
    # -B: a module imported under the limit would leave cut byte code behind, for every later start to trip over.
    script = f"ulimit -f 1; exec {sys.executable} -B -m nvinject cdi generate --output {spec} " + " ".join(
        map(str, options(host))
    )
    done = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; {script}"], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.returncode == 6
    assert "cannot write" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["nvidia.yaml"]
    assert spec.read_text() == "old\n"


@pytest.fixture
def specs(host: Path, run: Run, tmp_path: Path) -> Path:
    """Return a folder with the machine's spec."""
    assert run("generate", *options(host, "--output", tmp_path / "nvidia.yaml"))[0] == 0
    return tmp_path


def change(path: Path, edit: Callable[[Any], object]) -> None:
    """Change a spec, keeping its stamp."""
    text = path.read_text()
    document = yaml.safe_load(text)
    edit(document)
    stamp = [line for line in text.splitlines() if line.startswith("#")]
    path.write_text("\n".join(["---", *stamp, yaml.dump(document)]))


def test_list_and_explain(specs: Path, run: Run) -> None:
    """Names go to standard output, everything else to standard error."""
    (specs / "bad.yaml").write_text("cdiVersion: 9.9.9\nkind: a/b\ndevices: []\n")
    code, out, err = run("list", "--spec-dir", specs)
    assert code == 0
    assert out.split() == [f"nvidia.com/gpu={name}" for name in ("0", "1", *UUIDS, "all")]
    assert "bad.yaml is rejected: .cdiVersion: unknown version '9.9.9'" in err
    assert "found 5 CDI devices" in err
    code, out, _ = run("explain", "--spec-dir", specs, "nvidia.com/gpu=0", "nvidia.com/gpu=9")
    assert code == 1
    for words in ("is defined by /", "is defined by no spec in", "nearest", "rejected: .cdiVersion", "priority"):
        assert words in out
    document = json.loads(run("explain", "--json", "--spec-dir", specs, "nvidia.com/gpu=0")[1])
    assert document[0]["used"] == str(specs / "nvidia.yaml")
    assert document[0]["rejected"][0]["file"] == str(specs / "bad.yaml")


def test_the_environment_names_spec_directories(specs: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the original; a list that is empty is a mistake."""
    monkeypatch.setenv("NVIDIA_CTK_CDI_SPEC_DIRS", str(specs))
    assert len(run("list")[1].split()) == 5
    monkeypatch.setenv("NVIDIA_CTK_CDI_SPEC_DIRS", "")
    assert run("list")[0] == 2


def drop_env(document: Any) -> None:
    for hook in document["containerEdits"]["hooks"]:
        del hook["env"]


def set_hook(path: str) -> Callable[[Any], None]:
    def edit(document: Any) -> None:
        document["containerEdits"]["hooks"][0]["path"] = path

    return edit


def move_library(document: Any) -> None:
    document["containerEdits"]["mounts"][-1]["hostPath"] = "/usr/lib/libcuda.so.535.1"


def renumber(document: Any) -> None:
    document["devices"][0]["containerEdits"]["deviceNodes"][0]["minor"] = 9


FAULTS: list[tuple[Callable[[Any], object], str]] = [
    (drop_env, "has no env"),
    (set_hook("nvidia-cdi-hook"), "path nvidia-cdi-hook is relative"),
    (set_hook("/no/such/hook"), "/no/such/hook does not exist"),
    (set_hook("/etc/passwd"), "/etc/passwd is no program"),
    (move_library, "/usr/lib/libcuda.so.535.1 does not exist"),
    (renumber, "the spec says 195:9"),
    (lambda document: document.update(kind="x"), "not of the form vendor/class"),
    (lambda document: document.update(extra=1), "unknown field"),
]


@pytest.mark.parametrize(("edit", "words"), FAULTS)
def test_validate_finds_faults(host: Path, specs: Path, run: Run, edit: Callable[[Any], object], words: str) -> None:
    """Each fault has a line with its remedy, and makes the exit code 1."""
    assert run("validate", "--spec-dir", specs, "--config", host / "config.toml")[0] == 0
    change(specs / "nvidia.yaml", edit)
    code, out, _ = run("validate", "--spec-dir", specs, "--config", host / "config.toml")
    assert code == 1
    assert words in out
    findings = json.loads(run("validate", "--json", specs / "nvidia.yaml", "--config", host / "config.toml")[1])[
        "findings"
    ]
    assert any(words in finding["problem"] and finding["remedy"] for finding in findings)


def test_validate_finds_conflicts_and_permissions(host: Path, specs: Path, run: Run) -> None:
    """Two files of one directory spoil each other's devices; others than the owner must not write a spec."""
    (specs / "copy.yaml").write_text((specs / "nvidia.yaml").read_text())
    (specs / "copy.yaml").chmod(0o622)
    code, out, _ = run("validate", "--spec-dir", specs, "--config", host / "config.toml")
    assert code == 1
    for words in (
        "nvidia.com/gpu=all is defined with the same priority",
        "others can change what runs as root",
        "ordinary users",
    ):
        assert words in out


@pytest.mark.parametrize("stamp", ["comment", "annotations", "none"])
def test_validate_knows_the_driver_of_a_spec(host: Path, run: Run, tmp_path: Path, stamp: str) -> None:
    """A spec that was made for another driver is told apart, even without a stamp of ours."""
    spec = tmp_path / "nvidia.yaml"
    assert run("generate", *options(host, "--output", spec, "--stamp", stamp))[0] == 0
    assert run("validate", "--spec-dir", tmp_path, "--config", host / "config.toml")[0] == 0
    spec.write_text(spec.read_text().replace("570.133.20", "535.261.03").replace(UUIDS[1], UUIDS[1][:-1] + "2"))
    _, out, _ = run("validate", "--spec-dir", tmp_path, "--config", host / "config.toml")
    assert "was made for driver 535.261.03, the loaded driver is 570.133.20" in out
    assert ("is gone" in out) == (stamp != "none")


def test_validate_without_specs(host: Path, run: Run, tmp_path: Path) -> None:
    """Nothing is wrong where nothing is."""
    code, out, _ = run("validate", "--spec-dir", tmp_path, "--config", host / "config.toml")
    assert (code, out) == (0, f"there is no spec in {tmp_path}\n")


AMD = """{"cdiVersion": "0.6.0", "kind": "amd.com/gpu", "containerEdits": {"env": ["AMD=1"]}, "devices": [
  {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/kfd", "hostPath": "/dev/null"}]}}]}"""


def test_specs_of_several_vendors(host: Path, specs: Path, run: Run, tmp_path: Path) -> None:
    """Each name means what its vendor's file says; a file that nobody can read keeps no other from being read."""
    (specs / "amd.json").write_text(AMD)
    (specs / "broken.json").write_text("{")
    code, out, err = run("list", "--spec-dir", specs)
    assert (code, out.split()[0]) == (0, "amd.com/gpu=0")
    assert "broken.json is rejected" in err
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "config.json").write_text('{"ociVersion": "1.0.2", "process": {"env": []}}')
    asked = ("--device", "amd.com/gpu=0", "--device", "nvidia.com/gpu=1")
    code, out, _ = run("inject", "--spec-dir", specs, *asked, bundle)
    assert code == 0
    document = json.loads(out)
    assert document["process"]["env"] == ["AMD=1", "NVIDIA_VISIBLE_DEVICES=void"]
    assert {"/dev/kfd", "/dev/nvidia1"} <= {node["path"] for node in document["linux"]["devices"]}
    code, out, _ = run("inject", "--spec-dir", specs, "--device", "amd.com/gpu=0", bundle)
    assert json.loads(out)["process"]["env"] == ["AMD=1"]
    assert [node["path"] for node in json.loads(out)["linux"]["devices"]] == ["/dev/kfd"]
    code, out, _ = run("validate", "--spec-dir", specs, "--config", host / "config.toml")
    assert code == 1
    assert "amd.json is valid" in out
    assert "broken.json" in out


def test_another_tools_spec_of_our_kind(specs: Path, run: Run, tmp_path: Path) -> None:
    """In a directory of higher priority it hides ours; in the same one neither counts."""
    text = """{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0", "containerEdits":
      {"env": ["THEIRS=1"]}}]}"""
    later = tmp_path / "later"
    later.mkdir()
    (later / "nvidia-container-toolkit.json").write_text(text)
    both = ("--spec-dir", specs, "--spec-dir", later)
    _, out, _ = run("explain", *both, "nvidia.com/gpu=0")
    assert f"used      {later}/nvidia-container-toolkit.json (priority 1)" in out
    assert f"hidden    {specs}/nvidia.yaml (priority 0)" in out
    (specs / "nvidia-container-toolkit.json").write_text(text)
    code, out, _ = run("explain", *both, "nvidia.com/gpu=0")
    assert code == 1
    assert "is defined with the same priority by " in out
    (tmp_path / "config.json").write_text('{"ociVersion": "1.0.2", "process": {"env": []}}')
    code, _, err = run("inject", *both, "--device", "nvidia.com/gpu=0", tmp_path / "config.json")
    assert code == 5
    assert "same priority" in err


def test_inject(specs: Path, run: Run, tmp_path: Path) -> None:
    """The document goes to standard output, to a file, or over itself; what is unknown stays."""
    config = tmp_path / "bundle" / "config.json"
    config.parent.mkdir()
    before = {"ociVersion": "1.0.2", "x": 1, "process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}
    config.write_text(json.dumps(before))
    code, out, _ = run("inject", "--spec-dir", specs, "--device", "nvidia.com/gpu=0", config.parent)
    assert code == 0
    document = json.loads(out)
    assert document["process"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert document["x"] == 1
    assert [
        node["path"] for node in document["linux"]["devices"] if node["path"] in {"/dev/nvidia0", "/dev/nvidia1"}
    ] == ["/dev/nvidia0"]
    assert json.loads(config.read_text()) == before
    assert run("inject", "--spec-dir", specs, "--device", "nvidia.com/gpu=0", "--in-place", config)[0] == 0
    assert json.loads(config.read_text()) == document
    code, out, err = run("inject", "--spec-dir", specs, "--device", "nvidia.com/gpu=7", config)
    assert (code, out) == (5, "")
    assert "nvidia.com/gpu=7 is defined by no spec in" in err
    assert run("inject", "--spec-dir", specs, "--device", "x", "/no/such/file")[0] == 3
    config.write_text("{")
    assert run("inject", "--spec-dir", specs, "--device", "x", config)[0] == 3


ODD = {
    "cdiVersion": "0.5.0",
    "kind": "example.com/odd",
    "devices": [
        {
            "name": "null",
            "containerEdits": {
                "env": ["ODD=1"],
                "deviceNodes": [{"path": "/dev/odd", "hostPath": "/dev/null", "permissions": "rw"}],
                "mounts": [{"hostPath": "/usr", "containerPath": "/lib/odd", "options": ["rbind", "ro"]}],
            },
        },
        {"name": "gone", "containerEdits": {"deviceNodes": [{"path": "/dev/gone", "major": 1, "minor": 99}]}},
        {"name": "break", "containerEdits": {"env": ["A=1\n2"]}},
    ],
}


def test_inject_into_the_configuration_of_lxc(run: Run, tmp_path: Path) -> None:
    """Lines alone, or a block in a file that keeps the rest and its mode; links of the image are followed."""
    (tmp_path / "odd.json").write_text(json.dumps(ODD))
    ask = ("inject", "--format", "lxc", "--spec-dir", tmp_path, "--device", "example.com/odd=null")
    code, out, err = run(*ask)
    assert code == 0
    assert out.splitlines() == [
        "# example.com/odd=null",
        "lxc.cgroup.devices.allow = c 1:3 rw",
        "lxc.cgroup2.devices.allow = c 1:3 rw",
        "lxc.mount.entry = /dev/null dev/odd none bind,create=file,nosuid,noexec 0 0",
        "lxc.mount.entry = /usr lib/odd none rbind,ro,create=dir 0 0",
        "lxc.environment = ODD=1",
    ]
    assert "the container's root file system is not known" in err
    rootfs = tmp_path / "c" / "rootfs"
    (rootfs / "usr/lib").mkdir(parents=True)
    (rootfs / "lib").symlink_to("/usr/lib")
    config = tmp_path / "c" / "config"
    config.write_text(f"lxc.rootfs.path = dir:{rootfs}\n")
    config.chmod(0o600)
    before = config.read_bytes()
    code, out, err = run(*ask, config.parent)
    assert (code, err) == (0, "")
    assert "lxc.mount.entry = /usr usr/lib/odd none" in out
    assert config.read_bytes() == before
    before += b"# \xff is no UTF-8\n"
    config.write_bytes(before)
    assert run(*ask, "--in-place", config)[0] == 0
    once = config.read_bytes()
    assert once.startswith(before)
    assert config.stat().st_mode & 0o777 == 0o600
    assert run(*ask, "--in-place", config.parent)[0] == 0
    assert config.read_bytes() == once
    assert "usr/lib/odd" in run(*ask, "--rootfs", rootfs)[1]


LXC_REFUSED = [
    (("--device", "example.com/odd=gone"), 6, "the device node /dev/gone of a CDI device cannot be looked at"),
    (("--device", "example.com/odd=break"), 3, "lxc.environment: a line of LXC's configuration cannot hold"),
    (("--device", "example.com/odd=none"), 5, "example.com/odd=none is defined by no spec in"),
    (("--device", "example.com/odd=null", "/no/such/config"), 3, "cannot read /no/such/config"),
    (("--device", "example.com/odd=null", "--in-place"), 2, "--in-place needs a file"),
    (("--device", "example.com/odd=null", "MARKED"), 3, "line 1: the block that begins here has no end"),
]


@pytest.mark.parametrize(("given", "code", "words"), LXC_REFUSED)
def test_inject_for_lxc_refuses_in_one_line(
    run: Run, tmp_path: Path, given: tuple[str, ...], code: int, words: str
) -> None:
    """With the thing's name, and without output."""
    (tmp_path / "odd.json").write_text(json.dumps(ODD))
    marked = tmp_path / "marked"
    marked.write_text("# nvinject cdi inject: begin\n")
    given = tuple(str(marked) if word == "MARKED" else word for word in given)
    got, out, err = run("inject", "--format", "lxc", "--spec-dir", tmp_path, "--rootfs", tmp_path, *given)
    assert (got, out) == (code, "")
    assert words in err
    assert err.count("\n") == 1


def test_inject_needs_a_config_json(run: Run, tmp_path: Path) -> None:
    """Only LXC's lines are of use without one."""
    code, _, err = run("inject", "--spec-dir", tmp_path, "--device", "x")
    assert (code, "no config.json is named" in err) == (2, True)


def test_transform_there_and_back(host: Path, specs: Path, run: Run, tmp_path: Path) -> None:
    """A spec made in a driver container is moved to the host's paths."""
    spec, moved, back = specs / "nvidia.yaml", tmp_path / "moved.yaml", tmp_path / "back.yaml"
    given = ("--from", host, "--to", "/run/driver", "--input", spec, "--output", moved)
    assert run("transform", "root", *given)[0] == 0
    assert str(host) not in moved.read_text()
    assert "hostPath: /run/driver/dev/nvidia0" in moved.read_text()
    assert run("transform", "root", "--from", "/run/driver", "--to", host, "--input", moved, "--output", back)[0] == 0
    assert yaml.safe_load(back.read_text()) == yaml.safe_load(spec.read_text())
    assert run("transform", "root", "--relative-to", "side", "--input", spec)[0] == 2
    assert run("transform", "root", "--input", "/no/such/spec")[0] == 3
    assert run("transform")[0] == 2


def test_refresh_writes_only_what_changed(host: Path, run: Run, tmp_path: Path) -> None:
    """The second time nothing is written."""
    spec = tmp_path / "nvidia.yaml"
    assert "wrote" in run("refresh", *options(host, "--output", spec))[2]
    before = (spec.stat().st_ino, spec.stat().st_mtime_ns)
    code, _, err = run("refresh", *options(host, "--output", spec))
    assert code == 0
    assert "is up to date" in err
    assert (spec.stat().st_ino, spec.stat().st_mtime_ns) == before


def test_refresh_is_all_or_nothing(run: Run, tmp_path: Path) -> None:
    """A GPU of the PCI bus that the driver does not show stops the refresh, unless another driver has it."""
    host = tmp_path / "host"
    write_machine("two-h100", host)
    spec = tmp_path / "specs" / "nvidia.yaml"
    assert run("refresh", *options(host, "--output", spec))[0] == 0
    whole = spec.read_text()
    (host / "proc/driver/nvidia/gpus/0000:18:00.0").rename(tmp_path / "gone")
    code, _, err = run("refresh", *options(host, "--output", spec))
    assert code == 6
    assert "the PCI bus has 2 GPUs, the driver shows 1: 0000:18:00.0 is missing" in err
    assert spec.read_text() == whole
    driver = host / "sys/bus/pci/devices/0000:18:00.0/driver"
    driver.unlink()
    driver.symlink_to("../../../../bus/pci/drivers/vfio-pci")
    assert run("refresh", *options(host, "--output", spec))[0] == 0
    assert names_of(spec.read_text()) == ["0", UUIDS[0], "all"]


def test_refresh_removes_files_of_devices_that_are_gone(host: Path, run: Run, tmp_path: Path) -> None:
    """With one file a device, a device that is gone takes its file along."""
    given = ("--per-device", "--device-name-strategy", "index", "--output", tmp_path)
    assert run("refresh", *options(host, *given))[0] == 0
    (tmp_path / "other.yaml").write_text("somebody else's")
    assert run("refresh", *options(host, *given, "--device-id", "0"))[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "nvidia.com-gpu_0.yaml",
        "nvidia.com-gpu_all.yaml",
        "other.yaml",
    ]


def test_watch_follows_changes(tmp_path: Path) -> None:
    """A device node that comes and a GPU that goes are heard of; a refresh that fails is tried again."""
    host = tmp_path / "host"
    write_machine("two-h100", host)
    spec, log = tmp_path / "specs" / "nvidia.yaml", tmp_path / "log"
    command = [sys.executable, "-m", "nvinject", "cdi", "watch", "--settle", "0.1", "--interval", "20"]
    with log.open("wb") as stream:
        process = subprocess.Popen([*command, *map(str, options(host, "--output", spec))], stderr=stream)
    try:
        wait_for(lambda: spec.exists() and names_of(spec.read_text()) == ["0", "1", *UUIDS, "all"], log)
        (host / "proc/driver/nvidia/gpus/0000:18:00.0").rename(tmp_path / "gone")
        (host / "dev/nvidia1").unlink()
        wait_for(lambda: "is missing" in log.read_text(), log)
        (host / "sys/bus/pci/devices/0000:18:00.0/class").unlink()
        (host / "dev/nvidia-modeset").chmod(0o600)
        wait_for(lambda: names_of(spec.read_text()) == ["0", UUIDS[0], "all"], log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS)
    assert process.returncode == -signal.SIGTERM


def wait_for(condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


CTK: list[tuple[list[str], int, str]] = [
    (["--version"], 0, "NVIDIA Container Toolkit CLI version"),
    (["--help"], 0, "usage: nvidia-ctk"),
    (["--debug", "hook", "dance"], 0, "Unsupported CDI hook: dance"),
    (["hook"], 0, "No CDI hook specified"),
    (["--quiet=maybe", "hook"], 2, "--quiet=maybe is no boolean"),
    (["info"], 0, "usage: nvidia-ctk"),
    (["cdi", "generate", "--library-search-path", "lib"], 2, "--library-search-path lib is relative"),
    (["dance"], 2, "nvinject has no command for nvidia-ctk dance"),
    (["--config"], 2, "--config needs a file"),
    (["--step"], 2, "unknown option --step"),
    ([], 2, "which command?"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), CTK)
def test_nvidia_ctk(
    arguments: list[str], code: int, words: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the original's name there are its commands; none of these changes anything."""
    monkeypatch.setattr(os, "environ", dict(os.environ))  # global options are told by variables
    assert main(arguments, "nvidia-ctk") == code
    captured = capsys.readouterr()
    assert words in captured.out + captured.err


# options, whether there are steps, a warning, a result
LEVELS = [
    ([], False, True, True),
    (["--debug"], True, True, True),
    (["--quiet"], False, False, False),
    (["--debug", "--quiet"], False, False, False),
    (["--quiet", "--quiet=false"], False, True, True),
]


@pytest.mark.parametrize(("options", "steps", "warning", "result"), LEVELS)
def test_how_much_nvidia_ctk_tells(
    options: list[str],
    steps: bool,
    warning: bool,
    result: bool,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Being quiet goes before: then errors alone are told."""
    monkeypatch.setattr(os, "environ", {"PATH": "/nowhere"})
    places = ["--config", str(tmp_path / "daemon.json"), "--state-dir", str(tmp_path / "state")]
    assert main([*options, "runtime", "configure", *places], "nvidia-ctk") == 0
    captured = capsys.readouterr()
    assert ("nvinject: debug: runtime nvidia: nvidia-container-runtime" in captured.err) is steps
    assert ("nvinject: note: there is no program" in captured.err) is warning
    assert ("Wrote updated config to" in captured.out) is result
    assert main([*options, "cdi", "list", "--spec-dir", ""], "nvidia-ctk") == 2
    assert "there is no directory to read specs from" in capsys.readouterr().err


def test_nvidia_ctk_hands_its_configuration_on(
    specs: Path, host: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--config stands before the command there."""
    monkeypatch.setenv("NVIDIA_CTK_CONFIG", "/no/such/file")
    arguments = ["--config", str(host / "config.toml"), "cdi", "validate", "--spec-dir", str(specs)]
    assert main(arguments, "nvidia-ctk") == 0
    assert "is valid" in capsys.readouterr().out
