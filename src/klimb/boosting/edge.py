"""Targets with an edge inside their bulk: edges along the axes are found and declared, others cut a mixture off.

Edges along the axes are found by bisection, where the density becomes -inf, and boosting goes on in the coordinates of
`Above`, `Below` and `Interval`. Nodes that cross any other edge make the bound jump, so the points stay and their
weights move: with draws x_n of the current mixture q0, b_n their probabilities and omega_n = b_n q(x_n)/q0(x_n),

    KL(q cut off || p) = sum_in omega (log q - log p) / A - log(A / T) + const,     A = sum_in omega, T = sum_all omega,

is a smooth function of the parameters of q, which needs values of log p only. Each round draws anew from its mixture.
"""

from typing import NamedTuple

import numpy as np

from klimb.boosting.gaussians import BoostStep, Gaussians, Watch, log_mixture, moments, nodes, one_gaussian, recorded
from klimb.boosting.refine import EvaluatedMixture, Moves
from klimb.boosting.target import Target, show
from klimb.boosting.transforms import Above, Below, Interval, Real, Transform, TransformedBlocks
from klimb.errors import InputError
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_optimize
from klimb.numerics.lowdiscrepancy import normal_draws

REACHES = 2.0 ** np.arange(-2, 11)  # how far an axis is looked along, in standard deviations (quarter to a thousand)
HALVINGS = 80  # of the bracket around an edge: to the last bit
PROBES = 256  # points at which the box must hold
NEAR_EDGE = 0.02  # shares of the box's width in which half of them lie
RHO = 0.02  # how strongly a round is held back, per nat of divergence
ROUNDS, POINTS = 8, 384  # per component count; points of a round (at least)
FINAL = 4096  # points by which the bound, and the share inside, are known in the end
WIDTHS = 7  # powers of four by which the first Gaussian is tried wider
LEAST_INSIDE = 0.3  # share of the mixture that should stay in the support: an exponential needs no mean far outside
PENALTY = 20.0  # for less, times the squared logarithm


def box_coordinates(target: Target, fit: EvaluatedMixture, spread: Array, seed: int
                    ) -> tuple[TransformedBlocks, Array] | None:
    """Coordinates without edges and a point inside; None where the support is not a box as far as probes can tell."""
    if not target.coordinates.plain:
        return None
    best = np.unravel_index(int(np.argmax(fit.values)), fit.values.shape)
    centre = fit.points[best] if not np.isfinite(target.values(fit.parts.means[:1])[0]) else fit.parts.means[0]
    scale = np.maximum(fit.parts.deviations[0], 1e-3 * spread)
    low, high = (_edges(target, centre, scale, sign) for sign in (-1.0, 1.0))
    if not (np.isfinite(low).any() or np.isfinite(high).any()):
        return None
    thin = np.flatnonzero(high - low <= 1e-12 * np.maximum(np.abs(centre), scale))
    if len(thin):
        raise InputError("the support of log_density must have an inside",
                         f"-inf on both sides of {show(centre)} along coordinate {thin[0]}",
                         "Leave out parameters that others determine.")
    if not _holds(target, centre, scale, low, high, seed):
        return None
    return TransformedBlocks([_block(a, b) for a, b in zip(low, high, strict=True)]), centre


def _block(low: float, high: float) -> Transform:
    if np.isfinite(low) and np.isfinite(high):
        return Interval(float(low), float(high))
    if np.isfinite(low):
        return Above(float(low))
    return Below(float(high)) if np.isfinite(high) else Real()


def _edges(target: Target, centre: Array, scale: Array, sign: float) -> Array:
    """Per axis, the last point inside the support in the direction ``sign``; infinite where there is no edge."""
    D = len(centre)
    steps = sign * REACHES[:, None] * scale  # K x D
    X = centre + steps[:, :, None] * np.eye(D)
    inside = np.isfinite(target.values(X.reshape(-1, D), far=True)).reshape(len(REACHES), D)
    found = np.full(D, sign * np.inf)
    meets = np.flatnonzero(~inside.all(axis=0))
    if len(meets) == 0:
        return found
    first = np.argmin(inside[:, meets], axis=0)  # the first reach that is outside
    outer = sign * REACHES[first] * scale[meets]
    inner = np.where(first > 0, sign * REACHES[np.maximum(first - 1, 0)] * scale[meets], 0.0)
    for _ in range(HALVINGS):
        middle = 0.5 * (inner + outer)
        points = np.tile(centre, (len(meets), 1))
        points[np.arange(len(meets)), meets] += middle
        ok = np.isfinite(target.values(points, far=True))
        inner, outer = np.where(ok, middle, inner), np.where(ok, outer, middle)
        if np.all(np.abs(outer - inner) <= 2e-16 * np.abs(centre[meets] + inner)):
            break
    found[meets] = centre[meets] + inner
    return found


