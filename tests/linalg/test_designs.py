"""Every kind of design against plain matrices, and how one is chosen."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import klimb
from klimb import latents, sites
from klimb.errors import InputError
from klimb.linalg.matrix import DenseDesign, PairedDesign, SparseDesign, as_design

RNG = np.random.default_rng(0)
N, D = 200, 40
BINARY = (RNG.random((N, D)) < 0.08) * 1.0
BINARY[7] = 0.0  # an empty row
REAL = BINARY * RNG.standard_normal((N, D))
KINDS = {
    "dense": lambda X: DenseDesign(X),
    "sparse": lambda X: SparseDesign(scipy.sparse.csr_matrix(X)),
    "paired": lambda X: PairedDesign(scipy.sparse.csr_matrix(X)),
}


@pytest.mark.parametrize("X", [BINARY, REAL], ids=["binary", "real"])
@pytest.mark.parametrize("kind", KINDS)
def test_products(kind, X):
    design = KINDS[kind](X)
    gamma, w, f = RNG.gamma(1.0, size=N), RNG.standard_normal(D), RNG.standard_normal(N)
    signed = np.where(RNG.random(N) < 0.2, -gamma, gamma)
    root = np.triu(RNG.standard_normal((D, D)))
    np.testing.assert_allclose(design.times(w), X @ w, atol=1e-12)
    np.testing.assert_allclose(design.transpose_times(f), X.T @ f, atol=1e-12)
    np.testing.assert_allclose(design.weighted_gram(gamma), X.T @ (gamma[:, None] * X), atol=1e-12)
    np.testing.assert_allclose(design.weighted_gram(signed), X.T @ (signed[:, None] * X), atol=1e-12)
    for upper in (False, True):
        norms, product = design.row_norms_squared(root, upper=upper, times=w)
        np.testing.assert_allclose(norms, ((X @ root) ** 2).sum(1), atol=1e-11)
        np.testing.assert_allclose(product, X @ w, atol=1e-12)
    np.testing.assert_allclose(design.row_norms_squared(np.abs(w))[0], X**2 @ w**2, atol=1e-12)
    some = np.array([3, 7, 100])
    np.testing.assert_allclose(design.subset(some).dense(), X[some])
    np.testing.assert_allclose(design.dense_rows(slice(5, 9)), X[5:9])
    np.testing.assert_allclose(design.outer_gram(root), (X @ root) @ (X @ root).T, atol=1e-10)


def test_the_last_product_is_kept_for_the_same_vector_only():
    design = DenseDesign(REAL)
    one, other = RNG.standard_normal(N), RNG.standard_normal(N)
    first = design.transpose_times(one)
    assert design.transpose_times(one) is first
    np.testing.assert_allclose(design.transpose_times(other), REAL.T @ other, atol=1e-12)


def test_pairs_keep_their_digits_where_the_sum_cancels():
    """Two dummy columns that always add up to a third, and a covariance that is wide along what the data do not see."""
    X = np.zeros((60, 40))
    choice = RNG.integers(0, 2, 60)
    X[np.arange(60), choice] = 1.0
    X[:, 2] = 1.0
    unseen = np.zeros(40)
    unseen[:3] = 1.0, 1.0, -1.0
    root = np.column_stack([1e6 * unseen, 1e-3 * np.eye(40)])
    exact = ((X @ root) ** 2).sum(1)
    found, _ = PairedDesign(scipy.sparse.csr_matrix(X)).row_norms_squared(root)
    np.testing.assert_allclose(found, exact, rtol=1e-9)


def test_a_fit_does_not_depend_on_the_kind():
    y = RNG.integers(0, 2, N)
    for cov in (1.0, 1e8):
        models = [latents.Weights(make(BINARY), cov=cov) for make in KINDS.values()]
        bounds = [klimb.infer(latent, sites.Logistic(), y).bound for latent in models]
        assert np.ptp(bounds) < 1e-6


def test_how_one_is_chosen():
    assert isinstance(as_design(RNG.standard_normal((50, 4)), "X"), DenseDesign)
    assert isinstance(as_design(scipy.sparse.csr_matrix(BINARY), "X"), PairedDesign)
    many = scipy.sparse.random(300, 2000, density=0.03, random_state=0, format="csc")
    assert isinstance(as_design(many, "X"), PairedDesign)
    assert isinstance(as_design(scipy.sparse.random(100, 30, density=0.6, random_state=0), "X"), DenseDesign)
    one_long_row = scipy.sparse.lil_matrix((400, 3000))
    one_long_row[0] = 1.0
    one_long_row[1:, 5] = 1.0
    assert isinstance(as_design(one_long_row, "X"), PairedDesign | SparseDesign)
    dummies = np.zeros((30_000, 60))
    dummies[np.arange(30_000), RNG.integers(0, 60, 30_000)] = 1.0
    assert isinstance(as_design(dummies, "X"), PairedDesign)


def test_a_bad_entry_of_a_sparse_design_is_found_behind_stored_zeros():
    X = scipy.sparse.csr_matrix((np.array([0.0, 1.0, np.inf, -np.inf]), np.array([0, 1, 0, 1]), np.array([0, 2, 4])))
    with pytest.raises(InputError, match=r"got inf at index \(1, 0\) \(2 such values\)"):
        latents.Weights(X)
