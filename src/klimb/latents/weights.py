"""Linear models: w ~ N(mean, cov), f = X w (+ slack), in the D x D (primal) or N x N (dual) form."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError, NotPositiveDefiniteError
from klimb.latents.base import Factor, Latent, Posterior, Product, checked_outputs, draws_from, sites_of, variances_at
from klimb.latents.coordinates import Coordinates, dense_coordinates, weight_coordinates
from klimb.latents.costs import Option, Shape, cheapest, dual, primal
from klimb.latents.kernel import DenseFactor, Kernel, enough_in_single, kernel_factor, positive
from klimb.latents.linear import LinearParts, WeightPrior
from klimb.latents.shocks import MOST_REDUCED, UNSEEN, Shocks
from klimb.latents.weights_posterior import AttachedWeights, DenseWeights, WeightPosterior, WideWeights
from klimb.linalg.matrix import DesignMatrix, ScaledRows, as_design
from klimb.numerics.arrays import Array
from klimb.numerics.dense import (
    cholesky,
    log_det_from_cholesky,
    row_blocks,
    symmetric_from_lower,
    threads_for,
    times,
    triangular_inverse,
)

Form = Literal["auto", "primal", "dual"]
LOST = 0.01  # share of a pivot that single precision may lose
MOST_DETACHED = 2**26  # entries (512 MiB) of a dual form's weights without their data; beyond it those stay


class PrimalFactor(Factor):
    """A = I + S' X' G X S of size D, S S' = Sigma_w: V_w = S A^-1 S'. [A] Eq. (16)-(17), gamma of any sign.

    Whitening by S makes singular prior covariances and zero prior variances ordinary.
    """

    def __init__(self, X: DesignMatrix, prior: WeightPrior, gamma: Array, n_outputs: int = 1) -> None:
        self.gamma, self._n_outputs = gamma, n_outputs
        self._variances: Array | None = None
        try:
            lower = self._factorise(X, prior)
        except NotPositiveDefiniteError:
            if X.exact is X:
                raise
            lower = self._factorise(X.exact, prior)
        self.logdet = log_det_from_cholesky(lower)
        self._inverse = triangular_inverse(lower)
        self._root = prior.root_times(self._inverse.T)  # S L^-T, so that V_w = root root'
        self._upper = prior.root.ndim == 1  # a diagonal S keeps the triangle

    def _factorise(self, X: DesignMatrix, prior: WeightPrior) -> Array:
        """The Cholesky factor of A; an error where single precision lost too much of it."""
        A = prior.whiten(X.weighted_gram(self.gamma))
        A.flat[:: len(A) + 1] += 1.0
        whole = A.diagonal().copy()
        lower = cholesky(A.T)
        # A pivot l_j^2 is what is left of A_jj, whose rounding it keeps: equal columns under a wide prior leave little.
        left = lower.diagonal() ** 2
        if X.exact is not X and X.rounding * float((whole / left).max()) > LOST:
            raise NotPositiveDefiniteError("the pivots are mostly rounding errors")
        self._X, self.log_det_rounding = X, X.rounding * float((whole / left).sum())
        return lower

    def variances(self) -> Array:
        if self._variances is None:
            self._variances, _ = self._X.row_norms_squared(self._root, upper=self._upper)
        return self._variances

    def shift(self, b: Array) -> Array:
        return self._X.times(self._root @ (self._root.T @ self._X.transpose_times(b)))

    def smooth(self, b: Array) -> Array:
        if self._variances is not None:
            return self.shift(b)
        weights = self._root @ (self._root.T @ self._X.transpose_times(b))
        self._variances, smoothed = self._X.row_norms_squared(self._root, upper=self._upper, times=weights)
        return smoothed

    def smooth_rows(self, rows: npt.NDArray[np.intp], B: Array) -> Array:
        X = self._X.subset(rows).dense()
        return np.asarray((B @ X @ self._root @ self._root.T) @ X.T)

    def energy(self, b: Array) -> float:
        half = self._root.T @ self._X.transpose_times(b)
        return float(half @ half)

    def covariance(self) -> Array:
        root = self._X.dense() @ self._root
        return np.asarray(root @ root.T)

    def by_weights(self) -> tuple[DesignMatrix, Array]:
        return self._X, self._root

    def products(self) -> tuple[Product, Product] | None:
        """For long designs: (V o V) b is the diagonal of X M X' with M = V_w X' diag(b) X V_w, which is D x D.

        Sites that couple outputs ask for Newton directions by the weights per output: there is no N x N matrix then.
        """
        N, D = self._X.shape
        return (self.smooth, self._square_times) if N * self._n_outputs >= 2 * D * D else None

    def energy_of_squares(self, b: Array) -> float | None:
        """The squared Frobenius norm of S' X' diag(b) X S, with V_w = S S': no second pass over the rows."""
        return None if self.products() is None else float(np.square(self._between(b)).sum())

    def _between(self, b: Array) -> Array:
        return np.asarray(self._root.T @ self._X.weighted_gram(b) @ self._root)

    def _square_times(self, b: Array) -> Array:
        values, vectors = np.linalg.eigh(self._between(b))
        directions = self._root @ (vectors * np.sqrt(np.abs(values)))
        total = np.zeros(len(b))
        for sign, some in ((1.0, values > 0.0), (-1.0, values < 0.0)):
            if some.any():
                total += sign * self._X.row_norms_squared(np.ascontiguousarray(directions[:, some]))[0]
        return total

    def weight_root(self) -> Array:
        """A D x R matrix whose outer square is the posterior covariance of the weights."""
        return self._root


