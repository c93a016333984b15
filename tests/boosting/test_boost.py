"""klimb.boost: targets with known answers, never-falling bounds, determinism, edges, constraints, and bad input."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp

import klimb
from klimb.boosting import Above, Below, Interval, Ordered, Positive, Real, Simplex, TargetError
from klimb.boosting.divergences import _overlaps, affinities, best_lengths, products
from klimb.boosting.gaussians import Gaussians, divergence, log_mixture, nodes
from klimb.boosting.paper import bracketed_newton, newton_exclusive, newton_inclusive
from klimb.boosting.refine import ProximalObjective, evaluated
from klimb.boosting.target import Target
from klimb.boosting.transforms import TransformedBlocks
from klimb.errors import InputError

RNG = np.random.default_rng(0)
Batch = Callable[[np.ndarray], np.ndarray]


@pytest.fixture(autouse=True)
def no_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that has not imported JAX, whatever other tests have done in this interpreter."""
    monkeypatch.delitem(sys.modules, "jax", raising=False)


def banana(x: np.ndarray) -> np.ndarray:
    return -(x[:, 0] ** 2) / 8 - 0.5 * (x[:, 1] - 0.5 * (x[:, 0] ** 2 - 4)) ** 2 - np.log(4 * np.pi)


def banana_slope(x: np.ndarray) -> np.ndarray:
    gap = x[:, 1] - 0.5 * (x[:, 0] ** 2 - 4)
    return np.stack([-x[:, 0] / 4 + gap * x[:, 0], -gap], axis=1)


@pytest.fixture(scope="module")
def boosted_banana() -> klimb.boosting.Mixture:
    return klimb.boost(banana, 2, gradient=banana_slope)


def true_divergence(q: klimb.boosting.Mixture, log_p: Batch, log_evidence: float, n: int = 40_000) -> float:
    X = q.sample(n, seed=5)
    return float(np.mean(q.log_density(X) - log_p(X)) + log_evidence)


# -- the default algorithm -------------------------------------------------------------------------------------------


def test_gaussians_are_found_exactly_and_cheaply() -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((12, 12))
    cov = A @ A.T + 0.1 * np.eye(12)
    P, m = np.linalg.inv(cov), rng.standard_normal(12) * 5
    q = klimb.boost(lambda x: -0.5 * np.einsum("nd,de,ne->n", x - m, P, x - m), 12, gradient=lambda x: -(x - m) @ P)
    assert q.n_components == 1
    np.testing.assert_allclose(q.mean, m, atol=0.02)
    np.testing.assert_allclose(q.cov, cov, rtol=0.02, atol=0.02)
    assert q.bound == pytest.approx(0.5 * np.linalg.slogdet(2 * np.pi * cov)[1], abs=0.01)
    assert q.n_gradients < 1500


def test_banana(boosted_banana: klimb.boosting.Mixture) -> None:
    q = boosted_banana
    assert true_divergence(q, banana, 0.0) < 0.03
    np.testing.assert_allclose(q.mean, 0.0, atol=0.15)
    np.testing.assert_allclose(q.sd, [2.0, 3.0], rtol=0.1)  # KL(q || p) forgives thin tails
    assert abs(q.bound) < 5 * q.bound_error + 0.03
    assert q.corrected.log_evidence == pytest.approx(0.0, abs=0.02)
    np.testing.assert_allclose(np.diag(q.corrected.cov), [4.0, 9.0], rtol=0.15)
    assert q.khat < 0.7


def test_the_bound_never_falls(boosted_banana: klimb.boosting.Mixture) -> None:
    bounds, sizes = np.array(boosted_banana.trace["bound"]), boosted_banana.trace["n_components"]
    assert len(bounds) > 4
    # Between two steps the nodes may have been doubled, so that a bound is known anew: to its standard error.
    assert np.all(np.diff(bounds) > -3 * np.array(boosted_banana.trace["bound_error"])[1:])
    assert sizes[-1] == boosted_banana.n_components


