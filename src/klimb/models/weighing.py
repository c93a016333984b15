"""The exact posterior's evidence and moments at one theta by importance weights, or by particles where these fail.

Weights are needed over the shared weights of the model alone, as the levels of a group are integrated out by quadrature
(`klimb.trust.collapsed`). Draws come from q first, from what those found where weights vary much, and from as far out
as sds of means rest. Where the weights are of no use, or other modes are known, particles go from q to the exact
posterior in steps (`klimb.trust.tempered`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np
from scipy.special import ndtr, stdtrit

from klimb.errors import InputError
from klimb.infer.result import Result
from klimb.latents.shocks import MOST_SHARED, UNSEEN, Shocks
from klimb.latents.weights_posterior import WeightPosterior
from klimb.models.components import IN_PIECES
from klimb.models.correction import EVEN, NOTHING, USABLE, Correction, Corrector, doubtful
from klimb.models.reaching import reaching_draws
from klimb.models.repair import ALONE, BRIEF, EACH, Budget, from_collapsed
from klimb.numerics.arrays import Array
from klimb.numerics.lowdiscrepancy import matched_draws
from klimb.numerics.pareto import SmoothedWeights, smooth_log_weights
from klimb.numerics.proposals import DEGREES, StudentMixture, student_log_density
from klimb.trust.collapsed import CollapsedDraws, CollapsedWeights, ShockWeights
from klimb.trust.coupled import coupled_weights
from klimb.trust.gap import leading_moments
from klimb.trust.pieces import cut_posterior
from klimb.trust.tails import Mean

GAIN_DRAWS, PROBE_DRAWS, FEWEST_DRAWS, DRAWS_PER_WEIGHT, MOST_DRAWS = 8, 16, 16, 8, 2048
MOST_VALUES = 6e5  # of log p, at one theta
FREE_VALUES, ALONE_VALUES = 4e4, 4e5  # that are always taken: at each of many theta, and at the only one
WIDE_DIM, WIDER = 20, 0.45  # shared weights up to which a t is drawn from, and its scale: 1 + this / sqrt(dim)
SKEWED, TURNS = 0.35, 8  # skewness of the shared weights from which q's tail is too thin to draw from; steps to find it
MOST_TAILS, TAIL = 4, 1.2  # directions with a t along them, and its scale
LARGEST = 3e7  # values of log p from which a model is too large to be looked at so closely
UNEVEN = 0.3  # variance of log weights from which few draws do not even tell the evidence
FEWEST_UNEVEN = 96  # fewest draws where they are uneven: averages over 24 leave 5% of the sds of two events out
MILD = 1.15  # growth of an sd up to which leading order tells it to 2%, better than weights over many directions
ENOUGH = 1000  # effective draws at the only theta: means to 0.03 sd, sds to 2%
ENOUGH_MANY, MANY_VALUES = 4000, 3e6  # the same, and values, where third moments alone stand for tails: sds to 1%
UNHARMED = 0.5  # effective draws over draws above which the weights at one of many theta are kept in a repair
WRONG_ALONE, WRONG_EACH = 0.08, 0.2  # standard errors above which they are of no use: at the only theta, at one of many
MOST_BENT = 2000  # weights up to which moments to leading order are asked for
COUNTED = 4  # of the points of theta that third moments are taken at, one of so many
SEEDS = 8  # sets of draws that points of theta take in turn, so that their noise averages out
same_draws = lru_cache(maxsize=4)(matched_draws)  # for every theta of a fit; nobody writes into them


@dataclass(frozen=True, eq=False)
class WeighedDraws:
    """Draws of the shared weights with their smoothed importance weights."""

    draws: CollapsedDraws
    smoothed: SmoothedWeights

    @classmethod
    def of(cls, draws: CollapsedDraws) -> Self:
        return cls(draws, smooth_log_weights(draws.log_weights))

    @property
    def n(self) -> int:
        return len(self.draws.e)

    @property
    def share(self) -> Array:
        """Weights that sum to one."""
        return self.smoothed.normalised

    @property
    def efficiency(self) -> float:
        """Effective draws over draws."""
        return self.smoothed.effective / self.n

    @property
    def useless(self) -> bool:
        return doubtful(self.efficiency, self.smoothed.khat)

    @property
    def uneven(self) -> bool:
        """Whether the weights vary so much that other draws would tell more."""
        effective = self.smoothed.effective
        return (self.smoothed.khat > 0.5 and effective < self.n / (1.0 + EVEN)) or effective < 0.8 * self.n


class ByWeights(Corrector):
    """Corrections by importance weights over the shared weights.

    At the only theta (``alone``), and where it ``repairs``, particles take the place of weights that are of no use;
    from the start where there are other ``modes`` (means and roots of the shared weights). ``mean`` is that of y by f,
    where its sd is shown and may rest on tails; ``kept`` are the weights at the only theta.
    """

    def __init__(self, variance: float, *, alone: bool, repairs: bool, modes: Sequence[tuple[Array, Array]],
                 mean: Mean | None, kept: ShockWeights | None) -> None:
        super().__init__(variance=variance)
        self._alone, self._repairs, self._modes, self._mean, self._kept = alone, repairs, modes, mean, kept
        self._count = 0  # of the corrections so far

    @property
    def even(self) -> bool:
        return super().even and not self._modes

    def gain(self, result: Result | None, least: float = 0.0) -> float:
        del least
        if result is None:
            return 0.0
        if self._repairs:
            found = self(result, brief=True)
            return 0.0 if found is None else found.gain
        weights = weights_of(result, GAIN_DRAWS)
        if weights is None:
            return 0.0
        logs = weights.evidence(same_draws(GAIN_DRAWS, weights.shocks.dim))
        if logs.var() > UNEVEN and (found := self(result)) is not None:
            value = found.gain
        else:
            value = float(np.logaddexp.reduce(logs)) - float(np.log(GAIN_DRAWS)) - weights.bound
        return value if np.isfinite(value) else 0.0

    def __call__(self, result: Result | None, *, brief: bool = False) -> Correction | None:
        """The correction of a fit, by as few particles as serve its evidence if ``brief``."""
        if result is None:
            return None
        self._count += 1
        weights = self._weights_at(result)
        if weights is None:
            return None
        if self._modes and (found := self._by_particles(weights, brief)) is not None:
            return found
        first = self._first_draws(weights)
        if first is None:
            return None
        # Particles come before draws that reach tails, which begin at the first draws.
        hopeless = self._alone and weights.shocks.dim > IN_PIECES and first.useless
        found = self._by_particles(weights, brief) if hopeless else None
        if found is not None and found.efficiency > 0.0:
            return found
        reached = reaching_draws(weights, first.draws, first.smoothed, self._mean, self._seed, uneven=first.uneven)
        best = self._best_draws(weights, first, None if reached is None else WeighedDraws(*reached))
        if (self._alone and best.useless) or (self._repairs and best.efficiency < UNHARMED):
            found = found if hopeless else self._by_particles(weights, brief)
            if found is not None:
                return found
        return self._from_draws(result, weights, best, reached, brief)

    # -- draws

    @property
    def _seed(self) -> int:
        return self._count % SEEDS

    def _draws(self, dim: int) -> int:
        even = self.variance <= EVEN
        each, fewest = (DRAWS_PER_WEIGHT // 2, FEWEST_DRAWS) if even else (DRAWS_PER_WEIGHT, FEWEST_UNEVEN)
        return int(np.clip(each * dim, fewest, MOST_DRAWS))

    def _weights_at(self, result: Result) -> ShockWeights | None:
        if self._kept is not None:
            return self._kept
        shocks = result.posterior.latent.shocks(result.posterior)
        return weights_of(result, self._draws(0 if shocks is None else shocks.dim), shocks)

    def _first_draws(self, weights: ShockWeights) -> WeighedDraws | None:
        """From q; None where no weight is a number."""
        dim, free = weights.shocks.dim, ALONE_VALUES if self._alone else FREE_VALUES
        n = max(min(self._draws(dim), int(MOST_VALUES / weights.work)), int(free / weights.work), FEWEST_DRAWS)
        draws = weights(matched_draws(min(n, MOST_DRAWS) // 2 * 2, dim, seed=self._seed))
        return WeighedDraws.of(draws) if np.isfinite(draws.log_weights).any() else None

    def _best_draws(self, weights: ShockWeights, first: WeighedDraws, reached: WeighedDraws | None) -> WeighedDraws:
        """Those that reached tails, or wider ones where the first do not tell moments well, else the first."""
        dim = weights.shocks.dim
        few = first.uneven and (dim <= WIDE_DIM or first.smoothed.effective < UNHARMED * first.n)
        # Few draws do not tell of directions; what several classes share has the moments of its prior by matched draws.
        tails = np.zeros((dim, 0)) if few or weights.shocks.outputs > 1 else _skewed(first.draws, first.share)
        if reached is not None and dim > IN_PIECES:  # a t in fewer directions has less noise than chains
            return reached
        if first.smoothed.effective <= 2 * dim or not (tails.size or (first.uneven and dim <= WIDE_DIM)):
            return first
        best = _wider(weights, first, n := first.n, self._seed, tails)
        enough, most = (ENOUGH, MOST_VALUES) if dim <= IN_PIECES else (ENOUGH_MANY, MANY_VALUES)
        while self._alone and best.smoothed.effective < enough and 2 * n * weights.work <= most:
            n *= 2
            best = _wider(weights, best, n, self._seed, tails)
        return best

    # -- corrections

    def _from_draws(self, result: Result, weights: ShockWeights, best: WeighedDraws,
                    reached: tuple[CollapsedDraws, SmoothedWeights] | None, brief: bool) -> Correction:
        """By the moments of weighted draws; third moments to leading order where draws do not tell all of them."""
        shocks, draws, share = weights.shocks, best.draws, best.share
        gain, log_weights = best.smoothed.log_mean - weights.bound, draws.log_weights - best.smoothed.log_mean
        if best.efficiency < USABLE:
            return Correction(gain, (), log_weights, best.efficiency)
        stein = reached is None or shocks.dim <= IN_PIECES or draws.steady(share)
        moments, pieces = draws.moments(share, stein=stein), self._budget(brief).pieces
        part: WeightPosterior = cut_posterior(draws, share, moments, shocks, pieces, reached)
        third = _third(shocks, draws.third(share, stein=stein)) if shocks.dim <= WIDE_DIM else NOTHING
        untold, grouped = shocks.outputs == 1 and not _complete(third, shocks), bool(shocks.own.size)
        if untold and (self._count % COUNTED == 1 or not grouped):
            wider, growth = leading_part(result)
            if wider is not None and growth <= MILD and not grouped and reached is None:
                part = replace(wider, mean=part.mean)  # type: ignore[type-var]  # draws tell its mean alone
            elif wider is not None:  # with levels third moments alone
                part = part.widened(np.zeros((0, wider.size)), wider.cubes)
            third = NOTHING if part.cubes.size else third
        weighed = float("nan")
        if shocks.outputs > 1:
            before = np.linalg.norm(shocks.q.root, axis=1)
            weighed = float(np.abs(before / np.maximum(part.sd(), 1e-300) - 1.0).max())
        return Correction(gain, ((1.0, part),), log_weights, best.efficiency, third, weighed=weighed)

    def _by_particles(self, weights: ShockWeights, brief: bool) -> Correction | None:
        found = from_collapsed(weights, self._modes, self._budget(brief), self._seed)
        if found is None:
            return None
        third = _third(weights.shocks, found.third) if found.third.size and weights.shocks.dim <= WIDE_DIM else NOTHING
        good = found.error <= (WRONG_ALONE if self._alone else WRONG_EACH)
        return Correction(found.gain, found.parts, np.zeros(0), found.efficiency if good else 0.0, third, found.error)

    def _budget(self, brief: bool) -> Budget:
        return BRIEF if brief else ALONE if self._alone else EACH


def weights_of(result: Result, n: int, shocks: Shocks | None = None) -> ShockWeights | None:
    """Weights for about ``n`` draws; None where q is exact, or too much would be asked."""
    problem, posterior = result.problem, result.posterior
    if result.weighed is not None:
        found_elsewhere: ShockWeights | None = result.weighed()
        return found_elsewhere
    if problem is None or problem.site.gamma_trend == "constant":
        return None
    if not problem.site.separable:
        return coupled_weights(problem, posterior)
    shocks = posterior.latent.shocks(posterior) if shocks is None else shocks
    if shocks is None or not shocks.dim:
        return None
    found = CollapsedWeights(problem, posterior, shocks, MOST_VALUES / n, bound=result.bound)
    if PROBE_DRAWS * found.work > LARGEST:
        return None
    return found.settled(same_draws(PROBE_DRAWS, shocks.dim)[:1])


def sums_of_weights(result: Result) -> bool:
    """Whether rows anywhere are sums of the weights that coordinates tell of, at a size at which these can be had."""
    latent = result.posterior.latent
    return latent.reports == "weight" and not latent.by_products and latent.n_weights <= MOST_BENT


def leading_part(result: Result, *, whether: bool = False) -> tuple[WeightPosterior | None, float]:
    """`leading_moments`, for what draws do not tell; nothing where these cannot be had."""
    problem, posterior = result.problem, result.posterior
    unseen = float(np.abs(posterior.gamma) @ posterior.latent.slack)
    if problem is None or not problem.site.separable or unseen > UNSEEN or not sums_of_weights(result):
        return None, 1.0
    try:
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            return leading_moments(problem, posterior, whether=whether)
    except (InputError, FloatingPointError):  # no coordinates at this size, or units whose cubes overflow
        return None, 1.0


def _third(shocks: Shocks, own: Array) -> Array:
    """Third moments of the weights from those of their shocks; nothing where units make them overflow."""
    if shocks.remade is not None or len(shocks.q.root) > MOST_SHARED:
        return NOTHING
    back = shocks.q.root[None] if own.shape[1] == shocks.dim else shocks.by_level()
    with np.errstate(over="ignore", invalid="ignore"):
        third = np.einsum("labc,lia,ljb,lkc->lijk", own, back, back, back, optimize=True)
    return np.asarray(third) if np.isfinite(third).all() else NOTHING


def _complete(third: Array, shocks: Shocks) -> bool:
    """Whether third moments are known of the coefficients of levels as well as of the shared weights."""
    return bool(third.size) and third.shape[1] == len(shocks.q.root) + shocks.own.shape[1]


def _wider(weights: ShockWeights, first: WeighedDraws, n: int, seed: int, tails: Array) -> WeighedDraws:
    """Draws with the moments that the first ones found, and a t along each of ``tails`` (R, T); without any, in all."""
    found = first.draws.moments(first.share)
    values, vectors = np.linalg.eigh(found.spread)
    root, dim = np.linalg.cholesky((vectors * np.maximum(values, 0.25)) @ vectors.T), len(values)
    if tails.size:
        along, own = np.linalg.qr(np.linalg.solve(root, tails), mode="complete")[0], tails.shape[1]
        z = matched_draws(n, dim, seed=seed + SEEDS)
        z[:, :own] = TAIL * stdtrit(DEGREES, ndtr(z[:, :own]))
        log_proposal = student_log_density((z[:, :own] / TAIL) ** 2, 1, np.log(TAIL)).sum(axis=1)
        log_proposal += _log_normal(z[:, own:], dim - own)
        root = root @ along
    else:
        t = StudentMixture(np.ones(1), np.zeros((1, dim)), (1.0 + WIDER / np.sqrt(dim)) * np.eye(dim)[None])
        z = t.draws(n, seed)
        log_proposal = t.log_density(z)
    e = found.centre + z @ root.T
    draws = weights(e)
    log_ratio = _log_normal(e, dim) - log_proposal + np.linalg.slogdet(root)[1]
    return WeighedDraws.of(replace(draws, log_weights=draws.log_weights + log_ratio))


def _log_normal(z: Array, dim: int) -> Array:
    return np.asarray(-0.5 * (z**2).sum(axis=1) - 0.5 * dim * np.log(2.0 * np.pi))


def _skewed(draws: CollapsedDraws, share: Array) -> Array:
    """Directions (R, T) in which the shared weights are skewed, the most first, each at a right angle to the others.

    Third moments are by the identity of `CollapsedDraws.third`, and v turns to where E (v'd)^2 d points, some times.
    """
    centre, found = share @ draws.gradient, list[Array]()
    pull, away = share[:, None] * (draws.gradient - centre), draws.e - centre
    while len(found) < min(MOST_TAILS, draws.e.shape[1]):
        v, skewness = pull.T @ (away**2).sum(axis=1), 0.0
        for _ in range(TURNS):
            v = v / max(float(np.linalg.norm(v)), 1e-300)
            third, variance = pull.T @ (away @ v) ** 2, float(share @ (away @ v) ** 2)
            last, v, skewness = v, third, float(v @ third) / max(variance, 1e-100) ** 1.5
        if not skewness > SKEWED:
            break
        found.append(last)
        pull, away = pull - np.outer(pull @ last, last), away - np.outer(away @ last, last)
    return np.array(found).T
