"""What checks of a model look at: data, leave-one-out predictions, residuals, covariates, and the score of a column.

A column x that the model lacks would have the coefficient 0 if the model were right. Then the slope of the bound in it,
U = x'a, is near N(0, x'P x) with P = G - G V G, where (a, G = diag(gamma)) are the sites of the fit and V its posterior
covariance at them: both stand in the fit, and V x is one product. U^2 / 2 x'P x estimates what the column would gain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import chdtrc, stdtrit

from klimb.errors import InputError
from klimb.linalg.matrix import as_design
from klimb.models.averages import average_chance
from klimb.models.loo import LeftOut
from klimb.numerics.arrays import Array
from klimb.report.diagnostics import quantile_residuals
from klimb.rows.columns import Codes
from klimb.sites import Gamma, NegativeBinomial, StudentT
from klimb.sites.base import Site

if TYPE_CHECKING:
    from klimb.models.fit import Fit

MOST_ROWS = 5_000  # looked at; of more rows a sample by a fixed seed
MOST_COLUMNS = 24  # numeric columns in the model, and as many that it leaves out
MOST_LEVELS = 40  # of a factor whose levels are scored one by one
MOST_INPUTS = 500  # columns of a matrix up to which they are looked at
FEWEST_ROWS = 20
HARDEST = 50  # rows among which outliers are looked for where there are very many
DEGREE = 4  # of the polynomials in the ranks of a column that stand for a nonlinear trend
TELLING = 0.02  # share of what the model leaves unexplained below which no trend is large
APART = 1e-8  # added to eigenvalues that may be equal
FREE = 0.01  # share of a column that the model must leave free for its score to count
GRID = 41  # values of a parameter among which the best is taken
SEED = 20260102


class ScoreTest(NamedTuple):
    """What some columns would add: chi-squared statistic, how many they are, the gain in nats, of how many rows."""

    statistic: float
    size: int
    gain: float
    n: float

    @property
    def share(self) -> float:
        """Of what the model leaves unexplained in these rows."""
        return self.statistic / self.n

    @property
    def p(self) -> float:
        return float(chdtrc(self.size, self.statistic)) if self.size else 1.0


@dataclass(frozen=True, eq=False)
class CheckView:
    """A fit as its checks see it; everything is worked out once, when it is first asked for."""

    fit: Fit
    number: int = 0  # which of several classes

    # -- rows

    @cached_property
    def rows(self) -> Codes:
        """The data that are looked at: those that can be left out, or pairs of neighbours drawn from very many."""
        good = np.isfinite(self.fit.data_loo.log_density)
        if self.fit.observed.weights is not None:
            good &= self.fit.observed.weights > 0.0
        rows = looked_at(np.flatnonzero(good), self.fit.observed.copies)
        if len(rows) <= MOST_ROWS:
            return rows
        first = np.random.default_rng(SEED).choice(len(rows) // 2, MOST_ROWS // 2, replace=False)
        return np.asarray(rows[np.sort(np.concatenate([2 * first, 2 * first + 1]))])

    @cached_property
    def hardest(self) -> CheckView:
        """The same with the rows that the others predict worst; itself where all rows are looked at."""
        density = self.fit.data_loo.log_density
        if len(self.rows) < MOST_ROWS:
            return self
        view = CheckView(self.fit)
        density = np.where(np.isfinite(density), density, np.inf)
        rows = np.argpartition(density, min(HARDEST, len(density)) - 1)[:HARDEST]
        view.__dict__["rows"] = rows[np.argsort(density[rows], kind="stable")]
        return view

    @cached_property
    def y(self) -> Array:
        return self.fit.observed.y[self.rows]

    @cached_property
    def counts(self) -> Array:
        """How often each row counts."""
        copies = self.fit.observed.copies
        return self.sites if copies is None else self.sites / copies[self.rows]

    @cached_property
    def sites(self) -> Array:
        """How often the site of each row counts, in which equal rows may be one."""
        weights = self.fit.observed.weights
        return np.ones(len(self.rows)) if weights is None else weights[self.rows]

    @property
    def pulls(self) -> tuple[Array, Array]:
        """What each row has of a and of gamma."""
        own = self.counts / self.sites
        return self.posterior.a[self.rows] * own, self.posterior.gamma[self.rows] * own

    @cached_property
    def n(self) -> float:
        return float(self.counts.sum())

    @property
    def response(self) -> str:
        """The kind of response: counts, trials, binary, ..."""
        return self.fit.model.likelihood.response

    def by_class(self) -> list[CheckView]:
        """The view of every class by itself, this one being that of the first."""
        return [self, *(CheckView(self.fit, number) for number in range(1, self.n_classes))]

    @property
    def n_classes(self) -> int:
        return len(self.fit.model.likelihood.fields)

    @property
    def of_class(self) -> str:
        """Which class is looked at, in words."""
        fields = self.fit.model.likelihood.fields
        return f" of class {fields[self.number]}" if len(fields) > 1 else ""

    # -- predictions of each row from the others

    @cached_property
    def loo(self) -> LeftOut:
        """Leave-one-out mean, variance and both ends of the place of y in its prediction."""
        return self.fit.data_loo.some(self.rows)

    @cached_property
    def residuals(self) -> Array | None:
        """Quantile residuals, standard normal where the model is right; None where nothing gives probabilities."""
        if not np.isfinite(self.loo.at).all() or self.response == "classes":
            return None
        return quantile_residuals(self.loo.below, self.loo.at)

    @cached_property
    def pearson(self) -> Array:
        """(y - mean) / sd, of each row from the others."""
        return np.asarray((self.y - self.loo.mean) / np.sqrt(np.maximum(self.loo.variance, 1e-300)))

    @cached_property
    def moments(self) -> tuple[float, float]:
        """Skewness and excess kurtosis of the residuals; 0 where all are one."""
        assert self.residuals is not None
        centred, share = self.residuals - float(self.counts @ self.residuals) / self.n, self.counts / self.n
        sd = float(np.sqrt(share @ centred**2))
        away = centred / sd if sd > 0.0 else centred
        return float(share @ away**3), float(share @ away**4) - 3.0 * (sd > 0.0)

    @cached_property
    def n_free(self) -> float:
        """Rows less what the model took from them: residuals of neighbours that share much are not independent."""
        return float(self.counts @ (1.0 - self.leverage))

    # -- the engine's own numbers at the best hyperparameters

    @cached_property
    def posterior(self) -> Any:
        """q at the best hyperparameters, of one latent value per row: that of one of several classes."""
        posterior = self.fit.posterior.latent.split(self.fit.posterior)[self.number]
        if posterior.latent.by_products or not posterior.spread:
            raise InputError("checks need a posterior whose covariance is known", "one known by its products alone",
                             "Fit fewer columns.")
        return posterior

    @cached_property
    def leverage(self) -> Array:
        """The share of each row's own prediction that the row itself decides, between 0 and 1."""
        gamma, v, _ = self._own
        return np.asarray(np.clip(gamma * v / self.sites, 0.0, 0.99))

    @cached_property
    def _own(self) -> tuple[Array, Array, Array]:
        """gamma of each row, the variance of f that the weights explain, and the rest of it."""
        q, rows = self.posterior, self.rows
        slack = np.broadcast_to(q.latent.slack, q.v.shape)[rows]
        return q.gamma[rows], q.v[rows] - slack, slack

    @cached_property
    def without(self) -> tuple[Array, Array]:
        """Mean and variance of f of each row, offset included, without one copy of it."""
        gamma, v, slack = self._own
        own = v / np.maximum(1.0 - gamma / self.sites * v, 1e-3)
        return self.fitted - own * (self.posterior.a[self.rows] / self.sites), own + slack

    @cached_property
    def fitted(self) -> Array:
        """The mean of f of each row, offset included."""
        offset = self.fit.observed.offset
        return np.asarray(self.posterior.m[self.rows] + (0.0 if offset is None else offset[self.rows]))

    @cached_property
    def own_pull(self) -> Array:
        """How far each row moves its own linear predictor."""
        return np.asarray(np.abs(self.fitted - self.without[0]))

    def chance_of_zero(self) -> Array:
        """P(Y = 0) of each row without that row."""
        rest = np.flatnonzero(self.y > 0.0)
        f, v = (own[rest] for own in self.without)
        aux = {name: values[self.rows[rest]] for name, values in self.fit.observed.aux.items()}
        site, zero = self.fit.model.new_site(aux), np.zeros(len(rest))
        constant, chance = np.broadcast_to(site.constant(zero), zero.shape), self.loo.at.copy()
        chance[rest] = average_chance(lambda own, f: np.exp(site.rows(own).value(zero[own], f) + constant[own]), f, v,
                                      lambda own: np.exp(site.rows(own).log_predictive(zero[own], f[own], v[own])))
        return chance

    def scores(self, each: Array, telling: float = 0.0) -> list[ScoreTest]:
        """Score tests of sets of columns beside the model, (sets, columns, rows); exact from ``telling`` on."""
        (rows, first), q, weights = self._cells, self.posterior, self.fit.observed.weights
        n, total = self.n if weights is None else float(weights[rows].sum()), self.fit.observed.total
        columns, gamma, found = each[..., first], q.gamma[rows], list[ScoreTest]()
        weighted = gamma * columns
        free = columns - q.factorised().smooth_rows(rows, weighted.reshape(-1, len(rows))).reshape(columns.shape)
        heavy = np.abs(gamma) * columns if (gamma < 0.0).any() else weighted
        sizes, axes = np.linalg.eigh(heavy @ columns.swapaxes(1, 2))
        root = (axes * _inverse_root(sizes, 1e-10 * sizes[:, -1:])[:, None]) @ axes.swapaxes(1, 2)
        variance = weighted @ free.swapaxes(1, 2)
        # All that the model has nothing of has the eigenvalue 1: which axes those are is not for rounding to decide.
        apart = APART * np.cos(np.add.outer(*2 * [np.arange(len(root[0]))]) ** 2.0)
        left, turn = np.linalg.eigh(root @ (0.5 * (variance + variance.swapaxes(1, 2))) @ root + apart)
        axes = root @ turn * _inverse_root(left, FREE)[:, None]
        squares = ((columns @ q.a[rows])[:, None] @ axes)[:, 0] ** 2
        large = np.flatnonzero(squares.sum(axis=1) >= telling * n)
        if large.size:  # where rows pull more than their likelihood says, the slopes vary as much more
            expected, seen = np.moveaxis((axes[large].swapaxes(1, 2) @ free[large]) ** 2 @ self._pulls, 2, 0)
            squares[large] /= np.maximum(seen / np.maximum(expected, 1e-300), 1.0)
        for statistic, size in zip(squares.sum(axis=1).tolist(), (left > FREE).sum(axis=1).tolist(), strict=True):
            share = min(statistic / n, 0.999)  # a free scale would shrink
            nats = -0.5 * np.log1p(-share) if self.fit.model.likelihood.scaled else 0.5 * share
            found.append(ScoreTest(statistic, size, float(nats) * total, n))
        return found

    @cached_property
    def curves(self) -> list[ScoreTest]:
        """Of trends along the columns in the model, those left out, the order of rows, and the prediction squared."""
        f, (inside, outside, _) = self.without[0], self.columns
        columns = trend([*inside.values(), *outside.values(), self.fit.observed.places[self.rows].astype(np.float64)])
        z = np.nan_to_num(np.clip((f - f.mean()) / f.std(), -3.0, 3.0))
        # A cube of it is too like what the model has, and too much of it chance.
        square = np.eye(DEGREE)[:1, :, None] * z**2
        return self.scores(np.concatenate([columns, square]), TELLING)

    @cached_property
    def _cells(self) -> tuple[Codes, Any]:
        """Rows without their copies, a cell having all its weight, and the first place of each."""
        copied = self.fit.observed.copies is not None
        return np.unique(self.rows, return_index=True) if copied else (self.rows, slice(None))

    @cached_property
    def _pulls(self) -> Array:
        """(cells, 2): how much the likelihood says that the pull of each varies, and its square as it is seen."""
        (rows, _), q, weights = self._cells, self.posterior, self.fit.observed.weights
        a, gamma, v = q.a[rows], q.gamma[rows], q.v[rows]
        counts = np.ones(len(rows)) if weights is None else np.maximum(weights[rows], 1e-12)
        free = np.maximum(1.0 - np.clip(gamma * v / counts, 0.0, 0.99), 0.01)
        return np.array([np.abs(gamma), a**2 / counts / free]).T

    # -- covariates

    @cached_property
    def columns(self) -> tuple[dict[str, Array], dict[str, Array], dict[str, Codes]]:
        """Numbers in the model, numbers that it leaves out, and codes of factors that it leaves out, by name."""
        frame, encoder = getattr(self.fit, "frame", None), getattr(self.fit, "encoder", None)
        if frame is None or encoder is None:
            return self._inputs(), {}, {}
        places = self.fit.observed.places[self.rows]
        kinds = {variable.name: variable.kind for variable in encoder.variables}
        taken = {*kinds, *(encoder.response.columns if encoder.response is not None else ())}
        inside = {name: frame.read(name).number[places] for name, kind in kinds.items() if kind == "number"}
        outside: dict[str, Array] = {}
        factors: dict[str, Codes] = {}
        for name in frame.columns:
            if name in taken or len(outside) + len(factors) >= 2 * MOST_COLUMNS:
                continue
            column = frame.read(name)
            if column.kind == "number" and not self._repeats_y(column.number[places]):
                outside[name] = column.number[places]
            if column.is_factor or (column.kind == "number" and _looks_coded(column.number[places])):
                factors[name] = np.unique(column.factor[0][places], return_inverse=True)[1]
        return _some(inside), _some(outside), factors

    def _inputs(self) -> dict[str, Array]:
        """Columns of a matrix of inputs, by number."""
        inputs = getattr(self.fit.model.prepare(None), "X", None)
        if inputs is None or inputs.shape[1] > MOST_INPUTS:
            return {}
        some = as_design(inputs, "X").subset(self.rows).dense()
        first = int(some.shape[1] > 1 and np.ptp(some[:, 0]) == 0.0)  # the intercept's
        return _some({f"x[{j}]": column for j, column in enumerate(some.T[first:])})

    def _repeats_y(self, values: Array) -> bool:
        """Whether a column is the response in other words."""
        good = np.isfinite(values)
        if np.ptp(values[good]) == 0.0 if good.any() else True:
            return True
        one, other = _ranks(np.array([values[good], self.y[good]]))[0]
        return bool(abs(np.corrcoef(one, other)[0, 1]) > 0.99)

    # -- what another likelihood would gain, at the means of this fit

    def gain_of(self, family: str) -> float:
        """Nats of leave-one-out density that a family would gain at these means, its own parameter at its best."""
        own = self.fit.data_loo.log_density[self.rows]
        y, mean = self.y, self.loo.mean
        censored = "status" in self.fit.observed.aux
        if censored or not np.isfinite(mean).all() or (family != "student_t" and (mean <= 0.0).any()):
            return 0.0
        scale = max(float(np.median(np.abs(y - mean))), 1e-300)  # puts the quartiles right, which is near the best
        place = mean if family == "student_t" else np.log(mean)
        site: Callable[[float], Site] = {
            "negative_binomial": NegativeBinomial, "gamma": Gamma,
            "student_t": lambda df: StudentT(max(df, 1.0), scale / float(stdtrit(max(df, 1.0), 0.75)))}[family]
        grid = np.exp(np.linspace(-4.0, 6.0, GRID)).tolist()
        total = lru_cache(lambda k: float(self.counts @ site(grid[k]).log_density(y, place)))
        best = max(range(0, GRID, 8), key=total)
        for step in (4, 2, 1):
            best = max((k for k in (best - step, best, best + step) if 0 <= k < GRID), key=total)
        return (total(best) - float(self.counts @ own)) * self.fit.observed.total / self.n

    # -- words

    def call(self, *, add: str = "", family: str = "") -> str:
        """The fit with one more term, or with another family, as a call to paste."""
        formula, own = getattr(self.fit, "formula", None), self.fit.model.likelihood
        if formula is None:
            return f"fit with {f'family={family!r}' if family else add}"
        link = "" if family or own.link.name == next(iter(own.links), "") else f", link={own.link.name!r}"
        return f"klimb.fit({formula + (f' + {add}' if add else '')!r}, data, family={family or own.name!r}{link})"