def test_the_same_twice() -> None:
    first, second = (klimb.boost(banana, 2, gradient=banana_slope, n_components=3, tol=0.05) for _ in range(2))
    np.testing.assert_array_equal(first.means, second.means)
    np.testing.assert_array_equal(first.weights, second.weights)


@pytest.mark.parametrize("dim", [1, 2, 6])
def test_modes_forty_deviations_apart(dim: int) -> None:
    far = np.random.default_rng(dim).standard_normal(dim)
    far *= 40.0 / np.linalg.norm(far)

    def log_p(x: np.ndarray) -> np.ndarray:
        return np.logaddexp(np.log(0.3) - 0.5 * (x**2).sum(1), np.log(0.7) - 0.5 * ((x - far) ** 2).sum(1))

    q = klimb.boost(log_p, dim)
    np.testing.assert_allclose(np.sort(q.weights), [0.3, 0.7], atol=0.01)
    np.testing.assert_allclose(q.mean, 0.7 * far, atol=0.4)


def test_four_modes_in_one_dimension() -> None:
    m, s, w = np.array([-4.0, -1, 2, 6]), np.array([0.7, 0.5, 1.0, 0.8]), np.array([0.2, 0.3, 0.3, 0.2])

    def log_p(x: np.ndarray) -> np.ndarray:
        return logsumexp(-0.5 * ((x - m) / s) ** 2 - np.log(s) + np.log(w), axis=1) - 0.5 * np.log(2 * np.pi)

    q = klimb.boost(log_p, 1)
    assert true_divergence(q, log_p, 0.0) < 0.03
    assert q.mean.item() == pytest.approx(w @ m, abs=0.15)


def test_one_skewed_direction_of_twenty() -> None:
    rng = np.random.default_rng(1)
    B = np.linalg.inv(np.linalg.qr(rng.standard_normal((20, 20)))[0] * np.exp(rng.uniform(-1, 1, 20)))
    constant = np.linalg.slogdet(B)[1] - 9.5 * np.log(2 * np.pi)

    def log_p(x: np.ndarray) -> np.ndarray:
        y = x @ B.T
        return 2 * y[:, 0] - np.exp(y[:, 0]) - 0.5 * (y[:, 1:] ** 2).sum(1) + constant

    def slope(x: np.ndarray) -> np.ndarray:
        y = x @ B.T
        d = -y
        d[:, 0] = 2 - np.exp(y[:, 0])
        return d @ B

    one = klimb.boost(log_p, 20, gradient=slope, n_components=1)
    several = klimb.boost(log_p, 20, gradient=slope)
    assert several.n_components > 1
    assert true_divergence(several, log_p, 0.0) < 0.6 * true_divergence(one, log_p, 0.0)


def test_many_dimensions_are_low_rank_plus_diagonal() -> None:
    rng = np.random.default_rng(0)
    U, d = rng.standard_normal((120, 3)), np.exp(rng.uniform(-1, 1, 120))
    cov = np.diag(d**2) + U @ U.T
    P = np.linalg.inv(cov)
    q = klimb.boost(lambda x: -0.5 * np.einsum("nd,nd->n", x @ P, x), 120, gradient=lambda x: -x @ P, n_components=1)
    assert q.bound == pytest.approx(0.5 * np.linalg.slogdet(2 * np.pi * cov)[1], abs=0.1)


def test_weights_alone_may_be_refitted() -> None:
    q = klimb.boost(banana, 2, gradient=banana_slope, weights="corrective", n_components=4)
    one = klimb.boost(banana, 2, gradient=banana_slope, n_components=1)
    assert q.n_components > 1
    assert q.bound > one.bound + 0.1


