"""Gaussian Markov random fields: weights with a sparse prior precision, possibly intrinsic, under linear constraints.

    w ~ N(mean, Q^-1) given C (w - mean) = 0,        f = A w,        P = Q + A' G A

Weights are split into an inner part s, where P is sparse, and a border b: columns that most rows share. With the
multipliers of the constraints beside the border,

    [P_ss  U ] [x_s]   [u_s]        U = [P_sb  C_s'],        T = P_ss^-1 U,
    [U'    P_] [y  ] = [u_b]        S = [[P_bb  C_b'], [C_b  0]] - U'T,

P_ss is the only large matrix that is factorised, and S is small. On the surface C w = 0 the covariance is

    V_ss = P_ss^-1 + T S^-1 T',        V_bs = -S^-1 T' (rows of b),        V_bb = S^-1 (rows and columns of b),

and its entries that f needs stand on the pattern of the factor: they come from its selected inverse. Determinants are
those of the bordered matrix: what the choice of C adds to them cancels between posterior and prior. Where the data say
nothing of a null space of Q (the prior itself), P_ss is singular: there one node for every constraint is pinned, which
means that it stands in the border as well.
"""

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError, NotPositiveDefiniteError, require
from klimb.latents.base import Factor, Latent, Posterior, checked_outputs, factor_of, mean_at, variances_at
from klimb.latents.coordinates import LARGEST_DENSE, Coordinates, WeightCoordinates
from klimb.latents.costs import Option, Shape, sparse_factor
from klimb.latents.linear import LinearParts, side_by_side
from klimb.latents.precision_weights import SparseWeights
from klimb.linalg.csr import rows_by_length
from klimb.linalg.sparse_cholesky import SelectedFactor, analysed, lower_triangle
from klimb.numerics.arrays import Array, Index, Mask, as_float
from klimb.numerics.dense import cholesky, log_det_from_cholesky, psd_square_root, row_blocks, triangular_inverse
from klimb.numerics.lazy import scipy_linalg, scipy_sparse

SHARED = 0.25  # share of the rows from which on a column stands in the border
SEEN = 1e-9  # of the largest site: what the sites must say of constrained directions to do without pinned nodes
FEW = 200  # sites up to which Newton directions, which take all covariances, pay beside a sparse factor
EPS = float(np.finfo(np.float64).eps)
RIDGE = 1e-10  # of the prior's precision, where that is singular to working precision and has to be inverted alone


