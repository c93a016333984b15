"""Student-t noise with few degrees of freedom: no floor, integrals to the usual digits, predictions without a mean."""

import mpmath
import numpy as np
import pytest

import klimb
from klimb.sites import StudentT

YEAR = np.arange(50.0, 74.0)  # telephone calls in Belgium: Rousseeuw and Leroy (1987), `phones` of R's MASS
CALLS = np.array([4.4, 4.7, 4.7, 5.9, 6.6, 7.3, 8.1, 8.8, 10.6, 12.0, 13.5, 14.9, 16.1, 21.2, 119.0, 124.0, 142.0,
                  159.0, 182.0, 212.0, 43.0, 24.0, 27.0, 29.0])


@pytest.fixture(scope="module")
def phones():
    return klimb.fit("calls ~ year", {"year": YEAR, "calls": CALLS}, family="student_t")


@pytest.mark.parametrize("df", [0.05, 0.2, 0.45, 0.8])
@pytest.mark.parametrize(("m", "v"), [(0.3, 0.1), (0.0, 1.0), (3.0, 1e-2), (30.0, 10.0), (1e3, 1e3)])
def test_integrals_of_few_degrees_of_freedom(df, m, v):
    with mpmath.workdps(30):
        df_, mean, sd = mpmath.mpf(df), mpmath.mpf(m), mpmath.sqrt(mpmath.mpf(v))
        edges = sorted({mean - 12 * sd, mean + 12 * sd, *(p for k in range(-8, 9) for sign in (-1, 0, 1)
                        if mean - 12 * sd < (p := sign * mpmath.sqrt(df_) * mpmath.mpf(10) ** (k / mpmath.mpf(2)))
                        < mean + 12 * sd), mean})

        def average(g):
            return mpmath.quad(lambda x: g(x) * mpmath.npdf(x, mean, sd), edges)

        value = average(lambda x: -(df_ + 1) / 2 * mpmath.log1p(x * x / df_))
        alpha = average(lambda x: (df_ + 1) * x / (df_ + x * x))
        gamma = average(lambda x: (df_ + 1) * (df_ - x * x) / (df_ + x * x) ** 2)
        exact = [float(number) for number in (value, alpha, gamma)]
    site = StudentT(df)
    found = site.expect([0.0], m=[m], v=[v])
    got = [found.value[0] - site.constant(np.zeros(1))[0], found.alpha[0], found.gamma[0]]
    np.testing.assert_allclose(got, exact, rtol=1e-8, atol=1e-10)


def test_df_has_no_floor(phones):
    rows = {row.name: row for row in phones.table_rows()}
    assert 0.2 < rows["df"].mean < 0.7
    assert rows["df"].lower < 0.6
    assert abs(rows["year"].mean - 1.13) < 0.05  # the line of the years without a mistake
    assert phones.priors["df"] == "gamma(2, 0.1)"


def test_predictions_without_a_mean_give_the_median(phones):
    assert any("y has no mean" in note for note in phones.notes)
    for kind in ("mean", "response"):
        found = phones.predict({"year": [55.0, 60.0]}, kind=kind)
        assert np.isnan(found["mean"]).all()
        assert np.isnan(found["sd"]).all()
        assert (found["lower"] < found["median"]).all()
        assert (found["median"] < found["upper"]).all()
        np.testing.assert_allclose(found["median"], [7.8, 13.5], atol=0.3)
    assert np.isfinite(phones.predict({"year": [55.0]}, kind="latent")["mean"]).all()
    assert np.isfinite(phones.effects()[0].center).all()
    assert str(phones)


def test_between_one_and_two_degrees_the_sd_alone_is_missing():
    fit = klimb.fit("calls ~ year", {"year": YEAR, "calls": CALLS}, family="student_t(df=1.5)")
    found = fit.predict({"year": [55.0]}, kind="response")
    assert np.isfinite(found["mean"]).all()
    assert np.isnan(found["sd"]).all()
    assert "median" not in found
    assert any("y has no sd" in note for note in fit.notes)
    assert np.isfinite(fit.predict({"year": [55.0]})["sd"]).all()


def test_more_degrees_have_all_moments():
    fit = klimb.fit("calls ~ year", {"year": YEAR, "calls": CALLS}, family="student_t(df=5)")
    found = fit.predict({"year": [55.0]}, kind="response")
    assert all(np.isfinite(values).all() for values in found.values())
    assert fit.notes == ()


def test_gaussian_processes_and_estimators_have_the_median_too():
    fit = klimb.gp(klimb.kernels.RBF(), YEAR, StudentT(0.5, 1.0)).fit(CALLS, hyper="fixed")
    found = fit.predict(YEAR[:3], kind="response")
    assert np.isnan(found["mean"]).all()
    assert np.isfinite(found["median"]).all()
    model = klimb.sklearn.GLMRegressor(family="student_t(df=0.5)").fit(YEAR[:, None], CALLS)
    assert np.isfinite(model.predict(YEAR[:3, None])).all()
