"""The items to be labelled: what a person sees of them, and the numbers a model sees.

A word is a run of letters, digits and their marks, in any script; scripts without blanks between words (Chinese, Thai,
...) are cut into overlapping pairs of characters, and an emoji is a word. Case and Unicode's several spellings of one
character do not matter. The page shows items as text, never as markup.
"""

import hashlib
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError, require
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_sparse

# Scripts written without blanks: Thai, Lao, Myanmar, Khmer, kana, Han.
UNSPACED = "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u1000-\u109f\u1780-\u17d3\u3041-\u3096\u30a1-\u30fa\u30fc" \
           "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
EMOJI = "\u2600-\u27bf\U0001f300-\U0001faff"
PLAIN = re.compile(r"[^\W_]+(?:'[^\W_]+)*")  # the words of a text of ASCII characters, found faster
LONGEST_WORD = 64  # characters of a word: what is longer is no word, and only its beginning counts
LARGEST_VOCABULARY = 50_000
Index: TypeAlias = npt.NDArray[np.intp]
Pushes: TypeAlias = Mapping[int, float]  # feature -> what it adds to the log odds of the label it is about
LONGEST_SHOWN = 12_000  # characters that are shown before somebody asks for more
STRENGTHS = ((0.04, 0.15), (0.12, 0.35), (0.3, 0.7))  # faint, clear, strong: log odds, and share of the largest push


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
    """The words of a text as they are spelt there, each with its first place and the place after its last."""
    words, unspaced = _patterns()
    for found in words.finditer(text):
        word, start, end = found.group(), found.start(), found.end()
        if end - start > 2 and unspaced.match(word):
            for place in range(start, end - 1):
                yield text[place:place + 2], place, place + 2
        else:
            yield word, start, end


def normal_form(word: str) -> str:
    """The spelling under which a word is counted."""
    word = unicodedata.normalize("NFKC", word[:LONGEST_WORD]).casefold()
    return unicodedata.normalize("NFC", word.replace("\u2019", "'").replace("\u02bc", "'"))


