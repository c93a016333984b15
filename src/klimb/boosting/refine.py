"""Moving all weights, means and covariances of a mixture uphill together, with few evaluations.

    B = sum_k w_k / S sum_s [ log p(x_ks) - log q(x_ks) ],   x_ks = mu_k + L_k z_s,   q = sum_k w_k N(mu_k, L_k L_k')

Between two evaluations log p is its second-order expansion around every node (value and slope of the node, one Hessian
per component by Stein's identity). The model is maximised over everything, less rho times the divergence from where the
expansions were made; then the true B at the new nodes judges the step, and rho falls or grows.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from klimb.boosting.gaussians import Gaussians, divergence
from klimb.boosting.target import Target
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_optimize

STILL = 2e-4  # a component whose proposed move is less than this (in nats, times its weight) is left where it is
IDLE = 0.02  # ... or less than this share of the largest move
WRONG, RIGHT = 1.0, 0.3  # errors of the expansion, relative to the move, at which rho grows and falls
RISE, FALL = 6.0, 4.0  # factors of rho after a poor and after a good step
LEAST_RHO, MOST_RHO, FRESH, CALM = 0.03, 1e6, 0.3, 3.0
# Moves are multiples of this, in standard deviations and logarithms. That costs less than 1e-6 nats per coordinate, and
# what L-BFGS makes of the last bits (a factor of a thousand, search after search) does not reach the next step.
GRID = 2.0**-10
HELD = 0.02  # how strongly the weights are held back
FARTHEST, NEAR = (20.0, 2.5), (2.0, 0.8)  # limits of one step, for a single Gaussian and for components of several


Index: TypeAlias = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]
Natural: TypeAlias = tuple[Array, Array, Array]  # in weights, moves and factors


@dataclass(frozen=True, eq=False)
class EvaluatedMixture:
    """A mixture with the target's values and (whitened) slopes at the nodes of each component."""
    parts: Gaussians
    values: Array  # K x S, log p at the nodes
    slopes: Array  # K x S x D, L_k' grad log p
    nodes: Array  # S x D
    rho: Array  # K, how strongly each component is held back in the next step

    @cached_property
    def log_q(self) -> Array:
        """log q at the nodes of each component, K x S."""
        return self.parts.log_density(self.points.reshape(-1, self.parts.dim)).reshape(self.values.shape)

    @cached_property
    def points(self) -> Array:
        return self.parts.at(self.nodes)

    @cached_property
    def residual(self) -> Array:
        """log p - log q at the nodes, K x S: constant where the fit is perfect."""
        return np.asarray(self.values - self.log_q)

    @cached_property
    def bound(self) -> float:
        return float(self.parts.weights @ self.residual.mean(axis=1))

    def take(self, index: Index) -> "EvaluatedMixture":
        """The components ``index``, their weights normalised."""
        return EvaluatedMixture(self.parts.take(index), self.values[index], self.slopes[index], self.nodes,
                                self.rho[index])

    def joined(self, other: "EvaluatedMixture", share: float) -> "EvaluatedMixture":
        """(1 - share) of this and ``share`` of ``other``."""
        each = ((self.values, other.values), (self.slopes, other.slopes), (self.rho, other.rho))
        values, slopes, rho = map(np.concatenate, each)
        return EvaluatedMixture(self.parts.joined(other.parts, share), values, slopes, self.nodes, rho)

    def moved(self, to: Gaussians, moved: Index, values: Array, slopes: Array) -> "EvaluatedMixture":
        """The weights of ``to`` and its components ``moved``, where the target is known now; the others stay."""
        found = []
        for old, new in ((self.parts.means, to.means[moved]), (self.parts.roots, to.roots[moved]),
                         (self.values, values), (self.slopes, slopes)):
            found.append(old.copy())
            found[-1][moved] = new
        means, roots, values, slopes = found
        return replace(self, parts=Gaussians(means, roots, to.weights), values=values, slopes=slopes)


def evaluated(target: Target, parts: Gaussians, nodes: Array) -> EvaluatedMixture:
    """The mixture with the target evaluated at the nodes of every component."""
    return EvaluatedMixture(parts, *at_nodes(target, parts, nodes), nodes, np.full(len(parts), FRESH))