def _holds(target: Target, centre: Array, scale: Array, low: Array, high: Array, seed: int) -> bool:
    """Whether points inside the box have finite values and points outside have none, near its faces and elsewhere."""
    D = len(centre)
    far = centre + 3.0 * scale * normal_draws(PROBES // 2, D, seed=seed + 23)
    width = np.where(np.isfinite(low) & np.isfinite(high), high - low, scale)
    near = centre + 3.0 * scale * normal_draws(PROBES // 2, D, seed=seed + 29)
    offset = NEAR_EDGE * width * np.random.default_rng(seed).uniform(-1.0, 1.0, near.shape)
    for j in range(D):  # each probe sits near a face, inside or outside of it, along the axes that have one
        faces = [edge for edge in (low[j], high[j]) if np.isfinite(edge)]
        if faces:
            chosen = np.arange(len(near)) % (2 * D) // 2 == j
            near[chosen, j] = np.resize(faces, int(chosen.sum())) + offset[chosen, j]
    probes = np.concatenate([far, near])
    predicted = ((probes > low) & (probes < high)).all(axis=1)
    return bool((np.isfinite(target.values(probes, far=True)) == predicted).all())


class Cut(NamedTuple):
    """A mixture, points drawn from it with the target's values, and the bound there."""
    q: Gaussians
    X: Array
    share: Array
    values: Array
    log_q: Array

    @property
    def inner(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.isfinite(self.values)

    @property
    def inside(self) -> float:
        return float(self.share[self.inner].sum())

    @property
    def residual(self) -> Array:
        """log p - log q of the points inside, q cut off."""
        return np.asarray(self.values[self.inner] - self.log_q[self.inner] + np.log(self.inside))

    @property
    def bound(self) -> float:
        if self.inside < 0.25 * LEAST_INSIDE:
            return -np.inf
        return float(self.share[self.inner] @ self.residual / self.inside)

    @property
    def overall(self) -> Gaussians:
        """One Gaussian with the mean and covariance of the points inside."""
        mean, cov = moments(self.share[self.inner] / self.inside, self.X[self.inner])
        return one_gaussian(mean, np.linalg.cholesky(cov + 1e-12 * np.trace(cov) * np.eye(len(cov))))

    @property
    def bound_error(self) -> float:
        return float(self.residual.std() / np.sqrt(len(self.residual)))


def drawn(target: Target, q: Gaussians, seed: int, n: int = POINTS) -> Cut:
    """Fresh points of the mixture, with values."""
    Z = nodes(max(n // len(q), 32 + 8 * q.dim), q.dim, seed)
    X = q.at(Z).reshape(-1, q.dim)
    return Cut(q, X, np.repeat(q.weights / len(Z), len(Z)), target.values(X), q.log_density(X))


def cut_boosted(target: Target, first: Gaussians, n_components: int, tol: float, seed: int,
                watch: Watch) -> tuple[Cut, list[BoostStep], str]:
    """Add and refine cut-off components until they gain less than ``tol``."""
    counter = seed + 1000
    # A mode at an edge says little about the width: the first Gaussian is tried wider, in steps of four.
    widths = [Gaussians(first.means, 4.0**k * first.roots) for k in range(WIDTHS)]
    starts = [drawn(target, parts, counter) for parts in widths]
    best = refined(target, max(starts, key=lambda cut: cut.bound), counter)
    steps, why = [_step(target, best, watch)], "components"
    while why == "components" and len(best.q) < n_components:
        counter += 100
        grown = refined(target, drawn(target, _with_excess(best), counter), counter)
        won = grown.bound - best.bound
        if won > 0:
            best = grown
            steps.append(_step(target, best, watch))
        if not won > max(tol, 2.0 * best.bound_error):
            why = "gain"
    # Many fresh points are its judge: the best of several noisy rounds looks better than it is.
    return drawn(target, best.q, counter + 77, FINAL), steps, why


def _step(target: Target, cut: Cut, watch: Watch) -> BoostStep:
    return recorded(target, cut.q, cut.bound, cut.bound_error, cut.residual, cut.share[cut.inner], watch)


def refined(target: Target, start: Cut, seed: int) -> Cut:
    """The best of a few rounds of fitting and drawing anew."""
    best = current = start
    for round_ in range(ROUNDS):
        current = drawn(target, _fitted(current), seed + 1 + round_)
        if current.bound > best.bound:
            settled = current.bound - best.bound < current.bound_error
            best = current
            if settled and round_ > 1:
                break
    return best


def _fitted(cut: Cut) -> Gaussians:
    K, D = cut.q.means.shape
    moves, inner = Moves(K, D, D), cut.inner

    def objective(x: Array) -> tuple[float, Array]:
        weights, a, T = moves.unpacked(x)
        parts = cut.q.moved(a, T, weights)
        white = parts.whitened(cut.X)
        terms = parts.log_peaks[:, None] - 0.5 * np.einsum("knd,knd->kn", white, white)
        log_q = log_mixture(weights, terms)
        with np.errstate(divide="ignore", over="ignore"):
            omega = cut.share * np.exp(np.clip(log_q - cut.log_q, -700.0, 50.0))
            responsibility = np.exp(terms + np.log(weights)[:, None] - log_q)
        A, total = omega[inner].sum(), omega.sum()
        if 1e-3 * total >= A or not np.isfinite(total):
            return 1e10, np.zeros_like(x)
        gap = np.where(inner, log_q - np.where(inner, cut.values, 0.0), 0.0)
        mean_gap = float(omega @ gap) / A
        c = np.where(inner, omega * (gap - mean_gap) / A, 0.0) + omega / total  # derivative in log q at each point
        short = max(0.0, float(np.log(LEAST_INSIDE * total / A)))
        c -= 2.0 * PENALTY * short * (np.where(inner, omega / A, 0.0) - omega / total)
        spread = np.einsum("kde,kde->k", T, T) - D - 2 * np.log(np.einsum("kdd->kd", T)).sum(axis=1)
        held = RHO * np.maximum(cut.q.weights, 1.0 / (4 * K))
        value = mean_gap - np.log(A / total) + PENALTY * short**2 + 0.5 * float(held @ (spread + (a**2).sum(axis=1)))
        pull = c * responsibility
        inverse = parts.inverse_roots
        old = cut.q.roots.transpose(0, 2, 1)
        d_mu = np.einsum("kn,knd->kd", pull, np.matmul(white, inverse))
        outer = np.matmul(pull[:, None, :] * white.transpose(0, 2, 1), white)
        outer -= pull.sum(axis=1)[:, None, None] * np.eye(D)
        d_T = np.matmul(old, np.matmul(inverse.transpose(0, 2, 1), outer)) + held[:, None, None] * T
        d_a = np.einsum("kde,ke->kd", old, d_mu) + held[:, None] * a
        return value, moves.gradient(pull.sum(axis=1) - weights * c.sum(), d_a, d_T, T, held)

    start = moves.start(np.log(np.maximum(cut.q.weights, 1e-12)))
    found = scipy_optimize.minimize(objective, start, jac=True, method="L-BFGS-B", bounds=moves.bounds(3.0, 1.2),
                                    options={"maxiter": 60})
    weights, a, T = moves.unpacked(found.x)
    return cut.q.moved(a, T, weights).take(np.flatnonzero(weights > 1e-4))


def _with_excess(cut: Cut) -> Gaussians:
    """The mixture with one more component at the moments of (p/q - 1)+ around the point with the largest weight."""
    X, residual = cut.X[cut.inner], cut.residual
    share = cut.share[cut.inner] / cut.inside
    mass = share * np.exp(residual - residual.max())
    excess = np.maximum(mass / mass.sum() - share, 1e-300)
    top = int(np.argmax(mass))
    owner = int(np.argmax(cut.q.log_densities(X[top : top + 1])[:, 0] + np.log(cut.q.weights)))
    root = cut.q.roots[owner]
    pull = excess * np.exp(-0.5 * np.linalg.norm((X - X[top]) @ cut.q.inverse_roots[owner].T, axis=1)**2)
    mean, cov = moments(pull / pull.sum(), X)
    return cut.q.joined(one_gaussian(mean, np.linalg.cholesky(0.7 * cov + 0.15 * root @ root.T)), 0.1)
