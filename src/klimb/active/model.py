"""The model that an active learner fits: weights with a Gaussian or a Laplace prior, one site per labelled row."""

from typing import Any, NamedTuple

import numpy as np

from klimb.active.belief import Belief, CrossProducts, DualBelief, PriorBelief, belief_of, krylov_belief
from klimb.active.pool import check_count, labelled_rows, take_rows
from klimb.errors import InputError, require
from klimb.infer.loop import infer
from klimb.infer.result import Result
from klimb.infer.start import start_at
from klimb.latents import Posterior, Weights
from klimb.latents.linear import WeightPrior
from klimb.linalg.matrix import DesignMatrix, PairedDesign, as_design
from klimb.numerics.arrays import Array, Index
from klimb.numerics.lazy import scipy_sparse
from klimb.sites import Laplace, Site, Stack, SuperGaussian

PRIORS = ("gaussian", "laplace")
TAPER = 1e3  # of the Gaussian that makes a Laplace prior proper for the engine, in units of its sd
MOST_COLUMNS = 4000  # of a Laplace prior whose posterior is a dense matrix over the columns
MOST_WEIGHINGS = 100  # outer iterations of a wider one
INTERCEPT_COV = 25.0


class PoolModel(NamedTuple):
    """s = x'w with w ~ N(0, cov) or w_j ~ Laplace(scale), the intercept (the last column, if any) ~ N(0, 25)."""
    site: Site
    kind: str
    prior: WeightPrior
    scale: float
    intercept: bool
    tol: float
    n_lanczos: int | None = None  # None: variances are exact

    @property
    def wide(self) -> bool:
        """Whether a Laplace prior has too many columns for a matrix over them."""
        return self.kind == "laplace" and self.prior.n_weights > MOST_COLUMNS

    def fit(self, pool: DesignMatrix, rows: Index, y: Array, start: Array | None = None) -> Result:
        """The posterior of the labelled ``rows``; ``start`` holds slope and precision of a site per row."""
        if self.wide:
            return self._fit_wide(pool, rows, y, start)
        X, site = labelled_rows(pool, rows) if self.kind == "gaussian" else take_rows(pool, rows), self.site.rows(rows)
        if self.kind == "laplace":
            X, site, y = self._with_sparsity(X, site, y)
        primal = self.kind == "laplace" or isinstance(pool, PairedDesign)  # whose variances cost next to nothing
        if self.kind == "gaussian":
            cov = self.prior.covariance() if self.prior.root.ndim == 2 else self.prior.root**2
        else:
            cov = np.full(self.prior.n_weights, (TAPER * self.scale) ** 2)
            cov[cov.size - self.intercept :] = INTERCEPT_COV
        latent = Weights(X, 0.0, cov, form="primal" if primal else "auto")
        first = None if start is None else self._start(latent, start, len(y))
        return infer(latent, site, y, tol=self.tol, start=first)

    def _fit_wide(self, pool: DesignMatrix, rows: Index, y: Array, start: Array | None) -> Result:
        """The local bound of a Laplace prior is a Gaussian of precision 1 / (scale sqrt(E w^2)): [N]'s outer loop."""
        X, D = labelled_rows(pool, rows), self.prior.n_weights - self.intercept
        some = take_rows(pool, rows)
        seen = np.flatnonzero(some.getnnz(axis=0)[:D]) if hasattr(some, "getnnz") else np.arange(D)
        weights = as_design(scipy_sparse.eye(self.prior.n_weights, format="csr")[seen], "the weights")
        precision = np.full(D, self.scale**-2.0) if start is None else start[1][-D:].copy()
        first = None if start is None else start[:, :-D]
        for _ in range(MOST_WEIGHINGS):
            latent = Weights(X, 0.0, np.append(1.0 / precision, [INTERCEPT_COV] * self.intercept), form="dual")
            result = infer(latent, self.site.rows(rows), y, tol=self.tol,
                           start=None if first is None else self._start(latent, first, len(y)))
            q = result.posterior
            first = np.stack([q.a + q.gamma * q.m, q.gamma])
            wanted = 1.0 / (self.scale * np.sqrt(q.mean[seen] ** 2 + DualBelief(latent, q).variances(weights)))
            if np.abs(np.log(wanted / precision[seen])).max(initial=0.0) <= np.sqrt(self.tol):
                break
            precision[seen] = wanted
        return result

    def prior_sites(self, posterior: Posterior, n: int) -> Array:
        """Slope and precision of the sites of a Laplace prior, one per weight, behind those of ``n`` labels."""
        if not self.wide:
            return np.stack([posterior.a + posterior.gamma * posterior.m, posterior.gamma])[:, n:]
        latent: Any = posterior.latent  # the Weights of `_fit_wide`
        precision = latent.prior.root[: self.prior.n_weights - self.intercept] ** -2.0
        return np.stack([np.zeros_like(precision), precision])

    def _with_sparsity(self, X: Any, site: Site, y: Array) -> tuple[Any, Site, Array]:
        """One more row and one more site per weight: [N] section 3, I appended to B. The intercept has none."""
        D = self.prior.n_weights - self.intercept
        sparsity: Site = Laplace(self.scale)
        if isinstance(site, SuperGaussian):
            sparsity = SuperGaussian(sparsity)
        identity = np.eye(D, self.prior.n_weights)
        below: Any = np.concatenate([X, identity]) if not hasattr(X, "tocsr") else scipy_sparse.vstack(
            [X, scipy_sparse.csr_matrix(identity)], format="csr")
        return below, Stack([(site, len(y)), (sparsity, D)]), np.concatenate([y, np.zeros(D)])

    def _start(self, latent: Weights, start: Array, n: int) -> Posterior:
        """The sites of an earlier fit, and hardly any for the rows that are new."""
        slope, gamma = np.hstack([start, np.full((2, n - start.shape[1]), [[0.0], [1e-8]])])
        return start_at(latent, slope, gamma)

    def belief(self, result: Result | None, kept: CrossProducts, rows: Index) -> Belief:
        """What is known of the weights; before the first label, the prior."""
        if result is None:
            return PriorBelief(self.prior)
        if self.n_lanczos is not None:
            return krylov_belief(result.posterior, rows, self.n_lanczos)
        return belief_of(result.posterior, None if self.wide else kept, rows)  # whose prior moves from fit to fit


