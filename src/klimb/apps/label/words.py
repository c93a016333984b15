"""From texts to numbers: words, how often they occur, and how telling they are (tf-idf). Nothing but numpy and scipy.

A word is a run of letters, digits and the marks that belong to them, in any script; an apostrophe inside it does not
end it. Scripts that put no blanks between words (Chinese, Japanese, Thai, ...) are cut into overlapping pairs of
characters, and an emoji is a word of its own. Upper and lower case, and the several ways in which Unicode can spell one
character, are the same word.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import numpy as np

from klimb.numerics.arrays import Array

# Scripts written without blanks: Thai, Lao, Myanmar, Khmer, kana, Han.
UNSPACED = "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u1000-\u109f\u1780-\u17d3\u3041-\u3096\u30a1-\u30fa\u30fc" \
           "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
EMOJI = "\u2600-\u27bf\U0001f300-\U0001faff"
PLAIN = re.compile(r"[^\W_]+(?:'[^\W_]+)*")  # the words of a text of ASCII characters, found faster
LONGEST = 64  # characters of a word: what is longer is no word, and only its beginning counts
LARGEST_VOCABULARY = 50_000


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    r"""Words, and those among them that need cutting. Python's ``\w`` leaves out combining marks, so we add them."""
    points = np.array([code for code in range(0x300, 0x1F000) if unicodedata.category(chr(code)) in ("Mn", "Mc")])
    breaks = np.flatnonzero(np.diff(points) > 1) + 1
    marks = "".join(f"{chr(run[0])}-{chr(run[-1])}" for run in np.split(points, breaks))
    letter = f"(?:[^\\W_{UNSPACED}{EMOJI}]|[{marks}])"
    return (re.compile(f"[{UNSPACED}](?:[{UNSPACED}]|[{marks}])*|{letter}+(?:['\u2019\u02bc]{letter}+)*|[{EMOJI}]"),
            re.compile(f"[{UNSPACED}]"))


def spans(text: str) -> Iterator[tuple[str, int, int]]:
    """The words of a text as they are spelt there, each with its first place and the place after its last.

    >>> list(spans("Don't worry"))
    [("Don't", 0, 5), ('worry', 6, 11)]
    >>> [word for word, _, _ in spans("東京都 2024 naïve 😀!")]
    ['東京', '京都', '2024', 'naïve', '😀']
    """
    words, unspaced = _patterns()
    for found in words.finditer(text):
        word, start, end = found.group(), found.start(), found.end()
        if end - start > 2 and unspaced.match(word):
            for place in range(start, end - 1):
                yield text[place:place + 2], place, place + 2
        else:
            yield word, start, end


def normal_form(word: str) -> str:
    """The spelling under which a word is counted.

    >>> normal_form("ＣＡＦÉ"), normal_form("Don’t"), normal_form("Straße")
    ('café', "don't", 'strasse')
    """
    word = unicodedata.normalize("NFKC", word[:LONGEST]).casefold()
    return unicodedata.normalize("NFC", word.replace("\u2019", "'").replace("\u02bc", "'"))


@final
@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The words that count, in order of their column, and how telling each is."""

    words: tuple[str, ...]
    idf: Array
    column: dict[str, int]

    def columns_of(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Column, first place and end of each word of ``text`` that counts."""
        for word, start, end in spans(text):
            found = self.column.get(normal_form(word))
            if found is not None:
                yield found, start, end


def tf_idf(texts: Sequence[str], *, least: int = 2, most: int = LARGEST_VOCABULARY,
           tell: Callable[[int], None] | None = None) -> tuple[Vocabulary, Any]:
    """The vocabulary of the texts, and one sparse row of length 1 per text (or 0, for a text of unknown words).

    An entry is (1 + log count) * idf, idf = 1 + log((1 + n) / (1 + texts with the word)), rows scaled to length one.
    Words in fewer than ``least`` texts are left out (unless that leaves none), and of more than ``most`` the rarer.
    ``tell`` is called with the number of texts read, now and then.

    >>> vocabulary, X = tf_idf(["a good film", "a bad film", "good good"])
    >>> vocabulary.words, X.shape
    (('a', 'good', 'film'), (3, 3))
    >>> X.toarray().round(2)[2]
    array([0., 1., 0.])
    """
    from scipy.sparse import csr_matrix

    first_seen, counts = _count(texts, tell)
    frequency = np.bincount(counts.indices, minlength=len(first_seen))
    enough = min(least, int(frequency.max(initial=0)))
    kept = np.flatnonzero(frequency >= enough)
    if kept.size > most:  # the most frequent; among equals those seen first
        kept = np.sort(kept[np.argsort(-frequency[kept], kind="stable")[:most]])
    spelt = list(first_seen)
    words = tuple(spelt[index] for index in kept)
    idf = 1.0 + np.log((1.0 + len(texts)) / (1.0 + frequency[kept]))
    X = counts[:, kept].tocsr()
    X.data = (1.0 + np.log(X.data)) * idf[X.indices]
    length = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    X.data /= np.repeat(np.where(length > 0.0, length, 1.0), np.diff(X.indptr))
    X.sort_indices()
    return Vocabulary(words, idf, {word: place for place, word in enumerate(words)}), csr_matrix(X)


def _count(texts: Sequence[str], tell: Callable[[int], None] | None) -> tuple[dict[str, int], Any]:
    """Every normal form with its number, in order of appearance, and how often each text has it."""
    from scipy.sparse import csr_matrix

    numbers = _Numbers()
    places, ends = array("q"), array("q", [0])
    words, unspaced = _patterns()
    for row, text in enumerate(texts):
        if text.isascii():
            found = PLAIN.findall(text)
        elif unspaced.search(text):
            found = [word for word, _, _ in spans(text)]
        else:
            found = words.findall(text)
        places.extend(map(numbers.__getitem__, found))
        ends.append(len(places))
        if tell is not None and row % 2000 == 1999:
            tell(row + 1)
    columns = np.frombuffer(places, np.int64) if places else np.zeros(0, np.int64)
    X = csr_matrix((np.ones(columns.size), columns, np.frombuffer(ends, np.int64)),
                   shape=(len(texts), len(numbers.forms)))
    X.sum_duplicates()
    return numbers.forms, X


@final
class _Numbers(dict[str, int]):
    """The number of each spelling; one that is new is brought into normal form, once."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        number = self[word] = self.forms.setdefault(normal_form(word), len(self.forms))
        return number
