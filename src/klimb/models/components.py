"""The posterior over hyperparameters and weights: points of theta with weights, and q of the weights at each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from klimb._stored import stored
from klimb.errors import require
from klimb.latents.arrow import third_moments
from klimb.latents.outputs import independent_variances
from klimb.latents.weights_posterior import WeightPosterior
from klimb.models.densities import Densities
from klimb.numerics.arrays import Array, Index
from klimb.numerics.dense import psd_square_root, threads_for
from klimb.numerics.lowdiscrepancy import normal_draws
from klimb.numerics.mixtures import mixture_moments, mixture_quantile
from klimb.numerics.proposals import split_normal
from klimb.numerics.surrogate import squared_distances
from klimb.sites.prediction import draw_response
from klimb.trust.marginals import skewed_pieces

SCORES = np.linspace(-3.6, 3.6, 73)  # normal scores of the quantiles of theta that are kept
CERTAIN = 8.0  # sds from which a normal distribution function is 0 or 1 to rounding
GRID, BANDWIDTH = 401, 0.3  # points of a marginal's distribution function; its smoothing, in sd over n^(1/5)
DRAWS = 4096  # that quantiles of theta, and points beside weights, are taken from
LIKELY = 0.1  # weight of a point of theta, over that of the heaviest, at which other modes are looked for
LEAST_WEIGHT = 1e-4  # of a point that is kept, over that of the heaviest
NO_THIRD = np.zeros((0, 0, 0, 0))
TIGHT, SCALED = 0.1, 100  # squared sds over which points of theta share a posterior of the weights; sweeps of scaling
IN_PIECES = 4  # weights up to which a few pieces are close to Gaussian in every direction
STEADY = 0.02  # variation of the sd of f over points of theta below which skewness is taken for the same at all
CLOSE = 0.015  # error of the sd of e^f that comes of taking it for that
ROUND = 0.15  # skewness up to which f is Gaussian at fixed theta


@stored("components")
@dataclass(frozen=True, eq=False)
class Components:
    """Weights that sum to one, the theta of every point, and q of the weights there.

    ``quantiles`` are those of each entry of theta at the normal scores `SCORES`: its marginal density. ``covariance``
    is that of theta by the curvature, where theta was chosen and not integrated out.
    """

    weights: Array
    theta: Array  # (S, d)
    parts: tuple[WeightPosterior, ...]
    quantiles: Array = field(default_factory=lambda: np.zeros((0, len(SCORES))))
    covariance: Array = field(default_factory=lambda: np.zeros((0, 0)))
    khat: float = float("nan")  # tail of the weights over theta, where those are importance weights
    n_effective: float = float("nan")  # points of theta that count
    points: Array = field(default_factory=lambda: np.zeros((0, 0)))  # all points of theta, where more than ``theta``
    point_weights: Array = field(default_factory=lambda: np.zeros(0))
    uncorrected: Components | None = None  # by q and its bound alone, where these have the exact posterior's moments
    gain: float = float("nan")  # log evidence less the bound, both over all theta, where it is corrected
    efficiency: float = float("nan")  # of the importance weights behind that: effective draws over draws
    correction_khat: float = float("nan")  # the tail of those weights
    third: Array = field(default_factory=lambda: NO_THIRD)  # central moments at theta, `third_moments`
    error: float = 0.0  # of the sds of hyperparameters, relative, where those were integrated out by few points
    weighed: float = float("nan")  # change of an sd by importance weights that weighed another q than the fit's

    @property
    def marginal_points(self) -> tuple[Array, Array]:
        """Points of theta and their weights, for what is said of theta itself."""
        return (self.points, self.point_weights) if len(self.points) else (self.theta, self.weights)

    def skewness(self, L: Any, sd: Array) -> Array:
        """What linear functionals of the weights, of standard deviation ``sd``, are skewed by at fixed theta."""
        third = self._third([L] * len(self.parts))
        if third is None:
            return np.zeros(len(sd))
        known = np.flatnonzero(~np.isnan(third).any(axis=1))
        own = np.average(third[known], axis=0, weights=self.weights[known] if len(third) > 1 else None)
        return np.asarray(own / np.maximum(sd, 1e-300) ** 3)

    @property
    def bends(self) -> bool:
        """Whether third moments are known."""
        return bool(self.third.size) or any(part.cubes.size for part in self.parts)

    def _third(self, rows: Sequence[Any]) -> Array | None:
        """Third central moments of functionals, given for each point, one row for each (NaN where they are not known).

        There is one row for all where they are known on average over theta, of weights that mean the same at each.
        """
        known = [third_moments(part.cubes, own, part) for part, own in zip(self.parts, rows, strict=True)]
        some = next((one for one in known if one is not None), None)
        if some is not None:
            return np.array([np.full_like(some, np.nan) if one is None else one for one in known])
        if not self.third.size or any(_columns_differ(rows[0], one) for one in rows[1:]):
            return None
        third = third_moments(self.third, rows[-1], self.parts[-1])
        return None if third is None else third[None]

    @property
    def integrated(self) -> bool:
        """Whether the hyperparameters were integrated out."""
        return bool((self.theta != self.theta[0]).any())

    def ends(self) -> tuple[Array, ...]:
        """The likely points of theta at both ends of their longest direction."""
        likely = self.theta[self.weights >= LIKELY * self.weights.max()]
        if not self.integrated or len(likely) < 2:
            return ()
        away = likely - likely.mean(axis=0)
        along = away @ np.linalg.svd(away, full_matrices=False)[2][0]
        return likely[np.argmin(along)], likely[np.argmax(along)]

    def pruned(self, share: float) -> Components:
        """The points that weigh at least ``share`` of the heaviest."""
        keep = np.flatnonzero(self.weights >= share * self.weights.max())
        weights = self.weights[keep] / self.weights[keep].sum()
        return replace(self, weights=weights, theta=self.theta[keep], parts=tuple(self.parts[k] for k in keep))

    def condensed(self) -> Components | None:
        """One Gaussian with the moments of the weights under all points; None where they have no such form."""
        part = type(self.parts[0]).pooled(self.parts, self.weights) if self.integrated else None
        top = int(np.argmax(self.weights))
        return None if part is None else replace(self, weights=np.ones(1), theta=self.theta[[top]], parts=(part,))

    @property
    def split(self) -> Components:
        """With the pieces of every part as parts of their own, for what hangs on tails."""
        pieces = [part.split() for part in self.parts]
        if all(len(own) == 1 for own in pieces):
            return self
        of = np.repeat(np.arange(len(pieces)), [len(own) for own in pieces])
        shares = np.array([share for own in pieces for share, _ in own])
        return replace(self, weights=self.weights[of] * shares, theta=self.theta[of],
                       parts=tuple(part for own in pieces for _, part in own))

    @property
    def parted(self) -> Components:
        """For f at rows: in pieces, which say more of far tails than third moments do, and these say it of each f.

        Third moments alone do where points of theta or weights are many, pieces where those of some weights are not
        known. Pieces of many weights stay wide in most directions, and exponentials of f rest on their tails.
        """
        if any(part.cubes.size for part in self.parts):
            return self
        every = len(self.third) > 1 or self.third.shape[1] == len(self.parts[0].mean)
        if self.third.size and every:
            many = self.integrated or len(self.parts[0].mean) > IN_PIECES
            return self if many and not self.parts[0].couples else self.split  # coupled fields are not bent
        return replace(self.split, third=NO_THIRD)

    def models(self, model: Any) -> tuple[Any, ...]:
        """The model at every point."""
        return tuple(model.moved(theta) for theta in self.theta)

    @threads_for(0)
    def at(self, model: Any, prepared: Any, **options: Any) -> Latents:
        """f at prepared rows under every point; ``options`` are those of the model's functionals."""
        parted = self.parted
        return parted.under(parted.models(model), prepared, **options)

    def pointed(self, model: Any, prepared: Any, **options: Any) -> Densities | None:
        """Densities of f at prepared rows by weighted draws of the weights; None where such draws are not known."""
        part = self.parts[0]
        if len(self.parts) > 1 or not part.points.size:
            return None
        here = model.moved(self.theta[0])
        functionals = here.functionals(prepared, **options)
        if np.any(functionals.rest):
            return None
        f, slopes = (part.push(functionals.L, own) for own in (part.points, part.drifts))
        f += functionals.shift + part.push(functionals.L, part.mean[None])
        return Densities.of(f, slopes, part.point_shares, here.new_site(None), here.likelihood)

    def under(self, models: Sequence[Any], prepared: Any, **options: Any) -> Latents:
        """The same with the model of every point at hand."""
        f, skewness = self.straight(models, prepared, **options)
        return f if skewness is None else f.bent(skewness)

    def straight(self, models: Sequence[Any], prepared: Any, **options: Any) -> tuple[Latents, Array | None]:
        """Gaussians under every point, and what they lack of skewness, where that is known, for each or for all."""
        m, v, within, rows, bends = [], [], [], [], self.bends
        couples = any(part.couples for part in self.parts)
        for here, part in zip(models, self.parts, strict=True):
            functionals = here.functionals(prepared, **options)
            mean, variance = part.at(functionals.L, functionals.rest)
            m.append(mean + functionals.shift)
            v.append(variance)
            if couples:
                within.append(part.within(functionals.L, functionals.rest))
            rows.append(functionals.L if bends else None)
        f = Latents(self.weights, np.array(m), np.array(v), tuple(models), np.array(within))
        third = None if f.within.size else self._third(rows)
        if third is None:
            return f, None
        if len(third) == 1:
            own = third if self.integrated else third - f.third()
            return f, own / np.maximum(f.weights @ f.v**1.5, 1e-300)
        skewness = third / np.maximum(f.v, 1e-200) ** 1.5
        known = np.flatnonzero(~np.isnan(skewness).any(axis=1))
        return f, np.where(np.isnan(skewness), _along(np.sqrt(f.v), skewness[known], known, f.weights), skewness)

    @threads_for(0)
    def sample(self, model: Any, prepared: Any, n: int, rng: np.random.Generator) -> Array:
        """``n`` joint draws of f at prepared rows, one a row."""
        return self._mixed(model, prepared, n, rng, lambda here, f: f)

    @threads_for(0)
    def simulate(self, model: Any, prepared: Any, n: int, rng: np.random.Generator, aux: Any = None) -> Array:
        """``n`` draws of y at prepared rows, each with the likelihood of its own theta; classes are numbered."""
        def drawn(here: Any, f: Array) -> Array:
            site = here.new_site(aux)
            y = draw_response(site, f, rng)
            return np.maximum(y, 0.0) if site.response == "classes" else y  # sites have -1 and 1 of two classes

        return self._mixed(model, prepared, n, rng, drawn)

    def _counts(self, n: Any, rng: np.random.Generator) -> Index:
        """How many of ``n`` draws are of each point."""
        require(isinstance(n, (int, np.integer)) and n >= 0, "the number of draws must be a whole number from 0 on",
                repr(n), "Ask for 1000, say.")
        return np.asarray(rng.multinomial(n, self.weights / self.weights.sum()))

    def _mixed(self, model: Any, prepared: Any, n: int, rng: np.random.Generator, make: Callable[..., Array]) -> Array:
        """What ``make`` makes of draws of f under every point, in random order."""
        counts, draws = self._counts(n, rng), []
        for theta, part, count in zip(self.theta, self.parts, counts, strict=True):
            if count:
                here = model.moved(theta)
                draws.append(make(here, here.functionals(prepared).draw(part, int(count), rng)))
        shape = (0, draws[0].shape[1] if draws else 0)
        return np.asarray(rng.permutation(np.concatenate([np.zeros(shape), *draws])))

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """``n`` joint draws of (theta, weights), in random order.

        Where theta is known at many points, a draw is of those around that of its weights. Where it was chosen it is
        drawn by its curvature, and the weights know nothing of that.
        """
        counts = self._counts(n, rng)
        w = np.concatenate([part.sample(int(count), rng) for part, count in zip(self.parts, counts, strict=True)])
        theta = np.repeat(self.theta, counts, axis=0)
        if self.integrated and len(self.points):
            (points, chances), first = self._points_of_parts(), np.concatenate([[0], np.cumsum(counts)])
            for k in np.flatnonzero(counts):
                theta[first[k] : first[k + 1]] = points[rng.choice(len(points), int(counts[k]), p=chances[:, k])]
        if not self.integrated and self.covariance.size:
            root = psd_square_root(self.covariance, "the covariance of theta")
            theta = theta + rng.standard_normal((n, root.shape[1])) @ root.T
        order = rng.permutation(n)
        return theta[order], w[order]

    def _points_of_parts(self) -> tuple[Array, Array]:
        """`DRAWS` of the many points of theta, (DRAWS, d), and how likely each is beside each of the parts, (DRAWS, S).

        Near ones go together, and all points and all parts keep their shares: Sinkhorn's scaling of exp(-squared
        distance / `TIGHT`).
        """
        edges = np.cumsum(self.point_weights)
        which = np.searchsorted(edges, edges[-1] * (np.arange(DRAWS) + 0.5) / DRAWS)
        points = self.points[np.minimum(which, len(edges) - 1)]
        sd = np.maximum(points.std(axis=0), 1e-300)
        away = squared_distances(points / sd, self.theta / sd)
        near, column = np.exp((away.min(axis=1, keepdims=True) - away) / TIGHT) + 1e-100, np.ones(len(self.weights))
        for _ in range(SCALED):
            row = 1.0 / (DRAWS * (near @ column))
            column = self.weights / (row @ near)
        return points, np.asarray(row[:, None] * near * column / self.weights)


