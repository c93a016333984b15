"""Exponential families with natural and mean parameters, divergences, entropies and draws."""

from klimb.conjugate.families.base import Family, Naturals
from klimb.conjugate.families.gamma import Gamma, Wishart
from klimb.conjugate.families.joint import NormalGamma, NormalWishart, TiedNormalWishart
from klimb.conjugate.families.normal import MultivariateNormal, Normal
from klimb.conjugate.families.simplex import Beta, Categorical, Dirichlet

__all__ = ["Beta", "Categorical", "Dirichlet", "Family", "Gamma", "MultivariateNormal", "Naturals", "Normal",
           "NormalGamma", "NormalWishart", "TiedNormalWishart", "Wishart"]
