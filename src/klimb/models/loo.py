"""Leave-one-out predictions without fitting again: a datum's own site is taken out of its marginal.

Without its own site a datum's marginal is the cavity: 1/v_c = 1/v_i - gamma_i, m_c = m_i - v_c a_i. Exact for Gaussian
sites. At the optimum a = -alpha(m, v) and gamma = gamma(m, v), so the sites follow from q by one call of the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from klimb._stored import SKIPPED, stored
from klimb.errors import InputError
from klimb.infer.problem import Problem
from klimb.latents.base import Posterior
from klimb.likelihoods import Observed
from klimb.models.cavities import Cavities, cavities, coupled_cavities, places_among
from klimb.models.components import Components
from klimb.numerics.arrays import Array
from klimb.numerics.dense import row_blocks
from klimb.numerics.pareto import smooth_log_weights
from klimb.numerics.skeleton import skeleton
from klimb.sites.base import Site
from klimb.trust.collapsed import CollapsedWeights

MOST_TERMS = 100_000  # rows times points of theta, all at once; with more few points tell the others
SOME_ROWS, LEAST_POINTS = 1_000, 4  # that say which points these are; points beside two for each hyperparameter
MOST_MOMENTS, MOST_POINTS = 5_000, 12  # the same, and points, for distribution functions, which cost quadrature
# Nodes per coefficient of a level with few rows, and with many: 1 / p(y_i | f_i) reaches farther out than q does.
LEFT_NODES, MANY_ROWS = {1: (31, 15), 2: (11, 9), 3: (5, 5)}, 10
MOST_LEFT = 2e6  # values of log p for that
FEW_ROWS = 50  # of a level on average: with more, cavities are close
LEAST_WEIGHT = 0.002  # of a point, over that of the heaviest


class LeftOut(NamedTuple):
    """Of each y_i before it was seen: ``mean``, ``variance``, P(Y < y_i) as ``below`` and P(Y <= y_i) as ``at``.

    Of a censored datum ``at`` is 1: its place is spread over what is larger, as that of a count is over its jump.
    """

    mean: Array
    variance: Array
    below: Array
    at: Array


@stored("loo")
@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Predictions of each row from all the others: ``log_density`` is log p(y_i | others).

    ``mean``, ``variance``, ``below`` and ``at`` describe y_i before it was seen, and are worked out when they are asked
    for. Rows whose own part cannot be taken out are NaN. Of a row that counts twice one copy is left out.
    """

    log_density: Array
    weights: Array | None = None
    moments: Array | None = None  # (4, n): those of `LeftOut`, of a file
    sampled_from: int = 0  # rows that these are a sample of; 0 where they are all
    details: Callable[[Any], Array] | None = field(default=None, metadata={SKIPPED: False})  # of rows; None: of all

    @property
    def mean(self) -> Array:
        return self._left_out.mean

    @property
    def variance(self) -> Array:
        return self._left_out.variance

    @property
    def below(self) -> Array:
        """P(Y < y_i)."""
        return self._left_out.below

    @property
    def at(self) -> Array:
        """P(Y <= y_i)."""
        return self._left_out.at

    @cached_property
    def _left_out(self) -> LeftOut:
        if self.moments is not None:
            return LeftOut(*self.moments)
        assert self.details is not None
        return LeftOut(*self.details(None))

    def some(self, rows: Any) -> LeftOut:
        """``mean``, ``variance``, ``below`` and ``at`` of some rows, without working out those of all."""
        if self.details is not None and "_left_out" not in self.__dict__ and len(rows) < len(self.log_density):
            return LeftOut(*self.details(rows))
        return LeftOut(*(values[rows] for values in self._left_out))

    def pit(self) -> Array:
        """P(Y <= y_i | others): uniform where the model is calibrated.

        For counts the mid-point of the jump, for censored data that of P(Y <= y_i) and 1.
        """
        return np.asarray(0.5 * (self.below + self.at))

    @property
    def elpd(self) -> float:
        """Sum of the log densities: larger is better."""
        return self._share * float(np.nansum(self.log_density * (1.0 if self.weights is None else self.weights)))

    @property
    def _share(self) -> float:
        """Rows over those that are looked at."""
        return self.sampled_from / len(self.log_density) if self.sampled_from else 1.0

    @property
    def se(self) -> float:
        """Standard error of ``elpd``, from the spread of its terms; of a sample, that of the choice as well."""
        good = np.isfinite(self.log_density)
        terms = self.log_density[good]
        counts = np.ones(len(terms)) if self.weights is None else self.weights[good]
        total = float(counts.sum())
        if total <= 1.0:
            return 0.0
        spread = float(counts @ (terms - float(counts @ terms) / total) ** 2) / (total - 1.0)
        return self._share * float(np.sqrt(total * spread))

    @property
    def failed(self) -> int:
        """Rows whose own part could not be taken out."""
        counted = True if self.weights is None else self.weights > 0.0
        return int(np.sum(~np.isfinite(self.log_density) & counted))

    def resolved(self) -> LeaveOneOut:
        """With all its numbers, for a file."""
        return replace(self, moments=np.array(self._left_out))

    def of_rows(self, inverse: Array, weights: Array | None) -> LeaveOneOut:
        """The same for the rows that were merged into these: row i became row ``inverse[i]``; NaN where that is -1."""
        def spread(values: Array) -> Array:
            return np.where(inverse < 0, np.nan, values[..., inverse])

        def details(rows: Any) -> Array:
            found = spread(np.array(self._left_out))
            return found if rows is None else found[:, rows]

        return LeaveOneOut(spread(self.log_density), weights, details=details)

    def __repr__(self) -> str:
        failed = f", failed={self.failed}" if self.failed else ""
        return f"LeaveOneOut(elpd={self.elpd:.4g}, se={self.se:.2g}, n={len(self.log_density)}{failed})"


