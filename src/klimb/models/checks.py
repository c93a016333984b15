"""Does the model fit the data? Eleven checks of a fit, each with a number, how large that is, and what to do about it.

A finding is significant and large: all checks together have a level of `LEVEL`, shared out evenly and within a check
among the columns that it tries, and each has a threshold on its effect: with a million rows everything is significant.

    @check("zeros", lambda view: view.response == "counts")
    def zeros(view):
        yield Suspect(p, number, effect, threshold, "half of the counts are 0", lambda: "what to do")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import chdtr, chdtrc, fdtrc, ndtr, stdtr, stdtrit

from klimb.errors import KlimbError
from klimb.models.check_view import FEWEST_ROWS, MOST_LEVELS, TELLING, CheckView, kurtosis_score, skew_score
from klimb.report.records import Checks, Finding
from klimb.report.text import plain

if TYPE_CHECKING:
    from klimb.models.fit import Fit

LEVEL = 0.005  # how often all checks together may reject a correct model
BINS = 5  # of a column, for the spread of residuals along it
CLEAR = 4.0  # spread of the predictions over what rows add to their own
NATS = 3.0  # a gain that is worth saying

# From which a misfit is large: shares of the rows' unexplained variance, ...
CURVE, ABSENT, BETWEEN, LINK, DRIFT = TELLING, 0.05, 0.05, TELLING, 0.05
DISPERSION, SPREAD = 1.25, 1.5  # ... ratios of variances and of mean absolute residuals, ...
ZEROS, NEIGHBOURS = 0.02, 0.2  # ... a share of the rows, a correlation, ...
HEAVY, LIGHT, SKEW, FAR = 1.0, 1.1, 0.5, 4.5  # ... excess kurtosis (-1.2 if uniform), skewness, and sds


class Suspect(NamedTuple):
    """What may be a misfit: the chance of it under a right model, its number and effect, and words for both."""

    p: float
    number: float
    effect: float
    threshold: float
    sentence: str
    next_step: Callable[[], str]
    tests: int = 1  # of as many columns

    @property
    def corrected(self) -> float:
        return min(self.p * max(self.tests, 1), 1.0)

    @property
    def guilty(self) -> bool:
        """Whether it is significant and large; NaN is neither."""
        return self.corrected <= LEVEL / len(CHECKS) and abs(self.effect) >= self.threshold


class Check(NamedTuple):
    """One question to the residuals of a fit: whether it makes sense there, and what it suspects."""

    applies: Callable[[CheckView], bool]
    suspects: Callable[[CheckView], Iterator[Suspect]]
    of_classes: bool  # whether it asks something of each of several classes

    def look(self, name: str, views: list[CheckView]) -> Finding | None:
        """The largest misfit that was found, or None."""
        guilty = [one for view in views for one in self.suspects(view) if one.guilty]
        if not guilty:
            return None
        one = max(guilty, key=lambda one: abs(one.effect) / one.threshold)
        return Finding(name, float(one.number), float(abs(one.effect)), one.threshold, float(one.corrected),
                       one.sentence, one.next_step())


CHECKS: dict[str, Check] = {}


def _shaped(view: CheckView) -> bool:
    """Whether residuals have a shape that says something."""
    return view.response != "binary" and view.residuals is not None


def check(name: str, applies: Callable[[CheckView], bool] = _shaped, *, of_classes: bool = False) -> Callable[
        [Callable[[CheckView], Iterator[Suspect]]], Callable[[CheckView], Iterator[Suspect]]]:
    """Add a check to those run on every fit."""
    def add(suspects: Callable[[CheckView], Iterator[Suspect]]) -> Callable[[CheckView], Iterator[Suspect]]:
        CHECKS[name] = Check(applies, suspects, of_classes)
        return suspects

    return add


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
            asked = {name: one for name, one in CHECKS.items()
                     if (len(views) == 1 or one.of_classes) and one.applies(view)}
            found = [one.look(name, views) for name, one in asked.items()]
    except KlimbError as error:
        return Checks("unchecked", reason=str(error))
    findings = tuple(one for one in found if one is not None)
    return Checks("misfit" if findings else "fits", findings, tuple(asked), len(view.rows))


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


@check("trend", lambda view: any(view.columns[:2]), of_classes=True)
def trends(view: CheckView) -> Iterator[Suspect]:
    """Residuals that move with a column: along a curve for one in the model, in any way for one left out."""
    inside, outside, _ = view.columns
    every = {**inside, **outside}
    for name, score in zip(every, view.curves, strict=False):
        left = f"explains {score.share:.0%} of the residual variance{view.of_class}"
        words = (f"residuals follow a curve along {name}, which {left}" if name in inside else
                 f"{name}, which is not in the model, {left}")
        yield Suspect(score.p, score.share, score.share, CURVE if name in inside else ABSENT, words,
                      lambda name=name, score=score: view.call(add=f"s({_name(name)})")  # type: ignore[misc]
                      + _nats(score.gain, "by its score"), len(every) * view.n_classes)


@check("group", lambda view: bool(view.columns[2]), of_classes=True)
def groups(view: CheckView) -> Iterator[Suspect]:
    """Levels of a factor left out whose residuals have different means."""
    a, gamma = view.pulls
    for name, codes in view.columns[2].items():
        pull, weight, size = (np.bincount(codes, values) for values in (a, gamma, view.counts))
        some = (size > 1.0) & (weight > 0.0)
        if some.sum() < 2 or some.sum() > 0.5 * len(view.rows):
            continue
        # Rows may pull more than their likelihood says: what they do so within levels is not for the levels to explain.
        within = a - gamma * (pull / np.where(some, weight, np.inf))[codes]
        spread = float(np.sum((within**2 / view.counts / (1.0 - view.leverage))[some[codes]]))
        noise = max(spread / float(weight[some].sum()) * view.n / max(view.n - some.sum(), 1.0), 1.0)
        pull, weight = pull[some], weight[some]
        total = weight.sum()  # squares of weights may not be numbers
        variance = max(float(np.sum(pull**2 / noise - weight) / total / (weight @ (weight / total))), 0.0)  # of means
        share = variance * float(total / size[some].sum())
        if len(pull) <= MOST_LEVELS:
            p = view.scores((codes == np.flatnonzero(some)[:, None])[None].astype(np.float64))[0].p
        else:  # the variance of a sum of pulls is at most that of its rows
            p = float(chdtrc(len(pull), float(np.sum(pull**2 / weight)) / noise))
        gain = 0.5 * float(np.sum(pull**2 / noise * variance / (1.0 + variance * weight) - np.log1p(variance * weight)))
        share = share / (1.0 + share)
        yield Suspect(p, share, share, BETWEEN, f"residuals differ by {name}, whose levels explain {share:.0%} of the "
                      f"residual variance{view.of_class}",
                      lambda name=name, gain=gain: view.call(add=f"(1 | {_name(name)})")  # type: ignore[misc]
                      + _nats(gain, "by the scores of the levels"), len(view.columns[2]) * view.n_classes)


def _predictions_vary(view: CheckView) -> bool:
    """Not where they do so mostly by what each row adds to its own."""
    f, pull = view.without[0], view.own_pull
    return bool(np.isfinite(f).all() and f.std() > CLEAR * np.sqrt(np.mean(pull**2)) + 1e-6 * np.abs(f).max())


@check("link", _predictions_vary)
def link(view: CheckView) -> Iterator[Suspect]:
    """Residuals that curve along the prediction: another link, another scale of y, or products of columns."""
    score, own = view.curves[-1], view.fit.model.likelihood
    others = [name for name in own.links if name != own.link.name]
    positive = own.link.name == "identity" and (view.y > 0.0).all()
    scale = "model log(y)" if positive else "add products of its columns"
    step = f'Try link="{others[0]}", or {scale}' if others else scale.capitalize()
    yield Suspect(score.p, score.share, score.share, LINK, "residuals follow a curve along the prediction, which "
                  f"explains {score.share:.0%} of the residual variance: the {own.link.name} link does not fit",
                  lambda: f"{step}, or smooths: s(x) for x.")


# -- the spread, the order of the rows, the shape


def _counted(view: CheckView) -> bool:
    several = view.response == "trials" and bool(np.any(view.fit.observed.aux["trials"] > 1.0))
    return (view.response == "counts" or several) and view.residuals is not None


@check("dispersion", _counted)
def dispersion(view: CheckView) -> Iterator[Suspect]:
    """Counts that vary more, or less, than their likelihood allows."""
    assert view.residuals is not None
    ratio = float(view.counts @ view.pearson**2) / view.n
    total = float(view.counts @ view.residuals**2) * view.n_free / view.n
    p = 2.0 * float(min(chdtrc(view.n_free, total), chdtr(view.n_free, total)))
    name, what = view.fit.model.likelihood.name, "counts" if view.response == "counts" else "proportions"
    words = f"the variance of the {what} is {plain(ratio, 2)} times what {name} implies"
    if ratio < 1.0:
        yield Suspect(p, ratio, 1.0 / max(ratio, 1e-12), DISPERSION, f"{words}: intervals are too wide",
                      lambda: "Are rows sums or means of others, or limited from above? Then count trials: "
                      'family="binomial" with p(successes, trials) on the left.')
    else:
        yield Suspect(p, ratio, ratio, DISPERSION, words, lambda: _instead(view, "negative_binomial")
                      if name == "poisson" else f"{view.call(add='(1 | row)')}  # row is 0, 1, 2, ...")


@check("zeros", lambda view: view.response == "counts" and view.residuals is not None)
def zeros(view: CheckView) -> Iterator[Suspect]:
    """More zeros, or fewer, than the model expects."""
    chance, counts = view.chance_of_zero(), view.counts
    seen, expected = float(counts @ (view.y == 0.0)) / view.n, float(counts @ chance) / view.n
    sd = np.sqrt(float(counts @ (chance * (1.0 - chance))) * view.n / view.n_free) / view.n
    more = seen > expected and view.fit.model.likelihood.name == "poisson"
    yield Suspect(2.0 * float(ndtr(-abs(seen - expected) / max(sd, 0.5 / view.n))), seen, seen - expected, ZEROS,
                  f"{seen:.0%} of the counts are 0 where the model expects {expected:.0%}",
                  lambda: _instead(view, "negative_binomial") if more else
                  'Model y > 0 with family="bernoulli", and the counts above 0 separately (a hurdle model).')


def _ordered(view: CheckView) -> bool:
    """Rows that were merged, sorted by their response, or that count several times have no order of their own."""
    data, y = view.fit.observed, view.fit.observed.y
    if data.merged is not None or data.weights is not None:
        return False
    return bool(max(np.count_nonzero(y[1:] >= y[:-1]), np.count_nonzero(y[1:] <= y[:-1])) <= 0.95 * (len(y) - 1))


@check("order", _ordered)
def order(view: CheckView) -> Iterator[Suspect]:
    """Residuals that are like those of the row before, or drift with the order of the rows."""
    z = view.pearson if view.residuals is None or view.response == "binary" else view.residuals
    places = view.fit.observed.places[view.rows]
    pairs = np.flatnonzero(np.diff(places) == 1)
    products = (z - z.mean())[pairs] * (z - z.mean())[pairs + 1]
    correlation = float(products.sum()) / max(len(pairs) * float(z.var()), 1e-300)
    spread = float(np.sqrt(np.sum(products**2))) * np.sqrt(view.n / max(view.n_free, 1.0))
    p = float(ndtr(-products.sum() / max(spread, 1e-300))) if len(pairs) >= FEWEST_ROWS else 1.0
    alike = Suspect(p, correlation, correlation, NEIGHBOURS, "residuals of neighbouring rows have a correlation of "
                    f"{correlation:.2f}", lambda: f"{view.call(add='gp(t)')}  # where t is the column of time or "
                    "position", 2)
    yield alike
    if not alike.guilty:
        score = view.curves[-2]
        yield Suspect(score.p, score.share, score.share, DRIFT, "residuals drift with the order of the rows, which "
                      f"explains {score.share:.0%} of their variance", lambda: view.call(add="s(row)")
                      + _nats(score.gain, "by its score; row is 0, 1, 2, ..."), 2)


@check("tails")
def tails(view: CheckView) -> Iterator[Suspect]:
    """Residuals with tails heavier, or lighter, than the likelihood's."""
    kurtosis = view.moments[1]
    p = 2.0 * float(ndtr(-abs(kurtosis_score(kurtosis, view.n_free))))
    name = view.fit.model.likelihood.name
    share = float(view.counts @ (np.abs(view.residuals) > 3.0)) / view.n  # type: ignore[arg-type]
    beyond = f": {share:.1%} of the residuals lie beyond 3 sd (0.3% expected; " if share > 0.003 else " ("
    if kurtosis < 0.0:
        yield Suspect(p, kurtosis, kurtosis, LIGHT, f"tails are lighter than {name} implies (excess kurtosis "
                      f"{kurtosis:.1f})", lambda: "Plot the residuals: two clusters suggest a factor that is not in "
                      "the model.")
    else:
        yield Suspect(p, kurtosis, kurtosis, HEAVY, f"tails are heavier than {name} implies{beyond}excess kurtosis "
                      f"{kurtosis:.1f})", lambda: _wider(view))


