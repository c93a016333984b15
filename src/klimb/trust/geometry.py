"""Coordinates in which a Gaussian q is N(0, I): how they move f at the sites, and what is reported to the user.

    h = m + Z z,  z ~ N(0, I),  Z Z' = V        reported = mean + R z + an independent rest

Every latent has some such Z; what differs is how products with it and its transpose are cheap. Products go by blocks of
sites, so that memory stays bounded however many data or draws there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias, final

import numpy as np

from klimb.errors import InputError
from klimb.latents.base import Factor, Posterior
from klimb.latents.implicit import Implicit
from klimb.latents.inducing import Inducing
from klimb.latents.kernel import Kernel
from klimb.latents.markov import Markov, MarkovFactor
from klimb.latents.meanfield import MeanField
from klimb.latents.mixed import Mixed
from klimb.latents.outputs import Outputs
from klimb.latents.weights import PrimalFactor, Weights
from klimb.linalg.matrix import BlockedDesign, DesignMatrix, as_design
from klimb.numerics.arrays import Array
from klimb.numerics.dense import cholesky, symmetric_from_lower, triangular_inverse, triangular_solve

# Deviations of some sites (draws x sites) in, slopes of the same shape out.
Visit: TypeAlias = Callable[[slice, Array], Array]
Kind: TypeAlias = Literal["weight", "f"]

BLOCK_DOUBLES = 65_536  # draws x sites of a block: it stays in the cache while a site is evaluated there
NEGLIGIBLE = 1e-4  # share of a site's variance that the root of V may leave out: fewer directions, better weights
LARGEST_DENSE = 5000  # sites up to which an N x N matrix may be formed


class Geometry(ABC):
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


class MatrixGeometry(Geometry):
    """Z = M C with M known by blocks of rows and C a matrix (or the identity)."""

    C: Array | None

    @abstractmethod
    def blocks(self, size: int) -> Iterator[tuple[slice, Any]]:
        """Blocks of about ``size`` rows of M, dense or sparse."""

    def sweep(self, z: Array, visit: Visit) -> Array:
        moved = z if self.C is None else z @ self.C.T
        total = np.zeros((len(z), moved.shape[1]))
        for rows, block in self.blocks(max(BLOCK_DOUBLES // len(z), 16)):
            if isinstance(block, np.ndarray):
                total += visit(rows, moved @ block.T) @ block
            else:  # sparse
                slopes = visit(rows, np.ascontiguousarray((block @ moved.T).T))
                total += (block.T @ slopes.T).T
        return total if self.C is None else np.asarray(total @ self.C)


@final
class PrimalGeometry(MatrixGeometry):
    """Few weights: M = X and C a root of their posterior covariance."""

    def __init__(self, X: DesignMatrix, root: Array, mean: Array, kind: Kind, m: Array, v: Array) -> None:
        self.X, self.C, self.kind, self.n_sites = X, root, kind, X.shape[0]
        self.dim = root.shape[1]
        if kind == "weight":
            self.mean, self.sd = mean, np.sqrt(np.einsum("ij,ij->i", root, root))
        else:
            self.mean, self.sd = m, np.sqrt(v)

    @property
    def work(self) -> float:
        values = getattr(self.X, "values", None)
        return float(getattr(values, "nnz", self.n_sites * self.X.shape[1]) + self.dim**2)

    def blocks(self, size: int) -> Iterator[tuple[slice, Any]]:
        return design_blocks(self.X, size)

    def report(self, z: Array, which: Any) -> Array:
        moved = z @ self.C.T if self.C is not None else z
        if self.kind == "weight":
            return np.asarray(moved[:, which])
        rows = np.arange(self.X.shape[0])[which]
        part = self.X.subset(rows)
        return np.concatenate([np.asarray((block @ moved.T).T) for _, block in design_blocks(part, 4096)], axis=1)


@final
class DenseGeometry(MatrixGeometry):
    """N x N forms: Z a pivoted Cholesky factor of V, which stops where nothing is left."""

    def __init__(self, posterior: Posterior, factor: Factor) -> None:
        latent = posterior.latent
        covariance = factor.covariance()
        if covariance is None and isinstance(factor, MarkovFactor):
            covariance = factor.dense()
        assert covariance is not None
        self.C, self.n_sites = None, latent.n_sites
        self.Z = pivoted_root(covariance)
        self.dim = self.Z.shape[1]
        self._rest: Array | float = 0.0
        self._R = self.Z
        self.kind = "f"
        self.mean = posterior.m
        variances = np.maximum(np.diagonal(covariance), 0.0)
        if isinstance(latent, Weights):  # more weights than data: what the data do not see of a weight stays as it is
            V = symmetric_from_lower(covariance)
            seen = V * -posterior.gamma[:, None]
            seen.flat[:: len(seen) + 1] += 1.0  # I - G V
            cross = latent.prior.covariance_times(latent.X.dense().T) @ seen  # Cov(w, f)
            self._R = np.asarray(np.linalg.lstsq(self.Z, cross.T, rcond=1e-10)[0].T, dtype=np.float64)
            self.kind, self.mean = "weight", posterior.mean
            variances = _weight_variances(latent, posterior, cross)
        self.sd = np.sqrt(variances)

    def blocks(self, size: int) -> Iterator[tuple[slice, Any]]:
        for begin in range(0, len(self.Z), size):
            rows = slice(begin, min(begin + size, len(self.Z)))
            yield rows, self.Z[rows]

    def report(self, z: Array, which: Any) -> Array:
        return np.asarray(z @ self._R[which].T)


@final
class MeanFieldGeometry(MatrixGeometry):
    """A diagonal q over weights: log prior - log q is not a sum over the sites."""

    independent = "weights"

    def __init__(self, latent: MeanField, posterior: Posterior) -> None:
        self._full, self.n_sites = latent.full, latent.n_sites
        self.kind: Kind = "weight"
        self.mean, self.sd = posterior.mean, np.sqrt(latent.weight_variances(posterior))
        self._free = np.flatnonzero(self.sd > 0)
        self.dim = len(self._free)
        self.C = np.zeros((len(self.sd), self.dim))
        self.C[self._free, np.arange(self.dim)] = self.sd[self._free]
        self._gamma = posterior.gamma

    def blocks(self, size: int) -> Iterator[tuple[slice, Any]]:
        return design_blocks(self._full.X, size)

    def report(self, z: Array, which: Any) -> Array:
        assert self.C is not None
        return np.asarray(z @ self.C[which].T)

    def excess(self, z: Array) -> tuple[Array, Array]:
        """|z|^2 / 2 - d' Lambda d / 2 with d = C z and Lambda the prior precision."""
        assert self.C is not None
        root = self._full.prior.root
        if root.ndim == 1:
            ratio = self.sd[self._free] / root[self._free]
            slopes = z * (1.0 - ratio**2)
        else:
            whitened = triangular_solve(np.asfortranarray(root), self.C)  # root^-1 C
            slopes = z - (z @ whitened.T) @ whitened
        return 0.5 * np.einsum("ij,ij->i", z, slopes), slopes


