"""nvinject doctor without a machine: exit codes, forms, and where containers are found."""

import json
import os
from pathlib import Path

import pytest

from nvinject.cli import accesscheck, containercheck
from nvinject.cli import main as command_line
from nvinject.core.policy import Policy
from nvinject.errors import UsageError

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test a host that has nothing."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "sys").mkdir()
    path = tmp_path / "config.toml"
    path.write_text(f'[nvinject]\nproc-root = "{tmp_path}/proc"\nsys-root = "{tmp_path}/sys"\n')
    monkeypatch.setenv("NVIDIA_CTK_CONFIG_FILE_PATH", str(path))
    return path


def test_a_host_without_anything(capsys: Capture) -> None:
    """sysfs shows no bus, so a GPU could be there; the driver is not."""
    assert command_line.main(["doctor", "--layer", "module", "--layer", "versions"]) == 9
    text = capsys.readouterr().out
    assert "ERROR [driver-missing]" in text
    assert "what mends it:" in text
    assert "versions" not in text


def test_json_has_every_clause(capsys: Capture) -> None:
    """For programs."""
    assert command_line.main(["doctor", "--layer", "module", "--json"]) == 9
    document = json.loads(capsys.readouterr().out)
    assert document["worst"] == "error"
    assert document["layers"] == ["module"]
    (finding,) = document["findings"]
    assert set(finding) == {"name", "layer", "severity", "what", "why", "remedy"}


def test_warnings_have_an_exit_code_of_their_own(config: Path, tmp_path: Path, capsys: Capture) -> None:
    """8, so that a script can let them pass."""
    assert command_line.main(["install", "--prefix", str(tmp_path / "prefix"), "--links"]) == 0
    config.write_text("no-such-key = 1\n" + config.read_text())
    capsys.readouterr()
    arguments = ["doctor", "--layer", "toolkit", "--prefix", str(tmp_path / "prefix")]
    assert command_line.main(arguments) == 8
    assert "[config-suspicious]" in capsys.readouterr().out


def test_an_installation_is_well_after_install(tmp_path: Path, capsys: Capture) -> None:
    """Nothing wrong, exit code 0."""
    assert command_line.main(["install", "--prefix", str(tmp_path / "prefix"), "--links"]) == 0
    capsys.readouterr()
    assert command_line.main(["doctor", "--layer", "toolkit", "--prefix", str(tmp_path / "prefix")]) == 0
    assert capsys.readouterr().out.startswith("nvinject installed: nothing wrong\n")


def bundle(base: Path, name: str) -> Path:
    folder = base / "task" / "moby" / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_containers_are_found_by_id_and_path(tmp_path: Path) -> None:
    """By the start of an id, as engines take it."""
    patterns = (f"{tmp_path}/task/*/*",)
    first, _ = bundle(tmp_path, "abcdef"), bundle(tmp_path, "abcxyz")
    assert containercheck.find_config("abcd", patterns) == f"{first}/config.json"
    assert containercheck.find_config(str(first)) == f"{first}/config.json"
    assert containercheck.find_config(f"{first}/config.json") == f"{first}/config.json"
    with pytest.raises(UsageError, match="could be"):
        containercheck.find_config("abc", patterns)
    with pytest.raises(UsageError, match="no running container zzzz"):
        containercheck.find_config("zzzz", patterns)


def test_a_container_that_is_not_there_is_a_mistake_of_the_caller(capsys: Capture) -> None:
    """Exit code 2, not a finding."""
    assert command_line.main(["doctor", "--layer", "container", "--container", "no-such-id"]) == 2
    assert "no running container no-such-id" in capsys.readouterr().err


def test_the_name_of_a_container_is_in_its_cgroup() -> None:
    """Docker's scope, a plain id, or nothing better than the process."""
    assert accesscheck.name_of("/sys/fs/cgroup/docker-0123456789abcdef.scope", 7) == "0123456789ab"
    assert accesscheck.name_of("/sys/fs/cgroup/docker/0123456789abcdef", 7) == "0123456789ab"
    assert accesscheck.name_of("", 7) == "of process 7"


def test_the_cgroup_of_a_container_is_that_of_its_unit() -> None:
    """crun makes another one below it, whose name says nothing."""
    scope = "/sys/fs/cgroup/machine.slice/libpod-0123456789abcdef.scope"
    assert accesscheck.own_group(f"{scope}/container") == accesscheck.own_group(scope) == scope
    assert accesscheck.own_group("/sys/fs/cgroup/docker/container") == "/sys/fs/cgroup/docker/container"


def test_our_own_namespace_is_no_container() -> None:
    """Nor is a process whose /dev is ours."""
    assert os.getpid() not in accesscheck.find_container_processes()
    assert accesscheck.find_nodes(os.getpid()) == []


def test_units_without_rules(tmp_path: Path) -> None:
    """A cgroup that is no unit has none, and a unit that is not there neither."""
    assert accesscheck.read_unit("/sys/fs/cgroup/devices/docker") == ("", ())
    assert accesscheck.read_unit("/sys/fs/cgroup/nvinject-none.scope") == ("nvinject-none.scope", ())
    assert accesscheck.list_files(str(tmp_path / "none")) == []


def test_a_request_is_explained_without_a_host(tmp_path: Path) -> None:
    """A host whose fault has a finding of its own is not blamed twice."""
    folder = bundle(tmp_path, "abcdef")
    (folder / "config.json").write_text(
        json.dumps(
            {"ociVersion": "1.0.2", "process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}, "root": {"path": "rootfs"}}
        )
    )
    policy = Policy().replace(roots=Policy().roots.replace(proc=str(tmp_path / "proc")))
    assert containercheck.check_container(str(folder), policy, host_is_well=False) == []
    (finding,) = containercheck.check_container(str(folder), policy, host_is_well=True)
    assert finding.name == "host-lacks"
