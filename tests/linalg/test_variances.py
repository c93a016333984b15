"""Variances and log-determinants: exact ones to all digits, estimates within the errors that they claim."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import LinearOperator

from klimb.errors import InputError, NotPositiveDefiniteError
from klimb.linalg.krylov import ScaledLanczos
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators import Operator, as_operator
from klimb.linalg.variances import METHODS, Variances, estimate, log_det, methods
from klimb.linalg.variances.methods import bracket_by_lanczos, simple_upper
from klimb.linalg.variances.stochastic import fitted, pooled, standardised

ESTIMATORS = [method for method in METHODS if method not in ("auto", "exact")]


def truth(A: NormalMatrix, B: Operator) -> np.ndarray:
    b = B.dense()
    return np.einsum("ij,ij->i", b, np.linalg.solve(A.dense(), b.T).T)


def words(N: int, D: int, seed: int, *, unit: bool = True) -> sparse.csr_matrix:
    """Word counts with Zipf's law and topics, rows of unit length if asked for."""
    rng = np.random.default_rng(seed)
    topics = rng.gamma(0.3, 1.0, (6, D)) / np.arange(3, D + 3)
    rate = rng.dirichlet(np.full(6, 0.3), N) @ (topics / topics.sum(axis=1, keepdims=True))
    counts = sparse.csr_matrix(rng.poisson(rng.gamma(3.0, 10.0, (N, 1)) * rate).astype(float))
    if unit:
        norms = np.sqrt(np.asarray(counts.multiply(counts).sum(axis=1)).ravel())
        counts = sparse.diags(1.0 / np.maximum(norms, 1.0)) @ counts
    return counts.tocsr()


def text(N=600, D=300, seed=0, prior=1.0, unit=True):
    rng = np.random.default_rng(seed + 100)
    B = as_operator(words(N, D, seed, unit=unit), "B")
    p = 1.0 / (1.0 + np.exp(-B.times(rng.standard_normal(D))))
    return NormalMatrix(np.full(D, prior), [(B, p * (1.0 - p))]), B


def picture(n=20, seed=0):
    """Noisy pixels, some of them missing, differences between neighbours: a flat prior."""
    rng = np.random.default_rng(seed)
    gap, one = sparse.diags([-np.ones(n - 1), np.ones(n - 1)], [0, 1], shape=(n - 1, n)), sparse.identity(n)
    B = as_operator(sparse.vstack([sparse.kron(gap, one), sparse.kron(one, gap)]).tocsr(), "B")
    X = as_operator(sparse.identity(n * n).tocsr()[rng.random(n * n) < 0.7], "X")
    return NormalMatrix(np.zeros(n * n), [(X, 25.0), (B, rng.gamma(1.0, 5.0, B.shape[0]))]), B


def blurred(n=20, seed=0):
    """The same through a blur that is not stored as a sparse matrix."""
    A, B = picture(n, seed)
    step = 0.5 * np.eye(n) + 0.25 * np.eye(n, k=1) + 0.25 * np.eye(n, k=-1)
    return NormalMatrix(np.zeros(n * n), [(as_operator(np.kron(step, step), "X"), 25.0), A.parts[1]]), B


# -- every method ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("problem", ["text", "counts", "wide", "picture", "blurred"])
def test_every_method_says_how_far_off_it_is(method, problem):
    A, B = {"text": text, "counts": lambda: text(unit=False), "wide": lambda: text(N=300, D=600, prior=0.1),
            "picture": picture, "blurred": blurred}[problem]()
    v = truth(A, B)
    found = estimate(A, B, method=method, accuracy=0.05, budget=3000)
    live = v > 0.0
    assert isinstance(found, Variances)
    for numbers in (found.value, found.error, found.lower):
        assert np.isfinite(numbers).all()
        assert (numbers >= 0.0).all()
    assert (found.lower <= found.upper).all()
    assert (found.value[~live] == 0.0).all()
    off = np.abs(found.value - v)[live]
    if found.exact:
        np.testing.assert_allclose(found.value, v, rtol=1e-9)
        assert found.reached
        return
    assert np.mean(off <= 2.0 * found.error[live] + 1e-12) > 0.88
    inside = (found.lower <= v * (1 + 1e-9)) & (v <= found.upper * (1 + 1e-9))
    assert inside.mean() > (0.88 if not found.certain else 0.9999)
    if method in ("lanczos", "bracket"):
        assert (found.lower <= v * (1 + 1e-9)).all()
        assert found.certain  # a picture has 1 / gamma as its bounds from above, the others more
    median = float(np.median(off / v[live]))
    assert median <= 2.0 * found.relative_error + 1e-12  # the claim is no less than half of the truth
    if found.reached:
        assert median <= 0.06
    assert found.n_products <= 4500


