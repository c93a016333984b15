"""Dense factors in single precision, and their correlations, which Newton directions multiply by."""

import numpy as np
import pytest

from klimb.latents.kernel import KernelFactor, kernel_factor


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


def test_a_factor_in_single_precision_has_four_digits() -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((700, 40))  # more rows than are factorised without halves
    K, gamma, b = 0.05 * X @ X.T, rng.uniform(0.01, 1.0, 700), rng.standard_normal(700)
    exact, single = KernelFactor(K, gamma), KernelFactor(K, gamma, single=True)
    explained = gamma * exact.variances()
    assert 1e-9 < np.abs(gamma * single.variances() - explained).max() < 1e-5
    assert 0.0 < abs(single.logdet - exact.logdet) < single.log_det_rounding
    x, Kx = single.solve(b)
    np.testing.assert_allclose(x, exact.solve(b)[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(Kx, K @ x, rtol=1e-12, atol=1e-10)  # the mean belongs to its own weights
    sd = np.sqrt(exact.variances())
    np.testing.assert_allclose(np.tril(single.correlations(sd)), np.tril(exact.correlations(sd)), atol=1e-3)
    np.testing.assert_allclose(single.explained(K[:5]), exact.explained(K[:5]), rtol=1e-4)
    np.testing.assert_allclose(np.tril(single.covariance()), np.tril(exact.covariance()), atol=1e-4)
    far = kernel_factor(1e5 * K, gamma, single=True)  # where single precision has no digits left
    np.testing.assert_array_equal(far.variances(), KernelFactor(1e5 * K, gamma).variances())
