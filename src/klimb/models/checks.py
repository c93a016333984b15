"""Does the model fit the data? Ten checks of a fit, each with a number, how large that is, and what to do about it.

A finding is significant and large: all checks together have a level of `LEVEL`, shared out evenly and within a check
among the columns that it tries, and each has a threshold on its effect: with a million rows everything is significant.

    @register
    class ZerosCheck(Check):
        name = "zeros"
        def look(self, view): ...           # a Finding, or None
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeVar, final

import numpy as np
from scipy.special import chdtr, chdtrc, fdtrc, ndtr, stdtr

from klimb.errors import KlimbError
from klimb.models.check_view import FEWEST_ROWS, MOST_LEVELS, CheckView, ScoreTest, kurtosis_score, skew_score, trend
from klimb.numerics.arrays import Array
from klimb.report.records import Checks, Finding
from klimb.report.text import plain
from klimb.rows.columns import Codes

if TYPE_CHECKING:
    from klimb.models.fit import Fit

LEVEL = 0.005  # how often all checks together may reject a correct model
BINS = 5  # of a column, for the spread of residuals along it
CLEAR = 4.0  # spread of the predictions over what rows add to their own
NATS = 3.0  # a gain that is worth saying


class Check(ABC):
    """One question to the residuals of a fit."""

    name: ClassVar[str]
    of_classes: ClassVar[bool] = False  # whether it asks something of each of several classes

    @abstractmethod
    def look(self, view: CheckView) -> Finding | None:
        """The misfit that was found, or None."""

    def applies(self, view: CheckView) -> bool:
        """Whether the question makes sense for this fit."""
        return view.residuals is not None and view.response != "binary"

    def found(self, p: float, tests: int, number: float, effect: float, threshold: float, sentence: str,
              next_step: Callable[[], str]) -> Finding | None:
        """A finding, if it is significant after ``tests`` trials and at least as large as ``threshold``."""
        corrected = min(p * max(tests, 1), 1.0)
        if not (corrected <= LEVEL / len(CHECKS) and abs(effect) >= threshold):  # NaN is no finding
            return None
        return Finding(self.name, float(number), float(abs(effect)), threshold, float(corrected), sentence, next_step())


CHECKS: dict[str, Check] = {}
_Kind = TypeVar("_Kind", bound=type[Check])


def register(cls: _Kind) -> _Kind:
    """Add a check to those run on every fit."""
    CHECKS[cls.name] = cls()
    return cls


def checked(fit: Fit) -> Checks:
    """All checks of a fit; what cannot be checked says why."""
    if fit.data is None or fit.result is None:
        return Checks("unchecked", reason="the data of the fit are not available.")
    try:
        view = CheckView(fit)
        _ = view.posterior
        if len(view.rows) < FEWEST_ROWS:
            return Checks("unchecked", reason=f"checks need at least {FEWEST_ROWS} rows.")
        views = view.by_class()
        with np.errstate(all="ignore"):
            asked = [check for check in CHECKS.values()
                     if (len(views) == 1 or check.of_classes) and check.applies(view)]
            each = [[found for one in views if (found := check.look(one)) is not None] for check in asked]
            findings = tuple(max(some, key=lambda found: found.effect) for some in each if some)
    except KlimbError as error:
        return Checks("unchecked", reason=str(error))
    return Checks("misfit" if findings else "fits", findings, tuple(check.name for check in asked), len(view.rows))


def _name(column: str) -> str:
    """A column as a formula writes it."""
    return column if column.isidentifier() else f"`{column}`"


def _nats(gain: float, what: str) -> str:
    """A remark to a call, so that both can be pasted."""
    size = f"{gain:,.0f}" if gain >= 100.0 else plain(gain, 2)
    return f"  # gains about {size} nats {what}" if gain >= NATS else ""


def _instead(view: CheckView, family: str) -> str:
    """The call with another family, and what that gains at the means of this fit."""
    return view.call(family=family) + _nats(view.gain_of(family), "at these means")


def _positive(view: CheckView) -> str:
    """Positive data that spread more where they are large."""
    return _instead(view, "gamma") if view.fit.model.likelihood.scaled else "Model log(y)."


def _wider(view: CheckView, *, remark: str = "") -> str:
    """A family with wider tails, where there is one."""
    other = {"gaussian": "student_t", "poisson": "negative_binomial"}.get(view.fit.model.likelihood.name)
    if other is None:
        return f"Look at the most extreme rows, or transform y{remark}."
    return view.call(family=other) + f"  #{remark}" if remark else _instead(view, other)


# -- the mean: columns, groups, link


@register
@final
class TrendCheck(Check):
    """Residuals that move with a column: along a curve for one in the model, in any way for one left out."""

    name = "trend"
    of_classes = True
    curve, absent = 0.02, 0.05  # share of the rows' unexplained variance

    def applies(self, view: CheckView) -> bool:
        return any(view.columns[:2])

    def look(self, view: CheckView) -> Finding | None:
        inside, outside, _ = view.columns
        tried = [(name, view.score(trend(values)), name in inside) for name, values in {**inside, **outside}.items()]
        found = [self._finding(view, *one, len(tried)) for one in tried]
        return max((one for one in found if one is not None), key=lambda one: one.effect / one.threshold, default=None)

    def _finding(self, view: CheckView, name: str, score: ScoreTest, inside: bool, tests: int) -> Finding | None:
        share = score.share
        left = f"which explains {share:.0%} of the residual variance{view.of_class}"
        words = (f"residuals follow a curve along {name}, {left}" if inside else
                 f"{name}, which is not in the model, {left.removeprefix('which ')}")
        limit = self.curve if inside else self.absent
        return self.found(score.p, tests * len(view.by_class()), share, share, limit, words,
                          lambda: view.call(add=f"s({_name(name)})") + _nats(score.gain, "by its score"))


@register
@final
class GroupCheck(Check):
    """Levels of a factor left out whose residuals have different means."""

    name = "group"
    of_classes = True
    threshold = 0.05  # share of the rows' unexplained variance that lies between the levels

    def applies(self, view: CheckView) -> bool:
        return bool(view.columns[2])

    def look(self, view: CheckView) -> Finding | None:
        factors = view.columns[2]
        found = [self._finding(view, name, codes, len(factors)) for name, codes in factors.items()]
        return max((one for one in found if one is not None), key=lambda one: one.effect, default=None)

    def _finding(self, view: CheckView, name: str, codes: Codes, tests: int) -> Finding | None:
        a, gamma = view.pulls
        pull, weight, size = (np.bincount(codes, values) for values in (a, gamma, view.counts))
        some = (size > 1.0) & (weight > 0.0)
        if some.sum() < 2 or some.sum() > 0.5 * len(view.rows):
            return None
        # Rows may pull more than their likelihood says: what they do so within levels is not for the levels to explain.
        within = a - gamma * (pull / np.where(some, weight, np.inf))[codes]
        spread = float(np.sum((within**2 / view.counts / (1.0 - view.leverage))[some[codes]]))
        noise = max(spread / float(weight[some].sum()) * view.n / max(view.n - some.sum(), 1.0), 1.0)
        pull, weight = pull[some], weight[some]
        variance = max(float(np.sum(pull**2 / noise - weight)) / float(weight @ weight), 0.0)  # of the levels' means
        share = variance * float(weight.sum() / size[some].sum())
        if len(pull) <= MOST_LEVELS:
            level = np.flatnonzero(some)
            p = view.score((codes[:, None] == level).astype(np.float64)).p
        else:  # the variance of a sum of pulls is at most that of its rows
            p = float(chdtrc(len(pull), float(np.sum(pull**2 / weight)) / noise))
        gain = 0.5 * float(np.sum(pull**2 / noise * variance / (1.0 + variance * weight) - np.log1p(variance * weight)))
        share = share / (1.0 + share)
        words = f"residuals differ by {name}, whose levels explain {share:.0%} of the residual variance{view.of_class}"
        return self.found(p, tests * len(view.by_class()), share, share, self.threshold, words, lambda: view.call(
            add=f"(1 | {_name(name)})") + _nats(gain, "by the scores of the levels"))


@register
@final
class LinkCheck(Check):
    """Residuals that curve along the prediction: another link, another scale of y, or products of columns."""

    name = "link"
    threshold = 0.02

    def applies(self, view: CheckView) -> bool:
        """Not where predictions vary mostly by what each row adds to its own."""
        f, pull = view.without[0], view.own_pull
        return bool(np.isfinite(f).all() and f.std() > CLEAR * np.sqrt(np.mean(pull**2)) + 1e-6 * np.abs(f).max())

    def look(self, view: CheckView) -> Finding | None:
        f = view.without[0]
        z = np.clip((f - f.mean()) / f.std(), -3.0, 3.0)
        score = view.score((z**2)[:, None])  # a cube is too like what the model has, and too much of it chance
        share = score.share
        own = view.fit.model.likelihood
        others = [name for name in own.links if name != own.link.name]
        positive = own.link.name == "identity" and (view.y > 0.0).all()
        scale = "model log(y)" if positive else "add products of its columns"
        step = f'Try link="{others[0]}", or {scale}' if others else scale.capitalize()
        return self.found(score.p, 1, share, share, self.threshold,
                          f"residuals follow a curve along the prediction, which explains {share:.0%} of the residual "
                          f"variance: the {own.link.name} link does not fit",
                          lambda: f"{step}, or smooths: s(x) for x.")


# -- the spread, the order of the rows, the shape


@register
@final
class DispersionCheck(Check):
    """Counts that vary more, or less, than their likelihood allows."""

    name = "dispersion"
    threshold = 1.25  # a ratio of variances

    def applies(self, view: CheckView) -> bool:
        several = view.response == "trials" and bool(np.any(view.fit.observed.aux["trials"] > 1.0))
        return view.residuals is not None and (view.response == "counts" or several)

    def look(self, view: CheckView) -> Finding | None:
        assert view.residuals is not None
        ratio = float(view.counts @ view.pearson**2) / view.n
        total = float(view.counts @ view.residuals**2) * view.n_free / view.n
        p = 2.0 * float(min(chdtrc(view.n_free, total), chdtr(view.n_free, total)))
        name = view.fit.model.likelihood.name
        effect = max(ratio, 1.0 / max(ratio, 1e-12))
        if ratio < 1.0:
            return self.found(p, 1, ratio, effect, self.threshold,
                              f"the variance is {plain(ratio, 2)} times what {name} implies: intervals are too wide",
                              lambda: "Are rows sums or means of others, or limited from above? Then count trials: "
                              'family="binomial" with p(successes, trials) on the left.')
        what = "counts" if view.response == "counts" else "proportions"
        words = f"the variance of the {what} is {plain(ratio, 2)} times what {name} implies"
        return self.found(p, 1, ratio, effect, self.threshold, words, lambda: _instead(view, "negative_binomial")
                          if name == "poisson" else f"{view.call(add='(1 | row)')}  # row is 0, 1, 2, ...")


@register
@final
class ZerosCheck(Check):
    """More zeros, or fewer, than the model expects."""

    name = "zeros"
    threshold = 0.02  # share of the rows

    def applies(self, view: CheckView) -> bool:
        return view.residuals is not None and view.response == "counts"

    def look(self, view: CheckView) -> Finding | None:
        chance, counts = view.chance_of_zero(), view.counts
        seen, expected = float(counts @ (view.y == 0.0)) / view.n, float(counts @ chance) / view.n
        sd = np.sqrt(float(counts @ (chance * (1.0 - chance))) * view.n / view.n_free) / view.n
        p = 2.0 * float(ndtr(-abs(seen - expected) / max(sd, 0.5 / view.n)))
        words = f"{seen:.0%} of the counts are 0 where the model expects {expected:.0%}"
        more = seen > expected and view.fit.model.likelihood.name == "poisson"
        return self.found(p, 1, seen, seen - expected, self.threshold, words, lambda: _instead(
            view, "negative_binomial") if more else 'Model y > 0 with family="bernoulli", and the counts above 0 '
            "separately (a hurdle model).")


@register
@final
class OrderCheck(Check):
    """Residuals that drift with the order of the rows, or are like those of the row before."""

    name = "order"
    neighbours, drift = 0.2, 0.05  # a correlation; a share of the unexplained variance

    def applies(self, view: CheckView) -> bool:
        """Rows that were merged, sorted by their response, or that count several times have no order of their own."""
        data, steps = view.fit.observed, np.diff(view.fit.observed.y)
        in_order = max(float(np.mean(steps >= 0.0)), float(np.mean(steps <= 0.0))) > 0.95 if len(steps) else True
        return data.merged is None and data.weights is None and not in_order

    def look(self, view: CheckView) -> Finding | None:
        z = view.pearson if view.residuals is None or view.response == "binary" else view.residuals
        places = view.fit.observed.places[view.rows]
        pairs = np.flatnonzero(np.diff(places) == 1)
        products = (z - z.mean())[pairs] * (z - z.mean())[pairs + 1]
        correlation = float(products.sum()) / max(len(pairs) * float(z.var()), 1e-300)
        spread = float(np.sqrt(np.sum(products**2))) * np.sqrt(view.n / max(view.n_free, 1.0))
        p = float(ndtr(-products.sum() / max(spread, 1e-300))) if len(pairs) >= FEWEST_ROWS else 1.0
        found = self.found(p, 2, correlation, correlation, self.neighbours,
                           f"residuals of neighbouring rows have a correlation of {correlation:.2f}",
                           lambda: f"{view.call(add='gp(t)')}  # where t is the column of time or position")
        if found is not None:
            return found
        score = view.score(trend(places.astype(np.float64)))
        share = score.share
        return self.found(score.p, 2, share, share, self.drift,
                          f"residuals drift with the order of the rows, which explains {share:.0%} of their variance",
                          lambda: view.call(add="s(row)") + _nats(score.gain, "by its score; row is 0, 1, 2, ..."))


@register
@final
class TailsCheck(Check):
    """Residuals with tails heavier, or lighter, than the likelihood's."""

    name = "tails"
    heavy, light = 1.0, 1.1  # excess kurtosis; that of uniform residuals is -1.2

    def look(self, view: CheckView) -> Finding | None:
        kurtosis = _standard_moment(view, 4) - 3.0
        p = 2.0 * float(ndtr(-abs(kurtosis_score(kurtosis, view.n_free))))
        name = view.fit.model.likelihood.name
        share = float(view.counts @ (np.abs(view.residuals) > 3.0)) / view.n  # type: ignore[arg-type]
        beyond = f": {share:.1%} of the residuals lie beyond 3 sd (0.3% expected; " if share > 0.003 else " ("
        if kurtosis < 0.0:
            return self.found(p, 1, kurtosis, kurtosis, self.light,
                              f"tails are lighter than {name} implies (excess kurtosis {kurtosis:.1f})",
                              lambda: "Plot the residuals: two clusters suggest a factor that is not in the model.")
        return self.found(p, 1, kurtosis, kurtosis, self.heavy,
                          f"tails are heavier than {name} implies{beyond}excess kurtosis {kurtosis:.1f})",
                          lambda: _wider(view))


