"""scikit-learn's logistic regression by its ``lbfgs`` solver: the point estimate only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NAME = "scikit-learn lbfgs"


def fit(X: Any, y: NDArray[np.float64], variance: float, tol: float) -> NDArray[np.float64]:
    """Mode of the posterior under the prior N(0, variance I): scikit-learn's C is that variance."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=variance, fit_intercept=False, solver="lbfgs", tol=tol, max_iter=1000)
    return np.asarray(model.fit(X, y).coef_[0])
