"""Simulation-based calibration: does a model's fit cover the truth as often as it says?

Latents drawn from the prior make data, the data are fitted, and the truth is looked up in the fitted marginals. Over
many draws its place there must be uniform, and 90% intervals must cover it 90 times in a hundred; a fit whose spread is
too small puts it in the tails too often. This tests prior, likelihood, fit and correction together.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from klimb.errors import InputError, KlimbError, one_axes, require
from klimb.infer.loop import infer
from klimb.latents.base import Latent, as_latent
from klimb.numerics.arrays import Array
from klimb.rows.engines import Processes, running
from klimb.sites.base import Site
from klimb.sites.prediction import draw_response

BINS = 20
MOST_MARGINALS = 20  # looked at unless some are chosen
LEVELS = (0.5, 0.9)
CONFIDENCE = 0.95  # of the binomial bands


@dataclass(frozen=True, eq=False)
class Calibration:
    """Places of the truth in the fitted marginals, over many simulated data sets.

    ``places`` is (n, marginals): P(marginal <= truth) under each fit, uniform where fits are calibrated. ``failed``
    counts draws whose fit did not converge (they are left out).
    """

    places: Array
    marginals: Array  # indices: weights, or f at sites
    kind: str
    failed: int
    verdicts: dict[str, int]  # of the trust reports, if the marginals were corrected

    @property
    def n(self) -> int:
        """Data sets that were fitted."""
        return len(self.places)

    def coverage(self, level: float = 0.9) -> Array:
        """Share of the data sets whose central interval covers the truth, for each marginal."""
        require(0.0 < level < 1.0, "level must lie strictly between 0 and 1", level, "0.9 is a 90% interval.")
        return np.asarray((np.abs(self.places - 0.5) <= 0.5 * level).mean(axis=0))

    def overall(self, level: float = 0.9) -> float:
        """The same over all marginals together."""
        return float(self.coverage(level).mean())

    def band(self, level: float = 0.9, n: int | None = None) -> tuple[float, float]:
        """Coverage that ``n`` data sets of a calibrated fit would show 95 times in a hundred (binomial)."""
        return binomial_band(self.n if n is None else n, level)

    def ranks(self, bins: int = BINS) -> Array:
        """Histogram of the places, marginals x bins."""
        edges = np.linspace(0.0, 1.0, bins + 1)
        return np.array([np.histogram(column, edges)[0] for column in self.places.T])

    @property
    def calibrated(self) -> bool:
        """Whether coverage over all marginals lies within its band at every level."""
        return all(self.band(level)[0] <= self.overall(level) <= self.band(level)[1] for level in LEVELS)

    def __str__(self) -> str:
        lines = [f"{self.n} data sets, {self.places.shape[1]} marginals ({self.kind})"]
        for level in LEVELS:
            low, high = self.band(level)
            each = self.coverage(level)
            lines.append(f"{level:.0%} intervals cover {self.overall(level):.1%} ({each.min():.1%} to "
                         f"{each.max():.1%}); expected {low:.1%} to {high:.1%}")
        if self.failed:
            lines.append(f"{self.failed} fits did not converge and were left out")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON and reports."""
        return {
            "n": self.n, "failed": self.failed, "kind": self.kind, "marginals": self.marginals.tolist(),
            "calibrated": self.calibrated, "verdicts": self.verdicts,
            "coverage": {f"{level:g}": {"overall": self.overall(level), "each": self.coverage(level).tolist(),
                                        "band": list(self.band(level))} for level in LEVELS},
            "ranks": self.ranks().sum(axis=0).tolist(),
        }

    def plot(self, ax: Any = None) -> Any:
        """Rank histogram over all marginals with the band of each bar; needs matplotlib."""
        ax = one_axes(ax, (5.0, 2.8))
        counts = self.ranks().mean(axis=0) / self.n
        low, high = binomial_band(self.n, 1.0 / BINS)
        edges = np.linspace(0.0, 1.0, BINS + 1)
        ax.axhspan(low, high, color="#d9e6f2", lw=0)
        ax.axhline(1.0 / BINS, color="#7a7a7a", lw=0.8)
        ax.bar(edges[:-1], counts, width=1.0 / BINS, align="edge", color="#b2442c", alpha=0.75, edgecolor="white")
        ax.set(xlabel="place of the truth in its marginal", ylabel="share of draws", xlim=(0, 1),
               title=f"90% intervals cover {self.overall(0.9):.1%}")
        return ax