@pytest.mark.parametrize("method", METHODS)
def test_equal_seeds_give_equal_answers(method):
    A, B = text(N=200, D=120)
    one, two, other = (estimate(A, B, method=method, accuracy=0.1, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.value, two.value)
    np.testing.assert_array_equal(one.error, two.error)
    assert one.n_products == two.n_products
    if not one.exact:
        assert (one.value != other.value).any()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", ["one row", "one weight", "duplicate rows", "zero rows", "rank one", "scales",
                                  "tiny", "huge", "no data"])
def test_odd_matrices(method, case):
    rng = np.random.default_rng(5)
    X = rng.standard_normal((30, 12))
    X, d, gamma = {
        "one row": (X[:1], np.ones(12), np.ones(1)),
        "one weight": (X[:, :1], np.ones(1), np.ones(30)),
        "duplicate rows": (np.repeat(X[:3], 10, axis=0), np.ones(12), np.ones(30)),
        "zero rows": (X * (np.arange(30) % 2)[:, None], np.ones(12), np.ones(30)),
        "rank one": (np.outer(X[:, 0], X[0]), np.ones(12), np.ones(30)),
        "scales": (X * 10 ** rng.uniform(-3, 3, 12), 10 ** rng.uniform(-6, 6, 12), 10 ** rng.uniform(-6, 3, 30)),
        "tiny": (X * 1e-12, np.full(12, 1e-12), np.full(30, 1e-12)),
        "huge": (X * 1e6, np.full(12, 1e12), np.full(30, 1e6)),
        "no data": (X, np.arange(1.0, 13.0), np.zeros(30)),
    }[case]
    B = as_operator(X, "B")
    A = NormalMatrix(d, [(B, gamma)])
    found = estimate(A, B, method=method, accuracy=0.1, budget=3000)
    v = truth(A, B)
    assert np.isfinite(found.value).all()
    assert (found.value >= 0.0).all()
    assert np.isfinite(found.error).all()
    assert found.value.shape == found.error.shape == (len(X),)
    if method in ("exact", "auto"):
        np.testing.assert_allclose(found.value, v, rtol=1e-6)
    elif method in ("lanczos", "bracket"):
        assert (found.lower <= v * (1 + 1e-8)).all()
        assert (found.upper >= v * (1 - 1e-8)).all()
    else:
        assert np.mean(np.abs(found.value - v) <= 4.0 * found.error + 1e-8 * v) > 0.8


def test_other_rows_than_those_of_the_model():
    A, _ = text(N=400, D=150)
    new = as_operator(words(50, 150, 7), "new")
    v = truth(A, new)
    for method in METHODS:
        found = estimate(A, new, method=method, accuracy=0.1)
        assert np.mean(np.abs(found.value - v) <= 3.0 * found.error + 1e-9) > 0.85


def test_negative_weights_where_the_precision_is_definite():
    A, B = text(N=200, D=100)
    signed = NormalMatrix(np.full(100, 5.0), [(B, A.parts[0][1] * np.where(np.arange(200) % 3, 1.0, -0.5))])
    v = truth(signed, B)
    np.testing.assert_allclose(estimate(signed, B, method="exact").value, v, rtol=1e-10)
    found = estimate(signed, B, method="diagonal", accuracy=0.05)
    assert np.mean(np.abs(found.value - v) <= 2.0 * found.error + 1e-12) > 0.85
    with pytest.raises(NotPositiveDefiniteError):
        estimate(signed, B, method="sampling")