class Vocabulary(NamedTuple):
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
    """
    first_seen, counts = _count(texts, tell)
    frequency = np.bincount(counts.indices, minlength=len(first_seen))
    kept = np.flatnonzero(frequency >= min(least, int(frequency.max(initial=0))))
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
    return Vocabulary(words, idf, {word: place for place, word in enumerate(words)}), scipy_sparse.csr_matrix(X)


def _count(texts: Sequence[str], tell: Callable[[int], None] | None) -> tuple[dict[str, int], Any]:
    """Every normal form with its number, in order of appearance, and how often each text has it."""
    forms: dict[str, int] = {}
    number = cache(lambda word: forms.setdefault(normal_form(word), len(forms)))  # a spelling is looked at once
    places, ends = array("q"), array("q", [0])
    words, unspaced = _patterns()
    for row, text in enumerate(texts):
        if text.isascii():
            found = PLAIN.findall(text)
        elif unspaced.search(text):
            found = [word for word, _, _ in spans(text)]
        else:
            found = words.findall(text)
        places.extend(map(number, found))
        ends.append(len(places))
        if tell is not None and row % 2000 == 1999:
            tell(row + 1)
    columns = np.frombuffer(places, np.int64) if places else np.zeros(0, np.int64)
    X = scipy_sparse.csr_matrix((np.ones(columns.size), columns, np.frombuffer(ends, np.int64)),
                                shape=(len(texts), len(forms)))
    X.sum_duplicates()
    return forms, X


class LabelItems(NamedTuple):
    """Rows of a table: texts, columns of numbers, or both."""
    features: Any  # one row per item; CSR where there are texts, else dense
    names: tuple[str, ...]  # of the features: words first, then columns
    texts: tuple[str, ...]  # empty strings where an item has no text
    shown: dict[str, tuple[str, ...]]  # columns to be shown beside the text
    ids: tuple[str, ...]
    askable: Index  # rows that a person can label: those with something to see
    vocabulary: Vocabulary | None
    fingerprint: str  # of the columns that the model learns from
    notes: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        """Rows of the table."""
        return len(self.ids)


def items_of(table: Mapping[str, Any], *, text: Sequence[str] = (), columns: Sequence[str] = (),
             show: Sequence[str] = (), id_column: str | None = None,
             tell: Callable[[int], None] | None = None) -> LabelItems:
    """Items from columns of a table: ``text`` columns are read by word, ``columns`` as numbers, others are shown."""
    require(text or columns, "columns for the model to learn from", "none", "Give --text COLUMN, or --columns a,b,c.")
    n = len(table[(*text, *columns)[0]])
    require(n >= 2, "at least two rows to choose from", f"{n}", "Label a single item by hand, or name a larger table.")
    columns_of_text = [table[name] for name in text]  # with a blank line between those of a row
    texts = tuple("\n\n".join(str(cell) for cell in row if cell is not None and cell == cell)
                  for row in zip(*columns_of_text, strict=True)) or ("",) * n
    seen = np.array([bool(words.strip()) for words in texts])
    require(seen.any() or not text, f"texts in the column {', '.join(map(repr, text))}", f"{n} rows without any",
            "Check the name of the column, and the --delimiter and --encoding of the file.")
    notes = []
    if text and not seen.all():
        missing = int(n - seen.sum())
        notes.append(f"{missing:,} of {n:,} rows {'has' if missing == 1 else 'have'} no text and will not be asked.")
    askable = np.flatnonzero(seen) if text else np.arange(n)
    require(askable.size >= 2, "at least two rows with a text", f"{askable.size} of {n}", "Name a larger table.")
    vocabulary: Vocabulary | None = None
    parts: list[Any] = []
    names: list[str] = []
    if text:
        vocabulary, words = tf_idf(texts, tell=tell)
        require(vocabulary.words, f"words in the column {', '.join(map(repr, text))}",
                f"{askable.size} texts without letters or digits", "Name a column that holds texts.")
        parts.append(words)
        names += vocabulary.words
    if columns:
        numbers, labels, said = _numbers({name: table[name] for name in columns}, n)
        parts.append(numbers)
        names += labels
        notes += said
    ids = tuple(map(str, range(n))) if id_column is None else tuple(map(_cell, table[id_column]))
    shown = {name: tuple(map(_cell, table[name])) for name in dict.fromkeys([*columns, *show])}
    learnt_from = {name: shown[name] for name in columns}
    sparse = scipy_sparse.csr_matrix
    features = parts[0] if len(parts) == 1 else scipy_sparse.hstack([sparse(part) for part in parts], format="csr")
    return LabelItems(features, tuple(names), texts, shown, ids, askable, vocabulary,
                      _fingerprint(texts if text else (), learnt_from), tuple(notes))


def _numbers(columns: Mapping[str, Any], n: int) -> tuple[Array, list[str], list[str]]:
    """Columns of mean zero, scaled so that rows have a length of about one; another column marks missing numbers."""
    made, names, notes = [], [], []
    for name, cells in columns.items():
        values = _floats(name, cells)
        known = np.isfinite(values)
        require(known.any(), f"numbers in the column {name!r}", f"{n} rows without any", "Leave it out.")
        largest = np.abs(values[known]).max() or 1.0
        scaled = np.where(known, values / largest, np.nan)  # squares of 1e200 would overflow
        centred = np.where(known, scaled - scaled[known].mean(), 0.0)
        spread = centred[known].std()
        if spread <= 1e-12:
            notes.append(f"column {name!r} is the same in all rows and tells nothing.")
        else:
            made.append(centred / spread)
            names.append(name)
        if not known.all():
            gaps = (~known).astype(float)
            made.append((gaps - gaps.mean()) / gaps.std())
            names.append(f"{name} missing")
            notes.append(f"column {name!r} is missing in {int(gaps.sum()):,} rows: the mean stands in, and is marked.")
    require(made, "at least one column that differs between rows", f"{', '.join(map(repr, columns))}, all constant",
            "Name other columns.")
    return np.column_stack(made) / np.sqrt(len(made)), names, notes


def _floats(name: str, cells: Any) -> Array:
    values = np.asarray(cells)
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    out = np.empty(len(values))
    for row, cell in enumerate(values):
        if cell is None or isinstance(cell, bool | int | float | np.number):
            out[row] = np.nan if cell is None else float(cell)
        else:
            raise InputError(f"numbers in the column {name!r}", f"{str(cell)[:40]!r} in row {row}",
                             f"Say --text {name} to learn from its words, or --show {name} to look at it only.")
    return out


def _cell(value: Any) -> str:
    """A cell as it is shown: numbers that are whole without their point, nothing for what is missing."""
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def _fingerprint(texts: Sequence[str], columns: Mapping[str, Sequence[str]]) -> str:
    """SHA-256 over everything, each cell with its length before it, so that no two tables write the same."""
    digest = hashlib.sha256()
    for name, cells in (("", texts), *columns.items()):
        digest.update(f"{len(cells)} {len(name)} {name}\n".encode("utf-8", "surrogatepass"))
        for cell in cells:
            coded = cell.encode("utf-8", "surrogatepass")
            digest.update(b"%d\n" % len(coded))
            digest.update(coded)
    return digest.hexdigest()


def levels(pushes: Array, largest: float) -> npt.NDArray[np.intp]:
    """-3 to 3: towards or away from the label, and how strongly, in itself and beside the largest push of the item."""
    sizes = np.zeros(len(pushes), dtype=np.intp)
    for least, share in STRENGTHS:
        sizes += np.abs(pushes) >= max(least, share * largest)
    return np.where(pushes > 0.0, sizes, -sizes)


def segments(items: LabelItems, row: int, pushes: Pushes, longest: int | None = LONGEST_SHOWN,
             ) -> tuple[list[tuple[str, int]], bool]:
    """Pieces of the text with the strength of their push, and whether there is more of it."""
    text = items.texts[row]
    more = longest is not None and len(text) > longest
    text = text[:longest]
    if not text:
        return [], False
    if not pushes or items.vocabulary is None:
        return [(text, 0)], more
    # A character may belong to two words (pairs of Chinese characters overlap): it takes the sum of its shares.
    pushed = np.zeros(len(text))
    for column, start, end in items.vocabulary.columns_of(text):
        pushed[start:end] += pushes.get(column, 0.0)
    pieces, start = [], 0
    for level, run in groupby(levels(pushed, _largest(pushes)).tolist()):
        end = start + sum(1 for _ in run)
        pieces.append((text[start:end], level))
        start = end
    return pieces, more


def columns_shown(items: LabelItems, row: int, pushes: Pushes) -> list[tuple[str, str, int]]:
    """Name, value and push of the columns beside the text."""
    words = len(items.vocabulary.words) if items.vocabulary else 0
    known = {items.names[column]: push for column, push in pushes.items() if column >= words}
    sizes = levels(np.array([known.get(name, 0.0) for name in items.shown]), _largest(pushes)).tolist()
    return [(name, cells[row], size) for (name, cells), size in zip(items.shown.items(), sizes, strict=True)]


def _largest(pushes: Pushes) -> float:
    return max(map(abs, pushes.values()), default=0.0)


def preview(items: LabelItems, row: int, longest: int = 160) -> str:
    """The beginning of an item on one line."""
    text = items.texts[row] or ", ".join(f"{name} {cells[row]}" for name, cells in items.shown.items())
    line = " ".join(text[: 4 * longest].split())
    return line if len(line) <= longest else line[: longest - 1] + "…"
