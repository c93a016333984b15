"""The front door: ``klimb.fit(formula, data, family)`` and what it returns.

    fit = klimb.fit("y ~ x + (1 | g)", df, family="bernoulli")
    print(fit)
    fit.predict(new, interval=0.9)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import numpy as np

from klimb.errors import InputError
from klimb.frontend import predict as predictions
from klimb.frontend import tables
from klimb.frontend.design import GroupTerm
from klimb.frontend.encoder import Encoder, encode
from klimb.frontend.families import resolve_family
from klimb.frontend.frames import Frame, make_frame, read_frame
from klimb.frontend.loo import LeaveOneOut, leave_one_out
from klimb.frontend.model import Shared
from klimb.frontend.outcomes import read_response
from klimb.frontend.predict import Component, Latents, PredictionKind, checked_interval
from klimb.frontend.setup import Setup, build
from klimb.frontend.solve import HyperMode, Solution, solve
from klimb.infer.result import Result, Status
from klimb.latents.mixed import sample_arrow
from klimb.numerics.arrays import Array, as_float
from klimb.report.records import BoundTrace, CoefficientRow

MOST_CHECKED = 300  # columns up to which collinear ones are looked for


@final
@dataclass(frozen=True, eq=False)
class Training:
    """What is kept of the data of the fit: the response, and which rows of the frame were used."""

    y: Array
    rows: Any
    dropped: int
    levels: tuple[str, ...] = ()
    trials: Array | None = None
    weights: Array | None = None

    @property
    def n(self) -> int:
        return len(self.y)


@final
@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted model. ``print(fit)`` shows the table; every method answers from what is kept, without fitting again."""

    formula: str
    encoder: Encoder
    shared: Shared  # layout, family, priors and parameters of the model
    components: tuple[Component, ...]
    training: Training
    priors: dict[str, str]
    bound: float  # lower bound on the log evidence; averaged over the parameters behind the coefficients
    mode: str  # how those were treated: "none", "optimise" or "integrate"
    status: Status
    trace: BoundTrace
    n_fits: int
    interval: float = 0.9
    notes: tuple[str, ...] = ()
    spread: Array = field(default_factory=lambda: np.zeros(0))  # sd of each parameter in theta, where it was chosen
    frame: Frame | None = None  # the data it was fitted to, where they are at hand
    solution: Solution | None = None  # the engine's results, where they are at hand
    kept_loo: LeaveOneOut | None = None  # of a fit that was loaded

    # -- numbers

    @property
    def converged(self) -> bool:
        return self.status is Status.CONVERGED

    @property
    def family(self) -> str:
        """The family, its link and its known parameters, in words."""
        return self.shared.family.label

    @property
    def n(self) -> int:
        """Rows used."""
        return self.training.n

    @property
    def result(self) -> Result:
        """The engine's result at the best parameters."""
        if self.solution is None:
            raise InputError("the engine's result is kept only in the session of the fit", "a fit from a file",
                             "Fit again to look at the engine's own records.")
        return self.solution.results[self.solution.best]

    @cached_property
    def trust(self) -> Any:
        """Whether the Gaussian posterior can be believed; None where that was not looked at."""
        return getattr(self.result, "trust", None) if self.solution is not None else None

    def coefficient_rows(self, interval: float | None = None) -> list[CoefficientRow]:
        """The coefficients as records: fixed effects, and the cut points of an ordinal response."""
        tail = checked_interval(self.interval if interval is None else interval)
        return [*tables.fixed_rows(self.shared, self.components, tail),
                *tables.cut_rows(self.shared, self.components, tail, self.spread)]

    def parameter_rows(self, interval: float | None = None) -> list[CoefficientRow]:
        """Standard deviations, correlations, lengthscales and dispersions as records."""
        tail = checked_interval(self.interval if interval is None else interval)
        return tables.hyper_rows(self.shared, self.components, tail, self.spread)

    @property
    def coefficients(self) -> Any:
        """A frame of the data's own type: name, mean, sd, lower, upper, positive (the chance of a value above 0)."""
        return self._row_frame(self.coefficient_rows())

    def summary(self, interval: float | None = None) -> Any:
        """All rows of the table as a frame of the data's own type."""
        return self._row_frame([*self.coefficient_rows(interval), *self.parameter_rows(interval)], kinds=True)

    def random_effects(self, group: str | None = None, interval: float | None = None) -> Any:
        """Deviations of the levels of one grouping factor: level, column, mean, sd, lower, upper."""
        term = self.group_term(group)
        tail = checked_interval(self.interval if interval is None else interval)
        rows = tables.level_rows(self.shared, self.components, term, tail)
        columns = {"level": np.repeat(np.array(term.levels, dtype=object), term.size),
                   "column": np.tile(np.array(term.columns, dtype=object), len(term.levels))}
        return self._frame({**columns, **_numbers(rows)})

    def group_term(self, group: str | None) -> GroupTerm:
        """The grouping factor of this name, or the only one."""
        terms = {term.name: term for term in self.shared.layout.groups}
        if group is None and len(terms) == 1:
            return next(iter(terms.values()))
        if group not in terms:
            raise InputError("random_effects needs the name of a grouping factor", repr(group),
                             f"The model has {', '.join(terms) or 'none'}.")
        return terms[group]

    @cached_property
    def _loo(self) -> LeaveOneOut:
        if self.kept_loo is not None:
            return self.kept_loo
        assert self.solution is not None
        return leave_one_out(self.solution, self.training.y, self.training.weights)

    def loo(self) -> LeaveOneOut:
        """Leave-one-out predictive densities, without fitting again."""
        return self._loo

    # -- predictions

    def predict(self, new: Any = None, *, interval: float | None = None, kind: PredictionKind = "mean") -> Any:
        """Predictions for the rows of a frame, as a frame of the same type with as many rows.

        Parameters
        ----------
        new : data frame or dict of columns
            The data of the fit where it is left out. A level of a grouping factor that was not there at the fit gets
            the prior of a new level.
        interval : float
            Mass of the central intervals; that of the fit unless given.
        kind : "mean", "latent", "response" or "all"
            ``mean``: the mean of y (a probability for two outcomes, P(level) columns for an ordinal response), as far
            as it is known; ``latent``: f, the linear predictor; ``response``: y itself, noise included. ``all`` has the
            columns of each: ``f_mean, ..., mean, ..., y_mean, ...``.

        Returns
        -------
        frame
            Columns ``mean, sd, lower, upper``; NaN in rows with a missing value.
        """
        tail = checked_interval(self.interval if interval is None else interval)
        if kind not in ("mean", "latent", "response", "all"):
            raise InputError('kind must be "mean", "latent", "response" or "all"', repr(kind),
                             "mean is the default; latent is the linear predictor, response is y itself.")
        frame = self._new_frame(new)
        f, rows = self.latents(frame)
        columns: dict[str, Array] = {}
        if kind in ("latent", "all"):
            columns |= _prefixed("f_" if kind == "all" else "", predictions.latent_columns(f, tail))
        if kind in ("mean", "all"):
            ordered = self.shared.family.response == "ordered"
            columns |= (predictions.level_columns(f, self.training.levels) if ordered
                        else predictions.mean_columns(f, self.shared, tail))
        if kind in ("response", "all"):
            columns |= _prefixed("y_" if kind == "all" else "", predictions.response_columns(f, tail))
        full = {name: np.full(frame.n, np.nan) for name in columns}
        for name, values in columns.items():
            full[name][rows] = values
        return make_frame(full, frame)

    def latents(self, new: Any, *, new_levels: bool = True) -> tuple[Latents, Any]:
        """f at the complete rows of a frame, one row per component, and which rows those are."""
        frame = read_frame(new)
        encoded = self.encoder.encode(frame, missing="drop")
        rows = self.shared.layout.rows(encoded)
        trials = self._trials(frame, encoded.rows)
        f = predictions.predict_latents(self.shared, self.components, rows, trials, new_levels=new_levels)
        return f, encoded.rows

    def sample(self, n: int = 1000, new: Any = None, *, seed: int = 0) -> Array:
        """``n`` draws of f at the rows of a frame (complete ones), one draw a row; the same for the same seed."""
        encoded = self.encoder.encode(self._new_frame(new), missing="drop")
        rows = self.shared.layout.rows(encoded)
        return predictions.draw_latents(self.shared, self.components, rows, n, np.random.default_rng(seed))

    def sample_coefficients(self, n: int = 1000, *, seed: int = 0) -> dict[str, Array]:
        """``n`` joint draws of the coefficients, by name."""
        rng = np.random.default_rng(seed)
        T = tables.fixed_map(self.shared)
        counts = rng.multinomial(n, np.array([part.weight for part in self.components]))
        width = T.shape[1]
        draws = [sample_arrow(part.q, int(count), rng)[:, :width] @ T.T
                 for part, count in zip(self.components, counts, strict=True) if count]
        values = rng.permutation(np.concatenate(draws)) if draws else np.zeros((0, len(T)))
        return {name: values[:, j] for j, name in enumerate(self.shared.layout.fixed)}

    # -- words

    def __str__(self) -> str:
        from klimb.frontend.summary import summary_text

        return summary_text(self)

    def __repr__(self) -> str:
        return f"Fit({self.formula!r}, family={self.shared.family.name!r}, n={self.n}, bound={self.bound:.6g})"

    # -- small parts

    def _row_frame(self, rows: Sequence[CoefficientRow], kinds: bool = False) -> Any:
        columns: dict[str, Any] = {"name": np.array([row.name for row in rows], dtype=object), **_numbers(rows)}
        columns["positive"] = np.array([np.nan if row.positive is None else row.positive for row in rows])
        if kinds:
            columns["kind"] = np.array([row.kind for row in rows], dtype=object)
        return self._frame(columns)

    def _frame(self, columns: Mapping[str, Any]) -> Any:
        like = self.frame if self.frame is not None else read_frame({})
        if like.kind in ("dict", "numpy"):
            return dict(columns)
        return make_frame(columns, like, rows=np.zeros(0, dtype=np.intp))

    def _new_frame(self, new: Any) -> Frame:
        if new is not None:
            return read_frame(new)
        if self.frame is None:
            raise InputError("a fit from a file does not hold its data", "no data", "Pass the frame to predict for.")
        return self.frame

    def _trials(self, frame: Frame, rows: Any) -> Array | None:
        """Trials at the rows, where the family has them and the frame too."""
        response = self.encoder.response
        if response is None or response.kind != "trials" or any(c not in frame.columns for c in response.columns):
            return None
        first, second = (frame.column(name)[rows].astype(np.float64) for name in response.columns)
        return np.asarray(first + second if response.failures else second)


