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
from typing import Any

from benchmarks import plot
from benchmarks.cases import Case

MEMORY_LIMIT = 16 << 10  # KiB, for the hook


@dataclass
class Measured:
    """All samples of a run, by case: milliseconds on the clock and of processor time."""

    machine: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    processor: dict[str, list[float]] = field(default_factory=dict)
    cases: dict[str, Case] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)

    def add(self, case: Case, milliseconds: float, processor: float) -> None:
        """Keep one sample."""
        self.samples.setdefault(case.name, []).append(milliseconds)
        self.processor.setdefault(case.name, []).append(processor)

    def median(self, name: str) -> float:
        """Return the median of a case in milliseconds."""
        return statistics.median(self.samples[name])

    def ratio(self, case: Case) -> float:
        """Return the median as a multiple of the floor, less that of the case above which it is counted."""
        base = self.median(case.above) if case.above else 0.0
        return (self.median(case.name) - base) / self.median("floor")

    def processor_ratio(self, case: Case) -> float:
        """Return the same for processor time, which other work on the machine disturbs less."""
        base = statistics.median(self.processor[case.above]) if case.above else 0.0
        return (statistics.median(self.processor[case.name]) - base) / statistics.median(self.processor["floor"])

    def rows(self) -> list[dict[str, Any]]:
        """Return one mapping a case."""
        return [self._row(case) for case in self.cases.values() if case.name in self.samples]

    def _row(self, case: Case) -> dict[str, Any]:
        values = sorted(self.samples[case.name])
        quarter = len(values) // 4
        return {
            "name": case.name,
            "title": case.title,
            "runs": len(values),
            "median": round(self.median(case.name), 3),
            "low": round(values[quarter], 3),
            "high": round(values[-1 - quarter], 3),
            "ratio": round(self.ratio(case), 2),
            "processor_ratio": round(self.processor_ratio(case), 2),
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
    document = {"machine": measured.machine, "cases": rows, "samples": measured.samples}
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
