"""Weights without data or factor: against the posterior they came from, and against what latents predict themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

import klimb
from klimb._stored import pack, unpack
from klimb.errors import InputError
from klimb.infer.problem import Problem
from klimb.infer.start import sites_at, start_at
from klimb.latents.arrow import ArrowRows
from klimb.latents.corrected_weights import WidenedWeights
from klimb.latents.outputs import Several
from klimb.latents.weights_posterior import WEIGHT_POSTERIORS, DenseWeights, WideWeights
from klimb.linalg.matrix import as_design
from klimb.numerics.dense import Whitener

RNG = np.random.default_rng(3)
N, D = 24, 4
X, NEW = RNG.standard_normal((N, D)), RNG.standard_normal((9, D))
WIDE, WIDE_NEW = RNG.standard_normal((N, 60)), RNG.standard_normal((9, 60))
SKEW = RNG.standard_normal((60, 60))
T, T_NEW = RNG.uniform(0, 6, N), RNG.uniform(-1, 8, 9)
CODES, CODES_NEW = RNG.integers(0, 5, N), np.array([0, 4, -1, 2, 2, 0, 1, 3, -1])
Z = np.linspace(0, 6, 7)


def k(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    gap = np.sqrt(3.0) * np.abs(a[:, None] - b)
    return (1.0 + gap) * np.exp(-gap)


def weights(latent: Any, new: Any, slack: Any = 0.0) -> Any:
    return latent, lambda q: latent.predict(q, new, slack), new, slack


def mixed() -> Any:
    latent = klimb.latents.Mixed(X[:, :2], CODES, X[:, 2:], cov=[1.0, 2.0], group_cov=[[1.0, 0.3], [0.3, 0.5]])
    prior = NEW[:, 2:] @ latent.group_root
    rest = np.where(CODES_NEW < 0, (prior**2).sum(axis=1), 0.0)
    return latent, lambda q: latent.predict(q, NEW[:, :2], CODES_NEW, NEW[:, 2:]), \
        ArrowRows(NEW[:, :2], CODES_NEW, NEW[:, 2:]), rest


def crossed() -> Any:
    side, new = (scipy.sparse.csr_matrix(np.eye(3)[codes]) for codes in (np.arange(N) % 3, np.arange(9) % 3))
    latent = klimb.latents.Crossed(X[:, :2], side, CODES, X[:, 2:], cov=[1.0, 2.0], roots=[(0.8, 3)],
                                   group_cov=[[1.0, 0.3], [0.3, 0.5]])
    prior = NEW[:, 2:] @ latent.group_root
    rest = np.where(CODES_NEW < 0, (prior**2).sum(axis=1), 0.0)
    return latent, lambda q: latent.predict(q, NEW[:, :2], new, CODES_NEW, NEW[:, 2:]), \
        ArrowRows(NEW[:, :2], CODES_NEW, NEW[:, 2:], new), rest


def inducing() -> Any:
    latent = klimb.latents.Inducing(k(Z, Z), k(Z, T), 1.0)
    cross = k(T_NEW, Z)
    rows = Whitener(latent.root).whitened(cross.copy())
    return latent, lambda q: latent.predict(q, cross, 1.0), rows, 1.0 - (rows**2).sum(axis=1)


CASES: dict[str, Any] = {
    "weights": lambda: weights(klimb.latents.Weights(X, mean=0.3, cov=2.0), NEW, 0.4),
    "matrix prior": lambda: weights(klimb.latents.Weights(X, cov=np.eye(D) + 0.4), NEW),
    "sparse": lambda: weights(klimb.latents.Weights(X), scipy.sparse.csr_matrix(np.where(NEW > 1, NEW, 0.0))),
    "design": lambda: weights(klimb.latents.Weights(X), as_design(NEW, "new")),
    "wide": lambda: weights(klimb.latents.Weights(WIDE, mean=0.1, cov=np.arange(60) / 60), WIDE_NEW, 0.2),
    "wide, matrix prior": lambda: weights(klimb.latents.Weights(WIDE, cov=SKEW @ SKEW.T / 600), WIDE_NEW),
    "mean field": lambda: weights(klimb.latents.MeanField(X, cov=2.0), NEW),
    "implicit": lambda: (latent := klimb.latents.Implicit(X, cov=2.0), lambda q: latent.predict(q, NEW), NEW, 0.0),
    "kernel": lambda: (latent := klimb.latents.Kernel(k(T, T)), lambda q: latent.predict(q, k(T_NEW, T), 1.0),
                       k(T_NEW, T), np.ones(9)),
    "inducing": inducing,
    "mixed": mixed,
    "crossed": crossed,
    "markov": lambda: (latent := klimb.latents.Markov(T), lambda q: latent.predict(q, T_NEW), T_NEW, 0.0),
}


def fitted(latent: Any, signed: bool) -> Any:
    """A posterior of given (a, gamma), some of them negative if ``signed``."""
    rng = np.random.default_rng(1)
    a, gamma = 0.1 * rng.standard_normal(N), rng.gamma(2.0, size=N)
    if signed:
        gamma[::7] = -0.02
    problem = Problem(latent, klimb.sites.Poisson(), np.ones(N))
    return problem.posterior(problem.state(a, latent.mean + latent.mvm(a), latent.factor(gamma)))


@pytest.mark.parametrize("signed", [False, True], ids=["positive", "signed"])
@pytest.mark.parametrize("name", CASES)
def test_predictions_and_moments(name: str, signed: bool) -> None:
    if signed and name == "implicit":
        pytest.skip("its factor takes no negative gamma")
    latent, predict, L, rest = CASES[name]()
    q = fitted(latent, signed)
    detached = latent.detach(q)
    V = q.covariance()
    scale = max(V.diagonal().max(), 1.0)
    np.testing.assert_allclose(detached.mean, q.mean, atol=1e-10)
    assert detached.size == len(q.mean)
    np.testing.assert_allclose(detached.sd() ** 2, V.diagonal(), atol=1e-10 * scale)
    m, v = detached.at(L, rest)
    expected = predict(q)
    np.testing.assert_allclose(m, expected[0], atol=1e-10)
    np.testing.assert_allclose(v, expected[1], atol=1e-10 * scale)
    whole = k(T_NEW, T_NEW) if name == "kernel" else rest
    joint_m, joint_V = detached.joint(L, whole)
    np.testing.assert_allclose(joint_m, m, atol=1e-10)
    np.testing.assert_allclose(joint_V.diagonal(), v, atol=1e-9 * scale)
    np.testing.assert_allclose(joint_V, joint_V.T, atol=1e-12 * scale)
    part = detached.moments(slice(2, len(q.mean)) if name == "mixed" else slice(0, 4))
    at, second = part.at, V + np.outer(q.mean, q.mean)
    np.testing.assert_allclose(part.mean, q.mean[at], atol=1e-10)
    np.testing.assert_allclose(part.variances(), V.diagonal()[at], atol=1e-10 * scale)
    own, c = second[at, at], np.array([0.5, -1.0])
    by_two = sum(own[i : i + 2, i : i + 2] for i in range(0, len(own), 2))
    np.testing.assert_allclose(part.blocks(2), by_two, atol=1e-9 * scale)
    np.testing.assert_allclose(part.blocks(len(own)), own, atol=1e-9 * scale)
    total = q.mean[at].reshape(-1, 2).sum(axis=0)
    shifted = by_two - np.outer(total, c) - np.outer(c, total) + len(own) / 2 * np.outer(c, c)
    np.testing.assert_allclose(part.blocks(2, c), shifted, atol=1e-9 * scale)
    np.testing.assert_allclose(part.blocks(2, np.tile(c, len(own) // 2)), shifted, atol=1e-9 * scale)
    rows, columns = np.array([0, 1, 3, 2]), np.array([0, 3, 2, 0])
    np.testing.assert_allclose(part.pattern(rows, columns), own[rows, columns], atol=1e-9 * scale)


@pytest.mark.parametrize("signed", [False, True], ids=["positive", "signed"])
@pytest.mark.parametrize("name", [name for name in CASES if name != "implicit"])
def test_draws_and_joint_covariance(name: str, signed: bool) -> None:
    """Draws have the posterior's moments; functionals of draws have the joint covariance, their rest apart."""
    latent, _, L, rest = CASES[name]()
    q = fitted(latent, signed)
    detached, V = latent.detach(q), q.covariance()
    draws = detached.sample(20_000, np.random.default_rng(0))
    sd = np.sqrt(V.diagonal())
    np.testing.assert_allclose(draws.mean(axis=0), q.mean, atol=6 * sd.max() / np.sqrt(20_000))
    np.testing.assert_allclose(np.cov(draws.T), V, atol=0.06 * sd.max() ** 2)
    if name == "kernel":
        everywhere = np.concatenate([T, T_NEW])
        found = detached.joint(k(everywhere, T), k(everywhere, everywhere))[1]
        np.testing.assert_allclose(found[:N, :N], V, atol=1e-9)
        expected = k(T_NEW, T_NEW) - k(T_NEW, T) @ np.linalg.solve(k(T, T), k(T, T) - V) @ np.linalg.solve(
            k(T, T), k(T, T_NEW))
        np.testing.assert_allclose(found[N:, N:], expected, atol=1e-8)
    elif name == "markov":
        dense = klimb.latents.Kernel(k(T, T)).detach(fitted(klimb.latents.Kernel(k(T, T)), signed))
        for one, other in zip(detached.joint(T_NEW), dense.joint(k(T_NEW, T), k(T_NEW, T_NEW)), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-9)
    else:
        if isinstance(L, ArrowRows):
            border = L.X if L.sparse is None else np.hstack([L.X, L.sparse.toarray()])
            rows, B = np.zeros((9, latent.n_weights)), border.shape[1]
            rows[:, :B] = border
            for i, code in enumerate(L.codes):
                if code >= 0:
                    rows[i, B + 2 * code : B + 2 + 2 * code] = L.values[i]
        else:
            rows = L.dense() if hasattr(L, "dense") else L.toarray() if hasattr(L, "toarray") else L
        np.testing.assert_allclose(detached.joint(L)[1], rows @ V @ rows.T, atol=1e-9 * max(V.max(), 1.0))
        with_rest = np.diag(np.broadcast_to(rest, 9)) + 0.1
        np.testing.assert_allclose(detached.joint(L, with_rest)[1], rows @ V @ rows.T + with_rest, atol=1e-8)


