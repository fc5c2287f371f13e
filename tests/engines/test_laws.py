"""What holds for every engine and every file: twice is once, and undo brings back every byte, mode and link."""

import contextlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .configured import Configured
from .documents import daemon_documents, is_toml, toml_documents, toml_lines

OPTIONS = st.lists(st.sampled_from(["--set-as-default", "--cdi.enabled", "--nvidia-runtime-name=gpu"]), max_size=3)
CRI = {1: "cri", 2: '"io.containerd.grpc.v1.cri"', 3: "'io.containerd.cri.v1.runtime'"}


def containerd_lines(version: int) -> st.SearchStrategy[str]:
    key = CRI[version]
    return st.sampled_from(
        [
            f"version = {version} # {version}",
            'imports = ["/etc/containerd/*.toml"]',
            "imports = [\n  'conf.d/*.toml', # here\n]",
            "imports = []",
            'disabled_plugins = ["cri"]',
            f"[plugins.{key}]",
            f"  [ plugins . {key} . containerd ]",
            'default_runtime_name = "runc"',
            'default_runtime_name = "nvidia"',
            f'[plugins.{key}.containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"',
            f"[plugins.{key}.containerd.runtimes.runc.options]\n  SystemdCgroup = true",
            f"[plugins.{key}.containerd.runtimes.nvidia]\nruntime_type = 'io.containerd.runc.v2'\noptions = {{}}",
            f"plugins.{key}.enable_cdi = false",
            "[plugins]",
        ]
    )


CRIO_LINES = st.sampled_from(
    [
        "[crio]",
        "[crio.runtime]",
        'default_runtime = "crun"',
        '[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\nmonitor_path = "/usr/libexec/crio/conmon"',
        "[crio.runtime.runtimes.nvidia]",
        'crio.runtime.runtimes.runc = { runtime_type = "oci" }',
    ]
)
PODMAN_LINES = st.sampled_from(
    [
        "[engine]",
        'runtime = "crun"',
        "[engine.runtimes]",
        'runtimes.runc = ["/usr/sbin/runc"]',
        'engine.cdi_spec_dirs = ["/etc/cdi"]',
        "[containers]\ndefault_ulimits = []",
    ]
)
MARKS = st.sampled_from(["", "\ufeff"])


@st.composite
def containerd_documents(draw: st.DrawFn) -> str:
    version = draw(st.sampled_from([1, 2, 2, 3]))
    lines = containerd_lines(version)
    return draw(toml_documents(st.one_of(lines, lines, toml_lines())))


DOCUMENTS: dict[str, st.SearchStrategy[str]] = {
    "docker": daemon_documents(),
    "containerd": containerd_documents(),
    "crio": toml_documents(CRIO_LINES | toml_lines()),
    "podman": toml_documents(PODMAN_LINES | toml_lines()),
}
WHERE: dict[str, list[tuple[str, ...]]] = {
    "docker": [()],
    "containerd": [(), ("--drop-in-config=",)],
    "crio": [(), ("--drop-in-config=",)],
    "podman": [(), ("--drop-in-config=",)],
}
KINDS = [(engine, where) for engine, places in WHERE.items() for where in places]


def parsed(done: Configured) -> list[object]:
    """Return the values of every file, which must all be readable."""
    found: list[object] = []
    for place, (_, content) in sorted(done.snapshot().items()):
        if not (done.folder / place).is_file():
            continue
        text = bytes(content).decode("utf-8-sig") if isinstance(content, bytes) else ""
        found.append(json.loads(text or "{}") if done.engine == "docker" else tomllib.loads(text))
    return found


