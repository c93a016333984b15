"""Gaussian processes over time by kernel: `series` is to `Markov` what `gp` is to `Kernel`.

    model = klimb.series(klimb.kernels.Matern32(), times, klimb.sites.Poisson())
    best = optimise(model, y)                      # klimb.infer.evidence
    best.model.predict(best.result.posterior, times_new)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, final

import numpy as np

from klimb.errors import InputError
from klimb.infer.hyper import Hypermodel
from klimb.kernels import Kernel as Covariance
from klimb.kernels import Matern12, Matern32, Matern52, Sum
from klimb.kernels.means import Mean
from klimb.latents.base import Posterior
from klimb.latents.markov import Markov
from klimb.models.gp import GaussianProcess, as_single, gp
from klimb.numerics.arrays import Array, ArrayLike
from klimb.sites.base import Site

SMOOTHNESS: dict[type[Covariance], float] = {Matern12: 0.5, Matern32: 1.5, Matern52: 2.5}


@final
@dataclass(frozen=True, eq=False)
class MarkovProcess(Hypermodel):
    """A process over time with the hyperparameters of ``process`` and `klimb.latents.Markov` as latent."""

    process: GaussianProcess

    @property
    def names(self) -> tuple[str, ...]:
        return self.process.names

    @property
    def theta(self) -> Array:
        return self.process.theta

    @property
    def bounds(self) -> tuple[Array, Array]:
        return self.process.bounds

    def with_theta(self, theta: ArrayLike) -> Self:
        return replace(self, process=self.process.with_theta(theta))

    @property
    def site(self) -> Site:
        return self.process.site

    def log_prior(self) -> tuple[float, Array | float]:
        return self.process.log_prior()

    @cached_property
    def latent(self) -> Markov:
        process = self.process
        variance, lengthscale, smoothness = zip(*(_term(part) for part in _parts(process.kernel)), strict=True)
        return Markov(process.X, variance, lengthscale, smoothness, mean=process.mean(process.X))

    def gradient(self, posterior: Posterior, y: Any) -> Array:
        """d bound / d theta at a converged posterior, exact and linear in the data."""
        latent = posterior.latent
        assert isinstance(latent, Markov)
        kernel = self.process.kernel
        slopes = dict(zip(kernel.parameters, latent.bound_gradient(posterior).flat, strict=True))
        return self.process.gradient_with_rest(np.array([slopes[name] for name in kernel.free]), posterior, y)

    def predict(self, posterior: Posterior, times_new: ArrayLike) -> tuple[Array, Array]:
        """Mean and variance of f at new times."""
        latent = posterior.latent
        assert isinstance(latent, Markov)
        return latent.predict(posterior, times_new, self.process.mean(times_new))


def series(
    kernel: Covariance,
    times: ArrayLike,
    site: Site | None = None,
    *,
    mean: Mean | None = None,
    learn: str | tuple[str, ...] = (),
) -> MarkovProcess:
    """A Gaussian process over time: `gp` with a Matern kernel and one input, at a cost linear in the data.

    Parameters
    ----------
    kernel : klimb.kernels.Matern12, Matern32, Matern52 or a sum of them
    times : (n,) array
        In any order, repeated or not.
    site, mean, learn
        As for `klimb.gp`.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> from klimb.infer.evidence import optimise
    >>> t = np.linspace(0, 20, 400)
    >>> y = np.random.default_rng(0).poisson(np.exp(np.sin(t)))
    >>> model = klimb.series(klimb.kernels.Matern52(variance=1.0, lengthscale=1.0), t, klimb.sites.Poisson())
    >>> best = optimise(model, y)
    >>> best.converged, bool(best.bound > model.fit(y).bound)
    (True, True)
    >>> m, v = best.model.predict(best.result.posterior, [np.pi / 2, 40.0])
    >>> bool(abs(m[0] - 1.0) < 3 * v[0] ** 0.5), bool(v[1] > 10 * v[0])
    (True, True)
    """
    process = as_single(gp(kernel, times, site, mean=mean, learn=learn),
                        "Use klimb.latents.Outputs.shared(klimb.latents.Markov(times), C) for several classes.")
    if process.X.shape[1] != 1:
        raise InputError("times must have one dimension", f"shape {process.X.shape}", "Use klimb.gp for more inputs.")
    for part in _parts(kernel):
        _term(part)
    return MarkovProcess(process)


def _parts(kernel: Covariance) -> tuple[Covariance, ...]:
    return kernel.parts if isinstance(kernel, Sum) else (kernel,)


def _term(part: Covariance) -> tuple[float, float, float]:
    """Variance, lengthscale and smoothness."""
    smoothness = SMOOTHNESS.get(type(part))
    if smoothness is None or not isinstance(part, Matern12 | Matern32 | Matern52):
        raise InputError("kernel must be Matern12, Matern32, Matern52 or a sum of them", repr(part),
                         "Use klimb.gp for other kernels.")
    (lengthscale,) = np.atleast_1d(part.lengthscale)
    return part.variance, float(lengthscale), smoothness
