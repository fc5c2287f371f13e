"""The runtime shim as a program: installed, on a small host tree, in front of a stand-in that records its call."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nvinject.render.rundirectory import RunDirectory
from tests.host.machine import HostTree, gpu_uuid

SECONDS = 60
RECORDER = """#!/bin/sh
echo "$0" >{folder}/words
for word do printf '%s\\n' "$word" >>{folder}/words; done
grep SigIgn /proc/self/status >{folder}/signals
exit ${{RECORDER_CODE:-0}}
"""
LEGACY = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["nvidia-container-runtime-hook", "prestart"]}
OTHER = {"path": "/opt/other", "args": ["other", "--verbose"]}


class Node:
    """A node with the shim: config.toml, host tree, a bundle, a recording low-level runtime."""

    def __init__(self, folder: Path, prefix: Path) -> None:
        self.folder = folder
        self.prefix = prefix
        self.config = folder / "config.toml"
        self.bundle = folder / "bundle"
        self.rootfs = self.bundle / "rootfs"
        self.rootfs.mkdir(parents=True)
        (self.rootfs / "etc").mkdir()
        self.host = HostTree(folder)
        self.low_level = folder / "low level"
        self.low_level.write_text(RECORDER.format(folder=folder))
        self.low_level.chmod(0o755)
        self.settings: dict[str, dict[str, Any]] = {
            "nvidia-container-runtime": {"runtimes": [str(self.low_level)]},
            "nvidia-container-cli": {"root": str(self.host.root)},
            "nvinject": {"proc-root": str(self.host.proc)},
        }

    @property
    def spec_file(self) -> Path:
        return self.bundle / "config.json"

    def write_spec(self, *environment: str, **more: Any) -> bytes:
        """Write config.json; returns its bytes."""
        spec = {
            "ociVersion": "1.0.2",
            "process": {"env": ["PATH=/bin", *environment], "capabilities": {"bounding": ["CAP_CHOWN"]}},
            "root": {"path": "rootfs"},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "unknown": {"field": [1, 2.5]},
            **more,
        }
        self.spec_file.write_text(json.dumps(spec, indent=3))
        return self.spec_file.read_bytes()

    def spec(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.spec_file.read_bytes())
        return found

    def write_config(self) -> None:
        text = ""
        for table, values in self.settings.items():
            lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())
            text += f"[{table}]\n{lines}"
        self.config.write_text(text)

    def run(
        self, *words: str, name: str = "nvidia-container-runtime", **environ: str
    ) -> "subprocess.CompletedProcess[str]":
        if not self.config.exists():
            self.write_config()
        return subprocess.run(
            [str(self.prefix / "bin" / name), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            cwd=self.folder,
            env={"PATH": "/usr/bin:/bin", "NVIDIA_CTK_CONFIG_FILE_PATH": str(self.config), **environ},
        )

    def create(self, **environ: str) -> "subprocess.CompletedProcess[str]":
        return self.run("create", "--bundle", str(self.bundle), "id", **environ)

    def called(self) -> list[str]:
        """Return the low-level runtime's own words, its name first; [] if it was not called."""
        path = self.folder / "words"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def node(tmp_path: Path, prefix: Path) -> Node:
    return Node(tmp_path, prefix)


@pytest.fixture
def gpus(node: Node) -> Node:
    """Return a node with two GPUs and a driver."""
    node.host.add_everything()
    return node


UNASKED: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    ((), {}),
    (("NVIDIA_VISIBLE_DEVICES=void",), {}),
    (("NVIDIA_VISIBLE_DEVICES=",), {}),
    ((), {"annotations": {"io.kubernetes.cri.sandbox-id": "4711", "a": "b=c"}}),
    ((), {"hooks": {"prestart": [LEGACY, OTHER]}}),
    (("without-equals-sign",), {}),
    ((), {"process": None}),
    ((), {"root": [], "mounts": "x"}),
    ((), {"process": {"env": "x", "capabilities": 1}}),
]


