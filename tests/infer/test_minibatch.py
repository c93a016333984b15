"""Large data: rows on demand and minibatches give the numbers of the ordinary fit."""

from __future__ import annotations

import numpy as np
import pytest

import klimb
from klimb import kernels, latents, sites
from klimb.errors import InputError
from klimb.infer.minibatch import minibatch
from klimb.kernels.means import ConstantMean
from klimb.numerics.dense import Whitener
from klimb.rows.kernel_rows import KernelRows, RowSource, inducing_latent

RNG = np.random.default_rng(3)
N = 5000
X = RNG.standard_normal((N, 2))
F = 2 * np.sin(1.5 * X[:, 0]) + X[:, 1]
KERNEL = kernels.RBF(variance=4.0, lengthscale=1.0)
Z = X[:40]
DATA = {
    "logistic": (sites.Logistic(), np.where(RNG.random(N) < 1 / (1 + np.exp(-F)), 1, 0)),
    "poisson": (sites.Poisson(exposure=np.linspace(0.5, 2.0, N)), RNG.poisson(np.linspace(0.5, 2.0, N) * np.exp(F))),
    "student-t": (sites.StudentT(3.0, 0.3), F + 0.3 * RNG.standard_t(3, N)),
    "gaussian": (sites.Gaussian(0.5), F + 0.5 * RNG.standard_normal(N)),
}


def sources(tmp_path):
    path = tmp_path / "inputs.npy"
    np.save(path, X)
    return {
        "array": X,
        "memory map": np.load(path, mmap_mode="r"),
        "single precision": X.astype(np.float32),
        "stream": lambda: (X[k : k + 777] for k in range(0, N, 777)),
    }


@pytest.mark.parametrize("kind", ["array", "memory map", "stream"])
def test_rows_on_demand_are_the_stored_ones(kind, tmp_path):
    source = sources(tmp_path)[kind]
    stored = inducing_latent(KERNEL, X, Z, mean=ConstantMean(0.3), stored=True)
    lazy = inducing_latent(KERNEL, source, Z, mean=ConstantMean(0.3), stored=False)
    assert isinstance(lazy.row_design, KernelRows)
    design, rows = lazy.row_design, stored.row_design
    gamma, b = RNG.random(N), RNG.standard_normal(N)
    scale = np.abs(rows.weighted_gram(gamma)).max()
    np.testing.assert_allclose(design.weighted_gram(gamma), rows.weighted_gram(gamma), atol=1e-12 * scale)
    np.testing.assert_allclose(design.weighted_gram(-gamma), rows.weighted_gram(-gamma), atol=1e-12 * scale)
    np.testing.assert_allclose(design.transpose_times(b), rows.transpose_times(b), atol=1e-12 * np.abs(b).sum())
    np.testing.assert_allclose(design.times(b[:40]), rows.times(b[:40]), atol=1e-12 * np.abs(b).sum())
    # Whitened entries are sums of 40 products with L^-1, in another order in blocks of another size: both sides are
    # off by at most 40 roundings of the sum of magnitudes. The rest follows by differentials.
    dense, root = rows.dense(), np.triu(RNG.standard_normal((40, 40)))
    loss = 80 * np.finfo(float).eps * KERNEL.gram(X, Z) @ np.abs(np.linalg.inv(design.whitener.root)).T
    assert loss.max() < 1e-9
    norm_loss = 2 * (np.abs(dense @ root) * (loss @ np.abs(root))).sum(axis=1)
    product_loss = loss @ np.abs(b[:40])
    for options in ({"upper": True}, {}, {"times": b[:40]}):
        found, expected = design.row_norms_squared(root, **options), rows.row_norms_squared(root, **options)
        assert np.all(np.abs(found[0] - expected[0]) <= 1e-12 * (1 + expected[0]) + norm_loss)
        assert np.all(np.abs(found[1] - expected[1]) <= 1e-12 + product_loss)
    some = np.array([4, 17, 2, 4999, 1600])
    assert np.all(np.abs(design.subset(some).dense() - dense[some]) <= loss[some])
    assert np.all(np.abs(design.dense_rows(slice(700, 900)) - dense[700:900]) <= loss[700:900])
    slack_loss = 2 * (np.abs(dense) * loss).sum(axis=1) if kind == "stream" else 0.0  # the others cut the same blocks
    assert np.all(np.abs(lazy.slack - stored.slack) <= slack_loss)


@pytest.mark.parametrize("kind", ["memory map", "single precision", "stream"])
def test_fits_agree_whatever_the_rows_come_from(kind, tmp_path):
    site, y = DATA["logistic"]
    whole = klimb.infer(inducing_latent(KERNEL, X, Z), site, y)
    part = klimb.infer(inducing_latent(KERNEL, sources(tmp_path)[kind], Z, stored=False), site, y)
    assert part.converged
    assert abs(part.bound - whole.bound) < (1e-5 if kind == "single precision" else 1e-9) * abs(whole.bound)


def test_kernel_model_and_latent_by_matrices_agree():
    site, y = DATA["poisson"]
    model = klimb.gp(KERNEL, X, site, inducing=Z, mean=ConstantMean(0.2))
    Kuu = KERNEL.gram(Z) + 1e-8 * 4.0 * np.eye(40)
    other = klimb.infer(latents.Inducing(Kuu, KERNEL.gram(Z, X), 4.0, mean=0.2), site, y)
    assert abs(model.fit(y, hyper="fixed").bound - other.bound) < 1e-7