def test_the_inclusive_direction_covers_more() -> None:
    def cauchy(x: np.ndarray) -> np.ndarray:
        return -np.log1p((x[:, 0] / 2) ** 2) - np.log(2 * np.pi)

    exclusive, inclusive = (klimb.boost(cauchy, 1, divergence=way) for way in ("exclusive", "inclusive"))
    assert inclusive.sd.item() > exclusive.sd.item()
    grid = np.linspace(-200, 200, 400_001)[:, None]
    cover = [np.trapezoid(np.exp(cauchy(grid)) * q.log_density(grid), dx=1e-3) for q in (exclusive, inclusive)]
    assert cover[1] > cover[0]


# -- universal boosting ----------------------------------------------------------------------------------------------


def test_roots_of_gaussians_multiply_to_a_mixture() -> None:
    """g^2 of Campbell and Li, written out as a mixture, is g^2; and the overlap's gradient is its gradient."""
    rng = np.random.default_rng(0)
    parts = Gaussians(rng.standard_normal((3, 2)), np.tril(0.3 * rng.standard_normal((3, 2, 2))) + np.eye(2))
    lengths = np.array([0.5, 0.4, 0.3])
    lengths /= np.sqrt(lengths @ affinities(parts) @ lengths)
    X = rng.standard_normal((20, 2))
    squared = products(lengths, parts)
    g = lengths @ np.exp(0.5 * parts.log_densities(X))
    np.testing.assert_allclose(squared.log_density(X), 2 * np.log(g), atol=1e-12)
    one = parts.take([0])
    _, (slope, _) = _overlaps(one, parts.take([1, 2]), lengths[1:])
    moved = [_overlaps(Gaussians(one.means + h, one.roots), parts.take([1, 2]), lengths[1:])[0]
             for h in (1e-6 * np.eye(2)[0], -1e-6 * np.eye(2)[0])]
    assert slope[0] == pytest.approx((moved[0] - moved[1]) / 2e-6, abs=1e-8)


def test_the_best_lengths_are_the_best() -> None:
    rng = np.random.default_rng(1)
    Z = affinities(Gaussians(rng.standard_normal((4, 1)) * 2, np.ones((4, 1, 1))))
    d = rng.uniform(0.2, 1.0, 4)
    best = best_lengths(Z, d)
    tried = rng.exponential(size=(2000, 4)) * rng.integers(0, 2, (2000, 4)) + 1e-9
    assert best @ Z @ best == pytest.approx(1.0)
    assert best @ d >= (tried @ d / np.sqrt(np.einsum("nj,jk,nk->n", tried, Z, tried))).max() - 1e-6


def test_universal_boosting_closes_in() -> None:
    one = klimb.boost(banana, 2, gradient=banana_slope, n_components=1)
    q = klimb.boost(banana, 2, gradient=banana_slope, divergence="hellinger", n_components=6)
    assert q.bound > one.bound + 0.2
    with pytest.raises(InputError, match="weights of its own"):
        klimb.boost(banana, 2, divergence="hellinger", weights="corrective")


# -- how far to trust it ---------------------------------------------------------------------------------------------


def test_a_good_fit_is_trusted(boosted_banana: klimb.boosting.Mixture) -> None:
    report = boosted_banana.trust
    assert report.verdict == "trust"
    assert report.missing < 0.02
    assert report.gap == pytest.approx(boosted_banana.gap)
    assert "verdict   trust" in str(report)


def test_rounding_leaves_the_way_up_alone(boosted_banana: klimb.boosting.Mixture) -> None:
    """Another machine's last bits: the same components at the same places, not another of many mixtures."""
    rng = np.random.default_rng(1)
    eps = np.finfo(float).eps
    q = klimb.boost(lambda x: banana(x) * (1.0 + eps * rng.choice([-1.0, 0.0, 1.0], len(x))), 2, gradient=banana_slope)
    assert q.n_components == boosted_banana.n_components
    np.testing.assert_allclose(q.means, boosted_banana.means, atol=1e-9)
    np.testing.assert_allclose(q.trace["bound"], boosted_banana.trace["bound"], atol=1e-9)


def student(df: float) -> Batch:
    return lambda x: -0.5 * (df + 1) * np.log1p(x[:, 0] ** 2 / df)


