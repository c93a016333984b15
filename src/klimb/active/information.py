"""Mutual information: I(y; s) of a label and its latent value s ~ N(m, v), I(y; y*) of the labels of two rows.

    I(y; s) = H[E p(y|s)] - E H[p(y|s)] = E KL(p(.|s) || E p(.|s))

The second form is a mean of terms p (r + e^-r - 1), r = log p(y|s) - log E p(y|s), never negative: the information
keeps its relative accuracy however small it is. Counts are summed over: the first few one by one, the rest by
Gauss-Legendre rules on growing panels (Euler and Maclaurin). Of numbers, predictive quantiles stand for y: good to a
percent or two.

Of two rows whose latent values (s, s*) are Gaussian with correlation r (Mehler's formula, h_k Hermite polynomials)

    P(y, y*) = E p(y|s) p(y*|s*) = sum_k r^k a_k(y) b_k(y*)        a_k(y) = E p(y | m + sqrt(v) z) h_k(z)

The rest after K terms is at most |r|^K times the root of the variances that they leave, of both rows; pairs where that
is not small are integrated directly.
"""

from functools import lru_cache, singledispatch

import numpy as np
from scipy.special import factorial, log_expit

from klimb.active.inclusion import expected_gamma, plain_site, response_nodes
from klimb.errors import InputError
from klimb.numerics.adaptive import gaussian_average
from klimb.numerics.arrays import Array, Index, as_float, pieces, slices
from klimb.numerics.softplus import folded_moments
from klimb.numerics.special import hermite, legendre
from klimb.sites import Gaussian, Logistic, Offset, Site, SuperGaussian

ACCURACY = 1e-10  # relative, of an average
RARE = 2e-12  # probability of either tail that is left out of a sum over counts
ONE_BY_ONE = 64
GROWTH, NODES = 1.4, 12  # of the panels beyond these, and nodes in each
NARROW = 0.02  # v up to which a few nodes give every digit, and the closed form of the logistic begins to cancel
POINTS = 1 << 15
TERMS = 48
HERMITE_NODES, HERMITE_REACH = 241, 9.0
CLOSE_ENOUGH = 1e-7  # bound on what the terms beyond the last may add to a joint probability
AT_ONCE = 1 << 15  # pairs
DIRECT_AT_ONCE = 1 << 9
LARGEST = 1.0 - 1e-12  # of a correlation: rows that equal a target


def divergence_term(log_p: Array, log_mean: Array) -> Array:
    """p log(p / q) - p + q >= 0 for p = exp(log_p), q = exp(log_mean), with relative accuracy where p is close to q."""
    r = log_p - log_mean
    small = np.abs(r) < 0.03
    near = np.where(small, r, 0.0)
    series = np.zeros_like(near)
    for k in range(10, 2, -1):  # r + e^-r - 1 = r^2/2 (1 - r/3 (1 - r/4 (1 - ...)))
        series = near / k * (1.0 - series)
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        p, q = np.exp(log_p), np.exp(log_mean)
        far = np.where(p > 0.0, p * r, 0.0) + (q - p)
        return np.where(small, p * (0.5 * near * near) * (1.0 - series), far)


def number_information(site: Site, m: Array, v: Array) -> Array:
    """I(y; s) for a site of counts or numbers, each marginal N(m, v) by itself."""
    out = np.zeros_like(m)
    rest = np.arange(m.size)
    if site.response == "counts":
        low, high = (site.response_quantile(p, m, v) for p in (RARE, 1.0 - RARE))
        finite = np.isfinite(high)
        rows = np.flatnonzero(finite)
        if rows.size:
            out[rows] = _summed(site.rows(rows), m[rows], v[rows], low[rows], high[rows])
        rest = np.flatnonzero(~finite)
    if rest.size:
        some, m, v = site.rows(rest), m[rest], v[rest]
        for weight, y in response_nodes(some, m, v):
            out[rest] += weight * _divergence(some, y, m, v, relative=True)
    return out


