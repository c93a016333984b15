"""`Fit`: what every door returns. It answers from what it keeps, and is thin: the work is in its neighbours.

    fit = klimb.gp(klimb.kernels.RBF(), X, klimb.sites.Poisson()).fit(y)
    print(fit)
    fit.predict(X_new, interval=0.9)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from klimb._stored import SKIPPED, pack, stored, unpack
from klimb.errors import InputError, require
from klimb.infer.result import History, Result, Status
from klimb.latents.base import Posterior
from klimb.likelihoods import Observed
from klimb.models.components import Components, Latents
from klimb.models.loo import LeaveOneOut, leave_one_out
from klimb.models.model import Model
from klimb.models.prediction import PredictionKind, checked_interval, columns_by_rows, tail_notes
from klimb.models.search import Peak
from klimb.models.solution import Solution, spread_of
from klimb.models.tabulate import parameter_rows, posterior_means
from klimb.numerics.arrays import Array
from klimb.numerics.dense import threads_for
from klimb.report.records import PARAMETERS, BoundTrace, Checks, CoefficientRow, FitTrust
from klimb.rows.frames import Frame, make_frame, read_frame


@stored("fit")
@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted model. ``print(fit)`` shows the table; every method answers from what is kept, without fitting again.

    >>> import numpy as np, klimb
    >>> x = np.linspace(0.0, 6.0, 40)
    >>> fit = klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Poisson()).fit(np.round(np.exp(np.sin(x))))
    >>> fit.converged, sorted(fit.hyperparameters)
    (True, ['lengthscale', 'variance'])
    >>> fit.predict([1.5, 4.7])["mean"].round(1)
    array([2.5, 0.4])
    """

    schema: ClassVar[int] = 2  # of its files

    model: Model  # at the best hyperparameters
    components: Components
    bound: float  # evidence lower bound (ELBO); over all hyperparameters where those were integrated out
    mode: str  # what was done with the hyperparameters: "fixed", "optimise" or "integrate"
    status: Status
    data: Observed | None = None
    trace: BoundTrace = field(default_factory=lambda: BoundTrace(()))
    n_fits: int = 1
    interval: float = 0.9
    notes: tuple[str, ...] = ()
    kept_loo: LeaveOneOut | None = None  # of a fit that was loaded
    kept_trust: FitTrust | None = None
    kept_checks: Checks | None = None
    result: Result | None = field(default=None, metadata={SKIPPED: False})  # the engine's, in the session of the fit

    @classmethod
    def of(cls, solution: Solution, data: Observed, **more: Any) -> Self:
        """The fit of a solution."""
        history = solution.result.history
        if len(solution.path) > 1:  # the last fit began where the one before ended: the climb was that of theta
            trace = BoundTrace(solution.path, (), (PARAMETERS,) * len(solution.path))
        else:
            trace = BoundTrace(tuple(history.bound.tolist()), tuple(history.stationarity.tolist()), history.rule)
        components, model = solution.components, solution.model
        some = components.theta[: 1 if model.new_site(None).log_concave else None]  # where the first says all
        tails = tail_notes(components.weights, [model.moved(at).new_site(None) for at in some])
        notes = (*more.pop("notes", ()), *solution.result.notes, *tails)
        return cls(solution.model, solution.components, solution.bound, solution.mode, solution.status, data, trace,
                   solution.n_fits, notes=notes, result=solution.result, **more)

    # -- numbers

    @property
    def converged(self) -> bool:
        return self.status in (Status.CONVERGED, Status.ESTIMATED)

    @property
    def observed(self) -> Observed:
        """The data of the fit; an error where they were not kept."""
        if self.data is None:
            raise InputError("this needs the data of the fit", "a fit without them", "Fit again.")
        return self.data

    @property
    def n(self) -> int:
        """Rows used; of a fit by cells, those that the cells stand for."""
        return self.observed.n_rows

    @property
    def family(self) -> str:
        """The likelihood, its link and its known parameters, in words."""
        return self.model.likelihood.label

    @property
    def hyperparameters(self) -> dict[str, float]:
        """Posterior means by name, where they were integrated out; else the values that were chosen or held.

        NaN where the mean is infinite.
        """
        return posterior_means(self.model.theta, self.components)

    @property
    def posterior(self) -> Posterior:
        """The Gaussian q at the best hyperparameters."""
        return self._result("posterior").posterior

    @property
    def history(self) -> History:
        return self._result("history").history

    @property
    def n_iter(self) -> int:
        return self._result("n_iter").n_iter

    @property
    def title(self) -> str:
        """The model in one line."""
        return self.model.title

    def sizes(self) -> tuple[str, ...]:
        """How large the parts of the model are, in words."""
        return ()

    def prior_words(self) -> dict[str, str]:
        """The priors in words, by name."""
        return {name: words for block in self.model.theta.blocks for name, words in block.printed().items()}

    def coefficient_rows(self, interval: float | None = None) -> list[CoefficientRow]:
        """The coefficients as records; none but where the model has terms."""
        del interval
        return []

    def parameter_rows(self, interval: float | None = None) -> list[CoefficientRow]:
        """Standard deviations, correlations, lengthscales and dispersions as records."""
        return parameter_rows(self.model.theta, self._spread, self._tail(interval))

    def table_rows(self, interval: float | None = None) -> list[CoefficientRow]:
        """All rows of the table as records."""
        coefficients, parameters = self.printed_rows if interval is None else (self.coefficient_rows(interval),
                                                                               self.parameter_rows(interval))
        return [*coefficients, *parameters]

    @cached_property
    def printed_rows(self) -> tuple[list[CoefficientRow], list[CoefficientRow]]:
        """Coefficients and parameters with the intervals of the fit, for the verdict and the print."""
        return self.coefficient_rows(), self.parameter_rows()

    def summary(self, interval: float | None = None) -> Any:
        """All rows of the table as a frame: name, mean, sd, lower, upper, positive, kind."""
        return self._row_frame(self.table_rows(interval), kinds=True)

    @cached_property
    def _spread(self) -> Components:
        """The components with the spread of hyperparameters that were chosen, which costs two fits for each."""
        known = self.components.covariance.size or self.components.integrated or not self.model.theta.size
        if known or self.mode != "optimise" or self.result is None or self.data is None:
            return self.components
        return spread_of(self.peak(), self.components, self.data)

    def peak(self) -> Peak:
        """Where the search for hyperparameters ended, for what begins there."""
        result = self._result("the search")
        return Peak(self.model, result, result.bound + self.model.log_prior()[0], self.status,
                    np.zeros(self.model.theta.size), 0, ())

    def explain(self) -> str:
        """Which latent the model was fitted with and why, with the predicted cost of one fit."""
        return self.model.explain()

    # -- is it right?

    @cached_property
    @threads_for(0)
    def trust(self) -> FitTrust:
        """Whether the numbers shown can be trusted: ``.verdict``, ``.number``, ``.measures``, ``.advice``."""
        from klimb.models.verdict import quick_trust

        return self.kept_trust if self.kept_trust is not None else quick_trust(self)

    @cached_property
    def trust_summary(self) -> FitTrust:
        """The same, "unchecked" where a latent's posterior cannot be weighed, in its own words."""
        try:
            return self.trust
        except InputError as error:
            return FitTrust("unchecked", str(error))

    @property
    def uncorrected(self) -> Self:
        """The fit by q and its bound alone, where the numbers shown are those of the exact posterior; else itself."""
        plain = self.components.uncorrected
        return self if plain is None else replace(self, components=plain)

    @threads_for(0)
    def judged(self, *, draws: int, seed: int) -> Any:
        """The complete report that ``klimb.trust(fit)`` returns; it judges the hyperparameters too."""
        from klimb.models.verdict import complete_trust

        verified = self.kept_trust is not None and self.kept_trust.verdict == "verified"
        return self.trust if verified else complete_trust(self, draws=draws, seed=seed)

    @cached_property
    @threads_for(0)
    def checks(self) -> Checks:
        """Whether the model fits the data: ``.verdict`` is "fits" or "misfit", ``.findings`` say what to do."""
        from klimb.models.checks import checked

        return self.kept_checks if self.kept_checks is not None else checked(self)

    @cached_property
    @threads_for(0)
    def data_loo(self) -> LeaveOneOut:
        """Leave-one-out predictions of the data as they were fitted: rows of the caller that are equal may be one."""
        require(not self.by_sums, "leaving rows out needs each response", "the sums of cells",
                "Fit with cells=False, or a sample of the rows, to check the model and to compare it.")
        # Packed weights tell sites to fewer digits, and must tell the same bits; fits by formula keep this in files.
        q = None if self.result is None or getattr(self, "formula", None) is None else self.result.posterior
        return leave_one_out(self.model, self.components, self.observed, q)

    @cached_property
    def _loo(self) -> LeaveOneOut:
        if self.kept_loo is not None:
            return self.kept_loo
        merged = self.observed.merged
        return self.data_loo if merged is None else self.data_loo.of_rows(merged.inverse, merged.weights)

    @property
    def by_sums(self) -> bool:
        """Whether responses were summed up by cells: the posterior is that of the rows, but no row can be left out."""
        return self.data is not None and self.data.summed > 0

    def loo(self) -> LeaveOneOut:
        """Leave-one-out predictive densities, without fitting again."""
        return self._loo

    # -- predictions

    @threads_for(0)
    def predict(self, new: Any = None, *, kind: PredictionKind = "mean", interval: float | None = None) -> Any:
        """Predictions at new rows: columns ``mean``, ``sd``, ``lower`` and ``upper``.

        Parameters
        ----------
        new : what the model was fitted to: inputs, rows, or a data frame
            The data of the fit where it is left out.
        kind : "mean", "latent", "response" or "all"
            ``mean``: E[y], as far as it is known (P(level) columns for levels); ``latent``: f, the linear predictor;
            ``response``: y itself, noise included. ``all`` has the columns of each, told apart by their prefix.
        interval : float
            Mass of the central credible intervals; that of the fit unless given.
        """
        columns = self._columns(self._prepared_inputs(new), kind, self._tail(interval))
        if new is not None or self.data is None or self.data.merged is None:
            return columns
        inverse = self.data.merged.inverse  # the caller's rows again
        return {name: np.where(inverse < 0, np.nan, values[inverse]) for name, values in columns.items()}

    def _columns(self, prepared: Any, kind: PredictionKind, tail: float | None, aux: Any = None, *,
                 fitted: bool = False, **options: Any) -> dict[str, Array]:
        """The columns of prepared rows."""
        return columns_by_rows(self.components, self.model, prepared, kind, tail, self._levels, aux, fitted=fitted,
                               **options)

    def moments(self, new: Any = None) -> tuple[Array, Array]:
        """Mean and sd of y at new rows, noise included, which cost less than the intervals of ``predict``."""
        found = self._columns(self._prepared_inputs(new), "response", None)
        return found["mean"], found["sd"]

    def quantile(self, new: Any, p: float) -> Array:
        """That of y at new rows, noise included."""
        found = self._columns(self._prepared_inputs(new), "response", min(p, 1.0 - p))
        return found["lower" if p <= 0.5 else "upper"]

    def latents(self, new: Any = None) -> Latents:
        """f at new rows: one row of means and variances per point of theta."""
        return self.components.at(self.model, self._prepared_inputs(new))

    def sample(self, n: int = 1000, new: Any = None, *, seed: int = 0) -> Array:
        """``n`` joint draws of f at new rows, one draw a row; the same for the same seed."""
        return self.components.sample(self.model, self._prepared_inputs(new), n, np.random.default_rng(seed))

    def simulate(self, n: int = 1000, new: Any = None, *, seed: int = 0) -> Array:
        """``n`` draws of y at new rows from the posterior predictive distribution; the same for the same seed."""
        rng = np.random.default_rng(seed)
        return self.components.simulate(self.model, self._prepared_inputs(new), n, rng)

    @threads_for(0)
    def log_density(self, y_new: Any, new: Any = None) -> Array:
        """Log predictive density of new data, with the hyperparameters integrated out where they were."""
        return self.latents(new).log_density(y_new)

    # -- more data

    @threads_for(0)
    def update(self, new: Any, y_new: Any, **options: Any) -> Fit:
        """The fit to all data, old and new, at the same hyperparameters: see `klimb.models.update.update`."""
        from klimb.models.update import update

        return update(self, new, y_new, **options)

    def summarise(self) -> Any:
        """What a Gaussian process with inducing points has learnt, without its data: `klimb.models.update.Summary`."""
        from klimb.models.update import summarise

        return summarise(self)

    # -- pictures and files

    def plot_bound(self, ax: Any = None) -> Any:
        """How the bound rose during the fit; needs matplotlib."""
        from klimb.report.plots import plot_bound

        return plot_bound(self.trace, ax)

    def save(self, path: Any) -> None:
        """Write the fit to a file that ``klimb.load`` reads, without pickle: see docs/files.md."""
        from klimb.models.files import write_container

        arrays: dict[str, Any] = {}
        document = pack(self._for_file(), arrays)
        header = {"title": self.title, "family": self.family, "fit": document}
        write_container(path, "fit", header, arrays, schema=self.schema, holds=self._holds())

    def _for_file(self) -> Self:
        """With what cannot be computed again without the data."""
        loo = self.loo().resolved() if self.data is not None and not self.by_sums else self.kept_loo
        return replace(self, components=self._spread, kept_loo=loo, kept_trust=self.trust_summary,
                       kept_checks=self.checks)

    def _holds(self) -> tuple[str, ...]:
        """The data that the file will contain, in words."""
        return ("the response",) if self.data is not None else ()

    @staticmethod
    def from_state(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> Fit:
        """The fit that ``save`` wrote."""
        found = unpack(header.get("fit"), arrays)
        if not isinstance(found, Fit):
            raise InputError("a file of a fit must hold a fit", type(found).__name__, "The file may be damaged.")
        return found

    # -- words

    def __str__(self) -> str:
        from klimb.models.reporting import summary_text

        return summary_text(self)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value:.4g}" for name, value in self.hyperparameters.items())
        return f"{type(self).__name__}({self.family}, bound={self.bound:.6g}, {self.status.name}, {values})"

    # -- small parts

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: the fields. What was worked out from them is worked out again."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def _prepared_inputs(self, new: Any) -> Any:
        """New rows as the model takes them; None stands for those of the fit."""
        return self.model.prepare(new)

    def _tail(self, interval: float | None) -> float:
        """The mass on either side of a central interval: as asked for, or as the fit has it."""
        return checked_interval(self.interval if interval is None else interval)

    @property
    def _levels(self) -> tuple[str, ...]:
        return self.data.levels if self.data is not None else self.model.likelihood.levels

    def _result(self, what: str) -> Result:
        if self.result is None:
            raise InputError("the engine's result is kept only in the session of the fit",
                             f"{what} of a fit from a file", "Fit again to look at the engine's own records.")
        return self.result

    def _row_frame(self, rows: Sequence[CoefficientRow], kinds: bool = False) -> Any:
        columns: dict[str, Any] = {"name": np.array([row.name for row in rows], dtype=object), **numbers_of(rows)}
        columns["positive"] = np.array([np.nan if row.positive is None else row.positive for row in rows])
        if kinds:
            columns["kind"] = np.array([row.kind for row in rows], dtype=object)
        return self._frame(columns)

    def _frame(self, columns: Mapping[str, Any]) -> Any:
        """Columns as a frame of the type that the data had; a dict where they were arrays."""
        like = self._like()
        if like.kind in ("dict", "numpy"):
            return dict(columns)
        return make_frame(columns, like, rows=np.zeros(0, dtype=np.intp))

    def _like(self) -> Frame:
        return read_frame({})


def numbers_of(rows: Sequence[CoefficientRow]) -> dict[str, Array]:
    """The numbers of records as columns."""
    return {name: np.array([getattr(row, name) for row in rows], dtype=float)
            for name in ("mean", "sd", "lower", "upper")}
