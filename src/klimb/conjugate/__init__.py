"""Conditionally conjugate models by KL proximal-point, with sites that are not conjugate where they are needed.

    noise, relevance = gamma(1e-3, 1e-3), gamma(1e-3, 1e-3, plates=(D,))
    w = multivariate_normal(0.0, relevance)
    result = fit(normal(dot(X, w), noise).observe(y))
    result[w].mean, result[noise].mean, result.bound
"""

from klimb.conjugate.classes import chain, mixture
from klimb.conjugate.conditionals import (
    beta,
    categorical,
    dirichlet,
    gamma,
    multivariate_normal,
    normal,
    normal_gamma,
    normal_wishart,
    tied_normal_wishart,
    wishart,
)
from klimb.conjugate.loop import Fitted, ProximalPoint, fit
from klimb.conjugate.means import dot, inner
from klimb.conjugate.observations import bernoulli, poisson, potential, topics
from klimb.conjugate.stochastic import Stochastic, fit_batches

__all__ = ["Fitted", "ProximalPoint", "Stochastic", "bernoulli", "beta", "categorical", "chain", "dirichlet", "dot",
           "fit", "fit_batches", "gamma", "inner", "mixture", "multivariate_normal", "normal", "normal_gamma",
           "normal_wishart", "poisson", "potential", "tied_normal_wishart", "topics", "wishart"]