def calibrate(model: Any, site: Site | None = None, *, n: int = 500, seed: int = 0, workers: int = 1,
              corrected: bool = False, marginals: Any = None, tol: float = 1e-6) -> Calibration:
    """Simulation-based calibration of the fits of one model.

    Parameters
    ----------
    model : Fit, Model or Latent
        A fit, or a model such as ``klimb.gp(kernel, X, site)``, at its hyperparameters; or a latent with ``site``.
        Simulated times are all of events: nothing says when the others would have been censored.
    site : Site
        The likelihood; it must know how to draw y (a distribution function, or classes).
    n : int
        How many data sets to draw and fit.
    seed : int
        Of the draws: the same seed gives the same answer, whatever ``workers`` is.
    workers : int
        Processes to fit in.
    corrected : bool
        Judge ``result.corrected`` instead of q.
    marginals : indices
        Which weights (or sites) to look at; up to 20, evenly chosen, unless given.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> X = np.column_stack([np.ones(30), np.linspace(-1, 1, 30)])
    >>> found = klimb.calibrate(klimb.latents.Weights(X), klimb.sites.Logistic(), n=40)
    >>> found.n, found.places.shape, bool(0.8 < found.overall(0.9) <= 1)
    (40, (40, 2), True)
    """
    latent, likelihood = _parts(model, site)
    if n < 1 or workers < 1:
        raise InputError("n and workers must be at least 1", f"{n} and {workers}", "n = 500 is a good number.")
    if likelihood.response == "mixed":
        raise InputError("calibration needs a likelihood that can draw y", type(likelihood).__name__, "Use one kind.")
    chosen, seeds = _chosen(latent, marginals), np.random.SeedSequence(seed).spawn(n)
    task = partial(_looked_up, latent, likelihood, chosen, corrected, tol)
    with running(Processes(workers) if workers > 1 else None) as engine:
        answers = map(task, seeds) if engine is None else engine.map(task, seeds)
        found = [answer for answer in answers if answer is not None]
    require(found, "some simulated data set must be fitted", f"none of {n} converged", "Narrow the prior.")
    verdicts = Counter(word for _, word in found if word)
    return Calibration(np.array([place for place, _ in found]), chosen, latent.reports, n - len(found), dict(verdicts))


def binomial_band(n: int, share: float) -> tuple[float, float]:
    """Shares that ``n`` independent trials with success probability ``share`` show 95 times in a hundred."""
    from scipy.special import bdtr

    counts = np.arange(n + 1)
    below = bdtr(counts, n, share)
    low = int(np.searchsorted(below, 0.5 * (1.0 - CONFIDENCE), side="right"))
    high = int(np.searchsorted(below, 1.0 - 0.5 * (1.0 - CONFIDENCE), side="left"))
    return low / n, high / n


def _looked_up(latent: Latent, site: Site, chosen: Any, corrected: bool, tol: float,
               seed: np.random.SeedSequence) -> tuple[Array, str] | None:
    """Places of the truth in the fit of one simulated data set, and its verdict; None where it does not converge."""
    from scipy.special import ndtr

    rng = np.random.default_rng(seed)
    truth, f = latent.draw(rng)
    y = draw_response(site, f[None], rng)[0]
    try:
        result = infer(latent, site, y, tol=tol)
    except KlimbError:
        return None
    if not result.converged:
        return None
    if corrected:
        report = result.trust
        return report.corrected.cdf(np.asarray(truth))[chosen], report.verdict
    q = result.posterior
    mean, variance = (q.mean, np.diagonal(q.covariance())) if latent.reports == "weight" else (q.m, q.v)
    return np.asarray(ndtr((truth - mean) / np.sqrt(variance))[chosen]), ""


def _parts(model: Any, site: Any) -> tuple[Latent, Site]:
    from klimb.models.fit import Fit
    from klimb.models.model import Model

    if isinstance(model, Fit):
        require(model.result is not None, "calibration needs the rows of the fit", "a fit from a file", "Fit again.")
        require(model.observed.copies is None, "calibration draws every row by itself", f"cells of {model.n:,} rows",
                "Fit with cells=False, or a sample of the rows.")
        aux = {name: values for name, values in model.observed.aux.items() if name != "status"}
        return model.model.latent, model.model.site(replace(model.observed, aux=aux))
    if isinstance(model, Model):
        return model.latent, model.new_site()
    latent = as_latent(model, "calibrate needs a fit, a model, or a latent and a site",
                       "Pass what klimb.fit returned, or klimb.latents.Weights(X) and klimb.sites.Logistic().")
    if not isinstance(site, Site):
        raise InputError("calibrate needs a site beside a latent", repr(site), "Use klimb.sites.Logistic(), say.")
    return latent, site


def _chosen(latent: Latent, marginals: Any) -> Any:
    total = latent.n_weights if latent.reports == "weight" else latent.n_sites
    if marginals is None:
        return np.unique(np.linspace(0, total - 1, min(total, MOST_MARGINALS)).round().astype(np.intp))
    chosen = np.atleast_1d(np.asarray(marginals))
    if chosen.size == 0 or chosen.dtype.kind not in "iu" or chosen.min() < 0 or chosen.max() >= total:
        raise InputError(f"marginals must be indices from 0 to {total - 1}", f"{marginals!r}", "Leave it out for 20.")
    return chosen
