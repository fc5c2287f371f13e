"""pytest plug-in: every case in every lane is one test item.

Belongs here: collecting case files, the options, and how results show. Does not belong here: how a case runs. Used by
conformance/conftest.py, or anywhere with `-p nvconform.plugin`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvconform import implementations, report, required
from nvconform.case import LANES, Case
from nvconform.casefile import is_case_file, known_profiles, load_file, load_sets
from nvconform.engines.registry import RUNTIMES
from nvconform.session import Session, SessionError

RESULT_KEY = "nvconform_result"


class ConformanceFailureError(Exception):
    """A case failed; the text is for people."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suite."""
    group = parser.getgroup("conformance")
    group.addoption("--lane", action="append", choices=LANES, help="only this lane; may be given several times")
    group.addoption("--implementation", default=implementations.DEFAULT, help="name or adapter file of the injector")
    group.addoption("--runtime", default="runc", choices=RUNTIMES, help="low-level runtime or engine")
    group.addoption("--cgroup", default="host", choices=("host", "v2"), help="cgroups as they are here, or v2 alone")
    group.addoption("--profile", default="", choices=sorted(known_profiles().parts), help="only these features")
    group.addoption("--conformance-json", metavar="FILE", help="write all results as JSON")


def pytest_configure(config: pytest.Config) -> None:  # noqa: ARG001 - pytest's signature
    """Refuse a NVCONFORM_REQUIRE that means nothing."""
    required.required()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "CaseFile | None":
    """Take the case files: YAML below a folder named cases."""
    if "cases" in file_path.parts and is_case_file(file_path):
        node: CaseFile = CaseFile.from_parent(parent, path=file_path)
        return node
    return None


class CaseFile(pytest.File):
    """One file of cases."""

    def collect(self) -> Iterator["CaseItem"]:
        """Yield an item for each case and lane."""
        wanted = self.config.getoption("--lane") or LANES
        profile = self.config.getoption("--profile")
        for case in load_file(self.path):
            if not known_profiles().holds(profile, case.features):
                continue
            for lane in case.lanes:
                if lane in wanted:
                    yield CaseItem.from_parent(self, name=f"{case.id}[{lane}]", case=case, lane=lane)


class CaseItem(pytest.Item):
    """One case in one lane."""

    def __init__(self, *, case: Case, lane: str, **arguments: Any) -> None:
        """Keep case and lane."""
        super().__init__(**arguments)
        self.case = case
        self.lane = lane
        # Workers of pytest-xdist share nothing: cases of one machine and lane go to the same one with --dist loadgroup.
        self.add_marker(pytest.mark.xdist_group(f"{case.machine}-{lane}"))

    def runtest(self) -> None:
        """Run the case; raises for a failure, skips with the reason."""
        result = _session(self.config).run(self.case, self.lane)
        self.user_properties.append((RESULT_KEY, result))
        required.hold(self.lane, result)
        if result["status"] == "skipped":
            pytest.skip(str(result["reason"]))
        if result["status"] == "deviates":
            pytest.xfail(str(result["reason"]))
        if result["status"] == "failed":
            raise ConformanceFailureError(report.explain(result))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the differences, not the stack of the suite."""
        if isinstance(excinfo.value, ConformanceFailureError):
            case = self.case
            return f"{excinfo.value}\n  {case.level}: {case.source}\n  {case.file}:{case.line}"
        if isinstance(excinfo.value, SessionError):
            return f"suite: {excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return where the case stands."""
        return self.path, self.case.line, self.name


_SESSIONS: dict[int, Session] = {}


def _session(config: pytest.Config) -> Session:
    key = id(config)
    if key not in _SESSIONS:
        implementation = implementations.load(config.getoption("--implementation"))
        runtime, cgroup = config.getoption("--runtime"), config.getoption("--cgroup")
        _SESSIONS[key] = Session(implementation, load_sets(), runtime, cgroup)
    return _SESSIONS[key]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the machines."""
    running = _SESSIONS.pop(id(session.config), None)
    if running is not None:
        running.close()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the table, and write the results where that was asked for."""
    results = [
        value
        for reports in terminalreporter.stats.values()
        for item in reports
        for key, value in getattr(item, "user_properties", ())
        if key == RESULT_KEY and getattr(item, "when", "") == "call"
    ]
    if not results:
        return
    terminalreporter.section("conformance")
    for line in report.table(results):
        terminalreporter.write_line(line)
    target = config.getoption("--conformance-json")
    if target:
        report.write_json(Path(target), config.getoption("--implementation"), results)
