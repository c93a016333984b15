"""The softmax site: exact expectations, whatever the number of classes and however wide the normals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from klimb import infer, latents, sites, steps
from klimb.errors import InputError
from klimb.numerics.softmax import (
    EDGES,
    EXACT,
    ROUGH,
    ROUNDING,
    SOFTENING,
    SWITCH,
    _by_quadrature,
    gumbel_normal,
    log_probabilities,
    softmax_moments,
)

REFERENCES = json.loads((Path(__file__).parent.parent / "references" / "softmax_references.json").read_text())


def random_problem(n_classes, n, sd, spread, seed=0):
    rng = np.random.default_rng(seed)
    m = spread * rng.standard_normal((n_classes, n))
    v = (sd * np.exp(0.5 * rng.standard_normal((n_classes, n)))) ** 2
    return rng.integers(0, n_classes, n).astype(float), m, v


@pytest.mark.parametrize("case", range(len(REFERENCES)))
def test_against_nested_integrals_in_high_precision(case):
    reference = REFERENCES[case]
    assert abs(reference["sum of p - 1"]) < 1e-13  # the reference itself
    m, v = np.array(reference["m"])[:, None], np.array(reference["v"])[:, None]
    found = softmax_moments(np.array([reference["label"]]), m, v)
    np.testing.assert_allclose(found.value, reference["value"], rtol=2e-12, atol=2e-12)
    np.testing.assert_allclose(found.probabilities[:, 0], reference["p"], rtol=0, atol=2e-12)
    scale = np.sqrt(1 + np.array(reference["v"]))
    np.testing.assert_allclose(found.curvature[:, 0] * scale, reference["gamma"] * scale, rtol=0, atol=2e-12)


def test_against_a_cube_of_nodes():
    """Three classes by the trapezoid rule in three dimensions: nothing but the definition."""
    z = 0.3 * np.arange(-28, 29)
    weight = np.exp(-0.5 * z * z)
    weight /= weight.sum()
    m, sd = np.array([0.4, -1.0, 0.2]), np.array([0.7, 1.5, 1.1])
    grids = np.meshgrid(*(m[c] + sd[c] * z for c in range(3)), indexing="ij")
    joint = weight[:, None, None] * weight[:, None] * weight
    total = np.logaddexp(np.logaddexp(grids[0], grids[1]), grids[2])
    found = softmax_moments(np.array([1.0]), m[:, None], sd[:, None] ** 2)
    assert found.value[0] == pytest.approx(float((joint * (grids[1] - total)).sum()), abs=1e-12)
    for c in range(3):
        p = np.exp(grids[c] - total)
        assert found.probabilities[c, 0] == pytest.approx(float((joint * p).sum()), abs=1e-12)
        assert found.curvature[c, 0] == pytest.approx(float((joint * p * (1 - p)).sum()), abs=1e-12)


@pytest.mark.parametrize("sd", [0.0, 1e-6, 0.01, 0.3, 1.0, 3.0, 30.0, 1000.0])
@pytest.mark.parametrize("spread", [0.0, 1.0, 10.0, 300.0])
def test_two_classes_are_logistic_in_their_difference(sd, spread):
    """E log p depends on f_1 - f_0 alone: it is that of Logistic at N(m_1 - m_0, v_0 + v_1), with its derivatives."""
    y, m, v = random_problem(2, 40, sd, spread)
    v[0] *= 10.0 ** np.random.default_rng(1).uniform(-2, 2, 40)
    e = sites.Softmax(2).oracle(y, m.ravel(), v.ravel())
    logistic = sites.Logistic().oracle(2 * y - 1, m[1] - m[0], v.sum(axis=0))
    # E logsumexp is an integral of x dP: x as far as P reaches, and P to the rounding of its table.
    reach = np.abs(m[1] - m[0]) + EXACT.normal_reach * np.sqrt(v.sum(axis=0))
    assert np.all(np.abs(e.value - logistic.value) <= 2e-12 * (1 + np.abs(logistic.value)) + ROUNDING * reach)
    np.testing.assert_allclose(e.alpha.reshape(2, -1), [-logistic.alpha, logistic.alpha], atol=2e-12)
    for gamma in e.gamma.reshape(2, -1):
        np.testing.assert_allclose(gamma * np.sqrt(1 + v.max()), logistic.gamma * np.sqrt(1 + v.max()), atol=2e-12)
    np.testing.assert_allclose(sites.Softmax(2).log_predictive(y, m.ravel(), v.ravel()),
                               sites.Logistic().log_predictive(2 * y - 1, m[1] - m[0], v.sum(axis=0)), atol=1e-9)


def test_baseline_of_two_classes_is_logistic():
    y, m, v = random_problem(1, 30, 1.5, 2.0)
    y = np.arange(30.0) % 2
    e = sites.Softmax(2, baseline=True).oracle(y, m.ravel(), v.ravel())
    logistic = sites.Logistic().oracle(2 * y - 1, m.ravel(), v.ravel())
    for name in ("value", "alpha", "gamma"):
        np.testing.assert_allclose(getattr(e, name), getattr(logistic, name), atol=1e-12)


@pytest.mark.parametrize("baseline", [False, True])
@pytest.mark.parametrize(("n_classes", "sd"), [(2, 0.2), (3, 1.0), (3, 40.0), (10, 0.5), (10, 5.0), (100, 2.0)])
def test_alpha_gamma_and_couplings_are_derivatives(n_classes, sd, baseline):
    site = sites.Softmax(n_classes, baseline=baseline)
    K, n, rng = site.n_outputs, 3, np.random.default_rng(2)
    y, m, v = rng.integers(0, n_classes, n) * 1.0, sd * rng.standard_normal(K * n), sd**2 * rng.gamma(3.0, size=K * n)
    e = site.oracle(y, m, v)
    blocks = site.couplings(y, m, v)
    if n_classes > 24:
        assert blocks is None
    for k in rng.permutation(2 * K)[:8]:
        step = np.zeros((2 * K, n))
        step[k] = 1e-3 * (sd if k < K else sd**2)
        dm, dv = step[:K].ravel(), step[K:].ravel()
        sides = [site.oracle(y, m + sign * dm, v + sign * dv) for sign in (-2, -1, 1, 2)]

        def slope(name, sides=sides, k=k, step=step):
            f = [getattr(side, name) for side in sides]
            return (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * step[k, 0])

        own = slice((k % K) * n, (k % K + 1) * n)
        expected = -e.alpha[own] if k < K else -0.5 * e.gamma[own]
        np.testing.assert_allclose(slope("value") * step[k, 0], expected * step[k, 0], atol=2e-11)
        if blocks is not None:
            both = np.concatenate([slope("alpha"), sd * slope("gamma")]).reshape(2 * K, n)
            units = np.where(np.arange(2 * K) < K, 1.0, sd)
            np.testing.assert_allclose(blocks[:, :, k].T * units[:, None] * step[k, 0], both * step[k, 0], atol=2e-10)


def test_no_variance_is_the_point():
    y, m, _ = random_problem(5, 40, 1.0, 3.0)
    site = sites.Softmax(5)
    e, p = site.oracle(y, m.ravel(), np.zeros(200)), site.point(y, m.ravel())
    for name in ("value", "alpha", "gamma"):
        np.testing.assert_allclose(getattr(e, name), getattr(p, name), atol=1e-12)
    draws = site.point(y, np.stack([m.ravel(), 2 * m.ravel()]))
    np.testing.assert_allclose(draws.alpha[0], p.alpha)
    assert draws.value.shape == (2, 40)


@pytest.mark.parametrize("n_classes", [3, 10, 100])
def test_symmetries(n_classes):
    y, m, v = random_problem(n_classes, 20, 2.0, 2.0)
    found = softmax_moments(y, m, v)
    np.testing.assert_allclose(found.probabilities.sum(axis=0), 1.0, atol=5e-12)
    order = np.random.default_rng(0).permutation(n_classes)
    moved = softmax_moments(np.argsort(order)[y.astype(int)].astype(float), m[order] + 7.0, v[order])
    np.testing.assert_allclose(moved.value, found.value, atol=2e-12)
    np.testing.assert_allclose(moved.probabilities, found.probabilities[order], atol=2e-12)
    same = softmax_moments(y, np.zeros_like(m), np.full_like(v, 3.0))
    np.testing.assert_allclose(same.probabilities, 1 / n_classes, atol=2e-12)


def test_classes_that_are_out_of_the_question_change_nothing():
    y, m, v = random_problem(3, 20, 2.0, 2.0)
    more_m, more_v = np.vstack([m, np.full((60, 20), -400.0)]), np.vstack([v, np.full((60, 20), 4.0)])
    few, many = softmax_moments(y, m, v), softmax_moments(y, more_m, more_v)
    np.testing.assert_allclose(many.value, few.value, atol=2e-12)
    np.testing.assert_allclose(many.curvature[:3], few.curvature, atol=2e-12)


def test_chunks_do_not_change_the_answer(monkeypatch):
    from klimb.numerics import softmax

    y, m, v = random_problem(4, 300, 3.0, 5.0)
    v *= 10.0 ** np.random.default_rng(0).uniform(-4, 4, v.shape)
    whole = softmax_moments(y, m, v)
    monkeypatch.setattr(softmax, "POINTS_PER_CHUNK", 1 << 10)
    pieces = softmax_moments(y, m, v)
    np.testing.assert_allclose(pieces.value, whole.value, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(pieces.probabilities, whole.probabilities, atol=1e-12)


@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_extremes_are_finite_and_in_range(n_classes):
    corners = np.array([(m, v) for m in (-300.0, 0.0, 300.0) for v in (0.0, 1e-12, 1.0, 1e6)])
    rng = np.random.default_rng(0)
    pick = rng.integers(0, len(corners), (n_classes, 400))
    y = rng.integers(0, n_classes, 400).astype(float)
    found = softmax_moments(y, corners[pick, 0], corners[pick, 1])
    assert np.isfinite(found.value).all()
    assert (found.value <= 0).all()
    assert (found.curvature >= 0).all()
    assert (found.curvature <= 0.25 + 1e-12).all()
    np.testing.assert_allclose(found.probabilities.sum(axis=0), 1.0, atol=1e-11)
    log_p = log_probabilities(y, corners[pick, 0], corners[pick, 1])
    assert not np.isnan(log_p).any()
    own = found.probabilities[y.astype(int), np.arange(400)]
    np.testing.assert_allclose(np.exp(log_p), own, atol=2e-12)


def test_improbable_labels_keep_their_digits():
    """p = e^-60: against a fit of the same integral with the rare class shifted into sight."""
    m = np.array([[0.0, 0.0], [60.0, 3.0], [-1.0, -1.0]])
    v = np.array([[0.5, 0.5], [0.2, 0.2], [0.0, 0.0]])
    log_p = log_probabilities(np.zeros(2), m, v)
    # Far in the tail e^(f_0) / (e^(f_1) + ...) = e^(f_0 - f_1) on average.
    assert log_p[0] == pytest.approx(-60.0 + 0.25 + 0.1, abs=1e-9)
    assert log_p[1] == pytest.approx(np.log(softmax_moments(np.zeros(2), m, v).probabilities[0, 1]), abs=1e-9)


def gumbel_normal_density(t: np.ndarray, v: float) -> np.ndarray:
    """F' by the same quadratures, slowly: an independent computation of what the table has."""
    s = np.sqrt(v)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if s < SWITCH:
            z = 0.2 * np.arange(-48, 49)
            weight = np.exp(-0.5 * z * z)
            rate = np.minimum(np.exp(s * z - t[..., None]), 1e5)
            return np.asarray((rate * np.exp(-rate)) @ (weight / weight.sum()))
        g = np.arange(-4.0, 42.0, 0.25)
        a = (t[..., None] - g) / s
        return np.asarray(np.exp(-0.5 * a * a) @ (0.25 * np.exp(-g - np.exp(-g))) / (s * np.sqrt(2.0 * np.pi)))


