"""Bridges to `klimb.boost`: models of other packages, and klimb's own, as log densities with gradients.

    klimb.bridges.latent(result)            the exact posterior of a latent Gaussian model that klimb has fitted
    klimb.bridges.hyperparameters(model, y) the hyperparameters of a Gaussian process, by its bound and hyperprior
    klimb.bridges.pymc(model)               a PyMC model
    klimb.bridges.numpyro(model, *args)     a NumPyro model
    klimb.bridges.stan(model)               a Stan model compiled by BridgeStan
    klimb.bridges.emcee(log_prob, ndim)     a function as emcee takes it
    klimb.bridges.dynesty(loglike, prior_transform, ndim)    a pair as dynesty takes it

Each returns a `Bridge`; ``bridge.boost()`` fits the mixture, ``bridge.parameters(draws)`` names its draws.
"""

from klimb.bridges.densities import Bridge, dynesty, emcee, hyperparameters, latent, numpyro, pymc, stan

__all__ = ["Bridge", "dynesty", "emcee", "hyperparameters", "latent", "numpyro", "pymc", "stan"]
