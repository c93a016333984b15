"""Fields against dense algebra: their prior covariance, scale, determinant, gradient and what new positions get."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.linalg import null_space, toeplitz
from scipy.optimize import brentq
from scipy.sparse import coo_array
from scipy.stats import norm

import klimb
from klimb._stored import pack, unpack
from klimb.errors import InputError
from klimb.likelihoods import likelihood
from klimb.models.setup import build
from klimb.priors import FADING, SHARE_LOGITS, Beta, PCShare
from klimb.rows.graphs import read_graph
from klimb.terms.encoder import encode

RNG = np.random.default_rng(4)
IRREGULAR = np.sort(RNG.uniform(0.0, 10.0, 12))
EDGES = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "f"), ("f", "g")]  # two parts, and h alone
FORMULAS = {
    "rw1": "rw1(t)", "rw2": "rw2(t)", "cyclic rw1": "rw1(t, cyclic=True)", "cyclic rw2": "rw2(t, cyclic=True)",
    "irregular rw1": "rw1(u)", "irregular rw2": "rw2(u)", "ar1": "ar1(t)", "irregular ar1": "ar1(u)",
    "ar2": "ar(t, p=2)", "ar3": "ar(t, p=3)", "seasonal": "seasonal(t, period=4)", "besag": "besag(g, graph=G)",
    "bym2": "bym2(g, graph=G)", "car": "car(g, graph=G)",
}


def frame(n: int = 24) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    k, areas = np.arange(n), np.array(list("abcdefgh"))
    return {"t": k % 12 + 3, "u": IRREGULAR[k % 12], "g": areas[k % 8], "y": rng.poisson(2.0, n)}


def model_of(formula: str) -> tuple[Any, Any]:
    encoder, encoded = encode(f"y ~ {formula}", frame(), objects={"G": EDGES})
    model, _, observed, _ = build(encoder, encoded, likelihood("poisson", None), None)
    return model, observed


def covariance(term: Any, values: Any) -> np.ndarray:
    """The prior covariance of the weights, from entries and constraints by dense algebra."""
    prior, C = term.prior(values), term.constraints()
    Q = prior.precision.toarray()
    E = np.eye(len(Q)) if C is None else null_space(C)
    assert abs(np.linalg.slogdet(E.T @ Q @ E)[1] - prior.logdet) < 1e-7
    return np.asarray(E @ np.linalg.inv(E.T @ Q @ E) @ E.T)


def field(name: str) -> tuple[Any, np.ndarray]:
    model, _ = model_of(FORMULAS[name])
    term = model.terms[1]
    values = [0.7, *[0.6, -0.3, 0.2][: len(term.parameters) - 1]]
    return term, covariance(term, values)


@pytest.mark.parametrize("name", ["rw1", "rw2", "cyclic rw1", "cyclic rw2", "irregular rw1", "irregular rw2"])
def test_walks_have_unit_variance_at_unit_sd_and_normal_innovations(name: str) -> None:
    term, V = field(name)
    n = len(term.nodes)
    own = V[:n, :n] / 0.49
    assert abs(np.log(np.diag(own)).mean()) < 1e-8
    steps = np.diff(term.nodes)
    if "cyclic" in name:
        D = np.eye(n, k=1) - np.eye(n) if "1" in name else np.eye(n, k=1) - 2 * np.eye(n) + np.eye(n, k=-1)
        D[-1, 0], D[0, -1] = 1.0, 1.0 if "2" in name else 0.0
    elif "1" in name:
        D = (np.eye(n, k=1) - np.eye(n))[:-1] / np.sqrt(steps)[:, None]
    else:
        slopes = (np.eye(n, k=1) - np.eye(n))[:-1] / steps[:, None]
        D = np.diff(slopes, axis=0) * np.sqrt(2.0 / (steps[:-1] + steps[1:]))[:, None]
    innovations = D @ own @ D.T
    rank = n - (1 if "cyclic" in name or "1" in name else 2)
    values = np.linalg.eigvalsh(innovations)[-rank:]
    np.testing.assert_allclose(values, values[-1], rtol=1e-6)  # independent, with one variance
    np.testing.assert_allclose(own.sum(axis=0), 0.0, atol=1e-8)
    if rank == n - 2:
        np.testing.assert_allclose(own @ term.nodes, 0.0, atol=1e-6)


def test_the_scale_of_a_long_walk_follows_the_power_of_its_length() -> None:
    """The variance of a walk of second order grows as n^3: its scale does so to the last digits at 20,000 nodes."""
    from klimb.terms.walk import _path

    scales = [_path(np.arange(float(n)), 2).scale for n in (200, 2000, 20_000)]
    assert abs(np.log10(scales[2] / scales[1]) - 3.0) < 1e-3
    assert abs(np.log10(scales[1] / scales[0]) - 3.0) < 1e-2


@pytest.mark.parametrize(("name", "gaps"), [("ar1", None), ("irregular ar1", IRREGULAR)])
def test_autoregressions_of_order_one_decay_with_the_distance_in_time(name: str, gaps: Any) -> None:
    term, V = field(name)
    times = term.nodes if gaps is None else gaps
    np.testing.assert_allclose(V, 0.49 * 0.6 ** np.abs(np.subtract.outer(times, times)), atol=1e-12)


@pytest.mark.parametrize("name", ["ar2", "ar3"])
def test_autoregressions_are_stationary_with_their_partial_autocorrelations(name: str) -> None:
    _, V = field(name)
    correlations = V[0] / 0.49
    np.testing.assert_allclose(V, 0.49 * toeplitz(correlations), atol=1e-12)
    for order, psi in enumerate([0.6, -0.3, 0.2][: int(name[-1])], start=1):
        R = toeplitz(correlations[:order])
        assert abs(np.linalg.solve(R, correlations[1 : order + 1])[-1] - psi) < 1e-10


def test_seasonal_sums_over_a_period_are_independent() -> None:
    term, V = field("seasonal")
    n = len(term.nodes)
    sums = np.array([[1.0 if 0 <= j - i < 4 else 0.0 for j in range(n)] for i in range(n - 3)])
    rows = np.hstack([sums, np.zeros((n - 3, 3))])
    np.testing.assert_allclose(rows @ V @ rows.T, 0.49 * np.eye(n - 3), atol=1e-8)
    pattern = term._contrasts[np.arange(n) % 4]
    np.testing.assert_allclose(sums @ pattern, 0.0, atol=1e-12)


def test_areas_are_scaled_in_every_part_and_free_where_alone() -> None:
    term, V = field("besag")
    own, labels = V / 0.49, list(term.labels)
    for part in ("abcd", "efg", "h"):
        at = [labels.index(label) for label in part]
        block = own[np.ix_(at, at)]
        assert abs(np.log(np.diag(block)).mean()) < 1e-9
        if len(part) > 1:
            np.testing.assert_allclose(block.sum(axis=0), 0.0, atol=1e-9)
    _, both = field("bym2")
    L = np.hstack([np.eye(8), np.eye(8)])
    np.testing.assert_allclose(L @ both @ L.T, 0.4 * 0.49 * np.eye(8) + 0.6 * 0.49 * own, atol=1e-9)
    term, V = field("car")
    i, j = term.edges.T
    W = np.zeros((8, 8))
    W[i, j] = W[j, i] = 1.0
    expected = (0.4 * np.eye(8) + 0.6 * (np.diag(W.sum(axis=0)) - W)) / 0.49
    np.testing.assert_allclose(np.linalg.inv(V), expected, atol=1e-9)


def test_the_share_of_bym2_has_the_penalised_complexity_prior() -> None:
    block = model_of("bym2(g, graph=G)")[0].terms[1].parameters[1]
    _, V = field("besag")
    eigenvalues = np.linalg.eigvalsh(V / 0.49)  # of the structured part's covariance, 0 where constrained

    def distance(share: float) -> float:
        return float(np.sqrt(np.sum(share * (eigenvalues - 1.0) - np.log1p(share * (eigenvalues - 1.0)))))

    assert str(block.prior) == "pc_share(0.5, 0.667)"
    shares = [1e-6, 1e-3, 0.1, 0.5, 0.9, 1.0 - 1e-5]
    last = 1.0 / (1.0 + np.exp(-14.0))
    longest = distance(last) + FADING * (distance(last) - distance(1.0 / (1.0 + np.exp(-13.99)))) / 0.01
    rate = brentq(lambda rate: np.expm1(-rate * distance(0.5)) / np.expm1(-rate * longest) - 2.0 / 3.0, 1e-3, 10.0)
    for share in shares:
        step = 1e-4 * share * (1.0 - share)
        slope = (distance(share + step) - distance(share - step)) / (2.0 * step)
        expected = np.log(-rate * slope / np.expm1(-rate * longest)) - rate * distance(share)
        assert abs(block.prior.log_density(share) - expected) < 5e-3
    mass = quad(lambda logit: np.exp(block.log_density(np.array([logit]))), -14.0, 0.0)[0]
    assert abs(mass - 2.0 / 3.0) < 1e-3
    assert model_of("car(g, graph=G)")[0].terms[1].parameters[1].prior == Beta(1.0, 1.0)


def test_the_distance_of_pairs_of_areas_is_known() -> None:
    pairs = [(f"a{k}", f"b{k}") for k in range(5)]  # each pair has covariances 1 and -1: distance^2 -log(1 - phi^2)
    data = {"g": [name for pair in pairs for name in pair], "y": np.arange(10.0)}
    encoder, _ = encode("y ~ bym2(g, graph=G)", data, objects={"G": pairs})
    shares = 1.0 / (1.0 + np.exp(-np.array(SHARE_LOGITS)))
    found = np.array(encoder.terms[1].log_distances())
    np.testing.assert_allclose(found, 0.5 * np.log(-5.0 * np.log1p(-(shares**2))), atol=1e-4)
    for probability in (0.1, 2.0 / 3.0, 0.99):  # the first needs a density that rises with the distance
        prior = PCShare(probability=probability, log_distances=tuple(found))
        masses = [quad(lambda logit, own=prior: np.exp(own.log_density_at(logit)), *ends, epsabs=1e-9)[0]
                  for ends in ((-40.0, -14.0), (-14.0, 0.0), (0.0, 14.0), (14.0, 200.0))]
        assert sum(masses[:2]) == pytest.approx(probability, abs=1e-4)
        assert sum(masses) == pytest.approx(1.0, abs=1e-4)


def test_a_prior_of_shares_is_for_bym2_and_can_be_given() -> None:
    def given(formula: str, prior: str) -> Any:
        name = formula.split("(")[0]
        return klimb.fit(f"y ~ {formula}", frame(), family="poisson", graphs={"G": EDGES}, hyper="optimise",
                         priors={f"{'phi' if name == 'bym2' else 'rho'}({name}(g))": prior})

    assert given("bym2(g, graph=G)", "pc_share(0.5, 0.9)").priors["phi(bym2(g))"] == "pc_share(0.5, 0.9)"
    assert given("bym2(g, graph=G)", "beta(1, 1)").priors["phi(bym2(g))"] == "beta(1, 1)"
    with pytest.raises(InputError, match="kind of prior"):
        given("car(g, graph=G)", "pc_share(0.5, 0.9)")
    with pytest.raises(InputError, match="probability"):
        given("bym2(g, graph=G)", "pc_share(0.5, 1)")


@pytest.mark.parametrize("name", FORMULAS)
def test_gradients_are_differences_of_the_bound(name: str) -> None:
    model, observed = model_of(FORMULAS[name] + " + (1 | g)" if name == "rw1" else FORMULAS[name])
    theta = model.theta.start + 0.2
    here = model.moved(theta)
    result = here.infer(observed, tol=1e-10)
    found = here.gradient(result.posterior, observed)
    for k in range(len(theta)):
        step = np.zeros(len(theta))
        step[k] = 1e-4
        sides = [model.moved(theta + sign * step).infer(observed, tol=1e-10).bound for sign in (1.0, -1.0)]
        assert abs((sides[0] - sides[1]) / 2e-4 - found[k]) < 2e-5


def conditional(V: np.ndarray, known: int) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients and covariance of the rest given the first ``known`` values."""
    B = np.linalg.solve(V[:known, :known], V[:known, known:]).T
    return B, V[known:, known:] - B @ V[:known, known:]