def test_the_table_is_the_distribution_of_a_normal_and_a_gumbel_variable():
    rng = np.random.default_rng(0)
    table = gumbel_normal()
    for low, high in zip(EDGES[:-1], EDGES[1:], strict=True):
        v = rng.uniform(max(low, 1e-3), high) ** -2.0 - 1.0
        scale = np.sqrt(v + SOFTENING)
        t = scale * np.concatenate([rng.uniform(-9, 9, 200), rng.uniform(9, 55, 50)])
        F, density, bend = table.evaluate(t[None].copy(), np.array([v]), bend=True)
        np.testing.assert_allclose(F[0], _by_quadrature(t, v), atol=1e-14)
        np.testing.assert_allclose(density[0] * scale, gumbel_normal_density(t, v) * scale, atol=2e-12)
        shift = 1e-4 * scale
        difference = (gumbel_normal_density(t + shift, v) - gumbel_normal_density(t - shift, v)) / (2 * shift)
        np.testing.assert_allclose(bend[0] * scale**2, difference * scale**2, atol=3e-8)


# -- the site as users meet it


def test_predictions():
    site = sites.Softmax(3)
    m, v = np.array([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]]), np.ones((2, 3))
    prediction = site.predict(m, v)
    p = prediction.probabilities()
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-15)
    np.testing.assert_allclose(np.log(p[[0, 1], [2, 0]]), prediction.log_density([2, 0]), atol=1e-11)
    np.testing.assert_allclose(prediction.log_density(1), np.log(p[:, 1]), atol=1e-11)
    draws = prediction.sample(20_000, rng=0)
    shares = np.stack([(draws == c).mean(axis=0) for c in range(3)], axis=1)
    np.testing.assert_allclose(shares, p, atol=0.015)
    np.testing.assert_allclose(site.log_density([2, 0], m), [2 - np.log(np.exp(m[0]).sum()),
                                                             3 - np.log(np.exp(m[1]).sum())], rtol=1e-14)
    np.testing.assert_array_equal(site.predict(m.T.ravel(), v.T.ravel()).probabilities(), p)
    np.testing.assert_array_equal(site.predict(np.asfortranarray(m)[::-1], v).probabilities(), p[::-1])