def _summed(site: Site, m: Array, v: Array, low: Array, high: Array) -> Array:
    """Sum over y of p(y) KL(p(s|y) || p(s))."""
    total = np.zeros_like(m)

    def add(rows: Index, y: Array, weight: float) -> None:
        total[rows] += weight * _divergence(site.rows(rows), y, m[rows], v[rows], relative=False)

    for k in range(min(int((high - low).max()) + 1, ONE_BY_ONE)):
        rows = np.flatnonzero(low + k <= high)
        add(rows, low[rows] + k, 1.0)
    rows = np.flatnonzero(low + ONE_BY_ONE <= high)
    if rows.size:  # f(a) + f(a + 1) + ... = int f from a - 1/2, + f'(a - 1/2) / 24 - ...
        add(rows, low[rows] + ONE_BY_ONE, 1.0 / 24.0)
        add(rows, low[rows] + ONE_BY_ONE - 1.0, -1.0 / 24.0)
    begin, width = ONE_BY_ONE - 0.5, (GROWTH - 1.0) * ONE_BY_ONE
    while rows.size:
        for x, w in zip(*legendre(NODES), strict=True):
            add(rows, low[rows] + begin + x * width, w * width)
        begin, width = begin + width, GROWTH * width
        rows = rows[low[rows] + begin < high[rows]]
    return total


def _divergence(site: Site, y: Array, m: Array, v: Array, *, relative: bool) -> Array:
    """KL(p(s|y) || p(s)), or that times p(y): E of q log q - q + 1 with q = p(y|s) / p(y), which may have a peak."""
    log_mean = site.log_predictive(y, m, v)
    log_mean = np.where(np.isfinite(log_mean), log_mean, -1e300)  # an observation that never happens
    log_scale = log_mean if relative else np.zeros_like(m)

    def terms(rows: Index, s: Array) -> Array:
        here = site.rows(rows)
        with np.errstate(all="ignore"):
            log_p = here.point(y[rows], s).value + np.broadcast_to(here.constant(y[rows]), rows.shape)
        return np.nan_to_num(divergence_term(log_p - log_scale[rows], (log_mean - log_scale)[rows])[None], nan=0.0)

    slope, gamma = site.start(y)
    narrow = v / (1.0 + gamma * v)
    peak = m + narrow * (slope - gamma * m), np.sqrt(narrow)
    return np.asarray(gaussian_average(terms, m, v, 1, tolerance=ACCURACY, peak=peak)[0])


def bald(site: Site, m: Array, v: Array) -> Array:
    """I(y; s) in nats for each marginal N(m, v), 0 where v is 0.

    >>> from klimb.sites import Logistic
    >>> bald(Logistic(), np.array([0.0, 4.0]), np.array([1.0, 1.0])).round(8).tolist()
    [0.09370896, 0.01287376]
    """
    m, v = as_float(m, "m"), as_float(v, "v")
    if m.shape != v.shape or (v < 0.0).any():
        raise InputError("m and v must be as many means and variances", f"{m.size} and {v.size}, the least variance "
                         f"{v.min(initial=0.0):g}", "Pass one of each per candidate.")
    out = np.zeros_like(m)
    open_ = np.flatnonzero(v > 0.0)
    if open_.size == m.size:
        return np.maximum(information(site, m, v), 0.0)
    if open_.size:
        out[open_] = np.maximum(information(site.rows(open_), m[open_], v[open_]), 0.0)
    return out


@singledispatch
def information(site: Site, m: Array, v: Array) -> Array:
    """The rule for a kind of site; this one serves all that have no closed form."""
    if not site.separable or site.response == "mixed":
        raise InputError("BALD needs a site with classes, counts or numbers and one latent value per datum",
                         type(site).__name__, "Use Logistic, Probit, Poisson, Gaussian or a Custom site.")
    return _class_information(site, m, v) if site.response == "classes" else number_information(site, m, v)


@information.register
def _(site: SuperGaussian, m: Array, v: Array) -> Array:
    return information(site.site, m, v)


@information.register
def _(site: Offset, m: Array, v: Array) -> Array:
    return information(site.site, m + site.offset, v)


@information.register
def _(site: Gaussian, m: Array, v: Array) -> Array:
    return np.asarray(0.5 * np.log1p(v / np.broadcast_to(np.asarray(site.scale) ** 2, v.shape)))


