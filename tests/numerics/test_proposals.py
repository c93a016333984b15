"""t's that are fitted to weighted points."""

import numpy as np
import pytest

from klimb.numerics.proposals import DEGREES, SHRINK, SWEEPS, fit_students, student_log_density


def by_loops(theta, weights, count, floor):
    """EM as it is written in books: every component's mean and covariance from the points themselves."""
    n, d = theta.shape
    w = weights / weights.sum()
    centre = w @ theta
    whole = sum(w[i] * np.outer(theta[i] - centre, theta[i] - centre) for i in range(n)) + floor
    order = np.argsort((theta - centre) @ np.linalg.eigh(whole)[1][:, -1], kind="stable")
    share, scale, mass_before = np.zeros((count, n)), np.ones((count, n)), np.cumsum(w[order])
    for place, i in enumerate(order):
        share[min(int(mass_before[place] * count), count - 1), i] = 1.0
    for _ in range(SWEEPS):
        mass, means, covariances, logs = share @ w, [], [], []
        for k in range(count):
            pull = share[k] * scale[k] * w
            means.append(pull @ theta / pull.sum())
            away = theta - means[k]
            own = (pull[:, None, None] * away[:, :, None] * away[:, None, :]).sum(axis=0) / mass[k]
            covariances.append((1.0 - SHRINK) * own + SHRINK * whole / count + 0.1 * floor)
            squares = np.einsum("ni,ij,nj->n", away, np.linalg.inv(covariances[k]), away)
            scale[k] = (DEGREES + d) / (DEGREES + squares)
            logs.append(np.log(mass[k] / mass.sum()) + student_log_density(
                squares, d, 0.5 * np.linalg.slogdet(covariances[k])[1]))
        share = np.exp(np.array(logs) - np.logaddexp.reduce(logs, axis=0))
    return mass / mass.sum(), np.array(means), np.array(covariances)


@pytest.mark.parametrize("units", [(1.0, 1.0, 1.0), (1e-4, 1.0, 1e5)])
def test_they_are_those_of_em_by_loops(units) -> None:
    rng = np.random.default_rng(4)
    theta = rng.standard_normal((300, 3)) @ np.array([[1.0, 0.5, 0.0], [0.0, 0.4, -0.3], [0.0, 0.0, 0.2]])
    theta[:90] += [4.0, -1.0, 0.5]
    theta, weights = (theta + 50.0) * units, rng.random(300) ** 2
    floor = np.diag((0.1 * np.array(units)) ** 2)
    found = fit_students(theta, weights, 2, floor)
    shares, means, covariances = by_loops(theta, weights, 2, floor)
    np.testing.assert_allclose(found.weights, shares, rtol=1e-7)
    np.testing.assert_allclose(found.means / units, means / units, rtol=1e-8)
    scale = np.outer(units, units)
    np.testing.assert_allclose(found.roots @ np.swapaxes(found.roots, 1, 2) / scale, covariances / scale, atol=1e-8)


def test_points_are_multiplied_once_for_all_sweeps(monkeypatch) -> None:
    import klimb.numerics.proposals as module

    made, one = list[int](), module.quadratics
    monkeypatch.setattr(module, "quadratics", lambda z: (made.append(len(z)), one(z))[1])
    theta = np.random.default_rng(0).standard_normal((200, 2))
    module.fit_students(theta, np.ones(200), 3, 0.01 * np.eye(2))
    assert made == [200]
