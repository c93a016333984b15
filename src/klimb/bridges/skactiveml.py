"""klimb's scores as a query strategy of scikit-activeml: ``from klimb.bridges.skactiveml import PosteriorSampling``.

The class derives from scikit-activeml's own, so it is made when it is first asked for; importing this module needs
nothing.
"""

from typing import Any

import numpy as np

from klimb.active import ActiveLearner
from klimb.bridges.active import two_classes


def __getattr__(name: str) -> Any:
    if name != "PosteriorSampling":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = _strategy_class()
    return globals()[name]


def _strategy_class() -> Any:
    try:
        from skactiveml.base import SingleAnnotatorPoolQueryStrategy
        from skactiveml.utils import is_labeled
    except ImportError as error:
        raise ImportError("klimb.bridges.skactiveml needs scikit-activeml; got no such package. Run: pip install "
                          "scikit-activeml", name="skactiveml") from error

    class PosteriorSampling(SingleAnnotatorPoolQueryStrategy):  # type: ignore[misc]
        """Chooses by the posterior of a Bayesian logistic regression: no ensemble to be trained.

        Parameters
        ----------
        strategy : str
            "bald", "ig", "cu", "epig", "variance" or "random".
        classes : two labels
            Needed where the first labels may all be of one class.
        cov : number or array
            Prior covariance of the weights.
        missing_label, random_state
            As everywhere in scikit-activeml.
        """

        def __init__(self, strategy: str = "bald", classes: Any = None, cov: Any = 1.0, missing_label: Any = np.nan,
                     random_state: Any = None) -> None:
            super().__init__(missing_label=missing_label, random_state=random_state)
            self.strategy, self.classes, self.cov = strategy, classes, cov

        def query(self, X: Any, y: Any, candidates: Any = None, batch_size: int = 1, return_utilities: bool = False
                  ) -> Any:
            """Rows to label next; utilities are the scores before the batch, NaN where there is nothing to choose."""
            X, y, candidates, batch_size, return_utilities = self._validate_data(
                X, y, candidates, batch_size, return_utilities, reset=True)
            rows, mapping = self._transform_candidates(candidates, X, y)
            known = np.flatnonzero(is_labeled(y, missing_label=self.missing_label_))
            pool = X if mapping is not None else np.concatenate([X, rows])
            free = np.asarray(mapping) if mapping is not None else np.arange(len(X), len(pool))
            learner = ActiveLearner(pool, score=self.strategy, cov=self.cov, initial=0,
                                    seed=int(self.random_state_.randint(2**31 - 1)))
            if known.size:
                learner.teach(known, two_classes(y[known], self.classes))
            picks = learner.query(int(batch_size), exclude=np.setdiff1d(learner.unlabelled, free))
            shift = 0 if mapping is not None else len(X)
            if not return_utilities:
                return picks - shift
            utilities = np.full((int(batch_size), len(pool) - shift), np.nan)
            scores = learner.scores()
            for k in range(int(batch_size)):
                left = np.setdiff1d(free, picks[:k])
                utilities[k, left - shift] = scores[left]
            return picks - shift, utilities

    PosteriorSampling.__module__, PosteriorSampling.__qualname__ = __name__, "PosteriorSampling"
    return PosteriorSampling
