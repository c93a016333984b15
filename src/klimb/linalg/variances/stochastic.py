"""Variances as those of a surrogate M, exactly, plus an estimate of the small rest.

For noise eta with independent entries +-1, z = F eta (M = F F'), y = M^-1 z and x = A^-1 z:

    E (b'y)(b'x) = b'A^-1 b        E (b'y)^2 = b'M^-1 b, which is known

so v_i = f v_i^M + E (b'y)(b'x - f b'y) for any f, and the closer f M^-1 is to A^-1 the less there is left to average:
Hutchinson's estimator of a diagonal with the Krylov part taken out (Hutch++, XDiag), for rows of B instead of unit
vectors. Ratios are pooled over the rows (Fay and Herriot, JASA 1979): ratio_i = f_i + tau_i xi_i with f_i a quadratic
function of a few features of the row, and a row's own estimate counts by tau_i^2 / (tau_i^2 + noise^2).

A system A x = F eta with preconditioner M = F F' walks through the Lanczos process of C = F^-1 A F^-T from eta. Gauss's
rule of its tridiagonal matrix gives eta' log(C) eta, whose mean is log det(A) - log det(M). The same matrix has eta'C
eta in its corner, whose mean tr(M^-1 A) is known exactly; log(C) is C - I to first order, so taking that off leaves
noise of second order. Why, and how accurate it is: docs/variances.md.
"""

from typing import NamedTuple

import numpy as np

from klimb.linalg.krylov import SurrogateMatrix, solve
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators.base import Operator, column_blocks
from klimb.numerics.arrays import Array, Index

MEDIAN_OF_NORMAL = 0.6745  # |x| is below this half of the time, x standard normal
FITTED_FROM = 16  # probes from which the share of the control that is taken off is fitted rather than one
ROWS_PER_FEATURE = 20  # fewer rows than this, and only the mean ratio is pooled
EXTREME = 4.0  # standard deviations at which a feature is cut: one odd row shall not steer the others
RIDGE = 1e-8
SMALLEST_TOTAL = 1e-12  # of the largest variance, so that no row outweighs all others
FITS = 6  # steps of the fit: it is nearly linear
LARGEST_LOG = 4.0  # of a fitted ratio over their mean
FARTHEST = 2.0  # standard errors by which a row may be moved towards the others
SMALLEST_SHARE = 0.1  # of what is expected that a prediction (or a spread) may shrink to
SINGLE = 1e-4  # tolerance of the systems from which products in single precision will do
SHARE_OF_SOLVES, COARSEST = 0.5, 0.01  # of the accuracy that the systems may use up, and their coarsest tolerance
WATCHED_ROWS = 8192  # whose probes are kept one by one, to see how well the spread around the fit is known
SOLVE_SHARE = 0.5  # of the relative residual of the systems, by which they may shift all values
NOISE_PRIOR = 8.0  # probes' worth of the common noise level that a row's own is mixed with


class Quadrature:
    """Collects eta' log(C) eta and eta'C eta - D, one of each per probe."""

    def __init__(self, A: NormalMatrix, M: SurrogateMatrix, known: tuple[Operator, Array] | None) -> None:
        self._size, self._M = A.size, M
        self._trace = _trace(A, M, known)
        self._logs: list[float] = []
        self._firsts: list[float] = []
        self._residuals: list[float] = []

    def add(self, steps: Array, ratios: Array, residual: Array) -> None:
        """The coefficients and relative residuals of a block of solves, as `krylov.solve` records them."""
        self._residuals.extend(residual.tolist())
        for step, ratio in zip(steps.T, ratios.T, strict=True):
            n = int(np.isfinite(step).sum())
            if n == 0:
                continue
            main = 1.0 / step[:n]
            main[1:] += ratio[: n - 1] / step[: n - 1]
            side = np.sqrt(ratio[: n - 1]) / step[: n - 1]
            values, vectors = np.linalg.eigh(np.diag(main) + np.diag(side, 1) + np.diag(side, -1))
            self._logs.append(self._size * float(vectors[0] ** 2 @ np.log(np.maximum(values, 1e-300))))
            self._firsts.append(self._size * (float(main[0]) - 1.0))

    def result(self) -> tuple[float, float]:
        """log det(A) and its standard error; Gauss's rule is off by about the square of a system's residual."""
        logs, firsts = np.array(self._logs), np.array(self._firsts)
        n = len(logs)
        used = 1
        rest, known = logs, 0.0
        if self._trace is not None:
            share = 1.0
            spread = float(firsts.var())
            if n >= FITTED_FROM and spread > 0.0:
                share, used = float(np.mean((logs - logs.mean()) * (firsts - firsts.mean()))) / spread, 2
            rest, known = logs - share * firsts, share * (self._trace - self._size)
        error = float(np.sqrt(((rest - rest.mean()) ** 2).sum() / max(n - used, 1) / n)) if n > used else np.inf
        rule = 0.5 * self._size * float(np.mean(np.square(self._residuals)))
        return self._M.log_det + known + float(rest.mean()), float(np.hypot(error, rule))