class Layout:
    """What does not move with values: which weights stand in the border, the pattern of P_ss, and where values go."""

    def __init__(self, Q: Any, A: Any, constraints: Array, *, pin: bool) -> None:
        self.shape = A.shape
        D = A.shape[1]
        bound = np.any(constraints != 0.0, axis=0)
        shared = (np.diff(A.tocsc().indptr) > max(SHARED * A.shape[0], 1.0)) & ~bound
        shared[-1] &= not shared.all()  # something must be inside
        pinned = _pinned(constraints, shared) if pin else np.zeros(0, dtype=np.intp)
        dense = np.flatnonzero(shared)
        self.border: Index = np.concatenate([dense, pinned])
        self.n_dense = len(dense)
        inside = np.ones(D, dtype=bool)
        inside[self.border] = False
        self.inner: Index = np.flatnonzero(inside)
        require(len(self.inner), "a sparse precision needs columns that few rows share", f"{D} columns that most share",
                "Use klimb.latents.Weights.")
        self.A_s, self.A_b = scipy_sparse.csr_array(A[:, self.inner]), np.asarray(A[:, self.border].toarray())
        self.A_s.sort_indices()
        self.C_s, self.C_b = constraints[:, self.inner].T, constraints[:, self.border].T
        self._place_values(Q)

    def _place_values(self, Q: Any) -> None:
        """Where the entries of Q go, and P_ss.data = (values of Q) + pairs @ gamma."""
        n = len(self.inner)
        place = np.full(self.shape[1], -1, dtype=np.intp)
        place[self.inner] = np.arange(n)
        outer = np.full(self.shape[1], -1, dtype=np.intp)
        outer[self.border] = np.arange(len(self.border))
        rows, columns = Q.indices.astype(np.intp), np.repeat(np.arange(Q.shape[1]), np.diff(Q.indptr))
        self.of_inner = np.flatnonzero((place[rows] >= 0) & (place[columns] >= 0))
        own = place[columns[self.of_inner]].astype(np.int64) * n + place[rows[self.of_inner]]
        keys, sites, products = _pairs(self.A_s)
        every = np.unique(np.concatenate([own, keys, np.arange(n, dtype=np.int64) * (n + 1)]))
        self.at_inner = np.searchsorted(every, own)
        shape = (len(every), self.shape[0])
        self.pairs = scipy_sparse.csr_array((products, (np.searchsorted(every, keys), sites)), shape=shape)
        self.pairs_t = self.pairs.T.tocsr()
        indptr = np.searchsorted(every, np.arange(n + 1, dtype=np.int64) * n)
        self.pattern: Any = scipy_sparse.csc_array((np.ones(len(every)), every % n, indptr), shape=(n, n))
        self.symbolic, self.lower = analysed(self.pattern), lower_triangle(self.pattern)
        self.of_cross = np.flatnonzero((place[rows] >= 0) & (outer[columns] >= 0))
        self.at_cross = (place[rows[self.of_cross]], outer[columns[self.of_cross]])
        self.of_border = np.flatnonzero((outer[rows] >= 0) & (outer[columns] >= 0))
        self.at_border = (outer[rows[self.of_border]], outer[columns[self.of_border]])


class Layouts:
    """The layouts of one model: with nodes pinned, for where the data say nothing of some constraint, and without."""

    def __init__(self, Q: Any, A: Any, constraints: Array) -> None:
        self.Q, self.A, self.constraints = Q, A, constraints
        seen = A @ constraints.T
        self._seen, gram = scipy_sparse.csr_array(seen.T**2), seen.T @ seen
        # The levels of two intrinsic terms are one to rows: pinned nodes tell them apart.
        self._apart = len(gram) == np.linalg.matrix_rank(gram, tol=SEEN * gram.max(initial=0.0), hermitian=True)

    @cached_property
    def free(self) -> Layout:
        return Layout(self.Q, self.A, self.constraints, pin=False)

    @cached_property
    def pinned(self) -> Layout:
        return Layout(self.Q, self.A, self.constraints, pin=True) if len(self.constraints) else self.free

    def seen(self, gamma: Array) -> bool:
        """Whether sites of these precisions say something of every constrained direction."""
        return bool(self._apart and (self._seen @ gamma > SEEN * np.abs(gamma).max(initial=0.0)).all())


def _pinned(constraints: Array, shared: Mask) -> Index:
    """One node for every constraint, such that the constraints determine these given all the others."""
    r = len(constraints)
    free = np.flatnonzero(~shared)
    if not r:
        return np.zeros(0, dtype=np.intp)
    if len(free) < r:
        raise InputError("constraints must be fewer than the weights they bind", f"{r} and {len(free)}", "Drop some.")
    triangle, pivots = scipy_linalg.qr(constraints[:, free], mode="r", pivoting=True)
    sizes = np.abs(np.diagonal(triangle))
    require(sizes[-1] > 1e-10 * sizes[0], "constraints must be linearly independent", f"{r} rows of a lower rank",
            "Leave out those that follow from the others.")
    return np.sort(free[pivots[:r]])


def _pairs(A: Any) -> tuple[npt.NDArray[np.int64], Index, Array]:
    """Of every row and every pair (i, j) of its nonzeros: i n + j, the row, and the product of the two."""
    n, keys, sites, products = A.shape[1], list[Any](), list[Any](), list[Any]()
    for rows, entries in rows_by_length(A):
        columns, values = A.indices[entries].astype(np.int64), A.data[entries]
        keys.append((columns[:, :, None] * n + columns[:, None, :]).ravel())
        sites.append(np.repeat(rows, columns.shape[1] ** 2))
        products.append((values[:, :, None] * values[:, None, :]).ravel())
    return np.concatenate(keys), np.concatenate(sites), np.concatenate(products)


