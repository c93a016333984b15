"""The charts of a report, each from one record."""

import math
from collections.abc import Sequence
from statistics import NormalDist

from klimb.errors import width
from klimb.report.records import BoundTrace, CalibrationBins, CoefficientRow, EffectCurve, GroupEffects, PitHistogram
from klimb.report.svg import CHARACTER, AxisScale, Panel, shorten, span
from klimb.report.text import percent, plain

WIDE, HIGH = 380.0, 250.0
INTERCEPT = "Intercept"


def _panel(x: tuple[float, float], y: tuple[float, float], title: str, description: str, *, log: bool = False,
           left: float = 46.0, bottom: float = 40.0) -> Panel:
    return Panel(AxisScale(*x, left, WIDE - 8.0), AxisScale(*y, HIGH - bottom, 30.0, log=log), (WIDE, HIGH), title,
                 description)


def effect_chart(curve: EffectCurve) -> str:
    """The effect of one column: a line in its band, or a dot with an interval per level."""
    inside = [value for value in (*curve.lower, *curve.upper) if math.isfinite(value)]
    y = span(inside, curve.center)
    title = f"Effect of {curve.name}"
    words = (f"{curve.y_label} against {curve.x_label}, with {percent(curve.level)} intervals, from"
             f" {plain(min(curve.center, default=0.0))} to {plain(max(curve.center, default=0.0))}. {curve.note}")
    if curve.categorical:
        count = len(curve.x)
        panel = _panel((-0.5, count - 0.5), y, title, words)
        panel.y_axis(curve.y_label)
        panel.levels([str(name) for name in curve.x], curve.x_label)
        counts = curve.counts or (0,) * count
        for index, (name, mean, low, high, rows) in enumerate(
                zip(curve.x, curve.center, curve.lower, curve.upper, counts, strict=True)):
            panel.upright(float(index), low, high)
            known = f", {rows} rows" if rows else ""
            panel.dot(float(index), mean, f"{name}: {plain(mean)} ({plain(low)} to {plain(high)}){known}", 4.5)
        return panel.svg()
    x = [float(value) for value in curve.x]
    panel = _panel(span(x, pad=0.0), y, title, words)
    panel.y_axis(curve.y_label)
    panel.x_axis(curve.x_label, grid=False)
    panel.rug(curve.rug)
    if len(x) == 1:  # a column that never changes
        panel.upright(x[0], curve.lower[0], curve.upper[0])
        panel.dot(x[0], curve.center[0], f"{plain(x[0])}: {plain(curve.center[0])}", 4.5)
        return panel.svg()
    panel.band(x, curve.lower, curve.upper)
    panel.line(x, curve.center)
    return panel.svg()


def coefficient_range(rows: Sequence[CoefficientRow]) -> tuple[float, float]:
    """An axis for coefficients that shows zero; the intercept, which may lie anywhere, does not stretch it."""
    shown = [row for row in rows if row.name != INTERCEPT] or list(rows)
    return span([value for row in shown for value in (row.lower, row.upper)], include=[0.0])


def interval_cell(row: CoefficientRow, limits: tuple[float, float]) -> str:
    """One coefficient as a strip, to stand in its row of a table; all strips of a table share their limits."""
    panel = Panel(AxisScale(*limits, 8.0, 232.0), AxisScale(0.0, 1.0, 22.0, 0.0), (240.0, 22.0),
                  f"interval of {row.name}")
    panel.segment(panel.x(0.0), 22.0, panel.x(0.0), 0.0, "ref")
    panel.across(0.5, row.lower, row.upper, row.mean, _tip(row))
    return panel.svg()


def axis_cell(limits: tuple[float, float]) -> str:
    """The axis below the strips."""
    panel = Panel(AxisScale(*limits, 8.0, 232.0), AxisScale(0.0, 1.0, 3.0, 0.0), (240.0, 20.0), "axis of the intervals")
    panel.x_axis(count=4, grid=False)
    return panel.svg()


def coefficient_chart(rows: Sequence[CoefficientRow], level: float, title: str = "Coefficients") -> str:
    """Dots with intervals, one row per coefficient, on one axis."""
    columns = min(max((width(row.name) for row in rows), default=1), 26)
    left = 12.0 + CHARACTER * columns
    bottom = 12.0 + 22.0 * len(rows)
    limits = coefficient_range(rows)
    panel = Panel(AxisScale(*limits, left, WIDE - 12.0), AxisScale(0.0, float(max(len(rows), 1)), 8.0, bottom),
                  (WIDE, bottom + 24.0), title, f"Posterior means and {percent(level)} intervals. "
                  + "; ".join(map(_tip, rows[:20])) + ("; ..." if len(rows) > 20 else "."))
    top, panel.y = panel.y, AxisScale(0.0, 1.0, bottom, 8.0)
    panel.x_axis()
    panel.y = top
    panel.segment(panel.x(0.0), 8.0, panel.x(0.0), bottom, "ref")
    for index, row in enumerate(rows):
        panel.text(left - 10.0, panel.y(index + 0.5) + 4.0, shorten(row.name, columns), "end", full=row.name)
        panel.across(index + 0.5, row.lower, row.upper, row.mean, _tip(row))
    return panel.svg()