@dataclass(frozen=True, eq=False)
class Latents:
    """f at some rows: one row of ``m`` and ``v`` per point of theta, field after field. Offsets are included."""

    weights: Array
    m: Array
    v: Array
    models: tuple[Any, ...]  # the model at each point
    within: Array = field(default_factory=lambda: np.zeros(0))  # covariances of the fields of a row that are coupled

    def for_sites(self) -> Latents:
        """With variances for sites, which take fields for independent: differences between fields have the right ones.
        """
        if not self.within.size:
            return self
        return replace(self, v=np.array([independent_variances(own).T.ravel() for own in self.within]))

    def log_density(self, y: Any, aux: Any = None) -> Array:
        """Of y at each row, with its own trials and whether it is censored."""
        f = self.for_sites()
        terms = [np.log(weight) + model.new_site(aux or None).predict(m, v).log_density(y)
                 for weight, model, m, v in zip(f.weights, f.models, f.m, f.v, strict=True)]
        return np.asarray(np.logaddexp.reduce(np.array(terms), axis=0))

    def moments(self) -> tuple[Array, Array]:
        return mixture_moments(self.weights, self.m, self.v)

    def third(self) -> Array:
        """Third central moments."""
        away = self.m - self.weights @ self.m
        return np.asarray(self.weights @ (away**3 + 3.0 * away * self.v))

    def by_model(self) -> list[tuple[Any, Any]]:
        """Every model, and which points are its own."""
        every, number = {id(model): model for model in self.models}, np.array([id(model) for model in self.models])
        return [(model, number == key if len(every) > 1 else slice(None)) for key, model in every.items()]

    def sites(self, aux: Any = None) -> list[Any]:
        """That of y at new rows for each point, one for all points of the same model."""
        every = {id(model): model for model in self.models}
        known = {key: model.new_site(aux) for key, model in every.items()}
        return [known[id(model)] for model in self.models]

    def predictors(self, sites: Sequence[Any]) -> tuple[Latents, Array]:
        """Of the mean of y, with the site of each point, and the (shift, slope) of each that makes them of f."""
        maps = np.array([site.mean_predictor for site in sites], dtype=np.float64)
        shift, slope = maps.T[..., None]
        return replace(self, m=shift + slope * self.m, v=slope**2 * self.v), maps

    def skewed(self, skewness: Array) -> Array:
        """The share of skewness under each point, or under all, that shows in the mean of y, for each row.

        Theta may spread that mean less than f. There is no step, so that rounding does not decide what is shown. Where
        f is a logarithm, or something of the kind, moments of e^f hang on third moments themselves, if each point has
        its own: k of them multiplies E e^(j f) by e^(j^3 k / 6).
        """
        own, link = len(skewness) > 1, self.models[0].likelihood.link.name
        every, _ = self.predictors(self.sites())
        spread, third = every.moments()[1], np.abs(every.weights @ (every.v**1.5 * skewness))
        size = third / np.clip(spread, 1e-200, 1.0 if own and link != "identity" else np.inf) ** 1.5
        if own and "log" in link.split():
            more = np.expm1(np.clip(spread, 1e-200, 50.0))
            size = np.maximum(size, 0.5 * ROUND / CLOSE * third * (8.0 * more + 6.0) / (6.0 * more))
        return np.asarray(np.clip(4.0 * size / ROUND - 3.0, 0.0, 1.0))

    def rows(self, at: Any) -> Latents:
        """At some of the rows, where each has one f."""
        return replace(self, m=self.m[:, at], v=self.v[:, at])

    def bent(self, skewness: Array) -> Latents:
        """Each Gaussian in pieces, so that it is skewed by so much, where that shows."""
        share = self.skewed(skewness)
        if not share.any():
            return self
        pieces = [skewed_pieces(own) for own in skewness]
        shares = pieces[0][0]
        means, variances = (np.array([own[k] for own in pieces]) for k in (1, 2))
        means, variances = np.sqrt(share) * means, 1.0 - share * (1.0 - variances)  # the same variance in all
        m = (self.m[:, None] + np.sqrt(self.v)[:, None] * means).reshape(-1, self.m.shape[1])
        v = (self.v[:, None] * variances).reshape(-1, self.m.shape[1])
        models = tuple(model for model in self.models for _ in shares)
        return Latents(np.outer(self.weights, shares).ravel(), m, v, models)

    def thinned(self, most: int) -> Latents:
        """The first points where they are many draws, which come in random order, and each of them needs quadrature."""
        if len(self.weights) <= most or np.ptp(self.weights) > 0.0 or not self.v.any():
            return self
        return replace(self, weights=np.full(most, 1.0 / most), m=self.m[:most], v=self.v[:most],
                       models=self.models[:most], within=self.within[:most])

    def quantile(self, p: float) -> Array:
        return mixture_quantile(self.weights, self.m, np.sqrt(self.v), p)

    def interval(self, tail: float) -> list[Array]:
        """The ends beyond which lies ``tail`` on either side."""
        return [self.quantile(p) for p in (tail, 1.0 - tail)]