@register
@final
class SkewCheck(Check):
    """Residuals that are skewed."""

    name = "skew"
    threshold = 0.5

    def look(self, view: CheckView) -> Finding | None:
        skewness = _standard_moment(view, 3)
        p = 2.0 * float(ndtr(-abs(skew_score(skewness, view.n_free))))
        return self.found(p, 1, skewness, skewness, self.threshold,
                          f"residuals are skewed {'right' if skewness > 0 else 'left'} (skewness {skewness:.1f})",
                          lambda: _positive(view) if skewness > 0.0 and (view.y > 0.0).all() else _wider(view))


@register
@final
class SpreadCheck(Check):
    """A spread of residuals that changes along the prediction or a column (heteroscedasticity)."""

    name = "spread"
    threshold = 1.5  # a ratio of mean absolute residuals

    def look(self, view: CheckView) -> Finding | None:
        if len(view.rows) < 10 * BINS:
            return None
        columns = {"the prediction": view.without[0], **view.columns[0]}
        found = [self._finding(view, name, values, len(columns)) for name, values in columns.items()]
        return max((one for one in found if one is not None), key=lambda one: one.effect, default=None)

    def _finding(self, view: CheckView, name: str, values: Array, tests: int) -> Finding | None:
        size, counts = np.abs(view.residuals), view.counts  # type: ignore[arg-type]
        edges = np.unique(np.quantile(values, np.arange(1, BINS) / BINS))
        if name == "the prediction":  # no row may choose its bin by its own y
            edges = edges[[np.mean(np.abs(values - edge) <= 2.0 * view.own_pull) < 0.05 for edge in edges]]
        bins = np.searchsorted(edges, values, side="right")
        weight = np.bincount(bins, counts, len(edges) + 1)
        means = np.bincount(bins, counts * size, len(edges) + 1) / np.maximum(weight, 1e-300)
        some = weight >= 5.0
        if some.sum() < 2:
            return None
        between = float(weight @ (means - float(counts @ size) / view.n) ** 2)
        within = float(counts @ (size - means[bins]) ** 2)
        k = len(weight) - 1
        p = float(fdtrc(k, view.n_free - k, between / k / max(within / max(view.n_free - k, 1.0), 1e-300)))
        ratio = float(means[some].max() / max(means[some].min(), 1e-3))
        high = "high" if means[some][-1] > means[some][0] else "low"

        def step() -> str:
            grows = name == "the prediction" and high == "high" and (view.y > 0.0).all()
            return _positive(view) if grows else _wider(view)

        return self.found(p, tests, ratio, ratio, self.threshold,
                          f"the spread of the residuals varies by a factor of {ratio:.1f} along {name}, and is larger "
                          f"where it is {high}", step)


