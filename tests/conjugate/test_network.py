"""Networks: messages against numerical natural gradients, bounds that never fall, errors that name the node."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.sparse import csr_array

from klimb import sites
from klimb.conjugate import (
    ProximalPoint,
    Stochastic,
    bernoulli,
    beta,
    categorical,
    chain,
    dirichlet,
    dot,
    fit,
    fit_batches,
    gamma,
    inner,
    mixture,
    multivariate_normal,
    normal,
    normal_gamma,
    normal_wishart,
    poisson,
    potential,
    tied_normal_wishart,
    topics,
    wishart,
)
from klimb.conjugate.classes import MarkovChain
from klimb.conjugate.families import Categorical, Dirichlet, MultivariateNormal, NormalWishart
from klimb.conjugate.loop import Network, prior_state, update
from klimb.errors import InputError

RNG = np.random.default_rng(7)
X = RNG.normal(size=(30, 3))
Y = X @ [1.0, -1.0, 0.3] + 0.4 * RNG.normal(size=30)
GROUP = RNG.integers(0, 4, size=30)


def regression():
    tau, alpha = gamma(2.0, 1.0, name="tau"), gamma(1.5, 1.0, plates=(3,), name="alpha")
    w = multivariate_normal(0.0, alpha, name="w")
    u = normal(0.0, gamma(2.0, 1.0, name="spread"), plates=(4,), name="u")
    y = Y.copy()
    y[3] = np.nan
    return normal(dot(X, w) + u[GROUP] + 0.1, (tau, 2.0), name="y").observe(y)


def random_slopes():
    common = multivariate_normal([0.5, 0.0], np.eye(2), name="common")
    spread = wishart(4.0, np.eye(2), name="spread")
    slopes = multivariate_normal(common, spread, plates=(4,), name="slopes")
    other = multivariate_normal(0.0, gamma(2.0, 2.0, name="one"), dimension=2, plates=(6,), name="other")
    rows = RNG.integers(0, 6, size=30)
    return normal(inner(slopes[GROUP], other[rows]), gamma(1.0, 1.0, name="tau"), name="y").observe(Y)


def dense_product():
    u = multivariate_normal(0.0, np.eye(2), plates=(5,), name="u")
    v = multivariate_normal(0.0, gamma(1.0, 1.0, plates=(2,), name="a"), plates=(6,), name="v")
    values = np.random.default_rng(1).normal(size=(5, 6))
    values[2, 3] = np.nan
    return normal(inner(u, v) + normal(0.0, 1.0, plates=(6,), name="m"), gamma(1.0, 1.0, name="t")).observe(values)


def counts():
    rate = gamma(gamma_shape := 2.0, gamma(3.0, 1.0, name="rate of the rates"), plates=(4,), name="rates")
    assert gamma_shape
    return poisson(rate[GROUP], exposure=np.linspace(1, 2, 30)).observe(np.r_[np.nan, np.arange(29) % 5])


def coins():
    return bernoulli(beta(1.0, 2.0, plates=(4,), name="p")[GROUP]).observe((Y > 0).astype(float))


def labels():
    return categorical(dirichlet([1.0, 2.0, 0.5], name="p"), plates=(30,), name="k").observe(np.arange(30) % 3)


def full_mixture():
    gate = categorical(dirichlet([1.0, 2.0, 1.0], name="p"), plates=(30,), name="k")
    data = X.copy()
    data[4, 1] = np.nan
    return mixture(gate, normal_wishart(np.zeros(3), 1.0, 4.0, np.eye(3), plates=(3,), name="c")).observe(data)


def tied_mixture():
    gate = categorical(dirichlet([1.0, 2.0], name="p"), plates=(30,), name="k")
    return mixture(gate, tied_normal_wishart([[0.0, 0, 0], [1, 1, 1]], 1.0, 4.0, np.eye(3), name="c")).observe(X)


def diagonal_mixture():
    gate = categorical(dirichlet([1.0, 2.0], name="p"), plates=(30,), name="k")
    centre = np.array([[-1.0, 0, 0], [1, 0, 0]])
    return mixture(gate, normal_gamma(centre, 1.0, 2.0, 1.0, name="c")).observe(X)


def robust_mixture():
    gate = categorical(dirichlet([1.0, 2.0], name="p"), plates=(30,), name="k")
    part = normal_wishart(np.zeros(3), 1.0, 4.0, np.eye(3), plates=(2,), name="c")
    data = X.copy()
    data[4, 1] = np.nan
    return mixture(gate, part, scale=gamma(2.0, 2.0, plates=(30,), name="s")).observe(data)


def bits_mixture():
    gate = categorical(dirichlet([1.0, 2.0], name="p"), plates=(30,), name="k")
    return mixture(gate, beta([[1.0, 2, 1], [2, 1, 2]], 1.0, name="c")).observe((X > 0) * 1.0)


def hidden_counts():
    step = dirichlet([[3.0, 1.0], [1.0, 2.0]], name="step")
    gate = chain(dirichlet([1.0, 1.0], name="first"), step, lengths=(10, 4, 16), name="z")
    return mixture(gate, gamma([1.0, 6.0], 1.0, name="rates")).observe(np.arange(30) % 7)


def words():
    documents = dirichlet(np.full(2, 0.7), plates=(5,), name="shares")
    vocabulary = dirichlet(np.linspace(0.5, 1.5, 12).reshape(2, 6), name="words")
    return topics(documents, vocabulary).observe(np.random.default_rng(2).poisson(2.0, size=(5, 6)))


CONJUGATE = [regression, random_slopes, dense_product, counts, coins, labels, full_mixture, tied_mixture,
             diagonal_mixture, robust_mixture, bits_mixture, hidden_counts, words]


def perturbed(network: Network):
    """A state away from any optimum."""
    state = prior_state(network.variables)
    rng = np.random.default_rng(3)
    for variable in network.variables[::-1]:
        best = network.optimum(variable, state)
        old = state[variable].natural
        mix = rng.uniform(0.3, 0.8)
        noisy = [mix * a + (1 - mix) * b for a, b in zip(old, best, strict=True)]
        if variable.family is MultivariateNormal:
            noisy[0] = noisy[0] + rng.normal(size=noisy[0].shape)
        state[variable] = variable.conditional.member(tuple(noisy))
    return state


def flat(parts):
    return np.concatenate([np.ravel(part) for part in parts])


def symmetric_directions(natural):
    """A basis of the natural parameters that respects the symmetry of matrices."""
    for k, part in enumerate(natural):
        square = part.ndim >= 2 and part.shape[-1] == part.shape[-2]
        for index in np.ndindex(part.shape):
            if square and index[-1] > index[-2]:
                continue
            direction = [np.zeros_like(p) for p in natural]
            direction[k][index] = 1.0
            if square:
                direction[k][(*index[:-2], index[-1], index[-2])] = 1.0
            yield direction


@pytest.mark.parametrize("make", CONJUGATE, ids=lambda f: f.__name__)
def test_proximal_point_is_a_step_along_the_natural_gradient(make):
    """[A] Theorem 1, per factor: the gradient of the bound in the natural parameters is F (lambda* - lambda)."""
    network = Network([make()])
    state = perturbed(network)
    for variable in network.variables:
        old = state[variable]
        best = network.optimum(variable, state)
        gap = flat(best) - flat(old.natural)
        directions = list(symmetric_directions(old.natural))
        rng = np.random.default_rng(5)
        chosen = rng.permutation(len(directions))[:6]
        h = 1e-5
        for k in chosen:
            def at(t, along=directions[k], variable=variable, old=old):
                moved = tuple(a + t * b for a, b in zip(old.natural, along, strict=True))
                other = state.copy()
                other[variable] = variable.conditional.member(moved)
                return network.bound(other), flat(other[variable].mean_parameters())

            up, down = at(h), at(-h)
            slope = (up[0] - down[0]) / (2 * h)
            fisher = (up[1] - down[1]) / (2 * h)  # the row of the Fisher matrix along this direction
            np.testing.assert_allclose(slope, fisher @ gap, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("make", CONJUGATE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("step", [ProximalPoint(0.5), ProximalPoint(5.0), ProximalPoint()], ids=str)
def test_the_bound_never_falls(make, step):
    result = fit(make(), step=step, max_iter=60)
    bound = result.history.bound
    assert np.diff(bound).min() >= -1e-10 * np.abs(bound[-1])


def test_every_step_reaches_the_same_optimum():
    bounds = [fit(regression(), step=step, tol=1e-13, max_iter=5000).bound
              for step in (ProximalPoint(0.3), ProximalPoint(3.0), ProximalPoint())]
    np.testing.assert_allclose(bounds, bounds[0], atol=1e-8)


def test_one_factor_by_two_rules():
    """lambda + rho (lambda* - lambda) with rho = beta/(1 + beta) is r lambda + (1 - r) lambda*."""
    network = Network([regression()])
    for variable in network.variables:
        state = perturbed(network)
        old, best, b = state[variable].natural, network.optimum(variable, state), 0.7
        update(network, variable, state, ProximalPoint(b).keep)
        for before, target, after in zip(old, best, state[variable].natural, strict=True):
            np.testing.assert_allclose(after, before + b / (1 + b) * (target - before), rtol=1e-12, atol=1e-14)


def test_exact_inference_where_one_factor_holds_everything():
    """One conjugate factor: the bound is the log evidence."""
    from scipy import stats

    w = multivariate_normal([0.5, 0.0, 0.0], np.eye(3), name="w")
    result = fit(normal(dot(X, w), 4.0, name="y").observe(Y))
    evidence = stats.multivariate_normal(X @ [0.5, 0, 0], X @ X.T + 0.25 * np.eye(30)).logpdf(Y)
    np.testing.assert_allclose(result.bound, evidence, rtol=1e-11)
    rate = gamma(2.0, 3.0, name="rate")
    y = np.arange(6)
    result = fit(poisson(rate).observe(y))
    from scipy.special import gammaln

    known = 2 * np.log(3) - gammaln(2) + gammaln(2 + y.sum()) - (2 + y.sum()) * np.log(3 + 6) - gammaln(y + 1).sum()
    np.testing.assert_allclose(result.bound, known, rtol=1e-11)


def test_a_chain_by_enumeration():
    rng = np.random.default_rng(0)
    K, lengths = 3, (5, 2)
    first, step, local = rng.normal(size=K), rng.normal(size=(K, K)), rng.normal(size=(7, K))
    q = MarkovChain((first, step, local), lengths)
    total, share, moves, begin = 0.0, np.zeros((7, K)), np.zeros((K, K)), np.zeros(K)
    for path in itertools.product(range(K), repeat=7):
        log = sum(local[t, k] for t, k in enumerate(path)) + first[path[0]] + first[path[5]]
        pairs = [(path[t], path[t + 1]) for t in (0, 1, 2, 3, 5)]
        weight = np.exp(log + sum(step[pair] for pair in pairs))
        total += weight
        share[np.arange(7), path] += weight
        for pair in pairs:
            moves[pair] += weight
        begin[path[0]] += weight
        begin[path[5]] += weight
    np.testing.assert_allclose(q.log_partition(), np.log(total), rtol=1e-13)
    for ours, known in zip(q.mean_parameters(), (begin, moves, share), strict=True):
        np.testing.assert_allclose(ours, known / total, rtol=1e-11)
    draws = q.sample(20_000, 1)
    np.testing.assert_allclose((draws[:, :, None] == np.arange(K)).mean(0), share / total, atol=0.02)


def test_a_long_chain_in_blocks_is_the_chain_in_steps():
    rng = np.random.default_rng(0)
    K, T = 3, 1013
    local = 5 * rng.normal(size=(T, K))
    q = MarkovChain((np.zeros(K), rng.normal(size=(K, K)), local), (T,))
    p, total = np.exp(local[0] - local[0].max()), local[0].max()
    A = np.exp(q.natural[1])
    for t in range(1, T):
        total += np.log(p.sum())
        p = (p / p.sum()) @ A * np.exp(local[t] - local[t].max())
        total += local[t].max()
    np.testing.assert_allclose(q.log_partition(), total + np.log(p.sum()), rtol=1e-12)


@pytest.mark.parametrize("site", [sites.Logistic(), sites.Poisson(), sites.StudentT(4.0, 1.0), sites.Laplace(1.0)],
                         ids=lambda s: type(s).__name__)
def test_a_site_on_a_fixed_prior_is_the_engine(site):
    """With nothing else unknown the sweep has the engine's optimum."""
    import klimb

    y = {"Logistic": (Y > 0) * 1.0, "Poisson": np.abs(np.round(2 * Y))}.get(type(site).__name__, Y)
    w = multivariate_normal(0.0, np.eye(3) / 4, name="w")
    result = fit(potential(site, dot(X, w)).observe(y), tol=1e-12, max_iter=3000)
    engine = klimb.infer(klimb.latents.Weights(X, cov=4.0), site, y, tol=1e-10)
    np.testing.assert_allclose(result.bound, engine.bound, rtol=1e-8)
    np.testing.assert_allclose(result[w].mean, engine.posterior.mean, atol=1e-4)


