"""nvinject config: what is shown, and that a change touches the lines that it must and no other byte."""

import json
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvinject.cli import main as command_line
from nvinject.cli.configschema import ACTIVE, COMMENTED, HELP, format_default, host_defaults, kinds
from nvinject.config import BOOLEAN, INTEGER, KEYS, STRING, STRINGS, check_text, load_policy
from nvinject.core.policy import Policy
from tests.engines.documents import toml_lines

Capture = pytest.CaptureFixture[str]

# By hand, from the rules of the original.
DEFAULT = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
#debug = "/var/log/nvidia-container-toolkit.log"
environment = []
#ldcache = "/etc/ld.so.cache"
ldconfig = "@/sbin/ldconfig"
load-kmods = true
#no-cgroups = false
#path = "/usr/bin/nvidia-container-cli"
#root = "/run/nvidia/driver"
#user = "root:video"

[nvidia-container-runtime]
#debug = "/var/log/nvidia-container-runtime.log"
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]

[nvidia-container-runtime.modes.csv]
mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"

[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "ldconfig"

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = false

[nvidia-ctk]
path = "nvidia-ctk"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def run(config: Path, command: str, *words: str) -> int:
    return command_line.main(["config", command, "--config-file", str(config), *words])


# The schema


def test_help_is_for_the_keys_that_there_are() -> None:
    assert set(HELP) == {key for key, _, _ in KEYS}
    assert all(entry.text.endswith(".") for entry in HELP.values())


@pytest.mark.parametrize("key", sorted(HELP))
def test_defaults_have_the_type_of_their_key(key: str) -> None:
    types: dict[str, type] = {BOOLEAN: bool, INTEGER: int, STRING: str, STRINGS: list}
    entry = HELP[key]
    assert type(entry.default) is types[kinds()[key]]
    assert (entry.display is not None) is (entry.shown == COMMENTED)
    assert not entry.choices or entry.default in entry.choices


def nested(values: dict[str, Any]) -> str:
    tables: dict[str, list[str]] = {"": []}
    for key, value in values.items():
        table, _, name = key.rpartition(".")
        tables.setdefault(table, []).append(f"{name} = {json.dumps(value)}\n")
    return "".join((f"[{table}]\n" if table else "") + "".join(lines) for table, lines in tables.items())


def test_the_defaults_are_those_of_the_policy() -> None:
    text = nested({key: entry.default for key, entry in HELP.items()})
    policy, warnings = check_text("config.toml", text)
    # None at all, as a name and as a file that swallows everything.
    expected = Policy(runtime_debug="/dev/null", hook_path="nvidia-container-runtime-hook")
    assert (policy, warnings) == (expected, ())


# A new file


def test_the_default_file_is_the_originals(tmp_path: Path) -> None:
    assert format_default(str(tmp_path)) == DEFAULT


def test_defaults_that_depend_on_the_host(tmp_path: Path) -> None:
    (tmp_path / "sbin").mkdir()
    (tmp_path / "sbin" / "ldconfig.real").touch()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "os-release").write_text('ID="sles"\nID_LIKE="suse"\n')
    expected = DEFAULT.replace('#user = "root:video"', 'user = "root:video"').replace('ldconfig"', 'ldconfig.real"', 1)
    assert format_default(str(tmp_path)) == expected
    assert host_defaults(str(tmp_path))["nvidia-container-cli.user"] == "root:video"


def test_the_documented_file_has_every_key(tmp_path: Path) -> None:
    """And means the same: what is a comment is a default."""
    text = format_default(str(tmp_path), documented=True)
    names = {line.lstrip("#").partition(" =")[0] for line in text.splitlines() if " = " in line}
    assert names >= {key.rpartition(".")[2] for key in HELP}
    assert tomllib.loads(text).keys() - {"features", "nvinject"} == tomllib.loads(DEFAULT).keys()
    assert check_text("x", text) == check_text("x", DEFAULT)
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize("name", ["create-default", "default", "generate-default"])
def test_create_default(config: Path, capsys: Capture, name: str) -> None:
    assert command_line.main(["config", name]) == 0
    assert capsys.readouterr().out == format_default()
    assert command_line.main(["config", name, "--output", str(config)]) == 0
    assert config.read_text() == format_default()
    config.write_text("mine = 1\n")
    assert command_line.main(["config", name, "--output", str(config)]) == 2
    assert config.read_text() == "mine = 1\n"
    assert command_line.main(["config", name, "--output", str(config), "--dry-run"]) == 0
    assert config.read_text() == "mine = 1\n"
    assert command_line.main(["config", name, "--output", str(config), "--force"]) == 0
    assert config.read_text() == format_default()


# Changes