def _along(sd: Array, skewness: Array, known: Index, weights: Array) -> Array:
    """Skewness at all points of theta, a line in the sd of f at each row through the ``known`` ones, not beyond them.

    Wider posteriors of few counts are more skewed, and their tails are what sds of means hang on: one skewness for all
    points made these 8% too large.
    """
    share = weights[known] / weights[known].sum()
    centre, middle = share @ sd[known], share @ skewness
    away = sd[known] - centre
    slope = share @ (away * skewness) / np.maximum(share @ away**2, (STEADY * centre) ** 2 + 1e-300)
    return np.asarray(middle + slope * (np.clip(sd, sd[known].min(axis=0), sd[known].max(axis=0)) - centre))


def _columns_differ(one: Any, other: Any) -> bool:
    """Whether rows of two models differ in the columns that all rows share: features of ``gp(x)`` move with theta."""
    X, Y = (getattr(rows, "X", rows) for rows in (one, other))
    return isinstance(X, np.ndarray) and isinstance(Y, np.ndarray) and X is not Y and not np.array_equal(X, Y)


def marginal_quantiles(theta: Array, weights: Array, bandwidth: float = BANDWIDTH) -> Array:
    """Quantiles of each entry of theta at `SCORES`, from smoothed weighted points."""
    effective = 1.0 / float((weights**2).sum())
    out = []
    for column in theta.T:
        mean = float(weights @ column)
        sd = max(float(np.sqrt(weights @ (column - mean) ** 2)), 1e-9 * (1.0 + abs(mean)))  # one point alone has none
        width = bandwidth * sd * effective**-0.2
        used = weights > 1e-8 * weights.max()
        low, high = column[used].min() - 4 * width, column[used].max() + 4 * width
        line = np.linspace(low, high, GRID)
        shrunk = mean + (column[used] - mean) / np.sqrt(1.0 + (width / sd) ** 2)  # the smoothing adds no variance
        mass, edges = np.histogram(shrunk, 4 * GRID, (low, high), weights=weights[used])
        middles, mass = 0.5 * (edges[1:] + edges[:-1])[mass > 0.0], mass[mass > 0.0] / mass.sum()
        first = np.searchsorted(middles, line - CERTAIN * width)  # what is farther below lies below for certain
        most = int((np.searchsorted(middles, line + CERTAIN * width) - first).max())
        near = first[:, None] + np.arange(most)
        mass, middles, below = np.append(mass, np.zeros(most)), np.append(middles, np.full(most, high)), mass.cumsum()
        steps = mass[near] * ndtr((line[:, None] - middles[near]) / width)
        cdf = np.append(0.0, below)[first] + steps.sum(axis=1)
        out.append(np.interp(ndtr(SCORES), np.maximum.accumulate(np.clip(cdf, 0.0, 1.0)), line))
    return np.array(out)


def split_quantiles(mode: Array, A: Array, stretch: Array, centre: Array) -> Array:
    """Quantiles of each entry of theta under normals with two widths along each axis, by a fixed set of points."""
    theta = mode + (centre + split_normal(normal_draws(DRAWS, len(A), seed=0), stretch)) @ A.T
    return np.asarray(np.quantile(theta, ndtr(SCORES), axis=0).T)


def marginal_quantile(quantiles: Array, p: Array) -> Array:
    """The p-quantiles of a marginal that is kept at `SCORES`."""
    return np.interp(ndtri(p), SCORES, quantiles)


def share_above(quantiles: Array, level: float) -> float:
    """The mass above ``level`` of a marginal that is kept at `SCORES`."""
    return 1.0 - float(ndtr(np.interp(level, quantiles, SCORES)))