def test_what_q_leaves_out_is_seen_and_corrected() -> None:
    """A Gaussian for a Student-t with 6 degrees of freedom: its sd is too small, and draws around it say so."""
    q = klimb.boost(student(6.0), 1, n_components=1)
    assert q.sd.item() < 1.15
    assert q.corrected.sd.item() == pytest.approx(np.sqrt(6 / 4), rel=0.03)
    assert q.missing > 0.005
    assert q.trust.verdict != "trust"


def test_an_sd_that_is_a_tenth_off_is_corrected() -> None:
    """The weights' estimate of that error has noise: at 9.9% the sd of this one was 10.7% too small, and trusted."""
    q = klimb.boost(student(3.0), 1)
    assert q.trust.verdict == "corrected"
    assert q.sd[0] < 0.95 * np.sqrt(3.0)
    assert q.corrected.sd[0] == pytest.approx(np.sqrt(3.0), rel=0.05)


def test_a_tail_without_variance_is_doubted() -> None:
    q = klimb.boost(student(1.0), 1, names=["beta"])
    assert q.khat < 0.7  # as far as draws of q can tell
    assert q.trust.verdict == "doubt"
    assert "sd of beta" in q.trust.measures
    assert true_divergence(q, lambda x: student(1.0)(x), np.log(np.pi)) < 0.025  # twice tol, and draws


def test_the_gaps_bound_the_divergence(boosted_banana: klimb.boosting.Mixture) -> None:
    """KL <= Frank-Wolfe's duality gap, which is what the estimate may at most be."""
    gap, dual = np.array(boosted_banana.trace["gap"]), np.array(boosted_banana.trace["duality_gap"])
    assert np.all(gap <= dual + 1e-12)
    assert gap[-1] < gap[0]


# -- its parts -------------------------------------------------------------------------------------------------------


def test_the_gradient_of_the_model_is_its_gradient() -> None:
    rng = np.random.default_rng(0)
    parts = Gaussians(rng.standard_normal((3, 2)), np.tril(0.3 * rng.standard_normal((3, 2, 2))) + np.eye(2))
    weighted = parts.weighted(np.array([0.2, 0.3, 0.5]))
    fit = evaluated(Target(banana, 2, gradient=banana_slope), weighted, nodes(20, 2))
    for free in (0, 1, 2):
        model = ProximalObjective(fit, free)
        x = model.start + 0.2 * rng.standard_normal(model.start.shape)
        numeric = [(model.objective(x + 1e-6 * e)[0] - model.objective(x - 1e-6 * e)[0]) / 2e-6 for e in np.eye(len(x))]
        np.testing.assert_allclose(model.objective(x)[1], numeric, atol=1e-7)


def test_nodes_integrate_quadratics_exactly() -> None:
    z = nodes(40, 5, 3)
    np.testing.assert_allclose(z.mean(0), 0.0, atol=1e-14)
    np.testing.assert_allclose(z.T @ z / len(z), np.eye(5), atol=1e-12)


def test_divergence_of_gaussians() -> None:
    old, new = Gaussians(np.zeros((1, 1)), np.full((1, 1, 1), 2.0)), Gaussians(np.ones((1, 1)), np.full((1, 1, 1), 3.0))
    assert divergence(new, old).item() == pytest.approx(np.log(2 / 3) + (9 + 1) / 8 - 0.5)


def test_newton_weights_recover_a_mixture() -> None:
    """p = 0.75 q + 0.25 h: both directions must find 0.25, by Alg. 1 and Alg. 3 of [G]."""
    q, h = Gaussians(np.zeros((1, 1)), np.ones((1, 1, 1))), Gaussians(np.full((1, 1), 2.0), np.full((1, 1, 1), 0.5))
    Z = nodes(4000, 1)
    X, X_h = q.at(Z)[0], h.at(Z)[0]

    def log_p(x: np.ndarray) -> np.ndarray:
        return log_mixture(np.array([0.75, 0.25]), q.joined(h).log_densities(x)) + 7.0

    assert newton_exclusive(q, h, X, log_p(X), X_h, log_p(X_h)) == pytest.approx(0.25, abs=1e-3)
    assert newton_inclusive(q, h, X, log_p(X), len(Z)) == pytest.approx(0.25, abs=5e-3)
    assert bracketed_newton(lambda a: (1.0, 1.0)) == 0.0
    assert bracketed_newton(lambda a: (-1.0, 1.0)) > 0.99


