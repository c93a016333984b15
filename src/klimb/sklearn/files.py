"""Estimators in files, without pickle: their parameters, what was learnt, and their fits.

Linear models are stored without their data. Gaussian processes hold theirs, because they predict from them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from klimb._stored import pack, unpack
from klimb.errors import InputError, require
from klimb.models.files import write_container
from klimb.models.linear import LinearModel
from klimb.numerics.arrays import Array
from klimb.sklearn.gp import GPClassifier, GPRegressor
from klimb.sklearn.linear import GLMClassifier, GLMRegressor, SparseLinearRegressor

CLASSES: dict[str, Any] = {
    one.__name__: one for one in (GLMClassifier, GLMRegressor, GPClassifier, GPRegressor, SparseLinearRegressor)
}
# Attributes that are learnt, by name: numbers, text, arrays of them, kernels.
LEARNT = ("coef_", "intercept_", "sign_probability_", "prior_", "prior_scale_", "kernel_",
          "inducing_", "bound_", "converged_", "n_iter_", "n_features_in_", "feature_names_in_", "classes_")


def save(estimator: Any, path: Any) -> None:
    """Write a fitted estimator to ``path``; `klimb.load` reads it."""
    name = type(estimator).__name__
    if CLASSES.get(name) is not type(estimator):
        raise InputError(f"files hold the estimators {', '.join(CLASSES)}", name, "Keep it with pickle or joblib.")
    check_is_fitted(estimator)
    learnt = {key: getattr(estimator, key) for key in LEARNT if key in vars(estimator)}
    kinds = {key: value.dtype.str for key, value in learnt.items() if getattr(value, "dtype", None) is not None}
    fits = [replace(fit, data=None) if isinstance(fit.model, LinearModel) else fit for fit in estimator._fits]
    arrays: dict[str, Any] = {}
    document = pack({"params": estimator.get_params(), "learnt": learnt, "dtypes": kinds, "fits": fits}, arrays)
    holds = ("training inputs", "responses") if any(fit.data is not None for fit in fits) else ()
    write_container(path, "estimator", {"class": name, "estimator": document}, arrays, schema=Reader.schema,
                    holds=holds)


class Reader:
    """What `klimb.load` asks for estimators."""

    schema: ClassVar[int] = 2

    @staticmethod
    def from_state(header: dict[str, Any], arrays: Mapping[str, Array]) -> Any:
        """The estimator as it was saved."""
        require(header.get("class") in CLASSES, f"the estimators of this klimb are {', '.join(CLASSES)}",
                repr(header.get("class")), "It was written by a newer klimb: update.")
        found = unpack(header["estimator"], arrays)
        estimator = CLASSES[header["class"]](**found["params"])
        for name, value in found["learnt"].items():
            require(name in LEARNT, "a file must hold attributes that estimators have", repr(name), "It is damaged.")
            if name in found["dtypes"]:
                value = np.asarray(value).astype(found["dtypes"][name])
            setattr(estimator, name, list(value) if isinstance(value, tuple) else value)
        estimator._hold(list(found["fits"]))
        return estimator
