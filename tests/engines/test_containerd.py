"""containerd: drop-ins in the three versions, the import, other runtimes' options, k3s and rke2."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from nvinject.cli import configure
from nvinject.cli import main as command_line
from nvinject.engines import rancher

from .configured import PROGRAM, Configured, refused

FRESH = {"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": PROGRAM}}
KEYS = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime", 4: "io.containerd.cri.v1.runtime"}


def with_runc(version: int, more: str = "") -> str:
    key = KEYS[version]
    return f"""\
version = {version}
# the node's own settings
[plugins."{key}"]
  sandbox_image = "pause:3.9"  # pinned
  [plugins."{key}".containerd]
{more}  [plugins."{key}".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."{key}".containerd.runtimes.runc.options]
      SystemdCgroup = true
"""


def drop_in(done: Configured) -> Any:
    return tomllib.loads(done.drop_in.read_text())


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_section_is_copied_and_the_runtime_added(tmp_path: Path, version: int) -> None:
    text = with_runc(version)
    done = Configured(tmp_path, "containerd", text)
    assert done.run("--set-as-default", "--cdi.enabled") == 0
    runc = {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}
    assert drop_in(done) == {
        "version": version,
        "plugins": {
            KEYS[version]: {
                "enable_cdi": True,
                "sandbox_image": "pause:3.9",
                "containerd": {
                    "default_runtime_name": "nvidia",
                    "runtimes": {
                        "runc": runc,
                        "nvidia": {**runc, "options": {"SystemdCgroup": True, "BinaryName": PROGRAM}},
                    },
                },
            }
        },
    }
    line = f'imports = ["{tmp_path}/conf.d/*.toml"]\n'
    assert done.config.read_text() == text.replace(f"version = {version}\n", f"version = {version}\n{line}")


def test_version_1(tmp_path: Path) -> None:
    """A file without a version has the first; unlike the original's, the drop-in is imported, and CDI is read."""
    text = "[plugins.cri.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v1'\n"
    done = Configured(tmp_path, "containerd", text)
    assert done.run("--cdi.enabled") == 0
    runc = {"runtime_type": "io.containerd.runc.v1"}
    ours = {**runc, "options": {"BinaryName": PROGRAM, "Runtime": PROGRAM}}
    section = {"enable_cdi": True, "containerd": {"runtimes": {"runc": runc, "nvidia": ours}}}
    assert drop_in(done) == {"version": 1, "plugins": {"cri": section}}
    assert done.config.read_text() == f'imports = ["{tmp_path}/conf.d/*.toml"]\n{text}'


# a file of version 1, the version of its drop-in: 2, which containerd 2 reads too, where the file names no plug-in
OLD = [
    ('root = "/data"\n', 2),
    ("version = 1\n[debug]\nlevel = 'info'\n", 2),
    ("disabled_plugins = []\n", 2),
    ('disabled_plugins = ["cri"]\n', 1),
    ('required_plugins = ["cri"]\n', 1),
    ("[plugins.opt]\npath = '/opt'\n", 1),
]


@pytest.mark.parametrize(("text", "version"), OLD)
def test_the_version_of_a_drop_in(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, version: int) -> None:
    done = Configured(tmp_path, "containerd", text)
    assert done.run() == 0
    assert drop_in(done)["version"] == version
    assert KEYS[version] in drop_in(done)["plugins"]
    assert ("containerd config migrate" in capsys.readouterr().err) is (version == 1)
    after = done.config.read_text().splitlines(keepends=True)
    assert "".join(line for line in after if not line.startswith("imports")) == text


def test_a_file_without_version_gets_one_if_it_is_edited_itself(tmp_path: Path) -> None:
    done = Configured(tmp_path, "containerd", 'root = "/data"\n')
    assert done.run("--drop-in-config=") == 0
    assert done.config.read_text().startswith('root = "/data"\nversion = 2\n\n[plugins."io.containerd.grpc.v1.cri".')


@pytest.mark.parametrize("text", [None, "", "\n"])
def test_nothing_configured_yet(tmp_path: Path, text: str | None) -> None:
    """A section of its own replaces the built-in one, so the drop-in names runc, which is the default runtime."""
    done = Configured(tmp_path, "containerd", text)
    assert done.run() == 0
    runtimes = {"runc": {"runtime_type": "io.containerd.runc.v2"}, "nvidia": FRESH}
    section = {"containerd": {"runtimes": runtimes}}
    assert drop_in(done) == {"version": 2, "plugins": {KEYS[2]: section}}
    expected = {"version": 2, "imports": [f"{tmp_path}/conf.d/*.toml"]}
    assert tomllib.loads(done.config.read_text()) == expected


