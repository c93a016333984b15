"""A smooth function between the points where it is known."""

from typing import Any

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


def test_a_point_that_stands_alone_does_not_hide_how_good_the_others_are() -> None:
    rng = np.random.default_rng(5)
    z = np.vstack([rng.standard_normal((60, 3)), [[0.0, 8.0, 0.0]]])
    values = bent(z) + np.append(np.zeros(60), 30.0)
    found = fit_surrogate(z, values, np.full(61, 1.0))
    assert found is not None
    assert found.error < 0.6  # some 30 nats / sqrt(61) if its error counted in full
    assert abs(found(z[-1:])[0] - values[-1]) < 0.5
    new = rng.standard_normal((200, 3))
    assert np.sqrt(np.mean((found(new) - bent(new)) ** 2)) < 0.3


def test_nothing_is_claimed_far_from_all_points() -> None:
    z = np.random.default_rng(2).standard_normal((80, 2))
    found = fit_surrogate(z, 0.2 * (z**2).sum(1), np.full(80, 1.0))  # rises outwards
    assert found is not None
    assert found(np.full((1, 2), 50.0))[0] <= 0.2 * (z**2).sum(1).max()


def test_too_few_points_give_none() -> None:
    z = np.random.default_rng(3).standard_normal((10, 3))
    assert fit_surrogate(z, z[:, 0], np.full(10, 1.0)) is None


def bent_slopes(z: np.ndarray) -> np.ndarray:
    """Its gradient."""
    out = -z
    out[:, 0] += 0.3 * z[:, 1] / np.cosh(z[:, 0]) ** 2
    out[:, 1] += 0.3 * np.tanh(z[:, 0])
    out[:, 2] -= 0.05 * np.exp(0.5 * z[:, 2])
    return out


def off(found: Any, n: int = 2000) -> float:
    new = np.random.default_rng(1).standard_normal((n, 3))
    return float(np.sqrt(np.average((found(new) - bent(new)) ** 2, weights=np.exp(bent(new)))))


def test_gradients_are_worth_several_points() -> None:
    z = np.random.default_rng(0).standard_normal((40, 3))
    plain = fit_surrogate(z, bent(z), np.ones(40))
    few = fit_surrogate(z[:24], bent(z[:24]), np.ones(24), slopes=bent_slopes(z[:24]))
    assert plain is not None
    assert few is not None
    assert off(few) < 0.8 * off(plain)
    assert 0.3 * off(few) < few.error < 3.0 * off(few)


def test_gradients_that_are_not_known_or_too_many_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import klimb.numerics.surrogate as module

    z = np.random.default_rng(0).standard_normal((40, 3))
    slopes, values = bent_slopes(z), bent(z)
    every = fit_surrogate(z, values, np.ones(40), slopes=slopes)
    some = fit_surrogate(z, values, np.ones(40), slopes=np.where(np.arange(40)[:, None] < 20, slopes, np.nan))
    none = fit_surrogate(z, values, np.ones(40), slopes=np.full((40, 3), np.nan))
    monkeypatch.setattr(module, "MOST_ROWS", 40 + 3 * 20)
    fewer = fit_surrogate(z, values, np.ones(40), slopes=slopes)
    plain = fit_surrogate(z, values, np.ones(40))
    assert all(one is not None for one in (every, some, none, fewer, plain))
    assert [len(one.pull) for one in (every, some, none, fewer)] == [160, 100, 40, 100]
    assert off(none) == pytest.approx(off(plain))
    assert max(off(one) for one in (every, some, fewer)) < 0.7 * off(plain)


def test_errors_leave_out_values_and_gradients_of_a_point() -> None:
    z = np.random.default_rng(2).standard_normal((30, 3))
    found = fit_surrogate(z, bent(z), np.ones(30), slopes=bent_slopes(z))
    assert found is not None
    scale = found.length / np.sqrt(1.5)
    import klimb.numerics.surrogate as module

    u, slopes = z @ found.axes, bent_slopes(z) @ np.linalg.inv(found.axes).T
    errors = []
    for pair in (pair for pair in module.TRIED if pair[0] == pytest.approx(scale)):
        own = []
        for i in range(30):
            keep = np.arange(30) != i
            X = np.vstack([quadratics(u[keep]), *module._quadratic_slopes(u[keep])])
            known = np.concatenate([bent(z)[keep], slopes[keep].T.ravel()])
            one = module._tried(module._Terms.of(u[keep], 29), bent(z)[keep], np.full(29, 1 / 29), np.full(29, np.inf),
                                known, X, pair, 0.0)
            own.append(float(one(u[i : i + 1])[0] - bent(z)[i]))
        errors.append(float(np.sqrt(np.mean(np.square(own)))))
    assert min(abs(error - found.error) for error in errors) < 0.05 * found.error