@pytest.mark.parametrize(("name", "psi"), [("ar1", [0.6]), ("ar2", [0.6, -0.3])])
def test_forecasts_of_autoregressions_are_conditional_normals(name: str, psi: list[float]) -> None:
    model, _ = model_of(FORMULAS[name])
    term, longer = model.terms[1], 18
    correlations = [1.0]
    coefficients = np.zeros(0)
    for order, value in enumerate(psi, start=1):
        previous = np.array(correlations[::-1])
        correlations.append(float(coefficients @ previous[: order - 1] if order > 1 else 0.0) +
                            value * (1.0 - float(coefficients @ np.array(correlations[1:order])) if order > 1 else 1.0))
        coefficients = np.append(coefficients - value * coefficients[::-1], value)
    while len(correlations) < longer:
        correlations.append(float(coefficients @ np.array(correlations[::-1])[: len(psi)]))
    B, rest = conditional(0.49 * toeplitz(correlations), 12)
    source = encode("y ~ " + FORMULAS[name], {**frame(), "t": frame()["t"]})[0]
    block = source.terms[1].block(_rows({"t": np.array([15, 17, 20])}))
    values = [0.7, *psi]
    np.testing.assert_allclose(term.columns_at(block, values).toarray(), B[[0, 2, 5]], atol=1e-10)
    np.testing.assert_allclose(term.new(block, values)[:, 0] ** 2, np.diag(rest)[[0, 2, 5]], atol=1e-10)


