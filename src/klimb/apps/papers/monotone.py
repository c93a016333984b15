"""[S] Figure 1: where the curvature gamma(m, v) of a site grows with v, and where the data of a fit are.

The operator T of [S] converges where gamma is monotone in v at every datum: falling everywhere is its condition 2b,
growing everywhere 2a. The sign comes from central differences of the site's own oracle.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

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
POINTS = {"full": 200, "quick": 100, "tiny": 12}
MAPS: dict[str, tuple[sites.Site, float]] = {  # a site, and the datum at which it is shown
    "logistic": (sites.Logistic(), 1.0), "Laplace noise, y = 0": (sites.Laplace(1.0), 0.0),
    "Student-t noise, y = 0": (sites.StudentT(3.0, 1 / np.sqrt(3.0)), 0.0), "Poisson, y = 1": (sites.Poisson(), 1.0)}
RANGE = {"logistic": (-10.0, 10.0, 30.0), "Laplace noise, y = 0": (-6.0, 6.0, 12.0),
         "Student-t noise, y = 0": (-6.0, 6.0, 12.0), "Poisson, y = 1": (-6.0, 6.0, 12.0)}


def slope_sign(site: sites.Site, y: Array, m: Array, v: Array) -> Array:
    """The sign of d gamma / dv, 0 where it is flat."""
    h = DIFFERENCE * v
    ahead, behind = (site.expect(y, m, v + sign * h).gamma for sign in (1.0, -1.0))
    level = np.maximum(np.abs(ahead) + np.abs(behind), 1e-12)
    return np.asarray(np.sign(np.where(np.abs(ahead - behind) > FLAT * level, ahead - behind, 0.0)))


def sign_map(site: sites.Site, y: float, low: float, high: float, top: float, n: int) -> Found:
    """The sign on a grid, rows of one v each."""
    m, v = np.meshgrid(np.linspace(low, high, n), top * np.arange(1, n + 1) / n)
    signs = slope_sign(site, np.full(m.size, y), m.ravel(), v.ravel()).reshape(m.shape)
    return {"low": low, "high": high, "top": top, "signs": [runs(line) for line in signs]}


def runs(line: Array) -> str:
    """Signs in short: how many of each come one after the other.

    >>> runs(np.array([1.0, 1.0, -1.0, 0.0]))
    '2+ 1- 1o'
    """
    return " ".join(f"{len(list(group))}{'-o+'[int(sign) + 1]}" for sign, group in groupby(line))


def signs_of(short: str) -> list[int]:
    """The signs again.

    >>> signs_of("2+ 1- 1o")
    [1, 1, -1, 0]
    """
    return [sign for run in short.split() for sign in ["-o+".index(run[-1]) - 1] * int(run[:-1])]


def one_step(library: Library, model: str, rows: int, n: int) -> Found:
    """(m, v) of every datum after one step from m = 0 and V = I: the state that the second update sees."""
    this = setting(library, TracePanel(NAME, "logistic", 0.1 if model == "GLM" else None), rows)
    site, y, posterior = this.site, this.y, this.after_one_step()
    m = posterior.m * y  # as if every label were +1: gamma is even in m, so the map is the same
    signs = slope_sign(site, np.ones(len(y)), m, posterior.v)
    reach, top = 1.15 * max(float(np.abs(m).max()), 0.5), 1.15 * float(posterior.v.max())
    return {"m": m.round(4), "v": posterior.v.round(4), "growing": int((signs > 0).sum()),
            "falling": int((signs < 0).sum()), "map": sign_map(site, 1.0, -reach, reach, top, n)}


def plan(library: Library, size: Size) -> list[Job]:
    """Four maps and two scatters."""
    n, rows = POINTS[size], {"full": 1000, "quick": 500, "tiny": 40}[size]

    def map_job(name: str) -> Job:
        return Job(f"map/{name}", lambda _: sign_map(*MAPS[name], *RANGE[name], n))

    def data_job(model: str) -> Job:
        return Job(f"data/{model}", lambda _: one_step(library, model, rows, n))

    return [*map(map_job, MAPS), *map(data_job, ("GLM", "GP"))]


def tables(results: Results) -> list[PaperTable]:
    """How many data lie where gamma grows."""
    rows = []
    for model, paper in (("GLM", "some grow, some fall"), ("GP", "all on one side (2b)")):
        found = results[f"data/{model}"]
        total = len(found["m"])
        rows.append((model, str(total), f"{found['growing'] / total:.1%}", f"{found['falling'] / total:.1%}", paper))
    heads = ("logistic model", "data", "gamma grows with v", "gamma falls with v", "paper")
    return [PaperTable("[S] Figure 1: the data after one step", heads, tuple(rows))]


def draw(results: Results, path: Path) -> None:
    """Three panels as in the paper, and three more likelihoods below."""
    from matplotlib.colors import ListedColormap

    colours = ListedColormap(["#bcd7ea", "#ffffff", "#f6d9a8"])  # falling, flat, growing
    with panels(path, 2, 3, (12.0, 7.2)) as (_, axes):
        places = [("map/logistic", None), ("map/logistic", "GLM"), ("map/logistic", "GP"),
                  *((f"map/{name}", None) for name in list(MAPS)[1:])]
        for index, (ax, (key, model)) in enumerate(zip(axes.flat, places, strict=True)):
            found = results[key] if model is None else results[f"data/{model}"]["map"]
            signs = np.array([signs_of(line) for line in found["signs"]])
            ax.imshow(signs, origin="lower", extent=(found["low"], found["high"], 0.0, found["top"]), aspect="auto",
                      cmap=colours, vmin=-1, vmax=1, interpolation="nearest", rasterized=True)
            title = key.removeprefix("map/")
            if model is not None:
                _scatter(ax, results[f"data/{model}"])
                title = f"logistic, data of a {model} after one step"
            letter(ax, index, title)
        for ax in axes[-1]:
            ax.set_xlabel("mean m")
        for ax in axes[:, 0]:
            ax.set_ylabel("variance v")
        axes[0, 0].plot([], [], "s", color="#f6d9a8", mec=ORANGE, label="gamma grows with v")
        axes[0, 0].plot([], [], "s", color="#bcd7ea", mec=BLUE, label="gamma falls with v")
        axes[0, 0].legend(loc="upper center")


def _scatter(ax: Any, data: Found) -> None:
    ax.plot(data["m"], data["v"], ".", ms=3, color=INK, alpha=0.6)
    ax.set(xlim=(data["map"]["low"], data["map"]["high"]), ylim=(0.0, data["map"]["top"]))


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
