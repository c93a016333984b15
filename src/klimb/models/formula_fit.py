"""`Fit`: what ``klimb.fit`` returns. It answers from what it keeps, and is thin: the work is in its neighbours.

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
from klimb.infer.result import Result, Status
from klimb.models import predict as predictions
from klimb.models import tables
from klimb.models.formula_model import Shared
from klimb.models.loo import LeaveOneOut, leave_one_out
from klimb.models.predict import Component, Latents, PredictionKind, checked_interval
from klimb.models.solve import Solution
from klimb.numerics.arrays import Array
from klimb.report.records import BoundTrace, CoefficientRow, EffectCurve, FitReport, TrustSummary
from klimb.rows.frames import Frame, make_frame, read_frame
from klimb.terms.design import GroupTerm
from klimb.terms.encoder import Encoder


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
    quantiles: Array = field(default_factory=lambda: np.zeros((0, 0)))  # of theta, at the scores of `explore`
    covariance: Array = field(default_factory=lambda: np.zeros((0, 0)))  # of theta, where it was chosen
    frame: Frame | None = None  # the data it was fitted to, where they are at hand
    solution: Solution | None = None  # the engine's results, where they are at hand
    kept_loo: LeaveOneOut | None = None  # of a fit that was loaded
    kept_trust: TrustSummary | None = None

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
        return self.solution.result

    @cached_property
    def trust(self) -> Any:
        """Whether the Gaussian posterior can be believed; None where that was not looked at."""
        return self.result.trust if self.solution is not None else None

    @cached_property
    def trust_summary(self) -> TrustSummary:
        """The verdict in words and numbers, of a fit from a file too."""
        from klimb.models.reporting import trust_record

        return self.kept_trust if self.kept_trust is not None else trust_record(self.trust)

    def coefficient_rows(self, interval: float | None = None) -> list[CoefficientRow]:
        """The coefficients as records: fixed effects, and the cut points of an ordinal response."""
        tail = checked_interval(self.interval if interval is None else interval)
        return [*tables.fixed_rows(self.shared, self.components, tail),
                *tables.cut_rows(self.shared, self.components, tail, self.covariance)]

    def parameter_rows(self, interval: float | None = None) -> list[CoefficientRow]:
        """Standard deviations, correlations, lengthscales and dispersions as records."""
        tail = checked_interval(self.interval if interval is None else interval)
        return tables.hyper_rows(self.shared, self.components, tail, self.quantiles)

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
        if kind == "response" or (kind == "all" and predictions.has_moments(f)):
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
        from klimb.models.draws import draw_latents

        encoded = self.encoder.encode(self._new_frame(new), missing="drop")
        rows = self.shared.layout.rows(encoded)
        return draw_latents(self.shared, self.components, rows, n, np.random.default_rng(seed))

    def draws(self, n: int = 1000, *, seed: int = 0) -> dict[str, Array]:
        """``n`` joint draws of coefficients, parameters and levels, by name; the same for the same seed."""
        from klimb.models.draws import draw_posterior

        return draw_posterior(self.shared, self.components, self.covariance, n, np.random.default_rng(seed))

    # -- pictures and files

    def effects(self, columns: Sequence[str] | str | None = None, interval: float | None = None) -> list[EffectCurve]:
        """The mean of y along each column, the others held at typical values: the numbers behind ``plot_effects``."""
        from klimb.models.effects import effect_curves

        return effect_curves(self, columns, interval)

    def report(self, *, title: str = "", reproduce: Sequence[str] = (), source: str = "",
               interval: float | None = None) -> FitReport:
        """Everything that is said of the fit, as records: what the HTML page is drawn from."""
        from klimb.models.reporting import fit_report

        return fit_report(self, title=title, reproduce=reproduce, source=source, interval=interval)

    def plot_effects(self, columns: Sequence[str] | str | None = None, axes: Any = None) -> Any:
        """The effect curves with their bands; needs matplotlib."""
        from klimb.report.plots import plot_effects

        return plot_effects(self.effects(columns), axes)

    def plot_coefficients(self, ax: Any = None) -> Any:
        """Coefficients with their intervals; needs matplotlib."""
        from klimb.report.plots import plot_coefficients

        return plot_coefficients(self.coefficient_rows(), self.interval, ax)

    def plot_bound(self, ax: Any = None) -> Any:
        """How the bound rose during the last fit; needs matplotlib."""
        from klimb.report.plots import plot_bound

        return plot_bound(self.trace, ax)

    def plot_calibration(self, ax: Any = None) -> Any:
        """Predicted against observed means, each row predicted from the others; needs matplotlib."""
        from klimb.models.reporting import calibration_curve
        from klimb.report.plots import plot_calibration

        curve = calibration_curve(self)
        if curve is None:
            raise InputError("a calibration curve needs a few dozen rows", f"{self.n}", "Look at fit.loo() instead.")
        return plot_calibration(curve, ax)

    def to_arviz(self, draws: int = 1000, chains: int = 4, seed: int = 0) -> Any:
        """An ArviZ InferenceData of independent draws; needs arviz."""
        from klimb.models.arviz import to_arviz

        return to_arviz(self, draws, chains, seed)

    def to_state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """The fit as a JSON header and named arrays."""
        from klimb.models.state import to_state

        return to_state(self)

    @classmethod
    def from_state(cls, header: dict[str, Any], arrays: Mapping[str, Any]) -> Fit:
        """The fit whose ``to_state`` gave these."""
        from klimb.models.state import from_state

        return from_state(header, dict(arrays))

    def save(self, path: Any) -> None:
        """Write the fit to a file that ``klimb.load`` reads; it holds the response, not the other columns."""
        from klimb.models.files import write_container
        from klimb.models.state import holds

        header, arrays = self.to_state()
        write_container(path, "fit", header, arrays, holds=holds(self))

    # -- words

    def __str__(self) -> str:
        from klimb.models.summary import summary_text

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
