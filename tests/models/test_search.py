"""The search over hyperparameters starts fits from each other's sites, and does without where these mislead it."""

from __future__ import annotations

import numpy as np

from klimb.infer.start import start_at
from klimb.likelihoods import likelihood
from klimb.models.search import Evaluator
from klimb.models.setup import build
from klimb.terms.encoder import encode


def test_fits_that_sites_of_a_neighbour_led_astray_begin_again() -> None:
    """Gamma data under a surface stalled at bounds of -1e36, from sites guessed from those of the points around."""
    rng = np.random.default_rng(0)
    data = {"y": rng.gamma(2.0, 100.0, 40), "t": np.arange(40.0)}
    encoder, encoded = encode("y ~ rw1(t)", data)
    model, _, observed, _ = build(encoder, encoded, likelihood("gamma", None), None)
    right = Evaluator(model, observed)(model.theta.start)
    for slope, gamma in ((-10.0, 0.1), (-30.0, 0.1)):
        astray = start_at(None, np.full(40, slope), np.full(40, gamma))
        with np.errstate(all="ignore"):
            found = Evaluator(model, observed)(model.theta.start, start=astray)
        assert found.result is not None
        assert found.result.converged
        assert np.isclose(found.objective, right.objective, atol=1e-4)
