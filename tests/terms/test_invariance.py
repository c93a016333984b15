"""Default priors follow nobody's origin, unit or order of terms; priors of the user act on what is printed."""

import numpy as np
import pytest

import klimb
from klimb.formula.errors import FormulaError
from klimb.likelihoods import likelihood
from klimb.models.setup import build
from klimb.rows.frames import read_frame
from klimb.terms.encoder import encode

RNG = np.random.default_rng(3)
N = 90
X, Z, H, G = RNG.standard_normal(N), RNG.gamma(2.0, 1.0, N), RNG.integers(0, 3, N), RNG.integers(0, 9, N)
K = RNG.integers(0, 2, N)
ETA = 1 + 0.7 * X - 0.3 * Z + 0.5 * (H == 1) + 0.3 * X * Z + 0.2 * X**2 + RNG.standard_normal(9)[G] * (0.8 + 0.3 * X)
DATA = {"x": X, "z": Z, "h": np.array(list("abc"))[H], "k": np.array(list("uv"))[K], "g": G.astype(str),
        "y": ETA + 0.7 * RNG.standard_normal(N), "up": (RNG.random(N) < 1 / (1 + np.exp(-ETA))).astype(int)}
MOVES = [(10.0, 1.0), (1e3, 1.0), (1e6, 1.0), (0.0, 1e-6), (0.0, 1e6), (1e6, 1e-6)]
FORMULAS = ["x", "x*z", "x*h", "x*z*h", "poly(x, 2)", "poly(x, 2, raw=True)", "poly(x, 2, raw=True)*h", "0 + h + x",
            "0 + h + h:x", "s(x)", "ridge(x, z)", "gp(x)", "bs(x, df=4)", "x + (1 + x | g)", "x*h + (x*z | g)",
            "(poly(x, 2, raw=True) | g)", "(0 + h + x | g)"]


def latent(formula, family="gaussian", **changed):
    hyper = "fixed" if "g)" in formula else "optimise"  # at the default start, which scales with the columns
    fit = klimb.fit(formula, {**DATA, **changed}, family=family, hyper=hyper, tol=1e-9)
    if "g)" in formula:  # q itself: the draws that correct it add 0.01 sd of noise
        return fit.posterior.m, np.sqrt(fit.posterior.v), fit
    found = fit.predict(kind="latent")
    return found["mean"], found["sd"], fit


def apart(one, two):
    return max(np.abs((one[0] - two[0]) / one[1]).max(), np.abs(two[1] / one[1] - 1.0).max())


@pytest.mark.parametrize("response", ["y", "up"])
@pytest.mark.parametrize("formula", FORMULAS)
def test_predictions_follow_no_origin_and_no_unit(formula, response):
    family = "gaussian" if response == "y" else "bernoulli"
    reference = latent(f"{response} ~ {formula}", family)
    for shift, scale in MOVES:
        moved = latent(f"{response} ~ {formula}", family, x=(X + shift) * scale)
        assert apart(reference, moved) < 0.01, (shift, scale)
        assert moved[2].notes == reference[2].notes


def test_integrated_hyperparameters_follow_no_origin():
    """The points of theta are chosen by quantities that no origin moves, not by sds where x is 0."""
    reference = klimb.fit("y ~ x + (1 + x | g)", DATA)
    for shift in (1e3, 1e6):
        moved = klimb.fit("y ~ x + (1 + x | g)", {**DATA, "x": X + shift})
        one, two = (fit.predict(kind="latent") for fit in (reference, moved))
        assert apart((one["mean"], one["sd"]), (two["mean"], two["sd"])) < 1e-5
        rows = [{row.name: row for row in fit.table_rows()} for fit in (reference, moved)]
        for name in ("x", "sd(x | g)", "sigma"):
            assert rows[1][name].mean == pytest.approx(rows[0][name].mean, abs=1e-5 * rows[0][name].sd)
            assert rows[1][name].sd == pytest.approx(rows[0][name].sd, rel=1e-5)