# runtimes and default; whose options are taken over
TEMPLATES = [
    ("", 'runtimes.runc.a = "runc"\nruntimes.crun.a = "crun"', "runc"),
    ("", 'runtimes.crun.a = "crun"', "crun"),
    ('default_runtime_name = "kata"', 'runtimes.runc.a = "runc"\nruntimes.kata.a = "kata"', "kata"),
    ('default_runtime_name = "nvidia"', 'runtimes.runc.a = "runc"\nruntimes.nvidia.a = "nvidia"', "runc"),
    ('default_runtime_name = "nvidia-x"', 'runtimes.runc.a = "runc"\nruntimes.nvidia-x.a = "x"', "runc"),
    ('default_runtime_name = "gone"', 'runtimes.runc.a = "runc"', "runc"),
    ("", 'runtimes.other.a = "other"', None),
    # gVisor's options mean nothing to the shim that we are run by
    ('default_runtime_name = "g"', 'runtimes.g = { a = "g", runtime_type = "io.containerd.runsc.v1" }', None),
    (
        'default_runtime_name = "g"',
        'runtimes.g.runtime_type = "io.containerd.kata.v2"\nruntimes.runc.a = "runc"',
        "runc",
    ),
]


@pytest.mark.parametrize(("default", "runtimes", "expected"), TEMPLATES)
def test_whose_options_are_taken_over(tmp_path: Path, default: str, runtimes: str, expected: str | None) -> None:
    done = Configured(tmp_path, "containerd", f'version = 2\n[plugins."{KEYS[2]}".containerd]\n{default}\n{runtimes}\n')
    assert done.run() == 0
    ours = drop_in(done)["plugins"][KEYS[2]]["containerd"]["runtimes"]["nvidia"]
    assert ours.get("a") == expected
    assert ours["runtime_type"] == "io.containerd.runc.v2"
    assert ours["options"] == {"BinaryName": PROGRAM}


# imports that are there, whether they cover the drop-in
IMPORTS = [
    ('imports = ["{0}/conf.d/*.toml"]', True),
    ('imports = ["conf.d/*.toml"]', True),
    ('imports = ["/elsewhere/*.toml", "{0}/conf.d/99-*"]', True),
    ('imports = ["{0}/conf.d/99-nvidia.toml"]', True),
    ('imports = ["{0}/*.toml"]', False),
    ('imports = [\n  "/elsewhere/*.toml", # theirs\n]', False),
    ("imports = []", False),
]


@pytest.mark.parametrize(("line", "covered"), IMPORTS)
def test_the_drop_in_is_imported_once(tmp_path: Path, line: str, covered: bool) -> None:
    text = f"version = 2 # two\n{line.format(tmp_path)}\n# end"
    done = Configured(tmp_path, "containerd", text)
    assert done.run() == 0
    after = done.config.read_text()
    assert (after == text) is covered
    before = tomllib.loads(text)["imports"]
    assert tomllib.loads(after)["imports"] == [*before, *([] if covered else [f"{tmp_path}/conf.d/*.toml"])]
    assert "# theirs" not in text or "# theirs" in after


def test_other_imports_are_part_of_the_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = Configured(tmp_path, "containerd", 'imports = ["conf.d/*.toml"]\n' + with_runc(2))
    done.drop_in.parent.mkdir()
    (done.drop_in.parent / "10.toml").write_text(f'version = 2\n[plugins."{KEYS[2]}"]\nsandbox_image = "mine"\n')
    assert done.run() == 0
    assert drop_in(done)["plugins"][KEYS[2]]["sandbox_image"] == "mine"
    assert "10.toml configures the CRI plug-in too" in capsys.readouterr().err


