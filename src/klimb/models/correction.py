"""What a Gaussian q leaves out, put back: the exact posterior's evidence, means and covariances at fixed theta.

q understates the evidence of a model, the more so the further its levels are from Gaussian, and that grows with the
standard deviation of small groups of yes and no: weighing theta by the bound alone pulls such parameters down. Where
importance weights over the shared weights are good (the levels of a group integrated out by quadrature), they give the
evidence, and the posterior of the weights gets the means and covariances of the exact one. Where they are not, or where
other modes are known, particles go from q to the exact posterior in steps (`klimb.trust.tempered`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtr, stdtrit

from klimb.errors import InputError
from klimb.infer.result import Result
from klimb.latents.shocks import MOST_SHARED, UNSEEN, Shocks
from klimb.latents.weights_posterior import WeightPosterior
from klimb.models.components import IN_PIECES
from klimb.models.reaching import reaching_draws
from klimb.models.repair import (
    ALONE,
    BRIEF,
    EACH,
    HARMLESS,
    Budget,
    Repaired,
    from_collapsed,
    shared_modes,
)
from klimb.numerics.arrays import Array
from klimb.numerics.lowdiscrepancy import matched_draws
from klimb.numerics.pareto import RELIABLE, SmoothedWeights, smooth_log_weights
from klimb.numerics.proposals import DEGREES, StudentMixture, student_log_density
from klimb.trust.collapsed import CollapsedDraws, CollapsedWeights, ShockWeights
from klimb.trust.coupled import coupled_weights
from klimb.trust.gap import MOST_CHAINED, EvidenceGaps, leading_moments
from klimb.trust.pieces import cut_posterior
from klimb.trust.tails import Mean
from klimb.trust.weights import most_variance

GAIN_DRAWS, PROBE_DRAWS, FEWEST_DRAWS, DRAWS_PER_WEIGHT, MOST_DRAWS = 8, 16, 16, 8, 2048
MOST_VALUES = 6e5  # of log p, at one theta
FREE_VALUES, ALONE_VALUES = 4e4, 4e5  # that are always taken: at each of many theta, and at the only one
WIDE_DIM, WIDER = 20, 0.45  # shared weights up to which a t is drawn from, and its scale: 1 + this / sqrt(dim)
SKEWED, TURNS = 0.35, 8  # skewness of the shared weights from which q's tail is too thin to draw from; steps to find it
MOST_TAILS, TAIL = 4, 1.2  # directions with a t along them, and its scale
LARGEST = 3e7  # values of log p from which a model is too large to be looked at so closely
NEGLIGIBLE = 0.003  # variance of log weights up to which sds are right to 0.5%
NEGLIGIBLE_GAIN = 0.01  # nats between evidence and bound that move no hyperparameter
MANY_ROWS = 20_000  # from which that is first looked for without draws
EVEN = 0.02  # variance of log weights up to which half the draws are enough
UNEVEN = 0.3  # the same from which few draws do not even tell the evidence
FEWEST_UNEVEN = 96  # and the fewest above it: ratios of averages over 24 draws leave 5% of the sds of two events out
MILD = 1.15  # growth of an sd up to which leading order tells it to 2%, better than weights over many directions
USABLE = 0.15  # effective draws over draws from which moments are taken
ENOUGH = 1000  # effective draws at the only theta: means to 0.03 sd, sds to 2%
ENOUGH_MANY, MANY_VALUES = 4000, 3e6  # the same, and values, where third moments alone stand for tails: sds to 1%
UNHARMED = 0.5  # effective draws over draws above which the weights at one of many theta are kept in a repair
WRONG_ALONE, WRONG_EACH = 0.08, 0.2  # standard errors above which they are of no use: at the only theta, at one of many
LIKELY = 0.005  # share of a point of theta, over that of the heaviest, from which its own weights must be usable
MOST_BENT = 2000  # weights up to which moments to leading order are asked for
APART = 16  # of the points of theta that moments to leading order are taken at, one of so many: others borrow them
COUNTED = 4  # of the points of theta that third moments are taken at, one of so many
FEW_CUBES = 5000  # numbers of third moments up to which every point of theta has them
NOTHING = np.zeros((0, 0, 0, 0))
_same_draws = lru_cache(maxsize=4)(matched_draws)  # for every theta of a fit; nobody writes into them
SEEDS = 8  # sets of draws that points of theta take in turn, so that their noise averages out


@dataclass(frozen=True, eq=False)
class Correction:
    """At one theta: ``gain`` is log evidence - bound, ``part`` q with the exact posterior's means and covariances."""

    gain: float
    parts: tuple[tuple[float, WeightPosterior], ...]  # with their shares, one for each mode; empty where q's is kept
    log_weights: Array  # of the draws, over their mean
    efficiency: float  # effective draws over draws; NaN where only the evidence is corrected
    third: Array = field(default_factory=lambda: NOTHING)  # central moments, see `klimb.latents.arrow.third_moments`
    error: float = 0.0  # standard error of a mean in sd, or of an sd, where particles were drawn
    weighed: float = float("nan")  # change of an sd by weights of another q than the fit's, relative


