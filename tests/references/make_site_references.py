"""Write site_references.npz: E log p(y|f), -E d/df, -E d2/df2 under N(m, v) to 20 digits and more, for every site.

Run by hand: ``python tests/references/make_site_references.py [site ...]``. Nothing here uses klimb. Closed forms are
evaluated with mpmath; the rest is adaptive Gauss-Legendre quadrature in 34 digits over an interval found by a scan of
the integrand. Every quadrature is done twice with different panels and nodes, and the two must agree.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpmath import mp, mpf

mp.dps = 36
HERE = Path(__file__).parent
Triple = tuple[mpf, mpf, mpf]
# f -> log p(y|f), its first and its second derivative, and the sizes of the terms that cancel in the first two, if any
Density = Callable[[mpf], tuple[mpf, ...]]


# -- the integrals ---------------------------------------------------------------------------------------------------


def legendre(n: int) -> list[tuple[mpf, mpf]]:
    """Nodes and weights on (-1, 1) by Newton's method from the double precision ones."""
    rule = []
    for start in np.polynomial.legendre.leggauss(n)[0]:
        x = mpf(float(start))
        for _ in range(4):
            p0, p1 = mpf(1), x
            for k in range(2, n + 1):
                p0, p1 = p1, ((2 * k - 1) * x * p1 - (k - 1) * p0) / k
            slope = n * (x * p1 - p0) / (x * x - 1)
            x -= p1 / slope
        rule.append((x, 2 / ((1 - x * x) * slope**2)))
    return rule


RULES = {n: legendre(n) for n in (20, 27)}


class Integral:
    """The expectations (and absolute moments) of one datum."""

    def __init__(self, density: Density, m: float, v: float, features: list[float]) -> None:
        self.density, self.m, self.v = density, mpf(m), mpf(v)
        self.s = mp.sqrt(self.v)
        self.features = [mpf(c) for c in features]

    def integrand(self, f: mpf) -> list[mpf]:
        z = (f - self.m) / self.s
        weight = mp.exp(-z * z / 2) / (self.s * mp.sqrt(2 * mp.pi))
        g, g1, g2, *sizes = self.density(f)
        a, b, c = g * weight, -g1 * weight, -g2 * weight
        size_a, size_b = (sizes[0] * weight, sizes[1] * weight) if sizes else (abs(a), abs(b))
        return [a, b, c, size_a, size_b, abs(c), abs(b * z) / self.s]

    def scan(self, shift: float) -> list[mpf]:
        """Points from the Gaussian, from the features, between the two and from the Gaussians that e^f, e^-f tilt."""
        points = {self.m + self.s * mp.sinh(mpf(k + shift) / 8) / 3 for k in range(-45, 46)}
        for c in self.features:
            points |= {c + mp.sinh(mpf(k + shift) / 4) / 4 for k in range(-24, 25)}
            points |= {self.m + (c - self.m) * mpf(k + shift) / 40 for k in range(60)}
        if self.v < 1e4:
            points |= {self.m + sign * self.v + self.s * mpf(k + shift) for k in range(-14, 15) for sign in (-1, 1)}
        return sorted(points)

    def limits(self, shift: float) -> list[mpf]:
        grid = self.scan(shift)
        rows = [self.integrand(f)[3:6] for f in grid]
        peaks = [max(row[k] for row in rows) for k in range(3)]
        least = [peak * mpf(10) ** -30 for peak in peaks]
        keep = [i for i, row in enumerate(rows) if any(x > floor for x, floor in zip(row, least, strict=True))]
        first, last = max(keep[0] - 1, 0), min(keep[-1] + 1, len(grid) - 1)
        inside = grid[first:last + 1]
        return [*inside[:-1:12], inside[-1]]

    def solve(self, n: int, shift: float) -> list[mpf]:
        """Adaptive bisection until halves agree with the whole to 1e-17; the halves are then better by many orders."""
        edges = self.limits(shift)
        panels = [(a, b, self.panel(a, b, n)) for a, b in zip(edges[:-1], edges[1:], strict=True)]
        total = [sum(p[2][k] for p in panels) for k in range(7)]
        done = [mpf(0)] * 7
        count = 0
        while panels:
            a, b, whole = panels.pop()
            middle = (a + b) / 2
            left, right = self.panel(a, middle, n), self.panel(middle, b, n)
            count += 1
            error = [abs(whole[k] - left[k] - right[k]) for k in range(3)]
            # The absolute moments of the last rows have kinks and need few digits: they do not steer.
            if count > 3000 or all(error[k] <= mpf(10) ** -17 * max(abs(total[k]), mpf(10) ** -6 * total[3 + k])
                                   for k in range(3)):
                done = [d + x + y for d, x, y in zip(done, left, right, strict=True)]
            else:
                panels += [(a, middle, left), (middle, b, right)]
        if count > 3000:
            raise ArithmeticError(f"the reference at m = {self.m}, v = {self.v} did not converge")
        return done

    def panel(self, a: mpf, b: mpf, n: int) -> list[mpf]:
        half, middle = (b - a) / 2, (a + b) / 2
        total = [mpf(0)] * 7
        for x, weight in RULES[n]:
            row = self.integrand(middle + half * x)
            total = [t + weight * half * r for t, r in zip(total, row, strict=True)]
        return total


