"""Matrices of low rank with missing entries: probabilistic PCA, and factorisation of numbers, labels and counts.

Counts go by the fixed point of [S], for f = u'v: given q(v) = N(b, B),

    E e^(u'v) = E_u e^(b'u + u'Bu / 2) = e = exp(...) / sqrt(det(I - V B)),      u ~ N(m, V), V^-1 > B
    d e / dm = e g,      2 d e / dV = e (g g' + B + B P^-1 B),      g = b + B t,  P = V^-1 - B,  t = P^-1 (V^-1 m + b).

So the operator of [S] Eq. (8) has these matrices in place of gamma_i d_i d_i', and the same ones are Newton's for m.
"""

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from klimb.conjugate import Fitted, fit, gamma, inner, multivariate_normal, normal, potential
from klimb.conjugate.families import Family, Gamma, MultivariateNormal, Normal
from klimb.conjugate.means import Predictor
from klimb.conjugate.variables import NetworkState, Variable
from klimb.errors import InputError, require
from klimb.infer.result import Iteration
from klimb.numerics.arrays import Array, as_float
from klimb.sites.base import Site

ALWAYS, SELDOM = 5, 5  # rows and columns are turned after each of the first sweeps, then after every fifth
Index: TypeAlias = npt.NDArray[np.intp]
HALVINGS = 30  # of a step that would lower the bound or leave the set where E e^(u'v) is finite
ROUNDING = 1e-12


class MatrixFactorisation(NamedTuple):
    """A fitted factorisation: rows and columns as normal vectors, one relevance per direction."""
    fit: Fitted
    rows: MultivariateNormal
    columns: MultivariateNormal
    row_levels: Normal
    column_levels: Normal
    relevance: Gamma
    noise: Gamma | None
    level: float

    @property
    def rank(self) -> int:
        """Directions whose share of the signal is more than a thousandth of the largest."""
        size = (self.rows.mean**2).mean(0) * (self.columns.mean**2).mean(0)  # sum over entries of (u_k v_k)^2
        return int((size > 1e-3 * size.max()).sum())

    def predict(self, i: Any, j: Any) -> tuple[Array, Array]:
        """Mean and variance of the linear predictor at pairs (i, j); add ``1 / noise.mean`` for a new entry."""
        i, j = np.asarray(i), np.asarray(j)
        mu, Vu, mv, Vv = (x[k] for x, k in ((self.rows.mean, i), (self.rows.covariance, i), (self.columns.mean, j),
                                            (self.columns.covariance, j)))
        mean = self.level + (mu * mv).sum(-1) + self.row_levels.mean[i] + self.column_levels.mean[j]
        spread = np.einsum("...k,...kl,...l", mu, Vv, mu) + np.einsum("...k,...kl,...l", mv, Vu, mv)
        spread += (Vu * Vv).sum((-2, -1)) + self.row_levels.variance[i] + self.column_levels.variance[j]
        return np.asarray(mean), np.asarray(spread)


def matrix_factorisation(i: Any, j: Any, values: Any, rank: int, *, site: Site | None = None,
                         shape: tuple[int, int] | None = None, seed: int = 0, tol: float = 1e-6, max_iter: int = 200,
                         callback: Callable[[Iteration], Any] | None = None) -> MatrixFactorisation:
    """values[e] = u[i[e]]'v[j[e]] + level of the row + level of the column + noise, for the entries that were seen.

    ``rank`` is an upper limit: directions that the data do not need vanish. With a ``site`` the entries are labels or
    counts: `Logistic`, `Binomial`, `NegativeBinomial` (super-Gaussian sites, through their local bound).

    >>> import numpy as np
    >>> i, j = np.divmod(np.arange(200), 10)
    >>> values = np.cos(i) * (j - 4.5) + 0.01 * np.sin(np.arange(200.0) ** 2)
    >>> model = matrix_factorisation(i, j, values, rank=4)
    >>> print(model.rank)
    1
    """
    first, second, y, (N, D) = _entries(i, j, values, "values", shape)
    by_row = np.lexsort((second, first))  # entries of one row together: what they read stays in cache
    first, second, y = first[by_row], second[by_row], y[by_row]
    return _fitted(N, D, rank, y, site, seed, tol, max_iter, callback, (first, second))