@pytest.mark.parametrize(("environment", "more"), UNASKED)
@pytest.mark.parametrize("config", ["mode = \n", None])
def test_a_container_without_gpus_passes_byte_for_byte(
    node: Node, environment: tuple[str, ...], more: dict[str, Any], config: str | None
) -> None:
    """No driver is there, and config.toml may be broken."""
    before = node.write_spec(*environment, **more)
    node.write_config()
    if config is not None:
        node.config.write_text(node.config.read_text() + config)
    status = node.spec_file.stat()
    done = node.create()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert node.spec_file.read_bytes() == before
    assert node.spec_file.stat() == status
    assert node.called() == [str(node.low_level), "create", "--bundle", str(node.bundle), "id"]


@pytest.mark.parametrize("words", [("state", "id"), ("--root", "/a b", "delete", "-f", "id"), ("exec", "id", "create")])
@pytest.mark.parametrize("through", ["nvidia-container-runtime", "nvinject"])
def test_other_calls_are_silent(node: Node, words: tuple[str, ...], through: str) -> None:
    """Public case 14; through the interpreter's launcher as well as the shell's."""
    ours = ("runtime",) if through == "nvinject" else ()
    done = node.run(*ours, *words, name=through, RECORDER_CODE="3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    assert node.called() == [str(node.low_level), *words]


@pytest.mark.parametrize("code", ["0", "5"])
def test_delete_by_the_interpreter(node: Node, code: str) -> None:
    """Where the launcher cannot read the configuration, the interpreter removes what was generated."""
    node.write_config()
    plain = node.config.read_text()
    node.config.write_text(plain.replace('["', '[\n"', 1))
    generated = node.folder / "nvinject" / "id"
    generated.mkdir(parents=True)
    (generated / "file").touch()
    done = node.run("delete", "id", XDG_RUNTIME_DIR=str(node.folder), RECORDER_CODE=code)
    assert (done.returncode, done.stdout, done.stderr) == (int(code), "", "")
    assert node.called() == [str(node.low_level), "delete", "id"]
    assert generated.exists() is (code != "0")
    assert int((node.folder / "signals").read_text().split()[1], 16) & (1 << 12 | 1 << 24) == 0


@pytest.mark.parametrize("interpreter", [False, True])
@pytest.mark.parametrize("record", ["there", 'there \xe9"', "gone", "unknown", "no note"])
def test_delete_leaves_what_another_container_of_this_id_uses(node: Node, record: str, *, interpreter: bool) -> None:
    """Two engines may have one id: as long as the runtime that the folder's note names has a record, it is in use."""
    node.write_config()
    if interpreter:
        node.config.write_text(node.config.read_text().replace('["', '[\n"', 1))
    state = node.folder / f"run {record}" / "id"
    (node.folder / "nvinject").mkdir()
    generated = RunDirectory(str(node.folder / "nvinject"), "id")
    generated.make(str(node.bundle), "" if record == "unknown" else str(state))
    if record == "no note":
        os.unlink(f"{generated.path}/container.json")
    if record.startswith("there"):
        state.mkdir(parents=True)
    done = node.run("delete", "id", XDG_RUNTIME_DIR=str(node.folder))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert node.called() == [str(node.low_level), "delete", "id"]
    assert os.path.exists(generated.path) is record.startswith("there")


def test_delete_removes_nothing_through_a_link(node: Node) -> None:
    """Root may be given the XDG_RUNTIME_DIR of a user, who can put a link there."""
    elsewhere = node.folder / "elsewhere" / "id"
    elsewhere.mkdir(parents=True)
    (node.folder / "nvinject").symlink_to(elsewhere.parent)
    assert node.run("delete", "id", XDG_RUNTIME_DIR=str(node.folder)).returncode == 0
    assert node.called() == [str(node.low_level), "delete", "id"]
    assert elsewhere.exists()


def test_signals_are_not_left_ignored(node: Node) -> None:
    """Python ignores SIGPIPE (13) and SIGXFSZ (25); a container must not inherit that."""
    node.write_spec()
    node.create()
    line = (node.folder / "signals").read_text()
    assert int(line.split()[1], 16) & (1 << 12 | 1 << 24) == 0


@pytest.mark.parametrize("words", [("--version",), ("-version", "list")])
def test_versions_of_both_are_printed(node: Node, words: tuple[str, ...]) -> None:
    done = node.run(*words)
    assert re.fullmatch(r"NVIDIA Container Runtime version \S+ \(nvinject\)\nspec: \d\S*\n\n", done.stdout)
    assert node.called() == [str(node.low_level), *words]


def test_exit_code_of_the_runtime(gpus: Node) -> None:
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=all")
    assert gpus.create(RECORDER_CODE="42").returncode == 42


def test_jit(gpus: Node) -> None:
    """The whole container is described in config.json, without a hook; unknown fields and mode stay."""
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=1", hooks={"prestart": [LEGACY, OTHER], "poststop": [OTHER]})
    gpus.spec_file.chmod(0o640)
    done = gpus.create()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    spec = gpus.spec()
    assert spec["unknown"] == {"field": [1, 2.5]}
    assert spec["hooks"] == {"prestart": [OTHER], "poststop": [OTHER]}
    assert spec["process"]["env"] == ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=1"]
    assert [entry["path"] for entry in spec["linux"]["devices"]] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia1",
    ]
    assert {"allow": True, "type": "c", "major": 195, "minor": 1, "access": "rw"} in spec["linux"]["resources"][
        "devices"
    ]
    smi = next(mount for mount in spec["mounts"] if mount["destination"] == "/usr/bin/nvidia-smi")
    assert smi["source"] == f"{gpus.host.root}/usr/bin/nvidia-smi"
    assert gpus.spec_file.stat().st_mode & 0o777 == 0o640
    assert os.readlink(gpus.rootfs / "usr/lib64/libcuda.so.1") == "libcuda.so.570.133.20"
    assert (gpus.rootfs / "etc/ld.so.cache").exists()
    assert sorted(os.listdir(gpus.bundle)) == ["config.json", "rootfs"]