def by_quadrature(density: Density, m: float, v: float, features: list[float]) -> list[float]:
    """value, alpha, gamma, E|g|, E|g'|, E|g''|, E|g' z|/s."""
    if v == 0.0:
        g, g1, g2, *sizes = density(mpf(m))
        size, size1 = sizes or (abs(g), abs(g1))
        return [float(x) for x in (g, -g1, -g2, size, size1, abs(g2), abs(g2))]
    first, second = Integral(density, m, v, features).solve(20, 0.0), Integral(density, m, v, features).solve(27, 0.37)
    for k in range(3):
        scale = max(abs(first[k]), mpf(10) ** -6 * first[3 + k])
        if abs(first[k] - second[k]) > mpf(10) ** -17 * scale:
            raise ArithmeticError(f"two references differ: {first[k]} and {second[k]}")
    return [float(x) for x in first]


# -- the densities ---------------------------------------------------------------------------------------------------


def softplus(x: mpf) -> Triple:
    if x > 0:
        value, slope, curvature = softplus(-x)
        return value + x, 1 - slope, curvature
    e = mp.exp(x)
    return mp.log1p(e), e / (1 + e), e / (1 + e) ** 2


def logistic(y: float) -> Density:
    def density(f: mpf) -> Triple:
        value, slope, curvature = softplus(-y * f)
        return -value, y * slope, -curvature

    return density


def successes(y: float, losses: float, shift: mpf, constant: mpf) -> Density:
    """constant - y softplus(-x) - losses softplus(x) with x = f - shift: binomial and negative binomial."""

    def density(f: mpf) -> tuple[mpf, ...]:
        wins, lost = softplus(shift - f), softplus(f - shift)
        value, slope = y * wins[0] + losses * lost[0], y * wins[1] + losses * lost[1]
        return constant - value, y * wins[1] - losses * lost[1], -(y + losses) * lost[2], abs(constant) + value, slope

    return density


def upper(t: mpf) -> mpf:
    """1 - Phi(t)."""
    return mp.erfc(t / mp.sqrt(2)) / 2


def normal(t: mpf) -> mpf:
    return mp.exp(-t * t / 2) / mp.sqrt(2 * mp.pi)


def log_phi(t: mpf) -> Triple:
    value = mp.log1p(-upper(t)) if t > 0 else mp.log(upper(-t))
    ratio = normal(t) / upper(-t)
    return value, ratio, -ratio * (ratio + t)


