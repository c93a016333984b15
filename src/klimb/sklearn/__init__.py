"""Estimators in the shape of scikit-learn; an extra: ``pip install 'klimb[sklearn]'``.

    GLMClassifier, GLMRegressor(family)        generalised linear models
    SparseLinearRegressor                      a linear model in which few columns matter
    GPClassifier, GPRegressor(likelihood)      Gaussian processes
    ActiveLearner                              a classifier that says which rows to label next

Hyperparameters are "auto" by default: they are chosen by the bound on the evidence, from one fit to all data, so that
there is no grid to search. See docs/scikit-learn.md.
"""

try:
    import sklearn as _sklearn
except ImportError as error:
    raise ImportError("klimb.sklearn needs scikit-learn; got no such package. Run: pip install 'klimb[sklearn]'",
                      name="sklearn") from error

from klimb.sklearn.active import ActiveClassifier as ActiveLearner
from klimb.sklearn.gp import GPClassifier, GPRegressor
from klimb.sklearn.linear import GLMClassifier, GLMRegressor, SparseLinearRegressor

__all__ = ["ActiveLearner", "GLMClassifier", "GLMRegressor", "GPClassifier", "GPRegressor", "SparseLinearRegressor"]
