"""Several latent values per datum, each a process, that meet in one site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, final

import numpy as np

from klimb.errors import InputError
from klimb.infer.hyper import Hypermodel
from klimb.latents.base import Posterior
from klimb.latents.outputs import Outputs
from klimb.models.kernel import GaussianProcess, as_inputs, new_blocks
from klimb.numerics.arrays import Array, ArrayLike, as_float
from klimb.sites.base import Site
from klimb.sites.prediction import Prediction, draw_response


@final
@dataclass(frozen=True, eq=False)
class MulticlassProcess(Hypermodel):
    """Processes side by side, one for each latent value of a datum, that meet in one site; made by `gp`.

    ``processes`` has one entry if all outputs share their prior (kernel, mean and its hyperparameters, not their f), or
    one for each output.

    >>> import numpy as np, klimb
    >>> x = np.linspace(0.0, 6.0, 30)
    >>> model = klimb.gp(klimb.kernels.RBF(variance=4.0), x, klimb.sites.Softmax(3))
    >>> fit = model.fit(np.digitize(np.sin(x), [-0.5, 0.5]))  # low, middle, high
    >>> model.observe(fit.posterior, [0.0, 1.5, 4.7]).probabilities().round(2)
    array([[0.08, 0.74, 0.18],
           [0.02, 0.05, 0.93],
           [0.93, 0.05, 0.02]])
    """

    processes: tuple[GaussianProcess, ...]
    likelihood: Site

    @property
    def names(self) -> tuple[str, ...]:
        if len(self.processes) == 1:
            return self.processes[0].names
        return tuple(f"{c}: {name}" for c, process in enumerate(self.processes) for name in process.names)

    @property
    def theta(self) -> Array:
        return np.concatenate([process.theta for process in self.processes])

    @property
    def bounds(self) -> tuple[Array, Array]:
        lower, upper = zip(*(process.bounds for process in self.processes), strict=True)
        return np.concatenate(lower), np.concatenate(upper)

    def with_theta(self, theta: ArrayLike) -> Self:
        values = as_float(theta, "theta", ndim=1)
        if len(values) != len(self.names):
            raise InputError(f"theta must have {len(self.names)} entries ({', '.join(self.names)})", f"{len(values)}",
                             "The order is that of names.")
        parts = np.split(values, np.cumsum([len(process.names) for process in self.processes])[:-1])
        moved = (process.with_theta(part) for process, part in zip(self.processes, parts, strict=True))
        return replace(self, processes=tuple(moved))

    @property
    def site(self) -> Site:
        return self.likelihood

    @property
    def outputs(self) -> tuple[GaussianProcess, ...]:
        """The process of each output."""
        return self.processes * (self.site.n_outputs // len(self.processes))

    @cached_property
    def latent(self) -> Outputs:
        return Outputs([process.latent for process in self.outputs])

    def gradient(self, posterior: Posterior, y: Any) -> Array:
        parts = self.latent.split(posterior)
        groups = [parts] if len(self.processes) == 1 else [(part,) for part in parts]
        return np.concatenate([_prior_gradient(process, group)
                               for process, group in zip(self.processes, groups, strict=True)])

    def log_prior(self) -> tuple[float, Array | float]:
        values, slopes = zip(*(process.log_prior() for process in self.processes), strict=True)
        return sum(values), np.concatenate([np.atleast_1d(slope) for slope in slopes])

    def predict(self, posterior: Posterior, X_new: ArrayLike) -> tuple[Array, Array]:
        """Mean and variance of f at new inputs, one column per output."""
        parts = self.latent.split(posterior)
        if len(self.processes) > 1:
            pairs = [process.predict(part, X_new) for process, part in zip(self.outputs, parts, strict=True)]
            return np.column_stack([m for m, _ in pairs]), np.column_stack([v for _, v in pairs])
        process = self.processes[0]
        new = as_inputs(X_new, "X_new", process.X.shape[1])
        m, v = np.empty((len(new), len(parts))), np.empty((len(new), len(parts)))
        for rows in new_blocks(new, process.anchors):  # their covariances serve all outputs
            cross, diagonal = process.kernel.gram(new[rows], process.anchors), process.kernel.diag(new[rows])
            for c, part in enumerate(parts):
                latent: Any = part.latent
                m[rows, c], v[rows, c] = latent.predict(part, cross, diagonal, process.mean(new[rows]))
        return m, v

    def observe(self, posterior: Posterior, X_new: ArrayLike) -> Prediction:
        """The predictive distribution of y at new inputs: ``.probabilities()``, ``.log_density(y)``."""
        return self.site.predict(*self.predict(posterior, X_new))

    def sample(
        self, posterior: Posterior, X_new: ArrayLike, n: int, rng: np.random.Generator | int | None = None, *,
        observed: bool = False,
    ) -> Array:
        """``n`` joint draws of f at new inputs, n x n_new x outputs, or with ``observed`` of y, n x n_new."""
        generator = np.random.default_rng(rng)
        parts = zip(self.outputs, self.latent.split(posterior), strict=True)
        f = np.stack([process.sample(part, X_new, n, generator) for process, part in parts], axis=1)
        if observed:
            return draw_response(self.site, f.reshape(n, -1), generator)
        return np.swapaxes(f, 1, 2)


def _prior_gradient(process: GaussianProcess, posteriors: Sequence[Posterior]) -> Array:
    """d bound / d theta of a process that has no parameters of a site, summed over posteriors that share it."""
    pull = np.sum([posterior.a for posterior in posteriors], axis=0)
    return np.concatenate([process.kernel_gradient(posteriors)[0], process.mean.vjp(process.X, pull)])
