"""The trust report of a fit: `Result.trust`, and how to make a more careful one."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from klimb.errors import InputError
from klimb.infer.certificate import Certificate, variance_certificate
from klimb.infer.problem import Problem
from klimb.infer.result import Result, Status
from klimb.latents.base import Posterior
from klimb.latents.coordinates import Coordinates, coordinates_of
from klimb.numerics.arrays import Array
from klimb.numerics.dense import threads_for
from klimb.numerics.pareto import RELIABLE, khat_threshold
from klimb.trust import importance
from klimb.trust.importance import Sample, WeightedMoments, direction_khat, leading_directions
from klimb.trust.ladder import Ladder, climb_ladder
from klimb.trust.marginals import Corrected
from klimb.trust.modes import LARGEST, MODE_ODDS, Mode, other_modes
from klimb.trust.sites import SiteReport, site_report
from klimb.trust.verdict import MOST_DRAWN, Findings, Verdict, Word, judge, tail_matters
from klimb.trust.weights import LogWeights, exact_site

REDRAW_DIM = 20  # coordinates up to which a wider proposal is worth its draws
REDRAW_KHAT, REDRAW_EFFICIENCY = 0.5, 0.9  # when q's own draws call for it
USABLE = 0.2  # efficiency from which weights are used for moments
EVEN = 0.5  # efficiency from which weights over all directions say enough of those over the most influential ones
PRECISE = 0.03  # standard error of an sd ratio up to which weights are used for moments
PRECISE_SHARE = 0.3  # the same, as a share of the correction
CHECKED = 2048  # marginals that a default report looks at
DIRECTION_DRAWS = 256  # of it, by default
DIRECTION_VALUES = 130_000  # sites x draws that k-hat of the influential directions may cost by default
MOST_SITES = 5_000  # up to which the fewest of these draws are taken whatever they cost
FULL_DRAWS = 16_384


@dataclass(frozen=True, eq=False)
class Trust:
    """Whether a fit can be believed. Made by ``result.trust``; ``print`` it, or read the parts.

    ``verdict`` is "trust", "corrected" or "doubt"; ``number`` is the figure behind it, ``measures`` says what of, and
    ``advice`` is one sentence. ``khat`` is the tail shape of importance weights of q against the exact posterior,
    ``log_evidence`` their estimate of log p(y). ``marginals`` holds shift, sd ratio and skewness of ``checked`` ones.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> X = np.column_stack([np.ones(40), np.linspace(-1, 1, 40)])
    >>> y = np.arange(40) % 3 > 0
    >>> result = klimb.infer(klimb.latents.Weights(X, cov=4.0), klimb.sites.Logistic(), y)
    >>> result.trust.verdict, bool(result.trust.efficiency > 0.98), bool(result.trust.log_evidence >= result.bound)
    ('trust', True, True)
    """

    judgement: Verdict
    bound: float
    log_evidence: float
    log_evidence_error: float
    khat: float
    direction_khat: float | None  # of the most influential directions, where q's own weights are of no use
    n_draws: int
    efficiency: float  # effective over drawn
    kl: float  # log evidence - bound: KL(q || posterior)
    method: str  # of the marginals: "importance" or "second order"
    kind: str
    checked: Array  # indices of the marginals that were looked at
    marginals: WeightedMoments
    modes: tuple[Mode, ...]
    status: Status
    context: _Context = field(repr=False)

    @property
    def verdict(self) -> Word:
        return self.judgement.word

    @property
    def number(self) -> float:
        return self.judgement.number

    @property
    def measures(self) -> str:
        return self.judgement.measures

    @property
    def advice(self) -> str:
        return f"{self.judgement.advice} {self.judgement.remedy}".rstrip()

    @property
    def khat_matters(self) -> bool:
        """Whether the tail that k-hat describes carries weight: it does not where nearly all draws are effective."""
        return tail_matters(self.efficiency)

    # -- what costs more, when it is asked for

    @cached_property
    def corrected(self) -> Corrected:
        """Mean, sd and skewness of every reported marginal under the exact posterior."""
        coordinates, sample = self.context.coordinates, self.context.best
        n = len(coordinates.mean)
        parts = []
        step = max(4_000_000 // sample.n_draws, 1)
        for begin in range(0, n, step):
            which = slice(begin, min(begin + step, n))
            parts.append(_moments(sample, coordinates, which, self.method))
        shift, ratio, skewness = (np.concatenate([getattr(part, name) for part in parts])
                                  for name in ("shift", "ratio", "skewness"))
        mean, sd = coordinates.mean + shift * coordinates.sd, coordinates.sd * ratio
        return Corrected(self.kind, mean, sd, skewness, self.method, self.log_evidence)

    @cached_property
    def every_mode(self) -> tuple[Mode, ...]:
        """All other modes that can be found, where a verdict looks no further than the first that matters."""
        found = self.context
        return _modes(found.log_weights, found.own, found.problem, True) if self.modes else ()

    def sampled(self, length: int = 24, *, seed: int = 0) -> Corrected:
        """The same by draws that go from q, and from all other modes, to the exact posterior, ``length`` to a chain.

        They serve where importance weights do not: in hundreds of directions, and beside other modes. ``error`` of what
        comes back is the largest standard error of a mean, in sd, or of an sd; longer chains make it smaller.

        >>> import numpy as np, klimb
        >>> y = [-4.0, -4.2, -3.9, 4.0, 4.1, 3.8]  # data that contradict each other
        >>> latent, site = klimb.latents.Weights(np.ones((6, 1)), cov=25.0), klimb.sites.StudentT(df=2.0, scale=0.5)
        >>> report = klimb.infer(latent, site, y).trust
        >>> report.verdict, bool(abs(report.sampled().sd[0] - 3.9) < 0.2)
        ('doubt', True)
        """
        from klimb.trust.tempered import posterior_particles

        coordinates = self.context.coordinates
        if coordinates.dim > MOST_DRAWN:
            raise InputError(f"draws go in up to {MOST_DRAWN} directions", f"{coordinates.dim}",
                             "klimb.trust(result) looks closer at a result of any size; or narrow the prior.")
        others = [mode.posterior for mode in self.every_mode]
        found = posterior_particles(self.context.log_weights, others, length, seed)
        x = coordinates.report(found.z, slice(None))
        mean = found.weights @ x
        away = x - mean
        sd = np.sqrt(found.weights @ away**2)
        skewness = found.weights @ (away / np.where(sd > 0, sd, 1.0)) ** 3
        return Corrected(self.kind, coordinates.mean + mean, sd, skewness, "particles", found.log_evidence, found.error)

    @cached_property
    def sites(self) -> SiteReport:
        """Which data drive the misfit."""
        return site_report(self.context.problem, self.context.posterior)

    @cached_property
    def ladder(self) -> Ladder:
        """Local bound <= bound <= log evidence, beside Laplace's and EP's: three more fits."""
        return climb_ladder(self.context.problem, self.bound, self.log_evidence, self.log_evidence_error)

    @cached_property
    def certificate(self) -> Certificate | None:
        """Two-sided bounds on the covariance ([S] Theorem 1) where the likelihood is log-concave, else None."""
        problem = self.context.problem
        site = exact_site(problem.site)
        if not (site.log_concave and site.separable and site.uses_variance):
            return None
        return variance_certificate(Problem(problem.latent, site, problem.y), self.context.posterior.m)

    def full(self, draws: int = FULL_DRAWS, *, seed: int = 0) -> Trust:
        """The same report from more draws, with every check."""
        return trust_report(self.context.result, draws=draws, seed=seed, complete=True)

    # -- to read

    def __str__(self) -> str:
        heavy = self.khat > khat_threshold(self.n_draws) and not self.khat_matters
        harmless = ": the tail is heavy but carries next to nothing" if heavy else ""
        lines = [
            f"verdict       {self.verdict}: {self.advice}",
            f"k-hat         {self.khat:.2f}  ({self.n_draws} draws, {self.efficiency:.0%} effective{harmless})",
            f"log evidence  {self.log_evidence:.4f} +- {self.log_evidence_error:.2g}  (bound {self.bound:.4f})",
            self._marginal_line(),
        ]
        if self.direction_khat is not None:
            lines.append(f"directions    k-hat {self.direction_khat:.2f} along the most influential ones")
        if self.modes:
            places = ", ".join(f"{mode.distance:.1f} sd away at bound {mode.bound:.2f}" for mode in self.modes)
            lines.append(f"other modes   {places}")
        return "\n".join(lines)

    def _marginal_line(self) -> str:
        moments = self.marginals
        if not len(self.checked):
            return "marginals     none"
        noun = "weight" if self.kind == "weight" else "latent value"
        low, high = float(moments.ratio.min()), float(moments.ratio.max())
        return (
            f"marginals     sd of p / sd of q {low:.3f} to {high:.3f}, means off by up to "
            f"{float(np.abs(moments.shift).max()):.3f} sd, skewness up to {float(np.abs(moments.skewness).max()):.2f} "
            f"({self.method}, {len(self.checked)} {noun}{'s' * (len(self.checked) != 1)})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and text, for JSON and reports."""
        moments = self.marginals
        return {
            "verdict": self.verdict, "number": self.number, "measures": self.measures, "advice": self.advice,
            "khat": _plain(self.khat), "khat_matters": self.khat_matters,
            "direction_khat": _plain(self.direction_khat),
            "n_draws": self.n_draws, "efficiency": self.efficiency, "bound": self.bound,
            "log_evidence": self.log_evidence, "log_evidence_error": self.log_evidence_error,
            "method": self.method, "kind": self.kind,
            "largest_shift": float(np.abs(moments.shift).max(initial=0.0)),
            "smallest_sd_ratio": float(moments.ratio.min(initial=1.0)),
            "largest_sd_ratio": float(moments.ratio.max(initial=1.0)),
            "largest_skewness": float(np.abs(moments.skewness).max(initial=0.0)),
            "modes": [{"bound": mode.bound, "odds": mode.odds, "distance": mode.distance} for mode in self.modes],
        }

    def plot_signs(self, axes: Any = None) -> Any:
        """Where gamma rises and falls with v, and where the sites of this fit lie ([S] Fig. 1); needs matplotlib."""
        from klimb.trust.plots import plot_signs

        return plot_signs(self.context.problem, self.context.posterior, axes)

    def plot_marginals(self, which: Any = None, axes: Any = None, names: Any = None) -> Any:
        """q and corrected densities of the marginals that differ most; needs matplotlib."""
        from klimb.trust.plots import plot_marginals

        return plot_marginals(self, which, axes, names)


