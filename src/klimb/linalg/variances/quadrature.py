"""log det(A) from the coefficients of conjugate gradients: stochastic Lanczos quadrature (Ubaru, Chen and Saad, 2017).

A system A x = F eta with preconditioner M = F F' walks through the Lanczos process of C = F^-1 A F^-T from eta.
Gauss's rule of its tridiagonal matrix gives eta' log(C) eta, whose mean is log det(A) - log det(M). The same matrix has
eta'C eta in its corner, whose mean tr(M^-1 A) is known exactly; log(C) is C - I to first order, so taking that off
leaves noise of second order.
"""

from __future__ import annotations

from typing import final

import numpy as np

from klimb.linalg.krylov.preconditioners import SurrogateMatrix
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators.base import Operator
from klimb.numerics.arrays import Array

FITTED_FROM = 16  # probes from which the share of the control that is taken off is fitted rather than one


@final
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
        if known is not None and operator is known[0]:
            variances = known[1]
        else:
            pair = M.variances(operator)
            if pair is None:
                return None
            variances = pair[0]
        total += float(weights @ variances)
    return total + (float(A.shift @ M.inverse_diagonal) if A.shift.any() else 0.0)