class PrecisionFactor(Factor):
    """P = Q + A' G A on the surface of the constraints."""

    def __init__(self, latent: "Precision", gamma: Array, layout: Layout) -> None:
        self.gamma, self._latent, self.layout = gamma, latent, layout
        self._variances: Array | None = None
        values = latent.values
        data = np.asarray(layout.pairs @ gamma, dtype=np.float64)
        data[layout.at_inner] += values[layout.of_inner]
        self.lower = data[layout.lower]
        self.inner: SelectedFactor = layout.symbolic.factor(data)
        self._entries = data
        weighted = gamma[:, None] * layout.A_b
        cross = np.asarray(layout.A_s.T @ weighted)
        cross[layout.at_cross] += values[layout.of_cross]
        U = np.hstack([cross, layout.C_s])
        self.T = self.inner.solve(U)
        B = len(layout.border)
        S = np.zeros((U.shape[1], U.shape[1]))
        S[:B, :B] = layout.A_b.T @ weighted
        S[layout.at_border] += values[layout.of_border]
        S[:B, B:], S[B:, :B] = layout.C_b, layout.C_b.T
        before = np.diagonal(S).copy()
        S -= U.T @ self.T
        sizes = np.maximum(before, np.abs(np.diagonal(S)))
        if layout.n_dense < B:  # a constraint may bind pinned nodes alone
            pinned = slice(layout.n_dense, B)
            sizes[B:] = np.maximum(sizes[B:], (S[B:, pinned] ** 2 / sizes[pinned]).max(axis=1))
        self.S_inverse, border_logdet = _bordered_inverse(0.5 * (S + S.T), sizes, layout.n_dense, layout.C_s.shape[1])
        self.absolute_logdet = self.inner.logdet + border_logdet
        self.logdet = self.absolute_logdet - latent.prior_logdet if latent.known_logdet else 0.0

    @property
    def log_det_rounding(self) -> float:  # type: ignore[override]
        """A factorisation is that of P with entries rounded, and d log det P = tr(V dP), |V_ij| <= sd_i sd_j.

        V is that of the inner weights beside the border. What weights that all rows share leave open of a smooth field
        may be far more than what P_ss alone does: where it is a nearly straight line, for instance.
        """
        pattern, T = self.layout.pattern, self.T
        columns = np.repeat(np.arange(len(T)), np.diff(pattern.indptr))
        v = self.inner.inverse_entries[pattern.indices == columns] + np.einsum("ij,ij->i", T @ self.S_inverse, T)
        sd = np.sqrt(np.maximum(v, 0.0))
        return EPS * float(np.abs(self._entries) @ (sd[pattern.indices] * sd[columns]))

    def residual_rows(self, A_s: Any, A_b: Array) -> Array:
        """[A_b 0] - A_s T: what is left of rows once the inner weights follow the border."""
        out = np.asarray(-(A_s @ self.T))
        out[:, : A_b.shape[1]] += A_b
        return out

    def variances(self) -> Array:
        if self._variances is None:
            layout = self.layout
            v = np.asarray(layout.pairs_t @ self.inner.inverse_entries, dtype=np.float64)
            for rows in row_blocks(len(v), 2 * max(self.T.shape[1], 1)):
                rest = self.residual_rows(layout.A_s[rows], layout.A_b[rows])
                v[rows] += np.einsum("ij,ij->i", rest @ self.S_inverse, rest)
            self._variances = np.maximum(v, 0.0)
        return self._variances

    def solve_weights(self, u: Array) -> Array:
        """V u for a vector or columns over the weights."""
        layout = self.layout
        inner = self.inner.solve(u[layout.inner])
        right = -(self.T.T @ u[layout.inner])
        right[: len(layout.border)] += u[layout.border]
        y = self.S_inverse @ right
        out = np.empty_like(u)
        out[layout.inner], out[layout.border] = inner - self.T @ y, y[: len(layout.border)]
        return out

    def smooth(self, b: Array) -> Array:
        return np.asarray(self._latent.A @ self.solve_weights(self._latent.A.T @ b))

    def covariance(self) -> Array | None:
        if self._latent.n_sites > (FEW if self._latent.n_outputs == 1 else LARGEST_DENSE):
            return None
        V = self._latent.A @ self.solve_weights(np.asarray(self._latent.A.T.toarray()))
        return np.asarray(0.5 * (V + V.T))


