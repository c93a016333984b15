"""What the double loop asks of linear algebra: variances and a log determinant at gamma, and systems with A(e).

Where A can be factorised in a moment, one factorisation gives both, and serves as the preconditioner of all systems
until gamma changes: A(e) is close to A(gamma), so that these take a handful of iterations. Elsewhere everything is
products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb.errors import InputError, NotPositiveDefiniteError
from klimb.latents.implicit import Implicit
from klimb.linalg.factors import Factorisation, FactorPlan, cheapest_plan, factorise
from klimb.linalg.krylov import KrylovSolution, Preconditioner, ScaledLanczos, simplest_preconditioner, solve
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators import StackedOperator
from klimb.linalg.variances import LogDet, Variances, estimate, log_det
from klimb.numerics.arrays import Array

ROUGH = 0.1  # relative error of the variances at the start, where gamma is a guess
RANK = 24  # Lanczos directions behind those variances
SINGLE = 1e-3  # tolerance of a system from which products in single precision will do
FAR = 1.0  # median of |log(weights / gamma)| beyond which a preconditioner made for gamma is of no use
RUNAWAY = 1e-12  # curvature along a solution, as a share of the usual one, that counts as none
CHECK_TOLERANCE, MOST_CHECKS = 1e-5, 300  # relative residual and iterations spent on finding out
AFFORDABLE = 2.0  # seconds that a factorisation may take for variances to be exact


@final
@dataclass(frozen=True, eq=False)
class Measured:
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


@final
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
        """The variances and the determinant of a few Lanczos steps plus a diagonal: no better than some percent.

        That is enough for a start. None where the entries of B are not known.
        """
        M = ScaledLanczos(A.coarse(), min(RANK, A.size), self.seed).surrogate()
        known = M.variances(self.latent.B.coarse())
        if known is None:
            return None
        self._preconditioner = M
        v = known[0]
        error = ROUGH * v
        rough = Variances(v, error, np.maximum(v - 2 * error, 0.0), v + 2 * error, "surrogate", False, False, False, 0)
        return Measured(gamma, rough, LogDet(M.log_det, ROUGH * float(gamma @ v), False, 0))

    def check_determined(self, gamma: Array) -> None:
        """An `InputError` where the posterior is improper: a direction of weights that nothing determines.

        A system with a random right-hand side tells: its solution runs away along such a direction.
        """
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
        known = Variances(v, np.zeros_like(v), v, v, "exact", True, True, True, 0)
        return Measured(gamma, known, LogDet(factor.log_det, 0.0, True, 0))

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
        """The preconditioner at hand unless the weights have gone far from the gamma that it was made for.

        None stands for the diagonal of the matrix itself.
        """
        if self._gamma is None or isinstance(self._preconditioner, Factorisation):
            return self._preconditioner
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            apart = float(np.median(np.abs(np.log(weights / self._gamma))))
        return self._preconditioner if apart < FAR else None
