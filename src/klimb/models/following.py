"""Priors whose mean moves with parameters of the likelihood: of the intercept of a Weibull model with its shape."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from klimb.latents.base import Posterior
from klimb.likelihoods import Observed
from klimb.numerics.arrays import Array
from klimb.terms.base import Term, WeightsPrior

if TYPE_CHECKING:
    from klimb.models.linear import LinearModel


def followed(model: LinearModel, term: Term, prior: WeightsPrior) -> WeightsPrior:
    """The prior of a term where the centre of the likelihood has moved."""
    if term.follows is None:
        return prior
    shift, _ = model.likelihood.following(model.theta.of_owner(model.at, model.likelihood.parameters))
    return replace(prior, mean=prior.mean + shift * term.follows)


def add_following(model: LinearModel, total: Array, posterior: Posterior, data: Observed | None = None) -> None:
    """d bound / d centre of the weights whose prior moves with it, in theta: sum (E w - mean) / variance.

    At the optimum that is what the data say, -sum alpha_i x_i. With ``data`` it is taken from there: q then moves with
    its prior, and what a fit leaves open is not multiplied by how far the prior moves, which the unit of time decides.
    """
    if all(term.follows is None for term in model.terms):
        return
    theta, blocks = model.theta, model.likelihood.parameters
    alpha, mean = np.zeros(0), np.zeros(0)
    if data is None:
        mean = posterior.latent.detach(posterior).mean
    else:
        site = model.site(data)
        alpha = site.oracle(site.validate(data.y), posterior.m[: data.n], posterior.v[: data.n]).alpha
    _, slopes = model.likelihood.following(theta.of_owner(model.at, blocks))
    for term, prior, place in zip(model.terms, model.priors(), model.places, strict=True):
        if term.follows is not None and prior is not None:
            pull = (float(term.follows @ ((mean[place] - prior.mean) / prior.variances)) if data is None else
                    -float(term.follows @ model.design.transpose_times(alpha)[place]))
            theta.add(total, blocks, [block.pull(model.at[theta.slice_of(block)], slope * pull)
                                      for block, slope in zip(blocks, slopes, strict=True)])
