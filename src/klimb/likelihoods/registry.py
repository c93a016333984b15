"""From what a user gives to a likelihood: a name, "name(parameter=value)", a dict, a site, or a log density."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from klimb import sites
from klimb._calls import parse_call
from klimb._stored import stored
from klimb.errors import InputError, nearest, require
from klimb.likelihoods.base import LINKS, Choices, Likelihood, Link, SiteParameter, Units
from klimb.likelihoods.data import Left, Observed, ResponseKind
from klimb.likelihoods.named import LIKELIHOODS
from klimb.numerics.arrays import Array
from klimb.priors import LogFlat
from klimb.sites.base import Site
from klimb.theta import PositiveParameter

# Names of links that people use for a family.
_BY_LINK = {"probit": ("bernoulli", "probit"), "cloglog": ("bernoulli", "cloglog"), "logit": ("bernoulli", "logit")}


def likelihood(spec: Any, link: str | None = None) -> Likelihood:
    """The likelihood that ``spec`` names or is.

    >>> likelihood("binary", link="probit").label
    'bernoulli, probit link'
    >>> likelihood({"name": "ordinal", "levels": ["low", "high"]}).levels
    ('low', 'high')
    """
    if isinstance(spec, Likelihood):
        return spec
    if isinstance(spec, Site):
        return from_site(spec)
    if isinstance(spec, Mapping):
        options = dict(spec)
        name = options.pop("name", options.pop("family", None))
        link = options.pop("link", link)
    elif isinstance(spec, str):
        name, options = parse_call(spec, "family")
        if options.pop("", None):
            raise InputError("the numbers of a family must have names", repr(spec), "Write student_t(df=4), say.")
    elif callable(spec) and not isinstance(spec, type):
        return from_site(sites.Custom(spec))
    else:
        raise InputError("family must be a name, a dict, a klimb site (Logistic(), say) or a log density", repr(spec),
                         f"The names are {', '.join(LIKELIHOODS)}.")
    kind, link = _find(str(name), link)
    chosen = link or next(iter(kind.links))
    require(chosen in kind.links, f"{kind.name} has the link {' or '.join(kind.links)}", repr(chosen),
            "Leave link out for the default.")
    levels = tuple(str(level) for level in options.pop("levels", ()))
    if levels and kind.response not in ("ordered", "classes"):
        raise InputError("only an ordinal response has levels in order", f"levels for {kind.name}", "Leave them out.")
    known = {_parameter(kind, key).field: float(value) for key, value in options.items()}
    return kind(chosen, known, (), levels)


def _find(name: str, link: str | None) -> tuple[type[Likelihood], str | None]:
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    if plain in _BY_LINK and link is None:
        plain, link = _BY_LINK[plain]
    for kind in LIKELIHOODS.values():
        if plain == kind.name or plain in kind.aliases:
            return kind, link
    known = [n for kind in LIKELIHOODS.values() for n in (kind.name, *kind.aliases)]
    raise InputError(f"family must be one of {', '.join(LIKELIHOODS)}", repr(name),
                     nearest(plain, known).strip() or "Pass a klimb site, or a log density, for others.")


def _parameter(kind: type[Likelihood], key: str) -> SiteParameter:
    for parameter in kind.site_parameters:
        if key in (parameter.name, parameter.field):
            return parameter
    names = ", ".join(p.name for p in kind.site_parameters) or "none"
    raise InputError(f"{kind.name} has the parameters: {names}", repr(key), "Leave it out, or choose another family.")


@stored("likelihood.given")
@dataclass(frozen=True, eq=False)
class Given(Likelihood):
    """A site as the user made it: its parameters are held, but for those named in ``learn``, whose prior is flat.

    What y is to f is not known, so priors are wide enough for a location and for a logarithm.
    """

    name = "given"
    about = "the likelihood you gave"
    given: Site = None  # type: ignore[assignment]
    learn: tuple[str, ...] = ()

    @property
    def response(self) -> ResponseKind:  # type: ignore[override]
        """Levels where y is one of several classes; otherwise the site knows what y may be."""
        if not self.levels:
            return "any"
        return "ordered" if self.given.separable else "classes"

    @cached_property
    def link(self) -> Link:
        return _link_of(self.given)

    @property
    def free(self) -> tuple[SiteParameter, ...]:
        return tuple(SiteParameter(name, name, lambda _: LogFlat()) for name in self.learn)

    @property
    def fields(self) -> tuple[str, ...]:
        return ("mu",) if self.given.separable else tuple(str(k) for k in range(self.given.n_outputs))

    @property
    def label(self) -> str:
        name = "custom" if isinstance(self.given, sites.Custom) else type(self.given).__name__
        return f"{name}, {self.link.name} link"

    def read(self, left: Left, weights: Array | None = None, offset: Array | None = None) -> Observed:
        require(left.status is None, "censored data need a family by name", f"{self.label} for Surv()",
                "Use family=\"weibull\", or klimb.sites.Censored with klimb.infer.")
        return Observed(self.given.validate(left.values), weights=weights, offset=offset, rows=left.rows,
                        levels=left.levels or self.levels, name=left.name)

    def units(self, data: Observed) -> Units:
        sd = float(np.sqrt(data.shares @ (data.y - data.shares @ data.y) ** 2))
        return Units(0.0, max(sd, 1.0))

    def centre(self, data: Observed) -> Array:
        return np.zeros(len(self.fields))

    def reach(self, data: Observed) -> float:
        return max(float(np.sqrt(data.shares @ data.y**2)), self.units(data).spread)

    def prepared(self, data: Observed, choices: Choices) -> Self:
        return self.learning(*self.learn)

    def learning(self, *names: str) -> Self:
        """The same with these parameters free, starting where the site has them."""
        for name in names:
            if not isinstance(getattr(self.given, name, None), float):
                raise InputError(f"learn must name positive scalar parameters of {type(self.given).__name__}",
                                 repr(name), "Look at repr(site) for its parameters.")
        blocks = tuple(PositiveParameter(name, LogFlat(), float(getattr(self.given, name))) for name in names)
        return replace(self, learn=tuple(names), parameters=blocks)

    def new(self, theta: Any, aux: Any = None) -> Site:
        changed = {name: block.value(own) for name, block, own in zip(self.learn, self.parameters, theta, strict=True)}
        site: Any = self.given
        moved: Site = replace(site, **changed) if changed else site
        return moved


def from_site(site: Site, learn: tuple[str, ...] = ()) -> Likelihood:
    """A likelihood whose parameters are as the site has them, but for those to ``learn``."""
    labels = site.labels() if site.response == "classes" else np.zeros(0)
    levels = tuple(f"{label:g}" for label in labels) if len(labels) > 2 or not site.separable else ()
    return Given(given=site, levels=levels).learning(*learn)


def _link_of(site: Site) -> Link:
    """What turns f into the mean of y: the link of the likelihood that the site is, else the site's own mean."""
    plain = all(np.all(np.asarray(getattr(site, name, 1.0)) == 1.0) for name in ("exposure", "trials"))
    if plain and (named := _named(site)) is not None:
        return LINKS[named[1]]
    if not site.separable or isinstance(site, sites.Custom) or (
            site.response == "real" and not isinstance(site, sites.Offset)):
        return LINKS["identity"]

    def mean(f: Array) -> Array:
        rows = np.atleast_2d(f)
        return np.array([site.response_moments(row, np.zeros_like(row))[0] for row in rows]).reshape(np.shape(f))

    return Link("own", mean, mean)


