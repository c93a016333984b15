"""Which rows to measure next: the information of blocks against dense formulas, and what choosing by it gains."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import klimb
from klimb.active import measurement_gains
from klimb.errors import InputError


def test_gains_are_mutual_information() -> None:
    rng = np.random.default_rng(0)
    X, blocks = rng.standard_normal((6, 10)), [rng.standard_normal((k, 10)) for k in (1, 3, 12)]
    y = X @ rng.laplace(size=10) + 0.2 * rng.standard_normal(6)
    fit = klimb.sparse_linear(X, y, noise=0.2, scale=0.5)
    posterior = fit.result.posterior
    V = posterior.covariance()
    expected = [0.5 * np.linalg.slogdet(np.eye(len(B)) + B @ V @ B.T / 0.04)[1] for B in blocks]
    assert measurement_gains(posterior, blocks, 0.2) == pytest.approx(expected, rel=1e-8)
    assert measurement_gains(posterior, [sp.csr_matrix(B) for B in blocks], 0.2) == pytest.approx(expected, rel=1e-8)
    plain = klimb.infer(klimb.latents.Weights(X), klimb.sites.Gaussian(scale=0.2), y).posterior
    W = plain.covariance()
    assert measurement_gains(plain, blocks[:2], 0.2) == pytest.approx(
        [0.5 * np.linalg.slogdet(np.eye(len(B)) + B @ W @ B.T / 0.04)[1] for B in blocks[:2]], rel=1e-8)


def test_gains_in_every_form_of_the_weights() -> None:
    rng = np.random.default_rng(1)
    X, blocks = rng.standard_normal((7, 12)), [rng.standard_normal((k, 12)) for k in (1, 4)]
    y = rng.integers(0, 2, 7)
    latents = [klimb.latents.Weights(X, cov=2.0, form=form) for form in ("primal", "dual")]
    gains = [measurement_gains(klimb.infer(latent, klimb.sites.Logistic(), y, tol=1e-10).posterior, blocks, 0.3)
             for latent in [*latents, klimb.latents.Implicit(X, cov=2.0)]]
    assert gains[1] == pytest.approx(gains[0], rel=1e-6)
    assert gains[2] == pytest.approx(gains[0], rel=1e-4)


def test_what_is_known_is_not_measured_again() -> None:
    eye = np.eye(5)
    fit = klimb.sparse_linear(eye[:2], [3.0, 0.0], noise=0.1, scale=1.0)
    gains = measurement_gains(fit.result.posterior, eye[:, None], 0.1)
    assert gains[:2].max() < 0.5 * gains[2:].min()


def test_design_finds_a_sparse_signal_with_fewer_measurements() -> None:
    """Points of a piecewise constant signal, a prior on its differences: chosen ones beat the first six."""
    n = 24
    signal = np.where(np.arange(n) < 9, 0.0, 1.0)
    differences = np.eye(n)[1:] - np.eye(n)[:-1]
    rng = np.random.default_rng(0)
    data = signal + 0.02 * rng.standard_normal(n)

    def error(chosen: list[int]) -> tuple[float, klimb.latents.base.Posterior]:
        fit = klimb.sparse_linear(np.eye(n)[chosen], data[chosen], noise=0.02, analysis=differences, scale=0.05,
                                  tol=1e-4)
        return float(np.linalg.norm(fit.coef - signal)), fit.result.posterior

    chosen = [0]
    for _ in range(5):
        rest = [k for k in range(n) if k not in chosen]
        gains = measurement_gains(error(chosen)[1], np.eye(n)[rest][:, None], 0.02)
        chosen.append(rest[int(gains.argmax())])
    assert error(chosen)[0] < 0.6 * error(list(range(6)))[0]
    assert max(chosen) == n - 1  # the far end is what one end says least about


def test_messages() -> None:
    posterior = klimb.sparse_linear(np.eye(3), np.zeros(3), noise=1.0).result.posterior
    for call, message in [
        (lambda: measurement_gains(posterior, [np.ones((1, 4))], 1.0), r"3 columns.*\(1, 4\) at index 0"),
        (lambda: measurement_gains(posterior, [], 1.0), "at least one block"),
        (lambda: measurement_gains(posterior, [np.ones((1, 3))], 0.0), "positive"),
        (lambda: measurement_gains("posterior", [np.ones((1, 3))], 1.0), "must be that of weights"),
        (lambda: measurement_gains(posterior, [np.full((1, 3), np.nan)], 1.0), "finite"),
    ]:
        with pytest.raises(InputError, match=message):
            call()
