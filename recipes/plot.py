"""Line charts as SVG, which needs no package and any browser shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

Points = Sequence[tuple[float, float]]

_COLORS: Final = ("#2563eb", "#dc2626", "#16a34a", "#9333ea", "#d97706", "#0891b2", "#525252")
_LEFT: Final = 52.0
_RIGHT: Final = 16.0
_TOP: Final = 30.0
_BOTTOM: Final = 44.0


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over one pair of axes. A curve of one point is a dot."""

    title: str
    curves: Mapping[str, Points]
    """By name; with one curve alone no name is drawn."""
    across: str
    """What the horizontal axis is, with its unit."""
    up: str = ""
    from_zero: bool = False
    """The vertical axis begins at zero; else just below the lowest point."""
    limit: tuple[str, float] | None = None
    """A dashed line at a height, and its name."""
    width: int = 640
    height: int = 300


def document(charts: Sequence[Chart]) -> str:
    """An SVG file with the charts one below the other. Raises ValueError for one without points."""
    width, height = max(chart.width for chart in charts), sum(chart.height for chart in charts)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    top = 0
    for chart in charts:
        parts += [f'<g transform="translate(0 {top})">', *_Drawing(chart).parts(), "</g>"]
        top += chart.height
    return "\n".join([*parts, "</svg>"]) + "\n"


def ticks(low: float, high: float, most: int = 8) -> list[float]:
    """Round numbers from `low` to `high`, at most `most` steps apart: 1, 2 or 5 times a power."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


class _Drawing:
    def __init__(self, chart: Chart) -> None:
        points = [point for curve in chart.curves.values() for point in curve]
        if not points:
            raise ValueError(f"{chart.title}: no points")
        heights = [y for _, y in points] + ([chart.limit[1]] if chart.limit else [])
        self._chart = chart
        self._x = _span(min(x for x, _ in points), max(x for x, _ in points))
        low, high = _span(min(heights), max(heights))
        self._y = (0.0 if chart.from_zero else low - 0.05 * (high - low), high)

    def parts(self) -> list[str]:
        """The axes, then the curves."""
        chart = self._chart
        parts = [f'<text x="{_LEFT}" y="18" font-weight="bold">{escape(chart.title)}</text>']
        right, bottom = chart.width - _RIGHT, chart.height - _BOTTOM
        for value in ticks(*self._y):
            y = self._place(self._x[0], value)[1]
            parts += [
                f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#e5e7eb"/>',
                f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>',
            ]
        for value in ticks(*self._x):
            x = self._place(value, self._y[0])[0]
            parts.append(
                f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>'
            )
        parts += [
            f'<path d="M{_LEFT} {bottom}H{right}" stroke="#6b7280"/>',
            f'<text x="{right}" y="{bottom + 34}" text-anchor="end">{escape(chart.across)}</text>',
            f'<text x="{_LEFT}" y="{bottom + 34}">{escape(chart.up)}</text>',
        ]
        if chart.limit is not None:
            name, value = chart.limit
            y = self._place(self._x[0], value)[1]
            parts += [
                f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#6b7280" stroke-dasharray="5 4"/>',
                f'<text x="{right}" y="{y - 5:.1f}" text-anchor="end" fill="#6b7280">'
                f"{escape(name)}</text>",
            ]
        for number, (name, points) in enumerate(chart.curves.items()):
            parts += self._curve(number, name, sorted(points))
        return parts

    def _curve(self, number: int, name: str, points: Points) -> list[str]:
        color = _COLORS[number % len(_COLORS)]
        places = [self._place(*point) for point in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts = [f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6"/>']
        if len(places) <= 30:
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places
            ]
        if len(self._chart.curves) > 1:
            y = _TOP + 14 + 16 * number
            parts += [
                f'<path d="M{_LEFT + 12} {y - 4}h18" stroke="{color}" stroke-width="3"/>',
                f'<text x="{_LEFT + 36}" y="{y}">{escape(name)}</text>',
            ]
        return parts

    def _place(self, x: float, y: float) -> tuple[float, float]:
        chart = self._chart
        (left, right), (low, high) = self._x, self._y
        across = (x - left) / (right - left) * (chart.width - _LEFT - _RIGHT)
        up = (y - low) / (high - low) * (chart.height - _TOP - _BOTTOM)
        return _LEFT + across, chart.height - _BOTTOM - up


def _span(low: float, high: float) -> tuple[float, float]:
    """Never empty."""
    return (low, high) if high > low else (low, low + (abs(low) or 1.0))
