"""Preconditioned conjugate gradients for several right-hand sides at once.

Every column has its own step lengths, so the answer is the one it would have alone; they only share the products with
A, where a block costs much less than its columns one by one. A column that is done leaves the block.

Inverse roots come from the iteration behind it, Lanczos's. From q_1 = z / |z| it finds A Q = Q T + ..., T tridiagonal,
and f(A) z is close to |z| Q f(T) e_1 for any smooth f. With f(x) = x^-1/2 and z ~ N(0, I) that is a draw of
N(0, A^-1), and f(x) = log x gives z' log(A) z for the log determinant from the same T.
"""

from typing import NamedTuple, TypeAlias

import numpy as np

from klimb.errors import NotPositiveDefiniteError, require
from klimb.linalg.normal_matrix import NormalMatrix, Preconditioner
from klimb.linalg.operators.base import BLOCK_DOUBLES
from klimb.numerics.arrays import Array, Index, check_finite, slices

MOST_ITERATIONS = 10_000
FEWEST_ITERATIONS = 200  # that a small problem may take before it counts as stuck: rounding can cost more than D
RESTARTS = 4  # from the true residual, where the one that is carried along has drifted away from it
DRIFT = 2.0  # true residual over tolerance up to which a solution is accepted
TRUSTED_TOLERANCE = 1e-5  # at coarser tolerances the residual carried along can be believed
WORTH_RESTARTING = 0.5  # a restart must reduce the residual by this factor, or it is rounding that is left
MOST_STEPS, CHECKED_FROM = 300, 4  # of the iteration for inverse roots, and when its error is first looked at
EXHAUSTED = 1e-12  # length of a new direction that is rounding


class Jacobi(Preconditioner):
    """M = diag(A), or I: what makes the scales of the weights irrelevant."""

    def __init__(self, diagonal: Array) -> None:
        if not (diagonal > 0.0).all():
            worst = int(np.argmin(diagonal))
            raise NotPositiveDefiniteError(f"the diagonal has {diagonal[worst]:.6g} at {worst}")
        self.diagonal, self.log_det = diagonal, float(np.log(diagonal).sum())

    def solve(self, R: Array) -> Array:
        return R / (self.diagonal if R.ndim == 1 else self.diagonal[:, None])


def simplest_preconditioner(A: NormalMatrix) -> Preconditioner:
    """diag(A) where that is known, the identity elsewhere."""
    diagonal = A.diagonal()
    return Jacobi(np.ones(A.size) if diagonal is None else diagonal)


class KrylovSolution(NamedTuple):
    """``x`` with A x = rhs; ``residual`` is |rhs - A x| / |rhs| per column in the norm of M^-1, M preconditioning.

    ``steps`` and ``ratios``, if asked for, are the coefficients of iterations and columns, NaN after a column's last.
    """

    x: Array
    residual: Array
    n_iter: int
    converged: bool
    steps: Array = np.empty((0, 0))
    ratios: Array = np.empty((0, 0))


def solve(A: NormalMatrix, rhs: Array, *, preconditioner: Preconditioner | None = None, tol: float = 1e-10,
          max_iter: int | None = None, start: Array | None = None, record: bool = False) -> KrylovSolution:
    """Solve A x = ``rhs`` for a vector (D,) or for the columns of a matrix (D, k).

    A column stops when its residual is below ``tol`` times its right-hand side in the norm of M^-1, whatever the
    scales. ``preconditioner`` is diag(A) unless given, ``start`` a first guess; ``record`` keeps the coefficients. What
    cannot be reached is not ``converged``; an A that is not positive definite raises `NotPositiveDefiniteError`.
    """
    columns = rhs[:, None] if rhs.ndim == 1 else rhs
    guess = None if start is None else start.reshape(columns.shape)
    _check(A, columns, guess, tol)
    M = simplest_preconditioner(A) if preconditioner is None else preconditioner
    limit = max_iter if max_iter is not None else min(max(FEWEST_ITERATIONS, 2 * A.size), MOST_ITERATIONS)
    # Each right-hand side is scaled to unit norm, so that nothing under- or overflows whatever the units are.
    scale = _norms(columns, M)
    safe = np.where(scale > 0.0, scale, 1.0)
    x, residual, n_iter, history = _restarted(A, columns / safe, None if guess is None else guess / safe, M, tol, limit)
    x *= scale
    converged = bool((residual <= (DRIFT if tol < TRUSTED_TOLERANCE else 1.0) * tol).all())
    coefficients = _coefficients(history, columns.shape[1]) if record else ()
    return KrylovSolution(x.reshape(rhs.shape), residual, n_iter, converged, *coefficients)