@final
class MarkovGeometry(Geometry):
    """A chain over time: z are the shocks that drive it, a few per site, and no matrix is formed."""

    def __init__(self, latent: Markov, posterior: Posterior, factor: MarkovFactor) -> None:
        self._latent, self._chain, self.n_sites = latent, factor.chain, latent.n_sites
        self._states = latent.dense_size
        self.dim = latent.n_sites * self._states
        self.kind: Kind = "f"
        self.mean, self.sd = posterior.m, np.sqrt(posterior.v)
        self._last: tuple[Array, Array] | None = None  # draws and their deviations, which are asked for twice

    @property
    def work(self) -> float:
        return float(40 * self.n_sites * self._states**2)  # two scans along the chain, by small matrices

    def deviations(self, z: Array) -> Array:
        last = self._last  # read once: another thread may replace it
        if last is None or last[0] is not z:
            shocks = z.T.reshape(self._latent.n_sites, self._states, len(z))
            x = self._chain.run(np.einsum("ijn,njc->nic", self._chain.root, shocks))
            last = self._last = (z, np.ascontiguousarray(self._latent.unsorted(x[:, 0]).T))
        return last[1]

    def pull(self, slopes: Array) -> Array:
        costates = self._chain.costates(self._latent.pull(np.ascontiguousarray(slopes.T)))
        pulled = np.einsum("ijn,nic->njc", self._chain.root, costates)
        return np.asarray(pulled.reshape(self.dim, len(slopes)).T)

    def sweep(self, z: Array, visit: Visit) -> Array:
        return self.pull(visit(slice(0, self.n_sites), self.deviations(z)))

    def report(self, z: Array, which: Any) -> Array:
        return np.asarray(self.deviations(z)[:, which])


@final
class OutputsGeometry(Geometry):
    """Several latent values per datum: the coordinates of the parts side by side."""

    independent = "classes"

    def __init__(self, parts: list[Geometry]) -> None:
        self.parts = parts
        self.n_sites = sum(part.n_sites for part in parts)
        self._edges = np.cumsum([part.dim for part in parts])[:-1]
        self.dim = sum(part.dim for part in parts)
        self.kind = parts[0].kind
        self.mean = np.concatenate([part.mean for part in parts])
        self.sd = np.concatenate([part.sd for part in parts])

    @property
    def work(self) -> float:
        return sum(part.work for part in self.parts)

    def deviations(self, z: Array) -> Array:
        split = np.split(z, self._edges, axis=1)
        return np.hstack([part.deviations(one) for part, one in zip(self.parts, split, strict=True)])

    def pull(self, slopes: Array) -> Array:
        split = np.split(slopes, np.cumsum([part.n_sites for part in self.parts])[:-1], axis=1)
        return np.hstack([part.pull(np.ascontiguousarray(one)) for part, one in zip(self.parts, split, strict=True)])

    def sweep(self, z: Array, visit: Visit) -> Array:
        return self.pull(visit(slice(0, self.n_sites), self.deviations(z)))

    def report(self, z: Array, which: Any) -> Array:
        split = np.split(z, self._edges, axis=1)
        both = [part.report(one, slice(None)) for part, one in zip(self.parts, split, strict=True)]
        return np.hstack(both)[:, which]


