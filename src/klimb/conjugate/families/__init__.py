"""Exponential families with natural and mean parameters, divergences, entropies and draws."""

from klimb.conjugate.families.base import Family, Naturals
from klimb.conjugate.families.gamma import Beta, Categorical, Dirichlet, Gamma, Wishart
from klimb.conjugate.families.normal import MultivariateNormal, Normal, NormalGamma, NormalWishart, TiedNormalWishart

__all__ = ["Beta", "Categorical", "Dirichlet", "Family", "Gamma", "MultivariateNormal", "Naturals", "Normal",
           "NormalGamma", "NormalWishart", "TiedNormalWishart", "Wishart"]