def test_bad_input_says_what_to_do():
    site = sites.Softmax(3)
    for call, words in (
        (lambda: sites.Softmax(1), "at least 2 classes"),
        (lambda: sites.Softmax(2.5), "at least 2 classes"),
        (lambda: sites.Softmax(True), "at least 2 classes"),
        (lambda: site.validate([0, 3]), "3.0 at index 1"),
        (lambda: site.validate([0, 0.5]), "0.5 at index 1"),
        (lambda: site.validate([-1]), "-1.0 at index 0"),
        (lambda: site.validate(["a"]), "numbers"),
        (lambda: site.validate([]), "at least one"),
        (lambda: site.predict(np.zeros((4, 2)), np.ones((4, 2))), "one column per latent value"),
        (lambda: site.predict(np.zeros((4, 3)), -np.ones((4, 3))), "at least 0"),
        (lambda: site.predict(np.zeros((4, 3)), np.full((4, 3), np.nan)), "finite"),
        (lambda: site.expect([0, 1], np.zeros((4, 3)), np.ones((4, 3))), "same data"),
        (lambda: sites.Offset(site, 1.0), "one latent value per datum"),
        (lambda: sites.Stack([(site, 3)]), "one latent value per datum"),
        (lambda: sites.Cavity(site), "one latent value per datum"),
    ):
        with pytest.raises(InputError, match=words):
            call()


