"""Cut points of an ordinal response, as hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from scipy.special import log_expit, log_ndtr

from klimb._stan import StanDefinition, StanPart, literal, said
from klimb._stored import stored
from klimb.numerics.arrays import Array
from klimb.priors import Dirichlet
from klimb.theta.base import ParameterBlock, RowKind

CUT_LIMITS = (-40.0, 40.0)


@final
@stored("parameter.cutpoints")
@dataclass(frozen=True, eq=False)
class Cutpoints(ParameterBlock):
    """Rising cut points of an ordinal response: the first one as it is, then the logs of the gaps."""

    cut_names: tuple[str, ...]
    prior: Dirichlet
    link: str  # "logit" or "probit"
    begin: Array  # cut points where a search starts
    kind: RowKind = "cut"

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.cut_names

    @property
    def start(self) -> Array:  # type: ignore[override]
        return np.concatenate([self.begin[:1], np.log(np.diff(self.begin))])

    @property
    def lower(self) -> Array:  # type: ignore[override]
        return np.full(self.size, CUT_LIMITS[0])

    @property
    def upper(self) -> Array:  # type: ignore[override]
        return np.full(self.size, CUT_LIMITS[1])

    def value(self, theta: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(theta[0] + np.concatenate([[0.0], np.cumsum(np.exp(theta[1:]))]))

    def pull(self, theta: Array, d_value: Array) -> Array:
        after = np.cumsum(d_value[::-1])[::-1]  # every later cut point moves with a gap
        return np.concatenate([after[:1], after[1:] * np.exp(theta[1:])])

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """The chances of the levels at f = 0 are Dirichlet."""
        c, a = self.value(theta), self.prior.concentration
        if self.link == "probit":
            log_density, score = -0.5 * c**2 - 0.5 * math.log(2.0 * math.pi), -c
            log_p = _log_cells(c, log_ndtr)
        else:
            log_density, score = log_expit(c) + log_expit(-c), -np.tanh(0.5 * c)
            log_p = _log_cells(c, log_expit)
        K = len(c) + 1
        value = (a - 1.0) * log_p.sum() + log_density.sum() + theta[1:].sum()
        value += math.lgamma(K * a) - K * math.lgamma(a)
        # d log P_k / d c_k = F'(c_k) / P_k and so on.
        with np.errstate(over="ignore"):
            d_c = score + (a - 1.0) * (np.exp(log_density - log_p[:-1]) - np.exp(log_density - log_p[1:]))
        gradient = self.pull(theta, d_c)
        gradient[1:] += 1.0
        return float(value), gradient

    def reported(self, theta: Array) -> Array:
        return np.array([self.value(point) for point in theta]).reshape(theta.shape)

    def printed(self) -> dict[str, str]:
        return {"cutpoints": f"{self.prior} (chances of the levels at f = 0)"}

    def signed(self) -> tuple[bool, ...]:
        return (True,) * self.size

    def alone(self) -> tuple[Callable[[Array], Array] | None, ...]:
        return (None,) * self.size

    def stan(self, name: str) -> StanPart:
        """The chances of the levels at f = 0 are Dirichlet, with the Jacobian of the cut points in them."""
        K, a, probit = self.size + 1, self.prior.concentration, self.link == "probit"
        part = StanPart(parameters=(f"ordered[{K - 1}] {name};" + said(", ".join(self.cut_names)),), names=(name,),
                        value=name)
        jacobian = f"std_normal_lpdf({name})" if probit else f"logistic_lpdf({name} | 0, 1)"
        if a == 1.0:  # every set of chances has the density lgamma(K)
            return replace(part, model=(f"target += lgamma({K}) + {jacobian};",))
        cdf, chances = "Phi" if probit else "inv_logit", f"chance_{name}"
        ends = f"append_row({cdf}({name}), 1) - append_row(0, {cdf}({name}))"
        return replace(part, transformed=(StanDefinition(f"vector[{K}]", chances, ends),), model=(
            f"target += dirichlet_lpdf({chances} | rep_vector({literal(a)}, {K})) + {jacobian};",))

    def to_stan(self, theta: Array) -> tuple[Array, ...]:
        return (self.value(theta),)

    def from_stan(self, draws: Sequence[Array]) -> Array:
        return np.hstack([draws[0][:, :1], np.log(np.diff(draws[0], axis=1))])


def _log_cells(c: Array, log_cdf: Any) -> Array:
    """log[F(c_k) - F(c_{k-1})], with F symmetric."""
    low, high = log_cdf(c[:-1]), log_cdf(c[1:])
    upper_low, upper_high = log_cdf(-c[:-1]), log_cdf(-c[1:])
    left = c[1:] + c[:-1] < 0.0  # subtract in the tail that is smaller
    big, small = np.where(left, high, upper_low), np.where(left, low, upper_high)
    with np.errstate(divide="ignore"):
        inner = big + np.log(-np.expm1(np.minimum(small - big, -1e-300)))
    return np.concatenate([log_cdf(c[:1]), inner, log_cdf(-c[-1:])])