def test_bundle_is_the_working_directory(gpus: Node) -> None:
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=all")
    gpus.folder = gpus.bundle
    gpus.folder.joinpath("words").unlink(missing_ok=True)
    assert gpus.run("create", "id").returncode == 0
    assert "devices" in gpus.spec()["linux"]


def test_create_twice_is_the_same(gpus: Node) -> None:
    """Engines try again with a bundle that was edited already."""
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=all")
    gpus.create()
    once = gpus.spec()
    gpus.create()
    assert gpus.spec() == once


def test_legacy(gpus: Node) -> None:
    """The hook in the spec is replaced by ours, whose environment is explicit."""
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=all", hooks={"prestart": [LEGACY, OTHER]})
    done = gpus.run("create", "--bundle", str(gpus.bundle), "id", name="nvidia-container-runtime.legacy")
    assert (done.returncode, done.stderr) == (0, "")
    spec = gpus.spec()
    launcher = f"{gpus.prefix}/bin/nvinject"
    assert spec["hooks"]["prestart"][0] == OTHER
    (hook,) = spec["hooks"]["prestart"][1:]
    assert (hook["path"], hook["args"]) == (launcher, ["nvinject", "hook", "-legacy", "prestart"])
    assert hook["env"][1:] == [f"NVIDIA_CTK_CONFIG_FILE_PATH={gpus.config}"]
    assert "linux" not in spec


