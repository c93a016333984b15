"""What the label of one row says of the label of another: I(y; y*) where (s, s*) is a pair of Gaussians.

    P(y, y*) = E p(y|s) p(y*|s*) = sum_k r^k a_k(y) b_k(y*)        a_k(y) = E p(y | m + sqrt(v) z) h_k(z)

with r the correlation and h_k the normalised Hermite polynomials (Mehler's formula): the coefficients belong to one row
each, so that a pair costs a few multiplications. The rest of the sum is at most |r|^K times the root of the variances
that the first K coefficients leave, of both rows; pairs where that is not small are integrated directly.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from klimb.active.bald import divergence_term
from klimb.active.inclusion import expected_gamma, plain_site
from klimb.active.pool import Index
from klimb.errors import InputError
from klimb.numerics.arrays import Array, pieces, slices
from klimb.sites.base import Site

TERMS = 48
NODES, REACH = 241, 9.0
CLOSE_ENOUGH = 1e-7  # bound on what the terms beyond the last may add to a joint probability
AT_ONCE = 1 << 15  # pairs
DIRECT_AT_ONCE = 1 << 9
LARGEST = 1.0 - 1e-12  # of a correlation: rows that equal a target


def epig(site: Site, m: Array, v: Array, target_m: Array, target_v: Array, covariance: Array) -> Array:
    """Expected predictive information gain: I(y_i; y_t) averaged over the targets, in nats.

    ``covariance`` is n x T, between the latent values of candidates and targets. Classes are summed over exactly. For
    other sites both observations are taken for Gaussian ones of the precision that they are expected to add, which is
    exact for a Gaussian likelihood.

    >>> from klimb.sites import Gaussian
    >>> one = np.ones(1)
    >>> epig(Gaussian(scale=1.0), 0 * one, one, 0 * one, one, np.array([[0.5]])).round(8).tolist()
    [0.03226926]
    """
    if any(np.ndim(getattr(plain_site(site), name)) for name in plain_site(site).per_datum):
        raise InputError("EPIG needs a site with the same parameters for candidates and targets",
                         f"{type(site).__name__} with one per datum", 'Use score="bald".')
    spread = np.sqrt(np.multiply.outer(v, target_v))
    r = np.divide(covariance, spread, out=np.zeros_like(covariance), where=spread > 0.0)
    r = np.clip(r, -LARGEST, LARGEST)
    plain = plain_site(site)
    if plain.response != "classes":
        return _gaussian(site, m, v, target_m, target_v, r)
    total = np.zeros(len(m))
    mine, theirs = _coefficients(plain, m, v), _coefficients(plain, target_m, target_v)
    for rows in slices(len(m), max(1, AT_ONCE // max(len(target_m), 1))):
        part = tuple(piece[:, rows] for piece in mine)
        total[rows] = _class_pairs(plain, (m[rows], v[rows]), (target_m, target_v), part, theirs, r[rows]).mean(axis=1)
    return total


def _gaussian(site: Site, m: Array, v: Array, target_m: Array, target_v: Array, r: Array) -> Array:
    """-log(1 - r^2 R R*) / 2 with R = gamma v / (1 + gamma v), the share of signal in an observation's variance."""
    own, other = expected_gamma(site, m, v) * v, expected_gamma(site, target_m, target_v) * target_v
    signal = np.multiply.outer(own / (1.0 + own), other / (1.0 + other))
    return np.asarray(-0.5 * np.log1p(-r * r * signal).mean(axis=1))


@lru_cache(maxsize=1)
def _hermite_rule() -> tuple[Array, Array]:
    """Nodes z, and h_k(z) times the weight of the trapezoid rule, (TERMS + 1) x NODES."""
    z = np.linspace(-REACH, REACH, NODES)
    weight = (z[1] - z[0]) * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    h = np.empty((TERMS + 1, NODES))
    h[0], h[1] = 1.0, z
    for k in range(1, TERMS):
        h[k + 1] = (z * h[k] - np.sqrt(k) * h[k - 1]) / np.sqrt(k + 1.0)
    return np.asarray(z, dtype=np.float64), h * weight