# -- constraints and edges -------------------------------------------------------------------------------------------


BLOCKS = [Positive(3), Above(-1.0, 2), Below(4.0, 2), Interval(-2.0, 5.0, 3), Ordered(4), Simplex(4), Real(2)]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: type(block).__name__)
def test_transforms_and_their_jacobians(block: klimb.boosting.Transform) -> None:
    rng = np.random.default_rng(0)
    U = rng.standard_normal((5, block.n_free)) * 1.5
    X, log_jacobian = block.forward(U)
    assert block.inside(X).all()
    np.testing.assert_allclose(block.inverse(X), U, atol=1e-9)
    a = rng.standard_normal(block.size)

    def f(u: np.ndarray) -> float:
        x, log_j = block.forward(u[None])
        return float(np.sin(x @ a)[0] + log_j[0])

    slope = np.cos(X @ a)[:, None] * a
    for u, found, log_j in zip(U, block.pull_back(U, slope), log_jacobian, strict=True):
        steps = 1e-6 * np.eye(len(u))
        np.testing.assert_allclose(found, [(f(u + e) - f(u - e)) / 2e-6 for e in steps], atol=1e-7)
        J = np.array([(block.forward((u + e)[None])[0] - block.forward((u - e)[None])[0])[0] for e in steps]) / 2e-6
        assert np.linalg.slogdet(J[:, : block.n_free])[1] == pytest.approx(log_j, abs=1e-6)


def test_a_gamma_density_by_a_transform() -> None:
    q = klimb.boost(lambda x: 2 * np.log(x[0]) - x[0], 1, transform="positive", init=[1.0])
    assert q.mean.item() == pytest.approx(3.0, abs=0.06)
    assert q.bound == pytest.approx(np.log(2), abs=0.02)
    np.testing.assert_allclose(q.quantiles([0.05, 0.5, 0.95]).ravel(), [0.8177, 2.6741, 6.2958], rtol=0.05)
    assert q.log_density([-1.0]) == -np.inf
    grid = np.linspace(1e-6, 60, 200_001)[:, None]
    assert np.trapezoid(np.exp(q.log_density(grid)), grid[:, 0]) == pytest.approx(1.0, abs=1e-3)


def test_a_dirichlet_by_a_simplex() -> None:
    a = np.array([2.0, 3.0, 5.0])
    q = klimb.boost(lambda x: ((a - 1) * np.log(x)).sum(1), 3, transform=[Simplex(3)], init=[[0.3, 0.3, 0.4]])
    np.testing.assert_allclose(q.mean, a / 10, atol=0.01)
    np.testing.assert_allclose(q.sample(50).sum(1), 1.0)


def test_a_half_normal_finds_its_edge() -> None:
    q = klimb.boost(lambda x: -0.5 * (x[0] - 3) ** 2 if x[0] > 3 else -np.inf, 1, init=[4.0])
    assert isinstance(q.transforms[0], Above)
    assert q.transforms[0].low == pytest.approx(3.0, abs=1e-12)
    assert q.bound == pytest.approx(0.5 * np.log(np.pi / 2), abs=0.02)
    assert q.mean.item() == pytest.approx(3 + np.sqrt(2 / np.pi), abs=0.03)
    assert (q.sample(200) > 3).all()
    assert q.log_density([[2.5]]).item() == -np.inf