def test_legacy_with_a_configured_hook(gpus: Node) -> None:
    gpus.settings["nvidia-container-runtime"]["mode"] = "legacy"
    gpus.settings["nvidia-container-runtime-hook"] = {"path": "/opt/hook"}
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=all")
    gpus.create()
    assert gpus.spec()["hooks"]["prestart"][0]["args"] == ["hook", "prestart"]


CDI = """{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu",
 "devices": [{"name": "0", "containerEdits": {"env": ["GPU=0"]}}, {"name": "1", "containerEdits": {"env": ["GPU=1"]}}],
 "containerEdits": {"env": ["COMMON=yes"], "mounts": [{"hostPath": "/h", "containerPath": "/c"}]}}"""


@pytest.fixture
def registry(node: Node) -> Node:
    """Return a node without driver and with a CDI spec."""
    folder = node.folder / "cdi"
    folder.mkdir()
    (folder / "nvidia.json").write_text(CDI)
    (folder / "broken.json").write_text("{")
    node.settings["nvidia-container-runtime.modes.cdi"] = {"spec-dirs": [str(folder)]}
    return node


# name of the shim, environment, annotations, variables that come
DEVICES = [
    ("nvidia-container-runtime", "nvidia.com/gpu=1", {}, ["COMMON=yes", "GPU=1"]),
    ("nvidia-container-runtime.cdi", "0", {}, ["COMMON=yes", "GPU=0"]),
    ("nvidia-container-runtime.cdi", "nvidia.com/gpu=0,nvidia.com/gpu=0", {}, ["COMMON=yes", "GPU=0"]),
    ("nvidia-container-runtime", "void", {"cdi.k8s.io/x": "nvidia.com/gpu=1"}, ["COMMON=yes", "GPU=1"]),
    ("nvidia-container-runtime.cdi", "0", {"cdi.k8s.io/x": "nvidia.com/gpu=1"}, ["COMMON=yes", "GPU=1"]),
]


@pytest.mark.parametrize(("name", "devices", "annotations", "variables"), DEVICES)
def test_mode_cdi_takes_devices_from_specs(
    registry: Node, name: str, devices: str, annotations: dict[str, str], variables: list[str]
) -> None:
    registry.write_spec(
        f"NVIDIA_VISIBLE_DEVICES={devices}", annotations=annotations, hooks={"prestart": [OTHER, LEGACY]}
    )
    done = registry.run("create", "--bundle", str(registry.bundle), "id", name=name)
    assert (done.returncode, done.stderr) == (0, "")
    spec = registry.spec()
    assert spec["process"]["env"][2:] == variables
    assert spec["mounts"][-1]["source"] == "/h"
    assert spec["hooks"] == {"prestart": [OTHER]}


def test_cdi_by_mounts(registry: Node) -> None:
    registry.config.write_text("accept-nvidia-visible-devices-as-volume-mounts = true\n")
    top = registry.config.read_text()
    registry.write_config()
    registry.config.write_text(top + registry.config.read_text())
    place = "/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/1"
    registry.write_spec(mounts=[{"source": "/dev/null", "destination": place}])
    registry.create()
    assert registry.spec()["process"]["env"][1:] == ["COMMON=yes", "GPU=1"]


def test_annotation_prefixes_of_the_configuration(registry: Node) -> None:
    registry.settings["nvidia-container-runtime.modes.cdi"]["annotation-prefixes"] = ["ours/"]
    registry.write_spec(annotations={"ours/a": "nvidia.com/gpu=0", "cdi.k8s.io/b": "nvidia.com/gpu=1"})
    registry.create()
    assert registry.spec()["process"]["env"][1:] == ["COMMON=yes", "GPU=0"]


