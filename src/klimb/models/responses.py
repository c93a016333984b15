"""All responses of rows that are passed over, as few that count several times: what priors and notes ask of them.

Where they differ little (labels, counts, ratings) they are the different ones with their numbers. Otherwise three stand
for all: of a low one, the median and a high one the mean, the variance and the median are those of all responses,

    p a + 2 d m + p b = mean,    p (a - mean)^2 + 2 d (m - mean)^2 + p (b - mean)^2 = variance,    p = 1/2 - d,

and a < m < b, since no median is farther than one sd from the mean.
"""

from dataclasses import dataclass
from functools import partial, reduce

import numpy as np

from klimb.errors import InputError
from klimb.formula.factors import LeftSide
from klimb.likelihoods import Left, Likelihood, Observed
from klimb.numerics.arrays import Array, Index, slices
from klimb.rows.passed import PassedSource
from klimb.rows.summaries import NumberFacts
from klimb.rows.table import Source

MOST = 1 << 12  # different responses that are counted
FIRST = 1 << 12  # rows of which more than half must be alike, for all to be looked at
MEDIAN = 1e-9  # d: the share of the median
BY_LEVELS = ("binary", "ordered", "classes")  # of these some rows alone do not say what all mean


@dataclass(frozen=True, eq=False)
class Responses:
    """What some rows say: different responses (None where there are too many), and what all of them are like."""

    table: Array | None  # (different, columns): y, trials or the status of times
    counts: Array
    first: Index  # a row of each, for messages
    numbers: dict[str, NumberFacts]  # of y, and by name of what the site needs beside it; clean

    def plus(self, other: "Responses") -> "Responses":
        """Of the rows of both."""
        numbers = {name: own.plus(other.numbers[name]) for name, own in self.numbers.items()}
        if self.table is None or other.table is None:
            return Responses(None, self.counts[:0], self.first[:0], numbers)
        counts = np.concatenate([self.counts, other.counts])
        return _counted(np.vstack([self.table, other.table]), counts, np.concatenate([self.first, other.first]),
                        numbers)


def _counted(values: Array, counts: Array, rows: Index, numbers: dict[str, NumberFacts]) -> Responses:
    total = np.zeros(len(values), dtype=np.intp)
    for column in values.T:
        known, codes = np.unique(column, return_inverse=True)
        total = total * len(known) + codes
    _, first, codes = np.unique(total, return_index=True, return_inverse=True)
    if len(first) > MOST:
        return Responses(None, counts[:0], rows[:0], numbers)
    return Responses(values[first], np.bincount(codes, counts, len(first)).astype(np.float64), rows[first], numbers)


def _left(response: LeftSide, source: Source) -> Left:
    places = source.frame.begin + source.rows
    return Left(response.name, response.encode(source), response.levels, places, response.status(source))


def _responses(response: LeftSide, family: Likelihood, source: Source) -> Responses:
    """Of the rows of a source; errors name the rows that a family does not take."""
    left, by_levels = _left(response, source), family.response in BY_LEVELS
    values = np.column_stack([left.values, *([] if left.status is None else [left.status])])
    numbers: dict[str, NumberFacts] = {}
    if not by_levels:
        clean = family.read(left)
        numbers = {name: NumberFacts.of(own, source.weights) for name, own in {"": clean.y, **clean.aux}.items()}
    none = Responses(None, np.zeros(0), np.zeros(0, dtype=np.intp), numbers)
    if len(values) > FIRST and len(np.unique(values[:FIRST, 0])) > FIRST // 2:
        return none
    found = reduce(Responses.plus, (_counted(values[some], source.counts[some], left.rows[some], numbers)
                                    for some in slices(len(values), 1 << 16)))
    if found.table is None and by_levels:
        family.read(left)  # which says why not
    return Responses(found.table, found.counts, found.first, numbers)


def _read(response: LeftSide, family: Likelihood, source: Source) -> bool:
    family.read(_left(response, source))
    return True


def few_responses(response: LeftSide, family: Likelihood, source: PassedSource) -> Observed:
    """Few responses that stand for all, by a pass over the columns of the left side."""
    found: Responses = source.folded(partial(_responses, response, family), Responses.plus, response.columns)
    if found.table is not None:
        values, status = (found.table[:, :-1], found.table[:, -1]) if response.kind == "times" else (found.table, None)
        values = values if response.kind == "trials" else values[:, 0]
        try:
            return family.read(Left(response.name, values, response.levels, found.first, status), found.counts)
        except InputError:
            if family.response == "binary" and response.kind == "number":  # some rows alone may tell where they are
                source.folded(partial(_read, response, family), min, response.columns)
            raise
    own = found.numbers[""]
    median = own.mean
    if family.by_median and response.expression is not None:
        median = float(source.quantiles(response.expression, np.array([0.5]), own.low, own.high)[0])
    variance, away, p = own.spread**2 / own.total, median - own.mean, 0.5 - MEDIAN
    centre = -MEDIAN * away / p
    reach = np.sqrt(max((variance - 2.0 * MEDIAN * away**2) / (2.0 * p) - centre**2, 0.0))
    y = np.array([own.mean + centre - reach, median, own.mean + centre + reach])
    aux = {name: np.full(3, facts.mean) for name, facts in found.numbers.items() if name}
    return Observed(y, aux, own.total * np.array([p, 2.0 * MEDIAN, p]), name=response.name)
