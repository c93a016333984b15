"""Data that are censored: of some nothing is known but that y is larger than what was seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from klimb.errors import InputError
from klimb.numerics.adaptive import Rows as Index
from klimb.numerics.adaptive import gaussian_average
from klimb.numerics.arrays import Array
from klimb.numerics.tilted import Tilted
from klimb.sites.base import Expectation, Site, set_parameter
from klimb.sites.prediction import tilted_by_quadrature
from klimb.sites.wrappers import Wrapper


@final
@dataclass(frozen=True, eq=False)
class Censored(Wrapper):
    """The site where ``status`` is 1, log P(Y > y | f) where it is 0: censored on the right, at y.

    Its predictions are of y itself, as if nobody censored it.

    >>> from klimb.sites.positive import Weibull
    >>> e = Censored(Weibull(shape=1.0), [1.0, 0.0]).expect([2.0, 2.0], m=[0.0, 0.0], v=[0.0, 0.0])
    >>> print(e.value)
    [-2. -2.]
    """

    site: Site
    status: Array | float

    per_datum = ("status",)

    def __post_init__(self) -> None:
        trend = "rising" if self.site.gamma_trend == self.site.survivor_trend == "rising" else "mixed"
        self._adopt(gamma_trend=trend, super_gaussian=False)
        if not self.site.log_concave or self.site.response not in ("real", "positive"):
            raise InputError("Censored needs a site of real or positive y that is log-concave",
                             type(self.site).__name__, "Weibull, Exponential, Gamma and Gaussian are.")
        set_parameter(self, "status", lambda s: (s == 0.0) | (s == 1.0), "Censored needs status 0 or 1",
                      "1 is an event, 0 a censored datum.")

    def constant(self, y: Array) -> Array:
        return np.where(self._events(y), self.site.constant(y), 0.0)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        return self._either(y, m, lambda site, rows: site.oracle(y[rows], m[rows], v[rows]),
                            lambda site, rows: site.survivor(y[rows], m[rows], v[rows]))

    def point(self, y: Array, f: Array) -> Expectation:
        return self._either(y, f, lambda site, rows: site.point(y[rows], f[..., rows]),
                            lambda site, rows: site.survivor_point(y[rows], f[..., rows]))

    def curvature(self, y: Array, m: Array, v: Array) -> Array:
        return self.oracle(y, m, v).gamma

    def start(self, y: Array) -> tuple[Array, Array]:
        slope, gamma = self.site.start(y)
        at = slope / np.maximum(gamma, 1e-300)  # where the datum would put f if it were an event
        e = self.site.survivor_point(y, at)
        events = self._events(y)
        return np.where(events, slope, e.gamma * at - e.alpha), np.where(events, gamma, e.gamma)

    def tilted(self, y: Array, m: Array, v: Array, power: float | Array = 1.0) -> Tilted:
        return tilted_by_quadrature(self, y, m, v, power)

    def log_predictive(self, y: Array, m: Array, v: Array) -> Array:
        return np.asarray(self.tilted(y, m, v).log_z + self.constant(y))

    def _events(self, y: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        return np.broadcast_to(np.asarray(self.status) > 0.0, y.shape)

    def _either(self, y: Array, f: Array, seen: Callable[[Site, Index], Expectation],
                censored: Callable[[Site, Index], Expectation]) -> Expectation:
        """What events and censored data have, each asked of its own rows."""
        out, events = np.empty((3, *f.shape)), self._events(y)
        for ask, rows in ((seen, np.flatnonzero(events)), (censored, np.flatnonzero(~events))):
            if len(rows):
                e = ask(self.site.rows(rows), rows)
                out[..., rows] = e.value, e.alpha, e.gamma
        return Expectation(*out)


def survivor_by_quadrature(site: Site, y: Array, m: Array, v: Array) -> Expectation:
    """The default of ``Site.survivor``: the average of ``survivor_point``."""

    def functions(rows: Index, f: Array) -> Array:
        e = site.rows(rows).survivor_point(y[rows], f)
        return np.stack([e.value, e.alpha, e.gamma])

    with np.errstate(all="ignore"):
        return Expectation(*gaussian_average(functions, m, v, 3))