def probit(y: float) -> Density:
    def density(f: mpf) -> Triple:
        value, slope, curvature = log_phi(y * f)
        return value, y * slope, curvature

    return density


def interval(low: float, high: float) -> Density:
    def density(f: mpf) -> Triple:
        a, b = mpf(low) - f, mpf(high) - f
        if b < 0:
            a, b, sign = -b, -a, -1
        else:
            sign = 1
        mass = upper(a) - upper(b)
        value = mp.log(mass) if a > 0 or b - a < 1 else mp.log1p(-upper(-a) - upper(b))
        slope = (normal(a) - normal(b)) / mass
        return value, sign * slope, (a * normal(a) - b * normal(b)) / mass - slope**2

    return density


def event(f: mpf) -> Triple:
    """log(1 - exp(-e^f))."""
    x = mp.exp(f)
    if x > 1e3:
        miss = mp.exp(-x) if f < 30 else mpf(0)
        return -miss, x * miss, -x * x * miss
    miss, hit = mp.exp(-x), -mp.expm1(-x)
    slope = x * miss / hit
    bend = 1 - x / hit if x > 1e-8 else -x / 2 - x**2 / 12 + x**4 / 720 - x**6 / 30240
    return (mp.log1p(-miss) if x > 1 else mp.log(hit)), slope, slope * bend


def student(y: float, df: float, scale: float) -> Density:
    nu, sigma = mpf(df), mpf(scale)
    constant = mp.loggamma((nu + 1) / 2) - mp.loggamma(nu / 2) - mp.log(nu * mp.pi) / 2 - mp.log(sigma)

    def density(f: mpf) -> Triple:
        x = (f - mpf(y)) / sigma
        spread = nu + x * x
        return (constant - (nu + 1) / 2 * mp.log1p(x * x / nu), -(nu + 1) * x / spread / sigma,
                -(nu + 1) * (nu - x * x) / spread**2 / sigma**2)

    return density


def beta(y: float, precision: float) -> Density:
    phi, value_y = mpf(precision), mpf(y)
    log_y, log_rest = mp.log(value_y), mp.log1p(-value_y)
    top = mp.loggamma(phi)

    def density(f: mpf) -> tuple[mpf, ...]:
        e = mp.exp(-abs(f))
        larger, smaller = 1 / (1 + e), e / (1 + e)
        mu, nu = (larger, smaller) if f > 0 else (smaller, larger)
        p, q, w = phi * mu, phi * nu, larger * smaller
        # psi(p) = psi(1 + p) - 1/p and so on: the poles cancel exactly, which 36 digits would not do in the far tails.
        pull = mp.psi(0, 1 + q) - mp.psi(0, 1 + p) + log_y - log_rest
        # Also what a rounding of y or of the precision changes: near the uniform density all of it cancels.
        terms = (top, -mp.loggamma(p), -mp.loggamma(q), p * log_y, -log_y, q * log_rest, -log_rest)
        slope = nu - mu + phi * w * pull
        bend = phi * w * (nu - mu) * pull - (phi * w) ** 2 * (mp.psi(1, 1 + p) + mp.psi(1, 1 + q)) - 2 * w
        return mp.fsum(terms), slope, bend, mp.fsum(terms, absolute=True), abs(slope)

    return density


def log_linear(y: float, m: float, v: float, slope: mpf, sign: int, rate: mpf, constant: mpf) -> list[float]:
    """E[constant + slope f - rate exp(sign f)], closed form."""
    mean = rate * mp.exp(sign * mpf(m) + mpf(v) / 2)
    value, alpha = constant + slope * mpf(m) - mean, -slope + sign * mean
    sizes = (abs(value), abs(slope) + mean, mean, mean)
    return [float(x) for x in (value, alpha, mean, *sizes)]


