"""Models of probabilistic programming languages: PyMC, NumPyro, Stan. Each package is imported when it is asked for."""

from typing import Any

import numpy as np

from klimb.boosting.target import batched, double_precision
from klimb.bridges.own import Bridge, missing
from klimb.errors import require
from klimb.numerics.arrays import Array


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