def loo(posterior: Posterior, site: Site, y: Any) -> LeaveOneOut:
    """Leave-one-out predictive densities of a converged result of the engine.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> from klimb.models.loo import loo
    >>> X, y = np.ones((4, 1)), np.array([1.0, 2.0, 3.0, 2.0])
    >>> result = klimb.infer(klimb.latents.Weights(X), klimb.sites.Gaussian(1.0), y)
    >>> loo(result.posterior, klimb.sites.Gaussian(1.0), y).mean.round(3)
    array([1.75, 1.5 , 1.25, 1.5 ])
    """
    clean = site.validate(y)
    found = cavities(site, clean, posterior.m, posterior.v, posterior.latent.slack, posterior.a, posterior.gamma)
    return mixed([found], np.zeros(1), None)


def leave_one_out(model: Any, components: Components, data: Observed, q: Posterior | None = None) -> LeaveOneOut:
    """Of a fit, with its hyperparameters integrated out where they were.

    Cavities are those of q, at its points of theta by their corrected weights, but for classes, which are not
    independent. Of levels with few rows, from whose posterior a cavity is far, they are corrected. ``q`` is the fit's
    own, whose sites are those of single rows where these do not count several times.
    """
    plain, weights = components.uncorrected, components.weights
    if plain is not None and not components.parts[0].couples:
        same = (plain.theta[:, None] == components.theta).all(axis=2)
        weights, components = same @ (weights / np.maximum(same.sum(axis=0), 1)), plain
        weights = weights if weights.any() else plain.weights
    keep, among = np.flatnonzero(weights >= LEAST_WEIGHT * weights.max()), None
    alone = len(components.parts) == 1 and data.weights is None and not components.parts[0].couples
    if q is not None and alone and q.spread and len(q.m) == data.n and not q.latent.by_products:
        site, m = model.new_site(data.aux), q.m if data.offset is None else q.m + data.offset
        every = [cavities(site, site.validate(data.y), m, q.v, q.latent.slack, q.a, q.gamma, data.counts)]
    else:
        shares, parts = weights[keep] / weights[keep].sum(), [components.parts[k] for k in keep]
        chosen, onto = _telling(model, components.theta[keep], parts, shares, data)
        among, keep, at_once = None if onto is None else (onto, shares), keep[chosen], max(MOST_TERMS // data.n, 1)
        every = [one for k in range(0, len(keep), at_once) for one in _every_cavity(
            model, components.theta[keep[k : k + at_once]], [parts[i] for i in chosen[k : k + at_once]], data)]
    shares = weights[keep] / weights[keep].sum()
    few = plain is components and data.n <= FEW_ROWS * plain.parts[0].size  # rows of a level, of which there are fewer
    if few and components.parts[0].by_levels:
        own = [components.parts[k] for k in keep]
        every = _levels_left_out(model, components.theta[keep], own, shares, data, every)
    return replace(mixed(every, np.log(shares), data.weights, among), sampled_from=data.sampled_from)


def _telling(model: Any, points: Array, parts: list[Any], shares: Array, data: Observed) -> tuple[Any, Array | None]:
    """Points of theta at which all rows are looked at, and how log densities at all points follow from those.

    They are smooth in theta, in the same way for all rows, so some rows say how. Points that are left out would cost
    up to a nat for each hyperparameter. Draws have no such order: few of them serve.
    """
    count = max(MOST_TERMS // data.n, 2 * points.shape[1] + LEAST_POINTS)
    if len(points) <= count or data.n <= SOME_ROWS:
        return np.arange(len(points)), None
    order = np.random.default_rng(0).permutation(data.n)
    some = np.sort(order[np.argsort(-data.counts[order], kind="stable")[:SOME_ROWS]])
    told = list[Array]()
    for k, part in enumerate(parts):
        one, = _every_cavity(model, points[k : k + 1], [part], data, some)
        if not one.v.any():
            return np.sort(np.argsort(-shares, kind="stable")[:count]), None
        told.append(one.log_density)
    densities, counts = np.array(told), data.counts[some]
    good = np.isfinite(densities).all(axis=0)
    densities, counts = densities[:, good], counts[good]
    return skeleton(densities * np.sqrt(counts), np.column_stack([densities @ counts, points]), shares, count)


def _every_cavity(model: Any, points: Array, parts: list[Any], data: Observed, some: Any = None) -> list[Cavities]:
    """Of all rows, or some, at several points of theta, by q of the weights there."""
    known, models = list[Cavities | None](), [model.moved(theta) for theta in points]
    waiting = list[tuple[Site, Array, Array, Array]]()  # points of theta whose rows are looked at together
    prepared, n, data = model.prepare(None), data.n, data if some is None else data.take(some)
    site, rows = models[0].new_site(data.aux), [here.functionals(prepared) for here in models]
    y, at = site.validate(data.y), slice(None) if some is None else places_among(some, site, n)
    moments = type(parts[0]).at_each(parts, [own.L for own in rows], [own.rest for own in rows])
    for here, part, own, centre, v in zip(models, parts, rows, *moments, strict=True):
        m, v, slack = (centre + own.shift)[at], v[at], here.slack[: len(v)][at]
        if model.likelihood.parameters:  # else the site does not move with theta
            site = here.new_site(data.aux)
        if part.couples:
            S = part.within(own.L, own.rest)
            known.append(coupled_cavities(site, y, m, S if some is None else S[some]))
        elif not v.any():  # a draw
            known.append(Cavities(m, v, site.log_density(y, m), site, y))
        else:
            known.append(None)
            waiting.append((site, m, v, slack))
    others = iter(_of_points(waiting, y, data.counts) if waiting else ())
    return [next(others) if one is None else one for one in known]


def _joined(sites: list[Site], n: int) -> Site | None:
    """The site of n data under each of several, one after the other; None where there is no such site."""
    site = sites[0]
    if len(sites) == 1:
        return site
    if all(own is site for own in sites):
        return site.rows(np.tile(np.arange(n), len(sites))) if site.separable else None
    if not (site.separable and {part.name for part in fields(site)} <= set(site.per_datum)):  # type: ignore[arg-type]
        return None
    return replace(site, **{name: np.concatenate([np.broadcast_to(getattr(own, name), n)  # type: ignore[type-var]
                                                  for own in sites]) for name in site.per_datum})


def _of_points(points: list[tuple[Site, Array, Array, Array]], y: Array, counts: Array) -> list[Cavities]:
    """The cavities at several points of theta, from sites, means, variances and slacks at each."""
    count, many = len(points), _joined([point[0] for point in points], len(y))
    if many is None:  # a call for each
        return [found for point in points for found in _of_points([point], y, counts)]
    m, v, slack = (np.concatenate(each) for each in list(zip(*points, strict=True))[1:])
    own = np.tile(y, count)
    e = (many.rough() if many.separable else many).oracle(own, m, v)  # of one copy of each datum, which is left out
    found = cavities(many, own, m, v, slack, -e.alpha, e.gamma,
                     np.tile(counts, len(m) // len(counts)))
    each = [values.reshape(count, -1) for values in (found.m, found.v, found.log_density)]
    return [Cavities(each[0][k], each[1][k], each[2][k], point[0], y) for k, point in enumerate(points)]


def _levels_left_out(model: Any, points: Array, parts: Any, shares: Array, data: Observed,
                     every: list[Cavities]) -> list[Cavities]:
    """Cavities corrected by rows left out of their levels, these integrated out by quadrature, at few points of theta.

    The other weights are where q has their mean: levels are farther from Gaussian. What a cavity is off by, beside that
    of the level alone, changes slowly with theta: linearly, from the heaviest of the ``points`` and those about an sd
    off the mean along each hyperparameter. Where a cavity is improper at some theta, the level itself stands for it.
    """
    t = (points - shares @ points) / np.sqrt(np.maximum(shares @ (points - shares @ points) ** 2, 1e-300))
    aims = np.vstack([t[np.argmax(shares)], np.eye(t.shape[1]), -np.eye(t.shape[1])])
    chosen = list(dict.fromkeys(int(np.argmin(((t - aim) ** 2).sum(axis=1))) for aim in aims))
    prepared, off, whole = model.prepare(None), list[Array](), list[Array]()
    for k in chosen:
        here, one = model.moved(points[k]), every[k].site
        site, latent = here.site(data), here.latent
        if data.sampled_from or not site.separable or latent.n_sites != data.n or latent.slack.any():
            return every
        functionals = here.functionals(prepared)
        m, v = parts[k].at(functionals.L, functionals.rest)
        m = m + functionals.shift
        problem = Problem(latent, site, data.y)
        e = site.oracle(problem.y, m, v)
        posterior = Posterior(latent, -e.alpha, e.gamma, m, v, kl=0.0)
        shocks = latent.shocks(posterior)
        if shocks is None or shocks.wide or not shocks.own.shape[1] or data.n > FEW_ROWS * len(shocks.starts):
            return every
        nodes = LEFT_NODES[shocks.own.shape[1]][int(data.n > MANY_ROWS * len(shocks.starts))]
        if not site.log_concave and len(chosen) * data.n * (2 * nodes) ** shocks.own.shape[1] <= MOST_LEFT:
            nodes *= 2  # modes apart from each other
        if (len(off) + 1) * data.n * nodes ** shocks.own.shape[1] > MOST_LEFT:
            break
        log_inverse, mean, variance, own = CollapsedWeights(problem, posterior, shocks, nodes=nodes,
                                                            bound=0.0).left_out()
        e = one.oracle(problem.y, m, v)
        level = cavities(one, problem.y, m, own, np.zeros(()), -e.alpha, e.gamma)
        direct = one.constant(problem.y) - log_inverse
        off.append(np.array([direct - level.log_density, mean - level.m, variance - level.v]))
        whole.append(np.array([direct, mean, variance + v - own]))
    if not off:
        return every
    improper = np.isnan(off).any(axis=(0, 1)) | np.isnan([one.log_density for one in every]).any(axis=0)
    off = [np.where(improper, direct, own) for direct, own in zip(whole, off, strict=True)]
    bare = [[np.where(improper, 0.0, values) for values in (one.log_density, one.m, one.v)] for one in every]
    centre = t[chosen[: len(off)]].mean(axis=0)
    slopes = np.tensordot(np.linalg.pinv(t[chosen[: len(off)]] - centre), np.array(off), axes=1)
    moves = np.mean(off, axis=0) + np.tensordot(t - centre, slopes, axes=1)
    return [replace(one, log_density=density + d, m=mean + m, v=np.maximum(variance + v, 0.5 * variance))
            for one, (density, mean, variance), (d, m, v) in zip(every, bare, moves, strict=True)]


def mixed(parts: list[Cavities], log_shares: Array, weights: Array | None, among: Any = None) -> LeaveOneOut:
    """p(y_i | others) = 1 / sum_k w_k / p_k(y_i | others): leaving i out also changes how likely each theta is.

    Where parts are draws, with f known in each, these are importance weights, whose tails are smoothed. Parts at few
    of the points come with what makes log densities at all points of theirs, and the shares of all.
    """
    densities = np.array([part.log_density for part in parts])
    log_w = log_shares[:, None] - densities
    drawn = len(parts) > 1 and not any(part.v.any() for part in parts)
    if drawn:
        good = np.flatnonzero(np.isfinite(log_w).all(axis=0))
        log_w[:, good] = np.array([smooth_log_weights(log_w[:, i]).log_weights for i in good]).T
    with np.errstate(invalid="ignore"):  # a density of infinity under one theta and of 0 under another
        if among is None:
            found = _log_sum(log_w + densities) - _log_sum(log_w)
        else:
            found, (onto, shares) = np.empty(densities.shape[1]), among
            for rows in row_blocks(len(found), 2 * len(onto)):
                found[rows] = -_log_sum(np.log(shares)[:, None] - onto @ densities[:, rows])
    most = min(max(MOST_MOMENTS // max(log_w.shape[1], 1), 1), MOST_POINTS) if not drawn else len(parts)
    heavy = np.sort(np.argsort(-log_shares, kind="stable")[:most])
    some = [parts[k] for k in heavy]
    return LeaveOneOut(found, weights, details=lambda rows: _details(some, log_w[heavy], rows))


def _log_sum(logs: Array) -> Array:
    """Of the exponentials, over rows; of one row, which is often long, itself."""
    return logs[0] if len(logs) == 1 else np.asarray(np.logaddexp.reduce(logs, axis=0))


def _details(parts: list[Cavities], log_w: Array, rows: Any) -> Array:
    """What `LeftOut` has of some rows, by the weights of each row's parts; NaN where something is missing."""
    rows, n = np.arange(log_w.shape[1]) if rows is None else rows, len(parts[0].y)
    log_w = log_w[:, rows]
    with np.errstate(invalid="ignore"):
        w = np.exp(log_w - _log_sum(log_w))
        good = np.flatnonzero(np.isfinite(w).all(axis=0))
        out, own, many = np.full((4, len(rows)), np.nan), rows[good], _joined([part.site for part in parts], n)
        try:
            if many is None or len(parts) == 1:
                each = np.array([part.moments(own) for part in parts])
            else:
                m, v, density = (np.concatenate([getattr(part, name) for part in parts])
                                 for name in ("m", "v", "log_density"))
                every = Cavities(m, v, density, many, np.tile(parts[0].y, len(parts)))
                found = every.moments((n * np.arange(len(parts))[:, None] + own).ravel())
                each = np.swapaxes(np.reshape(found, (4, len(parts), -1)), 0, 1)
        except InputError:  # a likelihood of the user's that has no moments and no distribution function
            return out
        each[:, 1] += each[:, 0] ** 2
        sums = np.einsum("kr,kqr->qr", w[:, good], each)
        sums[1] = np.maximum(sums[1] - sums[0] ** 2, 0.0)
    out[:, good] = sums
    return out