def _inverse_root(values: Array, least: Array | float) -> Array:
    """1 / sqrt(values), 0 where they are no larger than ``least``."""
    return np.where(values > least, 1.0 / np.sqrt(np.maximum(values, 1e-300)), 0.0)


def looked_at(rows: Codes, copies: Array | None) -> Codes:
    """Rows as they are; cells once for each of their rows, of more than `MOST_ROWS` a sample by a fixed seed."""
    if copies is None:
        return rows
    counts, rng = np.rint(copies[rows]).astype(np.int64), np.random.default_rng(SEED)
    if counts.sum() >= 1e8:  # with as many rows, drawing with replacement is the same
        counts = rng.multinomial(MOST_ROWS, counts / counts.sum())
    elif counts.sum() > MOST_ROWS:
        counts = rng.multivariate_hypergeometric(counts, MOST_ROWS)
    return np.asarray(np.repeat(rows, counts))


def trend(columns: Sequence[Array]) -> Array:
    """Polynomials in the ranks of columns, (columns, `DEGREE`, n), each with mean square near 1.

    They are 0 where a value is missing, and where there are too few values that differ for their degree.
    """
    values = np.array(columns)
    missing = ~np.isfinite(values)
    values[missing] = np.nan
    places, distinct = _ranks(values)
    degrees = np.arange(1, DEGREE + 1)
    scale = np.sqrt(2.0 * degrees + 1.0) * (degrees < distinct[:, None])
    powers = np.polynomial.legendre.legvander(2.0 * places - 1.0, DEGREE)[..., 1:]
    return np.where(missing[:, None], 0.0, np.moveaxis(powers, 2, 1) * scale[:, :, None])


