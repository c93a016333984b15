"""Named parameters, rules, priors, repr, algebra, mean functions, and the three parts of every message."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.integrate

import klimb.kernels
import klimb.priors
from klimb.errors import InputError
from klimb.kernels import (
    KERNELS,
    RBF,
    Constant,
    Cosine,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Polynomial,
    Product,
    RationalQuadratic,
    Sum,
    White,
    means,
)
from klimb.priors import log_normal, pc_lengthscale, pc_variance

X = np.random.default_rng(0).standard_normal((6, 3))
ROUND_TRIPS = [
    *(kernel() for kernel in KERNELS.values()),
    RBF(0.1, [0.1, 1 / 3, 1e-8], active_dims=(0, 2, 1)),
    Periodic(2.0, [1.0, 2.0], period=[3.0, 4.0]).fixed("period[1]", "variance"),
    Polynomial(3, 0.5, 0.25, active_dims=[1]),
    RBF() + Matern12() + White(0.1),
    (RBF() + Linear()) * Periodic() * (Constant(2.0) + Cosine()),
    RBF() * Periodic() + 0.5 * RationalQuadratic(alpha=3.0),
    RBF(lengthscale=[1.0, 2.0]).fixed("lengthscale"),
    (RBF(lengthscale=[1.0, 2.0]) + Matern32()).bounded({"0.lengthscale[1]": (0.5, 4.0), "1.variance": (0.1, 2)}),
    RBF(lengthscale=[1.0, 2.0]).with_priors(lengthscale=pc_lengthscale(0.1, 0.01, dim=2), variance=pc_variance(2.0)),
    Matern52().fixed("variance").bounded(lengthscale=(0.1, 10.0)).with_priors(lengthscale=log_normal(0.5, 0.7)) + 1.0,
]


@pytest.mark.parametrize("kernel", ROUND_TRIPS, ids=repr)
def test_repr_evaluates_back(kernel):
    again = eval(repr(kernel), {**vars(klimb.kernels), **vars(klimb.priors)})
    assert again == kernel
    assert hash(again) == hash(kernel)
    assert repr(again) == repr(kernel)


@pytest.mark.parametrize("kernel", ROUND_TRIPS, ids=repr)
def test_parameters_round_trip(kernel):
    assert kernel.with_log_parameters(kernel.log_parameters) == kernel
    assert kernel.with_parameters(kernel.parameters) == kernel
    assert kernel.freed().fixed().free == ()
    theta = kernel.log_parameters + np.linspace(-1.0, 1.0, len(kernel.free))
    moved = kernel.with_log_parameters(theta)
    np.testing.assert_allclose(moved.log_parameters, theta, rtol=1e-14, atol=1e-15)
    assert moved.free == kernel.free
    held = set(kernel.parameters) - set(kernel.free)
    assert {name: moved.parameters[name] for name in held} == {name: kernel.parameters[name] for name in held}
    assert kernel.log_bounds.shape == (len(kernel.free), 2)
    assert kernel.log_prior()[1].shape == (len(kernel.free),)


def test_names_are_readable():
    kernel = RBF(2.0, [1.0, 3.0]) + Periodic() * Linear()
    assert kernel.parameters == {"0.variance": 2.0, "0.lengthscale[0]": 1.0, "0.lengthscale[1]": 3.0,
                                 "1.0.variance": 1.0, "1.0.lengthscale": 1.0, "1.0.period": 1.0, "1.1.variance": 1.0}
    assert kernel.free == tuple(kernel.parameters)[:-1]  # the second variance of a product is fixed
    assert kernel.fixed("0", "1.1").free == ("1.0.variance", "1.0.lengthscale", "1.0.period")
    assert kernel.fixed("0").freed("0.lengthscale[1]").free[0] == "0.lengthscale[1]"


def test_fixed_parameters_are_left_out_of_gradients():
    kernel = RBF(2.0, [1.0, 3.0, 0.5]) + White(0.3)
    G = np.random.default_rng(1).standard_normal((6, 6))
    full, some = kernel.gram_vjp(X, G), kernel.fixed("0.variance", "0.lengthscale[1]").gram_vjp(X, G)
    np.testing.assert_array_equal(some, full[[1, 3, 4]])
    np.testing.assert_array_equal(kernel.fixed().gram_vjp(X, G), np.empty(0))
    assert kernel.fixed().log_parameters.dtype == np.float64


def test_a_product_has_one_free_scale():
    a, b, c = RBF(), Matern12(), Linear()
    assert (a * b).free == ("0.variance", "0.lengthscale", "1.lengthscale")
    assert (a.fixed("variance") * b).free == ("0.lengthscale", "1.variance", "1.lengthscale")
    assert ((a + b) * c).free == ("0.0.variance", "0.0.lengthscale", "0.1.variance", "0.1.lengthscale")
    assert "1.0.variance" not in (c * (a + b)).free
    assert "1.1.variance" in (c * (a + b)).free
    assert "1.0.variance" in (c * (a + b.fixed("variance"))).free  # a sum with a known term has a scale of its own
    assert "1.variance" in (a * b.with_priors(variance=pc_variance(1.0))).free
    assert "1.variance" in (a * b.bounded(variance=(0.1, 1.0))).free
    freed = (a * b).freed("1.variance")
    assert freed.free == ("0.variance", "0.lengthscale", "1.variance", "1.lengthscale")
    assert freed == Product((a, b))
    assert freed.with_log_parameters(freed.log_parameters + 1.0).free == freed.free
    assert eval(repr(freed), vars(klimb.kernels).copy()) == freed
    assert eval(repr(freed + c), vars(klimb.kernels).copy()) == freed + c


def test_parameters_by_name():
    kernel = RBF(lengthscale=[1.0, 2.0]) + White()
    assert kernel.with_parameters({"0.lengthscale": 3.0}).parameters["0.lengthscale[1]"] == 3.0
    assert kernel.with_parameters({"0.lengthscale": [4.0, 5.0], "1.variance": 0.1}) == (
        RBF(lengthscale=[4.0, 5.0]) + White(0.1))
    assert RBF().with_parameters(variance=2.0) == RBF(2.0)


def test_algebra_is_flat_and_scaling_brings_no_parameter():
    a, b, c = RBF(), Matern12(), Linear([1.0, 2.0, 3.0])
    assert a + (b + c) == (a + b) + c == Sum((a, b, c)) == sum([a, b, c])
    assert a * (b * c) == (a * b) * c == Product((a, b.fixed("variance"), c.fixed("variance[0]")))
    assert 2.0 * a == a * 2 == np.float64(2.0) * a == RBF(variance=2.0)
    assert 3 * (a + c) == RBF(3.0) + Linear([3.0, 6.0, 9.0])
    assert 3 * (a * b) == RBF(3.0) * b
    assert a + 2.0 == a + Constant(2.0)
    assert 2.0 + a == Constant(2.0) + a
    np.testing.assert_allclose((5.0 * (a * b + c)).gram(X), 5.0 * (a * b + c).gram(X), rtol=1e-14)
    for wrong in (lambda: a + "b", lambda: "b" * a, lambda: a * [1.0], lambda: np.ones(2) * a):
        with pytest.raises(TypeError):
            wrong()


def test_typical_values_follow_the_units():
    few, wide = np.random.default_rng(1).random((50, 2)), np.array([1e4, 1e-3])
    for kernel in (RBF(lengthscale=[1.0, 1.0]), RBF(active_dims=0) * Matern32(active_dims=1), RBF() + White(0.1)):
        one, other = kernel.typical(few * [0.01, 0.01]), kernel.typical(few * 0.01 * wide)
        for name, value in one.parameters.items():
            factor = wide[int(name[-2])] if name.endswith("]") else wide[0] if name == "0.lengthscale" else None
            factor = wide[1] if name == "1.lengthscale" else factor
            if factor is not None and not isinstance(kernel, Sum):
                assert other.parameters[name] == pytest.approx(factor * value)
    large = Linear().typical(1e6 * few, 1.0)
    assert large.diag(1e6 * few).mean() == pytest.approx(1.0)
    assert (Linear() * RBF()).typical(1e6 * few, 1.0).diag(1e6 * few).mean() == pytest.approx(1.0)
    assert Periodic().typical(few, 1e6).parameters == {"variance": 1e6, "lengthscale": 1.0, "period": 1.0}
    assert Polynomial(degree=400).typical(1e9 * few, 1.0).parameters["offset"] == 1.0  # overflows: stays as it is


def test_bounds():
    kernel = (RBF(lengthscale=[1.0, 2.0]) + White(1e-12)).bounded({"0.lengthscale": (0.5, 4.0)}).fixed("0.variance")
    np.testing.assert_allclose(np.exp(kernel.log_bounds), [[0.5, 4.0], [0.5, 4.0], [1e-20, 1e8]])
    np.testing.assert_allclose(np.exp(RBF(variance=1e4).log_bounds), [[1e-8, 1e12], [1e-8, 1e8]])


@pytest.mark.parametrize("prior", [log_normal(0.5, 0.7), pc_variance(2.0, 0.1), pc_lengthscale(0.3, 0.2),
                                   pc_lengthscale(0.3, 0.2, dim=3)], ids=repr)
def test_priors_are_densities_with_their_slopes(prior):
    mass, _ = scipy.integrate.quad(lambda t: math.exp(prior.log_density(math.exp(t)) + t), -40, 40, points=[-2, 0, 2],
                                   limit=500)
    assert mass == pytest.approx(1.0, abs=1e-6)
    for value in (1e-3, 0.2, 1.0, 30.0):
        up, down = (prior.log_density(value * math.exp(step)) for step in (1e-6, -1e-6))
        assert prior.slope(value) == pytest.approx((up - down) / 2e-6, rel=1e-6, abs=1e-7)
    for value in (1e-100, 1e100):
        assert math.isfinite(prior.log_density(value))
        assert math.isfinite(prior.slope(value))


def test_pc_priors_keep_their_promises():
    def probability(prior, lower, upper):
        return scipy.integrate.quad(lambda t: math.exp(prior.log_density(math.exp(t)) + t), math.log(lower),
                                    math.log(upper), limit=500)[0]

    assert probability(pc_variance(2.0, 0.1), 4.0, 1e5) == pytest.approx(0.1, abs=1e-8)
    assert probability(pc_lengthscale(0.3, 0.2, dim=2), 1e-5, 0.3) == pytest.approx(0.2, abs=1e-8)


def test_log_prior_is_a_density_of_the_logarithms():
    kernel = (RBF(2.0, 0.3) + White()).with_priors({"0.lengthscale": log_normal(0.5, 0.7), "1.variance": pc_variance()})
    value, slope = kernel.log_prior()
    expected = -0.5 * (math.log(0.3 / 0.5) / 0.7) ** 2 - math.log(0.7 * math.sqrt(2 * math.pi))
    assert value == pytest.approx(expected + pc_variance().log_density(1.0))
    theta = kernel.log_parameters
    for i in range(3):
        step = 1e-6 * (np.arange(3) == i)
        up, down = (kernel.with_log_parameters(theta + sign * step).log_prior()[0] for sign in (1, -1))
        assert slope[i] == pytest.approx((up - down) / 2e-6, abs=1e-6)
    assert kernel.with_priors({"0": None, "1": None}) == RBF(2.0, 0.3) + White()


# -- mean functions


MEANS = [means.ZeroMean(), means.ConstantMean(2.0), means.LinearMean(0.5, 1.0), means.LinearMean([1.0, -2.0, 0.0], 0.3),
         means.LinearMean([1.0, -2.0, 0.0]).fixed("slope[1]").bounded(intercept=(-1.0, 1.0))]


@pytest.mark.parametrize("mean", MEANS, ids=repr)
def test_mean_functions(mean):
    assert eval(repr(mean), vars(means).copy()) == mean
    assert mean.with_values(mean.values) == mean
    assert mean.bounds.shape == (len(mean.free), 2)
    full = {"slope[0]": 0.0, "slope[1]": 0.0, "slope[2]": 0.0} | mean.parameters
    slopes = [mean.parameters.get("slope", full[f"slope[{d}]"]) for d in range(3)]
    constant = mean.parameters.get("intercept", mean.parameters.get("value", 0.0))
    np.testing.assert_allclose(mean(X), X @ slopes + constant)
    g, v = np.random.default_rng(2).standard_normal(6), mean.values
    expected = [g @ mean.with_values(v + 0.5 * e)(X) - g @ mean.with_values(v - 0.5 * e)(X) for e in np.eye(len(v))]
    np.testing.assert_allclose(mean.vjp(X, g), np.array(expected).reshape(-1), atol=1e-12)


# -- bad input: what was expected, what came, what to do


NAN = X.copy()
NAN[2, 1] = np.nan
BAD = {
    "width of an ARD kernel": (lambda: RBF(lengthscale=[1.0, 2.0]).gram(X),
                               "RBF on inputs with 3 columns takes one lengthscale or 3; got 2 values. Pass"),
    "width of Z": (lambda: RBF().gram(X, X[:, :2]), "Z must have as many columns as X (3); got 2. Pass"),
    "non-finite X": (lambda: RBF().gram(NAN), "X must be finite; got nan at index (2, 1) (1 such value). Drop"),
    "non-finite Z": (lambda: RBF().gram(X, NAN), "Z must be finite; got nan at index (2, 1)"),
    "three dimensions": (lambda: RBF().gram(np.zeros((2, 2, 2))), "got shape (2, 2, 2). Reshape"),
    "huge X": (lambda: RBF().gram([1e200]), "X must lie within -1e+100 and 1e+100; got 1e+200 in magnitude. Change"),
    "text": (lambda: RBF().gram(["a"]), "X must be an array of numbers"),
    "negative lengthscale": (lambda: RBF(lengthscale=[1.0, -2.0]), "needs lengthscale > 0, from 1e-100 to 1e+100; "
                             "got -2.0 at index 1. Pass a positive lengthscale"),
    "zero variance": (lambda: White(0.0), "White needs variance > 0, from 1e-100 to 1e+100; got 0.0. Pass"),
    "nan alpha": (lambda: RationalQuadratic(alpha=np.nan), "RationalQuadratic.alpha must be finite; got nan"),
    "vector variance": (lambda: RBF([1.0, 2.0]), "RBF needs variance to be a number; got shape (2,). Pass a number."),
    "degree": (lambda: Polynomial(1.5), "Polynomial needs degree to be a whole number, at least 1; got 1.5. Use"),
    "unknown parameter": (lambda: RBF().fixed("lenghtscale"),
                          "got 'lenghtscale'. Did you mean 'lengthscale'? The names"),
    "unknown vector": (lambda: RBF(lengthscale=[1.0, 2.0]).fixed("lengthscal"), "Did you mean 'lengthscale'?"),
    "forgotten part": (lambda: (White() + RBF()).bounded(lengthscale=(0.1, 2)), "Did you mean '1.lengthscale'?"),
    "unknown value": (lambda: RBF().with_parameters(sigma=2.0), "got 'sigma'. Did you mean"),
    "active_dims out of range": (lambda: RBF(active_dims=[0, 3]).gram(X),
                                 "active_dims must lie within 0 and 2, the columns of X; got 3. Columns are counted"),
    "active_dims in a sum": (lambda: (RBF() + Linear(active_dims=[5])).diag(X), "got 5. Columns"),
    "negative active_dims": (lambda: RBF(active_dims=[-1]), "distinct and not negative; got (-1,). Name"),
    "repeated active_dims": (lambda: RBF(active_dims=[1, 1]), "distinct and not negative; got (1, 1). Name"),
    "real active_dims": (lambda: RBF(active_dims=[0.5]), "active_dims to be column numbers; got [0.5]. Pass"),
    "active_dims against lengthscales": (lambda: RBF(lengthscale=[1.0, 2.0], active_dims=[0, 1, 2]),
                                         "takes one lengthscale or 3; got 2 values"),
    "theta too short": (lambda: RBF().with_log_parameters([0.0]), "theta must have 2 entries (variance, lengthscale); "
                        "got 1. The order"),
    "theta too large": (lambda: RBF().with_log_parameters([0.0, 1e3]), "got 1000.0 at index 1. Bound the search"),
    "theta not finite": (lambda: RBF().with_log_parameters([0.0, np.nan]), "theta must be finite; got nan at index 1"),
    "bounds the wrong way": (lambda: RBF().bounded(variance=(2.0, 1.0)), "lower < upper; got (2.0, 1.0). Swap"),
    "value out of bounds": (lambda: RBF().bounded(variance=(2.0, 3.0)), "within its bounds (2.0, 3.0); got 1.0. Set"),
    "bounds not a pair": (lambda: RBF().bounded(variance=2.0), "must be a pair (lower, upper); got 2.0. Pass"),
    "prior": (lambda: RBF().with_priors(variance=2.0),
              "must be a prior of a positive parameter; got 2.0. Use klimb.priors.log_normal"),
    "prior probability": (lambda: pc_variance(1.0, 5.0), "pc_variance needs 0 < probability < 1; got 5.0. Pass"),
    "prior median": (lambda: log_normal(-1.0), "log_normal needs median > 0; got -1.0. Pass"),
    "prior dimension": (lambda: pc_lengthscale(dim=0), "pc_lengthscale needs dim >= 1; got 0. Pass"),
    "values by name": (lambda: RBF(lengthscale=[1.0, 2.0]).with_parameters(lengthscale=[1.0, 2.0, 3.0]),
                       "lengthscale takes a number or 2 of them; got shape (3,). Give"),
    "shape of G": (lambda: RBF().gram_vjp(X, np.eye(2)), "the shape of the kernel matrix, (6, 6); got shape (2, 2)."),
    "non-finite G": (lambda: RBF().gram_vjp(X, np.full((6, 6), np.inf)), "G must be finite; got inf at index (0, 0)"),
    "length of g": (lambda: RBF().diag_vjp(X, [1.0]), "g must have one entry per row of X (6); got 1."),
    "out": (lambda: RBF().gram(X, out=np.empty((2, 2))), "float64 array of shape (6, 6); got shape (2, 2) of float64."),
    "negative factor": (lambda: -1.0 * RBF(), "a kernel needs a factor > 0, from 1e-100 to 1e+100; got -1.0. Pass"),
    "one term": (lambda: Sum((RBF(),)), "Sum takes at least two kernels; got 1. Use"),
    "not a kernel": (lambda: Product((RBF(), 2.0)), "Product takes kernels; got 2.0. Wrap"),
    "mean width": (lambda: means.LinearMean([1.0, 2.0])(X), "takes one slope or 3; got 2 values. Pass"),
    "mean gradient": (lambda: means.ZeroMean().vjp(X, [1.0]), "one entry per row of X (6); got 1."),
    "mean inputs": (lambda: means.ZeroMean()(np.zeros((1, 1, 1))),
                    "X must have one row per point; got shape (1, 1, 1)."),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told_in_three_parts(case):
    call, message = BAD[case]
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)
    assert "; got " in str(caught.value)
    assert str(caught.value)[-1] in ".?"
