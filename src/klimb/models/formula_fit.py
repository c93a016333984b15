"""`FormulaFit`: a fit that has terms, what ``klimb.fit`` returns.

    fit = klimb.fit("y ~ x + (1 | g)", df, family="bernoulli")
    print(fit)
    fit.predict(new, interval=0.9)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from klimb._stored import SKIPPED, stored
from klimb.errors import InputError, require
from klimb.formula.factors import INTERCEPT
from klimb.models.components import Components, Latents
from klimb.models.fit import Fit, numbers_of
from klimb.models.linear import LinearModel
from klimb.models.linear_parts import LinearRows, named_term
from klimb.models.prediction import PredictionKind, by_blocks, in_place, is_elsewhere
from klimb.models.tabulate import cut_rows, level_functionals, level_moments, linear_rows, mixture_rows, rows_as_printed
from klimb.numerics.arrays import Array
from klimb.report.records import CoefficientRow, EffectCurve, FitReport
from klimb.rows.frames import Frame, counted_frame, make_frame, read_frame
from klimb.terms.encoder import Encoder
from klimb.terms.group import Group
from klimb.theta import RowKind

if TYPE_CHECKING:
    from klimb.models.stan import StanProgram


@stored("fit.formula")
@dataclass(frozen=True, eq=False, repr=False)
class FormulaFit(Fit):
    """A fitted formula: coefficients, random effects, effects, and all that every fit has."""

    encoder: Encoder = None  # type: ignore[assignment]
    priors: dict[str, str] = field(default_factory=dict)  # in words, by name
    frame: Frame | None = field(default=None, metadata={SKIPPED: False})  # the data, where they are at hand

    @property
    def formula(self) -> str:
        return self.encoder.formula

    @property
    def title(self) -> str:
        return self.formula

    def sizes(self) -> tuple[str, ...]:
        status = None if self.data is None else self.data.aux.get("status")
        events = () if status is None else (f"{int(status.sum())} events",)
        return (*events, *(f"{term.n_levels} levels of {term.name}" for term in self.groups))

    def prior_words(self) -> dict[str, str]:
        return self.priors

    @property
    def cells(self) -> Any:
        """Rows that differ, with how many there are of each in the last column: a frame. None for a fit by rows."""
        return None if self.frame is None or self.frame.copies is None else counted_frame(self.frame)

    @property
    def linear(self) -> LinearModel:
        """The model, which is linear in its weights."""
        assert isinstance(self.model, LinearModel)
        return self.model

    # -- numbers

    def coefficient_rows(self, interval: float | None = None) -> list[CoefficientRow]:
        """The coefficients as records: what terms report, and the cut points of an ordinal response."""
        tail = self._tail(interval)
        rows: list[CoefficientRow] = []
        for names, number, at, T, kind in self._reported():
            L = np.zeros((len(names), self._n_weights_of_field))
            L[:, at] = T
            components = self._of_field(number)
            rows += linear_rows(names, components, self.linear.weight_rows(L), tail, kind)
        for block in self.model.theta.blocks:
            if block.kind == "cut":
                shift = self.linear.weight_rows(self._level_shift[None])
                rows += cut_rows(self.model.theta, block, self.components, self._spread, shift, tail)
        return rows

    def _of_field(self, number: int) -> Components:
        """The posterior of the weights of one latent field."""
        if len(self.model.likelihood.fields) == 1:
            return self.components
        parts: Any = self.components.parts
        size = self._n_weights_of_field
        own = slice(number * size, (number + 1) * size)
        return replace(self.components, parts=tuple(part.parts[number] for part in parts),
                       third=self.components.third[:, own, own, own])

    def _reported(self) -> list[tuple[list[str], int, Any, Array, RowKind]]:
        """What every term reports for every latent field: names, the field, which of its weights, their map, the kind.
        """
        zero = self._at_zero
        found: list[tuple[list[str], int, Any, Array, RowKind]] = []
        for number, prefix in enumerate(self._field_prefixes):
            for term, place in zip(self.linear.terms, self.linear.places, strict=True):
                reported = term.report()
                if reported is None or not reported.names:
                    continue
                at = np.arange(place.start, place.stop)
                T = np.eye(len(at)) if reported.map is None else reported.map
                if INTERCEPT in reported.names and zero.any():
                    others = np.flatnonzero(zero)
                    T = np.hstack([T, np.zeros((len(T), len(others)))])
                    T[reported.names.index(INTERCEPT), len(at) :] = zero[others]
                    at = np.concatenate([at, others])
                found.append(([prefix + own for own in reported.names], number, at, T, reported.kind))
        return found

    @property
    def _at_zero(self) -> Array:
        """What centred columns other than the fixed ones take from the level of f where they are 0."""
        total = np.zeros(self._n_weights_of_field)
        for term, place in zip(self.linear.terms, self.linear.places, strict=True):
            reported = term.report()
            if reported is not None and reported.at_zero is not None:
                total[place] = reported.at_zero
        return total

    @property
    def _level_shift(self) -> Array:
        """By how much cut points move to speak of columns as they are, as a row over the weights."""
        shift = -self._at_zero
        shift[: self.encoder.fixed.size] = self.encoder.fixed.centre
        return shift

    @property
    def _n_weights_of_field(self) -> int:
        return self.components.parts[0].size // len(self.model.likelihood.fields)

    @property
    def coefficients(self) -> Any:
        """A frame of the data's own type: name, mean, sd, lower, upper, positive (probability above 0)."""
        return self._row_frame(self.coefficient_rows())

    @property
    def covariance(self) -> Any:
        """The joint posterior covariance of the coefficients, hyperparameters integrated out where they were.

        A frame of the data's own type: ``name``, then a column for every coefficient, in the order of `coefficients`.

        >>> import numpy as np, klimb
        >>> x = np.array([0.0, 1.0, 2.0, 4.0])
        >>> fit = klimb.fit("y ~ x", {"x": x, "y": np.array([1.0, 2.0, 2.0, 5.0])})
        >>> list(fit.covariance)
        ['name', 'Intercept', 'x']
        >>> bool(np.isclose(fit.covariance["x"][1] ** 0.5, fit.coefficients["sd"][1]))
        True
        """
        from klimb.models.joint import joint_covariance

        names, matrix = joint_covariance(self)
        label = "name"
        while label in names:
            label += "_"
        return self._frame({label: np.array(names, dtype=object), **dict(zip(names, matrix.T, strict=True))})

    def log_odds(self, against: str, interval: float | None = None) -> Any:
        """Coefficients of the log odds of every other class against one: what regression tables show of classes.

        A frame like `coefficients`, of the differences of the coefficients of two classes. The data tell these; what
        all classes have in common is known by the prior alone, and is in the sd of each coefficient by itself.

        >>> import numpy as np, klimb
        >>> x = np.linspace(-2.0, 2.0, 60)
        >>> kind = np.array(["a", "b"])[(x + np.sin(40.0 * x) > 0.0).astype(int)]
        >>> fit = klimb.fit("kind ~ x", {"x": x, "kind": kind}, family="categorical")
        >>> fit.log_odds("a")["name"].tolist()
        ['b: Intercept', 'b: x']
        """
        from klimb.models.joint import log_odds_rows

        return self._row_frame(log_odds_rows(self, against, self._tail(interval)))

    def random_effects(self, group: str | None = None, interval: float | None = None) -> Any:
        """Deviations of the levels of one grouping factor: level, column, mean, sd, lower, upper."""
        term = self.group_term(group)
        rows = self.level_rows(term, interval)
        k = len(term.columns)
        columns = {"level": np.tile(np.repeat(np.array(term.levels, dtype=object), k), len(self._field_prefixes)),
                   "column": np.concatenate([np.tile(np.array([prefix + column for column in term.columns],
                                                              dtype=object), term.n_levels)
                                             for prefix in self._field_prefixes])}
        return self._frame({**columns, **numbers_of(rows)})

    def level_rows(self, term: Group, interval: float | None = None) -> list[CoefficientRow]:
        """Deviations of the levels of a group as records, one per level and column."""
        tail = self._tail(interval)
        place = self.linear.places[self.linear.terms.index(term)]
        found: list[CoefficientRow] = []
        rows = level_functionals(self.linear, place, term) if self.components.bends else None
        for number, prefix in enumerate(self._field_prefixes):
            components = self._of_field(number)
            pairs = [level_moments(part, place, term) for part in components.parts]
            means, sds = np.array([m for m, _ in pairs]), np.array([s for _, s in pairs])
            names = [prefix + (level if column == "Intercept" else f"{level}, {column}")
                     for level in term.levels for column in term.columns]
            bend = np.zeros_like if rows is None else partial(components.skewness, rows)
            found += mixture_rows(names, components.weights, means, sds, tail, "level", bend)
        return found

    @property
    def _field_prefixes(self) -> tuple[str, ...]:
        """What stands before the names of the numbers of each latent field: nothing where there is one."""
        fields = self.model.likelihood.fields
        return tuple(f"{name}: " for name in fields) if len(fields) > 1 else ("",)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The grouping factors of the formula."""
        return tuple(term for term in self.linear.terms if isinstance(term, Group))

    def group_term(self, group: str | None) -> Group:
        """The grouping factor of this name, or the only one."""
        found: Group = named_term(self.groups, group, "random_effects needs the name of a grouping factor")
        return found

    # -- predictions

    def predict(self, new: Any = None, *, kind: PredictionKind = "mean", interval: float | None = None,
                re: bool | Literal["new"] = True) -> Any:
        """Predictions for the rows of a frame, as a frame of the same type with as many rows.

        Parameters
        ----------
        new : data frame, dict of columns, or files (a path, a glob, a `klimb.scan`), read a block at a time
            The data of the fit where it is left out. A level of a grouping factor that was not there at the fit gets
            the prior of a new level.
        kind : "mean", "latent", "response" or "all"
            ``mean``: E[y], as far as it is known (a probability for two outcomes, P(level) columns for levels);
            ``latent``: f, the linear predictor; ``response``: y itself, noise included. ``all`` has the columns of
            each: ``f_mean, ..., mean, ..., y_mean, ...``.
        interval : float
            Mass of the central credible intervals; that of the fit unless given.
        re : True, False or "new"
            Random effects: those of each row's levels; none (all are 0, as at an average level); or those of new
            levels, which integrates them out. Columns of grouping factors are only needed for the first.

        Returns
        -------
        frame
            Columns ``mean, sd, lower, upper``; NaN in rows with a missing value. The sd alone is NaN where it rests on
            a far tail with next to none of the mass; a note names how many rows of the fit that are.
        """
        if is_elsewhere(new):
            return by_blocks(new, self.encoder, lambda frame: self.predict(frame, kind=kind, interval=interval, re=re))
        tail, frame = self._tail(interval), self._new_frame(new)
        prepared, rows, aux = self._with_trials(frame, re, wanted=kind in ("response", "all"))
        if not len(rows):  # the columns are those of any other row
            typical = {variable.name: [variable.typical] for variable in self.encoder.variables}
            columns = self.predict(typical, kind=kind, interval=interval, re=False)
            return make_frame({name: np.full(frame.n, np.nan) for name in columns}, frame)
        shown = partial(self._columns, tail=tail, aux=aux, fitted=prepared is self.linear.rows,
                        new_levels=re is not False)
        columns, prefix = shown(prepared, kind), "f_" if kind == "all" else ""
        printed = rows_as_printed(self.model.theta, prepared, self._level_shift)
        if printed is not prepared and kind in ("latent", "all"):
            columns |= {prefix + name: values for name, values in shown(printed, "latent").items()}
        placed = {name: in_place(values[None], rows, frame.n)[0] for name, values in columns.items()}
        return make_frame(placed, frame)

    def _prepared(self, new: Frame, re: bool | Literal["new"] = True, least: int = 1) -> tuple[LinearRows, Any]:
        """The complete rows of a frame as rows of the model, and which rows those are."""
        if re not in (True, False, "new"):
            raise InputError('re must be True, False or "new"', repr(re), "Leave it out for the rows' own levels.")
        rows = self.linear.rows
        of_fit = rows is not None and self.frame is not None and new is self.frame and rows.n == new.n
        if re is True and of_fit and rows is not None:
            return rows, np.arange(rows.n)
        encoded = self.encoder.encode(new, missing="drop", levels=re is True)
        require(len(encoded.rows) >= least, "at least one row without a missing value",
                f"{new.n} rows, none of them complete", "Fill in the columns of the formula.")
        return self.linear.arranged(encoded.blocks), encoded.rows

    def _with_trials(self, frame: Frame, re: bool | Literal["new"] = True, wanted: bool = True,
                     least: int = 0) -> tuple[LinearRows, Any, dict[str, Array] | None]:
        """The same with the trials of each row, where the likelihood has them and the frame too; else they are one."""
        prepared, rows = self._prepared(frame, re, least)
        response = self.encoder.response
        named = response.trials if wanted and response is not None else ()
        if not named or any(name not in frame.columns for name in named):
            return prepared, rows, None
        trials = np.sum([frame.read(name).number[rows] for name in named], axis=0)
        known = np.flatnonzero(~np.isnan(trials))
        return prepared if len(known) == len(rows) else prepared.some(known), rows[known], {"trials": trials[known]}

    def latents(self, new: Any = None, *, re: bool | Literal["new"] = True) -> Latents:
        """f at the complete rows of a frame, one row per point of theta."""
        prepared, _ = self._prepared(self._new_frame(new), re)
        return self.components.at(self.model, prepared, new_levels=re is not False)

    def sample(self, n: int = 1000, new: Any = None, *, seed: int = 0) -> Array:
        """``n`` draws of f at the rows of a frame, one draw a row, NaN where values are missing; by the seed."""
        prepared, rows = self._prepared(frame := self._new_frame(new))
        printed = rows_as_printed(self.model.theta, prepared, self._level_shift)
        return in_place(self.components.sample(self.model, printed, n, np.random.default_rng(seed)), rows, frame.n)

    def simulate(self, n: int = 1000, new: Any = None, *, seed: int = 0) -> Array:
        """``n`` draws of y at the rows of a frame, NaN where values are missing; the same for the same seed."""
        prepared, rows, aux = self._with_trials(frame := self._new_frame(new), least=1)
        drawn = self.components.simulate(self.model, prepared, n, np.random.default_rng(seed), aux)
        return in_place(drawn, rows, frame.n)

    def log_density(self, y_new: Any = None, new: Any = None) -> Array:
        """Log predictive density of a frame's response, or of ``y_new`` in its place; NaN in rows with a missing value.
        """
        from klimb.models.joint import response_log_density

        return response_log_density(self, self._new_frame(new), y_new)

    def draws(self, n: int = 1000, *, seed: int = 0) -> dict[str, Array]:
        """``n`` joint draws of coefficients, hyperparameters and levels, by name; the same for the same seed."""
        from klimb.models.joint import named_draws

        return named_draws(self, *self.components.draw(n, np.random.default_rng(seed)))

    # -- pictures and files

    def effects(self, columns: Sequence[str] | str | None = None, interval: float | None = None) -> list[EffectCurve]:
        """The mean of y along each column, the others held at typical values: the numbers behind ``plot_effects``."""
        from klimb.models.effects import effect_curves

        return effect_curves(self, columns, interval)

    def report(self, *, title: str = "", reproduce: Sequence[str] = (), source: str = "",
               interval: float | None = None) -> FitReport:
        """The whole report of the fit as records, from which the HTML page is made."""
        from klimb.models.reporting import fit_report

        return fit_report(self, title=title, reproduce=reproduce, source=source, interval=interval)

    def to_html(self, path: Any, *, title: str = "") -> None:
        """Write the report as one self-contained HTML page."""
        from klimb._files import whole_file
        from klimb.report.page import page

        with whole_file(path) as stream:
            stream.write(page(self.report(title=title)))

    def plot_effects(self, columns: Sequence[str] | str | None = None, axes: Any = None) -> Any:
        """The effect curves with their bands; needs matplotlib."""
        from klimb.report.plots import plot_effects

        return plot_effects(self.effects(columns), axes)

    def field(self, term: str | None = None, interval: float | None = None) -> Any:
        """What a structured term adds to the linear predictor at each of its nodes: node, mean, sd, lower, upper."""
        from klimb.models.effects import field_rows, field_term

        nodes, rows = field_rows(self, field_term(self, term), self._tail(interval))
        return self._frame({"node": np.asarray(nodes), **numbers_of(rows)})

    def plot_field(self, term: str | None = None, *, coordinates: Any = None, ax: Any = None) -> Any:
        """The curve of a term over time with its band, or a map of its areas; needs matplotlib.

        ``coordinates`` maps areas to points (x, y), or to polygons as lists of points. Without them, levels are listed
        with their credible intervals.
        """
        from klimb.models.effects import plot_field

        return plot_field(self, term, coordinates, ax)

    def plot_coefficients(self, ax: Any = None) -> Any:
        """Coefficients with their credible intervals; needs matplotlib."""
        from klimb.report.plots import plot_coefficients

        return plot_coefficients(self.coefficient_rows(), self.interval, ax)

    def plot_calibration(self, ax: Any = None) -> Any:
        """Predicted against observed means, each row predicted from the others; needs matplotlib."""
        from klimb.models.reporting import calibration_curve
        from klimb.report.plots import plot_calibration

        curve = calibration_curve(self)
        if curve is None:
            raise InputError("a calibration curve needs a few dozen rows with one mean each, none of them censored",
                             f"{self.n} rows, {self.family}", "Look at fit.loo() instead.")
        return plot_calibration(curve, ax)

    def to_arviz(self, draws: int = 1000, chains: int = 4, seed: int = 0) -> Any:
        """An ArviZ InferenceData of independent draws; needs arviz."""
        from klimb.models.arviz import to_arviz

        return to_arviz(self, draws, chains, seed)

    def to_stan(self, *, centred: bool | None = None) -> StanProgram:
        """The model as a program in Stan with its data; its log density is klimb's joint.

        Parameters
        ----------
        centred : bool
            Whether weights with a learnt scale are parameters themselves (True), or in units of that scale (False).
            Left out, each term is written the way that suits its data.
        """
        from klimb.models.stan import stan_program

        return stan_program(self, centred)

    def exact(self, draws: int = 4000, chains: int = 4, seed: int = 0) -> FormulaFit:
        """The same model by exact sampling: a fit whose posterior is ``draws`` exact draws of `to_stan`.

        Its ``trust`` says how far the sds of this fit are off. It needs stanli (``pip install "klimb[exact]"``), or
        CmdStan with cmdstanpy.
        """
        from klimb.models.exact import exact

        return exact(self, draws, chains, seed)

    # -- words and small parts

    def __repr__(self) -> str:
        return (f"FormulaFit({self.formula!r}, family={self.model.likelihood.name!r}, n={self.n}, "
                f"bound={self.bound:.6g})")

    def _holds(self) -> tuple[str, ...]:
        inputs = dict.fromkeys(term.holds for term in self.linear.terms if term.holds)
        return (*super()._holds(), *inputs)

    def _like(self) -> Frame:
        return self.frame if self.frame is not None else read_frame({})

    def _new_frame(self, new: Any) -> Frame:
        if new is not None:
            return read_frame(new)
        if self.frame is None:
            raise InputError("a fit from a file does not hold its data", "no data", "Pass the frame to predict for.")
        if self.n > self.frame.n and self.frame.whole is None:
            raise InputError("the rows of this fit are not in memory", "no data to predict for",
                             "Pass a frame; fit.cells has the rows that differ, where there are cells.")
        return self.frame.whole or self.frame
