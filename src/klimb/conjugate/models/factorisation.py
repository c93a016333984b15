"""Matrices of low rank with missing entries: probabilistic PCA, and factorisation of numbers, labels and counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb.conjugate.declare import gamma, multivariate_normal, normal
from klimb.conjugate.families import Family, Gamma, MultivariateNormal, Normal
from klimb.conjugate.loop import Fitted, fit
from klimb.conjugate.means import Predictor, inner
from klimb.conjugate.observations import potential
from klimb.conjugate.variables import NetworkState, Variable
from klimb.errors import InputError
from klimb.infer.result import Iteration
from klimb.numerics.arrays import Array, as_float
from klimb.sites.base import Site

ALWAYS, SELDOM = 5, 5  # rows and columns are turned after each of the first sweeps, then after every fifth


@final
@dataclass(frozen=True, eq=False)
class MatrixFactorisation:
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
        size = _signal(self.rows, self.columns)
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


def matrix_factorisation(
    i: Any,
    j: Any,
    values: Any,
    rank: int,
    *,
    site: Site | None = None,
    shape: tuple[int, int] | None = None,
    seed: int = 0,
    tol: float = 1e-6,
    max_iter: int = 200,
    callback: Callable[[Iteration], Any] | None = None,
) -> MatrixFactorisation:
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
    first, second = np.asarray(i), np.asarray(j)
    y = as_float(values, "values", ndim=1)
    if first.shape != y.shape or second.shape != y.shape or len(y) == 0:
        raise InputError("i, j and values must be vectors of one length", f"{first.shape}, {second.shape}, {y.shape}",
                         "One entry of the matrix each.")
    N, D = shape or (int(first.max()) + 1, int(second.max()) + 1)
    by_row = np.lexsort((second, first))  # entries of one row together: what they read stays in cache
    first, second, y = first[by_row], second[by_row], y[by_row]
    return _fitted(N, D, rank, y, site, seed, tol, max_iter, callback, (first, second))


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
    turned = _Turn(u, v, relevance)
    result = fit(evidence, start=start, tol=tol, max_iter=max_iter, callback=callback, improve=turned)
    factors = [result[x] for x in (u, v, across, down, relevance)]
    row_levels = factors[2] if pairs else Normal.from_natural(tuple(part[:, 0] for part in factors[2].natural))
    return MatrixFactorisation(result, factors[0], factors[1], row_levels, factors[3], factors[4],  # type: ignore[arg-type]
                               None if noise is None else result[noise], level)  # type: ignore[arg-type]


@final
class _Turn:
    """Another pair (R u, R^-T v) with the same products: rows of unit second moment, columns with uncorrelated entries.

    The likelihood does not see R; the priors do, and coordinate ascent finds R only slowly.
    """

    def __init__(self, u: Variable, v: Variable, relevance: Variable) -> None:
        self.u, self.v, self.relevance, self.sweeps = u, v, relevance, 0

    def __call__(self, state: NetworkState) -> NetworkState | None:
        self.sweeps += 1
        if self.sweeps > ALWAYS and self.sweeps % SELDOM:
            return None
        rows = state.moments(self.u)[1].mean(0)
        columns = state.moments(self.v)[1].sum(0)
        try:
            root = np.linalg.cholesky(rows)  # u -> root^-1 u has second moment one
            turn = np.linalg.eigh(root.T @ columns @ root)[1]
        except np.linalg.LinAlgError:
            return None
        forward = root @ turn  # v -> forward' v, u -> forward^-1 u
        back = np.linalg.inv(forward)
        other = state.copy()
        other.set(self.u, _moved(state[self.u], forward.T))
        other.set(self.v, _moved(state[self.v], back))
        a, _ = state[self.relevance].natural
        # the best relevance for the turned columns, given its shape (which R does not change)
        prior = self.relevance.conditional.natural(other)[1]
        other.set(self.relevance, Gamma.from_natural((a, prior - 0.5 * np.diagonal(other.moments(self.v)[1].sum(0)))))
        return other


def _moved(factor: Family, dual: Array) -> MultivariateNormal:
    """The factor of T x, given that of x and ``dual`` = T^-T, which is what moves natural parameters."""
    linear, half = factor.natural
    return MultivariateNormal.from_natural((linear @ dual.T, dual @ half @ dual.T))


def _signal(rows: MultivariateNormal, columns: MultivariateNormal) -> Array:
    """Size of each direction's contribution, sum over entries of (u_k v_k)^2 by the means."""
    return np.asarray((rows.mean**2).mean(0) * (columns.mean**2).mean(0))
