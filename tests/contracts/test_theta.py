"""Every kind of block of hyperparameters keeps its contract: values, gradients, priors per unit of theta, files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.integrate
from numpy.testing import assert_allclose

from klimb._stored import pack, unpack
from klimb.priors import dirichlet, exponential, fixed, half_normal, lkj
from klimb.theta import Cutpoints, GroupCovariance, ParameterBlock, PositiveParameter, Theta

SDS = tuple(PositiveParameter(f"sd({name})", exponential(mean), begin=0.5)
            for name, mean in zip("abc", (1.0, 2.0, 0.3), strict=True))
BLOCKS: dict[str, ParameterBlock] = {
    "positive": PositiveParameter("sigma", exponential(2.0), begin=0.7, unit=2.0),
    "positive, held": PositiveParameter("sigma", fixed(2.0)),
    "one sd": GroupCovariance(SDS[:1], ()),
    "independent": GroupCovariance(SDS, ()),
    "correlated": GroupCovariance(SDS, ("cor(a, b)", "cor(a, c)", "cor(b, c)"), lkj(1.5)),
    "one sd held": GroupCovariance((PositiveParameter("sd(a)", fixed(2.0)), SDS[1]), ("cor(a, b)",)),
    "cut points, logit": Cutpoints(("c1", "c2", "c3"), dirichlet(2.0), "logit", np.array([-1.0, 0.2, 2.0])),
    "cut points, probit": Cutpoints(("c1", "c2"), dirichlet(1.0), "probit", np.array([-1.0, 0.2])),
}


@pytest.fixture(params=BLOCKS, name="block")
def _block(request: pytest.FixtureRequest) -> ParameterBlock:
    return BLOCKS[request.param]


def a_point(block: ParameterBlock) -> np.ndarray:
    return block.start + 0.3 * np.sin(1.0 + np.arange(block.size))


def test_sizes_agree(block: ParameterBlock) -> None:
    start, lower, upper = block.search()
    assert len(block.names) == block.size == len(start) == len(lower) == len(upper)
    assert (lower <= start).all()
    assert (start <= upper).all()
    assert len(block.signed()) == block.size
    assert block.reported(np.array([block.start, a_point(block)])).shape == (2, block.size)


def test_pull_is_the_transposed_derivative(block: ParameterBlock) -> None:
    theta = a_point(block)
    d_value = np.cos(np.arange(np.size(block.value(theta)))).reshape(np.shape(block.value(theta)))
    numeric = [(np.sum(d_value * block.value(theta + h)) - np.sum(d_value * block.value(theta - h))) / 2e-6
               for h in 1e-6 * np.eye(block.size)]
    assert_allclose(block.pull(theta, d_value if d_value.ndim else float(d_value)), np.array(numeric), atol=1e-8)


def test_the_slope_of_the_prior(block: ParameterBlock) -> None:
    theta = a_point(block)
    numeric = [(block.log_prior(theta + h)[0] - block.log_prior(theta - h)[0]) / 2e-6
               for h in 1e-6 * np.eye(block.size)]
    assert_allclose(block.log_prior(theta)[1], np.array(numeric), atol=1e-7)


@pytest.mark.parametrize("name", ["positive", "one sd", "cut points, probit"])
def test_priors_are_densities_per_unit_of_theta(name: str) -> None:
    block = BLOCKS[name]
    ranges = [(-30.0, 14.0)] * block.size
    density = lambda *theta: np.exp(block.log_prior(np.array(theta))[0])  # noqa: E731
    assert scipy.integrate.nquad(density, ranges, opts={"points": block.start.tolist()})[0] == pytest.approx(1.0, 1e-5)


@pytest.mark.parametrize("prior", [exponential(2.0), half_normal(1.0)])
def test_priors_of_what_is_printed_at_many_points_are_those_at_each(prior: Any) -> None:
    sds = tuple(PositiveParameter(f"sd({name})", prior) for name in "ab")
    mix = np.array([[1.0, -3.0], [0.0, 1.0]])
    block = GroupCovariance(sds, ("cor(a, b)",), lkj(2.0), mix=mix, as_printed=True)
    theta = Theta.of([block, PositiveParameter("sigma", prior)])
    points = np.random.default_rng(3).standard_normal((20, theta.size))
    alone = [block.log_prior(point[: block.size])[0] for point in points]
    assert_allclose(theta.sharp_prior(points), alone, rtol=1e-10, atol=1e-10)
    assert theta.sharp.tolist() == [True] * block.size + [False]
    assert not Theta.of([PositiveParameter("sigma", prior)]).sharp.any()


def test_lkj_of_three_columns_is_a_density() -> None:
    scales = tuple(PositiveParameter(f"sd({k})", fixed(1.0)) for k in "abc")
    block = GroupCovariance(scales, ("ab", "ac", "bc"), lkj(2.0))
    nodes, weights = np.polynomial.legendre.leggauss(40)
    grid = 6.0 * nodes
    total = sum(wa * wb * wc * np.exp(block.log_prior(np.array([a, b, c]))[0])
                for a, wa in zip(grid, weights, strict=True) for b, wb in zip(grid, weights, strict=True)
                for c, wc in zip(grid, weights, strict=True))
    assert total * 6.0**3 == pytest.approx(1.0, 1e-3)


def test_correlations_are_printed_not_partial_ones() -> None:
    block = BLOCKS["correlated"]
    theta = a_point(block)
    root = block.value(theta)
    covariance = root @ root.T
    sd = np.sqrt(np.diag(covariance))
    expected = (covariance / np.outer(sd, sd))[np.tril_indices(3, -1)]
    assert_allclose(block.reported(theta[None])[0], np.concatenate([sd, expected]), rtol=1e-12)


def test_blocks_are_stored_to_the_bit(block: ParameterBlock) -> None:
    arrays: dict[str, np.ndarray] = {}
    again = unpack(pack(block, arrays), arrays)
    theta = a_point(block)
    assert type(again) is type(block)
    assert again.names == block.names
    assert again.printed() == block.printed()
    assert_allclose(again.value(theta), block.value(theta), rtol=0)
    assert again.log_prior(theta)[0] == block.log_prior(theta)[0]


def test_a_block_of_two_owners_stands_once() -> None:
    shared, own = BLOCKS["positive"], BLOCKS["correlated"]
    theta = Theta.of([shared, own, shared])
    assert theta.size == 7
    assert theta.names[0] == "sigma"
    total = np.zeros(7)
    theta.add(total, [shared, shared], [np.ones(1), np.ones(1)])
    assert total.tolist() == [2.0, *[0.0] * 6]
    assert theta.log_prior(theta.start)[0] == pytest.approx(
        shared.log_prior(shared.start)[0] + own.log_prior(own.start)[0])
