"""Links: what turns the mean of y into f, and f into the mean of y."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import erfinv, expit, ndtr

from klimb.numerics.arrays import Array


@final
@dataclass(frozen=True)
class Link:
    """A pair of functions, inverse to each other."""

    name: str
    apply: Callable[[Array], Array]
    inverse: Callable[[Array], Array]


def _exp(f: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(f)


LINKS: dict[str, Link] = {
    "identity": Link("identity", np.asarray, np.asarray),
    "log": Link("log", np.log, _exp),
    "log hazard": Link("log hazard", np.log, _exp),  # exp of `Site.mean_predictor` is the mean
    "minus log": Link("minus log", lambda mean: -np.log(mean), lambda f: _exp(-f)),
    "logit": Link("logit", lambda p: np.log(p) - np.log1p(-p), expit),
    "probit": Link("probit", lambda p: np.sqrt(2.0) * erfinv(2.0 * p - 1.0), ndtr),
    "cloglog": Link("cloglog", lambda p: np.log(-np.log1p(-p)), lambda f: -np.expm1(-_exp(f))),
}
