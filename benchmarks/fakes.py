"""python -m benchmarks.fakes: how long a fake machine takes to stand, whole processes, beside the interpreter's floor.

Belongs here: the start of machines in both lanes. Does not belong here: what an injector costs (cases.py). The first
start compiles the libraries and is not counted.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

MACHINES = ("no-driver", "t4", "two-h100", "h100x8", "h100x16", "mig-a100")


def measure(command: Sequence[str], rounds: int) -> list[float]:
    """Return the milliseconds of each run of a command that must succeed."""
    times = []
    for _ in range(rounds + 1):
        before = time.perf_counter()
        subprocess.run(command, check=True)
        times.append((time.perf_counter() - before) * 1000)
    return times[1:]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print least, median and most of each case; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fakes", description="How long a fake machine takes to stand."
    )
    parser.add_argument("--rounds", type=int, default=11, help="runs of each case (default: %(default)s)")
    parser.add_argument("--lane", choices=("root", "rootless"), default="root")
    options = parser.parse_args(arguments)
    cases = {"interpreter": [sys.executable, "-c", "pass"]}
    for name in MACHINES:
        cases[name] = [sys.executable, "-m", "nvfakes", "run", name, "--lane", options.lane, "--", "true"]
    print(f"{'case':<12} {'least':>7} {'median':>7} {'most':>7}  ms, lane {options.lane}")
    for name, command in cases.items():
        times = measure(command, options.rounds)
        print(f"{name:<12} {min(times):7.1f} {statistics.median(times):7.1f} {max(times):7.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
