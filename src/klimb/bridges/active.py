"""klimb's scores as query strategies of modAL and scikit-activeml, which choose by a posterior instead of an ensemble.

A strategy fits a Bayesian linear model to labelled rows and scores the pool. Nothing of modAL is imported.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from klimb.active import ActiveLearner
from klimb.active.scores import Score
from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, Index
from klimb.numerics.lazy import scipy_sparse


@dataclass(frozen=True)
class ModalStrategy:
    """A query strategy for modAL: ``modAL.models.ActiveLearner(estimator, query_strategy=ModalStrategy())``.

    ``classes`` names the two classes where the first labels may all be of one; other settings are those of
    `klimb.active.ActiveLearner`. A batch (``n_instances``) is greedy: no near-duplicates.

    >>> from types import SimpleNamespace
    >>> rng = np.random.default_rng(0)
    >>> learner = SimpleNamespace(X_training=rng.standard_normal((20, 2)), y_training=np.arange(20) % 2)
    >>> len(ModalStrategy(score="bald")(learner, rng.standard_normal((50, 2)), n_instances=3))
    3
    """

    score: str | Score = "bald"
    classes: Sequence[Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, learner: Any, X_pool: Any, n_instances: int = 1, **_: Any) -> Index:
        """Rows of ``X_pool`` to label next."""
        known = getattr(learner, "X_training", None)
        labels = [] if known is None else learner.y_training
        return choose(known, labels, X_pool, n_instances, score=self.score, classes=self.classes, **self.settings)


def choose(X_known: Any, labels: Any, X_pool: Any, k: int = 1, *, score: str | Score = "bald",
           classes: Sequence[Any] | None = None, **settings: Any) -> Index:
    """The ``k`` rows of ``X_pool`` to label next, given labelled rows ``X_known`` (or None)."""
    if X_known is None or X_known.shape[0] == 0:
        return ActiveLearner(X_pool, score=score, **settings).query(k)
    n = X_known.shape[0]
    signs = two_classes(labels, classes)
    learner = ActiveLearner(stacked(X_known, X_pool), score=score, **{"initial": 0, **settings})
    learner.teach(np.arange(n), signs)
    return np.asarray(learner.query(k) - n)


def two_classes(labels: Any, classes: Sequence[Any] | None) -> Array:
    """Labels of any kind as -1 and +1, the second of the ``classes`` (in order, where they are not given) as +1."""
    given = np.asarray(labels).ravel()
    known = np.unique(given) if classes is None else np.asarray(list(classes))
    require(len(known) <= 2, "active learning here needs two classes", f"{len(known)}: {known.tolist()[:6]}",
            "Learn one class against the rest, each with its own labels.")
    strange = np.flatnonzero(~np.isin(given, known))
    if strange.size:
        raise InputError(f"labels must be among the classes {known.tolist()}", f"{given[strange[0]]!r} at index "
                         f"{strange[0]}", "Name both classes.")
    return np.where(given == known[-1], 1.0, -1.0) if len(known) == 2 else np.ones(given.size)


def stacked(above: Any, below: Any) -> Any:
    """Rows of two designs, sparse if one of them is."""
    if hasattr(above, "tocsr") or hasattr(below, "tocsr"):
        return scipy_sparse.vstack([scipy_sparse.csr_matrix(above), scipy_sparse.csr_matrix(below)], format="csr")
    return np.concatenate([np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)])