def refused(node: Node, code: int, *words: str, name: str = "nvidia-container-runtime") -> str:
    """Create; returns the one line of the refusal. Nothing changed and the low-level runtime was not called."""
    before = node.spec_file.read_bytes() if node.spec_file.is_file() else b""
    log = node.folder / "log.json"
    done = node.run(
        *("--log", str(log), "--log-format", "json", "create", "--bundle", str(node.bundle), "id"), name=name
    )
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("nvinject: ")
    # containerd shows its users what stands in this file.
    entry = json.loads(log.read_text().splitlines()[-1])
    assert (entry["level"], entry["msg"]) == ("error", line)
    assert node.called() == []
    assert before == (node.spec_file.read_bytes() if node.spec_file.is_file() else b"")
    assert sorted(path.name for path in node.rootfs.rglob("*")) == ["etc"]
    for word in words:
        assert word in line
    return line


def test_cdi_device_that_is_not_there(registry: Node) -> None:
    registry.write_spec("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=2")
    refused(registry, 5, "nvidia.com/gpu=2", "nvidia.com/gpu=0", "nvidia.json", "broken.json")


def test_cdi_of_another_vendor(registry: Node) -> None:
    """It is passed on as it is: with a word about it in our variable, without one where an annotation has it."""
    registry.write_spec("NVIDIA_VISIBLE_DEVICES=amd.com/gpu=0")
    before = registry.spec_file.read_bytes()
    done = registry.create()
    assert (done.returncode, registry.spec_file.read_bytes()) == (0, before)
    assert "'amd.com/gpu=0' is not NVIDIA's and is left alone" in done.stderr
    document = registry.spec()
    document["annotations"] = {"cdi.k8s.io/plugin": "amd.com/gpu=0"}
    document["process"]["env"] = ["PATH=/bin"]
    registry.spec_file.write_text(json.dumps(document))
    before = registry.spec_file.read_bytes()
    assert registry.create().returncode == 0
    assert registry.spec_file.read_bytes() == before


def test_cdi_of_another_vendor_beside_ours(registry: Node) -> None:
    registry.write_spec("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0,amd.com/gpu=0")
    done = registry.create()
    assert done.returncode == 0
    assert "GPU=0" in registry.spec()["process"]["env"]
    assert "'amd.com/gpu=0' is not NVIDIA's" in done.stderr


MORE = """{"cdiVersion": "0.5.0", "kind": "nvidia.com/%s", "devices": [{"name": "%s", "containerEdits": {"env":
["%s=yes"]}}], "containerEdits": {}}"""


def test_extras_of_the_environment_come_from_the_registry_too(registry: Node) -> None:
    """As devices of their own kinds; one that no spec has is refused, or left out where the node's policy says so."""
    folder = registry.folder / "cdi"
    (folder / "gds.json").write_text(MORE % ("gds", "all", "GDS"))
    (folder / "imex.json").write_text(MORE % ("imex-channel", "3", "CHANNEL"))
    asked = ("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0", "NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=3")
    registry.write_spec(*asked)
    assert registry.create().returncode == 0
    assert {"GPU=0", "GDS=yes", "CHANNEL=yes"} <= set(registry.spec()["process"]["env"])
    (registry.folder / "words").unlink()
    registry.write_spec(*asked, "NVIDIA_MOFED=enabled")
    refused(registry, 5, "nvidia.com/mofed=all", "none has devices of kind nvidia.com/mofed")
    registry.settings["nvinject"]["missing-extras"] = "warn"
    registry.config.unlink()
    done = registry.create()
    assert done.returncode == 0
    assert "no CDI spec defines nvidia.com/mofed=all; the container does without" in done.stderr
    assert "GDS=yes" in registry.spec()["process"]["env"]


def test_sockets_left_out_by_a_feature_flag_of_the_original(gpus: Node) -> None:
    gpus.host.add_socket("/run/nvidia-persistenced/socket")
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=0")
    gpus.create()
    assert "/run/nvidia-persistenced/socket" in {mount["destination"] for mount in gpus.spec()["mounts"]}
    gpus.settings["nvidia-container-runtime.modes.jit-cdi"] = {"nvcdi-feature-flags": ["disable-ipc-discoverer"]}
    gpus.config.unlink()
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=0")
    assert gpus.create().returncode == 0
    assert "/run/nvidia-persistenced/socket" not in {mount["destination"] for mount in gpus.spec()["mounts"]}