def geometry_of(posterior: Posterior) -> Geometry:
    """The coordinates of a fitted q."""
    if not posterior.spread:
        raise InputError("trust needs a posterior with a spread", "a point estimate", "Use klimb.infer, not a mode.")
    latent, factor = posterior.latent, posterior.factorised()
    if isinstance(latent, Outputs):
        return OutputsGeometry([geometry_of(part) for part in latent.split(posterior)])
    if isinstance(latent, MeanField):
        return MeanFieldGeometry(latent, posterior)
    if isinstance(latent, Mixed):
        from klimb.trust.grouped import MixedGeometry  # it is built on this module

        return MixedGeometry(latent, posterior)
    if isinstance(latent, Implicit):
        return _implicit_geometry(latent, posterior)
    if isinstance(factor, PrimalFactor):
        kind: Kind = "weight" if isinstance(latent, Weights) else "f"
        design = latent.X if isinstance(latent, Weights) else _rows_of(latent)
        mean = posterior.mean if kind == "weight" else posterior.m
        return PrimalGeometry(design, factor.weight_root(), mean, kind, posterior.m, posterior.v)
    if isinstance(latent, Markov) and isinstance(factor, MarkovFactor) and latent.n_sites > LARGEST_DENSE // 10:
        return MarkovGeometry(latent, posterior, factor)
    if isinstance(latent, Kernel | Weights | Markov):
        return DenseGeometry(posterior, factor)
    raise InputError("trust knows the latents of klimb", type(latent).__name__, "Compare with a sampler instead.")


def _implicit_geometry(latent: Implicit, posterior: Posterior) -> PrimalGeometry:
    """The dense root of a posterior covariance that the fit had no need of."""
    if latent.n_weights > LARGEST_DENSE:
        raise InputError(f"trust needs a dense root of the covariance, for up to {LARGEST_DENSE} weights",
                         f"{latent.n_weights}",
                         "Look at result.variance_error and result.bound_error, or check a model of fewer columns.")
    lower = cholesky(latent.factor_of(posterior).matrix.dense())
    root = np.ascontiguousarray(triangular_inverse(lower).T)  # A = L L', so that L^-T is a root of A^-1
    matrix = latent.B.explicit
    design = as_design(latent.B.dense() if matrix is None else matrix, "B")
    return PrimalGeometry(design, root, posterior.mean, "weight", posterior.m, posterior.v)


def _rows_of(latent: Any) -> DesignMatrix:
    assert isinstance(latent, Inducing)
    return latent.row_design


def _weight_variances(latent: Weights, posterior: Posterior, cross: Array) -> Array:
    """Var_q(w) = Sigma - Sigma X' (K + G^-1)^-1 X Sigma; (K + G^-1)^-1 X Sigma = G Cov(f, w)."""
    pushed = latent.prior.covariance_times(latent.X.dense().T)  # Sigma X'
    root = latent.prior.root
    prior = root**2 if root.ndim == 1 else np.einsum("ij,ij->i", root, root)
    explained = np.einsum("ij,j,ij->i", pushed, posterior.gamma, cross)
    return np.asarray(np.maximum(prior - explained, np.finfo(float).eps * prior))


def design_blocks(X: DesignMatrix, size: int) -> Iterator[tuple[slice, Any]]:
    """Blocks of rows, dense where the design is dense and sparse where it is sparse."""
    values = getattr(X, "values", None)
    if values is None and isinstance(X, BlockedDesign):  # computed when asked for, in blocks of its own size
        yield from X.blocks()
        return
    for begin in range(0, X.shape[0], size):
        rows = slice(begin, min(begin + size, X.shape[0]))
        yield rows, values[rows] if values is not None else X.dense_rows(rows)


def pivoted_root(covariance: Array) -> Array:
    """Z with Z Z' = V to a relative `NEGLIGIBLE` of every diagonal entry, of as few columns as that takes.

    ``covariance`` counts in its lower triangle only. Columns come in the order of what they explain.
    """
    from scipy.linalg.lapack import dpstrf

    sd = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    scale = np.where(sd > 0, sd, 1.0)
    inverse = 1.0 / scale
    correlation = np.array(covariance, order="F")
    correlation *= inverse[:, None]
    correlation *= inverse
    lower, pivots, rank, _ = dpstrf(correlation, lower=1, tol=NEGLIGIBLE, overwrite_a=1)
    columns = np.array(lower[:, : int(rank)])  # often few: the rest is not touched
    columns[: int(rank)] = np.tril(columns[: int(rank)])
    root = np.empty_like(columns)
    root[pivots - 1] = columns
    root *= scale[:, None]
    return root
