"""Priors whose mean moves with parameters of the likelihood: of the intercept of a Weibull model with its shape."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from klimb.latents.base import Posterior
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


def add_following(model: LinearModel, total: Array, posterior: Posterior) -> None:
    """d bound / d centre = sum (E w - mean) / variance over the weights whose prior moves with it, in theta."""
    if all(term.follows is None for term in model.terms):
        return
    theta, blocks, mean = model.theta, model.likelihood.parameters, posterior.latent.detach(posterior).mean
    _, slopes = model.likelihood.following(theta.of_owner(model.at, blocks))
    for term, prior, place in zip(model.terms, model.priors(), model.places, strict=True):
        if term.follows is not None and prior is not None:
            pull = float(term.follows @ ((mean[place] - prior.mean) / prior.variances))
            theta.add(total, blocks, [block.pull(model.at[theta.slice_of(block)], slope * pull)
                                      for block, slope in zip(blocks, slopes, strict=True)])
