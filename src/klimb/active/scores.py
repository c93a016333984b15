"""Scores of candidates: how much their label is worth, from the marginals N(m_i, v_i) of their latent values.

Of measurements of the weights u themselves, one row or a block, the gain does not depend on the outcome:

    y_c = X_c u + noise        I(y_c; u) = 1/2 log det(I + X_c V X_c' / noise^2),   V the posterior covariance of u
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from klimb.active.inclusion import expected_gamma, plain_site
from klimb.active.information import bald, epig
from klimb.errors import InputError, require
from klimb.latents.base import Posterior
from klimb.linalg.operators import Operator, as_operator
from klimb.numerics.arrays import Array, as_float
from klimb.numerics.dense import log_det_from_cholesky
from klimb.sites import Gaussian, Site


@dataclass(frozen=True, eq=False)
class Candidates:
    """What a score may ask: the site, the marginals, and on demand covariances with a set of target rows.

    ``remaining`` is the share of each variance that is left after the picks made so far in the same batch.

    >>> from klimb.sites import Logistic
    >>> three = Candidates(Logistic(), m=np.array([0.0, 0.0, 3.0]), v=np.array([4.0, 0.1, 4.0]))
    >>> for name in ("bald", "ig", "cu"):  # the second is a coin flip that is known to be one
    ...     print(name, SCORES[name].of(three).round(3) + 0.0)
    bald [0.231 0.012 0.126]
    ig [0.229 0.012 0.126]
    cu [ 0.    0.   -0.37]
    """

    site: Site
    m: Array
    v: Array
    remaining: Array | float = 1.0
    targets: Callable[[], tuple[Array, Array, Array]] | None = field(default=None, repr=False)

    @cached_property
    def target_moments(self) -> tuple[Array, Array, Array]:
        """(m, v) of the targets and the n x T covariances between candidates and targets."""
        if self.targets is None:
            raise InputError("this score needs covariances with target rows", "marginals alone",
                             "Ask an ActiveLearner, or use bald, ig or cu.")
        return self.targets()


@dataclass(frozen=True)
class Score:
    """A ``rule`` for the site and the marginals (m, v) of candidates, one number each: larger is better.

    >>> from klimb.sites import Logistic
    >>> clear = Score("clear", lambda site, m, v: np.abs(m) / np.sqrt(v))  # the rows whose class is surest
    >>> clear.of(Candidates(Logistic(), m=np.array([0.5, 3.0]), v=np.ones(2)))
    array([0.5, 3. ])
    """

    name: str
    rule: Callable[..., Array]
    smooth: bool = False  # a positive, smooth function of (m, v) alone, and expensive: worth a shortlist
    in_batches: bool = False  # the rule also takes ``remaining``
    uses_targets: bool = False  # the rule also takes ``target_moments``

    def of(self, candidates: Candidates) -> Array:
        """One number per candidate."""
        more = candidates.target_moments if self.uses_targets else (candidates.remaining,) if self.in_batches else ()
        return self.rule(candidates.site, candidates.m, candidates.v, *more)


def classifier_uncertainty(site: Site, m: Array, v: Array, remaining: Array | float = 1.0) -> Array:
    """S_CU = -|P(y = 1) - 1/2| ([N] section 3); with more classes, minus the gap between the two likeliest over 2.

    Within a batch the distance to a coin flip is weighted by the share of variance that earlier picks have left, so
    that the second of two near-duplicates is passed over.

    >>> from klimb.sites import Logistic
    >>> classifier_uncertainty(Logistic(), np.array([0.0, 2.0]), np.ones(2)).round(4).tolist()
    [0.0, -0.3445]
    >>> classifier_uncertainty(Logistic(), np.array([0.0, 1.0]), np.ones(2), np.array([0.2, 1.0])).round(2).tolist()
    [-0.4, -0.2]
    """
    plain = plain_site(site)
    require(plain.response == "classes" and plain.separable, "classifier uncertainty needs a site with classes",
            f"{type(plain).__name__} with y in {plain.support}", 'Use score="bald" or "ig".')
    p = np.sort(plain.class_probabilities(m, v), axis=1)
    return np.asarray((0.5 - 0.5 * (p[:, -1] - p[:, -2])) * remaining - 0.5)


def information_gain(site: Site, m: Array, v: Array) -> Array:
    """S_IG of each marginal: sum_y Q(y) KL(q'(s; y) || q(s)), with q' from the site's oracle (see `include`).

    >>> from klimb.sites import Logistic, SuperGaussian
    >>> information_gain(SuperGaussian(Logistic()), np.array([0.0, 4.0]), np.ones(2)).round(6).tolist()
    [0.092549, 0.015821]
    """
    if isinstance(site, Gaussian):  # q' is the exact posterior, whose divergence is on average the mutual information
        return bald(site, m, v)
    return expected_gamma(site, m, v, "gain")


def variance_reduction(site: Site, m: Array, v: Array, target_m: Array, target_v: Array, covariance: Array) -> Array:
    """By how much a label is expected to lower the latent variances of the targets, on average over them.

    ``covariance`` is n x T, between candidates and targets, whose own marginals do not matter here.

    >>> from klimb.sites import Gaussian
    >>> one = np.ones(1)
    >>> variance_reduction(Gaussian(scale=1.0), 0 * one, one, 0 * one, one, np.array([[0.5]])).round(9).tolist()
    [0.125]
    """
    gamma = expected_gamma(site, m, v)
    return np.asarray(gamma / (1.0 + gamma * v) * np.square(covariance).mean(axis=1))


def no_preference(site: Site, m: Array, v: Array) -> Array:
    """The learner takes candidates in the order of its seed."""
    return np.zeros_like(m)


SCORES = {score.name: score for score in (
    Score("bald", bald, smooth=True), Score("ig", information_gain, smooth=True),
    Score("cu", classifier_uncertainty, in_batches=True), Score("variance", variance_reduction, uses_targets=True),
    Score("epig", epig, uses_targets=True), Score("random", no_preference))}


def as_score(score: str | Score) -> Score:
    """A score by name or as it is."""
    if isinstance(score, Score):
        return score
    require(score in SCORES, f"score must be one of {', '.join(SCORES)} or a klimb.active Score", repr(score),
            'The default is "bald".')
    return SCORES[score]


def measurement_gains(posterior: Any, blocks: Sequence[Any], noise: float) -> Array:
    """The information that each block of rows would give about the weights, in nats.

    Parameters
    ----------
    posterior : Posterior
        Of weights (`klimb.latents.Weights`, `klimb.latents.Implicit`), such as
        ``klimb.sparse_linear(...).result.posterior``.
    blocks : list of arrays, sparse matrices or operators
        Rows that are measured together, each with one column per weight.
    noise : float
        Standard deviation of a measurement.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> known = klimb.sparse_linear(np.eye(3)[:1], [0.0], noise=0.1, scale=1.0).result.posterior
    >>> gains = klimb.active.measurement_gains(known, np.eye(3)[:, None], noise=0.1)
    >>> bool(gains[0] < gains[1] == gains[2])
    True
    """
    latent = posterior.latent if isinstance(posterior, Posterior) else None
    if latent is None or latent.reports != "weight":
        raise InputError("posterior must be that of weights", type(latent or posterior).__name__,
                         "Fit klimb.sparse_linear, or klimb.infer with latents.Weights or latents.Implicit.")
    times = latent.covariance_products(posterior)
    if not (np.ndim(noise) == 0 and np.isfinite(noise) and noise > 0):
        raise InputError("noise must be a positive number", f"{noise!r}", "It is a standard deviation.")
    require(len(blocks) != 0, "there must be at least one block of rows", "none", "Pass what could be measured next.")
    gains = np.empty(len(blocks))
    for k, block in enumerate(blocks):
        operator: Operator = block if isinstance(block, Operator) else as_operator(block, f"blocks[{k}]")
        require(operator.shape[1] == latent.n_weights, f"blocks must have {latent.n_weights} columns",
                f"shape {operator.shape} at index {k}", "Use the weights of the fit.")
        rows = as_float(operator.dense(), f"blocks[{k}]")
        signal: Array = rows @ times(np.ascontiguousarray(rows.T)) / noise**2
        signal = 0.5 * (signal + signal.T)
        signal.flat[:: len(signal) + 1] += 1.0
        gains[k] = 0.5 * log_det_from_cholesky(np.asarray(np.linalg.cholesky(signal), dtype=np.float64))
    return gains
