"""Draw lines over one axis as SVG for a page, without a library or a script: units on the axes, lanes for zero and for NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sonde.answer.table import Tone
from sonde.escape import escape_html, printable_line
from sonde.words import number_text

_WIDTH, _HEIGHT = 860.0, 270.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, 850.0, 48.0, 222.0
_LANE = 26.0  # height of the lane for exact zeros, and of that for values that are not finite
_MOST_DOTS = 240
_TICKS = 5
_NARROW = 0.7  # decades below which a logarithmic axis has the ticks of a plain one
_LETTER = 7.2  # width of one, about
_LARGEST = 1e307  # at the ends of an axis


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its name in the legend, its values over the chart's ``x``, and its look; a limit is dashed and has no dots."""

    name: str
    values: Sequence[float]
    look: Literal["one", "other", "limit"] = "one"


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at *x* with a text."""

    x: float
    text: str
    tone: Tone = "bad"


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over one axis.

    Attributes:
        x: of the values, ascending.
        lines: drawn in this order; each has a value for every x.
        x_label, y_label: what the axes show, with the unit.
        log: the y axis is logarithmic, which its label says. Exact zeros lie in a lane of their own below it.
        marks: vertical lines.
        bands: stretches of the x axis with a name: first x, last x, name.
        names: of each x, shown where the pointer rests on a dot.
    """

    x: Sequence[float]
    lines: Sequence[Line]
    x_label: str
    y_label: str
    log: bool = False
    marks: Sequence[Mark] = ()
    bands: Sequence[tuple[float, float, str]] = ()
    names: Sequence[str] = ()

    def to_svg(self) -> str:
        """Return the picture as an ``svg`` element; its colours are those of the page around it."""
        return _Drawing(self).svg()