def test_a_face_cuts_a_correlated_gaussian() -> None:
    """x > 0 of two correlated by 0.8: half of a Gaussian, whose mean is known."""
    def log_p(x: np.ndarray) -> np.ndarray:
        quadratic = (x[:, 0] ** 2 - 1.6 * x[:, 0] * x[:, 1] + x[:, 1] ** 2) / 0.36
        return np.where(x[:, 0] > 0, -0.5 * quadratic, -np.inf)

    q = klimb.boost(log_p, 2, init=[1.0, 1.0])
    assert [type(block).__name__ for block in q.transforms] == ["Above", "Real"]
    assert q.bound == pytest.approx(np.log(0.6 * np.pi), abs=0.03)
    np.testing.assert_allclose(q.mean, np.sqrt(2 / np.pi) * np.array([1.0, 0.8]), atol=0.03)


def test_a_slanted_edge_cuts_the_mixture_off() -> None:
    """A half-plane that is not parallel to an axis: half of a Gaussian again."""
    def log_p(x: np.ndarray) -> np.ndarray:
        return np.where(x[:, 0] + x[:, 1] > 0, -0.5 * (x**2).sum(1), -np.inf)

    q = klimb.boost(log_p, 2, init=[1.0, 1.0])
    assert 0 < q.inside < 1
    assert q.bound == pytest.approx(np.log(np.pi), abs=0.04)
    np.testing.assert_allclose(q.mean, 1 / np.sqrt(np.pi), atol=0.06)
    X = q.sample(300)
    assert (X.sum(axis=1) > 0).all()
    assert q.log_density([-1.0, 0.5]) == -np.inf


def test_a_flat_half_line_has_no_integral() -> None:
    with pytest.raises(InputError, match="no finite integral"):
        klimb.boost(lambda x: np.where(x[:, 0] > 0, 0.0, -np.inf), 1, init=[1.0])


# -- what the mixture answers ----------------------------------------------------------------------------------------


def test_answers_agree_with_draws(boosted_banana: klimb.boosting.Mixture) -> None:
    X = boosted_banana.sample(200_000, seed=3)
    np.testing.assert_allclose(boosted_banana.mean, X.mean(0), atol=0.03)
    np.testing.assert_allclose(boosted_banana.cov, np.cov(X.T), rtol=0.03, atol=0.05)
    levels = (0.1, 0.5, 0.9)
    np.testing.assert_allclose(boosted_banana.quantiles(levels), np.quantile(X, levels, axis=0), atol=0.05)
    wanted = (X[:, 0] > X[:, 1]).mean()
    assert boosted_banana.probability(lambda x: x[:, 0] > x[:, 1]) == pytest.approx(wanted, abs=0.01)
    assert boosted_banana.log_density([0.0, -2.0]).shape == ()
    assert "component" in repr(boosted_banana)


def test_plots_draw(boosted_banana: klimb.boosting.Mixture) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    assert len(np.ravel(boosted_banana.plot_marginals(boosted_banana.sample(100)))) == 2
    assert boosted_banana.plot_contours((0, 1)).collections
    plt.close("all")
    with pytest.raises(InputError, match="two different"):
        boosted_banana.plot_contours((0, 0))


def test_arviz_says_what_is_missing(boosted_banana: klimb.boosting.Mixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match="klimb\\[arviz\\]"):
        boosted_banana.to_arviz()