def laplace(y: float, m: float, v: float, scale: float) -> list[float]:
    error, b, s = mpf(m) - mpf(y), mpf(scale), mp.sqrt(mpf(v))
    if v == 0.0:
        mean, slope, gamma = abs(error), mpf(mp.sign(error)), mpf(0)
    else:
        a = error / s
        slope = mp.erf(a / mp.sqrt(2))
        mean, gamma = error * slope + 2 * s * normal(a), 2 * normal(a) / (s * b)
    value = -mean / b - mp.log(2 * b)
    size = abs(mean / b) + abs(mp.log(2 * b))
    return [float(x) for x in (value, slope / b, gamma, size, abs(slope) / b, gamma, gamma)]


def exponential_power(y: float, m: float, v: float, scale: float, power: float) -> list[float]:
    """E|x|^p by the confluent hypergeometric function, and its derivatives in the mean."""
    b, p = mpf(scale), mpf(power)
    mu, s = (mpf(m) - mpf(y)) / b, mp.sqrt(mpf(v)) / b
    if v == 0.0:
        mean, slope, bend = (abs(mu) ** p, p * abs(mu) ** (p - 1) * mp.sign(mu), p * (p - 1) * abs(mu) ** (p - 2)
                             ) if mu else (mpf(0), mpf(0), mpf(0))
        kink = abs(bend)
    else:
        z, unit = mu**2 / (2 * s * s), 2 * s * s
        top = mp.gamma((p + 1) / 2) / mp.sqrt(mp.pi)
        mean = top * unit ** (p / 2) * mp.hyp1f1(-p / 2, mpf(1) / 2, -z)
        slope = 2 * p * mu * top * unit ** (p / 2 - 1) * mp.hyp1f1(1 - p / 2, mpf(3) / 2, -z)
        bend = 2 * p * top * unit ** (p / 2 - 1) * mp.hyp1f1(1 - p / 2, mpf(1) / 2, -z)
        kink = 2 * p * top * unit ** (p / 2 - 1) * mp.exp(-z)  # what the negative part is subtracted from, if any
    constant = -mp.log(2 * b) - mp.loggamma(1 + 1 / p)
    size = mean + abs(mp.log(2 * b)) + abs(mp.loggamma(1 + 1 / p))
    gamma = bend / b**2
    return [float(x) for x in (constant - mean, slope / b, gamma, size, abs(slope) / b, abs(gamma) + kink / b**2,
                               abs(gamma) + kink / b**2)]


def gaussian(y: float, m: float, v: float, scale: float) -> list[float]:
    error, b = mpf(m) - mpf(y), mpf(scale)
    value = -(error**2 + mpf(v)) / (2 * b * b) - mp.log(b) - mp.log(2 * mp.pi) / 2
    size = (error**2 + mpf(v)) / (2 * b * b) + abs(mp.log(b)) + 1
    return [float(x) for x in (value, error / b**2, 1 / b**2, size, abs(error) / b**2, 1 / b**2, 1 / b**2)]


def log_binomial(n: mpf, k: mpf) -> mpf:
    return mp.loggamma(n + 1) - mp.loggamma(k + 1) - mp.loggamma(n - k + 1)


# -- the grid --------------------------------------------------------------------------------------------------------


