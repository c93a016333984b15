"""Small versions of the image benchmark: the matrix-free answer against dense algebra, and estimates against it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

import klimb
from benchmarks import image, rcv1_shape, sparse_glm
from klimb import sites
from klimb.linalg import images as operators

SIZE = 16
OPTIONS = {"analysis": [operators.gradients((SIZE, SIZE)), operators.wavelet((SIZE, SIZE), "db2", levels=2)],
           "scale": image.SCALES}


@pytest.mark.parametrize("bound", ["local", "kl"])
def test_stationary_by_dense_algebra(bound):
    """Every matrix formed: variances are those of A(gamma), the gradient in u vanishes, sites and q agree on gamma."""
    task = image.fourier_task(SIZE, share=0.5)
    fit = klimb.sparse_linear(task.X, task.y, noise=task.noise, bound=bound, variances="exact", tol=1e-9, **OPTIONS)
    X, B = task.X.dense(), np.concatenate([part.dense() for part in OPTIONS["analysis"]])
    scale = np.concatenate([np.full(p.shape[0], s) for p, s in zip(OPTIONS["analysis"], image.SCALES, strict=True)])
    site = sites.SuperGaussian(sites.Laplace(scale)) if bound == "local" else sites.Laplace(scale)
    u, gamma = fit.coef, fit.result.posterior.gamma
    V = np.linalg.inv(X.T @ X / task.noise**2 + (B.T * gamma) @ B)
    v = np.einsum("ij,jk,ik->i", B, V, B, optimize=True)
    assert fit.certified
    assert_allclose(fit.coef_sd, np.sqrt(np.diag(V)), rtol=1e-6)
    assert_allclose(fit.result.posterior.v, v, rtol=1e-6)
    e = site.expect(np.zeros(len(B)), B @ u, v)
    assert np.abs(v * (e.gamma - gamma)).max() < 1e-4
    step = V @ (X.T @ (task.y - X @ u) / task.noise**2 - B.T @ e.alpha)
    assert np.abs(step / np.sqrt(np.diag(V))).max() < 1e-4
    error = task.y - X @ u
    gaussian = -0.5 * error @ error / task.noise**2 - len(error) * np.log(np.sqrt(2.0 * np.pi) * task.noise)
    value = gaussian + e.value.sum() + 0.5 * (gamma @ v + np.linalg.slogdet(2.0 * np.pi * V)[1])
    assert fit.bound == pytest.approx(value, rel=1e-9)


def test_estimates_lie_around_the_exact_answer():
    task = image.blur_task(SIZE, noise=0.05)
    exact = klimb.sparse_linear(task.X, task.y, noise=task.noise, variances="exact", **OPTIONS)
    rough = klimb.sparse_linear(task.X, task.y, noise=task.noise, variances="diagonal", accuracy=0.05, **OPTIONS)
    assert not rough.certified
    assert np.abs((rough.coef - exact.coef) / exact.coef_sd).max() < 0.3
    assert np.median(np.abs(rough.coef_variances(0.05).value / exact.coef_sd**2 - 1.0)) < 0.1
    assert abs(rough.bound - exact.bound) < 4.0 * rough.result.bound_error + 1.0


def test_a_prior_helps_and_says_where_it_may_be_wrong():
    task = image.fourier_task(32, share=0.5)
    fit = klimb.sparse_linear(task.X, task.y, noise=task.noise, variances="diagonal", accuracy=0.2, scale=image.SCALES,
                              analysis=[operators.gradients((32, 32)), operators.wavelet((32, 32), "db2", levels=2)])
    mean = fit.coef.reshape(32, 32)
    assert image._rmse(mean, task.truth) < 0.65 * image._rmse(task.naive, task.truth)
    assert image._rmse(mean, task.truth) < 1.4 * image._rmse(image.mode(task, rounds=60), task.truth)
    assert np.corrcoef(np.abs(mean - task.truth).ravel(), fit.coef_sd)[0, 1] > 0.6


def test_the_scene_and_the_mask():
    scene = image.scene(48)
    assert scene.shape == (48, 48)
    assert 0.0 <= scene.min() < scene.max() <= 1.2
    mask = image.spectrum_mask(48, 0.25, np.random.default_rng(0))
    assert mask[0, 0]
    mirror = np.roll(mask[::-1, ::-1], 1, axis=(0, 1))
    both = mask & mirror
    assert both.sum() <= 4  # only the frequencies that are their own mirror image
    assert mask.sum() == pytest.approx(0.125 * 48**2, rel=0.1)


def test_documents_of_rcv1_shape():
    X, y = rcv1_shape.documents(3000)
    assert X.shape == (3000, 47_236)
    assert X.nnz / 3000 == pytest.approx(73.0, abs=2.0)
    assert_allclose(np.asarray(X.multiply(X).sum(axis=1)).ravel(), 1.0)
    assert set(np.unique(y)) == {-1.0, 1.0}
    again, labels = rcv1_shape.documents(1000)
    assert abs(X[:1000] - again).max() == 0.0
    assert (labels == y[:1000]).all()


def test_the_two_penalties_are_scikit_learns():
    """The mode of our posterior is what its solvers find: the comparison is fair."""
    pytest.importorskip("sklearn")
    from scipy.optimize import minimize
    from scipy.sparse import random as random_sparse

    X = random_sparse(300, 12, density=0.4, random_state=0, format="csr")
    y = np.where(np.random.default_rng(1).random(300) < 0.5, 1.0, -1.0)
    data = sparse_glm.Split(X, y, X, y)
    C = 0.3
    found = minimize(lambda w: np.logaddexp(0.0, -y * (X @ w)).sum() + 0.5 * w @ w / C, np.zeros(12))
    p = 1.0 / (1.0 + np.exp(-(X @ found.x)))
    for solver in sparse_glm.SOLVERS["gaussian"]:
        row = sparse_glm.theirs(data, "gaussian", C, solver)
        assert row["log_loss"] == pytest.approx(sparse_glm.scores(p, y)["log_loss"], abs=1e-4)
    row = sparse_glm.ours(data, "gaussian", C)
    assert row["log_loss"] == pytest.approx(sparse_glm.scores(p, y)["log_loss"], abs=0.02)
    assert {"seconds", "products", "certified"} <= set(row)