def _trace(A: NormalMatrix, M: SurrogateMatrix, known: tuple[Operator, Array] | None) -> float | None:
    """tr(M^-1 A) = sum shift diag(M^-1) + sum_i gamma_i b_i'M^-1 b_i, or None where entries are not known."""
    total = 0.0
    for operator, weights in A.parts:
        variances = known[1] if known is not None and operator is known[0] else M.known_variances(operator)
        if variances is None:
            return None
        total += float(weights @ variances)
    return total + (float(A.shift @ M.inverse_diagonal) if A.shift.any() else 0.0)


class Pooled(NamedTuple):
    """Ratios and the standard error of each."""

    ratio: Array
    error: Array
    spread: Array  # tau, what the features do not explain
    fit_error: Array  # the standard error of f


def standardised(features: list[Array]) -> Array:
    """Columns: a constant, the features that vary (centred, of unit scale, cut at `EXTREME`) and their products."""
    rows = len(features[0])
    single = []
    for feature in features:
        middle, scale = float(np.median(feature)), float(np.std(feature))
        if np.isfinite(scale) and scale > 1e-9 * max(abs(middle), 1e-300):
            single.append(np.clip((feature - middle) / scale, -EXTREME, EXTREME))
    columns = [np.ones(rows)]
    if rows >= ROWS_PER_FEATURE * (len(single) + 1):
        columns += single
    if rows >= ROWS_PER_FEATURE * (len(single) + 1) ** 2:
        columns += [single[i] * single[j] for i in range(len(single)) for j in range(i + 1)]
    return np.stack(columns, axis=1)


def fitted(F: Array, ratio: Array, noise: Array) -> tuple[Array, Array]:
    """(f, tau): f = exp(F beta) by weighted least squares (Gauss and Newton), the weights and tau found in turn."""
    level = max(float(np.mean(ratio)), SMALLEST_SHARE)
    beta = np.zeros(F.shape[1])
    beta[0] = np.log(level)
    f, spread = np.full(len(ratio), level), np.zeros_like(ratio)
    for _ in range(FITS):
        weight = precision_weights(spread, noise)
        slope = F * f[:, None]
        gram = (slope * weight[:, None]).T @ slope
        gram.flat[:: len(gram) + 1] *= 1.0 + RIDGE
        beta = beta + np.linalg.solve(gram, slope.T @ (weight * (ratio - f)))
        f = np.exp(np.clip(F @ beta, np.log(level) - LARGEST_LOG, np.log(level) + LARGEST_LOG))
        spread = _spread(F, (ratio - f) ** 2 - noise**2, precision_weights(spread, noise) ** 2)
    return f, spread


def precision_weights(spread: Array, noise: Array) -> Array:
    """1 / (tau^2 + noise^2), up to a factor."""
    total = spread**2 + noise**2
    top = float(total.max(initial=0.0))
    return np.ones_like(total) if top == 0.0 else np.asarray(top / np.maximum(total, SMALLEST_TOTAL * top))


def _spread(F: Array, excess: Array, weight: Array) -> Array:
    """tau of each row from what squared residuals exceed the noise by: tau^2 is linear in the features as well."""
    overall = max(float(np.average(excess, weights=weight)), 0.0)
    gram = (F * weight[:, None]).T @ F
    gram.flat[:: len(gram) + 1] *= 1.0 + RIDGE
    spread2 = F @ np.linalg.solve(gram, F.T @ (weight * excess))
    return np.asarray(np.sqrt(np.maximum(spread2, SMALLEST_SHARE * overall)))


def pooled(f: Array, spread: Array, ratio: Array, noise: Array, fit_error: Array) -> Pooled:
    """The best prediction of each ratio from ``f`` and from its own estimate; always positive.

    No row moves by more than `FARTHEST` of its noise (Efron and Morris 1972): odd ones keep their own.
    """
    total = spread**2 + noise**2
    share = np.divide(spread**2, total, out=np.ones_like(total), where=total > 0.0)
    best = f + share * (ratio - f)
    limited = np.clip(best, ratio - FARTHEST * noise, ratio + FARTHEST * noise)
    error = np.where(limited == best, pooled_error(share, noise, fit_error), noise)
    return Pooled(np.maximum(limited, SMALLEST_SHARE * f), error, spread, fit_error)


