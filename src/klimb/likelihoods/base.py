"""The contract of a likelihood: a family of sites with parameters that are estimated, and what its response may be.

A new likelihood is a subclass with a few facts, registered by its decorator:

    @register
    class Gamma(Likelihood):
        name, about, response = "gamma", "positive measurements with a constant coefficient of variation", "positive"
        links = {"log": sites.Gamma}
        site_parameters = (SiteParameter("shape", "shape", lambda _: Exponential(1.0, -0.5)),)

From then on formulas, Gaussian processes, estimators, the command line, tables and files know it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from scipy.special import erfinv, expit, ndtr

from klimb._stan import StanPart
from klimb.errors import InputError, nearest, require
from klimb.likelihoods.data import Left, Observed, ResponseKind, read_response
from klimb.numerics.arrays import Array
from klimb.priors import Beta, Fixed, PCCorrelation, PositivePrior, Prior, Uniform, as_prior
from klimb.rows.cells import ResponseSums
from klimb.sites.base import Site
from klimb.sites.wrappers import Censored, Offset, Weighted
from klimb.theta import BoundedParameter, ParameterBlock, PositiveParameter

DIFFERENCE = 1e-5  # in theta, for the derivative of the expected log likelihood
EDGE = 0.5  # counts as half a datum against a mean response at the end of its range


class Link(NamedTuple):
    """A pair of functions, inverse to each other."""

    name: str
    apply: Callable[[Array], Array]
    inverse: Callable[[Array], Array]


def _exp(f: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(f)


LINKS: dict[str, Link] = {
    "identity": Link("identity", np.asarray, np.asarray),
    "log": Link("log", np.log, _exp),
    "log hazard": Link("log hazard", np.log, _exp),  # exp of `Site.mean_predictor` is the mean
    "minus log": Link("minus log", lambda mean: -np.log(mean), lambda f: _exp(-f)),
    "logit": Link("logit", lambda p: np.log(p) - np.log1p(-p), expit),
    "probit": Link("probit", lambda p: np.sqrt(2.0) * erfinv(2.0 * p - 1.0), ndtr),
    "cloglog": Link("cloglog", lambda p: np.log(-np.log1p(-p)), lambda f: -np.expm1(-_exp(f))),
}


class SiteParameter(NamedTuple):
    """A positive parameter of a site: its name for the user, its field there, and its default prior."""

    name: str
    field: str
    prior: Callable[[float], PositivePrior]  # given the scale of y
    scaled: bool = False  # whether the parameter has the unit of y


class Units(NamedTuple):
    """Of f: ``centre`` and ``spread`` of y where f has its unit, else 0 and 1."""

    centre: float = 0.0
    spread: float = 1.0


class Choices:
    """The priors a user asked for; what is taken is remembered, so that a name that nothing has is an error."""

    def __init__(self, given: Any = None) -> None:
        if not isinstance(given or {}, Mapping) or {type(name) for name in given or ()} - {str}:
            raise InputError("priors must be a dict with names of the table as keys", f"{given!r:.60}",
                             'Write priors={"x": "normal(0, 1)"}, say.')
        self._given = dict(given or {})
        self._names: list[str] = []
        self.printed: dict[str, str] = {}

    def take(self, name: str, default: Prior, kind: type | tuple[type, ...], note: str = "",
             family: str | None = None) -> Prior:
        """The prior of ``name``: the user's, that of its ``family`` of names, or the default."""
        self._names.append(name)
        if family is not None and family not in self._names:
            self._names.append(family)
        value = self._given.get(name, self._given.get(family, "auto") if family is not None else "auto")
        prior = default if isinstance(value, str) and value == "auto" else as_prior(value, name)
        if not isinstance(prior, kind):
            raise InputError(f"{name} cannot have this kind of prior", str(prior), f"Its default is {default}.")
        self.printed[name] = str(prior) + (note if prior is default else "")
        return prior

    def given(self, name: str) -> bool:
        """Whether the user gave a prior for this name itself."""
        return name in self._given and self._given[name] != "auto"

    def positive(self, name: str, default: PositivePrior, unit: float = 1.0, *, begin: float | None = None,
                 kind: Any = "parameter") -> PositiveParameter:
        """A positive parameter with the user's prior or the default one; a name that a column has is changed."""
        while name in self.printed:
            name += " (parameter)"
        prior = self.take(name, default, (PositivePrior, Fixed))
        if isinstance(prior, Fixed):
            require(prior.value > 0.0, f"{name} must be held at a positive value", f"{prior}", "Pass one, or a prior.")
        if begin is None:
            begin = prior.typical() if isinstance(prior, PositivePrior) else 1.0
        return PositiveParameter(name, prior, begin, unit, kind=kind)

    def bounded(self, name: str, default: Prior, low: float, high: float, *, begin: float = 0.5) -> BoundedParameter:
        """A parameter between two limits with the user's prior or the default one."""
        prior = self.take(name, default, (Beta, Uniform, PCCorrelation, Fixed, type(default)))
        if isinstance(prior, Fixed):
            require(low < prior.value < high, f"{name} must be held between {low:g} and {high:g}", f"{prior}",
                    "Pass a value between them, or a prior.")
        return BoundedParameter(name, prior, low, high, begin)

    def finish(self) -> None:
        """An error for a name that nothing has."""
        for name in self._given:
            if name not in self._names and name != "fixed":  # all columns, where there are none as well
                raise InputError("priors must name parts of the model", repr(name), nearest(name, self._names)
                                 + f"The names are {', '.join(dict.fromkeys(self._names))}.")


