"""A smooth function between the points where it is known."""

import numpy as np
import pytest

from klimb.numerics.surrogate import fit_surrogate, quadratics


def bent(z: np.ndarray) -> np.ndarray:
    """A log density with one long tail."""
    return -0.5 * (z**2).sum(axis=1) + 0.3 * np.tanh(z[:, 0]) * z[:, 1] - 0.1 * np.exp(0.5 * z[:, 2])


def test_errors_are_those_of_fits_without_the_point() -> None:
    z = np.random.default_rng(0).standard_normal((60, 3))
    whole = fit_surrogate(z, bent(z), np.full(60, 1.0))
    assert whole is not None
    # The leave-one-out error in closed form is what is left when the point is really left out, at the same lengthscale.
    import klimb.numerics.surrogate as module

    scale = whole.length / np.sqrt(1.5)
    tried = [pair for pair in module.TRIED if pair[0] == pytest.approx(scale)]
    errors = []
    for pair in tried:
        own = []
        for i in range(60):
            keep = np.arange(60) != i
            values = bent(z)
            top = values.max()
            K = np.exp(-0.5 * ((z[keep][:, None] - z[keep]) ** 2).sum(2) / whole.length**2)
            K += np.diag(pair[1] * (1.0 + top - values[keep]) ** 2)
            X = quadratics(z[keep])
            inverse = np.linalg.inv(K)
            trend = np.linalg.solve(X.T @ inverse @ X, X.T @ inverse @ values[keep])
            cross = np.exp(-0.5 * ((z[i] - z[keep]) ** 2).sum(1) / whole.length**2)
            guess = quadratics(z[i : i + 1]) @ trend + cross @ inverse @ (values[keep] - X @ trend)
            own.append(float(values[i] - guess[0]))
        errors.append(float(np.sqrt(np.mean(np.square(own)))))
    assert min(abs(error - whole.error) for error in errors) < 0.02 * whole.error + 1e-6


def test_new_points_are_met_as_well_as_the_errors_say() -> None:
    rng = np.random.default_rng(1)
    z, new = rng.standard_normal((150, 3)), 0.8 * rng.standard_normal((500, 3))
    found = fit_surrogate(z, bent(z), np.exp(bent(z)))
    assert found is not None
    assert found.error < 0.02
    assert np.sqrt(np.mean((found(new) - bent(new)) ** 2)) < 3.0 * found.error + 1e-3


def test_nothing_is_claimed_far_from_all_points() -> None:
    z = np.random.default_rng(2).standard_normal((80, 2))
    found = fit_surrogate(z, 0.2 * (z**2).sum(1), np.full(80, 1.0))  # rises outwards
    assert found is not None
    assert found(np.full((1, 2), 50.0))[0] <= 0.2 * (z**2).sum(1).max()


def test_too_few_points_give_none() -> None:
    z = np.random.default_rng(3).standard_normal((10, 3))
    assert fit_surrogate(z, z[:, 0], np.full(10, 1.0)) is None
