"""The local convex bound of super-Gaussian sites [N], as an oracle like any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from klimb.errors import InputError
from klimb.numerics.arrays import Array, ArrayLike
from klimb.sites.base import Expectation, Site
from klimb.sites.duals import Height, Penalty, Threshold, height, penalty, threshold
from klimb.sites.prediction import Prediction
from klimb.sites.wrappers import Wrapper

_LARGEST = np.finfo(float).max


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

    Any site works that declares ``super_gaussian = True`` and tells its ``symmetry(y)``; the duals of [N] are in
    ``threshold``, ``height`` and ``penalty``.
    """

    site: Site

    def __post_init__(self) -> None:
        if not getattr(self.site, "super_gaussian", False):
            raise InputError("SuperGaussian needs a site that is super-Gaussian", type(self.site).__name__,
                             "Logistic, Binomial, NegativeBinomial, Laplace, StudentT, ExponentialPower and Sech2 are.")
        # gamma = -2 g' is positive and falls as x = (m - c)^2 + v grows, since g is convex, whatever the site is.
        self._adopt(gamma_trend="falling", log_concave=True)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        slope, centre = self.site.symmetry(y)
        error = m - centre
        even = self.site.even_part(y, error * error + v)
        # At a kink (no distance, no variance) the precision is taken as 0, as the site itself does.
        gamma = np.nan_to_num(np.where(np.isinf(even.slope), 0.0, even.gamma), nan=0.0, posinf=_LARGEST)
        return Expectation(slope * error + even.value, gamma * error - slope, gamma)

    def curvature(self, y: Array, m: Array, v: Array) -> Array:
        """-d2 value/dm2 at fixed v: (h*)''(s) of [N], the weights of the inner loop; never negative if log-concave.

        With d^2 = (m - c)^2 + v the second derivative -2 g'(d^2) - 4 (m - c)^2 g''(d^2) is an average of gamma, with
        the weight v / d^2, and of the curvature of the site itself at c + d: no difference is taken.

        >>> from klimb.sites.real import Laplace
        >>> SuperGaussian(Laplace(1.0)).curvature(np.zeros(2), np.array([0.0, 3.0]), np.array([1.0, 16.0]))
        array([1.   , 0.128])
        """
        return penalty(self.site, y, m, v).curvature

    # -- the duals, checked; ``variance`` is the paper's gamma, s is the distance from the centre

    def threshold(self, y: ArrayLike) -> Threshold:
        """gamma_0 and xi_0 of [N]: the variance up to which a Gaussian bound touches at the centre."""
        return threshold(self.site, self.site.validate(y))

    def height(self, y: ArrayLike, variance: ArrayLike, *, start: Array | None = None) -> Height:
        """h(variance), h' and h'': the Gaussian exp(slope s - s^2 / (2 variance) - h / 2) touches the site from below.

        >>> from klimb.sites.real import Laplace
        >>> SuperGaussian(Laplace(scale=0.5)).height([0.0], [3.0]).value.tolist()  # variance / scale^2
        [12.0]
        """
        clean, _, widths = self.site.checked(y, 0.0, variance)
        if not (widths > 0.0).all():
            raise InputError("The variance of a Gaussian bound must be positive", f"{float(widths.min())}",
                             "Pass variances, one per datum.")
        return height(self.site, clean, widths, start=start)

    def penalty(self, y: ArrayLike, s: ArrayLike, v: ArrayLike) -> Penalty:
        """h*(s; v), its two derivatives in s and the variance that attains it: what the inner loop minimises.

        >>> from klimb.sites.binary import Logistic
        >>> found = SuperGaussian(Logistic()).penalty([1], [0.7], [2.0])
        >>> print(found.value.round(6), found.slope.round(6), found.curvature.round(6))
        [0.626622] [-0.35409] [0.195331]
        """
        return penalty(self.site, *self.site.checked(y, s, v))

    def predict(self, m: ArrayLike, v: ArrayLike) -> Prediction:
        return self.site.predict(m, v)
