"""Estimators in files, without pickle: settings, what was learnt, and for processes the data they predict from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, final

import numpy as np

from klimb import priors, sites
from klimb.errors import InputError
from klimb.infer.result import History, Iteration, Result, Status
from klimb.kernels import KERNELS, Kernel, Product, Sum
from klimb.kernels.means import Constant as Level
from klimb.kernels.parameters import Rule
from klimb.latents.base import Latent, Posterior
from klimb.latents.weights import Weights
from klimb.models.files import write_container
from klimb.models.gp import GaussianProcess
from klimb.numerics.arrays import Array
from klimb.sites.base import Site
from klimb.sites.softmax import Softmax
from klimb.sites.wrappers import Weighted
from klimb.sklearn.glm import GLMClassifier, GLMRegressor, LinearFit
from klimb.sklearn.linear import parts_of, side_by_side
from klimb.sklearn.process_model import NO_SITE
from klimb.sklearn.processes import GPClassifier, GPRegressor, ProcessFit
from klimb.sklearn.scaling import Scaling
from klimb.sklearn.sparse import SparseLinearRegressor

CLASSES: dict[str, Any] = {
    one.__name__: one for one in (GLMClassifier, GLMRegressor, GPClassifier, GPRegressor, SparseLinearRegressor)
}
SITES: dict[str, type[Site]] = {**sites.SITES, "Softmax": Softmax}
COMPOSITES: dict[str, Any] = {"Sum": Sum, "Product": Product}
MOST_WEIGHTS = 2000  # coefficients whose D x D covariance is worth a file
# What is learnt beside the posterior, by name: numbers, text, and arrays of them.
NUMBERS = ("intercept_", "intercept_std_", "coef_", "coef_std_", "sign_probability_", "prior_", "prior_scale_",
           "dispersion_", "bound_", "converged_", "n_iter_", "n_features_in_", "_centre", "_spread")


def save(estimator: Any, path: Any) -> None:
    """Write a fitted estimator to ``path``; `klimb.load` reads it."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(estimator)
    arrays: dict[str, Any] = {}
    header: dict[str, Any] = {
        "class": type(estimator).__name__,
        "params": {name: _value(value, f"params.{name}", arrays) for name, value in estimator.get_params().items()},
        "learnt": {name: _value(getattr(estimator, name), name, arrays)
                   for name in NUMBERS if name in vars(estimator)},
    }
    for name in ("classes_", "feature_names_in_"):
        if hasattr(estimator, name):
            header[name] = _labels(getattr(estimator, name), name)
    if hasattr(estimator, "_site"):
        header["site"] = _site_state(estimator._site)
    if hasattr(estimator, "_scaling"):
        arrays |= {"centre": estimator._scaling.centre, "scale": estimator._scaling.scale}
    holds: tuple[str, ...] = ()
    if isinstance(estimator, SparseLinearRegressor):
        header["fits"] = [_weights_state(estimator.result_, "0", arrays)]
    else:
        fits = getattr(estimator, "_fits", None) or [estimator._fit]
        header["fits"] = [_fit_state(fit, str(k), arrays) for k, fit in enumerate(fits)]
        if isinstance(fits[0], ProcessFit):
            holds = ("training inputs", "responses")
    write_container(path, "estimator", header, arrays, holds=holds)


@final
class Reader:
    """What `klimb.load` asks for estimators."""

    schema = 1

    @staticmethod
    def from_state(header: dict[str, Any], arrays: Mapping[str, Array]) -> Any:
        """The estimator as it was saved."""
        if header["class"] not in CLASSES:
            raise InputError(f"the estimators of this klimb are {', '.join(CLASSES)}", repr(header["class"]),
                             "It was written by a newer klimb: update.")
        params = {name: _from_value(value, arrays) for name, value in header["params"].items()}
        estimator = CLASSES[header["class"]](**params)
        for name, value in header["learnt"].items():
            if name in NUMBERS:
                setattr(estimator, name, _from_value(value, arrays))
        for name in ("classes_", "feature_names_in_"):
            if name in header:
                setattr(estimator, name, np.array(header[name]["values"], dtype=header[name]["dtype"]))
        if "site" in header:
            estimator._site = _site(header["site"])
        if "centre" in arrays:
            estimator._scaling = Scaling(arrays["centre"], arrays["scale"])
        _restore_fits(estimator, header["fits"], arrays)
        return estimator


