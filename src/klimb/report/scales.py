"""From numbers to places on paper: linear and logarithmic scales with ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class AxisScale:
    """Maps [low, high] to [start, end]; ``start`` may be the larger (heights grow upwards, SVG counts downwards)."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False  # low and high are then exponents of ten, and so are the values to be placed

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def clip(self, value: float) -> float:
        """The place of ``value``, or the nearer end for values beyond the scale."""
        return self(min(max(value, self.low), self.high))

    def ticks(self, count: int = 5) -> list[tuple[float, str]]:
        """About ``count`` values with their labels."""
        if self.log:
            return _decades(self.low, self.high, count)
        values = round_numbers(self.low, self.high, count)
        return list(zip(values, labels(values), strict=True))


def span(values: Iterable[float], include: Iterable[float] = (), pad: float = 0.04) -> tuple[float, float]:
    """An interval that holds all finite values with a little room, never empty.

    >>> span([1.0, 3.0], pad=0.0), span([2.0], pad=0.0), span([])
    ((1.0, 3.0), (1.0, 3.0), (-1.08, 1.08))
    """
    found = [float(value) for value in (*values, *include) if math.isfinite(value)]
    low, high = (min(found), max(found)) if found else (-1.0, 1.0)
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        half = 0.5 * abs(low) or 1.0
        low, high = low - half, high + half
    room = pad * (high - low)
    return low - room, high + room


def round_numbers(low: float, high: float, count: int = 5) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten that lie in [low, high], about ``count`` of them.

    >>> round_numbers(0.0, 1.0), round_numbers(-3.0e6, 4.0e6, 4)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [-2000000.0, 0.0, 2000000.0, 4000000.0])
    """
    rough = (high - low) / max(count, 1)
    power = math.floor(math.log10(rough))
    scale = 10.0**power
    # Quarters read well, but between whole numbers (steps of 2.5) they do not.
    factors = (1.0, 2.0, 5.0, 10.0) if power == 0 else (1.0, 2.0, 2.5, 5.0, 10.0)
    step = min((factor * scale for factor in factors), key=lambda size: abs(math.log(size / rough)))
    slack = 1e-9 * step
    first, last = math.ceil((low - slack) / step), math.floor((high + slack) / step)
    places = max(2 - power, 0)
    return [round(index * step, places) if places < 300 else index * step for index in range(first, last + 1)]


def labels(values: list[float]) -> list[str]:
    """One format for all ticks of an axis.

    >>> labels([0.0, 0.5, 1.0]), labels([0.0, 2e6]), labels([0.0, 1e-7])
    (['0', '0.5', '1.0'], ['0', '2e6'], ['0', '1e-7'])
    """
    largest = max((abs(value) for value in values), default=0.0)
    if largest >= 1e5 or 0.0 < largest < 1e-3:
        return [_power(value) for value in values]
    places = next(places for places in range(12)
                  if all(abs(value - round(value, places)) <= 1e-9 * max(largest, 1e-300) for value in values))
    return ["0" if value == 0.0 else f"{value:.{places}f}" for value in values]


def _power(value: float) -> str:
    if value == 0.0:
        return "0"
    digits, power = f"{value:.6e}".split("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def _decades(low: float, high: float, count: int) -> list[tuple[float, str]]:
    first, last = math.ceil(low - 1e-9), math.floor(high + 1e-9)
    every = max(1, math.ceil((last - first + 1) / max(count, 1)))
    return [(float(power), "1" if power == 0 else "10" if power == 1 else f"1e{power}")
            for power in range(first, last + 1, every)]
