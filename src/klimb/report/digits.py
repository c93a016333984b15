"""Numbers as people read them: as many digits as the uncertainty deserves, aligned on the point."""

from __future__ import annotations

import math
from collections.abc import Sequence


def plain(value: float | None, digits: int = 3) -> str:
    """A number by itself, to so many significant digits.

    >>> plain(0.012345), plain(1234567.0), plain(12.0), plain(-3.14159), plain(None)
    ('0.0123', '1.23e+06', '12', '-3.14', '-')
    """
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0.0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size < -4 or size > 5:
        return f"{value:.{digits - 1}e}"
    text = f"{value:.{max(digits - 1 - size, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def decimals(scales: Sequence[float], digits: int = 2) -> int | None:
    """Decimal places that show the smallest of ``scales`` (standard deviations) to ``digits`` digits.

    None where no fixed number of places is readable, because the numbers are tiny, huge or too unlike each other.

    >>> decimals([0.52, 0.031]), decimals([120.0, 35.0]), decimals([1e-9]), decimals([0.001, 40.0]) is None
    (3, 0, None, True)
    """
    useful = [abs(scale) for scale in scales if math.isfinite(scale) and scale != 0.0]
    if not useful:
        return 3
    small, large = math.floor(math.log10(min(useful))), math.floor(math.log10(max(useful)))
    if small < -5 or large > 6 or large - small > 2:
        return None
    return max(digits - 1 - small, 0)


def fixed(value: float | None, places: int | None) -> str:
    """A number with so many decimal places, or in scientific form where ``places`` is None.

    >>> fixed(1.23456, 2), fixed(-0.0001, 2), fixed(1.5e-9, None)
    ('1.23', '0.00', '1.50e-09')
    """
    if value is None or not math.isfinite(value):
        return plain(value)
    if places is None:
        return f"{value:.2e}"
    text = f"{value:.{places}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text


def percent(value: float) -> str:
    """A level as a heading: 0.05 is "5%", 0.975 is "97.5%".

    >>> percent(0.05), percent(0.975), percent(0.9)
    ('5%', '97.5%', '90%')
    """
    return f"{100.0 * value:.4g}%"
