"""Conjugate gradients, Lanczos, preconditioners and exact factorisations, against dense linear algebra."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import LinearOperator

from klimb.errors import InputError, NotPositiveDefiniteError
from klimb.linalg.factors import FactorPlan, cheapest_plan, factorise
from klimb.linalg.factors.forms import analysed as find_levels
from klimb.linalg.factors.forms import sparse_pattern
from klimb.linalg.krylov import ScaledLanczos, lanczos, simplest_preconditioner, solve, sparse_part
from klimb.linalg.krylov.cg import Jacobi
from klimb.linalg.krylov.surrogates import LowRankPlusDiagonal
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators import as_operator


def precision(N=60, D=40, seed=0, decades=(0.0, 0.0), shift=(0.0, 0.0)):
    """A random precision: ``decades`` of the columns of B, and of the diagonal."""
    rng = np.random.default_rng(seed)
    B = as_operator(rng.standard_normal((N, D)) * 10 ** rng.uniform(*decades, D), "B")
    return NormalMatrix(10 ** rng.uniform(*shift, D), [(B, rng.uniform(0.0, 2.0, N))]), rng


def grid(n):
    gap, one = sparse.diags([-np.ones(n - 1), np.ones(n - 1)], [0, 1], shape=(n - 1, n)), sparse.identity(n)
    return sparse.vstack([sparse.kron(gap, one), sparse.kron(one, gap)]).tocsr()


# -- conjugate gradients -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("decades", "shift"), [((0, 0), (0, 0)), ((-3, 3), (-12, 12)), ((0, 0), (6, 12)),
                                                ((-6, 6), (-3, 3))])
def test_any_scale(decades, shift):
    A, rng = precision(decades=decades, shift=shift)
    rhs = rng.standard_normal((40, 6)) * 10.0 ** np.array([-250, -5, 0, 5, 250, 0])
    rhs[:, 5] = 0.0
    found = solve(A, rhs)
    assert found.converged
    assert (found.residual <= 2e-10).all()
    truth = np.linalg.solve(A.dense(), rhs)
    top = np.maximum(np.abs(truth).max(axis=0), 1e-300)
    assert np.abs((found.x - truth) / top).max() < 1e-6
    np.testing.assert_array_equal(found.x[:, 5], 0.0)


def test_columns_do_not_know_of_each_other():
    A, rng = precision()
    rhs = rng.standard_normal((40, 5)) * [1.0, 1e-3, 1.0, 1e6, 1.0]
    together = solve(A, rhs, tol=1e-8)
    for j in range(5):
        alone = solve(A, rhs[:, j], tol=1e-8)
        assert alone.x.shape == (40,)
        np.testing.assert_allclose(together.x[:, j], alone.x, atol=1e-9 * np.abs(alone.x).max())


def test_a_column_that_is_done_costs_nothing_more():
    A, rng = precision()
    easy = A.times(np.eye(40)[:, 0])  # the start is the answer
    start = np.zeros((40, 2))
    start[0, 0] = 1.0
    A.n_products = 0
    found = solve(A, np.stack([easy, rng.standard_normal(40)], axis=1), start=start)
    assert found.converged
    assert A.n_products <= 2 * (found.n_iter + 4)


def test_a_good_start_saves_iterations():
    A, rng = precision()
    rhs = rng.standard_normal(40)
    cold = solve(A, rhs)
    warm = solve(A, rhs, start=cold.x * (1.0 + 1e-8))
    assert warm.n_iter < cold.n_iter / 2
    np.testing.assert_allclose(warm.x, cold.x, rtol=1e-7)


def test_what_can_not_be_reached_is_said():
    A, rng = precision(D=60, N=60)
    few = solve(A, rng.standard_normal(60), max_iter=3)
    assert not few.converged
    assert few.n_iter == 3
    assert few.residual[0] > 1e-10
    # Numbers that float64 does not have: the residual stagnates, and that is no error.
    nearly_singular = NormalMatrix(np.full(40, 1e-13), [(as_operator(rng.standard_normal((20, 40)), "B"), 1.0)])
    stuck = solve(nearly_singular, rng.standard_normal(40), tol=1e-15)
    assert not stuck.converged
    assert np.isfinite(stuck.x).all()


def test_an_indefinite_matrix_is_found():
    B = as_operator(np.eye(3), "B")
    A = NormalMatrix(np.ones(3), [(B, np.array([0.0, 0.0, -2.0]))])
    with pytest.raises(NotPositiveDefiniteError):
        solve(A, np.ones(3), preconditioner=Jacobi(np.ones(3)))
    with pytest.raises(NotPositiveDefiniteError, match="at 2"):
        solve(NormalMatrix(np.ones(3), [(B, np.array([0.0, 0.0, -2.0]))]), np.ones(3))


def test_bad_input_of_solve():
    A, _ = precision()
    for rhs, options, message in [
        (np.ones(39), {}, "40 rows"),
        (np.full(40, np.nan), {}, "right-hand side must be finite"),
        (np.ones(40), {"tol": 0.0}, "tol must be between 0 and 1"),
        (np.ones(40), {"start": np.full(40, np.inf)}, "start must be finite"),
    ]:
        with pytest.raises(InputError, match=message):
            solve(A, rhs, **options)


def test_nan_of_a_users_operator_does_not_leave():
    broken = False

    def product(u):
        return np.ravel(u) * (np.nan if broken else 1.0)

    B = as_operator(LinearOperator((4, 4), matvec=product, rmatvec=np.ravel, dtype=float), "B")
    A = NormalMatrix(np.arange(1.0, 5.0), [(B, np.ones(4))])
    assert solve(A, np.arange(4.0)).converged
    broken = True
    with pytest.raises(InputError, match="matmat of B must be finite"):
        solve(A, np.arange(4.0))


def test_recorded_coefficients_are_lanczos():
    A, rng = precision(D=12, N=20)
    rhs = rng.standard_normal((12, 2))
    found = solve(A, rhs, tol=1e-13, preconditioner=Jacobi(np.ones(12)), record=True)
    main = 1.0 / found.steps[:12, 0]
    main[1:] += found.ratios[:11, 0] / found.steps[:11, 0]
    side = np.sqrt(found.ratios[:11, 0]) / found.steps[:11, 0]
    T = np.diag(main) + np.diag(side, 1) + np.diag(side, -1)
    np.testing.assert_allclose(np.linalg.eigvalsh(T), np.linalg.eigvalsh(A.dense()), rtol=1e-6)


# -- Lanczos -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 3, 8])
@pytest.mark.parametrize("k", [1, 10, 40, 99])
def test_lanczos_relation(block, k):
    A, rng = precision(decades=(-2, 2))
    dense = A.dense()
    found = lanczos(A.times, 40, k, rng=rng, block=block)
    scale = np.linalg.norm(dense, 2)
    assert found.k >= min(k, 40)
    np.testing.assert_allclose(found.Q.T @ found.Q, np.eye(found.Q.shape[1]), atol=1e-12)
    np.testing.assert_allclose(dense @ found.basis, found.Q @ found.H, atol=1e-11 * scale)
    np.testing.assert_allclose(found.T, found.basis.T @ dense @ found.basis, atol=1e-11 * scale)
    values, vectors = found.ritz
    np.testing.assert_allclose(found.T @ vectors, vectors * values, atol=1e-11 * scale)


@pytest.mark.parametrize("block", [1, 4])
def test_lanczos_goes_on_after_a_breakdown(block):
    """Three distinct eigenvalues: the Krylov space of a vector has three dimensions, yet all forty can be found."""
    values = np.repeat([1.0, 2.0, 5.0], [20, 15, 5])
    found = lanczos(lambda U: values[:, None] * U, 40, 40, rng=np.random.default_rng(0), block=block)
    assert found.Q.shape == (40, 40)
    np.testing.assert_allclose(found.Q.T @ found.Q, np.eye(40), atol=1e-10)
    np.testing.assert_allclose(found.ritz[0], np.sort(values), atol=1e-8)


def test_lanczos_continues_where_it_stopped():
    A, _ = precision()
    once = lanczos(A.times, 40, 24, rng=np.random.default_rng(1), block=4)
    half = lanczos(A.times, 40, 12, rng=np.random.default_rng(1), block=4)
    again = lanczos(A.times, 40, 24, rng=np.random.default_rng(1), block=4, known=half)
    np.testing.assert_allclose(again.Q, once.Q, atol=1e-10)


# -- preconditioners ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1, 5])
def test_low_rank_plus_diagonal(rank):
    rng = np.random.default_rng(rank)
    diagonal, U = 10 ** rng.uniform(-3, 3, 20), rng.standard_normal((20, rank))
    M = LowRankPlusDiagonal(diagonal, U)
    dense = np.diag(diagonal) + U @ U.T
    rhs = rng.standard_normal((20, 3))
    np.testing.assert_allclose(M.solve(rhs), np.linalg.solve(dense, rhs), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(M.solve(rhs[:, 0]), np.linalg.solve(dense, rhs[:, 0]), rtol=1e-8, atol=1e-10)
    F = M.factor_times(np.eye(20))
    np.testing.assert_allclose(F @ F.T, dense, rtol=1e-8, atol=1e-10)
    assert M.log_det == pytest.approx(np.linalg.slogdet(dense)[1], rel=1e-10)
    np.testing.assert_allclose(M.inverse_diagonal, np.diagonal(np.linalg.inv(dense)), rtol=1e-8)
    B = as_operator(rng.standard_normal((7, 20)), "B")
    exact = np.diagonal(B.dense() @ np.linalg.inv(dense) @ B.dense().T)
    np.testing.assert_allclose(M.known_variances(B), exact, rtol=1e-7)
    np.testing.assert_allclose(B.row_norms_squared(1.0 / M.diagonal), B.dense() ** 2 @ (1.0 / diagonal))


def test_jacobi_and_identity():
    assert Jacobi(np.array([1.0, 4.0])).solve(np.array([1.0, 4.0])).tolist() == [1.0, 1.0]
    assert Jacobi(np.ones(2)).log_det == 0.0
    with pytest.raises(NotPositiveDefiniteError, match="at 1"):
        Jacobi(np.array([1.0, 0.0]))


def words(N=400, D=300, seed=0):
    """Counts of words: a few in most rows, most in few."""
    rng = np.random.default_rng(seed)
    rate = 3.0 / np.arange(1, D + 1)
    return sparse.csr_matrix(rng.poisson(rate, (N, D)).astype(float))


def test_the_surrogate_has_the_diagonal_of_the_matrix_and_takes_large_eigenvalues_away():
    A = NormalMatrix(np.full(300, 0.1), [(as_operator(words(), "B"), 0.25)])
    M = ScaledLanczos(A, 32, 0).surrogate()
    dense = M.factor_times(np.eye(300))
    dense = dense @ dense.T
    np.testing.assert_allclose(np.diagonal(dense), A.diagonal(), rtol=1e-10)
    rhs = np.random.default_rng(0).standard_normal((300, 4))
    assert solve(A, rhs, preconditioner=M).n_iter < solve(A, rhs).n_iter


def test_an_operator_of_unknown_entries_is_preconditioned_by_the_identity():
    hidden = LinearOperator((300, 300), matvec=np.ravel, rmatvec=np.ravel, dtype=float)
    unknown = NormalMatrix(np.ones(300), [(as_operator(hidden, "B"), 1.0)])
    np.testing.assert_array_equal(simplest_preconditioner(unknown).solve(np.arange(300.0)), np.arange(300.0))


def picture(n=20, noise=0.1):
    """A blurred picture with gradients: a part of the precision that is sparse, and one that is not."""
    gaps = as_operator(grid(n), "B")
    blur = as_operator(np.kron(*(2 * [0.5 * np.eye(n) + 0.25 * np.eye(n, k=1) + 0.25 * np.eye(n, k=-1)])), "X")
    return NormalMatrix(np.zeros(n * n), [(blur, noise**-2), (gaps, 10 ** np.random.default_rng(0).uniform(0, 6, 760))])


def test_the_sparse_part():
    A = picture()
    M = sparse_part(A)
    blur, gaps = A.operators
    dense = np.diag(blur.gram_diagonal(A.parts[0][1])) + gaps.gram(A.parts[1][1])
    rhs = np.random.default_rng(0).standard_normal((400, 4))
    np.testing.assert_allclose(M.solve(rhs), np.linalg.solve(dense, rhs), rtol=1e-6, atol=1e-9)
    F = M.factor_times(np.eye(400))
    np.testing.assert_allclose(F @ F.T, dense, rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(M.factor_times(rhs[:, 0]), F @ rhs[:, 0])
    assert M.log_det == pytest.approx(np.linalg.slogdet(dense)[1], rel=1e-10)
    np.testing.assert_allclose(M.inverse_diagonal, np.diagonal(np.linalg.inv(dense)), rtol=1e-7)
    variances = M.known_variances(gaps)
    b = gaps.dense()
    np.testing.assert_allclose(variances, np.einsum("ij,ij->i", b, np.linalg.solve(dense, b.T).T), rtol=1e-6)
    assert M.known_variances(blur) is None
    assert 5 * solve(A, rhs, preconditioner=M, tol=1e-6).n_iter < solve(A, rhs, tol=1e-6).n_iter
    assert sparse_part(NormalMatrix(np.ones(400), [(gaps, 1.0)])) is None  # nothing but sparse
    assert sparse_part(NormalMatrix(np.ones(400), [(blur, 1.0)])) is None  # nothing sparse


# -- exact factorisations ----------------------------------------------------------------------------------------------


def exact_cases():
    rng = np.random.default_rng(3)
    mixed = as_operator(sparse.random(80, 50, 0.1, random_state=1) + sparse.eye(80, 50), "B")
    other = as_operator(rng.standard_normal((7, 50)), "X")
    gaps, pixels = as_operator(grid(16), "B"), as_operator(sparse.identity(256), "I")
    strange = as_operator(sparse.random(30, 256, 0.02, random_state=1), "R")
    return {
        "words": (NormalMatrix(np.ones(50), [(mixed, rng.uniform(size=80))]), mixed, other),
        "two parts": (NormalMatrix(10 ** rng.uniform(-3, 3, 50), [(mixed, 10 ** rng.uniform(-3, 3, 80)),
                                                                  (other, 2.0)]), mixed, other),
        "pixels": (NormalMatrix(np.zeros(256), [(pixels, 5.0), (gaps, 10 ** rng.uniform(-3, 3, 480))]), gaps, strange),
        "diagonal": (NormalMatrix(np.ones(256), [(pixels, 10 ** rng.uniform(-12, 12, 256))]), pixels, strange),
        "gamma of zero": (NormalMatrix(np.ones(256), [(gaps, np.arange(480) % 2.0)]), gaps, pixels),
        "no parts": (NormalMatrix(np.arange(1.0, 51.0)), mixed, other),
    }


@pytest.mark.parametrize("kind", ["primal", "dual", "levels"])
@pytest.mark.parametrize("name", list(exact_cases()))
def test_factorisations(name, kind):
    A, B, other = exact_cases()[name]
    pattern = sparse_pattern(A)
    if (kind == "levels" and pattern is None) or (kind == "dual" and (A.shift.min() <= 0 or not A.parts)):
        return
    factor = factorise(A, FactorPlan(kind, 0.0, 0, None if pattern is None else find_levels(pattern)))
    dense = A.dense()
    inverse = np.linalg.inv(dense)
    for rows in (B, other):
        b = rows.dense()
        np.testing.assert_allclose(factor.variances(rows), np.einsum("ij,jk,ik->i", b, inverse, b), rtol=3e-8)
    rhs = np.random.default_rng(0).standard_normal((A.size, 3))
    np.testing.assert_allclose(factor.solve(rhs), inverse @ rhs, rtol=1e-6, atol=1e-9 * np.abs(inverse).max())
    np.testing.assert_allclose(factor.solve(rhs[:, 0]), factor.solve(rhs)[:, 0], atol=1e-12 * np.abs(inverse).max())
    assert factor.log_det == pytest.approx(np.linalg.slogdet(dense)[1], rel=1e-8 if kind == "dual" else 1e-10)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dual_variances_at_all_scales(seed):
    """Against 50 digits: rows of A that hardly count and rows that count for all, common words and rare ones."""
    rng, (N, D) = np.random.default_rng(seed), (24, 72)
    words = sparse.random(N, D, 0.04, random_state=seed, data_rvs=lambda n: rng.uniform(0.2, 1.0, n))
    X = sparse.csr_matrix(sparse.hstack([words, np.ones((N, 1)), sparse.csr_matrix((N, 1))]))
    shift, gamma = 10 ** rng.uniform(-4, 2, D + 2), 10 ** rng.uniform(-10, 4, N)
    unit = sparse.csr_matrix(sparse.identity(D + 2))
    B, weights, three = (as_operator(rows, "B") for rows in (X, unit, unit[-3:]))
    A = NormalMatrix(shift, [(B, gamma)])
    factor = factorise(A, FactorPlan("dual", 0.0, 0))
    few = factor.variances(three)  # by solving: for so few of them no inverse is made
    own, all_weights = factor.variances(B), factor.variances(weights)
    gain = gamma * (X.multiply(X) @ (1.0 / shift))
    assert gain.min() < 1e-4 < 1.0 < gain.max()
    assert ((gain > 1e-4) & (gain < 1.0)).any()
    with mpmath.workdps(50):
        rows = mpmath.matrix(X.toarray().tolist())
        half = mpmath.diag([1 / mpmath.mpf(float(d)) for d in shift]) * rows.T
        inner = mpmath.inverse(rows * half + mpmath.diag([1 / mpmath.mpf(float(g)) for g in gamma]))
        taken = half * inner
        exact = [1 / mpmath.mpf(float(d)) - mpmath.fdot(taken[j, :], half[j, :]) for j, d in enumerate(shift)]
        # With S = K + G^-1: K - K S^-1 K = G^-1 - G^-1 S^-1 G^-1.
        exact_own = [1 / mpmath.mpf(float(g)) - inner[i, i] / mpmath.mpf(float(g)) ** 2 for i, g in enumerate(gamma)]
        exact, exact_own = (np.array(values, dtype=float) for values in (exact, exact_own))
    np.testing.assert_allclose(all_weights, exact, rtol=1e-9)
    np.testing.assert_allclose(few, exact[-3:], rtol=1e-9)
    np.testing.assert_allclose(own, exact_own, rtol=1e-9)


def test_the_cheapest_plan():
    rng = np.random.default_rng(0)
    tall, wide = (as_operator(rng.standard_normal(shape), "B") for shape in ((500, 30), (30, 500)))
    assert cheapest_plan(NormalMatrix(np.ones(30), [(tall, 1.0)])).kind == "primal"
    assert cheapest_plan(NormalMatrix(np.ones(500), [(wide, 1.0)])).kind == "dual"
    gaps = as_operator(grid(40), "B")
    plan = cheapest_plan(NormalMatrix(np.ones(1600), [(gaps, 1.0)]), gaps)
    assert plan.kind == "levels"
    assert "levels: about" in str(plan)


def test_refuses_what_does_not_fit():
    A, _ = precision()
    with pytest.raises(InputError, match="must fit into"):
        factorise(A, memory=100)


def test_factorisations_of_indefinite_matrices():
    gaps = as_operator(grid(16), "B")
    A = NormalMatrix(np.ones(256), [(gaps, np.full(480, -10.0))])
    for kind in ("primal", "dual", "levels"):
        with pytest.raises(NotPositiveDefiniteError):
            factorise(A, FactorPlan(kind, 0.0, 0, find_levels(sparse_pattern(A))))
