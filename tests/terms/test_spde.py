"""Matern fields on meshes: their covariance, determinant, gradient, rows and meshes against closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import k1

import klimb
from klimb.errors import InputError
from klimb.likelihoods import likelihood
from klimb.models.setup import build
from klimb.rows.meshes import Mesh, cover, read_mesh, smallest_angles
from klimb.terms.encoder import encode

RNG = np.random.default_rng(3)
PLACES = RNG.uniform(size=(60, 2))
DATA = {"x": PLACES[:, 0], "z": PLACES[:, 1], "y": RNG.poisson(3.0, 60)}


def field(formula: str) -> tuple[Any, Any]:
    encoder, encoded = encode(f"y ~ {formula}", DATA)
    model, _, observed, _ = build(encoder, encoded, likelihood("poisson", None), None)
    return model, observed


def matern(distance: Any, kappa: float) -> Any:
    x = kappa * distance
    return np.where(x > 1e-10, x * k1(np.maximum(x, 1e-10)), 1.0)


@pytest.mark.parametrize(("reach", "near"), [(0.5, 0.02), (5.0, 0.01), (15.0, 0.01), (50.0, 0.15), (5000.0, 0.4)])
def test_the_covariance_between_places_is_a_matern_one(reach: float, near: float) -> None:
    """Levels at any range; differences to the range at which the edge of the mesh, 28 away, takes part."""
    model, _ = field("spde(x, z, spacing=0.04)")
    term, rows = model.terms[1], model.rows.blocks[1].values
    prior = term.prior([2.0, reach])
    V = rows @ np.linalg.solve(prior.precision.toarray(), rows.T.toarray())
    wanted = 4.0 * matern(np.linalg.norm(PLACES[:, None] - PLACES[None], axis=2), np.sqrt(8.0) / reach)
    assert np.abs(V - wanted).max() < 4.0 * 0.02
    contrast = np.diff(np.eye(60), axis=0)
    away = contrast @ (V - wanted) @ contrast.T
    assert np.abs(away).max() < near * np.abs(contrast @ wanted @ contrast.T).max()
    assert np.isclose(prior.logdet, np.linalg.slogdet(prior.precision.toarray())[1], rtol=1e-9)


@pytest.mark.parametrize("longer", [0.1, 5.0])
def test_gradients_are_differences_of_the_bound(longer: float) -> None:
    model, observed = field("spde(x, z, spacing=0.2)")
    theta = model.theta.start + 0.1
    theta[-1] += longer
    here = model.moved(theta)
    found = here.gradient(here.infer(observed, tol=1e-9).posterior, observed)
    for k, unit in enumerate(1e-4 * np.eye(len(theta))):
        sides = [model.moved(theta + sign * unit).infer(observed, tol=1e-9).bound for sign in (1.0, -1.0)]
        assert np.isclose(found[k], (sides[0] - sides[1]) / 2e-4, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("points", [PLACES, RNG.uniform(size=(2000, 2)), np.stack([np.arange(30.0), np.zeros(30)], 1),
                                    np.concatenate([RNG.normal(size=(40, 2)), 200.0 + RNG.normal(size=(40, 2))]),
                                    RNG.uniform(size=(3, 2)), np.repeat(PLACES[:5], 9, axis=0)])
def test_meshes_have_no_slivers_and_reach_beyond_the_points(points: Any) -> None:
    extent = float(np.linalg.norm(np.ptp(points, axis=0)))
    mesh, _ = cover(points, None, extent)
    assert smallest_angles(mesh).min() > 15.0
    assert 300 < len(mesh.nodes) <= 7000
    low, high = points.min(axis=0) - 0.6 * extent, points.max(axis=0) + 0.6 * extent
    assert (mesh.nodes.min(axis=0) < low).all()
    assert (mesh.nodes.max(axis=0) > high).all()
    assert (mesh.locate(points)[0] >= 0).all()
    masses, G = mesh.elements()
    assert np.isclose(masses.sum(), mesh.sizes().sum())
    assert np.abs(G @ np.column_stack([np.ones(len(masses)), np.zeros(len(masses))])).max() < 1e-9  # constants are free
    energy = mesh.nodes[:, 0] @ (G @ mesh.nodes[:, 0])  # of a plane of slope 1
    assert np.isclose(energy, mesh.sizes().sum())


def test_nodes_between_their_neighbours_bring_the_field_closer_to_a_matern_one(monkeypatch: Any) -> None:
    """Means of the field given noisy data, on meshes whose sides double around dense places."""
    monkeypatch.setattr("klimb.rows.meshes.COARSEST", 0.04)  # where sides are short everywhere it makes no difference
    rng = np.random.default_rng(3)
    points, kappa = rng.random((80, 2)) ** 2, np.sqrt(8.0) / 0.35
    K = matern(np.linalg.norm(points[:, None] - points, axis=2), kappa)
    y = np.linalg.cholesky(K + 1e-9 * np.eye(80)) @ rng.standard_normal(80) + 0.3 * rng.standard_normal(80)

    def smoothed(covariance: Any) -> Any:
        return covariance @ np.linalg.solve(covariance + 0.09 * np.eye(80), y)

    def error() -> float:
        mesh, _ = cover(points, None, 1.0)
        masses, G = mesh.elements()
        operator = np.diag(kappa**2 * masses) + G.toarray()
        Q = operator @ (operator / masses[:, None]) / (4.0 * np.pi * kappa**2)
        A = mesh.rows(points)[0].toarray()
        return float(np.sqrt(((smoothed(A @ np.linalg.solve(Q, A.T)) - smoothed(K)) ** 2).mean()))

    after = error()
    monkeypatch.setattr("klimb.rows.meshes.SMOOTHED", 0)
    assert after < 0.9 * error()


def test_rows_are_linear_interpolation_of_linear_functions() -> None:
    mesh, _ = cover(PLACES, 0.1, 0.5)
    rows, outside = mesh.rows(np.vstack([PLACES, [[50.0, 50.0]]]))
    plane = 1.0 + mesh.nodes @ [2.0, -3.0]
    np.testing.assert_allclose((rows @ plane)[:-1], 1.0 + PLACES @ [2.0, -3.0], atol=1e-6)
    assert outside.tolist() == [False] * 60 + [True]
    assert rows[[60]].nnz == 0
    cell, weights = mesh.locate(PLACES)
    np.testing.assert_allclose(np.einsum("nk,nkd->nd", weights, mesh.nodes[mesh.cells[cell]]), PLACES, atol=1e-8)


@pytest.mark.parametrize("reach", [0.15, 0.4, 1.5])
def test_far_places_have_the_whole_variance_of_the_field(reach: float) -> None:
    """Triangles there are larger than the range. Means and sds of f beside dense algebra of the Matern kernel."""
    rng, ahead = np.random.default_rng(2), np.array([0.1, 0.2, 0.35, 0.7, 1.4, 3.0, 8.0, 20.0])
    x, z = rng.uniform(size=(2, 80))
    y = rng.standard_normal(80)
    fixed = {"Intercept": "normal(0, 1)", "sd(spde(x, z))": "fixed(1)", "range(spde(x, z))": f"fixed({reach})",
             "sigma": "fixed(0.3)"}
    fit = klimb.fit("y ~ spde(x, z)", {"x": x, "z": z, "y": y}, priors=fixed)
    new = {"x": 1.0 + ahead, "z": np.full(len(ahead), 0.5)}
    places = np.vstack([np.column_stack([x, z]), np.column_stack(list(new.values()))])
    K = matern(np.linalg.norm(places[:, None] - places, axis=2), np.sqrt(8.0) / reach) + 1.0
    cross = np.linalg.solve(K[:80, :80] + 0.09 * np.eye(80), K[:80, 80:])
    sd = np.sqrt(np.diagonal(K)[80:] - np.einsum("ij,ij->j", K[:80, 80:], cross))
    found = fit.predict(new, kind="latent")
    np.testing.assert_allclose(found["sd"], sd, rtol=0.06)  # 13 to 80% too small by the mesh alone
    np.testing.assert_allclose(found["mean"], y @ cross, atol=0.05)
    assert np.abs(fit.sample(4000, new).std(axis=0) / sd - 1.0).max() < 0.1


def test_a_mesh_of_ones_own_and_places_outside_of_it() -> None:
    mesh, _ = cover(PLACES, 0.15, 1.0)
    fit = klimb.fit("y ~ spde(x, z, mesh=M)", DATA, family="poisson", hyper="optimise",
                    meshes={"M": (mesh.nodes, mesh.cells)})
    sd, intercept = fit.hyperparameters["sd(spde(x, z))"], fit.coefficients
    far = fit.predict({"x": [99.0], "z": [0.0]}, kind="latent")
    assert np.isclose(far["mean"][0], intercept["mean"][0], rtol=1e-6)
    assert np.isclose(far["sd"][0], np.hypot(sd, intercept["sd"][0]), rtol=0.05)
    assert len(fit.field("spde(x, z)")["mean"]) == len(mesh.nodes)


SQUARE = ([[-1.0, -1.0], [2.0, -1.0], [2.0, 2.0], [-1.0, 2.0]], [[0, 1, 2], [0, 2, 3]])


@pytest.mark.parametrize(("mesh", "words"), [
    (([[0, 0], [1, 0], [0.5, 0.001]], [[0, 1, 2]]), "angles"), (([[0, 0], [1, 0], [2, 0]], [[0, 1, 2]]), "angles"),
    (([[0, 0], [1, 0], [0, 1]], [[0, 1, 3]]), "from 0"), (([[0, 0], [1, 0], [0, 1], [5, 5]], [[0, 1, 2]]), "belong"),
    (([[0, 0], [1, 0], [0, 1], [1, 1], [0.3, 0.4]], [[0, 1, 2], [0, 1, 3], [0, 1, 4]]), "overlap"), ("nodes", "a mesh"),
    (([[0, 0], [9, 0], [9, 9], [0, 9], [4, 5]], [[0, 1, 4], [1, 2, 4], [2, 3, 4], [0, 1, 2]]), "not overlap"),
    (([[0, 0], [0.1, 0], [0, 0.1]], [[0, 1, 2]]), "inside M"), (([[0.0], [1.0]], [[0, 1]]), "two coordinates"),
])
def test_bad_meshes_are_told_in_words(mesh: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        klimb.fit("y ~ spde(x, z, mesh=M)", DATA, family="poisson", meshes={"M": mesh})
    assert read_mesh(SQUARE, "M").cells.shape == (2, 3)


@pytest.mark.parametrize(("formula", "words"), [
    ("spde(x, z, spacing=0)", "positive spacing"), ("spde(x, z, y)", "one or two"), ("spde(x, z, mesh=W)", "called W"),
    ("spde(x, z, spacing=0.000001)", "larger spacing"), ("spde(one, one)", "three different"),
])
def test_bad_fields_are_told_in_words(formula: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        klimb.fit(f"y ~ {formula}", {**DATA, "one": np.ones(60)}, family="poisson")


def test_a_range_that_the_mesh_cannot_tell_is_told() -> None:
    fit = klimb.fit("y ~ spde(x, z, spacing=0.2)", DATA, family="poisson", hyper="optimise",
                    priors={"range(spde(x, z))": "fixed(0.3)"})
    assert any("spacing=0.03" in note for note in fit.notes)


def test_the_mesh_is_told() -> None:
    fit = klimb.fit("y ~ spde(x, z, spacing=0.2)", DATA, family="poisson", hyper="optimise")
    assert any("nodes, 0.2 apart" in note for note in fit.notes)
    assert isinstance(fit.model.terms[1]._mesh, Mesh)
