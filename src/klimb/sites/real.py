"""Sites of real measurements: noise around f, or noise whose log variance is f."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import erf

from klimb.numerics.arrays import Array, ArrayLike
from klimb.numerics.normal import half_normal_loss
from klimb.numerics.quadrature import SPAN, Index, Landscape, Triple, gaussian_expectation
from klimb.numerics.special import HALF_LOG_2PI, SQRT_2, SQRT_2PI, expm1_minus, log_gamma_half_step
from klimb.sites.base import Expectation, Site, clean_data, positive_parameter

_ADVICE = "Drop or impute missing values first."


@dataclass(frozen=True, eq=False)
class Gaussian(Site):
    """y = f + noise with standard deviation ``scale``.

    >>> e = Gaussian(scale=2.0).expect([1.0], m=[0.0], v=[3.0])
    >>> print(e.alpha, e.gamma)
    [-0.25] [0.25]
    """

    scale: Array | float

    log_concave = True
    gamma_trend = "constant"
    discrete = False
    support = "the real numbers"
    per_datum = ("scale",)

    def __post_init__(self) -> None:
        positive_parameter(self, "scale", "The scale is the standard deviation of the noise.")

    def validate(self, y: ArrayLike) -> Array:
        return clean_data(self, y, np.isfinite, _ADVICE)

    def constant(self, y: Array) -> Array:
        return -np.log(self.scale) - HALF_LOG_2PI + np.zeros_like(y)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        error, spread = (m - y) / self.scale, v / (np.square(self.scale))
        gamma = np.zeros_like(error) + 1.0 / np.square(self.scale)
        return Expectation(-0.5 * (error * error + spread), error / self.scale, gamma)

    def point(self, y: Array, f: Array) -> Expectation:
        return self.oracle(y, f, np.zeros(()))

    def start(self, y: Array) -> tuple[Array, Array]:
        gamma = np.zeros_like(y) + 1.0 / np.square(self.scale)
        return gamma * y, gamma


@dataclass(frozen=True, eq=False)
class Laplace(Site):
    """y = f + noise with density exp(-|x| / scale) / (2 scale).

    At v = 0 the density has a kink at f = y; there alpha and gamma are taken as 0.

    >>> e = Laplace(scale=1.0).expect([0.0], m=[0.0], v=[1.0])  # -E|z| - log 2
    >>> print(e.value.round(12))
    [-1.491031741363]
    """

    scale: Array | float

    log_concave = True
    gamma_trend = "mixed"
    super_gaussian = True
    discrete = False
    support = "the real numbers"
    per_datum = ("scale",)

    def __post_init__(self) -> None:
        positive_parameter(self, "scale", "The scale is the mean of |y - f|.")

    def validate(self, y: ArrayLike) -> Array:
        return clean_data(self, y, np.isfinite, _ADVICE)

    def constant(self, y: Array) -> Array:
        return -np.log(2.0) - np.log(self.scale) + np.zeros_like(y)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        error, s = m - y, np.sqrt(v)
        size = np.abs(error)
        spread = s > 0.0
        with np.errstate(over="ignore", under="ignore"):
            a = size / np.where(spread, s, 1.0)
            a = np.where(spread, a, np.inf * np.sign(size) if np.ndim(s) == 0 else np.where(size > 0.0, np.inf, 0.0))
            mean_size = size + 2.0 * s * half_normal_loss(np.minimum(a, 1e150))
            density = np.where(spread, 2.0 * np.exp(-0.5 * np.square(np.minimum(a, 1e150))) / SQRT_2PI, 0.0)
            gamma = density / np.where(spread, s, 1.0) / self.scale
        return Expectation(-mean_size / self.scale, np.sign(error) * erf(a / SQRT_2) / self.scale, gamma)

    def point(self, y: Array, f: Array) -> Expectation:
        error = f - y
        return Expectation(-np.abs(error) / self.scale, np.sign(error) / self.scale, np.zeros_like(error))

    def start(self, y: Array) -> tuple[Array, Array]:
        # A Gaussian with the variance of the noise.
        gamma = np.zeros_like(y) + 0.5 / np.square(self.scale)
        return gamma * y, gamma


@dataclass(frozen=True, eq=False)
class StudentT(Site):
    """y = f + ``scale`` times Student's t with ``df`` degrees of freedom. Not log-concave: gamma may be negative.

    >>> e = StudentT(df=1.0, scale=1.0).expect([0.0], m=[0.0], v=[0.0])  # Cauchy
    >>> print((np.exp(e.value) * np.pi).round(12))
    [1.]
    """

    df: Array | float
    scale: Array | float = 1.0

    log_concave = False
    gamma_trend = "mixed"
    super_gaussian = True
    discrete = False
    support = "the real numbers"
    per_datum = ("df", "scale")

    def __post_init__(self) -> None:
        positive_parameter(self, "df", "Use Gaussian for infinitely many degrees of freedom.")
        positive_parameter(self, "scale", "The scale multiplies a t variable; it is not its standard deviation.")

    def validate(self, y: ArrayLike) -> Array:
        return clean_data(self, y, np.isfinite, _ADVICE)

    def constant(self, y: Array) -> Array:
        half = 0.5 * np.asarray(self.df)
        return log_gamma_half_step(half) - 0.5 * np.log(2.0 * np.pi * half) - np.log(self.scale) + np.zeros_like(y)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        width = np.sqrt(self.df) * self.scale + np.zeros_like(m)  # the poles are y +- i width

        def integrands(f: Array, rows: Index) -> Triple:
            e = self.rows(rows).point(y[rows], f)
            return e.value, e.alpha, e.gamma

        s = np.sqrt(v)
        landscape = Landscape(offset=m - y, height=width, tilt=np.zeros_like(m), low=m - SPAN * s, high=m + SPAN * s,
                              centre=y, step=lambda f, rows: 0.75 * np.hypot(f - y[rows], width[rows]),
                              by_parts=np.abs(m - y) < 8.0 * s)
        return Expectation(*gaussian_expectation(integrands, m, v, landscape))

    def point(self, y: Array, f: Array) -> Expectation:
        df, x = self.df, (f - y) / self.scale
        square = x * x
        spread = df + square
        slope = (df + 1.0) * x / spread
        curvature = (df + 1.0) * (df - square) / (spread * spread)
        return Expectation(-0.5 * (df + 1.0) * np.log1p(square / df), slope / self.scale, curvature / np.square(self.scale))

    def start(self, y: Array) -> tuple[Array, Array]:
        # The curvature at the mode.
        gamma = np.zeros_like(y) + (self.df + 1.0) / (self.df * np.square(self.scale))
        return gamma * y, gamma


@dataclass(frozen=True)
class StochasticVolatility(Site):
    """y ~ N(0, e^f): f is the log variance of a return.

    >>> e = StochasticVolatility().expect([1.0], m=[0.0], v=[2.0])
    >>> print(e.gamma.round(12))  # [S] Remark 1, corrected: y^2 exp(-m + v/2) / 2
    [1.35914091423]
    """

    log_concave = True
    gamma_trend = "rising"
    discrete = False
    support = "the real numbers"

    def validate(self, y: ArrayLike) -> Array:
        return clean_data(self, y, np.isfinite, _ADVICE)

    def constant(self, y: Array) -> Array:
        return -HALF_LOG_2PI - np.where(y == 0.0, 0.0, 0.5 + np.log(np.where(y == 0.0, 1.0, np.abs(y))))

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        moved = y != 0.0
        with np.errstate(over="ignore", under="ignore"):
            u = 2.0 * np.log(np.where(moved, np.abs(y), 1.0)) - m + 0.5 * v
            value = np.where(moved, -0.5 * (expm1_minus(u) + 0.5 * v), -0.5 * m)
            alpha = np.where(moved, -0.5 * np.expm1(u), 0.5)
            return Expectation(value, alpha, np.where(moved, 0.5 * np.exp(u), 0.0))

    def point(self, y: Array, f: Array) -> Expectation:
        return self.oracle(y, f, np.zeros(()))

    def start(self, y: Array) -> tuple[Array, Array]:
        # The mode of -f/2 - y^2 e^-f / 2 is log y^2 with curvature 1/2; small returns are moderated by the others.
        square = y * y
        typical = np.mean(square) if np.any(y) else 1.0
        gamma = np.full_like(y, 0.5)
        return gamma * np.log(np.maximum(square, 1e-3 * typical)), gamma
