"""How the labelling goes: what the model foresaw, what it expects to get wrong, when to stop; no label is held back.

Items that the model asked for are the hard ones; every few items one is drawn at random as a check, a fair sample.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

RECENT = 30  # random checks that count for the current error
WINDOW = 20  # labels over which the predictions must have settled
AGREED = 0.98  # kappa of settled predictions: 1% of changes where labels are even, far fewer where one is rare
LEAST = 40  # labels before anybody is told to stop
ENOUGH = 5  # labels of each of two kinds before anything can be said
SHOWN = 200  # points of a curve


class Share(NamedTuple):
    """So many of so many, with a 90% interval for the share."""
    hits: int
    total: int
    low: float
    high: float


class CurvePoint(NamedTuple):
    """What the model thought of the pool when it had so many labels."""
    labels: int
    error: float  # the share of the unlabelled items it expects to get wrong
    entropy: float  # bits per unlabelled item
    changed: float | None = None  # share of items whose predicted label has changed over the last window
    agreement: float | None = None  # Cohen's kappa of those predictions; None while one label is predicted throughout


class Foreseen(NamedTuple):
    """One label and what was predicted before it was given."""
    right: bool
    check: bool  # drawn at random


def share(count: int, total: int, z: float = 1.6448536269514722) -> Share:
    """A share with Wilson's interval, which is sound also for few and for extreme counts."""
    if total == 0:
        return Share(0, 0, 0.0, 1.0)
    rate, weight = count / total, z * z / total
    centre = rate + weight / 2.0
    half = z * math.sqrt(rate * (1.0 - rate) / total + weight / (4.0 * total))
    low, high = (centre - half) / (1.0 + weight), (centre + half) / (1.0 + weight)
    return Share(count, total, max(0.0, min(low, rate)), min(1.0, max(high, rate)))  # rounding stays inside


def check_curve(foreseen: Sequence[Foreseen]) -> list[tuple[int, float, float, float]]:
    """After each random check: labels so far, the error over the last `RECENT` checks, and its interval."""
    curve, seen = [], []
    for labels, one in enumerate(foreseen, start=1):
        if one.check:
            seen.append(not one.right)
            wrong = share(sum(seen[-RECENT:]), len(seen[-RECENT:]))
            curve.append((labels, wrong.hits / wrong.total, wrong.low, wrong.high))
    return curve


def thinned(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """At most about `SHOWN` points, the last among them."""
    kept = list(points[::max(1, -(-len(points) // SHOWN))])
    return kept if not points or kept[-1] is points[-1] else [*kept, points[-1]]


def advice(counts: Sequence[int], names: Sequence[str], points: Sequence[CurvePoint], foreseen: Sequence[Foreseen],
           left: int) -> tuple[str, str]:
    """A word (``go``, ``stop``, ``doubt`` or ``done``) and a sentence for the person who labels."""
    labels = sum(counts)
    if left == 0:
        return "done", "Every item is labelled or skipped."
    used = sorted(range(len(counts)), key=lambda k: -counts[k])
    if labels >= WINDOW and counts[used[1]] == 0:
        return "go", (f"Only {names[used[0]]!r} so far. If the others are rare, it takes a while until one appears.")
    if counts[used[1]] < ENOUGH or not points:
        return "go", f"The model needs at least {ENOUGH} items of two labels before its figures are meaningful."
    now = points[-1]
    recent = [one for one in foreseen if one.check][-RECENT:]
    wrong = share(sum(not one.right for one in recent), len(recent))
    checks = f" It got {wrong.total - wrong.hits} of the last {wrong.total} random checks right." if recent else ""
    if recent and wrong.low > now.error + 0.02:
        return "doubt", (f"The model is overconfident: it expects to get {_percent(now.error)} wrong, but missed"
                         f" {wrong.hits} of the last {wrong.total} random checks. Continue.")
    if now.changed is None:
        return "go", f"The model expects to get {_percent(now.error)} of the unlabelled items wrong.{checks}"
    since = [point.agreement for point in points if point.labels > now.labels - WINDOW // 2]
    if labels >= LEAST and len(since) > 1 and all(one is not None and one >= AGREED for one in since):
        return "stop", (f"You could stop now: the last {WINDOW} labels changed the predicted label of"
                        f" {_percent(now.changed)} of the items, and the model expects to get {_percent(now.error)} of"
                        f" the rest wrong.{checks}")
    if now.agreement is None:
        return "go", f"The model predicts the same label for every item: too few of the others are known.{checks}"
    so_far = "Nearly stable" if now.agreement >= AGREED else "Continue"
    return "go", (f"{so_far}: the last {WINDOW} labels changed the predicted label of {_percent(now.changed)} of the"
                  f" items.{checks}")


def kappa(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float | None:
    """Cohen's kappa: how far two predictions of the same items agree beyond what their frequencies would give."""
    found = np.union1d(one, other)
    by_chance = float(sum(np.mean(one == label) * np.mean(other == label) for label in found))
    return (float(np.mean(one == other)) - by_chance) / (1.0 - by_chance) if len(found) > 1 else None


def _percent(value: float) -> str:
    """A share, with as many digits as it deserves."""
    if 0.0 < value < 0.001:
        return "less than 0.1%"
    return f"{100.0 * value:.1f}%" if 0.0 < value < 0.0995 else f"{100.0 * value:.0f}%"
