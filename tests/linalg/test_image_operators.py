"""klimb.linalg.images: every operator against its matrix, its adjoint, its squared entries; and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.signal import convolve2d

import klimb
from klimb.errors import InputError
from klimb.linalg import images as operators
from klimb.linalg.operators.convert import check_adjoint

RNG = np.random.default_rng(3)
SHAPES = [(8, 6), (7, 5), (12,), (4, 6, 3), (9,), (1, 4)]


def mask_of(shape):
    mask = RNG.random(shape) < 0.5
    mask.flat[0] = True
    return mask


EVERY = (
    [(f"fourier {s}", operators.partial_fourier(mask_of(s))) for s in SHAPES]
    + [(f"all frequencies {s}", operators.partial_fourier(np.ones(s, dtype=bool))) for s in SHAPES[:2]]
    + [(f"{b} blur {s}", operators.convolution(RNG.standard_normal(tuple(min(3, n) for n in s)), s, boundary=b))
       for s in SHAPES for b in ("periodic", "zero")]
    + [("even and odd kernel", operators.convolution(RNG.standard_normal((4, 3)), (6, 7), boundary="zero"))]
    + [("kernel larger than the image", operators.convolution(RNG.standard_normal((9, 5)), (4, 3)))]
    + [(f"gradients {s} {p}", operators.gradients(s, periodic=p)) for s in SHAPES for p in (False, True)]
    + [("identity", operators.identity((3, 4))), ("selection", operators.selection(mask_of((3, 4))))]
    + [(f"{name} {s}", operators.wavelet(s, name, levels=levels)) for s, name, levels in
       [((8, 16), "haar", 3), ((8, 8), "db4", 2), (16, "db2", 4), ((8, 8, 4), "db3", 2), ((2, 2), "db10", 1)]]
    + [("stack", operators.stack([operators.gradients((4, 4)), operators.wavelet((4, 4)), np.eye(16)]))]
)
each = pytest.mark.parametrize("B", [B for _, B in EVERY], ids=[name for name, _ in EVERY])


@each
def test_products_are_those_of_one_matrix(B):
    N, D = B.shape
    matrix = np.stack([B.times(unit) for unit in np.eye(D)], axis=1)  # one vector at a time
    U, W = RNG.standard_normal((D, 5)), RNG.standard_normal((N, 5))
    assert_allclose(B.times(U), matrix @ U, rtol=0, atol=1e-13 * D)
    assert_allclose(B.transpose_times(W), matrix.T @ W, rtol=0, atol=1e-13 * N)
    assert_allclose(B.transpose_times(W[:, 0]), matrix.T @ W[:, 0], rtol=0, atol=1e-13 * N)
    assert_allclose(B.times(np.asfortranarray(U)[:, ::2]), matrix @ U[:, ::2], rtol=0, atol=1e-13 * D)
    check_adjoint(B, "B")
    before = B.n_products
    B.times(U)
    B.transpose_times(W[:, 0])
    assert B.n_products == before + 6


@each
def test_squared_entries(B):
    N, D = B.shape
    square = B.dense() ** 2
    gamma, scale = RNG.random(N), RNG.random(D)
    assert_allclose(B.gram_diagonal(gamma), gamma @ square, rtol=0, atol=1e-13 * N)
    assert_allclose(B.row_norms_squared(scale), square @ scale, rtol=0, atol=1e-13 * D)


def test_fourier_is_numpys():
    image, mask = RNG.standard_normal((6, 9)), mask_of((6, 9))
    found = operators.partial_fourier(mask).times(image.ravel())
    whole = np.fft.fft2(image, norm="ortho")[mask]
    assert_allclose(found, np.concatenate([whole.real, whole.imag]), atol=1e-14)


def test_blur_is_scipys():
    image, kernel = RNG.standard_normal((9, 7)), RNG.standard_normal((3, 5))
    found = operators.convolution(kernel, (9, 7), boundary="zero").times(image.ravel()).reshape(9, 7)
    assert_allclose(found, convolve2d(image, kernel, mode="same"), atol=1e-13)
    found = operators.convolution(kernel, (9, 7)).times(image.ravel()).reshape(9, 7)
    assert_allclose(found, convolve2d(image, kernel, mode="same", boundary="wrap"), atol=1e-13)


@pytest.mark.parametrize("moments", range(1, 11))
def test_daubechies_filters(moments):
    low = operators.daubechies(moments)
    assert low.shape == (2 * moments,)
    for shift in range(moments):  # orthogonal to its even shifts
        assert low[2 * shift:] @ low[: 2 * (moments - shift)] == pytest.approx(float(shift == 0), abs=1e-13)
    k = np.arange(2 * moments) - moments + 0.5
    for power in range(min(moments, 6)):  # the high-pass filter does not see polynomials
        assert abs(((-1.0) ** np.arange(2 * moments) * low[::-1]) @ k**power) < 1e-11 * np.abs(k**power).sum()


def test_haar_is_in_the_usual_order():
    image = np.zeros((4, 4))
    image[:2] = 1.0  # an edge that only the coarse vertical detail sees
    found = operators.wavelet((4, 4), levels=2).times(image.ravel()).reshape(4, 4)
    expected = np.zeros((4, 4))
    expected[0, 0], expected[1, 0] = 2.0, 2.0
    assert_allclose(np.abs(found), expected, atol=1e-15)


def test_ends_of_two_are_not_counted_twice():
    assert_array_equal(operators.gradients(2, periodic=True).dense(), [[-1.0, 1.0]])
    assert operators.gradients((3, 3), periodic=True).shape == (18, 9)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: operators.gradients(1), "at least 2 entries"),
    (lambda: operators.gradients((0, 3)), "positive integer"),
    (lambda: operators.gradients((2.5, 3)), "positive integer"),
    (lambda: operators.identity(True), "positive integer"),
    (lambda: operators.identity(()), "positive integer"),
    (lambda: operators.identity(None), "positive integer"),
    (lambda: operators.wavelet(8.0), "positive integer"),
    (lambda: operators.gradients([[1, 2], [3]]), "positive integer"),
    (lambda: operators.wavelet(8, ["haar"]), "haar"),
    (lambda: operators.stack(None), "list of operators"),
    (lambda: operators.stack([]), "list of operators"),
    (lambda: operators.partial_fourier([[1, 0], [0, 1]]), "True and False"),
    (lambda: operators.partial_fourier(np.zeros((2, 2), dtype=bool)), "at least one entry"),
    (lambda: operators.selection(np.bool_(True)), "True and False"),
    (lambda: operators.convolution([1.0], (2, 2)), "2 axes"),
    (lambda: operators.convolution([[np.nan]], (2, 2)), "finite"),
    (lambda: operators.convolution([["a"]], (2, 2)), "kernel"),
    (lambda: operators.convolution([[1.0]], (2, 2), boundary="mirror"), "boundary"),
    (lambda: operators.convolution(np.ones((9, 9)), (2, 2), boundary="zero"), "twice as large"),
    (lambda: operators.wavelet((8, 8), "sym4"), "haar"),
    (lambda: operators.wavelet((8, 7)), "even number"),
    (lambda: operators.wavelet((8, 8), levels=4), "levels <= 3"),
    (lambda: operators.wavelet((8, 8), levels=0), "levels <= 3"),
    (lambda: operators.wavelet((8, 8), levels=1.5), "levels <= 3"),
    (lambda: operators.stack([operators.identity(3), operators.identity(4)]), "equally many columns"),
    (lambda: operators.identity(4).times(np.ones(3)), "4 rows"),
])
def test_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_exported():
    assert klimb.linalg.images.gradients is operators.gradients