def moments(rng: np.random.Generator, i: int, centre: float = 0.0) -> tuple[float, float]:
    """A mean and a variance: everyday, wide, narrow, far; every seventh is a corner."""
    corners = [(0.0, 0.0), (-300.0, 1e6), (300.0, 1e6), (300.0, 1e-12), (-300.0, 1e-12), (0.0, 1e6), (0.0, 1e-12),
               (5.0, 0.0), (-5.0, 0.0), (-40.0, 30.0), (40.0, 30.0), (-300.0, 290.0), (300.0, 310.0), (30.0, 1.0)]
    if i % 7 == 6 and i // 7 < len(corners):
        return corners[i // 7]
    v = float(10.0 ** rng.uniform(-12, 6)) if i % 3 else float(10.0 ** rng.uniform(-3, 3))
    kind = rng.integers(3)
    if kind == 0:
        m = rng.normal() * 3.0 + centre
    elif kind == 1:
        m = rng.uniform(-300.0, 300.0)
    else:
        m = centre + rng.normal() * 3.0 * np.sqrt(v)
    return float(np.clip(m, -300.0, 300.0)), v


Row = tuple[list[float], float, float, float, list[float]]  # parameters, y, m, v, the seven numbers
Maker = Callable[[np.random.Generator, int], Row]


def rows_of(name: str, count: int) -> list[Row]:
    rng = np.random.default_rng(sum(map(ord, name)))
    rows: list[Row] = []
    for i in range(count):
        rows.append(MAKERS[name](rng, i))
    return rows


def make_binary(density: Callable[[float], Density]) -> Maker:
    def make(rng: np.random.Generator, i: int) -> Row:
        m, v = moments(rng, i)
        y = float(rng.choice((-1.0, 1.0)))
        return [], y, m, v, by_quadrature(density(y), m, v, [0.0])

    return make


def make_cloglog(rng: np.random.Generator, i: int) -> Row:
    m, v = moments(rng, i)
    if i % 5 == 0:
        return [], -1.0, m, v, log_linear(0.0, m, v, mpf(0), 1, mpf(1), mpf(0))
    if i % 2 and v > 0:
        m = float(np.clip(m, -300, 8.0))
    # On the right the integrand exp(-e^f) N(f; m, v) peaks where e^f = (m - f)/v; it may be too small for a float.
    peak = mpf(m) - mp.lambertw(mpf(v) * mp.exp(m)).real
    exponent = mp.exp(peak) + ((mpf(m) - peak) ** 2 / (2 * mpf(v)) if v else 0)
    if m > 0 and exponent > 800:
        return [], 1.0, m, v, [0.0] * 7
    return [], 1.0, m, v, by_quadrature(event, m, v, [0.0, 2.0, 4.0, min(float(peak), 6.0)])


def make_binomial(rng: np.random.Generator, i: int) -> Row:
    trials = float(rng.choice((1, 2, 10, 1000, 1e6)))
    y = float(rng.choice((0.0, trials, np.floor(trials / 2), np.floor(trials * rng.uniform()))))
    centre = float(np.log((y + 0.5) / (trials - y + 0.5)))
    m, v = moments(rng, i, centre)
    density = successes(y, trials - y, mpf(0), log_binomial(mpf(trials), mpf(y)))
    return [trials], y, m, v, by_quadrature(density, m, v, [0.0])


def make_negative_binomial(rng: np.random.Generator, i: int) -> Row:
    size = float(10.0 ** rng.uniform(-2, 4))
    y = float(rng.choice((0.0, 1.0, 5.0, 100.0, 1e4, 1e6)))
    m, v = moments(rng, i, float(np.log(y + 0.5)))
    r = mpf(size)
    density = successes(y, r, mp.log(r), log_binomial(y + r, mpf(y)) - mp.log1p(y / r))
    return [size], y, m, v, by_quadrature(density, m, v, [float(mp.log(r))])


def make_poisson(rng: np.random.Generator, i: int) -> Row:
    exposure = float(rng.choice((1.0, 10.0 ** rng.uniform(-6, 6))))
    y = float(rng.choice((0.0, 1.0, 3.0, 50.0, 1e3, 123456.0, 1e6)))
    m, v = moments(rng, i, float(np.log((y + 0.5) / exposure)))
    rate, count = mpf(exposure), mpf(y)
    return [exposure], y, m, v, log_linear(y, m, v, count, 1, rate, count * mp.log(rate) - mp.loggamma(count + 1))


def make_exponential(rng: np.random.Generator, i: int) -> Row:
    mean = float(rng.integers(2))
    y = float(rng.choice((0.0, 1.0, 10.0 ** rng.uniform(-6, 6))))
    sign = -1 if mean else 1
    m, v = moments(rng, i, -sign * float(np.log(max(y, 1e-3))))
    return [mean], y, m, v, log_linear(y, m, v, mpf(sign), sign, mpf(y), mpf(0))


def make_gamma(rng: np.random.Generator, i: int) -> Row:
    shape, y = float(10.0 ** rng.uniform(-2, 6)), float(10.0 ** rng.uniform(-6, 6))
    m, v = moments(rng, i, float(np.log(y)))
    k, x = mpf(shape), mpf(y)
    constant = k * mp.log(k) - mp.loggamma(k) + (k - 1) * mp.log(x)
    return [shape], y, m, v, log_linear(y, m, v, -k, -1, k * x, constant)


def make_weibull(rng: np.random.Generator, i: int) -> Row:
    shape, y = float(10.0 ** rng.uniform(-2, 2)), float(10.0 ** rng.uniform(-3, 3))
    m, v = moments(rng, i, -shape * float(np.log(y)))
    k, x = mpf(shape), mpf(y)
    return [shape], y, m, v, log_linear(y, m, v, mpf(1), 1, x**k, mp.log(k) + (k - 1) * mp.log(x))


def make_volatility(rng: np.random.Generator, i: int) -> Row:
    y = float(rng.choice((0.0, 1.0, rng.normal() * 10.0 ** rng.uniform(-4, 4))))
    m, v = moments(rng, i, float(np.log(max(y * y, 1e-3))))
    return [], y, m, v, log_linear(y, m, v, -mpf(1) / 2, -1, mpf(y) ** 2 / 2, -mp.log(2 * mp.pi) / 2)


def make_scale(closed: Callable[[float, float, float, float], list[float]]) -> Maker:
    def make(rng: np.random.Generator, i: int) -> Row:
        scale = float(10.0 ** rng.uniform(-3, 3))
        y = float(rng.choice((0.0, rng.normal() * 10.0 ** rng.uniform(-2, 2))))
        m, v = moments(rng, i, y)
        return [scale], y, m, v, closed(y, m, v, scale)

    return make


def make_power(rng: np.random.Generator, i: int) -> Row:
    scale, power = float(10.0 ** rng.uniform(-3, 3)), float(rng.choice((0.5, 1.0, 1.5, rng.uniform(0.05, 1.99))))
    y = float(rng.choice((0.0, rng.normal() * 10.0 ** rng.uniform(-2, 2))))
    m, v = moments(rng, i, y)
    return [scale, power], y, m, v, exponential_power(y, m, v, scale, power)


def make_sech2(rng: np.random.Generator, i: int) -> Row:
    scale = float(10.0 ** rng.uniform(-3, 3))
    y = float(rng.choice((0.0, rng.normal() * 10.0 ** rng.uniform(-2, 2))))
    m, v = moments(rng, i, y)
    b = mpf(scale)

    def density(f: mpf) -> tuple[mpf, ...]:
        x = (f - mpf(y)) / b
        up, down = softplus(x), softplus(-x)
        return (-up[0] - down[0] - mp.log(b), (down[1] - up[1]) / b, -2 * up[2] / b**2,
                up[0] + down[0] + abs(mp.log(b)), abs(down[1] - up[1]) / b)

    return [scale], y, m, v, by_quadrature(density, m, v, [y, y - scale, y + scale])


def make_student(rng: np.random.Generator, i: int) -> Row:
    df, scale = float(rng.choice((1.0, 2.0, 3.0, 10.0, 10.0 ** rng.uniform(0, 2)))), float(10.0 ** rng.uniform(-3, 3))
    y = float(rng.choice((0.0, rng.normal() * 10.0 ** rng.uniform(-2, 2))))
    m, v = moments(rng, i, y)
    return [df, scale], y, m, v, by_quadrature(student(y, df, scale), m, v, [y, y - scale, y + scale])


CUTS = [-300.0, -4.0, -1.0, -0.9999, 0.5, 2.0, 3.0, 33.0, 34.0, 250.0]


def make_ordinal(link: str) -> Maker:
    def make(rng: np.random.Generator, i: int) -> Row:
        level = int(rng.integers(len(CUTS) + 1))
        edges = [-np.inf, *CUTS, np.inf]
        low, high = edges[level], edges[level + 1]
        finite = [x for x in (low, high) if np.isfinite(x)]
        m, v = moments(rng, i, float(np.mean(finite)))
        if link == "probit":
            density = interval(low, high) if len(finite) == 2 else one_sided(finite[0], level == 0)
        else:
            density = logit_cell(low, high)
        return CUTS, float(level), m, v, by_quadrature(density, m, v, finite)

    return make


def one_sided(edge: float, below: bool) -> Density:
    sign = -1 if below else 1

    def density(f: mpf) -> Triple:
        value, slope, curvature = log_phi(sign * (f - mpf(edge)))
        return value, sign * slope, curvature

    return density


def logit_cell(low: float, high: float) -> Density:
    def density(f: mpf) -> tuple[mpf, ...]:
        nothing = (mpf(0), mpf(0), mpf(0))
        a = softplus(f - mpf(high)) if np.isfinite(high) else nothing
        b = softplus(mpf(low) - f) if np.isfinite(low) else nothing
        value = -a[0] - b[0]
        if np.isfinite(low) and np.isfinite(high):
            value += mp.log(-mp.expm1(mpf(low) - mpf(high)))
        return value, b[1] - a[1], -a[2] - b[2], abs(value), a[1] + b[1]

    return density


def make_beta(rng: np.random.Generator, i: int) -> Row:
    precision = float(rng.choice((0.1, 1.0, 2.0, 10.0, 10.0 ** rng.uniform(-2, 5))))
    y = float(rng.choice((0.5, rng.uniform(), 10.0 ** rng.uniform(-12, -1), 1.0 - 10.0 ** rng.uniform(-12, -1))))
    logit = float(np.log(y) - np.log1p(-y))
    m, v = moments(rng, i, logit)
    edge = float(np.log1p(precision))
    return [precision], y, m, v, by_quadrature(beta(y, precision), m, v, [logit, -edge, edge])


MAKERS: dict[str, Maker] = {
    "Logistic": make_binary(logistic),
    "Probit": make_binary(probit),
    "CLogLog": make_cloglog,
    "Binomial": make_binomial,
    "Poisson": make_poisson,
    "NegativeBinomial": make_negative_binomial,
    "Exponential": make_exponential,
    "Gamma": make_gamma,
    "Weibull": make_weibull,
    "Gaussian": make_scale(gaussian),
    "Laplace": make_scale(laplace),
    "StudentT": make_student,
    "ExponentialPower": make_power,
    "Sech2": make_sech2,
    "StochasticVolatility": make_volatility,
    "Ordinal": make_ordinal("logit"),
    "OrdinalProbit": make_ordinal("probit"),
    "Beta": make_beta,
}
COUNTS = {"Beta": 100, "Logistic": 220, "Probit": 220, "StudentT": 220}


def main(names: list[str]) -> None:
    path = HERE / "site_references.npz"
    for name in names or list(MAKERS):
        begin = time.process_time()
        rows = rows_of(name, COUNTS.get(name, 160))
        stored: dict[str, Any] = dict(np.load(path)) if path.exists() else {}
        stored[name] = np.array([[y, m, v, *numbers] for _, y, m, v, numbers in rows])
        stored[f"{name}_parameters"] = np.array(rows[0][0] if name.startswith("Ordinal") else [row[0] for row in rows])
        np.savez_compressed(path, **stored)
        print(f"{name}: {len(rows)} points, {time.process_time() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
