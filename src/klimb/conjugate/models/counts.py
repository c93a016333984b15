"""A matrix of counts of low rank by the fixed point of [S], for a p(f | w) that is not Gaussian: f = u'v, both unknown.

Under independent Gaussians q(u), q(v) the linear predictor has no Gaussian distribution, but E e^(u'v) is in closed
form, and that is all that the bound of a Poisson likelihood with a log link needs. Given q(v) = N(b, B),

    E e^(u'v) = E_u e^(b'u + u'Bu / 2) = e = exp(...) / sqrt(det(I - V B)),      u ~ N(m, V), V^-1 > B

whose derivatives are moments of the tilted Gaussian with precision P = V^-1 - B and mean t = P^-1 (V^-1 m + b):

    d e / dm = e g,      2 d e / dV = e (g g' + B + B P^-1 B),      g = b + B t.

So the operator of [S] Eq. (8) has these matrices in place of gamma_i d_i d_i', and the same ones are Newton's for m.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from klimb.errors import InputError
from klimb.numerics.arrays import Array, as_float

Index: TypeAlias = npt.NDArray[np.intp]
HALVINGS = 30  # of a step that would lower the bound or leave the set where E e^(u'v) is finite
ROUNDING = 1e-12


@final
@dataclass(frozen=True, eq=False)
class CountFactorisation:
    """Gaussian rows and columns of a fitted matrix of counts, with the bound after every sweep."""

    row_means: Array
    row_covariances: Array
    column_means: Array
    column_covariances: Array
    bounds: Array
    converged: bool

    @property
    def bound(self) -> float:
        """The evidence lower bound."""
        return float(self.bounds[-1])

    def predict(self, i: Any, j: Any) -> Array:
        """The expected count at pairs (i, j)."""
        one = _Side(self.row_means[i], self.row_covariances[i])
        return np.asarray(np.exp(_tilted(one, self.column_means[j], self.column_covariances[j]).log_e))


class _Side(NamedTuple):
    """Gaussians N(m, V), one a row."""

    m: Array
    V: Array


class _Tilted(NamedTuple):
    log_e: Array  # inf where the expectation is infinite
    g: Array
    H: Array


def poisson_factorisation(i: Any, j: Any, counts: Any, rank: int, *, variance: float = 1.0,
                          shape: tuple[int, int] | None = None, seed: int = 0, tol: float = 1e-8,
                          max_iter: int = 500) -> CountFactorisation:
    """counts[e] ~ Poisson(exp(u[i[e]]'v[j[e]])) with u, v ~ N(0, ``variance`` I), by Newton steps and fixed points.

    Rows and columns take turns: one Newton step on the means, then the operator T of [S] Eq. (8) on the covariances at
    the new means, each halved, row by row, until the bound of that row does not fall.

    >>> import numpy as np
    >>> i, j = np.divmod(np.arange(120), 8)
    >>> rates = np.exp(np.outer(np.cos(np.arange(15)), np.linspace(-1, 1, 8)))[i, j]
    >>> found = poisson_factorisation(i, j, np.random.default_rng(0).poisson(rates), rank=2)
    >>> found.converged, bool((np.diff(found.bounds) > -1e-9).all())
    (True, True)
    """
    first, second, y = np.asarray(i), np.asarray(j), as_float(counts, "counts", ndim=1)
    if first.shape != y.shape or second.shape != y.shape or len(y) == 0:
        raise InputError("i, j and counts must be vectors of one length", f"{first.shape}, {second.shape}, {y.shape}",
                         "One entry of the matrix each.")
    if y.min() < 0 or (y != np.floor(y)).any():
        raise InputError("counts must be whole and not negative", f"{y[np.argmin(y)]:g}", "Check the entries.")
    if rank < 1 or not variance > 0:
        raise InputError("rank must be at least 1 and variance positive", f"{rank}, {variance}", "Such as 3 and 1.0.")
    sizes = shape or (int(first.max()) + 1, int(second.max()) + 1)
    rng = np.random.default_rng(seed)
    sides = [_Side(0.3 * rng.standard_normal((n, rank)), np.tile(0.1 * variance * np.eye(rank), (n, 1, 1)))
             for n in sizes]
    constant, bounds = -float(gammaln(y + 1.0).sum()), list[float]()
    for _ in range(max_iter):
        sides[0] = _half_sweep(sides[0], sides[1], first, second, y, variance)
        sides[1] = _half_sweep(sides[1], sides[0], second, first, y, variance)
        rows = _bounds(sides[0], sides[1], first, second, y, variance).sum()
        bounds.append(float(rows + constant - _divergence(sides[1], variance).sum()))
        if len(bounds) > 1 and bounds[-1] - bounds[-2] <= tol:
            break
    converged = len(bounds) > 1 and bounds[-1] - bounds[-2] <= tol
    return CountFactorisation(*sides[0], *sides[1], np.array(bounds), bool(converged))


def _half_sweep(side: _Side, other: _Side, own: Index, far: Index, y: Array, variance: float) -> _Side:
    """A Newton step on the means of one side, then T on its covariances at the new means."""
    n, k = side.m.shape
    b, B = other.m[far], other.V[far]
    tilted = _tilted(_Side(side.m[own], side.V[own]), b, B)
    e = np.exp(tilted.log_e)
    pull = _summed(y[:, None] * b - e[:, None] * tilted.g, own, n) - side.m / variance
    curve = _summed(e[:, None, None] * tilted.H, own, n) + np.eye(k) / variance
    step = np.linalg.solve(curve, pull[:, :, None])[:, :, 0]
    side = _halved(side, lambda t: _Side(side.m + t[:, None] * step, side.V), other, own, far, y, variance)
    tilted = _tilted(_Side(side.m[own], side.V[own]), b, B)
    wanted = _summed(np.exp(tilted.log_e)[:, None, None] * tilted.H, own, n) + np.eye(k) / variance  # [S] Eq. (8)
    now = np.linalg.inv(side.V)

    def towards(t: Array) -> _Side:
        return _Side(side.m, np.asarray(np.linalg.inv(now + t[:, None, None] * (wanted - now)), dtype=np.float64))

    return _halved(side, towards, other, own, far, y, variance)


def _halved(side: _Side, path: Any, other: _Side, own: Index, far: Index, y: Array, variance: float) -> _Side:
    """``path`` at t = 1, 1/2, ... for each member by itself, until its bound does not fall; else at t = 0."""
    before = _bounds(side, other, own, far, y, variance)
    t = np.ones(len(before))
    for _ in range(HALVINGS):
        found = path(t)
        worse = ~(_bounds(found, other, own, far, y, variance) >= before - ROUNDING * (1.0 + np.abs(before)))
        if not worse.any():
            return found  # type: ignore[no-any-return]
        t = np.where(worse, 0.5 * t, t)
    return path(np.where(worse, 0.0, t))  # type: ignore[no-any-return]


def _bounds(side: _Side, other: _Side, own: Index, far: Index, y: Array, variance: float) -> Array:
    """What each member of ``side`` adds to the bound, without constants."""
    log_e = _tilted(_Side(side.m[own], side.V[own]), other.m[far], other.V[far]).log_e
    fit = y * np.einsum("ek,ek->e", side.m[own], other.m[far]) - np.exp(np.minimum(log_e, 700.0))
    return _summed(fit, own, len(side.m)) - _divergence(side, variance)


def _divergence(side: _Side, variance: float) -> Array:
    trace = np.trace(side.V, axis1=1, axis2=2) + (side.m**2).sum(axis=1)
    k = side.m.shape[1]
    return np.asarray(0.5 * (trace / variance - k + k * np.log(variance) - np.linalg.slogdet(side.V)[1]))


def _tilted(side: _Side, b: Array, B: Array) -> _Tilted:
    """log E e^(u'v), and the moments that its derivatives are made of, for pairs of Gaussians."""
    precision = np.linalg.inv(side.V)
    P = precision - B
    finite = np.linalg.eigvalsh(P)[:, 0] > 0
    P = np.where(finite[:, None, None], P, precision)
    natural = np.einsum("ekl,el->ek", precision, side.m)
    cov = np.linalg.inv(P)
    t = np.einsum("ekl,el->ek", cov, natural + b)
    squares = np.einsum("ek,ek->e", natural + b, t) - np.einsum("ek,ek->e", natural, side.m)
    log_e = 0.5 * (squares + np.linalg.slogdet(precision)[1] - np.linalg.slogdet(P)[1])
    g = b + np.einsum("ekl,el->ek", B, t)
    H = g[:, :, None] * g[:, None, :] + B + B @ cov @ B
    return _Tilted(np.where(finite, log_e, np.inf), g, H)


def _summed(values: Array, index: Index, n: int) -> Array:
    total = np.zeros((n, *values.shape[1:]))
    np.add.at(total, index, values)
    return total