def pooled_error(share: Array, noise: Array, fit_error: Array) -> Array:
    """Standard error of f + share (own - f): what is unknown of the row, and of the fit."""
    return np.asarray(np.sqrt(share * noise**2 + ((1.0 - share) * fit_error) ** 2))


def fit_errors(F: Array, f: Array, weight: Array, watched: Index, probes: Array) -> Array:
    """Standard errors of f = exp(F beta), from what each probe alone would make of beta.

    ``probes`` holds residuals of the ``watched`` rows, one column per probe, which rows that are alike may share.
    """
    n = probes.shape[1]
    slope = F[watched] * f[watched, None]
    gram = (slope * weight[watched, None]).T @ slope
    gram.flat[:: len(gram) + 1] *= 1.0 + RIDGE
    centred = probes - probes.mean(axis=1, keepdims=True)
    moves = np.linalg.solve(gram, slope.T @ (weight[watched, None] * centred))
    covariance = moves @ moves.T / (n * max(n - 1, 1))
    return np.asarray(f * np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", F, covariance, F, optimize=True), 0.0)))


class Probes:
    """Probes of A against its surrogate M, added until they are enough. Without B, for the log-determinant alone."""

    def __init__(self, A: NormalMatrix, B: Operator | None, M: SurrogateMatrix, *, accuracy: float, seed: int) -> None:
        self.A, self.B, self.M = A, B, M
        self._rng = np.random.default_rng([seed, 1])
        self._tol = min(SHARE_OF_SOLVES * accuracy, COARSEST)
        self._system = A.coarse() if self._tol >= SINGLE else A
        self._rows = None if B is None else ProbedRows(A, B, M)
        self.quadrature = Quadrature(A, self.M, None if self._rows is None else (self._rows.B, self._rows.surrogate))
        self.converged, self.n, self._squared_residuals = True, 0, 0.0

    def add(self, k: int, max_iter: int | None = None) -> None:
        """``k`` more probes, in blocks, with at most ``max_iter`` iterations each."""
        operators = [operator for operator in (*self.A.operators, self.B) if operator is not None]
        for block in column_blocks(k, max([self.A.size, *(operator.shape[0] for operator in operators)])):
            signs = self._rng.integers(0, 2, (self.A.size, block.stop - block.start))
            z = self.M.factor_times(2.0 * signs.astype(np.float64) - 1.0)
            solution = solve(self._system, z, preconditioner=self.M, tol=self._tol, max_iter=max_iter, record=True)
            self.converged &= solution.converged
            self._squared_residuals += float((solution.residual**2).sum())
            self.quadrature.add(solution.steps, solution.ratios, solution.residual)
            self.n += z.shape[1]
            if self._rows is not None:
                self._rows.add(self.M.solve(z), solution.x)

    @property
    def rows(self) -> "ProbedRows":
        """Those of B."""
        assert self._rows is not None
        return self._rows

    def variances(self) -> tuple[Array, Array]:
        """Values and standard errors, what the residuals of the systems may do included."""
        value, error = self.rows.result()
        error *= np.sqrt((self.n - 1) / max(self.n - 3, 1))  # few probes: the noise itself is known roughly
        return value, np.hypot(error, SOLVE_SHARE * np.sqrt(self._squared_residuals / self.n) * value)


class ProbedRows:
    """The rows of B: their variances under M, their features, and sums over the probes.

    Those of t = (b'y)(b'x), of w = (b'y)^2 and of their products are enough for mean and variance of t - f w, any f.
    """

    def __init__(self, A: NormalMatrix, B: Operator, M: SurrogateMatrix) -> None:
        known, base = M.known_variances(B), B.row_norms_squared(1.0 / M.diagonal)
        assert known is not None, "probes need the entries of B"
        assert base is not None
        self.B, self.surrogate = B, known
        self.n = 0
        self._t, self._w, self._tt, self._tw, self._ww = (np.zeros(B.shape[0]) for _ in range(5))
        self._live = np.flatnonzero(self.surrogate > 0.0)
        self._watched = np.linspace(0, len(self._live) - 1, min(len(self._live), WATCHED_ROWS)).astype(np.intp)
        self._latest: tuple[Pooled, Array] | None = None
        self._kept: list[tuple[Array, Array]] = []
        features = row_features(A, B, self.surrogate, base, self._live)
        self._features = standardised(features) if len(self._live) else np.empty((0, 1))

    def add(self, y: Array, x: Array) -> None:
        coarse = self.B.coarse()  # noise of a percent hides the seventh digit
        at_y, at_x = coarse.times(y), coarse.times(x)
        t, w = at_y * at_x, at_y * at_y
        self.n += t.shape[1]
        self._t += t.sum(axis=1)
        self._w += w.sum(axis=1)
        self._tt += np.einsum("ij,ij->i", t, t)
        self._tw += np.einsum("ij,ij->i", t, w)
        self._ww += np.einsum("ij,ij->i", w, w)
        self._latest = None
        rows = self._live[self._watched]
        self._kept.append((t[rows], w[rows]))

    def result(self) -> tuple[Array, Array]:
        value, error = np.zeros_like(self.surrogate), np.zeros_like(self.surrogate)
        if len(self._live):
            known, ratios = self.surrogate[self._live], self._ratios()[0]
            value[self._live], error[self._live] = ratios.ratio * known, ratios.error * known
        return value, error

    def one_probe_noise(self) -> float:
        """Median over the rows of the relative noise of a single probe."""
        if not len(self._live):
            return 0.0
        ratios, noise = self._ratios()
        return float(np.median(noise / ratios.ratio) * np.sqrt(self.n))

    def expected_error(self, n: int) -> float:
        """Median relative error to be expected of ``n`` probes, from those at hand."""
        if not len(self._live):
            return 0.0
        ratios, noise = self._ratios()
        fewer = np.sqrt(self.n / n)
        total = np.maximum(ratios.spread**2 + (noise * fewer) ** 2, 1e-300)
        error = pooled_error(ratios.spread**2 / total, noise * fewer, ratios.fit_error * fewer)
        return MEDIAN_OF_NORMAL * float(np.median(error / ratios.ratio))

    def _ratios(self) -> tuple[Pooled, Array]:
        """Pooled ratios and the noise of the direct ones; kept until there are more probes."""
        if self._latest is None:
            self._latest = self._pool()
        return self._latest

    def _pool(self) -> tuple[Pooled, Array]:
        weight = max(float(self._w[self._live].sum()), 1e-300)
        ratio, noise = self._direct(np.full(len(self._live), float(self._t[self._live].sum()) / weight))
        f, _ = fitted(self._features, ratio, np.full_like(noise, float(np.sqrt(np.mean(noise**2)))))
        ratio, noise = self._direct(f)  # with the fit as control there is less noise
        f, spread = fitted(self._features, ratio, noise)
        t, w = (np.concatenate(blocks, axis=1) for blocks in zip(*self._kept, strict=True))
        probes = (t - f[self._watched, None] * w) / self.surrogate[self._live[self._watched], None]
        doubted: Array = np.sqrt(spread**2 + 2.0 * self._doubt(probes))  # as far as it may well be
        fit_error = fit_errors(self._features, f, precision_weights(doubted, noise), self._watched, probes)
        return pooled(f, doubted, ratio, noise, fit_error), noise

    def _doubt(self, e: Array) -> float:
        """Standard error of the mean of tau^2, by leaving out each probe in turn: rows share the probes."""
        n = e.shape[1]
        if n < 3:
            return float(np.mean(e**2))
        total, squares = e.sum(axis=1, keepdims=True), np.einsum("ij,ij->i", e, e)[:, None]
        without = ((total - e) ** 2 - (squares - e**2)).mean(axis=0) / ((n - 1) * (n - 2))
        return float(np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum()))

    def _direct(self, f: Array) -> tuple[Array, Array]:
        """Each row's own estimate of v_i / v_i^M with f as control, and its standard error."""
        whole = np.zeros_like(self.surrogate)
        whole[self._live] = f
        known, n = self.surrogate[self._live], self.n
        mean = (self._t - whole * self._w) / n  # of t - f w, and the variance of one probe's
        square = (self._tt - 2.0 * whole * self._tw + whole * whole * self._ww) / n
        variance = np.maximum(square - mean**2, 0.0) * n / max(n - 1, 1)
        own = variance[self._live] / known**2
        mixed = ((n - 1) * own + NOISE_PRIOR * float(np.mean(own))) / (n - 1 + NOISE_PRIOR)
        return f + mean[self._live] / known, np.sqrt(mixed / n)


def row_features(A: NormalMatrix, B: Operator, surrogate: Array, base: Array,
                 live: Index) -> list[Array]:
    """What may tell by how much the surrogate is off: a row's leverage, its share in the low rank, its shrinkage."""
    known = surrogate[live]
    features = [np.log(np.maximum(base[live], known) / known), np.log(known)]
    for operator, weights in A.parts:
        if operator is B:
            leverage = np.abs(weights[live] * known)
            features += [leverage / (1.0 + leverage), np.log1p(leverage)]
    if A.shift.min() > 0.0 and (prior := B.row_norms_squared(1.0 / A.shift)) is not None:
        features.append(known / prior[live])
    if (diagonal := A.diagonal()) is not None and (damped := B.row_norms_squared(A.shift / diagonal**2)) is not None:
        features.append(damped[live] / known)
    return features