def _ranks(values: Array) -> tuple[Array, Array]:
    """Places between 0 and 1 within rows, the same for equal values, and how many differ; those of NaN are beyond 1.

    Numbers are sorted as whole ones of the same order, whose last digits are their places: equal to 1e-11 is equal.
    """
    bits, digits = (values + 0.0).view(np.int64), values.shape[1].bit_length()
    bits ^= (bits >> 63) & np.int64(2**63 - 1)
    keys = np.sort((bits >> digits << digits) + np.arange(values.shape[1]), axis=1)
    order, new = keys & (2**digits - 1), np.diff(keys >> digits) != 0
    order += values.shape[1] * np.arange(len(values))[:, None]
    middle, count = np.tile(np.arange(0.5, values.shape[1]), (len(values), 1)), np.isfinite(values).sum(axis=1)
    for k in np.flatnonzero(~new.all(axis=1)):
        ends = np.concatenate([[0], np.flatnonzero(new[k]) + 1, [values.shape[1]]])
        middle[k] = np.repeat(0.5 * (ends[1:] + ends[:-1]), np.diff(ends))
    places = np.empty(values.shape)
    places.reshape(-1)[order] = middle / np.maximum(count, 1)[:, None]
    return places, (new & (np.arange(1, values.shape[1]) < count[:, None])).sum(axis=1) + 1


