"""Functions at many points from their values at a few, beside the functions."""

import numpy as np

from klimb.numerics.skeleton import skeleton


def test_functions_that_were_not_seen_follow_from_few_points() -> None:
    rng = np.random.default_rng(0)
    theta = rng.uniform(-1.5, 1.5, (60, 2))
    slopes, phases = rng.uniform(-0.5, 0.5, (2, 300)), rng.uniform(0.0, 6.0, 300)
    functions = np.sin(theta @ slopes + phases)
    weights = np.exp(-0.5 * (theta**2).sum(axis=1))
    chosen, onto = skeleton(functions[:, :100], theta, weights / weights.sum(), 16)
    assert chosen[0] == np.argmax(weights)
    assert (len(set(chosen)), onto.shape) == (16, (60, 16))
    np.testing.assert_allclose(onto[chosen] @ functions[chosen], functions[chosen], atol=1e-9)
    off, shift = onto @ functions[chosen, 100:] - functions[:, 100:], functions[:, 100:] - functions[chosen[0], 100:]
    assert np.abs(off).max() < 0.02 * np.abs(shift).max()
    assert weights @ (off**2).sum(axis=1) < 1e-5 * (weights @ (shift**2).sum(axis=1))
    # Constants and functions that must be met are, also where there are too few points for the others.
    chosen, onto = skeleton(functions[:, :100], theta, weights / weights.sum(), 6)
    np.testing.assert_allclose(onto @ theta[chosen], theta, atol=1e-4)
    np.testing.assert_allclose(onto.sum(axis=1), 1.0, rtol=1e-12)
    assert np.abs(onto @ functions[chosen] - functions).max() > 0.003


def test_points_that_occur_twice_and_functions_that_do_not_move() -> None:
    theta = np.repeat(np.linspace(-1.0, 1.0, 5), 2)[:, None]
    weights = np.full(10, 0.1)
    chosen, onto = skeleton(np.cos(theta * np.arange(4.0)), theta, weights, 8)
    np.testing.assert_allclose(onto @ theta[chosen], theta, atol=1e-8)
    chosen, onto = skeleton(np.ones((10, 4)), np.ones((10, 1)), weights, 3)
    np.testing.assert_allclose(onto @ np.ones(3), 1.0)
