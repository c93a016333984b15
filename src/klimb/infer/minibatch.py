"""Natural gradients batch by batch, with the sites of every datum remembered.

The natural parameters of q are sums over data: P = I + sum_i gamma_i x_i x_i' and s = sum_i slope_i x_i in whitened
coordinates. A visit to a batch looks at its marginals under the present q, asks the oracle what its sites should be,
and replaces their old share of both sums by the new one. Nothing is estimated from a sample, so there is no noise to
average out and no learning rate: the step is 1.

Why that is stable. Let e_b be the error of batch b's share near the optimum. A visit maps it to e_b <- H_b sum_c e_c,
where sum_b H_b = H is the derivative of the full-data natural step; it acts only through the change of gamma with m
and v, since the Newton part of the mean is exact. With kappa = sum_b |H_b| and the norm |e| = max_b |e_b| / |H_b|, a
pass in any order contracts by kappa: |e_b| <= |H_b| sum_c |e_c| <= |H_b| kappa |e|. Far from the optimum a step is
judged by the bound in which all other sites count as the Gaussians they presently are, and is halved until that does
not fall.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from klimb.errors import InputError, NotPositiveDefiniteError, require
from klimb.infer.problem import ROUNDING, Problem, State
from klimb.infer.result import History, Iteration, Result, Status
from klimb.latents.base import Latent, as_latent
from klimb.linalg.matrix import DenseDesign, DesignMatrix
from klimb.numerics.arrays import Array, Index
from klimb.numerics.dense import cholesky, log_det_from_cholesky, threads_for, triangular_inverse
from klimb.rows.kernel_rows import KernelRows, shuffled_batches
from klimb.sites.base import Expectation, Site

SMALLEST_BATCH, BATCH_PER_WEIGHT = 1000, 4  # a batch must be worth the factorisation that follows it
NEAR = 0.1  # stationarity of a batch from which its full step is taken without asking the bound
FIRST_STEPS = 4  # steps on a batch that is seen for the first time
SMALLEST_STEP = 2.0**-10
STRICTER = 0.1  # what the passes aim at, relative to tol, when a check of the whole was not content


@dataclass(frozen=True, eq=False)
class FactorisedGaussian:
    """q(u) = N(P^-1 s, P^-1), factorised."""

    precision: Array
    shift: Array
    root: Array  # upper triangular, root root' = P^-1
    mean: Array
    logdet: float

    @classmethod
    def of(cls, precision: Array, shift: Array) -> Self:
        """Factorise; raises `NotPositiveDefiniteError` where q would be improper."""
        lower = cholesky(np.array(precision, order="F"))
        logdet = log_det_from_cholesky(lower)
        root = triangular_inverse(lower).T
        return cls(precision, shift, root, root @ (root.T @ shift), logdet)

    def divergence(self) -> float:
        """KL(q || N(0, I))."""
        trace = float(np.einsum("ij,ij->", self.root, self.root))
        return 0.5 * (float(self.mean @ self.mean) + trace - len(self.mean) + self.logdet)


class Batch(NamedTuple):
    """Whitened rows x_i with all that belongs to them: f_i ~ N(mean_i + h_i, slack_i), h_i = x_i'u."""

    problem: Problem  # counts factorisations and oracle calls
    rows: Array
    site: Site
    y: Array
    mean: Array
    slack: Array


class BatchView(NamedTuple):
    """A batch under a q to which it contributes the sites exp(slope h - gamma h^2 / 2)."""

    q: FactorisedGaussian
    slope: Array
    gamma: Array
    h: Array
    v: Array
    expectation: Expectation
    objective: float  # the bound where all other sites are Gaussian, up to a constant
    noise: float

    @property
    def stationarity(self) -> float:
        """How far the sites are from what the oracle says, as in the loop: max(sqrt(v) |a + alpha|, v |d gamma|)."""
        e = self.expectation
        residual = np.sqrt(self.v) * np.abs(self.slope - self.gamma * self.h + e.alpha)
        return float(max(residual.max(), (self.v * np.abs(self.gamma - e.gamma)).max()))