def _bordered_inverse(S: Array, sizes: Array, dense: int, multipliers: int) -> tuple[Array, float]:
    """S^-1 and log |det S|: pinned nodes and multipliers first; ``sizes`` are those of the terms of the diagonal.

    The posterior is proper where the first block has a negative eigenvalue for each multiplier and no other, and what
    is left of the columns that all share is positive definite.
    """
    d, r = dense, len(S) - dense
    inverse, logdet, first = np.zeros_like(S), 0.0, np.zeros((r, r))
    rest = S[:d, :d]
    if r:
        block = S[d:, d:]
        scale = 1.0 / np.sqrt(np.maximum(sizes[d:], np.finfo(float).tiny))
        values, vectors = np.linalg.eigh(block * scale[:, None] * scale)
        if np.count_nonzero(values < 0.0) != multipliers or not np.isfinite(values).all():
            raise NotPositiveDefiniteError("the constrained precision is not positive definite")
        first = (vectors * (1.0 / values)) @ vectors.T * scale[:, None] * scale
        logdet = float(np.log(np.abs(values)).sum() - 2.0 * np.log(scale).sum())
        inverse[d:, d:] = first
        rest = rest - S[:d, d:] @ first @ S[d:, :d]
    if d:
        if not (np.diagonal(rest) > 0.0).all():
            raise NotPositiveDefiniteError("the precision of shared columns is not positive")
        scale = 1.0 / np.sqrt(np.diagonal(rest))
        lower = cholesky(np.asfortranarray(0.5 * (rest + rest.T) * scale[:, None] * scale))
        logdet += log_det_from_cholesky(lower) - 2.0 * float(np.log(scale).sum())
        root = scale[:, None] * triangular_inverse(lower).T
        inverse[:d, :d] = root @ root.T
        pushed = first @ S[d:, :d] @ inverse[:d, :d]
        inverse[d:, :d], inverse[:d, d:] = -pushed, -pushed.T
        inverse[d:, d:] += pushed @ S[:d, d:] @ first
    return inverse, logdet