def at_nodes(target: Target, parts: Gaussians, nodes: Array) -> tuple[Array, Array]:
    """Values and whitened slopes of the target, K x S and K x S x D."""
    K, S, D = len(parts), *nodes.shape
    X = parts.at(nodes).reshape(K * S, D)
    values, slopes = target.with_slopes(X, np.repeat(parts.deviations, S, axis=0))
    return values.reshape(K, S), np.matmul(slopes.reshape(K, S, D), parts.roots)


def improve(target: Target, fit: EvaluatedMixture, *, rounds: int, gain: float, free: int | None = None
            ) -> EvaluatedMixture:
    """Up to ``rounds`` evaluations uphill; ends early when a step gains less than ``gain`` nats.

    Components move along their first ``free`` axes (all if None). Each has its own rho; one that spoils a step stays.
    """
    failures = 0
    fit = replace(fit, rho=np.clip(fit.rho, LEAST_RHO, CALM))
    for _ in range(rounds):
        model = ProximalObjective(fit, fit.parts.dim if free is None else free)
        x = model.minimiser()
        proposal = model.mixture(x)
        moves = divergence(proposal.parts, fit.parts)
        distance = fit.parts.weights * moves
        moved = np.flatnonzero(distance > max(STILL * min(1.0, gain / 1e-3), IDLE * float(distance.max())))
        trial = fit.moved(proposal.parts, moved, *at_nodes(target, proposal.parts.take(moved), fit.nodes))
        # How wrong the expansion was, relative to how far the component went: a good step gains about its divergence.
        error = np.zeros(len(fit.parts))
        with np.errstate(invalid="ignore"):
            error[moved] = np.abs((proposal.values[moved] - trial.values[moved]).mean(axis=1)) / moves[moved]
        error[~np.isfinite(error)] = np.inf
        won = trial.bound - fit.bound + model.correction(x, moved)
        spoilers = error > WRONG
        if spoilers.any() and not won > 0:
            kept = moved[~spoilers[moved]]
            trial = fit.moved(trial.parts, kept, trial.values[kept], trial.slopes[kept])
            weighing = ProximalObjective(trial, 0)
            trial = weighing.mixture(weighing.minimiser())
            won = trial.bound - fit.bound + model.correction(x, kept)
        rho = fit.rho.copy()
        rho[spoilers] = np.minimum(rho[spoilers] * RISE, MOST_RHO)
        if won > 0:
            calm = np.isin(np.arange(len(rho)), moved) & (error < RIGHT)
            rho[calm] = np.maximum(rho[calm] / FALL, LEAST_RHO)
            fit, failures = replace(trial, rho=rho), 0
            if won < gain and not spoilers.any():
                break
        else:
            if not spoilers.any():
                rho = np.minimum(rho * RISE, MOST_RHO)
            fit, failures = replace(fit, rho=rho), failures + 1
            if failures >= 4:
                break
        if len(moved) == 0:
            break
    return fit


