"""Correlations of a dense factor in single precision, which Newton directions multiply by."""

import numpy as np
import pytest

from klimb.latents.kernel import KernelFactor


@pytest.mark.parametrize("faintest", [-2.0, -4.0, -8.0])  # some sites say nearly nothing, or most of them
def test_correlations_are_those_of_the_covariance(faintest: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 2))
    K = 4.0 * np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(axis=-1))
    factor = KernelFactor(K, 10.0 ** rng.uniform(faintest, 1.0, 300))
    sd = np.sqrt(factor.variances())
    R = factor.correlations(sd)
    assert R is not None
    assert R.dtype == np.float32
    np.testing.assert_allclose(np.tril(R), np.tril(factor.covariance() / np.outer(sd, sd)), atol=1e-4)
