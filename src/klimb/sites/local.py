"""The local convex bound of super-Gaussian sites [N], as an oracle like any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from klimb.errors import InputError
from klimb.numerics.arrays import Array, ArrayLike
from klimb.sites.base import Expectation, Site
from klimb.sites.prediction import Prediction
from klimb.sites.wrappers import Wrapper

AT_THE_CENTRE = 1e-4  # distance from the centre below which alpha / distance is taken as the curvature there


@final
@dataclass(frozen=True, eq=False)
class SuperGaussian(Wrapper):
    """A super-Gaussian site seen through its best Gaussian lower bound: log p(y|f) >= slope f - gamma f^2 / 2 + ...

    With log p(y|f) = slope (f - c) + g((f - c)^2), g convex and falling, the best bound of this form has the
    expectation slope (m - c) + g((m - c)^2 + v) under N(m, v): Jensen's inequality for g, [N] section 2. The fit is
    convex for log-concave sites, and its bound lies below the one of the site itself.

    >>> from klimb.sites.binary import Logistic
    >>> local, full = SuperGaussian(Logistic()).expect([1], [0.5], [9.0]), Logistic().expect([1], [0.5], [9.0])
    >>> bool(local.value[0] < full.value[0])
    True
    """

    site: Site

    def __post_init__(self) -> None:
        if not getattr(self.site, "super_gaussian", False):
            raise InputError("SuperGaussian needs a site that is super-Gaussian", type(self.site).__name__,
                             "Logistic, Binomial, NegativeBinomial, Laplace and StudentT are.")
        # gamma = -2 g' is positive and falls as x = (m - c)^2 + v grows, since g is convex, whatever the site is.
        self._adopt(gamma_trend="falling", log_concave=True)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        slope, centre = self.site.symmetry(y)
        distance = np.sqrt((m - centre) ** 2 + v)
        right, left = self.site.point(y, centre + distance), self.site.point(y, centre - distance)
        value = 0.5 * (right.value + left.value)  # g(distance^2): the odd part cancels
        with np.errstate(divide="ignore", invalid="ignore"):
            gamma = 0.5 * (right.alpha - left.alpha) / distance  # -2 g'
        near = distance < AT_THE_CENTRE
        if near.any() and self.site.smooth:
            gamma = np.where(near, self.site.point(y, centre + np.zeros_like(m)).gamma, gamma)
        gamma = np.nan_to_num(gamma, nan=0.0, posinf=np.finfo(float).max)
        return Expectation(slope * (m - centre) + value, gamma * (m - centre) - slope, gamma)

    def curvature(self, y: Array, m: Array, v: Array) -> Array:
        """-d2 value/dm2 at fixed v: (h*)''(s) of [N], the weights of the inner loop; never negative if log-concave.

        With d^2 = (m - c)^2 + v the second derivative -2 g'(d^2) - 4 (m - c)^2 g''(d^2) is an average of gamma, with
        the weight v / d^2, and of the curvature of the site itself at c + d: no difference is taken.
        """
        _, centre = self.site.symmetry(y)
        square = (m - centre) ** 2
        distance = np.sqrt(square + v)
        right, left = self.site.point(y, centre + distance), self.site.point(y, centre - distance)
        share = np.divide(v, square + v, out=np.ones_like(distance), where=distance > 0.0)
        gamma = self.oracle(y, m, v).gamma
        return share * gamma + (1.0 - share) * 0.5 * (right.gamma + left.gamma)

    def predict(self, m: ArrayLike, v: ArrayLike) -> Prediction:
        return self.site.predict(m, v)