def test_a_site_on_a_product_keeps_a_bound():
    """Through the local bound; checked against plain sampling of the exact expectation under the factors."""
    rng = np.random.default_rng(0)
    i, j = np.divmod(np.arange(40), 8)
    y = (rng.uniform(size=40) < 0.5) * 1.0
    u = multivariate_normal(0.0, np.eye(2), plates=(5,), name="u")
    v = multivariate_normal(0.0, np.eye(2), plates=(8,), name="v")
    start = {v: MultivariateNormal(rng.normal(size=(8, 2)), np.ones((8, 1, 1)) * np.eye(2))}
    result = fit(potential(sites.Logistic(), inner(u[i], v[j])).observe(y), start=start)
    assert np.diff(result.history.bound).min() >= -1e-9
    draws = result[u].sample(20_000, 1)[:, i], result[v].sample(20_000, 2)[:, j]
    f = (draws[0] * draws[1]).sum(-1)
    exact = -np.logaddexp(0, -np.where(y > 0, f, -f)).sum(1)
    assert result.network.evidence[0].expected_log(result.state) <= exact.mean() + 4 * exact.std() / 141


def test_a_robust_mixture_shrugs_off_an_outlier():
    rng = np.random.default_rng(0)
    data = np.vstack([rng.normal(size=(60, 2)), rng.normal(size=(40, 2)) + 6.0, [[300.0, -300.0]]])
    n = len(data)
    start = NormalWishart(np.array([[0.0, 0], [6, 6]]), 1.0, 3.0, np.ones((2, 1, 1)) * np.eye(2))
    means = []
    for scale in (None, gamma(1.5, 1.5, plates=(n,), name="scale")):
        parts = normal_wishart(np.zeros(2), 0.01, 3.0, np.eye(2), plates=(2,), name="parts")
        gate = categorical(dirichlet(np.ones(2), name="w"), plates=(n,), name="k")
        result = fit(mixture(gate, parts, scale=scale).observe(data), start={parts: start})
        means.append(result[parts].mean)
    assert np.abs(means[1] - [[0, 0], [6, 6]]).max() < 0.5
    assert np.abs(means[0] - [[0, 0], [6, 6]]).max() > 2.0