def test_operators_without_entries_are_sampled():
    n = 200
    B = as_operator(LinearOperator((n, n), matvec=lambda u: np.cumsum(np.ravel(u)) / n,
                                   rmatvec=lambda w: np.cumsum(np.ravel(w)[::-1])[::-1] / n, dtype=float), "B")
    A = NormalMatrix(np.full(n, 2.0), [(B, 3.0)])
    v = truth(A, B)
    for method in ("diagonal", "bracket", "sampling"):
        found = estimate(A, B, method=method, accuracy=0.1, budget=3000)
        assert np.mean(np.abs(found.value - v) <= 2.0 * found.error) > 0.8


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [text, picture])
def test_lanczos_grows_towards_the_truth(make):
    A, B = make()
    v = truth(A, B)
    krylov = ScaledLanczos(A, 8, 0)
    before = np.zeros(len(v))
    for rank in (16, 32, 64, 128, A.size):
        krylov.extend(rank)
        lower, upper = bracket_by_lanczos(A, B, krylov)
        assert (lower >= before * (1 - 1e-9)).all()
        assert (lower <= v * (1 + 1e-8)).all()
        assert (upper >= v * (1 - 1e-8)).all()
        before = lower
    np.testing.assert_allclose(before, v, rtol=1e-7)


def test_bounds_that_cost_nothing():
    A, B = text()
    assert (simple_upper(A, B) >= truth(A, B)).all()
    flat, rows = picture()
    assert (simple_upper(flat, rows) >= truth(flat, rows)).all()


# -- honesty, over many problems ---------------------------------------------------------------------------------------


def test_coverage_over_many_problems():
    """Two standard errors hold at least 90% of the true values, over problems easy and hard."""
    inside, claims, errors = [], [], []
    for seed in range(12):
        A, B = text(N=500, D=250, seed=seed, prior=10.0 ** (seed % 4 - 2), unit=seed % 2 == 0)
        v = truth(A, B)
        live = v > 1e-12
        found = estimate(A, B, method="diagonal", accuracy=0.03, budget=1500, seed=seed)
        off = np.abs(found.value - v)[live]
        inside.append(np.mean(off <= 2.0 * found.error[live]))
        errors.append(np.median(off / v[live]))
        claims.append(found.relative_error)
    assert np.mean(inside) > 0.9
    assert min(inside) > 0.8
    assert 0.5 < np.mean(np.array(errors) / np.array(claims)) < 1.3


def test_pooling_is_worth_many_draws():
    """The reason for this estimator: a tenth of the error of sampling for the same number of products."""
    A, B = text(N=2000, D=800)
    v = truth(A, B)
    error = {}
    for method in ("diagonal", "sampling"):
        found = estimate(A, B, method=method, accuracy=0.001, budget=800)
        assert not found.reached
        error[method] = np.median(np.abs(found.value - v)[v > 0] / v[v > 0])
    assert error["diagonal"] < error["sampling"] / 8.0


def test_pooling_by_itself():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(5000)
    f = np.exp(0.1 * x + 0.05 * x**2)
    ratio = f + 0.02 * rng.standard_normal(5000)
    noise = np.full(5000, 0.1)
    seen = ratio + noise * rng.standard_normal(5000)
    fit, spread = fitted(standardised([x, np.ones(5000)]), seen, noise)
    best = pooled(fit, np.full(5000, 0.02), seen, noise, np.zeros(5000))
    assert np.sqrt(np.mean((best.ratio - ratio) ** 2)) < 0.025  # own noise is 0.1
    assert np.quantile(np.abs(fit - f), 0.99) < 0.02
    assert spread.max() < 0.05
    few, wide = fitted(standardised([x[:10]]), seen[:10], noise[:10])  # too few rows for more than a mean
    assert np.ptp(few) == 0.0
    assert wide.shape == (10,)


def test_the_same_noise_with_previous():
    """Differences between nearby precisions are far more accurate than the estimates themselves."""
    A, B = text(N=400, D=200)
    gamma = A.parts[0][1]
    near = NormalMatrix(A.shift, [(B, gamma * 1.02)])
    change = truth(near, B) - truth(A, B)
    for method in ("diagonal", "sampling"):
        first = estimate(A, B, method=method, accuracy=0.05, budget=1500)
        second = estimate(near, B, method=method, accuracy=0.05, budget=1500, previous=first)
        live = change < 0.0
        miss = np.abs(second.value - first.value - change)[live]
        assert np.median(miss) < 0.2 * np.median(first.error[live])


