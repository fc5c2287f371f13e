"""The real nvidia-smi of two driver branches on the fake library: every view, on every kind of machine."""

import re
import subprocess
from collections.abc import Callable
from xml.etree import ElementTree as ET

import pytest

from nvfakes import declaration

pytestmark = pytest.mark.packages
Runner = Callable[..., "subprocess.CompletedProcess[str]"]

BRANCHES = (535, 550)
MACHINES = sorted({name for name in declaration.shipped() if declaration.load(name).gpus} | {"h100x8", "t4x2", "orin"})
# What nvidia-smi prints for an answer that it could not use; a byte outside ASCII means that memory was not written.
GARBAGE = re.compile(r"Unknown Error|Uninitialized|ERR!|Function Not Found|[^\x09\x0a\x1b\x20-\x7e]")


@pytest.fixture(scope="session")
def smi(nvfakes: Runner, lanes: dict[str, str]) -> Runner:
    """Return a function that runs the real nvidia-smi of a branch on a machine."""

    def run(branch: int, machine: str, script: str) -> "subprocess.CompletedProcess[str]":
        if lanes["root"]:
            pytest.skip(lanes["root"])
        done = nvfakes("run", machine, "--driver", str(branch), "--", "sh", "-c", script)
        if "names no Debian archive" in done.stderr or "can be fetched on Debian only" in done.stderr:
            pytest.skip(done.stderr.strip())
        return done

    return run


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("machine", MACHINES)
def test_no_view_shows_garbage(smi: Runner, branch: int, machine: str) -> None:
    views = (
        "-L",
        "",
        "-q",
        "-q -x",
        "topo -m",
        "mig -lgip",
        "mig -lgi",
        "mig -lci",
        "nvlink -s",
        "pmon -c 1",
        "dmon -c 1",
    )
    script = "".join(f"echo VIEW {view}; nvidia-smi {view}; echo STATUS $?; " for view in views)
    output = smi(branch, machine, script).stdout
    assert not GARBAGE.findall(output)
    statuses = dict(zip(views, re.findall(r"^STATUS (\d+)$", output, re.MULTILINE), strict=True))
    failing = {view: status for view, status in statuses.items() if status != "0"}
    allowed = {"mig -lgip": "6", "mig -lgi": "6", "mig -lci": "6"}  # no GPU with MIG
    if not all(gpu.on_pci for gpu in declaration.load(machine).gpus):
        allowed["topo -m"] = "255"  # no PCI address
    assert failing.items() <= allowed.items()


@pytest.mark.parametrize("branch", BRANCHES)
def test_the_table_has_eight_gpus(smi: Runner, branch: int) -> None:
    output = smi(branch, "h100x8", "nvidia-smi").stdout
    assert len(re.findall(r"\|\s+\d  NVIDIA H100 80GB HBM3", output)) == 8
    assert f"Driver Version: {branch}." in output


@pytest.mark.parametrize("branch", BRANCHES)
def test_topo_draws_the_nvlink_matrix(smi: Runner, branch: int) -> None:
    output = smi(branch, "dgx-h100", "nvidia-smi topo -m").stdout
    rows = [line.split() for line in output.splitlines() if re.match(r"GPU\d", line)]
    assert [row[1:9] for row in rows] == [["X" if one == two else "NV18" for two in range(8)] for one in range(8)]
    assert [row[9:11] for row in rows] == [["0-47", "0"]] * 4 + [["48-95", "1"]] * 4


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("machine", ["two-h100", "mig-h100"])
def test_the_xml_is_well_formed(smi: Runner, branch: int, machine: str) -> None:
    log = ET.fromstring(smi(branch, machine, "nvidia-smi -q -x").stdout)
    assert [gpu.get("id") for gpu in log.findall("gpu")] == ["00000000:17:00.0", "00000000:18:00.0"]
    assert [gpu.findtext("product_name") for gpu in log.findall("gpu")] == ["NVIDIA H100 80GB HBM3"] * 2


@pytest.mark.parametrize("branch", BRANCHES)
def test_the_real_program_answers_queries(smi: Runner, branch: int) -> None:
    fields = "index,name,uuid,memory.total,driver_version,mig.mode.current,pci.bus_id,power.limit,compute_cap"
    output = smi(branch, "two-h100", f"nvidia-smi --query-gpu={fields} --format=csv,noheader").stdout.splitlines()
    version = output[0].split(", ")[4]
    assert version.startswith(f"{branch}.")
    assert output == [
        f"{place}, NVIDIA H100 80GB HBM3, GPU-000000a{place}-1111-2222-3333-00000000000{place}, 81559 MiB, {version}, "
        f"Disabled, 00000000:1{7 + place}:00.0, 700.00 W, 9.0"
        for place in range(2)
    ]


@pytest.mark.parametrize("branch", BRANCHES)
def test_creates_and_destroys_mig_instances(smi: Runner, branch: int) -> None:
    script = (
        "nvidia-smi -i 0 -mig 1 && nvidia-smi mig -i 0 -cgi 9,14 -C && nvidia-smi -L && ls /dev/nvidia-caps && "
        "nvidia-smi mig -i 0 -dci && nvidia-smi mig -i 0 -dgi && nvidia-smi -L && ls /dev/nvidia-caps"
    )
    lines = smi(branch, "two-h100", script).stdout.splitlines()
    assert [line.split("(")[0].split() for line in lines if "  MIG" in line] == [
        ["MIG", "3g.40gb", "Device", "0:"],
        ["MIG", "2g.20gb", "Device", "1:"],
    ]
    capabilities = [int(line[10:]) for line in lines if line.startswith("nvidia-cap")]
    assert sorted(capabilities) == [1, 1, 2, 2, 12, 13, 30, 31]


@pytest.mark.parametrize("branch", BRANCHES)
def test_lists_processes(smi: Runner, branch: int) -> None:
    output = smi(branch, "skeleton", "nvidia-smi").stdout
    assert re.search(r"\|\s+2\s+1\s+0\s+4242\s+C\s+python3\s+512MiB \|", output)


@pytest.mark.parametrize("machine", ["t4x2", "mig-a100"])
def test_the_old_branch_works_too(smi: Runner, machine: str) -> None:
    output = smi(470, machine, "nvidia-smi -L && nvidia-smi && nvidia-smi -q && nvidia-smi topo -m").stdout
    assert "Driver Version: 470." in output
    assert not GARBAGE.findall(output)
    assert len(re.findall(r"^GPU \d: ", output, re.MULTILINE)) == 2
