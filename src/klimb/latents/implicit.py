"""Linear models too large to factorise: everything by products with the design, and by estimates with error bars.

    u ~ N(mean, diag(cov)) or flat      y | u ~ N(X u, noise^2) (optional)      sites see s = B u

The Gaussian factors together have the precision P = diag(1 / cov) + X' diag(noise^-2) X, which may be singular (a flat
prior, partial Fourier data). The posterior precision is A = P + B' diag(gamma) B. Where P is regular this is the model
of `Weights` with K = B P^-1 B'; where it is not, (a, gamma) cannot describe a Gaussian q on the way to the optimum,
and only the double loop (`klimb.steps.DoubleLoop`), whose state is (u, gamma), fits it.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from klimb.errors import InputError, require
from klimb.latents.base import Factor, Latent, Posterior, Product, mean_at
from klimb.latents.coordinates import LARGEST_DENSE, Coordinates, weight_coordinates
from klimb.latents.costs import Option, Shape, double_loop
from klimb.latents.linear import LinearParts
from klimb.latents.weights_posterior import DenseWeights
from klimb.linalg.krylov import Preconditioner, simplest_preconditioner, solve
from klimb.linalg.matrix import as_design
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators import Operator, SparseOperator, StackedOperator, as_operator, as_real_pairs
from klimb.linalg.variances import LogDet, Variances, estimate, log_det
from klimb.numerics.arrays import Array, Index, as_float
from klimb.numerics.dense import cholesky, symmetric_from_lower, triangular_inverse, triangular_solve
from klimb.numerics.lazy import lapack, scipy_sparse

LOG_TWO_PI = float(np.log(2.0 * np.pi))
TOLERANCE = 1e-10  # of the systems behind means, draws and predictions
DENSE = 2000  # weights up to which the covariance itself costs less than solving for many vectors
COVARIANCE_BYTES = 2**31  # a dense D x D matrix beyond this is refused unless the limit is raised


@dataclass(frozen=True, eq=False)
class GaussianPart:
    """The Gaussian factors log N(y; X u, noise^2) + log N(u; mean, cov), either of which may be absent."""

    prior_mean: Array
    prior_precision: Array  # zeros for a flat prior
    X: Operator | None
    y: Array
    weights: Array  # noise^-2, one per row of X

    @property
    def proper(self) -> bool:
        """Whether the prior alone makes the precision positive definite."""
        return bool(self.prior_precision.min() > 0.0)

    @cached_property
    def pull(self) -> Array:
        """P mu: the linear term of the Gaussian factors."""
        pull = self.prior_precision * self.prior_mean
        return pull if self.X is None else pull + self.X.transpose_times(self.weights * self.y)

    @cached_property
    def log_constant(self) -> float:
        """What the log density of the Gaussian factors has beside its quadratic forms."""
        logs = np.log(self.prior_precision[self.prior_precision > 0.0])
        return 0.5 * float((logs - LOG_TWO_PI).sum() + (np.log(self.weights) - LOG_TWO_PI).sum())

    def fitted(self, u: Array) -> Array:
        """X u."""
        return np.zeros(0) if self.X is None else self.X.times(u)

    def log_density(self, u: Array, fitted: Array) -> float:
        """At weights ``u`` with ``fitted`` = X u at hand."""
        away, residual = u - self.prior_mean, self.y - fitted
        return self.log_constant - 0.5 * float(self.prior_precision @ away**2 + self.weights @ residual**2)

    def gradient(self, u: Array, fitted: Array) -> Array:
        gradient = self.prior_precision * (self.prior_mean - u)
        if self.X is not None:
            gradient += self.X.transpose_times(self.weights * (self.y - fitted))
        return gradient


class ImplicitFactor(Factor):
    """A(gamma), known by its products; variances and the log determinant are computed when first asked for."""

    def __init__(self, latent: "Implicit", gamma: Array, *, variances: Variances | None = None,
                 log_det: LogDet | None = None, weights: Array | None = None) -> None:
        self.gamma, self.latent = gamma, latent
        self.matrix = latent.precision(gamma)
        self.estimated, self.log_det = variances, log_det
        self.weights = weights  # the posterior mean, where a fit has left it here
        self._preconditioner: Preconditioner | None = None

    @cached_property
    def logdet(self) -> float:  # type: ignore[override]
        """log det(I + K diag(gamma)) = log det A - log det P; without the second term where P is singular."""
        if self.log_det is None:
            self.log_det = log_det(self.matrix)
        return self.log_det.value - (self.latent.prior_log_det if self.latent.gaussian.proper else 0.0)

    def variances(self) -> Array:
        if self.estimated is None:
            self.estimated = estimate(self.matrix, self.latent.B)
        return self.estimated.value

    @property
    def exact(self) -> bool:
        return all(part is None or part.exact for part in (self.estimated, self.log_det))

    def variance_error(self) -> Array:
        self.variances()
        assert self.estimated is not None
        return self.estimated.error

    def smooth(self, b: Array) -> Array:
        return self.latent.B.times(self.solve_weights(self.latent.B.transpose_times(b)))

    def solve_weights(self, rhs: Array, tol: float = TOLERANCE) -> Array:
        """A^-1 rhs, one vector or the columns of a matrix."""
        if self._preconditioner is None:
            self._preconditioner = simplest_preconditioner(self.matrix)
        return solve(self.matrix, rhs, preconditioner=self._preconditioner, tol=tol).x


class Implicit(Latent):
    """s = B u for matrices that can only be multiplied with; u has a Gaussian prior, Gaussian data, both or neither.

    Parameters
    ----------
    B : array, scipy.sparse matrix, LinearOperator, or a list of these (a stack)
        The map from weights to sites. A sparsity prior is an identity (or any analysis operator) below the design,
        and sites to match: ``klimb.sites.Stack([(Logistic(), N), (Laplace(0.1), D)])``.
    X, y, noise : operator, array, number or array
        Gaussian data y = X u + noise: the standard deviation is ``noise``. Complex ones become pairs of real ones.
    mean, cov : number or (D,) array
        Gaussian prior of the weights; ``cov=None`` is a flat prior, an infinite variance a flat one of that weight.

    Notes
    -----
    ``klimb.infer`` fits it by `klimb.steps.DoubleLoop`. Variances are exact where a factorisation is cheap, and
    estimates with error bars elsewhere (``result.estimates``).

    Examples
    --------
    >>> import numpy as np, klimb
    >>> B = np.array([[1.0, 0.5], [1.0, -1.0], [1.0, 2.0], [1.0, 0.0]])
    >>> result = klimb.infer(klimb.latents.Implicit(B, cov=4.0), klimb.sites.Logistic(), [1, 0, 1, 0])
    >>> result.posterior.mean.round(2)
    array([-0.4,  2.2])
    """

    by_products = True
    reports = "weight"

    def __init__(self, B: Any, *, X: Any = None, y: Any = None, noise: Any = 1.0, mean: Any = 0.0,
                 cov: Any = 1.0) -> None:
        self.B = _stack(B, "B")
        self.n_sites, self.n_weights = self.B.shape
        D = self.n_weights
        precision = np.zeros(D) if cov is None else _prior_precision(cov, D)
        data, values, weights = _gaussian_data(X, y, noise, D)
        self.gaussian = GaussianPart(np.array(mean_at(mean, (D,), "mean")), precision, data, values, weights)
        self.slack = np.zeros(self.n_sites)
        self.dense_size = min(self.n_sites, D)

    @property
    def n_products(self) -> int:
        """Products so far of a single vector with an operator of the model or its transpose; diagonal ones are free."""
        operators = [*self.B.leaves, *([] if self.gaussian.X is None else self.gaussian.X.leaves)]
        return sum(part.n_products for part in operators if not _diagonal(part))

    def precision(self, gamma: Array) -> NormalMatrix:
        """A(gamma) = diag(1 / cov) + X' diag(noise^-2) X + B' diag(gamma) B.

        Rows of B that see one weight each (an identity, for a sparsity prior) belong to the diagonal.
        """
        shift, parts = self.gaussian.prior_precision, []
        for part, weights in zip(self.B.leaves, np.split(gamma, self._edges), strict=True):
            if not _diagonal(part):
                parts.append((part, weights))
            else:
                shift = shift + np.asarray(part.gram_diagonal(weights))
        return NormalMatrix(shift, [*parts, *self._data_part()])

    @cached_property
    def _edges(self) -> Index:
        return np.cumsum([part.shape[0] for part in self.B.leaves])[:-1]

    def _data_part(self) -> list[tuple[Operator, Array]]:
        X = self.gaussian.X
        return [] if X is None else [(X, self.gaussian.weights)]

    # -- the contract of a latent, where the Gaussian factors have a covariance

    @cached_property
    def _prior(self) -> ImplicitFactor:
        """The Gaussian factors alone: gamma = 0."""
        self._refuse_flat()
        return ImplicitFactor(self, np.zeros(self.n_sites))

    def _refuse_flat(self) -> None:
        if not self.gaussian.proper:
            raise InputError("this step needs weights with a proper Gaussian prior", "a flat one (no or infinite cov)",
                             "Use klimb.steps.DoubleLoop() (what klimb.infer does by default), or give cov a value.")

    @cached_property
    def prior_weights(self) -> Array:
        """The mean of the Gaussian factors, P^-1 (mean / cov + X'y / noise^2)."""
        prior = self._prior
        return self.gaussian.prior_mean if self.gaussian.X is None else prior.solve_weights(self.gaussian.pull)

    @cached_property
    def mean(self) -> Array:  # type: ignore[override]
        return self.B.times(self.prior_weights)

    @cached_property
    def prior_variances(self) -> Array:
        self._refuse_flat()
        if self.gaussian.X is None:
            norms = self.B.row_norms_squared(1.0 / self.gaussian.prior_precision)
            if norms is not None:
                return norms
        return self._prior.variances()

    @cached_property
    def prior_log_det(self) -> float:
        """log det P."""
        if self.gaussian.X is None:
            return float(np.log(self.gaussian.prior_precision).sum())
        return log_det(NormalMatrix(self.gaussian.prior_precision, self._data_part())).value

    @cached_property
    def log_evidence(self) -> float:  # type: ignore[override]
        """The log of the integral of the Gaussian factors: log p(y) of the Gaussian data, 0 without them."""
        if self.gaussian.X is None:
            return 0.0
        u = self.prior_weights
        peak = self.gaussian.log_density(u, self.gaussian.fitted(u))
        return peak + 0.5 * (self.n_weights * LOG_TWO_PI - self.prior_log_det)

    def mvm(self, a: Array) -> Array:
        return self._prior.smooth(a)

    def factor(self, gamma: Array) -> ImplicitFactor:
        self._refuse_flat()
        return ImplicitFactor(self, gamma)

    def design(self) -> Array:
        """B P^-1/2, dense."""
        self._fits(8 * self.n_weights * (self.n_weights + self.n_sites), "the dense design")
        lower = cholesky(self._prior.matrix.dense())
        return np.ascontiguousarray(triangular_solve(lower, self.B.dense().T).T)

    # -- the weights

    def factor_of(self, posterior: Posterior) -> ImplicitFactor:
        """The precision at the posterior's gamma."""
        found = posterior.factor
        return found if isinstance(found, ImplicitFactor) else ImplicitFactor(self, posterior.gamma)

    def weight_mean(self, posterior: Posterior) -> Array:
        """A^-1 (P mu + B'(a + gamma m)), or what the fit left."""
        factor = self.factor_of(posterior)
        if factor.weights is None:
            pull = self.gaussian.pull + self.B.transpose_times(posterior.a + posterior.gamma * posterior.m)
            factor.weights = factor.solve_weights(pull)
        return factor.weights

    def weight_covariance(self, posterior: Posterior) -> Array:
        D = self.n_weights
        if not posterior.spread:
            return np.zeros((D, D))
        self._fits(16 * D * D, "the dense posterior covariance")
        inverse, _ = lapack.dpotri(cholesky(self.factor_of(posterior).matrix.dense()), lower=1)
        return symmetric_from_lower(inverse)

    def covariance_products(self, posterior: Posterior) -> Product:
        """By V itself up to `DENSE` weights; solving for every vector beyond."""
        if self.n_weights <= DENSE or not posterior.spread:
            return super().covariance_products(posterior)
        return self.factor_of(posterior).solve_weights

    def weight_variances(self, posterior: Posterior, accuracy: float = 0.01) -> Variances:
        """diag(A^-1), the posterior variances of the weights, with the error of the estimate."""
        every = SparseOperator(scipy_sparse.identity(self.n_weights, format="csr"))
        return self._variances_at(posterior, every, accuracy)

    def weight_sample(self, posterior: Posterior, n: int, rng: np.random.Generator) -> Array:
        """Perturb and solve: A^-1 p with p ~ N(0, A) has covariance A^-1, exactly."""
        factor = self.factor_of(posterior)
        return posterior.mean + factor.solve_weights(factor.matrix.perturbation(n, rng)).T

    def coordinates(self, posterior: Posterior) -> Coordinates:
        """By the dense root of a posterior covariance that the fit had no need of."""
        root, matrix = self._weight_root(posterior), self.B.explicit
        design = as_design(self.B.dense() if matrix is None else matrix, "B")
        return weight_coordinates(design, root, posterior.mean)

    def _weight_root(self, posterior: Posterior) -> Array:
        if self.n_weights > LARGEST_DENSE:
            raise InputError(f"a dense root of the covariance, as trust needs, has up to {LARGEST_DENSE} weights",
                             f"{self.n_weights}", "Look at result.variance_error and result.bound_error, use "
                             "latent.predict(posterior, X_new), or take fewer columns.")
        lower = cholesky(self.factor_of(posterior).matrix.dense())
        return np.ascontiguousarray(triangular_inverse(lower).T)  # A = L L', so that L^-T is a root of A^-1

    def detach(self, posterior: Posterior) -> DenseWeights:
        root = self._weight_root(posterior) if posterior.spread else np.zeros(self.n_weights)
        return DenseWeights(posterior.mean, root)

    def draw(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Weights from the Gaussian factors (Gaussian data of the latent's own are held), and s = B u."""
        prior = self._prior
        w = self.prior_weights + prior.solve_weights(prior.matrix.perturbation(1, rng))[:, 0]
        return w, self.B.times(w)

    @classmethod
    def of_parts(cls, parts: LinearParts, kept: dict[str, Any]) -> Self:
        return cls(parts.X, mean=parts.mean, cov=parts.cov)

    def implicit(self) -> Self:
        return self

    @classmethod
    def costs(cls, shape: Shape) -> Option | None:
        return double_loop(shape) if shape.linear and shape.n_outputs == 1 else None

    def predict(self, posterior: Posterior, X_new: Any, accuracy: float = 0.01) -> tuple[Array, Array]:
        """Mean and variance of s at new rows; `predict_variances` has the error of the variances too."""
        design = self._new_rows(X_new)
        return (design.times(self.weight_mean(posterior)), self.predict_variances(posterior, design, accuracy).value)

    def predict_variances(self, posterior: Posterior, X_new: Any, accuracy: float = 0.01) -> Variances:
        """Variances of s at new rows, with their standard errors or bounds."""
        return self._variances_at(posterior, self._new_rows(X_new), accuracy)

    def _variances_at(self, posterior: Posterior, rows: Operator, accuracy: float) -> Variances:
        if not posterior.spread:  # a point
            return Variances.known(np.zeros(rows.shape[0]))
        return estimate(self.factor_of(posterior).matrix, rows, accuracy=accuracy)

    def _new_rows(self, X_new: Any) -> Operator:
        design = as_operator(X_new, "X_new")
        require(design.shape[1] == self.n_weights, f"X_new must have {self.n_weights} columns", f"shape {design.shape}",
                "Use the columns of the fit.")
        return design

    def _fits(self, size: int, what: str) -> None:
        require(size <= COVARIANCE_BYTES, f"{what} must fit into {COVARIANCE_BYTES / 2**30:.1f} GiB",
                f"{size:,} bytes for {self.n_weights:,} weights",
                "Ask for latent.weight_variances(posterior), posterior.sample(n) or latent.predict(posterior, X_new).")


def _stack(B: Any, name: str) -> Operator:
    """B as an operator; a list stays apart where a part has rows that see one weight each."""
    if not isinstance(B, (list, tuple)) or not any(hasattr(part, "shape") and np.ndim(part) != 1 for part in B):
        return as_operator(B, name)
    parts = [as_operator(part, f"{name}[{k}]") for k, part in enumerate(B)]
    if len(parts) == 1 or len({part.shape[1] for part in parts}) > 1:
        return as_operator(B, name)
    return StackedOperator(parts) if any(_diagonal(part) for part in parts) else as_operator(B, name)


def _diagonal(operator: Operator) -> bool:
    """Whether each row is known to have one nonzero at most, so that B' diag(gamma) B is diagonal."""
    if not isinstance(operator, SparseOperator) or operator.matrix.nnz > operator.shape[0]:
        return False
    return int(np.diff(operator.matrix.indptr).max()) <= 1


def _prior_precision(cov: Any, n_weights: int) -> Array:
    """1 / cov; zero where a variance is infinite."""
    values = np.asarray(cov, dtype=np.float64) if np.ndim(cov) <= 1 else as_float(cov, "cov", ndim=1)
    flat = np.isposinf(values)
    precision = 1.0 / _positive(np.where(flat, 1.0, values), (n_weights,), "cov", "Drop the columns of known weights.")
    return np.where(np.broadcast_to(flat, (n_weights,)), 0.0, precision)


def _positive(value: Any, shape: tuple[int, ...], name: str, advice: str) -> Array:
    array = np.array(mean_at(value, shape, name))
    if array.size and array.min() <= 0.0:
        i = int(array.argmin())
        raise InputError(f"{name} must be positive", f"{array[i]:.6g} at index {i}", advice)
    return array


def _gaussian_data(X: Any, y: Any, noise: Any, n_weights: int) -> tuple[Operator | None, Array, Array]:
    """The operator, the data and the precision of each datum; complex data become pairs of real ones."""
    if X is None:
        require(y is None, "Gaussian data y need the operator X that they were measured by", "y without X",
                "Pass both. The data of the sites are the y of klimb.infer.")
        return None, np.zeros(0), np.zeros(0)
    operator = as_operator(X, "X")
    M = operator.shape[0]
    require(operator.shape[1] == n_weights, f"X must have {n_weights} columns, as B has", f"shape {operator.shape}",
            "X and B multiply the same weights.")
    require(y is not None, "X needs the Gaussian data y that it measured", "X without y", "Pass both.")
    given = np.asarray(y)
    values = as_float(as_real_pairs(given) if np.iscomplexobj(given) else given, "y", ndim=1)
    require(len(values) == M, f"y must have one entry per row of X ({M}; complex rows count twice)", len(values),
            "Check that X and y match.")
    deviation = _positive(noise, (M,), "noise", "It is the standard deviation of the Gaussian data.")
    return operator, values, deviation**-2.0
