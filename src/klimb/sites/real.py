"""Sites of real measurements: noise around f, or noise whose log variance is f."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import erf, ndtr, ndtri, psi, stdtr

from klimb.numerics.arrays import Array, Index
from klimb.numerics.normal import half_normal_loss
from klimb.numerics.quadrature import by_few_nodes
from klimb.numerics.responses import double_exponential_tilted, lognormal_moments
from klimb.numerics.search import monotone_root
from klimb.numerics.special import (
    HALF_LOG_2PI,
    MOST_DEVIATIONS,
    SQRT_2,
    SQRT_2PI,
    Triple,
    exponentials,
    log_gamma_half_step,
    pole_expectations,
)
from klimb.numerics.tilted import Tilted
from klimb.sites.base import EvenPart, Expectation, Site
from klimb.sites.counts import Probit
from klimb.sites.prediction import predictive_cdf


class RealSite(Site):
    """A site of real measurements."""

    response = "real"
    advice = "Drop or impute missing values first."


class Noise(RealSite):
    """y = f + noise that does not depend on f."""

    scale: Array | float  # log p = g((f - y) / scale) - log scale

    @abstractmethod
    def noise_variance(self) -> Array:
        """The variance of y given f."""

    def start(self, y: Array) -> tuple[Array, Array]:
        # A Gaussian with the variance of the noise.
        gamma = np.zeros_like(y) + 1.0 / self.noise_variance()
        return gamma * y, gamma

    def response_moments(self, m: Array, v: Array) -> tuple[Array, Array]:
        return m.copy(), v + self.noise_variance()

    def pulled(self, y: Array, m: Array, v: Array) -> tuple[Array, Array]:
        """E log p without constants, and -E x g'(x) for log p = g(x): E x h = E x E h + Var x E h' for a Gaussian x."""
        e = self.oracle(y, m, v)
        return e.value, (m - y) * e.alpha + v * e.gamma

    def parameter_slopes(self, y: Array, m: Array, v: Array, counts: Array | float = 1.0) -> Mapping[str, Any] | None:
        _, pull = self.pulled(y, m, v)
        return {"scale": float(np.sum(counts * (pull - 1.0) / self.scale))}


class SymmetricNoise(Noise):
    """Super-Gaussian noise around f."""

    super_gaussian = True

    def symmetry(self, y: Array) -> tuple[Array, Array]:
        return np.zeros_like(y), y


@dataclass(frozen=True, eq=False)
class Gaussian(Noise):
    """y = f + noise with standard deviation ``scale``.

    >>> e = Gaussian(scale=2.0).expect([1.0], m=[0.0], v=[3.0])
    >>> print(e.alpha, e.gamma)
    [-0.25] [0.25]
    """

    scale: Array | float

    log_concave = True
    gamma_trend = "constant"
    positive = (("scale", "The scale is the standard deviation of the noise."),)

    def constant(self, y: Array) -> Array:
        return -np.log(self.scale) - HALF_LOG_2PI + np.zeros_like(y)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        error, spread = (m - y) / self.scale, v / (np.square(self.scale))
        gamma = np.zeros_like(error) + 1.0 / np.square(self.scale)
        return Expectation(-0.5 * (error * error + spread), error / self.scale, gamma)

    def noise_variance(self) -> Array:
        return np.asarray(np.square(self.scale))

    def tilted(self, y: Array, m: Array, v: Array, power: float | Array = 1.0) -> Tilted:
        precision = power / np.square(self.scale) + np.zeros_like(m)
        shrunk = precision / (1.0 + precision * v)
        slope = shrunk * (y - m)
        return Tilted(-0.5 * (np.log1p(precision * v) + slope * (y - m)), slope, -shrunk)

    def cdf(self, y: Array, f: Array) -> Array:
        return np.asarray(ndtr((y - f) / self.scale))

    def survivor_point(self, y: Array, f: Array) -> Expectation:
        return self._in_scale(Probit().point(np.ones(()), (f - y) / self.scale))

    def survivor(self, y: Array, m: Array, v: Array) -> Expectation:
        return self._in_scale(Probit().oracle(np.ones_like(y), (m - y) / self.scale, v / np.square(self.scale)))

    def _in_scale(self, e: Expectation) -> Expectation:
        return Expectation(e.value, e.alpha / self.scale, e.gamma / np.square(self.scale))

    def response_quantile(self, p: float, m: Array, v: Array) -> Array:
        return m + np.hypot(np.sqrt(v), self.scale) * ndtri(p)


@dataclass(frozen=True, eq=False)
class Laplace(SymmetricNoise):
    """y = f + noise with density exp(-|x| / scale) / (2 scale).

    At v = 0 the density has a kink at f = y; there alpha and gamma are taken as 0.

    >>> e = Laplace(scale=1.0).expect([0.0], m=[0.0], v=[1.0])  # -E|z| - log 2
    >>> print(e.value.round(6))
    [-1.491032]
    """

    scale: Array | float

    log_concave = True
    smooth = False
    positive = (("scale", "The scale is the mean of |y - f|."),)

    def constant(self, y: Array) -> Array:
        return np.asarray(-np.log(2.0) - np.log(self.scale) + np.zeros_like(y))

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        error, s = m - y, np.sqrt(v)
        size = np.abs(error)
        with np.errstate(over="ignore", under="ignore"):
            safe = np.maximum(s, 1e-160)
            a = np.minimum(size / safe, 1e150)
            # E|x| = |error| + 2 E max(-x, 0) for x ~ N(|error|, v): a sum of two positive terms.
            mean_size = size + 2.0 * s * half_normal_loss(a)
            gamma = np.where(s > 0.0, 2.0 * np.exp(-0.5 * a * a) / (SQRT_2PI * safe), 0.0) / self.scale
        return Expectation(-mean_size / self.scale, np.sign(error) * erf(a / SQRT_2) / self.scale, gamma)

    def point(self, y: Array, f: Array) -> Expectation:
        error = f - y
        return Expectation(-np.abs(error) / self.scale, np.sign(error) / self.scale, np.zeros_like(error))

    def even_part(self, y: Array, x: Array) -> EvenPart:
        # g = -sqrt(x) / scale; a kink at the centre, where the slope is infinite
        d = np.sqrt(x)
        with np.errstate(divide="ignore", over="ignore"):
            slope = -0.5 / (d * self.scale)
            return EvenPart(-d / self.scale, slope, -0.5 * slope / x, np.zeros_like(x))

    def touching(self, y: Array, variance: Array) -> Array:
        return np.square(variance / self.scale)

    def noise_variance(self) -> Array:
        return np.asarray(2.0 * np.square(self.scale))

    def tilted(self, y: Array, m: Array, v: Array, power: float | Array = 1.0) -> Tilted:
        return double_exponential_tilted(y - m, v, power / self.scale + np.zeros_like(m))

    def cdf(self, y: Array, f: Array) -> Array:
        x = (y - f) / self.scale
        tail = 0.5 * np.exp(-np.abs(x))
        return np.where(x < 0.0, tail, 1.0 - tail)


@dataclass(frozen=True, eq=False)
class StudentT(SymmetricNoise):
    """y = f + ``scale`` times Student's t with ``df`` degrees of freedom. Not log-concave: gamma may be negative.

    >>> e = StudentT(df=1.0, scale=1.0).expect([0.0], m=[0.0], v=[0.0])  # Cauchy
    >>> print((np.exp(e.value) * np.pi).round(12))
    [1.]
    """

    df: Array | float
    scale: Array | float = 1.0

    log_concave = False
    positive = (("df", "Use Gaussian for infinitely many degrees of freedom."),
                ("scale", "The scale multiplies a t variable; it is not its standard deviation."))

    def constant(self, y: Array) -> Array:
        half = 0.5 * np.asarray(self.df)
        return log_gamma_half_step(half) - 0.5 * np.log(2.0 * np.pi * half) - np.log(self.scale) + np.zeros_like(y)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        # In units of the noise, around y; the poles are +- i width.
        scale, df = np.asarray(self.scale), np.asarray(self.df) + np.zeros_like(m)
        mean, s, width = (m - y) / scale, np.sqrt(v) / scale, np.sqrt(df)
        near = np.hypot(mean, width) < MOST_DEVIATIONS * s
        out, rows = tuple(np.empty_like(mean) for _ in range(3)), np.flatnonzero(near)
        factors = (-0.5 * (df[rows] + 1.0), df[rows] + 1.0, df[rows] + 1.0)
        found = pole_expectations(mean[rows], s[rows], width[rows])
        for target, factor, values in zip(out, factors, found, strict=True):
            target[rows] = factor * values
        by_few_nodes(lambda x, some: _student_integrands(x, df[some]), mean, s, np.abs(mean), width, 0.0, ~near, out)
        value, alpha, gamma = out
        return Expectation(value, alpha / scale, gamma / np.square(scale))

    def point(self, y: Array, f: Array) -> Expectation:
        value, alpha, gamma = _student_integrands((f - y) / self.scale, np.asarray(self.df))
        return Expectation(value, alpha / self.scale, gamma / np.square(self.scale))

    def parameter_slopes(self, y: Array, m: Array, v: Array, counts: Array | float = 1.0) -> Mapping[str, Any] | None:
        # The slope of log(1 + x^2/df) in df is -x^2 / (df (x^2 + df)), and -x g'(x) = (df + 1) x^2 / (x^2 + df).
        df, (value, pull) = np.asarray(self.df), self.pulled(y, m, v)
        own = value / (df + 1.0) + 0.5 * (pull - 1.0) / df + 0.5 * (psi(0.5 * df + 0.5) - psi(0.5 * df))
        return {"scale": float(np.sum(counts * (pull - 1.0) / self.scale)), "df": float(np.sum(counts * own))}

    def even_part(self, y: Array, x: Array) -> EvenPart:
        # g = -(df + 1)/2 log(1 + x / width), width = df scale^2
        width, half = self.df * np.square(self.scale), 0.5 * (np.asarray(self.df) + 1.0)
        spread = width + x
        slope = -half / spread
        with np.errstate(over="ignore"):
            ratio = np.minimum(x / width, 1e300)
        return EvenPart(-half * np.log1p(ratio), slope, -slope / spread, -2.0 * slope * ((width - x) / spread))

    def touching(self, y: Array, variance: Array) -> Array:
        df = np.asarray(self.df)
        return np.asarray(np.maximum((df + 1.0) * variance - df * np.square(self.scale), 0.0))

    def start(self, y: Array) -> tuple[Array, Array]:
        # The curvature at the mode.
        gamma = np.zeros_like(y) + (self.df + 1.0) / (self.df * np.square(self.scale))
        return gamma * y, gamma

    def peak(self, y: Array) -> tuple[Array, Array]:
        return y, self.scale * np.sqrt(self.df / (self.df + 1.0)) + np.zeros_like(y)

    def noise_variance(self) -> Array:
        df = np.asarray(self.df)
        return np.asarray(np.where(df > 2.0, df / np.where(df > 2.0, df - 2.0, 1.0), np.inf) * np.square(self.scale))

    def response_moments(self, m: Array, v: Array) -> tuple[Array, Array]:
        # Without a mean (df <= 1) there is nothing to report: nan is the answer; the variance needs df > 2.
        known = np.asarray(self.df) > 1.0
        return np.where(known, m, np.nan), np.where(known, v + self.noise_variance(), np.nan)

    def cdf(self, y: Array, f: Array) -> Array:
        return np.asarray(stdtr(self.df, (y - f) / self.scale))


def _student_integrands(x: Array, df: Array) -> Triple:
    """g = -(df + 1)/2 log(1 + x^2/df), -g' and -g''."""
    square = x * x
    spread = df + square
    slope = (df + 1.0) * x / spread
    return -0.5 * (df + 1.0) * np.log1p(square / df), slope, (df + 1.0) * (df - square) / (spread * spread)


