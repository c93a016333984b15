"""The records a report is drawn from: plain numbers and text, nothing of the engine.

Table, JSON, HTML page and plots read the same numbers. One that does not exist is None, never NaN.
"""

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from klimb._stored import stored

if TYPE_CHECKING:
    from klimb.theta import RowKind

Verdict = Literal["trust", "corrected", "doubt", "verified", "unchecked"]
Suits = Literal["fits", "misfit", "unchecked"]
PARAMETERS = "parameters"


@stored("report.fact")
@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a two-column table: ``Fact("rows used", "398")``."""
    label: str
    value: str


@dataclass(frozen=True, slots=True)
class CoefficientRow:
    """A quantity with its posterior mean, sd and central interval.

    ``positive`` is the posterior probability of a value above zero; None for what cannot be negative.
    """

    name: str
    mean: float
    sd: float
    lower: float
    upper: float
    positive: float | None = None
    kind: "RowKind" = "fixed"


class GroupEffects(NamedTuple):
    """Deviations of the levels of one grouping factor, of ``total`` the most extreme."""
    name: str  # the grouping, "school"
    column: str  # what deviates, "Intercept" or "x"
    rows: tuple[CoefficientRow, ...]
    total: int


@dataclass(frozen=True, slots=True)
class EffectCurve:
    """The mean of y (or f) along one column, the others held where ``note`` says, with a band of mass ``level``."""
    name: str  # the column or term, "x"
    x: tuple[float, ...] | tuple[str, ...]  # numbers, or the levels of a factor
    center: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    level: float
    x_label: str
    y_label: str
    rug: tuple[float, ...] = ()  # where data are: for numbers a few hundred values at most
    counts: tuple[int, ...] = ()  # for levels: rows of each
    note: str = ""

    @property
    def categorical(self) -> bool:
        return bool(self.x) and isinstance(self.x[0], str)


@stored("report.trace")
@dataclass(frozen=True, slots=True)
class BoundTrace:
    """The bound after every iteration, or after every fit of a search (the rule is then `PARAMETERS` throughout)."""
    bound: tuple[float, ...]
    stationarity: tuple[float, ...] = ()
    rule: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """What is counted along the trace."""
        return "fit" if self.rule and set(self.rule) == {PARAMETERS} else "iteration"


class CalibrationBins(NamedTuple):
    """Predicted and observed means in bins, and where these fall with probability ``level`` if the model is right."""
    predicted: tuple[float, ...]
    observed: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    counts: tuple[int, ...]
    level: float
    label: str = "y"  # what is predicted: "P(y = 1)" or "mean of y"


class PitHistogram(NamedTuple):
    """Probability integral transform: where each datum falls in its own predictive distribution; flat is right.

    ``density`` is 1 in every bin for a calibrated model; ``lower`` and ``upper`` enclose what chance allows a bin with
    probability ``level``. ``coverage`` pairs the nominal mass of central intervals with the share of data inside.
    """

    density: tuple[float, ...]
    lower: float
    upper: float
    n: int
    level: float
    coverage: tuple[tuple[float, float], ...] = ()


class HardRow(NamedTuple):
    """A row the model finds hard to predict from the others."""
    row: int  # counted from 0, as the page says
    observed: str
    predicted: str
    log_density: float


class Loo(NamedTuple):
    """Leave-one-out log density, summed over the data, with the standard error of the sum."""
    elpd: float
    se: float
    n: int
    failed: int = 0  # data whose site could not be taken out
    hardest: tuple[HardRow, ...] = ()


@stored("report.trust")
@dataclass(frozen=True, slots=True)
class FitTrust:
    """The verdict on what a fit shows: "trust", "corrected" (what is shown is corrected), "doubt" or "verified".

    ``number`` is the figure behind it, ``measures`` says what of, ``advice`` is one sentence, ``facts`` are the rest.
    """

    verdict: Verdict
    measures: str  # or why there is no number
    advice: str = ""
    number: float = math.nan
    facts: tuple[Fact, ...] = ()

    def __str__(self) -> str:
        width = max((len(fact.label) for fact in self.facts), default=0)
        lines = [f"{fact.label:{width}s}  {fact.value}" for fact in self.facts]
        return "\n".join([self.advice if self.verdict == "verified" else f"{self.verdict}: {self.advice}", *lines])

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and text, for JSON."""
        found: dict[str, Any] = to_json(self)
        return {**found, "facts": {fact.label: fact.value for fact in self.facts}}