@check("skew")
def skew(view: CheckView) -> Iterator[Suspect]:
    """Residuals that are skewed."""
    skewness = view.moments[0]
    yield Suspect(2.0 * float(ndtr(-abs(skew_score(skewness, view.n_free)))), skewness, skewness, SKEW,
                  f"residuals are skewed {'right' if skewness > 0 else 'left'} (skewness {skewness:.1f})",
                  lambda: _positive(view) if skewness > 0.0 and (view.y > 0.0).all() else _wider(view))


@check("spread")
def spreads(view: CheckView) -> Iterator[Suspect]:
    """A spread of residuals that changes along the prediction or a column (heteroscedasticity)."""
    if len(view.rows) < 10 * BINS:
        return
    columns = {"the prediction": view.without[0], **view.columns[0]}
    values, place = np.array(list(columns.values())), (len(view.rows) - 1.0) * np.arange(1, BINS) / BINS
    low, ordered = place.astype(np.intp), np.sort(values, axis=1)
    edges = ordered[:, low] + (place - low) * (ordered[:, low + 1] - ordered[:, low])
    edges[:, 1:][edges[:, 1:] == edges[:, :-1]] = np.inf  # equal ones are one
    close = np.abs(values[0] - edges[0, :, None]) <= 2.0 * view.own_pull
    edges[0, close.mean(axis=1) >= 0.05] = np.inf  # no row may choose its bin by its own y
    size, counts = np.abs(view.residuals), view.counts  # type: ignore[arg-type]
    sums = np.column_stack([counts, counts * size])
    above = np.sort((values[:, None] >= edges[..., None]).astype(np.float64) @ sums, axis=1)[:, ::-1]
    above = np.concatenate([np.tile(sums.sum(axis=0), (len(values), 1, 1)), above, 0.0 * above[:, :1]], axis=1)
    middle, squares = float(counts @ size) / view.n, float(counts @ size**2)
    for name, (weight, total), own in zip(columns, -np.diff(above, axis=1).swapaxes(1, 2), edges, strict=True):
        means = total / np.maximum(weight, 1e-9)  # which are differences: nothing may be a little
        some = means[weight >= 5.0]
        if len(some) < 2 or some.max() < SPREAD * some.min():
            continue
        between, k = float(weight @ (means - middle) ** 2), int(np.isfinite(own).sum())
        within = squares - float(weight @ means**2)
        p = float(fdtrc(k, view.n_free - k, between / k / max(within / max(view.n_free - k, 1.0), 1e-300)))
        ratio, high = float(some.max() / max(some.min(), 1e-3)), "high" if some[-1] > some[0] else "low"
        grows = name == "the prediction" and high == "high" and (view.y > 0.0).all()
        yield Suspect(p, ratio, ratio, SPREAD, f"the spread of the residuals varies by a factor of {ratio:.1f} along "
                      f"{name}, and is larger where it is {high}",
                      lambda grows=grows: _positive(view) if grows else _wider(view), len(columns))  # type: ignore[misc]