class Moves(NamedTuple):
    """Mixtures near one of K components in D dimensions, as vectors: logits of weights, then the moves of each part.

    mu = mu0 + L0 a and L = L0 T along the first ``free`` axes, with T lower triangular, its diagonal in logarithms.
    """

    K: int
    D: int
    free: int

    def start(self, log_weights: Array) -> Array:
        """These weights, and no moves."""
        return np.concatenate([log_weights, np.zeros(self.K * self.free * (self.free + 3) // 2)])

    def unpacked(self, x: Array) -> tuple[Array, Array, Array]:
        """Weights, moves a (K x D) and factors T (K x D x D)."""
        K, D, free = self
        weights, rest = np.exp(x[:K] - x[:K].max()), x[K:].reshape(K, -1)
        rows, columns = np.tril_indices(free)
        a, T, entries = np.zeros((K, D)), np.tile(np.eye(D), (K, 1, 1)), rest[:, free:].copy()
        a[:, :free] = rest[:, :free]
        entries[:, rows == columns] = np.exp(np.clip(entries[:, rows == columns], -20.0, 20.0))
        T[:, rows, columns] = entries
        return weights / weights.sum(), a, T

    def gradient(self, logits: Array, d_a: Array, d_T: Array, T: Array, held: Array | float = 0.0) -> Array:
        """In x, from that in a and T; ``held`` is minus what else depends on the logarithms of the diagonals."""
        rows, columns = np.tril_indices(self.free)
        on = rows == columns
        entries = d_T[:, rows, columns]
        entries[:, on] = entries[:, on] * T[:, rows[on], columns[on]] - np.reshape(held, (-1, 1))
        return np.concatenate([logits, np.concatenate([d_a[:, : self.free], entries], axis=1).ravel()])

    def bounds(self, far: float = np.inf, large: float = np.inf, across: float | None = None) -> list[Any]:
        """Of moves (in standard deviations), of logarithms of scales, and of entries off the diagonal (as of moves)."""
        rows, columns = np.tril_indices(self.free)
        most = [far] * self.free + [large if on else far if across is None else across for on in rows == columns]
        return [(None, None)] * self.K + [(-one, one) for one in most] * self.K


class ProximalObjective:
    """Minus the modelled bound plus the proximal term, as a function of `Moves`.

    log p at a node becomes value + slope'y + y'Hy/2 with y = a + (T - I) z.
    """

    def __init__(self, fit: EvaluatedMixture, free: int) -> None:
        self.fit, self.nodes, self.slopes = fit, fit.nodes, fit.slopes
        self.K, self.D = len(fit.parts), fit.parts.dim
        self.moves = Moves(self.K, self.D, free)
        self.hessians = average_hessians(self.slopes, self.nodes)
        with np.errstate(divide="ignore"):
            self.start = self.moves.start(np.maximum(np.log(fit.parts.weights), -30.0))
        self.score: Natural | None = None
        self.score = self._objective(self.start)[2]

    def minimiser(self) -> Array:
        """Where the model is best, by L-BFGS, to the nearest point of the grid of moves."""
        box = self.moves.bounds(*(FARTHEST if self.K == 1 else NEAR))
        found = scipy_optimize.minimize(self.objective, self.start, jac=True, method="L-BFGS-B", bounds=box,
                                        options={"maxiter": 40, "maxcor": 20, "ftol": 1e-10, "gtol": 1e-7})
        return np.asarray(self.start + GRID * np.round((found.x - self.start) / GRID))

    def correction(self, x: Array, moved: Index) -> float:
        """What the score adds to the bound gained on the way to ``x``, if only the components ``moved`` go there."""
        weights, a, T = self.moves.unpacked(x)
        stay = ~np.isin(np.arange(self.K), moved)
        a, T = a.copy(), T.copy()
        a[stay], T[stay] = 0.0, np.eye(self.D)
        assert self.score is not None
        later = self._objective(x)[2]
        return 0.5 * (self._along(self.score, weights, a, T) + self._along(later, weights, a, T))

    def _along(self, score: Natural, weights: Array, a: Array, T: Array) -> float:
        d_weights, d_a, d_T = score
        change = weights - self.fit.parts.weights
        return float(d_weights @ change + (d_a * a).sum() + (d_T * (T - np.eye(self.D))).sum())

    def values(self, a: Array, T: Array) -> tuple[Array, Array]:
        """The modelled log p at the moved nodes, and its slope in y."""
        y = a[:, None] + np.matmul(self.nodes, (T - np.eye(self.D)).transpose(0, 2, 1))
        Hy = np.matmul(y, self.hessians)
        return self.fit.values + np.einsum("ksd,ksd->ks", self.slopes + 0.5 * Hy, y), self.slopes + Hy

    def mixture(self, x: Array) -> EvaluatedMixture:
        weights, a, T = self.moves.unpacked(x)
        return replace(self.fit, parts=self.fit.parts.moved(a, T, weights), values=self.values(a, T)[0])

    def objective(self, x: Array) -> tuple[float, Array]:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            value, gradient, _ = self._objective(x)
            return value, gradient

    def _objective(self, x: Array) -> tuple[float, Array, Natural]:
        weights, a, T = self.moves.unpacked(x)
        parts = self.fit.parts.moved(a, T, weights)
        K, S, D = self.K, len(self.nodes), self.D
        X = parts.at(self.nodes).reshape(K * S, D)
        white = parts.whitened(X)
        terms = parts.log_peaks[:, None] - 0.5 * np.einsum("knd,knd->kn", white, white)
        log_w = np.log(weights)
        terms_w = terms + log_w[:, None]
        top = terms_w.max(axis=0)
        share = np.exp(terms_w - top)
        total = share.sum(axis=0)
        share /= total  # responsibilities
        log_q = (top + np.log(total)).reshape(K, S)
        values, steep = self.values(a, T)
        residual = log_q - values
        old_weights = self.fit.parts.weights
        move = self.fit.rho * old_weights  # proximal term: sum_k rho_k w0_k KL(new_k || old_k), and KL(w0 || w)
        spread = np.einsum("kde,kde->k", T, T) - D - 2 * np.log(np.einsum("kdd->kd", T)).sum(axis=1)
        log_old = np.log(np.maximum(old_weights, 1e-300))
        proximal = 0.5 * float(move @ (spread + (a**2).sum(axis=1))) + HELD * float(old_weights @ (log_old - log_w))
        value = float(weights @ residual.mean(axis=1)) + proximal
        if not np.isfinite(value):
            return 1e300, np.zeros_like(x), (weights, a, T)
        # -- derivatives
        c = np.repeat(weights / S, S)  # of log q at each node
        # in the weights: through the average, and through log q (the score)
        mass = share @ c
        d_w = residual.mean(axis=1) - HELD * old_weights / weights
        score_w = mass / np.maximum(weights, 1e-300)
        # in means and roots: explicit in log q (the score), and through the nodes
        inverse = parts.inverse_roots
        pulled = np.matmul(share[:, :, None] * white, inverse)  # r_jn Lambda_j (x_n - mu_j), K x N x D
        along = (-pulled.sum(axis=0)).reshape(K, S, D)  # grad log q at the nodes
        outer = np.matmul((c * share)[:, None, :] * white.transpose(0, 2, 1), white)
        score_mu = np.einsum("n,knd->kd", c, pulled)
        score_L = np.matmul(inverse.transpose(0, 2, 1), outer - mass[:, None, None] * np.eye(D))
        through = (weights / S)[:, None, None] * along
        d_mu, d_L = through.sum(axis=1), np.matmul(through.transpose(0, 2, 1), self.nodes)
        old = self.fit.parts.roots.transpose(0, 2, 1)
        d_a, score_a = np.einsum("kde,ke->kd", old, d_mu), np.einsum("kde,ke->kd", old, score_mu)
        d_T, score_T = np.matmul(old, d_L), np.matmul(old, score_L)
        modelled_slope = (weights / S)[:, None, None] * steep
        d_a += move[:, None] * a - modelled_slope.sum(axis=1)
        d_T += move[:, None, None] * T - np.matmul(modelled_slope.transpose(0, 2, 1), self.nodes)
        score = (score_w, score_a, score_T)
        if self.score is not None:  # score less what it was at the start
            value -= self._along(self.score, weights, a, T)
            score_w, score_a, score_T = (now - then for now, then in zip(score, self.score, strict=True))
        d_w, d_a, d_T = d_w + score_w, d_a + score_a, d_T + score_T
        logits = weights * (d_w - float(weights @ d_w))
        return value, self.moves.gradient(logits, d_a, d_T, T, move), score


def average_hessians(slopes: Array, nodes: Array) -> Array:
    """Average Hessians of log p, whitened, by Stein's identity E[H] = E[slope z'], without what curves upwards."""
    H = np.matmul(slopes.transpose(0, 2, 1), nodes) / len(nodes)
    H = 0.5 * (H + H.transpose(0, 2, 1))
    found, basis = np.linalg.eigh(H)
    return np.asarray(np.matmul(basis * np.minimum(found, 0.0)[:, None, :], basis.transpose(0, 2, 1)))
