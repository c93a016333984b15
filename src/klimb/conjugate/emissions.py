"""Observations whose class is unknown: mixtures and hidden Markov models with conjugate components.

The log density of a datum in class k is linear in the moments of the component, with what the datum adds to the natural
parameters as its coefficients: all N x K of them are one matrix product, and the messages to all components another.
`EMISSIONS` says for every kind of component what a datum adds.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, final

import numpy as np
from scipy.special import gammaln

from klimb.conjugate.families import Beta, Dirichlet, Family, Gamma, NormalGamma, NormalWishart, TiedNormalWishart
from klimb.conjugate.families.base import Naturals
from klimb.conjugate.means import packed, unpacked
from klimb.conjugate.observations import Observable
from klimb.conjugate.variables import Evidence, NetworkState, Variable
from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, as_float, refuse
from klimb.numerics.special import HALF_LOG_2PI

Said: TypeAlias = tuple[tuple[Any, ...], Array]  # N x S or a constant, per natural parameter; what no class changes


def _vectors(x: Array) -> Said:
    """(L mu, mu'L mu, L, log det L): the products of entries stand for a symmetric matrix."""
    i, j = np.tril_indices(x.shape[1])
    return (x, -0.5, -0.5 * x[:, i] * x[:, j], 0.5), np.full(len(x), -x.shape[1] * HALF_LOG_2PI)


def _entries(x: Array) -> Said:
    """The same for independent entries."""
    return (x, -0.5, -0.5 * x * x, 0.5), np.full(len(x), -x.shape[1] * HALF_LOG_2PI)


def _counts(x: Array) -> Said:
    refuse((x < 0) | (x != np.floor(x)), x, "counts must be whole numbers from 0 on",
           "Use normal components for real numbers.")
    return (x, -1.0), -gammaln(x + 1.0).sum(1)


def _zero_one(x: Array) -> Said:
    refuse((x != 0) & (x != 1), x, "the data must be zeros and ones", "Use counts or normals.")
    return (x, 1.0 - x), np.zeros(len(x))


def _words(x: Any) -> Said:
    """Rows of counts of V words, dense or sparse; without the multinomial coefficient."""
    return (x,), np.zeros(x.shape[0])


EMISSIONS: dict[type[Family], Callable[[Any], Said]] = {
    NormalWishart: _vectors, TiedNormalWishart: _vectors, NormalGamma: _entries, Gamma: _counts, Beta: _zero_one,
    Dirichlet: _words}


@final
class Emission:
    """What rows of data add to the natural parameters of the classes, if they belong to them."""

    def __init__(self, component: Variable, values: Any) -> None:
        self.component, plates = component, component.plates
        self.tied, self.vectors = component.family is TiedNormalWishart, EMISSIONS[component.family] is _vectors
        self.width = plates[1] if len(plates) > 1 else component.dimension
        if component.family is Dirichlet and hasattr(values, "tocsr"):
            x = values.tocsr().astype(float)
            if x.shape[1] != self.width or np.any(x.data < 0) or not np.isfinite(x.data).all():
                raise InputError(f"word counts must have {self.width} columns, finite and not negative",
                                 f"shape {x.shape}, smallest {x.data.min(initial=0.0)}", "Check the matrix.")
        else:
            x = as_float(values, f"the data of {component.name}")
            x = x[:, None] if x.ndim == 1 else x
            require(x.ndim == 2 and x.shape[1] == self.width,
                    f"the data of {component.name} must have {self.width} columns", f"shape {x.shape}",
                    "One row per datum, one column per entry of a component.")
        self.said, self.base = EMISSIONS[component.family](x)
        data = [part for part in self.said if not isinstance(part, float)]
        self.statistics = data[0] if len(data) == 1 else np.hstack(data)

    def coefficients(self, moments: Naturals) -> tuple[Array, Array, Array]:
        """K x S, K and K: the log density in class k is statistics @ first[k] + second[k] + third[k].

        A precision that is scaled by a datum multiplies the first two (the squared distance), not the third.
        """
        slopes, constants, K = list[Array](), list[Any](), classes(self.component)
        for number, (part, moment) in enumerate(zip(self.said, moments, strict=True)):
            each = packed(moment, twice=True) if self.vectors and number == 2 else moment
            each = (np.broadcast_to(each, (K, *each.shape)) if self.tied and number > 1 else each).reshape(K, -1)
            constants.append(part * each.sum(1) if isinstance(part, float) else np.zeros(K))
            slopes += [] if isinstance(part, float) else [each]
        return np.hstack(slopes), sum(constants[:-1], np.zeros(K)), constants[-1]

    def message(self, like: Naturals, sums: Array, scaled: Array, counts: Array) -> Naturals:
        """From the sums of statistics (K x S), of scales and of ones (K), in the shapes of ``like``."""
        found, place = list[Array](), 0
        for number, (part, shape) in enumerate(zip(self.said, (one.shape for one in like), strict=True)):
            if isinstance(part, float):
                each = part * (counts if number == len(like) - 1 else scaled)
            else:
                each, place = sums[:, place : place + part.shape[1]], place + part.shape[1]
            each = each.sum(0) if self.tied and number > 1 else each
            if self.vectors and number == 2:
                found.append(unpacked(each, self.width))
            else:
                found.append(np.broadcast_to(each[:, None], shape) if each.ndim < len(shape) else each.reshape(shape))
        return tuple(found)


def classes(component: Variable) -> int:
    """The number of classes that a component has copies for."""
    tied = component.family is TiedNormalWishart
    return int(component.conditional.natural({})[0].shape[0]) if tied else component.plates[0]


@final
class MixtureData(Evidence):
    """Observed rows of a mixture, one per plate of the gate; a row with NaN is missing."""

    def __init__(self, gate: Variable, component: Variable, scale: Variable | None, values: Any) -> None:
        self.gate, self.component, self.scale = gate, component, scale
        self.variables = (gate, component) if scale is None else (gate, component, scale)
        x, missing = without_missing(values)
        self.emission = Emission(component, x)
        self.statistics, base, n = self.emission.statistics, self.emission.base, self.emission.statistics.shape[0]
        require(gate.plates == (n,), f"{gate.name} must have one plate with one class per row",
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
        factor = state[self.component]
        if self._last is None or self._last[0] is not factor:
            slope, near, free = self.emission.coefficients(factor.moments)
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
        sums = np.asarray((self.statistics.T @ heavy).T)
        return self.emission.message(state[to].natural, sums, heavy.sum(0), shares.sum(0))


def mixture(gate: Variable, component: Variable, *, scale: Variable | None = None) -> Observable:
    """Data whose class is ``gate`` (a `categorical` or a `chain`) and whose classes are the plates of ``component``.

    ``scale``, one gamma per row, multiplies the precision of normal components: gamma(df/2, df/2) makes them Student-t.

    >>> from klimb.conjugate import categorical, dirichlet, fit, gamma, mixture
    >>> rate, kind = gamma([1.0, 10.0], 1.0), categorical(dirichlet([1.0, 1.0]), plates=(8,))
    >>> result = fit(mixture(kind, rate).observe([0, 1, 2, 0, 1, 9, 12, 8]))
    >>> print(result[rate].mean.round(1), result[kind].mean.argmax(axis=1))
    [0.8 9.7] [0 0 0 0 0 1 1 1]
    """
    known = ", ".join(family.__name__ for family in EMISSIONS)
    require(component.family in EMISSIONS, f"the components of a mixture must be one of {known}", f"{component!r}",
            "normal_gamma(...) for numbers, normal_wishart(...) for vectors.")
    require(component.family is TiedNormalWishart or component.plates,
            "the components of a mixture need a plate, one copy per class", f"{component!r}", "Give it plates=(K,).")
    normal, K = EMISSIONS[component.family] in (_vectors, _entries), classes(component)
    require(scale is None or (normal and scale.family is Gamma),
            "scale must be a gamma variable, for normal components", f"{scale!r} with {component!r}",
            "gamma(df / 2, df / 2, plates=(N,)) makes the components Student-t.")
    require(gate.dimension == K, f"{gate.name} and {component.name} must have the same number of classes",
            f"{gate.dimension} and {K}", "The first plate of the components is K.")
    return Observable(lambda values: MixtureData(gate, component, scale, values))


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
