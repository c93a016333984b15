"""Coordinates in which a Gaussian q is N(0, I): how they move f at the sites, and what is reported to the user.

    h = m + Z z,  z ~ N(0, I),  Z Z' = V        reported = mean + R z + an independent rest

Every latent has some such Z; what differs is how products with it and its transpose are cheap. Products go by blocks of
sites, so that memory stays bounded however many data or draws there are.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from klimb.errors import InputError
from klimb.latents.base import Posterior
from klimb.linalg.matrix import DENSE_LIMIT, BlockedDesign, DenseDesign, DesignMatrix
from klimb.numerics.arrays import Array, slices
from klimb.numerics.dense import cholesky, triangular_inverse, triangular_solve
from klimb.numerics.lazy import lapack

# Deviations of some sites (draws x sites) in, slopes of the same shape out.
Visit: TypeAlias = Callable[[slice, Array], Array]
Kind: TypeAlias = Literal["weight", "f"]

BLOCK_DOUBLES = 65_536  # draws x sites of a block: it stays in the cache while a site is evaluated there
NEGLIGIBLE = 1e-4  # share of a site's variance that the root of V may leave out: fewer directions, better weights
LARGEST_DENSE = 5000  # sites up to which an N x N matrix may be formed
SAME_VARIANCES = 1e-6  # relative difference up to which variances found in two ways are the same


class Coordinates(ABC):
    """A Gaussian q in standard coordinates z of dimension ``dim``."""

    dim: int
    kind: Kind  # what the reported marginals are
    mean: Array  # of the reported marginals
    sd: Array
    n_sites: int
    independent: str = ""  # what q takes for independent though the posterior may not: weights, or classes

    @property
    def work(self) -> float:
        """Numbers that a product of Z with one draw goes through."""
        return float(self.n_sites * self.dim)

    @abstractmethod
    def sweep(self, z: Array, visit: Visit) -> Array:
        """Show the deviations Z z of every draw (a row of z) to ``visit``, block by block; Z' slopes, draws x dim."""

    def deviations(self, z: Array) -> Array:
        """Z z for every row of z: draws x sites."""
        out = np.empty((len(z), self.n_sites))

        def copy(rows: slice, d: Array) -> Array:
            out[:, rows] = d
            return np.zeros_like(d)

        self.sweep(z, copy)
        return out

    def pull(self, slopes: Array) -> Array:
        """Z' slopes for every row of ``slopes``: draws x dim."""
        return self.sweep(np.zeros((len(slopes), self.dim)), lambda rows, d: slopes[:, rows])

    @abstractmethod
    def report(self, z: Array, which: Any) -> Array:
        """R z for some of the reported marginals: draws x marginals."""

    def excess(self, z: Array) -> tuple[Array, Array] | None:
        """What log prior - log q has instead of the sites' quadratic terms, and its gradient; None if it has these."""
        return None


