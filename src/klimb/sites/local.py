"""The local convex bound of super-Gaussian sites [N], as an oracle like any other, and more sites that have one.

Here sigma = 1 and ``variance`` is the paper's gamma: its Gaussian bound is exp(-x / (2 variance) - h(variance) / 2), x
= s^2, and klimb's gamma is 1 / variance. With g convex and falling,

    g(x) = max over the variance of [-x / variance - h(variance)] / 2
    h(variance) = -min over x of [x / variance + 2 g(x)]
    h*(s; z) = min over the variance of [(z + s^2) / variance + h(variance)] / 2 - slope s = -g(z + s^2) - slope s.

The outer minimum need not be searched for: its minimiser is -1 / (2 g'). The inner one inverts g', in closed form where
the site has one, else by a bracketed secant method on logarithms.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import expit, gammainc, gammaincc, gammaln

from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, ArrayLike, Index
from klimb.numerics.responses import power_moments
from klimb.numerics.search import monotone_root
from klimb.numerics.softplus import folded_moments, folded_point
from klimb.numerics.special import log_cosh_even
from klimb.sites.base import EvenPart, Expectation, Site, set_parameter
from klimb.sites.real import SymmetricNoise
from klimb.sites.wrappers import Wrapper, asked, set_facts

_LARGEST = np.finfo(float).max
_HUGE = 1e300
_CENTRE = 0.05  # distance from the centre, in widths, within which the mean of tanh is an integral of its derivative
_FIRST_ORDER = 1e-8  # log(variance / gamma_0) below which the expansion at the threshold has more digits than the root


class Threshold(NamedTuple):
    """gamma_0 and xi_0; both are 0 for a site with a kink."""

    variance: Array  # bounds narrower than this touch at the centre
    rate: Array  # just beyond, the touching square is rate * log(variance / gamma_0)


class Height(NamedTuple):
    """h, h' and h'' at a variance, and ``square`` = x_*, the square of the distance at which the bound touches."""

    value: Array
    slope: Array
    curvature: Array
    square: Array


class Penalty(NamedTuple):
    """h*(s; z), its first and second derivative in s, and the ``variance`` that attains it."""

    value: Array
    slope: Array
    curvature: Array
    variance: Array


def threshold(site: Site, y: Array) -> Threshold:
    """gamma_0 = -1 / (2 g'(0)) and xi_0 = -g'(0) / g''(0), [N] Appendix."""
    even = site.even_part(y, np.zeros_like(y))
    with np.errstate(divide="ignore", invalid="ignore"):
        kink = np.isinf(even.slope)
        return Threshold(np.where(kink, 0.0, 1.0 / even.gamma), np.where(kink, 0.0, -even.slope / even.curvature))


def height(site: Site, y: Array, variance: Array, *, start: Array | None = None) -> Height:
    """h(variance) and its derivatives, [N] Appendix; ``start`` are squares found before (``Height.square``)."""
    edge = threshold(site, y)
    beyond = variance > edge.variance
    square = np.where(beyond, _touching(site, y, variance, edge, start), 0.0)
    even = site.even_part(y, square)
    value = np.where(beyond, -square / variance, 0.0) - 2.0 * even.value
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # gamma^3 h'' = 1 / (2 gamma g'') - 2 x; with l_x = 0 that is bend / (2 g''), which takes no difference and
        # has the sign of the site's own curvature: [N] Theorem 2.
        curvature = np.where(beyond, even.bend / (2.0 * even.curvature), 0.0) / variance**3
    return Height(value, square / variance**2, np.nan_to_num(curvature, nan=0.0), square)


def penalty(site: Site, y: Array, s: Array, z: Array) -> Penalty:
    """h*(s; z) and its derivatives from one evaluation of g at z + (s - c)^2; ``s`` is the latent value itself."""
    slope, centre = site.symmetry(y)
    error = s - centre
    square = error * error
    even = site.even_part(y, square + z)
    with np.errstate(divide="ignore"):
        variance = np.where(np.isinf(even.slope), 0.0, 1.0 / even.gamma)
    kink = np.isinf(even.slope)  # no distance and no variance: the precision is taken as 0, as the site itself does
    gamma, bend = np.where(kink, 0.0, even.gamma), np.where(kink, 0.0, even.bend)
    # -2 g' - 4 s^2 g'' as an average of gamma and of the site's own curvature: never negative if it is log-concave.
    share = np.divide(z, square + z, out=np.ones_like(square), where=square + z > 0.0)
    return Penalty(-even.value - slope * error, gamma * error - slope, share * gamma + (1.0 - share) * bend, variance)


