"""Where gamma is going: proposals that save outer iterations, each of which costs all variances anew."""

from __future__ import annotations

from typing import final

import numpy as np

from klimb.infer.matrixfree.target import BoundTarget
from klimb.infer.problem import State
from klimb.numerics.arrays import Array

LEVERAGE = 0.05  # gamma v of a site from which its own answer is anticipated
REACH = 8.0  # of a proposal, in log gamma
NOTHING = 1e-280  # a gamma that has all but vanished (a Laplace site far from its kink)
FAR, SLOW, PAUSE = 0.03, 0.3, 8  # when a stretch is tried, and how long it waits after it did not help
MEMORY = 6  # states that are combined


def anticipated(target: BoundTarget, state: State) -> Array | None:
    """Where gamma goes if every site's own variance answers to it: v_i = 1 / (1 / v_i - q.gamma_i + gamma_i).

    A site that holds most of the information about its f (a sparsity prior on a weight that the data hardly know) would
    otherwise halve its distance at each iteration. One more call of the oracle at such sites and Aitken's extrapolation
    of log gamma find the fixed point, exactly where gamma is a power of v. None where no site is of this kind.
    """
    first = state.expectation.gamma
    alone = np.flatnonzero((state.gamma * state.v > LEVERAGE) & (first > 0.0) & (state.gamma > 0.0))
    if not len(alone):
        return None
    site, y, m, now = target.site.rows(alone), target.y[alone], state.m[alone], state.gamma[alone]
    others = np.maximum(1.0 / state.v[alone] - now, 0.0)  # the cavity's precision
    target.problem.n_oracle += 1
    with np.errstate(all="ignore"):
        second = site.oracle(y, m, 1.0 / (others + first[alone])).gamma
        logs = [np.log(gamma) for gamma in (now, first[alone], second)]
        bend = logs[2] - 2.0 * logs[1] + logs[0]
        jump = np.where(bend == 0.0, 0.0, (logs[1] - logs[0]) ** 2 / bend)
        ahead = np.exp(logs[0] - np.clip(jump, -REACH, REACH))
    gamma = first.copy()
    usable = np.isfinite(ahead) & (ahead > 0.0)
    gamma[alone[usable]] = ahead[usable]
    return gamma


@final
class Trail:
    """The last gammas and where each was sent; Anderson's combination of them has the least residual.

    In log gamma, so that gamma stays positive, with the leverage gamma v as the weight of a site.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[Array, Array]] = []
        self._leverage: Array = np.zeros(0)
        self._norms: list[float] = []
        self._pause = 0

    def slow(self, stationarity: float) -> bool:
        """Whether the norm has hardly fallen over the last steps, far from the optimum; pauses after a refusal."""
        self._norms = [*self._norms, stationarity][-3:]
        self._pause = max(self._pause - 1, 0)
        far = stationarity > FAR and len(self._norms) == 3
        return far and self._pause == 0 and stationarity > SLOW * self._norms[0]

    def refused(self, rule: str) -> None:
        """A proposal did not help: the combination forgets all but the last step, a stretch waits."""
        if rule == "anderson":
            self._steps = self._steps[-1:]
        elif rule == "stretch":
            self._pause = PAUSE

    def add(self, state: State, sent: Array) -> None:
        """``sent`` is where the plain or anticipated step from ``state`` leads. A negative gamma has no trail."""
        if state.gamma.min() < 0.0 or sent.min() < 0.0:
            self._steps = []
            return
        logs = np.log(np.maximum(state.gamma, NOTHING)), np.log(np.maximum(sent, NOTHING))
        self._steps = [*self._steps, logs][-MEMORY:]
        self._leverage = state.gamma * state.v

    def combined(self) -> Array | None:
        """The combination of where the steps lead; None with fewer than two."""
        if len(self._steps) < 2:
            return None
        residuals = np.stack([self._leverage * (sent - begun) for begun, sent in self._steps])
        differences = residuals[:-1] - residuals[-1]
        gram = differences @ differences.T
        gram.flat[:: len(gram) + 1] += 1e-14 * np.trace(gram) + 1e-300
        weights = np.linalg.solve(gram, -(differences @ residuals[-1]))
        weights = np.append(weights, 1.0 - weights.sum())
        last = self._steps[-1][1]
        mixed = sum((c * sent for c, (_, sent) in zip(weights, self._steps, strict=True)), np.zeros_like(last))
        return np.asarray(np.exp(last + np.clip(mixed - last, -REACH, REACH)))
