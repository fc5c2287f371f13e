"""Configuration of container engines, as far as a diagnosis reads it."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvinject.core.servicediagnosis import Engine
from nvinject.host.enginefiles import (
    KINDS,
    Kind,
    find_engines,
    find_process,
    find_runtimes,
    has_cdi,
    program_of,
    start_time,
)

DOCKER = """{"runtimes": {"nvidia": {"path": "%s"}, "other": {"path": "/gone"}}, "features": {"cdi": true}}"""
CONTAINERD = """
version = 2
[plugins."io.containerd.grpc.v1.cri"]
enable_cdi = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "%s"
"""
CRIO = '[crio.runtime.runtimes.nvidia]\nruntime_path = "%s"\n'
PODMAN = '[engine.runtimes]\nnvidia = ["/gone/nvidia", "%s"]\n'
FORMS = [("daemon.json", DOCKER), ("config.toml", CONTAINERD), ("a.conf", CRIO), ("containers.conf", PODMAN)]


def find(path: Path, name: str = "engine") -> Engine:
    (engine,) = find_engines("/nowhere", (Kind(name=name, files=(str(path),), program="none"),))
    return engine


@pytest.fixture
def program(tmp_path: Path) -> str:
    """Return a program with our runtime's name."""
    path = tmp_path / "nvidia-container-runtime"
    path.touch(0o755)
    return str(path)


@pytest.mark.parametrize(("name", "text"), FORMS)
def test_each_engines_form_names_runtimes(tmp_path: Path, program: str, name: str, text: str) -> None:
    """The one that can be run is not broken; runtimes of others are none of our business."""
    path = tmp_path / name
    path.write_text(text % program)
    engine = find(path)
    assert ("nvidia", program) in engine.runtimes
    assert (engine.broken, engine.serves, engine.error) == ((), "runtime", "")
    os.unlink(program)
    assert [one for one, _ in find(path).broken] == ["nvidia"]


BROKEN = [
    ("daemon.json", b"{,}", "line 1 column 2"),
    ("config.toml", b"[a\nb = 1\n", "line 1"),
    ("config.toml", b"\xff", "utf-8"),
]


@pytest.mark.parametrize(("name", "data", "place"), BROKEN)
def test_a_file_that_cannot_be_read_is_told_with_its_place(tmp_path: Path, name: str, data: bytes, place: str) -> None:
    """Line and column where there are such."""
    path = tmp_path / name
    path.write_bytes(data)
    engine = find(path)
    assert engine.path == str(path)
    assert place in engine.error.lower().replace(",", "")


def test_an_empty_daemon_json_is_no_fault(tmp_path: Path) -> None:
    """dockerd starts with it."""
    path = tmp_path / "daemon.json"
    path.touch()
    assert find(path).error == ""


def test_an_engine_without_files_and_daemon_is_not_there(tmp_path: Path) -> None:
    """And is not told about."""
    kind = Kind(name="engine", files=(f"{tmp_path}/a.json", f"{tmp_path}/none/*"), program="none")
    assert find_engines("", (kind,)) == ()


def test_drop_ins_count(tmp_path: Path, program: str) -> None:
    """In the order of their names."""
    (tmp_path / "99-nvidia.toml").write_text(CRIO % program)
    (tmp_path / "readme").write_text("x")
    (engine,) = find_engines("", (Kind(name="engine", files=(f"{tmp_path}/*",), program="none"),))
    assert engine.runtimes == (("nvidia", program),)


def test_dockers_hook_is_found_on_the_path(tmp_path: Path) -> None:
    """docker run --gpus needs no configuration."""
    (tmp_path / "nvidia-container-runtime-hook").touch(0o755)
    path = tmp_path / "daemon.json"
    path.write_text("{}")
    (engine,) = find_engines(str(tmp_path), (Kind(name="docker", files=(str(path),), program="none"),))
    assert engine.serves == "hook"


PROGRAMS: list[tuple[object, str]] = [
    ({"path": "a"}, "a"),
    ({"runtime_path": "b"}, "b"),
    ({"options": {"BinaryName": "c"}}, "c"),
    ({"options": 1}, ""),
    ([], ""),
    (["/gone"], "/gone"),
    (7, ""),
]


@pytest.mark.parametrize(("settings", "program_path"), PROGRAMS)
def test_programs_of_runtimes(settings: object, program_path: str) -> None:
    """Values of a wrong type are none."""
    assert program_of(settings) == program_path
    assert list(find_runtimes({"runtimes": 1})) == []


def test_cdi() -> None:
    """docker's feature, and the setting of CRI plug-ins."""
    assert has_cdi({"features": {"cdi": True}})
    assert has_cdi({"plugins": {"x": {"enable_cdi": True}}})
    assert not has_cdi({"features": {"cdi": False}})
    assert not has_cdi([])


def test_a_process_has_a_start_time() -> None:
    """Later than the machine's, and none where there is no such process."""
    assert start_time(os.getpid()) > start_time(1) > 0
    assert start_time(1 << 30) == 0


@contextlib.contextmanager
def process(folder: Path, name: str, *arguments: str) -> Iterator[int]:
    """Run a program with a name and a command line of its own."""
    program = folder / name
    program.write_text("#!/bin/sh\nread wait\n")
    program.chmod(0o755)
    with subprocess.Popen([program, *arguments], stdin=subprocess.PIPE) as started:
        # The name is there once the interpreter of the script was executed.
        while Path(f"/proc/{started.pid}/comm").read_text().strip() != name:
            assert started.poll() is None
        yield started.pid
        assert started.stdin is not None
        started.stdin.close()


def test_a_daemon_inside_another_program_is_found_by_its_command_line(tmp_path: Path) -> None:
    """k3s starts its own containerd; a containerd of somebody else is another engine."""
    with process(tmp_path, "containerd-own", "-c", "/rancher/one/config.toml") as pid:
        assert find_process("containerd-own", "/rancher/one/") == pid
        assert find_process("containerd-own", "/rancher/two/") == 0
    assert find_process("containerd-own", "/rancher/one/") == 0


def test_a_template_is_not_read_and_its_age_counts(tmp_path: Path, program: str) -> None:
    """The configuration is made of it at the next start only."""
    path, template = tmp_path / "config.toml", tmp_path / "config.toml.tmpl"
    path.write_text(CONTAINERD % program)
    os.utime(path, (1000, 1000))
    template.write_text('{{ template "base" . }}\n')
    kind = Kind(name="k3s", files=(str(path),), program="none", templates=(str(template),))
    (engine,) = find_engines("", (kind,))
    assert (engine.error, engine.changed_path) == ("", str(template))
    os.utime(template, (999, 999))
    (engine,) = find_engines("", (kind,))
    assert (engine.changed, engine.changed_path) == (1000, str(path))


@pytest.mark.parametrize("name", ["k3s", "rke2"])
def test_the_engines_of_rancher_are_known(name: str) -> None:
    """With their drop-ins and templates."""
    (kind,) = [kind for kind in KINDS if kind.name == name]
    directory = f"/var/lib/rancher/{name}/agent/etc/containerd"
    assert {f"{directory}/config.toml", f"{directory}/config-v3.toml.d/*"} < set(kind.files)
    assert f"{directory}/config.toml.tmpl" in kind.templates