def _look(batch: Batch, q: FactorisedGaussian, slope: Array, gamma: Array) -> BatchView:
    norms, h = DenseDesign(batch.rows).row_norms_squared(q.root, upper=True, times=q.mean)
    v = norms + batch.slack
    batch.problem.n_oracle += 1
    e = batch.site.oracle(batch.y, batch.mean + h, v)
    terms = (float(e.value.sum()), 0.5 * float(q.shift @ q.mean), -float(slope @ h), 0.5 * float(gamma @ (h * h)),
             0.5 * float(gamma @ norms), -0.5 * q.logdet)
    finite = all(np.isfinite(part).all() for part in (terms, e.alpha, e.gamma))
    noise = ROUNDING * sum(abs(term) for term in terms) if finite else 0.0
    return BatchView(q, slope, gamma, h, v, e, sum(terms) if finite else -np.inf, noise)


def _replaced(batch: Batch, view: BatchView, slope: Array, gamma: Array) -> FactorisedGaussian:
    """q with the share of this batch replaced: the change of both sums is exact."""
    rows = batch.rows
    batch.problem.n_factor += 1
    precision = view.q.precision + rows.T @ (rows * (gamma - view.gamma)[:, None])
    return FactorisedGaussian.of(precision, view.q.shift + rows.T @ (slope - view.slope))


def _step(batch: Batch, view: BatchView) -> tuple[BatchView | None, float]:
    """The natural step on one batch, halved until the judge accepts it; None where no step is accepted."""
    e = view.expectation
    targets = [e.gamma] if e.gamma.min() >= 0 else [e.gamma, np.maximum(e.gamma, 0.0)]
    for target in targets:
        wanted, step = target * view.h - e.alpha, 1.0
        while step >= SMALLEST_STEP:
            slope = view.slope + step * (wanted - view.slope)
            gamma = view.gamma + step * (target - view.gamma)
            try:
                found = _look(batch, _replaced(batch, view, slope, gamma), slope, gamma)
                if found.objective >= view.objective - view.noise:
                    return found, step
            except NotPositiveDefiniteError:
                pass
            step *= 0.5
    return None, 0.0


def _visit(batch: Batch, view: BatchView) -> tuple[FactorisedGaussian, Array, Array, float]:
    """The q after a visit to a batch seen before, its new sites, and the length of the step."""
    e = view.expectation
    if view.stationarity <= NEAR:
        slope = e.gamma * view.h - e.alpha
        try:
            return _replaced(batch, view, slope, e.gamma), slope, e.gamma, 1.0
        except NotPositiveDefiniteError:
            pass
    found, step = _step(batch, view)
    kept = view if found is None else found
    return kept.q, kept.slope, kept.gamma, step


def _first_visit(batch: Batch, view: BatchView) -> tuple[BatchView, float]:
    """A few steps, from the sites that match each datum or from none, whichever is the better place."""
    slope, gamma = batch.site.start(batch.y)
    slope = slope - gamma * batch.mean
    best = view
    try:
        started = _look(batch, _replaced(batch, view, slope, gamma), slope, gamma)
        best = started if started.objective > view.objective else view
    except NotPositiveDefiniteError:
        pass
    shortest = 1.0
    for _ in range(FIRST_STEPS):
        if best.stationarity <= NEAR:
            break
        found, step = _step(batch, best)
        if found is None:
            break
        best, shortest = found, min(shortest, step)
    return best, shortest


class _Passes:
    """The sites of every datum, the sums they make, and one pass after the other over the batches."""

    def __init__(self, problem: Problem, design: DesignMatrix, size: int, seed: int) -> None:
        latent = problem.latent
        self._problem, self._design, self._size, self._seed = problem, design, size, seed
        n = latent.n_sites
        self.slope, self.gamma, self._values = np.zeros(n), np.zeros(n), np.zeros(n)
        self._seen = np.zeros(n, dtype=bool)
        self._mean, self._slack = np.asarray(latent.mean), np.asarray(latent.slack)
        identity = np.eye(design.shape[1])
        self.q = FactorisedGaussian.of(identity, np.zeros(len(identity)))

    def run(self) -> tuple[float, float, float]:
        """One pass: an estimate of the bound, the worst stationarity on the way, the shortest step."""
        worst, shortest = 0.0, 1.0
        problem = self._problem
        for index, rows in _batches(self._design, self._size, self._seed):
            batch = Batch(problem, rows, problem.site.rows(index), problem.y[index], self._mean[index],
                          self._slack[index])
            view = _look(batch, self.q, self.slope[index], self.gamma[index])
            worst = max(worst, view.stationarity)
            if self._seen[index[0]]:
                self.q, self.slope[index], self.gamma[index], step = _visit(batch, view)
                self._values[index] = view.expectation.value
            else:
                found, step = _first_visit(batch, view)
                self.q, self.slope[index], self.gamma[index] = found.q, found.slope, found.gamma
                self._values[index], self._seen[index] = found.expectation.value, True
            shortest = min(shortest, step)
        return float(self._values.sum()) + problem.constant - self.q.divergence(), worst, shortest

    def state(self) -> State:
        """The whole at the present sites, in three passes over the rows."""
        return self._problem.at_sites(self.slope + self.gamma * self._mean, self.gamma)