@pytest.mark.parametrize("name", CASES)
def test_arrays_make_the_same_again(name: str) -> None:
    latent, _, L, rest = CASES[name]()
    detached = latent.detach(fitted(latent, False))
    arrays: dict[str, Any] = {}
    document = pack(detached, arrays)
    again = unpack(document, {key: value.copy() for key, value in arrays.items()})
    assert type(again) is WEIGHT_POSTERIORS[detached.kind]
    for one, other in zip(again.at(L, rest), detached.at(L, rest), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(InputError, match="missing or unknown"):
        unpack({**document, "more": 1.0}, arrays)


def test_outputs_come_one_after_the_other() -> None:
    latent = klimb.latents.Outputs([klimb.latents.Weights(X), klimb.latents.Kernel(k(T, T)), klimb.latents.Weights(X)])
    q = klimb.infer(latent, klimb.sites.Softmax(3), RNG.integers(0, 3, N)).posterior
    several = latent.detach(q)
    assert isinstance(several, Several)
    V = q.covariance()
    np.testing.assert_allclose(several.mean, q.mean)
    np.testing.assert_allclose(several.sd() ** 2, V.diagonal(), atol=1e-10)
    L, rest = (NEW, k(T_NEW, T), NEW), (0.0, 1.0, 0.5)
    m, v = several.at(L, rest)
    for number, part in enumerate(latent.split(q)):
        one = part.latent.predict(part, L[number], *([1.0] if number == 1 else []))
        np.testing.assert_allclose(m[9 * number : 9 * number + 9], one[0], atol=1e-10)
        np.testing.assert_allclose(v[9 * number : 9 * number + 9], one[1] + 0.5 * (number == 2), atol=1e-10)
    _, joint = several.joint(L, (0.0, k(T_NEW, T_NEW), 0.5))
    np.testing.assert_allclose(joint.diagonal(), v, atol=1e-9)
    assert not joint[:9, 9:].any()
    own = several.moments(slice(D, D + N)).blocks(1)
    np.testing.assert_allclose(own, [[(V.diagonal() + q.mean**2)[D : D + N].sum()]])
    arrays: dict[str, Any] = {}
    again = unpack(pack(several, arrays), arrays)
    np.testing.assert_array_equal(again.at(L, rest)[1], v)
    assert several.sample(5, np.random.default_rng(0)).shape == (5, 2 * D + N)
    shared = klimb.latents.Outputs.shared(klimb.latents.Weights(X), 2)
    twice = shared.detach(klimb.infer(shared, klimb.sites.Softmax(2), CODES % 2).posterior)
    assert twice.at(NEW)[0].shape == (18,)


def test_forms_follow_the_latent() -> None:
    assert isinstance(klimb.latents.Weights(X).detach(fitted(klimb.latents.Weights(X), False)), DenseWeights)
    assert isinstance(klimb.latents.Weights(WIDE).detach(fitted(klimb.latents.Weights(WIDE), False)), WideWeights)


def test_points_have_no_spread() -> None:
    y = RNG.poisson(2.0, N)
    for latent, L in ((klimb.latents.Weights(X), NEW), (klimb.latents.Mixed(X, CODES),
                                                       ArrowRows(NEW, CODES_NEW, np.ones((9, 1))))):
        point = latent.detach(klimb.methods.map_estimate(latent, klimb.sites.Poisson(), y).posterior)
        assert not point.at(L)[1].any()
        assert not point.sd().any()
        assert np.ptp(point.sample(3, np.random.default_rng(0)), axis=0).max() == 0.0
    for latent in (klimb.latents.Kernel(k(T, T)), klimb.latents.Markov(T)):
        with pytest.raises(InputError, match="point estimate"):
            latent.detach(klimb.methods.map_estimate(latent, klimb.sites.Poisson(), y).posterior)


def test_wrong_functionals_are_refused() -> None:
    for name in ("weights", "wide", "kernel"):
        latent, _, L, _ = CASES[name]()
        detached = latent.detach(fitted(latent, False))
        with pytest.raises(InputError, match="L must have"):
            detached.at(np.asarray(L)[:, 1:])
    with pytest.raises(InputError, match="prior covariance"):
        detached.joint(L, np.ones(9))
    with pytest.raises(InputError, match="divide"):
        detached.moments(slice(0, 5)).blocks(2)


def test_sites_follow_from_the_marginals() -> None:
    """At the optimum (a, gamma) are the oracle's, so that a fit starts again where it was."""
    latent, site = klimb.latents.Weights(X, cov=2.0), klimb.sites.Logistic()
    q = klimb.infer(latent, site, CODES > 2, tol=1e-9).posterior
    slope, gamma = sites_at(site, site.validate(CODES > 2), q.m, q.v)
    np.testing.assert_allclose(slope, q.a + q.gamma * q.m, atol=1e-7)
    np.testing.assert_allclose(gamma, q.gamma, atol=1e-7)
    assert klimb.infer(latent, site, CODES > 2, start=start_at(latent, slope, gamma)).n_iter == 0


@pytest.mark.parametrize("scale", [np.ones(1), np.arange(1.0, 7.0)])
def test_covariances_that_are_asked_for_multiply_no_other_entry(scale, monkeypatch):
    """Of a posterior that a correction widens: those of two weights need no product over all weights."""
    rng = np.random.default_rng(0)
    base, added = DenseWeights(rng.standard_normal(6), rng.standard_normal((6, 6))), rng.standard_normal((4, 6))
    rows, columns = np.array([3, 3, 1]), np.array([3, 5, 1])
    whole = base.root @ base.root.T + (added * scale).T @ (added * scale)
    widened = WidenedWeights(base.mean, base, added, scale=scale)
    np.testing.assert_allclose(widened.block_covariance(slice(0, 6), 6), whole, rtol=1e-12)
    monkeypatch.setattr(WidenedWeights, "_added", None)  # of all weights
    np.testing.assert_allclose(widened.covariances(rows, columns), whole[rows, columns], rtol=1e-12)
    monkeypatch.setattr(WidenedWeights, "covariances", None)
    np.testing.assert_allclose(widened.sd(), np.sqrt(np.diag(whole)), rtol=1e-12)