@pytest.mark.parametrize("formula", ["x*h", "0 + h", "s(x)", "x + (1 + x | g)"])
def test_predictions_follow_the_unit_of_the_response(formula):
    mean, sd, _ = latent(f"y ~ {formula}")
    for shift, scale in ((1e6, 1.0), (0.0, 1e-6), (1e3, 1e6)):
        m, s, _ = latent(f"y ~ {formula}", y=(DATA["y"] + shift) * scale)
        assert apart((mean, sd), (m / scale - shift, s / scale)) < 0.01


@pytest.mark.parametrize(("one", "two"), [
    ("x*z", "z*x"), ("h*k + x", "x + k*h"), ("0 + h + k", "0 + k + h"), ("0 + h + k", "1 + k + h"),
    ("0 + h*k + x", "0 + x + k*h"), ("0 + C(h, Sum)", "C(h, Sum)"), ("poly(x, 2)*h", "h*poly(x, 2)")])
def test_the_order_of_terms_and_the_way_to_write_the_constant_do_not_matter(one, two):
    first, second = (latent(f"up ~ {formula}", "bernoulli")[2] for formula in (one, two))
    assert apart(*((fit.posterior.m, np.sqrt(fit.posterior.v)) for fit in (first, second))) < 1e-6
    assert abs(first.bound - second.bound) < 1e-6


def test_a_column_that_its_margins_make_up_keeps_a_sane_prior():
    fit = klimb.fit("y ~ x + c", {**DATA, "c": np.ones(N)})
    assert fit.coefficients["sd"].max() < 10.0
    assert any("cannot tell it from the intercept" in note for note in fit.notes)


def test_powers_without_digits_are_refused():
    with pytest.raises(FormulaError, match=r"Use poly\(x, 3\)"):
        klimb.fit("y ~ poly(x, 3, raw=True)", {**DATA, "x": X + 1e6})


@pytest.mark.parametrize(("formula", "name"), [
    ("y ~ x*z", "x"), ("y ~ x*z", "x:z"), ("y ~ poly(x, 3, raw=True)", "poly(x, 3, raw=True)[1]"), ("y ~ x*z*h", "x"),
    ("y ~ x*z*h", "x:z"), ("y ~ 0 + h + x", "h[a]")])
def test_a_prior_of_the_user_is_that_of_the_printed_coefficient(formula, name):
    data = {**DATA, "x": X + 7.0}
    encoder, encoded = encode(formula, read_frame(data))
    _, encoder, _, _ = build(encoder, encoded, likelihood("gaussian"), {name: "normal(3, 0.25)"})
    fixed = encoder.fixed
    T, j = fixed.report().map, fixed.names.index(name)
    assert T[j] @ fixed.mean[0] == pytest.approx(3.0)
    assert (T[j] ** 2) @ fixed.sd**2 == pytest.approx(0.25**2)
    lower = [k for k, other in enumerate(fixed.names) if k != j and other != "Intercept" and name not in other]
    if ":" not in name:  # its own prior says nothing about the coefficients below and beside it
        np.testing.assert_allclose((T[lower] * fixed.sd**2) @ T[j], 0.0, atol=1e-12)


def test_a_prior_for_all_coefficients_acts_on_each_as_printed():
    encoder, encoded = encode("y ~ x*z", read_frame({**DATA, "x": X + 7.0}))
    _, encoder, _, _ = build(encoder, encoded, likelihood("gaussian"), {"fixed": "normal(0, 2)"})
    T = encoder.fixed.report().map
    np.testing.assert_allclose((T**2 @ encoder.fixed.sd**2)[1:], 4.0)


def test_a_held_sd_is_held_as_printed():
    fit = klimb.fit("y ~ x + (1 + x | g)", {**DATA, "x": X + 50.0}, priors={"sd(g)": 1.5}, hyper="fixed")
    (covariance,) = fit.groups[0].parameters
    root = fit.groups[0].uncentred @ covariance.value(fit.components.theta[0])
    assert np.sqrt((root**2).sum(axis=1))[0] == pytest.approx(1.5)
