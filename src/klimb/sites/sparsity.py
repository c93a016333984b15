"""Sites that serve as sparsity priors beside Laplace and Student-t: exponential power, squared hyperbolic secant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import expit, gammainc, gammaincc, gammaln

from klimb.numerics.arrays import Array
from klimb.numerics.responses import power_moments
from klimb.numerics.softplus import folded_moments, folded_point
from klimb.numerics.special import log_cosh_even
from klimb.sites.base import EvenPart, Expectation, set_parameter
from klimb.sites.real import SymmetricNoise
from klimb.sites.wrappers import set_facts

_LARGEST = 1e300
_CENTRE = 0.05  # distance from the centre, in widths, within which the mean of tanh is an integral of its derivative


@final
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
            return np.asarray(np.minimum(ratio * np.square(self.scale), _LARGEST))

    def peak(self, y: Array) -> tuple[Array, Array]:
        return y, self.scale * 0.5 ** (1.0 / np.asarray(self.power)) + np.zeros_like(y)

    def noise_variance(self) -> Array:
        p = np.asarray(self.power)
        with np.errstate(over="ignore"):
            return np.asarray(np.minimum(np.square(self.scale) * np.exp(gammaln(3.0 / p) - gammaln(1.0 / p)), _LARGEST))

    def cdf(self, y: Array, f: Array) -> Array:
        x, p = (y - f) / self.scale, np.asarray(self.power)
        with np.errstate(over="ignore", under="ignore"):
            size = np.abs(x) ** p
        return np.asarray(np.where(x < 0.0, 0.5 * gammaincc(1.0 / p, size), 0.5 + 0.5 * gammainc(1.0 / p, size)))


@final
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
            in_units = np.minimum(x / np.square(self.scale), _LARGEST)
        return EvenPart(*log_cosh_even(in_units)).scaled(2.0, self.scale)

    def noise_variance(self) -> Array:
        return np.asarray(np.square(np.pi * np.asarray(self.scale)) / 3.0)

    def cdf(self, y: Array, f: Array) -> Array:
        return np.asarray(expit((y - f) / self.scale))


def _mean_tanh(mean: Array, v: Array) -> Array:
    """E tanh(x/2) under N(mean, v) close to the centre, where 1 - 2 E sigmoid(-x) has no digits.

    The integral of 2 E sigmoid', all but constant there, from 0 to the mean: Gauss's rule in three nodes.
    """
    total = np.zeros_like(mean)
    for node, weight in zip(*np.polynomial.legendre.leggauss(3), strict=True):
        total += weight * folded_moments(0.5 * (1.0 + node) * mean, v)[2]
    return mean * total
