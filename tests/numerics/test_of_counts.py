"""A function of counts, worked out once for each count."""

import numpy as np

from klimb.numerics.arrays import Array
from klimb.numerics.special import of_counts
from klimb.sites import NegativeBinomial, Poisson


def test_many_small_counts_are_few_and_large_ones_are_themselves() -> None:
    asked = list[int]()

    def squares(y: Array) -> Array:
        asked.append(len(y))
        return y**2

    many, few = np.random.default_rng(0).integers(0, 9, 500).astype(float), np.array([1e15, 3.0])
    np.testing.assert_array_equal(of_counts(squares, many), many**2)
    np.testing.assert_array_equal(of_counts(squares, few), few**2)
    assert asked == [9, 2]
    assert of_counts(squares, np.zeros(0)).shape == (0,)


def test_constants_of_many_rows_are_those_of_single_ones() -> None:
    y = np.random.default_rng(0).poisson(4.0, 200).astype(float)
    for site in (Poisson(), NegativeBinomial(2.3), NegativeBinomial(np.full(200, 2.3))):
        single = [site.rows(np.array([i])).constant(y[i : i + 1])[0] for i in range(200)]
        np.testing.assert_allclose(site.constant(y), single, rtol=1e-13, atol=1e-15)