def test_without_a_drop_in_the_file_itself_is_edited(tmp_path: Path) -> None:
    text = with_runc(3)
    done = Configured(tmp_path, "containerd", text)
    assert done.run("--drop-in-config=", "--set-as-default") == 0
    after = done.config.read_text()
    table = f'plugins."{KEYS[3]}".containerd.runtimes.nvidia'
    assert after == text.replace(
        f'  [plugins."{KEYS[3]}".containerd]\n',
        f'  [plugins."{KEYS[3]}".containerd]\n    default_runtime_name = "nvidia"\n',
    ) + (
        f'\n[{table}]\nruntime_type = "io.containerd.runc.v2"\n'
        f'\n[{table}.options]\nSystemdCgroup = true\nBinaryName = "{PROGRAM}"\n'
    )


def test_a_drop_in_that_somebody_edited_keeps_their_words(tmp_path: Path) -> None:
    done = Configured(tmp_path, "containerd", with_runc(2))
    assert done.run("--set-as-default") == 0
    text = done.drop_in.read_text().replace("version = 2", "version = 2 # do not touch")
    done.drop_in.write_text(text)
    assert done.run() == 0
    assert done.drop_in.read_text() == text.replace('default_runtime_name = "nvidia"\n', "")


DISABLED = [
    ('disabled_plugins = ["cri"]\n', True),
    ('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n', True),
    ('version = 3\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n', True),
    ('version = 3\ndisabled_plugins = ["io.containerd.cri.v1.runtime"]\n', True),
    ('version = 3\ndisabled_plugins = ["io.containerd.snapshotter.v1.zfs"]\n', False),
]


@pytest.mark.parametrize(("text", "told"), DISABLED)
def test_disabled_cri(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, *, told: bool) -> None:
    """docker's own package of containerd turns the plug-in off; the service and the runtime are two in containerd 2."""
    done = Configured(tmp_path, "containerd", text)
    assert done.run() == 0
    assert ("disabled_plugins" in capsys.readouterr().err) is told


# text, what is said
REFUSED = [
    ("version = 2\nversion = 2\n", "line 2, column 12: cannot overwrite a value"),
    ("version = '2'\n", "line 1, column 1: version must be a number"),
    ("version = 2\n\nplugins = 3\n", "line 3, column 1: plugins is not a table"),
    ('version = 2\nplugins."io.containerd.grpc.v1.cri".containerd = 3\n', "containerd is not a table"),
    ("version = 2\n[[plugins]]\n", "plugins is not a table"),
    ('version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\nruntimes = []\n', "line 3, column 1:"),
    ("version = 2\nimports = 'x'\n", "line 2, column 11: imports is not an array"),
    ("version = 2\n[plugins\n", "line 2, column 9: expected ']'"),
    ("version = 2 // two\n", "line 1, column 13: expected newline"),
]


@pytest.mark.parametrize(("text", "says"), REFUSED)
def test_files_that_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str) -> None:
    done = Configured(tmp_path, "containerd", text)
    assert says in refused(done, capsys)


# templates are recognised and never parsed (GO#473, GO#623, rke2#3385)
TEMPLATE = '{{ template "base" . }}\n\n[plugins]\n'


@pytest.mark.parametrize("name", ["config.toml.tmpl", "config-v3.toml.tmpl", "config.toml"])
def test_a_template_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    done = Configured(tmp_path, "containerd")
    done.config = tmp_path / name
    done.config.write_text(TEMPLATE)
    said = refused(done, capsys)
    assert "is a template, which is never rewritten" in said
    assert f'BinaryName = "{PROGRAM}"' in said


