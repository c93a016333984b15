"""Priors with limits: searches, integrals, tables and draws stay within them, and agree with grids of other code."""

import numpy as np
import pytest
from scipy.special import gammaln

import klimb
from klimb.errors import InputError
from klimb.kernels import RBF
from klimb.priors import uniform

RNG = np.random.default_rng(20)
N = 40
T = np.arange(N)
MIDDLES = (np.arange(60) + 0.5) / 60


def _gaussian(y: np.ndarray, K: np.ndarray) -> float:
    """log N(y; 0, K)."""
    C = np.linalg.cholesky(K)
    z = np.linalg.solve(C, y)
    return float(-0.5 * z @ z - np.log(np.diag(C)).sum())


def _moments(log_density, *axes):
    """Means and sds of each axis of a grid."""
    grid = np.meshgrid(*axes, indexing="ij")
    logs = np.array([log_density(*point) for point in zip(*(axis.ravel() for axis in grid), strict=True)])
    w = np.exp(logs - logs.max())
    w /= w.sum()
    means = [float(w @ axis.ravel()) for axis in grid]
    return [(mean, float(np.sqrt(w @ (axis.ravel() - mean) ** 2))) for mean, axis in zip(means, grid, strict=True)]


def _rows(fit) -> dict[str, tuple[float, ...]]:
    table = fit.summary()
    columns = zip(*(table[name] for name in ("mean", "sd", "lower", "upper")), strict=True)
    return dict(zip(table["name"], columns, strict=True))


def _check(fit, truth: dict[str, tuple[float, float]], tol: float = 0.03) -> None:
    rows = _rows(fit)
    for name, (mean, sd) in truth.items():
        assert abs(rows[name][0] - mean) <= tol * sd, name
        assert abs(rows[name][1] / sd - 1.0) <= tol, name
    assert fit.trust.verdict == "trust"


def _within(fit, name: str, low: float, high: float) -> None:
    mean, _, lower, upper = _rows(fit)[name]
    assert low < lower <= mean <= upper < high
    drawn = np.asarray(fit.draws(200)[name])
    assert (drawn > low).all()
    assert (drawn < high).all()


@pytest.fixture(scope="module")
def series() -> dict:
    u = np.zeros(N)
    for i in range(1, N):
        u[i] = 0.3 * u[i - 1] + RNG.normal()
    return {"y": 1.0 + u + 0.5 * RNG.normal(size=N), "t": T}


@pytest.mark.parametrize("limits", [(0.0, 1.0), (0.4, 0.7), (-1.0, -0.1)])
@pytest.mark.parametrize("hyper", ["integrate", "optimise"])
def test_limits_of_a_correlation(series, limits, hyper):
    low, high = limits
    priors = {"Intercept": "normal(0, 5)", "sd(ar1(t))": 1.1, "sigma": 0.5, "rho(ar1(t))": uniform(low, high)}
    fit = klimb.fit("y ~ ar1(t)", series, priors=priors, hyper=hyper)
    _within(fit, "rho(ar1(t))", low, high)
    if hyper == "integrate":
        lags = np.abs(T[:, None] - T)
        noise = 25.0 + 0.25 * np.eye(N)
        (truth,) = _moments(lambda rho: _gaussian(series["y"], 1.1**2 * rho**lags + noise),
                            low + (high - low) * MIDDLES)
        _check(fit, {"rho(ar1(t))": truth})


@pytest.mark.parametrize("hyper", ["integrate", "optimise"])
def test_limits_of_three_parameters_at_once(series, hyper):
    priors = {"Intercept": "normal(0, 5)", "sd(ar1(t))": "uniform(0.2, 1)", "sigma": "uniform(0, 0.8)",
              "rho(ar1(t))": "uniform(-0.2, 0.5)"}
    fit = klimb.fit("y ~ ar1(t)", series, priors=priors, hyper=hyper)
    for name, limits in (("sd(ar1(t))", (0.2, 1.0)), ("sigma", (0.0, 0.8)), ("rho(ar1(t))", (-0.2, 0.5))):
        _within(fit, name, *limits)
    if hyper == "integrate":
        lags, some = np.abs(T[:, None] - T), MIDDLES[1::3]
        truth = _moments(
            lambda sd, sigma, rho: _gaussian(series["y"], sd**2 * rho**lags + 25.0 + sigma**2 * np.eye(N)),
            0.2 + 0.8 * some, 0.8 * some, -0.2 + 0.7 * some)
        _check(fit, dict(zip(("sd(ar1(t))", "sigma", "rho(ar1(t))"), truth, strict=True)), 0.05)


