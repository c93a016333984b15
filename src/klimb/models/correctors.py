"""Which corrector a model gets, and that of fields and crossed groups.

    all but exact               nothing is put back                               `NoCorrection`
    few shared weights          importance weights, or particles (`weighing`)     `ByWeights`
    fields, crossed groups      evidence by gaps, moments to leading order        `ByLeadingOrder`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from klimb.errors import InputError
from klimb.infer.result import Result
from klimb.models.correction import Correction, Corrector, NoCorrection, evidence_alone
from klimb.models.repair import shared_modes
from klimb.models.weighing import (
    COUNTED,
    GAIN_DRAWS,
    PROBE_DRAWS,
    ByWeights,
    leading_part,
    same_draws,
    sums_of_weights,
    weights_of,
)
from klimb.numerics.arrays import Array
from klimb.numerics.lowdiscrepancy import matched_draws
from klimb.trust.gap import MOST_CHAINED, EvidenceGaps
from klimb.trust.tails import Mean
from klimb.trust.weights import most_variance

NEGLIGIBLE = 0.003  # variance of log weights up to which sds are right to 0.5%
NEGLIGIBLE_GAIN = 0.01  # nats between evidence and bound that move no hyperparameter
MANY_ROWS = 20_000  # from which that is first looked for without draws
APART = 16  # of the points of theta that moments to leading order are taken at, one of so many: others borrow them
FEW_CUBES = 5000  # numbers of third moments up to which every point of theta has them


def corrector_of(result: Result, *, alone: bool = False, repairs: bool = False,
                 modes: Sequence[tuple[Array, Array]] = (), mean: Mean | None = None) -> Corrector:
    """For the fits of a model, by that at its best theta, which may be the only one (``alone``).

    ``repairs`` and ``modes`` ask for particles, ``mean`` is that of y by f where its sd may rest on tails: see
    `ByWeights`.
    """
    if _surely_negligible(result):
        return NoCorrection(efficiency=1.0)
    weights = weights_of(result, PROBE_DRAWS)
    if weights is None:
        gaps = EvidenceGaps()
        if (alone and not sums_of_weights(result)) or not gap(gaps, result) > NEGLIGIBLE_GAIN:
            return NoCorrection()
        return ByLeadingOrder(result, gaps, alone=alone)
    logs = weights.evidence(matched_draws(PROBE_DRAWS, weights.shocks.dim))
    if not np.isfinite(logs).all():
        return NoCorrection()
    variance, gain = float(logs.var()), abs(float(logs.mean()) - weights.bound)
    concave = result.problem is None or result.problem.site.log_concave
    small = variance <= NEGLIGIBLE and gain <= NEGLIGIBLE_GAIN  # and elsewhere, where log p is concave
    wanted = not (small and concave) or weights.shocks.outputs > 1
    if weights.shocks.wide:
        return ByLeadingOrder(result, EvidenceGaps(), alone=alone, wanted=wanted, by_draws=True)
    if not wanted:
        return NoCorrection(1.0, variance)
    kept = weights if alone and not weights.shocks.own.size else None  # the same for any number of draws
    return ByWeights(variance, alone=alone, repairs=repairs, modes=shared_modes([result]) if alone else modes,
                     mean=mean, kept=kept)


class ByLeadingOrder(Corrector):
    """Evidence by `EvidenceGaps`, and moments of the weights to leading order, at some of the points of theta.

    Where there are levels too (``by_draws``), and more sites than chains serve, the gap begins with that of few draws
    over which the levels are integrated out.
    """

    only_gains = True

    def __init__(self, result: Result, gaps: EvidenceGaps, *, alone: bool, wanted: bool = True,
                 by_draws: bool = False) -> None:
        super().__init__(efficiency=float("nan") if wanted else 1.0)
        self.wanted, self._gaps, self._by_draws = wanted, gaps, by_draws
        self._count, self._asked, self._step = 0, 0, 0  # every how many points of theta are fitted again for moments
        part = leading_part(result, whether=True)[0] if wanted and not alone else None
        if part is not None:
            self._step = APART if part.lends else 1

    @property
    def even(self) -> bool:
        return False

    def again(self) -> bool:
        self._asked += 1
        return self._step > 0 and self._asked % self._step == 0

    def gain(self, result: Result | None, least: float = 0.0) -> float:
        if result is None:
            return 0.0
        if not self._by_draws or len(result.posterior.m) <= MOST_CHAINED:
            return gap(self._gaps, result, least=least)
        weights = weights_of(result, GAIN_DRAWS) if self.wanted else None
        if weights is None:
            return 0.0
        logs = weights.evidence(same_draws(GAIN_DRAWS, weights.shocks.dim))
        spread = float(logs.var(ddof=1)) if weights.scale == 1.0 else 0.0  # some levels alone vary too much
        value = gap(self._gaps, result, float(logs.mean()) + 0.5 * spread - weights.bound)
        return value if np.isfinite(value) else 0.0

    def __call__(self, result: Result | None) -> Correction | None:
        if not self.wanted or result is None:
            return None
        self._count += 1
        part, _ = leading_part(result)
        alone = evidence_alone(self.gain(result))
        if part is None:
            return alone
        if part.cubes.size > FEW_CUBES and self._count % COUNTED != 1:
            part = replace(part, cubes=np.zeros((0, 0)))  # type: ignore[type-var]
        return replace(alone, parts=((1.0, part),))


def gap(gaps: EvidenceGaps, result: Result, leading: float | None = None, least: float = 0.0) -> float:
    """log evidence - bound of a field or of crossed groups; 0 where q is exact, or would be too large to look at."""
    problem = result.problem
    if problem is None or problem.site.gamma_trend == "constant" or not problem.site.separable:
        return 0.0
    try:
        return gaps(problem, result.posterior, leading, least)
    except InputError:  # no coordinates at this size
        return 0.0


def _surely_negligible(result: Result) -> bool:
    """Whether log weights of many rows of a concave log p surely vary by next to nothing."""
    problem, q = result.problem, result.posterior
    if problem is None or len(problem.y) < MANY_ROWS or not (problem.site.log_concave and problem.site.separable):
        return False
    return most_variance(problem.site, problem.y, q, NEGLIGIBLE) <= NEGLIGIBLE
