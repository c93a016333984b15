"""A process with one latent value per datum: kernel, mean function, site and inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, final

import numpy as np

from klimb.errors import InputError
from klimb.infer.hyper import Hypermodel
from klimb.kernels import Kernel as Covariance
from klimb.kernels.means import Mean
from klimb.latents.base import Posterior, draws_from
from klimb.latents.inducing import Inducing
from klimb.latents.kernel import Kernel
from klimb.numerics.arrays import Array, ArrayLike, as_float
from klimb.numerics.dense import psd_square_root, row_blocks
from klimb.rows.kernel_rows import inducing_latent
from klimb.sites.base import Site
from klimb.sites.prediction import Prediction, draw_response

DIFFERENCE = 1e-5  # in the log of a site's parameter, for the derivative of the expected log likelihood
SITE_BOUNDS = (1e-6, 1e6)  # of a site's parameters when they are learnt
SAMPLE_JITTER = 1e-10  # of the largest prior variance, on the diagonal of the covariance of joint draws


@final
@dataclass(frozen=True, eq=False)
class GaussianProcess(Hypermodel):
    """A kernel, a mean function, a site and the inputs; made by `gp`.

    ``theta`` holds the logs of the kernel's free parameters, then the logs of the site's parameters named in ``learn``,
    then the free values of the mean function.

    >>> import numpy as np, klimb
    >>> x = np.linspace(0.0, 6.0, 30)
    >>> model = klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Gaussian(0.1))
    >>> mean, variance = model.predict(model.fit(np.sin(x)).posterior, [1.0, 20.0])  # near the data, and far from them
    >>> print(mean.round(2), variance.round(2), model.names)
    [0.84 0.  ] [0. 1.] ('log variance', 'log lengthscale')
    """

    kernel: Covariance
    X: Array
    likelihood: Site
    mean: Mean
    Z: Array | None
    learn: tuple[str, ...]
    jitter: float

    def __repr__(self) -> str:
        rows, columns = self.X.shape
        points = "" if self.Z is None else f", {len(self.Z)} inducing points"
        return f"GaussianProcess({self.kernel!r}, {self.likelihood!r}, {rows} x {columns} inputs{points})"

    @property
    def names(self) -> tuple[str, ...]:
        kernel = (f"log {name}" for name in self.kernel.free)
        site = (f"log site.{name}" for name in self.learn)
        return (*kernel, *site, *(f"mean.{name}" for name in self.mean.free))

    @property
    def theta(self) -> Array:
        site = np.log([getattr(self.likelihood, name) for name in self.learn])
        return np.concatenate([self.kernel.log_parameters, site, self.mean.values])

    @property
    def bounds(self) -> tuple[Array, Array]:
        site = np.tile(np.log(SITE_BOUNDS), (len(self.learn), 1))
        both = np.vstack([self.kernel.log_bounds, site, self.mean.bounds])
        return both[:, 0], both[:, 1]

    def with_theta(self, theta: ArrayLike) -> Self:
        values = as_float(theta, "theta", ndim=1)
        k, s = len(self.kernel.free), len(self.learn)
        if len(values) != len(self.names):
            raise InputError(f"theta must have {len(self.names)} entries ({', '.join(self.names)})", f"{len(values)}",
                             "The order is that of names.")
        site: Any = self.likelihood
        changed = {name: float(np.exp(value)) for name, value in zip(self.learn, values[k : k + s], strict=True)}
        return replace(self, kernel=self.kernel.with_log_parameters(values[:k]),
                       likelihood=replace(site, **changed) if changed else site,
                       mean=self.mean.with_values(values[k + s :]))

    @property
    def site(self) -> Site:
        return self.likelihood

    @cached_property
    def latent(self) -> Kernel | Inducing:
        if self.Z is None:
            K = self.kernel.gram(self.X)
            K.flat[:: len(K) + 1] += self.jitter * K.diagonal().mean()
            return Kernel(K, self.mean(self.X), check=False)
        return inducing_latent(self.kernel, self.X, self.Z, mean=self.mean, jitter=self.jitter)

    def gradient(self, posterior: Posterior, y: Any) -> Array:
        kernel, _ = self.kernel_gradient([posterior])
        return self.gradient_with_rest(kernel, posterior, y)

    def kernel_gradient(self, posteriors: Sequence[Posterior], *, points: bool = False) -> tuple[Array, Array | None]:
        """d bound / d(kernel parameters), and if asked for dZ, summed over posteriors that share this prior."""
        latent = posteriors[0].latent
        if isinstance(latent, Inducing):
            return self._pulled(latent, posteriors, points=points)
        assert isinstance(latent, Kernel)
        d_K = latent.bound_gradient(posteriors[0])
        for posterior in posteriors[1:]:
            d_K += latent.bound_gradient(posterior)
        d_K.flat[:: len(d_K) + 1] += self.jitter * np.trace(d_K) / len(d_K)
        return self.kernel.gram_vjp(self.X, d_K), None

    def _pulled(
        self, latent: Inducing, posteriors: Sequence[Posterior], *, points: bool
    ) -> tuple[Array, Array | None]:
        """Gradients in Kuu, Kuf and diag(Kff) as gradients in the kernel's parameters and (``points``) in Z.

        Kuf goes block by block, so that the memory is that of the fit.
        """
        assert self.Z is not None
        Z = self.Z
        kernel, moved = np.zeros(len(self.kernel.free)), np.zeros_like(Z)

        def take(block: slice, part: Array) -> None:
            if points:
                cross, shift = self.kernel.cross_vjp(self.X[block], Z, part.T)
                moved[:] += shift
            else:
                cross = self.kernel.cross_parameter_vjp(Z, self.X[block], part)
            kernel[:] += cross

        d_inner, d_diagonal = latent.pull_back(posteriors, take)
        spread = d_inner
        spread.flat[:: len(spread) + 1] += self.jitter * np.trace(d_inner) / len(d_inner)  # a share of the diagonal
        kernel += self.kernel.gram_vjp(Z, spread) + self.kernel.diag_vjp(self.X, d_diagonal)
        return kernel, moved + self.kernel.gram_input_vjp(Z, spread) if points else None

    def gradient_with_rest(self, kernel: Array, posterior: Posterior, y: Any) -> Array:
        """A gradient in theta from its part for the kernel."""
        site = [self._site_derivative(name, posterior, y) for name in self.learn]
        return np.concatenate([kernel, site, self.mean.vjp(self.X, posterior.a)])

    def _site_derivative(self, name: str, posterior: Posterior, y: Any) -> float:
        """d/d log parameter of sum_i E log p(y_i | f_i), by a central difference of the oracle."""
        site: Any = self.likelihood
        clean, sides = site.validate(y), []
        for sign in (1.0, -1.0):
            moved = replace(site, **{name: getattr(site, name) * np.exp(sign * DIFFERENCE)})
            sides.append(moved.oracle(clean, posterior.m, posterior.v).value + moved.constant(clean))
        return float((sides[0] - sides[1]).sum()) / (2 * DIFFERENCE)

    def log_prior(self) -> tuple[float, Array | float]:
        value, slope = self.kernel.log_prior()
        return value, np.concatenate([slope, np.zeros(len(self.learn) + len(self.mean.free))])

    def inducing_gradient(self, posterior: Posterior) -> Array:
        """d bound / dZ at a converged posterior, in the shape of Z."""
        return self._with_points(posterior)[1]

    def joint_gradient(self, posterior: Posterior, y: Any) -> tuple[Array, Array]:
        """``gradient`` and ``inducing_gradient`` for little more than the price of one."""
        kernel, points = self._with_points(posterior)
        return self.gradient_with_rest(kernel, posterior, y), points

    def _with_points(self, posterior: Posterior) -> tuple[Array, Array]:
        if not isinstance(posterior.latent, Inducing) or self.Z is None:
            raise InputError("only a model with inducing points has a gradient in them", "a full process",
                             "Pass inducing= to klimb.gp.")
        kernel, points = self.kernel_gradient([posterior], points=True)
        assert points is not None
        return kernel, points

    @property
    def anchors(self) -> Array:
        """The inputs whose f carries all that was learnt: the data's, or the inducing points."""
        return self.X if self.Z is None else self.Z

    def predict(self, posterior: Posterior, X_new: ArrayLike) -> tuple[Array, Array]:
        """Mean and variance of f at new inputs, in bounded memory: blocks of new rows."""
        new = as_inputs(X_new, "X_new", self.X.shape[1])
        latent: Any = posterior.latent
        m, v = np.empty(len(new)), np.empty(len(new))
        for rows in new_blocks(new, self.anchors):
            cross = self.kernel.gram(new[rows], self.anchors)
            m[rows], v[rows] = latent.predict(posterior, cross, self.kernel.diag(new[rows]), self.mean(new[rows]))
        return m, v

    def observe(self, posterior: Posterior, X_new: ArrayLike) -> Prediction:
        """The predictive distribution of y at new inputs: its mean, quantiles, class probabilities, log density."""
        return self.site.predict(*self.predict(posterior, X_new))

    def sample(
        self, posterior: Posterior, X_new: ArrayLike, n: int, rng: np.random.Generator | int | None = None, *,
        observed: bool = False,
    ) -> Array:
        """``n`` joint draws of f at new inputs, one a row, or with ``observed`` of y; forms their n_new x n_new matrix.

        >>> import numpy as np, klimb
        >>> x = np.linspace(0, 6, 30)
        >>> model = klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Poisson())
        >>> posterior = model.fit(np.round(np.exp(np.sin(x)))).posterior
        >>> model.sample(posterior, [1.0, 1.01], 1000, rng=0).std(axis=0).round(1)
        array([0.3, 0.3])
        >>> model.sample(posterior, [1.0, 1.01], 2, rng=0, observed=True).shape
        (2, 2)
        """
        new = as_inputs(X_new, "X_new", self.X.shape[1])
        if n < 0:
            raise InputError("the number of draws must not be negative", f"{n}", "Ask for n >= 0 draws.")
        generator = np.random.default_rng(rng)
        latent: Any = posterior.latent
        cross = self.kernel.gram(new, self.anchors)
        mean, _ = latent.predict(posterior, cross, self.kernel.diag(new), self.mean(new))
        V = latent.predict_covariance(posterior, cross, self.kernel.gram(new))
        # What the data explain is subtracted, so V is as exact as the prior is large.
        V.flat[:: len(V) + 1] += SAMPLE_JITTER * float(self.kernel.diag(new).max())
        f = draws_from(mean, psd_square_root(0.5 * (V + V.T), "the covariance of the draws"), n, generator)
        return draw_response(self.site, f, generator) if observed else f