def _entries(i: Any, j: Any, values: Any, name: str, shape: tuple[int, int] | None
             ) -> tuple[Any, Any, Array, tuple[int, int]]:
    """Rows, columns and values of the entries that were seen, and the shape of the matrix."""
    first, second, y = np.asarray(i), np.asarray(j), as_float(values, name, ndim=1)
    if first.shape != y.shape or second.shape != y.shape or len(y) == 0:
        raise InputError(f"i, j and {name} must be vectors of one length", f"{first.shape}, {second.shape}, {y.shape}",
                         "One entry of the matrix each.")
    for word, index in (("i", first), ("j", second)):
        require(index.dtype.kind in "iu", f"{word} must hold whole numbers", f"{index.dtype}",
                f"Number rows and columns from 0: np.unique({word}, return_inverse=True)[1].")
    return first, second, y, shape or (int(first.max()) + 1, int(second.max()) + 1)


def probabilistic_pca(X: Any, rank: int, *, seed: int = 0, tol: float = 1e-6, max_iter: int = 500
                      ) -> MatrixFactorisation:
    """X = u v' + column means + noise for a matrix with NaN where entries are missing.

    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 8)) + 0.05 * rng.normal(size=(60, 8))
    >>> X[::7, 3] = np.nan
    >>> print(probabilistic_pca(X, 5).rank)
    2
    """
    matrix = np.asarray(X, dtype=float)
    if matrix.ndim != 2 or np.isnan(matrix).all():
        raise InputError("X must be a matrix with some entries seen", f"shape {matrix.shape}", "NaN marks the others.")
    N, D = matrix.shape
    return _fitted(N, D, rank, matrix, None, seed, tol, max_iter, None, None)


def _fitted(N: int, D: int, rank: int, y: Array, site: Site | None, seed: int, tol: float, max_iter: int,
            callback: Any, pairs: Any) -> MatrixFactorisation:
    if not 1 <= rank <= min(N, D):
        raise InputError(f"rank must lie in 1..{min(N, D)}", f"{rank}", "It is an upper limit: what is idle vanishes.")
    level, unit = (float(np.nanmean(y)), float(np.nanvar(y)) or 1.0) if site is None else (0.0, 1.0)
    relevance = gamma(1e-3, 1e-3, plates=(rank,), name="relevance")
    u = multivariate_normal(0.0, 1.0, dimension=rank, plates=(N,), name="rows")
    v = multivariate_normal(0.0, relevance, plates=(D,), name="columns")
    scales = [gamma(1e-3, 1e-3 * unit, name=f"{side} levels' precision") for side in ("row", "column")]
    across = normal(0.0, scales[0], plates=(N,) if pairs else (N, 1), name="row levels")
    down = normal(0.0, scales[1], plates=(D,), name="column levels")
    if pairs:
        f: Predictor = inner(u[pairs[0]], v[pairs[1]]) + across[pairs[0]] + down[pairs[1]]
    else:
        f = inner(u, v) + across + down
    noise: Variable | None = None
    rng = np.random.default_rng(seed)
    start: dict[Variable, Family] = {
        v: MultivariateNormal(np.sqrt(unit) * rng.normal(size=(D, rank)), np.ones((D, 1, 1)) * np.eye(rank)),
        relevance: Gamma(np.ones(rank), unit),
        **{scale: Gamma(1.0, unit) for scale in scales},
    }
    if site is None:
        noise = gamma(1e-3, 1e-3 * unit, name="noise")
        start[noise] = Gamma(1.0, unit)
        evidence = normal(f, noise, name="entries").observe(y - level)
    else:
        evidence = potential(site, f).observe(y)
    result = fit(evidence, start=start, tol=tol, max_iter=max_iter, callback=callback,
                 improve=_turning(u, v, relevance))
    factors = [result[x] for x in (u, v, across, down, relevance)]
    row_levels = factors[2] if pairs else Normal.from_natural(tuple(part[:, 0] for part in factors[2].natural))
    return MatrixFactorisation(result, factors[0], factors[1], row_levels, factors[3], factors[4],
                               None if noise is None else result[noise], level)


def _turning(u: Variable, v: Variable, relevance: Variable) -> "Callable[[NetworkState], NetworkState | None]":
    """Another pair (R u, R^-T v) with the same products: the priors see R, coordinate ascent finds it slowly."""
    sweeps = count(1)

    def turned(state: NetworkState) -> "NetworkState | None":
        sweep = next(sweeps)
        if sweep > ALWAYS and sweep % SELDOM:
            return None
        rows, columns = state[u].moments[1].mean(0), state[v].moments[1].sum(0)
        try:
            root = np.linalg.cholesky(rows)  # u -> root^-1 u has second moment one
            turn = np.linalg.eigh(root.T @ columns @ root)[1]
        except np.linalg.LinAlgError:
            return None
        forward = root @ turn  # v -> forward' v, u -> forward^-1 u
        other = state.copy()
        other[u], other[v] = _moved(state[u], forward.T), _moved(state[v], np.linalg.inv(forward))
        # the best relevance for the turned columns, given its shape (which R does not change)
        prior = relevance.conditional.natural(other)[1] - 0.5 * np.diagonal(other[v].moments[1].sum(0))
        other[relevance] = Gamma.from_natural((state[relevance].natural[0], prior))
        return other

    return turned