@dataclass(frozen=True, eq=False)
class Likelihood:
    """A likelihood as a fit uses it: its link, which parameters are known, which are to be estimated.

    A record; ``prepared`` returns the one with the priors of its free parameters, which need the scale of the data.
    """

    name: ClassVar[str] = ""
    aliases: ClassVar[tuple[str, ...]] = ()
    about: ClassVar[str] = ""
    response: ClassVar[ResponseKind] = "any"
    links: ClassVar[Mapping[str, Callable[..., Site]]] = {}  # what builds the site, by link; the first is the default
    site_parameters: ClassVar[tuple[SiteParameter, ...]] = ()
    densities: ClassVar[Mapping[str, str]] = {}  # log p(y | f) in Stan, by link: see ``stan``
    censorable: ClassVar[bool] = False  # whether y may be censored: ``Surv(time, status)``
    squares: ClassVar[bool] = False  # whether log p(y | f) = c - g (y - f)^2, c and g the same for all rows
    by_median: ClassVar[bool] = False  # whether ``mean_response`` is the median of y
    cell_sums: ClassVar[ResponseSums | None] = None  # all that it needs of many y of one f; None: each y, or its counts

    link_name: str = ""
    known: Mapping[str, Any] = field(default_factory=dict)  # by field of the site
    parameters: tuple[ParameterBlock, ...] = ()  # free ones; there after ``prepared``
    levels: tuple[str, ...] = ()  # of classes, in the order that the user gave

    # -- facts

    @property
    def link(self) -> Link:
        return LINKS[self.link_name or next(iter(self.links))]

    @property
    def free(self) -> tuple[SiteParameter, ...]:
        """The site's parameters that are not known."""
        return tuple(p for p in self.site_parameters if p.field not in self.known)

    @property
    def scaled(self) -> bool:
        """Whether f has the unit of y."""
        return self.link.name == "identity" and self.response == "real"

    @property
    def fields(self) -> tuple[str, ...]:
        """The latent values of a datum: one, or one per class."""
        return ("mu",)

    @property
    def label(self) -> str:
        """What the output says.

        >>> from klimb.likelihoods import likelihood
        >>> likelihood("student_t(df=4)").label
        'student_t, identity link, df = 4'
        """
        known = ", ".join(f"{name} = {_shown(value)}" for name, value in self.known.items())
        return f"{self.name}, {self.link.name} link" + (f", {known}" if known else "")

    def knowing(self, values: Mapping[str, Any]) -> Self:
        """The same with these fields of the site known."""
        return replace(self, known={**self.known, **values})

    # -- data

    def read(self, left: Left, weights: Array | None = None, offset: Array | None = None) -> Observed:
        """Clean data; errors name the rows of ``left``."""
        if left.status is not None and not self.censorable:
            raise InputError("censored data need a family that supports censoring", f"{self.name} for Surv()",
                             'Use family="weibull", "exponential", "gamma", or "gaussian" for Surv(log(time), status).')
        if self.response == "classes" and offset is not None:
            raise InputError("an offset needs one linear predictor", f"{self.name}, which has one for each class",
                             "Leave offset() out: what is added to all classes changes no probability.")
        found = read_response(left, self.response, self.name, self.levels)
        return replace(found, weights=weights, offset=offset, rows=left.rows)

    def for_data(self, data: Observed) -> "Likelihood":
        """The likelihood that these data ask for: itself, but where trials turn one into another."""
        return self

    def by_squares(self, data: Observed) -> bool:
        """Whether a sum of squares has all that these data say of f, so that few rows may stand for many."""
        return self.squares and not data.aux and not any(np.ndim(value) for value in self.known.values())

    def units(self, data: Observed) -> Units:
        """The unit of f: that of y where the link is the identity, weighted."""
        if not self.scaled:
            return Units()
        shares, size = data.shares, float(np.abs(data.y).max(initial=0.0)) or 1.0
        unit = data.y / size  # y of 1e200 has squares all the same
        centre = float(shares @ unit)
        spread = float(np.sqrt(shares @ (unit - centre) ** 2))
        return Units(centre * size, (spread if spread > 1e-12 else 1.0) * size)

    def centre(self, data: Observed) -> Array:
        """(fields,): the link of the mean response, moderated: where the intercepts' priors are centred."""
        return np.array([float(self.link.apply(np.asarray(self.mean_response(data))))])

    def following(self, theta: Sequence[Array]) -> tuple[float, tuple[float, ...]]:
        """What ``centre`` moves by at theta, and the slope of that in the value of each parameter."""
        return 0.0, ()

    def centre_words(self) -> str:
        """``centre`` where it moves with theta, as a table and Stan have it; nothing where it stands still."""
        return ""

    def mean_response(self, data: Observed) -> float:
        """The weighted mean of y, away from the ends of its range."""
        return float(data.shares @ data.y)

    def reach(self, data: Observed) -> float:
        """The scale of the intercept's prior before it is widened: the spread of f."""
        return self.units(data).spread

    # -- parameters

    def prepared(self, data: Observed, choices: Choices) -> Self:
        """The likelihood with blocks for its free parameters."""
        scale = self.units(data).spread
        blocks = tuple(choices.positive(p.name, p.prior(scale), scale if p.scaled else 1.0,
                                        begin=0.7 * scale if p.scaled else None) for p in self.free)
        return replace(self, parameters=blocks)

    def values(self, theta: Sequence[Array]) -> dict[str, Any]:
        """What the site's free parameters are, by field."""
        return {p.field: block.value(own) for p, block, own in zip(self.free, self.parameters, theta, strict=True)}

    def new(self, theta: Sequence[Array], aux: Mapping[str, Any] | None = None) -> Site:
        """The site of new data: no weights, no offset."""
        beside = dict(aux or {})
        status = beside.pop("status", None)
        site = self.links[self.link.name](**self.known, **self.values(theta), **beside)
        return site if status is None else Censored(site, status)

    def site(self, theta: Sequence[Array], data: Observed) -> Site:
        """The site of these data, with their trials, offset and weights."""
        site = self.new(theta, data.aux)
        if data.offset is not None and data.offset.any():
            site = Offset(site, data.offset)
        return site if data.weights is None else Weighted(site, data.weights)

    def gradient(self, theta: Sequence[Array], data: Observed, m: Array, v: Array) -> tuple[Array, ...]:
        """d/dtheta of sum_i E log p(y_i | f_i), one array per block: the site's own, or differences of the oracle."""
        site = self.site(theta, data)
        known, names = site.parameter_slopes(site.validate(data.y), m, v), tuple(self.values(theta))
        if known is not None and known.keys() >= set(names):
            return tuple(block.pull(own, known[name])
                         for name, block, own in zip(names, self.parameters, theta, strict=True))
        found = []
        for number, (block, own) in enumerate(zip(self.parameters, theta, strict=True)):
            slopes = np.zeros(block.size)
            for k in range(block.size):
                sides = []
                for sign in (1.0, -1.0):
                    moved = own.copy()
                    moved[k] += sign * DIFFERENCE
                    site = self.site([*theta[:number], moved, *theta[number + 1 :]], data)
                    clean = site.validate(data.y)
                    sides.append(site.oracle(clean, m, v).value + site.constant(clean))
                slopes[k] = float((sides[0] - sides[1]).sum()) / (2 * DIFFERENCE)
            found.append(slopes)
        return tuple(found)

    # -- words

    def stan(self, data: Observed) -> StanPart:
        """log p(y | f) as Stan has it, and the data that it takes.

        It speaks of y, f, the site's parameters by their names and what the data have beside y; ``{n}`` follows what
        every row has. Written with ``[n]`` it is for one row at a time.
        """
        require(self.link.name in self.densities, "this needs a likelihood that can be written in Stan", self.label,
                "Use one of klimb's families, or give yours the field densities.")
        first = {"binary": 0, "trials": 0, "counts": 0, "ordered": 1, "classes": 1}.get(self.response)
        kind = "vector[N]" if first is None else f"array[N] int<lower={first}>"
        y = data.y if first is None else data.y.astype(np.int64) + first
        aux = {name: values.astype(np.int64) if first is not None else values for name, values in data.aux.items()}
        density = self.densities[self.link.name]
        if "status" in aux:
            one = density.replace("{n}", "[n]")
            density = f"(status[n] == 1 ? {one} : {one.replace('_lpdf', '_lccdf')})"
        return StanPart(data=(f"{kind} y;", *(f"{kind} {name};" for name in aux)), values={"y": y, **aux},
                        density=density, by_row="[n]" in density)

    def mean_label(self, data: Observed) -> str:
        """What an axis says that shows E[y]."""
        return f"mean of {data.name}"


def _shown(value: Any) -> str:
    return f"{value:g}" if np.ndim(value) == 0 else "[" + ", ".join(f"{v:g}" for v in value) + "]"
