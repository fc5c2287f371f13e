"""nvinject info and list on a small host: rows, forms, and where things were found."""

import csv
import io
import json
from pathlib import Path

import pytest

from nvinject.cli import info
from nvinject.cli import main as command_line
from nvinject.core.policy import Policy, Roots
from tests.host.machine import VERSION, HostTree

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostTree:
    """Return a host with two GPUs, one of them cut into slices, and a configuration that points to it."""
    tree = HostTree(tmp_path)
    tree.add_everything()
    tree.add_mig(0, 1, 0)
    config = tmp_path / "config.toml"
    config.write_text(
        f'[nvidia-container-cli]\nroot = "{tree.root}"\n[nvinject]\nproc-root = "{tree.proc}"\nsys-root = "/sys"\n'
    )
    monkeypatch.setenv("NVIDIA_CTK_CONFIG_FILE_PATH", str(config))
    return tree


def test_info_tells_what_is_there_and_what_is_not_known(host: HostTree, capsys: Capture) -> None:
    """Its libraries are no real ones, so NVML tells nothing; that is a note and no failure."""
    assert command_line.main(["info"]) == 0
    captured = capsys.readouterr()
    assert f"{VERSION}  not known" in captured.out
    assert "0000:18:00.0" in captured.out
    assert "0:?" in captured.out
    assert "NVML was not asked: " in captured.err


def test_json_has_everything(host: HostTree, capsys: Capture) -> None:
    """Driver, GPUs, files, roots, device classes, notes."""
    assert command_line.main(["info", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["driver"] == {"version": VERSION, "cuda": None}
    assert [gpu["minor"] for gpu in document["gpus"]] == [0, 1]
    assert document["majors"]["nvidia-uvm"] == 511
    assert document["notes"]
    roots = {root["name"]: root for root in document["roots"]}
    assert roots["driver root"]["path"] == str(host.root)
    assert roots["driver root"]["origin"] == "nvidia-container-cli.root"
    assert roots["device root"]["origin"] == "the driver root"
    assert roots["sys root"]["origin"] == "default"


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def test_list_names_kind_and_capability(host: HostTree, capsys: Capture) -> None:
    """As a table, CSV or JSON."""
    assert command_line.main(["list", "--csv"]) == 0
    lines = rows(capsys.readouterr().out)
    assert lines[0] == ["kind", "capability", "path", "detail"]
    by_path = {line[2]: line for line in lines[1:]}
    assert by_path["/dev/nvidiactl"][1] == "all"
    assert by_path["/dev/nvidia-uvm"][1] == "compute,video"
    assert by_path["/dev/nvidia-caps/nvidia-cap12"][0] == "node"
    assert by_path[f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"][3] == "libcuda.so.1"
    assert command_line.main(["list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(lines) - 1


FILTERS = [
    (["--kind", "binary"], {"binary"}, {"utility", "compute,video", "compute"}),
    (["--kind", "library", "--capability", "ngx"], set(), set()),
    (["--kind", "library", "--capability", "utility"], {"library"}, {"utility"}),
    (["--capability", "display", "--kind", "node"], {"node"}, {"all", "display"}),
]


@pytest.mark.parametrize(("options", "kinds", "capabilities"), FILTERS)
def test_lists_can_be_narrowed(
    host: HostTree, capsys: Capture, options: list[str], kinds: set[str], capabilities: set[str]
) -> None:
    """What every request brings counts for each capability."""
    assert command_line.main(["list", "--csv", *options]) == 0
    lines = rows(capsys.readouterr().out)[1:]
    assert {line[0] for line in lines} == kinds
    assert {line[1] for line in lines} <= capabilities


def test_without_a_driver_it_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Of the host: exit code 6."""
    config = tmp_path / "config.toml"
    config.write_text(f'[nvidia-container-cli]\nroot = "{tmp_path}"\n[nvinject]\nproc-root = "{tmp_path}"\n')
    monkeypatch.setenv("NVIDIA_CTK_CONFIG_FILE_PATH", str(config))
    assert command_line.main(["info"]) == 6
    assert "there is no NVIDIA driver" in capsys.readouterr().err


def test_a_bus_that_cannot_be_seen_has_no_gpus(host: HostTree) -> None:
    """A count, not a failure."""
    assert info.count_pci_gpus(Roots(sys="/no/such/folder")) == 0
    inventory, _ = info.find_everything(host.policy)
    evidence = info.find_evidence(Policy(), inventory)
    assert [one.origin for one in evidence] == ["default", "the driver root", "default", "default"]


def test_each_root_tells_what_was_found_where(host: HostTree, capsys: Capture) -> None:
    """Folders as the root shows them; what lies in the loader cache is told from what was looked for."""
    assert command_line.main(["info", "--json"]) == 0
    roots = {root["name"]: root["found"] for root in json.loads(capsys.readouterr().out)["roots"]}
    below = {(found["kind"], found["where"]): found["count"] for found in roots["driver root"]}
    libraries = below["library", "/usr/lib/x86_64-linux-gnu"]
    assert below["loader cache", "/etc/ld.so.cache"] == libraries > 0
    assert all(found["kind"] == "node" for found in roots["device root"])
    assert ("/dev", 6) in {(found["where"], found["count"]) for found in roots["device root"]}
    assert roots["proc root"] == [{"kind": "GPU", "where": "/driver/nvidia/gpus", "count": 2}]
    assert command_line.main(["info"]) == 0
    assert "driver root  loader cache" in capsys.readouterr().out


@pytest.mark.parametrize(("content", "kind"), [(None, "no loader cache"), (b"no cache", "loader cache")])
def test_a_loader_cache_that_knows_nothing(host: HostTree, capsys: Capture, content: bytes | None, kind: str) -> None:
    """It is said that there is none, or that it knew no library of the driver; the folders have them."""
    cache = host.root / "etc/ld.so.cache"
    cache.unlink()
    if content is not None:
        cache.write_bytes(content)
    inventory, _ = info.find_everything(host.policy)
    found = info.find_evidence(host.policy, inventory)[0].found
    assert found[0] == info.Found(kind=kind, where="/etc/ld.so.cache", count=0)
    assert "library" in {one.kind for one in found}
