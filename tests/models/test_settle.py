"""One prior scale that loose fits have moved: near the peak that a search from afar finds, with fewer fits."""

from typing import Any

import numpy as np
import pytest

from klimb.models.search import find_peak
from klimb.models.settle import Settled, settled
from klimb.models.solution import solve
from klimb.sklearn import GLMClassifier


def model_of(n_classes: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((150, 6))
    f = 0.7 * X @ rng.standard_normal((6, n_classes))
    y = (f + rng.gumbel(size=f.shape)).argmax(axis=1)
    fit = GLMClassifier().fit(X, y).fit_
    return fit.model.moved(fit.model.theta.start), fit.observed


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_scale_is_near_its_peak(n_classes: int) -> None:
    model, data = model_of(n_classes)
    assert model.settles
    far = find_peak(model, data, tol=1e-6)
    begun = settled(Settled(model), data, None)
    left = abs(float(begun.model.at[0] - far.model.at[0]))
    assert left < 0.1
    assert left < 0.2 * abs(float(model.at[0] - far.model.at[0]))
    assert begun.n_fits <= 6
    found = solve(model, data, hyper="optimise", spread=False)
    assert found.model.at[0] == pytest.approx(far.model.at[0], abs=2e-3)
    assert found.bound == pytest.approx(far.result.bound, abs=1e-3)