def _restore_fits(estimator: Any, states: list[dict[str, Any]], arrays: Mapping[str, Array]) -> None:
    if isinstance(estimator, SparseLinearRegressor):
        estimator.result_ = _weights_result(states[0], "0", arrays)
        estimator.posterior_ = estimator.result_.posterior
        return
    fits: list[Any] = []
    for k, state in enumerate(states):
        read = _process_fit if state["type"] == "process" else _linear_fit
        fits.append(read(state, str(k), arrays))
    estimator._set(fits[0] if isinstance(estimator, GLMRegressor | GPRegressor) else fits)


# -- fits


def _fit_state(fit: Any, key: str, arrays: dict[str, Any]) -> dict[str, Any]:
    common = {"bound": fit.bound, "n_fits": fit.n_fits}
    if isinstance(fit, LinearFit):
        arrays |= {f"{key}.centre": fit.scaling.centre, f"{key}.scale": fit.scaling.scale}
        return {"type": "linear", **common, "intercept": fit.intercept, "prior_scale": fit.prior_scale,
                **_weights_state(fit.result, key, arrays)}
    process, posterior = fit.process, fit.result.posterior
    arrays |= {f"{key}.{name}": getattr(posterior, name) for name in ("a", "gamma", "m", "v")}
    arrays |= {f"{key}.X": process.X, f"{key}.y": fit.y}
    for name, values in (("weights", fit.weights), ("Z", process.Z)):
        if values is not None:
            arrays[f"{key}.{name}"] = values
    site = process.likelihood.site if isinstance(process.likelihood, Weighted) else process.likelihood
    return {"type": "process", **common, "kernel": _kernel_state(process.kernel), "mean": float(process.mean.value),
            "jitter": process.jitter, "kl": posterior.kl, "outputs": len(fit.parts), "site": _site_state(site),
            **_ending(fit.result)}


def _ending(result: Result) -> dict[str, Any]:
    return {"result_bound": result.bound, "status": result.status.name,
            "stationarity": result.history[-1].stationarity}


def _result(posterior: Posterior, state: dict[str, Any]) -> Result:
    last = Iteration(0, state["result_bound"], state["stationarity"], 1.0, "file", 0.0, 0, 0)
    return Result(posterior, state["result_bound"], Status[state["status"]], History([last]))


def _weights_state(result: Result, key: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """Mean and covariance of the weights: all that predictions need, without the data."""
    parts = parts_of(result.posterior)
    if parts[0].latent.n_weights > MOST_WEIGHTS:
        raise InputError(f"a file holds the covariance of up to {MOST_WEIGHTS:,} coefficients",
                         f"{parts[0].latent.n_weights:,}", "Keep the estimator with pickle or joblib.")
    arrays[f"{key}.mean"] = np.array([part.mean for part in parts])
    arrays[f"{key}.covariance"] = np.array([part.covariance() for part in parts])
    return _ending(result)


def _weights_result(state: dict[str, Any], key: str, arrays: Mapping[str, Array]) -> Result:
    """The posterior as the prior of one empty row: the same mean and covariance, and nothing to add to it."""
    latents: list[Latent] = []
    for mean, covariance in zip(arrays[f"{key}.mean"], arrays[f"{key}.covariance"], strict=True):
        latents.append(Weights(np.zeros((1, len(mean))), mean, covariance, form="primal"))
    nothing = np.zeros(len(latents))
    posterior = Posterior(side_by_side(latents), nothing, nothing, nothing, nothing, 0.0)
    return _result(posterior, state)


def _linear_fit(state: dict[str, Any], key: str, arrays: Mapping[str, Array]) -> LinearFit:
    scaling = Scaling(arrays[f"{key}.centre"], arrays[f"{key}.scale"])
    return LinearFit(_weights_result(state, key, arrays), scaling, state["intercept"], state["prior_scale"],
                     state["bound"], state["n_fits"])


def _process_fit(state: dict[str, Any], key: str, arrays: Mapping[str, Array]) -> ProcessFit:
    site, weights = _site(state["site"]), arrays.get(f"{key}.weights")
    likelihood = site if weights is None else Weighted(site, weights)
    process = GaussianProcess(_kernel(state["kernel"]), arrays[f"{key}.X"], likelihood if site.separable else NO_SITE,
                              Level(state["mean"]).fixed(), arrays.get(f"{key}.Z"), (), state["jitter"])
    latent = side_by_side([process.latent] * state["outputs"])
    a, gamma, m, v = (arrays[f"{key}.{name}"] for name in ("a", "gamma", "m", "v"))
    posterior = Posterior(latent, a, gamma, m, v, state["kl"], factor=latent.factor(gamma))
    return ProcessFit(process, _result(posterior, state), arrays[f"{key}.y"], weights, state["bound"], state["n_fits"])


# -- values, kernels and sites by name


def _value(value: Any, name: str, arrays: dict[str, Any]) -> Any:
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"array": name}
    if isinstance(value, Kernel):
        return {"kernel": _kernel_state(value)}
    if isinstance(value, Site):
        return {"site": _site_state(value)}
    return {"plain": value}