def test_arviz_gets_named_draws(boosted_banana: klimb.boosting.Mixture, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(__version__="0.21", from_dict=lambda posterior: posterior)
    monkeypatch.setitem(sys.modules, "arviz", fake)
    assert boosted_banana.to_arviz(10)["x1"].shape == (1, 10)


# -- how functions are called ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "dim", "batched"), [
    (lambda x: -0.5 * x @ x, 3, False),
    (lambda x: -0.5 * (x**2).sum(), 2, False),
    (lambda x: -0.5 * (x**2).sum(axis=-1), 2, True),
    (lambda x: -(x**2), 1, True),
    (lambda x: -(x[0] ** 2) - x[1] ** 2, 2, False),
    (lambda x: -(x[:, 0] ** 2) - x[:, 1] ** 2, 2, True),
    (lambda x: [-float(x[0]) ** 2], 1, False),
])
def test_batches_are_recognised(function: Batch, dim: int, batched: bool) -> None:
    target = Target(function, dim)
    assert target.batched is batched
    X = np.random.default_rng(0).standard_normal((4, dim))
    assert target.values(X).shape == (4,)
    _, slope = target.with_slopes(X, np.ones(dim))
    numeric = np.array([[(target.values((x + e)[None]) - target.values((x - e)[None])).item() / 2e-5
                         for e in 1e-5 * np.eye(dim)] for x in X])
    np.testing.assert_allclose(slope, numeric, atol=1e-4)


def test_a_function_that_writes_into_its_argument_moves_nothing() -> None:
    def rude(x: np.ndarray) -> np.ndarray:
        x *= 2
        return -0.125 * (x**2).sum(1)

    assert klimb.boost(rude, 2).bound == pytest.approx(np.log(2 * np.pi), abs=1e-3)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
def test_scales(scale: float) -> None:
    q = klimb.boost(lambda x: -0.5 * ((x / scale) ** 2).sum(1), 2, scale=1.0 if 1e-4 < scale < 1e4 else scale)
    np.testing.assert_allclose(q.sd, scale, rtol=1e-2)


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "error", "message"), [
    (lambda x: np.nan, InputError, r"nan at x = \[0, 0\]"),
    (lambda x: np.inf, InputError, r"inf at x = \[0, 0\]"),
    (lambda x: np.nan if abs(x[0]) > 1 else -0.5 * x @ x, InputError, r"nan at x = "),
    (lambda x: 1 / 0, TargetError, "ZeroDivisionError"),
    (lambda x: [1.0, 2.0, 3.0], InputError, "must return a number"),
    (lambda x: "text", TargetError, "could not convert"),
    (lambda x: -np.inf, InputError, "finite somewhere near init"),
    (lambda x: 0.0, InputError, "no finite integral"),
    (lambda x: x[0], InputError, "no finite integral"),
    (lambda x: -0.5 * x[0] ** 2, InputError, "no finite integral"),
    (lambda x: -0.5 * np.log1p(x @ x) / 2, InputError, "no finite integral"),
    (lambda x: -np.log1p(abs(x[0])) - 0.5 * x[1] ** 2, InputError, "no finite integral"),
    (lambda x: 0.1 * np.log1p(x[0] ** 2) - 0.5 * x[1] ** 2, InputError, "no finite integral|still rises"),
    (lambda x: None, InputError, "return statement"),
    (lambda x: -0.5 * (x @ x) + 0j, InputError, "real numbers"),
    (lambda x: -0.5 * x @ x + RNG.normal(), InputError, "same number"),
    (lambda x: -0.5 * x[0] ** 2 if x[0] == x[1] else -np.inf, InputError, "must have an inside"),
    ("not a function", InputError, "must be a function"),
])
def test_bad_targets_are_named_in_bounded_time(function: Batch, error: type, message: str) -> None:
    start = time.process_time()
    with pytest.raises(error, match=message):
        klimb.boost(function, 2)
    assert time.process_time() - start < 20.0


def test_single_precision_and_lists_are_numbers() -> None:
    single = klimb.boost(lambda x: (-0.5 * (x**2).sum(1)).astype(np.float32), 2)
    listed = klimb.boost(lambda x: [-0.5 * float(row @ row) for row in x], 2)
    assert single.bound == pytest.approx(np.log(2 * np.pi), abs=1e-3)
    assert listed.bound == pytest.approx(np.log(2 * np.pi), abs=1e-6)


def test_a_batch_that_fails_at_one_point_names_it() -> None:
    def fragile(x: np.ndarray) -> np.ndarray:
        if (x[:, 0] > 1.5).any():
            raise ValueError("boom")
        return -0.5 * (x**2).sum(1)

    with pytest.raises(TargetError, match=r"boom at x = \[(1\.[5-9]|[2-9])"):
        klimb.boost(fragile, 2)