def _rows(columns: dict[str, Any]) -> Any:
    from klimb.rows.frames import read_frame
    from klimb.rows.table import Source

    return Source(read_frame(columns))


def test_an_autoregression_between_two_times_is_a_bridge() -> None:
    model, _ = model_of("ar1(u)")
    term, x = model.terms[1], 0.5 * (IRREGULAR[3] + IRREGULAR[4])
    times = np.append(IRREGULAR, x)
    B, rest = conditional(0.6 ** np.abs(np.subtract.outer(times, times)), 12)
    block = term.block(_rows({"u": np.array([x])}))
    np.testing.assert_allclose(term.columns_at(block, [1.0, 0.6]).toarray(), B, atol=1e-10)
    np.testing.assert_allclose(term.new(block, [1.0, 0.6])[0, 0] ** 2, rest[0, 0], atol=1e-10)


def test_forecasts_widen_and_walks_go_on_from_their_end() -> None:
    rng = np.random.default_rng(0)
    t = np.arange(60)
    data = {"t": t, "y": np.sin(t / 9.0) + 0.1 * rng.standard_normal(60)}
    for term in ("rw1(t)", "rw2(t)", "ar1(t)"):
        fit = klimb.fit(f"y ~ {term}", data)
        ahead = fit.predict({"t": [59, 60, 65, 75]}, kind="latent")
        assert (np.diff(ahead["sd"]) > 0.0).all()
    fit = klimb.fit("y ~ rw2(t)", data, hyper="optimise")
    line = fit.predict({"t": [58, 59, 60, 61]}, kind="latent")["mean"]
    np.testing.assert_allclose(np.diff(line, 2)[1:], 0.0, atol=1e-8)