@dataclass(frozen=True)
class StochasticVolatility(RealSite):
    """y ~ N(0, e^f): f is the log variance of a return.

    >>> e = StochasticVolatility().expect([1.0], m=[0.0], v=[2.0])
    >>> print(e.gamma.round(6))  # [S] Remark 1, corrected: y^2 exp(-m + v/2) / 2
    [1.359141]
    """

    log_concave = True
    gamma_trend = "rising"

    def constant(self, y: Array) -> Array:
        return -HALF_LOG_2PI - np.where(y == 0.0, 0.0, 0.5 + np.log(np.where(y == 0.0, 1.0, np.abs(y))))

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        moved = y != 0.0
        with np.errstate(over="ignore", under="ignore"):
            whole, excess, rest = exponentials(2.0 * np.log(np.where(moved, np.abs(y), 1.0)) - m + 0.5 * v)
            value, alpha = np.where(moved, -0.5 * (rest + 0.5 * v), -0.5 * m), np.where(moved, -0.5 * excess, 0.5)
            return Expectation(value, alpha, np.where(moved, 0.5 * whole, 0.0))

    def start(self, y: Array) -> tuple[Array, Array]:
        # The mode of -f/2 - y^2 e^-f / 2 is log y^2 with curvature 1/2; small returns are moderated by the others.
        square = y * y
        typical = np.mean(square) if np.any(y) else 1.0
        gamma = np.full_like(y, 0.5)
        return gamma * np.log(np.maximum(square, 1e-3 * typical)), gamma

    def response_moments(self, m: Array, v: Array) -> tuple[Array, Array]:
        return np.zeros_like(m), lognormal_moments(m, v)[0]

    def cdf(self, y: Array, f: Array) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(ndtr(y * np.minimum(np.exp(-0.5 * f), 1e300)))

    def response_quantile(self, p: float, m: Array, v: Array) -> Array:
        # y is symmetric, and the logarithm of its size is what has the scale of f.
        if p == 0.5:
            return np.zeros_like(m)

        def excess(rows: Index, t: Array) -> Array:
            return predictive_cdf(self, np.exp(np.clip(t, -745.0, 709.7)), m[rows], v[rows]) - max(p, 1.0 - p)

        size = np.exp(np.clip(monotone_root(excess, 0.5 * m, 1.0 + 0.5 * np.sqrt(v)), -745.0, 709.7))
        return size if p > 0.5 else -size