@dataclass(frozen=True, eq=False)
class _Context:
    """What a report keeps in order to answer further questions."""

    result: Result
    problem: Problem
    posterior: Posterior
    coordinates: Coordinates
    log_weights: LogWeights
    own: Sample  # draws of q
    best: Sample  # those that the moments come from


def trust_report(result: Result, *, draws: int | None = None, seed: int = 0, complete: bool = False) -> Trust:
    """Check a fit. ``draws`` are chosen to cost a fraction of the fit unless given; ``complete`` leaves nothing out."""
    if result.problem is None:
        raise InputError("trust needs the likelihood and the data of the fit", "a Result without them",
                         "Use the Result that klimb.infer or klimb.methods returned.")
    problem, posterior = result.problem, result.posterior
    if draws is not None and draws < 2:
        raise InputError("draws must be at least 2", f"{draws}", "Leave it out, or ask for some thousands.")
    with threads_for(problem.latent.dense_size):
        coordinates = coordinates_of(posterior)
        log_weights = LogWeights(problem, posterior, coordinates, result.bound if problem.site.separable else np.nan)
        n = importance.default_draws(coordinates) if draws is None else draws
        own = importance.draw(log_weights, n, seed=seed)
        best = _better_draws(log_weights, own, n, seed)
        checked = _checked(coordinates, complete)
        which: Any = slice(None) if len(checked) == len(coordinates.mean) else checked
        method = "importance"
        marginals = best.marginals(coordinates, which)
        moments = best.moments(marginals)
        if own.stationary and best is own and (own.efficiency < USABLE or _noisy(moments)):
            method, moments = "second order", own.second_order(marginals)
        directions = None
        # Where weights over all directions are good, those over some, which are averages of them, are better.
        vouched = own.efficiency >= EVEN and own.smoothed.khat <= RELIABLE
        poor = own.efficiency < USABLE or (method == "second order" and not vouched)
        if poor or complete:
            allowed = None if complete else _directions(problem.latent.n_sites)
            directions = direction_khat(log_weights, own, allowed, seed)
        modes: tuple[Mode, ...] = ()
        if complete or problem.latent.n_sites <= LARGEST:
            modes = _modes(log_weights, own, problem, complete)
    found = Findings(result.status, result.history[-1].stationarity, best, moments, method,
                     coordinates.kind, modes, directions, coordinates.independent)
    evidence, error = (own if best is own else min((own, best), key=lambda s: s.log_evidence()[1])).log_evidence()
    evidence = max(evidence, log_weights.mean)
    return Trust(judge(found), log_weights.mean, evidence, error, own.smoothed.khat, directions, own.n_draws,
                 own.efficiency, evidence - log_weights.mean, method, coordinates.kind, checked, moments, modes,
                 result.status, _Context(result, problem, posterior, coordinates, log_weights, own, best))