def minibatch(latent: Latent, site: Site, y: Any, *, batch: int | None = None, tol: float = 1e-4, max_passes: int = 50,
              seed: int = 0) -> Result:
    """Fit by natural gradients on batches of data: for rows that do not fit in memory, or are expensive to read.

    Every datum keeps its site (two numbers), so that each batch's contribution can be replaced exactly; q improves with
    each batch, and the first pass does the work of several full-data steps. There is nothing to tune, and the result is
    that of `klimb.infer`.

    Parameters
    ----------
    latent : Inducing or Weights
        Rows may be computed on demand: ``klimb.rows.kernel_rows.inducing_latent(..., stored=False)``.
    site, y
        As in `klimb.infer`.
    batch : int
        Data per batch; four times the number of weights, but at least 1000, if it is left out.
    tol : float
        Stop when the norm of `klimb.infer` and its estimate of the remaining gain are at most this, over all data.
    max_passes : int
        Most passes over the data.
    seed : int
        Fixes the order of the rows of an array (a stream keeps its own order).

    Returns
    -------
    Result
        The rows of the history are passes; their ``bound`` takes the expected log likelihood of each batch from when it
        was visited, and only the last row, the check of the whole, is a bound.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> from klimb.infer.minibatch import minibatch
    >>> from klimb.rows.kernel_rows import inducing_latent
    >>> x = np.linspace(0.0, 6.0, 3000)
    >>> latent = inducing_latent(klimb.kernels.RBF(), x, np.linspace(0, 6, 12))
    >>> site, y = klimb.sites.Logistic(), np.sin(x) > 0
    >>> found = minibatch(latent, site, y, batch=300)
    >>> found.status.name, bool(abs(found.bound - klimb.infer(latent, site, y).bound) < 1e-4)
    ('CONVERGED', True)
    """
    expected = "minibatches need a latent with few weights"
    advice = "Use Weights, Inducing or klimb.rows.kernel_rows.inducing_latent."
    design = as_latent(latent, expected, advice).whitened()
    if design is None or latent.n_outputs > 1:
        raise InputError(expected, type(latent).__name__, advice)
    require(batch is None or batch >= 1, "batch must be at least 1", batch, "Leave it out for a good size.")
    require(tol > 0 and max_passes >= 1, "tol must be positive and max_passes at least 1", f"{tol}, {max_passes}",
            "The defaults are 1e-4 and 50.")
    problem = Problem(latent, site, y)
    size = batch or max(SMALLEST_BATCH, BATCH_PER_WEIGHT * design.shape[1])
    with threads_for(design.shape[1]):
        state, status, rows = _passed(problem, _Passes(problem, design, size, seed), tol, max_passes)
    return Result(problem.posterior(state), state.bound, status, History(rows), problem=problem)


def _passed(problem: Problem, passes: _Passes, tol: float, most: int) -> tuple[State, Status, list[Iteration]]:
    begin, history, aim, counted = time.perf_counter(), list[Iteration](), tol, (0, 0)

    def note(bound: float, stationarity: float, step: float, rule: str) -> None:
        nonlocal counted
        history.append(Iteration(len(history), bound, stationarity, step, rule, time.perf_counter() - begin,
                                 problem.n_factor - counted[0], problem.n_oracle - counted[1]))
        counted = (problem.n_factor, problem.n_oracle)

    for number in range(1, most + 1):
        bound, worst, step = passes.run()
        note(bound, worst, step, "pass")
        if worst > aim and number < most:
            continue
        state = passes.state()
        note(state.bound, state.stationarity, 1.0, "check")
        if state.stationarity <= tol and state.remaining <= tol:
            return state, Status.CONVERGED, history
        aim *= STRICTER
    return state, Status.MAX_ITER, history


def _batches(design: DesignMatrix, size: int, seed: int) -> Iterator[tuple[Index, Array]]:
    """Every row once, about ``size`` at a time; rows that are computed when asked for know their own order."""
    if isinstance(design, KernelRows):
        yield from design.batches(size, seed)
        return
    for index in shuffled_batches(design.shape[0], size, seed):
        yield index, design.subset(index).dense()