def _from_value(value: dict[str, Any], arrays: Mapping[str, Array]) -> Any:
    if "array" in value:
        return arrays[value["array"]]
    if "kernel" in value:
        return _kernel(value["kernel"])
    return _site(value["site"]) if "site" in value else value["plain"]


def _labels(values: Any, name: str) -> dict[str, Any]:
    listed = np.asarray(values).tolist()
    if not all(isinstance(one, bool | int | float | str) for one in listed):
        raise InputError(f"{name} in a file must be text or numbers", f"{type(listed[0]).__name__}",
                         "Convert the labels, or keep the estimator with pickle.")
    return {"dtype": np.asarray(values).dtype.str, "values": listed}


def _kernel_state(kernel: Any) -> dict[str, Any]:
    kind: Any = type(kernel)
    name = kind.__name__
    if name in COMPOSITES:
        return {"kernel": name, "parts": [_kernel_state(part) for part in kernel.parts]}
    if KERNELS.get(name) is not kind:
        raise InputError(f"a kernel in a file must be one of {', '.join(KERNELS)}", name,
                         "Keep the estimator with pickle.")
    rules = [[entry, rule.fixed, rule.bounds, None if rule.prior is None else
              [type(rule.prior).__name__, {one.name: getattr(rule.prior, one.name) for one in fields(rule.prior)}]]
             for entry, rule in kernel.rules]
    own = {one.name: getattr(kernel, one.name) for one in fields(kernel) if one.name != "rules"}
    return {"kernel": name, "fields": own, "rules": rules}


def _kernel(state: dict[str, Any]) -> Any:
    if state["kernel"] in COMPOSITES:
        return COMPOSITES[state["kernel"]](tuple(_kernel(part) for part in state["parts"]))
    own = {name: tuple(value) if isinstance(value, list) else value for name, value in state["fields"].items()}
    rules = tuple((entry, Rule(fixed, None if bounds is None else tuple(bounds), _prior(prior)))
                  for entry, fixed, bounds, prior in state["rules"])
    make: Any = KERNELS[state["kernel"]]
    return make(**own, rules=rules)


def _prior(state: Any) -> Any:
    known = {"LogNormal": priors.LogNormal, "Exponential": priors.Exponential}
    return None if state is None else known[state[0]](**state[1])


def _site_state(site: Any) -> dict[str, Any]:
    kind: Any = type(site)
    name = kind.__name__
    if SITES.get(name) is not kind:
        raise InputError("a likelihood of your own cannot be saved", name, "Keep the script, and fit again.")
    own = {one.name: getattr(site, one.name) for one in fields(site)}
    return {"site": name, "fields": {key: v.tolist() if isinstance(v, np.ndarray) else v for key, v in own.items()}}


def _site(state: dict[str, Any]) -> Site:
    return SITES[state["site"]](**state["fields"])