class Weights(Latent):
    """f = X w with w ~ N(mean, cov).

    Parameters
    ----------
    X : (N, D) array or scipy.sparse matrix
    mean : number or (D,) array
        Prior mean of the weights.
    cov : number, (D,) array or (D, D) array
        Prior covariance: a variance for all, one per weight, or the matrix. Zero variances hold a weight at its mean.
    slack : number or (N,) array
        Extra variance c_i of f_i around x_i'w ([S] Eq. (4)).
    form : "auto", "primal" or "dual"
        Work with D x D or with N x N matrices; "auto" takes the cheaper one.
    n_outputs : int
        Latent values of each datum (see `klimb.sites.Softmax`): the rows of X are those of all data for the first one,
        then those for the second, and so on. They may share weights; where they share none, `Outputs` is cheaper.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> X = np.array([[1.0, 0.5], [1.0, -1.0], [1.0, 2.0], [1.0, 0.0]])
    >>> result = klimb.infer(klimb.latents.Weights(X, cov=4.0), klimb.sites.Logistic(), [1, 0, 1, 0])
    >>> result.posterior.mean.round(2)
    array([-0.4,  2.2])
    """

    reports = "weight"
    _single = False

    def __init__(self, X: Any, mean: Any = 0.0, cov: Any = 1.0, slack: Any = 0.0, *, form: Form = "auto",
                 n_outputs: int = 1) -> None:
        if form not in ("auto", "primal", "dual"):
            raise InputError('form must be "auto", "primal" or "dual"', repr(form), "Leave it out to let cost decide.")
        design = as_design(X, "X")
        self._build(design, WeightPrior(mean, cov, design.shape[1]), slack, form,
                    checked_outputs(n_outputs, design.shape[0]))

    @classmethod
    def with_gram(cls, design: DesignMatrix, mean: Any, cov: Any, K: Array, *, single: bool = False) -> Weights:
        """In the dual form, with K = X Sigma X' at hand: for searches that know how it moves with the prior.

        Far from the optimum, K and factors may be in ``single`` precision.
        """
        found = cls.__new__(cls)
        found._build(design, WeightPrior(mean, cov, design.shape[1]), 0.0, "dual", 1, K)
        found._single = single
        return found

    def _build(self, design: DesignMatrix, prior: WeightPrior, slack: Any, form: Form, n_outputs: int,
               K: Array | None = None) -> None:
        self.X, self.prior, self.n_outputs = design, prior, n_outputs
        self.n_sites, self.n_weights = design.shape
        self.mean = design.times(prior.mean) if prior.mean.any() else np.zeros(self.n_sites)
        self.slack = variances_at(slack, (self.n_sites,), "slack")
        # Flops an iteration: primal 2 N D^2 + D^3/3, dual 2/3 N^3.
        cheaper: Form = "dual" if self.n_sites < 1.5 * self.n_weights else "primal"
        self.form: Form = cheaper if form == "auto" else form
        self.dense_size = self.n_sites if self.form == "dual" else self.n_weights
        self._K: Array | None = None
        if self.form == "dual":
            with threads_for(self.dense_size):
                self._K = design.outer_gram(prior.root) if K is None else K

    @cached_property
    def prior_variances(self) -> Array:
        return self.X.row_norms_squared(self.prior.root)[0] if self._K is None else np.diagonal(self._K).copy()

    def mvm(self, a: Array) -> Array:
        if self._K is not None:
            return times(self._K, a)
        return self.X.times(self.prior.covariance_times(self.X.transpose_times(a)))

    def cancelled(self, a: Array) -> float:
        if self._K is None:
            return self.X.lost(a, self.prior.root) / float(np.finfo(float).eps)
        reach = float(np.abs(a) @ np.sqrt(np.diagonal(self._K)))
        return reach * reach  # not ** 2, which raises where this is infinite

    def factor(self, gamma: Array) -> Factor:
        if self._K is not None:
            digits = not self._single or enough_in_single(self._K, gamma)
            K = self._K if digits else self.X.outer_gram(self.prior.root)
            return kernel_factor(K, gamma, single=self._single)  # [A] Eq. (18)-(19)
        return PrimalFactor(self.X, self.prior, gamma, self.n_outputs)

    def bound_gradient(self, posterior: Posterior) -> Array:
        """d bound / dK of the dual form at a converged posterior, as for `klimb.latents.Kernel`."""
        assert self._K is not None
        return Kernel(self._K, self.mean, check=False).bound_gradient(posterior)

    def thin(self, rows: npt.NDArray[np.intp]) -> Weights | None:
        if self._K is not None:
            return None
        thinned = Weights.__new__(Weights)
        sites = sites_of(rows, self.n_outputs, self.n_sites)
        thinned._build(self.X.subset(sites), self.prior, self.slack[sites], "primal", self.n_outputs)
        return thinned

    def marginals(self, posterior: Posterior) -> tuple[Array, Array]:
        assert isinstance(posterior.latent, Weights)
        return posterior.latent.predict(posterior, self.X, self.slack)

    def marginals_from_first(self, posterior: Posterior) -> tuple[Array, Array]:
        """Of all rows of the dual form, from a posterior of the first of them under the same prior."""
        assert self._K is not None
        cross, first = self._K[:, : len(posterior.a)], posterior.latent
        assert isinstance(first, Weights)
        prior = np.diagonal(self._K)
        v = positive(prior - first._dense_factor(posterior).explained(cross), prior)
        return self.mean + cross @ posterior.a, v + self.slack

    def design(self) -> Array:
        return np.concatenate([block for _, block in self.X.scaled_blocks(self.prior.root)])

    def weight_mean(self, posterior: Posterior) -> Array:
        """mu_w + V_w X'(a + G (m - mu)): it is mu_w + Sigma_w X'a, but V_w magnifies the rounding errors of a less."""
        if self._K is not None:
            return self.prior.mean + self.prior.covariance_times(self.X.transpose_times(posterior.a))
        root = self.posterior_root(posterior)
        pull = posterior.a + posterior.gamma * (posterior.m - self.mean)
        return np.asarray(self.prior.mean + root @ (root.T @ self.X.transpose_times(pull)))

    def weight_covariance(self, posterior: Posterior) -> Array:
        root = self.posterior_root(posterior)
        return np.asarray(root @ root.T)

    def covariance_products(self, posterior: Posterior) -> Product:
        """In the dual form V_w = Sigma - Sigma X'(K + G^-1)^-1 X Sigma, [A] Eq. (19), without a D x D matrix."""
        if self._K is None or not posterior.spread:
            return super().covariance_products(posterior)
        factor, prior, X = self._dense_factor(posterior), self.prior, self.X

        def times(vectors: Array) -> Array:
            pushed = prior.covariance_times(vectors)
            columns = [X.transpose_times(factor.solve(posterior.gamma * X.times(np.ascontiguousarray(column)))[0])
                       for column in pushed.reshape(len(pushed), -1).T]
            return np.asarray(pushed - prior.covariance_times(np.reshape(np.transpose(columns), vectors.shape)))

        return times

    def weight_sample(self, posterior: Posterior, n: int, rng: np.random.Generator) -> Array:
        return draws_from(posterior.mean, self.posterior_root(posterior), n, rng)

    def posterior_root(self, posterior: Posterior) -> Array:
        if isinstance(posterior.factor, PrimalFactor):
            return posterior.factor.weight_root()
        return PrimalFactor(self.X, self.prior, posterior.gamma).weight_root()

    def coordinates(self, posterior: Posterior) -> Coordinates:
        factor = posterior.factorised()
        if isinstance(factor, PrimalFactor):
            return weight_coordinates(self.X, factor.weight_root(), posterior.mean)
        covariance = factor.covariance()
        assert covariance is not None
        seen = symmetric_from_lower(covariance) * -posterior.gamma[:, None]
        seen.flat[:: len(seen) + 1] += 1.0  # I - G V
        pushed = self.prior.covariance_times(self.X.dense().T)  # Sigma X'
        cross = pushed @ seen  # Cov(w, f)
        # Var_q(w) = Sigma - Sigma X' (K + G^-1)^-1 X Sigma; (K + G^-1)^-1 X Sigma = G Cov(f, w)
        root = self.prior.root
        prior = root**2 if root.ndim == 1 else np.einsum("ij,ij->i", root, root)
        explained = np.einsum("ij,j,ij->i", pushed, posterior.gamma, cross)
        variances = np.asarray(np.maximum(prior - explained, np.finfo(float).eps * prior))
        return dense_coordinates(covariance, posterior.m, (cross, posterior.mean, variances))

    def shocks(self, posterior: Posterior) -> Shocks | None:
        unseen = float(np.abs(posterior.gamma) @ self.slack)  # at most rounding errors, where points are all inputs
        if self.n_outputs > 1 or unseen > UNSEEN or self.n_weights > MOST_REDUCED or not posterior.spread:
            return None
        return Shocks.of_rows(DenseWeights(posterior.mean, self.posterior_root(posterior)), self.X, posterior)

    def draw(self, rng: np.random.Generator) -> tuple[Array, Array]:
        slack = np.sqrt(self.slack) * rng.standard_normal(self.n_sites)
        noise = rng.standard_normal((self.prior.root.shape[-1], 1))
        w = np.asarray(self.prior.mean + self.prior.root_times(noise)[:, 0])
        return w, self.X.times(w) + slack

    def reported_prior(self) -> tuple[Array, Array, Array | None]:
        root = self.prior.root
        dense = np.diag(root) if root.ndim == 1 else root
        kept = np.flatnonzero(np.abs(dense).sum(axis=0) > 0)
        return self.prior.mean, dense[:, kept], self.X.dense_rows(slice(0, self.n_sites))

    def detach(self, posterior: Posterior) -> WeightPosterior:
        if not posterior.spread:
            return DenseWeights(posterior.mean, np.zeros(self.n_weights))
        if self._K is None:
            return DenseWeights(posterior.mean, self.posterior_root(posterior))
        if self.n_sites * self.n_weights > MOST_DETACHED:
            return AttachedWeights(posterior)

        def made() -> tuple[Array, Array]:
            cross = np.concatenate([block for _, block in self.whitened().blocks()]).T
            return self._dense_factor(posterior).explained_and_returned(cross)

        return WideWeights.later(posterior.mean, self.prior.root, made)

    def _dense_factor(self, posterior: Posterior) -> DenseFactor:
        """Of the dual form: the one of the fit, or a new one."""
        assert self._K is not None
        own = posterior.factor
        return own if isinstance(own, DenseFactor) else kernel_factor(self._K, posterior.gamma)

    def diagonal(self) -> Latent:
        from klimb.latents.meanfield import MeanField

        return MeanField.of(self)

    def whitened(self) -> ScaledRows:
        return ScaledRows(self.X, self.prior.root)

    @classmethod
    def of_parts(cls, parts: LinearParts, kept: dict[str, Any]) -> Weights:
        X, mean, cov = parts.dense()
        if parts.fixed_columns and not parts.n_levels:
            if "design" not in kept:
                kept["design"] = as_design(X, "X")
            X = kept["design"]
            if parts.loose:
                X = kept["single"] = kept.get("single") or kept["design"].single()
        # Gradients in columns that move need covariances of rows with weights, which the dual form does not have, and
        # rows that stand for many are to have the posterior of these.
        auto = parts.fixed_columns and not parts.reduced
        return cls(X, mean, cov, parts.slack, form="auto" if auto else "primal")

    @classmethod
    def costs(cls, shape: Shape) -> Option | None:
        return cheapest((primal(shape), dual(shape)), shape.memory) if shape.linear else None

    def predict(self, posterior: Posterior, X_new: Any, slack: Any = 0.0) -> tuple[Array, Array]:
        """Mean and variance of f at new rows, in bounded memory; ``slack`` is the extra variance there."""
        design, extra = new_design(X_new, slack, self.n_weights)
        if not posterior.spread:
            return self.detach(posterior).at(design)
        with threads_for(self.dense_size):
            m = design.times(self.weight_mean(posterior))
            if self._K is None:
                upper = self.prior.root.ndim == 1
                return m, extra + design.row_norms_squared(self.posterior_root(posterior), upper=upper)[0]
            v, factor = design.row_norms_squared(self.prior.root)[0], self._dense_factor(posterior)
            for rows in row_blocks(len(v), max(self.n_sites, self.n_weights)):
                pushed = self.prior.covariance_times(design.dense_rows(rows).T)  # Sigma_w x_*, one column each
                v[rows] -= factor.explained(self.X.times(pushed).T)
            return m, extra + np.maximum(v, 0.0)


def new_design(X_new: Any, slack: Any, n_weights: int) -> tuple[DesignMatrix, Array]:
    """New rows and their slack, checked against the number of weights."""
    design = as_design(X_new, "X_new")
    if design.shape[1] != n_weights:
        raise InputError(f"X_new must have {n_weights} columns", f"shape {design.shape}", "Use the columns of the fit.")
    return design, variances_at(slack, (design.shape[0],), "slack")
