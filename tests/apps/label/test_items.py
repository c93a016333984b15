"""Items of a table: what counts, what is shown, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from klimb.apps.label.items import items_of
from klimb.errors import InputError


def test_texts_and_columns_together() -> None:
    table = {"review": ["good film", "bad film", "good"], "stars": np.array([5.0, 1.0, 4.0]), "day": ["mo", "tu", None]}
    items = items_of(table, text=["review"], columns=["stars"], show=["day"])
    assert items.names == ("good", "film", "stars")
    assert items.features.shape == (3, 3)
    assert items.shown == {"stars": ("5", "1", "4"), "day": ("mo", "tu", "")}
    assert items.ids == ("0", "1", "2")


def test_columns_are_standardised_whatever_their_scale() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(50)
    for scale in (1e-300, 1e-12, 1.0, 1e200):
        items = items_of({"a": x * scale, "b": -x}, columns=["a", "b"])
        assert np.allclose(items.features.mean(axis=0), 0.0, atol=1e-12)
        assert np.allclose(items.features.std(axis=0), np.sqrt(0.5))
    shifted = items_of({"a": 1e6 + x, "b": -x}, columns=["a", "b"])
    assert np.allclose(shifted.features[:, 0], -shifted.features[:, 1], atol=1e-6)


def test_missing_numbers_are_marked() -> None:
    items = items_of({"a": np.array([1.0, np.nan, 3.0, np.inf])}, columns=["a"])
    assert items.names == ("a", "a missing")
    assert np.isfinite(items.features).all()
    assert "missing in 2 rows" in items.notes[0]


def test_booleans_objects_and_constants() -> None:
    table = {"flag": np.array([True, None, False], dtype=object), "n": np.array([1, 2, 3]), "c": np.ones(3)}
    items = items_of(table, columns=["flag", "n", "c"])
    assert items.names == ("flag", "flag missing", "n")
    assert any("'c' is the same" in note for note in items.notes)


def test_rows_without_text_are_not_asked() -> None:
    items = items_of({"t": ["a b", None, "  ", "a"]}, text=["t"])
    assert items.askable.tolist() == [0, 3]
    assert items.notes == ("2 of 4 rows have no text and will not be asked.",)


def test_several_texts_follow_each_other() -> None:
    items = items_of({"subject": ["hi", None], "body": ["there", "you there"]}, text=["subject", "body"])
    assert items.texts == ("hi\n\nthere", "you there")


def test_the_fingerprint_is_of_what_is_learnt_from() -> None:
    table = {"t": ["a b", "a c"], "x": np.array([1.0, 2.0]), "extra": ["u", "v"]}
    one = items_of(table, text=["t"], columns=["x"]).fingerprint
    assert items_of(table, text=["t"], columns=["x"], show=["extra"], id_column="extra").fingerprint == one
    assert items_of({**table, "t": ["a b", "a d"]}, text=["t"], columns=["x"]).fingerprint != one
    assert items_of({**table, "x": np.array([2.0, 1.0])}, text=["t"], columns=["x"]).fingerprint != one
    # Cells cannot run into each other.
    ab_c, a_bc = (items_of({"t": texts}, text=["t"]) for texts in (["ab", "c"], ["a", "bc"]))
    assert ab_c.fingerprint != a_bc.fingerprint


@pytest.mark.parametrize(("table", "how", "words"), [
    ({"t": ["a"]}, {"text": ["t"]}, "at least two rows to choose from; got 1"),
    ({"t": []}, {"text": ["t"]}, "at least two rows"),
    ({"t": [None, " ", ""]}, {"text": ["t"]}, "3 rows without any"),
    ({"t": ["a", None]}, {"text": ["t"]}, "at least two rows with a text; got 1 of 2"),
    ({"t": ["!!", "??"]}, {"text": ["t"]}, "without letters or digits"),
    ({"t": ["a", "b"]}, {"columns": ["t"]}, r"numbers in the column 't'; got 'a' in row 0\. Say --text t"),
    ({"x": np.ones(3)}, {"columns": ["x"]}, "all constant"),
    ({"x": np.full(3, np.nan)}, {"columns": ["x"]}, "3 rows without any"),
    ({"x": np.ones(3)}, {}, "columns for the model to learn from; got none"),
])
def test_bad_tables(table: dict[str, object], how: dict[str, list[str]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        items_of(table, **how)
