"""Words of many scripts, and their weights beside scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from tests.apps.label.sessions import reviews

from klimb.apps.label.items import LARGEST_VOCABULARY, normal_form, spans, tf_idf


def words(text: str) -> list[str]:
    return [normal_form(word) for word, _, _ in spans(text)]


@pytest.mark.parametrize(("text", "expected"), [
    ("Don't stop_me now-ish", ["don't", "stop", "me", "now", "ish"]),
    ("L’été 2024, 3.5 km", ["l'été", "2024", "3", "5", "km"]),
    ("e\u0301te\u0301", ["été"]),  # marks of their own are part of the letter before them
    ("हिन्दी में", ["हिन्दी", "में"]),
    ("العربية", ["العربية"]),
    ("東京都に", ["東京", "京都", "都に"]),
    ("字", ["字"]),
    ("Привет, МИР", ["привет", "мир"]),
    ("ﬁne ＷＩＤＥ Straße", ["fine", "wide", "strasse"]),
    ("so 😀👍 good", ["so", "😀", "👍", "good"]),
    ("", []), ("   \n\t", []), ("!?…—", []), ("'' ’ '", []),
])
def test_words_of_many_scripts(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_places_are_those_of_the_text() -> None:
    text = "A  naïve 東京都 <b>tag</b> 😀"
    assert all(text[start:end] == word for word, start, end in spans(text))


def test_the_quick_way_finds_what_the_careful_way_finds() -> None:
    texts = ["it's 2 o'clock, x_y a-b", "plain words only", "'quoted' words' ''"]
    mixed = [text + " ä" for text in texts]
    quick, careful = tf_idf(texts, least=1)[0].words, tf_idf(mixed, least=1)[0].words
    assert [word for word in careful if word != "ä"] == list(quick)


def test_equals_scikit_learn() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts, _ = reviews(200)
    texts += ["rare once", "", "the the the"]
    vocabulary, X = tf_idf(texts)
    theirs = TfidfVectorizer(sublinear_tf=True, min_df=2, token_pattern=r"\w+")
    Y = theirs.fit_transform(texts)[:, [theirs.vocabulary_[word] for word in vocabulary.words]]
    assert set(vocabulary.words) == set(theirs.vocabulary_)
    assert np.abs((X - Y).toarray()).max() < 1e-14
    assert "rare" not in vocabulary.words
    lengths = np.sqrt((X.toarray() ** 2).sum(axis=1))
    assert np.allclose(lengths, [1.0] * 200 + [0.0, 0.0, 1.0])


def test_a_word_is_what_it_was_when_it_is_looked_up() -> None:
    vocabulary, _ = tf_idf(["Café au lait", "CAFE\u0301 noir", "東京都庁", "東京"], least=2)
    assert vocabulary.words == ("café", "東京")
    assert [(start, end) for _, start, end in vocabulary.columns_of("un café, 東京!")] == [(3, 7), (9, 11)]


def test_the_vocabulary_has_a_limit_and_keeps_what_is_frequent() -> None:
    texts = [f"common w{k} w{k + 1}" for k in range(50)]
    vocabulary, X = tf_idf(texts, most=10)
    assert len(vocabulary.words) == 10 == X.shape[1]
    assert "common" in vocabulary.words
    assert LARGEST_VOCABULARY >= 10_000


def test_long_words_and_odd_characters() -> None:
    vocabulary, X = tf_idf(["x" * 100_000 + " a", "x" * 100_000 + " a \x00\ufffd\u202e", "\ud800 a"], least=1)
    assert all(len(word) <= 64 for word in vocabulary.words)
    assert np.isfinite(X.data).all()


def test_only_rare_words_still_count() -> None:
    vocabulary, X = tf_idf(["one two", "three four"])
    assert vocabulary.words == ("one", "two", "three", "four")
    assert X.shape == (2, 4)
