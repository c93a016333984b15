"""What every latent offers beyond the loop: the registered ones, and the one that docs/extend.md writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import klimb
from klimb import latents
from klimb.errors import InputError
from klimb.infer.minibatch import minibatch
from klimb.latents.coordinates import NEGLIGIBLE, coordinates_of, default_coordinates
from klimb.latents.weights_posterior import WEIGHT_POSTERIORS

RNG = np.random.default_rng(11)
N = 20
X = RNG.standard_normal((N, 3))
T = np.sort(RNG.uniform(0, 5, N))
Z = T[::4]
K = np.exp(-np.abs(T[:, None] - T))
COUNTS = RNG.poisson(2.0, N)


def diagonal() -> Any:
    """The class `Diagonal` of docs/extend.md, from the page itself."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "extend.md").read_text()
    block = next(code for code in re.findall(r"```python\n(.*?)```", page, re.S) if "class Diagonal(Latent)" in code)
    names: dict[str, Any] = {"np": np, "klimb": klimb, "rng": np.random.default_rng(0)}
    exec("from typing import final\n" + block, names)
    return names["Diagonal"]


OWN = diagonal()
MADE = {
    "Weights": lambda: latents.Weights(X, mean=0.2, cov=[0.5, 1.0, 2.0], slack=0.1),
    "Kernel": lambda: latents.Kernel(K, mean=0.3),
    "Inducing": lambda: latents.Inducing(np.exp(-np.abs(Z[:, None] - Z)), np.exp(-np.abs(Z[:, None] - T)), 1.0, 0.2),
    "Mixed": lambda: latents.Mixed(X, np.arange(N) % 4, cov=0.5, group_cov=0.4, mean=0.1),
    "Crossed": lambda: latents.Crossed(X, csr_matrix(np.eye(5)[np.arange(N) % 5]), np.arange(N) % 4, cov=0.5,
                                       group_cov=0.4, mean=0.1),
    "CrossedProducts": lambda: latents.CrossedProducts(X, csr_matrix(np.eye(5)[np.arange(N) % 5]), np.arange(N) % 4,
                                                       cov=0.5, group_cov=0.4, mean=0.1),
    "Precision": lambda: latents.Precision(np.eye(5) + np.eye(5, k=1) / 3 + np.eye(5, k=-1) / 3,
                                           np.eye(5)[np.arange(N) % 5], mean=0.1),
    "Markov": lambda: latents.Markov(T, 1.0, 2.0, 1.5, mean=0.2),
    "Implicit": lambda: latents.Implicit(X, mean=0.2, cov=0.7),
    "Outputs": lambda: latents.Outputs([latents.Weights(X, cov=0.5), latents.Weights(X, cov=0.5)]),
    "MeanField": lambda: latents.MeanField(X, mean=0.2, cov=0.7),
    "Diagonal": lambda: OWN(np.linspace(0.2, 2.0, N)),
}


def test_every_registered_latent_is_here():
    assert {*MADE} == {*latents.LATENTS, "Diagonal"}
    assert all(type(MADE[name]()) is cls for name, cls in latents.LATENTS.items())


def fitted(latent: Any) -> Any:
    if latent.n_outputs > 1:
        return klimb.infer(latent, klimb.sites.Softmax(2), COUNTS > 2)
    return klimb.infer(latent, klimb.sites.Poisson(), COUNTS)


@pytest.fixture(params=MADE)
def latent(request):
    return MADE[request.param]()


def test_coordinates(latent):
    """Z Z' has q's variances, Z' is its adjoint, and what is reported is what the latent says it reports."""
    result = fitted(latent)
    q = result.posterior
    found = coordinates_of(q)
    assert found.kind == latent.reports
    unit = np.eye(found.dim)
    np.testing.assert_allclose((found.deviations(unit) ** 2).sum(0) + latent.slack, q.v, rtol=NEGLIGIBLE)
    z, slopes = RNG.standard_normal((4, found.dim)), RNG.standard_normal((4, latent.n_sites))
    assert (found.deviations(z) * slopes).sum() == pytest.approx((z * found.pull(slopes)).sum())
    np.testing.assert_allclose(found.mean, q.mean if found.kind == "weight" else q.m, atol=1e-8)
    variances = np.diag(q.covariance()) if found.kind == "weight" else q.v
    np.testing.assert_allclose(found.sd**2, variances, rtol=1e-7)


def test_trust(latent):
    result = fitted(latent)
    assert result.trust.verdict in ("trust", "corrected", "doubt")
    assert result.trust.log_evidence > result.bound - 4 * result.trust.log_evidence_error
    assert len(result.trust.corrected.mean) == len(coordinates_of(result.posterior).mean)


def test_prior_draws(latent):
    """Draws of f have the prior's moments, and the truth that comes with them has the size of what is reported."""
    rng = np.random.default_rng(3)
    drawn = [latent.draw(rng) for _ in range(4000)]
    f = np.array([f for _, f in drawn])
    spread = latent.prior_variances + latent.slack
    assert (np.abs(f.mean(0) - latent.mean) < 6 * np.sqrt(spread / 4000)).all()
    np.testing.assert_allclose(f.var(0), spread, rtol=0.2)
    assert len(drawn[0][0]) == (latent.n_weights if latent.reports == "weight" else latent.n_sites)
    if latent.reports == "f":
        assert drawn[0][0] is drawn[0][1]


