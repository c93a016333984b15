"""A design that keeps its columns apart has the products of one that keeps its rows together."""

from __future__ import annotations

import numpy as np
import pytest

from klimb.linalg.matrix import ColumnDesign, DenseDesign


@pytest.mark.parametrize("width", [1, 2, 7, 51])
@pytest.mark.parametrize("signed", [False, True])
def test_products_are_those_of_rows(width: int, signed: bool) -> None:
    rng = np.random.default_rng(width)
    n = 2 * 131_072 // width + 17 if width > 2 else 1000  # several blocks, the last one short
    X, gamma = rng.standard_normal((n, width)), rng.random(n) - (0.3 if signed else 0.0)
    columns, rows = ColumnDesign(X), DenseDesign(X)
    np.testing.assert_allclose(columns.weighted_gram(gamma), (X.T * gamma) @ X, rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(columns.weighted_gram(gamma), rows.weighted_gram(gamma), rtol=1e-10, atol=1e-9)
    upper, w = np.triu(rng.standard_normal((width, width))), rng.standard_normal(width)
    for root, is_upper in [(upper, True), (upper[:, ::-1].copy(), False), (np.abs(w), False)]:
        expected = ((X * root if root.ndim == 1 else X @ root) ** 2).sum(axis=1)
        norms, product = columns.row_norms_squared(root, upper=is_upper, times=w)
        np.testing.assert_allclose(norms, expected, rtol=1e-11)
        np.testing.assert_allclose(product, X @ w, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(columns.transpose_times(gamma), X.T @ gamma, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(columns.subset(np.array([3, 1])).dense(), X[[3, 1]])


@pytest.mark.parametrize("width", [1, 7, 51])
def test_rounded_columns_have_the_same_products_to_single_precision(width: int) -> None:
    rng = np.random.default_rng(width)
    n = 2 * 131_072 // width + 17
    X, gamma, root = rng.standard_normal((n, width)), rng.random(n), np.triu(rng.standard_normal((width, width)))
    exact, rounded = ColumnDesign(X), ColumnDesign(X, rounded=True)
    gram = exact.weighted_gram(gamma)
    size = np.sqrt(np.outer(np.diagonal(gram), np.diagonal(gram)))
    np.testing.assert_allclose(rounded.weighted_gram(gamma) / size, gram / size, atol=1e-6)
    signed = [each.weighted_gram(gamma - 0.3) for each in (exact, rounded)]  # digits cancel: in double precision
    np.testing.assert_allclose(signed[1], signed[0], rtol=1e-10, atol=1e-9)
    (one, product), (other, same) = (each.row_norms_squared(root, upper=True, times=root[0])
                                     for each in (exact, rounded))
    whole = X**2 @ (root**2).sum(axis=1)
    np.testing.assert_allclose(other / whole, one / whole, atol=1e-6)
    np.testing.assert_allclose(same, product, rtol=1e-12, atol=1e-12)
