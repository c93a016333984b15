"""Families: likelihoods by name, with their links and the parameters that are estimated beside the coefficients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias, final

import numpy as np
from scipy.special import erfinv, expit, ndtr

from klimb import priors, sites
from klimb.errors import InputError
from klimb.numerics.arrays import Array
from klimb.priors import PositivePrior, parse_call
from klimb.sites.base import Site

ResponseKind: TypeAlias = Literal["binary", "trials", "counts", "real", "positive", "nonnegative", "unit", "ordered",
                                  "any"]


@final
@dataclass(frozen=True)
class Link:
    """What turns the mean of y into f, and f into the mean of y."""

    name: str
    apply: Callable[[Array], Array]
    inverse: Callable[[Array], Array]


def _exp(f: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(f)


LINKS: dict[str, Link] = {
    "identity": Link("identity", np.asarray, np.asarray),
    "log": Link("log", np.log, _exp),
    "minus log": Link("minus log", lambda mean: -np.log(mean), lambda f: _exp(-f)),
    "logit": Link("logit", lambda p: np.log(p) - np.log1p(-p), expit),
    "probit": Link("probit", lambda p: np.sqrt(2.0) * erfinv(2.0 * p - 1.0), ndtr),
    "cloglog": Link("cloglog", lambda p: np.log(-np.log1p(-p)), lambda f: -np.expm1(-_exp(f))),
}


@final
@dataclass(frozen=True)
class SiteParameter:
    """A positive parameter of a site: its field there, its name for the user, and its default prior.

    ``prior`` is given the scale of y; where ``scaled`` is true the parameter has the unit of y.
    """

    name: str
    field: str
    prior: Callable[[float], PositivePrior]
    scaled: bool = False
    least: float = 0.0  # a search stays above


@final
@dataclass(frozen=True)
class Kind:
    """An entry of the table of families."""

    name: str
    sites: dict[str, Callable[..., Site]]  # by link; the first link is the default
    response: ResponseKind
    parameters: tuple[SiteParameter, ...] = ()
    aliases: tuple[str, ...] = ()
    about: str = ""


def _dispersion(name: str, field_name: str) -> SiteParameter:
    return SiteParameter(name, field_name, lambda _: priors.Exponential(1.0, -0.5))


_SCALE = SiteParameter("scale", "scale", priors.Exponential, scaled=True)

# Every family; the table in the documentation and the command line's help are made from this one.
FAMILIES: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("gaussian", {"identity": sites.Gaussian}, "real", (replace(_SCALE, name="sigma"),), ("normal",),
             "measurements with normal noise"),
        Kind("bernoulli", {"logit": sites.Logistic, "probit": sites.Probit, "cloglog": sites.CLogLog}, "binary", (),
             ("binary", "logistic"), "one of two outcomes"),
        Kind("binomial", {"logit": sites.Binomial}, "trials", (), (), "successes in a number of trials"),
        Kind("poisson", {"log": sites.Poisson}, "counts", (), ("count",), "counts"),
        Kind("negative_binomial", {"log": sites.NegativeBinomial}, "counts", (_dispersion("size", "size"),),
             ("negbinomial", "nbinom", "nb"), "counts that vary more than Poisson counts do"),
        Kind("student_t", {"identity": sites.StudentT}, "real",
             (_SCALE, SiteParameter("df", "df", lambda _: priors.Gamma(2.0, 0.1), least=1.001)), ("student", "t"),
             "measurements with outliers"),
        Kind("laplace", {"identity": sites.Laplace}, "real", (_SCALE,), ("double_exponential",),
             "measurements around a median"),
        Kind("gamma", {"log": sites.Gamma}, "positive", (_dispersion("shape", "shape"),), (),
             "positive measurements with a constant coefficient of variation"),
        Kind("exponential", {"log": lambda: sites.Exponential(mean=True)}, "nonnegative", (), (), "waiting times"),
        Kind("beta", {"logit": sites.Beta}, "unit", (_dispersion("precision", "precision"),), (),
             "proportions strictly between 0 and 1"),
        Kind("ordinal", {"logit": lambda cutpoints: sites.Ordinal(cutpoints, "logit"),
                         "probit": lambda cutpoints: sites.Ordinal(cutpoints, "probit")}, "ordered", (),
             ("cumulative", "ordered"), "ordered levels, by cut points"),
        Kind("stochastic_volatility", {"log": sites.StochasticVolatility}, "real", (), ("volatility",),
             "returns whose log variance is modelled"),
    )
}
# Names of links that people use for a family.
_BY_LINK = {"probit": ("bernoulli", "probit"), "cloglog": ("bernoulli", "cloglog"), "logit": ("bernoulli", "logit")}


@final
@dataclass(frozen=True)
class Family:
    """A likelihood as a fit uses it: which site, which parameters are known, which are to be estimated."""

    name: str
    link: Link
    response: ResponseKind
    build: Callable[..., Site]
    known: Mapping[str, Any] = field(default_factory=dict)  # by field of the site
    free: tuple[SiteParameter, ...] = ()
    about: str = ""
    levels: tuple[str, ...] = ()  # of an ordered response, if the user named them

    def site(self, values: Mapping[str, Any]) -> Site:
        """The site with these values of the free parameters (and ``trials`` or ``cutpoints``), by field."""
        return self.build(**self.known, **values)

    @property
    def scaled(self) -> bool:
        """Whether f has the unit of y."""
        return self.link.name == "identity" and self.response == "real"

    @property
    def label(self) -> str:
        """What the output says."""
        known = ", ".join(f"{name} = {_shown(value)}" for name, value in self.known.items())
        return f"{self.name}, {self.link.name} link" + (f", {known}" if known else "")


def _shown(value: Any) -> str:
    return f"{value:g}" if np.ndim(value) == 0 else "[" + ", ".join(f"{v:g}" for v in value) + "]"


def resolve_family(family: Any, link: str | None = None, likelihood: Any = None) -> Family:
    """A `Family` from what the user gave: a name, "name(parameter=value)", a dict, a site, or a log density.

    >>> resolve_family("student_t(df=4)").label
    'student_t, identity link, df = 4'
    >>> resolve_family("binary", link="probit").label
    'bernoulli, probit link'
    """
    if likelihood is not None:
        return _custom(likelihood)
    if isinstance(family, Site):
        return _from_site(family)
    if isinstance(family, Mapping):
        options = dict(family)
        name = options.pop("name", options.pop("family", None))
        link = options.pop("link", link)
    elif isinstance(family, str):
        name, options = parse_call(family, "family")
        if options.pop("", None):
            raise InputError("the numbers of a family must have names", repr(family), "Write student_t(df=4), say.")
    else:
        raise InputError("family must be a name, a dict or a klimb site", repr(family),
                         f"The names are {', '.join(FAMILIES)}.")
    kind, link = _kind(str(name), link)
    chosen = link or next(iter(kind.sites))
    if chosen not in kind.sites:
        raise InputError(f"{kind.name} has the link {' or '.join(kind.sites)}", repr(chosen),
                         "Leave link out for the first.")
    levels = tuple(str(level) for level in options.pop("levels", ()))
    if levels and kind.response != "ordered":
        raise InputError("only an ordinal response has levels in order", f"levels for {kind.name}", "Leave them out.")
    known: dict[str, float] = {}
    for key, value in options.items():
        known[_parameter(kind, key).field] = float(value)
    free = tuple(p for p in kind.parameters if p.field not in known)
    return Family(kind.name, LINKS[chosen], kind.response, kind.sites[chosen], known, free, kind.about, levels)


def _kind(name: str, link: str | None) -> tuple[Kind, str | None]:
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    if plain in _BY_LINK and link is None:
        plain, link = _BY_LINK[plain]
    for kind in FAMILIES.values():
        if plain == kind.name or plain in kind.aliases:
            return kind, link
    if plain in ("categorical", "multinomial", "softmax"):
        raise InputError("a formula models one linear predictor", f"family {name!r}, which has one per class",
                         'Use family="ordinal" if the levels are ordered; for others klimb.sites.Softmax with '
                         "klimb.infer, or klimb.sklearn.GLMClassifier.")
    known = [n for kind in FAMILIES.values() for n in (kind.name, *kind.aliases)]
    near = get_close_matches(plain, known, n=1)
    raise InputError(f"family must be one of {', '.join(FAMILIES)}", repr(name),
                     f"Did you mean {near[0]!r}?" if near else "Pass a klimb site, or likelihood=, for others.")


def _parameter(kind: Kind, key: str) -> SiteParameter:
    for parameter in kind.parameters:
        if key in (parameter.name, parameter.field):
            return parameter
    names = ", ".join(p.name for p in kind.parameters) or "none"
    raise InputError(f"{kind.name} has the parameters: {names}", repr(key), "Leave it out, or choose another family.")


def _from_site(site: Site) -> Family:
    """All parameters as the instance has them."""
    if isinstance(site, sites.Custom):
        return Family("custom", LINKS["identity"], "any", lambda: site, about="the likelihood you gave")
    if isinstance(site, sites.Poisson) and np.any(np.asarray(site.exposure) != 1.0):
        raise InputError("an exposure belongs into the formula", "Poisson(exposure=...)",
                         "Write offset(log(exposure)), and family=\"poisson\".")
    if isinstance(site, sites.Binomial):
        raise InputError("trials belong into the formula", "Binomial(trials=...)",
                         "Write p(successes, trials) ~ ..., and family=\"binomial\".")
    if isinstance(site, sites.Exponential) and not site.mean:
        return Family("exponential", LINKS["minus log"], "nonnegative", lambda: site, about="waiting times, log rate")
    if isinstance(site, sites.Ordinal):
        kind, known = FAMILIES["ordinal"], {"cutpoints": site.cutpoints}
        return Family(kind.name, LINKS[site.link], kind.response, kind.sites[site.link], known, (), kind.about)
    for kind in FAMILIES.values():
        for link, build in kind.sites.items():
            if build is type(site):
                known = {p.field: getattr(site, p.field) for p in kind.parameters}
                if any(np.ndim(value) for value in known.values()):
                    raise InputError("a site in a formula needs scalar parameters", type(site).__name__,
                                     "New rows have no parameter of their own: pass a number, or use klimb.infer.")
                return Family(kind.name, LINKS[link], kind.response, build, known, (), kind.about)
    return Family(type(site).__name__, LINKS["identity"], "any", lambda: site, about="the site you gave")


def _custom(likelihood: Any) -> Family:
    if isinstance(likelihood, Site):
        return _from_site(likelihood)
    if not callable(likelihood):
        raise InputError("likelihood must be a function log_density(y, f)", repr(likelihood),
                         "Write lambda y, f: -abs(y - f), vectorised with NumPy.")
    site = sites.Custom(likelihood)
    return Family("custom", LINKS["identity"], "any", lambda: site, about="the likelihood you gave")
