"""Columns of predictions: of f, of the mean of y, and of y itself, with the hyperparameters integrated out."""

from collections.abc import Callable
from os import PathLike
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.special import expit, logit, softmax

from klimb.errors import InputError, require
from klimb.likelihoods import LINKS
from klimb.models.components import Components, Latents
from klimb.models.densities import Densities
from klimb.models.tail_sds import tail_sds
from klimb.numerics.arrays import Array
from klimb.numerics.dense import row_blocks, threads_for
from klimb.numerics.lowdiscrepancy import normal_draws
from klimb.numerics.mixtures import mixture_moments
from klimb.numerics.special import hermite
from klimb.rows.frames import Frame
from klimb.rows.scans import Scan, as_table
from klimb.sites.base import Site
from klimb.sites.prediction import class_chances, predictive_cdf

PredictionKind: TypeAlias = Literal["mean", "latent", "response", "all"]
KINDS = ("mean", "latent", "response", "all")
SECANT_STEPS, SECANT_TOL = 15, 1e-6  # on the distribution function of y; the last step leaves less
CLASS_DRAWS = 8192  # of f under all points together, for the ends of the chance of a class: to some 0.03 sd
HEAVY = 0.01  # of the posterior's mass: where more of it leaves y without a mean, none is given
MOST_DRAWS = 500  # of a sampler that the noise of y is averaged over
HALVES = 50  # of an interval, down to rounding
AT_A_TIME = 1 << 17  # rows of files
TOGETHER = 2**19  # rows times points of theta that are predicted together
SAMPLED, TELLING = 500, 1e-4  # rows that are asked, and differences of predictions that they notice, in sds
NODES = {5: (0.0, 0.1), 10: (0.1, 0.5), 20: (0.5, 1.0), 48: (1.0, np.inf)}  # for the sd of the mean of y, by sds of f
ALIKE = 0.5  # sd of a log odds up to which these nodes give the mean of a chance as well, to ten digits


def columns_of(f: Latents, kind: PredictionKind, tail: float | None, levels: tuple[str, ...], aux: Any,
               whole: Densities | None = None) -> dict[str, Array]:
    """The columns of one kind of prediction; with "all", those of each, told apart by their prefix.

    Without ``tail`` they are mean and sd of y itself.

    Where the ``whole`` densities of f are known, what is said of it and of the mean of y comes from these.
    """
    require(kind in KINDS, 'kind must be "mean", "latent", "response" or "all"', repr(kind),
            "mean is the default; latent is the linear predictor, response is y itself.")
    likelihood = f.models[0].likelihood
    classes = likelihood.response in ("ordered", "classes")
    some = f.thinned(MOST_DRAWS).for_sites()
    sites = some.sites(aux)
    columns: dict[str, Array] = {}
    if tail is None:
        mean, sd = response_moments(some, sites)
        return {"mean": mean, "sd": sd}
    if kind in ("latent", "all"):
        columns |= _prefixed("f_" if kind == "all" else "", latent_columns(whole or f, tail, likelihood.fields))
    if kind in ("mean", "all") and whole is not None:
        columns |= whole.mean_columns(tail)
    elif kind in ("mean", "all"):
        columns |= level_columns(some, sites, levels) if classes else mean_columns(f, tail)
    if kind == "response" or (kind == "all" and has_moments(sites[0])):
        columns |= _prefixed("y_" if kind == "all" else "", response_columns(some, sites, tail))
    return columns


