"""Ranges, means and covariances of columns in blocks: NumPy's own, also for columns far from 0."""

import numpy as np
import pytest

from klimb.terms.column_moments import ColumnMoments

RNG = np.random.default_rng(5)
N = 5000


@pytest.mark.parametrize("far", [0.0, 1e6])
def test_against_numpy(far):
    X = RNG.standard_normal((N, 40)) + far
    X[:, 3] *= 1e180
    shares = RNG.random(N)
    shares /= shares.sum()
    found = ColumnMoments.of(X, shares)
    assert np.array_equal(found.low, X.min(axis=0))
    assert np.array_equal(found.high, X.max(axis=0))
    assert np.allclose(found.mean, shares @ X, rtol=1e-13)
    assert np.allclose(found.sd[:3], np.sqrt(np.diagonal(np.cov(X[:, :3].T, aweights=shares, ddof=0))), rtol=1e-9)
    assert found.apart == (far == 0.0)  # a millionth of a column is left to a QR factorisation


def test_made_columns_and_what_is_not_apart():
    X, shares = RNG.standard_normal((N, 3)), np.full(N, 1.0 / N)
    twice = ColumnMoments.of(X, shares, lambda rows: 2.0 * rows)
    once = ColumnMoments.of(X, shares)
    assert np.allclose(twice.sd, 2.0 * once.sd, rtol=1e-12)
    assert np.allclose(twice.correlation, np.corrcoef(X.T), atol=1e-12)
    ones = np.ones((N, 1))
    assert ColumnMoments.of(np.hstack([ones, X]), shares).apart
    for more in (ones, 0.0 * ones, X[:, :1] + X[:, 1:2]):
        assert not ColumnMoments.of(np.hstack([ones, X, more]), shares).apart


@pytest.mark.parametrize("n", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("width", [0, 7])
@pytest.mark.parametrize("order", ["C", "F"])
def test_ends_of_any_number_of_rows(n, width, order):
    X = np.asarray(RNG.standard_normal((n, width)), order=order)
    found = ColumnMoments.of(X, np.full(n, 1.0 / n))
    assert np.array_equal(found.low, X.min(axis=0))
    assert np.array_equal(found.high, X.max(axis=0))
