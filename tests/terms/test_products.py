"""Products of fields and fields of a user's own precision, against dense algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.linalg import null_space

import klimb
from klimb.errors import InputError
from klimb.likelihoods import likelihood
from klimb.models.setup import build
from klimb.terms.encoder import encode

RNG = np.random.default_rng(5)
N = 90
EDGES = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]
DATA = {"g": np.array(list("abcd"))[np.arange(N) % 4], "t": np.arange(N) % 6, "x": RNG.normal(size=N),
        "y": RNG.poisson(3.0, N)}
LAPLACIAN = np.array([[2.0, -1, 0, -1], [-1, 2, -1, 0], [0, -1, 2, -1], [-1, 0, -1, 2]])
OBJECTS = {"G": EDGES, "M": LAPLACIAN, "P": scipy.sparse.csr_array(LAPLACIAN + np.eye(4))}
PRODUCTS = {"I": "iid(g):iid(t)", "II": "iid(g):rw1(t)", "III": "besag(g, graph=G):iid(t)",
            "IV": "besag(g, graph=G):rw2(t)", "bym2": "bym2(g, graph=G):ar1(t)", "car": "ar1(t):car(g, graph=G)",
            "generic": "generic(g, Q=M):rw1(t, cyclic=True)", "line": "spde(x, spacing=0.5):iid(g)"}


def model_of(formula: str) -> tuple[Any, Any]:
    encoder, encoded = encode(f"y ~ {formula}", DATA, objects=OBJECTS)
    model, _, observed, _ = build(encoder, encoded, likelihood("poisson", None), None)
    return model, observed


def constrained(prior: Any, C: Any) -> tuple[np.ndarray, float]:
    """The covariance on the surface of the constraints, and the log determinant of the precision there."""
    Q = prior.precision.toarray()
    E = np.eye(len(Q)) if C is None else null_space(C)
    inner = E.T @ Q @ E
    return E @ np.linalg.inv(inner) @ E.T, float(np.linalg.slogdet(inner)[1])


@pytest.mark.parametrize("kind", PRODUCTS)
def test_a_product_has_the_product_of_the_covariances(kind: str) -> None:
    model, _ = model_of(PRODUCTS[kind])
    term = model.terms[1]
    shapes = [0.6, 0.4][: sum(term.counts)]
    V, logdet = constrained(term.prior([0.7, *shapes]), term.constraints())
    own = (shapes[: term.counts[0]], shapes[term.counts[0] :])
    first, second = (constrained(factor.prior([1.0, *shape]), factor.constraints())[0]
                     for factor, shape in zip((term.first, term.second), own, strict=True))
    np.testing.assert_allclose(V, 0.49 * np.kron(first, second), atol=1e-9)
    assert np.isclose(term.prior([0.7, *shapes]).logdet, logdet, atol=1e-8)
    if term.constraints() is not None:
        C = term.constraints()
        np.testing.assert_allclose(C @ C.T, np.eye(len(C)), atol=1e-12)


def test_the_interaction_of_two_intrinsic_fields_sums_to_zero_both_ways() -> None:
    fit = klimb.fit("y ~ besag(g, graph=G)*rw1(t)", DATA, family="poisson", graphs={"G": EDGES}, hyper="optimise")
    assert fit.converged
    table = np.asarray(fit.field("besag(g):rw1(t)")["mean"]).reshape(4, 6)
    np.testing.assert_allclose(table.sum(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(table.sum(axis=1), 0.0, atol=1e-9)
    assert {"sd(besag(g))", "sd(rw1(t))", "sd(besag(g):rw1(t))"} <= set(fit.hyperparameters)


@pytest.mark.parametrize("formula", [PRODUCTS["IV"], PRODUCTS["bym2"], PRODUCTS["car"], "besag(g, graph=G)*rw2(t)",
                                     "besag(g, graph=G) + rw2(t)", "rw1(t) + rw2(t)", "generic(g, Q=M)"])
def test_gradients_are_differences_of_the_bound(formula: str) -> None:
    model, observed = model_of(formula)
    theta = model.theta.start + 0.1
    here = model.moved(theta)
    result = here.infer(observed, tol=1e-9)
    assert result.converged
    found = here.gradient(result.posterior, observed)
    for k, unit in enumerate(1e-4 * np.eye(len(theta))):
        sides = [model.moved(theta + sign * unit).infer(observed, tol=1e-9).bound for sign in (1.0, -1.0)]
        assert np.isclose(found[k], (sides[0] - sides[1]) / 2e-4, rtol=1e-4, atol=1e-5)


def test_new_nodes_of_a_product_have_the_variance_that_the_nodes_leave() -> None:
    model, _ = model_of("bym2(g, graph=G):ar1(t)")
    term = model.terms[1]
    values, new = [0.7, 0.6], {"g": ["a", "a", "new"], "t": [2, 7, 2]}
    block = term.block(_source(new))
    V, _ = constrained(term.prior(values), term.constraints())
    rows = term.columns_at(block, values).toarray()
    total = np.einsum("ij,jk,ik->i", rows, V, rows) + (term.new(block, values) ** 2).sum(axis=1)
    own = constrained(term.first.prior([1.0]), term.first.constraints())[0][0, 0]
    np.testing.assert_allclose(total, 0.49 * np.array([own, own, 1.0]), rtol=1e-9)


def _source(data: Any) -> Any:
    from klimb.rows.frames import read_frame
    from klimb.rows.table import Source

    return Source(read_frame(data))


def test_an_own_precision_is_the_field_that_it_says() -> None:
    """The scaled Laplacian of a graph is besag(); levels may be named in any order, and more than the data have."""
    model, _ = model_of("besag(g, graph=G)")
    R = model.terms[1].prior([1.0]).precision.toarray()
    order = [2, 0, 3, 1]
    given = (R[np.ix_(order, order)], [list("abcd")[k] for k in order])
    kwargs: Any = {"family": "poisson", "hyper": "optimise", "priors": {"sd(besag(g))": "exponential(1)"}}
    one = klimb.fit("y ~ besag(g, graph=G)", DATA, graphs={"G": EDGES}, **kwargs)
    kwargs["priors"] = {"sd(generic(g))": "exponential(1)"}
    two = klimb.fit("y ~ generic(g, Q=M)", DATA, matrices={"M": given}, **kwargs)
    assert np.isclose(one.bound, two.bound, atol=1e-5)
    larger = scipy.sparse.block_diag([np.eye(4), [[1.0]]])
    fit = klimb.fit("y ~ generic(g, Q=M)", DATA, matrices={"M": (larger, list("abcde"))}, **kwargs)
    plain = klimb.fit("y ~ iid(g)", DATA, **{**kwargs, "priors": {"sd(iid(g))": "exponential(1)"}})
    assert np.isclose(fit.bound, plain.bound, atol=1e-5)
    sd = fit.predict({"g": ["e", "other"]}, kind="latent")["sd"]
    assert np.isclose(sd[0], sd[1], rtol=1e-6)


@pytest.mark.parametrize(("given", "words"), [
    (LAPLACIAN[:3], "square"), (LAPLACIAN[:3, :3], "for each of the 4"), (np.triu(LAPLACIAN), "symmetric"),
    (-LAPLACIAN, "positive semi-definite"), (np.zeros((4, 4)), "positive semi-definite"),
    (np.diag([1.0, 1, 1, np.nan]), "finite"), ((LAPLACIAN, list("abcx")), "no 'd'"),
    ((LAPLACIAN, list("abca")), "different name"),
])
def test_bad_matrices_are_told_in_words(given: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        klimb.fit("y ~ generic(g, Q=M)", DATA, family="poisson", matrices={"M": given})


@pytest.mark.parametrize(("formula", "words"), [
    ("generic(g, Q=W)", "called W"), ("generic(g, Q=M, rank=2)", "rank"), ("s(t):gp(t)", r"s\(\) on its own"),
    ("rw1(t):s(t)", "on its own"), ("t:rw1(t)", "on its own"), ("(1 | g):rw1(t)", "grouping on its own"),
    ("rw1(t):ar1(t):iid(g)", "two fields"), ("rw1(t)^2", "on its own"), ("iid(one):rw1(t)", "at least two"),
    ("iid(g):rw1(one)", "different positions"), ("(iid(g):rw1(t) | g)", "left of the bar"),
])
def test_bad_products_are_told_in_words(formula: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        klimb.fit(f"y ~ {formula}", {**DATA, "one": np.ones(N)}, family="poisson", matrices={"M": LAPLACIAN})


def test_shapes_of_a_product_are_named_by_it_unless_both_factors_have_one_of_the_name() -> None:
    rng = np.random.default_rng(0)
    data = {"z": rng.normal(size=40), "x": rng.uniform(size=40), "t": np.arange(40) % 5, "u": np.arange(40) % 4}
    given = {"range(spde(x):ar1(t))": "pc_range(0.3, 0.5)", "rho(spde(x):ar1(t))": "beta(2, 2)"}
    fit = klimb.fit("z ~ spde(x, spacing=0.2):ar1(t)", data, priors=given, hyper="optimise")
    assert fit.priors["rho(spde(x):ar1(t))"] == "beta(2, 2)"
    assert list(fit.field("spde(x, spacing=0.2):ar1(t)")["node"]) == list(fit.field()["node"])
    fit = klimb.fit("z ~ ar1(t):ar1(u)", data, hyper="optimise")
    assert {"rho(ar1(t) in ar1(t):ar1(u))", "rho(ar1(u) in ar1(t):ar1(u))"} <= set(fit.priors)
