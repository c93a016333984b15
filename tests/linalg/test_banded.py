"""Band factors and their selected inverse against dense algebra."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from klimb.errors import NotPositiveDefiniteError
from klimb.linalg.sparse_cholesky import WIDEST, BandPlan, analysed, band_order


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 40), below=st.integers(0, WIDEST), seed=st.integers(0, 10**6))
def test_everything_is_as_in_dense_algebra(n: int, below: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    half = np.tril(rng.standard_normal((n, n)))
    half[np.subtract.outer(np.arange(n), np.arange(n)) > below] = 0.0
    dense = half @ half.T + 0.1 * np.eye(n)
    order = rng.permutation(n)
    dense = dense[np.ix_(order, order)]
    M = scipy.sparse.csc_array(dense)
    M.sort_indices()
    plan = analysed(M)
    factor, V, b = plan.factor(M.data), np.linalg.inv(dense), rng.standard_normal((n, 3))
    scale = np.abs(V).max()
    columns = np.repeat(np.arange(n), np.diff(M.indptr))
    np.testing.assert_allclose(factor.logdet, np.linalg.slogdet(dense)[1], atol=1e-9)
    np.testing.assert_allclose(factor.inverse_entries, V[M.indices, columns], atol=1e-9 * scale)
    np.testing.assert_allclose(factor.solve(b), V @ b, atol=1e-8 * scale)
    np.testing.assert_allclose(factor.solve(b[:, 0]), V @ b[:, 0], atol=1e-8 * scale)
    half_solved, root = factor.half_solve(b), factor.root_solve(np.eye(n))
    np.testing.assert_allclose(half_solved.T @ half_solved, b.T @ V @ b, atol=1e-7 * scale)
    np.testing.assert_allclose(root @ root.T, V, atol=1e-8 * scale)


def test_a_chain_is_a_band_and_a_lattice_is_not() -> None:
    chain = scipy.sparse.diags_array([np.ones(49), np.full(50, 3.0), np.ones(49)], offsets=[-1, 0, 1]).tocsc()
    assert isinstance(analysed(chain), BandPlan)
    one = scipy.sparse.eye_array(50)
    lattice = scipy.sparse.kron(chain, one) + scipy.sparse.kron(one, chain)
    assert band_order(scipy.sparse.csc_array(lattice)) is None


def test_indefinite_bands_are_refused() -> None:
    M = scipy.sparse.diags_array([np.ones(9), np.ones(10), np.ones(9)], offsets=[-1, 0, 1]).tocsc()
    with pytest.raises(NotPositiveDefiniteError):
        analysed(M).factor(M.data)


def test_a_smooth_chain_of_a_hundred_thousand_keeps_its_variances() -> None:
    """Second differences with a large precision: variances of the middle are those of an infinite chain."""
    n, tau = 100_000, 1e6
    D = scipy.sparse.diags_array([np.ones(n - 2), -2 * np.ones(n - 2), np.ones(n - 2)], offsets=[0, 1, 2],
                                 shape=(n - 2, n))
    M = (tau * (D.T @ D) + scipy.sparse.eye_array(n)).tocsc()
    M.sort_indices()
    entries = analysed(M).factor(M.data).inverse_entries
    columns = np.repeat(np.arange(n), np.diff(M.indptr))
    variance = entries[(M.indices == n // 2) & (columns == n // 2)][0]
    angles = (np.arange(400_000) + 0.5) * np.pi / 400_000
    expected = np.mean(1.0 / (1.0 + tau * (2.0 - 2.0 * np.cos(angles)) ** 2))
    assert abs(variance / expected - 1.0) < 1e-6


def test_no_columns_have_no_solution_to_write() -> None:
    """LAPACK's `dtbtrs` writes past the end of right-hand sides without columns: draws of which a part has none."""
    program = """if True:
        import numpy as np, scipy.sparse
        from klimb.linalg.sparse_cholesky import analysed
        from klimb.linalg.chains import Bidiagonal
        M = scipy.sparse.diags_array([np.ones(39), np.full(40, 3.0), np.ones(39)], offsets=[-1, 0, 1]).tocsc()
        factor, chain = analysed(M).factor(M.data), Bidiagonal(np.full((1, 1, 40), 0.5))
        for _ in range(200):
            none = np.zeros((40, 0))
            assert factor.solve(none).shape == factor.half_solve(none).shape == factor.root_solve(none).shape == (40, 0)
            assert chain.solve(np.zeros((40, 1, 0))).shape == (40, 1, 0)
        """
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
