"""daemon.json: what is written, what is kept, what is refused with its place (public case 19)."""

import json
from pathlib import Path
from typing import Any

import pytest

from .configured import Configured, refused

RUNTIME = {"args": [], "path": "nvidia-container-runtime"}
NEW = """\
{
    "runtimes": {
        "nvidia": {
            "args": [],
            "path": "nvidia-container-runtime"
        }
    }
}
"""
# before, options, after
EDITED = [
    (None, (), NEW),
    ("", (), NEW),
    ("{}\n", (), NEW),
    (NEW, (), NEW),
    (
        '{"log-level": "warn"}\n',
        ("--set-as-default", "--cdi.enabled"),
        (
            '{"log-level": "warn", "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}, '
            '"default-runtime": "nvidia", "features": {"cdi": true}}\n'
        ),
    ),
    (  # pains 33: the original drops what else is in features
        (
            '{\r\n  "features": {\r\n    "containerd-snapshotter": true\r\n  },\r\n  "runtimes": {"nvidia": '
            '{"path": "nvidia-container-runtime", "args": ["-v"]}, "kata": {"path": "/k"}}\r\n}'
        ),
        ("--cdi.enabled=true",),
        (
            '{\r\n  "features": {\r\n    "containerd-snapshotter": true,\r\n    "cdi": true\r\n  },\r\n  "runtimes": '
            '{"nvidia": {"path": "nvidia-container-runtime", "args": ["-v"]}, "kata": {"path": "/k"}}\r\n}'
        ),
    ),
    (
        '{"runtimes": {"nvidia": {"path": "/old", "args": []}}, "default-runtime": "kata"}',
        ("--set-as-default=false",),
        '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}}, "default-runtime": "kata"}',
    ),
    (  # a shim's type and a path exclude each other
        '{"runtimes": {"nvidia": {"runtimeType": "x"}}}',
        (),
        '{"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}',
    ),
    (
        "\ufeff{}",
        (),
        "\ufeff" + NEW.rstrip("\n"),
    ),
]


@pytest.mark.parametrize(("before", "options", "after"), EDITED)
def test_files_after_the_edit(tmp_path: Path, before: str | None, options: tuple[str, ...], after: str) -> None:
    done = Configured(tmp_path, "docker", before)
    assert done.run(*options) == 0
    assert done.config.read_bytes().decode() == after
    assert done.run(*options) == 0
    assert done.config.read_bytes().decode() == after


REFUSED = [
    ('{\n  "a": 1,\n}\n', "line 2, column 9: a comma before the closing bracket"),
    ('{\n  // mine\n  "a": 1\n}\n', "line 2, column 3: JSON has no comments"),
    ('{\n  "runtimes": []\n}\n', "line 2, column 15: not an object"),
    ('{"runtimes": {"nvidia": "x"}}', "line 1, column 25: not an object"),
    ('{"features": true}', "line 1, column 14: not an object"),
    ("[]", "line 1, column 1: not an object"),
    ("null", "line 1, column 1: not an object"),
    ('{"runtimes": {}, "runtimes": {}}', "line 1, column 18: runtimes stands here a second time"),
    (b'{\n"a": "\xff"}', "line 2, column 7: not UTF-8 text"),
]


@pytest.mark.parametrize(("before", "says"), REFUSED)
def test_files_that_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str | bytes, says: str
) -> None:
    done = Configured(tmp_path, "docker", before)
    said = refused(done, capsys, "--cdi.enabled")
    assert said.startswith(f"{done.config}, ")
    assert says in said


def test_another_name_and_path(tmp_path: Path) -> None:
    done = Configured(tmp_path, "docker")
    assert done.run("--nvidia-runtime-name", "gpu", "--runtime-path=/opt/r", "--nvidia-set-as-default") == 0
    expected: dict[str, Any] = {"runtimes": {"gpu": {"args": [], "path": "/opt/r"}}, "default-runtime": "gpu"}
    assert json.loads(done.config.read_text()) == expected
