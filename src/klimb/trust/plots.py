"""Pictures of trust; matplotlib is imported here and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from klimb.errors import grid_of_axes, one_axes, pyplot
from klimb.infer.problem import Problem
from klimb.latents.base import Posterior
from klimb.trust.sites import maps_of

if TYPE_CHECKING:
    from klimb.trust.ladder import Ladder
    from klimb.trust.report import Trust

RISING, FALLING, FLAT = "#d9e6f2", "#f6dfcf", "#eeeeee"
INK, Q, EXACT = "#222222", "#7a7a7a", "#b2442c"
MOST = 6  # marginals drawn unless some are chosen


def plot_signs(problem: Problem, posterior: Posterior, axes: Any = None) -> Any:
    """Maps of sign(d gamma/dv), one per frequent value of y, with the marginals of the data that have it."""
    from matplotlib.colors import ListedColormap

    maps = maps_of(problem, posterior)
    if axes is None:
        _, axes = pyplot().subplots(1, len(maps), figsize=(4.0 * len(maps), 3.4), layout="constrained", squeeze=False,
                                    sharey=True)
    axes = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()
    colours = ListedColormap([FALLING, FLAT, RISING])
    for ax, (found, rows) in zip(axes, maps, strict=False):
        ax.pcolormesh(found.m, found.v, found.sign, cmap=colours, vmin=-1.5, vmax=1.5, shading="nearest")
        ax.plot(posterior.m[rows], posterior.v[rows], "o", ms=3.5, mfc=INK, mec="white", mew=0.4)
        ax.set(yscale="log", xlabel="m", title=f"y = {found.y:g}")
    axes[0].set_ylabel("v")
    axes[0].text(0.02, 0.02, "blue: gamma rises with v, orange: it falls", transform=axes[0].transAxes, fontsize=8)
    return axes


def plot_marginals(trust: Trust, which: Any = None, axes: Any = None, names: Any = None) -> Any:
    """Densities of q (grey) and of the corrected marginals (red)."""
    exact, coordinates = trust.corrected, trust.context.coordinates
    if which is None:
        badness = np.abs(exact.sd / coordinates.sd - 1.0) + np.abs(exact.skewness) / 6.0
        which = np.argsort(-badness, kind="stable")[:MOST]
    which = np.atleast_1d(which)
    axes = grid_of_axes(axes, len(which), 3, (3.2, 2.4))
    flat = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()
    for ax in flat[len(which) :]:
        ax.set_axis_off()
    for place, (ax, i) in enumerate(zip(flat, which, strict=False)):
        mean, sd = coordinates.mean[i], coordinates.sd[i]
        x = np.linspace(min(mean - 3.5 * sd, exact.mean[i] - 4 * exact.sd[i]),
                        max(mean + 3.5 * sd, exact.mean[i] + 4 * exact.sd[i]), 400)
        density = np.exp(-0.5 * ((x - mean) / sd) ** 2) / (sd * np.sqrt(2 * np.pi))
        ax.plot(x, density, color=Q, lw=1.5, label="q")
        ax.plot(x, exact.density(int(i), x), color=EXACT, lw=1.8, label="corrected")
        ax.set_xlim(x[0], x[-1])
        ax.set_yticks([])
        ax.set_title(names[place] if names is not None else f"{trust.kind} {int(i)}", fontsize=10)
        for side in ("top", "right", "left"):
            ax.spines[side].set_visible(False)
    flat[0].legend(frameon=False, fontsize=8)
    return axes


def plot_ladder(ladder: Ladder, ax: Any = None) -> Any:
    """The rungs on one line of nats."""
    ax = one_axes(ax, (6.0, 2.2))
    rows = ladder.rows()
    for height, (name, value, what) in enumerate(rows):
        bound = what == "lower bound"
        ax.plot(value, height, "o" if not bound else ">", color=EXACT if name == "log evidence" else INK, ms=8)
        if name == "log evidence":
            ax.errorbar(value, height, xerr=2 * ladder.evidence_error, color=EXACT, capsize=3)
    ax.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    ax.axvline(ladder.evidence, color=EXACT, lw=0.6, alpha=0.6)
    ax.set_xlabel("log evidence (nats)")
    ax.margins(x=0.08, y=0.15)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax
