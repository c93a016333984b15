"""Functions written for emcee and dynesty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from klimb.bridges.base import Bridge
from klimb.numerics.arrays import Array


def emcee(log_prob: Callable[..., Any], ndim: int, *, args: Sequence[Any] = (), names: Sequence[str] | None = None,
          init: Any = None) -> Bridge:
    """The log probability function of an `emcee.EnsembleSampler`, with its ``args``.

    >>> q = emcee(lambda theta, centre: -0.5 * np.sum((theta - centre) ** 2), 2, args=[np.array([1.0, 2.0])]).boost()
    >>> print(q.mean.round(4), q.n_components)
    [1. 2.] 1
    """
    labels = tuple(names) if names is not None else tuple(f"x{j}" for j in range(ndim))

    def log_density(theta: Array) -> Any:
        return log_prob(theta, *args)

    return Bridge(log_density, ndim, labels, _columns(labels), init=None if init is None else np.asarray(init, float))


def dynesty(loglike: Callable[[Array], float], prior_transform: Callable[[Array], Any], ndim: int, *,
            names: Sequence[str] | None = None) -> Bridge:
    """A log likelihood and a prior transform, as dynesty takes them, both of one point.

    The mixture lives where the prior is N(0, I): a point e there is prior_transform(Phi(e)). So the bound and the log
    evidence are those of the model, as in nested sampling.

    >>> bridge = dynesty(lambda x: -50.0 * np.sum((x - 0.3) ** 2), lambda cube: 2.0 * cube - 1.0, 1, names=["x"])
    >>> q = bridge.boost()
    >>> print(round(float(bridge.parameters(q.sample(4000))["x"].mean()), 2), round(q.corrected.log_evidence, 2))
    0.3 -2.08
    """
    from scipy.special import ndtr

    labels = tuple(names) if names is not None else tuple(f"x{j}" for j in range(ndim))

    def place(e: Array) -> Array:
        cube = np.clip(ndtr(e), 1e-300, 1.0 - 1e-16)  # a prior transform may not know the ends of the cube
        return np.asarray(prior_transform(cube), dtype=np.float64)

    def log_density(e: Array) -> float:
        return float(loglike(place(e))) - 0.5 * float(e @ e) - 0.5 * ndim * float(np.log(2.0 * np.pi))

    def to_parameters(draws: Array) -> dict[str, Array]:
        placed = np.stack([place(e) for e in draws])
        return {name: placed[:, j] for j, name in enumerate(labels)}

    return Bridge(log_density, ndim, labels, to_parameters)


def _columns(labels: tuple[str, ...]) -> Callable[[Array], dict[str, Array]]:
    return lambda draws: {name: draws[:, j] for j, name in enumerate(labels)}
