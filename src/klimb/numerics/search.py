"""Root finding for many rising functions at once: a bracket first, then a safeguarded secant or bisection."""

from collections.abc import Callable

import numpy as np

from klimb.numerics.arrays import Array, Index

# rising(rows, t) -> the value at t[i] of the function that belongs to rows[i]
Rising = Callable[[Index, Array], Array]

_ROUNDING = 1e-13  # a level that is missed by no more than this counts as reached


def monotone_root(rising: Rising, middle: Array, scale: Array) -> Array:
    """Where each function crosses 0, or the last point tried; brackets double from ``middle``, first by ``scale``."""
    low, high, f_low, f_high = _bracket(rising, middle, scale)
    root = np.where(np.abs(f_low) < np.abs(f_high), low, high)
    active = np.flatnonzero((f_low < 0.0) & (f_high > 0.0))
    stuck = np.zeros(low.size, dtype=np.intp)  # rounds in a row that moved low (positive) or high (negative)
    for iteration in range(200):
        if active.size == 0:
            break
        a, b, fa, fb = low[active], high[active], f_low[active], f_high[active]
        # The Illinois rule: halve the value at an end that has stayed for two rounds.
        fa_used = np.where(stuck[active] <= -2, 0.5 * fa, fa)
        fb_used = np.where(stuck[active] >= 2, 0.5 * fb, fb)
        secant = b - fb_used * ((b - a) / (fb_used - fa_used))
        usable = (secant > a) & (secant < b) & (iteration % 5 != 4)  # every fifth step bisects
        t = np.where(usable, secant, 0.5 * (a + b))
        value = rising(active, t)
        below = value < 0.0
        stuck[active] = np.where(below, np.maximum(stuck[active], 0) + 1, np.minimum(stuck[active], 0) - 1)
        low[active], f_low[active] = np.where(below, t, a), np.where(below, value, fa)
        high[active], f_high[active] = np.where(below, b, t), np.where(below, fb, value)
        root[active] = t
        narrow = high[active] - low[active] <= 1e-14 * np.maximum(np.abs(t), 1e-3 * scale[active])
        active = active[~(narrow | (np.abs(value) <= 1e-16))]
    return root


def _bracket(rising: Rising, middle: Array, scale: Array) -> tuple[Array, Array, Array, Array]:
    """low, high and the values there, by steps that double away from ``middle`` until the sign changes."""
    near, far = middle.copy(), middle.copy()
    f_near = rising(np.arange(middle.size), middle)
    f_far = f_near.copy()
    direction = np.where(f_near < 0.0, 1.0, -1.0)
    active = np.flatnonzero(f_near != 0.0)
    step = scale.copy()
    for _ in range(64):
        if active.size == 0:
            break
        near[active], f_near[active] = far[active], f_far[active]
        far[active] = near[active] + direction[active] * step[active]
        f_far[active] = rising(active, far[active])
        step[active] *= 2.0
        active = active[f_far[active] * direction[active] < 0.0]
    up = direction > 0.0
    return np.where(up, near, far), np.where(up, far, near), np.where(up, f_near, f_far), np.where(up, f_far, f_near)


def smallest_integer(rising: Rising, count: int) -> Array:
    """The smallest k >= 0 at which each function is not below 0; infinity where no finite number is large enough."""
    low, high = np.full(count, -1.0), np.zeros(count)
    active = np.arange(count)
    exponent = 0.0
    while active.size:
        reached = rising(active, high[active]) >= -_ROUNDING
        active = active[~reached]
        low[active] = high[active]
        exponent = exponent + max(1.0, 0.5 * exponent)
        if exponent > 1000.0:
            high[active] = np.inf
            break
        high[active] = 2.0 ** np.floor(exponent)
    active = np.flatnonzero(np.isfinite(high) & (high - low > 1.0))
    while active.size:
        a, b = low[active], high[active]
        middle = np.floor(np.where(b > 4.0 * (a + 2.0), np.sqrt(a + 2.0) * np.sqrt(b), 0.5 * a + 0.5 * b))
        middle = np.clip(middle, a + 1.0, b - 1.0)
        reached = rising(active, middle) >= -_ROUNDING
        low[active] = np.where(reached, a, middle)
        high[active] = np.where(reached, middle, b)
        # Beyond 2^53 floats are further apart than integers: stop when there is none between.
        gap = high[active] - low[active]
        active = active[(gap > 1.0) & (gap > 4e-16 * high[active])]
    return high


def highest_point(values: Callable[[Index, Array], Array], guesses: list[Array]) -> tuple[Array, Array, Array]:
    """Where each function is largest within a bounded search, the width of that peak, and whether it is inside.

    The functions are tried on grids that grow by factors of 2 from each of the ``guesses``; the best point is refined
    by golden section. ``values(rows, x)`` gives the functions at the Q x L points x, column l belonging to rows[l].
    """
    every = np.arange(guesses[0].size)
    steps = 2.0 ** np.arange(-6.0, 10.0)
    offsets = np.concatenate([-steps[::-1], [0.0], steps])[:, None]
    grids = [guess + np.maximum(1.0, 1e-3 * np.abs(guess)) * offsets for guess in guesses]
    grid = np.sort(np.concatenate(grids), axis=0)
    heights = values(every, grid)
    best = np.argmax(heights, axis=0)
    inside = (heights[best, every] > heights[0]) & (heights[best, every] > heights[-1])
    near = np.clip(best, 1, grid.shape[0] - 2)
    low, high = grid[near - 1, every], grid[near + 1, every]
    golden = 0.5 * (np.sqrt(5.0) - 1.0)
    for _ in range(40):
        left, right = high - golden * (high - low), low + golden * (high - low)
        f_left, f_right = values(every, np.stack([left, right]))
        low, high = np.where(f_left < f_right, left, low), np.where(f_left < f_right, high, right)
    centre = np.where(inside, 0.5 * (low + high), grid[best, every])
    return centre, _half_width(values, every, centre), inside


def _half_width(values: Callable[[Index, Array], Array], every: Index, centre: Array) -> Array:
    """The smaller of the distances to both sides at which a function has fallen by 1/2, to a factor of 2 at most 64."""
    steps = 2.0 ** np.arange(-20.0, 7.0, 0.5)
    top = values(every, centre[None])[0]
    width = np.full_like(centre, 64.0)
    for sign in (-1.0, 1.0):
        fallen = top - values(every, centre + sign * steps[:, None] * np.maximum(1.0, 1e-6 * np.abs(centre))) >= 0.5
        width = np.minimum(width, np.where(fallen.any(axis=0), steps[np.argmax(fallen, axis=0)], 64.0))
    return width
