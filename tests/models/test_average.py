"""The lattice of hyperparameters: which of its nodes are fitted."""

from __future__ import annotations

import pytest

from klimb.models.average import DROP, _surely_low


def along(*values: float) -> dict[tuple[int, ...], float]:
    """Values at the nodes (0, 0), (1, 0), ..."""
    return {(k, 0): value for k, value in enumerate(values)}


def test_a_node_far_down_a_parabola_is_foretold() -> None:
    values = along(*(-1.1 * k**2 for k in range(3)))
    assert _surely_low((3, 0), (2, 0), values, 0.0) == pytest.approx(-9.9)
    assert _surely_low((-3, 0), (-2, 0), {(-k, 0): -1.1 * k**2 for k in range(3)}, 0.0) == pytest.approx(-9.9)


def test_a_node_that_may_count_is_fitted() -> None:
    assert _surely_low((3, 0), (2, 0), along(0.0, -1.0, -2.0), 0.0) is None  # a straight tail
    assert _surely_low((3, 0), (2, 0), along(0.0, -0.5, -3.0), 0.0) is None  # a fall by less would not be enough
    assert _surely_low((2, 0), (1, 0), along(0.0, -0.9 * DROP), 0.0) is None  # nobody knows how it bends
