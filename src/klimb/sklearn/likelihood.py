"""A likelihood whose parameters may be learnt with the rest: what linear models and processes share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError
from klimb.latents.base import Posterior
from klimb.likelihoods.families import LINKS, Family, SiteParameter, resolve_family
from klimb.numerics.arrays import Array
from klimb.sites.base import Site
from klimb.sites.softmax import Softmax
from klimb.sites.wrappers import Weighted

DIFFERENCE = 1e-5  # in the log of a parameter, for the derivative of the expected log likelihood
BOUNDS = (np.log(1e-6), np.log(1e6))  # of positive parameters
SCALE_BOUNDS = (np.log(1e-4), np.log(1e4))  # of those in units of y's spread: less noise cannot be told from none
SCALED = "scale"  # the field of sites whose parameter has the unit of y
# L-BFGS-B takes the whole gradient as its first step where every parameter has two limits, and a step of length one
# where some have not. Priors keep the searches here from running off, so the first parameter has no upper limit.
OPEN = np.inf
EDGE = 0.5  # counts as half a datum against a mean response at the end of its range


@final
@dataclass(frozen=True, eq=False)
class Likelihood:
    """A family with values for its free parameters, the weights of the data, and which parameters to learn.

    Responses of families with an identity link are standardised: f and the parameters with the unit of y are in units
    of ``spread`` around ``centre``; for the others these are 1 and 0.
    """

    family: Family
    values: dict[str, float]
    learn: tuple[SiteParameter, ...]
    weights: Array | None
    centre: float
    spread: float

    @property
    def plain(self) -> Site:
        """The site of one new datum."""
        return self.family.site(self.values)

    @property
    def site(self) -> Site:
        """The site of the data."""
        return self.plain if self.weights is None else Weighted(self.plain, self.weights)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"log {parameter.name}" for parameter in self.learn)

    @property
    def theta(self) -> Array:
        return np.log([self.values[parameter.field] for parameter in self.learn])

    @property
    def bounds(self) -> list[tuple[float, float]]:
        return [SCALE_BOUNDS if parameter.field == SCALED else BOUNDS for parameter in self.learn]

    def with_theta(self, theta: Array) -> Likelihood:
        fields = (parameter.field for parameter in self.learn)
        changed = dict(zip(fields, np.exp(theta).tolist(), strict=True))
        return replace(self, values={**self.values, **changed})

    def gradient(self, posterior: Posterior, y: Array) -> Array:
        """d/d log parameter of sum_i E log p(y_i | f_i), by central differences of the oracle."""
        found = np.empty(len(self.learn))
        for k in range(len(found)):
            sides = []
            for sign in (1.0, -1.0):
                moved = self.theta
                moved[k] += sign * DIFFERENCE
                site = self.with_theta(moved).site
                sides.append(site.oracle(y, posterior.m, posterior.v).value + site.constant(y))
            found[k] = (sides[0] - sides[1]).sum() / (2 * DIFFERENCE)
        return found

    def log_prior(self) -> tuple[float, Array]:
        """Of the logs of the parameters, Jacobian included, and its gradient."""
        total, slopes = 0.0, []
        for parameter in self.learn:
            prior, value = parameter.prior(1.0), self.values[parameter.field]
            total += prior.log_density(value) + float(np.log(value))
            slopes.append(prior.slope(value) + 1.0)
        return total, np.array(slopes)

    def total(self, n: int) -> float:
        """The sum of the weights of ``n`` rows."""
        return float(n if self.weights is None else self.weights.sum())

    def rows(self, rows: npt.NDArray[np.intp]) -> Likelihood:
        """The likelihood of some of the data."""
        return self if self.weights is None else replace(self, weights=self.weights[rows])

    # -- between the units of the user and those of the fit
    def scaled(self, y: Array) -> Array:
        return (y - self.centre) / self.spread

    @property
    def log_jacobian(self) -> float:
        """What a log density per datum gains when y is measured in the user's units."""
        return -float(np.log(self.spread))

    @property
    def parameters(self) -> dict[str, float]:
        """The parameters by their names, in the user's units."""
        everything = {**self.family.known, **self.values}
        return {name: value * self.spread if name == SCALED else value for name, value in everything.items()}


