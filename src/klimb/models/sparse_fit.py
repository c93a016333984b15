"""What `klimb.sparse_glm` and `klimb.sparse_linear` return: a `Fit` of a design that may only multiply."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from klimb._stored import SKIPPED, stored
from klimb.errors import InputError, require
from klimb.infer.result import Result
from klimb.latents.base import Latent, Posterior
from klimb.latents.costs import Shape
from klimb.latents.weights_posterior import AttachedWeights, WeightPosterior
from klimb.likelihoods import Likelihood, Observed, from_site
from klimb.linalg.operators import BlockedOperator, Operator, SparseOperator, as_operator
from klimb.linalg.variances import Variances
from klimb.models.fit import Fit
from klimb.models.model import Functionals, Model
from klimb.models.plan import Plan
from klimb.models.solution import Solution
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_sparse
from klimb.sites.base import Site
from klimb.theta import Theta

PRODUCTS = "double loop"  # the engine that only multiplies
NO_THETA = Theta(())


@stored("model.operator")
@dataclass(frozen=True, eq=False)
class OperatorModel(Model):
    """Weights of a design under a prior that is held; the intercept, if there is one, comes last."""

    n_columns: int
    intercept: bool
    engine: str
    likelihood: Likelihood
    at: Array = field(default_factory=lambda: np.zeros(0))
    accuracy: float = 0.01  # of variances, where they are estimated
    design: Operator | None = field(default=None, metadata={SKIPPED: False}, repr=False)
    prior: Latent | None = field(default=None, metadata={SKIPPED: False}, repr=False)

    theta = NO_THETA

    @property
    def title(self) -> str:
        """The model in one line."""
        columns = f"{self.n_columns:,} column{'s' * (self.n_columns != 1)}"
        return f"Linear model, {columns}{' and an intercept' * self.intercept}"

    @property
    def form(self) -> str:  # type: ignore[override]
        return "Implicit" if self.engine == PRODUCTS else "Weights"

    def _moved(self, at: Array) -> Self:
        return replace(self, at=at)

    @property
    def latent(self) -> Latent:
        if self.prior is None:
            raise InputError("this needs the design of the fit", "a fit from a file", "Fit again.")
        return self.prior

    def prior_gradient(self, posterior: Posterior) -> Array:
        return np.zeros(0)

    def detach(self, posterior: Posterior) -> WeightPosterior:
        return AttachedWeights(posterior, self.accuracy) if self.form == "Implicit" else super().detach(posterior)

    def shape(self) -> Shape:
        n, D = self.latent.n_sites, self.latent.n_weights
        return Shape(n, D, n * D)

    def prepare(self, new: Any) -> Operator:
        """New rows, without the intercept's column; those of the fit where they are left out."""
        if new is None:
            if self.design is None:
                raise InputError("this needs the rows of the fit", "a fit from a file", "Pass the rows.")
            return self.design
        given = as_operator(new, "X_new")
        require(given.shape[1] == self.n_columns, f"X_new must have {self.n_columns} columns", f"shape {given.shape}",
                "Use the columns of the fit, without the intercept's.")
        return with_intercept(given, "X_new", self.intercept)

    def count(self, prepared: Operator) -> int:
        return prepared.shape[0]

    def some(self, prepared: Operator, rows: Any) -> Operator:
        return prepared.take(rows)

    def functionals(self, prepared: Operator) -> Functionals:
        none = np.zeros(prepared.shape[0])
        return Functionals(prepared if self.form == "Implicit" else prepared.explicit, none, none)


