"""The likelihoods: one class per site, all of them in ``SITES`` by name."""

from klimb._stored import stored
from klimb.sites.base import Expectation, Site
from klimb.sites.classes import Ordinal, Softmax
from klimb.sites.counts import Binomial, CLogLog, Logistic, NegativeBinomial, Poisson, Probit
from klimb.sites.custom import Custom
from klimb.sites.local import ExponentialPower, Sech2, SuperGaussian
from klimb.sites.positive import Beta, Exponential, Gamma, Weibull
from klimb.sites.prediction import Prediction
from klimb.sites.real import Gaussian, Laplace, StochasticVolatility, StudentT
from klimb.sites.stack import Stack
from klimb.sites.wrappers import Cavity, Censored, Offset, Point, Weighted

# One parametrised test suite, the command line and the table in the documentation run over this registry.
SITES: dict[str, type[Site]] = {
    site.__name__: site
    for site in (Logistic, Probit, CLogLog, Binomial, Poisson, NegativeBinomial, Exponential, Gamma, Weibull, Gaussian,
                 Laplace, StudentT, ExponentialPower, Sech2, StochasticVolatility, Ordinal, Beta)
}

# What files may hold; not Custom, which is code.
_STORED: tuple[type[Site], ...] = (*SITES.values(), Softmax, Weighted, Offset, Censored, Point, Cavity, SuperGaussian,
                                  Stack)
for _site in _STORED:
    stored(f"site.{_site.__name__}")(_site)

# Spelled out, because type checkers do not read a computed list.
__all__ = ["SITES", "Beta", "Binomial", "CLogLog", "Cavity", "Censored", "Custom", "Expectation", "Exponential",
           "ExponentialPower", "Gamma", "Gaussian", "Laplace", "Logistic", "NegativeBinomial", "Offset", "Ordinal",
           "Point", "Poisson", "Prediction", "Probit", "Sech2", "Site", "Softmax", "Stack", "StochasticVolatility",
           "StudentT", "SuperGaussian", "Weibull", "Weighted"]
