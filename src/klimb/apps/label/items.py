"""The items to be labelled: what a person sees of them, and the numbers a model sees."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from klimb.apps.label.words import Vocabulary, tf_idf
from klimb.errors import InputError
from klimb.numerics.arrays import Array

Index: TypeAlias = npt.NDArray[np.intp]


@final
@dataclass(frozen=True, eq=False)
class LabelItems:
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
    """Items from columns of a table: ``text`` columns are read by word, ``columns`` as numbers; the others are shown.

    >>> items = items_of({"review": ["good film", "bad film", None], "stars": [5.0, 1.0, 3.0]}, text=["review"])
    >>> items.names, items.askable.tolist(), items.notes
    (('film',), [0, 1], ('1 of 3 rows has no text and will not be asked.',))
    """
    if not text and not columns:
        raise InputError("columns for the model to learn from", "none", "Say --text COLUMN, or --columns a,b,c.")
    n = len(table[(*text, *columns)[0]])
    if n < 2:
        raise InputError("at least two rows to choose from", f"{n}", "Label a single item by hand, or name a larger"
                         " table.")
    texts = _texts([table[name] for name in text], n)
    seen = np.array([bool(words.strip()) for words in texts])
    if text and not seen.any():
        raise InputError(f"texts in the column {', '.join(map(repr, text))}", f"{n} rows without any",
                         "Check the name of the column, and the --delimiter and --encoding of the file.")
    notes = []
    if text and not seen.all():
        missing = int(n - seen.sum())
        notes.append(f"{missing:,} of {n:,} rows {'has' if missing == 1 else 'have'} no text and will not be asked.")
    askable = np.flatnonzero(seen) if text else np.arange(n)
    if askable.size < 2:
        raise InputError("at least two rows with a text", f"{askable.size} of {n}", "Name a larger table.")
    vocabulary: Vocabulary | None = None
    parts: list[Any] = []
    names: list[str] = []
    if text:
        vocabulary, words = tf_idf(texts, tell=tell)
        if not vocabulary.words:
            raise InputError(f"words in the column {', '.join(map(repr, text))}",
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
    return LabelItems(_beside(parts), tuple(names), texts, shown, ids, askable, vocabulary,
                      _fingerprint(texts if text else (), learnt_from), tuple(notes))


def _texts(columns: Sequence[Any], n: int) -> tuple[str, ...]:
    """One text per row; several columns follow each other with a blank line between."""
    if not columns:
        return ("",) * n
    rows = zip(*columns, strict=True)
    return tuple("\n\n".join(str(cell) for cell in row if cell is not None and cell == cell) for row in rows)


def _numbers(columns: Mapping[str, Any], n: int) -> tuple[Array, list[str], list[str]]:
    """Columns brought to mean zero and sd one; a missing number becomes the mean, and another column marks it.

    Over all columns together a row has a length of about one, as a text has: one prior scale then suits both.
    """
    made, names, notes = [], [], []
    for name, cells in columns.items():
        values = _floats(name, cells)
        known = np.isfinite(values)
        if not known.any():
            raise InputError(f"numbers in the column {name!r}", f"{n} rows without any", "Leave it out.")
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
    if not made:
        raise InputError("at least one column that differs between rows",
                         f"{', '.join(map(repr, columns))}, all constant", "Name other columns.")
    return np.column_stack(made) / np.sqrt(len(made)), names, notes


def _floats(name: str, cells: Any) -> Array:
    values = np.asarray(cells)
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    out = np.empty(len(values))
    for row, cell in enumerate(values):
        if cell is None:
            out[row] = np.nan
        elif isinstance(cell, bool | int | float | np.number):
            out[row] = float(cell)
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


def _beside(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    from scipy.sparse import csr_matrix, hstack

    return hstack([csr_matrix(part) for part in parts], format="csr")


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
