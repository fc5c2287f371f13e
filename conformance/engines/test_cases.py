"""Conformance cases through podman, docker and containerd: a few of each kind, by each way into an engine's containers.

Belongs here: which cases are tried in the ordinary suite. Does not belong here: what is expected (conformance/cases).
`nvconform run --runtime podman` runs all that the engine can be asked for.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from nvconform import implementations, report
from nvconform.case import Case
from nvconform.casefile import cases_directory, find, load_all, load_sets
from nvconform.guest import Guest
from nvconform.implementations import Implementation
from nvconform.required import give_up
from nvconform.session import Session

CASES = load_all(cases_directory())
# One GPU, few files, a refusal, no request, a read-only root.
SHIM = (
    "devices/index",
    "capabilities/utility",
    "requirements/cuda-too-new",
    "devices/void",
    "images/read-only-root",
)
HOOK = ("devices/index",)
SPEC = ("devices/index", "devices/unknown-index")
RUNS = [
    ("podman", "nvinject-jit", SHIM),
    ("podman", "nvinject-hook", HOOK),
    ("docker", "nvinject-jit", SHIM),
    ("docker", "nvinject-hook", HOOK),
    ("containerd", "nvinject-jit", SHIM),
    ("containerd", "nvinject-hook", HOOK),
    ("podman", "nvinject-cdi", SPEC),
]
# A runtime that injects nothing: what is expected is seen to be missing.
NOTHING = Implementation(
    "nothing", "runc alone", ("root",), {"name": "nothing", "kind": "runtime", "command": ["{runtime}"]}
)
MARKS = {
    name: (getattr(pytest.mark, name), pytest.mark.xdist_group(name)) for name in ("podman", "docker", "containerd")
}


class Sessions:
    """The machine that is up; a session is ended when the next one is asked for."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self.guest = Guest()
        self.key = ("", "")
        self.session: Session | None = None

    def run(self, engine: str, implementation: Implementation, case: Case) -> dict[str, Any]:
        """Run a case, in the session of its engine and implementation."""
        key = engine, implementation.name
        if self.session is None or self.key != key:
            self.close()
            self.key, self.session = key, Session(implementation, load_sets(), engine, guest=self.guest)
        return self.session.run(case, "root")

    def close(self) -> None:
        """End the session."""
        if self.session is not None:
            self.session.close()
        self.session = None


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    """Keep one machine up for the cases that follow one another."""
    kept = Sessions()
    yield kept
    kept.close()
    kept.guest.close()


@pytest.mark.parametrize(
    ("engine", "name", "identifier"),
    [
        pytest.param(engine, name, identifier, id=f"{engine}-{name}-{identifier}", marks=MARKS[engine])
        for engine, name, chosen in RUNS
        for identifier in chosen
    ],
)
def test_case(sessions: Sessions, engine: str, name: str, identifier: str) -> None:
    """The container of an engine has what a low-level runtime's has, beside what the engine gives to all of its own."""
    case = find(CASES, identifier)
    result = sessions.run(engine, implementations.load(name), case)
    if result["status"] == "skipped":
        give_up(engine, result["reason"])
    assert result["status"] == "passed", report.explain(result)


@pytest.mark.parametrize("engine", [pytest.param(name, marks=MARKS[name]) for name in ("podman", "docker")])
def test_what_is_missing_is_seen(sessions: Sessions, engine: str) -> None:
    """An engine whose runtime injects nothing fails, by the mounts, nodes, rules and links that are not there."""
    result = sessions.run(engine, NOTHING, find(CASES, "devices/index"))
    if result["status"] == "skipped":
        give_up(engine, result["reason"])
    assert result["status"] == "failed"
    missing = {line.partition(":")[0] for line in result["differences"]}
    assert {"mounts", "nodes", "links", "device rules"} <= missing, report.explain(result)