def _coefficients(site: Site, m: Array, v: Array) -> tuple[Array, Array]:
    """a_k(y), (classes, rows, TERMS + 1), and the variance of p(y|s) that they leave, (classes, rows)."""
    z, rule = _hermite_rule()
    labels, sd = site.labels(), np.sqrt(v)
    found = np.empty((len(labels), len(m), TERMS + 1))
    rest = np.empty((len(labels), len(m)))
    for rows in pieces(np.arange(len(m)), 1024):
        for k, label in enumerate(labels):
            y = np.full(rows.size, label)
            with np.errstate(under="ignore"):
                p = np.exp(site.point(y, m[rows] + np.multiply.outer(z, sd[rows])).value + site.constant(y))
            found[k, rows] = (rule @ p).T
            rest[k, rows] = np.maximum(rule[0] @ (p * p) - np.square(found[k, rows]).sum(axis=1), 0.0)
    return found, rest


def _class_pairs(site: Site, mine: tuple[Array, Array], theirs: tuple[Array, Array], own: tuple[Array, ...],
                 other: tuple[Array, ...], r: Array) -> Array:
    """I(y_i; y_t) for all pairs."""
    (a, a_rest), (b, b_rest) = own, other
    total = np.zeros_like(r)
    tail = np.abs(r) ** (TERMS + 1) * np.sqrt(np.multiply.outer(a_rest.max(axis=0), b_rest.max(axis=0)))
    far = tail > CLOSE_ENOUGH
    binary = len(a) == 2
    once = _excess(a[1], b[1], r) if binary else None  # of two classes each says what the other lacks
    for j in range(len(a)):
        for k in range(len(b)):
            excess = (once if j == k else -once) if once is not None else _excess(a[j], b[k], r)
            total += _term(np.multiply.outer(a[j, :, 0], b[k, :, 0]), excess)
    if far.any():
        rows, targets = np.nonzero(far)
        total[rows, targets] = _direct(site, mine, theirs, rows, targets, r[rows, targets])
    return np.maximum(total, 0.0)


def _excess(a: Array, b: Array, r: Array) -> Array:
    """sum_k r^k a_k b_k over k >= 1, by Horner's rule."""
    total = np.multiply.outer(a[:, -1], b[:, -1])
    for k in range(TERMS - 1, 0, -1):
        total *= r
        total += np.multiply.outer(a[:, k], b[:, k])
    total *= r
    return np.asarray(total)


def _term(independent: Array, excess: Array) -> Array:
    """P log(P / Q) - P + Q with Q = ``independent`` and P = Q + ``excess``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log_q = np.log(independent)
        ratio = np.where(independent > 0.0, excess / np.where(independent > 0.0, independent, 1.0), 0.0)
        return divergence_term(log_q + np.log1p(np.maximum(ratio, -1.0)), log_q)


def _direct(site: Site, mine: tuple[Array, Array], theirs: tuple[Array, Array], rows: Index, targets: Index, r: Array
            ) -> Array:
    """The same by quadrature over s* of E p(y|s) given s*, for pairs that hardly differ."""
    z, rule = _hermite_rule()
    labels = site.labels()
    out = np.empty(len(r))
    for part in slices(len(r), DIRECT_AT_ONCE):
        i, t, rho = rows[part], targets[part], r[part]
        star = theirs[0][t] + np.multiply.outer(z, np.sqrt(theirs[1][t]))
        mean = mine[0][i] + np.multiply.outer(z, rho * np.sqrt(mine[1][i]))
        spread = np.broadcast_to(mine[1][i] * (1.0 - rho * rho), mean.shape)
        p = site.class_probabilities(mean.ravel(), np.ascontiguousarray(spread).ravel()).reshape(*mean.shape, -1)
        total = np.zeros(len(i))
        for label in labels:
            y = np.full(len(t), label)
            q = np.exp(site.point(y, star).value + site.constant(y))
            q_mean = rule[0] @ q
            for j in range(len(labels)):
                p_mean = rule[0] @ p[:, :, j]
                total += _term(p_mean * q_mean, rule[0] @ ((p[:, :, j] - p_mean) * (q - q_mean)))
        out[part] = total
    return out
