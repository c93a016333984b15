"""The algorithms of [G], corrected: Laplacian gradient boosting (Alg. 2), Newton for the weight (Alg. 1 and 3).

Our departures (docs/papers/boosting.md says why): q is kept above a floor in the residual log(f/q), its search in the
box where the run began, its Hessian positive definite; the second derivative of Alg. 1 averages ((h - q)/q_t)^2 over
q_t, which is never negative; the sample is drawn once, and a bracketed Newton iteration finds the minimum.
"""

from collections.abc import Callable

import numpy as np
from scipy.special import softmax

from klimb.boosting.gaussians import BoostStep, Gaussians, Watch, log_mixture, nodes, one_gaussian, step_of
from klimb.boosting.target import Target, differences
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_optimize

SAMPLES = 512  # nodes of a component, for weights and bounds
REACH = 4.0  # half width of the search box, in standard deviations of the first Gaussian
FLOOR = 12.0  # nats below its largest value at a mean at which q is cut off from below
STARTS = 4  # of the search for the residual's peak


def newton_exclusive(q: Gaussians, new: Gaussians, X: Array, values: Array, X_new: Array, values_new: Array) -> float:
    """The alpha that minimises KL((1 - alpha) q + alpha h || p) by nodes ``X`` of q, ``X_new`` of h: [G] Alg. 1."""
    share = np.repeat(q.weights, len(X) // len(q)) / (len(X) // len(q))
    log_q, log_h = [q.log_density(X), q.log_density(X_new)], [new.log_densities(at)[0] for at in (X, X_new)]
    floor = min(float(values[np.isfinite(values)].min(initial=0.0)), 0.0) - 1e3  # stands for -inf: costly, not NaN
    f = [np.maximum(values, floor), np.maximum(values_new, floor)]

    def derivatives(alpha: float) -> tuple[float, float]:
        log_mix = [np.logaddexp(np.log1p(-alpha) + q, np.log(alpha) + h) for q, h in zip(log_q, log_h, strict=True)]
        gamma = [mix - value for mix, value in zip(log_mix, f, strict=True)]  # [G] Eq. (9)
        eta = [np.exp(h - mix) - np.exp(q - mix) for h, q, mix in zip(log_h, log_q, log_mix, strict=True)]  # Eq. (10)
        first = float(gamma[1].mean()) - float(share @ gamma[0])  # Eq. (7)
        second = (1.0 - alpha) * float(share @ eta[0] ** 2) + alpha * float((eta[1] ** 2).mean())  # Eq. (8), >= 0
        return first, second

    return bracketed_newton(derivatives)


def newton_inclusive(q: Gaussians, new: Gaussians, X: Array, values: Array, per_part: int) -> float:
    """The alpha that minimises KL(p || (1 - alpha) q + alpha h), by importance sampling from q: [G] Alg. 3."""
    share = np.repeat(q.weights, per_part) / per_part
    log_q, log_h = q.log_density(X), new.log_densities(X)[0]
    ratio = np.where(np.isfinite(values), values - log_q, -np.inf)
    with np.errstate(divide="ignore"):
        w = share * np.exp(ratio - ratio.max())
    w = w / w.sum()

    def derivatives(alpha: float) -> tuple[float, float]:
        log_mix = np.logaddexp(np.log1p(-alpha) + log_q, np.log(alpha) + log_h)
        s = np.exp(log_h - log_mix) - np.exp(log_q - log_mix)
        return -float(w @ s), float(w @ s**2)  # [G] Eq. (24), (25)

    return bracketed_newton(derivatives)


def bracketed_newton(derivatives: Callable[[float], tuple[float, float]], low: float = 1e-6,
                     high: float = 1.0 - 1e-6) -> float:
    """The zero in [low, high] of a rising first derivative: Newton steps, halved brackets where they leave them."""
    if derivatives(low)[0] >= 0.0:
        return 0.0
    if derivatives(high)[0] <= 0.0:
        return high
    alpha = 0.5
    for _ in range(60):
        first, second = derivatives(alpha)
        if first > 0:
            high = alpha
        else:
            low = alpha
        proposal = alpha - first / second if second > 0 else low
        if not low < proposal < high:
            proposal = 0.5 * (low + high)
        if abs(proposal - alpha) < 1e-10:
            return float(proposal)
        alpha = proposal
    return float(alpha)


def corrective(parts: Gaussians, values: Array, Z: Array) -> Array:
    """The weights that maximise the bound at the nodes ``Z`` of fixed components: convex, by L-BFGS in their logits."""
    K, S = values.shape
    terms = parts.log_densities(parts.at(Z).reshape(K * S, -1))
    finite = np.where(np.isfinite(values), values, values[np.isfinite(values)].min(initial=0.0) - 1e3)

    def objective(logits: Array) -> tuple[float, Array]:
        w = softmax(logits)
        log_q = log_mixture(w, terms)
        residual = (log_q.reshape(K, S) - finite).mean(axis=1)
        slope = residual + np.exp(terms - log_q) @ np.repeat(w / S, S)
        return float(w @ residual), w * (slope - w @ slope)

    start = np.log(np.maximum(parts.weights, 1e-9))
    return np.asarray(softmax(scipy_optimize.minimize(objective, start, jac=True, method="L-BFGS-B").x))


def laplacian_boosted(target: Target, first: Gaussians, n_components: int, divergence: str, weights_rule: str,
                      seed: int, watch: Watch) -> tuple[Gaussians, list[BoostStep]]:
    """[G] Algorithm 2 from the Gaussian ``first``, with the weights of Algorithm 1, Algorithm 3 or all refitted."""
    rng = np.random.default_rng(seed)
    Z, q = nodes(SAMPLES, first.dim, seed), first
    values = target.values(q.at(Z)[0])[None]
    steps = [step_of(target, q, Z, watch, values)]
    for _ in range(1, n_components):
        new = residual_peak(target, q, first, rng)
        X = q.at(Z).reshape(-1, first.dim)
        new_values = target.values(new.at(Z)[0])
        if not np.isfinite(new_values).any():
            continue
        if divergence == "inclusive":
            alpha = newton_inclusive(q, new, X, values.ravel(), len(Z))
        else:
            alpha = newton_exclusive(q, new, X, values.ravel(), new.at(Z)[0], new_values)
        q, values = q.joined(new, alpha), np.concatenate([values, new_values[None]])
        if weights_rule == "corrective":
            q = q.weighted(corrective(q, values, Z))
        steps.append(step_of(target, q, Z, watch, values))
    return q, steps


def residual_peak(target: Target, q: Gaussians, first: Gaussians, rng: np.random.Generator) -> Gaussians:
    """N(eta, H^-1 / 2) at a maximum eta of log(f/q) with Hessian -H: [G] Eq. (17)."""
    spread = np.sqrt(q.weights @ (q.deviations**2 + (q.means - q.weights @ q.means) ** 2))
    low, high = first.means[0] - REACH * first.deviations[0], first.means[0] + REACH * first.deviations[0]
    floor = float(q.log_density(q.means).max()) - FLOOR

    def objective(u: Array) -> tuple[float, Array]:
        value, slope = target.with_slopes(u[None], spread)
        log_q, q_slope = q.with_slopes(u[None])
        if log_q[0] < floor:
            log_q, q_slope = np.array([floor]), np.zeros_like(q_slope)
        if not np.isfinite(value[0]):
            return 1e10, np.zeros_like(u)
        return float(log_q[0] - value[0]), (q_slope - slope)[0]

    found = []
    for attempt in range(STARTS):  # the paper starts at one draw of q; several cost little and miss less
        k = rng.choice(len(q), p=q.weights)
        start = q.means[k] + q.roots[k] @ rng.standard_normal(q.dim)
        if attempt % 2:  # the weight of the first Gaussian may have gone to zero, but not its view
            start = first.means[0] + 0.5 * first.roots[0] @ rng.standard_normal(q.dim)
        found.append(scipy_optimize.minimize(objective, np.clip(start, low, high), jac=True, method="L-BFGS-B",
                                             bounds=list(zip(low, high, strict=True)), options={"maxiter": 60}))
    eta = np.asarray(min(found, key=lambda one: float(one.fun)).x)
    H = -target.hessian_at(eta, spread)
    if q.log_density(eta[None])[0] > floor:
        H = H + differences(lambda x: q.with_slopes(x)[1], eta, 1e-5 * spread)
    found_values, basis = np.linalg.eigh(H * np.outer(spread, spread))  # in units of q's spread
    root = (spread[:, None] * basis) / np.sqrt(2.0 * np.clip(np.abs(found_values), 1.0, 1e8))
    return one_gaussian(eta, root)