def test_batches_reach_the_bound_of_all_data():
    rng = np.random.default_rng(0)
    Z = np.vstack([rng.normal(size=(90, 2)), rng.normal(size=(60, 2)) + 4])[rng.permutation(150)]
    weights = dirichlet(np.ones(2), name="weights")
    parts = normal_wishart(np.zeros(2), 0.1, 3.0, np.eye(2), plates=(2,), name="parts")
    start = {parts: NormalWishart(np.array([[0.0, 0], [4, 4]]), 1.0, 3.0, np.ones((2, 1, 1)) * np.eye(2))}

    def make(rows):
        return mixture(categorical(weights, plates=(len(rows),), name="k"), parts).observe(rows)

    whole = fit(make(Z), start=start, tol=1e-12)
    for remember in (True, False):
        some = fit_batches(make, np.split(Z, 5), shared=(weights, parts), start=start, tol=1e-12,
                           step=Stochastic(remember=remember))
        assert some.converged
        np.testing.assert_allclose(some.bound, whole.bound, atol=1e-6)
        assert np.diff(some.history.bound[1:]).min() >= -1e-9


def test_missing_rows_say_next_to_nothing():
    """The class of a missing row is one unknown more for the factorised posterior, nothing else."""
    data = X.copy()
    data[4, 1] = np.nan
    p = dirichlet([1.0, 1.0], name="p")
    parts = normal_wishart(np.zeros(3), 1.0, 4.0, np.eye(3), plates=(2,), name="c")
    start = {parts: NormalWishart(np.eye(3)[:2], 1.0, 4.0, np.ones((2, 1, 1)) * np.eye(3))}
    whole, less = (fit(mixture(categorical(p, plates=(len(rows),), name="k"), parts).observe(rows), start=start)
                   for rows in (data, np.delete(data, 4, axis=0)))
    assert less.bound - 0.05 < whole.bound < less.bound
    np.testing.assert_allclose(whole[parts].mean, less[parts].mean, atol=0.01)