@threads_for(0)
def columns_by_rows(components: Components, model: Any, prepared: Any, kind: PredictionKind,
                    tail: float | None, levels: tuple[str, ...], aux: Any, *, fitted: bool,
                    **options: Any) -> dict[str, Array]:
    """The columns of prepared rows, some rows at a time; ``options`` are those of the model's functionals.

    For many rows of the fit one Gaussian with the moments of all points of theta stands for them, unless a sample of
    the rows can tell: means and sds of f are the same then, quantiles as far as skewness and kurtosis do not show.
    The sd of a mean that is known to an order of magnitude is NaN.
    """
    def columns(some: Any, parts: Components, models: Any) -> dict[str, Array]:
        rows = prepared if isinstance(some, slice) and some == slice(0, n) else model.some(prepared, some)
        own = {name: values[some] for name, values in (aux or {}).items()}
        if (densities := whole.pointed(model, rows, **options)) is not None:
            shares, m, v = densities.pieces()
            return columns_of(Latents(shares, m, v, models[:1] * len(m)), kind, tail, levels, own or None, densities)
        f, skewness = parts.straight(models, rows, **options)
        found = columns_at(f, skewness, own)
        if kind in ("mean", "all") and "sd" in found:
            found["sd"] = tail_sds(f, skewness, parts, found["sd"])
        return found

    def columns_at(f: Latents, skewness: Array | None, own: dict[str, Array]) -> dict[str, Array]:
        if skewness is None or not (shows := f.skewed(skewness) > 0.0).any():
            return columns_of(f, kind, tail, levels, own or None)
        if shows.all() or len(f.models[0].likelihood.fields) > 1:
            return columns_of(f.bent(skewness), kind, tail, levels, own or None)
        found = dict[str, Array]()
        for at in (np.flatnonzero(~shows), np.flatnonzero(shows)):  # pieces are many: only for rows that need them
            here = columns_of(f.rows(at).bent(skewness[:, at]), kind, tail, levels,
                              {name: values[at] for name, values in own.items()} or None)
            for name, values in here.items():
                found.setdefault(name, np.empty(len(shows)))[at] = values
        return found

    whole, components = components, components.parted
    n = model.count(prepared)
    many = len(components.weights) * n > TOGETHER
    one = components.condensed() if fitted and many else None
    if one is not None:
        some = np.sort(np.random.default_rng(0).choice(n, SAMPLED, replace=False))
        exact, few = (columns(some, parts, parts.models(model)) for parts in (components, one))
        sd = exact.get("sd", np.zeros(SAMPLED))
        if all((np.abs(exact[name] - few[name]) <= TELLING * sd).all() for name in exact):
            components = one
    models, found = components.models(model), dict[str, Array]()
    size = max(TOGETHER // max(len(models), len(whole.parts[0].points)), 1)
    for begin in range(0, max(n, 1), size):
        rows = slice(begin, min(begin + size, n))
        for name, values in columns(rows, components, models).items():
            found.setdefault(name, np.empty(n))[rows] = values
    return found


def _prefixed(prefix: str, columns: dict[str, Array]) -> dict[str, Array]:
    return {prefix + name: values for name, values in columns.items()}


def latent_columns(f: Latents | Densities, tail: float, fields: tuple[str, ...] = ("mu",)) -> dict[str, Array]:
    """f: its mean, sd and quantiles; where a datum has several, a set of columns for each."""
    mean, variance = f.moments()
    low, high = f.interval(tail)
    every = {"mean": mean, "sd": np.sqrt(variance), "lower": low, "upper": high}
    if len(fields) == 1:
        return every
    return {f"{name}({field})": values.reshape(len(fields), -1)[k]
            for k, field in enumerate(fields) for name, values in every.items()}


def mean_columns(f: Latents, tail: float) -> dict[str, Array]:
    """E[y | f] as f is uncertain: its mean (that of y), its sd, and the transformed quantiles of f."""
    likelihood = f.models[0].likelihood
    sites = f.sites()
    if moments_missing(f.weights, sites)[0] > HEAVY:
        nothing = np.full(f.m.shape[1], np.nan)
        low, high = f.interval(tail)
        return {"mean": nothing, "sd": nothing.copy(), "lower": low, "upper": high, "median": f.quantile(0.5)}
    f, _ = f.predictors(sites)
    means, variances = np.empty_like(f.m), np.empty_like(f.m)
    for model, own in f.by_model():
        found = mean_moments(model, f.m[own].ravel(), f.v[own].ravel())
        means[own], variances[own] = (values.reshape(-1, f.m.shape[1]) for values in found)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, variance = mixture_moments(f.weights, means, variances)
    ends = np.sort([likelihood.link.inverse(end) for end in f.interval(tail)], axis=0)
    return {"mean": mean, "sd": np.sqrt(np.nan_to_num(variance, nan=np.inf)), "lower": ends[0], "upper": ends[1]}


def mean_moments(model: Any, m: Array, v: Array) -> tuple[Array, Array]:
    """Mean and variance of E[y | f] where the predictor of the mean is N(m, v); the mean is exactly that of y."""
    likelihood = model.likelihood
    if likelihood.link.name == "identity":
        return m, v
    if not v.any():  # f is known
        return np.asarray(likelihood.link.inverse(m)), v
    if likelihood.link.inverse is LINKS["log"].inverse:
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.exp(m + 0.5 * v)
            return mean, mean**2 * np.expm1(v)
    mean, variance, sd = np.empty_like(m), np.empty_like(m), np.sqrt(v)
    logit = likelihood.link.inverse is LINKS["logit"].inverse
    rest = ~(sd < (ALIKE if logit else 0.0))
    if rest.any():
        mean[rest] = model.new_site(None).response_moments(m[rest], v[rest])[0]
    # The spread of E[y | f] around its mean: few digits are enough, and the rule's own mean makes it never negative.
    for number, (low, high) in NODES.items():
        nodes, mass = hermite(number)
        at = np.flatnonzero((sd >= low) & (sd < high))
        for rows in row_blocks(len(at), number):
            some = at[rows]
            f = np.multiply.outer(nodes, sd[some])
            f += m[some]
            values = _expit(f) if logit else likelihood.link.inverse(f)
            own = mass @ values
            if logit and high <= ALIKE:
                mean[some] = own
            values -= own
            variance[some] = mass @ np.square(values, out=values)
    return mean, variance


def _expit(f: Array) -> Array:
    """1 / (1 + e^-f) in place; vectorised exponentials take a third of the time of `scipy.special.expit`."""
    with np.errstate(over="ignore", under="ignore"):
        np.exp(np.negative(f, out=f), out=f)
    f += 1.0
    return np.divide(1.0, f, out=f)


def level_columns(f: Latents, sites: list[Site], levels: tuple[str, ...]) -> dict[str, Array]:
    """The chance of every level of a response that has levels."""
    chances = _chances(f, sites)
    return {f"P({level})": chances[:, k] for k, level in enumerate(levels)}


def _chances(f: Latents, sites: list[Site]) -> Array:
    """(rows, classes) chances of the classes."""
    each = (w * class_chances(site, m, v) for w, site, m, v in zip(f.weights, sites, f.m, f.v, strict=True))
    return sum(each, np.zeros(()))


def class_columns(f: Latents, tail: float, levels: tuple[str, ...]) -> dict[str, dict[str, Array]]:
    """For every class the mean and the credible interval of its chance, as f is uncertain."""
    classes = len(levels)
    few = max(CLASS_DRAWS // len(f.weights), 8)
    z = normal_draws(few, classes, seed=0) if f.v.any() else np.zeros((1, classes))
    rows = f.m.shape[1] // classes
    draws = np.empty((len(f.weights), len(z), rows, classes))
    for k, (part, m, v) in enumerate(zip(draws, f.m, f.v, strict=True)):
        if f.within.size:
            spread, axes = np.linalg.eigh(f.within[k])
            away = np.einsum("ncd,kd->knc", axes * np.sqrt(np.maximum(spread, 0.0))[:, None, :], z)
        else:
            away = np.sqrt(v).reshape(classes, rows).T * z[:, None, :]
        part[:] = softmax(m.reshape(classes, rows).T + away, axis=-1)
    shares = np.repeat(f.weights / len(z), len(z))
    every = draws.reshape(-1, rows, classes)
    order = np.argsort(every, axis=0)
    below = np.cumsum(shares[order], axis=0)
    ends = [np.take_along_axis(np.take_along_axis(every, order, 0), np.argmax(below >= p, axis=0)[None], 0)[0]
            for p in (tail, 1.0 - tail)]
    chances = level_columns(f.for_sites(), [model.new_site(None) for model in f.models], levels)
    return {level: {"mean": chances[f"P({level})"], "lower": ends[0][:, k], "upper": ends[1][:, k]}
            for k, level in enumerate(levels)}


def has_moments(site: Site) -> bool:
    """Whether the likelihood can say more of y than its density: one of the user's own may not."""
    one = np.zeros(site.n_outputs)
    try:
        site.rows(slice(0, 1)).response_moments(one, np.ones_like(one))
    except InputError:
        return False
    return True


def moments_missing(weights: Array, sites: list[Site]) -> tuple[float, float]:
    """The mass of the posterior under which y has no mean (Student-t, df <= 1), and no sd (df <= 2)."""
    one = np.zeros(1)
    if sites[0].log_concave or sites[0].response != "real" or not has_moments(sites[0]):
        return 0.0, 0.0
    each = {id(site): site for site in sites}
    known = {key: site.rows(slice(0, 1)).response_moments(one, one) for key, site in each.items()}
    found = [known[id(site)] for site in sites]
    lost = np.array([[np.isnan(mean[0]), not np.isfinite(variance[0])] for mean, variance in found])
    return float(weights @ lost[:, 0]), float(weights @ lost[:, 1])


def tail_notes(weights: Array, sites: list[Any]) -> tuple[str, ...]:
    """What predictions leave out where y has no mean or no sd."""
    no_mean, no_sd = moments_missing(weights, sites)
    if no_mean > HEAVY:
        return (f"y has no mean where df <= 1, which has {no_mean:.0%} of the posterior: predictions give the median "
                "and quantiles; mean and sd are NaN.",)
    if no_sd > HEAVY:
        return (f"y has no sd where df <= 2, which has {no_sd:.0%} of the posterior: predictions of y have NaN as sd.",)
    return ()


def response_columns(f: Latents, sites: list[Site], tail: float) -> dict[str, Array]:
    """y itself: mean, sd and quantiles of the predictive distribution; the median as well where it has no mean."""
    if sites[0].response == "classes":
        chances = _chances(f, sites)
        numbers, upto = np.arange(chances.shape[1], dtype=np.float64), np.cumsum(chances, axis=1)
        mean = chances @ numbers
        sd = np.sqrt(np.sum(chances * (numbers - mean[:, None]) ** 2, axis=1))
        low, high = (np.argmax(upto >= min(p, 1.0 - 1e-12), axis=1).astype(np.float64) for p in (tail, 1.0 - tail))
        return {"mean": mean, "sd": sd, "lower": low, "upper": high}
    mean, sd = response_moments(f, sites)
    more = {"median": response_quantile(f, sites, 0.5)} if moments_missing(f.weights, sites)[0] > HEAVY else {}
    return {"mean": mean, "sd": sd, "lower": response_quantile(f, sites, tail),
            "upper": response_quantile(f, sites, 1.0 - tail), **more}


def response_moments(f: Latents, sites: list[Site]) -> tuple[Array, Array]:
    """Mean and sd of y under the mixture, NaN where it has none."""
    moments = [site.response_moments(m, v) for site, m, v in zip(sites, f.m, f.v, strict=True)]
    means, variances = (np.array([pair[k] for pair in moments]) for k in (0, 1))
    if sites[0].log_concave or sites[0].response != "real":
        mean, variance = mixture_moments(f.weights, means, variances)
        return mean, np.sqrt(variance)
    no_mean, no_sd = moments_missing(f.weights, sites)
    mean, variance = np.full_like(means[0], np.nan), np.full_like(means[0], np.nan)
    if no_mean <= HEAVY:
        some = np.isfinite(means).all(axis=1)
        mean = mixture_moments(f.weights[some] / f.weights[some].sum(), means[some], variances[some])[0]
    if no_sd <= HEAVY:
        some = np.isfinite(variances).all(axis=1)
        variance = mixture_moments(f.weights[some] / f.weights[some].sum(), means[some], variances[some])[1]
    return mean, np.sqrt(variance)


def response_quantile(f: Latents, sites: list[Site], p: float) -> Array:
    """The p-quantile of y under the mixture.

    From that of one normal predictor of the mean with the moments of all, secant steps on the mixture's own
    distribution function; steps to neighbouring numbers where y is a count.
    """
    top = int(np.argmax(f.weights))
    heaviest, (every, maps) = sites[top], f.predictors(sites)
    (m, v), (shift, slope) = every.moments(), maps[top]
    guess = heaviest.predict((m - shift) / slope, v / slope**2)
    y = guess.quantile(p)
    if len(sites) == 1:
        return np.asarray(y)
    parts = list(zip(f.weights, sites, f.m, f.v, strict=True))

    def below(rows: Any, at: Array) -> Array:
        return np.asarray(sum(w * predictive_cdf(site.rows(rows), at, m[rows], v[rows]) for w, site, m, v in parts))

    if heaviest.discrete:
        return _whole_quantile(below, y, p)
    if heaviest.response in ("positive", "unit"):  # a quantile may round to an end that has no density
        y = np.clip(y, np.finfo(float).tiny, None if heaviest.response == "positive" else 1.0 - 2.0**-53)
    with np.errstate(under="ignore", over="ignore"):
        density = np.exp(guess.log_density(y))
    return _secant_quantile(below, density, y, p, heaviest.response)


def _secant_quantile(below: Any, slope: Array, y: Array, p: float, support: str) -> Array:
    """Where the distribution function is p, from a close guess ``y`` and the density there."""
    rows = np.arange(len(y))
    gap = below(rows, y) - p
    for _ in range(SECANT_STEPS):
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = np.clip(-gap / slope, -0.2 / slope, 0.2 / slope)  # over a fifth of the mass at this density
        step = np.where(np.isfinite(step), step, 0.0)
        moved = y[rows] + step
        if support in ("positive", "unit"):  # stay inside
            moved = np.where(moved <= 0, 0.5 * y[rows], moved)
        if support == "unit":
            moved = np.where(moved >= 1, 0.5 * (1.0 + y[rows]), moved)
        step, y[rows] = moved - y[rows], moved
        found = np.abs(gap) <= SECANT_TOL
        if found.all():
            break
        rows, gap, slope, step = (part[~found] for part in (rows, gap, slope, step))
        new_gap = below(rows, y[rows]) - p
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            secant = (new_gap - gap) / step
            usable = np.isfinite(secant) & (secant > 0.1 * slope) & (secant < 10.0 * slope)
        slope = np.where(usable, secant, slope)
        gap = new_gap
    else:
        left = rows[np.abs(gap) > SECANT_TOL]
        if left.size:
            y[left] = _halved_quantile(below, left, y[left], p, support)
    return y


def _halved_quantile(below: Any, rows: Array, y: Array, p: float, support: str) -> Array:
    """The same by halves of an interval, for rows whose distribution function is too steep at an end for secants."""
    to, back = {"positive": (np.log, np.exp), "unit": (logit, expit)}.get(support, (np.asarray, np.asarray))
    edge = {"positive": 700.0, "unit": 36.0}.get(support, 1e300)
    with np.errstate(divide="ignore"):
        place = np.clip(to(y), -edge, edge)  # a guess may lie on the end itself
    low, high = place - 1.0, place + 1.0
    for _ in range(HALVES):
        short, long = below(rows, back(low)) > p, below(rows, back(high)) < p
        low = np.where(short, np.maximum(2.0 * low - high, -edge), low)
        high = np.where(long, np.minimum(2.0 * high - low, edge), high)
        if not (short | long).any():
            break
    for _ in range(HALVES):
        middle = 0.5 * (low + high)
        under = below(rows, back(middle)) < p
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    return np.asarray(back(0.5 * (low + high)))


def _whole_quantile(below: Any, y: Array, p: float) -> Array:
    """The smallest whole number with P(Y <= y) >= p, from a guess: ever longer steps, then halves of the last one."""
    rows = np.arange(len(y))
    enough = below(rows, y) >= p
    low, high = np.where(enough, -1.0, y), np.where(enough, y, np.inf)
    stride = np.ones(len(y))
    while True:  # until P(Y <= low) < p <= P(Y <= high) are neighbours; P(Y <= -1) = 0
        rows = np.flatnonzero(high - low > 1.0)
        if not rows.size:
            return np.asarray(high)
        known = np.isfinite(high[rows])
        down = np.maximum(high[rows] - stride[rows], np.floor(0.5 * (low[rows] + high[rows])), where=known,
                          out=np.zeros(len(rows)))
        trial = np.where(known, np.maximum(down, low[rows] + 1.0), low[rows] + stride[rows])
        enough = below(rows, trial) >= p
        high[rows], low[rows] = np.where(enough, trial, high[rows]), np.where(enough, low[rows], trial)
        stride[rows] *= 2.0


def checked_interval(interval: Any) -> float:
    """Half of what is left outside a central interval."""
    if not isinstance(interval, int | float) or isinstance(interval, bool) or not 0.0 < interval < 1.0:
        raise InputError("interval must be between 0 and 1", repr(interval), "0.9 is the default: from 5% to 95%.")
    return 0.5 * (1.0 - float(interval))


def in_place(draws: Array, rows: Array, n: int) -> Array:
    """Draws at ``rows`` of n, each with one row, NaN at the other rows; those of classes come one after the other."""
    if len(rows) == n:
        return draws
    full = np.full((len(draws), draws.shape[1] // len(rows), n), np.nan)
    full[:, :, rows] = draws.reshape(*full.shape[:2], len(rows))
    return full.reshape(len(draws), full.shape[1] * n)


def is_elsewhere(data: Any) -> bool:
    """Whether rows are to be read from files."""
    return isinstance(data, (str, PathLike, Scan))


def by_blocks(data: Any, encoder: Any, predict: Callable[[Frame], dict[str, Array]]) -> dict[str, Array]:
    """Predictions for rows in files, some of them at a time; only the columns that a formula names are read."""
    table = as_table(data)
    if isinstance(table, Frame):  # a cache
        return predict(table)
    named = {*encoder.predictors, *(() if encoder.response is None else encoder.response.columns)}
    names = [name for name in table.columns if name in named]
    parts = [predict(frame) for block in table.blocks(names).blocks for frame in block.frames(names, AT_A_TIME)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
