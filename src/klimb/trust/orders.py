"""log evidence - bound by sums over pairs of sites: to leading order, and with the order after it.

At the optimum of the bound g = log w - bound is g_3 + g_4 + ..., Hermite polynomials of f with c and q, the mean third
and fourth derivatives of log p at each site. Its cumulants sum over the ways to join the legs of sites, three of c and
four of q, by covariances V, no site with itself. What has two of c is A; what has four, q counting as two of them, is B
and one sum more, with each of four sites joined to each:

    A = sum c_i c_j V_ij^3 / 12
    B = sum q_i q_j V_ij^4 / 48 + sum c_i c_j q_k V_ij V_ik^2 V_jk^2 / 8
        + sum c_i c_j c_k c_l V_ij^2 V_jk V_kl^2 V_li / 16

Where sites are each by themselves, that is 2/3 of the last sum of B, and it is taken for as much. Where B is negative,
A + B + ... goes on as a geometric series: A^2 / (A - B). Beside quadrature and long chains of some fifty fields and
groups of counts, durations and labels, with gaps from 0.002 to 5 nats, that was 5% off at most, but for labels with an
sd of 8 (7%) and counts with one of 6 (9%, where half the variance of g is five times the gap). A log p that is not
concave has other modes, and a gap up to three times as large as any of this.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas

from klimb.infer.problem import Problem
from klimb.latents.base import Posterior
from klimb.trust.weights import bends, exact_site

Single: TypeAlias = npt.NDArray[np.float32]
MOST_PAIRED = 1000  # sites up to which sums over pairs cost less than draws
TOGETHER = 5.0 / 3.0  # of the last sum and four of c each joined to each, over the former


class Orders:
    """Sums over pairs of sites at one q, in single precision, which is enough.

    ``R`` has correlations of f there in its lower triangle, ``third`` and ``fourth`` derivatives in units of its sds.
    """

    def __init__(self, R: Single, third: Single, fourth: Single) -> None:
        self._R, self._third, self._fourth = R, third, fourth
        with np.errstate(over="ignore", invalid="ignore"):  # above the diagonal may be anything
            squares = R * R
            self._first = _over_pairs(squares * R, third) / 12.0
            self._flat = _over_pairs(squares * squares, fourth) / 48.0
        self.leading = self._first + self._flat  # half the variance of g

    @classmethod
    def of(cls, problem: Problem, posterior: Posterior) -> Orders | None:
        """None where log p is not concave, covariances of sites are not at hand or too many, or sums overflow."""
        site = problem.site
        if len(posterior.m) > MOST_PAIRED or not (site.separable and site.log_concave):
            return None
        v = np.maximum(posterior.v - posterior.latent.slack, 0.0)
        sd = np.sqrt(v)
        R = posterior.factorised().correlations(np.where(v > 0.0, sd, 1.0))
        if R is None:
            return None
        third, fourth = bends(exact_site(site), problem.y, posterior)
        with np.errstate(over="ignore", under="ignore"):
            found = cls(R, (third * v * sd).astype(np.float32), (fourth * v * v).astype(np.float32))
        return found if np.isfinite(found.leading) else None

    def summed(self) -> float:
        """With the order after it."""
        R, both = np.tril(self._R), np.multiply.outer(self._third, self._third)
        R += np.tril(R, -1).T
        squares = R * R
        with np.errstate(over="ignore", invalid="ignore"):
            mixed = float(np.vdot(both * R, (squares * self._fourth) @ squares)) / 8.0
            ring = (both * squares) @ R
            after = self._flat + mixed + TOGETHER * float(np.vdot(ring, ring.T)) / 16.0
        return self._first + after if not after < 0.0 else self._first**2 / (self._first - after)


def _over_pairs(lower: Single, b: Single) -> float:
    """b'Mb for the symmetric matrix of this lower triangle."""
    return float(b @ blas.ssymv(1.0, lower, b, lower=1))
