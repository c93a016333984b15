"""Several fits to the same data, side by side."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from klimb.errors import InputError, require
from klimb.models.loo import LeaveOneOut
from klimb.report.text import plain, table

if TYPE_CHECKING:
    from klimb.models.fit import Fit


@dataclass(frozen=True)
class ComparedFit:
    """One line: ``difference`` is in leave-one-out sum from the best, ``difference_se`` its standard error."""

    name: str
    bound: float
    elpd: float
    se: float
    difference: float
    difference_se: float
    status: str


@dataclass(frozen=True)
class Comparison:
    """The fits, best leave-one-out sum first. ``print`` it, or read ``rows``."""

    rows: tuple[ComparedFit, ...]
    n: int

    def __str__(self) -> str:
        cells = [[row.name, plain(row.bound, 6), plain(row.elpd, 6), plain(row.se, 2),
                  "" if i == 0 else plain(row.difference, 3), "" if i == 0 else plain(row.difference_se, 2)]
                 for i, row in enumerate(self.rows)]
        return table(["model", "bound", "LOO", "se", "difference", "se"], cells)


def compare(*fits: Any, **named: Any) -> Comparison:
    """Compare any fits to the same rows of the same response: bound, leave-one-out sum, differences with errors.

    Parameters
    ----------
    *fits : fits, or one dict of fits by name
        A fit without a name goes by its formula.
    **named : fits
        Fits by name.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal(200)
    >>> data = {"x": x, "y": rng.poisson(np.exp(0.5 * x))}
    >>> found = klimb.compare(klimb.fit("y ~ x", data, "poisson"), klimb.fit("y ~ 1", data, "poisson"))
    >>> [row.name for row in found.rows], bool(found.rows[1].difference < -3 * found.rows[1].difference_se)
    (['y ~ x', 'y ~ 1'], True)
    """
    every = _by_name(fits, named)
    names = list(every)
    first = every[names[0]]
    for name in names[1:]:
        _check_same_data(names[0], first, name, every[name])
    loos = {name: fit.loo() for name, fit in every.items()}
    best = max(names, key=lambda name: loos[name].elpd)
    rows = []
    for name in names:
        # The difference is a sum over rows like each of the two, with the same copies of rows.
        gap = LeaveOneOut(loos[name].log_density - loos[best].log_density, loos[name].weights,
                          sampled_from=loos[name].sampled_from)
        rows.append(ComparedFit(name, every[name].bound, loos[name].elpd, loos[name].se, gap.elpd,
                                gap.se if name != best else 0.0, every[name].status.name))
    return Comparison(tuple(sorted(rows, key=lambda row: -row.elpd)), first.n)


def _by_name(fits: tuple[Any, ...], named: Mapping[str, Any]) -> "dict[str, Fit]":
    """All fits by name; a title that stands twice gets a number."""
    every: dict[str, Any] = dict(fits[0]) if len(fits) == 1 and isinstance(fits[0], Mapping) else {}
    for fit in () if every else fits:
        title, count = getattr(fit, "title", ""), 1
        name = title
        while name in every:
            count += 1
            name = f"{title} ({count})"
        every[name] = fit
    every |= named
    wrong = next((repr(fit) for fit in every.values() if not hasattr(fit, "loo")), None)
    require(wrong is None and every, "compare needs fits", wrong or "none",
            'Pass what klimb.fit returns: compare(fit1, fit2), or {"a": fit1, "b": fit2}.')
    return every


def _check_same_data(name: str, one: "Fit", other_name: str, other: "Fit") -> None:
    cells = [np.zeros(0) if fit.observed.copies is None else fit.observed.copies for fit in (one, other)]
    if one.n == other.n and not np.array_equal(cells[0], cells[1]):
        raise InputError("compare needs fits to cells of the same columns, or to rows",
                         ", ".join(f"{f'{len(own):,} cells' if len(own) else 'rows'} in {label!r}"
                                   for own, label in zip(cells, (name, other_name), strict=True)),
                         'Fit all with cells=[...], the columns that any of them names, or with cells=False.')
    if one.n == other.n and one.observed.sampled_from and not np.array_equal(one.observed.y, other.observed.y):
        raise InputError("compare needs leave-one-out sums over the same rows",
                         "samples of rows that are not in memory, chosen by the columns that each formula names",
                         "Compare fit.bound, which counts all rows, or name the same columns in all formulas.")
    if one.n != other.n or not np.array_equal(one.observed.places, other.observed.places):
        raise InputError("compare needs fits to the same rows", f"{one.n} rows in {name!r}, {other.n} in {other_name!r}"
                         if one.n != other.n else f"other rows in {other_name!r} than in {name!r}",
                         "Drop rows with missing values before fitting, so that all models see the same ones.")
    a, b = one.observed.name, other.observed.name
    require(a == b, "compare needs one response", f"{a!r} in {name!r}, {b!r} in {other_name!r}",
            "Densities of different quantities cannot be compared.")
    if not np.array_equal(one.observed.y, other.observed.y):
        raise InputError("compare needs the same response values", f"others in {other_name!r} than in {name!r}",
                         "Densities of different data (or of counts and levels) cannot be compared.")