def test_a_commented_default_comes_to_life(config: Path) -> None:
    """Public case 20 (NCT#1626): the line becomes active, every other byte stays."""
    text = '# mine\n\n[nvidia-container-cli]\n#debug = "/var/log/x.log"\nenvironment = [] # none'
    config.write_text(text)
    assert run(config, "set", "nvidia-container-cli.debug", "/var/log/x.log") == 0
    assert config.read_text() == text.replace("#debug", "debug")
    assert run(config, "unset", "nvidia-container-cli.debug") == 0
    assert config.read_text() == text.replace('#debug = "/var/log/x.log"\n', "")


# words of `set`, the lines that are taken away, the lines that come
CHANGES = [
    (["disable-require=true"], ["disable-require = false"], ["disable-require = true"]),
    (["disable-require"], ["disable-require = false"], ["disable-require = true"]),
    (["disable-require", "1"], ["disable-require = false"], ["disable-require = true"]),
    (["disable-require=false"], [], []),
    (
        ["nvidia-container-runtime.runtimes=crun:/usr/sbin/runc"],
        ['runtimes = ["runc", "crun"]'],
        ['runtimes = ["crun", "/usr/sbin/runc"]'],
    ),
    (["nvidia-container-runtime.runtimes=crun,runc"], ['runtimes = ["runc", "crun"]'], ['runtimes = ["crun", "runc"]']),
    (
        ["nvidia-container-cli.environment=A=b;C=d:e", "--set-list-separator=;"],
        ["environment = []"],
        ['environment = ["A=b", "C=d:e"]'],
    ),
    (["swarm-resource=A"], [], ['swarm-resource = "A"']),
    (["swarm-resource="], [], ['swarm-resource = ""']),
    (["nvinject.nvml-timeout=30"], [], ["", "[nvinject]", "nvml-timeout = 30"]),
    (["features.ignore-imex-channel-requests"], [], ["", "[features]", "ignore-imex-channel-requests = true"]),
    (["features.ignore-imex-channel-requests=nil"], [], []),
    (
        ["nvidia-container-runtime.mode=cdi", "nvidia-ctk.path=/x y"],
        ['mode = "auto"', 'path = "nvidia-ctk"'],
        ['mode = "cdi"', 'path = "/x y"'],
    ),
]


@pytest.mark.parametrize(("words", "gone", "new"), CHANGES)
def test_set_changes_only_its_lines(config: Path, words: list[str], gone: list[str], new: list[str]) -> None:
    config.write_text(DEFAULT)
    assert run(config, "set", *words) == 0
    before, after = DEFAULT.splitlines(), config.read_text().splitlines()
    assert [line for line in before if line not in after] == gone
    assert sorted(after) == sorted([*(line for line in before if line not in gone), *new])
    again = config.stat().st_ino
    assert run(config, "set", *words) == 0
    assert config.stat().st_ino == again


@pytest.mark.parametrize(("mark", "newline", "end"), [("\ufeff", "\r\n", "\r\n"), ("", "\r\n", ""), ("", "\n", "")])
def test_marks_line_ends_and_a_missing_one_stay(config: Path, mark: str, newline: str, end: str) -> None:
    lines = ["# mine", "[nvidia-container-cli]", "  debug = 'x'   # why", "[zzz]", "unknown = 1"]
    config.write_bytes((mark + newline.join(lines) + end).encode())
    assert (
        run(config, "set", "nvidia-container-cli.debug=y", "nvidia-container-cli.no-cgroups", "nvinject.dev-root=/")
        == 0
    )
    lines[2:3] = ['  debug = "y"   # why', "  no-cgroups = true"]
    lines += ["", "[nvinject]", 'dev-root = "/"']
    assert config.read_bytes().decode() == mark + newline.join(lines) + end
    assert load_policy(str(config), required=True)[0].no_cgroups


REFUSED = [
    (["nope=1"], 2, "undefined key 'nope'"),
    (["mode=cdi"], 2, "did you mean nvidia-container-runtime.mode?"),
    (["swarm-resource"], 2, "invalid format: swarm-resource needs a value"),
    (["disable-require="], 2, "invalid format: disable-require= has no value"),
    (["disable-require=maybe"], 2, "disable-require=maybe is no boolean"),
    (["nvinject.nvml-timeout=soon"], 2, "must be an integer"),
    (["nvinject.nvml-timeout=0"], 4, "must be between 1 and 600"),
    (["nvidia-container-runtime.mode=fast"], 2, "use one of auto"),
    (["nvidia-container-cli.ldconfig=/sbin/ldconfig"], 4, "must begin with '@'"),
    (["nvidia-container-runtime.runtimes="], 4, "runtimes is empty"),
    (["nvidia-container-runtime.runtimes=a", "--set-list-separator="], 2, "--set-list-separator is empty"),
    (["nvidia-container-cli.root=relative"], 4, "must be an absolute path"),
]


