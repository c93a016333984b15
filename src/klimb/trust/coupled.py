"""Several classes with their weights joint: the Gaussian that an independent q leaves out, and its importance weights.

A fit takes the classes for independent. But a shift common to all of them is not in the data and keeps its prior, so
that each class by itself is known far worse than q says, and differences between classes are known better. With the
weights of all classes as w = mu + S u, u ~ N(0, I), f = mu_f + Z u, and W_i = E[diag(p) - p p'] under q,

    u = u_q + root e,    root root' = (I + sum_i W_i (x) z_i z_i')^-1,    e ~ N(0, I)

is one step of the fixed point without that restriction, and weights of draws of e put right what it leaves:

    log w(e) = sum_i log p(y_i | f_i) - |u|^2 / 2 + |e|^2 / 2 + log det root
"""

from abc import abstractmethod

import numpy as np
from scipy.linalg import solve_triangular

from klimb.infer.problem import Problem
from klimb.latents.base import Posterior
from klimb.latents.shocks import Shocks
from klimb.numerics.arrays import Array, slices
from klimb.sites.base import Site
from klimb.trust.collapsed import CollapsedDraws, LevelMoments, ShockWeights
from klimb.trust.levels import BLOCK
from klimb.trust.weights import exact_site

MOST_JOINT = 256  # weights of all classes together
MOST_ROWS = 4e7  # entries of the rows in the shocks
UNSEEN = 1e-8  # what a common shift may change of the curvature, to count as not in the data


class JointWeights(ShockWeights):
    """The log weight of draws of the joint shocks of all classes; rows may be anywhere."""

    def __init__(self, shocks: Shocks, u: Array, root: Array, constant: float, bound: float) -> None:
        self.shocks, self._u, self._root, self._each, self.bound = shocks, u, root, shocks.outputs, bound
        self._offset = constant + float(np.log(np.abs(np.diagonal(root))).sum()) - 0.5 * float(u @ u)

    @abstractmethod
    def rows_at(self, e: Array) -> tuple[Array, Array]:
        """sum_i log p(y_i | f_i) at draws, and its gradient in them."""

    def __call__(self, e: Array) -> CollapsedDraws:
        S, moved = len(e), e @ self._root.T
        values = self._offset - moved @ self._u - 0.5 * (moved**2).sum(axis=1) + 0.5 * (e**2).sum(axis=1)
        of_rows, slopes = self.rows_at(e)
        gradient = e - (self._u + moved) @ self._root + slopes
        return CollapsedDraws(e, values + of_rows, gradient, np.zeros((S, 1, 0)), np.zeros((S, 1, 0, 0)),
                              np.zeros(1, dtype=np.intp),
                              lambda: LevelMoments(np.zeros((1, 1, 0)), np.zeros((1, 1, 0, 0))))


class CoupledWeights(JointWeights):
    """Of rows in memory."""

    def __init__(self, problem: Problem, posterior: Posterior, shocks: Shocks, u: Array, root: Array) -> None:
        self._site, self._y, self._m = exact_site(problem.site), problem.y, posterior.m
        expected = float(self._site.oracle(self._y, posterior.m, posterior.v).value.sum())
        super().__init__(shocks, u, root, problem.constant, expected + problem.constant - posterior.kl)

    def rows_at(self, e: Array) -> tuple[Array, Array]:
        rows, values, slopes = self.shocks.shared_rows, np.zeros(len(e)), np.zeros(e.shape)
        for some in slices(len(e), max(BLOCK // len(self._m), 1)):
            point = self._site.point(self._y, self._m + e[some] @ rows.T)
            values[some], slopes[some] = point.value.sum(axis=1), -(point.alpha @ rows)
        return values, slopes


def coupled_weights(problem: Problem, posterior: Posterior) -> CoupledWeights | None:
    """Of a fit with several classes; None where their weights are too many, or are not those of columns."""
    latent = posterior.latent
    few = latent.n_weights <= MOST_JOINT and len(posterior.m) * latent.n_weights <= MOST_ROWS
    found = joint_shocks(problem.site, problem.y, posterior) if few else None
    return None if found is None else CoupledWeights(problem, posterior, *found)


def joint_shocks(site: Site, y: Array, posterior: Posterior) -> tuple[Shocks, Array, Array] | None:
    """The shocks of the weights of all classes, the mean of u, and the root of its covariance."""
    parts = whitened_parts(posterior)
    precision = None if parts is None else _joint_precision(site, y, posterior, [Z for _, Z in parts])
    return None if parts is None or precision is None else shocks_of(posterior, parts, precision)


def whitened_parts(posterior: Posterior) -> list[tuple[Array, Array]] | None:
    """S and Z of every class; None where classes are not those of columns."""
    latent = posterior.latent
    if latent.reports != "weight" or not posterior.spread or latent.slack.any():
        return None
    parts = [(root, X @ root) for _, root, X in (part.reported_prior() for part in latent.parts) if X is not None]
    return parts if len(parts) == latent.n_outputs else None


def shocks_of(posterior: Posterior, parts: list[tuple[Array, Array]], precision: Array) -> tuple[Shocks, Array, Array]:
    """The same where u has this ``precision``."""
    root = solve_triangular(np.linalg.cholesky(precision), np.eye(len(precision)), lower=True).T
    u = np.concatenate([Z.T @ a for (_, Z), a in zip(parts, np.split(posterior.a, len(parts)), strict=True)])
    own = np.split(root, np.cumsum([Z.shape[1] for _, Z in parts])[:-1])
    weights_root, rows = (np.vstack([matrices[k] @ block for matrices, block in zip(parts, own, strict=True)])
                          for k in (0, 1))
    mean = posterior.latent.weight_mean(posterior)
    return Shocks.of_outputs(mean, weights_root, rows, len(rows) // len(parts)), u, root


def _joint_precision(site: Site, y: Array, posterior: Posterior, designs: list[Array]) -> Array | None:
    """I + sum_i W_i (x) z_i z_i'; None where the site does not say, or a common shift is in the data."""
    blocks = site.couplings(y, posterior.m, posterior.v)
    classes = len(designs)
    if blocks is None:
        return None
    blocks = blocks[:, :classes, :classes]
    if np.abs(blocks.sum(axis=2)).max() > UNSEEN * max(float(np.abs(blocks).max()), 1e-300):
        return None
    ends = np.cumsum([0] + [Z.shape[1] for Z in designs])
    total = np.eye(ends[-1])
    for c, Z in enumerate(designs):
        for d in range(c + 1):
            block = Z.T @ (blocks[:, c, d, None] * designs[d])
            total[ends[c] : ends[c + 1], ends[d] : ends[d + 1]] += block
            if c != d:
                total[ends[d] : ends[d + 1], ends[c] : ends[c + 1]] += block.T
    return total
