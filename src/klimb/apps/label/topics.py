"""What the unlabelled texts teach: the directions in which they differ most (latent semantic analysis).

With a few dozen labels, a model of words alone has seen hardly any of the words of the next text. But which words go
together can be seen in all texts, labelled or not. So the model gets, beside each text's words X, its place Z = X V
along the main directions V of the texts; most of the prior variance goes to those, the rest to the words themselves:

    f = sqrt(1 - r) Z b + sqrt(r) X w = X (sqrt(1 - r) V b + sqrt(r) w)        b, w ~ N(0, cov I)

It is still linear in the words, so what each word says can still be shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from klimb.apps.label.items import LabelItems
from klimb.numerics.arrays import Array

MOST_DIRECTIONS = 100
TEXTS_PER_DIRECTION = 10  # fewer texts have fewer directions
LOOKED_AT = 20_000  # texts from which directions are found; all have their place along them
OWN = 0.1  # r, the share of the words themselves in the prior variance
EXTRA, PASSES = 10, 4  # of the randomised search for directions


class FeaturePool(NamedTuple):
    """Features for the model, and how its weights become weights of words and columns."""

    features: Any
    per_name: Callable[[Array], Array]


def pool_of(items: LabelItems) -> FeaturePool:
    """The features of the items that can be asked."""
    every = len(items.askable) == items.n
    plain = items.features if every else items.features[items.askable]
    words = len(items.vocabulary.words) if items.vocabulary else 0
    count = min(MOST_DIRECTIONS, plain.shape[0] // TEXTS_PER_DIRECTION, words // 2)
    if count < 2:
        return FeaturePool(plain, lambda weights: weights)
    X, columns = plain[:, :words], plain[:, words:]
    V = main_directions(X, count)
    Z = np.asarray(X @ V)
    V, Z = (part / np.sqrt(np.mean(np.sum(Z**2, axis=1))) for part in (V, Z))  # length one on average, as rows of X
    near, own = np.sqrt(1.0 - OWN), np.sqrt(OWN)

    def per_name(weights: Array) -> Array:
        b, w, of_columns = weights[:count], weights[count : count + words], weights[count + words :]
        return np.concatenate([near * (V @ b) + own * w, of_columns])

    from scipy.sparse import csr_matrix, hstack

    return FeaturePool(hstack([csr_matrix(near * Z), own * X, columns], format="csr"), per_name)


def main_directions(X: Any, count: int, seed: int = 0) -> Array:
    """Orthonormal columns that span, nearly, the ``count`` leading right singular vectors of a sparse matrix.

    By subspace iteration from a random start, which ``seed`` decides: the same every time.

    >>> from scipy.sparse import csr_matrix
    >>> X = csr_matrix(np.outer([1.0, 2.0, 3.0, 4.0], [0.6, 0.8, 0.0, 0.0, 0.0]))
    >>> np.abs(main_directions(X, 1)).round(6).ravel()
    array([0.6, 0.8, 0. , 0. , 0. ])
    """
    rng = np.random.default_rng([seed, 2])
    if X.shape[0] > LOOKED_AT:
        X = X[np.sort(rng.permutation(X.shape[0])[:LOOKED_AT])]
    width = min(count + EXTRA, *X.shape)
    basis = np.linalg.qr(X.T @ rng.standard_normal((X.shape[0], width)))[0]
    for _ in range(PASSES):
        basis = np.linalg.qr(X.T @ np.linalg.qr(X @ basis)[0])[0]
    # Rotate to singular vectors: those of the small matrix X basis.
    projected = X @ basis
    order = np.linalg.eigh(projected.T @ projected)[1][:, ::-1]
    return np.asarray(basis @ order[:, :count])
