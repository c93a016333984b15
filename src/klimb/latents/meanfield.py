"""Mean-field: q has a diagonal covariance over the weights."""

from functools import cached_property
from typing import Any

import numpy as np

from klimb.errors import InputError, NotPositiveDefiniteError
from klimb.latents.base import Factor, Latent, Posterior, asked
from klimb.latents.coordinates import Coordinates, MatrixCoordinates
from klimb.latents.implicit import Implicit
from klimb.latents.weights import Form, Weights, new_design
from klimb.latents.weights_posterior import DenseWeights
from klimb.linalg.matrix import DenseDesign, DesignMatrix
from klimb.numerics.arrays import Array, Index


class MeanFieldFactor(Factor):
    """V_w = diag(1 / (Lambda_jj + sum_i gamma_i x_ij^2)), Lambda = Sigma_w^-1.

    The mean moves with the ``full`` precision: its optimum is the same for any V_w, and diagonal steps are slow.
    """

    def __init__(self, full: Factor, squares: DesignMatrix, precision: Array, prior_logdet: float) -> None:
        self.gamma = full.gamma
        self._full = full
        self._squares = squares
        diagonal = precision + squares.transpose_times(self.gamma)
        if not (diagonal > 0).all():
            raise NotPositiveDefiniteError("a mean-field precision is not positive")
        self.weight_variances = 1.0 / diagonal
        self.logdet = prior_logdet + float(np.log(diagonal).sum())

    def variances(self) -> Array:
        return self._squares.times(self.weight_variances)

    smooth = asked("_full", "smooth")
    energy = asked("_full", "energy")


class MeanField(Latent):
    """`Weights` with a diagonal q: the same arguments, another family.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> X, y = np.array([[1.0, 1.0], [1.0, -0.5], [1.0, 2.0]]), np.array([1, 0, 1])
    >>> full = klimb.infer(klimb.latents.Weights(X), klimb.sites.Logistic(), y)
    >>> diagonal = klimb.infer(klimb.latents.MeanField(X), klimb.sites.Logistic(), y)
    >>> bool(diagonal.bound < full.bound)
    True
    """

    reports = "weight"

    def __init__(self, X: Any, mean: Any = 0.0, cov: Any = 1.0, slack: Any = 0.0, *, form: Form = "auto") -> None:
        self._build(Weights(X, mean, cov, slack, form=form))

    @classmethod
    def of(cls, full: Weights) -> "MeanField":
        """The mean-field version of an existing `Weights`."""
        latent = cls.__new__(cls)
        latent._build(full)
        return latent

    def _build(self, full: Weights) -> None:
        self.full = full
        self.n_sites, self.n_weights, self.n_outputs = full.n_sites, full.n_weights, full.n_outputs
        self.mean, self.slack, self.dense_size = full.mean, full.slack, full.dense_size
        root = full.prior.root
        if root.ndim == 1:
            # A weight without prior variance has no posterior variance either: it leaves q altogether.
            self._free = np.flatnonzero(root > 0)
            self._precision = root[self._free] ** -2.0
            self._prior_logdet = float(2 * np.log(root[self._free]).sum())
        elif root.shape[1] < self.n_weights:
            raise InputError("a mean-field q needs a prior covariance of full rank",
                             f"rank {root.shape[1]} for {self.n_weights} weights",
                             "Use Weights, or give the variances as a vector.")
        else:
            inverse = np.linalg.inv(root)  # root is the Cholesky factor here
            self._free = np.arange(self.n_weights)
            self._precision = np.einsum("ij,ij->j", inverse, inverse)
            self._prior_logdet = 2 * float(np.linalg.slogdet(root)[1])
        self._squares = DenseDesign(full.X.dense()[:, self._free] ** 2)

    @cached_property
    def prior_variances(self) -> Array:
        return self.full.prior_variances

    mvm = asked("full", "mvm")
    cancelled = asked("full", "cancelled")
    design = asked("full", "design")
    reported_prior = asked("full", "reported_prior")
    weight_mean = asked("full", "weight_mean")
    draw = asked("full", "draw")

    def factor(self, gamma: Array) -> MeanFieldFactor:
        return MeanFieldFactor(self.full.factor(gamma), self._squares, self._precision, self._prior_logdet)

    def thin(self, rows: Index) -> "MeanField | None":
        full = self.full.thin(rows)
        return None if full is None else MeanField.of(full)

    def marginals(self, posterior: Posterior) -> tuple[Array, Array]:
        assert isinstance(posterior.latent, MeanField)
        return posterior.latent.predict(posterior, self.full.X, self.slack)

    def weight_variances(self, posterior: Posterior) -> Array:
        """Posterior variances of the weights."""
        v = np.zeros(self.n_weights)
        if posterior.spread:
            v[self._free] = 1.0 / (self._precision + self._squares.transpose_times(posterior.gamma))
        return v

    def weight_covariance(self, posterior: Posterior) -> Array:
        return np.diag(self.weight_variances(posterior))

    def coordinates(self, posterior: Posterior) -> Coordinates:
        full, sd = self.full, np.sqrt(self.weight_variances(posterior))
        return MatrixCoordinates(full.X, np.diag(sd)[:, sd > 0], "weight", posterior.mean, sd, diagonal=full.prior.root)

    def detach(self, posterior: Posterior) -> DenseWeights:
        return DenseWeights(posterior.mean, np.sqrt(self.weight_variances(posterior)))

    def diagonal(self) -> Latent:
        return self

    def implicit(self) -> Implicit:
        raise InputError("the double loop fits a full covariance", "MeanField", "Leave the step out, or use Weights.")

    def predict(self, posterior: Posterior, X_new: Any, slack: Any = 0.0) -> tuple[Array, Array]:
        """Mean and variance of f at new rows; ``slack`` is the extra variance there."""
        design, extra = new_design(X_new, slack, self.n_weights)
        return self.detach(posterior).at(design, extra * posterior.spread)
