"""``fit.covariance``: agrees with the sd column and with joint draws, hyperparameters integrated out or not."""

import numpy as np
import pytest

import klimb

RNG = np.random.default_rng(1)
N = 90
X, G = RNG.standard_normal(N) + 3, RNG.integers(0, 8, N)
ETA = 0.5 * X - 1 + RNG.standard_normal(8)[G]
DATA = {"x": X, "g": G.astype(str), "h": np.array(list("abc"))[RNG.integers(0, 3, N)],
        "y": ETA + RNG.standard_normal(N), "count": RNG.poisson(np.exp(0.5 * ETA)),
        "level": np.digitize(ETA + RNG.logistic(size=N), [-0.5, 1.0]),
        "kind": np.array(list("uvw"))[RNG.integers(0, 3, N)]}


@pytest.mark.parametrize("hyper", ["auto", "optimise"])
@pytest.mark.parametrize(("formula", "family"), [
    ("y ~ x*h + (1 | g)", "gaussian"), ("count ~ 0 + h + x", "poisson"), ("level ~ x", "ordinal"),
    ("kind ~ x", "categorical"), ("y ~ ridge(x) + s(x)", "gaussian")])
def test_covariance_is_that_of_the_draws(formula, family, hyper):
    fit = klimb.fit(formula, DATA, family=family, hyper=hyper)
    found = fit.covariance
    names = list(found["name"])
    C, table = np.column_stack([found[name] for name in names]), fit.coefficients
    assert names == list(table["name"])
    sd = np.sqrt(np.diag(C))
    np.testing.assert_allclose(sd, table["sd"], rtol=1e-9)
    draws = fit.draws(20_000)
    drawn = np.cov([draws[name] for name in names])
    np.testing.assert_allclose(drawn / np.outer(sd, sd), C / np.outer(sd, sd), atol=0.05)


def test_covariance_is_a_frame_of_the_callers_type():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"name": DATA["x"], "y": DATA["y"]})
    found = klimb.fit("y ~ name", frame).covariance
    assert isinstance(found, pandas.DataFrame)
    assert list(found.columns) == ["name_", "Intercept", "name"]
    assert list(klimb.fit("y ~ 0", frame).covariance.columns) == ["name"]
