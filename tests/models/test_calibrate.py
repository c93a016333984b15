"""Simulation-based calibration: good fits are calibrated, bad ones are caught, and only the seed decides."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import klimb
from klimb.errors import InputError
from klimb.models.calibrate import binomial_band

RNG = np.random.default_rng(5)
X = np.column_stack([np.ones(40), RNG.standard_normal((40, 2))])
TIMES = np.sort(RNG.uniform(0, 5, 30))
K = 2.0 * np.exp(-0.5 * (TIMES[:, None] - TIMES) ** 2) + 1e-6 * np.eye(30)


@pytest.mark.parametrize(("name", "latent", "site"), [
    ("logistic", klimb.latents.Weights(X), klimb.sites.Logistic()),
    ("poisson", klimb.latents.Weights(X, cov=0.5), klimb.sites.Poisson()),
    ("process", klimb.latents.Kernel(K), klimb.sites.Logistic()),
])
def test_intervals_cover(name: str, latent: Any, site: Any) -> None:
    """90% intervals cover 87% to 93% of 500 truths."""
    found = klimb.calibrate(latent, site, n=500)
    assert found.n == 500
    assert found.failed == 0
    assert 0.87 <= found.overall(0.9) <= 0.93
    assert 0.45 <= found.overall(0.5) <= 0.55
    assert found.calibrated
    assert found.ranks().shape == (found.places.shape[1], 20)
    assert np.all(found.ranks().sum(1) == 500)


def test_too_narrow_a_fit_is_caught() -> None:
    """Mean field with strongly correlated columns: 90% intervals that cover far less."""
    Z = np.column_stack([np.ones(60), 1.0 + 0.2 * RNG.standard_normal(60)])
    found = klimb.calibrate(klimb.latents.MeanField(Z, cov=4.0), klimb.sites.Logistic(), n=80)
    assert found.overall(0.9) < 0.75
    assert not found.calibrated


def test_correction_widens() -> None:
    """Few counts: q understates, the corrected marginals less so."""
    latent, site = klimb.latents.Weights(np.ones((4, 1)), cov=4.0), klimb.sites.Poisson()
    plain = klimb.calibrate(latent, site, n=150)
    better = klimb.calibrate(latent, site, n=150, corrected=True)
    assert better.n == plain.n
    assert better.overall(0.9) >= plain.overall(0.9) - 0.01
    assert sum(better.verdicts.values()) == 150


def test_depends_on_the_seed_only() -> None:
    latent = klimb.latents.Weights(X)
    one = klimb.calibrate(latent, klimb.sites.Logistic(), n=12, seed=3)
    again = klimb.calibrate(latent, klimb.sites.Logistic(), n=12, seed=3)
    other = klimb.calibrate(latent, klimb.sites.Logistic(), n=12, seed=4)
    assert np.array_equal(one.places, again.places)
    assert not np.array_equal(one.places, other.places)


def test_tasks_can_be_sent_to_other_processes() -> None:
    import pickle
    from functools import partial

    from klimb.models.calibrate import _looked_up

    task = partial(_looked_up, klimb.latents.Weights(X), klimb.sites.Logistic(), np.arange(3), False, 1e-6)
    seed = np.random.SeedSequence(1)
    here, there = task(seed), pickle.loads(pickle.dumps(task))(seed)
    assert here is not None
    assert there is not None
    assert np.array_equal(here[0], there[0])


def test_models_with_hyperparameters() -> None:
    model = klimb.gp(klimb.kernels.RBF(), TIMES, klimb.sites.Poisson())
    found = klimb.calibrate(model, n=30, marginals=[0, 15])
    assert found.places.shape == (30, 2)
    assert found.kind == "f"


@pytest.mark.parametrize("latent", [
    klimb.latents.Weights(X, mean=0.5, cov=np.diag([1.0, 2.0, 3.0])),
    klimb.latents.Kernel(K, mean=0.3),
    klimb.latents.Mixed(X, np.arange(40) % 5, cov=2.0, group_cov=0.5),
    klimb.latents.Markov(TIMES),
], ids=["weights", "kernel", "mixed", "markov"])
def test_prior_draws_have_the_prior_moments(latent: Any) -> None:
    rng = np.random.default_rng(0)
    f = np.array([latent.draw(rng)[1] for _ in range(3000)])
    assert np.allclose(f.mean(0), latent.mean, atol=6 * np.sqrt(latent.prior_variances.max() / 3000))
    assert np.allclose(f.var(0), latent.prior_variances + latent.slack, rtol=0.2)


def test_mixed_reports_what_it_draws() -> None:
    """f = X w + b of the level, for the weights that come with it."""
    latent = klimb.latents.Mixed(X, np.arange(40) % 5, cov=2.0, group_cov=0.5)
    weights, f = latent.draw(np.random.default_rng(1))
    assert np.allclose(f, X @ weights[:3] + weights[3:][np.arange(40) % 5])


def test_band() -> None:
    low, high = binomial_band(500, 0.9)
    assert (low, high) == (pytest.approx(0.872), pytest.approx(0.926))
    assert binomial_band(1, 0.5) == (0.0, 1.0)


def test_text_record_and_picture() -> None:
    found = klimb.calibrate(klimb.latents.Weights(X), klimb.sites.Logistic(), n=20)
    assert "90% intervals cover" in str(found)
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert record["n"] == 20
    assert sum(record["ranks"]) == 60
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    assert found.plot() is not None
    plt.close("all")


def test_bad_input() -> None:
    latent, site = klimb.latents.Weights(X), klimb.sites.Logistic()
    with pytest.raises(InputError, match="latent and a site"):
        klimb.calibrate("model", site)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="site beside"):
        klimb.calibrate(latent)
    with pytest.raises(InputError, match="at least 1"):
        klimb.calibrate(latent, site, n=0)
    with pytest.raises(InputError, match="indices from 0 to 2"):
        klimb.calibrate(latent, site, n=1, marginals=[3])
    found = klimb.calibrate(latent, site, n=2)
    with pytest.raises(InputError, match="between 0 and 1"):
        found.coverage(1.0)