def test_draws_that_are_too_large_to_keep_leave_the_same_noise(monkeypatch):
    A, B = text(N=400, D=200)
    near = NormalMatrix(A.shift, [(B, A.parts[0][1] * 1.02)])

    def both() -> tuple[Variances, Variances]:
        first = estimate(A, B, method="sampling", accuracy=0.05, budget=1500)
        return first, estimate(near, B, method="sampling", accuracy=0.05, budget=1500, previous=first)

    kept = both()
    monkeypatch.setattr(methods, "MOST_KEPT", 1000)
    forgotten = both()
    assert kept[0].memory.x.shape == (200, sum(kept[0].memory.widths))
    assert forgotten[0].memory.x is None
    assert forgotten[1].memory.widths == kept[1].memory.widths
    assert (forgotten[0].value == kept[0].value).all()
    np.testing.assert_allclose(forgotten[1].value, kept[1].value, rtol=1e-3)  # the tolerance of the systems


# -- log-determinants --------------------------------------------------------------------------------------------------


def test_log_det_comes_with_the_variances():
    scores = []
    for seed in range(10):
        A, B = text(N=400, D=200, seed=seed, prior=10.0 ** (seed % 3 - 1))
        found = estimate(A, B, method="diagonal", accuracy=0.05, seed=seed).log_det
        assert found is not None
        assert not found.exact
        scores.append((found.value - np.linalg.slogdet(A.dense())[1]) / found.error)
    assert np.mean(np.abs(scores) < 2.0) >= 0.8
    exact = estimate(A, B, method="exact").log_det
    assert exact is not None
    assert exact.value == pytest.approx(np.linalg.slogdet(A.dense())[1], rel=1e-12)


def test_log_det_alone(monkeypatch):
    A, _ = text(N=400, D=200)
    value = np.linalg.slogdet(A.dense())[1]
    assert log_det(A).exact
    assert log_det(A).value == pytest.approx(value, rel=1e-12)
    monkeypatch.setattr("klimb.linalg.variances.methods.AFFORDABLE", 0.0)
    found = log_det(A, probes=32)
    assert not found.exact
    assert found.n_products > 0
    assert abs(found.value - value) < 4.0 * found.error
    assert found.error < 0.02 * abs(value)


# -- auto --------------------------------------------------------------------------------------------------------------


def test_auto_is_exact_where_that_takes_a_moment_and_estimates_elsewhere(monkeypatch):
    A, B = text(N=900, D=500)
    v = truth(A, B)
    assert estimate(A, B).exact
    monkeypatch.setattr("klimb.linalg.variances.methods.AFFORDABLE", 0.0)
    rough = estimate(A, B, accuracy=0.1)
    assert rough.method == "diagonal"
    assert rough.reached
    assert np.median(np.abs(rough.value - v)[v > 0] / v[v > 0]) < 0.1
    # An accuracy that would take more probes than a factorisation: the exact answer instead.
    fine = estimate(A, B, accuracy=1e-4, budget=10**6)
    assert fine.exact
    # The same without the memory for it: the budget is spent, and it says that it was not enough.
    monkeypatch.setattr("klimb.linalg.variances.methods.MEMORY", 0)
    spent = estimate(A, B, accuracy=1e-4, budget=1000)
    assert not spent.reached
    assert spent.n_products <= 1200


def test_bad_input():
    A, B = text(N=20, D=10)
    for options, message in [({"method": "magic"}, "method must be one of auto, exact"),
                             ({"accuracy": 0.0}, "accuracy must be between 0 and 1"),
                             ({"budget": 0}, "budget must be a positive number")]:
        with pytest.raises(InputError, match=message):
            estimate(A, B, **options)
    with pytest.raises(InputError, match="B must have 10 columns"):
        estimate(A, as_operator(np.ones((3, 4)), "B"))