def test_limits_of_a_share():
    edges = [(i, i + 1) for i in range(N - 1)] + [(i, i + 5) for i in range(N - 5)]
    y = np.cumsum(RNG.normal(size=N)) * 0.3
    priors = {"Intercept": "normal(0, 5)", "sd(bym2(r))": 1.0, "sigma": 0.3, "phi(bym2(r))": "uniform(0.1, 0.4)"}
    fit = klimb.fit("y ~ bym2(r, graph=G)", {"y": y, "r": T}, graphs={"G": edges}, priors=priors)
    Q = np.zeros((N, N))
    for i, j in edges:
        Q[[i, j], [i, j]] += 1.0
        Q[[i, j], [j, i]] -= 1.0
    S = np.linalg.pinv(Q)
    S /= np.exp(np.log(np.diag(S)).mean())
    (truth,) = _moments(lambda phi: _gaussian(y, phi * S + (1.0 - phi + 0.09) * np.eye(N) + 25.0), 0.1 + 0.3 * MIDDLES)
    _within(fit, "phi(bym2(r))", 0.1, 0.4)
    _check(fit, {"phi(bym2(r))": truth})


def test_a_share_that_may_be_one_is_integrated_beyond_the_limits_of_the_search():
    """Three hyperparameters, so by importance sampling: the mass there was lost, and fits went on for it in vain."""
    edges, scale = [(i, i + 1) for i in range(N - 1)] + [(i, i + 5) for i in range(N - 5)], 1.0 - 2.0**-40
    y = np.sin(T / 6.0) + 0.3 * np.random.default_rng(2).normal(size=N)
    priors = {"Intercept": "normal(0, 5)", "sd(bym2(r))": "exponential(1)", "sigma": "exponential(1)"}
    fit = klimb.fit("y ~ bym2(r, graph=G)", {"y": y, "r": T}, graphs={"G": edges}, priors=priors)
    Q = np.zeros((N, N))
    for i, j in edges:
        Q[[i, j], [i, j]] += 1.0
        Q[[i, j], [j, i]] -= 1.0
    S = np.linalg.pinv(Q)
    S /= np.exp(np.log(np.diag(S)).mean())
    prior = next(block.prior for block in fit.model.theta.blocks if "phi(bym2(r))" in block.names)

    def log_density(log_sd: float, log_sigma: float, theta: float) -> float:
        logit, sd, sigma = np.sinh(theta), np.exp(log_sd), np.exp(log_sigma)
        phi = min(1.0 / (1.0 + np.exp(-logit)), scale)
        K = sd**2 * (phi * S + (1.0 - phi) * np.eye(N)) + sigma**2 * np.eye(N) + 25.0
        own = log_sd + log_sigma - sd - sigma + prior.log_density_at(logit) + np.log(np.cosh(theta))
        return _gaussian(y, K) + own

    axes = np.linspace(-1.3, 0.5, 22), np.linspace(-3.2, -0.4, 18), np.linspace(-3.5, 9.0, 36)
    grid = [np.asarray(axis).ravel() for axis in np.meshgrid(*axes, indexing="ij")]
    logs = np.array([log_density(*point) for point in zip(*grid, strict=True)])
    w = np.exp(logs - np.logaddexp.reduce(logs))
    shown = np.exp(grid[0]), 1.0 / (1.0 + np.exp(-np.sinh(grid[2])))
    truth = {}
    for name, values in zip(("sd(bym2(r))", "phi(bym2(r))"), shown, strict=True):
        mean = float(w @ values)
        truth[name] = mean, float(np.sqrt(w @ (values - mean) ** 2))
    assert w @ (grid[2] > 3.34) > 0.01
    _check(fit, truth, 0.06)


@pytest.mark.parametrize("limits", [(0.0, 0.4), (1.5, 3.0), (-1.0, 0.6)])
def test_limits_of_an_sd_that_the_data_do_not_want(limits):
    low, high = max(limits[0], 0.0), limits[1]
    g = np.repeat(np.arange(8), 5)
    y = np.random.default_rng(1).normal(size=8)[g] + RNG.normal(size=N)
    fit = klimb.fit("y ~ (1 | g)", {"y": y, "g": g}, priors={"Intercept": "normal(0, 5)", "sigma": 1.0,
                                                             "sd(g)": uniform(*limits)})
    same = (g[:, None] == g).astype(float)
    (truth,) = _moments(lambda sd: _gaussian(y, sd**2 * same + 25.0 + np.eye(N)), low + (high - low) * MIDDLES)
    _within(fit, "sd(g)", low, high)
    _check(fit, {"sd(g)": truth})