def _touching(site: Site, y: Array, variance: Array, edge: Threshold, start: Array | None) -> Array:
    """x_* with -2 g'(x_*) variance = 1, where the variance exceeds the threshold."""
    closed = site.touching(y, variance)
    if closed is not None:
        return closed

    def excess(rows: Index, t: Array) -> Array:
        """-log(-2 g'(x) variance) at t = log x: rising, and close to a line far out, where g' is close to a power."""
        return -np.log(site.rows(rows).even_part(y[rows], np.exp(t)).gamma) - np.log(variance[rows])

    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        ratio = np.where(edge.variance > 0.0, np.log(variance) - np.log(edge.variance), np.inf)
        first_order = edge.rate * ratio  # x_* near the threshold
        guess = np.where(np.isfinite(ratio) & (ratio < 300.0), edge.rate * 0.5 * np.expm1(2.0 * ratio), variance)
        if start is not None:
            guess = np.where(start > 0.0, start, guess)
        done = ratio < _FIRST_ORDER
        middle = np.log(np.clip(np.where(done, 1.0, guess), 1e-300, _HUGE))
        root = np.exp(monotone_root(excess, middle, np.full_like(middle, 0.1)))
    return np.where(done, first_order, root)


@dataclass(frozen=True, eq=False)
class SuperGaussian(Wrapper):
    """A super-Gaussian site seen through its best Gaussian lower bound: log p(y|f) >= slope f - gamma f^2 / 2 + ...

    With log p(y|f) = slope (f - c) + g((f - c)^2), g convex and falling, the best bound of this form has the
    expectation slope (m - c) + g((m - c)^2 + v) under N(m, v): Jensen's inequality for g, [N] section 2. The fit is
    convex for log-concave sites, and its bound lies below the one of the site itself.

    >>> from klimb.sites.counts import Logistic
    >>> local, full = SuperGaussian(Logistic()).expect([1], [0.5], [9.0]), Logistic().expect([1], [0.5], [9.0])
    >>> bool(local.value[0] < full.value[0])
    True

    Any site works that declares ``super_gaussian = True`` and tells its ``symmetry(y)``; the duals of [N] are in
    ``threshold``, ``height`` and ``penalty``.
    """

    site: Site

    predict = asked("predict")

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
        require((widths > 0.0).all(), "The variance of a Gaussian bound must be positive", float(widths.min()),
                "Pass variances, one per datum.")
        return height(self.site, clean, widths, start=start)

    def penalty(self, y: ArrayLike, s: ArrayLike, v: ArrayLike) -> Penalty:
        """h*(s; v), its two derivatives in s and the variance that attains it: what the inner loop minimises.

        >>> from klimb.sites.counts import Logistic
        >>> found = SuperGaussian(Logistic()).penalty([1], [0.7], [2.0])
        >>> print(found.value.round(6), found.slope.round(6), found.curvature.round(6))
        [0.626622] [-0.35409] [0.195331]
        """
        return penalty(self.site, *self.site.checked(y, s, v))


@dataclass(frozen=True, eq=False)
class ExponentialPower(SymmetricNoise):
    """y = f + noise with density proportional to exp(-|x / scale|^power), 0 < power < 2.

    Laplace at power 1, closer to a Gaussian above, and sparser below, where it is not log-concave: the posterior may
    then have several modes. At v = 0 alpha and gamma are taken as 0 at f = y.

    >>> e = ExponentialPower(scale=1.0, power=1.5).expect([0.0], m=[0.0], v=[1.0])
    >>> print(e.value.round(6), e.gamma.round(6))
    [-1.450872] [1.29006]
    """

    scale: Array | float
    power: Array | float

    log_concave = False  # of the class; an instance says True where every power is at least 1
    smooth = False
    positive = (("scale", "The noise has the density exp(-|x / scale|^power), up to a constant."),)
    per_datum = ("scale", "power")

    def __post_init__(self) -> None:
        super().__post_init__()
        set_parameter(self, "power", lambda x: (x > 0.0) & (x < 2.0), "ExponentialPower needs 0 < power < 2",
                      "Use Gaussian for a power of 2; larger ones are not super-Gaussian.")
        set_facts(self, log_concave=bool(np.all(np.asarray(self.power) >= 1.0)))

    def constant(self, y: Array) -> Array:
        return np.asarray(-np.log(2.0) - np.log(self.scale) - gammaln(1.0 + 1.0 / np.asarray(self.power))
                          + np.zeros_like(y))

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        power = np.broadcast_to(self.power, m.shape)
        mean, slope, bend = power_moments((m - y) / self.scale, np.sqrt(v) / self.scale, power)
        with np.errstate(over="ignore"):
            return Expectation(-mean, slope / self.scale, np.nan_to_num(bend / np.square(self.scale)))

    def point(self, y: Array, f: Array) -> Expectation:
        error, p = (f - y) / self.scale, np.asarray(self.power)
        size = np.abs(error)
        at_y = size == 0.0
        safe = np.where(at_y, 1.0, size)
        with np.errstate(over="ignore", under="ignore"):
            value = np.where(at_y, 0.0, safe**p)
            alpha = np.where(at_y, 0.0, np.sign(error) * (p * safe**p / safe))
            gamma = np.where(at_y, 0.0, p * (p - 1.0) * safe**p / safe**2)
            alpha, gamma = alpha / self.scale, np.nan_to_num(np.nan_to_num(gamma) / np.square(self.scale))
        return Expectation(-value, alpha, gamma)

    def even_part(self, y: Array, x: Array) -> EvenPart:
        # g = -(x / scale^2)^(power / 2)
        half, unit = 0.5 * np.asarray(self.power), np.square(self.scale)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            size = (x / unit) ** half
            slope = -half * size / x
            part = EvenPart(-size, slope, (half - 1.0) * slope / x, -2.0 * (2.0 * half - 1.0) * slope)
        at_y = x == 0.0
        return EvenPart(part.value, np.where(at_y, -np.inf, part.slope), np.where(at_y, np.inf, part.curvature),
                        np.where(at_y, 0.0, part.bend))

    def touching(self, y: Array, variance: Array) -> Array:
        p = np.asarray(self.power)
        with np.errstate(over="ignore", under="ignore"):
            ratio = (p * variance / np.square(self.scale)) ** (2.0 / (2.0 - p))
            return np.asarray(np.minimum(ratio * np.square(self.scale), _HUGE))

    def peak(self, y: Array) -> tuple[Array, Array]:
        return y, self.scale * 0.5 ** (1.0 / np.asarray(self.power)) + np.zeros_like(y)

    def noise_variance(self) -> Array:
        p = np.asarray(self.power)
        with np.errstate(over="ignore"):
            return np.asarray(np.minimum(np.square(self.scale) * np.exp(gammaln(3.0 / p) - gammaln(1.0 / p)), _HUGE))

    def cdf(self, y: Array, f: Array) -> Array:
        x, p = (y - f) / self.scale, np.asarray(self.power)
        with np.errstate(over="ignore", under="ignore"):
            size = np.abs(x) ** p
        return np.asarray(np.where(x < 0.0, 0.5 * gammaincc(1.0 / p, size), 0.5 + 0.5 * gammainc(1.0 / p, size)))