@information.register
def _(site: Logistic, m: Array, v: Array) -> Array:
    """H(sigmoid(s)) = softplus(s) - s sigmoid(s), and E s sigmoid(s) = m E sigmoid + v E sigmoid'."""
    out = np.empty_like(m)
    narrow = v <= NARROW
    some = np.flatnonzero(narrow)
    if some.size:
        out[some] = _narrow_logistic(m[some], v[some])
    some = np.flatnonzero(~narrow)
    if some.size:
        mean, wide = -np.abs(m[some]), v[some]
        softplus, p, curvature = folded_moments(mean, wide)
        with np.errstate(divide="ignore", invalid="ignore"):
            marginal = -np.where(p > 0.0, p * np.log(p), 0.0) - (1.0 - p) * np.log1p(-p)
        out[some] = marginal - np.maximum(softplus - mean * p - wide * curvature, 0.0)
    return out


def _narrow_logistic(m: Array, v: Array) -> Array:
    """E KL(Bernoulli(sigmoid(s)) || its mean) on a few nodes."""
    z, weight = hermite(12)
    out = np.empty_like(m)
    for part in slices(m.size, max(1, POINTS // z.size)):
        mean = -np.abs(m[part])
        s, average = mean + np.sqrt(v[part]) * z[:, None], folded_moments(mean, v[part])[1]
        with np.errstate(divide="ignore"):
            out[part] = weight @ (divergence_term(log_expit(s), np.log(average))
                                  + divergence_term(log_expit(-s), np.log1p(-average)))
    return out


def _class_information(site: Site, m: Array, v: Array) -> Array:
    labels = site.labels()
    marginal = [site.log_predictive(np.full_like(m, label), m, v) for label in labels]

    def terms(rows: Index, s: Array) -> Array:
        here = site.rows(rows)
        total = np.zeros_like(s)
        for label, log_mean in zip(labels, marginal, strict=True):
            y = np.full(rows.size, label)
            total += divergence_term(here.point(y, s).value + here.constant(y), log_mean[rows])
        return total[None]

    return np.asarray(gaussian_average(terms, m, v, 1, tolerance=ACCURACY)[0])


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
    plain = plain_site(site)
    if any(np.ndim(getattr(plain, name)) for name in plain.per_datum):
        raise InputError("EPIG needs a site with the same parameters for candidates and targets",
                         f"{type(site).__name__} with one per datum", 'Use score="bald".')
    spread = np.sqrt(np.multiply.outer(v, target_v))
    r = np.divide(covariance, spread, out=np.zeros_like(covariance), where=spread > 0.0)
    r = np.clip(r, -LARGEST, LARGEST)
    if plain.response != "classes":  # -log(1 - r^2 R R*) / 2 with R = gamma v / (1 + gamma v), the share of signal
        own, other = expected_gamma(site, m, v) * v, expected_gamma(site, target_m, target_v) * target_v
        signal = np.multiply.outer(own / (1.0 + own), other / (1.0 + other))
        return np.asarray(-0.5 * np.log1p(-r * r * signal).mean(axis=1))
    total = np.zeros(len(m))
    mine, theirs = _coefficients(plain, m, v), _coefficients(plain, target_m, target_v)
    for rows in slices(len(m), max(1, AT_ONCE // max(len(target_m), 1))):
        part = tuple(piece[:, rows] for piece in mine)
        total[rows] = _class_pairs(plain, (m[rows], v[rows]), (target_m, target_v), part, theirs, r[rows]).mean(axis=1)
    return total


@lru_cache(maxsize=1)
def _hermite_rule() -> tuple[Array, Array]:
    """Nodes z, and h_k(z) times the weight of the trapezoid rule, (TERMS + 1) x HERMITE_NODES."""
    z = np.linspace(-HERMITE_REACH, HERMITE_REACH, HERMITE_NODES)
    weight = (z[1] - z[0]) * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    h = np.polynomial.hermite_e.hermevander(z, TERMS) / np.sqrt(factorial(np.arange(TERMS + 1)))
    return np.asarray(z, dtype=np.float64), np.ascontiguousarray(h.T) * weight


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