@pytest.mark.parametrize(("n_classes", "sd", "spread"), [(3, 0.3, 1.0), (4, 3.0, 3.0), (10, 1.0, 10.0), (10, 8.0, 1.0)])
def test_the_rough_rule_is_good_to_six_digits(n_classes, sd, spread):
    y, m, v = random_problem(n_classes, 500, sd, spread)
    close, rough = softmax_moments(y, m, v), softmax_moments(y, m, v, ROUGH)
    np.testing.assert_allclose(rough.value, close.value, atol=1e-6)
    np.testing.assert_allclose(rough.probabilities, close.probabilities, atol=1e-6)
    np.testing.assert_allclose(v * rough.curvature, v * close.curvature, atol=1e-5)
    assert np.abs(rough.probabilities - close.probabilities).max() > 1e-13  # it is another rule


def test_a_fit_goes_most_of_the_way_by_the_rough_rule_and_ends_with_the_exact_one():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((300, 4))
    y = np.argmax(X[:, :3] + rng.gumbel(size=(300, 3)), axis=1)
    latent, site = latents.Outputs.shared(latents.Weights(X, cov=4.0), 3), sites.Softmax(3)
    asked = []
    result = infer(latent, site, y, callback=lambda row: asked.append(row.number))
    exact = infer(latent, site, y, step=steps.Natural())
    assert result.converged
    assert result.bound == pytest.approx(exact.bound, abs=1e-9)
    assert result.history.stationarity[-1] <= 1e-6
    assert asked == list(range(len(asked)))
    assert result.problem.n_oracle < exact.problem.n_oracle / 2  # calls of the exact rule
    assert len(result.history) <= len(exact.history) + 1  # the state that is handed over has one row
    e = site.expect(y, result.posterior.m, result.posterior.v)
    assert result.bound == pytest.approx(float(e.value.sum()) - result.posterior.kl, abs=1e-9)
    stopped = infer(latent, site, y, callback=lambda row: row.number < 2)
    assert stopped.status.name == "STOPPED"
    assert infer(latent, site, y, max_iter=2).status.name == "MAX_ITER"
