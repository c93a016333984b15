"""The log weight of a draw: log p(y, f) - log q(f), and its gradient in the standard coordinates of q.

q has precision K^-1 + diag(gamma) and mean mu + K a, so prior and q together leave one term per site:

    log w(z) = sum_i [ log p(y_i | m_i + d_i) - a_i d_i + gamma_i d_i^2 / 2 ] - [ a'(m - mu) + log det(I + K G) ] / 2

with d = Z z. No inverse and no determinant of the prior appears. Its mean under q is the bound. At the optimum of the
bound the terms have no part that is linear or quadratic in d: what is left, of third order and higher, is exactly what
a Gaussian cannot say.
"""

from functools import lru_cache

import numpy as np

from klimb.infer.problem import Problem, expectations
from klimb.latents.base import Posterior
from klimb.latents.coordinates import Coordinates
from klimb.numerics.arrays import Array, slices
from klimb.sites.base import Site
from klimb.sites.local import SuperGaussian
from klimb.sites.wrappers import Point

NODES = (-1.0, 0.0, 1.0)  # of a site's range, where value, slope and curvature make a polynomial of degree 8
ENOUGH = 6  # draws from which that is cheaper than the oracle at each
SAME = 1e-8  # nats per site up to which a bound by a cheaper oracle is the same
IN_CACHE = 32768  # numbers of a block of them
AHEAD = 0.1  # a step in f, in its sds
SHARP = 1e-3  # two highest coefficients of it, from which a site has the oracle after all; errors are some hundredths


def exact_site(site: Site) -> Site:
    """The likelihood itself, where a method saw it at a point (Laplace) or through a local bound."""
    while isinstance(site, Point | SuperGaussian):
        site = site.site
    return site


def bends(site: Site, y: Array, q: Posterior) -> tuple[Array, Array]:
    """E_q d^3 log p / df^3 and E_q d^4 log p / df^4 of every datum."""
    step = AHEAD * np.sqrt(np.maximum(q.v, 1e-300))
    down, here, up = (expectations(site, y, q.m + move, q.v).gamma for move in (-step, 0.0, step))
    return (down - up) / (2.0 * step), (2.0 * here - up - down) / step**2


def most_variance(site: Site, y: Array, q: Posterior, enough: float) -> float:
    """What the variance of log w is at most, for a concave log p; what is ``enough`` is not made smaller.

    q leaves out what log p has beyond its second derivatives, sum_i gamma_i' He_3(f_i) / 6 + gamma_i'' He_4(f_i) / 24.
    Its variance is the sum over i and j of gamma_i' gamma_j' V_ij^3 / 6 + gamma_i'' gamma_j'' V_ij^4 / 24, and V_ij^3
    is at most V_ij^2 times the largest variance: g'(V o V) g, which takes a pass over the rows. That is the squared
    norm of V^1/2 diag(g) V^1/2, so at most c g'v where g <= c gamma, as V^1/2 diag(gamma) V^1/2 <= 1: that takes none.
    """
    largest = float(q.v.max())
    third, fourth = map(np.abs, bends(site, y, q))
    each = third * np.sqrt(largest / 6.0) + fourth * largest / np.sqrt(24.0)
    with np.errstate(over="ignore"):
        share = float((each / np.maximum(q.gamma, np.finfo(float).tiny)).max())
    simple = share * float(each @ q.v)
    exact = None if simple <= enough or q.factor is None else q.factor.energy_of_squares(each)
    return simple if exact is None else exact


