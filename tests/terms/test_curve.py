"""Matern curves by their Markov form, against dense algebra of the same kernel at any range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

import klimb
from klimb.errors import InputError
from klimb.latents import Precision
from klimb.likelihoods import likelihood
from klimb.models.setup import build
from klimb.rows.frames import read_frame
from klimb.rows.table import Source
from klimb.terms.encoder import encode

RNG = np.random.default_rng(3)
X = np.concatenate([RNG.uniform(0.0, 10.0, 50), [3.0, 3.0]])
Y = np.sin(X) + 0.5 * RNG.standard_normal(len(X))
NEW = np.array([-7.0, -0.01, 3.0, 4.321, 9.0, 10.5, 40.0])
RANGES = [1e-2, 0.3, 1.0, 10.0, 1e3, 1e5]  # beside an extent of 10


def model_of(formula: str, x: Any = X, family: str = "gaussian") -> tuple[Any, Any]:
    y = Y if family == "gaussian" else RNG.poisson(2.0, len(x))
    encoder, encoded = encode(f"y ~ {formula}", {"x": x, "y": np.resize(y, len(x))})
    model, _, observed, _ = build(encoder, encoded, likelihood(family, None), None)
    return model, observed


def matern(a: Any, b: Any, reach: float) -> Any:
    x = np.sqrt(12.0) / reach * np.abs(np.subtract.outer(a, b))
    return (1.0 + x) * np.exp(-x)


@pytest.mark.parametrize("reach", RANGES)
def test_the_process_is_a_matern_one_at_and_between_the_places(reach: float) -> None:
    """Evidence, means and variances at the data and elsewhere, under a wide prior of the intercept."""
    model, _ = model_of("spde(x)")
    term, rows, values = model.terms[1], model.rows.blocks[1].values, [0.7, reach]
    assert len(term.nodes) == len(np.unique(X))
    prior, n = term.prior(values), len(X)
    block = term.block(Source(read_frame({"x": NEW})))
    elsewhere, root = term.columns_at(block, values), term.new(block, values)

    def with_level(of: Any) -> Any:
        return scipy.sparse.hstack([np.ones((of.shape[0], 1)), of], format="csr")

    latent = Precision(scipy.sparse.block_diag([[[0.01]], prior.precision]), with_level(rows),
                       logdet=prior.logdet + np.log(0.01))
    result = klimb.infer(latent, klimb.sites.Gaussian(0.5), Y)
    q = latent.detach(result.posterior)
    places = np.concatenate([X, NEW])
    K = 0.49 * matern(places, X, reach) + 100.0
    noisy = K[:n] + 0.25 * np.eye(n)
    evidence = -0.5 * (Y @ np.linalg.solve(noisy, Y) + np.linalg.slogdet(noisy)[1] + n * np.log(2.0 * np.pi))
    assert np.isclose(result.bound, evidence, atol=1e-4)
    mean, variance = q.at(with_level(scipy.sparse.vstack([rows, elsewhere])))
    variance[n:] += root[:, 0] ** 2
    np.testing.assert_allclose(mean, K @ np.linalg.solve(noisy, Y), atol=1e-5)
    np.testing.assert_allclose(variance, 100.49 - np.einsum("ij,ji->i", K, np.linalg.solve(noisy, K.T)), rtol=1e-4)


@pytest.mark.parametrize("reach", RANGES)
def test_gradients_are_those_of_the_evidence(reach: float) -> None:
    model, observed = model_of("spde(x)")
    theta = model.theta.start + 0.1
    at = model.theta.slice_of(model.terms[1].parameters[1])
    theta[at] += np.log(reach / float(np.ravel(model.theta.reported(theta[None])["range(spde(x))"])[0]))
    here = model.moved(theta)
    found = here.gradient(here.infer(observed, tol=1e-10).posterior, observed)
    for k, unit in enumerate(1e-3 * np.eye(len(theta))):
        sides = [model.moved(theta + sign * unit).infer(observed, tol=1e-10).bound for sign in (1.0, -1.0)]
        assert np.isclose(found[k], (sides[0] - sides[1]) / 2e-3, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("reach", [2.0, 1e3])
def test_places_too_close_for_double_precision_share_nodes(reach: float) -> None:
    x = np.concatenate([np.linspace(0.0, 10.0, 40), np.linspace(0.0, 10.0, 40) + 1e-9])
    model, _ = model_of("spde(x)", x)
    term, rows = model.terms[1], model.rows.blocks[1].values
    assert len(term.nodes) == 40
    prior = term.prior([2.0, reach])
    V = rows @ np.linalg.solve(prior.precision.toarray(), rows.T.toarray())
    np.testing.assert_allclose(V, 4.0 * matern(x, x, reach), atol=1e-5)


@pytest.mark.parametrize(("formula", "words"), [
    ("spde(x, spacing=0)", "positive spacing"), ("spde(one)", "three different"),
    ("spde(x, mesh=M)", "two coordinates"), ("spde(many, spacing=1e-9)", "or more"),
    ("spde(x, spacing=100)", "below the extent"),
])
def test_bad_curves_are_told_in_words(formula: str, words: str) -> None:
    data = {"x": X, "y": Y, "one": np.ones(len(X)), "many": np.repeat(X[:26], 2) + np.tile([0.0, 1e-7], 26)}
    with pytest.raises(InputError, match=words):
        klimb.fit(f"y ~ {formula}", data, meshes={"M": ([[0, 0], [1, 0], [0, 1]], [[0, 1, 2]])})


def test_shared_nodes_are_told_and_ranges_that_they_cannot_tell() -> None:
    fit = klimb.fit("y ~ spde(x, spacing=0.5)", {"x": X, "y": Y}, hyper="optimise",
                    priors={"range(spde(x))": "fixed(1)"})
    assert any("nodes, 0.5 apart" in note for note in fit.notes)
    assert any("spacing=0.1" in note for note in fit.notes)


@pytest.mark.parametrize("formula", ["spde(x, spacing=0.5)", "spde(x, x2, spacing=0.5)", "iid(g):spde(x, spacing=0.5)"])
@pytest.mark.parametrize(("reach", "verdict"), [(0.6, "doubt"), (5.0, "trust")])
def test_ranges_that_nodes_cannot_tell_are_a_doubt(formula: str, reach: float, verdict: str) -> None:
    """Under trust, sds were 28 times too large where data stand in two places a million ranges apart."""
    name = formula.replace(", spacing=0.5", "")
    data = {"x": X, "y": Y, "x2": np.cos(X), "g": np.arange(len(X)) % 2}
    fit = klimb.fit(f"y ~ {formula}", data, priors={f"range({name})": f"fixed({reach})", f"sd({name})": "fixed(1)"})
    assert fit.trust.verdict == verdict
    assert ("spacing=0.06" in fit.trust.advice) == (verdict == "doubt")


def test_noise_has_the_posterior_of_the_exact_process() -> None:
    """Ranges of thousands of times the data are as likely as others."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 10.0, 400)
    y = np.sin(np.arange(400) / 30.0) + 0.3 * rng.standard_normal(400)  # no function of x
    fit = klimb.fit("y ~ spde(x)", {"x": x, "y": y})
    assert fit.converged
    assert fit.trust.verdict == "trust"
    # By importance sampling over 6,000 hyperparameters with the exact covariance: sigma 0.758 (0.027), sd(spde) 0.26.
    rows = {row.name: row for row in fit.table_rows()}
    assert abs(rows["sigma"].mean - 0.758) < 0.003
    assert abs(rows["sigma"].sd / 0.0274 - 1.0) < 0.05
    assert abs(rows["sd(spde(x))"].mean - 0.26) < 0.03


def test_a_curve_with_a_shape_is_trusted() -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(0.0, 10.0, 100)
    fit = klimb.fit("y ~ spde(x)", {"x": x, "y": np.sin(x) + 0.3 * rng.standard_normal(100)})
    assert fit.trust.verdict == "trust"
    mean = fit.predict({"x": [2.0, 5.0, 8.0]})["mean"]
    np.testing.assert_allclose(mean, np.sin([2.0, 5.0, 8.0]), atol=0.25)


@pytest.mark.parametrize("seed", [0, 3])
def test_counts_at_random_places_converge(seed: int) -> None:
    """Two of the places are close: bounds have fewer digits than their own rounding, and fits wait for no more."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.0, 10.0, 80)
    y = rng.poisson(3.0 * rng.gamma(4.0, np.exp(np.sin(x)) / 4.0))
    fit = klimb.fit("y ~ spde(x)", {"x": x, "y": y}, "poisson")
    assert fit.converged
