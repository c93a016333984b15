"""Likelihoods: what a response may be, its link, and the parameters that are estimated with the rest.

    likelihood("poisson")                      by name: one registry for every door
    likelihood("student_t(df=4)")              with a parameter that is known
    likelihood(klimb.sites.Laplace(0.5))       a site, its parameters as they are
"""

from klimb.likelihoods.base import LINKS, Choices, Likelihood, Link, SiteParameter, Units
from klimb.likelihoods.data import Left, Merged, Observed
from klimb.likelihoods.named import LIKELIHOODS, register
from klimb.likelihoods.registry import Given, from_site, likelihood, named_site

__all__ = ["LIKELIHOODS", "LINKS", "Choices", "Given", "Left", "Likelihood", "Link", "Merged", "Observed",
           "SiteParameter", "Units", "from_site", "likelihood", "named_site", "register"]
