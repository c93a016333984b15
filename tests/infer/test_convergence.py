"""R-hat and effective numbers of draws agree with ArviZ, and say what they should of chains that are known."""

from __future__ import annotations

import numpy as np
import pytest

from klimb.numerics.pareto import bulk_ess, effective, rhat, split


def chains(phi: float, n: int, seed: int = 0) -> np.ndarray:
    """Four chains of three autoregressive quantities, one of them cubed, one with a chain that is elsewhere."""
    noise = np.random.default_rng(seed).standard_normal((4, n, 3))
    x = noise.copy()
    for t in range(1, n):
        x[:, t] = phi * x[:, t - 1] + noise[:, t]
    x[..., 1] **= 3
    x[0, :, 2] += 0.3
    return x


@pytest.mark.parametrize("phi", [-0.3, 0.0, 0.5, 0.9])
@pytest.mark.parametrize("n", [501, 1000])
def test_as_arviz(phi: float, n: int) -> None:
    arviz = pytest.importorskip("arviz")
    x = chains(phi, n)
    data = arviz.convert_to_dataset({"x": x})
    np.testing.assert_allclose(rhat(x), arviz.rhat(data)["x"], rtol=1e-9)
    np.testing.assert_allclose(bulk_ess(x), arviz.ess(data, method="bulk")["x"], rtol=0.01)
    np.testing.assert_allclose(effective(split(x)), arviz.ess(data, method="mean")["x"], rtol=0.01)


def test_autoregressive_chains_are_worth_what_theory_says() -> None:
    """A mean of n draws with correlation phi is worth n (1 - phi) / (1 + phi) independent ones."""
    for phi in (0.0, 0.5, 0.9):
        found = np.mean([effective(chains(phi, 2000, seed)[..., :1])[0] for seed in range(20)])
        assert abs(found / (8000 * (1 - phi) / (1 + phi)) - 1.0) < 0.05


def test_a_quantity_that_never_moves() -> None:
    x = np.zeros((4, 100, 2))
    x[1, :, 1] = 1.0  # one chain sits elsewhere
    assert rhat(x)[0] == 1.0
    assert rhat(x)[1] > 1e6
    assert bulk_ess(x)[0] == 400.0
