"""The same charts in matplotlib, for notebooks and papers; needs the extra ``klimb[plot]``."""

from collections.abc import Sequence
from typing import Any

from klimb.errors import grid_of_axes, one_axes
from klimb.report.charts import coefficient_range
from klimb.report.records import BoundTrace, CalibrationBins, CoefficientRow, EffectCurve
from klimb.report.text import percent

MARK, SOFT = "#0c6a92", "#5a6a76"


def _labelled(ax: Any, x: str = "", y: str = "") -> Any:
    """The axes with their words, and without the lines that say nothing."""
    ax.set(**{name: _plain(words) for name, words in (("xlabel", x), ("ylabel", y)) if words})
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def plot_effects(curves: Sequence[EffectCurve], axes: Any = None) -> Any:
    """One panel per curve, in the first of ``axes`` where they are given; returns the array of axes."""
    import numpy as np
    axes = np.asarray(grid_of_axes(axes, len(curves), 3, (3.6, 2.9)), dtype=object)
    for ax, curve in zip(axes.flat, curves, strict=False):
        if curve.categorical:
            places = range(len(curve.x))
            ax.vlines(places, curve.lower, curve.upper, color=MARK, linewidth=2)
            ax.plot(places, curve.center, "o", color=MARK)
            ax.set_xticks(list(places), [_plain(str(name)) for name in curve.x])
        else:
            ax.fill_between(curve.x, curve.lower, curve.upper, color=MARK, alpha=0.18, linewidth=0)
            ax.plot(curve.x, curve.center, color=MARK, linewidth=2)
            if curve.rug:
                ax.plot(curve.rug, [0.0] * len(curve.rug), "|", color=SOFT, alpha=0.5, clip_on=False,
                        transform=ax.get_xaxis_transform())
        _labelled(ax, curve.x_label, curve.y_label)
    for ax in axes.flat[len(curves):]:
        ax.set_visible(False)
    return axes


def plot_band(x: Any, center: Any, lower: Any, upper: Any, label: str, ax: Any = None) -> Any:
    """A curve with its band, around zero."""
    ax = one_axes(ax, (6.4, 3.0))
    ax.axhline(0.0, color=SOFT, linestyle="--", linewidth=1)
    ax.fill_between(x, lower, upper, color=MARK, alpha=0.18, linewidth=0)
    ax.plot(x, center, color=MARK, linewidth=2)
    return _labelled(ax, y=label)


def plot_map(shapes: Sequence[Any], values: Any, label: str, ax: Any = None) -> Any:
    """Areas coloured by their values: polygons where ``shapes`` are lists of points, else dots at points."""
    from matplotlib.collections import PolyCollection
    ax = one_axes(ax, (5.6, 4.6))
    limit = max(float(abs(values).max()), 1e-12)
    if all(len(shape) > 2 for shape in shapes):
        drawn: Any = PolyCollection(list(shapes), array=values, cmap="RdBu_r", edgecolors="white", linewidths=0.5)
        drawn.set_clim(-limit, limit)
        ax.add_collection(drawn)
        ax.autoscale_view()
    else:
        x, y = zip(*shapes, strict=True)
        drawn = ax.scatter(x, y, c=values, s=max(12.0, 9000.0 / len(shapes)), vmin=-limit, vmax=limit, cmap="RdBu_r")
    ax.set_aspect("equal")
    ax.set_axis_off()
    ax.figure.colorbar(drawn, ax=ax, label=_plain(label), shrink=0.8)
    return ax


def plot_coefficients(rows: Sequence[CoefficientRow], level: float, ax: Any = None) -> Any:
    """Dots with intervals, the first row on top; an interval beyond the axis ends at its edge."""
    ax = one_axes(ax, (5.6, 0.6 + 0.32 * max(len(rows), 1)))
    places = range(len(rows))
    ax.axvline(0.0, color=SOFT, linestyle="--", linewidth=1)
    ax.hlines(places, [row.lower for row in rows], [row.upper for row in rows], color=MARK, linewidth=2)
    ax.plot([row.mean for row in rows], places, "o", color=MARK)
    ax.set_yticks(list(places), [_plain(row.name) for row in rows])
    ax.set_xlim(*coefficient_range(rows))
    ax.invert_yaxis()
    return _labelled(ax, f"posterior mean and {percent(level)} interval")


def plot_bound(trace: BoundTrace, ax: Any = None) -> Any:
    """How far below its last value the bound was after each iteration, on a logarithmic axis."""
    ax = one_axes(ax, (4.6, 3.0))
    gaps = [(index, trace.bound[-1] - value) for index, value in enumerate(trace.bound)]
    gaps = [(index, gap) for index, gap in gaps if gap > 0.0]
    ax.plot([index for index, _ in gaps], [gap for _, gap in gaps], "o-", color=MARK, markersize=4)
    if gaps:
        ax.set_yscale("log")
    return _labelled(ax, trace.unit, "nats below the final bound")


def plot_calibration(curve: CalibrationBins, ax: Any = None) -> Any:
    """Observed against predicted means, with the intervals in which a right model's dots lie."""
    ax = one_axes(ax, (4.0, 3.6))
    ends = (min(*curve.predicted, *curve.observed), max(*curve.predicted, *curve.observed))
    ax.plot(ends, ends, linestyle="--", color=SOFT, linewidth=1)
    ax.vlines(curve.predicted, curve.lower, curve.upper, color=SOFT, alpha=0.3, linewidth=6)
    ax.plot(curve.predicted, curve.observed, "o", color=MARK)
    return _labelled(ax, f"predicted {curve.label}", "observed")


def plot_grid(names: Sequence[str], axes: Sequence[Any], bound: Any, ax: Any = None) -> Any:
    """A heat map of the bound over two hyperparameters, the best cell marked."""
    import numpy as np
    ax = one_axes(ax, (5.0, 4.2))
    first, second = axes
    low = np.quantile(bound, 0.2)  # the far corners would take all the colours
    mesh = ax.pcolormesh(second, first, bound, shading="nearest", cmap="viridis", vmin=low)
    i, j = np.unravel_index(int(bound.argmax()), bound.shape)
    ax.plot(second[j], first[i], "o", mfc="none", mec="white", ms=12, mew=2)
    ax.set(xlabel=_plain(names[1]), ylabel=_plain(names[0]), title=f"bound; best {bound.max():.2f}")
    ax.figure.colorbar(mesh, ax=ax)
    return ax


def _plain(text: str) -> str:
    """A dollar sign in a name is a dollar sign, not mathematics."""
    return text.replace("$", r"\$")
