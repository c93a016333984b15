"""The double loop: means by an inner loop at fixed variances, variances by an estimator in the outer one.

One outer iteration goes

    gamma <- e.gamma at (m, v)        v <- diag(B A(gamma)^-1 B')        u <- best mean for this v

For the local bound this is the algorithm of [N] section 2.2: log det A is concave in gamma, so its tangent at the last
gamma turns the bound into the inner loop's objective from below, and no iteration can lower it. For the KL bound the
same three lines are the batch fixed point of [S]; gamma moves along the natural gradient, so a shorter step always
helps where a full one overshoots. Exact variances let the bound decide; estimated ones come from the same random
vectors every time, so the iteration has a fixed point, and what decides is whether the sites and q come to agree.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from klimb.errors import InputError, NotPositiveDefiniteError, require
from klimb.infer.loop import Move, Moves, Step
from klimb.infer.matrixfree.inner import ROUGH, Bound, BoundTarget, Engine, Found, Measured, best_mean, undetermined
from klimb.infer.newton import anderson_weights
from klimb.infer.problem import ROUNDING, Problem, State
from klimb.infer.result import Status
from klimb.linalg.variances import METHODS
from klimb.numerics.arrays import Array

LEVERAGE = 0.05  # gamma v of a site from which its own answer is anticipated
REACH = 8.0  # of a proposal, in log gamma
NOTHING = 1e-280  # a gamma that has all but vanished (a Laplace site far from its kink)
FAR, SLOW, PAUSE = 0.03, 0.3, 8  # when a stretch is tried, and how long it waits after it did not help
MEMORY = 6  # states that are combined
FOLLOW = 0.1  # the mean is found to this share of the disagreement between q and the sites
PRECEDE = 0.5  # variances are estimated to this share of it
FIRST_AIM, LAST = 0.04, 5.0  # the first aim after a surrogate; disagreement, in units of accuracy, before the last one
CLOSEST, LOOSEST = 1e-9, 0.1  # in posterior standard deviations: goals of the inner loop
ENOUGH = 1.0  # of the accuracy of the variances: disagreement at which further iterations would chase noise
NEAR, MOST_ROUGH = 0.1, 10  # disagreement from which on rough variances will not do, and most iterations with them
STRETCH = 4.0  # by which a posterior is widened where separable labels push it out a little at a time
SMALLEST_STEP = 2.0**-12
SHARPEN, SHARPENINGS = 4.0, 60  # how a start whose bound overflows is made more precise
PATIENCE = 6  # iterations at the level of rounding without a smaller stationarity


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
        last, weights = self._steps[-1][1], anderson_weights(residuals)
        mixed = sum((c * sent for c, (_, sent) in zip(weights, self._steps, strict=True)), np.zeros_like(last))
        return np.asarray(np.exp(last + np.clip(mixed - last, -REACH, REACH)))


class OuterPoint(NamedTuple):
    """A Gaussian q = N(u, A(gamma)^-1) with the variances and the log determinant that belong to it."""

    measured: Measured
    found: Found
    state: State

    @property
    def disagreement(self) -> float:
        """Precision that sites ask for and q does not have, or the reverse, as a share of all: sum v |d| / sum v g."""
        state = self.state
        total = float(state.v @ np.abs(state.expectation.gamma))
        return float(state.v @ np.abs(state.gamma_residual)) / max(total, 1e-300)


@dataclass(frozen=True)
class DoubleLoop(Step):
    """The step of `klimb.latents.Implicit`: nothing is factorised unless that is cheap. Others give it their design.

    Parameters
    ----------
    bound : "auto", "local" or "kl"
        What to raise: the bound of the likelihood itself ("kl", the tighter one), or that of its best Gaussian lower
        bounds ("local", [N]; super-Gaussian sites only, convex for log-concave ones). "auto" takes "kl" for every
        likelihood that is log-concave and "local" for those that are not.
    variances : "auto", "exact", "lanczos", "sampling", "diagonal" or "bracket"
        How the variances at the sites are found; "auto" is exact where a factorisation is cheap.
    accuracy : float
        Relative error that estimates of them aim at.
    max_outer : int
        Most outer iterations.
    seed : int
        Of the estimates. The same seed gives the same numbers.
    vectors : int
        How many Lanczos vectors, k in [N] section 2.3, with ``variances="lanczos"``; as many as ``accuracy`` asks for
        if it is left out. Few of them leave variances too small: that is the price of a cheap outer iteration.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> X = np.random.default_rng(0).standard_normal((50, 3))
    >>> latent, y = klimb.latents.Implicit(X, cov=1.0), X[:, 0] > 0
    >>> result = klimb.infer(latent, klimb.sites.Logistic(), y, step=klimb.steps.DoubleLoop(bound="local"))
    >>> result.status.name, bool((np.diff(result.history.bound) > -1e-9).all()), result.certified
    ('CONVERGED', True, True)
    """

    bound: Bound = "auto"
    variances: str = "auto"
    accuracy: float = 0.01
    max_outer: int = 200
    seed: int = 0
    vectors: int | None = None

    def __post_init__(self) -> None:
        if self.bound not in ("auto", "local", "kl"):
            raise InputError('bound must be "auto", "local" or "kl"', repr(self.bound), "Leave it out for the tighter.")
        if self.variances not in METHODS:
            raise InputError(f"variances must be one of {', '.join(METHODS)}", repr(self.variances), "Leave it out.")
        require(0.0 < self.accuracy < 1.0, "accuracy must lie between 0 and 1", self.accuracy, "The default is 0.01.")
        require(self.max_outer >= 1, "max_outer must be at least 1", self.max_outer, "The default is 200.")
        if self.vectors is not None and (self.vectors < 1 or self.variances != "lanczos"):
            raise InputError('vectors must be at least 1, with variances="lanczos"',
                             f"{self.vectors} with {self.variances!r}", "[N] takes 80 or 750 of them.")

    def moves(self, problem: Problem, notes: list[str]) -> Moves:
        target = BoundTarget(problem, self.bound)
        engine = Engine(target.latent, self.variances, self.accuracy, self.seed, self.vectors)
        try:
            point = _start(target, engine)
        except NotPositiveDefiniteError as error:
            raise undetermined(target.latent.gaussian.proper) from error
        yield Move(point.state, "start")
        if engine.rough and point.disagreement <= NEAR:
            engine.rough, engine.aim = False, self.accuracy
        trail, best, idle, step, n_rough = Trail(), point.state.stationarity, 0, 1.0, 0
        for _ in range(self.max_outer):
            found = _outer(target, engine, point, trail, step)
            if found is None:
                return Status.STALLED
            after, rule, step = found
            gained = after.state.objective - point.state.objective
            settled = gained <= point.state.noise and after.state.stationarity >= 0.9 * best
            idle, best = idle + 1 if settled else 0, min(best, after.state.stationarity)
            grew, halved = (after.disagreement > point.disagreement, after.disagreement < 0.5 * point.disagreement)
            before, point = point.measured.variances, after
            yield Move(point.state, rule, step)
            if point.found.unsolved > 0.0:
                notes.append(f"a linear system was left with a relative residual of {point.found.unsolved:.1e}")
                return Status.UNSOLVED
            if not point.measured.exact:
                known = max(self.accuracy, point.measured.variances.relative_error)
                if not engine.rough and engine.aim <= self.accuracy and point.disagreement <= ENOUGH * known:
                    return Status.ESTIMATED
                if engine.rough:
                    n_rough += 1
                    engine.rough = point.disagreement > NEAR and n_rough < MOST_ROUGH and halved
                elif not grew or before.method == point.measured.variances.method:  # else they do not compare
                    step = 0.5 * step if grew else min(1.0, 2.0 * step)
                if not engine.rough:
                    engine.aim = _aim(point, self.accuracy)
            if idle >= PATIENCE:
                return Status.STALLED
        return Status.MAX_ITER


def _aim(point: OuterPoint, accuracy: float) -> float:
    """How good the next variances should be: as good as they must, once one more iteration is likely to be the last."""
    if point.measured.variances.method == "surrogate":  # off by some percent: what comes next is not yet the end
        return max(FIRST_AIM, accuracy)
    if point.disagreement <= LAST * accuracy:
        return accuracy
    return float(np.clip(PRECEDE * point.disagreement, accuracy, max(ROUGH, accuracy)))


def _start(target: BoundTarget, engine: Engine) -> OuterPoint:
    """Sites that match each datum (or those of an earlier fit), sharpened while the bound overflows."""
    start = target.problem.start
    gamma, slope = target.start_gamma, target.slope
    if start is not None:
        gamma, slope = np.maximum(start.gamma, 0.0), start.a + start.gamma * start.m
    mode = np.divide(slope, gamma, out=np.zeros_like(gamma), where=gamma > 0)
    B = target.latent.B
    for _ in range(SHARPENINGS):
        measured = _measure(target, engine, gamma, None)
        if start is None:
            engine.check_determined(gamma)
        pull = target.latent.gaussian.pull + B.transpose_times(slope - gamma * target.offset)
        mean = target.mean_at(engine.solve(gamma, pull, LOOSEST * 1e-2).x, measured.v)
        if np.isfinite(mean.objective):
            return _point(target, measured, best_mean(target, measured.v, mean, engine.solve, LOOSEST))
        gamma = SHARPEN * gamma + 1e-3
        slope = gamma * mode
    raise InputError("prior and data must have a finite bound somewhere near the data",
                     "an infinite one at every start",
                     "Check offsets, exposures and the prior mean for values that overflow under the link.")


def _outer(target: BoundTarget, engine: Engine, point: OuterPoint, trail: Trail,
           longest: float) -> tuple[OuterPoint, str, float] | None:
    """The next point, the rule and the share of the step that was taken; None where nothing is better."""
    wanted, step, exact = point.state.expectation.gamma, longest, point.measured.exact
    # The inner loop comes somewhat closer to the best mean than q is to its fixed point.
    apart = _apart(point.measured.gamma, point.measured.v, wanted)
    goal = float(np.clip(FOLLOW * apart, CLOSEST if exact else FOLLOW * engine.accuracy, LOOSEST))
    ahead = anticipated(target, point.state) if longest == 1.0 else None
    trail.add(point.state, wanted if ahead is None else ahead)
    stretched = point.state.gamma / STRETCH**2 if exact and trail.slow(point.state.stationarity) else None
    proposals = {"stretch": stretched, "anderson": trail.combined() if exact else None, "cavity": ahead}
    for rule, gamma in proposals.items():
        after = None if gamma is None else _at_gamma(target, engine, point, gamma, goal)
        if after is not None and (rule == "cavity" or _useful(point.state, after.state)):
            return after, rule, step
        if gamma is not None:
            trail.refused(rule)
    while step >= SMALLEST_STEP:
        after = _at_gamma(target, engine, point, point.state.gamma + step * (wanted - point.state.gamma), goal)
        if after is not None:
            return after, "outer", step
        step *= 0.5
    return None


def _useful(state: State, after: State) -> bool:
    """Whether a combination of earlier steps got somewhere, though rounding may hide it."""
    return after.objective > state.objective + state.noise or after.stationarity < 0.9 * state.stationarity


def _at_gamma(target: BoundTarget, engine: Engine, point: OuterPoint, gamma: Array, goal: float) -> OuterPoint | None:
    """The point at ``gamma``, or None where that is no proper q, or where exact bounds say that it is worse."""
    try:
        measured = _measure(target, engine, gamma, point.measured)
    except NotPositiveDefiniteError:
        return None
    last = point.found.mean
    mean = target.mean_of(last.u, last.s, last.fitted, measured.v)
    after = _point(target, measured, best_mean(target, measured.v, mean, engine.solve, goal))
    doubt = point.state.noise + after.state.noise
    return after if not measured.exact or after.state.objective >= point.state.objective - doubt else None


def _measure(target: BoundTarget, engine: Engine, gamma: Array, previous: Measured | None) -> Measured:
    target.problem.n_factor += engine.exact
    return engine.measure(gamma, previous)


def _apart(gamma: Array, v: Array, wanted: Array) -> float:
    """max v |q.gamma - e.gamma|, the part of the stationarity norm that belongs to the variances."""
    with np.errstate(over="ignore", invalid="ignore"):
        worst = float((v * np.abs(gamma - wanted)).max())
    return worst if np.isfinite(worst) else np.inf


def _point(target: BoundTarget, measured: Measured, found: Found) -> OuterPoint:
    mean, gamma, v = found.mean, measured.gamma, measured.v
    kl = target.divergence(mean, gamma, v, measured.log_det.value)
    bound = float(mean.e.value.sum()) + target.problem.constant - kl
    terms = (mean.noise / ROUNDING, target.problem.constant, float(gamma @ v), measured.log_det.value, kl)
    noise = ROUNDING * sum(abs(term) for term in terms)
    stationarity = max(found.distance, _apart(gamma, v, mean.e.gamma))
    factor = target.factor(gamma, measured.variances, measured.log_det, mean.u)
    state = State(-mean.e.alpha, factor, mean.s, [v], mean.e, kl, bound, bound, noise, stationarity,
                  mean_gain=0.5 * found.distance**2, bound_error=_bound_error(target, measured, found))
    return OuterPoint(measured, found, state)


def _bound_error(target: BoundTarget, measured: Measured, found: Found) -> float:
    """Half the error of the log determinant, and what the bound changes by if all variances are wrong at once.

    At the fixed point the derivative in v, (gamma - e.gamma) / 2, vanishes: errors of v enter by their squares.
    """
    if found.unsolved > 0.0:
        return np.inf
    if measured.exact:
        return 0.0
    error, mean = measured.variances.error, found.mean
    change = target.oracle(mean.s, measured.v + error).value - mean.e.value + 0.5 * measured.gamma * error
    return 0.5 * measured.log_det.error + float(np.abs(change).sum())
