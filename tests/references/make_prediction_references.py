"""Make prediction_references.json: log int p(y|f) N(f; m, v) df of every site by mpmath; print the digits reached.

    python tests/references/make_prediction_references.py         # make the file (some minutes)
    python tests/references/make_prediction_references.py new     # add the sites that are missing from it
    python tests/references/make_prediction_references.py table   # print the digits table from the stored file

The integrals are done in 32 digits, independently of the library: golden section for the mode, geometric panels,
mpmath's tanh-sinh rule in each.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath as mp

FILE = Path(__file__).with_name("prediction_references.json")
Number = Any  # an mpmath number
mp.mp.dps = 32


def log_integral(g: Callable[[Number], Number], m: float, v: float, peak: float | None = None) -> Number:
    """log int exp(g(f)) N(f; m, v) df; ``peak`` of g where g is not log-concave."""
    mean, s = mp.mpf(m), mp.sqrt(mp.mpf(v))

    def h(d: Number) -> Number:
        return g(mean + d) - (d / s) ** 2 / 2

    tries = [mp.mpf(0)] + [sign * s * mp.mpf(2) ** k for k in range(-8, 40) for sign in (-1, 1)]
    if peak is not None:
        centre = mp.mpf(peak) - mean
        tries += [centre] + [centre + sign * mp.mpf(2) ** k for k in range(-14, 12) for sign in (-1, 1)]
    tries = sorted(set(tries))
    heights = [h(d) for d in tries]
    best = max(range(len(tries)), key=heights.__getitem__)
    mode = golden_section(h, tries[max(best - 1, 0)], tries[min(best + 1, len(tries) - 1)])
    top, total = h(mode), mp.mpf(0)
    for sign in (-1, 1):
        for left, right in panels(h, mode, top, s, sign, None if peak is None else sign * (mp.mpf(peak) - mean - mode)):
            def integrand(t: Number, sign: int = sign) -> Number:
                return small_exp(h(mode + sign * t) - top)

            if max(integrand(left), integrand((left + right) / 2), integrand(right)) > mp.mpf(10) ** -28:
                total += mp.quad(integrand, [left, (left + right) / 2, right])
    return top + mp.log(total / (s * mp.sqrt(2 * mp.pi)))


def golden_section(h: Callable[[Number], Number], a: Number, b: Number) -> Number:
    ratio = (mp.sqrt(5) - 1) / 2
    for _ in range(120):
        left, right = b - ratio * (b - a), a + ratio * (b - a)
        a, b = (left, b) if h(left) < h(right) else (a, right)
    return (a + b) / 2


def panels(h: Callable[[Number], Number], mode: Number, top: Number, s: Number, sign: int,
           peak: Number | None) -> list[tuple[Number, Number]]:
    """Panels that grow by half from the mode, and around ``peak`` if there is one."""
    width = s
    while top - h(mode + sign * width) > mp.mpf(1) / 2:
        width /= 2
    edges = [mp.mpf(0)]
    while edges[-1] < 40 * s + (0 if peak is None else abs(peak)):
        edges.append(width)
        if peak is None and top - h(mode + sign * width) > 110:
            break
        width *= mp.mpf("1.5")
    if peak is not None:
        around = [peak + side * mp.mpf(2) ** k for k in range(-16, 12) for side in (-1, 0, 1)]
        edges = sorted(set(edges + [t for t in around if 0 < t < edges[-1]]))
    return list(zip(edges[:-1], edges[1:], strict=True))


def small_exp(x: Number) -> Number:
    """exp(x), and 0 far below all that matters: mpmath would work out an exponent of thousands of digits."""
    return mp.exp(x) if x > -1e4 else mp.mpf(0)


def log_sigmoid(f: Number) -> Number:
    return -mp.log1p(mp.exp(-f)) if f > 0 else f - mp.log1p(mp.exp(f))


def log_binomial_coefficient(n: Number, k: Number) -> Number:
    return mp.loggamma(n + 1) - mp.loggamma(k + 1) - mp.loggamma(n - k + 1)


def ordinal(cut: list[float], distribution: Callable[[Number], Number]) -> Callable[[float, Number], Number]:
    def log_density(y: float, f: Number) -> Number:
        level = int(y)
        if level == 0:
            return mp.log(distribution(cut[0] - f))
        if level == len(cut):
            return mp.log(distribution(f - cut[-1]))
        low, high = cut[level - 1] - f, cut[level] - f
        if low > 0:  # the difference in the small tail
            low, high = -high, -low
        return mp.log(distribution(high) - distribution(low))

    return log_density


def student(df: float, scale: float) -> Callable[[float, Number], Number]:
    nu, s = mp.mpf(df), mp.mpf(scale)
    constant = mp.loggamma((nu + 1) / 2) - mp.loggamma(nu / 2) - mp.log(nu * mp.pi) / 2 - mp.log(s)
    return lambda y, f: constant - (nu + 1) / 2 * mp.log1p(((y - f) / s) ** 2 / nu)


def exponential_power(scale: float, power: float) -> Callable[[float, Number], Number]:
    s, p = mp.mpf(scale), mp.mpf(power)
    constant = -mp.log(2 * s) - mp.loggamma(1 + 1 / p)
    return lambda y, f: constant - (abs(y - f) / s) ** p


def beta(precision: float) -> Callable[[float, Number], Number]:
    def log_density(y: float, f: Number) -> Number:
        a, b = precision * mp.exp(log_sigmoid(f)), precision * mp.exp(log_sigmoid(-f))
        return (mp.loggamma(precision) - mp.loggamma(a) - mp.loggamma(b) + (a - 1) * mp.log(mp.mpf(y))
                + (b - 1) * mp.log1p(-mp.mpf(y)))

    return log_density


def cloglog(y: float, f: Number) -> Number:
    rate = mp.exp(f)
    return -rate if y < 1 else mp.log1p(-small_exp(-rate)) if rate > 1 else mp.log(-mp.expm1(-rate))


def negative_binomial(size: float) -> Callable[[float, Number], Number]:
    r = mp.mpf(size)
    return lambda y, f: (mp.loggamma(y + r) - mp.loggamma(r) - mp.loggamma(y + 1) + y * log_sigmoid(f - mp.log(r))
                         + r * log_sigmoid(mp.log(r) - f))


def gamma(shape: float) -> Callable[[float, Number], Number]:
    k = mp.mpf(shape)
    return lambda y, f: k * mp.log(k) - mp.loggamma(k) + (k - 1) * mp.log(mp.mpf(y)) - k * f - k * y * mp.exp(-f)


_CUT = [-1.0, 0.5, 2.0]
# expression of the site -> (log density in mpmath, data, peak of log p in f if the site is not log-concave)
CASES: dict[str, tuple[Callable[[float, Number], Number], list[float], Callable[[float], float] | None]] = {
    "Logistic()": (lambda y, f: log_sigmoid((2 * y - 1) * f), [0, 1], None),
    "Probit()": (lambda y, f: mp.log(mp.ncdf((2 * y - 1) * f)), [0, 1], None),
    "CLogLog()": (cloglog, [0, 1], None),
    "Binomial(trials=10)": (
        lambda y, f: log_binomial_coefficient(mp.mpf(10), mp.mpf(y)) + y * log_sigmoid(f) + (10 - y) * log_sigmoid(-f),
        [0, 3, 10], None),
    "Poisson(exposure=2.5)": (
        lambda y, f: y * (f + mp.log(2.5)) - 2.5 * mp.exp(f) - mp.loggamma(y + 1), [0, 1, 30, 1e6], None),
    "NegativeBinomial(size=0.7)": (negative_binomial(0.7), [0, 3, 1e5], None),
    "Exponential()": (lambda y, f: f - y * mp.exp(f), [0.0, 0.1, 50.0], None),
    "Exponential(mean=True)": (lambda y, f: -f - y * mp.exp(-f), [0.1, 50.0], None),
    "Gamma(shape=3)": (gamma(3), [1e-3, 2.0, 1e4], None),
    "Weibull(shape=1.5)": (
        lambda y, f: mp.log(1.5) + mp.log(y) / 2 + f - mp.mpf(y) ** 1.5 * mp.exp(f), [1e-3, 2.0, 50.0], None),
    "Gaussian(scale=0.5)": (
        lambda y, f: -2 * (y - f) ** 2 + mp.log(2) - mp.log(2 * mp.pi) / 2, [-3.0, 200.0], None),
    "Laplace(scale=0.5)": (lambda y, f: -abs(y - f) / mp.mpf(0.5), [-3.0, 200.0], float),
    "StudentT(df=4, scale=0.5)": (student(4, 0.5), [-3.0, 200.0], float),
    "StudentT(df=1e4, scale=2)": (student(1e4, 2), [30.0], float),
    "ExponentialPower(scale=0.5, power=1.5)": (exponential_power(0.5, 1.5), [-3.0, 200.0], float),
    "ExponentialPower(scale=0.5, power=0.5)": (exponential_power(0.5, 0.5), [-3.0, 200.0], float),
    "Sech2(scale=0.5)": (
        lambda y, f: log_sigmoid(2 * (y - f)) + log_sigmoid(2 * (f - y)) + mp.log(2), [-3.0, 200.0], float),
    "StochasticVolatility()": (
        lambda y, f: -f / 2 - mp.mpf(y) ** 2 * mp.exp(-f) / 2 - mp.log(2 * mp.pi) / 2, [0.0, 1e-3, 5.0], None),
    "Ordinal(cutpoints=[-1, 0.5, 2])": (ordinal(_CUT, lambda x: mp.exp(log_sigmoid(x))), [0, 1, 2, 3], None),
    'Ordinal(cutpoints=[-1, 0.5, 2], link="probit")': (ordinal(_CUT, mp.ncdf), [0, 1, 2, 3], None),
    "Beta(precision=5)": (beta(5), [0.001, 0.4, 0.999], lambda y: float(mp.log(y / (1 - y)))),
}
DISCRETE = ("Logistic", "Probit", "CLogLog", "Binomial", "Poisson", "NegativeBinomial", "Ordinal")


def grid(count: int) -> list[tuple[float, float]]:
    """(m, v): every second one an everyday one, the others over the whole range."""
    everyday_m, everyday_v = [-4.0, -1.5, -0.3, 0.0, 0.7, 2.0, 5.0], [1e-3, 0.02, 0.3, 1.0, 4.0, 20.0]
    wide_m = [-300.0, -60.0, -12.0, -3.0, 0.25, 8.0, 40.0, 300.0, 1.0]
    wide_v = [1e-12, 1e-9, 1e-6, 1e-3, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 1e6]
    pairs = []
    for i in range(count):
        j = i // 2
        pairs.append((everyday_m[j % 7], everyday_v[(j + j // 7) % 6]) if i % 2 == 0
                     else (wide_m[(j + j // 11) % 9], wide_v[j % 11]))
    return pairs


def references(name: str, count: int = 60) -> list[list[float]]:
    log_density, data, peak = CASES[name]
    rows = []
    for i, (m, v) in enumerate(grid(count)):
        y = data[(i // 2) % len(data)]
        centre = None if peak is None else peak(y)
        log_p = log_integral(lambda f, y=y: log_density(y, f), m, v, centre)
        if name.startswith("Laplace"):
            log_p -= mp.log(2 * mp.mpf(0.5))
        if name.startswith(DISCRETE) and log_p > -0.5:  # nearly certain: one minus the integral of the rest
            log_p = mp.log1p(-mp.exp(log_integral(log_complement(name, y), m, v)))
        rows.append([y, m, v, float(log_p)])
    return rows


def log_complement(name: str, y: float) -> Callable[[Number], Number]:
    """log(1 - p(y|f)) without the cancellation at p = 1."""
    log_density = CASES[name][0]
    if name.startswith(("Logistic", "Probit", "CLogLog")):
        return lambda f: log_density(1 - y, f)
    if name.startswith("Ordinal"):  # only the end levels are ever nearly certain: all but one cell
        distribution = mp.ncdf if "probit" in name else (lambda x: mp.exp(log_sigmoid(x)))
        return lambda f: mp.log(distribution(f - _CUT[0] if y == 0 else _CUT[-1] - f))

    def log_rest(f: Number) -> Number:
        log_p = log_density(y, f)
        return mp.log(-mp.expm1(log_p)) if log_p > -1e4 else mp.mpf(0)

    return log_rest


def make(*, new: bool = False) -> None:
    import time

    stored = json.loads(FILE.read_text()) if new else {}
    for name in [name for name in CASES if name not in stored]:
        begin = time.perf_counter()
        stored[name] = references(name)
        print(f"{name:50s} {time.perf_counter() - begin:6.1f} s", flush=True)
        lines = [f"{json.dumps(key)}: {json.dumps(rows, separators=(',', ':'))}" for key, rows in stored.items()]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def table() -> None:
    import numpy as np

    import klimb.sites

    print(f"{'site':50s} {'points':>6s} {'worst':>6s} {'1% quantile':>12s} {'median':>7s}")
    for name, rows in json.loads(FILE.read_text()).items():
        site = eval(name, vars(klimb.sites))
        y, m, v, log_p = np.array(rows).T
        found = site.predict(m, v).log_density(y)
        scale = np.maximum(np.abs(log_p), 0.0 if site.discrete else 1.0)
        error = np.divide(np.abs(found - log_p), scale, out=np.zeros_like(scale), where=found != log_p)
        digits = np.minimum(-np.log10(np.maximum(error, 1e-17)), 16.0)
        print(f"{name:50s} {y.size:6d} {digits.min():6.1f} {np.quantile(digits, 0.01):12.1f} {np.median(digits):7.1f}")


if __name__ == "__main__":
    table() if sys.argv[1:] == ["table"] else make(new=sys.argv[1:] == ["new"])
