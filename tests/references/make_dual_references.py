"""Write dual_references.json: g, h and h* of super-Gaussian sites with two derivatives each, to 20 digits and more.

Run by hand: ``python tests/references/make_dual_references.py``. Nothing here uses klimb. Even parts are written down
and differentiated numerically; h is found by bisection on the logarithm of x, h* by its definition as a minimum over
the variance (so that the shortcut -g(z + s^2), which klimb takes, is checked and not repeated).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from mpmath import mp, mpf

mp.dps = 110
Even = Callable[[mpf], mpf]


def logistic(weight: float, unit: float = 1.0) -> Even:
    def g(x: mpf) -> mpf:
        d = mp.sqrt(x) / mpf(unit)
        return -mpf(weight) * (d / 2 + mp.log1p(mp.exp(-d)))

    return g


def student(df: float, scale: float) -> Even:
    return lambda x: -(mpf(df) + 1) / 2 * mp.log1p(x / (mpf(df) * mpf(scale) ** 2))


def power(scale: float, p: float) -> Even:
    return lambda x: -((x / mpf(scale) ** 2) ** (mpf(p) / 2))


# name -> (g, the class of the site, its parameters, a y, the slope of the odd part, the centre, kink)
CASES = {
    "logistic": (logistic(1.0), "Logistic", [], 1.0, 0.5, 0.0, False),
    "binomial": (logistic(9.0), "Binomial", [9.0], 7.0, 2.5, 0.0, False),
    "sech2": (logistic(2.0, 0.3), "Sech2", [0.3], 0.5, 0.0, 0.5, False),
    "student": (student(3.0, 0.7), "StudentT", [3.0, 0.7], -1.0, 0.0, -1.0, False),
    "laplace": (power(0.4, 1.0), "Laplace", [0.4], 0.25, 0.0, 0.25, True),
    "power 1.5": (power(0.8, 1.5), "ExponentialPower", [0.8, 1.5], 0.25, 0.0, 0.25, True),
    "power 0.5": (power(0.8, 0.5), "ExponentialPower", [0.8, 0.5], 0.25, 0.0, 0.25, True),
}
SQUARES = [float(mpf(10) ** k) for k in range(-12, 7)]
RATIOS = [1e-3, 0.5, 0.999, 1.0 + 1e-6, 1.001, 1.1, 2.0, 10.0, 1e3, 1e6]  # of a variance to the threshold
POINTS = [(s, z) for s in (-30.0, -1.5, -1e-3, 0.0, 0.3, 4.0, 200.0) for z in (1e-8, 0.01, 1.0, 50.0, 1e5)]


def derivatives(g: Even, x: mpf) -> tuple[mpf, mpf]:
    """g' and g'' by differences in 110 digits and steps of 1e-20 x (the even parts are smooth on that scale)."""
    step = x * mpf(10) ** -20
    low, middle, high = g(x - step), g(x), g(x + step)
    return (high - low) / (2 * step), (high - 2 * middle + low) / step**2


def touching(g: Even, variance: mpf) -> mpf:
    """x with -2 g'(x) variance = 1, or 0 where the Gaussian is too narrow to touch elsewhere."""
    def excess(t: mpf) -> mpf:
        return -mp.log(-2 * derivatives(g, mp.exp(t))[0]) - mp.log(variance)

    if excess(mpf(-70)) >= -mpf(10) ** -25:
        return mpf(0)
    return mp.exp(root(excess, mpf(-70), mpf(120)))


def root(function: Even, low: mpf, high: mpf) -> mpf:
    """Where a rising function crosses 0: bisection down to a factor, then false position with halving (Illinois)."""
    f_low, f_high, side = function(low), function(high), 0
    for _ in range(400):
        middle = (low + high) / 2 if high - low > 1 else low - f_low * (high - low) / (f_high - f_low)
        value = function(middle)
        if abs(value) < mpf(10) ** -24 or high - low < mpf(10) ** -24:
            return middle
        if value < 0:
            low, f_low, f_high, side = middle, value, f_high / 2 if side < 0 else f_high, -1
        else:
            high, f_high, f_low, side = middle, value, f_low / 2 if side > 0 else f_low, 1
    raise ArithmeticError("no root")


def height(g: Even, variance: mpf) -> tuple[mpf, mpf]:
    x = touching(g, variance)
    return (-2 * g(x) if x == 0 else -x / variance - 2 * g(x)), x


def height_row(g: Even, variance: mpf) -> list[float]:
    value, x = height(g, variance)
    if x == 0:
        return [float(variance), float(value), 0.0, 0.0]
    _, second = derivatives(g, x)
    bent = (1 / (2 * variance * second) - 2 * x) / variance**3
    if abs(bent) * variance**3 < x * mpf(10) ** -14:  # what differences leave of 0 (Laplace)
        bent = mpf(0)
    return [float(variance), float(value), float(x / variance**2), float(bent)]


def penalty(g: Even, slope: float, s: float, z: float) -> list[float]:
    """min over the variance of [(z + s^2)/variance + h(variance)]/2 - slope s, and its derivatives."""
    total = mpf(z) + mpf(s) ** 2
    # The derivative of the bracket has the sign of h' variance^2 - total = x_* - total.
    variance = mp.exp(root(lambda t: touching(g, mp.exp(t)) / total - 1, mpf(-60), mpf(60)))
    value, x = height(g, variance)
    _, second = derivatives(g, x)
    bent = 1 / (2 * variance * second)  # gamma^3 k'' = 2 (z + s^2) + gamma^3 h''
    return [s, z, float((total / variance + value) / 2 - mpf(slope) * s), float(s / variance - mpf(slope)),
            float((1 - 2 * mpf(s) ** 2 / bent) / variance)]


def main() -> None:
    store = {}
    for name, (g, site, parameters, y, slope, centre, kink) in CASES.items():
        even = [[x, float(g(mpf(x))), *map(float, derivatives(g, mpf(x)))] for x in SQUARES]
        edge = mpf(1) if kink else -1 / (2 * derivatives(g, mpf(10) ** -28)[0])
        heights = [height_row(g, mpf(float(edge)) * mpf(ratio)) for ratio in RATIOS]
        penalties = [penalty(g, slope, s, z) for s, z in POINTS]
        store[name] = {"site": site, "parameters": parameters, "y": y, "centre": centre, "even": even,
                       "heights": heights, "penalties": penalties}
        print(name, flush=True)
    path = Path(__file__).parent / "dual_references.json"
    path.write_text(json.dumps(store, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
