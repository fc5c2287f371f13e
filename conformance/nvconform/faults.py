"""Letting each system call of an injector fail once, and seeing that the container is whole or untouched.

Belongs here: the runs and their sum. Does not belong here: which errors a call can plausibly give (faultmodel.py), and
what is run (faulttargets.py). Runs inside a fake machine: `nvfakes run two-h100 -- python -m nvconform.faults --target
hook`. Prints one JSON document.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

from nvconform import implementations, tracing
from nvconform.faultmodel import VARYING, Fault, faults_of, sample
from nvconform.faulttargets import TARGETS, HookRuns, ShimRuns
from nvconform.tracingcontainer import Bench


@dataclass
class Report:
    """What came of all runs."""

    target: str
    calls: int = 0
    possible: int = 0
    runs: int = 0
    injected: int = 0
    refused: int = 0
    crashed: int = 0
    missed: int = 0
    seconds: float = 0
    problems: list[str] = field(default_factory=list)
    messages: dict[str, int] = field(default_factory=dict)


def run_all(
    target: str,
    *,
    everything: bool,
    part: tuple[int, int],
    only: str = "",
    limit: int = 0,
    runtime: str = "runc",
    cgroup: str = "host",
) -> Report:
    """Do all runs of a target; `part` is (which, of how many)."""
    kind, adapter = TARGETS[target]
    begin = time.monotonic()
    tracing.restrict_to_one_processor(part[0])
    bench = Bench(runtime, implementations.load(adapter).document, cgroup)
    report = Report(target)
    try:
        runs = kind(bench)
        calls = runs.reference().calls
        faults = faults_of(calls)
        report.calls, report.possible = len(calls), len(faults)
        chosen = faults if everything else sample(faults)
        chosen = [fault for fault in chosen if only in fault.describe()]
        for fault in _limited(chosen[part[0] :: part[1]], limit):
            _one(runs, fault, report)
        runs.drop()
    finally:
        bench.close()
    report.seconds = round(time.monotonic() - begin, 1)
    return report


def _limited(faults: list[Fault], limit: int) -> Iterator[Fault]:
    step = max(1, -(-len(faults) // limit)) if limit else 1
    yield from faults[::step]


def _one(runs: HookRuns | ShimRuns, fault: Fault, report: Report) -> None:
    outcome, happened, problems = runs.try_fault(fault)
    report.runs += 1
    if not happened:
        report.missed += 1
    elif outcome.code is None:
        report.crashed += 1
    elif outcome.code == 0:
        report.injected += 1
    else:
        report.refused += 1
        first = outcome.message.strip().splitlines()[:1]
        text = VARYING.sub("*", first[0] if first else "")
        report.messages[text] = report.messages.get(text, 0) + 1
    report.problems += [f"{fault.describe()}: {problem}" for problem in problems]


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(prog="python -m nvconform.faults", description=__doc__.split("\n")[0])
    options.add_argument("--target", choices=sorted(TARGETS), default="hook", help="whose calls fail")
    options.add_argument("--faults", choices=("sample", "all"), default="sample", help="one of each kind, or every one")
    options.add_argument("--part", default="0/1", metavar="I/N", help="every Nth fault, from the Ith on")
    options.add_argument("--only", default="", metavar="TEXT", help="faults whose description contains this")
    options.add_argument("--runtime", choices=("runc", "crun"), default="runc", help="who makes the container")
    options.add_argument(
        "--cgroup", choices=("host", "v2"), default="host", help="cgroups as they are here, or v2 alone"
    )
    options.add_argument("--limit", type=int, default=0, metavar="N", help="at most N of them, spread evenly")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print the report."""
    chosen = parser().parse_args(arguments)
    which, _, count = chosen.part.partition("/")
    report = run_all(
        chosen.target,
        everything=chosen.faults == "all",
        part=(int(which), int(count)),
        only=chosen.only,
        limit=chosen.limit,
        runtime=chosen.runtime,
        cgroup=chosen.cgroup,
    )
    sys.stdout.write(json.dumps(asdict(report), indent=1) + "\n")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
