"""[S] Figure 1: where the curvature gamma(m, v) of a site grows with v, and where the data of a fit are.

The operator T of [S] converges where gamma is monotone in v at every datum: falling everywhere is its condition 2b,
growing everywhere 2a. The sign comes from central differences of the site's own oracle.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from klimb import sites
from klimb.apps.papers.data import Library
from klimb.apps.papers.experiment import Experiment, Found, Job, PaperTable, Results, Size
from klimb.apps.papers.pictures import BLUE, INK, ORANGE, letter, panels
from klimb.apps.papers.traces import TracePanel, setting
from klimb.numerics.arrays import Array

NAME = "german"
DIFFERENCE = 1e-3  # relative step in v
FLAT = 1e-9  # of gamma: slopes below this are no slopes
POINTS = 200  # of a map, either way
MAPS: dict[str, tuple[sites.Site, float, float, float]] = {  # a site, the datum at which it is shown, largest m and v
    "logistic": (sites.Logistic(), 1.0, 10.0, 30.0), "Laplace noise, y = 0": (sites.Laplace(1.0), 0.0, 6.0, 12.0),
    "Student-t noise, y = 0": (sites.StudentT(3.0, 1 / np.sqrt(3.0)), 0.0, 6.0, 12.0),
    "Poisson, y = 1": (sites.Poisson(), 1.0, 6.0, 12.0)}


def slope_sign(site: sites.Site, y: Array, m: Array, v: Array) -> Array:
    """The sign of d gamma / dv, 0 where it is flat."""
    h = DIFFERENCE * v
    ahead, behind = (site.expect(y, m, v + sign * h).gamma for sign in (1.0, -1.0))
    level = np.maximum(np.abs(ahead) + np.abs(behind), 1e-12)
    return np.asarray(np.sign(np.where(np.abs(ahead - behind) > FLAT * level, ahead - behind, 0.0)))


def sign_map(site: sites.Site, y: float, reach: float, top: float) -> Array:
    """The sign on a grid of |m| up to ``reach`` and v up to ``top``, rows of one v each."""
    m, v = np.meshgrid(np.linspace(-reach, reach, POINTS), top * np.arange(1, POINTS + 1) / POINTS)
    return slope_sign(site, np.full(m.size, y), m.ravel(), v.ravel()).reshape(m.shape)


def one_step(library: Library, model: str, rows: int, _: Results) -> Found:
    """(m, v) of every datum after one step from m = 0 and V = I: the state that the second update sees."""
    this = setting(library, TracePanel(NAME, "logistic", 0.1 if model == "GLM" else None), rows)
    site, y, posterior = this.site, this.y, this.after_one_step()
    m = posterior.m * y  # as if every label were +1: gamma is even in m, so the map is the same
    signs = slope_sign(site, np.ones(len(y)), m, posterior.v)
    return {"m": m.round(4), "v": posterior.v.round(4), "growing": int((signs > 0).sum()),
            "falling": int((signs < 0).sum())}


def plan(library: Library, size: Size) -> list[Job]:
    """Two scatters; the maps behind them need no data."""
    rows = {"full": 1000, "quick": 500, "tiny": 40}[size]
    return [Job(model, partial(one_step, library, model, rows)) for model in ("GLM", "GP")]


def tables(results: Results) -> list[PaperTable]:
    """How many data lie where gamma grows."""
    rows = []
    for model, paper in (("GLM", "some grow, some fall"), ("GP", "all on one side (2b)")):
        found = results[model]
        total = len(found["m"])
        rows.append((model, str(total), f"{found['growing'] / total:.1%}", f"{found['falling'] / total:.1%}", paper))
    heads = ("logistic model", "data", "gamma grows with v", "gamma falls with v", "paper")
    return [PaperTable("[S] Figure 1: the data after one step", heads, tuple(rows))]


def draw(results: Results, path: Path) -> None:
    """Three panels as in the paper, and three more likelihoods below."""
    from matplotlib.colors import ListedColormap

    colours = ListedColormap(["#bcd7ea", "#ffffff", "#f6d9a8"])  # falling, flat, growing
    with panels(path, 2, 3, (12.0, 7.2)) as (_, axes):
        places = zip(["logistic", "logistic", *MAPS], [None, "GLM", "GP", None, None, None], strict=True)
        for index, (ax, (name, model)) in enumerate(zip(axes.flat, places, strict=True)):
            site, y, reach, top = MAPS[name]
            if model is not None:
                m, v = np.array(results[model]["m"]), np.array(results[model]["v"])
                reach, top = 1.15 * max(float(np.abs(m).max()), 0.5), 1.15 * float(v.max())
                ax.plot(m, v, ".", ms=3, color=INK, alpha=0.6)
            ax.imshow(sign_map(site, y, reach, top), origin="lower", extent=(-reach, reach, 0.0, top),
                      aspect="auto", cmap=colours, vmin=-1, vmax=1, interpolation="nearest", rasterized=True)
            letter(ax, index, name if model is None else f"logistic, data of a {model} after one step")
        for ax in axes[-1]:
            ax.set_xlabel("mean m")
        for ax in axes[:, 0]:
            ax.set_ylabel("variance v")
        axes[0, 0].plot([], [], "s", color="#f6d9a8", mec=ORANGE, label="gamma grows with v")
        axes[0, 0].plot([], [], "s", color="#bcd7ea", mec=BLUE, label="gamma falls with v")
        axes[0, 0].legend(loc="upper center")


FIGURE = Experiment(plan, tables, draw, (
    "Where a site's curvature gamma grows (orange) or falls (blue) with the variance v of its marginal. Dots are the"
    " data of a GLM and of a GP after one step of the fixed point: where they lie in one colour, the conditions of the"
    " paper's theorem hold. Below: other likelihoods. Laplace and Student-t noise fall next to y and grow away from it"
    " (Student-t falls again in its tails); Poisson grows everywhere, which is condition 2a."), (
    "The paper does not say which data set its panels (b) and (c) show. Here it is German credit: the GLM with prior"
    " variance 0.1 and the GP with the hyperparameters that 200 data choose, as in its section 4. On those data the GP"
    " does not satisfy condition 2b; it needs marginals whose means stay near zero.",
    "gamma is even in m for the logistic site, so data are shown as y m.",
))