class MatrixCoordinates(Coordinates):
    """Z = X C with a design X and a matrix C (or the identity); reported is f at the sites, or weights R z.

    ``cross`` is Cov(w, f) where C is no root of Var(w); ``diagonal`` the root of the prior of weights whose q is
    diagonal.
    """

    def __init__(self, X: DesignMatrix, C: Array | None, kind: Kind, mean: Array, sd: Array, *,
                 cross: Array | None = None, diagonal: Array | None = None) -> None:
        self.X, self.C, self.kind, self.mean, self.sd = X, C, kind, mean, sd
        self.n_sites, self.dim = X.shape[0], X.shape[1] if C is None else C.shape[1]
        self._cross, self._prior = cross, diagonal
        self.independent = "" if diagonal is None else "weights"

    @property
    def work(self) -> float:
        values = getattr(self.X, "values", None)
        return float(getattr(values, "nnz", self.n_sites * self.X.shape[1]) + (0 if self.C is None else self.dim**2))

    def sweep(self, z: Array, visit: Visit) -> Array:
        moved = z if self.C is None else z @ self.C.T
        total = np.zeros((len(z), moved.shape[1]))
        for rows, block in _design_blocks(self.X, max(BLOCK_DOUBLES // len(z), 16)):
            if isinstance(block, np.ndarray):
                total += visit(rows, moved @ block.T) @ block
            else:  # sparse
                slopes = visit(rows, np.ascontiguousarray((block @ moved.T).T))
                total += (block.T @ slopes.T).T
        return total if self.C is None else np.asarray(total @ self.C)

    @cached_property
    def _R(self) -> Array:
        """What is reported by the coordinates: f, or weights as far as f tells of them."""
        if self._cross is None:
            return self.X.dense() if self.C is None else self.C
        return np.asarray(np.linalg.lstsq(self.X.dense(), self._cross.T, rcond=1e-10)[0].T, dtype=np.float64)

    def report(self, z: Array, which: Any) -> Array:
        if self.kind == "weight" or self.C is None:
            return np.asarray(z @ self._R[which].T)
        moved, part = z @ self.C.T, self.X.subset(np.arange(self.n_sites)[which])
        return np.concatenate([np.asarray((block @ moved.T).T) for _, block in _design_blocks(part, 4096)], axis=1)

    def excess(self, z: Array) -> tuple[Array, Array] | None:
        """Of a diagonal q |z|^2 / 2 - d' Lambda d / 2 with d = C z and Lambda the prior precision."""
        if self._prior is None:
            return None
        assert self.C is not None
        if self._prior.ndim == 1:
            free = self.sd > 0
            slopes = z * (1.0 - (self.sd[free] / self._prior[free]) ** 2)
        else:
            whitened = triangular_solve(np.asfortranarray(self._prior), self.C)  # root^-1 C
            slopes = z - (z @ whitened.T) @ whitened
        return 0.5 * np.einsum("ij,ij->i", z, slopes), slopes


def weight_coordinates(X: DesignMatrix, root: Array, mean: Array) -> MatrixCoordinates:
    """Few weights, which are reported: X and a root of their posterior covariance."""
    return MatrixCoordinates(X, root, "weight", mean, np.sqrt(np.einsum("ij,ij->i", root, root)))


def dense_coordinates(covariance: Array, m: Array, weights: tuple[Array, Array, Array] | None = None, *,
                      slack: Array | float = 0.0) -> MatrixCoordinates:
    """N x N forms: Z a pivoted Cholesky factor of V, given by its lower triangle, which stops where nothing is left.

    Where weights are reported, ``weights`` holds Cov(w, f), their means and their variances.
    """
    Z = DenseDesign(pivoted_root(covariance))
    if weights is None:
        return MatrixCoordinates(Z, None, "f", m, np.sqrt(np.maximum(np.diagonal(covariance), 0.0) + slack))
    cross, mean, variances = weights
    return MatrixCoordinates(Z, None, "weight", mean, np.sqrt(variances), cross=cross)


class WeightCoordinates(Coordinates):
    """Of a q of weights with a root that may only multiply (``from_root``, ``to_root``): no matrix of all is formed.

    f is the sum of M w[at] over ``columns``, pairs of a matrix M, dense or sparse, and the weights ``at`` it is for.
    """

    kind = "weight"

    def __init__(self, q: Any, columns: Sequence[tuple[Any, Any]], work: float) -> None:
        self._q, self._columns, self._work = q, columns, work
        self.n_sites, self.dim, self.mean = columns[0][0].shape[0], q.dim, q.mean

    @cached_property
    def sd(self) -> Array:  # type: ignore[override]
        found: Array = self._q.sd()
        return found

    @property
    def work(self) -> float:
        return float(self._work)

    def pull(self, slopes: Array) -> Array:
        weights = np.zeros((self._q.size, len(slopes)))
        for M, at in self._columns:
            weights[at] = M.T @ slopes.T
        return np.ascontiguousarray(self._q.to_root(weights).T)

    def sweep(self, z: Array, visit: Visit) -> Array:
        weights = self._q.from_root(np.ascontiguousarray(z.T))
        parts = [np.ascontiguousarray(weights[at]) for _, at in self._columns]
        totals = [np.zeros_like(part) for part in parts]
        for rows in slices(self.n_sites, max(BLOCK_DOUBLES // len(z), 16)):
            blocks = [M[rows] for M, _ in self._columns]
            deviations = sum(block @ part for block, part in zip(blocks, parts, strict=True))
            slopes = visit(rows, np.ascontiguousarray(np.transpose(deviations))).T
            for total, block in zip(totals, blocks, strict=True):
                total += block.T @ slopes
        for (_, at), total in zip(self._columns, totals, strict=True):
            weights[at] = total
        return np.ascontiguousarray(self._q.to_root(weights).T)

    def report(self, z: Array, which: Any) -> Array:
        return np.asarray(self._q.from_root(np.ascontiguousarray(z.T))[which].T)


def coordinates_of(posterior: Posterior) -> Coordinates:
    """The coordinates of a fitted q, which must have a spread."""
    if not posterior.spread:
        raise InputError("trust needs a posterior with a spread", "a point estimate", "Use klimb.infer, not a mode.")
    return posterior.latent.coordinates(posterior)


def default_coordinates(posterior: Posterior) -> Coordinates:
    """Coordinates of a q of which only the contract of a latent is known: they report f at the sites.

    Z is a pivoted root of V, up to `LARGEST_DENSE` sites, or with few weights ``design`` times a root of (I + Z'GZ)^-1.
    """
    latent = posterior.latent
    N, R = latent.n_sites, latent.n_weights
    if min(N, R) > LARGEST_DENSE or N * min(N, R) > DENSE_LIMIT:
        raise InputError(f"trust needs a dense root of the covariance, for up to {LARGEST_DENSE} sites or weights",
                         f"{N} sites and {R} weights of {type(latent).__name__}",
                         "Check a fit to fewer data, or give the latent a coordinates method of its own.")
    covariance = posterior.factorised().covariance() if N <= LARGEST_DENSE else None
    if covariance is not None:
        return dense_coordinates(covariance, posterior.m, slack=latent.slack)
    design = DenseDesign(latent.design())
    A = design.weighted_gram(posterior.gamma)
    A.flat[:: len(A) + 1] += 1.0
    root = np.ascontiguousarray(triangular_inverse(cholesky(A)).T)
    variances, _ = design.row_norms_squared(root, upper=True)
    if not np.allclose(variances + latent.slack, posterior.v, rtol=SAME_VARIANCES, atol=0.0):
        raise InputError("the marginals of this q must be those of the precision K^-1 + diag(gamma)",
                         f"other variances from the factor of {type(latent).__name__}",
                         "Give the latent a coordinates method of its own, as klimb.latents.MeanField has.")
    if N > LARGEST_DENSE:
        return MatrixCoordinates(design, root, "f", posterior.m, np.sqrt(posterior.v))
    rows = design.values @ root
    return dense_coordinates(np.asarray(rows @ rows.T), posterior.m, slack=latent.slack)


def _design_blocks(X: DesignMatrix, size: int) -> Iterator[tuple[slice, Any]]:
    """Blocks of rows, dense where the design is dense and sparse where it is sparse."""
    values = getattr(X, "values", None)
    if values is None and isinstance(X, BlockedDesign):  # computed when asked for, in blocks of its own size
        yield from X.blocks()
        return
    for rows in slices(X.shape[0], size):
        yield rows, values[rows] if values is not None else X.dense_rows(rows)


def pivoted_root(covariance: Array, sd: Array | None = None) -> Array:
    """Z with Z Z' = V to a relative `NEGLIGIBLE` of every diagonal entry, of as few columns as that takes.

    Of ``covariance`` the lower triangle counts; columns go by what they explain, entries by ``sd``, if not their own.
    """
    sd = np.sqrt(np.maximum(np.diagonal(covariance), 0.0)) if sd is None else sd
    scale = np.where(sd > 0, sd, 1.0)
    inverse = 1.0 / scale
    correlation = np.array(covariance, order="F")
    correlation *= inverse[:, None]
    correlation *= inverse
    lower, pivots, rank, _ = lapack.dpstrf(correlation, lower=1, tol=NEGLIGIBLE, overwrite_a=1)
    columns = np.array(lower[:, : int(rank)])  # often few: the rest is not touched
    columns[: int(rank)] = np.tril(columns[: int(rank)])
    root = np.empty_like(columns)
    root[pivots - 1] = columns
    root *= scale[:, None]
    return root