def _numbers(rows: Sequence[CoefficientRow]) -> dict[str, Array]:
    return {name: np.array([getattr(row, name) for row in rows]) for name in ("mean", "sd", "lower", "upper")}


def _prefixed(prefix: str, columns: Mapping[str, Array]) -> dict[str, Array]:
    return {prefix + name: values for name, values in columns.items()}


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
    notes = _collinear_notes(encoded)
    from klimb.frontend.progress import reporter

    with reporter(progress, setup.model.theta.size) as heard:
        solution = solve(setup.model, setup.y, hyper=hyper, callback=heard)
    training = Training(response.y, encoded.rows, encoded.dropped, response.levels, response.trials, row_weights)
    return _assemble(encoder, setup, solution, training, float(interval), notes, frame)


def _assemble(encoder: Encoder, setup: Setup, solution: Solution, training: Training, interval: float,
              notes: tuple[str, ...], frame: Frame) -> Fit:
    components = tuple(
        Component(float(weight), model.full, model.weights_of(result.posterior))
        for weight, model, result in zip(solution.weights, solution.models, solution.results, strict=True)
    )
    history = solution.results[solution.best].history
    trace = BoundTrace(tuple(history.bound.tolist()), tuple(history.stationarity.tolist()), history.rule)
    return Fit(encoder.formula, encoder, setup.model.shared, components, training, setup.priors, solution.bound,
               solution.mode, solution.status, trace, solution.n_fits, interval,
               (*notes, *solution.results[solution.best].notes), solution.spread, frame, solution)


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


def _collinear_notes(encoded: Any) -> tuple[str, ...]:
    """Columns that the data can not tell apart: their coefficients rest on the prior."""
    matrix, names = encoded.fixed.matrix, encoded.fixed.names
    if not 0 < len(names) <= MOST_CHECKED:
        return ()
    from klimb.frontend.collinear import collinear

    found = collinear(matrix, names)
    more = [f"{len(found) - 3} more columns are not identified either."] if len(found) > 3 else []
    return (*found[:3], *more)