class _Drawing:
    """The picture while it is drawn: the scales, and the elements so far."""

    def __init__(self, chart: Chart) -> None:
        self._chart = chart
        held = [value for line in chart.lines for value in line.values]
        self._has_zeros = chart.log and any(value == 0 for value in held)
        self._has_lost = any(not math.isfinite(value) for value in held)
        shown = [value for value in held if math.isfinite(value) and (value > 0 or not chart.log)]
        self._low, self._high = _ends(shown, chart.log)
        self._top = _TOP + (_LANE if self._has_lost else 0)
        self._bottom = _BOTTOM - (_LANE if self._has_zeros else 0)
        first, last = (chart.x[0], chart.x[-1]) if chart.x else (0.0, 1.0)
        self._first, self._span = first, (last - first) or 1.0
        self._parts: list[str] = []

    def svg(self) -> str:
        chart = self._chart
        self._draw_bands()
        self._draw_axes()
        for mark in chart.marks:
            self._draw_mark(mark)
        for line in chart.lines:
            self._draw_line(line)
        self._draw_legend()
        label = f"{chart.y_label} over {chart.x_label}: {', '.join(line.name for line in chart.lines)}"
        return (
            f'<svg class="chart" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{escape_html(label)}">'
            f"{''.join(self._parts)}</svg>"
        )

    def _across(self, x: float) -> float:
        return _LEFT + 8 + (_RIGHT - _LEFT - 16) * (x - self._first) / self._span

    def _down(self, value: float) -> float:
        """The height of *value*; that of its lane where it has no place on the axis."""
        if not math.isfinite(value):
            return _TOP + _LANE / 2
        if self._chart.log and value <= 0:
            return _BOTTOM - _LANE / 2
        low, high, at = (
            math.log10(each) if self._chart.log else each
            for each in (self._low, self._high, min(max(value, self._low), self._high))
        )
        return self._bottom - (self._bottom - self._top) * ((at - low) / (high - low))

    def _is_on_axis(self, value: float) -> bool:
        return math.isfinite(value) and (value > 0 or not self._chart.log)

    def _text(self, x: float, y: float, text: str, anchor: str = "start", classes: str = "") -> None:
        marked = f' class="{classes}"' if classes else ""
        held = escape_html(printable_line(text))
        self._parts.append(f'<text{marked} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{held}</text>')

    def _rule(self, x1: float, y1: float, x2: float, y2: float, classes: str) -> None:
        self._parts.append(f'<line class="{classes}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def _draw_bands(self) -> None:
        for place, (first, last, name) in enumerate(self._chart.bands):
            left, right = self._across(first) - 4, self._across(last) + 4
            shade = "band odd" if place % 2 else "band"
            size = f'width="{max(right - left, 2):.1f}" height="{_BOTTOM - _TOP:.1f}"'
            self._parts.append(f'<rect class="{shade}" x="{left:.1f}" y="{_TOP:.1f}" {size}/>')
            if right - left > _LETTER * len(name):
                self._text((left + right) / 2, _TOP - 6, name, "middle", "quiet")

    def _draw_axes(self) -> None:
        for value in _ticks(self._low, self._high, self._chart.log):
            at = self._down(value)
            self._rule(_LEFT, at, _RIGHT, at, "grid")
            self._text(_LEFT - 8, at + 4, number_text(value), "end")
        if self._has_zeros:
            self._rule(_LEFT, self._bottom + 1, _RIGHT, self._bottom + 1, "lane")
            self._text(_LEFT - 8, _BOTTOM - _LANE / 2 + 4, "0", "end")
        if self._has_lost:
            self._rule(_LEFT, self._top - 1, _RIGHT, self._top - 1, "lane")
            self._text(_LEFT - 8, _TOP + _LANE / 2 + 4, "not finite", "end")
        self._rule(_LEFT, _BOTTOM, _RIGHT, _BOTTOM, "axis")
        chart = self._chart
        if chart.x:
            ends = [value for value in _ticks(chart.x[0], chart.x[-1], False) if chart.x[0] <= value <= chart.x[-1]]
            for value in ends if chart.x[-1] > chart.x[0] else [chart.x[0]]:
                self._rule(self._across(value), _BOTTOM, self._across(value), _BOTTOM + 4, "axis")
                self._text(self._across(value), _BOTTOM + 18, f"{value:,.6g}", "middle")
        self._text((_LEFT + _RIGHT) / 2, _HEIGHT - 8, chart.x_label, "middle", "quiet")
        self._text(4, 16, f"{chart.y_label}{', logarithmic' if chart.log else ''}", "start", "quiet")

    def _draw_mark(self, mark: Mark) -> None:
        at = self._across(mark.x)
        self._rule(at, _TOP, at, _BOTTOM, f"mark {mark.tone}")
        is_left = at + 8 + _LETTER * len(mark.text) > _RIGHT
        self._text(at - 6 if is_left else at + 6, self._top + 13, mark.text, "end" if is_left else "start", mark.tone)

    def _draw_line(self, line: Line) -> None:
        points = [
            (self._across(x), self._down(value), self._is_on_axis(value))
            for x, value in zip(self._chart.x, line.values, strict=True)
        ]
        path, before = [], False
        for x, y, on_axis in points:
            if on_axis:
                path.append(f"{'L' if before else 'M'}{x:.1f} {y:.1f}")
            before = on_axis
        self._parts.append(f'<path class="line {line.look}" d="{"".join(path)}"/>')
        if line.look == "limit" or len(points) > _MOST_DOTS:
            return
        for place, (x, y, _) in enumerate(points):
            value = line.values[place]
            name = self._chart.names[place] if self._chart.names else f"{self._chart.x[place]:,g}"
            tip = f"<title>{escape_html(printable_line(f'{name}: {number_text(value)} ({line.name})'))}</title>"
            if line.look == "other":
                self._parts.append(
                    f'<rect class="dot other" x="{x - 2.6:.1f}" y="{y - 2.6:.1f}" width="5.2" height="5.2">{tip}</rect>'
                )
            else:
                self._parts.append(f'<circle class="dot {line.look}" cx="{x:.1f}" cy="{y:.1f}" r="2.8">{tip}</circle>')

    def _draw_legend(self) -> None:
        right = _RIGHT
        for line in reversed(self._chart.lines):
            right -= _LETTER * len(line.name)
            self._text(right, 16, line.name)
            self._parts.append(f'<path class="line {line.look}" d="M{right - 34:.1f} 12H{right - 8:.1f}"/>')
            if line.look == "other":
                self._parts.append(f'<rect class="dot other" x="{right - 23.6:.1f}" y="9.4" width="5.2" height="5.2"/>')
            elif line.look == "one":
                self._parts.append(f'<circle class="dot one" cx="{right - 21:.1f}" cy="12" r="2.8"/>')
            right -= 52


def _ends(shown: Sequence[float], log: bool) -> tuple[float, float]:
    """Return the ends of the y axis: round numbers around *shown*."""
    if not shown:
        return (0.1, 1.0) if log else (0.0, 1.0)
    low, high = max(min(shown), -_LARGEST), min(max(shown), _LARGEST)
    if log:
        low, high = math.log10(low), math.log10(high)
        if high - low < _NARROW:
            middle, half = (low + high) / 2, max((high - low) * 0.6, 0.02)
            return 10 ** (middle - half), 10 ** (middle + half)
        return 10.0 ** math.floor(low + 1e-9), 10.0 ** math.ceil(high - 1e-9)
    step = _step(low, high)
    low, high = step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9)
    return (low, high) if low < high else (low - step, high + step)


def _step(low: float, high: float) -> float:
    """Return a round distance of ticks."""
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / _TICKS))
    return next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= _TICKS)


def _ticks(low: float, high: float, log: bool) -> list[float]:
    if log and high / low >= 10**_NARROW:
        first, last = round(math.log10(low)), round(math.log10(high))
        every = max(1, -(-(last - first) // _TICKS))
        found = [10.0**power for power in range(last, first - 1, -every)][::-1]
        return found if len(found) > 1 else [low, *found]
    step = _step(low, high)
    places = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [step * place for place in places]