_History: TypeAlias = list[tuple[Index, Array, Array]]  # of each iteration: columns, steps, ratios


def _restarted(A: NormalMatrix, rhs: Array, start: Array | None, M: Preconditioner, tol: float,
               limit: int) -> tuple[Array, Array, int, _History]:
    """Conjugate gradients, begun again from the true residual as long as that helps."""
    x = np.zeros_like(rhs) if start is None else start.copy()
    remainder = rhs.copy() if start is None else rhs - A.times(x)
    residual = _norms(remainder, M)
    left, n_iter = np.flatnonzero(residual > tol), 0
    history: _History = []
    for _ in range(RESTARTS):
        if not len(left) or n_iter >= limit:
            break
        correction, carried, taken, recorded = _iterate(A, remainder[:, left], M, tol, limit - n_iter)
        history = history or [(left[which], step, ratio) for which, step, ratio in recorded]
        n_iter += taken
        candidate = x[:, left] + correction
        if tol >= TRUSTED_TOLERANCE:
            x[:, left], residual[left] = candidate, carried
            break
        new_remainder = rhs[:, left] - A.times(np.ascontiguousarray(candidate))
        reached = _norms(new_remainder, M)
        better = reached < residual[left]
        gained = (reached > DRIFT * tol) & (reached < WORTH_RESTARTING * residual[left])
        moved = left[better]
        x[:, moved], residual[moved] = candidate[:, better], reached[better]
        remainder[:, moved] = new_remainder[:, better]
        left = left[gained]
    return x, residual, n_iter, history


def _iterate(A: NormalMatrix, rhs: Array, M: Preconditioner, tol: float,
             limit: int) -> tuple[Array, Array, int, _History]:
    """Conjugate gradients from zero: (x, residual norm carried along, iterations, coefficients)."""
    x_all, norm_all = np.zeros_like(rhs), np.zeros(rhs.shape[1])
    active = np.arange(rhs.shape[1])
    x, r = np.zeros_like(rhs), np.array(rhs, order="C")
    z = M.solve(r)
    p = z.copy()
    rz = _dots(r, z)
    history: _History = []
    n_iter = 0
    while n_iter < limit:
        Ap = A.times(p)
        curvature = _dots(p, Ap)
        if not (curvature > 0.0).all():
            raise NotPositiveDefiniteError(f"conjugate gradients met a direction of curvature {curvature.min():.3g}")
        step = rz / curvature
        x += step * p
        r -= step * Ap
        z = M.solve(r)
        new = _dots(r, z)
        if not (new >= 0.0).all():
            raise NotPositiveDefiniteError("the preconditioner is not positive definite")
        n_iter += 1
        history.append((active, step, new / rz))
        done = new <= tol * tol
        if done.any():
            x_all[:, active[done]], norm_all[active[done]] = x[:, done], np.sqrt(new[done])
            keep = ~done
            if not keep.any():
                return x_all, norm_all, n_iter, history
            active, x, r, z, p, rz, new = (active[keep], *(np.ascontiguousarray(block[..., keep])
                                                           for block in (x, r, z, p, rz, new)))
        p *= new / rz
        p += z
        rz = new
    x_all[:, active], norm_all[active] = x, np.sqrt(rz)
    return x_all, norm_all, n_iter, history


def _coefficients(history: _History, k: int) -> tuple[Array, Array]:
    steps, ratios = np.full((len(history), k), np.nan), np.full((len(history), k), np.nan)
    for row, (which, step, ratio) in enumerate(history):
        steps[row, which], ratios[row, which] = step, ratio
    return steps, ratios


def _dots(X: Array, Y: Array) -> Array:
    return np.asarray(np.einsum("ij,ij->j", X, Y))


def _norms(R: Array, M: Preconditioner) -> Array:
    """sqrt(r' M^-1 r) per column, whatever the scale of r."""
    top = np.abs(R).max(axis=0, initial=0.0)
    safe = np.where(top > 0.0, top, 1.0)
    unit = R / safe
    return np.asarray(np.sqrt(np.maximum(_dots(unit, M.solve(unit)), 0.0)) * safe)