@pytest.mark.parametrize(("words", "code", "says"), REFUSED)
def test_what_is_refused_leaves_the_file(config: Path, capsys: Capture, words: list[str], code: int, says: str) -> None:
    config.write_text(DEFAULT)
    assert run(config, "set", *words) == code
    assert says in capsys.readouterr().err
    assert config.read_text() == DEFAULT


def test_a_broken_file_is_refused_with_its_place(config: Path, capsys: Capture) -> None:
    config.write_text("a = 1\nb = [1,\n")
    assert run(config, "set", "disable-require") == 4
    assert f"{config}, line 3, column 1: " in capsys.readouterr().err
    config.write_bytes(b"a = 1\nb = '\xff'\n")
    assert run(config, "set", "disable-require") == 4
    assert "line 2, column 6: not UTF-8 text" in capsys.readouterr().err


def test_a_mistake_can_be_mended(config: Path) -> None:
    """What matters is the file afterwards."""
    config.write_text("[nvinject]\nnvml-timeout = 0\n")
    assert run(config, "set", "nvinject.nvml-timeout=5") == 0
    assert config.read_text() == "[nvinject]\nnvml-timeout = 5\n"


def test_a_dry_run_shows_the_difference(config: Path, capsys: Capture) -> None:
    config.write_text(DEFAULT)
    assert run(config, "set", "nvidia-container-runtime.mode=cdi", "--dry-run") == 0
    assert config.read_text() == DEFAULT
    shown = capsys.readouterr().out.splitlines()
    assert '-mode = "auto"' in shown
    assert '+mode = "cdi"' in shown
    assert "\033" not in "".join(shown)


def test_a_missing_file_begins_as_the_default_one(config: Path) -> None:
    assert run(config, "set", "nvidia-container-runtime.mode=cdi") == 0
    assert config.read_text() == format_default().replace('mode = "auto"', 'mode = "cdi"')


def test_links_modes_and_output(config: Path, tmp_path: Path) -> None:
    real = tmp_path / "real.toml"
    real.write_text(DEFAULT)
    real.chmod(0o600)
    config.symlink_to("real.toml")
    assert run(config, "set", "disable-require", "--output", str(tmp_path / "new" / "out.toml")) == 0
    assert real.read_text() == DEFAULT
    assert "disable-require = true" in (tmp_path / "new" / "out.toml").read_text()
    assert run(config, "set", "disable-require") == 0
    assert config.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o600
    assert "disable-require = true" in real.read_text()