def named_site(site: Site) -> Likelihood:
    """For formulas: the named likelihood that a site is, with its parameters known; `Given` where it has no name."""
    if isinstance(site, sites.Poisson) and np.any(np.asarray(site.exposure) != 1.0):
        raise InputError("an exposure belongs in the formula", "Poisson(exposure=...)",
                         "Write offset(log(exposure)), and family=\"poisson\".")
    require(not isinstance(site, sites.Binomial), "trials belong in the formula", "Binomial(trials=...)",
            "Write p(successes, trials) ~ ..., and family=\"binomial\".")
    if isinstance(site, sites.Ordinal):
        return LIKELIHOODS["ordinal"](site.link, {"cutpoints": site.cutpoints})
    if (named := _named(site)) is None:
        return from_site(site)
    kind, link = named
    known = {p.field: getattr(site, p.field) for p in kind.site_parameters}
    require(not any(np.ndim(value) for value in known.values()), "a site in a formula needs scalar parameters",
            type(site).__name__, "New rows have no parameter of their own: pass a number, or use klimb.infer.")
    return kind(link, known)


def _named(site: Site) -> tuple[type[Likelihood], str] | None:
    """The likelihood that a site is, and its link."""
    if isinstance(site, sites.Exponential):
        return LIKELIHOODS["exponential"], "log" if site.mean else "minus log"
    return next(((kind, link) for kind in LIKELIHOODS.values() for link, build in kind.links.items()
                 if build is type(site)), None)
