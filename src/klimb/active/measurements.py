"""Sequential design of a linear model: which rows to measure next, by what they would say about the weights.

    y_c = X_c u + noise        I(y_c; u) = 1/2 log det(I + X_c V X_c' / noise^2),   V the posterior covariance of u

A candidate may be a block of rows that are measured together, such as a line of a Fourier transform. The gain does not
depend on the outcome, so that no measurement has to be imagined: one linear system per row ([N] section 3, and the
applications that it builds on).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from klimb.errors import InputError
from klimb.latents.base import Posterior, Product
from klimb.linalg.operators import Operator, as_operator
from klimb.numerics.arrays import Array, as_float
from klimb.numerics.dense import log_det_from_cholesky


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
    times, n_weights = _products(posterior)
    if not (np.ndim(noise) == 0 and np.isfinite(noise) and noise > 0):
        raise InputError("noise must be a positive number", f"{noise!r}", "It is a standard deviation.")
    if len(blocks) == 0:
        raise InputError("there must be at least one block of rows", "none", "Pass what could be measured next.")
    gains = np.empty(len(blocks))
    for k, block in enumerate(blocks):
        rows = _dense(block, n_weights, k)
        signal: Array = rows @ times(np.ascontiguousarray(rows.T)) / noise**2
        signal = 0.5 * (signal + signal.T)
        signal.flat[:: len(signal) + 1] += 1.0
        gains[k] = 0.5 * log_det_from_cholesky(np.asarray(np.linalg.cholesky(signal), dtype=np.float64))
    return gains


def _products(posterior: Any) -> tuple[Product, int]:
    latent = posterior.latent if isinstance(posterior, Posterior) else None
    if latent is None or latent.reports != "weight":
        raise InputError("posterior must be that of weights", type(latent or posterior).__name__,
                         "Fit klimb.sparse_linear, or klimb.infer with latents.Weights or latents.Implicit.")
    return latent.covariance_products(posterior), latent.n_weights


def _dense(block: Any, n_weights: int, k: int) -> Array:
    operator: Operator = block if isinstance(block, Operator) else as_operator(block, f"blocks[{k}]")
    if operator.shape[1] != n_weights:
        raise InputError(f"blocks must have {n_weights} columns", f"shape {operator.shape} at index {k}",
                         "Use the weights of the fit.")
    return as_float(operator.dense(), f"blocks[{k}]")
