"""Bad data and bad parameters: an error in three parts that names the value and its index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from klimb import sites
from klimb.errors import InputError
from klimb.sites.base import Site

BAD_DATA: list[tuple[Site, Any, str]] = [
    (sites.Logistic(), [0, 1, 1, 2.0], "Logistic needs y in {-1, +1} or {0, 1}; got 2.0 at index 3 (1 such value). "
     "Use Binomial or Ordinal for counts."),
    (sites.Logistic(), [2, 1, 2], "got 2.0 at index 0 (2 such values)"),
    (sites.Probit(), [0, 1, -1], "not a mixture of both codings; got -1.0 at index 2"),
    (sites.CLogLog(), [0.5], "CLogLog needs y in {-1, +1} or {0, 1}; got 0.5 at index 0"),
    (sites.Logistic(), [0, np.nan], "y must be finite; got nan at index 1"),
    (sites.Logistic(), [], "y must have at least one entry"),
    (sites.Logistic(), [[0, 1]], "y must have 1 dimension; got shape (1, 2)"),
    (sites.Logistic(), ["a", "b"], "y must be an array of numbers"),
    (sites.Binomial(5), [3, 6], "Binomial needs y in {0, 1, ..., trials}; got 6.0 at index 1"),
    (sites.Binomial([5, 6]), [3, 6, 1], "Binomial has one trials per datum, so y must have 2 entries; got 3"),
    (sites.Poisson(), [1, -1], "Poisson needs y in {0, 1, 2, ...}; got -1.0 at index 1"),
    (sites.Poisson(), [1.5], "got 1.5 at index 0 (1 such value). Use Gamma or Gaussian for measurements."),
    (sites.NegativeBinomial(1.0), [0.1], "NegativeBinomial needs y in {0, 1, 2, ...}; got 0.1 at index 0"),
    (sites.Exponential(), [-0.1], "Exponential needs y in [0, inf); got -0.1 at index 0"),
    (sites.Gamma(1.0), [0.0], "Gamma needs y in (0, inf); got 0.0 at index 0"),
    (sites.Gaussian(1.0), [np.inf], "y must be finite; got inf at index 0"),
    (sites.Ordinal([0.0, 1.0]), [0, 3], "got 3.0 at index 1 (1 such value). With 2 cutpoints the levels are 0 to 2"),
    (sites.Beta(1.0), [0.5, 1.0], "Beta needs y in (0, 1); got 1.0 at index 1"),
]


@pytest.mark.parametrize(("site", "y", "message"), BAD_DATA, ids=lambda x: type(x).__name__)
def test_bad_data(site: Site, y: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        site.validate(y)
    assert message in str(caught.value)


BAD_PARAMETERS: list[tuple[Callable[[], Site], str]] = [
    (lambda: sites.Binomial(0), "Binomial needs trials in {1, 2, ...}; got 0.0. Drop the rows that had no trial."),
    (lambda: sites.Binomial([3, 2.5]), "got 2.5 at index 1 (1 such value)"),
    (lambda: sites.Poisson(-1.0), "Poisson needs exposure > 0; got -1.0. Drop the rows that were not exposed."),
    (lambda: sites.Poisson(exposure=[1.0, np.nan]), "exposure must be finite; got nan at index 1"),
    (lambda: sites.NegativeBinomial(0.0), "NegativeBinomial needs size > 0; got 0.0."),
    (lambda: sites.Exponential(mean=2.0), "Exponential needs mean = True"),
    (lambda: sites.Gamma(-2.0), "Gamma needs shape > 0; got -2.0."),
    (lambda: sites.Gaussian([[1.0]]), "scale must be a scalar or one per datum; got shape (1, 1)."),
    (lambda: sites.Laplace(0.0), "Laplace needs scale > 0; got 0.0."),
    (lambda: sites.StudentT(0.0), "StudentT needs df > 0; got 0.0."),
    (lambda: sites.StudentT(3.0, -1.0), "StudentT needs scale > 0; got -1.0."),
    (lambda: sites.Ordinal([1.0, 1.0]), "Ordinal needs strictly rising cutpoints; got 1.0 and 1.0 at indices 0 and 1."),
    (lambda: sites.Ordinal([]), "Ordinal needs a list of at least one cutpoint"),
    (lambda: sites.Ordinal([0.0], link="cauchit"), "Ordinal needs link = \"logit\" or \"probit\"; got 'cauchit'."),
    (lambda: sites.Beta(0.0), "Beta needs precision > 0; got 0.0."),
]


@pytest.mark.parametrize(("build", "message"), BAD_PARAMETERS, ids=range(len(BAD_PARAMETERS)))
def test_bad_parameters(build: Callable[[], Site], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build()
    assert message in str(caught.value)


def test_bad_moments() -> None:
    site = sites.Logistic()
    with pytest.raises(InputError, match=r"The variance v must be at least 0; got -1.0 at index 1"):
        site.expect([0, 1], [0.0, 0.0], [1.0, -1.0])
    with pytest.raises(InputError, match=r"m must be finite; got nan at index 0"):
        site.expect([0, 1], [np.nan, 0.0], [1.0, 1.0])
    with pytest.raises(InputError, match=r"y, m and v must have one length \(or be scalars\); got shapes"):
        site.expect([0, 1], [0.0, 0.0, 0.0], [1.0, 1.0])


def test_labels_come_out_clean() -> None:
    for labels in ([0, 1, 1], [-1, 1, 1], np.array([False, True, True])):
        np.testing.assert_array_equal(sites.Logistic().validate(labels), [-1.0, 1.0, 1.0])


def test_scalars_are_broadcast() -> None:
    e = sites.Poisson(exposure=[1.0, 2.0]).expect(3, 0.5, 0.1)
    np.testing.assert_allclose(e.gamma, np.array([1.0, 2.0]) * np.exp(0.55))
