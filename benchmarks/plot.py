"""Plots as SVG: time against size, one line each.

Belongs here: drawing. Does not belong here: what is drawn (results.py).
"""

from collections.abc import Sequence
from html import escape
from math import log10

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 360, 56, 44, 34, 16
STYLE = "text{font:12px sans-serif;fill:#333}.grid{stroke:#eee}.line{fill:none;stroke:#2a6;stroke-width:2}"

Point = tuple[float, float]


def line_plot(title: str, axis: str, points: Sequence[Point], floor: float) -> str:
    """Return a plot of milliseconds against sizes, with the floor as a dashed line."""
    highest = nice(max(y for _, y in points) * 1.1)
    place = _Places([x for x, _ in points], highest)
    parts = [_head(title)]
    for step in range(6):
        value = highest * step / 5
        y = place.y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    parts.append(_dashed(place.y(floor), f"floor {floor:.1f} ms"))
    spots = " ".join(f"{place.x(x):.1f},{place.y(y):.1f}" for x, y in points)
    parts.append(f'<polyline class="line" points="{spots}"/>')
    for x, y in points:
        parts.append(f'<circle cx="{place.x(x):.1f}" cy="{place.y(y):.1f}" r="3" fill="#2a6"/>')
        parts.append(f'<text x="{place.x(x):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(axis)}</text>')
    parts.append(f'<text x="12" y="{TOP - 8}">ms</text></svg>')
    return "\n".join(parts) + "\n"


def bar_plot(title: str, bars: Sequence[tuple[str, float, float | None]]) -> str:
    """Return a plot of ratios: label, value, limit."""
    height = TOP + 24 * len(bars) + 20
    widest = max(max(value, limit or 0) for _, value, limit in bars) * 1.1
    scale = (WIDTH - 300 - RIGHT) / widest
    parts = [_head(title, height)]
    for number, (label, value, limit) in enumerate(bars):
        y = TOP + 24 * number
        colour = "#c44" if limit is not None and value > limit else "#2a6"
        parts.append(f'<text x="290" y="{y + 13}" text-anchor="end">{escape(label)}</text>')
        parts.append(f'<rect x="300" y="{y}" width="{max(value, 0) * scale:.1f}" height="18" fill="{colour}"/>')
        parts.append(f'<text x="{304 + max(value, 0) * scale:.1f}" y="{y + 13}">{value:.2f}</text>')
        if limit is not None:
            x = 300 + limit * scale
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 2}" y2="{y + 20}" stroke="#333"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def nice(value: float) -> float:
    """Return the next number of the kind 1, 2, 5 times a power of ten."""
    power = 10.0 ** int(log10(value) if value >= 1 else log10(value) - 1)
    return next(step * power for step in (1, 2, 5, 10, 20) if step * power >= value)


class _Places:
    """Where values lie: sizes over more than a hundredfold on a logarithmic scale."""

    def __init__(self, sizes: Sequence[float], highest: float) -> None:
        self._logarithmic = min(sizes) > 0 and max(sizes) / min(sizes) > 100
        low, high = self._scale(min(sizes)), self._scale(max(sizes))
        self._low, self._span = low, (high - low) or 1.0
        self._highest = highest

    def _scale(self, size: float) -> float:
        return log10(size) if self._logarithmic else size

    def x(self, size: float) -> float:
        """Return the place of a size."""
        return LEFT + 16 + (self._scale(size) - self._low) / self._span * (WIDTH - LEFT - RIGHT - 32)

    def y(self, value: float) -> float:
        """Return the place of a time."""
        return HEIGHT - BOTTOM - value / self._highest * (HEIGHT - BOTTOM - TOP)


def _head(title: str, height: float = HEIGHT) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">'
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{WIDTH / 2}" y="18" text-anchor="middle" font-weight="bold">{escape(title)}</text>'
    )


def _dashed(y: float, label: str) -> str:
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#999" stroke-dasharray="4 4"/>'
        f'<text x="{WIDTH - RIGHT}" y="{y - 4:.1f}" text-anchor="end">{escape(label)}</text>'
    )