class Precision(Latent):
    """f = A w with a sparse prior precision of w: random walks, fields over graphs and meshes, crossed effects.

    Parameters
    ----------
    Q : (D, D) sparse matrix
        Prior precision of the weights. It may be singular (intrinsic) where constraints make the prior proper.
    A : (N, D) sparse matrix
        Rows of f in the weights; the identity unless given. Columns that most rows share may be among them.
    constraints : (r, D) array
        Rows C with C (w - mean) = 0 exactly.
    mean : number or (D,) array
        Prior mean of the weights.
    slack : number or (N,) array
        Extra variance of f_i.
    n_outputs : int
        Latent values of each datum, as in `Weights`.
    logdet : float
        Log determinant of Q on the surface of the constraints where it is known: for orthonormal constraints that span
        the null space, the sum of the logarithms of the eigenvalues that are not 0. Otherwise it is computed.

    Examples
    --------
    A random walk of first order over eight times, which sums to zero, and Poisson counts:

    >>> import numpy as np, scipy.sparse, klimb
    >>> D = scipy_sparse.diags_array([-np.ones(7), np.ones(7)], offsets=[0, 1], shape=(7, 8))
    >>> latent = klimb.latents.Precision(4.0 * D.T @ D, constraints=np.ones((1, 8)))
    >>> result = klimb.infer(latent, klimb.sites.Poisson(), [0, 1, 0, 1, 2, 3, 2, 4])
    >>> bool(abs(result.posterior.mean.sum()) < 1e-10), result.posterior.mean[[0, -1]].round(1)
    (True, array([-0.9,  0.9]))
    """

    reports = "weight"

    def __init__(self, Q: Any, A: Any = None, constraints: Any = None, *, mean: Any = 0.0, slack: Any = 0.0,
                 n_outputs: int = 1, logdet: float | None = None) -> None:
        D = (prior := _checked_precision(Q)).shape[0]
        rows = scipy_sparse.eye_array(D, format="csr") if A is None else scipy_sparse.csr_array(A, dtype=np.float64)
        if rows.shape[1] != D or not rows.shape[0]:
            raise InputError(f"A must have rows, and {D} columns", f"shape {rows.shape}", "There is one per weight.")
        require(np.isfinite(rows.data).all(), "A must be finite", "NaN or infinity", "Drop these rows.")
        C = np.zeros((0, D)) if constraints is None else as_float(constraints, "constraints", ndim=2)
        require(C.shape[1] == D, f"constraints must have {D} columns", f"shape {C.shape}", "There is one per weight.")
        self._build(Layouts(prior, rows, C), rows, prior.data, mean, slack, n_outputs, logdet)
        if logdet is None:
            try:
                self.prior_logdet = PrecisionFactor(self, np.zeros(self.n_sites), self.layouts.pinned).absolute_logdet
            except NotPositiveDefiniteError as error:
                raise InputError("Q must be positive definite where the constraints hold", "it is not",
                                 "Constrain the null space of Q: a sum per connected part of a graph.") from error
            self.known_logdet = True

    def _build(self, layouts: Layouts, A: Any, values: Array, mean: Any, slack: Any, n_outputs: int,
               logdet: float | None) -> None:
        self.layouts, self.A, self.values = layouts, A, values
        self.n_sites, self.n_weights = A.shape
        self.n_outputs = checked_outputs(n_outputs, self.n_sites)
        self.weights_mean = mean_at(mean, (self.n_weights,), "mean")
        self.mean = np.asarray(A @ self.weights_mean) if self.weights_mean.any() else np.zeros(self.n_sites)
        self.slack = variances_at(slack, (self.n_sites,), "slack")
        self.dense_size = len(layouts.free.border) + len(layouts.constraints)
        self.known_logdet, self.prior_logdet = logdet is not None, 0.0 if logdet is None else float(logdet)

    def with_prior(self, values: Array, mean: Any, logdet: float) -> "Precision":
        """The same rows under a prior precision with other values on the same pattern (those of its CSC form)."""
        new = Precision.__new__(Precision)
        new._build(self.layouts, self.A, values, mean, self.slack, self.n_outputs, logdet)
        return new

    @cached_property
    def _prior(self) -> PrecisionFactor:
        """The factor of the prior alone; with a ridge where that is singular to working precision."""
        try:
            return self.factor(np.zeros(self.n_sites))
        except NotPositiveDefiniteError:
            scale = np.median(np.abs(self.values)) / max(float(np.median(np.abs(self.A.data))), 1e-12) ** 2
            return self.factor(np.full(self.n_sites, RIDGE * scale))

    @cached_property
    def prior_variances(self) -> Array:
        return self._prior.variances()

    def mvm(self, a: Array) -> Array:
        return self._prior.smooth(a)

    def factor(self, gamma: Array) -> PrecisionFactor:
        layouts = self.layouts
        if layouts.seen(gamma):
            try:
                return PrecisionFactor(self, gamma, layouts.free)
            except NotPositiveDefiniteError:
                if not len(layouts.constraints):
                    raise
        return PrecisionFactor(self, gamma, layouts.pinned)

    def detach(self, posterior: Posterior) -> SparseWeights:
        factor = factor_of(posterior, PrecisionFactor)
        layout = factor.layout
        pull = posterior.a + posterior.gamma * (posterior.m - self.mean)
        mean = self.weights_mean + factor.solve_weights(self.A.T @ pull)
        pattern, spread = layout.pattern, float(posterior.spread)
        return SparseWeights(mean, layout.inner, layout.border, pattern.indptr, pattern.indices, factor.lower, factor.T,
                             factor.S_inverse, layout.C_s, layout.C_b, spread, factor.inner)

    def weight_covariance(self, posterior: Posterior) -> Array:
        V = factor_of(posterior, PrecisionFactor).solve_weights(np.eye(self.n_weights))
        return np.asarray(0.5 * (V + V.T))

    def covariance_products(self, posterior: Posterior) -> Any:
        return factor_of(posterior, PrecisionFactor).solve_weights

    def design(self) -> Array:
        return np.asarray(self.A @ self._prior_root())

    def _prior_root(self) -> Array:
        covariance = self._prior.solve_weights(np.eye(self.n_weights))
        return psd_square_root(0.5 * (covariance + covariance.T), "the prior covariance")

    def reported_prior(self) -> tuple[Array, Array, Array | None]:
        self._dense_design()
        return self.weights_mean, self._prior_root(), np.asarray(self.A.toarray())

    def draw(self, rng: np.random.Generator) -> tuple[Array, Array]:
        prior, none = self._prior, np.zeros(self.n_sites)
        q = self.detach(Posterior(self, none, prior.gamma, self.mean, none, 0.0, True, prior))
        w = q.sample(1, rng)[0]
        return w, self.A @ w + np.sqrt(self.slack) * rng.standard_normal(self.n_sites)

    def coordinates(self, posterior: Posterior) -> Coordinates:
        q = self.detach(posterior)
        return WeightCoordinates(q, [(self.A, slice(None))], self.A.nnz + 4 * len(q.indices))

    @classmethod
    def of_parts(cls, parts: LinearParts, kept: dict[str, Any]) -> "Precision | None":
        """Patterns are analysed once, whatever the prior."""
        if parts.precision is None:
            return None
        mean = np.zeros(parts.precision.shape[0])
        mean[: len(parts.mean)] = parts.mean
        if "precision" not in kept or not parts.fixed_columns:
            kept["precision"] = cls(parts.precision, side_by_side([parts.X, parts.sparse]), parts.constraints,
                                    mean=mean, slack=parts.slack, logdet=parts.logdet)
        first: Precision = kept["precision"]
        return first.with_prior(parts.precision.data, mean, parts.logdet)

    @classmethod
    def rows_of(cls, X: Any, codes: Index, values: Array, n_levels: int, sparse: Any = None) -> Any:
        return scipy_sparse.csr_array(X if sparse is None else side_by_side([X, sparse]))

    @classmethod
    def costs(cls, shape: Shape) -> Option | None:
        return sparse_factor(shape) if shape.fields else None

    def predict(self, posterior: Posterior, A_new: Any, slack: Any = 0.0) -> tuple[Array, Array]:
        """Mean and variance of f at new rows."""
        return self.detach(posterior).at(scipy_sparse.csr_array(A_new), slack)


def _checked_precision(Q: Any) -> Any:
    """Q in CSC form with sorted indices, finite and symmetric."""
    matrix = scipy_sparse.csc_array(Q, dtype=np.float64, copy=True)
    if matrix.shape[0] != matrix.shape[1] or not matrix.shape[0]:
        raise InputError("Q must be a square matrix with some rows", f"shape {matrix.shape}", "One row per weight.")
    matrix.sum_duplicates()
    matrix.sort_indices()
    require(np.isfinite(matrix.data).all(), "Q must be finite", "NaN or infinity", "Check how it was made.")
    away = abs(matrix - matrix.T)
    if away.nnz and away.max() > 1e-10 * abs(matrix).max():
        raise InputError("Q must be symmetric", f"a difference of {away.max():.3g} to its transpose",
                         "Pass both triangles.")
    return matrix