def linear_model(site: Any, n_columns: int, *, prior: str, cov: Any, scale: float, intercept: bool, tol: Any,
                 n_lanczos: int | None) -> PoolModel:
    """A checked model over ``n_columns`` columns, the intercept's not counted."""
    require(isinstance(site, Site) and site.separable, "site must be a klimb site with one latent value per datum",
            repr(site), "Use klimb.sites.Logistic(), say; several classes can be learnt one against the rest.")
    require(prior in PRIORS, 'prior must be "gaussian" or "laplace"', repr(prior), "Leave it out for a Gaussian prior.")
    if not (np.ndim(scale) == 0 and np.isfinite(scale) and scale > 0):
        raise InputError("scale must be a positive number", f"{scale!r}", "It is the scale of the Laplace prior.")
    if not (isinstance(tol, int | float | np.number) and 0.0 < tol < 1.0):  # False for NaN
        raise InputError("tol must be a number between 0 and 1", repr(tol), "Leave it out for 1e-6.")
    if n_lanczos is not None:
        check_count(n_lanczos, "n_lanczos", 1, "Leave it out for exact variances.")
    given = np.asarray(2.0 * scale**2 if prior == "laplace" else cov, dtype=float)
    if intercept:
        if given.ndim == 2:
            whole = np.zeros((n_columns + 1, n_columns + 1))
            whole[:-1, :-1] = WeightPrior(0.0, given, n_columns).covariance()
            whole[-1, -1] = INTERCEPT_COV
            given = whole
        else:
            given = np.append(WeightPrior(0.0, given, n_columns).root ** 2, INTERCEPT_COV)
    whole_prior = WeightPrior(0.0, given, n_columns + intercept)
    return PoolModel(site, prior, whole_prior, float(scale), intercept, float(tol), n_lanczos)
