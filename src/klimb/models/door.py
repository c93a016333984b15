"""The front door: ``klimb.fit(formula, data, family)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from klimb.errors import InputError
from klimb.likelihoods.families import Family, resolve_family
from klimb.likelihoods.outcomes import read_response
from klimb.models.formula_fit import Fit, Training
from klimb.models.predict import Component, checked_interval
from klimb.models.progress import reporter
from klimb.models.setup import Setup, build
from klimb.models.solve import HyperMode, Solution, solve
from klimb.numerics.arrays import Array, as_float
from klimb.report.records import PARAMETERS, BoundTrace
from klimb.rows.frames import Frame, read_frame
from klimb.terms.encoder import Encoder, encode

MOST_CHECKED = 300  # columns up to which collinear ones are looked for


def fit(formula: str, data: Any, family: Any = "gaussian", *, link: str | None = None, likelihood: Any = None,
        priors: Mapping[str, Any] | None = None, hyper: HyperMode = "auto", weights: Any = None,
        missing: str = "drop", interval: float = 0.9, progress: bool | None = None) -> Fit:
    """Fit a Bayesian model by formula.

    Parameters
    ----------
    formula : str
        Such as ``"y ~ x + z + (1 | g)"``: see docs/formula.md.
    data : data frame or dict of columns
        pandas, polars, pyarrow, or a dict of arrays.
    family : str, dict or klimb.sites.Site
        ``"gaussian"``, ``"bernoulli"``, ``"poisson"``, ...; ``"student_t(df=4)"`` holds a parameter.
    link : str
        Where a family has several: ``"logit"``, ``"probit"``, ``"cloglog"``.
    likelihood : callable
        Instead of a family: the log density of y given f, ``lambda y, f: -abs(y - f)``.
    priors : dict
        By name, for what shall not have its default: ``{"x": klimb.priors.normal(0, 1), "sd(g)": "half_normal(1)"}``;
        ``"fixed"`` stands for all coefficients but the intercept.
    hyper : "auto", "optimise" or "integrate"
        Whether standard deviations, dispersions and the like are chosen by the evidence or averaged over.
    weights : column name or array
        How often each row counts.
    missing : "drop" or "error"
    interval : float
        Mass of the intervals in tables and predictions.
    progress : bool
        Whether to show progress on stderr; by default where that is a terminal and the work takes over a second.

    Returns
    -------
    Fit

    Examples
    --------
    >>> import numpy as np, klimb
    >>> rng = np.random.default_rng(1)
    >>> x = rng.standard_normal(100)
    >>> fit = klimb.fit("y ~ x", {"x": x, "y": rng.poisson(np.exp(1 + 0.5 * x))}, family="poisson")
    >>> fit.coefficients["mean"].round(1).tolist()
    [0.9, 0.6]
    >>> fit.predict({"x": [0.0, 1.0]})["mean"].round(1).tolist()
    [2.5, 4.6]
    """
    checked_interval(interval)
    resolved = resolve_family(family, link, likelihood)
    frame = read_frame(data)
    encoder, encoded = encode(formula, frame, missing=missing)
    if encoder.response is None:
        raise InputError("a fit needs a response on the left of ~", repr(formula), "Write y ~ ..., say.")
    response = read_response(encoded.response, resolved, encoded.rows, encoder.response.levels)
    row_weights = _row_weights(weights, frame, encoded.rows)
    setup = build(encoded, response, resolved, priors=priors, weights=row_weights)
    notes = (*_order_notes(response.levels, resolved, frame, encoder), *_collinear_notes(encoded))
    with reporter(progress) as heard:
        solution = solve(setup.model, setup.y, hyper=hyper, hear=heard)
    training = Training(response.y, encoded.rows, encoded.dropped, response.levels, response.trials, row_weights)
    return _assemble(encoder, setup, solution, training, float(interval), notes, frame)


def _assemble(encoder: Encoder, setup: Setup, solution: Solution, training: Training, interval: float,
              notes: tuple[str, ...], frame: Frame) -> Fit:
    components = tuple(Component(float(weight), point.full, point.q)
                       for weight, point in zip(solution.weights, solution.points, strict=True))
    history = solution.result.history
    if len(solution.path) > 1:  # the last fit began where the one before ended: the climb was that of the parameters
        trace = BoundTrace(solution.path, (), (PARAMETERS,) * len(solution.path))
    else:
        trace = BoundTrace(tuple(history.bound.tolist()), tuple(history.stationarity.tolist()), history.rule)
    return Fit(encoder.formula, encoder, setup.model.shared, components, training, setup.priors, solution.bound,
               solution.mode, solution.status, trace, solution.n_fits, interval,
               (*notes, *solution.result.notes), solution.quantiles, solution.covariance, frame, solution)


def _row_weights(weights: Any, frame: Frame, rows: Any) -> Array | None:
    if weights is None:
        return None
    values = frame.column(weights) if isinstance(weights, str) else weights
    array = as_float(values, "weights", ndim=1)
    if len(array) != frame.n:
        raise InputError(f"weights must have one entry per row ({frame.n})", f"{len(array)}", "Pass one per row.")
    kept: Array = array[rows]
    if (kept < 0).any():
        i = int(np.argmin(kept))
        raise InputError("weights must not be negative", f"{kept[i]:g} at row {int(rows[i])}", "0 leaves a row out.")
    if not kept.any():
        raise InputError("some weight must be positive", "none", "Rows with weight 0 are left out.")
    return kept


def _order_notes(levels: tuple[str, ...], family: Family, frame: Frame, encoder: Encoder) -> tuple[str, ...]:
    """Ordered levels that nobody has put in order."""
    response = encoder.response
    if family.response != "ordered" or family.levels or response is None or response.kind != "levels":
        return ()
    if frame.read(response.columns[0]).kind != "text":
        return ()
    return (f"levels of {response.name} are in alphabetical order, {' < '.join(levels)}: pass an ordered category, or "
            'family={"name": "ordinal", "levels": [...]}, for another one.',)


def _collinear_notes(encoded: Any) -> tuple[str, ...]:
    """Columns that the data cannot tell apart: their coefficients rest on the prior."""
    matrix, names = encoded.fixed.matrix, encoded.fixed.names
    if not 0 < len(names) <= MOST_CHECKED:
        return ()
    from klimb.terms.collinear import collinear

    found = collinear(matrix, names)
    more = [f"{len(found) - 3} more columns are not identified either."] if len(found) > 3 else []
    return (*found[:3], *more)