GENERATED = """\
# File generated by k3s. DO NOT EDIT. Use config.toml.tmpl instead.
version = {version}
imports = ["{directory}/*.toml"]

[plugins.'{key}'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


@pytest.mark.parametrize(("version", "name"), [(2, "config.toml.d"), (3, "config-v3.toml.d")])
def test_k3s_gets_its_drop_in_where_it_imports_it(tmp_path: Path, version: int, name: str) -> None:
    text = GENERATED.format(version=version, key=KEYS[version], directory=tmp_path / name)
    done = Configured(tmp_path, "containerd", text)
    assert done.run() == 0
    assert done.config.read_text() == text
    written = tomllib.loads((tmp_path / name / "99-nvidia.toml").read_text())
    assert set(written["plugins"][KEYS[version]]["containerd"]["runtimes"]) == {"runc", "nvidia"}
    assert done.run("--undo") == 0
    assert set(done.snapshot()) == {"config.toml"}


@pytest.mark.parametrize("version", [2, 3])
def test_an_older_k3s_is_told_what_to_add(tmp_path: Path, capsys: pytest.CaptureFixture[str], version: int) -> None:
    text = f"# File generated by rke2. DO NOT EDIT.\nversion = {version}\n"
    done = Configured(tmp_path, "containerd", text)
    said = refused(done, capsys)
    assert "is generated by rke2 at each start and imports no drop-ins" in said
    assert ("config-v3.toml.tmpl" if version == 3 else "config.toml.tmpl") in said
    assert f'[plugins."{KEYS[version]}".containerd.runtimes.nvidia.options] / BinaryName = "{PROGRAM}"' in said


def test_k3s_is_found(tmp_path: Path) -> None:
    assert rancher.find_config(str(tmp_path)) == ""
    for name in ("rke2", "k3s"):
        path = tmp_path / f"var/lib/rancher/{name}/agent/etc/containerd/config.toml"
        path.parent.mkdir(parents=True)
        path.write_text("version = 2\n")
        assert rancher.find_config(str(tmp_path)) == str(path)


ANSWER = """\
version = {version}
[plugins."{key}".containerd]
default_runtime_name = "nvidia"
[plugins."{key}".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
runtime_path = ""
"""


def answering(tmp_path: Path, version: int) -> str:
    """Write a program that answers as containerd does."""
    program = tmp_path / "bin" / "containerd"
    program.parent.mkdir()
    answer = ANSWER.format(version=version, key=KEYS[version])
    program.write_text(
        f'#!/bin/sh\n[ "$*" = "--config {tmp_path}/config.toml config dump" ] || exit 3\ncat <<E\n{answer}E\n'
    )
    program.chmod(0o755)
    return str(program)


def test_the_engine_is_asked(tmp_path: Path) -> None:
    """Its answer contains an earlier --set-as-default of ours, which must not stick."""
    done = Configured(tmp_path, "containerd", "version = 2\n")
    program = answering(tmp_path, 2)
    assert done.run("--config-source=command", f"--executable-path={program}") == 0
    runc = {"runtime_type": "io.containerd.runc.v2", "runtime_path": ""}
    ours = {**runc, "options": {"BinaryName": PROGRAM}}
    assert drop_in(done)["plugins"][KEYS[2]]["containerd"] == {"runtimes": {"runc": runc, "nvidia": ours}}


def test_an_answer_in_another_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A drop-in of version 3 beside a file of version 2 is no configuration that containerd understands."""
    done = Configured(tmp_path, "containerd", "version = 2\n")
    program = answering(tmp_path, 3)
    said = refused(done, capsys, "--config-source=command", f"--executable-path={program}")
    assert "answers in version 3" in said
    assert "--config-source=file" in said


@pytest.mark.parametrize(("program", "says"), [("/nonexistent", "No such file"), ("/bin/false", "no output")])
def test_an_engine_that_cannot_be_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], program: str, says: str
) -> None:
    done = Configured(tmp_path, "containerd", "version = 2\n")
    said = refused(done, capsys, "--config-source=command", f"--executable-path={program}", code=6)
    assert says in said


# options, what is said
USAGE = [
    (("--runtime", "lxc"), "unrecognized runtime 'lxc'"),
    (("--runtime", "docker", "--drop-in-config", "/x"), "runtime docker does not support drop-in configs"),
    (("--runtime", "containerd", "--drop-in-config", "x"), "--drop-in-config x is not absolute"),
    (("--runtime", "containerd", "--nvidia-runtime-path", "x"), "the NVIDIA runtime path x is not absolute"),
    (("--runtime", "crio", "--config-source", "guess"), "unrecognized --config-source guess"),
    (("--config-mode", "guess"), "unknown --config-mode guess"),
    (("--config-mode", "hook", "--nvidia-runtime-hook-path", "x"), "the hook path x is not absolute"),
    (("--nvidia-runtime-name", "a b"), "'a b' cannot be the name of a runtime"),
]


@pytest.mark.parametrize(("options", "says"), USAGE)
def test_options_that_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], says: str
) -> None:
    words = ["runtime", "configure", "--state-dir", str(tmp_path), "--config", str(tmp_path / "x"), *options]
    assert command_line.main(words) == 2
    assert says in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        configure.main(["--help"])
    assert "nvinject runtime configure --runtime containerd --undo" in capsys.readouterr().out
