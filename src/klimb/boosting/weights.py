"""The weight of a new component by Newton ([G] Alg. 1 and 3), and all weights at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from klimb.boosting.gaussians import Gaussians, log_mixture
from klimb.numerics.arrays import Array


def newton_exclusive(weights: Array, parts: Gaussians, new: Gaussians, X: Array, values: Array, X_new: Array,
                     values_new: Array) -> float:
    """The alpha that minimises KL((1 - alpha) q + alpha h || p): [G] Alg. 1, with Eq. (8) as an average over q_t.

    ``X`` are nodes of the components in order, equally many each; ``X_new`` nodes of ``new``.
    """
    share = np.repeat(weights, len(X) // len(weights)) / (len(X) // len(weights))
    log_q = [log_mixture(weights, parts.log_densities(points)) for points in (X, X_new)]
    log_h = [new.log_densities(points)[0] for points in (X, X_new)]
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


def newton_inclusive(weights: Array, parts: Gaussians, new: Gaussians, X: Array, values: Array, per_part: int) -> float:
    """The alpha that minimises KL(p || (1 - alpha) q + alpha h), by importance sampling from q: [G] Alg. 3."""
    share = np.repeat(weights, per_part) / per_part
    log_q, log_h = log_mixture(weights, parts.log_densities(X)), new.log_densities(X)[0]
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
    """The zero in [low, high] of a rising first derivative: Newton steps, halved brackets where they leave them.

    >>> round(bracketed_newton(lambda a: (a - 0.3, 1.0)), 9)
    0.3
    """
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


def corrective(weights: Array, parts: Gaussians, values: Array, Z: Array, iterations: int = 200) -> Array:
    """The weights that maximise the bound at the nodes ``Z`` of fixed components: convex, exponentiated gradients."""
    K, S = values.shape
    terms = parts.log_densities(parts.at(Z).reshape(K * S, -1))
    finite = np.where(np.isfinite(values), values, values[np.isfinite(values)].min(initial=0.0) - 1e3)
    w = np.maximum(weights, 1e-9)
    w = w / w.sum()
    best, best_bound, rate = w, -np.inf, 1.0
    for _ in range(iterations):
        residual = (log_mixture(w, terms).reshape(K, S) - finite).mean(axis=1)
        bound = -float(w @ residual)
        if bound > best_bound:
            change = bound - best_bound
            best, best_bound = w, bound
            if change < 1e-9:
                break
        else:
            rate *= 0.5
            w = best
            residual = (log_mixture(w, terms).reshape(K, S) - finite).mean(axis=1)
        logits = np.log(np.maximum(w, 1e-300)) - rate * (residual - float(w @ residual))
        w = np.exp(logits - logits.max())
        w /= w.sum()
    return np.asarray(best)
