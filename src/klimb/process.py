"""Gaussian processes by kernel: a model that knows its inputs, its hyperparameters and how to predict.

    model = klimb.gp(klimb.kernels.RBF(), X, klimb.sites.Logistic())
    best = optimise(model, y)                      # klimb.infer.evidence
    best.model.predict(best.result.posterior, X_new)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, final

import numpy as np

from klimb.errors import InputError
from klimb.infer.hyper import Hypermodel
from klimb.kernels import Kernel as Covariance
from klimb.kernels.means import Mean, Zero
from klimb.latents.base import Posterior
from klimb.latents.inducing import Inducing, InducingGradient
from klimb.latents.kernel import Kernel
from klimb.numerics.arrays import Array, ArrayLike, as_float
from klimb.numerics.dense import row_blocks
from klimb.scale.choose import choose_inducing, explaining_points
from klimb.scale.rows import inducing_latent
from klimb.sites.base import Site

DIFFERENCE = 1e-5  # in the log of a site's parameter, for the derivative of the expected log likelihood
SITE_BOUNDS = (1e-6, 1e6)  # of a site's parameters when they are learnt
INDUCING_JITTER = 1e-8  # of the mean prior variance, on the diagonal of Kuu: noise on the inducing values themselves


@final
@dataclass(frozen=True, eq=False)
class GaussianProcess(Hypermodel):
    """A kernel, a mean function, a site and the inputs; made by `gp`.

    ``theta`` holds the logs of the kernel's free parameters, then the logs of the site's parameters named in ``learn``,
    then the free values of the mean function.
    """

    kernel: Covariance
    X: Array
    likelihood: Site
    mean: Mean
    Z: Array | None
    learn: tuple[str, ...]
    jitter: float

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
                             "The order is that of names.")  # fmt: skip
        site: Any = self.likelihood
        changed = {name: float(np.exp(value)) for name, value in zip(self.learn, values[k : k + s], strict=True)}
        return replace(self, kernel=self.kernel.with_log_parameters(values[:k]),
                       likelihood=replace(site, **changed) if changed else site,
                       mean=self.mean.with_values(values[k + s :]))  # fmt: skip

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
        latent = posterior.latent
        if isinstance(latent, Inducing):
            kernel, _ = self._pulled(latent.bound_gradient(posterior), points=False)
        else:
            assert isinstance(latent, Kernel)
            d_K = latent.bound_gradient(posterior)
            d_K.flat[:: len(d_K) + 1] += self.jitter * np.trace(d_K) / len(d_K)
            kernel = self.kernel.gram_vjp(self.X, d_K)
        return self.gradient_with_rest(kernel, posterior, y)

    def _pulled(self, d: InducingGradient, *, points: bool) -> tuple[Array, Array | None]:
        """Gradients in Kuu, Kuf and diag(Kff) as gradients in the kernel's parameters and (``points``) in Z."""
        assert self.Z is not None
        spread = d.Kuu.copy()
        spread.flat[:: len(spread) + 1] += self.jitter * np.trace(d.Kuu) / len(d.Kuu)  # a share of the diagonal
        kernel = self.kernel.gram_vjp(self.Z, spread) + self.kernel.diag_vjp(self.X, d.kff_diag)
        if not points:
            return kernel + self.kernel.cross_parameter_vjp(self.Z, self.X, d.Kuf), None
        cross, moved = self.kernel.cross_vjp(self.X, self.Z, d.Kuf.T)
        return kernel + cross, self.kernel.gram_input_vjp(self.Z, spread) + moved

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
        points = self._pulled(self._inducing(posterior).bound_gradient(posterior), points=True)[1]
        assert points is not None
        return points

    def joint_gradient(self, posterior: Posterior, y: Any) -> tuple[Array, Array]:
        """``gradient`` and ``inducing_gradient`` for little more than the price of one."""
        kernel, points = self._pulled(self._inducing(posterior).bound_gradient(posterior), points=True)
        assert points is not None
        return self.gradient_with_rest(kernel, posterior, y), points

    def _inducing(self, posterior: Posterior) -> Inducing:
        if not isinstance(posterior.latent, Inducing) or self.Z is None:
            raise InputError("only a model with inducing points has a gradient in them", "a full process",
                             "Pass inducing= to klimb.gp.")  # fmt: skip
        return posterior.latent

    def predict(self, posterior: Posterior, X_new: ArrayLike) -> tuple[Array, Array]:
        """Mean and variance of f at new inputs, in bounded memory: blocks of new rows."""
        new = _inputs(X_new, "X_new")
        anchors = self.X if self.Z is None else self.Z
        latent: Any = posterior.latent
        m, v = np.empty(len(new)), np.empty(len(new))
        for rows in row_blocks(len(new), max(len(anchors) // 16, 1)):  # blocks of some 16 MB
            cross = self.kernel.gram(new[rows], anchors)
            m[rows], v[rows] = latent.predict(posterior, cross, self.kernel.diag(new[rows]), self.mean(new[rows]))
        return m, v


def gp(
    kernel: Covariance,
    X: ArrayLike,
    site: Site | None = None,
    *,
    mean: Mean | None = None,
    inducing: int | Literal["auto"] | ArrayLike | None = None,
    learn: str | tuple[str, ...] = (),
    jitter: float | None = None,
) -> GaussianProcess:
    """A Gaussian process model: prior by kernel at the inputs ``X``, likelihood by ``site``.

    Parameters
    ----------
    kernel : klimb.kernels.Kernel
    X : (n, d) array
        A 1-d array counts as one column.
    site : Site
        The likelihood; ``klimb.sites.Gaussian(1.0)`` with its scale to be learnt if it is left out.
    mean : klimb.kernels.means.Mean
        Zero unless given.
    inducing : int, (M, d) array or "auto"
        Inducing points, or how many to choose (`klimb.scale.choose_inducing`), or as many as explain all but a
        thousandth of the prior variance; the full process if it is left out.
    learn : names of parameters of the site
        Those that `klimb.infer.evidence.optimise` may change, such as "scale".
    jitter : float
        Share of the mean prior variance added to the diagonal of K (default 0) or of Kuu (default 1e-8).

    Examples
    --------
    >>> import numpy as np, klimb
    >>> from klimb.infer.evidence import optimise
    >>> x = np.linspace(0, 6, 40)
    >>> y = np.sin(x) > 0
    >>> model = klimb.gp(klimb.kernels.RBF(lengthscale=1.0, variance=4.0), x, klimb.sites.Logistic())
    >>> best = optimise(model, y)
    >>> best.converged, bool(best.bound > model.fit(y).bound)
    (True, True)
    >>> m, v = best.model.predict(best.result.posterior, [1.5, 4.5])
    >>> klimb.sites.Logistic().predict(m, v).mean.round(1)
    array([1., 0.])
    """
    inputs = _inputs(X, "X")
    if not isinstance(kernel, Covariance):
        raise InputError("kernel must be a klimb kernel", repr(kernel), "Use klimb.kernels.RBF(), say.")
    if site is None:
        from klimb.sites.real import Gaussian

        site, learn = Gaussian(1.0), learn or ("scale",)
    names = (learn,) if isinstance(learn, str) else tuple(learn)
    for name in names:
        if not isinstance(getattr(site, name, None), float):
            raise InputError(f"learn must name positive scalar parameters of {type(site).__name__}", repr(name),
                             "Look at repr(site) for its parameters.")  # fmt: skip
    points = None
    if isinstance(inducing, str):
        if inducing != "auto":
            raise InputError('inducing must be a number, points or "auto"', repr(inducing), "Say how many, or where.")
        points = explaining_points(kernel, inputs)
    elif isinstance(inducing, int | np.integer):
        points = choose_inducing(kernel, inputs, int(inducing))
    elif inducing is not None:
        points = _inputs(inducing, "inducing")
    if points is not None and (len(points) > len(inputs) or points.shape[1] != inputs.shape[1]):
        raise InputError(f"inducing must be at most {len(inputs)} points with {inputs.shape[1]} columns",
                         f"shape {points.shape}", "Leave it out for the full process.")  # fmt: skip
    share = jitter if jitter is not None else (0.0 if points is None else INDUCING_JITTER)
    return GaussianProcess(kernel, inputs, site, mean if mean is not None else Zero(), points, names, float(share))


def _inputs(X: ArrayLike, name: str) -> Array:
    array = as_float(X, name)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(f"{name} must have at least one row and one column", f"shape {array.shape}", "Pass some data.")
    return array