@dataclass(frozen=True, eq=False)
class Sech2(SymmetricNoise):
    """y = f + noise with density sech^2(x / (2 scale)) / (4 scale): the logistic distribution, sd pi scale / sqrt(3).

    A smooth and log-concave relative of the Laplace distribution, with the same tails.

    >>> e = Sech2(scale=1.0).expect([0.0], m=[0.0], v=[0.0])
    >>> print(np.exp(e.value).round(12), e.gamma.round(12))
    [0.25] [0.5]
    """

    scale: Array | float

    log_concave = True
    positive = (("scale", "The standard deviation of the noise is 1.8138 times the scale."),)

    def constant(self, y: Array) -> Array:
        return np.asarray(-np.log(self.scale) + np.zeros_like(y))

    # log p = -softplus(x) - softplus(-x) - log scale: one success and one failure of a logistic trial

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        x, spread = (m - y) / self.scale, v / np.square(self.scale)
        value, slope, bend = folded_moments(x, spread)
        tanh = np.sign(x) * (1.0 - 2.0 * slope)
        near = np.flatnonzero(np.abs(x) < _CENTRE * np.sqrt(1.0 + spread))
        if near.size:
            tanh[near] = _mean_tanh(x[near], spread[near])
        return self._in_units(x, value, tanh, bend)

    def point(self, y: Array, f: Array) -> Expectation:
        x = (f - y) / self.scale
        value, _, bend = folded_point(x)
        return self._in_units(x, value, np.tanh(0.5 * x), bend)

    def _in_units(self, x: Array, value: Array, tanh: Array, bend: Array) -> Expectation:
        """softplus(x) + softplus(-x) = 2 softplus(-|x|) + |x| from the folded moments; its derivative is tanh(x/2)."""
        return Expectation(-2.0 * value - np.abs(x), tanh / self.scale, 2.0 * bend / np.square(self.scale))

    def even_part(self, y: Array, x: Array) -> EvenPart:
        with np.errstate(over="ignore"):
            in_units = np.minimum(x / np.square(self.scale), _HUGE)
        return EvenPart(*log_cosh_even(in_units)).scaled(2.0, self.scale)

    def noise_variance(self) -> Array:
        return np.asarray(np.square(np.pi * np.asarray(self.scale)) / 3.0)

    def cdf(self, y: Array, f: Array) -> Array:
        return np.asarray(expit((y - f) / self.scale))


def _mean_tanh(mean: Array, v: Array) -> Array:
    """E tanh(x/2) under N(mean, v) near the centre, by its derivative: 1 - 2 E sigmoid(-x) has no digits there."""
    total = np.zeros_like(mean)
    for node, weight in zip(*np.polynomial.legendre.leggauss(3), strict=True):
        total += weight * folded_moments(0.5 * (1.0 + node) * mean, v)[2]
    return mean * total
