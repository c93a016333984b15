"""What the estimators compute, against closed forms, brute force and differences."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import multivariate_normal, norm, poisson

import klimb
from klimb.likelihoods import likelihood
from klimb.models.matrix import MatrixData
from klimb.models.model import Model
from klimb.models.prior_sites import WithIdentity
from klimb.rows.distinct import Rows, distinct_rows
from klimb.rows.scaling import CentredDesign, Scaling
from klimb.sklearn import GLMClassifier, GLMRegressor, GPClassifier, GPRegressor, SparseLinearRegressor, gp
from klimb.sklearn.gp import LEVEL
from klimb.terms import ridge
from klimb.terms.fixed import WIDTH as INTERCEPT
from klimb.terms.ridge import Ridge, Sparse


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


# -- closed forms


def test_gaussian_regression_is_exact(rng: np.random.Generator) -> None:
    X = rng.standard_normal((40, 3)) * [1.0, 100.0, 1e-3] + [5.0, -20.0, 0.0]
    y = 50.0 + X @ [3.0, 0.05, 400.0] + 2.0 * rng.standard_normal(40)
    model = GLMRegressor().fit(X, y)
    # The same model in the units of the data, from what the estimator says of itself.
    spread, noise = y.std(), model.dispersion_["scale"]
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    K = spread**2 * (INTERCEPT**2 + model.prior_scale_**2 * Z @ Z.T)
    C = K + noise**2 * np.eye(40)
    assert model.bound_ == pytest.approx(multivariate_normal(np.full(40, y.mean()), C).logpdf(y), abs=1e-6)
    design = np.column_stack([np.ones(40), Z])
    precision = design.T @ design / noise**2 + np.diag([INTERCEPT**-2] + [model.prior_scale_**-2] * 3) / spread**2
    V = np.linalg.inv(precision)
    w = V @ design.T @ (y - y.mean()) / noise**2
    assert np.allclose(model.coef_, w[1:] / X.std(axis=0), rtol=1e-6)
    assert np.allclose(model.coef_std_, np.sqrt(np.diag(V))[1:] / X.std(axis=0), rtol=1e-6)
    at_zero = np.r_[1.0, -X.mean(axis=0) / X.std(axis=0)]
    assert model.intercept_ == pytest.approx(y.mean() + at_zero @ w, rel=1e-6)
    assert model.intercept_std_ == pytest.approx(np.sqrt(at_zero @ V @ at_zero), rel=1e-6)
    # Predictions: the linear form, and noise on top of the spread of f.
    new = X[:4] + 1.0
    mean, sd = model.predict(new, return_std=True)
    f, f_sd = model.predict_latent(new)
    assert np.allclose(mean, new @ model.coef_ + model.intercept_)
    assert np.allclose(f, mean)
    assert np.allclose(sd**2, f_sd**2 + noise**2)
    assert np.allclose(model.predict_quantiles(new, 0.9), norm(mean, sd).ppf(0.9))
    assert np.allclose(model.predict_log_density(new, mean + sd), norm(mean, sd).logpdf(mean + sd))


def test_more_columns_than_rows_is_the_same_model(rng: np.random.Generator) -> None:
    X = rng.standard_normal((15, 40))
    y = X[:, 0] + 0.1 * rng.standard_normal(15)
    model = GLMRegressor(prior_scale=0.3, dispersion=0.2).fit(X, y)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    design = np.column_stack([np.ones(15), Z])
    V = np.linalg.inv(design.T @ design / 0.2**2 + np.diag([INTERCEPT**-2] + [0.3**-2] * 40) / y.std() ** 2)
    w = V @ design.T @ (y - y.mean()) / 0.2**2
    assert np.allclose(model.coef_, w[1:] / X.std(axis=0), rtol=1e-6)
    assert np.allclose(model.coef_std_, np.sqrt(np.diag(V))[1:] / X.std(axis=0), rtol=1e-6)
    assert np.allclose(model.predict(X, return_std=True)[1] ** 2,
                       0.2**2 + np.einsum("ij,jk,ik->i", design, V, design), rtol=1e-6)


def test_gaussian_process_regression_is_exact(rng: np.random.Generator) -> None:
    X = rng.uniform(0.0, 5.0, (30, 2)) * [1.0, 1e4]
    y = 100.0 + np.sin(X[:, 0]) + 0.1 * rng.standard_normal(30)
    model = GPRegressor().fit(X, y)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    noise = model.dispersion_["scale"]
    C = model.kernel_.gram(Z) + noise**2 * np.eye(30)
    assert model.bound_ == pytest.approx(multivariate_normal(np.full(30, y.mean()), C).logpdf(y), abs=1e-5)
    new = np.array([[1.0, 2e4], [4.0, 1e4]])
    cross = model.kernel_.gram((new - X.mean(axis=0)) / X.std(axis=0), Z)
    mean, sd = model.predict(new, return_std=True)
    assert np.allclose(mean, y.mean() + cross @ np.linalg.solve(C, y - y.mean()), rtol=1e-6)
    prior = model.kernel_.diag(new)
    assert np.allclose(sd**2, noise**2 + prior - np.einsum("ij,ji->i", cross, np.linalg.solve(C, cross.T)), rtol=1e-5)


def test_probabilities_are_averages_over_the_posterior(rng: np.random.Generator) -> None:
    X = rng.standard_normal((50, 2))
    y = X[:, 0] + rng.logistic(size=50) > 0
    model = GLMClassifier().fit(X, y)
    new = np.array([[0.5, 0.0], [40.0, 0.0], [-40.0, 3.0]])
    m, s = model.predict_latent(new)
    p = [quad(lambda z, m=m, s=s: expit(m + s * z) * norm.pdf(z), -12, 12, epsabs=1e-13, limit=200)[0]
         for m, s in zip(m, s, strict=True)]
    assert np.allclose(model.predict_proba(new)[:, 1], p, rtol=1e-8)
    assert np.allclose(model.decision_function(new), np.log(p) - np.log1p(-np.array(p)), rtol=1e-6)
    assert np.allclose(m, new @ model.coef_[0] + model.intercept_)


def test_counts_are_on_their_own_scale(rng: np.random.Generator) -> None:
    X = rng.standard_normal((80, 1))
    y = rng.poisson(np.exp(3.0 + 0.5 * X[:, 0]))
    for model in (GLMRegressor("poisson"), GPRegressor("poisson")):
        model.fit(X, y)
        m, s = model.predict_latent(X[:3])
        mean, sd = model.predict(X[:3], return_std=True)
        assert np.allclose(mean, np.exp(m + s**2 / 2))
        assert np.allclose(sd**2, mean + mean**2 * np.expm1(s**2))
        z = np.linspace(-8, 8, 4001)
        by_sum = np.log(np.trapezoid(poisson.pmf(20, np.exp(m[0] + s[0] * z)) * norm.pdf(z), z))
        assert model.predict_log_density(X[:1], [20])[0] == pytest.approx(by_sum, abs=1e-8)
        assert model.predict_quantiles(X[:3]).shape == (3, 3)


# -- the gradients that lead the search


def matrix_data(X: np.ndarray, y: np.ndarray, family: str, weights: np.ndarray | None = None) -> MatrixData:
    levels = ("a", "b", "c") if family == "categorical" else ()
    return MatrixData.of(Rows(X, y, weights, np.arange(len(y))), likelihood(family), levels, weights)


def check_gradient(model: Model, data: Any, tol: float = 2e-4) -> None:
    gradient = model.gradient(model.infer(data, tol=1e-9).posterior, data) + model.log_prior()[1]
    assert len(model.at)
    for k in range(len(model.at)):
        sides = []
        for sign in (1.0, -1.0):
            theta = model.at.copy()
            theta[k] += sign * 1e-3
            moved = model.moved(theta)
            sides.append(moved.infer(data, tol=1e-9).bound + moved.log_prior()[0])
        assert gradient[k] == pytest.approx((sides[0] - sides[1]) / 2e-3, rel=tol, abs=tol), model.names[k]


@pytest.mark.parametrize("shape", [(40, 3), (12, 20)], ids=["long", "wide"])
@pytest.mark.parametrize("intercept", [True, False])
def test_gradients_of_linear_models(shape: tuple[int, int], intercept: bool, rng: np.random.Generator) -> None:
    X = rng.standard_normal(shape)
    weights = rng.uniform(0.5, 2.0, shape[0])
    inputs = Scaling(np.zeros(shape[1]), np.full(shape[1], 1.4), intercept)
    counts = rng.poisson(np.exp(0.5 * X[:, 0])).astype(float)
    numbers, classes = X[:, 0] + rng.standard_normal(len(X)), rng.integers(0, 3, len(X)).astype(float)
    for family, y in (("negative_binomial", counts), ("student_t(df=5)", numbers), ("categorical", classes)):
        given = matrix_data(X, y, family, weights)
        check_gradient(given.model(inputs, Ridge.of_matrix, {}), given.data)


@pytest.mark.parametrize("inducing", [None, 6])
def test_gradients_of_gaussian_processes(inducing: int | None, rng: np.random.Generator) -> None:
    X = rng.uniform(0.0, 4.0, (20, 2))
    weights = rng.uniform(0.5, 2.0, 20)
    kernel = klimb.kernels.Matern52(2.0, (1.0, 2.0)).with_priors(variance=klimb.priors.log_normal(1.0)) + \
        klimb.kernels.Constant(9.0).fixed()
    y = np.sin(X[:, 0]) + 0.2 * rng.standard_normal(20)
    for family, target in (("gaussian", y), ("categorical", rng.integers(0, 3, 20).astype(float))):
        given = matrix_data(X, target, family, weights)
        check_gradient(klimb.gp(kernel, X, given.likelihood, inducing=inducing).ready(given.data), given.data)


@pytest.mark.parametrize("prior", ["laplace", "student_t"])
def test_gradients_of_sparse_models(prior: str, rng: np.random.Generator) -> None:
    X = rng.standard_normal((25, 4))
    given = matrix_data(X, 2.0 * X[:, 0] + rng.standard_normal(25), "gaussian")
    model = given.model(Scaling.of(X, None, intercept=True), partial(Sparse.of_matrix, density_name=prior), {})
    check_gradient(model.moved(model.at + [1.0, 0.0]), given.data)


# -- sparse regression


@pytest.mark.parametrize("prior", ["laplace", "student_t"])
def test_sparse_evidence_against_brute_force(prior: str, rng: np.random.Generator) -> None:
    """One column: the evidence is a double integral. The bound lies below it, and not far."""
    from scipy.stats import laplace
    from scipy.stats import t as student

    x = rng.standard_normal(20)
    y = 0.8 * x + rng.standard_normal(20)
    model = SparseLinearRegressor(prior, prior_scale=0.4, noise=1.0).fit(x[:, None], y)
    z, target = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()
    noise = 1.0 / y.std()
    w = np.linspace(-30.0, 30.0, 240_001)
    # The intercept is integrated in closed form: z and target have mean zero.
    level = -0.5 * np.log1p(20 * INTERCEPT**2 / noise**2)
    square = target @ target - 2 * w * (z @ target) + w**2 * (z @ z)
    density = laplace(scale=0.4).logpdf(w) if prior == "laplace" else student(2.0, scale=0.4).logpdf(w)
    values = norm(0, noise).logpdf(0.0) * 20 - 0.5 * square / noise**2 + density + level
    exact = np.log(np.trapezoid(np.exp(values - values.max()), w)) + values.max() - 20 * np.log(y.std())
    assert model.bound_ <= exact + 1e-6
    assert model.bound_ == pytest.approx(exact, abs=0.1)
    weight = np.exp(values - values.max())
    mean = (weight @ w) / weight.sum()
    sd = np.sqrt(weight @ (w - mean) ** 2 / weight.sum())
    assert model.coef_[0] * x.std() / y.std() == pytest.approx(mean, abs=0.1 * sd)
    assert model.coef_std_[0] * x.std() / y.std() == pytest.approx(sd, rel=0.1)


@pytest.mark.parametrize("prior", ["laplace", "student_t"])
def test_the_taper_leaves_no_trace(prior: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    X = rng.standard_normal((30, 3))
    y = X[:, 0] + 0.5 * rng.standard_normal(30)
    fits = []
    for taper in (1e3, 1e4):
        monkeypatch.setattr(ridge, "TAPER", taper)
        fits.append(SparseLinearRegressor(prior).fit(X, y))
    assert fits[0].bound_ == pytest.approx(fits[1].bound_, abs=0.02)
    assert np.allclose(fits[0].coef_, fits[1].coef_, atol=1e-2 * fits[0].coef_std_.min())


def test_few_columns_among_many_are_found(rng: np.random.Generator) -> None:
    X = rng.standard_normal((60, 80))
    truth = np.zeros(80)
    truth[[3, 17, 50]] = [2.0, -1.0, 0.7]
    y = 5.0 + X @ truth + 0.4 * rng.standard_normal(60)
    model = SparseLinearRegressor().fit(X, y)
    assert model.prior_ == "student_t"
    assert np.flatnonzero(model.sign_probability_ > 0.999).tolist() == [3, 17, 50]
    even = GLMRegressor().fit(X, y)
    assert np.abs(model.coef_ - truth).max() < 0.4 * np.abs(even.coef_ - truth).max()
    assert model.bound_ > even.bound_ + 10
    each = [SparseLinearRegressor(prior).fit(X, y).bound_ for prior in ("laplace", "student_t")]
    assert model.bound_ == pytest.approx(max(each), abs=0.1)


# -- rows, scaling, designs


def test_rows_are_counted(rng: np.random.Generator) -> None:
    X = rng.integers(0, 2, (40, 3)).astype(float)
    y = rng.integers(0, 2, 40).astype(float)
    weights = rng.uniform(0.0, 1.0, 40)
    weights[::5] = 0.0
    dense, csr = distinct_rows(X, y, weights), distinct_rows(sp.csr_array(X), y, weights)
    assert np.array_equal(dense.X, csr.X.toarray())
    assert np.array_equal(dense.weights, csr.weights)
    everything = np.column_stack([dense.X, dense.y])
    assert len(np.unique(everything, axis=0)) == len(everything)
    for row, weight in zip(everything, dense.weights, strict=True):
        assert weight == pytest.approx(weights[(np.column_stack([X, y]) == row).all(axis=1)].sum())
    kept = distinct_rows(X, y, merge=False)
    assert kept.n == 40
    assert distinct_rows(np.array([[0.0], [-0.0]]), np.zeros(2)).n == 1


def test_columns_are_scaled(rng: np.random.Generator) -> None:
    X = np.where(rng.random((50, 6)) < 0.5, 0.0, rng.standard_normal((50, 6))) * [1e-200, 1.0, 1e200, 1.0, 0.0, 1e9]
    X[:, 3] += 1e8
    weights = rng.uniform(0.5, 2.0, 50)
    for w in (None, weights):
        dense, sparse_one = Scaling.of(X, w), Scaling.of(sp.csr_array(X), w)
        for name in ("centre", "scale"):
            assert np.allclose(getattr(dense, name), getattr(sparse_one, name), rtol=1e-7)
        Z = dense.apply(X)
        share = np.full(50, 0.02) if w is None else w / w.sum()
        assert np.allclose(share @ Z, 0.0, atol=1e-6)
        assert np.allclose(np.delete(share @ Z**2, 4), 1.0, rtol=1e-6)
    assert dense.scale[4] == 1.0
    plain = Scaling.of(X, None, centred=False)
    assert np.all(plain.centre == 0.0)
    assert np.allclose(np.delete((plain.apply(X) ** 2).mean(axis=0), 4), 1.0)


@pytest.mark.parametrize("kind", ["centred", "identity", "thinned"])
def test_designs_are_their_dense_matrices(kind: str, rng: np.random.Generator) -> None:
    Z = np.where(rng.random((9, 4)) < 0.5, 0.0, rng.standard_normal((9, 4)))
    shift = np.array([0.0, 0.3, -0.2, 1.0])
    design: Any = CentredDesign(sp.csr_array(Z), shift)
    expected = Z - shift
    if kind != "centred":
        design, expected = WithIdentity(design, np.arange(1, 4)), np.vstack([expected, np.eye(4)[1:]])
    if kind == "thinned":
        rows = np.array([0, 4, 8, 9, 11])
        design, expected = design.subset(rows), expected[rows]
    n = len(expected)
    w, root = rng.standard_normal(4), rng.standard_normal((4, 2))
    b, gamma = rng.standard_normal(n), rng.standard_normal(n)
    assert design.shape == expected.shape
    assert np.allclose(design.times(w), expected @ w)
    assert np.allclose(design.times(root), expected @ root)
    assert np.allclose(design.transpose_times(b), expected.T @ b)
    assert np.allclose(design.weighted_gram(gamma), expected.T @ (gamma[:, None] * expected))
    for one in (root, w):
        norms, product = design.row_norms_squared(one, times=w)
        scaled = expected @ root if one.ndim == 2 else expected * w
        assert np.allclose(norms, (scaled**2).sum(axis=1))
        assert np.allclose(product, expected @ w)
        assert np.allclose(design.outer_gram(one), scaled @ scaled.T)
    assert np.allclose(design.dense(), expected)
    assert np.allclose(design.dense_rows(slice(2, 5)), expected[2:5])


def test_sparse_columns_give_the_same_fit(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    import klimb.rows.scaling as scaling

    X = np.where(rng.random((80, 5)) < 0.7, 0.0, rng.standard_normal((80, 5)) + 2.0)
    y = X @ [1.0, -1.0, 0.5, 0.0, 0.0] + rng.standard_normal(80)
    dense = [GLMRegressor().fit(X, y), SparseLinearRegressor("laplace").fit(X, y), GLMRegressor().fit(X[:6], y[:6])]
    monkeypatch.setattr(scaling, "SMALL", 0)
    for model, rows in zip(dense, (80, 80, 6), strict=True):
        other = type(model)(**model.get_params()).fit(sp.csr_matrix(X[:rows]), y[:rows])
        assert other.bound_ == pytest.approx(model.bound_, abs=1e-5)
        assert np.allclose(other.coef_, model.coef_, atol=1e-5)
        assert np.allclose(other.predict(sp.csc_array(X)), model.predict(X), atol=1e-5)


# -- several classes, many rows, more rows


def test_several_classes(rng: np.random.Generator) -> None:
    centres = np.array([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    code = rng.integers(0, 3, 90)
    X = centres[code] + rng.standard_normal((90, 2))
    names = np.array(["a", "b", "c"])
    for model in (GLMClassifier(), GPClassifier(), GLMClassifier(multi_class="ovr"), GPClassifier(multi_class="ovr")):
        model.fit(X, names[code])
        p = model.predict_proba(centres)
        assert model.converged_
        assert model.predict(centres).tolist() == ["a", "b", "c"]
        assert np.allclose(p.sum(axis=1), 1.0)
        assert np.allclose(np.exp(model.predict_log_proba(centres)), p, rtol=1e-9)
        assert model.score(X, names[code]) > 0.85
        assert model.predict_latent(X)[0].shape == (90, 3)
        together = model.multi_class == "softmax"
        assert np.ndim(model.bound_) == (0 if together else 1)
    linear = GLMClassifier(prior_scale=1.0).fit(X, names[code])
    assert linear.coef_.shape == (3, 2)
    Z = np.column_stack([np.ones(90), (X - X.mean(axis=0)) / X.std(axis=0)])
    counts = np.log(np.bincount(code) + 0.5)
    parts = [klimb.latents.Weights(Z, [mean, 0.0, 0.0], [INTERCEPT**2, 1.0, 1.0]) for mean in counts - counts.mean()]
    direct = klimb.infer(klimb.latents.Outputs(parts), klimb.sites.Softmax(3), code)
    assert linear.bound_ == pytest.approx(direct.bound, abs=1e-5)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_many_rows_use_inducing_points(n_classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    monkeypatch.setattr(gp, "FULL", 100)
    monkeypatch.setattr(gp, "SOME", 60)
    X = rng.uniform(-2.0, 2.0, (120, 1))
    code = np.digitize(np.sin(2 * X[:, 0]) + 0.2 * rng.standard_normal(120), [-0.5, 0.5][: n_classes - 1])
    auto, full = GPClassifier().fit(X, code), GPClassifier(inducing=None).fit(X, code)
    assert auto.inducing_ is not None
    assert len(auto.inducing_) < 100
    assert full.inducing_ is None
    assert full.bound_ - 1.0 < auto.bound_ <= full.bound_ + 1e-3
    assert np.allclose(auto.predict_proba(X), full.predict_proba(X), atol=0.03)
    assert len(GPRegressor(inducing=7).fit(X, np.sin(X[:, 0])).inducing_) == 7
    assert len(GPRegressor(inducing=np.linspace(-2, 2, 5)[:, None]).fit(X, np.sin(X[:, 0])).inducing_) == 5


def test_rare_classes_reach_the_first_search(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gp, "SOME", 20)
    y = np.zeros(500)
    y[[250, 450]] = 1.0
    given = matrix_data(np.arange(500.0)[:, None], y, "bernoulli")
    some = gp._some_rows(given.data, given.likelihood)
    assert len(some) == 20
    assert y[some].sum() == 2
    assert np.array_equal(some, np.unique(some))


def test_linear_models_learn_row_by_row(rng: np.random.Generator) -> None:
    X = rng.standard_normal((60, 2))
    y = X @ [1.0, -2.0] + 0.5 * rng.standard_normal(60)
    whole = GLMRegressor(prior_scale=1.0, dispersion=0.5).fit(X[:30], y[:30])
    parts = GLMRegressor(prior_scale=1.0, dispersion=0.5).partial_fit(X[:30], y[:30])
    for batch in np.split(np.arange(30, 60), 3):
        parts.partial_fit(X[batch], y[batch], sample_weight=np.full(10, 2.0))
    # The same prior, scaling and noise, all rows at once.
    Z = np.column_stack([np.ones(60), (X - X[:30].mean(axis=0)) / X[:30].std(axis=0)])
    spread, centre, weights = y[:30].std(), y[:30].mean(), np.r_[np.ones(30), np.full(30, 2.0)]
    latent = klimb.latents.Weights(Z, cov=[INTERCEPT**2, 1.0, 1.0])
    site = klimb.sites.Weighted(klimb.sites.Gaussian(0.5 / spread), weights)
    direct = klimb.infer(latent, site, (y - centre) / spread)
    assert parts.bound_ == pytest.approx(direct.bound - weights.sum() * np.log(spread), abs=1e-5)
    assert np.allclose(parts.coef_, direct.posterior.mean[1:] * spread / X[:30].std(axis=0), atol=1e-6)
    assert not np.allclose(parts.coef_, whole.coef_, atol=1e-6)
    labels = (y > 0).astype(int)
    batch_fit = GLMClassifier(prior_scale=1.0).fit(X, labels)
    stream = GLMClassifier(prior_scale=1.0).partial_fit(X[:20], labels[:20], classes=[0, 1])
    stream.partial_fit(X[20:], labels[20:])
    assert np.abs(stream.predict_proba(X) - batch_fit.predict_proba(X)).max() < 0.15
    one_class = X[labels == 0]
    assert len(GLMClassifier().partial_fit(one_class, np.zeros(len(one_class)), classes=[0, 1]).classes_) == 2


@pytest.mark.parametrize("n_classes", [0, 2, 3])
def test_gaussian_processes_add_rows(n_classes: int, rng: np.random.Generator) -> None:
    X = rng.uniform(-2.0, 2.0, (60, 1))
    y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(60)
    if n_classes:
        y = np.digitize(y, [-0.3, 0.3][: n_classes - 1])
    model: Any = GPClassifier() if n_classes else GPRegressor()
    model.partial_fit(X[:40], y[:40])
    kernel, noise = model.kernel_, None if n_classes else model.dispersion_["scale"]
    model.partial_fit(X[40:], y[40:], sample_weight=np.full(20, 1.5))
    assert model.kernel_ == kernel
    weights = np.r_[np.ones(40), np.full(20, 1.5)]
    Z = (X - X[:40].mean(axis=0)) / X[:40].std(axis=0)
    level = 0.0
    site: Any = klimb.sites.Logistic() if n_classes == 2 else klimb.sites.Softmax(3)
    if n_classes == 0:
        level, site = y[:40].mean(), klimb.sites.Gaussian(noise)
    elif n_classes == 2:
        share = (y[:40].sum() + 0.5) / 41.0
        level = np.log(share / (1.0 - share))
    mean = klimb.kernels.means.ConstantMean(level)
    direct = klimb.gp(kernel, Z, site, mean=mean).fit(y, weights=weights, hyper="fixed")
    assert model.bound_ == pytest.approx(direct.bound, abs=1e-4)
    assert len(model.fit_.loo().log_density) == 60
    assert LEVEL == 3.0


def test_a_kernel_of_your_own(rng: np.random.Generator) -> None:
    X = np.repeat(rng.uniform(0, 5, (20, 1)), 2, axis=0)
    y = np.repeat(np.sin(X[::2, 0]), 2)
    own = klimb.kernels.RBF(1.0, 0.5) + klimb.kernels.White(0.1)
    model = GPRegressor(kernel=own, standardize=False, dispersion=0.1).fit(X, y)
    assert len(model.fit_.posterior.m) == 40  # a kernel with noise of its own keeps equal rows apart
    assert len(GPRegressor(kernel=klimb.kernels.RBF()).fit(X, y).fit_.posterior.m) == 20
    assert model.kernel_.parameters["0.variance"] != 1.0
    fixed = GPRegressor(variance=2.0, lengthscale=0.7, dispersion=0.1).fit(X, y)
    assert fixed.kernel_.parameters["0.lengthscale"] == 0.7
    assert fixed.n_iter_ == 1


def test_lengthscales_of_their_own(rng: np.random.Generator) -> None:
    X = rng.uniform(-2, 2, (80, 3))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(80)
    scales = GPRegressor().fit(X, y).kernel_.parts[0].lengthscale
    assert min(scales[1:]) > 3 * scales[0]
    assert isinstance(GPRegressor(ard=False).fit(X, y).kernel_.parts[0].lengthscale, float)


def test_likelihoods_with_parameters(rng: np.random.Generator) -> None:
    X = rng.standard_normal((150, 1))
    y = np.exp(1.0 + X[:, 0]) * rng.gamma(4.0, 0.25, 150)
    assert GLMRegressor("gamma").fit(X, y).dispersion_["shape"] == pytest.approx(4.0, rel=0.3)
    counts = rng.negative_binomial(3.0, 3.0 / (3.0 + np.exp(1.0 + X[:, 0])))
    assert 1.0 < GLMRegressor("negative_binomial").fit(X, counts).dispersion_["size"] < 10.0
    heavy = X[:, 0] + 0.1 * rng.standard_t(2.0, 150)
    found = GLMRegressor("student_t").fit(X, heavy).dispersion_
    assert 1.0 < found["df"] < 6.0
    assert found["scale"] == pytest.approx(0.1, rel=0.3)
    fixed = GLMRegressor("student_t(df=4, scale=0.5)").fit(X, heavy)
    assert fixed.dispersion_ == pytest.approx({"df": 4.0, "scale": 0.5})
    site = GLMRegressor(klimb.sites.StudentT(4.0, 0.5)).fit(X, heavy)
    assert site.bound_ == pytest.approx(fixed.bound_, abs=1e-6)
    site = klimb.sites.Custom(lambda y, f: -np.log(np.pi * 0.1) - np.log1p(((y - f) / 0.1) ** 2))
    own = GLMRegressor(site).fit(X, heavy)
    cauchy = GLMRegressor("student_t(df=1, scale=0.1)", prior_scale=own.prior_scale_ / heavy.std()).fit(X, heavy)
    assert np.allclose(own.coef_, cauchy.coef_, atol=1e-2)
