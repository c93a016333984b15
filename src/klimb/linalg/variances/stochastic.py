"""Variances as those of a surrogate M, exactly, plus an estimate of the small rest.

For noise eta with independent entries +-1, z = F eta (M = F F'), y = M^-1 z and x = A^-1 z:

    E (b'y)(b'x) = b'A^-1 b        E (b'y)^2 = b'M^-1 b, which is known

so v_i = f v_i^M + E (b'y)(b'x - f b'y) for any f, and the closer f M^-1 is to A^-1 the less there is left to average:
Hutchinson's estimator of a diagonal with the Krylov part taken out (Hutch++, XDiag), for rows of B instead of unit
vectors. M is a few Lanczos steps plus a diagonal, and at the same time the preconditioner of the systems A x = z, whose
coefficients give log det(M^-1 A) for nothing. What remains is pooled over the rows (`pooling`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np
import numpy.typing as npt

from klimb.linalg.krylov import SurrogateMatrix, solve
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators.base import Operator, column_blocks
from klimb.linalg.variances.pooling import (
    Pooled,
    fit_errors,
    fitted,
    pooled,
    pooled_error,
    precision_weights,
    standardised,
)
from klimb.linalg.variances.quadrature import Quadrature
from klimb.linalg.variances.result import MEDIAN_OF_NORMAL
from klimb.numerics.arrays import Array

SINGLE = 1e-4  # tolerance of the systems from which products in single precision will do
SHARE_OF_SOLVES, COARSEST = 0.5, 0.01  # of the accuracy that the systems may use up, and their coarsest tolerance
WATCHED_ROWS = 8192  # whose probes are kept one by one, to see how well the spread around the fit is known
SOLVE_SHARE = 0.5  # of the relative residual of the systems, by which they may shift all values
NOISE_PRIOR = 8.0  # probes' worth of the common noise level that a row's own is mixed with


@final
@dataclass(eq=False)
class RowSums:
    """Sums over probes of t = (b'y)(b'x) and w = (b'y)^2 per row: enough for mean and variance of t - f w, any f."""

    rows: int
    n: int = 0
    t: Array = field(init=False)
    w: Array = field(init=False)
    tt: Array = field(init=False)
    tw: Array = field(init=False)
    ww: Array = field(init=False)

    def __post_init__(self) -> None:
        self.t, self.w, self.tt, self.tw, self.ww = (np.zeros(self.rows) for _ in range(5))

    def add(self, at_y: Array, at_x: Array) -> None:
        """B y and B x for a block of probes."""
        t, w = at_y * at_x, at_y * at_y
        self.n += t.shape[1]
        self.t += t.sum(axis=1)
        self.w += w.sum(axis=1)
        self.tt += np.einsum("ij,ij->i", t, t)
        self.tw += np.einsum("ij,ij->i", t, w)
        self.ww += np.einsum("ij,ij->i", w, w)

    def beyond(self, f: Array) -> tuple[Array, Array]:
        """Mean of t - f w, and the variance of one probe's t - f w."""
        mean = (self.t - f * self.w) / self.n
        square = (self.tt - 2.0 * f * self.tw + f * f * self.ww) / self.n
        return mean, np.maximum(square - mean**2, 0.0) * self.n / max(self.n - 1, 1)


@final
class Probes:
    """Probes of A against its surrogate M, added until they are enough. Without B, for the log-determinant alone."""

    def __init__(self, A: NormalMatrix, B: Operator | None, M: SurrogateMatrix, *, accuracy: float, seed: int) -> None:
        self.A, self.B, self.M = A, B, M
        self._rng = np.random.default_rng([seed, 1])
        self._tol = min(SHARE_OF_SOLVES * accuracy, COARSEST)
        self._system = A.coarse() if self._tol >= SINGLE else A
        self._rows = None if B is None else _Rows(A, B, M)
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

    def variances(self) -> tuple[Array, Array]:
        """Values and standard errors, what the residuals of the systems may do included."""
        assert self._rows is not None
        value, error = self._rows.result()
        error *= np.sqrt((self.n - 1) / max(self.n - 3, 1))  # few probes: the noise itself is known roughly
        return value, np.hypot(error, SOLVE_SHARE * np.sqrt(self._squared_residuals / self.n) * value)

    def one_probe_noise(self) -> float:
        """Median over the rows of the relative noise of a single probe."""
        assert self._rows is not None
        return self._rows.one_probe_noise()

    def expected_error(self, n: int) -> float:
        """Median relative error to be expected of ``n`` probes, from those at hand."""
        assert self._rows is not None
        return self._rows.expected_error(n)


@final
class _Rows:
    """The rows of B: their variances under M, their features, and sums over the probes."""

    def __init__(self, A: NormalMatrix, B: Operator, M: SurrogateMatrix) -> None:
        known = M.variances(B)
        assert known is not None, "probes need the entries of B"
        self.B, (self.surrogate, base) = B, known
        self.sums = RowSums(B.shape[0])
        self._live = np.flatnonzero(self.surrogate > 0.0)
        self._watched = np.linspace(0, len(self._live) - 1, min(len(self._live), WATCHED_ROWS)).astype(np.intp)
        self._latest: tuple[Pooled, Array] | None = None
        self._kept: list[tuple[Array, Array]] = []
        features = row_features(A, B, self.surrogate, base, self._live)
        self._features = standardised(features) if len(self._live) else np.empty((0, 1))

    def add(self, y: Array, x: Array) -> None:
        coarse = self.B.coarse()  # noise of a percent hides the seventh digit
        at_y, at_x = coarse.times(y), coarse.times(x)
        self.sums.add(at_y, at_x)
        self._latest = None
        rows = self._live[self._watched]
        self._kept.append((at_y[rows] * at_x[rows], at_y[rows] ** 2))

    def result(self) -> tuple[Array, Array]:
        value, error = np.zeros_like(self.surrogate), np.zeros_like(self.surrogate)
        if len(self._live):
            known, ratios = self.surrogate[self._live], self._ratios()[0]
            value[self._live], error[self._live] = ratios.ratio * known, ratios.error * known
        return value, error

    def one_probe_noise(self) -> float:
        if not len(self._live):
            return 0.0
        ratios, noise = self._ratios()
        return float(np.median(noise / ratios.ratio) * np.sqrt(self.sums.n))

    def expected_error(self, n: int) -> float:
        if not len(self._live):
            return 0.0
        ratios, noise = self._ratios()
        fewer = np.sqrt(self.sums.n / n)
        total = np.maximum(ratios.spread**2 + (noise * fewer) ** 2, 1e-300)
        error = pooled_error(ratios.spread**2 / total, noise * fewer, ratios.fit_error * fewer)
        return MEDIAN_OF_NORMAL * float(np.median(error / ratios.ratio))

    def _ratios(self) -> tuple[Pooled, Array]:
        """Pooled ratios and the noise of the direct ones; kept until there are more probes."""
        if self._latest is None:
            self._latest = self._pool()
        return self._latest

    def _pool(self) -> tuple[Pooled, Array]:
        weight = max(float(self.sums.w[self._live].sum()), 1e-300)
        ratio, noise = self._direct(np.full(len(self._live), float(self.sums.t[self._live].sum()) / weight))
        f, _ = fitted(self._features, ratio, np.full_like(noise, float(np.sqrt(np.mean(noise**2)))))
        ratio, noise = self._direct(f)  # with the fit as control there is less noise
        f, spread = fitted(self._features, ratio, noise)
        t, w = (np.concatenate(blocks, axis=1) for blocks in zip(*self._kept, strict=True))
        probes = (t - f[self._watched, None] * w) / self.surrogate[self._live[self._watched], None]
        doubted: Array = np.sqrt(spread**2 + 2.0 * self._doubt(probes))  # as far as it may well be
        fit_error = fit_errors(self._features, f, precision_weights(doubted, noise), self._watched, probes)
        return pooled(f, doubted, ratio, noise, fit_error), noise

    def _doubt(self, e: Array) -> float:
        """Standard error of the mean of tau^2, by leaving out each probe in turn.

        The rows share the probes, so that many rows do not make a small spread visible under large noise.
        """
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
        mean, variance = self.sums.beyond(whole)
        known, n = self.surrogate[self._live], self.sums.n
        own = variance[self._live] / known**2
        mixed = ((n - 1) * own + NOISE_PRIOR * float(np.mean(own))) / (n - 1 + NOISE_PRIOR)
        return f + mean[self._live] / known, np.sqrt(mixed / n)


def row_features(A: NormalMatrix, B: Operator, surrogate: Array, base: Array,
                 live: npt.NDArray[np.intp]) -> list[Array]:
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