def likelihood_for(
    family: Any, dispersion: Any, y: Array, weights: Array | None, *, centred: bool = True
) -> Likelihood:
    """The likelihood of ``y`` by name or site, with ``dispersion`` "auto" or a number in the units of y."""
    found = resolve_family(family)
    if found.response in ("binary", "trials", "ordered"):
        raise InputError("a regressor needs a family for numbers", repr(found.name),
                         "Use GLMClassifier or GPClassifier for classes, klimb.fit for trials and ordered levels.")
    if any(np.ndim(value) for value in found.known.values()):
        raise InputError("the parameters of a likelihood must be numbers here", f"an array for {found.name}",
                         "Rows are reordered, so parameters cannot go with them; use klimb.infer, or sample_weight.")
    centre, spread = _location(y, weights, centred=centred) if found.scaled else (0.0, 1.0)
    values = {parameter.field: _typical(parameter) for parameter in found.free}
    learn = found.free
    if dispersion != "auto":
        if not found.free:
            raise InputError(f"the family {found.name} has no dispersion left to set", f"dispersion={dispersion!r}",
                             'Leave it at "auto".')
        number = _positive(dispersion, "dispersion")
        values[found.free[0].field] = number / (spread if found.free[0].field == SCALED else 1.0)
        learn = found.free[1:]
    if SCALED in found.known:
        found = replace(found, known={**found.known, SCALED: found.known[SCALED] / spread})
    return Likelihood(found, values, learn, weights, centre, spread)


def class_likelihood(link: str, n_classes: int, weights: Array | None) -> Likelihood:
    """Two classes by a link, or several at once."""
    if n_classes == 2:
        return Likelihood(resolve_family("bernoulli", link=link), {}, (), weights, 0.0, 1.0)
    return Likelihood(Family("classes", LINKS["logit"], "any", partial(Softmax, n_classes)), {}, (), weights, 0.0, 1.0)


def intercept_centres(likelihood: Likelihood, y: Array) -> tuple[float, ...]:
    """The link of the mean response, pulled a little inwards where that is infinite; one for each latent value."""
    share = np.ones_like(y) if likelihood.weights is None else likelihood.weights
    site = likelihood.plain
    if isinstance(site, Softmax):
        logs = np.log(np.bincount(y.astype(np.intp), share, site.n_classes) + EDGE)
        return tuple((logs - logs.mean()).tolist())
    return (_centre(likelihood, y, share),)


def _centre(likelihood: Likelihood, y: Array, share: Array) -> float:
    if likelihood.family.scaled or likelihood.family.response == "any":
        return 0.0
    total, size = float(share @ y), float(share.sum())
    name = likelihood.family.link.name
    if name == "log":
        return float(np.log((total if total > 0.0 else EDGE) / size))
    mean = np.asarray((total + EDGE) / (size + 2 * EDGE)) if name in ("logit", "probit", "cloglog") else np.asarray(0.0)
    return float(likelihood.family.link.apply(mean))


def _typical(parameter: SiteParameter) -> float:
    return float(parameter.prior(1.0).typical())


def _location(y: Array, weights: Array | None, *, centred: bool) -> tuple[float, float]:
    """Mean and standard deviation; a spread of 1 where all are equal but for rounding."""
    share = np.full(len(y), 1.0 / len(y)) if weights is None else weights / weights.sum()
    size = float(np.abs(y).max()) or 1.0
    unit = y / size
    centre = float(share @ unit) if centred else 0.0
    spread = float(np.sqrt(share @ (unit - centre) ** 2))
    return centre * size, spread * size if spread > 8.0 * np.finfo(float).eps * abs(centre) else 1.0


def _positive(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not 0.0 < number < np.inf:
        raise InputError(f'{name} must be "auto" or a positive number', repr(value), 'Leave it at "auto".')
    return number


def positive_or_auto(value: Any, name: str) -> float | None:
    """A number, or None for "auto"."""
    return None if isinstance(value, str) and value == "auto" else _positive(value, name)