def test_the_multi_process_service_keeps_limits_of_memory(gpus: Node) -> None:
    """By variables, which a container keeps that has them; in mode cdi too."""
    (gpus.host.root / "run/mps").mkdir(parents=True)
    (gpus.host.root / "run/mps/control").write_text("")
    gpus.settings["nvinject"]["mps-pipe-directory"] = "/run/mps"
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_GPU_MEMORY_LIMIT=512")
    assert gpus.create().returncode == 0
    environment = gpus.spec()["process"]["env"]
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=512M" in environment
    assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in environment


def test_limits_of_memory_hold_for_cdi(registry: Node) -> None:
    """They are kept, refused or warned about whatever brings the devices."""
    registry.host.add_everything()
    registry.write_spec("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0", "NVIDIA_MEMORY_LIMIT=1G")
    refused(registry, 6, "NVIDIA_MEMORY_LIMIT cannot be kept", "nvmlDeviceSetMemoryLimits_v1")
    registry.settings["nvinject"]["missing-memory-limits"] = "warn"
    registry.config.unlink()
    done = registry.create()
    assert (done.returncode, "not limited" in done.stderr) == (0, True)
    (registry.host.root / "tmp/nvidia-mps").mkdir(parents=True)
    (registry.host.root / "tmp/nvidia-mps/control").write_text("")
    registry.write_spec("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0", "NVIDIA_MEMORY_LIMIT=1G")
    assert registry.create().returncode == 0
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M" in registry.spec()["process"]["env"]


def test_a_failure_takes_back_the_node_that_was_made_on_the_host(gpus: Node) -> None:
    """The channel's node is made before config.json is written, and goes when that cannot be."""
    (gpus.host.proc / "devices").write_text("Character devices:\n195 nvidia\n238 nvidia-caps-imex-channels\n")
    gpus.settings["nvinject"]["create-imex-channels"] = True
    channel = gpus.host.root / "dev/nvidia-caps-imex-channels/channel5"
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=5", linux={"devices": "no list"})
    refused(gpus, 3, "devices in config.json is not a list")
    assert not channel.exists()
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=5")
    assert gpus.create().returncode == 0
    assert channel.is_char_device()


def test_requirements_hold_for_cdi(registry: Node) -> None:
    registry.host.add_everything()
    registry.write_spec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_X=driver>=999")
    refused(registry, 1, "driver>=999", "570.133.20", name="nvidia-container-runtime.cdi")


def test_requirements_hold_for_jit(gpus: Node) -> None:
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_X=driver>=999")
    refused(gpus, 1, "driver>=999", "570.133.20")


def test_device_that_is_not_there(gpus: Node) -> None:
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=9")
    refused(gpus, 5, "9", gpu_uuid(1))


def test_a_request_without_a_driver_is_refused(node: Node) -> None:
    node.write_spec("NVIDIA_VISIBLE_DEVICES=all")
    refused(node, 6, "driver")


@pytest.mark.parametrize(("mode", "code", "words"), [("bogus", 4, "invalid mode 'bogus'"), ("csv", 6, "no mount spec")])
def test_modes_that_are_refused(gpus: Node, mode: str, code: int, words: str) -> None:
    gpus.settings["nvidia-container-runtime"]["mode"] = mode
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=all")
    refused(gpus, code, words)


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "is empty"), ("{", "is not JSON"), ("[]", "not a JSON object"), ('{"a": 1} x', "Extra data")],
)
def test_malformed_config_json(node: Node, text: str, words: str) -> None:
    node.spec_file.write_text(text)
    refused(node, 3, words, "config.json")


def test_bundle_that_is_not_there(node: Node) -> None:
    node.bundle = node.folder / "none"
    refused(node, 3, f"bundle {node.bundle} does not exist")