def test_names_find_factors():
    result = fit(regression())
    assert result["w"] is result.state[next(v for v in result.network.variables if v.name == "w")]
    with pytest.raises(InputError, match=r"There are: .*alpha"):
        result["v"]


w3 = multivariate_normal(0.0, np.eye(3), name="w3")
t1 = gamma(1.0, 1.0, name="t1")
d2 = dirichlet(np.ones(2), name="d2")
m1 = normal(0.0, 1.0, name="m1")


def product(n, d):
    return inner(*(multivariate_normal(0.0, np.eye(2), plates=(k,)) for k in (n, d)))


@pytest.mark.parametrize(("make", "words"), [
    (lambda: fit(), "needs observed data"),
    (lambda: fit(t1), "made from observed data; got t1: Gamma"),
    (lambda: dot(np.ones((4, 2)), w3), r"one column per entry of w3 \(3\); got shape \(4, 2\)"),
    (lambda: normal(dot(X, w3), w3), "precision of normal must be a number or a gamma variable; got w3"),
    (lambda: normal(w3, t1), r"a mean must be a number.*Use dot\(X, w\)"),
    (lambda: normal(0.0, -1.0), "must be positive"),
    (lambda: normal(0.0, t1, plates=(3,)).observe(np.ones(4)), r"must broadcast; got \(4,\), \(3,\)"),
    (lambda: normal(0.0, (t1, t1), name="y"), "y must use each variable in one place"),
    (lambda: normal(0.0, t1, plates=(3,)).observe([1.0, np.inf, 2.0]), "must be finite; got inf at index 1"),
    (lambda: inner(w3, w3), "one plate each; got w3"),
    (lambda: t1[[0, 1]], "t1 must have a plate to be indexed"),
    (lambda: gamma(1.0, 1.0, plates=(2,), name="g")[[0, 2]], "index of g must lie in 0..1; got 2 at index 1"),
    (lambda: poisson(d2), "must be a gamma variable; got d2"),
    (lambda: poisson(t1).observe([1.0, 2.5]), r"whole numbers from 0 on; got 2.5 at index 1 "),
    (lambda: bernoulli(t1), "must be a beta variable"),
    (lambda: categorical(t1), "must be a dirichlet variable; got t1"),
    (lambda: mixture(categorical(d2, plates=(5,)), t1), "need a plate"),
    (lambda: mixture(categorical(d2, plates=(5,)), w3), "components of a mixture must be one of"),
    (lambda: mixture(categorical(d2, plates=(5,)), gamma(1.0, 1.0, plates=(3,), name="g")), "same number of classes"),
    (lambda: mixture(categorical(d2, plates=(5,)), gamma(1.0, 1.0, plates=(2,))).observe(np.ones(6)), r"plates=\(6,\)"),
    (lambda: mixture(categorical(d2, plates=(5,)), gamma(1.0, 1.0, plates=(2,)), scale=t1), "for normal components"),
    (lambda: mixture(categorical(d2, plates=(5,)), dirichlet(np.ones((2, 3)))).observe(csr_array(-np.eye(5, 3))),
     "finite and not negative; got .*smallest -1"),
    (lambda: chain(d2, d2, lengths=3), r"one with plates \(K,\)"),
    (lambda: topics(d2, d2).observe(np.ones((2, 2))), "dirichlet with one plate"),
    (lambda: potential("logit", dot(X, w3)), "needs a site"),
    (lambda: potential(sites.Poisson(), product(4, 3)).observe(np.ones((4, 3))), "needs a super-Gaussian site"),
    (lambda: potential(sites.Logistic(), dot(X, w3)).observe(np.ones(4)), r"shape of the predictor, \(30,\)"),
    (lambda: fit(regression(), start={t1: t1.conditional.prior}), "start must name variables"),
    (lambda: fit(poisson(t1).observe([1]), start={t1: Dirichlet([1.0])}), "start of t1 must be a Gamma"),
    (lambda: fit_batches(lambda b: normal(0.0, t1, plates=b.shape).observe(b), iter(()), shared=(t1,)), "one batch"),
    (lambda: fit_batches(lambda b: poisson(t1).observe(b), (x for x in [np.ones(3)]), shared=(t1,)), "same batches"),
    (lambda: fit_batches(lambda b: normal(m1, t1, plates=b.shape).observe(b), [np.ones(3)], shared=(m1, t1)),
     "a term with m1 and t1"),
    (lambda: ProximalPoint(0.0), "beta must be positive"),
    (lambda: Categorical([0.2, 0.2]), "sum to one"),
])
def test_errors_name_the_node(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_assignments_hear_the_data_before_components_forget_their_priors() -> None:
    """Components that differ in their priors alone must not be washed out by a uniform gate first."""
    from klimb.conjugate import categorical, dirichlet, fit, mixture, normal_wishart

    X = np.random.default_rng(0).normal(size=(90, 2)) * [1.0, 0.2]
    X[60:, 1] += 2.0
    clouds = normal_wishart(np.array([[0.0, 0.0], [0.0, 1.0]]), 0.1, 3.0, np.eye(2), plates=(2,))
    group = categorical(dirichlet([1.0, 1.0]), plates=(90,))
    found = fit(mixture(group, clouds).observe(X))
    assert found[clouds].mean[:, 1] == pytest.approx([0.0, 2.0], abs=0.1)
    assert fit(mixture(group, clouds).observe(X), tol=1e-10).bound == pytest.approx(found.bound, abs=0.01)
