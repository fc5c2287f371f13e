"""Many runs at once, the adapter of any command, and the files that a run leaves."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nvconform import matrix
from nvconform.case import Case, Expectation
from nvconform.cli import main
from nvconform.implementations import Implementation
from tests.conform.test_session import lane

CASES = [
    Case("a/one", "t", "s", Expectation(untouched=True), lanes=("root", "userns")),
    Case("a/two", "t", "s", Expectation(untouched=True)),
    Case("a/three", "t", "s", Expectation(untouched=True), machine="mig-h100"),
]
MINE = Implementation("mine", "mine", ("root",), {"name": "mine", "command": ["x"]})


def test_cases_of_one_machine_and_lane_run_together() -> None:
    groups = matrix.arrange(CASES, [MINE], ["runc", "crun"], [])
    found = [(group.runtime, group.machine, group.lane, len(group.cases)) for group in groups]
    assert found[:3] == [
        ("runc", "two-h100", "root", 2),
        ("runc", "two-h100", "userns", 1),
        ("runc", "mig-h100", "root", 1),
    ]
    assert [entry[0] for entry in found[3:]] == ["crun"] * 3
    assert len(matrix.arrange(CASES, [MINE], ["runc"], ["userns"])) == 1


def test_what_is_not_claimed_starts_no_machine() -> None:
    heard: list[Any] = []
    groups = matrix.arrange(CASES[:1], [MINE], ["runc"], ["userns"])
    results = matrix.run(groups, {}, heard.append)
    assert heard == results
    assert (results[0]["status"], results[0]["reason"]) == ("skipped", "mine does not claim the lane userns")
    assert (results[0]["implementation"], results[0]["level"], results[0]["machine"]) == ("mine", "MUST", "two-h100")


def test_a_machine_that_cannot_start_fails_its_cases_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from nvconform.session import Session, SessionError

    def fail(*_: object) -> None:
        raise SessionError("no machine")

    monkeypatch.setattr(Session, "_worker", fail)
    results = matrix.run(matrix.arrange(CASES[1:2], [MINE], ["runc"], ["root"]), {}, lambda _: None)
    assert (results[0]["status"], results[0]["differences"]) == ("failed", ["suite: no machine"])


@pytest.mark.parametrize(("case", "code"), [("devices/unset", 0), ("devices/uuid-prefix", 1)])
def test_any_command_is_judged_by_a_small_adapter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str, code: int
) -> None:
    adapter = tmp_path / "mine.yaml"
    adapter.write_text("name: mine\ncommand: [/bin/true]\n")
    out = tmp_path / "report"
    words = ["run", "--implementation", str(adapter), "-k", case, "--lane", lane(), "--report", str(out)]
    # A case without this lane is no run at all, which fails nothing.
    ran = lane() == "root" or case == "devices/unset"
    assert main(words) == (code if ran else 0)
    document = json.loads((out / "report.json").read_text())
    assert sorted(path.name for path in out.iterdir()) == ["index.html", "junit.xml", "report.json"]
    assert document["implementation"] == "mine"
    assert document["environment"]["kernel"]
    shown = capsys.readouterr().out
    if ran:
        assert document["results"][0]["features"] == ["devices"]
        assert "lane" in shown


def test_an_original_that_is_not_installed_is_skipped_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    if shutil.which("nvidia-container-cli") is not None:
        pytest.skip("the original is installed here")
    assert main(["run", "--implementation", "nvidia-hook", "-k", "devices/void"]) == 0
    assert "nvidia-hook needs nvidia-container-runtime-hook, nvidia-container-cli on PATH" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_run_with_all_that_it_started(number: signal.Signals, tmp_path: Path) -> None:
    """Machines, workers and folders go before the program does, which waits for no further case."""
    (tmp_path / "mine.yaml").write_text("name: mine\ncommand: [/bin/true]\n")
    words = ["run", "--implementation", str(tmp_path / "mine.yaml"), "--lane", "root", "-k", "devices/"]
    folders = tmp_path / "folders"
    folders.mkdir()
    environment = {**os.environ, "TMPDIR": str(folders), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "nvconform", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as child:
        while not (workers := sessions_below(child.pid)):
            if child.poll() is not None:
                pytest.skip("no machine can be started here")
            time.sleep(0.05)
        child.send_signal(number)
        _, said = child.communicate(timeout=60)
    assert child.returncode in {-number, 130}
    assert b"Traceback" not in said
    assert list(folders.iterdir()) == []
    assert [process for process, (_, session) in processes().items() if session in workers] == []


def processes() -> dict[int, tuple[int, int]]:
    """Return parent and session of every process."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone meanwhile
            parent, _, session = entry.read_text().rpartition(")")[2].split()[1:4]
            found[int(entry.parent.name)] = (int(parent), int(session))
    return found


def sessions_below(process: int) -> set[int]:
    """Return the sessions that the children of a process have for themselves: each worker has one."""
    return {session for other, (parent, session) in processes().items() if parent == process and session == other}
