"""Crossed grouping factors with a sparse border, against dense algebra and against Weights written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.sparse import csr_matrix

import klimb
import klimb.latents.crossed_cells as crossed_cells
from klimb.errors import InputError, NotPositiveDefiniteError
from klimb.latents import ArrowRows, Crossed, Outputs, Weights
from klimb.latents.crossed import CrossedFactor
from klimb.latents.linear import LinearParts


def levels(codes: Any, values: Any, count: int) -> Any:
    """The columns of a factor, level by level."""
    n, k = values.shape
    out = np.zeros((n, count * k))
    for j in range(k):
        out[np.arange(n), codes * k + j] = values[:, j]
    return out


class Design:
    """A random crossed design: the sparse latent and the same model as one dense design."""

    def __init__(self, seed: int, n: int = 50, sizes: tuple[int, ...] = (8, 5, 3), widths: tuple[int, ...] = (1, 1, 1),
                 dense: int = 2, singular: bool = False, uneven: bool = False, nested: bool = False) -> None:
        rng = np.random.default_rng(seed)
        self.rng, self.n = rng, n
        X = rng.standard_normal((n, dense))
        codes = [rng.integers(0, max(size - 1, 1), n) for size in sizes]  # the last level has no rows
        if nested:  # each level within one of the next factor
            codes = [np.arange(n) % sizes[0]]
            codes += [codes[0] % np.gcd.reduce(sizes[:at]) % size for at, size in enumerate(sizes[1:], 1)]
        values = [np.column_stack([np.ones(n), rng.standard_normal((n, width - 1))]) for width in widths]
        side = np.hstack([levels(c, v, s) for c, v, s in list(zip(codes, values, sizes, strict=True))[1:]])
        if uneven:  # rows of different length
            side[::3, : sizes[1]] = 0.0
        roots = [np.tril(rng.standard_normal((width, width))) + np.eye(width) for width in widths]
        if singular:
            roots[0][:, -1], roots[1][:] = 0.0, 0.0
        pairs = tuple((root, size) for root, size in zip(roots, sizes, strict=True))[1:]
        cov = np.eye(dense) + 0.3 if seed % 2 else np.full(dense, 2.0)
        self.parts = LinearParts(X, np.full(dense, 0.3), cov, np.zeros(n), codes[0], values[0], sizes[0],
                                 roots[0] @ roots[0].T, True, csr_matrix(side), pairs)
        self.crossed = Crossed(X, csr_matrix(side), codes[0], values[0], n_levels=sizes[0], mean=0.3, cov=cov,
                               roots=pairs, group_cov=roots[0] @ roots[0].T)
        self.design, mean, full = self.parts.dense()
        self.weights = Weights(self.design, mean=mean, cov=full, form="primal")
        self.K = self.design @ full @ self.design.T


SHAPES: dict[str, dict[str, Any]] = {
    "three factors": {},
    "slopes": {"sizes": (7, 4), "widths": (2, 1)},
    "slopes beside": {"sizes": (7, 4, 3), "widths": (2, 3, 1)},
    "sds of zero": {"sizes": (7, 4), "widths": (2, 2), "singular": True},
    "uneven rows": {"uneven": True},
    "nested": {"sizes": (48, 12, 4), "nested": True},
    "slopes in nested": {"sizes": (24, 12, 4), "widths": (2, 1, 1), "nested": True},
    "nested slopes": {"sizes": (24, 12, 4), "widths": (1, 2, 1), "nested": True},
}


@pytest.fixture(params=[1e-6, 1e9], ids=["gathers", "dense products"])
def gain(request, monkeypatch):
    monkeypatch.setattr(crossed_cells, "DENSE_GAIN", request.param)


@pytest.mark.parametrize("sign", ["positive", "signed", "zero", "uneven"])
@pytest.mark.parametrize("shape", SHAPES)
def test_factor_against_dense_algebra(shape, sign, gain):
    case = Design(2 if "nested" in shape else 3, **SHAPES[shape])
    gamma = {"positive": case.rng.gamma(1.0, size=case.n), "zero": np.zeros(case.n),
             "signed": np.where(np.arange(case.n) % 7 == 0, -0.01, case.rng.gamma(2.0, size=case.n)),
             "uneven": 10.0 ** np.linspace(-10, 3, case.n)}[sign]
    V = np.linalg.solve(np.eye(case.n) + case.K * gamma, case.K)
    latent = case.crossed
    factor, b, scale = latent.factor(gamma), case.rng.standard_normal(case.n), np.abs(case.K).max()
    assert_allclose(factor.variances(), np.diag(V), atol=1e-10 * scale)
    assert_allclose(factor.logdet, np.linalg.slogdet(np.eye(case.n) + case.K * gamma)[1], atol=1e-9)
    assert_allclose(factor.smooth(b), V @ b, atol=1e-9 * scale)
    assert abs(factor.energy(b) - b @ V @ b) < 1e-9 * scale * case.n
    assert_allclose(factor.covariance(), V, atol=1e-9 * scale)
    assert_allclose(latent.mvm(b), case.K @ b, atol=1e-11 * scale)
    assert_allclose(latent.prior_variances, np.diag(case.K), atol=1e-11 * scale)
    assert_allclose(latent.design() @ latent.design().T, case.K, atol=1e-10 * scale)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [2, 3])
def test_correlations_are_those_of_the_covariance(seed, shape, gain):
    case = Design(seed, **SHAPES[shape])
    gamma = case.rng.gamma(1.0, size=case.n)
    V = np.linalg.solve(np.eye(case.n) + case.K * gamma, case.K)
    sd = np.where(np.diagonal(V) > 0.0, np.sqrt(np.diagonal(V)), 1.0)
    R = case.crossed.factor(gamma).correlations(sd)
    assert_allclose(np.tril(R), np.tril(V / sd / sd[:, None]), atol=1e-5)  # in single precision


@pytest.mark.parametrize("few", [False, True])
def test_levels_that_never_meet_are_eliminated_one_by_one(few, monkeypatch):
    """Those within another factor, where no level of the largest one has rows of two of them."""
    monkeypatch.setattr(crossed_cells, "DENSE_GAIN", 1e-6)
    case = Design(2, sizes=(48, 12, 4), nested=True)
    cells = case.crossed.cells
    assert list(cells.alone) == list(range(12))
    assert not Design(2, sizes=(7, 12, 4)).crossed.cells.alone.size
    if few:  # too many pairs of rows of one such level to add them one by one
        monkeypatch.setattr(crossed_cells, "DENSE_GAIN", 1e9)
    gamma = case.rng.gamma(1.0, size=case.n)
    V = np.linalg.solve(np.eye(case.n) + case.K * gamma, case.K)
    assert (cells.near_rows[0] >= 0).all() == (not few)
    assert_allclose(case.crossed.factor(gamma).covariance(), V, atol=1e-10)
    with pytest.raises(NotPositiveDefiniteError, match="pivot"):
        case.crossed.factor(np.full(case.n, -0.2))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), first=st.integers(1, 9), second=st.integers(1, 6), third=st.integers(1, 4),
       wide=st.integers(1, 3), beside=st.integers(1, 2), dense=st.integers(1, 3), uneven=st.booleans())
def test_a_fit_is_that_of_weights(seed, first, second, third, wide, beside, dense, uneven):
    """Bound, means, covariances and the moments that gradients are made of, for any crossed design."""
    case = Design(seed, 40, (first, second, third), (wide, beside, 1), dense, uneven=uneven)
    y = case.rng.poisson(1.5, 40)
    ours = klimb.infer(case.crossed, klimb.sites.Poisson(), y, tol=1e-9)
    dense_fit = klimb.infer(case.weights, klimb.sites.Poisson(), y, tol=1e-9)
    assert ours.bound == pytest.approx(dense_fit.bound, abs=1e-9)
    V = dense_fit.posterior.covariance()
    assert_allclose(ours.posterior.mean, dense_fit.posterior.mean, atol=1e-8)
    assert_allclose(ours.posterior.covariance(), V, atol=1e-8)
    q, B = case.crossed.detach(ours.posterior), case.crossed.cells.width
    plain = case.weights.detach(dense_fit.posterior)
    for at, k in ((slice(dense, dense + second * beside), beside), (slice(B - third, B), 1),
                  (slice(B, B + first * wide), wide)):
        assert_allclose(q.moments(at).blocks(k), plain.moments(at).blocks(k), atol=1e-8)
    i, j = (index.ravel() for index in np.meshgrid(np.arange(len(V)), np.arange(len(V))))
    assert_allclose(q.covariances(i, j), V[i, j], atol=1e-8)


def test_sums_of_proportional_gammas_are_reused(monkeypatch):
    """A Gaussian likelihood never asks for a second pass over the rows."""
    latent = Design(1).crossed
    weights = np.linspace(0.5, 2.0, latent.n_sites)
    first = latent.factor(weights)
    monkeypatch.setattr(crossed_cells.Cells, "_sums", None)
    again = latent.factor(weights / 0.49)
    monkeypatch.undo()
    other = Design(1).crossed
    other.factor(np.ones(latent.n_sites))
    fresh = other.factor(weights / 0.49)
    assert_allclose(again.variances(), fresh.variances(), rtol=1e-12)
    assert again.logdet == pytest.approx(fresh.logdet) != first.logdet


def test_cancelled_digits_come_back():
    """A prior so wide that sums over pairs lose their digits."""
    rng = np.random.default_rng(0)
    n, codes, side = 80, np.arange(80) % 9, csr_matrix(np.eye(4)[np.arange(80) % 4])
    X = np.column_stack([np.ones(n), 1e4 + rng.standard_normal(n)])
    latent = Crossed(X, side, codes, cov=1e12)
    factor = latent.factor(np.ones(n))
    v = Weights(np.hstack([X, side.toarray(), np.eye(9)[codes]]), cov=[1e12, 1e12, *np.ones(13)], form="primal")
    assert_allclose(factor.variances(), v.factor(np.ones(n)).variances(), rtol=1e-4)
    twice = csr_matrix(np.tile(side.toarray(), (2, 1)))
    rows = ArrowRows(np.tile(X, (2, 1)), np.tile(codes, 2), np.ones((2 * n, 1)), twice)
    assert_allclose(factor.weights(np.zeros(6), np.zeros((9, 1))).at(rows)[1][:n], factor.variances(), rtol=1e-4)


def test_rows_apart_and_together():
    """Many rows, which go by covariances, have the variances of the joint covariance; so do levels never seen."""
    case = Design(5, sizes=(8, 5, 3), widths=(2, 2, 1))
    q = case.crossed.detach(klimb.infer(case.crossed, klimb.sites.Logistic(), case.rng.integers(0, 2, 50)).posterior)
    turned = case.rng.permutation(np.tile(np.arange(50), 3))
    rows = ArrowRows(case.parts.X[turned], np.where(np.arange(150) % 11, np.tile(case.parts.codes, 3), -1),
                     case.parts.values[turned], case.parts.sparse[turned])
    m, V = q.joint(rows)
    assert_allclose(q.at(rows)[0], m, atol=1e-12)
    assert_allclose(q.at(rows)[1], np.diag(V), atol=1e-12)
    draws = q.push(rows, q.sample(20_000, np.random.default_rng(0)))
    assert_allclose(np.cov(draws.T), V, atol=0.06 * V.max())
    seen = case.design @ q.mean
    at_fit = case.crossed.cells.rows
    assert_allclose(q.at(at_fit)[0], seen, atol=1e-12)
    C = case.design @ case.crossed.weight_covariance(klimb.infer(
        case.crossed, klimb.sites.Logistic(), np.arange(50) % 2).posterior)
    q = case.crossed.detach(klimb.infer(case.crossed, klimb.sites.Logistic(), np.arange(50) % 2).posterior)
    assert_allclose(q.covariance_with(at_fit, slice(1, 9)), C[:, 1:9], atol=1e-10)


def test_several_classes():
    case = Design(2)
    y = case.rng.integers(0, 3, case.n)
    ours = klimb.infer(Outputs.shared(case.crossed, 3), klimb.sites.Softmax(3), y)
    dense = klimb.infer(Outputs.shared(case.weights, 3), klimb.sites.Softmax(3), y)
    assert ours.bound == pytest.approx(dense.bound, abs=1e-6)
    assert_allclose(ours.posterior.mean, dense.posterior.mean, atol=1e-4)


def test_bad_input():
    X, side, codes = np.ones((6, 1)), csr_matrix(np.eye(3)[np.arange(6) % 3]), np.arange(6) % 2
    with pytest.raises(InputError, match="same rows"):
        Crossed(X[:4], side, codes)
    with pytest.raises(InputError, match="values must have 6 rows"):
        Crossed(X, side, codes, np.ones((5, 1)))
    with pytest.raises(InputError, match="3 sparse columns"):
        Crossed(X, side, codes, roots=[(1.0, 2)])
    with pytest.raises(InputError, match="between 0 and 1"):
        Crossed(X, side, codes + 1, n_levels=2)
    with pytest.raises(NotPositiveDefiniteError):
        Crossed(X, side, codes, group_cov=4.0).factor(np.full(6, -1.0))
    assert isinstance(Crossed(X, side, codes).factor(np.ones(6)), CrossedFactor)


@pytest.mark.parametrize("sizes", [(48, 12, 4), (24, 8, 4)])
def test_nested_columns_are_held_beside_the_rest(sizes, monkeypatch):
    """Of those that stand alone: a diagonal, and what they have with the rest, as dense algebra has it."""
    monkeypatch.setattr(crossed_cells, "DENSE_GAIN", 1e-6)
    case = Design(2, sizes=sizes, nested=True)
    factor = case.crossed.factor(case.rng.gamma(1.0, size=case.n))
    parting, V, width = case.crossed.parting, factor.border_covariance, case.crossed.cells.width
    a = len(parting.alone)
    assert a == sizes[1]
    r = width - a
    assert V.flat.size == r * r + r * a + a
    root = factor.weights(np.zeros(width), np.zeros((sizes[0], 1))).root
    whole = root @ root.T
    assert_allclose(V.rest, whole[np.ix_(parting.rest, parting.rest)], atol=1e-12)
    assert_allclose(V.across, whole[np.ix_(parting.rest, parting.alone)], atol=1e-12)
    assert_allclose(V.alone, np.diag(whole)[parting.alone], atol=1e-12)
    assert_allclose(V.diagonal(), np.diag(whole), atol=1e-12)
    assert_allclose(V.mixed(), whole[2:, :2], atol=1e-12)


def test_slopes_that_are_correlated_have_one_matrix(monkeypatch):
    monkeypatch.setattr(crossed_cells, "DENSE_GAIN", 1e-6)
    case = Design(2, sizes=(24, 12, 4), widths=(1, 2, 1), nested=True)
    assert not len(case.crossed.parting.alone)
    assert case.crossed.factor(np.ones(case.n)).border_covariance.rest.shape == (case.crossed.cells.width,) * 2