def test_calibration(latent):
    site = klimb.sites.Softmax(2) if latent.n_outputs > 1 else klimb.sites.Poisson()
    found = klimb.calibrate(latent, site, n=8, seed=2)
    assert found.n + found.failed == 8
    assert found.kind == latent.reports
    assert ((found.places > 0) & (found.places < 1)).all()
    assert sum(klimb.calibrate(latent, site, n=2, seed=2, corrected=True).verdicts.values()) == 2


def test_mean_field(latent):
    """A diagonal q is no better than the full one, and its prior of f is the same."""
    flat = latent.diagonal()
    assert flat.n_outputs == latent.n_outputs
    np.testing.assert_allclose(flat.mean, latent.mean, atol=1e-12)
    np.testing.assert_allclose(flat.prior_variances, latent.prior_variances, atol=1e-9)
    np.testing.assert_array_equal(flat.slack, latent.slack)
    full = fitted(latent)
    found = klimb.methods.mean_field(latent, full.problem.site, COUNTS > 2 if latent.n_outputs > 1 else COUNTS)
    assert found.converged
    assert found.bound <= full.bound + 1e-8


def test_split_and_detach(latent):
    q = fitted(latent).posterior
    parts = latent.split(q)
    np.testing.assert_allclose(np.concatenate([part.m for part in parts]), q.m)
    assert sum(len(part.mean) for part in parts) == len(q.mean)
    detached = latent.detach(q)
    assert WEIGHT_POSTERIORS[detached.kind] is type(detached)
    np.testing.assert_allclose(detached.mean, q.mean, atol=1e-10)
    np.testing.assert_allclose(detached.sd() ** 2, np.diag(q.covariance()), atol=1e-10)
    assert detached.sample(3, np.random.default_rng(0)).shape == (3, detached.size)


def test_double_loop(latent):
    """A latent with a full q, no slack and one output can be fitted by products of its design; others say why not."""
    full = fitted(latent)
    y = COUNTS > 2 if latent.n_outputs > 1 else COUNTS
    refused = {"Outputs": "one latent value", "MeanField": "full covariance"}.get(type(latent).__name__)
    if refused is not None or latent.slack.any():
        with pytest.raises(InputError, match=refused or "without slack"):
            klimb.infer(latent, full.problem.site, y, step=klimb.steps.DoubleLoop())
        return
    found = klimb.infer(latent, full.problem.site, y, step=klimb.steps.DoubleLoop())
    assert found.converged
    assert found.bound == pytest.approx(full.bound, abs=1e-6)
    np.testing.assert_allclose(found.posterior.covariance(), full.posterior.covariance(), atol=1e-5)


def test_batches(latent):
    """Rows in which the prior is N(0, I), or a refusal in words."""
    rows = latent.whitened()
    if rows is None or latent.n_outputs > 1:
        with pytest.raises(InputError, match="few weights"):
            minibatch(latent, klimb.sites.Poisson(), COUNTS)
        return
    np.testing.assert_allclose(rows.dense() @ rows.dense().T, latent.design() @ latent.design().T, atol=1e-12)
    np.testing.assert_allclose(rows.subset(np.array([3, 1])).dense(), rows.dense()[[3, 1]], atol=1e-14)
    found = minibatch(latent, klimb.sites.Poisson(), COUNTS, batch=7, tol=1e-6)
    assert found.bound == pytest.approx(fitted(latent).bound, abs=1e-6)


def test_defaults_find_what_the_latents_say_themselves():
    """The coordinates that the contract gives to an unknown latent have the variances of the latent's own."""
    for name in ("Kernel", "Inducing", "Mixed", "Weights"):
        latent = MADE[name]()
        q = fitted(latent).posterior
        own, default = latent.coordinates(q), default_coordinates(q)
        assert default.kind == "f"
        for z in (own, default):
            d = z.deviations(np.eye(z.dim))
            np.testing.assert_allclose(np.diag(d.T @ d) + latent.slack, q.v, rtol=NEGLIGIBLE)
        np.testing.assert_allclose(default.sd**2, q.v, rtol=1e-7)


def test_many_sites_and_few_weights_have_coordinates_too(monkeypatch):
    from klimb.latents import coordinates

    latent = MADE["Weights"]()
    q = fitted(latent).posterior
    monkeypatch.setattr(coordinates, "LARGEST_DENSE", 10)
    few = default_coordinates(q)
    assert few.dim == 3
    np.testing.assert_allclose((few.deviations(np.eye(3)) ** 2).sum(0) + latent.slack, q.v, rtol=1e-8)
    with pytest.raises(InputError, match=r"up to 10 sites or weights.*20 sites and 20 weights of Diagonal"):
        fitted(OWN(np.ones(N))).trust
    with pytest.raises(InputError, match="coordinates method of its own"):
        default_coordinates(fitted(MADE["MeanField"]()).posterior)


def test_dense_designs_that_are_too_large_are_refused():
    latent = OWN(np.ones(20_000))
    for ask in (lambda: latent.draw(RNG), latent.diagonal, latent.implicit):
        with pytest.raises(InputError, match="20,000 sites x 20,000 weights"):
            ask()
