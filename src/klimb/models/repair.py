"""What takes the place of importance weights that are of no use: particles of the exact posterior at fixed theta.

They go from q, and from other modes that are known, to the exact posterior in steps (`klimb.trust.tempered`): those of
the shared weights with the levels of a group integrated out. What is shown are then Gaussians with their means and
covariances, one for each mode.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from klimb.infer.result import Result
from klimb.latents.weights_posterior import WeightPosterior
from klimb.likelihoods import Observed
from klimb.models.components import Components
from klimb.models.search import Peak
from klimb.numerics.arrays import Array
from klimb.trust.collapsed import ShockWeights
from klimb.trust.pieces import cut_posterior

CALLS = 5000  # of the density, roughly, for every state of a chain
HARMLESS = 0.9  # effective draws over draws above which a heavy tail carries next to nothing
SHORTEST = 4  # states of a chain at each step without which particles are not worth their while
MANY_ROWS = 20_000  # from which no other modes are looked for


@dataclass(frozen=True)
class Budget:
    """Values of log p that particles may cost, states of a chain at each step, and pieces that a mode is cut into."""

    values: float
    longest: int
    pieces: int

    def length(self, work: int) -> int:
        """States of a chain at each step where a particle takes ``work`` values of log p; 0 where that is too much."""
        found = min(int(self.values / (CALLS * max(work, 1))), self.longest)
        return found if found >= SHORTEST else 0


ALONE, EACH, BRIEF = Budget(4e7, 48, 16), Budget(1.2e7, 12, 4), Budget(1.2e7, SHORTEST, 1)


@dataclass(frozen=True, eq=False)
class Repaired:
    """The posterior at one theta by particles; ``third`` are central moments of the shocks, where it has one mode."""

    gain: float  # log evidence - bound
    parts: tuple[tuple[float, WeightPosterior], ...]
    efficiency: float
    error: float
    third: Array = field(default_factory=lambda: np.zeros((0, 0, 0, 0)))


def shared_modes(results: Sequence[Result]) -> list[tuple[Array, Array]]:
    """Means and roots of the shared weights at the modes of some fits; none where these have no second one."""
    found: list[tuple[Array, Array]] = []
    for result in results:
        problem, latent = result.problem, result.posterior.latent
        if problem is None or problem.site.log_concave or len(problem.y) > MANY_ROWS:
            continue
        others = [mode.posterior for mode in result.trust.every_mode if mode.matters]
        for shocks in (latent.shocks(one) for one in ((result.posterior, *others) if others else ())):
            if shocks is None or shocks.wide:
                return []
            mean, root = shocks.q.shared, shocks.q.root
            sd = np.linalg.norm(root, axis=1)
            if not any((np.abs(mean - known) <= sd + np.linalg.norm(own, axis=1)).all() for known, own in found):
                found.append((mean, root))
    return found


def modes_around(components: Components, peak: Peak, data: Observed) -> list[tuple[Array, Array]]:
    """Of the shared weights, at the peak and, where q is not all but exact, at both ends of the likely theta."""
    problem = peak.result.problem
    if components.uncorrected is None or problem is None or problem.site.log_concave:
        return []
    ends = components.ends() if components.efficiency < HARMLESS else ()
    return shared_modes([peak.result, *(peak.model.moved(theta).infer(data) for theta in ends)])


def from_collapsed(weights: ShockWeights, modes: Sequence[tuple[Array, Array]], budget: Budget,
                   seed: int) -> Repaired | None:
    """From particles of the shared weights, with a part for each mode; None where they would cost too much."""
    from klimb.boosting.gaussians import Gaussians  # which few fits need
    from klimb.trust.tempered import WIDER, tempered

    length, dim, q = budget.length(weights.work), weights.shocks.dim, weights.shocks.q
    if not length:
        return None
    back = np.linalg.pinv(q.root)
    start = Gaussians(np.array([np.zeros(dim), *(back @ (shared - q.shared) for shared, _ in modes)]),
                      WIDER * np.array([np.eye(dim), *(back @ root for _, root in modes)]))
    weights = weights.settled(start.means)
    found = tempered(weights.log_density, start, length, seed)
    draws, parts = weights(found.z), list[tuple[float, WeightPosterior]]()
    for mode in np.unique(found.owner):
        share = np.where(found.owner == mode, found.weights, 0.0)
        own = share / share.sum()
        parts.append((float(share.sum()), cut_posterior(draws, own, draws.moments(own, stein=False), weights.shocks,
                                                        budget.pieces)))
    third = draws.third(found.weights, stein=False) if len(parts) == 1 else np.zeros((0, 0, 0, 0))
    return Repaired(found.log_evidence - weights.bound, tuple(parts), found.efficiency, found.error, third)