def test_rows_without_a_response_are_positions() -> None:
    data = {"t": [1, 2, 3, 6], "y": [1.0, 2.0, 1.5, np.nan]}
    encoder, _ = encode("y ~ rw1(t)", data)
    assert encoder.terms[1].nodes.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize("given", [
    EDGES, np.array(EDGES), {"a": ["b"], "b": ["a", "c"], "c": ["b"]}, {"i": ["a", "b"], "j": ["b", "c"]},
    np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]), [(0, 1), (1, 2)],
])
def test_graphs_come_in_many_forms(given: Any) -> None:
    levels = list("abcdefgh") if len(given) == 6 else list("abc")
    graph = read_graph(given, levels, levels, "G")
    assert {(graph.labels[i], graph.labels[j]) for i, j in graph.edges.tolist()} >= {("a", "b"), ("b", "c")}


def test_numbered_regions_may_be_counted_from_zero_or_named() -> None:
    levels = ["1", "2", "3"]
    assert read_graph([(0, 1), (1, 2)], levels, levels, "G").edges.tolist() == [[0, 1], [1, 2]]
    assert read_graph([(1, 2), (2, 3)], levels, levels, "G").edges.tolist() == [[0, 1], [1, 2]]


def test_weights_of_a_graph_are_said_to_be_unused() -> None:
    """A sparse or dense matrix, a (matrix, names) pair, and what libpysal and networkx hand over."""
    A = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.3], [0.0, 0.3, 0.0]])
    neighbours = {"a": ["b"], "b": ["a", "c"], "c": ["b"]}
    shares = SimpleNamespace(neighbors=neighbours, weights={"a": [1.0], "b": [0.5, 0.5], "c": [1.0]})

    class Edges(list[tuple[str, str]]):
        def __call__(self, data: str, default: float) -> Any:
            return [("a", "b", 2.0), ("b", "c", default)]

    net = SimpleNamespace(nodes=("a", "b", "c"), adjacency=None, edges=Edges([("a", "b"), ("b", "c")]))
    for given in (A, coo_array(A), (A, ["a", "b", "c"]), shares, net):
        assert read_graph(given, list("abc"), list("abc"), "G").weighted
    for given in ((A > 0).astype(float), 0.5 * (A > 0), neighbours, [("a", "b"), ("b", "c")], [(0, 1), (1, 2)]):
        assert not read_graph(given, list("abc"), list("abc"), "G").weighted
    data = {"y": [1.0, 2.0, 3.0, 2.0, 2.5, 4.0], "g": list("abcabc")}
    fit = klimb.fit("y ~ besag(g, graph=G)", data, graphs={"G": A}, hyper="optimise")
    assert any("weights of the graph of besag(g) are not used" in note for note in fit.notes)