def group_chart(group: GroupEffects, level: float) -> str:
    """The levels of a grouping factor, sorted by their mean."""
    rows = sorted(group.rows, key=lambda row: row.mean, reverse=True)
    return coefficient_chart(rows, level, title=f"Levels of {group.name}: {group.column}")


def _tip(row: CoefficientRow) -> str:
    return f"{row.name}: {plain(row.mean)} ({plain(row.lower)} to {plain(row.upper)})"


def bound_chart(trace: BoundTrace) -> str:
    """How far below its last value the bound was after each iteration, on a logarithmic axis; "" without a climb."""
    gaps = [trace.bound[-1] - value for value in trace.bound] if trace.bound else []
    points = [(index, math.log10(gap)) for index, gap in enumerate(gaps) if math.isfinite(gap) and gap > 0.0]
    if len(points) < 2:
        return ""
    x, y = span([0.0, float(len(gaps) - 1)], pad=0.02), span([height for _, height in points], pad=0.06)
    words = (f"The bound rose from {plain(trace.bound[0], 5)} to {plain(trace.bound[-1], 5)} in {len(gaps) - 1}"
             f" {trace.unit}s.")
    panel = _panel(x, y, f"Distance below the final bound, by {trace.unit}", words, log=True)
    panel.y_axis("nats below the final bound", 5)
    panel.x_axis(trace.unit, min(6, len(gaps)), grid=False, whole=True)
    panel.line([float(index) for index, _ in points], [height for _, height in points])
    rules = trace.rule or ("",) * len(gaps)
    for index, height in points:
        note = f" ({rules[index]})" if rules[index] and trace.unit == "iteration" else ""
        panel.dot(float(index), height, f"{trace.unit} {index}: {plain(10.0**height)} below{note}", 3.2)
    return panel.svg()


def calibration_chart(curve: CalibrationBins) -> str:
    """Observed against predicted means: dots on the diagonal, within the grey bars, are what a right model gives."""
    both = span([*curve.predicted, *curve.observed], pad=0.05)
    words = (f"{len(curve.counts)} bins of similar predictions; "
             + "; ".join(f"predicted {plain(p)}, observed {plain(o)}"
                         for p, o in zip(curve.predicted, curve.observed, strict=True)) + ".")
    panel = _panel(both, span([*curve.observed, *curve.lower, *curve.upper], curve.predicted, pad=0.05),
                   "Calibration", words)
    panel.y_axis("observed")
    panel.x_axis(f"predicted {curve.label}")
    ends = (max(both[0], panel.y.low), min(both[1], panel.y.high))
    panel.line(ends, ends, "ref")
    for low, high, at in zip(curve.lower, curve.upper, curve.predicted, strict=True):
        panel.upright(at, low, high, "expect")
    panel.line(curve.predicted, curve.observed, "edge")
    for predicted, observed, count in zip(curve.predicted, curve.observed, curve.counts, strict=True):
        panel.dot(predicted, observed, f"predicted {plain(predicted)}, observed {plain(observed)}, {count} rows", 4.5)
    return panel.svg()


def pit_chart(pit: PitHistogram) -> str:
    """The histogram of the probability integral transform, with what chance allows between dashed lines."""
    bins = len(pit.density)
    high = span([*pit.density, pit.upper, 1.2], include=[0.0])[1]
    panel = _panel((0.0, 1.0), (0.0, high), "Probability integral transform",
                   f"{bins} bins; a calibrated model has about 1 in each. "
                   + ", ".join(plain(value, 2) for value in pit.density))
    panel.y_axis("density (1 if calibrated)")
    panel.x_axis("leave-one-out quantile of each row", grid=False)
    for index, value in enumerate(pit.density):
        left, right = panel.x(index / bins), panel.x((index + 1) / bins)
        panel.box(left + 0.8, panel.y(value), right - left - 1.6, panel.y(0.0) - panel.y(value),
                  f"{plain(index / bins)} to {plain((index + 1) / bins)}: {plain(value)}")
    for height in (pit.lower, pit.upper):
        panel.segment(panel.x.start, panel.y(height), panel.x.end, panel.y(height), "ref")
    return panel.svg()


def residual_chart(residuals: Sequence[float], n: int) -> str:
    """Quantile residuals against those of a normal sample, and the band that holds 95% of them for a right model."""
    normal, count = NormalDist(), len(residuals)
    places = [(index + 0.5) / count for index in range(count)]
    x = [normal.inv_cdf(place) for place in places]
    half = [2.0 * math.sqrt(place * (1.0 - place) / n) / normal.pdf(at) for place, at in zip(places, x, strict=True)]
    panel = _panel(span(x, pad=0.04), span([*residuals, *x], pad=0.05), "Quantile residuals",
                   f"{n:,} residuals from {plain(residuals[0])} to {plain(residuals[-1])}; normal ones would run from"
                   f" {plain(x[0])} to {plain(x[-1])}.")
    panel.y_axis("residual (sd)")
    panel.x_axis("normal quantile (sd)")
    ends = [(at - one, at + one) for at, one in zip(x, half, strict=True)]
    panel.band(x, [low for low, _ in ends], [high for _, high in ends])
    panel.line(x, x, "ref")
    panel.line(x, residuals)
    return panel.svg()