@pytest.mark.parametrize(("engine", "where"), KINDS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_configure_twice_is_once_and_undo_is_the_way_back(
    engine: str, where: tuple[str, ...], data: st.DataObject
) -> None:
    text = data.draw(MARKS) + data.draw(DOCUMENTS[engine])
    options = data.draw(OPTIONS)
    with tempfile.TemporaryDirectory() as folder:
        done = Configured(Path(folder), engine, text)
        done.config.chmod(data.draw(st.sampled_from([0o644, 0o600, 0o440])))
        before = done.snapshot()
        if done.run(*where, *options) != 0:
            assert done.snapshot() == before
            assert done.records() == []
            return
        once = done.snapshot()
        parsed(done)
        assert done.run(*where, *options) == 0
        assert done.snapshot() == once
        more = data.draw(OPTIONS)
        assert done.run(*where, *more) == 0
        parsed(done)
        assert done.run("--undo") == 0
        assert done.snapshot() == before
        assert done.records() == []


@pytest.mark.parametrize("engine", ["containerd", "crio", "podman"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_drop_in_of_others_comes_back_too(engine: str, data: st.DataObject) -> None:
    text = data.draw(DOCUMENTS[engine])
    if not is_toml(text):
        return
    with tempfile.TemporaryDirectory() as folder:
        done = Configured(Path(folder), engine, "")
        done.drop_in.parent.mkdir()
        done.drop_in.write_bytes(text.encode())
        before = done.snapshot()
        if done.run(*data.draw(OPTIONS)) != 0:
            assert done.snapshot() == before
            return
        assert done.run("--undo") == 0
        assert done.snapshot() == before


@pytest.mark.parametrize("engine", sorted(DOCUMENTS))
def test_nothing_there_before_is_nothing_there_after(tmp_path: Path, engine: str) -> None:
    """Files and directories that we made go, too."""
    done = Configured(tmp_path / "etc", engine)
    assert done.run("--set-as-default") == 0
    assert done.snapshot() != {}
    assert done.run("--undo") == 0
    assert not done.folder.exists() or done.snapshot() == {}


@pytest.mark.parametrize("engine", sorted(DOCUMENTS))
def test_a_dry_run_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str) -> None:
    done = Configured(tmp_path, engine, "")
    before = done.snapshot()
    assert done.run("--dry-run") == 0
    assert done.snapshot() == before
    assert done.records() == []
    shown = capsys.readouterr().out
    assert "+++ " in shown
    assert shown.endswith("dry run: nothing was changed\n")
    assert done.run("--dry-run=false") == 0
    after = done.snapshot()
    capsys.readouterr()
    assert done.run("--undo", "--dry-run") == 0
    assert done.snapshot() == after
    assert "nvidia" in capsys.readouterr().out


def test_links_are_followed_and_stay(tmp_path: Path) -> None:
    """As where /etc is kept in a repository."""
    kept = tmp_path / "dotfiles"
    kept.mkdir()
    (kept / "real.json").write_text("{}")
    done = Configured(tmp_path, "docker")
    done.config.symlink_to("dotfiles/link")
    (kept / "link").symlink_to("real.json")
    before = done.snapshot()
    assert done.run() == 0
    assert done.config.is_symlink()
    assert (kept / "link").is_symlink()
    assert "nvidia" in (kept / "real.json").read_text()
    assert done.run("--undo") == 0
    assert done.snapshot() == before


def test_a_link_to_nothing_gets_its_file(tmp_path: Path) -> None:
    done = Configured(tmp_path, "docker")
    done.config.symlink_to(tmp_path / "new" / "file.json")
    before = done.snapshot()
    assert done.run() == 0
    assert (tmp_path / "new" / "file.json").exists()
    assert done.run("--undo") == 0
    assert done.snapshot() == before


def test_owner_mode_and_attributes_stay(tmp_path: Path) -> None:
    done = Configured(tmp_path, "docker", "{}")
    done.config.chmod(0o640)
    with contextlib.suppress(PermissionError):  # an ordinary user cannot give files away; the rest holds for them
        os.chown(done.config, 1234, 4321)
    with contextlib.suppress(OSError):  # a file system without attributes, or no right to label
        os.setxattr(done.config, "user.comment", b"mine")
        os.setxattr(done.config, "security.selinux", b"system_u:object_r:container_config_t:s0")
    expected = (done.config.stat().st_uid, done.config.stat().st_gid, done.config.stat().st_mode)
    attributes = {name: os.getxattr(done.config, name) for name in os.listxattr(done.config)}
    for option in ("--set-as-default", "--undo"):
        assert done.run(option) == 0
        status = done.config.stat()
        assert (status.st_uid, status.st_gid, status.st_mode) == expected
        assert {name: os.getxattr(done.config, name) for name in os.listxattr(done.config)} == attributes


def test_an_inherited_acl_is_not_added(tmp_path: Path) -> None:
    """A directory's default ACL goes to new files; the old one had none."""
    done = Configured(tmp_path, "docker", "{}")
    # version 2; user::rwx, user:1234:rwx, group::r-x, mask::rwx, other::r-x (linux/posix_acl_xattr.h)
    entries = [(0x01, 7, -1), (0x02, 7, 1234), (0x04, 5, -1), (0x10, 7, -1), (0x20, 5, -1)]
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(tmp_path, "system.posix_acl_default", packed)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error.strerror}")
    assert done.run() == 0
    assert "system.posix_acl_access" not in os.listxattr(done.config)


@pytest.mark.parametrize("what", ["directory", "fifo"])
def test_what_is_no_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    done = Configured(tmp_path, "docker")
    if what == "directory":
        done.config.mkdir()
    else:
        os.mkfifo(done.config)
    assert done.run() == 4
    assert "is not an ordinary file" in capsys.readouterr().err


def test_a_state_directory_that_cannot_be_written_stops_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = Configured(tmp_path, "docker", "{}")
    (tmp_path / "state").write_text("in the way")
    assert done.run() == 6
    assert done.config.read_text() == "{}"
    assert "--state-dir" in capsys.readouterr().err


def test_many_at_once(tmp_path: Path) -> None:
    """As from several pods of one node: each finds what the others have done, and all of it can be undone."""
    config = tmp_path / "daemon.json"
    config.write_text('{\n  "debug": true\n}\n')
    command = [sys.executable, "-m", "nvinject", "runtime", "configure", "--config", str(config)]
    command += ["--state-dir", str(tmp_path / "state"), "--nvidia-runtime-name"]
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen([*command, f"gpu{number}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            )
            for number in range(6)
        ]
        said = [process.communicate(timeout=60)[1] for process in started]
    assert [process.returncode for process in started] == [0] * 6, said
    assert set(json.loads(config.read_text())["runtimes"]) == {f"gpu{number}" for number in range(6)}
    done = Configured(tmp_path, "docker")
    assert done.run("--undo") == 0
    assert config.read_text() == '{\n  "debug": true\n}\n'


def test_undo_without_a_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = Configured(tmp_path, "docker", "{}")
    assert done.run("--undo") == 0
    assert "nothing to undo" in capsys.readouterr().err
    assert done.config.read_text() == "{}"


def test_what_others_changed_since_stays(tmp_path: Path) -> None:
    """Undo takes our part out of the file as it is now."""
    done = Configured(tmp_path, "containerd", 'version = 2\nroot = "/old"\n\n[debug]\nlevel = "info"\n')
    assert done.run() == 0
    text = done.config.read_text().replace("info", "debug").replace('root = "/old"', 'root = "/new"')
    done.config.write_text(text)
    assert done.run("--undo") == 0
    assert done.config.read_text() == 'version = 2\nroot = "/new"\n\n[debug]\nlevel = "debug"\n'


def test_configure_after_others_keeps_their_change_in_the_way_back(tmp_path: Path) -> None:
    done = Configured(tmp_path, "podman", "[engine]\n\n[network]\n")
    assert done.run("--drop-in-config=") == 0
    done.config.write_text(done.config.read_text().replace("[network]\n", "[network]\ndns_bind_port = 53\n"))
    assert done.run("--drop-in-config=", "--set-as-default") == 0
    assert done.run("--undo") == 0
    assert done.config.read_text() == "[engine]\n\n[network]\ndns_bind_port = 53\n"


def test_our_lines_changed_by_others_are_not_guessed_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = Configured(tmp_path, "docker", '{"a": 1}\n')
    assert done.run() == 0
    done.config.write_text(done.config.read_text().replace("}\n", ', "b": 2}\n'))
    after = done.snapshot()
    assert done.run("--undo") == 4
    assert done.snapshot() == after
    assert "was changed since" in capsys.readouterr().err


def test_a_removed_drop_in_stays_away(tmp_path: Path) -> None:
    done = Configured(tmp_path, "crio")
    assert done.run() == 0
    done.drop_in.unlink()
    assert done.run("--undo") == 0
    assert done.snapshot() == {}


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = Configured(tmp_path, "containerd", "version = 2\n")
    assert done.run("--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["files"] == [
        {"path": str(done.drop_in), "action": "created"},
        {"path": str(done.config), "action": "changed"},
    ]
    assert (document["dryRun"], document["restart"]) == (False, "containerd")
    assert done.run("--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert {one["action"] for one in document["files"]} == {"unchanged"}
    assert document["restart"] is None