def _directions(n_sites: int) -> int:
    """Draws along the influential directions by default: as many as are cheap, or the fewest that say something."""
    few = importance.FEWEST if n_sites <= MOST_SITES else 0
    return min(max(DIRECTION_VALUES // n_sites, few), DIRECTION_DRAWS)


def _better_draws(log_weights: LogWeights, own: Sample, n: int, seed: int) -> Sample:
    """Draws of a wider proposal where q's own are short of the tails and dimensions are few."""
    dim = log_weights.coordinates.dim
    poor = own.smoothed.khat > REDRAW_KHAT or own.efficiency < REDRAW_EFFICIENCY or not own.stationary
    if dim == 0 or dim > REDRAW_DIM or not poor or own.smoothed.effective < 4 * dim:
        return own
    wider = importance.redraw(log_weights, own, n, seed=seed)
    return wider if wider.smoothed.effective > 0.5 * own.smoothed.effective else own


def _modes(log_weights: LogWeights, own: Sample, problem: Problem, complete: bool) -> tuple[Mode, ...]:
    if log_weights.site.log_concave or log_weights.coordinates.dim == 0 or problem.latent.by_products:
        return ()
    direction = leading_directions(log_weights, own, 1)[:, 0]
    enough = np.inf if complete else MODE_ODDS  # one is enough for a verdict
    return other_modes(problem, log_weights.posterior, log_weights.mean, direction, enough)


def _noisy(moments: WeightedMoments) -> bool:
    """Whether some standard error is too large, both as it is and beside the correction itself."""
    allowed = np.maximum(PRECISE, PRECISE_SHARE * np.abs(moments.ratio - 1.0))
    return bool((moments.ratio_error > allowed).any())


def _moments(sample: Sample, coordinates: Coordinates, which: Any, method: str) -> WeightedMoments:
    marginals = sample.marginals(coordinates, which)
    return sample.moments(marginals) if method == "importance" else sample.second_order(marginals)


def _plain(value: float | None) -> float | None:
    """A number that JSON knows: None for the infinite k-hat of weights that are all equal, or only one."""
    return value if value is not None and np.isfinite(value) else None


def _checked(coordinates: Coordinates, complete: bool) -> Any:
    """All marginals, or where there are very many the widest and an even choice of the rest."""
    n = len(coordinates.mean)
    if complete or n <= CHECKED:
        return np.arange(n)
    widest = np.argpartition(-coordinates.sd, CHECKED // 2)[: CHECKED // 2]
    even = np.linspace(0, n - 1, CHECKED // 2).astype(np.intp)
    return np.unique(np.concatenate([widest, even]))
