"""Every kernel against its definition written with loops, its gradients against central differences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from klimb.kernels import (
    KERNELS,
    RBF,
    Constant,
    Cosine,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Polynomial,
    RationalQuadratic,
    White,
)

RNG = np.random.default_rng(11)
N, M, D = 23, 9, 5
X = RNG.standard_normal((N, D))
Z = RNG.standard_normal((M, D))
ARD = [0.7, 1.3, 2.0, 0.9, 1.6]


def scaled_square(x, z, lengthscale):
    return sum(((a - b) / l) ** 2 for a, b, l in zip(x, z, np.broadcast_to(lengthscale, len(x)), strict=True))


def periodic(x, z, lengthscale, period):
    total = 0.0
    for a, b, l, p in zip(x, z, np.broadcast_to(lengthscale, len(x)), np.broadcast_to(period, len(x)), strict=True):
        total += math.sin(math.pi * (a - b) / p) ** 2 / l**2
    return math.exp(-2 * total)


def matern(p, x, z, l):
    s = math.sqrt(p * scaled_square(x, z, l))
    return {1: 1.0, 3: 1.0 + s, 5: 1.0 + s + s * s / 3.0}[p] * math.exp(-s)


# name: (kernel, plain definition of k(x, z) for two different points)
LEAVES = {
    "RBF": (RBF(1.7, 1.3), lambda x, z: 1.7 * math.exp(-0.5 * scaled_square(x, z, 1.3))),
    "RBF ard": (RBF(1.7, ARD), lambda x, z: 1.7 * math.exp(-0.5 * scaled_square(x, z, ARD))),
    "RBF one column": (RBF(lengthscale=0.5, active_dims=3), lambda x, z: math.exp(-2.0 * (x[3] - z[3]) ** 2)),
    "RBF ard dims": (RBF(2.0, [0.5, 2.0], active_dims=[3, 1]),
                     lambda x, z: 2.0 * math.exp(-2.0 * (x[3] - z[3]) ** 2 - 0.125 * (x[1] - z[1]) ** 2)),
    "Matern12": (Matern12(0.6, 2.0), lambda x, z: 0.6 * matern(1, x, z, 2.0)),
    "Matern12 ard": (Matern12(0.6, ARD), lambda x, z: 0.6 * matern(1, x, z, ARD)),
    "Matern32": (Matern32(0.6, 2.0), lambda x, z: 0.6 * matern(3, x, z, 2.0)),
    "Matern32 ard": (Matern32(0.6, ARD), lambda x, z: 0.6 * matern(3, x, z, ARD)),
    "Matern52": (Matern52(0.6, 2.0), lambda x, z: 0.6 * matern(5, x, z, 2.0)),
    "Matern52 ard": (Matern52(0.6, ARD), lambda x, z: 0.6 * matern(5, x, z, ARD)),
    "RationalQuadratic": (RationalQuadratic(1.2, 1.5, 0.8),
                          lambda x, z: 1.2 * (1.0 + scaled_square(x, z, 1.5) / 1.6) ** -0.8),
    "RationalQuadratic ard": (RationalQuadratic(1.2, ARD, 3.0),
                              lambda x, z: 1.2 * (1.0 + scaled_square(x, z, ARD) / 6.0) ** -3.0),
    "Periodic": (Periodic(1.4, 1.1, 2.5), lambda x, z: 1.4 * periodic(x, z, 1.1, 2.5)),
    "Periodic ard": (Periodic(1.4, ARD, [2.5, 1.0, 3.0, 4.0, 5.0]),
                     lambda x, z: 1.4 * periodic(x, z, ARD, [2.5, 1.0, 3.0, 4.0, 5.0])),
    "Periodic one column": (Periodic(period=2.5, active_dims=[1]), lambda x, z: periodic(x[1:2], z[1:2], 1.0, 2.5)),
    "Linear": (Linear(0.3), lambda x, z: 0.3 * sum(a * b for a, b in zip(x, z, strict=True))),
    "Linear ard": (Linear(ARD), lambda x, z: sum(v * a * b for v, a, b in zip(ARD, x, z, strict=True))),
    "Linear one column": (Linear(0.3, active_dims=[2]), lambda x, z: 0.3 * x[2] * z[2]),
    "Polynomial": (Polynomial(3, 0.2, 1.5),
                   lambda x, z: 0.2 * (sum(a * b for a, b in zip(x, z, strict=True)) + 1.5) ** 3),
    "Polynomial one column": (Polynomial(1, 0.2, 1.5, active_dims=[0]), lambda x, z: 0.2 * (x[0] * z[0] + 1.5)),
    "Constant": (Constant(2.5), lambda x, z: 2.5),
    "White": (White(0.4), lambda x, z: 0.0),
    "Cosine": (Cosine(1.1, 3.0),
               lambda x, z: 1.1 * math.cos(2 * math.pi * sum((a - b) / 3.0 for a, b in zip(x, z, strict=True)))),
    "Cosine ard": (Cosine(1.1, ARD), lambda x, z: 1.1 * math.cos(
        2 * math.pi * sum((a - b) / l for a, b, l in zip(x, z, ARD, strict=True)))),
}


def also(name, combine, *parts):
    """A composite of the leaves above and its definition."""
    kernels, definitions = zip(*(LEAVES[part] for part in parts), strict=True)
    return name, (combine(*kernels), lambda x, z: combine(*(define(x, z) for define in definitions)))


CASES = LEAVES | dict([
    also("sum", lambda a, b: a + b, "RBF ard", "White"),
    also("sum of three", lambda a, b, c: a + b + c, "Matern32", "Linear ard", "Constant"),
    also("product", lambda a, b: a * b, "RBF", "Periodic one column"),
    also("product with zeros", lambda a, b: a * b, "White", "Matern12 ard"),
    also("product of sums", lambda a, b, c, d: (a + b) * (c + d), "RBF", "Linear", "Cosine", "Matern52 ard"),
    also("sum of products", lambda a, b, c: a * b * b + c, "RBF ard dims", "Polynomial", "RationalQuadratic"),
    also("scaled", lambda a, b: 3.0 * (a + b * 2.0), "Matern12", "Linear ard"),
])


def by_loops(case, left, right):
    return np.array([[CASES[case][1](x, z) for z in right] for x in left])


def test_every_kernel_has_cases():
    assert {type(kernel).__name__ for kernel, _ in LEAVES.values()} == set(KERNELS)


@pytest.mark.parametrize("case", CASES)
def test_cross_gram_is_the_definition(case):
    np.testing.assert_allclose(CASES[case][0].gram(X, Z), by_loops(case, X, Z), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", CASES)
def test_gram_is_symmetric_and_has_its_diagonal(case):
    kernel = CASES[case][0]
    K = kernel.gram(X)
    off = ~np.eye(N, dtype=bool)
    np.testing.assert_allclose(K[off], by_loops(case, X, X)[off], rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_array_equal(np.diag(K), kernel.diag(X))
    if "hite" not in case and case not in ("sum", "product with zeros"):
        np.testing.assert_allclose(np.diag(K), np.diag(kernel.gram(X, X)), rtol=1e-13)


@pytest.mark.parametrize("case", CASES)
def test_gram_is_positive_semi_definite(case):
    values = np.linalg.eigvalsh(CASES[case][0].gram(np.vstack([X, X[:4], X[:4] + 1e-9])))
    assert values[0] >= -1e-12 * values[-1]


def difference(f, theta, step=1e-5):
    slopes = []
    for i in range(len(theta)):
        up, down = theta.copy(), theta.copy()
        up[i] += step
        down[i] -= step
        slopes.append((f(up) - f(down)) / (2 * step))
    return np.array(slopes)


@pytest.mark.parametrize("case", CASES)
def test_gradients_in_the_parameters(case):
    kernel = CASES[case][0]
    theta = kernel.log_parameters
    G, H, g = RNG.standard_normal((N, N)), RNG.standard_normal((N, M)), RNG.standard_normal(N)
    found = [kernel.gram_vjp(X, G), kernel.cross_vjp(X, Z, H)[0], kernel.diag_vjp(X, g)]
    np.testing.assert_allclose(kernel.cross_parameter_vjp(X, Z, H), found[1], rtol=1e-9, atol=1e-12)
    functions = [lambda t: np.vdot(G, kernel.with_log_parameters(t).gram(X)),
                 lambda t: np.vdot(H, kernel.with_log_parameters(t).gram(X, Z)),
                 lambda t: g @ kernel.with_log_parameters(t).diag(X)]
    for gradient, f in zip(found, functions, strict=True):
        expected = difference(f, theta)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-7 * (1.0 + np.abs(expected).max()))


@pytest.mark.parametrize("case", CASES)
def test_gradients_in_the_inputs(case):
    kernel = CASES[case][0]
    G, H = RNG.standard_normal((M, M)), RNG.standard_normal((N, M))
    cross = difference(lambda z: np.vdot(H, kernel.gram(X, z.reshape(M, D))), Z.ravel()).reshape(M, D)
    square = difference(lambda z: np.vdot(G, kernel.gram(z.reshape(M, D))), Z.ravel()).reshape(M, D)
    np.testing.assert_allclose(kernel.cross_vjp(X, Z, H)[1], cross, rtol=1e-6, atol=1e-7 * (1.0 + np.abs(cross).max()))
    np.testing.assert_allclose(kernel.gram_input_vjp(Z, G), square, rtol=1e-6,
                               atol=1e-7 * (1.0 + np.abs(square).max()))


@pytest.mark.parametrize("case", ["RBF ard", "Matern12", "Periodic", "product of sums"])
def test_many_tiles_agree_with_few_rows_at_a_time(case):
    kernel = CASES[case][0]
    many = np.random.default_rng(5).standard_normal((700, D))  # more than one tile both ways
    K = kernel.gram(many)
    np.testing.assert_array_equal(K, K.T)
    rows = np.array([0, 127, 128, 300, 511, 512, 513, 699])
    np.testing.assert_allclose(kernel.gram(many[rows], many)[:, :-1], K[rows][:, :-1], rtol=1e-11, atol=1e-14)
    G = np.random.default_rng(6).standard_normal(K.shape)
    theta, along = kernel.log_parameters, np.linspace(0.5, 1.0, len(kernel.free))
    up, down = (np.vdot(G, kernel.with_log_parameters(theta + sign * 1e-5 * along).gram(many)) for sign in (1, -1))
    assert kernel.gram_vjp(many, G) @ along == pytest.approx((up - down) / 2e-5, rel=1e-6)
    assert kernel.gram_vjp(many, G.T) == pytest.approx(kernel.gram_vjp(many, G), rel=1e-10)


@pytest.mark.parametrize("name", KERNELS)
def test_one_point_and_none(name):
    kernel = KERNELS[name]()
    assert kernel.gram([[1.0, 2.0]]).shape == (1, 1)
    assert kernel.gram(np.empty((0, 2))).shape == (0, 0)
    assert kernel.gram(np.empty((0, 2)), [[1.0, 2.0]]).shape == (0, 1)
    assert kernel.gram([[1.0, 2.0]], np.empty((0, 2))).shape == (1, 0)
    np.testing.assert_array_equal(kernel.gram_vjp(np.empty((0, 2)), np.empty((0, 0))), 0.0)


def test_a_vector_is_one_column():
    t = np.array([0.0, 0.5, 2.0])
    np.testing.assert_array_equal(RBF().gram(t), RBF().gram(t[:, None]))
    G = np.ones((3, 3))
    assert RBF().cross_vjp(t, t, G)[1].shape == RBF().gram_input_vjp(t, G).shape == (3,)
    np.testing.assert_array_equal(RBF().gram([0, 1]), RBF().gram([0.0, 1.0]))


def test_out_is_written():
    out = np.empty((N, N))
    assert RBF().gram(X, out=out) is out
    np.testing.assert_array_equal(out, RBF().gram(X))


def test_inputs_and_cotangents_are_left_alone():
    inputs, G = X.copy(), RNG.standard_normal((N, N))
    kept = G.copy()
    for kernel, _ in CASES.values():
        kernel.gram_vjp(inputs, G)
        kernel.cross_vjp(inputs, inputs, G)
    np.testing.assert_array_equal(inputs, X)
    np.testing.assert_array_equal(G, kept)


def test_white_noise_lives_on_the_diagonal():
    same = np.ones((3, 1))
    kernel = RBF() + White(0.5)
    np.testing.assert_array_equal(kernel.gram(same), np.ones((3, 3)) + 0.5 * np.eye(3))
    np.testing.assert_array_equal(kernel.gram(same, same), np.ones((3, 3)))
    np.testing.assert_array_equal(kernel.diag(same), 1.5)
