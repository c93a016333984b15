"""The likelihoods by name. One table for formulas, Gaussian processes, estimators, the command line and the docs."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from klimb import sites
from klimb._stored import stored
from klimb.errors import InputError
from klimb.likelihoods.base import EDGE, Choices, Likelihood, SiteParameter
from klimb.likelihoods.data import Observed
from klimb.numerics.arrays import Array
from klimb.priors import Dirichlet, Exponential, LogNormal
from klimb.priors import Gamma as GammaPrior
from klimb.rows.cells import MEAN, MEAN_AND_LOG, MEAN_AND_VARIANCE
from klimb.sites.base import Site
from klimb.theta import Cutpoints

LIKELIHOODS: dict[str, type[Likelihood]] = {}


def register(cls: type[Likelihood]) -> type[Likelihood]:
    """Make a likelihood known by its name, to formulas and to files."""
    if LIKELIHOODS.setdefault(cls.name, cls).__qualname__ != cls.__qualname__:
        raise InputError("likelihoods must have different names", f"{cls.name!r} twice", "Choose another name.")
    LIKELIHOODS[cls.name] = cls
    return stored(f"likelihood.{cls.name}")(cls)


def _dispersion(name: str) -> SiteParameter:
    return SiteParameter(name, name, lambda _: Exponential(1.0, -0.5))


_SCALE = SiteParameter("scale", "scale", Exponential, scaled=True)


@register
class Gaussian(Likelihood):
    """Measurements with normal noise."""

    name, aliases, about, response = "gaussian", ("normal",), "measurements with normal noise", "real"
    links: ClassVar = {"identity": sites.Gaussian}
    densities: ClassVar = {"identity": "normal_lpdf(y{n} | f{n}, sigma)"}
    censorable = squares = True
    cell_sums = MEAN_AND_VARIANCE
    site_parameters = (_SCALE._replace(name="sigma"),)


class Binary(Likelihood):
    """Successes among trials: what Bernoulli and binomial responses share."""

    def mean_response(self, data: Observed) -> float:
        trials = data.aux.get("trials", np.ones(data.n))
        return (float(data.counts @ data.y) + EDGE) / (float(data.counts @ trials) + 2 * EDGE)


@register
class Bernoulli(Binary):
    """One of two outcomes."""

    name, aliases, about, response = "bernoulli", ("binary", "logistic"), "one of two outcomes", "binary"
    links: ClassVar = {"logit": sites.Logistic, "probit": sites.Probit, "cloglog": sites.CLogLog}
    densities: ClassVar = {"logit": "bernoulli_logit_lpmf(y{n} | f{n})",
                           "probit": "std_normal_lcdf((2 * y[n] - 1) * f[n])",
                           "cloglog": "(y[n] == 1 ? log1m_exp(-exp(f[n])) : -exp(f[n]))"}

    def for_data(self, data: Observed) -> Likelihood:
        if "trials" not in data.aux:
            return self
        if self.link.name != "logit":
            raise InputError("trials need the logit link", self.link.name, "Give one row per trial for other links.")
        return Binomial()

    def mean_label(self, data: Observed) -> str:
        return f"P({data.name} = {data.levels[1] if len(data.levels) == 2 else 1})"


@register
class Binomial(Binary):
    """Successes in a number of trials."""

    name, about, response = "binomial", "successes in a number of trials", "trials"
    links: ClassVar = {"logit": sites.Binomial}
    densities: ClassVar = {"logit": "binomial_logit_lpmf(y{n} | trials{n}, f{n})"}

    def new(self, theta: Any, aux: Any = None) -> Site:
        return super().new(theta, aux or {"trials": 1.0})

    def mean_label(self, data: Observed) -> str:
        return f"probability of {data.name}"


class Counts(Likelihood):
    """Whole numbers from 0."""

    def mean_response(self, data: Observed) -> float:
        return (float(data.counts @ data.y) + EDGE) / float(data.counts.sum())


@register
class Poisson(Counts):
    """Counts."""

    name, aliases, about, response = "poisson", ("count",), "counts", "counts"
    links: ClassVar = {"log": sites.Poisson}
    densities: ClassVar = {"log": "poisson_log_lpmf(y{n} | f{n})"}


@register
class NegativeBinomial(Counts):
    """Counts that vary more than Poisson counts do."""

    name, aliases = "negative_binomial", ("negbinomial", "nbinom", "nb")
    about, response = "overdispersed counts", "counts"
    links: ClassVar = {"log": sites.NegativeBinomial}
    densities: ClassVar = {"log": "neg_binomial_2_log_lpmf(y{n} | f{n}, size)"}
    site_parameters = (_dispersion("size"),)


@register
class StudentT(Likelihood):
    """Measurements with outliers."""

    name, aliases, about, response = "student_t", ("student", "t"), "measurements with outliers", "real"
    links: ClassVar = {"identity": sites.StudentT}
    by_median = True
    densities: ClassVar = {"identity": "student_t_lpdf(y{n} | df, f{n}, scale)"}
    site_parameters = (_SCALE, SiteParameter("df", "df", lambda _: GammaPrior(2.0, 0.1)))

    def mean_response(self, data: Observed) -> float:
        order = np.argsort(data.y, kind="stable")  # the median, copies counted
        below = np.cumsum(data.shares[order])
        low, high = (min(int(np.searchsorted(below, 0.5 + gap)), data.n - 1) for gap in (-1e-12, 1e-12))
        return 0.5 * float(data.y[order[low]] + data.y[order[high]])


@register
class Laplace(Likelihood):
    """Measurements around a median."""

    name, aliases, about, response = "laplace", ("double_exponential",), "measurements around a median", "real"
    links: ClassVar = {"identity": sites.Laplace}
    densities: ClassVar = {"identity": "double_exponential_lpdf(y{n} | f{n}, scale)"}
    site_parameters = (_SCALE,)


class PositiveMean(Likelihood):
    """Positive measurements."""

    def mean_response(self, data: Observed) -> float:
        """Of censored times, the time of all over the number of events."""
        share = min(float(data.shares @ data.aux.get("status", np.ones(data.n))) + EDGE / data.total, 1.0)
        return super().mean_response(data) / share or 1.0


@register
class Gamma(PositiveMean):
    """Positive measurements with a constant coefficient of variation."""

    name, response = "gamma", "positive"
    about = "positive measurements with a constant coefficient of variation"
    links: ClassVar = {"log": sites.Gamma}
    densities: ClassVar = {"log": "gamma_lpdf(y{n} | shape, shape * exp(-f{n}))"}
    censorable = True
    cell_sums = MEAN_AND_LOG
    site_parameters = (_dispersion("shape"),)


@register
class ExponentialTimes(PositiveMean):
    """Waiting times; the link "minus log" makes f the log of their rate."""

    name, about, response = "exponential", "waiting times", "nonnegative"
    links: ClassVar = {"log": lambda: sites.Exponential(mean=True), "minus log": lambda: sites.Exponential(mean=False)}
    densities: ClassVar = {"log": "exponential_lpdf(y{n} | exp(-f{n}))",
                           "minus log": "exponential_lpdf(y{n} | exp(f{n}))"}
    censorable = True
    cell_sums = MEAN


@register
@dataclass(frozen=True, eq=False)
class Weibull(PositiveMean):
    """Waiting times with the hazard shape t^(shape - 1) e^f.

    In another unit of time f moves by shape times the log of the ratio of units, and the default prior of the intercept
    moves with it: it is centred where the cumulative hazard is 1 at ``unit``, the mean time of an event.
    """

    name, response = "weibull", "positive"
    about = "waiting times whose hazard is a power of time"
    links: ClassVar = {"log hazard": sites.Weibull}
    densities: ClassVar = {"log hazard": "weibull_lpdf(y{n} | shape, exp(-f{n} / shape))"}
    site_parameters = (SiteParameter("shape", "shape", lambda _: LogNormal(1.0, 1.0)),)
    censorable = True
    unit: float = 1.0  # of time, for the default prior of the intercept

    def for_data(self, data: Observed) -> Likelihood:
        return replace(self, unit=float(f"{self.mean_response(data):.6g}"))  # as it is printed

    def centre(self, data: Observed) -> Array:
        return np.array([-float(np.log(self.unit))])  # at shape = 1

    def following(self, theta: Any) -> tuple[float, tuple[float, ...]]:
        shape, step = {**self.known, **self.values(theta)}["shape"], -float(np.log(self.unit))
        return (shape - 1.0) * step, (step,) * len(self.parameters)

    def centre_words(self) -> str:
        return f"-shape * log({self.unit:.6g})"


@register
class Beta(Likelihood):
    """Proportions strictly between 0 and 1."""

    name, about, response = "beta", "proportions strictly between 0 and 1", "unit"
    links: ClassVar = {"logit": sites.Beta}
    densities: ClassVar = {"logit": "beta_proportion_lpdf(y{n} | inv_logit(f{n}), precision)"}
    site_parameters = (_dispersion("precision"),)


@register
class Ordinal(Likelihood):
    """Ordered levels, by cut points."""

    name, aliases, response = "ordinal", ("cumulative", "ordered"), "ordered"
    about = "ordered levels, by cut points"
    links: ClassVar = {"logit": lambda cutpoints: sites.Ordinal(cutpoints, "logit"),
             "probit": lambda cutpoints: sites.Ordinal(cutpoints, "probit")}
    densities: ClassVar = {"logit": "ordered_logistic_lpmf(y{n} | f{n}, cutpoints)",
                           "probit": "ordered_probit_lpmf(y{n} | f{n}, cutpoints)"}

    def centre(self, data: Observed) -> Array:
        return np.zeros(1)

    def prepared(self, data: Observed, choices: Choices) -> Self:
        if "cutpoints" in self.known:
            if len(data.levels) != len(self.known["cutpoints"]) + 1:
                raise InputError(f"the response must have {len(self.known['cutpoints']) + 1} levels",
                                 f"{len(data.levels)}", "There is one cut point less than levels.")
            return self
        prior = choices.take("cutpoints", Dirichlet(1.0), Dirichlet)
        assert isinstance(prior, Dirichlet)
        choices.printed["cutpoints"] += " (probabilities of the levels where columns are at their means)"
        counts = np.bincount(data.y.astype(np.intp), data.counts, minlength=len(data.levels)) + EDGE
        begin = np.asarray(self.link.apply(np.cumsum(counts)[:-1] / counts.sum()))
        names = tuple(f"cut({low} | {high})" for low, high in zip(data.levels[:-1], data.levels[1:], strict=True))
        return replace(self, parameters=(Cutpoints(names, prior, self.link.name, begin),))

    def values(self, theta: Any) -> dict[str, Any]:
        return {"cutpoints": self.parameters[0].value(theta[0])} if self.parameters else {}

    def mean_label(self, data: Observed) -> str:
        return f"linear predictor of {data.name}"


@register
class Categorical(Likelihood):
    """One of several classes without an order, each with a latent value of its own."""

    name, aliases, response = "categorical", ("multinomial", "softmax"), "classes"
    about = "one of several classes without an order"
    links: ClassVar = {"logit": sites.Softmax}
    densities: ClassVar = {"logit": "categorical_logit_lpmf(y[n] | f[n]')"}

    @property
    def fields(self) -> tuple[str, ...]:
        return self.levels

    def for_data(self, data: Observed) -> Likelihood:
        return replace(self, levels=data.levels)

    def new(self, theta: Any, aux: Any = None) -> Site:
        return sites.Softmax(len(self.levels))

    def centre(self, data: Observed) -> Array:
        logs = np.log(np.bincount(data.y.astype(np.intp), data.counts, len(self.levels)) + EDGE)
        return np.asarray(logs - logs.mean())


@register
class StochasticVolatility(Likelihood):
    """Returns whose log variance is modelled."""

    name, aliases, response = "stochastic_volatility", ("volatility",), "real"
    about = "returns whose log variance is modelled"
    links: ClassVar = {"log": sites.StochasticVolatility}
    densities: ClassVar = {"log": "normal_lpdf(y{n} | 0, exp(0.5 * f{n}))"}

    def mean_response(self, data: Observed) -> float:
        return float(data.shares @ data.y**2) or 1.0

    def mean_label(self, data: Observed) -> str:
        return f"variance of {data.name}"