@stored("report.finding")
@dataclass(frozen=True, slots=True)
class Finding:
    """A way in which the data differ from what the model says: significantly, and by more than a threshold."""
    check: str  # "dispersion", "trend", ...
    number: float  # the figure of the sentence: a ratio, a share, a correlation
    effect: float  # how large the misfit is, on the scale of ``threshold``
    threshold: float  # from which it is large
    p: float  # how often a right model has as large a number, corrected for the columns that were tried
    sentence: str
    next_step: str  # what to do, mostly a call to paste

    @property
    def chance(self) -> str:
        """``p`` in words, without digits that say nothing."""
        return "< 1e-6" if self.p < 1e-6 else f"= {self.p:.1g}"


@stored("report.checks")
@dataclass(frozen=True, slots=True)
class Checks:
    """Whether the model suits the data: what ``fit.checks`` holds. ``verdict`` is "fits", "misfit" or "unchecked"."""
    verdict: Suits
    findings: tuple[Finding, ...] = ()
    looked: tuple[str, ...] = ()  # the checks that could be made
    rows: int = 0  # that were looked at
    reason: str = ""  # why nothing could be checked

    @property
    def headline(self) -> str:
        """One line for the foot of a table."""
        if self.verdict == "unchecked":
            return f"not checked against the data: {self.reason}"
        if not self.findings:
            return f"fits the data: {len(self.looked)} checks found no misfit"
        more = f", and {len(self.findings) - 1} more" if len(self.findings) > 1 else ""
        return f"misfit: {self.findings[0].sentence}{more}; print(fit.checks) suggests what to do"

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and text, for JSON and reports."""
        found: dict[str, Any] = to_json(self)
        return found

    def __str__(self) -> str:
        lines = [f"verdict  {self.verdict}" + (f": {self.reason}" if self.reason else "")]
        for found in self.findings:
            lines += ["", f"{found.check}: {found.sentence}",
                      f"  effect {found.effect:.3g} (threshold {found.threshold:g}), p {found.chance}",
                      f"  {found.next_step}"]
        quiet = [name for name in self.looked if name not in {found.check for found in self.findings}]
        if quiet:
            lines += ["", f"no misfit found by {', '.join(quiet)} ({self.rows:,} rows)"]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class FitReport:
    """All that is said of one fit."""
    formula: str
    family: str  # "bernoulli, logit link"
    level: float  # mass of all intervals
    n: int
    dropped: int
    bound: float
    converged: bool
    status: str
    advice: str
    coefficients: tuple[CoefficientRow, ...]
    parameters: tuple[CoefficientRow, ...] = ()  # standard deviations of groups, dispersion, lengthscales
    groups: tuple[GroupEffects, ...] = ()
    effects: tuple[EffectCurve, ...] = ()
    data: tuple[Fact, ...] = ()
    priors: tuple[Fact, ...] = ()
    trace: BoundTrace | None = None
    n_fits: int = 1  # at all hyperparameters together
    calibration: CalibrationBins | None = None
    pit: PitHistogram | None = None
    loo: Loo | None = None
    trust: FitTrust = FitTrust("unchecked", "This fit was not checked.")
    checks: Checks = field(default_factory=lambda: Checks("unchecked", reason="not requested"))
    residuals: tuple[float, ...] = ()  # quantile residuals, sorted
    notes: tuple[str, ...] = ()
    reproduce: tuple[str, ...] = ()  # lines of a terminal or Python session
    versions: tuple[Fact, ...] = ()
    title: str = ""


def to_json(record: Any) -> Any:
    """A record as what ``json.dumps`` takes: dicts, lists, numbers, text; a number that is not finite becomes None."""
    if hasattr(record, "tolist"):  # numbers and arrays of NumPy
        record = record.tolist()
    if is_dataclass(record) and not isinstance(record, type):
        return {part.name: to_json(getattr(record, part.name)) for part in fields(record)}
    if hasattr(record, "_asdict"):
        record = record._asdict()
    if isinstance(record, dict):
        return {str(name): to_json(value) for name, value in record.items()}
    if isinstance(record, tuple | list):
        return [to_json(entry) for entry in record]
    if isinstance(record, float):
        return record if math.isfinite(record) else None
    if record is None or isinstance(record, str | bool | int):
        return record
    raise TypeError(f"{type(record).__name__} has no JSON form")