def test_limits_of_the_sd_of_slopes_beside_a_correlation():
    """Few draws of theta leave noise: the median over three data sets is right to 5%, each to 10%."""
    g, names = np.repeat(np.arange(8), 5), ("sd(g)", "sd(x | g)", "cor(Intercept, x | g)")
    same, some, errors = (g[:, None] == g).astype(float), MIDDLES[1::3], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=N) + 2.0
        y = rng.normal(size=8)[g] * x + rng.normal(size=N)
        fit = klimb.fit("y ~ 1 + (1 + x | g)", {"y": y, "x": x, "g": g}, priors={
            "Intercept": "normal(0, 5)", "sigma": 1.0, "sd(g)": "uniform(0.2, 0.7)", "sd(x | g)": "uniform(0, 0.6)",
            "cor(g)": "lkj(1)"})

        def density(level, slope, r, x=x, y=y):
            K = same * (level**2 + slope**2 * np.outer(x, x) + r * level * slope * np.add.outer(x, x))
            return _gaussian(y, K + 25.0 + np.eye(N))

        truth = _moments(density, 0.2 + 0.5 * some, 0.6 * some, -1.0 + 2.0 * some)
        for name, limits in (("sd(g)", (0.2, 0.7)), ("sd(x | g)", (0.0, 0.6))):
            _within(fit, name, *limits)
        _check(fit, dict(zip(names, truth, strict=True)), 0.1)
        rows = _rows(fit)
        errors.append([(abs(rows[name][0] - mean) / sd, abs(rows[name][1] / sd - 1.0))
                       for name, (mean, sd) in zip(names, truth, strict=True)])
    assert np.median(errors, axis=0).max() <= 0.05


def test_limits_of_degrees_of_freedom():
    y = RNG.standard_t(3, size=N)
    fit = klimb.fit("y ~ 1", {"y": y}, "student", priors={"Intercept": "normal(0, 1)", "scale": 1.0,
                                                          "df": "uniform(4, 6)"})

    def density(df, m):
        each = gammaln(0.5 * df + 0.5) - gammaln(0.5 * df) - 0.5 * np.log(df * np.pi)
        return N * each - 0.5 * (df + 1.0) * np.log1p((y - m) ** 2 / df).sum() - 0.5 * m * m

    df, intercept = _moments(density, 4.0 + 2.0 * MIDDLES, -1.0 + 2.0 * MIDDLES)
    _within(fit, "df", 4.0, 6.0)
    _check(fit, {"df": df, "Intercept": intercept})


@pytest.mark.parametrize("hyper", ["integrate", "optimise"])
def test_limits_of_a_kernel(hyper):
    x = np.linspace(0.0, 4.0, N)
    y = np.sin(x) + 0.3 * RNG.normal(size=N)
    kernel = RBF(variance=1.0, lengthscale=3.0).fixed("variance").with_priors(lengthscale=uniform(0.2, 0.6))
    fit = klimb.gp(kernel, x[:, None], klimb.sites.Gaussian(0.3)).fit(y, hyper=hyper)
    found = fit.hyperparameters["lengthscale"]
    assert 0.2 < found < 0.6
    if hyper == "integrate":
        lags = (x[:, None] - x) ** 2
        (truth,) = _moments(lambda length: _gaussian(y, np.exp(-0.5 * lags / length**2) + 0.09 * np.eye(N)),
                            0.2 + 0.4 * MIDDLES)
        assert abs(found - truth[0]) <= 0.03 * truth[1]


def test_no_value_within_both_limits():
    with pytest.raises(InputError, match=r"rho\(ar1\(t\)\) must allow some values between -1 and 1"):
        klimb.fit("y ~ ar1(t)", {"y": RNG.normal(size=N), "t": T}, priors={"rho(ar1(t))": uniform(1, 2)})
    with pytest.raises(InputError, match=r"sd\(ar1\(t\)\) must allow some values between 0 and inf"):
        klimb.fit("y ~ ar1(t)", {"y": RNG.normal(size=N), "t": T}, priors={"sd(ar1(t))": uniform(-2, -1)})


def test_exact_draws_know_the_limits():
    pytest.importorskip("stanli")
    g = np.repeat(np.arange(8), 5)
    x = RNG.normal(size=N)
    data = {"y": RNG.normal(size=8)[g] * x + RNG.normal(size=N), "x": x, "g": g, "h": np.tile(np.arange(5), 8)}
    fit = klimb.fit("y ~ 1 + (1 + x | g) + (1 | h)", data, priors={
        "sigma": uniform(0.9, 1.0), "sd(g)": uniform(0.2, 0.7), "sd(x | g)": "exponential(1)",
        "sd(h)": uniform(0, 0.3)}, hyper="optimise")  # whence the draws start does not matter
    draws = fit.exact(400).draws(400)
    for name, low, high in (("sigma", 0.9, 1.0), ("sd(g)", 0.2, 0.7), ("sd(h)", 0.0, 0.3)):
        assert low < np.min(draws[name])
        assert np.max(draws[name]) < high
        assert np.ptp(draws[name]) > 0.5 * (high - low)
