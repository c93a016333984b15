"""The accuracy that the sites promise, on the stored references."""

from __future__ import annotations

import numpy as np
import pytest
from tests.references.digits_table import digits, load, names

from klimb.sites import SITES


@pytest.mark.parametrize("name", names())
def test_digits(name: str) -> None:
    correct = digits(name)
    assert correct.min() >= 10.0
    assert np.quantile(correct, 0.01, axis=1).min() >= 12.0


@pytest.mark.parametrize("name", names())
def test_nothing_is_nan(name: str) -> None:
    site, y, m, v, _ = load(name)
    e = site.expect(y, m, v)
    assert not np.isnan(np.stack((e.value, e.alpha, e.gamma))).any()


def test_every_site_has_references() -> None:
    assert set(SITES) <= set(names())
