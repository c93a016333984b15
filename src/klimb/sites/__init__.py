"""The likelihoods: one class per site, all of them in ``SITES`` by name."""

from __future__ import annotations

from klimb.sites.base import Expectation, Site
from klimb.sites.binary import CLogLog, Logistic, Probit
from klimb.sites.counts import Binomial, NegativeBinomial, Poisson
from klimb.sites.ordinal import Ordinal
from klimb.sites.positive import Exponential, Gamma
from klimb.sites.proportion import Beta
from klimb.sites.real import Gaussian, Laplace, StochasticVolatility, StudentT

# One parametrised test suite, the command line and the table in the documentation run over this registry.
SITES: dict[str, type[Site]] = {
    site.__name__: site
    for site in (Logistic, Probit, CLogLog, Binomial, Poisson, NegativeBinomial, Exponential, Gamma, Gaussian, Laplace,
                 StudentT, StochasticVolatility, Ordinal, Beta)
}

__all__ = ["SITES", "Expectation", "Site", *SITES]  # noqa: PLE0604
