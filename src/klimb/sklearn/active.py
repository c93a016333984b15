"""Active learning in the shape of a scikit-learn classifier."""

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from klimb.active import ActiveLearner
from klimb.errors import InputError
from klimb.infer.result import Result
from klimb.numerics.arrays import Array
from klimb.sklearn.base import Estimator


class ActiveClassifier(ClassifierMixin, Estimator):
    """A classifier of two classes that says which of its unlabelled rows to label next.

    ``fit`` takes the whole pool; rows without a label have None or NaN in ``y`` (or leave ``y`` out). Then ``query``
    and ``teach`` in turn. The model is a Bayesian logistic regression, see `klimb.active.ActiveLearner`.

    Parameters
    ----------
    strategy : str
        "bald", "ig", "cu", "epig", "variance" or "random".
    cov, prior, scale, initial
        As in `klimb.active.ActiveLearner`.
    fit_intercept : bool
    classes : two labels
        Needed where y does not have both.
    random_state : int, RandomState or None
        Decides the order of rows that are chosen at random. With None, as in scikit-learn, every fit has its own.

    Examples
    --------
    >>> import numpy as np
    >>> from klimb.sklearn import ActiveLearner
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((300, 2))
    >>> answer = np.where(X[:, 0] > 0, "yes", "no")
    >>> learner = ActiveLearner(classes=["no", "yes"]).fit(X)
    >>> for _ in range(8):
    ...     rows = learner.query(3)
    ...     _ = learner.teach(rows, answer[rows])
    >>> bool(learner.score(X, answer) > 0.9)
    True
    """

    def __init__(self, *, strategy: str = "bald", cov: Any = 1.0, prior: str = "gaussian", scale: float = 1.0,
                 fit_intercept: bool = True, classes: Any = None, initial: int = 5, random_state: Any = 0) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: Any = None) -> Self:
        """The pool, and the labels that are known so far."""
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64)
        labels = np.full(X.shape[0], None, dtype=object) if y is None else _objects(y, X.shape[0])
        known = np.flatnonzero([not _missing(label) for label in labels])
        self.classes_ = _two_classes(self.classes, labels[known])
        self.learner_ = ActiveLearner(X, cov=self.cov, prior=self.prior, scale=self.scale, score=self.strategy,
                                      intercept=self.fit_intercept, initial=self.initial, seed=_seed(self.random_state))
        if known.size:
            self.teach(known, labels[known])
        return self

    def query(self, k: int = 1) -> npt.NDArray[np.intp]:
        """The ``k`` rows of the pool to label next, best first."""
        check_is_fitted(self, "learner_")
        return self.learner_.query(k)

    def teach(self, rows: Any, labels: Any) -> Self:
        """Add the labels of ``rows`` of the pool."""
        check_is_fitted(self, "learner_")
        given = _objects(labels, None)
        strange = [k for k, label in enumerate(given) if label not in self.classes_.tolist()]
        if strange:
            raise InputError(f"labels must be among the classes {self.classes_.tolist()}",
                             f"{given[strange[0]]!r} at index {strange[0]}", "Name both in classes=[...].")
        self.learner_.teach(rows, [1.0 if label == self.classes_.tolist()[1] else -1.0 for label in given])
        return self

    @property
    def fit_state(self) -> Result | None:
        """The fit to the labels so far, or None before the first one."""
        check_is_fitted(self, "learner_")
        return self.learner_.fit_state

    @property
    def coef_(self) -> Array:
        """Posterior mean of the weights, 1 x D."""
        return self.learner_.weights[None]

    @property
    def intercept_(self) -> Array:
        """Posterior mean of the intercept."""
        return np.array([self.learner_.intercept])

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the two classes, in the order of ``classes_``."""
        check_is_fitted(self, "learner_")
        return self.learner_.predict_proba(self._checked_rows(X))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The likelier class of each row."""
        likely = self.predict_proba(X)[:, 1] > 0.5
        return np.asarray(self.classes_[likely.astype(int)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.target_tags.required = False
        return tags


def _objects(labels: Any, n: int | None) -> npt.NDArray[np.object_]:
    given = column_or_1d(np.atleast_1d(np.asarray(labels, dtype=object)), warn=True)
    if n is not None and given.size != n:
        raise InputError(f"y must have one entry per row of X ({n})", f"{given.size}",
                         "Use None where there is no label.")
    return np.asarray(given, dtype=object)


def _seed(random_state: Any) -> int:
    """A seed from what scikit-learn calls a random state."""
    if random_state is None or isinstance(random_state, np.random.RandomState):
        return int(check_random_state(random_state).randint(2**31 - 1))
    if isinstance(random_state, (int, np.integer)) and random_state >= 0:
        return int(random_state)
    raise InputError("random_state must be a non-negative integer, a RandomState or None", repr(random_state),
                     "Leave it out: 0 gives the same answers every time.")


def _missing(label: Any) -> bool:
    return label is None or (isinstance(label, (float, np.floating)) and bool(np.isnan(label)))


def _two_classes(classes: Any, labels: npt.NDArray[np.object_]) -> npt.NDArray[Any]:
    plain = np.array(labels.tolist())
    if plain.size:
        check_classification_targets(plain)
    found = np.unique(plain) if classes is None else np.asarray(classes)
    if found.shape != (2,):
        several = "Only binary classification is supported. The type of the target is multiclass: "
        raise InputError(f"{several if found.size > 2 else ''}an active learner needs two classes",
                         f"{found.size} class{'es' * (found.size != 1)} {found.tolist()[:6]}",
                         "Name them: ActiveLearner(classes=[no, yes]); of several, learn one against the rest.")
    return found
