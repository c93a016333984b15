"""The fixed part against formulaic: random formulas give the same columns and the same names."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
import pytest
from formulaic import model_matrix
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.terms.view import encode, view

RNG = np.random.default_rng(5)
N = 150
DATA = pd.DataFrame({
    "y": RNG.normal(size=N),
    "x": RNG.normal(size=N),
    "z": RNG.uniform(1.0, 3.0, N),
    "i": RNG.integers(1, 5, N),
    "a": RNG.choice(["p", "q", "r"], N),
    "b": RNG.choice(["u", "v"], N),
    "c": pd.Categorical(RNG.choice(["lo", "mid", "hi"], N), categories=["lo", "mid", "hi"]),
})
ATOMS = ["x", "z", "i", "a", "b", "c", "log(z)", "scale(x)", "center(z)", "poly(x, 2)", "bs(z, df=4)", "C(a)", "C(i)"]


def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(inner, st.sampled_from(["+", "+", ":", "*", "/", "-"]), inner)
    power = st.tuples(inner, inner).map(lambda two: f"({two[0]} + {two[1]})^2")
    return st.one_of(pair.map(lambda three: "({} {} {})".format(*three)), power)


FORMULAS = st.tuples(st.sampled_from(["", "", "0 + ", "-1 + "]),
                     st.recursive(st.sampled_from(ATOMS), combined, max_leaves=6),
                     st.sampled_from(["", "", " - 1", " + 1"])).map("".join)


def key(name: str) -> list[str]:
    """The factors of a column, whatever their order."""
    return sorted(name.split(":"))


def rank(matrix: np.ndarray) -> int:
    return int(np.linalg.matrix_rank(matrix)) if matrix.size else 0


@settings(max_examples=120)
@given(FORMULAS)
def test_same_columns_as_formulaic(text: str) -> None:
    try:
        expected = model_matrix(text, DATA)
    except TypeError:  # formulaic: a product of nothing
        return
    _, blocks = encode(f"y ~ {text}", DATA)
    ours, theirs = blocks.matrix, np.asarray(expected, dtype=float)
    if theirs.shape[1] > N - 20:
        return
    both = rank(np.hstack([ours, theirs])) if ours.size or theirs.size else 0
    assert rank(ours) == rank(theirs) == both
    assert ours.shape == theirs.shape
    names = list(blocks.names)
    order = sorted(range(len(names)), key=lambda j: key(names[j]))
    other = sorted(range(len(names)), key=lambda j: key(expected.columns[j]))
    if [key(names[j]) for j in order] == [key(expected.columns[j]) for j in other]:
        np.testing.assert_allclose(ours[:, order], theirs[:, other], rtol=1e-9, atol=1e-9)
    else:
        # Powers of overlapping terms come in another order, which may shift a contrast from one term to the next.
        assert "^" in text or "/" in text


@pytest.mark.parametrize("text", [
    "x", "a", "0 + a", "a + b", "a:b", "a*b", "a*x", "a:x", "x:a", "a + a:x", "a/b", "a/x", "0 + a:b", "a*b*c", "a*b*x",
    "a:b + a:c", "(a + b + c)^2", "(a + b + x)^2 - a:b", "b %in% a + b + a", "poly(x, 3)", "poly(x, 3):a",
    "bs(z, df=6)",
    "bs(z, df=7, degree=2)", "a:poly(x, 2)", "x*z*i", "0 + x:a + c", "C(i)*b", "scale(log(z))", "x + x:z + a:x:z",
])
def test_same_order_and_names(text: str) -> None:
    # In formulaic b %in% a is a/b; in R, and here, it is the product alone.
    expected = model_matrix(text.replace("b %in% a", "a:b"), DATA)
    _, blocks = encode(f"y ~ {text}", DATA)
    assert list(blocks.names) == list(expected.columns)
    np.testing.assert_allclose(blocks.matrix, np.asarray(expected, dtype=float), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("ours", "theirs"), [
    ("C(a, Treatment)", "C(a, contr.treatment)"),
    ('C(a, Treatment, reference="q")', "C(a, contr.treatment(base='q'))"),
    ('C(a, reference="r")', "C(a, contr.treatment(base='r'))"),
    ("C(a, Sum)", "C(a, contr.sum)"),
    ("C(c, Helmert)", "C(c, contr.helmert)"),
    ("C(i, Poly)", "C(i, contr.poly)"),
    ("C(a, Sum)*x", "C(a, contr.sum)*x"),
    ("0 + C(c, Helmert)", "0 + C(c, contr.helmert)"),
    ('C(a, levels=["r", "p", "q"])', "C(a, levels=['r', 'p', 'q'])"),
    ("poly(x, 2, raw=True)", "poly(x, 2, raw=True)"),
    ("bs(z, knots=[1.5, 2.2], lower=0.5, upper=4)", "bs(z, knots=[1.5, 2.2], lower_bound=0.5, upper_bound=4)"),
    ("standardize(x)", "scale(x)"),
    ("log1p(z) + log10(z) + sqrt(z) + exp(x) + abs(x)", "np.log1p(z) + log10(z) + np.sqrt(z) + exp(x) + np.abs(x)"),
])
def test_other_spellings(ours: str, theirs: str) -> None:
    expected = model_matrix(theirs, DATA, context={"np": np})
    _, blocks = encode(f"y ~ {ours}", DATA)
    np.testing.assert_allclose(blocks.matrix, np.asarray(expected, dtype=float), rtol=1e-10, atol=1e-10)
    assert levels(blocks.names) == levels(expected.columns)


def levels(names: Iterable[str]) -> list[str]:
    """What stands between the brackets of factors' columns."""
    return [name[name.rindex("["):] for name in names if name.startswith("C(") and ":" not in name]


def test_new_data_are_encoded_as_the_old() -> None:
    text = "poly(x, 3) + bs(z, df=5) + scale(x) + center(z) + C(a, Sum)*b"
    spec = model_matrix(text.replace("Sum", "contr.sum"), DATA)
    encoder, _ = encode(f"y ~ {text}", DATA)
    some = DATA[(DATA.x > -0.5) & (DATA.a != "q")]
    np.testing.assert_allclose(view(encoder, some).matrix,
                               np.asarray(spec.model_spec.get_model_matrix(some), float),
                               rtol=1e-10, atol=1e-10)
