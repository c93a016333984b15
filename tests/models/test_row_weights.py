"""A row of weight 0 is left out and one of weight 2 stands twice: in fit, notes, leave-one-out and verdict."""

import numpy as np
import pytest

import klimb
from klimb.sklearn import GLMClassifier, GLMRegressor, GPClassifier, SparseLinearRegressor

RNG = np.random.default_rng(11)
N = 60
W = RNG.integers(0, 4, N).astype(float)
NONE = np.flatnonzero(W == 0)
X = RNG.standard_normal(N) + 2
ETA = np.clip(0.5 * X - 1, -3, 3)
X[NONE] = RNG.choice([50.0, -80.0, 7.0], len(NONE))  # would move means, knots and scales
H, G = np.array(list("abc"))[RNG.integers(0, 3, N)], np.array([f"g{k}" for k in RNG.integers(0, 6, N)])
H[NONE[:3]], G[NONE[:4]] = "zz", "nobody"
TWICE = np.repeat(np.arange(N), W.astype(int))
FIRST = np.searchsorted(TWICE, np.flatnonzero(W))  # where each row that counts stands first
Y = ETA + RNG.standard_normal(N)
Y[NONE] = 1e3
DATA = {"x": X, "z": RNG.gamma(2.0, 1.0, N), "h": H, "g": G, "real": Y, "count": RNG.poisson(np.exp(0.5 * ETA)),
        "up": (RNG.random(N) < 1 / (1 + np.exp(-ETA))).astype(int), "time": RNG.gamma(3.0, np.exp(0.4 * ETA)),
        "share": RNG.beta(2.0, 3.0, N), "level": np.digitize(ETA + RNG.logistic(size=N), [-0.5, 1.0]),
        "kind": np.array(list("uvw"))[RNG.integers(0, 3, N)]}

CASES = [("real ~ x*h", "gaussian"), ("real ~ s(x) + h", "gaussian"), ("real ~ x + (1 + x | g)", "gaussian"),
         ("real ~ gp(x)", "gaussian"), ("real ~ ridge(x, z, h)", "gaussian"), ("real ~ sparse(x, z)", "gaussian"),
         ("real ~ 0 + h + poly(x, 2)", "gaussian"), ("real ~ bs(x, df=5) + C(h, Sum)*center(z)", "gaussian"),
         ("real ~ scale(x) + (1 | g:h)", "gaussian"), ("count ~ x + (1 | g)", "poisson"), ("count ~ s(x)", "poisson"),
         ("up ~ x + h", "bernoulli"), ("up ~ x + (1 | g)", "bernoulli"), ("count ~ x + h", "negative_binomial"),
         ("time ~ x + h", "gamma"), ("real ~ x", "student_t"), ("real ~ x + h", "laplace"), ("share ~ x + h", "beta"),
         ("level ~ x + h", "ordinal"), ("kind ~ x", "categorical"), ("time ~ x", "exponential")]


@pytest.mark.parametrize(("formula", "family"), CASES)
def test_formulas(formula, family):
    hyper = "auto" if formula in ("real ~ x*h", "count ~ x + (1 | g)", "up ~ x + (1 | g)") else "optimise"
    one = klimb.fit(formula, DATA, family=family, weights=W, tol=1e-12, hyper=hyper)
    repeated = {name: np.asarray(values)[TWICE] for name, values in DATA.items()}
    two = klimb.fit(formula, repeated, family=family, tol=1e-12, hyper=hyper)
    assert one.priors == two.priors
    assert one.notes == two.notes
    for a, b in zip(one.table_rows(), two.table_rows(), strict=True):
        loose = 1e-6 if family == "student_t" and a.kind == "parameter" else 2e-8  # df is hardly determined
        assert a.name == b.name
        assert abs(a.mean - b.mean) <= loose * b.sd
        assert abs(a.sd / b.sd - 1.0) <= 1e-6
    _same_judgement(one, two, one.loo().log_density)


def _same_judgement(one, two, densities, number=1e-5):
    np.testing.assert_allclose(densities, two.loo().log_density[FIRST], atol=1e-6)
    assert abs(one.loo().elpd - two.loo().elpd) < 1e-6
    assert abs(one.loo().se - two.loo().se) < 1e-6
    assert one.trust.verdict == two.trust.verdict
    assert abs(one.trust.number - two.trust.number) < number
    assert abs(one.bound - two.bound) < 1e-6


@pytest.mark.parametrize(("site", "y", "hyper"), [  # equal rows with equal measurements would make the noise 0
    ("poisson", "count", "fixed"), ("poisson", "count", "optimise"), ("bernoulli", "up", "optimise"),
    ("gaussian", "real", "fixed")])
def test_gaussian_processes(site, y, hyper):
    inputs = np.column_stack([DATA["x"], DATA["z"]])
    one = klimb.gp(klimb.kernels.RBF(), inputs, site).fit(DATA[y], weights=W, hyper=hyper, tol=1e-12)
    two = klimb.gp(klimb.kernels.RBF(), inputs[TWICE], site).fit(DATA[y][TWICE], hyper=hyper, tol=1e-12)
    a, b = (fit.predict(inputs[:5], kind="latent") for fit in (one, two))
    assert np.abs((a["mean"] - b["mean"]) / b["sd"]).max() < 1e-8
    densities = one.loo().log_density
    # The draws behind the number live in a space of other size where rows are merged: its last digits differ.
    _same_judgement(one, two, densities[W > 0] if len(densities) == N else densities, number=0.03)


@pytest.mark.parametrize(("estimator", "y"), [
    (GLMRegressor, "real"), (GLMClassifier, "up"), (GPClassifier, "up"), (SparseLinearRegressor, "real")])
def test_estimators(estimator, y):
    rows = np.column_stack([DATA["x"], DATA["z"]])
    one = estimator(tol=1e-12).fit(rows, DATA[y], sample_weight=W)
    two = estimator(tol=1e-12).fit(rows[TWICE], DATA[y][TWICE])
    ask = "predict_proba" if hasattr(one, "predict_proba") else "predict"
    np.testing.assert_allclose(getattr(one, ask)(rows[:5]), getattr(two, ask)(rows[:5]), rtol=1e-9)
    _same_judgement(one.fit_, two.fit_, one.fit_.loo().log_density[W > 0])
