"""One prior scale, moved with the sites of loose fits: where a search begins that then has little left to do.

With Gaussian sites held, the evidence is that of a Gaussian model. Its slope in the scale is that of the bound at its
optimum, and it bends as q follows the scale, which the bound with q held does not. Two slopes make a secant. Sites
follow the scale as well, so two fits tell more once they are far enough apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb.latents.base import Posterior
from klimb.likelihoods import Observed
from klimb.models.model import Listen, Progress
from klimb.numerics.arrays import Array

LOOSE, CLOSER = 0.3, 0.01  # tolerances of the first fit, and of those that follow
FIRST, LONGEST = 0.3, 1.0  # of the step that a secant with the sites held is made of, and of any that is taken
APART = 0.02  # between scales of two fits whose slopes make a secant
ENOUGH = 0.01  # nats that another fit must promise
MOST = 6  # fits
SEARCH_TOL = 1e-3  # of the gradient in theta of a search from there, which has little to do


@final
@dataclass(frozen=True, eq=False)
class Settled:
    """A model at a scale near the best, the fit before the last move of it, and what it took."""

    model: Any
    posterior: Posterior | None = None
    objective: float = -np.inf  # that the last move promises: bound and log prior
    gain: float = np.inf  # share of that move in it
    curvature: Array | None = None  # minus the second derivative of the objective
    n_fits: int = 0
    before: tuple[float, float] | None = None  # theta and slope of the last fit


def settle(begun: Settled, data: Observed) -> Settled:
    """A loose fit, and the scale moved by the slopes of two fits, or of one with its sites held."""
    model = begun.model
    result = model.infer(data, start=begun.posterior, tol=CLOSER if begun.n_fits else LOOSE)
    q, height, theta = result.posterior, result.bound + model.log_prior()[0], float(model.at[0])
    slope, bend = _slope(model, data, q), 0.0
    if begun.before is not None and abs(theta - begun.before[0]) >= APART:
        bend = (begun.before[1] - slope) / (theta - begun.before[0])
    other = _within(model, float(np.clip(slope / q.latent.n_weights, -FIRST, FIRST)))
    if bend <= 0.0 and other.at[0] != theta:
        bend = (slope - _slope(other, data, _under(other.latent, q))) / float(other.at[0] - theta)
    step = float(np.clip(slope / bend, -LONGEST, LONGEST)) if bend > 0.0 else float(np.sign(slope)) * LONGEST
    moved = _within(model, step)
    gain = 0.5 * slope * float(moved.at[0] - theta)
    curvature = np.array([bend]) if bend > 0.0 else None
    return Settled(moved, q, height + gain, gain, curvature, begun.n_fits + 1, (theta, slope))


def settled(begun: Settled, data: Observed, listen: Listen | None = None) -> Settled:
    """Until another fit promises little, or the listener has enough; what remains is for a search."""
    while begun.gain >= ENOUGH and begun.n_fits < MOST:
        begun = settle(begun, data)
        height = begun.objective - begun.gain
        if listen is not None and listen(Progress("hyperparameters", begun.n_fits, 0, height)) is False:
            break
    return begun


def _within(model: Any, step: float) -> Any:
    return model.moved(np.clip(model.at + step, model.theta.lower, model.theta.upper))


def _under(latent: Any, q: Posterior) -> Posterior:
    """The posterior of the sites of ``q`` under another prior."""
    factor = latent.factor(q.gamma)
    a, Ka = factor.solve(q.a + q.gamma * (q.m - latent.mean))
    return Posterior(latent, a, q.gamma, latent.mean + Ka, factor.variances() + latent.slack, 0.0, factor=factor)


def _slope(model: Any, data: Observed, q: Posterior) -> float:
    """d / d theta of the evidence with the sites of ``q``, and of the log prior."""
    return float((model.gradient(q, data) + model.log_prior()[1])[0])
