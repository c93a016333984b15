"""Observations whose class is unknown: mixtures and hidden Markov models with conjugate components.

The log density of a datum in class k is linear in the datum's statistics, so that all N x K of them are one matrix
product and the messages to all components another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, final

import numpy as np
from scipy.special import gammaln

from klimb.conjugate import families
from klimb.conjugate.families import Family, Naturals
from klimb.conjugate.means import packed, unpacked
from klimb.conjugate.observations import Observable
from klimb.conjugate.variables import Evidence, NetworkState, Variable
from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, as_float, refuse
from klimb.numerics.special import HALF_LOG_2PI


class Emission(ABC):
    """p(x | class k) for one kind of component."""

    def __init__(self, component: Variable) -> None:
        self.component = component

    @property
    def n_classes(self) -> int:
        return self.component.plates[0]

    def statistics(self, values: Any) -> tuple[Any, Array]:
        """An N x S matrix and the part of the log density that no class changes."""
        x = as_float(values, f"the data of {self.component.name}")
        x = x[:, None] if x.ndim == 1 else x
        if x.ndim != 2 or x.shape[1] != self.width:
            raise InputError(f"the data of {self.component.name} must have {self.width} columns", f"shape {x.shape}",
                             "One row per datum, one column per entry of a component.")
        return self._statistics(x)

    @property
    def width(self) -> int:
        """Columns of the data."""
        plates = self.component.plates
        return plates[1] if len(plates) > 1 else self.component.dimension

    def _each(self, counts: Array) -> Array:
        """Numbers of the classes (K) for every copy of the component."""
        return np.broadcast_to(counts[:, None], (len(counts), self.width)).reshape(self.component.plates)

    @abstractmethod
    def _statistics(self, x: Array) -> tuple[Array, Array]: ...

    @abstractmethod
    def coefficients(self, moments: Naturals) -> tuple[Array, Array, Array]:
        """K x S, K and K: the log density in class k is statistics @ first[k] + second[k] + third[k].

        A precision that is scaled by a datum multiplies the first two (the squared distance), not the third.
        """

    @abstractmethod
    def message(self, sums: Array, scaled: Array, counts: Array) -> Naturals:
        """From the sums of statistics (K x S), of scales and of ones (K) over the data in each class."""


@final
class VectorNormal(Emission):
    """Vectors, each class with its own precision matrix, or all with one (``tied``)."""

    @property
    def tied(self) -> bool:
        return self.component.family is families.TiedNormalWishart

    @property
    def n_classes(self) -> int:
        return int(self.component.conditional.natural({})[0].shape[0])

    def _statistics(self, x: Array) -> tuple[Array, Array]:
        """Rows with the products of their entries behind them, and the constant of a normal density."""
        i, j = np.tril_indices(x.shape[1])
        return np.hstack([x, x[:, i] * x[:, j]]), np.full(len(x), -x.shape[1] * HALF_LOG_2PI)

    def coefficients(self, moments: Naturals) -> tuple[Array, Array, Array]:
        Lm, mLm, L, log_det = moments
        products = -0.5 * packed(L, twice=True)
        each = np.broadcast_to(products, (len(Lm), products.shape[-1]))
        return np.hstack([Lm, each]), -0.5 * mLm, np.broadcast_to(0.5 * log_det, len(Lm))

    def message(self, sums: Array, scaled: Array, counts: Array) -> Naturals:
        D = self.width
        products, numbers = (sums[:, D:].sum(0), counts.sum()) if self.tied else (sums[:, D:], counts)
        return sums[:, :D], -0.5 * scaled, -0.5 * unpacked(products, D), np.asarray(0.5 * numbers)


@final
class DiagonalNormal(Emission):
    """Numbers or vectors of independent entries."""

    def _statistics(self, x: Array) -> tuple[Array, Array]:
        return np.hstack([x, x * x]), np.full(len(x), -x.shape[1] * HALF_LOG_2PI)

    def coefficients(self, moments: Naturals) -> tuple[Array, Array, Array]:
        tm, tm2, tau, log_tau = (part.reshape(self.n_classes, -1) for part in moments)
        return np.hstack([tm, -0.5 * tau]), -0.5 * tm2.sum(1), 0.5 * log_tau.sum(1)

    def message(self, sums: Array, scaled: Array, counts: Array) -> Naturals:
        linear, squares = (part.reshape(self.component.plates) for part in np.hsplit(sums, 2))
        return linear, -0.5 * self._each(scaled), -0.5 * squares, 0.5 * self._each(counts)


@final
class PoissonCounts(Emission):
    """Counts with gamma rates."""

    def _statistics(self, x: Array) -> tuple[Array, Array]:
        refuse((x < 0) | (x != np.floor(x)), x, "counts must be whole numbers from 0 on",
               "Use normal components for real numbers.")
        return x, -gammaln(x + 1.0).sum(1)

    def coefficients(self, moments: Naturals) -> tuple[Array, Array, Array]:
        log_rate, rate = (part.reshape(self.n_classes, -1) for part in moments)
        return log_rate, np.zeros(len(rate)), -rate.sum(1)

    def message(self, sums: Array, scaled: Array, counts: Array) -> Naturals:
        return sums.reshape(self.component.plates), -self._each(counts)


@final
class ZeroOne(Emission):
    """Vectors of zeros and ones with beta probabilities."""

    def _statistics(self, x: Array) -> tuple[Array, Array]:
        refuse((x != 0) & (x != 1), x, "the data must be zeros and ones", "Use counts or normals.")
        return x, np.zeros(len(x))

    def coefficients(self, moments: Naturals) -> tuple[Array, Array, Array]:
        one, zero = (part.reshape(self.n_classes, -1) for part in moments)
        return one - zero, np.zeros(len(zero)), zero.sum(1)

    def message(self, sums: Array, scaled: Array, counts: Array) -> Naturals:
        ones = sums.reshape(self.component.plates)
        return ones, self._each(counts) - ones


@final
class WordCounts(Emission):
    """Rows of counts of V words (dense or sparse) with Dirichlet probabilities; without the multinomial coefficient."""

    def statistics(self, values: Any) -> tuple[Any, Array]:
        if not hasattr(values, "tocsr"):
            return super().statistics(values)
        counts = values.tocsr().astype(float)
        if counts.shape[1] != self.width or np.any(counts.data < 0) or not np.isfinite(counts.data).all():
            raise InputError(f"word counts must have {self.width} columns, finite and not negative",
                             f"shape {counts.shape}, smallest {counts.data.min(initial=0.0)}", "Check the matrix.")
        return counts, np.zeros(counts.shape[0])

    def _statistics(self, x: Array) -> tuple[Array, Array]:
        return x, np.zeros(len(x))

    def coefficients(self, moments: Naturals) -> tuple[Array, Array, Array]:
        return moments[0], np.zeros(len(moments[0])), np.zeros(len(moments[0]))

    def message(self, sums: Array, scaled: Array, counts: Array) -> Naturals:
        return (sums,)


EMISSIONS: dict[type[Family], type[Emission]] = {
    families.NormalWishart: VectorNormal,
    families.TiedNormalWishart: VectorNormal,
    families.NormalGamma: DiagonalNormal,
    families.Gamma: PoissonCounts,
    families.Beta: ZeroOne,
    families.Dirichlet: WordCounts,
}


@final
class MixtureData(Evidence):
    """Observed rows of a mixture, one per plate of the gate; a row with NaN is missing."""

    def __init__(self, gate: Variable, emission: Emission, scale: Variable | None, values: Any) -> None:
        self.gate, self.emission, self.scale = gate, emission, scale
        self.variables = (gate, emission.component) if scale is None else (gate, emission.component, scale)
        x, missing = without_missing(values)
        self.statistics, base = emission.statistics(x)
        if gate.plates != (self.statistics.shape[0],):
            n = self.statistics.shape[0]
            raise InputError(f"{gate.name} must have one plate with one class per row",
                             f"plates {gate.plates} and {n} rows", f"Give it plates=({n},).")
        if scale is not None and scale.plates != gate.plates:
            raise InputError(f"{scale.name} must have one copy per row, plates {gate.plates}", f"{scale!r}",
                             "Every datum has a scale of its own.")
        if missing is not None:
            self.statistics[missing], base[missing] = 0.0, 0.0
        self.present = None if missing is None else 1.0 - missing
        self._base = float(base.sum())
        self._last: tuple[Family, Array, Array] | None = None

    def _parts(self, state: NetworkState) -> tuple[Array, Array]:
        """The log densities N x K in two parts, of which a datum's scale multiplies the first."""
        factor = state[self.emission.component]
        if self._last is None or self._last[0] is not factor:
            slope, near, free = self.emission.coefficients(state[self.emission.component].moments)
            distance = np.asarray(self.statistics @ slope.T)
            distance += near if self.scale is not None else near + free
            self._last = (factor, distance, free)
        return self._last[1], self._last[2]

    def log_densities(self, state: NetworkState) -> Array:
        """E log p(x_i | class k), N x K (without what no class changes)."""
        values, free = self._parts(state)
        if self.scale is not None:
            log_scale, scale = state[self.scale].moments
            values = values * scale[:, None] + free + 0.5 * self.emission.width * log_scale[:, None]
        return values if self.present is None else values * self.present[:, None]

    def expected_log(self, state: NetworkState) -> float:
        return float(np.einsum("nk,nk->", state[self.gate].moments[-1], self.log_densities(state))) + self._base

    def message(self, to: Variable, state: NetworkState) -> Naturals:
        if to is self.gate:
            zeros = tuple(np.zeros(part.shape) for part in state[self.gate].natural[:-1])
            return (*zeros, self.log_densities(state))
        shares = state[self.gate].moments[-1]
        if self.present is not None:
            shares = shares * self.present[:, None]
        if to is self.scale:
            count = shares.sum(1)
            return 0.5 * self.emission.width * count, np.einsum("nk,nk->n", shares, self._parts(state)[0])
        heavy = shares if self.scale is None else shares * state[self.scale].moments[1][:, None]
        return self.emission.message(np.asarray((self.statistics.T @ heavy).T), heavy.sum(0), shares.sum(0))


