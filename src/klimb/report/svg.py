"""A small chart kit: panels with axes, and the marks that go on them, as SVG.

Marks carry classes, not colours. What matters is never told by colour alone, every dot has a tooltip with its numbers,
and every text passes through `escape`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape as escape_html
from itertools import groupby
from pathlib import Path

from klimb.errors import width
from klimb.report.text import visible

CHARACTER = 6.3  # width of an average character at the font size of labels, with room
PAGE_STYLE, CHART_STYLE, CHART_THEME = (Path(__file__).with_name(f"{name}.css").read_text(encoding="utf-8").strip()
                                        for name in ("page", "chart", "theme"))


def escape(text: str) -> str:
    """Text made safe between tags and in attributes; control characters, which XML forbids, are shown as escapes."""
    return escape_html(visible(text), quote=True)


def shorten(text: str, columns: int) -> str:
    """At most so many columns of text, the end replaced by an ellipsis."""
    text = visible(text)
    if width(text) <= columns:
        return text
    kept = ""
    for letter in text:
        if width(kept + letter) > columns - 1:
            break
        kept += letter
    return kept + "…"


class Panel:
    """One chart under construction: two scales, and the marks drawn so far, from the bottom up."""

    def __init__(self, x: "AxisScale", y: "AxisScale", size: tuple[float, float], title: str,
                 description: str = "") -> None:
        self.x, self.y, self.size, self.title, self.description = x, y, size, title, description
        self.parts: list[str] = []

    def x_axis(self, label: str = "", count: int = 5, grid: bool = True, whole: bool = False) -> None:
        bottom, top = self.y.start, self.y.end
        ticks = self.x.ticks(count)
        if whole:  # things that are counted have no halves
            ticks = [(value, f"{value:.0f}") for value, _ in ticks if value == round(value)]
        for value, text in ticks:
            at = self.x(value)
            if grid:
                self.segment(at, bottom, at, top, "grid")
            self.text(at, bottom + 15, text, "middle", "soft")
        self.segment(self.x.start, bottom, self.x.end, bottom, "axis")
        if label:
            room = int((self.x.end - self.x.start) / CHARACTER)
            self.text((self.x.start + self.x.end) / 2, bottom + 31, shorten(label, room), "middle", "name", full=label)

    def y_axis(self, label: str = "", count: int = 4) -> None:
        for value, text in self.y.ticks(count):
            at = self.y(value)
            self.segment(self.x.start, at, self.x.end, at, "grid")
            self.text(self.x.start - 7, at + 3.8, text, "end", "soft")
        if label:  # above the axis, not beside it: no turned text
            room = int((self.size[0] - 4) / CHARACTER)
            self.text(2, self.y.end - 11, shorten(label, room), "start", "name", full=label)

    def levels(self, names: Sequence[str], label: str = "") -> None:
        """An x axis of levels at 0, 1, 2, ...; crowded names are shortened, then thinned."""
        bottom = self.y.start
        step = abs(self.x(1.0) - self.x(0.0)) if len(names) > 1 else self.x.end - self.x.start
        every = max(1, math.ceil(24.0 / step))
        for index, name in enumerate(names):
            if index % every == 0:
                short = shorten(name, max(3, int(every * step / CHARACTER)))
                self.text(self.x(float(index)), bottom + 15, short, "middle", "soft", full=name)
        self.segment(self.x.start, bottom, self.x.end, bottom, "axis")
        if label:
            self.text((self.x.start + self.x.end) / 2, bottom + 31, shorten(label, 40), "middle", "name", full=label)

    def line(self, x: Sequence[float], y: Sequence[float], kind: str = "line") -> None:
        for run in _finite_runs(x, y):
            points = " ".join(f"{self.x(x[i]):.1f},{self.y.clip(y[i]):.1f}" for i in run)
            self.parts.append(f'<polyline class="{kind}" points="{points}"/>')

    def band(self, x: Sequence[float], lower: Sequence[float], upper: Sequence[float]) -> None:
        for run in _finite_runs(x, lower, upper):
            there = [f"{self.x(x[i]):.1f},{self.y.clip(upper[i]):.1f}" for i in run]
            back = [f"{self.x(x[i]):.1f},{self.y.clip(lower[i]):.1f}" for i in reversed(run)]
            self.parts.append(f'<polygon class="band" points="{" ".join(there + back)}"/>')
            self.parts.append(f'<polyline class="edge" points="{" ".join(there)}"/>')
            self.parts.append(f'<polyline class="edge" points="{" ".join(back)}"/>')

    def dot(self, x: float, y: float, tip: str, radius: float = 4.0) -> None:
        if math.isfinite(x) and math.isfinite(y):
            self.parts.append(f'<circle class="dot" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{radius:.1f}">'
                              f"<title>{escape(tip)}</title></circle>")

    def across(self, y: float, low: float, high: float, mean: float, tip: str) -> None:
        """A dot on a horizontal interval; ends beyond the axis become arrows."""
        at = self.y(y)
        self.segment(self.x.clip(low), at, self.x.clip(high), at, "whisker")
        for end, beyond, turn in ((self.x.start, low < self.x.low, -1), (self.x.end, high > self.x.high, 1)):
            if beyond:
                self.parts.append(f'<path class="arrow" d="M{end + 5 * turn:.1f} {at:.1f}l{-6 * turn} -4.5v9z"/>')
        if self.x.low <= mean <= self.x.high:
            self.dot(mean, y, tip, 3.9)

    def upright(self, x: float, low: float, high: float, kind: str = "whisker") -> None:
        self.segment(self.x(x), self.y.clip(low), self.x(x), self.y.clip(high), kind)

    def rug(self, values: Sequence[float]) -> None:
        """A tick for each value, as one path."""
        places = sorted({round(self.x(value), 1) for value in values if self.x.low <= value <= self.x.high})
        if places:
            path = "".join(f"M{place:.1f} {self.y.start:.1f}v-6" for place in places)
            self.parts.append(f'<path class="rug" d="{path}"/>')

    def segment(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.parts.append(f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def box(self, x: float, y: float, wide: float, high: float, tip: str, kind: str = "bar") -> None:
        self.parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(wide, 0):.1f}"'
                          f' height="{max(high, 0):.1f}"><title>{escape(tip)}</title></rect>')

    def text(self, x: float, y: float, text: str, anchor: str = "start", kind: str = "", full: str = "") -> None:
        tip = f"<title>{escape(full)}</title>" if full and full != text else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">'
                          f"{escape(text)}{tip}</text>")

    def svg(self) -> str:
        about = f"<desc>{escape(self.description)}</desc>" if self.description else ""
        return (f'<svg class="chart" viewBox="0 0 {self.size[0]:g} {self.size[1]:g}" role="img" '
                f'aria-label="{escape(self.title)}">{about}{"".join(self.parts)}</svg>')


def standalone(chart: str) -> str:
    """A chart as a file of its own: with its style inside, light or dark as the viewer is."""
    style = f'<style>{CHART_THEME}{CHART_STYLE}svg{{background:var(--paper)}}</style>'
    head, _, rest = chart.partition(">")
    head = head.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}>{style}{rest}\n'


def side_by_side(charts: Sequence[str], across: int = 2, gap: float = 18.0) -> str:
    """Several charts in one file, ``across`` in a row, each keeping its size."""
    sizes = [tuple(float(part) for part in chart.split('viewBox="', 1)[1].split('"', 1)[0].split()[2:])
             for chart in charts]
    wide, high = (max((size[axis] for size in sizes), default=1.0) for axis in (0, 1))
    columns = max(1, min(across, len(charts)))
    rows = -(-max(len(charts), 1) // columns)
    placed = []
    for i, chart in enumerate(charts):
        x, y = gap + (i % columns) * (wide + gap), gap + (i // columns) * (high + gap)
        frame = f'<svg x="{x:g}" y="{y:g}" width="{sizes[i][0]:g}" height="{sizes[i][1]:g}"'
        placed.append(chart.replace("<svg", frame, 1))
    total = (gap + columns * (wide + gap), gap + rows * (high + gap))
    return standalone(f'<svg viewBox="0 0 {total[0]:g} {total[1]:g}" width="{total[0]:g}" height="{total[1]:g}">'
                      f"{''.join(placed)}</svg>")


def _finite_runs(*columns: Sequence[float]) -> list[list[int]]:
    """Stretches of rows in which all columns are finite: a line has gaps where numbers are missing."""
    finite = [all(map(math.isfinite, row)) for row in zip(*columns, strict=True)]
    return [list(run) for whole, run in groupby(range(len(finite)), finite.__getitem__) if whole]


@dataclass(frozen=True, slots=True)
class AxisScale:
    """Maps [low, high] to [start, end]; ``start`` may be the larger (heights grow upwards, SVG counts downwards)."""
    low: float
    high: float
    start: float
    end: float
    log: bool = False  # low and high are then exponents of ten, and so are the values to be placed

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def clip(self, value: float) -> float:
        """The place of ``value``, or the nearer end for values beyond the scale."""
        return self(min(max(value, self.low), self.high))

    def ticks(self, count: int = 5) -> list[tuple[float, str]]:
        """About ``count`` values with their labels."""
        if self.log:
            return _decades(self.low, self.high, count)
        values = round_numbers(self.low, self.high, count)
        return list(zip(values, labels(values), strict=True))


def span(values: Iterable[float], include: Iterable[float] = (), pad: float = 0.04) -> tuple[float, float]:
    """An interval that holds all finite values with a little room, never empty."""
    found = [float(value) for value in (*values, *include) if math.isfinite(value)]
    low, high = (min(found), max(found)) if found else (-1.0, 1.0)
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        half = 0.5 * abs(low) or 1.0
        low, high = low - half, high + half
    room = pad * (high - low)
    return low - room, high + room


def round_numbers(low: float, high: float, count: int = 5) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten that lie in [low, high], about ``count`` of them."""
    rough = (high - low) / max(count, 1)
    power = math.floor(math.log10(rough))
    scale = 10.0**power
    # Quarters read well, but between whole numbers (steps of 2.5) they do not.
    factors = (1.0, 2.0, 5.0, 10.0) if power == 0 else (1.0, 2.0, 2.5, 5.0, 10.0)
    step = min((factor * scale for factor in factors), key=lambda size: abs(math.log(size / rough)))
    slack = 1e-9 * step
    first, last = math.ceil((low - slack) / step), math.floor((high + slack) / step)
    places = max(2 - power, 0)
    return [round(index * step, places) if places < 300 else index * step for index in range(first, last + 1)]


def labels(values: list[float]) -> list[str]:
    """One format for all ticks of an axis."""
    largest = max((abs(value) for value in values), default=0.0)
    if largest >= 1e5 or 0.0 < largest < 1e-3:
        return [_power(value) for value in values]
    places = next(places for places in range(12)
                  if all(abs(value - round(value, places)) <= 1e-9 * max(largest, 1e-300) for value in values))
    return ["0" if value == 0.0 else f"{value:.{places}f}" for value in values]


def _power(value: float) -> str:
    if value == 0.0:
        return "0"
    digits, power = f"{value:.6e}".split("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def _decades(low: float, high: float, count: int) -> list[tuple[float, str]]:
    first, last = math.ceil(low - 1e-9), math.floor(high + 1e-9)
    every = max(1, math.ceil((last - first + 1) / max(count, 1)))
    return [(float(power), "1" if power == 0 else "10" if power == 1 else f"1e{power}")
            for power in range(first, last + 1, every)]