@check("outliers", lambda view: view.hardest.residuals is not None)
def outliers(view: CheckView) -> Iterator[Suspect]:
    """Rows far from their leave-one-out prediction, and how far they pull their own prediction."""
    view = view.hardest
    far, data = np.abs(view.residuals), view.fit.observed  # type: ignore[arg-type]
    # The spread was learnt from as many rows as are free: t, not normal.
    free, worst = max(data.total - view.n + view.n_free, 1.0), int(np.argmax(far))
    chance = 2.0 * data.total * float(stdtr(free, -far[worst]))
    many = int(np.sum(far > -stdtrit(free, 0.5 * LEVEL / len(CHECKS) / data.total)))
    row, y = int(data.places[view.rows[worst]]), float(view.y[worst])
    moved = float(view.own_pull[worst]) / np.sqrt(max(float(view.without[1][worst]), 1e-300))
    which, remark = (f"row {row}", f" if row {row}, counted from 0, is right") if data.copies is None else ("a row", "")
    others = f"; {many - 1} more rows are outliers" if many > 1 else ""
    yield Suspect(chance, float(far[worst]), float(far[worst]), FAR,
                  f"{which} ({data.name} = {data.levels[int(y)] if data.levels else plain(y)}) lies {far[worst]:.1f} sd"
                  f" from its leave-one-out prediction and moves its own prediction by {moved:.1f} posterior sd"
                  f"{others}",
                  lambda: _wider(view, remark=remark))