def _some(columns: dict[str, Array]) -> dict[str, Array]:
    """Columns that change, as many as are looked at."""
    finite = {name: values[np.isfinite(values)] for name, values in columns.items()}
    changing = {name: columns[name] for name, good in finite.items() if good.size and good.min() < good.max()}
    return dict(list(changing.items())[:MOST_COLUMNS])


def _looks_coded(values: Array) -> bool:
    """Whether whole numbers may be the codes of groups: few for the rows there are."""
    good = values[np.isfinite(values)]
    return bool(len(good) and (good == np.floor(good)).all() and 3 <= len(np.unique(good)) <= len(good) // 4)


def skew_score(skewness: float, n: float) -> float:
    """Normal under a normal sample of n (D'Agostino 1970, Biometrika 57, 679)."""
    y = skewness * np.sqrt((n + 1.0) * (n + 3.0) / (6.0 * (n - 2.0)))
    beta = 3.0 * (n**2 + 27.0 * n - 70.0) * (n + 1.0) * (n + 3.0) / ((n - 2.0) * (n + 5.0) * (n + 7.0) * (n + 9.0))
    w = np.sqrt(2.0 * (beta - 1.0)) - 1.0
    return float(np.arcsinh(y / np.sqrt(2.0 / (w - 1.0))) / np.sqrt(0.5 * np.log(w)))


def kurtosis_score(excess: float, n: float) -> float:
    """Normal under a normal sample of n (Anscombe and Glynn 1983, Biometrika 70, 227)."""
    mean = 3.0 * (n - 1.0) / (n + 1.0)
    variance = 24.0 * n * (n - 2.0) * (n - 3.0) / ((n + 1.0) ** 2 * (n + 3.0) * (n + 5.0))
    x = (excess + 3.0 - mean) / np.sqrt(variance)
    root = 6.0 * (n**2 - 5.0 * n + 2.0) / ((n + 7.0) * (n + 9.0)) * np.sqrt(
        6.0 * (n + 3.0) * (n + 5.0) / (n * (n - 2.0) * (n - 3.0)))
    a = 6.0 + 8.0 / root * (2.0 / root + np.sqrt(1.0 + 4.0 / root**2))
    below = 1.0 + x * np.sqrt(2.0 / (a - 4.0))
    cube = np.sign(below) * np.abs((1.0 - 2.0 / a) / below) ** (1.0 / 3.0) if below else 0.0
    return float((1.0 - 2.0 / (9.0 * a) - cube) / np.sqrt(2.0 / (9.0 * a)))