def test_gradients_tell_where_a_function_varies_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ridge across no axis: one lengthscale for all directions needs several times as many points."""
    import klimb.numerics.surrogate as module

    z, new = np.random.default_rng(3).standard_normal((60, 3)), np.random.default_rng(4).standard_normal((500, 3))
    across = np.array([0.6, 0.8, 0.0])

    def ridge(z: np.ndarray) -> np.ndarray:
        return -0.5 * (z**2).sum(axis=1) + np.sin(2.5 * z @ across)

    slopes, errors = -z + 2.5 * np.cos(2.5 * z @ across)[:, None] * across, list[float]()
    for directions in (module._directions, lambda points, values, slopes: np.eye(3)):
        monkeypatch.setattr(module, "_directions", directions)
        found = fit_surrogate(z, ridge(z), np.ones(60), slopes=slopes)
        assert found is not None
        errors.append(float(np.median(np.abs(found(new) - ridge(new)))))
    assert errors[0] < 0.3 * errors[1]


def test_claims_stay_near_the_tangent_of_the_nearest_point() -> None:
    """Beyond all points a long lengthscale may promise anything; the gradient at the nearest point knows better."""
    z = np.random.default_rng(5).uniform(-1.0, 1.0, (40, 2))
    steep = -np.exp(3.0 * z[:, 0]) - 0.5 * z[:, 1] ** 2
    slopes = np.column_stack([-3.0 * np.exp(3.0 * z[:, 0]), -z[:, 1]])
    found = fit_surrogate(z, steep, np.ones(40), slopes=slopes)
    assert found is not None
    new = np.array([[2.0, 0.0], [2.5, 0.5], [1.8, -0.3]])
    nearest = np.argmin(((new[:, None] - z) ** 2).sum(axis=2), axis=1)
    away = new - z[nearest]
    tangent = steep[nearest] + (slopes[nearest] * away).sum(axis=1)
    assert (found(new) <= tangent + 0.3 + (away**2).sum(axis=1) + 1e-9).all()


def test_a_lengthscale_that_was_best_before_is_tried_first(monkeypatch) -> None:
    """The same surrogate of points that are little more, by fewer trials."""
    import klimb.numerics.surrogate as module

    z, made = np.random.default_rng(1).standard_normal((90, 3)), list[Any]()
    before = fit_surrogate(z[:80], bent(z[:80]), np.ones(80))
    one = module._tried
    monkeypatch.setattr(module, "_tried", lambda *given: (made.append(given[6]), one(*given))[1])
    plain = fit_surrogate(z, bent(z), np.ones(90))
    count = len(made)
    again = fit_surrogate(z, bent(z), np.ones(90), like=before)
    assert None not in (before, plain, again)
    assert again.tried == plain.tried
    assert again.error == pytest.approx(plain.error)
    assert len(made) - count < count


@pytest.mark.parametrize("noise", [0.0, 3.0])
def test_the_trend_alone_is_tried_again_only_where_it_was_nearly_as_good(noise, monkeypatch) -> None:
    import klimb.numerics.surrogate as module

    rng = np.random.default_rng(7)
    z, made = rng.standard_normal((120, 3)), list[Any]()
    values = bent(z) + noise * rng.standard_normal(120)
    before = fit_surrogate(z[:80], values[:80], np.ones(80))
    assert before is not None
    one = module._tried
    monkeypatch.setattr(module, "_tried", lambda *given: (made.append(given[6]), one(*given))[1])
    again = fit_surrogate(z, values, np.ones(120), like=before)
    assert again is not None
    assert (module.TRIED[-1] in made) == (noise > 0.0)
    assert again.plain == (before.plain if noise == 0.0 else again.error)


def test_gradients_at_few_of_many_points_count_as_well() -> None:
    """Of all values, and gradients at those that stand highest: both are met."""
    z = np.random.default_rng(3).standard_normal((400, 3))
    slopes = bent_slopes(z)
    found = fit_surrogate(z, bent(z), np.ones(400), slopes=slopes)
    assert found is not None
    steep = (len(found.pull) - 400) // 3
    assert 0 < steep < 400
    top = z[np.argsort(-bent(z))[:20]]
    step = 1e-4 * np.eye(3)
    by_differences = np.column_stack([found(top + one) - found(top - one) for one in step]) / 2e-4
    np.testing.assert_allclose(by_differences, bent_slopes(top), atol=0.02)