def evidence_alone(gain: float) -> Correction:
    """The correction of the evidence alone, where there are too many shared weights for their moments."""
    return Correction(gain, (), np.zeros(0), float("nan"))


def doubtful(efficiency: float, khat: float) -> bool:
    """Whether importance weights are of no use: too few draws are effective, or their tail is too heavy."""
    return efficiency < USABLE or (khat > RELIABLE and efficiency < HARMLESS)


def shown_parts(correction: Correction | None, own: WeightPosterior) -> tuple[tuple[float, WeightPosterior], ...]:
    """The posteriors of the weights that are shown at a point, with their shares: corrected ones, or q's ``own``."""
    if correction is None or not correction.parts:
        return ((1.0, own),)
    return tuple((share, part.with_prior_of(own)) for share, part in correction.parts)


def lent(parts: Sequence[WeightPosterior], corrections: Sequence[Correction | None],
         theta: Array) -> list[Correction | None]:
    """The corrections of all points of theta: those of the evidence alone borrow moments of the nearest that has them.
    """
    places = theta / np.maximum(theta.std(axis=0), 1e-300)
    known = [(place, one.parts[0][1]) for place, one in zip(places, corrections, strict=True) if one and one.parts]
    if not known:
        return list(corrections)
    near = [min(known, key=lambda own: float(((own[0] - place) ** 2).sum()))[1] for place in places]
    return [one if one is None or one.parts else replace(one, parts=((1.0, lender.lent(part)),))
            for part, one, lender in zip(parts, corrections, near, strict=True)]


def pooled(corrections: Sequence[Correction], shares: Array) -> dict[str, Any]:
    """What `Components` keep of the corrections at points with these ``shares``, whose errors are independent.

    The tail of the weights is that of all draws together: those at one theta are too few to tell.
    """
    own = shares / shares.sum()
    logs = np.concatenate([one.log_weights for one, share in zip(corrections, own, strict=True)
                           if share >= 0.1 * own.max()])
    third = NOTHING
    if all(one.third.size for one in corrections):
        third = np.asarray(np.tensordot(own, [one.third for one in corrections], axes=1))
    efficiency = np.array([one.efficiency for one in corrections])
    weakest = float(efficiency[own >= LIKELY * own.max()].min())  # where evidence is too low, tails are cut off
    return {"efficiency": weakest if weakest < USABLE else float(own @ efficiency), "third": third,
            "correction_khat": smooth_log_weights(logs).khat if len(logs) else float("nan"),
            "error": float(np.sqrt(own**2 @ np.array([one.error**2 for one in corrections]))),
            "weighed": float(own @ np.array([one.weighed for one in corrections]))}