def test_config_json_that_cannot_be_read(node: Node) -> None:
    node.spec_file.mkdir()
    refused(node, 3, "cannot read", "config.json")


def test_config_json_without_process(gpus: Node) -> None:
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=all", root={})
    refused(gpus, 3, "root.path is missing")


def test_broken_config_toml_matters_to_containers_with_gpus(gpus: Node) -> None:
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=all")
    gpus.write_config()
    gpus.config.write_text(gpus.config.read_text() + "broken\n")
    refused(gpus, 4, str(gpus.config), "line")


def test_no_low_level_runtime(node: Node) -> None:
    node.settings["nvidia-container-runtime"]["runtimes"] = ["/none/runc", "no-such-runtime"]
    node.write_spec()
    refused(node, 6, "no runtime binary found from candidate list: /none/runc, no-such-runtime")


def test_low_level_runtime_that_cannot_be_executed(gpus: Node) -> None:
    """What was written for the container is taken back."""
    gpus.low_level.write_bytes(b"\x7fELF but no program")
    before = gpus.write_spec("NVIDIA_VISIBLE_DEVICES=all")
    done = gpus.create()
    assert done.returncode == 6
    assert "cannot execute the low-level runtime" in done.stderr
    assert gpus.spec_file.read_bytes() == before


def test_bundle_option_without_value(node: Node) -> None:
    done = node.run("create", "id", "--bundle")
    assert (done.returncode, node.called()) == (2, [])
    assert "bundle option requires an argument" in done.stderr


def test_bundle_that_cannot_be_written(gpus: Node) -> None:
    """The rootfs is as it was, too."""
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=all")
    gpus.bundle.chmod(0o555)
    if os.access(gpus.bundle, os.W_OK):
        tried = subprocess.run(["chattr", "+i", str(gpus.bundle)], capture_output=True, text=True, check=False)
        if tried.returncode:
            pytest.skip(f"modes bind not this user, and no folder can be immutable here: {tried.stderr.strip()}")
    try:
        refused(gpus, 7, "cannot write", "config.json", "the container's configuration is unchanged")
    finally:
        subprocess.run(["chattr", "-i", str(gpus.bundle)], capture_output=True, check=False)
        gpus.bundle.chmod(0o755)


def test_the_debug_log_has_every_step(gpus: Node) -> None:
    log = gpus.folder / "new folder" / "log"
    gpus.settings["nvidia-container-runtime"]["debug"] = str(log)
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=1")
    assert gpus.create().returncode == 0
    text = log.read_text()
    assert "mode jit: devices 1 (NVIDIA_VISIBLE_DEVICES)" in text
    assert text.endswith("config.json is written\n")


def test_engine_log_in_text(gpus: Node) -> None:
    gpus.write_spec("NVIDIA_VISIBLE_DEVICES=9")
    log = gpus.folder / "log"
    gpus.run("--debug", "--log", str(log), "create", "-b", str(gpus.bundle), "id")
    lines = log.read_text().splitlines()
    assert any(" level=debug " in line for line in lines)
    assert re.fullmatch(r'time="\S+" level=error msg="nvinject: .*unknown device.*"', lines[-1])


def test_ignored_request_is_told(gpus: Node) -> None:
    gpus.write_config()
    gpus.config.write_text("accept-nvidia-visible-devices-envvar-when-unprivileged = false\n" + gpus.config.read_text())
    before = gpus.write_spec("NVIDIA_VISIBLE_DEVICES=all")
    done = gpus.create()
    assert "is ignored: the container is not privileged" in done.stderr
    assert (done.returncode, gpus.spec_file.read_bytes()) == (0, before)


def test_the_command_has_a_help_of_its_own(node: Node) -> None:
    done = node.run("runtime", "--help", name="nvinject")
    assert done.stdout.startswith("usage: nvinject runtime")
    assert done.returncode == 0
