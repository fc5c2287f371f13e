"""Numbers: medians, ratios to the floor, and their forms as JSON, table and plots.

Belongs here: arithmetic and text. Does not belong here: measuring, how a plot is drawn (plot.py).
"""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import plot
from benchmarks.cases import FLOOR, Case

MEMORY_LIMIT = 16 << 10  # KiB, for the hook


class Sample(NamedTuple):
    """One run: milliseconds on the clock and of processor time."""

    clock: float
    processor: float


@dataclass
class Measured:
    """All samples of a run by case, and the ratio of each to the floor that was measured right before it."""

    machine: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    ratios: dict[str, list[Sample]] = field(default_factory=dict)
    cases: dict[str, Case] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)

    def add(self, case: Case, sample: Sample, floor: Sample, base: Sample | None) -> None:
        """Keep one sample of a case, with those of the floor and of what the case is counted above."""
        above = base or Sample(0.0, 0.0)
        self.samples.setdefault(case.name, []).append(sample)
        self.samples.setdefault(FLOOR.name, []).append(floor)
        self.ratios.setdefault(case.name, []).append(
            Sample((sample.clock - above.clock) / floor.clock, (sample.processor - above.processor) / floor.processor)
        )

    def median(self, name: str) -> float:
        """Return the median of a case in milliseconds on the clock."""
        return statistics.median(sample.clock for sample in self.samples[name])

    def ratio(self, case: Case) -> Sample:
        """Return the medians of a case's multiples of the floor, less that of the case above which it is counted."""
        if case is FLOOR:
            return Sample(1.0, 1.0)
        found = self.ratios[case.name]
        return Sample(
            statistics.median(ratio.clock for ratio in found), statistics.median(ratio.processor for ratio in found)
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return one mapping a case."""
        return [self._row(case) for case in self.cases.values() if case.name in self.samples]

    def _row(self, case: Case) -> dict[str, Any]:
        values = sorted(sample.clock for sample in self.samples[case.name])
        quarter = len(values) // 4
        ratio = self.ratio(case)
        return {
            "name": case.name,
            "title": case.title,
            "runs": len(values),
            "median": round(self.median(case.name), 3),
            "low": round(values[quarter], 3),
            "high": round(values[-1 - quarter], 3),
            "ratio": round(ratio.clock, 2),
            "processor_ratio": round(ratio.processor, 2),
            "limit": case.limit,
            "kibibytes": self.memory.get(case.name),
            "axis": case.axis,
        }


def describe_machine(interpreter: str) -> dict[str, Any]:
    """Return what the numbers depend on."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M %Z"),
        "processor": models[0].partition(":")[2].strip() if models else platform.machine(),
        "processors": os.cpu_count(),
        "kernel": platform.release(),
        "interpreter": interpreter,
        "python": sys.version.split()[0],
        "load": os.getloadavg()[0],
    }


def write(measured: Measured, directory: Path) -> None:
    """Write results.json, results.txt and the plots."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = measured.rows()
    document = {"machine": measured.machine, "cases": rows, "samples": measured.samples, "ratios": measured.ratios}
    (directory / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    (directory / "results.txt").write_text(table(measured))
    floor = measured.median("floor")
    bars = [(row["title"], row["ratio"], row["limit"]) for row in rows if row["axis"] is None]
    (directory / "ratios.svg").write_text(plot.bar_plot("multiples of the floor (bars: limits)", bars))
    axes: dict[str, list[plot.Point]] = {}
    for row in rows:
        if row["axis"] is not None:
            axes.setdefault(row["axis"][0], []).append((row["axis"][1], row["median"]))
    for axis, points in axes.items():
        name = "growth-" + "-".join(axis.replace("(", "").replace(")", "").split()) + ".svg"
        (directory / name).write_text(plot.line_plot(f"time against {axis}", axis, sorted(points), floor))


def table(measured: Measured) -> str:
    """Return the medians as a table in plain text."""
    lines = [", ".join(f"{key} {value}" for key, value in measured.machine.items())]
    lines.append(f"{'case':<50}{'ms':>8}{'25 %':>8}{'75 %':>8}{'x floor':>9}{'(cpu)':>8}{'limit':>7}{'MiB':>7}")
    for row in measured.rows():
        limit = "" if row["limit"] is None else f"{row['limit']:.1f}"
        memory = "" if row["kibibytes"] is None else f"{row['kibibytes'] / 1024:.1f}"
        numbers = f"{row['median']:>8.2f}{row['low']:>8.2f}{row['high']:>8.2f}"
        ratios = f"{row['ratio']:>9.2f}{row['processor_ratio']:>8.2f}"
        lines.append(f"{row['title']:<50}{numbers}{ratios}{limit:>7}{memory:>7}{' !' if missed(row) else ''}")
    return "\n".join(lines) + "\n"


def missed(row: dict[str, Any]) -> bool:
    """Tell whether a case is over one of its limits."""
    is_hook = row["name"].startswith("hook") and "/" not in row["name"]
    too_large = is_hook and row["kibibytes"] is not None and row["kibibytes"] >= MEMORY_LIMIT
    return too_large or (row["limit"] is not None and row["ratio"] > row["limit"])


@contextmanager
def progress(total: int) -> "Iterator[Callable[[str], None]]":
    """Show how far a run is, where rich is installed."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield lambda _title: None
        return
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("benchmarks", total=total)
        yield lambda title: bar.update(task, advance=1, description=title[:44])