@stored("fit.sparse")
@dataclass(frozen=True, eq=False, repr=False)
class SparseFit(Fit):
    """A fitted linear model of many columns: coefficients with their uncertainty, and how they were found.

    ``plan`` says what was considered. Where the engine only multiplies, variances are estimates and the fit cannot be
    saved.

    >>> import klimb
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((80, 3))
    >>> fit = klimb.sparse_glm(X, rng.poisson(np.exp(0.5 + X @ [1.0, 0.0, -1.0])), site=klimb.sites.Poisson())
    >>> print(fit.coef.round(1) + 0.0, fit.coef_sd.round(2), round(fit.intercept, 1))
    [ 1.   0.  -0.9] [0.04 0.07 0.06] 0.6
    >>> new = fit.predict([[0.0, 0.0, 0.0], [2.0, 0.0, 0.0]], kind="response")  # counts at new rows
    >>> print(new["mean"].round(1), new["upper"])
    [ 1.9 13.8] [ 4. 21.]
    """

    plan: Plan | None = field(default=None, metadata={SKIPPED: False})

    @property
    def _design(self) -> OperatorModel:
        assert isinstance(self.model, OperatorModel)
        return self.model

    @property
    def certified(self) -> bool:
        """Whether variances and bound were computed, not estimated from random vectors."""
        return self._design.form == "Weights" or self._result("certified").certified

    @property
    def weights(self) -> Array:
        """Posterior means of the coefficients, the intercept (if any) last."""
        return self.components.parts[0].mean

    @property
    def coef(self) -> Array:
        """Posterior means of the coefficients."""
        return self.weights[: self._design.n_columns]

    @property
    def intercept(self) -> float:
        return float(self.weights[-1]) if self._design.intercept else 0.0

    @cached_property
    def coef_sd(self) -> Array:
        """Posterior standard deviations of the coefficients."""
        return np.sqrt(self.coef_variances().value)

    def coef_variances(self, accuracy: float = 0.01) -> Variances:
        """Posterior variances of the coefficients, with the errors of the estimates."""
        rows = as_operator(identity(self._design.n_columns, self._design.intercept), "the identity")
        if self._design.form == "Implicit":
            latent: Any = self.posterior.latent
            found: Variances = latent.predict_variances(self.posterior, rows, accuracy)
            return found
        v = self.components.parts[0].at(rows.explicit)[1]
        return Variances(v, np.zeros_like(v), v, v, "exact", True, True, True, 0)

    def explain(self) -> str:
        """What the engines would cost, and which one was taken."""
        return str(self.plan) if self.plan is not None else self.model.explain()

    def __repr__(self) -> str:
        kind = "exact" if self.certified else f"+- {self._result('bound').bound_error:.2g}"
        shape = None if self.plan is None else self.plan.shape
        size = "" if shape is None else f"{shape.n_sites:,} sites, {shape.n_weights:,} weights, "
        return f"SparseFit({size}{self._design.engine}, bound={self.bound:.6g} ({kind}), status={self.status.name})"


def sparse_fit(result: Result, plan: Plan, site: Site, design: Operator, intercept: bool,
               y: Array | None = None) -> SparseFit:
    """The fit of a design (the intercept's column included); ``y`` are the data of its rows, where sites have them."""
    D = design.shape[1] - int(intercept)
    model = OperatorModel(D, intercept, plan.choice, from_site(site), design=design, prior=result.posterior.latent)
    data = None if y is None else Observed(y)
    solution = Solution.held(model, result)
    return SparseFit.of(solution, data, plan=plan)  # type: ignore[arg-type]


def identity(n_columns: int, intercept: bool) -> Any:
    """[I 0]: one row for each coefficient but the intercept's."""
    return scipy_sparse.csr_matrix(scipy_sparse.eye(n_columns, n_columns + int(intercept)))


def with_intercept(X: Any, name: str, intercept: bool) -> Operator:
    """X as an operator, with a column of ones at the end if there is an intercept."""
    operator = as_operator(X, name)
    if not intercept:
        return operator
    if isinstance(operator, BlockedOperator):
        return operator.with_ones()
    ones = np.ones((operator.shape[0], 1))
    matrix = operator.explicit
    if matrix is None:
        return WithOnes(operator)
    if isinstance(operator, SparseOperator):
        return SparseOperator(scipy_sparse.hstack([matrix, scipy_sparse.csr_matrix(ones)], format="csr"))
    return as_operator(np.hstack([np.asarray(matrix), ones]), name)


class WithOnes(Operator):
    """[X 1] for an X that is not stored."""

    def __init__(self, inner: Operator) -> None:
        self._inner = inner
        self.shape = (inner.shape[0], inner.shape[1] + 1)

    def _times(self, U: Array) -> Array:
        return np.asarray(self._inner.times(np.ascontiguousarray(U[:-1])) + U[-1])

    def _transpose_times(self, W: Array) -> Array:
        return np.concatenate([self._inner.transpose_times(W), W.sum(axis=0, keepdims=True)])

    def gram_diagonal(self, gamma: Array) -> Array | None:
        known = self._inner.gram_diagonal(gamma)
        return None if known is None else np.append(known, gamma.sum())

    def row_norms_squared(self, scale: Array) -> Array | None:
        known = self._inner.row_norms_squared(scale[:-1])
        return None if known is None else known + scale[-1]