def _check(A: NormalMatrix, rhs: Array, start: Array | None, tol: float) -> None:
    require(rhs.ndim == 2 and rhs.shape[0] == A.size, f"the right-hand side must have {A.size} rows",
            f"shape {rhs.shape}", "Check which matrix it belongs to.")
    require(0.0 < tol < 1.0, "tol must be between 0 and 1", tol, "1e-10 is close to what float64 can give.")
    check_finite(rhs, "the right-hand side")
    if start is not None:
        check_finite(start, "start")


class InverseRoots(NamedTuple):
    """S (S A S)^-1/2 z, whose covariance is A^-1 for z ~ N(0, I), and what comes with it."""

    x: Array
    logs: Array  # z'log(SAS)z
    first: Array  # z'(SAS)z
    left: float  # what the last step changed, relative to x


def inverse_roots(A: NormalMatrix, scale: Array, z: Array, tol: float) -> InverseRoots:
    """For the columns of ``z``, with S = diag(``scale``), best diag(A)^-1/2; in blocks of bounded memory."""
    width = int(np.clip(BLOCK_DOUBLES // (16 * max(len(z), 1)), 1, max(z.shape[1], 1)))
    parts = [_iterated(A, scale, np.ascontiguousarray(z[:, columns]), tol) for columns in slices(z.shape[1], width)]
    if not parts:
        return InverseRoots(np.zeros_like(z), np.zeros(0), np.zeros(0), 0.0)
    return InverseRoots(np.hstack([part.x for part in parts]), np.concatenate([part.logs for part in parts]),
                        np.concatenate([part.first for part in parts]), max(part.left for part in parts))


def _iterated(A: NormalMatrix, scale: Array, z: Array, tol: float) -> InverseRoots:
    D, k = z.shape
    S, size = scale[:, None], np.linalg.norm(z, axis=0)
    basis, diagonal, beside = [z / np.where(size > 0.0, size, 1.0)], list[Array](), list[Array]()
    weights, left, due, live = np.zeros((k, 0)), np.inf, CHECKED_FROM, size > 0.0
    while True:
        last = basis[-1]
        w = S * A.times(S * last)
        if beside:
            w -= beside[-1] * basis[-2]
        diagonal.append(np.where(live, np.einsum("ij,ij->j", last, w), 1.0))  # an exhausted column goes on with zeros
        steps = len(diagonal)
        if steps >= min(due, D) or steps == MOST_STEPS:
            values, vectors = _ritz(diagonal, beside)
            weights = np.einsum("kij,kj->ki", vectors, vectors[:, 0] / np.sqrt(values))
            left = float((np.abs(weights[:, -1]) / np.linalg.norm(weights, axis=1)).max(initial=0.0))
            due = steps + max(1, steps // 4)
            if left <= tol or steps >= min(MOST_STEPS, D):
                break
        w -= diagonal[-1] * last
        length = np.linalg.norm(w, axis=0)
        live = live & (length > EXHAUSTED * np.abs(diagonal[-1]))
        beside.append(np.where(live, length, 0.0))
        basis.append(w * np.where(live, 1.0 / np.where(live, length, 1.0), 0.0))
    x = sum((q * (size * own) for q, own in zip(basis, weights.T, strict=True)), np.zeros_like(z))
    logs = size**2 * (vectors[:, 0] ** 2 * np.log(values)).sum(axis=1)
    return InverseRoots(S * x, logs, size**2 * diagonal[0], left if steps < D else 0.0)


def _ritz(diagonal: list[Array], beside: list[Array]) -> tuple[Array, Array]:
    """Eigenvalues and vectors of the tridiagonal matrix of every column."""
    n = len(diagonal)
    T = np.zeros((len(diagonal[0]), n, n))
    at = np.arange(n)
    T[:, at, at] = np.array(diagonal).T
    if n > 1:
        T[:, at[:-1], at[1:]] = T[:, at[1:], at[:-1]] = np.array(beside[: n - 1]).T
    values, vectors = np.linalg.eigh(T)
    if not values.min(initial=1.0) > 0.0:
        raise NotPositiveDefiniteError(f"an eigenvalue of {values.min():.3g} shows itself")
    return values, vectors
