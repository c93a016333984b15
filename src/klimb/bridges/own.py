"""What every bridge returns, functions written for emcee and dynesty, and klimb's own models past one Gaussian."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from klimb.boosting import Mixture, boost
from klimb.errors import InputError
from klimb.infer.result import Result
from klimb.latents.base import Posterior
from klimb.models.model import Model
from klimb.numerics.arrays import Array


class Bridge(NamedTuple):
    """A log density in unconstrained coordinates, and the way back to the parameters of the model it came from."""

    log_density: Callable[[Any], Any]
    dim: int
    names: tuple[str, ...]
    to_parameters: Callable[[Array], dict[str, Array]]
    gradient: Callable[[Any], Any] | None = None
    init: Array | None = None
    scale: float = 1.0

    def boost(self, **options: Any) -> Mixture:
        """`klimb.boost` of this log density; options are its own."""
        given: dict[str, Any] = {"gradient": self.gradient, "init": self.init, "scale": self.scale, "names": self.names}
        return boost(self.log_density, self.dim, **{**given, **options})

    def parameters(self, draws: Array) -> dict[str, Array]:
        """The model's parameters at the rows of ``draws``, by name."""
        return self.to_parameters(np.atleast_2d(draws))


def missing(package: str, extra: str) -> ImportError:
    """What to raise where a bridge's package is not installed."""
    return ImportError(f"this bridge needs the package {package}: pip install {extra}")


def emcee(log_prob: Callable[..., Any], ndim: int, *, args: Sequence[Any] = (), names: Sequence[str] | None = None,
          init: Any = None) -> Bridge:
    """The log probability function of an `emcee.EnsembleSampler`, with its ``args``.

    >>> q = emcee(lambda theta, centre: -0.5 * np.sum((theta - centre) ** 2), 2, args=[np.array([1.0, 2.0])]).boost()
    >>> print(q.mean.round(4), q.n_components)
    [1. 2.] 1
    """
    labels = tuple(names) if names is not None else tuple(f"x{j}" for j in range(ndim))

    return Bridge(lambda theta: log_prob(theta, *args), ndim, labels,
                  lambda draws: dict(zip(labels, draws.T, strict=True)),
                  init=None if init is None else np.asarray(init, float))


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
    labels = tuple(names) if names is not None else tuple(f"x{j}" for j in range(ndim))

    def place(e: Array) -> Array:
        cube = np.clip(ndtr(e), 1e-300, 1.0 - 1e-16)  # a prior transform may not know the ends of the cube
        return np.asarray(prior_transform(cube), dtype=np.float64)

    def log_density(e: Array) -> float:
        return float(loglike(place(e))) - 0.5 * float(e @ e) - 0.5 * ndim * float(np.log(2.0 * np.pi))

    def to_parameters(draws: Array) -> dict[str, Array]:
        return dict(zip(labels, np.stack([place(e) for e in draws], axis=1), strict=True))

    return Bridge(log_density, ndim, labels, to_parameters)


def latent(result: Result) -> Bridge:
    """The exact posterior of a model fitted by `klimb.infer`, where its prior is N(0, I), started at the fit's mean.

    The parameters are the weights ``w`` of a `Weights` latent, or the values ``f`` of any other, one mixture dimension
    each: meant for tens of them, such as a robust regression whose posterior has two modes. The bound is of
    the log evidence, as ``result.bound`` is, and at least as high where the mixture fits better than one Gaussian.

    >>> import klimb
    >>> model, site = klimb.latents.Weights(np.ones((6, 1)), cov=25.0), klimb.sites.StudentT(df=2.0, scale=0.5)
    >>> bridge = latent(klimb.infer(model, site, [-4.0, -4.2, -3.9, 4.0, 4.1, 3.8]))  # data that contradict each other
    >>> w = bridge.parameters(bridge.boost().sample(1000))["w"]
    >>> print(w[w < 0].mean().round(1), w[w > 0].mean().round(1))
    -3.9 3.9
    """
    problem, posterior = result.problem, result.posterior
    if problem is None:
        raise InputError("latent needs a result that knows its model", "one without", "Fit it with klimb.infer.")
    prior = problem.latent
    if np.any(prior.slack) or prior.n_outputs > 1 or prior.by_products:
        raise InputError("latent bridges models of one output, without slack, that are not known by products alone",
                         type(prior).__name__, "Use a Kernel or Weights latent of the same model.")
    prior_mean, root, map_to_sites = prior.reported_prior()
    site, y, constant, dim = problem.site, problem.y, problem.constant, root.shape[1]
    design = map_to_sites @ root if map_to_sites is not None else root  # f = mean + design e, N x R

    def log_density(E: Array) -> Array:
        f = problem.latent.mean + E @ design.T
        return np.asarray(site.point(y, f).value.sum(axis=-1) + constant
                          - 0.5 * (E**2).sum(axis=-1) - 0.5 * dim * np.log(2.0 * np.pi))

    def gradient(E: Array) -> Array:
        f = problem.latent.mean + E @ design.T
        return np.asarray(-site.point(y, f).alpha @ design - E)

    name = "f" if map_to_sites is None else "w"
    start = np.linalg.lstsq(design, posterior.m - problem.latent.mean, rcond=None)[0]
    return Bridge(log_density, dim, tuple(f"e{j}" for j in range(dim)),
                  lambda draws: {name: prior_mean + draws @ root.T}, gradient,
                  np.asarray(start[None], dtype=np.float64))


def hyperparameters(model: Model, y: Any, *, tol: float = 1e-6) -> Bridge:
    """theta -> bound + log prior of the hyperparameters of a model such as `klimb.gp`'s, with its gradient: a target.

    The density is one of theta (logs of positive parameters, see ``model.theta``); parameters have the names and values
    that a table prints. Outside the limits of theta it is taken to be zero: give priors, or the limits cut it off.

    >>> import klimb
    >>> x = np.linspace(0.0, 6.0, 25)
    >>> bridge = hyperparameters(klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Gaussian(0.1)), np.sin(x))
    >>> long, short = (bridge.log_density(np.log([1.0, lengthscale])) for lengthscale in (1.8, 0.5))
    >>> print(bridge.names, round(long - short, 1))  # how much better the longer one is, in nats
    ('variance', 'lengthscale') 16.6
    """
    data = model.read(y)
    model = model.ready(data)
    low, high = model.theta.lower, model.theta.upper
    last: list[Posterior | None] = [None]

    @cache
    def both(point: bytes) -> tuple[float, Array]:
        theta = np.frombuffer(point)
        if (theta < low).any() or (theta > high).any():
            return -np.inf, np.zeros_like(theta)
        moved = model.moved(theta)
        result = moved.infer(data, start=last[0], tol=tol)
        last[0] = result.posterior
        prior, prior_slope = moved.log_prior()
        return result.bound + prior, np.asarray(moved.gradient(result.posterior, data) + prior_slope)

    def part(number: int) -> Callable[[Any], Any]:
        return lambda theta: both(np.asarray(theta, dtype=np.float64).tobytes())[number]

    return Bridge(part(0), model.theta.size, model.names, model.theta.reported, part(1), model.at[None], 0.3)
