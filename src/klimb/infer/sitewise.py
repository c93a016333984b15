"""Rules that look at sites one by one: expectation propagation, and the coordinate ascent of [N] section 2.2."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from klimb.errors import NotPositiveDefiniteError, require
from klimb.infer.loop import Move, Moves, Step, run
from klimb.infer.natural import Natural
from klimb.infer.problem import Problem, State
from klimb.infer.result import Status
from klimb.numerics.arrays import Array
from klimb.sites.base import Expectation, Site

SMALLEST_DAMPING = 1e-3
NEARBY_TOL, NEARBY_ITERATIONS = 0.1, 50  # of the variational fit to start from
PATIENCE = 40  # sweeps without a better fit: what is left is rounding, or a cycle
GOOD_SHARE = 0.5  # of what a damped step promises, from which the next may be longer
ROUNDS, AGREED = 50, 1e-12  # most rounds of a site with its own marginal, and the relative change at which they end


class Sweep(NamedTuple):
    """One parallel pass over the sites: the state, and the sites that match the tilted moments."""

    state: State
    slope: Array
    gamma: Array


@dataclass(frozen=True)
class ExpectationPropagation(Step):
    """Moment matching against the cavities, all sites at once, damped where a full step does not bring them closer.

    ``cavity`` is the site whose oracle returns log Z, -d log Z/dm and -d^2 log Z/dm^2 for a cavity N(m, v).
    """

    cavity: Site
    damping: float = 1.0

    def moves(self, problem: Problem, notes: list[str]) -> Moves:
        # The best q in the sense of the bound is next to EP's, and safe to reach: from sites that match each datum
        # alone, parallel sweeps may wander for long where data contradict each other.
        start, *_ = run(problem, Natural(), NEARBY_TOL, NEARBY_ITERATIONS, None)
        sweep = self._sweep(problem, start, _slope(start))
        if sweep is None:
            return Status.IMPROPER
        slope, step = _slope(start), self.damping
        best, idle = sweep.state.stationarity, 0
        yield Move(sweep.state, "start")
        while idle < PATIENCE:
            new_slope = (1 - step) * slope + step * sweep.slope
            new_gamma = (1 - step) * sweep.state.gamma + step * sweep.gamma
            found = None
            with suppress(NotPositiveDefiniteError):
                found = self._sweep(problem, problem.at_sites(new_slope, new_gamma), new_slope)
            if found is None or found.state.stationarity > 2.0 * sweep.state.stationarity:
                step *= 0.5
                if step < SMALLEST_DAMPING:
                    return Status.STALLED
                continue
            left = found.state.stationarity / sweep.state.stationarity
            if left <= 1.0 - GOOD_SHARE * step:  # a damped step of t that does what it should leaves 1 - t
                step = min(self.damping, 1.5 * step)
            elif left > 1.0:
                step = max(0.5 * step, SMALLEST_DAMPING)
            sweep, slope = found, new_slope
            idle = 0 if sweep.state.stationarity < best else idle + 1
            best = min(best, sweep.state.stationarity)
            yield Move(sweep.state, "ep", step)
        return Status.STALLED

    def _sweep(self, problem: Problem, state: State, slope: Array) -> Sweep | None:
        """Cavities, tilted moments, matching sites, and the EP evidence of the present sites; None if improper."""
        latent, gamma = problem.latent, state.gamma
        spread = state.v - latent.slack
        with np.errstate(divide="ignore"):
            cavity_v = 1.0 / (1.0 / spread - gamma)
        if not (np.isfinite(cavity_v) & (cavity_v >= 0)).all():
            return None
        cavity_m = state.m - cavity_v * state.a
        problem.n_oracle += 1
        tilted = self.cavity.oracle(problem.y, cavity_m, cavity_v + latent.slack)
        shrink = 1.0 - cavity_v * tilted.gamma  # tilted variance over cavity variance
        if not (np.isfinite(tilted.value) & (shrink > 0)).all():
            return None
        new_gamma = tilted.gamma / shrink
        mean = cavity_m - cavity_v * tilted.alpha
        new_slope = (tilted.gamma * cavity_m - tilted.alpha) / shrink
        known = np.where(spread > 0, spread, 1.0)  # where f is known there is nothing to match
        misfit = np.maximum(np.abs(mean - state.m) / np.sqrt(known), np.abs(cavity_v * shrink - spread) / known)
        # log Z_EP = sum_i [log Z_i - log int site_i N(f; cavity_i)] + log int prod_i site_i N(f; prior),
        # with site_i = exp(slope_i f - gamma_i f^2/2). The last integral is its integrand at m over a determinant.
        own = 1.0 + gamma * cavity_v
        normaliser = -0.5 * np.log(own) + (slope * (slope * cavity_v + 2 * cavity_m) - gamma * cavity_m**2) / (2 * own)
        gaussian = slope @ state.m - 0.5 * (gamma @ state.m**2) - 0.5 * (state.a @ (state.m - latent.mean))
        evidence = float((tilted.value - normaliser).sum() + gaussian) - 0.5 * state.factor.logdet + problem.constant
        matched = Expectation(tilted.value, new_gamma * state.m - new_slope, new_gamma)
        norm = float(misfit.max())
        found = replace(state, bound=evidence, objective=evidence, stationarity=norm, expectation=matched)
        return Sweep(found, new_slope, new_gamma)


def _slope(state: State) -> Array:
    return np.asarray(state.a + state.gamma * state.m)


@dataclass(frozen=True)
class CoordinateAscent(Step):
    """Every site in turn at its own optimum, the others held; a rank-one update each, a sweep an iteration.

    A sweep over N sites of a model with R weights takes N R^2 operations in N steps that wait for each other, where one
    natural step takes them in one matrix product. It is here to compare with. ``sites.SuperGaussian(site)`` makes it
    the algorithm of [N], for the local bound.

    >>> import numpy as np, klimb
    >>> X = np.random.default_rng(0).standard_normal((30, 2))
    >>> problem = klimb.latents.Weights(X), klimb.sites.SuperGaussian(klimb.sites.Logistic()), X[:, 0] > 0
    >>> one, all_ = (klimb.infer(*problem, step=step) for step in (klimb.steps.CoordinateAscent(), None))
    >>> one.converged, bool(abs(one.bound - all_.bound) < 1e-8)
    (True, True)
    """

    def moves(self, problem: Problem, notes: list[str]) -> Moves:
        latent, Z = problem.latent, problem.latent.design()
        require(latent.n_outputs <= 1, "coordinate ascent needs one latent value per datum", latent.n_outputs,
                "Use the default step.")
        start = problem.site.start(problem.y)
        slope, gamma = np.array(start[0]), np.maximum(start[1], 0.0)
        each = [problem.site.rows(np.array([i])) for i in range(len(problem.y))]
        state = problem.at_sites(slope, gamma)
        yield Move(state, "start")
        while True:
            V = np.linalg.inv(np.eye(Z.shape[1]) + Z.T @ (gamma[:, None] * Z))
            u = V @ (Z.T @ (slope - gamma * latent.mean))
            for i, z in enumerate(Z):
                Vz = V @ z
                spread, h = float(z @ Vz), float(z @ u)
                own = _own_optimum(problem, each[i], i, h, spread, slope[i], gamma[i])
                d_slope, d_gamma = own[0] - slope[i], own[1] - gamma[i]
                slope[i], gamma[i] = own
                V -= np.outer(Vz, (d_gamma / (1.0 + d_gamma * spread)) * Vz)
                u += V @ z * (d_slope - d_gamma * (latent.mean[i] + h))
            state = problem.at_sites(slope, gamma)
            yield Move(state, "sweep")


def _own_optimum(problem: Problem, site: Site, i: int, h: float, spread: float, slope: float,
                 gamma: float) -> tuple[float, float]:
    """(slope, gamma) of site ``i`` that the oracle confirms, all others held: rounds with its own marginal."""
    mean, slack, y = float(problem.latent.mean[i]), float(problem.latent.slack[i]), problem.y[i:i + 1]
    rest = 1.0 / spread - gamma  # precision and shift of h without this site
    pull = h / spread - (slope - gamma * mean)
    for _ in range(ROUNDS):
        v = 1.0 / (rest + gamma)
        m = mean + v * (pull + slope - gamma * mean)
        e = site.oracle(y, np.array([m]), np.array([v + slack]))
        before, gamma = gamma, float(e.gamma[0])
        slope = gamma * m - float(e.alpha[0])
        if abs(gamma - before) <= AGREED * max(abs(gamma), abs(before)):
            break
    problem.n_oracle += 1
    return slope, gamma