@register
@final
class OutliersCheck(Check):
    """Rows far from their leave-one-out prediction, and how far they pull their own prediction."""

    name = "outliers"
    threshold = 4.5  # sds

    def applies(self, view: CheckView) -> bool:
        return view.residuals is not None

    def look(self, view: CheckView) -> Finding | None:
        assert view.residuals is not None
        view = view.hardest()
        far = np.abs(view.residuals)  # type: ignore[arg-type]
        # The spread was learnt from as many rows as are free: t, not normal.
        data = view.fit.observed
        chance = 2.0 * data.total * stdtr(max(data.total - view.n + view.n_free, 1.0), -far)
        worst = int(np.argmax(far))
        many = int(np.sum(chance < LEVEL / len(CHECKS)))
        row, (_, v) = int(data.places[view.rows[worst]]), view.without
        moved = float(view.own_pull[worst]) / np.sqrt(max(float(v[worst]), 1e-300))
        y = float(view.y[worst])
        shown = data.levels[int(y)] if data.levels else plain(y)
        which = f"row {row}" if data.copies is None else "a row"
        words = (f"{which} ({data.name} = {shown}) lies {far[worst]:.1f} sd from its leave-one-out prediction and "
                 f"moves its own prediction by {moved:.1f} posterior sd")
        others = f"; {many - 1} more rows are outliers" if many > 1 else ""
        remark = f" if row {row}, counted from 0, is right" if data.copies is None else ""
        return self.found(float(chance[worst]), 1, float(far[worst]), float(far[worst]), self.threshold, words + others,
                          lambda: _wider(view, remark=remark))


# -- moments


def _standard_moment(view: CheckView, power: int) -> float:
    assert view.residuals is not None
    centred = view.residuals - float(view.counts @ view.residuals) / view.n
    sd = np.sqrt(float(view.counts @ centred**2) / view.n)
    return float(view.counts @ (centred / max(sd, 1e-300)) ** power) / view.n
