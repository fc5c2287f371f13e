"""python -m benchmarks: whole processes, timed beside the interpreter's floor.

Belongs here: options and the order of a run. Does not belong here: cases (cases.py), containers (scene.py), numbers and
their forms (results.py, plot.py).
"""

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import cases, results
from benchmarks.adapters import Adapter
from benchmarks.installation import install
from benchmarks.machines import Machines, WorkerError

CONFIGURATION = Path(__file__).parent / "config.toml"

EPILOG = """\
examples:
  python -m benchmarks                                    everything, some minutes
  python -m benchmarks --only hook --growth-rounds 0      the hook alone
  python -m benchmarks --adapter other.yaml --only hook   beside another implementation

Results go to benchmarks/results: results.json, results.txt, ratios.svg, growth-*.svg. Exit code: 0, 1 where a run
failed, 3 where a limit was missed and --strict was given.
"""


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=(__doc__ or "").splitlines()[0],
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--rounds", type=int, default=51, help="runs of each main case (default: %(default)s)")
    options.add_argument(
        "--growth-rounds", type=int, default=11, help="runs of each size; 0 leaves growth out (default: %(default)s)"
    )
    options.add_argument("--only", default="", metavar="NAME", help="main cases whose name begins so, and the floor")
    options.add_argument(
        "--adapter", action="append", default=[], metavar="FILE", help="also measure this implementation (repeatable)"
    )
    options.add_argument("--interpreter", default=sys.executable, help="the interpreter to install for")
    options.add_argument("--output", type=Path, default=Path(__file__).parent / "results", metavar="DIR")
    options.add_argument("--seed", type=int, default=1, help="of the order within rounds")
    options.add_argument(
        "--no-priority", action="store_true", help="let other work of the machine disturb (default: SCHED_FIFO)"
    )
    options.add_argument("--strict", action="store_true", help="exit with 3 where a limit is missed")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks and write what came out."""
    options = parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="nvinject-bench-") as folder:
        adapters = [Adapter(name, Path(folder), options.interpreter) for name in options.adapter]
        settings = settings_for(Path(folder), options.interpreter, adapters)
        machines = Machines({**settings, "priority": not options.no_priority})
        try:
            measured = measure(machines, options, choose(options.only, adapters))
        except WorkerError as error:
            sys.stderr.write(f"benchmarks: {error}\n")
            return 1
        finally:
            machines.close()
    results.write(measured, options.output)
    sys.stdout.write(results.table(measured))
    return 3 if options.strict and any(results.missed(row) for row in measured.rows()) else 0


def settings_for(folder: Path, interpreter: str, adapters: Sequence[Adapter]) -> dict[str, object]:
    """Install, and return what the workers have to know."""
    launcher = install(folder, interpreter)
    runc = shutil.which("runc") or "/usr/sbin/runc"
    shim = str(launcher.parent / "nvidia-container-runtime")
    commands = {
        "hook": [str(launcher), "hook", "prestart"],
        "create": [shim],
        "call": [shim],
        "cdi": [str(launcher), "cdi", "generate", "--format", "json"],
        "runc": [runc],
        cases.SHIM_ALONE: [str(launcher), "runtime", "--low-level", "/bin/true", "--"],
        **{adapter.name: adapter.command for adapter in adapters},
    }
    return {
        "interpreter": interpreter,
        "commands": commands,
        "config": str(CONFIGURATION),
        "runtime": runc,
        "prefix": str(launcher.parent),
    }


def choose(only: str, adapters: Sequence[Adapter]) -> list[cases.Case]:
    """Return the main cases whose names begin so, with those that they are measured against, and the floor."""
    everything = [*cases.MAIN, *(case for adapter in adapters for case in adapter.cases())]
    chosen = [case for case in everything if case.name.startswith(only)]
    needed = {cases.FLOOR.name, *(case.above for case in chosen), *(case.name for case in chosen)}
    return [case for case in everything if case.name in needed]


def measure(machines: Machines, options: argparse.Namespace, main_cases: list[cases.Case]) -> results.Measured:
    """Run main cases and growth, each in rounds of random order."""
    measured = results.Measured(machine=results.describe_machine(options.interpreter))
    order = random.Random(options.seed)
    plans = [(main_cases, options.rounds)]
    if options.growth_rounds:
        plans.append((list(cases.growth()), options.growth_rounds))
    measured.cases = {case.name: case for chosen, _ in plans for case in chosen}
    timed = [([case for case in chosen if case is not cases.FLOOR], rounds) for chosen, rounds in plans]
    with results.progress(sum(len(chosen) * rounds for chosen, rounds in timed)) as advance:
        for chosen, rounds in timed:
            for case in (cases.FLOOR, *chosen):
                machines.ask("prepare", case.as_mapping())
                run_case(machines, case)
            for _ in range(rounds):
                for case in order.sample(chosen, len(chosen)):
                    measure_beside_floor(machines, case, measured)
                    advance(case.title)
    for case in main_cases:
        if case.group in {"floor", "hook"}:
            measured.memory[case.name] = int(machines.ask("memory", case.as_mapping())["kibibytes"])
    return measured


def measure_beside_floor(machines: Machines, case: cases.Case, measured: results.Measured) -> None:
    """Time the floor, what the case is counted above, and the case, one right after the other.

    A virtual machine is slower by half from one moment to the next, as its neighbours work: what is compared has to be
    of the same moment.
    """
    floor = run_case(machines, cases.FLOOR)
    base = run_case(machines, measured.cases[case.above]) if case.above else None
    measured.add(case, run_case(machines, case), floor, base)


def run_case(machines: Machines, case: cases.Case) -> results.Sample:
    """Time one run; raises WorkerError where it failed, because a failure is fast and would look like a success."""
    answer = machines.ask("time", case.as_mapping())
    if answer["code"]:
        raise WorkerError(f"{case.name} ended with {answer['code']}: {answer['message']}")
    return results.Sample(answer["milliseconds"], answer["processor"])


if __name__ == "__main__":
    sys.exit(main())