class LogWeights:
    """log w and its gradient for draws in standard coordinates; ``mean``, its expectation under q, is the bound."""

    def __init__(self, problem: Problem, posterior: Posterior, coordinates: Coordinates,
                 bound: float = np.nan) -> None:
        self.posterior, self.coordinates = posterior, coordinates
        self.site, self.y = exact_site(problem.site), problem.y
        latent = posterior.latent
        self._slack = latent.slack if np.any(latent.slack > 0) else None
        variance_term = float(posterior.gamma @ (posterior.v - latent.slack))
        if latent.by_products:  # a flat prior has neither mean nor determinant, but its KL has what matters of both
            self.offset = problem.constant - posterior.kl - 0.5 * variance_term
        else:
            mean_term = float(posterior.a @ (posterior.m - latent.mean))
            self.offset = problem.constant - 0.5 * (mean_term + posterior.factorised().logdet)
        rest, site = self.offset + 0.5 * variance_term, self.site if np.isnan(bound) else self.site.rough()
        self.expectation = site.oracle(self.y, posterior.m, posterior.v)
        self.mean = float(self.expectation.value.sum()) + rest
        if site is not self.site and abs(self.mean - bound) <= SAME * len(self.y):
            self.mean = bound
        elif site is not self.site:  # that of another method
            self.expectation = self.site.oracle(self.y, posterior.m, posterior.v)
            self.mean = float(self.expectation.value.sum()) + rest
        self.stationarity = _stationarity(posterior, self.expectation.alpha, self.expectation.gamma)

    def __call__(self, z: Array) -> tuple[Array, Array]:
        """(log w, its gradient) for each row of ``z``: shapes (S,) and (S, dim)."""
        total = np.full(len(z), self.offset)
        quadratic = self.coordinates.excess(z)
        gamma = self.posterior.gamma if quadratic is None else np.zeros_like(self.posterior.gamma)

        def visit(rows: slice, d: Array) -> Array:
            value, slope = self._terms(rows, d, gamma[rows])
            np.add(total, value, out=total)
            return slope

        if self.site.separable:
            gradient = self.coordinates.sweep(z, visit)
        else:  # a datum's latent values lie far apart in the order of the sites
            gradient = self.coordinates.pull(visit(slice(0, self.coordinates.n_sites), self.coordinates.deviations(z)))
        if quadratic is not None:
            total += quadratic[0]
            gradient += quadratic[1]
        return total, gradient

    @property
    def plain(self) -> bool:
        """Whether log w hangs on f at the sites alone, each by itself."""
        return self.site.separable and self.coordinates.excess(np.zeros((1, self.coordinates.dim))) is None

    def at(self, d: Array) -> tuple[Array, Array]:
        """log w and its slopes for deviations of f at all sites, one draw a row, where it is `plain`."""
        value, slopes = self._terms(slice(0, len(self.y)), d, self.posterior.gamma)
        return value + self.offset, slopes

    def _terms(self, rows: slice, d: Array, gamma: Array) -> tuple[Array, Array]:
        """Sums over a block of sites for deviations (draws x sites), and the slope of each term."""
        a, f = self.posterior.a[rows], self.posterior.m[rows] + d
        with np.errstate(over="ignore", invalid="ignore"):
            value, alpha = self._log_density(rows, f)
            total = value.sum(axis=1)
            slope = gamma * d
            total += 0.5 * np.einsum("ij,ij->i", slope, d)
            total -= d @ a
            slope -= alpha
            slope -= a
        lost = ~np.isfinite(total)
        if lost.any():  # draws that the data rule out: weight zero, and no slope
            total[lost], slope[lost] = -np.inf, 0.0
        return np.asarray(total), slope

    def _log_density(self, rows: slice, f: Array) -> tuple[Array, Array]:
        """log p(y|f) and minus its slope; where f has unexplained variance, their expectation over that."""
        site, y = (self.site.rows(rows), self.y[rows]) if self.site.separable else (self.site, self.y)
        if self._slack is None:
            e = site.point(y, f)
            return e.value, e.alpha
        return expected(site, y, f, self._slack[rows])


@lru_cache(maxsize=1)
def _coefficients() -> Array:
    """From value, slope and curvature at `NODES` to the coefficients of the polynomial that has them."""
    k = np.arange(3 * len(NODES))
    rows = [[x**k, k * x ** np.maximum(k - 1, 0), k * (k - 1) * x ** np.maximum(k - 2, 0)] for x in NODES]
    return np.linalg.inv(np.concatenate(rows))


def expected(site: Site, y: Array, f: Array, v: Array, *, slopes: bool = True) -> tuple[Array, Array]:
    """E log p(y | f + e), e ~ N(0, v), and minus its slope (if asked for) at every row of ``f`` (draws x sites).

    The oracle at three points tells a concave site at all draws, but for those whose polynomial has not converged.
    """
    if len(f) < ENOUGH or not (site.separable and site.log_concave):
        parts = [site.oracle(y, row, v) for row in f]
        return np.array([e.value for e in parts]), np.array([e.alpha for e in parts])
    low, high, site = f.min(axis=0), f.max(axis=0), site.rough()
    centre, reach = 0.5 * (low + high), np.maximum(0.5 * (high - low), 1e-150)
    every = np.tile(np.arange(len(y)), len(NODES))  # one call, as a call for few sites costs more for each
    e = site.rows(every).oracle(y[every], np.ravel(centre + np.multiply.outer(NODES, reach)), v[every])
    told = np.stack([e.value, -reach[every] * e.alpha, -(reach[every] ** 2) * e.gamma])
    polynomial = _coefficients() @ told.reshape(3, len(NODES), -1).swapaxes(0, 1).reshape(3 * len(NODES), -1)
    value, slope, inverse = np.empty_like(f), np.empty_like(f), 1.0 / reach
    for some in slices(f.shape[1], max(IN_CACHE // len(f), 1)):
        s = f[:, some] - centre[some]
        s *= inverse[some]
        height, rise = np.tile(polynomial[-1, some], (len(f), 1)), np.zeros_like(s)
        for coefficient in polynomial[-2::-1, some]:
            if slopes:
                rise *= s
                rise += height
            height *= s
            height += coefficient
        value[:, some] = height
        np.multiply(rise, -inverse[some], out=slope[:, some])
    sharp = np.flatnonzero(~(np.abs(polynomial[-2:]).sum(axis=0) < SHARP))
    if sharp.size:
        every = np.tile(sharp, len(f))
        e = site.rows(every).oracle(y[every], f[:, sharp].ravel(), v[every])
        value[:, sharp], slope[:, sharp] = e.value.reshape(len(f), -1), e.alpha.reshape(len(f), -1)
    return value, slope


def _stationarity(posterior: Posterior, alpha: Array, gamma: Array) -> float:
    """How far q is from an optimum of the bound, free of scale: for Laplace's or EP's posterior it is not small."""
    with np.errstate(invalid="ignore", over="ignore"):
        first = np.sqrt(posterior.v) * np.abs(posterior.a + alpha)
        second = posterior.v * np.abs(posterior.gamma - gamma)
    worst = float(max(first.max(), second.max()))
    return worst if np.isfinite(worst) else float("inf")
