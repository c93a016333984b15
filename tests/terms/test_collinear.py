"""Columns that say nothing new are named, with what they are made of."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array
from tests.terms.view import encode

from klimb.terms.column_moments import collinear

RNG = np.random.default_rng(3)
X = RNG.normal(size=(50, 4))
NAMES = ["a", "b", "c", "d"]


def test_nothing_to_say() -> None:
    assert collinear(X, NAMES) == []
    assert collinear(np.zeros((0, 2)), NAMES[:2]) == []
    assert collinear(np.zeros((3, 0)), []) == []


@pytest.mark.parametrize(("column", "says"), [
    (X[:, 0], "'e' is a:"),
    (-X[:, 0], "'e' is -a:"),
    (2.0 * X[:, 0] - X[:, 2] / 3.0, "'e' is 2 a - 1/3 c:"),
    (X[:, 1] + X[:, 3] * np.pi, "'e' is b + 3.14159 d:"),
    (1e-12 * X[:, 0], "'e' is 1e-12 a:"),
    (1e12 * (X[:, 0] - X[:, 1]), "'e' is 1e+12 a - 1e+12 b:"),
    (np.zeros(50), "'e' is zero in every row"),
])
def test_sentences(column: np.ndarray, says: str) -> None:
    found = collinear(np.column_stack([X, column]), [*NAMES, "e"])
    assert len(found) == 1
    assert found[0].startswith(says)


def test_constant_column() -> None:
    found = collinear(np.column_stack([np.ones(50), X[:, 0], np.full(50, 7.5)]), ["Intercept", "x", "k"])
    assert found == ["'k' is 7.5 in every row: the data cannot tell it from the intercept."]


def test_scales_do_not_matter() -> None:
    scaled = X * np.array([1e-150, 1.0, 1e150, 1e-8])
    assert collinear(scaled, NAMES) == []
    assert len(collinear(np.column_stack([scaled, scaled[:, 2] * 1e-300]), [*NAMES, "e"])) == 1


def test_nearly_collinear_is_not_collinear() -> None:
    noisy = X[:, 0] + 1e-6 * RNG.normal(size=50)
    assert collinear(np.column_stack([X, noisy]), [*NAMES, "e"]) == []


def test_fewer_rows_than_columns() -> None:
    found = collinear(X[:2], NAMES)
    assert len(found) == 2
    assert all(text.startswith(f"'{name}' is") for text, name in zip(found, "cd", strict=True))


def test_many_parts_are_cut_short() -> None:
    wide = RNG.normal(size=(60, 12))
    found = collinear(np.column_stack([wide, wide.sum(axis=1)]), [f"v{i}" for i in range(13)])
    assert found[0].startswith("'v12' is a combination of 12 other columns, such as 'v0', 'v1', 'v2', 'v3'")


def test_sparse_and_tall() -> None:
    codes = RNG.integers(0, 5, 20_000)
    dense = np.column_stack([np.ones(len(codes)), np.eye(5)[codes]])
    names = ["Intercept", *(f"g[{k}]" for k in range(5))]
    for matrix in (dense, csr_array(dense)):
        found = collinear(matrix, names)
        assert found == ["'g[4]' is Intercept - g[0] - g[1] - g[2] - g[3]: the data cannot tell them apart."]


def test_of_a_formula() -> None:
    data = {"y": X[:, 0], "x": X[:, 1], "twice": 2.0 * X[:, 1], "a": np.where(np.arange(50) < 20, "p", "q"),
            "b": np.where(np.arange(50) < 20, "u", "v")}
    _, blocks = encode("y ~ x + twice + a + b", data)
    assert collinear(blocks.matrix, blocks.names) == [
        "'twice' is 2 x: the data cannot tell them apart.", "'b[T.v]' is a[T.q]: the data cannot tell them apart."]
