"""Log densities with gradients for `klimb.boost`: of samplers' functions, klimb's models, probabilistic programs."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from klimb.boosting import Mixture, boost
from klimb.boosting.target import batched, double_precision
from klimb.errors import InputError, require
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


def pymc(model: Any) -> Bridge:
    """A PyMC model: its joint log density and gradient over the free (transformed) variables.

    Examples::

        with pm.Model() as model:
            rate = pm.Gamma("rate", 1.0, 1.0)
            pm.Poisson("y", rate, observed=[3, 5, 4])
        bridge = klimb.bridges.pymc(model)
        bridge.parameters(bridge.boost().sample(1000))["rate"].mean()
    """
    try:
        import pymc  # noqa: F401
    except ImportError as error:
        raise missing("pymc", "pymc") from error
    start = model.initial_point()
    variables = model.value_vars
    shapes = [np.shape(start[variable.name]) for variable in variables]
    sizes = [int(np.prod(shape)) for shape in shapes]
    edges = np.cumsum([0, *sizes])
    value = model.compile_logp()
    slope = model.compile_dlogp()

    def as_point(theta: Array) -> dict[str, Array]:
        pieces = (theta[a:b].reshape(shape) for a, b, shape in zip(edges, edges[1:], shapes, strict=False))
        return {variable.name: piece for variable, piece in zip(variables, pieces, strict=True)}

    back = model.compile_fn(model.unobserved_value_vars, inputs=variables, on_unused_input="ignore", point_fn=True)

    def to_parameters(draws: Array) -> dict[str, Array]:
        rows = [back(as_point(theta)) for theta in draws]
        return {variable.name: np.stack([row[j] for row in rows])
                for j, variable in enumerate(model.unobserved_value_vars)}

    names = tuple(f"{variable.name}[{i}]" if size > 1 else variable.name
                  for variable, size in zip(variables, sizes, strict=True) for i in range(size))
    init = np.concatenate([np.ravel(start[variable.name]) for variable in variables]).astype(float)
    return Bridge(lambda theta: float(value(as_point(np.asarray(theta)))), int(edges[-1]), names, to_parameters,
                  lambda theta: np.asarray(slope(as_point(np.asarray(theta)))), init[None])


def numpyro(model: Any, *args: Any, seed: int = 0, **kwargs: Any) -> Bridge:
    """A NumPyro model called with ``args``: its joint log density over unconstrained latent variables.

    Examples::

        def model(y):
            rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
            numpyro.sample("y", dist.Poisson(rate), obs=y)
        bridge = klimb.bridges.numpyro(model, numpy.array([3, 5, 4]))
        bridge.parameters(bridge.boost().sample(1000))["rate"].mean()
    """
    try:
        import jax
        from jax.flatten_util import ravel_pytree
        from numpyro.infer.util import initialize_model
    except ImportError as error:
        raise missing("numpyro", "numpyro") from error
    with double_precision(jax):
        info = initialize_model(jax.random.PRNGKey(seed), model, model_args=args, model_kwargs=kwargs)
        start, unravel = ravel_pytree(info.param_info.z)
        value, slope = batched(jax, lambda theta: -info.potential_fn(unravel(theta)))

    def to_parameters(draws: Array) -> dict[str, Array]:
        with double_precision(jax):
            rows = [info.postprocess_fn(unravel(jax.numpy.asarray(theta))) for theta in draws]
        return {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}

    names = tuple(f"{name}[{i}]" if np.size(leaf) > 1 else name
                  for name, leaf in sorted(info.param_info.z.items()) for i in range(int(np.size(leaf))))
    return Bridge(value, len(names), names, to_parameters, slope, np.asarray(start, dtype=np.float64)[None])


def stan(model: Any, *, transformed: bool = True) -> Bridge:
    """A Stan model with its data, as a `bridgestan.StanModel`: its log density over unconstrained parameters.

    Constants are kept, so that the bound is of the model's log evidence (as far as the program itself keeps them: a
    ``~`` statement does, ``target +=`` of an ``_lupdf`` does not). ``parameters`` gives arrays by the names of the
    program, with ``transformed`` parameters among them.

    Examples::

        model = bridgestan.StanModel("schools.stan", "schools.json")
        bridge = klimb.bridges.stan(model)
        bridge.parameters(bridge.boost().sample(1000))["mu"].mean()
    """
    for method in ("param_unc_num", "log_density", "log_density_gradient", "param_constrain"):
        require(hasattr(model, method), "stan needs a bridgestan.StanModel", type(model).__name__,
                "Make one by bridgestan.StanModel(path of the program, data).")
    dim = int(model.param_unc_num())
    labels = tuple(model.param_unc_names())

    def log_density(theta: Array) -> float:
        try:
            return float(model.log_density(np.ascontiguousarray(theta, dtype=np.float64), propto=False))
        except RuntimeError:  # Stan rejects a point outside the support by an exception
            return -np.inf

    def gradient(theta: Array) -> Array:
        point = np.ascontiguousarray(theta, dtype=np.float64)
        return np.array(model.log_density_gradient(point, propto=False)[1])

    def to_parameters(draws: Array) -> dict[str, Array]:
        names = list(model.param_names(include_tp=transformed))
        placed = np.stack([model.param_constrain(np.ascontiguousarray(theta, dtype=np.float64), include_tp=transformed)
                           for theta in draws])
        return gathered(names, placed)

    return Bridge(log_density, dim, labels, to_parameters, gradient)


def gathered(names: list[str], columns: Array) -> dict[str, Array]:
    """Columns called a.1.1, a.2.1, ... as one array n x 2 x ... called a: Stan's names, with indices from 1."""
    places: dict[str, list[tuple[tuple[int, ...], int]]] = {}
    for column, full in enumerate(names):
        name, *index = full.split(".")
        if not all(part.isdigit() for part in index):  # a tuple or a complex number: left as it is called
            name, index = full, []
        places.setdefault(name, []).append((tuple(int(part) - 1 for part in index), column))
    found = {}
    for name, entries in places.items():
        shape = tuple(1 + max(index[axis] for index, _ in entries) for axis in range(len(entries[0][0])))
        array = np.empty((len(columns), *shape))
        for place, column in entries:
            np.moveaxis(array, 0, -1)[place] = columns[:, column]
        found[name] = array
    return found
