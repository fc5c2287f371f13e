"""The whole way with stand-in injectors: a suite that everything passes would prove nothing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvconform.case import Call, Case, Container, Expectation, Injected, Refused
from nvconform.casefile import load_sets
from nvconform.cli import main
from nvconform.implementations import Implementation
from nvconform.session import Session

GPU = Container(env=("NVIDIA_VISIBLE_DEVICES=all",))
UNTOUCHED = Case("nothing", "title", "source", Expectation(untouched=True))
INJECTED = Case("all", "title", "source", Expectation(injected=Injected(gpus=(0, 1))), container=GPU)
REFUSED = Case("refused", "title", "source", Expectation(refused=Refused(names=("9",))), container=GPU)
CALLED = Case("called", "title", "source", Expectation(refused=Refused(names=("empty",))), call=Call(stdin=""))

# A script in place of an injector, the case, and what the verdict must name ([]: it passes).
STAND_INS: list[tuple[str, Case, list[str]]] = [
    ("exit 0", UNTOUCHED, []),
    ("exit 0", INJECTED, ["mounts: /usr/bin/nvidia-smi is missing", "nodes: /dev/nvidia0 is missing", "loader cache:"]),
    ("echo 9 >&2; exit 1", REFUSED, []),
    ("echo 9 >&2; exit 0", REFUSED, ["create: the container exists", "exit: the injector exits 0"]),
    ("echo other >&2; exit 1", REFUSED, ["message: does not name '9'"]),
    ("echo 9 >&2; touch BUNDLE/rootfs/left; exit 1", REFUSED, ["root file system: /left changed"]),
    ("echo x > BUNDLE/../outside/secret", UNTOUCHED, ["host: outside: /secret changed"]),
    ("sleep 30 >/dev/null 2>&1 & exit 0", UNTOUCHED, ["host: process left behind"]),
    ("exit 3", UNTOUCHED, ["exit: the injector exits 3"]),
    ("echo empty >&2; exit 1", CALLED, []),
    ("exit 0", CALLED, ["exit: the injector exits 0"]),
]


def lane() -> str:
    """Return the strongest lane that works here; skips where none does."""
    missing = [name for name in ("runc", "busybox") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return "root" if probe.returncode == 0 else "rootless"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    script = tmp_path / "injector.sh"
    document: dict[str, Any] = {"name": "stand-in", "command": ["/bin/sh", str(script), "{stage}"]}
    running = Session(Implementation("stand-in", "stand-in", ("root", "rootless"), document), load_sets())
    yield running
    running.close()


@pytest.mark.parametrize(("script", "case", "problems"), STAND_INS)
def test_injectors_that_do_wrong_or_right_are_judged_so(
    tmp_path: Path, session: Session, script: str, case: Case, problems: list[str]
) -> None:
    chosen = lane()
    find_bundle = 'state=$(cat)\nbundle=${state#*\'"bundle":"\'}\nbundle=${bundle%%\\"*}\n'
    (tmp_path / "injector.sh").write_text(find_bundle + script.replace("BUNDLE", '"$bundle"') + "\n")
    result = session.run(case, chosen)
    text = "\n".join(result["differences"])
    assert result["status"] == ("failed" if problems else "passed"), text
    for problem in problems:
        assert problem in text


def test_a_lane_that_is_not_claimed_is_a_skip_with_its_reason(session: Session) -> None:
    result = session.run(UNTOUCHED, "userns")
    assert (result["status"], result["reason"]) == ("skipped", "stand-in does not claim the lane userns")


def test_a_view_of_cgroup_v2_alone(tmp_path: Path, session: Session) -> None:
    chosen = lane()
    (tmp_path / "injector.sh").write_text("exit 0\n")
    session.cgroup = "v2"
    result = session.run(UNTOUCHED, chosen)
    assert (result["cgroup"], result["runtime"]) == ("v2", "runc")
    if result["status"] == "skipped":
        pytest.skip(str(result["reason"]))
    assert result["status"] == "passed", result["differences"]


def test_nothing_of_a_session_is_left(tmp_path: Path, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = lane()
    (tmp_path / "injector.sh").write_text("exit 0\n")
    place = tmp_path / "temporary"
    place.mkdir(mode=0o755)
    monkeypatch.setattr("tempfile.tempdir", str(place))
    tmp_path.chmod(0o755)
    session.run(UNTOUCHED, chosen)
    session.close()
    assert os.listdir(place) == []


def test_commands_that_start_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate"]) == 0
    assert "cases are well formed" in capsys.readouterr().out
    assert main(["list", "-k", "devices/all"]) == 0
    assert "devices/all " in capsys.readouterr().out
    assert main(["show", "devices/all"]) == 0
    assert '"NVIDIA_VISIBLE_DEVICES=all"' in capsys.readouterr().out
    assert main(["show", "none/such"]) == 2
    assert "no case has the id none/such" in capsys.readouterr().err


def test_the_worker_needs_nothing_but_the_standard_library() -> None:
    command = [sys.executable, "-c", "import sys; sys.modules['yaml'] = None; import nvconform.worker"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
