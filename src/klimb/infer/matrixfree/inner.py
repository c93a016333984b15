"""The bound of a model that is known by products, and the inner loop: the best mean for given variances.

For q = N(u, A^-1) with A = P + B' diag(gamma) B, v = diag(B A^-1 B') and m = B u,

    bound = log G(u) + sum_i value_i(m_i, v_i) + [ gamma'v - log det A + D log 2 pi ] / 2

where G is the product of the Gaussian factors and P its precision: E_q log G = log G(u) - (D - gamma'v) / 2, and the
entropy is (D log 2 pi e - log det A) / 2. This bounds the log of the integral of all factors, whether the Gaussian ones
are normalised, singular or absent. With the oracle of the local bound it is -phi_z / 2 of [N] including g*(z).

The inner loop is the iteratively reweighted least squares of [N] section 2.2. A step costs one system with A(e), e the
curvatures of the sites, and a line search that needs no products, because B u and X u move along known directions.

Where A can be factorised in a moment, one factorisation gives variances and log determinant, and serves as the
preconditioner of all systems until gamma changes: A(e) is close to A(gamma), so that these take a handful of
iterations. Elsewhere everything is products.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from klimb.errors import InputError, NotPositiveDefiniteError, require
from klimb.infer.problem import ROUNDING, Problem
from klimb.latents.base import Factor
from klimb.latents.implicit import LOG_TWO_PI, Implicit, ImplicitFactor
from klimb.linalg.factors import FactorPlan, cheapest_plan, factorise
from klimb.linalg.krylov import KrylovSolution, Preconditioner, ScaledLanczos, simplest_preconditioner, solve
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators import StackedOperator
from klimb.linalg.variances import LogDet, Variances, estimate, log_det
from klimb.numerics.arrays import Array
from klimb.sites import Expectation, Site, Stack, SuperGaussian
from klimb.sites.wrappers import Wrapper

Bound: TypeAlias = Literal["auto", "local", "kl"]
FLOOR = 1e-8  # of a site's own precision: the least curvature that a Newton step on the mean gives it
SMALL = 1e-3  # of |gamma|: the same where the curvature is negative (sites that are not log-concave)
MOST_STEPS = 60
LOOSEST, TIGHTEST = 0.1, 1e-11  # relative residuals that systems are solved to
SHARE = 0.1  # of the goal: what the error of a system may contribute
ENOUGH_GAIN = 1e-4  # of what the slope promises: the least that a step must gain
FLAT_ENOUGH = 0.3  # slope along the step, relative to its start, at which a line search ends
MOST_TRIALS = 30
# Newton weights of the sites, right-hand side and relative residual in, solution out.
Solver: TypeAlias = Callable[[Array, Array, float], KrylovSolution]
ROUGH = 0.1  # relative error of the variances at the start, where gamma is a guess
RANK = 24  # Lanczos directions behind those variances
SINGLE = 1e-3  # tolerance of a system from which products in single precision will do
FAR = 1.0  # median of |log(weights / gamma)| beyond which a preconditioner made for gamma is of no use
RUNAWAY = 1e-12  # curvature along a solution, as a share of the usual one, that counts as none
CHECK_TOLERANCE, MOST_CHECKS = 1e-5, 300  # relative residual and iterations spent on finding out
AFFORDABLE = 2.0  # seconds that a factorisation may take for variances to be exact


def site_for(site: Site, bound: Bound) -> Site:
    """The oracle whose bound is raised: of the site itself (KL), or of its best Gaussian lower bound (local).

    "auto" decides part by part: the KL bound is the tighter one, the local bound keeps gamma positive where a
    likelihood is not log-concave. A Gaussian site is its own local bound.

    >>> from klimb.sites import Logistic, StudentT
    >>> site_for(Stack([(Logistic(), 3), (StudentT(3.0, 1.0), 2)]), "auto").parts
    ((Logistic(), 3), (SuperGaussian(site=StudentT(df=3.0, scale=1.0)), 2))
    """
    if isinstance(site, Stack):
        return replace(site, parts=[(site_for(part, bound), count) for part, count in site.parts])
    if bound == "kl" or isinstance(site, SuperGaussian) or site.gamma_trend == "constant":
        return site
    if bound == "auto" and (site.log_concave or not site.super_gaussian):
        return site
    return SuperGaussian(site)


def curvature_is_gamma(site: Site) -> bool:
    """Whether the second derivative of the oracle in m is its gamma, so that it need not be asked for."""
    if isinstance(site, Stack):
        return all(curvature_is_gamma(part) for part, _ in site.parts)
    if isinstance(site, SuperGaussian):
        return False
    if isinstance(site, Wrapper):
        return curvature_is_gamma(site.site)
    return type(site).curvature is Site.curvature


class MeanPoint(NamedTuple):
    """Weights u with what belongs to them: B u, X u, the oracle there, and the part of the bound that u enters."""

    u: Array
    s: Array
    fitted: Array
    e: Expectation
    objective: float
    noise: float  # size of rounding errors in the objective


class BoundTarget:
    """A latent, an oracle and data; counts oracle calls in the problem it belongs to."""

    def __init__(self, problem: Problem, bound: Bound) -> None:
        require(not np.any(problem.latent.slack), "DoubleLoop needs a latent without slack",
                type(problem.latent).__name__, "Leave the step out.")
        if not problem.site.separable or not problem.site.uses_variance:
            raise InputError("DoubleLoop needs sites with one latent value and an expectation each",
                             type(problem.site).__name__, "Use klimb.latents.Weights with this site.")
        self.problem, self.latent, self.y = problem, problem.latent.implicit(), problem.y
        self.own = self.latent is problem.latent  # else its products are those of f - offset
        self.offset: Array | float = 0.0 if self.own else problem.latent.mean
        self.site = site_for(problem.site, bound)
        self.slope, gamma = self.site.start(self.y)
        self.start_gamma = np.array(np.broadcast_to(gamma, self.y.shape))
        self._direct = curvature_is_gamma(self.site)

    def factor(self, gamma: Array, variances: Variances, log_det: LogDet, u: Array) -> Factor:
        """The factor of a state: it belongs to the latent of the problem."""
        if not self.own:
            return self.problem.latent.factor(gamma)
        return ImplicitFactor(self.latent, gamma, variances=variances, log_det=log_det, weights=u)

    def oracle(self, m: Array, v: Array) -> Expectation:
        self.problem.n_oracle += 1
        with np.errstate(over="ignore", invalid="ignore"):
            return self.site.oracle(self.y, m, v)

    def newton_weights(self, mean: MeanPoint, v: Array) -> Array:
        """Curvatures of the sites in m, kept positive: e of the inner loop ([N] section 2.2)."""
        curvature = mean.e.gamma if self._direct else self.site.curvature(self.y, mean.s, v)
        floor = np.maximum(FLOOR * self.start_gamma, np.where(curvature < 0.0, SMALL * np.abs(mean.e.gamma), 0.0))
        return np.maximum(curvature, floor)

    def mean_at(self, u: Array, v: Array) -> MeanPoint:
        return self.mean_of(u, self.offset + self.latent.B.times(u), self.latent.gaussian.fitted(u), v)

    def mean_of(self, u: Array, s: Array, fitted: Array, v: Array) -> MeanPoint:
        e = self.oracle(s, v)
        gaussian = self.latent.gaussian.log_density(u, fitted)
        with np.errstate(over="ignore", invalid="ignore"):
            total, size = float(e.value.sum()), float(np.abs(e.value).sum())
        objective = gaussian + total if np.isfinite(gaussian + total) else -np.inf
        return MeanPoint(u, s, fitted, e, objective, ROUNDING * (abs(gaussian) + size))

    def gradient(self, mean: MeanPoint) -> Array:
        """Of the objective in u."""
        return self.latent.gaussian.gradient(mean.u, mean.fitted) - self.latent.B.transpose_times(mean.e.alpha)

    def divergence(self, mean: MeanPoint, gamma: Array, v: Array, log_det: float) -> float:
        """What the expected log likelihood loses in the bound: KL(q || G), G the Gaussian factors as they stand."""
        gaussian = self.latent.gaussian.log_density(mean.u, mean.fitted)
        return -gaussian - 0.5 * (float(gamma @ v) - log_det + self.latent.n_weights * LOG_TWO_PI)


class Found(NamedTuple):
    """The mean, how far it is from the best one (in posterior standard deviations, at most), and how it was found."""

    mean: MeanPoint
    distance: float
    unsolved: float  # the worst relative residual of a system that missed its tolerance; 0 if all were solved


def best_mean(target: BoundTarget, v: Array, start: MeanPoint, solver: Solver, goal: float) -> Found:
    """Raise the objective over u at fixed ``v`` until the Newton decrement is at most ``goal``.

    The decrement, sqrt(g' A(e)^-1 g), bounds how far any linear function of u is from its value at the optimum, in
    posterior standard deviations; half its square is what the bound still gains.
    """
    mean, distance, unsolved = start, np.inf, 0.0
    before = (np.inf, np.inf)  # norm of the gradient and decrement at the last step
    for _ in range(MOST_STEPS):
        gradient = target.gradient(mean)
        size = float(np.linalg.norm(gradient))
        if size == 0.0:
            return Found(mean, 0.0, unsolved)
        weights = target.newton_weights(mean, v)
        solution = solver(weights, gradient, _forcing(size, before, goal))
        if not solution.converged:
            unsolved = max(unsolved, float(np.max(solution.residual)))
        distance = max(float(gradient @ solution.x), 0.0) ** 0.5
        before = (size, distance)
        if distance <= goal:
            return Found(mean, distance, unsolved)
        moved = _line_search(target, v, mean, solution.x, gradient)
        if moved is None:  # nothing but rounding is left
            return Found(mean, distance, unsolved)
        mean = moved
    return Found(mean, distance, unsolved)


def _forcing(size: float, before: tuple[float, float], goal: float) -> float:
    """How well to solve: as the gradient falls (Eisenstat and Walker), but no better than the goal needs."""
    if not np.isfinite(before[0]):
        return LOOSEST
    left = size / before[0]
    wanted, needed = 0.9 * left**2, SHARE * goal / max(left * before[1], 1e-300)
    return float(np.clip(max(wanted, needed), TIGHTEST, LOOSEST))


def _line_search(target: BoundTarget, v: Array, mean: MeanPoint, d: Array, gradient: Array) -> MeanPoint | None:
    """A point along ``d`` clearly better than ``mean``: the full step, or where the slope is small; else None."""
    ds, df = target.latent.B.times(d), target.latent.gaussian.fitted(d)
    promised = float(gradient @ d)
    gaussian = target.latent.gaussian
    bend = float(gaussian.prior_precision @ d**2 + gaussian.weights @ df**2)
    gaussian_slope = promised + float(mean.e.alpha @ ds)  # the sites have the rest of the slope

    def at(t: float) -> tuple[MeanPoint, float]:
        trial = target.mean_of(mean.u + t * d, mean.s + t * ds, mean.fitted + t * df, v)
        return trial, gaussian_slope - t * bend - float(trial.e.alpha @ ds)

    trial, slope = at(1.0)
    if promised <= 4 * mean.noise:  # too close for the objective to tell: the slope is the judge
        close = trial.objective >= mean.objective - 4 * mean.noise and abs(slope) < 0.5 * promised
        return trial if close else None
    low, high, t = 0.0, np.inf, 1.0
    best: MeanPoint | None = None
    for _ in range(MOST_TRIALS):
        gain = trial.objective - mean.objective
        if gain >= ENOUGH_GAIN * t * promised and (best is None or trial.objective >= best.objective):
            best = trial
            if t == 1.0 or abs(slope) <= FLAT_ENOUGH * promised:
                return best
        if slope > 0.0 and trial.objective > -np.inf:
            low = t
        else:
            high = t
        if high - low <= 1e-3 * high:
            break
        t = 2.0 * t if high == np.inf else 0.5 * (low + high) if low > 0.0 else 0.25 * high
        trial, slope = at(t)
    return best


class Measured(NamedTuple):
    """gamma, and what belongs to it: variances at the sites and the log determinant of A(gamma)."""

    gamma: Array
    variances: Variances
    log_det: LogDet

    @property
    def v(self) -> Array:
        return self.variances.value

    @property
    def exact(self) -> bool:
        return self.variances.exact and self.log_det.exact


def undetermined(proper: bool = False) -> InputError:
    """The error for posteriors that are improper, or that rounding makes so although the prior is ``proper``."""
    if proper:
        return InputError("the posterior precision must be positive definite to rounding",
                          "one whose scales differ by more than float64 can hold",
                          "Rescale the columns of B and X, or narrow the prior.")
    return InputError("a flat prior needs sites and data that determine all weights",
                      "a direction of weights that is undetermined",
                      "Give the weights a prior (cov), or add rows to the analysis operator that see every direction.")


class Engine:
    """Variances, determinants and solves for one latent; the preconditioner follows gamma."""

    def __init__(self, latent: Implicit, method: Any, accuracy: float, seed: int, vectors: int | None = None) -> None:
        self.latent, self.method, self.accuracy, self.seed, self._vectors = latent, method, accuracy, seed, vectors
        self._plan: FactorPlan | None = None
        if method in ("auto", "exact"):
            # The pattern of A does not depend on gamma, as long as no entry of gamma vanishes.
            plan = cheapest_plan(latent.precision(np.ones(latent.n_sites)), latent.B)
            self._plan = plan if method == "exact" or plan.seconds <= AFFORDABLE else None
        self._preconditioner: Preconditioner | None = None
        self._gamma: Array | None = None  # that the preconditioner was made for
        # While gamma is far from its fixed point, rough variances are good enough.
        self.rough, self.aim = self._plan is None, max(ROUGH, accuracy)

    @property
    def exact(self) -> bool:
        """Whether variances are computed rather than estimated."""
        return self._plan is not None

    def measure(self, gamma: Array, previous: Measured | None) -> Measured:
        """Variances and log determinant at ``gamma``; ``previous`` is what came before."""
        self._gamma = gamma
        A = self.latent.precision(gamma)
        if self._plan is not None:
            return self._factorised(A, gamma, self._plan)
        if self.rough and self.method in ("auto", "diagonal", "bracket"):
            found = self._surrogate(A, gamma)
            if found is not None:
                return found
        variances = estimate(A, self.latent.B, method=self.method, accuracy=self.aim, seed=self.seed,
                             previous=None if previous is None else previous.variances, vectors=self._vectors)
        self._preconditioner = variances.preconditioner or simplest_preconditioner(A)
        return Measured(gamma, variances, self._log_det(A, gamma, variances, previous))

    def _surrogate(self, A: NormalMatrix, gamma: Array) -> Measured | None:
        """From a few Lanczos steps and a diagonal: good to some percent, for a start; None without the entries of B."""
        M = ScaledLanczos(A.coarse(), min(RANK, A.size), self.seed).surrogate()
        v = M.known_variances(self.latent.B.coarse())
        if v is None:
            return None
        self._preconditioner = M
        error = ROUGH * v
        rough = Variances(v, error, np.maximum(v - 2 * error, 0.0), v + 2 * error, "surrogate", False, False, False, 0)
        return Measured(gamma, rough, LogDet(M.log_det, ROUGH * float(gamma @ v), False, 0))

    def check_determined(self, gamma: Array) -> None:
        """An error where nothing determines a direction of weights: the solution of a random system runs away there."""
        if self.latent.gaussian.proper:
            return
        A = self.latent.precision(gamma)
        rhs = np.random.default_rng(self.seed).standard_normal(A.size)
        try:
            x = solve(A, rhs, preconditioner=self._preconditioner, tol=CHECK_TOLERANCE, max_iter=MOST_CHECKS).x
            scale = A.diagonal()
            usual = scale if scale is not None else np.full(A.size, float(rhs @ A.times(rhs)) / A.size)
            determined = float(x @ A.times(x)) >= RUNAWAY * float(x**2 @ usual)
        except NotPositiveDefiniteError:
            determined = False
        if not determined:
            raise undetermined()

    def _factorised(self, A: NormalMatrix, gamma: Array, plan: FactorPlan) -> Measured:
        if plan.kind == "dual" and not A.positive:  # gamma of both signs has no dual form
            plan = FactorPlan("primal", plan.seconds, plan.bytes)
        factor = factorise(A, plan)
        self._preconditioner = factor
        B = self.latent.B
        parts = B.parts if isinstance(B, StackedOperator) else (B,)
        v = np.maximum(np.concatenate([factor.variances(part) for part in parts]), 0.0)
        return Measured(gamma, Variances.known(v), LogDet(factor.log_det, 0.0, True, 0))

    def _log_det(self, A: NormalMatrix, gamma: Array, variances: Variances, previous: Measured | None) -> LogDet:
        """What came with the variances; else estimated, and carried along while gamma hardly changes.

        log det A is concave in gamma with derivative v, so it changes by something between v_new'd and v_old'd.
        """
        if variances.log_det is not None:
            return variances.log_det
        if previous is not None:
            change = gamma - previous.gamma
            old, new = float(previous.v @ change), float(variances.value @ change)
            if abs(old - new) <= previous.log_det.error:
                error = float(np.hypot(previous.log_det.error, 0.5 * (old - new)))
                return LogDet(previous.log_det.value + 0.5 * (old + new), error, False, previous.log_det.n_products)
        return log_det(A, seed=self.seed)

    def solve(self, weights: Array, rhs: Array, tol: float) -> KrylovSolution:
        """A(weights)^-1 rhs to a relative residual of ``tol``."""
        A = self.latent.precision(weights)
        if tol >= SINGLE and not self.exact:  # a direction, which a line search judges: seven digits are plenty
            A = A.coarse()
        try:
            return solve(A, rhs, preconditioner=self._suited(weights), tol=tol)
        except NotPositiveDefiniteError:
            if not A.positive:
                raise
            return solve(A, rhs, tol=tol)  # rounding has spoilt the preconditioner, not A: its diagonal will do

    def _suited(self, weights: Array) -> Preconditioner | None:
        """The preconditioner at hand; None (the diagonal) where the weights are far from the gamma it was made for."""
        if self._gamma is None or self.exact:
            return self._preconditioner
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            apart = float(np.median(np.abs(np.log(weights / self._gamma))))
        return self._preconditioner if apart < FAR else None