config_lines = toml_lines() | st.sampled_from(
    [
        "[nvidia-container-cli]",
        '#debug = "x" # note',
        "debug = 'old'",
        "[nvidia-container-runtime.modes.cdi]",
        'nvidia-container-cli.debug = "y"',
        "nvidia-container-cli = { debug = 'z', no-cgroups = true }",
        "[nvidia-container-runtime]\nruntimes = [\n  'runc', # first\n]",
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(config_lines, max_size=10), st.sampled_from(["\n", "\r\n"]), st.sampled_from(["x", "new", ""]))
def test_set_twice_is_once_and_a_refusal_changes_nothing(lines: list[str], newline: str, value: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.toml")
        before = "\n".join(lines).replace("\n", newline).encode()
        config.write_bytes(before)
        if run(config, "set", f"nvidia-container-cli.debug={value}") != 0:
            assert config.read_bytes() == before
            return
        once = config.read_bytes()
        assert load_policy(str(config), required=True)[0].debug == value
        assert run(config, "set", f"nvidia-container-cli.debug={value}") == 0
        assert config.read_bytes() == once


# The original's form


def ctk(*words: str) -> int:
    return command_line.main(list(words), "nvidia-ctk")


def test_the_originals_form(config: Path, tmp_path: Path, capsys: Capture) -> None:
    config.write_text(DEFAULT)
    changed = DEFAULT.replace("disable-require = false", "disable-require = true")
    words = ("config", "--config-file", str(config), "--set", "disable-require")
    assert ctk(*words) == 0
    assert capsys.readouterr().out == changed
    assert config.read_text() == DEFAULT
    assert ctk(*words, "--output", str(tmp_path / "deep" / "out")) == 0
    assert (tmp_path / "deep" / "out").read_text() == changed
    assert ctk(*words, "-i") == 0
    assert config.read_text() == changed
    assert ctk("config", "default", "-o", str(config)) == 0
    assert config.read_text() == format_default()
    assert ctk("config", "--set", "nope=1") == 2
    assert capsys.readouterr().err.startswith("nvinject: undefined key 'nope'")


def test_in_place_and_output_exclude_each_other(config: Path, capsys: Capture) -> None:
    """The original takes both and forgets one."""
    assert ctk("config", "-i", "-o", str(config)) == 2
    assert "not allowed with" in capsys.readouterr().err


def test_a_dry_run_of_nvidia_ctk_prints_the_file(tmp_path: Path, capsys: Capture) -> None:
    words = ("runtime", "configure", "--config", str(tmp_path / "daemon.json"), "--dry-run")
    assert ctk(*words) == 0
    assert json.loads(capsys.readouterr().out) == {
        "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}
    }


# Reading


def test_show_tells_value_and_line(config: Path, capsys: Capture) -> None:
    config.write_text("[nvidia-container-runtime]\n\nmode = 'cdi'\n")
    assert run(config, "show", "--changed") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(config)
    assert lines[-1].split() == ["nvidia-container-runtime.mode", '"cdi"', "line", "3"]
    assert run(config, "show", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["key"] for one in document["keys"]] == list(HELP)
    found = {one["key"]: (one["value"], one["line"]) for one in document["keys"]}
    assert found["nvidia-container-runtime.mode"] == ("cdi", 3)
    assert found["nvidia-container-runtime.runtimes"] == (["runc", "crun"], None)


GOT = [
    ("nvidia-container-runtime.mode", "jit-cdi\n"),
    ("nvidia-container-runtime.runtimes", "runc\ncrun\n"),
    ("disable-require", "false\n"),
    ("nvinject.nvml-timeout", "10\n"),
    ("nvidia-container-cli.root", "\n"),
]


@pytest.mark.parametrize(("key", "expected"), GOT)
def test_get_prints_what_is_in_effect(config: Path, capsys: Capture, key: str, expected: str) -> None:
    config.write_text("nvidia-container-runtime = { mode = 'jit-cdi' }\n")
    assert run(config, "get", key) == 0
    assert capsys.readouterr().out == expected


def test_a_named_file_must_exist(config: Path, capsys: Capture) -> None:
    assert run(config, "show") == 4
    assert "does not exist" in capsys.readouterr().err


# text, exit code, findings
VALIDATED = [
    ("", 0, []),
    ("disable-require = 1\n", 4, ["error: ", "line 1: disable-require must be a boolean"]),
    ("x = 1\n", 0, ["warning: ", "line 1: x is an unknown key"]),
    ("[nvidia-container-runtime]\nmode = 'x'\n", 4, ["error: ", "line 2: nvidia-container-runtime.mode cannot be 'x'"]),
    ("[nvidia-container-cli]\nload-kmods = false\n", 0, ["warning: ", "load-kmods has no effect in nvinject"]),
    ("[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = 'x'\n", 0, ["warning: ", "is taken as disabled"]),
    ("a = [\n", 4, ["error: ", "line 2, column 1"]),
]


@pytest.mark.parametrize(("text", "code", "says"), VALIDATED)
def test_validate_finds_every_fault(config: Path, capsys: Capture, text: str, code: int, says: list[str]) -> None:
    config.write_text(text)
    assert run(config, "validate") == code
    shown = capsys.readouterr().out
    assert shown.endswith(f"{config} is {'wrong' if code else 'right'}\n")
    assert all(part in shown for part in says)
    assert len(shown.splitlines()) == 1 + bool(says)
    assert run(config, "validate", "--json") == code
    assert json.loads(capsys.readouterr().out)["valid"] is (code == 0)


def test_explain_tells_what_a_key_means(config: Path, capsys: Capture) -> None:
    config.write_text("[nvidia-container-runtime]\nmode = 'cdi'\n")
    assert run(config, "explain", "nvidia-container-runtime.mode") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("nvidia-container-runtime.mode\n")
    for part in ("type:    a string", "one of:  auto, ", 'default: "auto"', f'now:     "cdi" ({config}, line 2)'):
        assert part in shown
    assert run(config, "explain") == 0
    assert len(capsys.readouterr().out.split("\n\n")) == len(HELP)
    assert run(config, "explain", "features", "--json") == 0
    assert {fact["key"] for fact in json.loads(capsys.readouterr().out)} == {
        k for k in HELP if k.startswith("features.")
    }
    assert run(config, "explain", "moed") == 2
    assert "undefined key 'moed'" in capsys.readouterr().err


def test_every_active_key_is_a_line_of_the_default_file() -> None:
    values = tomllib.loads(DEFAULT)
    for key, entry in HELP.items():
        found: Any = values
        for name in key.split("."):
            found = found.get(name, {}) if isinstance(found, dict) else {}
        assert (found != {}) is (entry.shown == ACTIVE)
