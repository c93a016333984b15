"""Directions of the texts: right, repeatable, and linear in the words."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix, random_array
from tests.apps.label.sessions import make_items

from klimb.apps.label import model as topics
from klimb.apps.label.items import items_of
from klimb.apps.label.model import main_directions, pool_of


def test_directions_are_those_of_the_largest_singular_values() -> None:
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((80, 6)) @ np.diag([9.0, 7.0, 5.0, 3.0, 0.1, 0.05]) @ rng.standard_normal((6, 40))
    V = main_directions(csr_matrix(dense), 4)
    theirs = np.linalg.svd(dense)[2][:4]
    assert np.allclose(V.T @ V, np.eye(4), atol=1e-12)
    assert np.linalg.svd(theirs @ V)[1].min() > 1.0 - 1e-6
    assert np.array_equal(V, main_directions(csr_matrix(dense), 4))


def test_they_hold_nearly_as_much_as_the_best_could() -> None:
    X = csr_matrix(random_array((600, 300), density=0.05, rng=np.random.default_rng(0)))
    held = np.sum((X @ main_directions(X, 20)) ** 2)
    best = np.sum(np.linalg.svd(X.toarray())[1][:20] ** 2)
    assert 0.95 * best < held <= best * (1.0 + 1e-9)


def test_many_texts_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    X = csr_matrix(np.outer(np.ones(500), [0.6, 0.8, 0.0]))
    monkeypatch.setattr(topics, "LOOKED_AT", 50)
    assert np.allclose(np.abs(main_directions(X, 1)).ravel(), [0.6, 0.8, 0.0])


@pytest.mark.parametrize("numbers", [False, True])
def test_the_model_is_linear_in_words_and_columns(numbers: bool) -> None:
    items, truth = make_items(120)
    if numbers:
        items = items_of({"t": items.texts, "x": np.array(truth, dtype=float)}, text=["t"], columns=["x"])
    features, per_name = pool_of(items)
    weights = np.random.default_rng(0).standard_normal(features.shape[1])
    assert features.shape[1] > items.features.shape[1]
    assert np.allclose(features @ weights, items.features @ per_name(weights), atol=1e-12)
    lengths = np.sqrt(np.asarray(features.multiply(features).sum(axis=1)).ravel() - numbers)
    assert 0.5 < np.median(lengths) < 2.0


def test_few_texts_have_no_directions() -> None:
    items = items_of({"t": ["a b", "b c", "a c"]}, text=["t"])
    features, per_name = pool_of(items)
    assert features is items.features
    assert np.array_equal(per_name(np.arange(3.0)), np.arange(3.0))


def test_rows_without_text_are_left_out() -> None:
    items = items_of({"t": ["a b", None, "b c", "a c"]}, text=["t"])
    assert pool_of(items)[0].shape[0] == 3