def as_single(model: Any, advice: str) -> GaussianProcess:
    """``model`` if it is a process with one latent value per datum, else an `InputError`.

    >>> import klimb
    >>> as_single(klimb.gp(klimb.kernels.RBF(), [[0.0], [1.0]], klimb.sites.Softmax(3)), "Take one class at a time.")
    Traceback (most recent call last):
    ...
    klimb.errors.InputError: model must be a process with one latent value per datum; got MulticlassProcess. Take ...
    """
    if not isinstance(model, GaussianProcess):
        raise InputError("model must be a process with one latent value per datum", type(model).__name__, advice)
    return model


def new_blocks(new: Array, anchors: Array) -> Iterator[slice]:
    """Blocks of new rows whose covariances with the anchors take some 16 MB."""
    return row_blocks(len(new), max(len(anchors) // 16, 1))


def as_inputs(X: ArrayLike, name: str, width: int | None = None) -> Array:
    """``X`` as a matrix with one row per input (and ``width`` columns); a 1-d array is one column."""
    array = as_float(X, name)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(f"{name} must have at least one row and one column", f"shape {array.shape}", "Pass some data.")
    if width is not None and array.shape[1] != width:
        raise InputError(f"{name} must have {width} columns", f"shape {array.shape}", "Use the columns of the fit.")
    return array