def mixture(gate: Variable, component: Variable, *, scale: Variable | None = None) -> Observable:
    """Data whose class is ``gate`` (a `categorical` or a `chain`) and whose classes are the plates of ``component``.

    ``scale``, one gamma per row, multiplies the precision of normal components: gamma(df/2, df/2) makes them Student-t.

    >>> from klimb.conjugate import categorical, dirichlet, fit, gamma, mixture
    >>> rate, kind = gamma([1.0, 10.0], 1.0), categorical(dirichlet([1.0, 1.0]), plates=(8,))
    >>> result = fit(mixture(kind, rate).observe([0, 1, 2, 0, 1, 9, 12, 8]))
    >>> print(result[rate].mean.round(1), result[kind].mean.argmax(axis=1))
    [0.8 9.7] [0 0 0 0 0 1 1 1]
    """
    kind = EMISSIONS.get(component.family)
    if kind is None:
        known = ", ".join(family.__name__ for family in EMISSIONS)
        raise InputError(f"the components of a mixture must be one of {known}", f"{component!r}",
                         "normal_gamma(...) for numbers, normal_wishart(...) for vectors.")
    require(component.family is families.TiedNormalWishart or component.plates,
            "the components of a mixture need a plate, one copy per class", f"{component!r}", "Give it plates=(K,).")
    if scale is not None and not (kind in (VectorNormal, DiagonalNormal) and scale.family is families.Gamma):
        raise InputError("scale must be a gamma variable, for normal components", f"{scale!r} with {component!r}",
                         "gamma(df / 2, df / 2, plates=(N,)) makes the components Student-t.")
    emission = kind(component)
    if gate.dimension != emission.n_classes:
        raise InputError(f"{gate.name} and {component.name} must have the same number of classes",
                         f"{gate.dimension} and {emission.n_classes}", "The first plate of the components is K.")
    return Observable(lambda values: MixtureData(gate, emission, scale, values))


def without_missing(values: Any) -> tuple[Any, Array | None]:
    """Rows with a NaN set to zero, and which they were (None if there are none)."""
    if hasattr(values, "tocsr"):
        return values, None
    x = np.asarray(values, dtype=float)
    missing = np.isnan(x).any(axis=tuple(range(1, x.ndim))) if x.ndim > 1 else np.isnan(x)
    if not missing.any():
        return x, None
    x = x.copy()
    x[missing] = 0.0
    return x, missing
