"""What the gradient of a linear model in theta needs of rows: features that move, what weights explain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from klimb.latents.base import Posterior
from klimb.latents.weights_posterior import WeightPosterior
from klimb.numerics.arrays import Array
from klimb.numerics.dense import row_blocks
from klimb.terms.base import FeatureGradients, Moving

if TYPE_CHECKING:
    from klimb.models.linear import LinearModel
    from klimb.models.linear_parts import LinearRows


def explained(model: LinearModel, posterior: Posterior, q: WeightPosterior, place: slice, own: slice) -> float:
    """sum_i gamma_i Cov(f_i, g_i), g what some weights of a term add to f: Var(f + g) = Var f + Var g + 2 Cov."""
    rows = model.fitted_rows()
    L = model.rows_over(model.featured[0], rows.codes, rows.values, rows.sparse)
    part = ((L.indices >= place.start + own.start) & (L.indices < place.start + own.stop)).astype(np.float64)
    variances = [q.at(type(L)((L.data * scale, L.indices, L.indptr), shape=L.shape))[1] for scale in (1.0 + part, part)]
    f = posterior.v - posterior.latent.slack
    return 0.5 * float(posterior.gamma @ (variances[0] - variances[1] - f))


def feature_pieces(model: LinearModel, posterior: Posterior, q: WeightPosterior,
                    place: slice) -> Iterator[tuple[slice, Array, Array]]:
    """d bound / d Phi = a u' - G Cov(f, u), u being the weights of the features, and d bound / d slack.

    Of rows that are passed over there is nothing: `add_features` has been over them.
    """
    if model.passes is not None:
        return
    rows, (X, _) = model.fitted_rows(), model.featured
    d_slack = np.where(posterior.latent.slack > 0, -0.5 * posterior.gamma, 0.0)
    for block in row_blocks(rows.n, 2 * (place.stop - place.start)):
        sparse = None if rows.sparse is None else rows.sparse[block]
        cross = q.covariance_with(model.rows_over(X[block], rows.codes[block], rows.values[block], sparse), place)
        yield (block, np.outer(posterior.a[block], q.mean[place]) - posterior.gamma[block, None] * cross,
               d_slack[block])


def add_features(model: LinearModel, total: Array, rows: LinearRows, X: Array, slack: Array, q: WeightPosterior,
                 a: Array, gamma: Array) -> None:
    """Add what rows of a pass have to say of the gradient in the parameters of features that move."""
    for term, block, values, place in zip(model.terms, rows.blocks, model.values, model.places, strict=True):
        if isinstance(block, Moving):
            cross = q.covariance_with(model.rows_over(X, rows.codes, rows.values), place)
            piece = (slice(None), np.outer(a, q.mean[place]) - gamma[:, None] * cross,
                     np.where(slack > 0, -0.5 * gamma, 0.0))
            found = FeatureGradients(iter([piece]), np.zeros((term.size, term.size)))
            model.pull(total, term, term.pull_features(block, values, found))