@pytest.mark.parametrize("pivot", [1.0, 1e-7])
def test_whitening_solves_well_and_badly_conditioned_triangles(pivot):
    L = np.tril(RNG.standard_normal((6, 6)))
    L.flat[:: 7] = 2.0
    L[5, 5] = pivot
    rows = RNG.standard_normal((300, 6)) @ L.T
    keep = rows.copy()
    np.testing.assert_allclose(Whitener(L).whitened(rows) @ L.T, rows, atol=1e-12)
    np.testing.assert_array_equal(rows, keep)


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("batch", [250, None])
def test_minibatches_reach_the_full_optimum(name, batch):
    site, y = DATA[name]
    latent = inducing_latent(KERNEL, X, Z, mean=ConstantMean(0.3))
    full = klimb.infer(latent, site, y, tol=1e-8)
    found = minibatch(latent, site, y, batch=batch)
    assert found.converged, found
    assert abs(found.bound - full.bound) < 1e-4
    np.testing.assert_allclose(found.posterior.m, full.posterior.m, atol=1e-3)
    assert found.history.rule[-1] == "check"
    assert len(found.history) <= 15


def test_one_pass_is_exact_for_gaussian_data():
    site, y = DATA["gaussian"]
    latent = inducing_latent(KERNEL, X, Z)
    found = minibatch(latent, site, y, batch=500, max_passes=2)
    assert found.converged
    assert abs(found.bound - klimb.infer(latent, site, y).bound) < 1e-6


def test_minibatches_are_reproducible_and_stream():
    site, y = DATA["logistic"]
    stream = inducing_latent(KERNEL, lambda: (X[k : k + 600] for k in range(0, N, 600)), Z, stored=False)
    one, two = minibatch(stream, site, y, batch=250), minibatch(stream, site, y, batch=250)
    assert one.bound == two.bound
    assert abs(one.bound - klimb.infer(stream, site, y).bound) < 1e-4
    shuffled = inducing_latent(KERNEL, X, Z, stored=False)
    assert abs(minibatch(shuffled, site, y, seed=5).bound - one.bound) < 1e-4


@pytest.mark.parametrize("cov", [2.0, np.linspace(0.1, 3.0, 6), "matrix"])
def test_minibatches_of_a_regression(cov):
    design = RNG.standard_normal((4000, 6))
    if isinstance(cov, str):
        root = np.random.default_rng(0).standard_normal((6, 6))
        cov = root @ root.T
    y = RNG.random(4000) < 1 / (1 + np.exp(-design @ np.linspace(-1, 1, 6)))
    latent = latents.Weights(design, mean=0.5, cov=cov)
    found, full = minibatch(latent, sites.Logistic(), y), klimb.infer(latent, sites.Logistic(), y)
    assert found.converged
    assert abs(found.bound - full.bound) < 1e-4
    np.testing.assert_allclose(found.posterior.mean, full.posterior.mean, atol=1e-3)


def test_wide_priors_do_not_upset_the_first_pass():
    site, y = DATA["poisson"]
    latent = inducing_latent(kernels.RBF(variance=100.0, lengthscale=2.0), X, Z)
    found = minibatch(latent, site, y, batch=300)
    assert found.converged
    assert abs(found.bound - klimb.infer(latent, site, y).bound) < 1e-4 * abs(found.bound)


def test_a_limit_on_passes_is_a_status():
    found = minibatch(inducing_latent(KERNEL, X, Z), *DATA["logistic"], max_passes=1, tol=1e-10)
    assert found.status.name == "MAX_ITER"
    assert np.isfinite(found.bound)


def test_errors():
    with pytest.raises(InputError, match=r"Z must be points with 2 columns; got shape \(3, 1\)"):
        inducing_latent(KERNEL, X, [1.0, 2.0, 3.0])
    with pytest.raises(InputError, match=r"at least one row and one column; got shape \(0, 2\)"):
        RowSource(X[:0])
    with pytest.raises(InputError, match="must yield at least one row"):
        RowSource(lambda: iter(()))
    with pytest.raises(InputError, match=r"rows with the same columns; got shape \(2, 3\) after 5000 rows"):
        RowSource(lambda: iter([X, np.ones((2, 3))]))
    once = iter([X])
    with pytest.raises(InputError, match="the same 5000 rows each time; got 0"):
        list(RowSource(lambda: once).blocks(2))
    with pytest.raises(InputError, match="X must be finite; got nan at index"):
        RowSource(lambda: iter([np.full((2, 2), np.nan)]))
    with pytest.raises(InputError, match=r"at least one row and one column; got shape \(\)"):
        RowSource(3)
    latent = inducing_latent(KERNEL, X, Z)
    with pytest.raises(InputError, match="a latent with few weights; got Kernel"):
        minibatch(latents.Kernel(np.eye(3)), sites.Logistic(), [0, 1, 0])
    with pytest.raises(InputError, match="batch must be at least 1; got 0"):
        minibatch(latent, *DATA["logistic"], batch=0)
    with pytest.raises(InputError, match="max_passes at least 1"):
        minibatch(latent, *DATA["logistic"], max_passes=0)
    broken = X.copy()
    broken[7, 1] = np.inf
    with pytest.raises(InputError, match=r"X must be finite; got inf at index \(7, 1\)"):
        inducing_latent(KERNEL, broken, Z)
