"""What a site says of a new y where f ~ N(m, v): p(y) = int p(y|f) N(f; m, v) df.

`Prediction` is what the user holds; it asks its site. The functions below it are the site's defaults, by quadrature and
search: a site overrides those it has in closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit

from klimb.errors import InputError, require
from klimb.numerics.adaptive import bounded_average, gaussian_average
from klimb.numerics.arrays import Array, ArrayLike, Index, as_float, pieces, refuse, slices
from klimb.numerics.search import monotone_root, smallest_integer
from klimb.numerics.tilted import LogFactor, Tilted, tilted

if TYPE_CHECKING:
    from klimb.sites.base import Site


@dataclass(frozen=True, eq=False)
class Prediction:
    """The predictive distribution of y, one per entry of ``m`` and ``v``: what ``site.predict(m, v)`` returns.

    >>> from klimb.sites.counts import Logistic
    >>> prediction = Logistic().predict(m=[0.0, 2.0], v=[1.0, 1.0])
    >>> prediction.mean.round(6).tolist()
    [0.5, 0.844537]
    >>> prediction.log_density([1, 0]).round(6).tolist()
    [-0.693147, -1.861351]
    """

    site: Site
    m: Array
    v: Array

    @cached_property
    def _moments(self) -> tuple[Array, Array]:
        return self.site.response_moments(self.m, self.v)

    @property
    def mean(self) -> Array:
        """The mean of y (of the class number 0, 1, ... for classes); nan where there is none (Student-t, df <= 1)."""
        return self._moments[0]

    @property
    def var(self) -> Array:
        """The variance of y; infinite where the integral diverges, nan where there is no mean."""
        return self._moments[1]

    def log_density(self, y: ArrayLike) -> Array:
        """log p(y) for each entry of ``y`` (or one y for all), of a probability where y is discrete."""
        return self.site.log_predictive(*self.site.checked(y, self.m, self.v))

    def quantile(self, p: ArrayLike) -> Array:
        """The smallest y with P(Y <= y) >= p: n of them for a scalar ``p``, n x k for k levels. Classes: 0, 1, ..."""
        levels = levels_of(p)
        found = [self.site.response_quantile(float(level), self.m, self.v) for level in np.atleast_1d(levels)]
        return found[0] if levels.ndim == 0 else np.column_stack(found)

    def probabilities(self) -> Array:
        """P(y = class), n x K: [P(y = 0 or -1), P(y = 1)] for binary sites, one column per class or level else."""
        return self.site.class_probabilities(self.m, self.v)

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        """``n`` draws of y, one a row; data are drawn one by one, without what they share.

        >>> from klimb.sites.counts import Poisson
        >>> Poisson().predict(m=[0.0, 3.0], v=[0.1, 0.1]).sample(1000, rng=0).mean(axis=0).round(0).tolist()
        [1.0, 21.0]
        """
        generator = np.random.default_rng(rng)
        f = self.m + np.sqrt(self.v) * generator.standard_normal((n, self.m.size))
        return draw_response(self.site, f, generator)


def levels_of(p: ArrayLike) -> Array:
    """Of quantiles, checked."""
    levels = as_float(p, "p")
    refuse((levels <= 0.0) | (levels >= 1.0), levels, "A quantile needs p strictly between 0 and 1",
           "Pass levels such as 0.05 and 0.95.")
    require(levels.ndim <= 1, "p must be a scalar or have 1 dimension", f"shape {levels.shape}", "Flatten it.")
    return levels


def predict(site: Site, m: ArrayLike, v: ArrayLike) -> Prediction:
    """What the site says of a new y where f ~ N(m, v); checked: finite, ``v`` >= 0, all of one length."""
    mean, variance = np.atleast_1d(as_float(m, "m")), np.atleast_1d(as_float(v, "v"))
    refuse(variance < 0.0, variance, "The variance v must be at least 0", "Pass variances, not standard deviations.")
    try:
        mean, variance = np.broadcast_arrays(mean, variance)
    except ValueError as error:
        raise InputError("m and v must have one length (or be scalars)", f"shapes {mean.shape}, {variance.shape}",
                         "Check which argument went where.") from error
    require(mean.ndim == 1, "m and v must have 1 dimension", f"shape {mean.shape}", "Pass one entry per prediction.")
    site.check_length(mean.size)
    return Prediction(site, np.ascontiguousarray(mean), np.ascontiguousarray(variance))


_DRAWS_AT_ONCE = 1 << 15


def draw_response(site: Site, f: Array, rng: np.random.Generator) -> Array:
    """One y for each latent value: ``f`` is (draws, n), or (draws, outputs x n) for a site with several per datum."""
    n_data = f.shape[1] // site.n_outputs
    out = np.empty((len(f), n_data))
    for draws in slices(len(f), max(1, _DRAWS_AT_ONCE // f.shape[1])):
        part = f[draws]
        latent = np.moveaxis(part.reshape(len(part), site.n_outputs, n_data), 1, 0).ravel()  # output by output
        each = site.rows(np.tile(np.arange(n_data), len(part)))
        out[draws] = _draw(each, latent, rng.random(len(part) * n_data)).reshape(len(part), n_data)
    return out


def _draw(site: Site, f: Array, level: Array) -> Array:
    """The ``level`` quantile of y given f, each datum with its own level."""
    if site.response == "classes":
        return np.asarray(site.labels()[_class_at(site, f, np.zeros_like(f), level[:, None])])

    def excess(rows: Index, y: Array) -> Array:
        return site.rows(rows).cdf(y, f[rows]) - level[rows]

    with np.errstate(all="ignore"):
        return _crossing(site.response, excess, f, np.ones_like(f))


def _class_at(site: Site, m: Array, v: Array, level: float | Array) -> Index:
    """The number of the class at which the chances of those up to it reach ``level``."""
    cumulative = np.cumsum(site.class_probabilities(m, v), axis=1)
    cumulative[:, -1] = 1.0
    return np.asarray(np.argmax(cumulative >= level, axis=1))


def _crossing(response: str, excess: Callable[[Index, Array], Array], middle: Array, scale: Array) -> Array:
    """The smallest y at which a rising function is not below 0; a real y is looked for around ``middle``."""
    if response == "counts":
        return smallest_integer(excess, middle.size)
    to_response = _FROM_LINE[response]
    if response != "real":
        middle, scale = np.zeros_like(middle), np.ones_like(middle)
    return to_response(monotone_root(lambda rows, t: excess(rows, to_response(t)), middle, scale))


def log_factor_of(site: Site, y: Array, power: float | Array = 1.0, constant: bool = False) -> LogFactor:
    """power * log p(y|f) and its two derivatives in f, for the rows that quadrature asks for."""
    powers = np.broadcast_to(np.asarray(power, dtype=np.float64), y.shape)
    plus = np.broadcast_to(site.constant(y), y.shape) if constant else np.zeros(y.shape)

    def log_factor(rows: Index, f: Array) -> tuple[Array, Array, Array]:
        e = site.rows(rows).point(y[rows], f)
        w = powers[rows]
        return w * (e.value + plus[rows]), -w * e.alpha, -w * e.gamma

    return log_factor


def tilted_by_quadrature(site: Site, y: Array, m: Array, v: Array, power: float | Array = 1.0) -> Tilted:
    """log int p(y|f)^power N(f; m, v) df, without ``power * constant(y)``, and its derivatives in m."""
    return tilted_around_peak(site, log_factor_of(site, y, power), y, m, v)


def tilted_around_peak(site: Site, log_factor: LogFactor, y: Array, m: Array, v: Array) -> Tilted:
    """`tilted`, told of the peak of the site where it is not log-concave."""
    if site.log_concave:
        return tilted(log_factor, m, v, log_concave=True, smooth=site.smooth)
    centre, width = site.peak(y)
    return tilted(log_factor, m, v, log_concave=False, centre=centre, width=width, smooth=site.smooth)


def log_predictive_by_quadrature(site: Site, y: Array, m: Array, v: Array) -> Array:
    """log int p(y|f) N(f; m, v) df, constants included: log Z, or log1p(-(1 - Z)) where y is all but certain."""
    log_p: Array = site.tilted(y, m, v).log_z + np.broadcast_to(site.constant(y), y.shape)
    if not site.discrete:
        return log_p
    likely = np.flatnonzero(log_p > -0.5)
    if likely.size:
        part, own, mean, variance = site.rows(likely), y[likely], m[likely], v[likely]
        if site.response == "classes":
            others = sum(np.where(own == label, 0.0, _chance(part, label, mean, variance)) for label in part.labels())
        else:
            others = _complement(part, own, mean, variance)
        log_p[likely] = np.log1p(-np.minimum(others, 0.5))
    return log_p


def _chance(site: Site, label: float, m: Array, v: Array) -> Array:
    """P(y = label)."""
    y = np.full_like(m, label)
    return np.exp(np.minimum(site.tilted(y, m, v).log_z + site.constant(y), 0.0))


def _complement(site: Site, y: Array, m: Array, v: Array) -> Array:
    """1 - P(y) = int (1 - p(y|f)) N df for a count that is all but certain: y sits at an end, 1 - p is log-concave."""
    log_p = log_factor_of(site, y, constant=True)

    def log_factor(rows: Index, f: Array) -> tuple[Array, Array, Array]:
        g, first, second = log_p(rows, f)
        odds = 1.0 / np.expm1(-np.minimum(g, 0.0))  # p / (1 - p)
        return np.log(-np.expm1(np.minimum(g, 0.0))), -first * odds, -(second + first * first * (1.0 + odds)) * odds

    return np.exp(np.minimum(tilted(log_factor, m, v, log_concave=True, derivatives=False).log_z, 0.0))


def probabilities_by_quadrature(site: Site, m: Array, v: Array) -> Array:
    """P(y = label), n x K in the order of ``labels()``; the likeliest is what the others leave: rows sum to 1."""
    p = np.column_stack([_chance(site, label, m, v) for label in site.labels()])
    top = np.argmax(p, axis=1)
    lane = np.arange(m.size)
    p[lane, top] = 0.0
    p[lane, top] = 1.0 - p.sum(axis=1)
    return p


def moments_by_quadrature(site: Site, m: Array, v: Array) -> tuple[Array, Array]:
    """Mean and variance of y: of the class number, or from ``conditional_moments``."""
    if site.response == "classes":
        p = site.class_probabilities(m, v)
        levels = np.arange(p.shape[1], dtype=np.float64)
        mean = p @ levels
        return mean, np.einsum("nk,nk->n", p, (levels - mean[:, None]) ** 2)
    with np.errstate(all="ignore"):
        centre = np.empty_like(m)
        for rows in pieces(np.arange(m.size), 1 << 14):
            centre[rows] = site.rows(rows).conditional_moments(m[rows])[0]
        reference = np.where(np.isfinite(centre), centre, 0.0)

        def functions(rows: Index, f: Array) -> Array:
            mean, variance = site.rows(rows).conditional_moments(f)
            offset = mean - reference[rows]
            return np.stack([offset, offset * offset, variance])

        shift, square, within = gaussian_average(functions, m, v, 3)
        mean = reference + shift
        var = within + np.maximum(square - shift * shift, 0.0)
    return mean, np.where(~np.isfinite(square) | ~np.isfinite(within), np.inf, var)


def class_chances(site: Site, m: Array, v: Array) -> Array:
    """(n, classes) chances of the classes where f ~ N(m, v), which may be known."""
    if v.any():
        return site.class_probabilities(m, v)
    n = m.size // site.n_outputs
    return np.exp([site.log_density(np.full(n, label), m) for label in site.labels()]).T


def predictive_cdf(site: Site, y: Array, m: Array, v: Array) -> Array:
    """P(Y <= y) where f ~ N(m, v), to 1e-12 absolute."""
    if not v.any():
        with np.errstate(all="ignore"):
            return site.cdf(y, m)

    def conditional(rows: Index, f: Array) -> Array:
        return site.rows(rows).cdf(y[rows], f)[None]

    with np.errstate(all="ignore"):
        if site.smooth:
            return bounded_average(conditional, m, v)
        average: Array = gaussian_average(conditional, m, v, 1)[0]
    return average


def quantile_by_search(site: Site, p: float, m: Array, v: Array) -> Array:
    """The p-quantile of y."""
    if site.response == "classes":
        return _class_at(site, m, v, p).astype(np.float64)

    def excess(rows: Index, y: Array) -> Array:
        return predictive_cdf(site.rows(rows), y, m[rows], v[rows]) - p

    # The search begins at m and steps by the spread of f: a real response is f and noise.
    return _crossing(site.response, excess, m, np.sqrt(v) + 1.0)


# The response at a point t of the real line, on which quantiles are searched for.
_FROM_LINE: dict[str, Callable[[Array], Array]] = {
    "real": lambda t: t,
    "positive": lambda t: np.exp(np.clip(t, -745.0, 709.7)),
    "unit": lambda t: np.asarray(expit(t)),
}