@pytest.mark.parametrize(("given", "words"), [
    ([("a", "x"), ("x", "y")], "must have the regions of the data"),
    ({"a": ["b"], "b": []}, "symmetric"),
    (np.array([[0, 1, 0], [0, 0, 1], [0, 1, 0]]), "symmetric"),
    ([("a", "a"), ("a", "b"), ("b", "c")], "to itself"),
    ([(0, 7), (1, 2)], "count the 3 regions"),
    (7, "must be a graph"), (coo_array([[0.0, 1.0], [1.0, 0.0]]), "a row for each of the 3 regions"),
])
def test_bad_graphs_are_told_in_words(given: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_graph(given, list("abc"), list("abc"), "G")


@pytest.mark.parametrize(("formula", "words"), [
    ("bym2(g, graph=H)", "a graph called H"), ("bym2(g)", "graph"), ("rw2(one)", "at least 3 different"),
    ("seasonal(t, period=100)", "period"), ("ar(t, p=40)", "p from 1"), ("ar(u, p=2)", "whole-number"),
    ("rw1(u, cyclic=True)", "equal steps"), ("rw1(t, circular=True)", "cyclic"),
    ("sparse(u) + rw1(t)", "no group or field"), ("sparse(u) + s(t, k=9, sparse=True)", "no group or field"),
])
def test_bad_terms_are_told_in_words(formula: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        klimb.fit(f"y ~ {formula}", {**frame(), "one": np.ones(24)}, family="poisson", graphs={"G": EDGES})


def test_a_file_holds_the_pattern_of_a_field_once() -> None:
    fit = klimb.fit("y ~ rw1(t)", frame(), family="poisson", hyper="integrate")
    arrays: dict[str, Any] = {}
    document = pack(fit.components, arrays)
    names = [name.split(".")[-1] for name in arrays]
    assert len(fit.components.parts) > 3
    assert names.count("indices") == names.count("inner") == 1
    assert names.count("data") >= len(fit.components.parts)
    again = unpack(document, arrays)
    assert again.parts[0].indices is again.parts[-1].indices
    np.testing.assert_array_equal(again.parts[1].sd(), fit.components.parts[1].sd())


def test_an_autoregression_may_pass_through_coefficients_of_zero() -> None:
    """A pacf of exactly 0, where a search begins, leaves entries of the pattern at 0; they have to stay there."""
    term, _ = field("ar2")
    entries, logdet = term.entries([1.0, 0.5, 0.0])
    near, _ = term.entries([1.0, 0.5, 1e-9])
    assert len(entries) == term.pattern.nnz
    np.testing.assert_allclose(entries, near, atol=1e-8)
    assert logdet == pytest.approx(-(term.size - 1) * np.log(0.75))
    fit = klimb.fit("y ~ ar(t, p=2)", frame(), family="poisson", hyper="optimise")
    assert {"pacf1(ar(t))", "pacf2(ar(t))"} <= set(fit.hyperparameters)


def test_times_that_nearly_coincide_share_a_node() -> None:
    rng = np.random.default_rng(0)
    t, y = 1.37 * np.arange(30.0), rng.poisson(3.0, 30)
    data = {"t": np.append(t, t[20]), "y": np.append(y, 5)}
    close = {**data, "t": np.append(t, t[20] + 1e-9)}
    same, near = (klimb.fit("y ~ rw2(t)", one, family="poisson").predict(kind="latent") for one in (data, close))
    np.testing.assert_allclose(near["mean"], same["mean"], atol=1e-5)
    np.testing.assert_allclose(near["sd"], same["sd"], rtol=1e-4)


def test_a_graph_that_counts_where_it_could_name_is_told() -> None:
    """Levels 1 to 6 and nodes 0 to 6: either 0 stands for level 1, or region 0 has no data."""
    rng = np.random.default_rng(1)
    data = {"r": np.tile(np.arange(1, 7), 4), "y": rng.poisson(3.0, 24)}
    fit = klimb.fit("y ~ besag(r, graph=G)", data, family="poisson", graphs={"G": [(k, k + 1) for k in range(6)]})
    assert any("counts regions from 0" in note for note in fit.notes)
    assert list(fit.field("besag(r)")["node"]) == ["1", "2", "3", "4", "5", "6", "7"]
    named = [(str(k), str(k + 1)) for k in range(6)]
    fit = klimb.fit("y ~ besag(r, graph=G)", data, family="poisson", graphs={"G": named})
    assert not any("counts regions" in note for note in fit.notes)
    assert set(fit.field("besag(r)")["node"]) == {"0", "1", "2", "3", "4", "5", "6"}


def test_an_adjacency_matrix_may_bring_its_names() -> None:
    """Without names its rows are the levels in the order of the data, and a note says which is the first."""
    levels, data = list("abcd"), {"r": np.tile(list("dbca"), 6), "y": np.random.default_rng(1).poisson(3.0, 24)}
    pairs = [("a", "b"), ("b", "c"), ("c", "d")]
    W = np.eye(4, k=1) + np.eye(4, k=-1)
    fits = [klimb.fit("y ~ besag(r, graph=G)", data, family="poisson", graphs={"G": graph}, hyper="optimise")
            for graph in (pairs, (W, levels), (coo_array(W), levels), W)]
    assert [fit.bound == fits[0].bound for fit in fits] == [True, True, True, False]
    assert [any("0 is read as level d" in note for note in fit.notes) for fit in fits] == [False, False, False, True]
    for graph, match in (((W, levels[:3]), "a name of its own"), (np.where(W > 0, np.nan, 0.0), "finite")):
        with pytest.raises(InputError, match=match):
            klimb.fit("y ~ besag(r, graph=G)", data, family="poisson", graphs={"G": graph})
    axes = fits[0].plot_field()
    assert [text.get_text() for text in axes.get_yticklabels()] == levels


def test_a_uniform_prior_of_a_correlation_is_not_that_of_a_positive_parameter() -> None:
    fit = klimb.fit("y ~ ar1(t)", frame(), family="poisson", priors={"rho(ar1(t))": "uniform(-1, 1)"})
    row = next(row for row in fit.table_rows() if row.name == "rho(ar1(t))")
    assert -1.0 < row.lower < 0.0 < row.upper < 1.0
    assert not any("rho" in note for note in fit.notes)


def test_a_prior_for_all_columns_may_find_none() -> None:
    fit = klimb.fit("y ~ rw1(t)", frame(), family="poisson", priors={"fixed": "normal(0, 10)"}, hyper="optimise")
    assert "fixed" not in fit.priors


def test_a_correlation_is_held_at_any_value_between_its_limits() -> None:
    """At 0 an autoregression is independent effects, and a negative one is the mirror image over odd times."""
    t = np.arange(12)
    y = np.random.default_rng(2).normal(size=12)
    held = {"sd(ar1(t))": 1.0, "sigma": 0.5, "Intercept": "normal(0, 1e-6)"}
    bounds = [klimb.fit("y ~ ar1(t)", {"y": sign * y, "t": t}, priors={**held, "rho(ar1(t))": rho}).bound
              for rho, sign in ((0.4, 1.0), (-0.4, (-1.0) ** t), (0.0, 1.0))]
    assert abs(bounds[0] - bounds[1]) < 1e-6
    alone = norm.logpdf(y, 0.0, np.sqrt(1.25)).sum()
    assert abs(bounds[2] - alone) < 1e-6
    for name, value, words in (("rho(ar1(t))", 1.5, "between -1 and 1"), ("sd(ar1(t))", -1.0, "positive value")):
        with pytest.raises(InputError, match=words):
            klimb.fit("y ~ ar1(t)", {"y": y, "t": t}, priors={name: value})


def test_a_correlation_that_the_data_leave_open_is_integrated_up_to_its_limits() -> None:
    """White noise: near rho = 1 the field is a level like the intercept, so that its sd has no end but its prior's."""
    n, sigma, (middle, width) = 20, 0.5, (0.2, 1.5)
    y = np.random.default_rng(5).normal(0.3, sigma, n)
    t, one = np.arange(n), np.ones(n)
    rate = -np.log(0.5) / np.sqrt(-np.log1p(-0.25))  # of pc_correlation(0.5, 0.5): |rho| = sqrt(1 - exp(-d^2))
    d, e = (part.ravel() for part in np.meshgrid(np.linspace(0.05, 9.95, 100), np.linspace(-8.0, 2.4, 131)))
    rows = []
    for sign in (1.0, -1.0):
        rho = sign * np.sqrt(-np.expm1(-(d**2)))
        for r, log_sd, distance in zip(rho, e, d, strict=True):
            V = np.exp(2.0 * log_sd) * toeplitz(r**t) + sigma**2 * np.eye(n)
            Vy, V1 = np.linalg.solve(V, np.column_stack([y - middle, one])).T
            precision = one @ V1 + width**-2
            mean = one @ Vy / precision
            quadratic = (y - middle) @ Vy - precision * mean**2
            log_p = -0.5 * (np.linalg.slogdet(V)[1] + quadratic + np.log(precision)) - rate * distance
            rows.append((log_p - np.exp(log_sd) + log_sd, np.exp(log_sd), r, middle + mean, 1.0 / precision))
    log_w, sd, rho, level, variance = np.array(rows).T
    w = np.exp(log_w - np.logaddexp.reduce(log_w))
    fit = klimb.fit("y ~ ar1(t)", {"y": y, "t": t}, priors={
        "sigma": sigma, "Intercept": f"normal({middle}, {width})", "sd(ar1(t))": "exponential(1)"})
    shown = {row.name: row for row in fit.table_rows()}
    for name, values, rest, bar in (("sd(ar1(t))", sd, 0.0, 0.1), ("rho(ar1(t))", rho, 0.0, 0.1),
                                    ("Intercept", level, variance, 0.05)):
        mean = w @ values
        spread = np.sqrt(w @ ((values - mean) ** 2 + rest))
        assert abs(shown[name].mean - mean) < bar * spread
        assert abs(shown[name].sd / spread - 1.0) < bar