class Corrector:
    """Corrections of the fits of one model; ``wanted`` says whether they are worth their while at this one.

    At the only theta (``alone``), and where it ``repairs``, particles take the place of weights that are of no use.
    """

    def __init__(self, result: Result, *, alone: bool = False, repairs: bool = False,
                 modes: Sequence[tuple[Array, Array]] = (), mean: Mean | None = None) -> None:
        self._count, self._variance, self._alone = 0, 0.0, alone
        self._free, self.repairs = ALONE_VALUES if alone else FREE_VALUES, repairs
        self._by_gap, self._gaps = False, EvidenceGaps()  # whether evidence comes from these alone
        self._mean = mean  # of y by f, where its sd is shown and may rest on tails
        self._modes = modes  # means and roots of the shared weights, where there are several
        self.wanted, self.efficiency = False, float("nan")  # efficiency is 1 where there is nothing to correct
        self.only_gains = False  # whether nothing but the evidence, and moments to leading order, is corrected
        self._kept: ShockWeights | None = None  # of the only theta
        self._step, self._asked = 0, 0  # every how many points of theta are fitted again for moments to leading order
        if _surely_negligible(result):
            self.efficiency = 1.0
            return
        weights = self._weights(result, PROBE_DRAWS)
        if alone and weights is not None and not weights.shocks.own.size:  # the same for any number of draws
            self._kept = weights
        if weights is None:
            if not alone or _of_weights(result):
                self._by_gap = self.wanted = self.only_gains = self._gap(result) > NEGLIGIBLE_GAIN
                self._step = 0 if alone else self._apart(result)
            return
        draws = matched_draws(PROBE_DRAWS, weights.shocks.dim)
        logs = weights.evidence(draws)
        if not np.isfinite(logs).all():
            return
        self._variance, self.only_gains = float(logs.var()), weights.shocks.wide
        self._step = self._apart(result) if self.only_gains and not alone else 0
        gain = abs(float(logs.mean()) - weights.bound)
        concave = result.problem is None or result.problem.site.log_concave
        small = self._variance <= NEGLIGIBLE and gain <= NEGLIGIBLE_GAIN  # and elsewhere, where log p is concave
        self.wanted = not (small and concave) or weights.shocks.outputs > 1
        if alone:
            self._modes = shared_modes([result])
        self.efficiency = float("nan") if self.wanted else 1.0

    @property
    def even(self) -> bool:
        """Whether weights of draws hardly vary, so that moments of the weights of the model hardly change."""
        return self._variance <= EVEN and not (self.only_gains or self._modes)

    def _leading(self, result: Result) -> tuple[WeightPosterior | None, float]:
        """Moments to leading order; third ones, where they are many numbers, at some of the points of theta."""
        part, growth = _leading(result)
        if part is not None and part.cubes.size > FEW_CUBES and self._count % COUNTED != 1:
            part = replace(part, cubes=np.zeros((0, 0)))  # type: ignore[type-var]
        return part, growth

    def _apart(self, result: Result) -> int:
        part = _leading(result, whether=True)[0]
        return 0 if part is None else APART if part.lends else 1

    def again(self) -> bool:
        """Whether to fit again at the next of many points of theta for what is not remembered of it."""
        self._asked += 1
        return self._step > 0 and self._asked % self._step == 0

    def gain(self, result: Result | None) -> float:
        """log evidence - bound by few draws, 0 where none can be had: good to a hundredth of a nat.

        With too many shared weights for importance weights it is by the first two cumulants of their logs.
        """
        if result is None:  # an exact evaluation
            return 0.0
        if self._by_gap or (self.only_gains and len(result.posterior.m) <= MOST_CHAINED):
            return self._gap(result)
        if self.repairs:
            found = self(result, brief=True)
            return 0.0 if found is None else found.gain
        weights = self._weights(result, GAIN_DRAWS) if self.wanted else None
        if weights is None:
            return 0.0
        logs = weights.evidence(_same_draws(GAIN_DRAWS, weights.shocks.dim))
        if weights.shocks.wide:
            spread = float(logs.var(ddof=1)) if weights.scale == 1.0 else 0.0  # some levels alone vary too much
            value = self._gap(result, float(logs.mean()) + 0.5 * spread - weights.bound)
        elif logs.var() > UNEVEN and (found := self(result)) is not None:
            value = found.gain
        else:
            value = float(np.logaddexp.reduce(logs)) - float(np.log(GAIN_DRAWS)) - weights.bound
        return value if np.isfinite(value) else 0.0

    def __call__(self, result: Result | None, *, brief: bool = False) -> Correction | None:
        """The correction of a fit, by as few particles as serve its evidence if ``brief``; None without any."""
        if not self.wanted or result is None:
            return None
        self._count += 1
        if self.only_gains:
            part, _ = self._leading(result)
            alone = evidence_alone(self.gain(result))
            return alone if part is None else replace(alone, parts=((1.0, part),))
        weights = self._kept
        if weights is None:
            shocks = result.posterior.latent.shocks(result.posterior)
            weights = self._weights(result, self._draws(0 if shocks is None else shocks.dim), shocks)
        if weights is None:
            return None
        n = self._draws(dim := weights.shocks.dim)
        found = self._by_particles(weights, brief) if self._modes else None
        if found is not None:
            return found
        n = max(min(n, int(MOST_VALUES / weights.work)), int(self._free / weights.work), FEWEST_DRAWS)
        n = min(n, MOST_DRAWS) // 2 * 2
        seed = self._count % SEEDS
        draws = weights(matched_draws(n, dim, seed=seed))
        if not np.isfinite(draws.log_weights).any():
            return None
        smoothed = smooth_log_weights(draws.log_weights)
        uneven = (smoothed.khat > 0.5 and smoothed.effective < n / (1.0 + EVEN)) or smoothed.effective < 0.8 * n
        hopeless = self._alone and dim > IN_PIECES and doubtful(smoothed.effective / n, smoothed.khat)
        found = self._by_particles(weights, brief) if hopeless else None  # what reaches tails begins at these draws
        if found is not None and found.efficiency > 0.0:
            return found
        reached = reaching_draws(weights, draws, smoothed, self._mean, seed, uneven=uneven)
        few = uneven and (dim <= WIDE_DIM or smoothed.effective < UNHARMED * n)  # too few to tell of directions
        # What several classes share has the moments of its prior by matched draws alone.
        tails = np.zeros((dim, 0)) if few or weights.shocks.outputs > 1 else _skewed(draws, smoothed.normalised)
        if reached is not None and dim > IN_PIECES:  # a t in fewer directions has less noise than chains
            (draws, smoothed), n = reached, len(reached[0].e)
        elif smoothed.effective > 2 * dim and (tails.size or (uneven and dim <= WIDE_DIM)):
            draws, smoothed = _wider(weights, draws, smoothed, n, seed, tails)
            enough, most = (ENOUGH, MOST_VALUES) if dim <= IN_PIECES else (ENOUGH_MANY, MANY_VALUES)
            while self._alone and smoothed.effective < enough and 2 * n * weights.work <= most:
                n *= 2
                draws, smoothed = _wider(weights, draws, smoothed, n, seed, tails)
        efficiency = smoothed.effective / n
        if (self._alone and doubtful(efficiency, smoothed.khat)) or (self.repairs and efficiency < UNHARMED):
            found = found if hopeless else self._by_particles(weights, brief)
            if found is not None:
                return found
        log_weights, share = draws.log_weights - smoothed.log_mean, smoothed.normalised
        stein = reached is None or dim <= IN_PIECES or draws.steady(share)
        parts: tuple[tuple[float, WeightPosterior], ...] = ()
        if efficiency >= USABLE:
            moments, pieces = draws.moments(share, stein=stein), self._budget(brief).pieces
            parts = ((1.0, cut_posterior(draws, share, moments, weights.shocks, pieces, reached)),)
        third = _third(weights.shocks, draws.third(share, stein=stein)) if parts and dim <= WIDE_DIM else NOTHING
        untold = parts and weights.shocks.outputs == 1 and not _complete(third, weights.shocks)
        if untold and (self._count % COUNTED == 1 or not weights.shocks.own.size):  # with levels third moments alone
            wider, growth = _leading(result)
            if wider is not None and growth <= MILD and not weights.shocks.own.size and reached is None:
                # Draws tell its mean alone.
                parts = ((1.0, replace(wider, mean=parts[0][1].mean)),)  # type: ignore[type-var]
            elif wider is not None:
                parts = ((1.0, parts[0][1].widened(np.zeros((0, wider.size)), wider.cubes)),)
            third = NOTHING if parts[0][1].cubes.size else third
        weighed = float("nan")
        if parts and weights.shocks.outputs > 1:
            before = np.linalg.norm(weights.shocks.q.root, axis=1)
            weighed = float(np.abs(before / np.maximum(parts[0][1].sd(), 1e-300) - 1.0).max())
        return Correction(smoothed.log_mean - weights.bound, parts, log_weights, efficiency, third, weighed=weighed)

    def _draws(self, dim: int) -> int:
        even = self._variance <= EVEN
        each, fewest = (DRAWS_PER_WEIGHT // 2, FEWEST_DRAWS) if even else (DRAWS_PER_WEIGHT, FEWEST_UNEVEN)
        return int(np.clip(each * dim, fewest, MOST_DRAWS))

    def _by_particles(self, weights: ShockWeights, brief: bool) -> Correction | None:
        found = from_collapsed(weights, self._modes, self._budget(brief), self._count % SEEDS)
        if found is None:
            return None
        third = _third(weights.shocks, found.third) if found.third.size and weights.shocks.dim <= WIDE_DIM else NOTHING
        return self._repaired(found, third)

    def _repaired(self, found: Repaired, third: Array) -> Correction:
        good = found.error <= (WRONG_ALONE if self._alone else WRONG_EACH)
        return Correction(found.gain, found.parts, np.zeros(0), found.efficiency if good else 0.0, third, found.error)

    def _budget(self, brief: bool) -> Budget:
        return BRIEF if brief else ALONE if self._alone else EACH

    def _gap(self, result: Result, leading: float | None = None) -> float:
        """For fields and crossed groups; 0 where q is exact, or would be too large to look at."""
        problem = result.problem
        if problem is None or problem.site.gamma_trend == "constant" or not problem.site.separable:
            return 0.0
        try:
            return self._gaps(problem, result.posterior, leading)
        except InputError:  # no coordinates at this size
            return 0.0

    @staticmethod
    def _weights(result: Result, n: int, shocks: Shocks | None = None) -> ShockWeights | None:
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
        return found.settled(_same_draws(PROBE_DRAWS, shocks.dim)[:1])


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


def _of_weights(result: Result) -> bool:
    """Whether rows anywhere are sums of the weights that coordinates tell of, at a size at which these can be had."""
    latent = result.posterior.latent
    return latent.reports == "weight" and not latent.by_products and latent.n_weights <= MOST_BENT


def _leading(result: Result, *, whether: bool = False) -> tuple[WeightPosterior | None, float]:
    """`leading_moments`, for what draws do not tell; nothing where these cannot be had."""
    problem, posterior = result.problem, result.posterior
    unseen = float(np.abs(posterior.gamma) @ posterior.latent.slack)
    if problem is None or not problem.site.separable or unseen > UNSEEN or not _of_weights(result):
        return None, 1.0
    try:
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            return leading_moments(problem, posterior, whether=whether)
    except (InputError, FloatingPointError):  # no coordinates at this size, or units whose cubes overflow
        return None, 1.0


def _surely_negligible(result: Result) -> bool:
    """Whether log weights of many rows of a concave log p surely vary by next to nothing."""
    problem, q = result.problem, result.posterior
    if problem is None or len(problem.y) < MANY_ROWS or not (problem.site.log_concave and problem.site.separable):
        return False
    return most_variance(problem.site, problem.y, q, NEGLIGIBLE) <= NEGLIGIBLE


def _wider(weights: ShockWeights, first: CollapsedDraws, smoothed: SmoothedWeights, n: int, seed: int,
           tails: Array) -> tuple[CollapsedDraws, SmoothedWeights]:
    """Draws with the moments that the first ones found, and a t along each of ``tails`` (R, T); without any, in all."""
    found = first.moments(smoothed.normalised)
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
    draws = replace(draws, log_weights=draws.log_weights + log_ratio)
    return draws, smooth_log_weights(draws.log_weights)


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
