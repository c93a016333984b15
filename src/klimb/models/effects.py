"""Effect curves: the mean of y along one column, with all the others held at typical values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from klimb.errors import InputError
from klimb.models import predict as predictions
from klimb.models.predict import checked_interval
from klimb.report.digits import plain
from klimb.report.records import EffectCurve

if TYPE_CHECKING:
    from klimb.formula.variables import Variable
    from klimb.models.formula_fit import Fit

POINTS = 61
MOST_RUG = 200
NOBODY = "(a level that is not in the data)"  # of a grouping factor: the average over levels


def effect_curves(fit: Fit, columns: Sequence[str] | str | None = None,
                  interval: float | None = None) -> list[EffectCurve]:
    """A curve for each of ``columns``, or for every column that the formula uses outside groupings."""
    level = fit.interval if interval is None else interval
    checked_interval(level)
    known = {variable.name: variable for variable in _shown(fit)}
    wanted = list(known) if columns is None else [columns] if isinstance(columns, str) else list(columns)
    for name in wanted:
        if name not in known:
            raise InputError("effects needs columns that the formula uses", repr(name),
                             f"They are {', '.join(known) or 'none'}.")
    return [_curve(fit, known[name], level) for name in wanted]


def _grouping_only(fit: Fit) -> set[str]:
    """Columns that appear in groupings and nowhere else."""
    inside = {column for group in fit.encoder.groups for column in group.columns}
    used = set()
    keys = {key for product in fit.encoder.fixed for key, _ in product}
    for key, factor in fit.encoder.factors.items():
        if key in keys:
            used.add(getattr(factor, "column", None) or getattr(getattr(factor, "expression", None), "column", ""))
    return inside - used


def _shown(fit: Fit) -> list[Variable]:
    hidden = _grouping_only(fit)
    return [variable for variable in fit.encoder.variables if variable.name not in hidden]


def _curve(fit: Fit, variable: Variable, level: float) -> EffectCurve:
    tail = checked_interval(level)
    numeric = variable.kind == "number"
    x: Any = _grid(variable) if numeric else np.array(variable.levels, dtype=object)
    hidden = _grouping_only(fit)
    frame: dict[str, Any] = {}
    for other in fit.encoder.variables:
        held: Any = NOBODY if other.name in hidden else other.typical
        frame[other.name] = x if other.name == variable.name else np.full(len(x), held, dtype=object if
                                                                          isinstance(held, str) else np.float64)
    f, _ = fit.latents(frame, new_levels=False)
    ordered = fit.shared.family.response == "ordered"
    columns = predictions.latent_columns(f, tail) if ordered else predictions.mean_columns(f, fit.shared, tail)
    center, lower, upper = (tuple(columns[name].tolist()) for name in ("mean", "lower", "upper"))
    shown = tuple(x.tolist()) if numeric else tuple(str(value) for value in x)
    rug, counts = _data(fit, variable)
    return EffectCurve(variable.name, shown, center, lower, upper, level, variable.name, mean_label(fit), rug, counts,
                       _note(fit, variable))


def mean_label(fit: Fit) -> str:
    """What the vertical axis shows."""
    response = fit.encoder.response
    name = response.name if response is not None else "y"
    family, levels = fit.shared.family, fit.training.levels
    if family.response == "ordered":
        return f"linear predictor of {name}"
    if family.response in ("binary", "trials"):
        return f"P({name} = {levels[1]})" if len(levels) == 2 else (
            f"P({name} = 1)" if family.response == "binary" else f"chance of {name}")
    if family.name == "stochastic_volatility":
        return f"variance of {name}"
    return f"mean of {name}"


def _grid(variable: Variable) -> Any:
    low, high = variable.minimum, variable.maximum
    if variable.whole and high - low < POINTS:
        return np.arange(low, high + 1.0)
    return np.linspace(low, high, POINTS) if high > low else np.array([low])


def _data(fit: Fit, variable: Variable) -> tuple[tuple[float, ...], tuple[int, ...]]:
    if fit.frame is None or variable.name not in fit.frame.columns:
        return (), ()
    column = fit.frame.read(variable.name)
    if variable.kind == "number":
        values = np.sort(column.number[fit.training.rows])
        step = max(len(values) // MOST_RUG, 1)
        return tuple(values[::step].tolist()), ()
    codes, labels = column.factor
    counts = dict(zip(labels, np.bincount(codes[fit.training.rows], minlength=len(labels)).tolist(), strict=True))
    return (), tuple(int(counts.get(level, 0)) for level in variable.levels)


def _note(fit: Fit, variable: Variable) -> str:
    hidden = _grouping_only(fit)
    held = []
    for other in fit.encoder.variables:
        if other.name != variable.name and other.name not in hidden:
            value = other.typical
            held.append(f"{other.name} = {value if isinstance(value, str) else plain(value)}")
    text = ", ".join(held[:4]) + (", ..." if len(held) > 4 else "")
    groups = "average level of " + ", ".join(sorted(hidden)) if hidden else ""
    return "; ".join(part for part in (text, groups) if part)