@pytest.mark.parametrize("dim", [1, 100])
def test_one_and_a_hundred_dimensions(dim: int) -> None:
    q = klimb.boost(lambda x: 1e9 - 0.5 * ((x - 1) ** 2).sum(1), dim, gradient=lambda x: 1 - x)
    assert q.n_components == 1
    np.testing.assert_allclose(q.mean, 1.0, atol=1e-3)
    assert q.bound - 1e9 == pytest.approx(0.5 * dim * np.log(2 * np.pi), abs=1e-2)


def test_an_exception_names_the_point() -> None:
    def fragile(x: np.ndarray) -> float:
        if x[0] > 2:
            raise ValueError("too large")
        return -0.5 * float(x @ x)

    with pytest.raises(TargetError, match=r"too large at x = \[[23]") as caught:
        klimb.boost(fragile, 2)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("options", [
    {"n_components": 0}, {"tol": -1.0}, {"tol": np.nan}, {"divergence": "both"}, {"component": "blob"},
    {"weights": "newton"}, {"init": [1.0, 2.0, 3.0]}, {"init": [np.nan, 0.0]}, {"scale": 0.0}, {"scale": [1.0] * 3},
    {"transform": [Positive()]}, {"transform": ["wrong", "real"]}, {"names": ["a"]}, {"max_evaluations": 0},
    {"transform": "positive", "init": [-1.0, 1.0]}, {"gradient": 3}, {"gradient": lambda x: np.zeros(5)},
])
def test_bad_options_are_refused(options: dict) -> None:
    with pytest.raises(InputError):
        klimb.boost(lambda x: -0.5 * float(x @ x), 2, **options)


@pytest.mark.parametrize("dim", [0, -1, 1.5, "2", True])
def test_bad_dimensions_are_refused(dim: object) -> None:
    with pytest.raises(InputError, match="dim must be"):
        klimb.boost(lambda x: -0.5 * x @ x, dim)


def test_bad_gradients_are_named() -> None:
    with pytest.raises(InputError, match="gradient must be finite"):
        klimb.boost(lambda x: -0.5 * (x**2).sum(1), 2, gradient=lambda x: x * np.nan)


def test_evaluations_are_bounded() -> None:
    q = klimb.boost(banana, 2, gradient=banana_slope, max_evaluations=1500)
    assert q.ended.name == "EVALUATIONS"
    assert q.n_values < 6000
    assert "max_evaluations" in q.ended.advice


def test_coordinates_say_what_they_miss() -> None:
    with pytest.raises(InputError, match="cover dim = 3"):
        TransformedBlocks.of([Simplex(2)], 3)
    with pytest.raises(InputError, match="low < high"):
        Interval(1.0, 1.0)


@pytest.mark.parametrize("n", [5, 30])
def test_a_mean_beside_an_unknown_deviation_is_proper(n: int) -> None:
    """Along slanted lines in (mean, log sd) the density dives, recovers as sd grows, and only then falls for good."""
    y = 3.0 + 2.0 * np.random.default_rng(0).standard_normal(n)

    def log_density(t: np.ndarray) -> np.ndarray:
        mean, sd = t[..., :1], t[..., 1]
        return -0.5 * ((y - mean) ** 2).sum(-1) / sd**2 - (n + 1) * np.log(sd)

    q = klimb.boost(log_density, 2, transform=[Real(), Positive()], init=[0.0, 1.0])
    spread = float(((y - y.mean()) ** 2).sum())
    exact = (0.5 * np.log(2.0 * np.pi / n) + gammaln((n - 1) / 2.0) - np.log(2.0)
             - 0.5 * (n - 1) * np.log(0.5 * spread))
    assert q.bound == pytest.approx(exact, abs=0.05)
    assert q.bound < exact + 0.02