def _moved(factor: Family, dual: Array) -> MultivariateNormal:
    """The factor of T x, given that of x and ``dual`` = T^-T, which is what moves natural parameters."""
    linear, half = factor.natural
    return MultivariateNormal.from_natural((linear @ dual.T, dual @ half @ dual.T))


class CountFactorisation(NamedTuple):
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
        return np.asarray(np.exp(_tilted(one, self.column_means[j], self.column_covariances[j])[0]))


class _Side(NamedTuple):
    """Gaussians N(m, V), one a row."""
    m: Array
    V: Array


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
    first, second, y, sizes = _entries(i, j, counts, "counts", shape)
    if y.min() < 0 or (y != np.floor(y)).any():
        raise InputError("counts must be whole and not negative", f"{y[np.argmin(y)]:g}", "Check the entries.")
    if rank < 1 or not variance > 0:
        raise InputError("rank must be at least 1 and variance positive", f"{rank}, {variance}", "Such as 3 and 1.0.")
    rng = np.random.default_rng(seed)
    sides = [_Side(0.3 * rng.standard_normal((n, rank)), np.tile(0.1 * variance * np.eye(rank), (n, 1, 1)))
             for n in sizes]
    constant, bounds, converged = -float(gammaln(y + 1.0).sum()), list[float](), False
    while len(bounds) < max_iter and not converged:
        sides[0] = _half_sweep(sides[0], sides[1], first, second, y, variance)
        sides[1] = _half_sweep(sides[1], sides[0], second, first, y, variance)
        rows = _bounds(sides[0], sides[1], first, second, y, variance).sum()
        bounds.append(float(rows + constant - _divergence(sides[1], variance).sum()))
        converged = len(bounds) > 1 and bounds[-1] - bounds[-2] <= tol
    return CountFactorisation(*sides[0], *sides[1], np.array(bounds), converged)


def _half_sweep(side: _Side, other: _Side, own: Index, far: Index, y: Array, variance: float) -> _Side:
    """A Newton step on the means of one side, then T on its covariances at the new means."""
    n, k = side.m.shape
    b, B = other.m[far], other.V[far]
    log_e, g, H = _tilted(_Side(side.m[own], side.V[own]), b, B)
    e = np.exp(log_e)
    pull = _summed(y[:, None] * b - e[:, None] * g, own, n) - side.m / variance
    curve = _summed(e[:, None, None] * H, own, n) + np.eye(k) / variance
    step = np.linalg.solve(curve, pull[:, :, None])[:, :, 0]
    side = _halved(side, lambda t: _Side(side.m + t[:, None] * step, side.V), other, own, far, y, variance)
    log_e, _, H = _tilted(_Side(side.m[own], side.V[own]), b, B)
    wanted = _summed(np.exp(log_e)[:, None, None] * H, own, n) + np.eye(k) / variance  # [S] Eq. (8)
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
    log_e = _tilted(_Side(side.m[own], side.V[own]), other.m[far], other.V[far])[0]
    fit = y * np.einsum("ek,ek->e", side.m[own], other.m[far]) - np.exp(np.minimum(log_e, 700.0))
    return _summed(fit, own, len(side.m)) - _divergence(side, variance)


def _divergence(side: _Side, variance: float) -> Array:
    trace = np.trace(side.V, axis1=1, axis2=2) + (side.m**2).sum(axis=1)
    k = side.m.shape[1]
    return np.asarray(0.5 * (trace / variance - k + k * np.log(variance) - np.linalg.slogdet(side.V)[1]))


def _tilted(side: _Side, b: Array, B: Array) -> tuple[Array, Array, Array]:
    """log E e^(u'v), inf where it is infinite, and the moments g and H of its derivatives, for pairs of Gaussians."""
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
    return np.where(finite, log_e, np.inf), g, g[:, :, None] * g[:, None, :] + B + B @ cov @ B


def _summed(values: Array, index: Index, n: int) -> Array:
    total = np.zeros((n, *values.shape[1:]))
    np.add.at(total, index, values)
    return total
