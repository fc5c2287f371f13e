"""nvconform: list, check, show and run the conformance cases.

Belongs here: argv, words and exit codes. Does not belong here: anything that pytest's plug-in needs too (session.py,
report.py). Exit codes: 0 all passed, 1 a case failed, 2 wrong usage or a file of the suite is wrong.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nvconform import implementations, report
from nvconform.case import LANES, Case
from nvconform.casefile import cases_directory, find, load_all, load_sets
from nvconform.session import Session, SessionError
from nvconform.shapes import DocumentError

DESCRIPTION = """\
Replays OCI containers through a real runtime on fake GPU machines and judges what an injector makes of them.
"""
EPILOG = """\
examples:
  nvconform list -k mig                 the cases whose id contains "mig"
  nvconform show devices/all            one case, with where it stands
  nvconform run --lane rootless         everything that works as an ordinary user
  nvconform run -k hostile --json out.json
"""


def parser() -> argparse.ArgumentParser:
    """Return the options of all commands."""
    options = argparse.ArgumentParser(
        prog="nvconform", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--cases", type=Path, default=cases_directory(), metavar="DIR", help="folder of the case files"
    )
    commands = options.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="show which cases there are")
    listing.add_argument("-k", dest="words", default="", metavar="TEXT", help="only ids that contain this")
    listing.add_argument("--json", action="store_true", help="as JSON")
    showing = commands.add_parser("show", help="show one case")
    showing.add_argument("case", metavar="CASE", help="its id")
    commands.add_parser("validate", help="check all case files; mistakes come with file, line and key")
    running = commands.add_parser("run", help="run cases")
    running.add_argument("-k", dest="words", default="", metavar="TEXT", help="only ids that contain this")
    running.add_argument("--lane", action="append", choices=LANES, help="only this lane; may be given several times")
    running.add_argument("--implementation", default=implementations.DEFAULT, help="name or adapter file")
    running.add_argument("--runtime", default="runc", choices=("runc", "crun"), help="low-level runtime")
    running.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    chosen = parser().parse_args(arguments)
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "list": list_cases,
        "show": show_case,
        "validate": validate_cases,
        "run": run_cases,
    }
    try:
        return commands[chosen.command](chosen)
    except DocumentError as error:
        sys.stderr.write(f"nvconform: {error}\n")
        return 2


def run() -> None:
    """Entry point of the console script."""
    sys.exit(main())


def list_cases(chosen: argparse.Namespace) -> int:
    """Print id, lanes and title of the cases."""
    cases = _selected(chosen)
    if chosen.json:
        rows = [{"id": case.id, "title": case.title, "lanes": case.lanes, "source": case.source} for case in cases]
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return 0
    for case in cases:
        sys.stdout.write(f"{case.id:<44} {','.join(case.lanes):<22} {case.title}\n")
    sys.stdout.write(f"{len(cases)} cases, {sum(len(case.lanes) for case in cases)} runs\n")
    return 0


def show_case(chosen: argparse.Namespace) -> int:
    """Print all fields of one case that are not at their defaults."""
    case = find(load_all(chosen.cases), chosen.case)
    sys.stdout.write(f"{case.file}:{case.line}\n")
    sys.stdout.write(json.dumps(_set_fields(asdict(case)), indent=1) + "\n")
    return 0


def validate_cases(chosen: argparse.Namespace) -> int:
    """Check every case file."""
    cases = load_all(chosen.cases)
    load_sets()
    sys.stdout.write(f"{len(cases)} cases are well formed\n")
    return 0


def run_cases(chosen: argparse.Namespace) -> int:
    """Run the chosen cases: lanes side by side, one after the other within a machine and lane."""
    implementation = implementations.load(chosen.implementation)
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in _selected(chosen):
        for lane in case.lanes:
            if not chosen.lane or lane in chosen.lane:
                groups.setdefault((case.machine, lane), []).append(case)
    sets = load_sets()

    def run_group(group: tuple[tuple[str, str], list[Case]]) -> list[dict[str, Any]]:
        (_, lane), cases = group
        session = Session(implementation, sets, chosen.runtime)
        try:
            return [_run_one(session, case, lane) for case in cases]
        finally:
            session.close()

    with ThreadPoolExecutor(max_workers=2) as pool:
        results = [result for part in pool.map(run_group, groups.items()) for result in part]
    for line in report.table(results):
        sys.stdout.write(f"{line}\n")
    if chosen.json:
        report.write_json(chosen.json, implementation.name, results)
    return 1 if any(result["status"] == "failed" for result in results) else 0


def _run_one(session: Session, case: Case, lane: str) -> dict[str, Any]:
    try:
        result = session.run(case, lane)
    except SessionError as error:
        result = {"id": case.id, "lane": lane, "status": "failed", "differences": [f"suite: {error}"], "seconds": 0.0}
    if result["status"] == "failed":
        sys.stdout.write(f"{report.explain(result)}\n")
    return result


def _selected(chosen: argparse.Namespace) -> list[Case]:
    return [case for case in load_all(chosen.cases) if chosen.words in case.id]


def _set_fields(mapping: dict[str, Any]) -> dict[str, Any]:
    result = {key: _set_fields(value) if isinstance(value, dict) else value for key, value in mapping.items()}
    return {key: value for key, value in result.items() if value not in (None, "", (), [], {}, False)}
