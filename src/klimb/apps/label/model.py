"""The model behind the page: which items to ask, and what it thinks of them.

The choice is a function of the labels in their order alone, so that a session goes on as it would have. Two labels are
one logistic model with a Gaussian prior; more are one per label against the rest, which take turns. The prior's scale
is the one of the largest evidence, looked for anew whenever the number of labels has doubled.

Which words go together can be seen in all texts, labelled or not. So most of the prior variance goes to the places Z =
X V of the texts along their main directions V, the rest to the words X themselves; f is still linear in the words:

    f = sqrt(1 - r) Z b + sqrt(r) X w = X (sqrt(1 - r) V b + sqrt(r) w)        b, w ~ N(0, cov I)
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy.special import expit

from klimb.active import ActiveLearner
from klimb.apps.label.figures import WINDOW, CurvePoint, kappa
from klimb.apps.label.items import Index, LabelItems, Pushes
from klimb.apps.label.journal import Settings
from klimb.apps.label.progress import Order
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_sparse

MOST_DIRECTIONS = 100
TEXTS_PER_DIRECTION = 10  # fewer texts have fewer directions
LOOKED_AT = 20_000  # texts from which directions are found; all have their place along them
OWN = 0.1  # r, the share of the words themselves in the prior variance


def pool_of(items: LabelItems) -> tuple[Any, Callable[[Array], Array]]:
    """Features of the items that can be asked, and how weights of the model become weights of words and columns."""
    plain = items.features if len(items.askable) == items.n else items.features[items.askable]
    words = len(items.vocabulary.words) if items.vocabulary else 0
    count = min(MOST_DIRECTIONS, plain.shape[0] // TEXTS_PER_DIRECTION, words // 2)
    if count < 2:
        return plain, lambda weights: weights
    X, columns = plain[:, :words], plain[:, words:]
    V = main_directions(X, count)
    Z = np.asarray(X @ V)
    V, Z = (part / np.sqrt(np.mean(np.sum(Z**2, axis=1))) for part in (V, Z))  # length one on average, as rows of X
    near, own = np.sqrt(1.0 - OWN), np.sqrt(OWN)

    def per_name(weights: Array) -> Array:
        b, w, of_columns = weights[:count], weights[count : count + words], weights[count + words :]
        return np.concatenate([near * (V @ b) + own * w, of_columns])

    parts = [scipy_sparse.csr_matrix(near * Z), own * X, columns]
    return scipy_sparse.hstack(parts, format="csr"), per_name


def main_directions(X: Any, count: int) -> Array:
    """The leading right singular vectors of a sparse matrix, or of `LOOKED_AT` of its rows, as columns."""
    from scipy.sparse.linalg import svds
    if X.shape[0] > LOOKED_AT:
        X = X[np.sort(np.random.default_rng(2).permutation(X.shape[0])[:LOOKED_AT])]
    return np.asarray(svds(X, count, v0=np.ones(min(X.shape)))[2][::-1].T)


Labels: TypeAlias = tuple[tuple[int, int], ...]  # (place in the pool, label), in the order they were given
Chance: TypeAlias = tuple[float, float, float]  # mean, lower, upper

START_COV = 10.0  # rows have length one: a logit with a prior sd of about 3
COVS = (1.0, 3.0, 10.0, 30.0, 100.0)
FIRST_LOOK = 10  # labels at which the scale of the prior is first looked for; then at twice as many, and so on
INITIAL = 5  # items chosen at random before the model has a say
Z = 1.6448536269514722  # 90% intervals


class Choice(NamedTuple):
    """Items to ask: why each was chosen, what the model thinks of it, and which features make it think so."""
    rows: tuple[int, ...]
    why: tuple[str, ...]  # "model" or "check"
    chances: tuple[tuple[Chance, ...], ...]  # per item, one for each label
    pushes: tuple[Pushes, ...]
    point: CurvePoint
    trouble: str = ""


class Chooser:
    """Carries out orders. Not for several threads at once."""

    def __init__(self, items: LabelItems, settings: Settings) -> None:
        self.items, self.settings = items, settings
        self._rows: Index = items.askable
        self._place = {int(row): place for place, row in enumerate(self._rows)}
        self._pool, self._per_name = pool_of(items)
        count = len(settings.labels)
        self._sides = 1 if count == 2 else count  # binary models
        self._learners: list[ActiveLearner] = []
        self._covs: tuple[float, ...] = ()
        self._best: dict[tuple[Labels, int], float] = {}
        self._chosen: list[int] = []  # places in the pool of all items chosen so far

    def choose(self, order: Order) -> Choice:
        """The items of an order. If the model fails, they are drawn at random, and the choice says so."""
        labels = self._labels(order)
        try:
            self._learn(labels)
            picks, why = self._pick(order, labels)
            choice = self._choice(picks, why, self._outlook(labels))
        except Exception as error:  # whatever it is: labels are safe, and the page must not wait for ever
            picks = self._at_random(order.size, order.first, set())
            choice = self._blind_choice(picks, len(labels), f"The model could not choose ({type(error).__name__}:"
                                        f" {error}); the next items are random ones. Labels are saved nevertheless.")
        self._chosen += picks
        return choice

    def retrace(self, order: Order, rows: Sequence[int]) -> Choice:
        """An order of an earlier run, whose items are known: what the model thought of them then."""
        try:
            self._learn(self._labels(order))
            return self._choice([self._place[row] for row in rows], [""] * len(rows), CurvePoint(0, 0.0, 0.0))
        except Exception as error:  # as above: the items are known, only what the model thinks of them is not
            return self._blind_choice([self._place[row] for row in rows], 0, "The model cannot predict these "
                                      f"items ({type(error).__name__}: {error}). Labels are saved nevertheless.")

    def pass_over(self, rows: Sequence[int]) -> None:
        """Items of an earlier run, which are not to be chosen again."""
        self._chosen += [self._place[row] for row in rows]

    def _labels(self, order: Order) -> Labels:
        return tuple((self._place[row], label) for row, label in order.labels)

    def _choice(self, picks: Sequence[int], why: Sequence[str], point: CurvePoint) -> Choice:
        chances = self._chances(np.array(picks, dtype=np.intp))
        leading = [max(range(len(chance)), key=lambda label: chance[label][0]) for chance in chances]
        pushes = [self._pushes(place, label) for place, label in zip(picks, leading, strict=True)]
        fits = [fit for learner in self._learners if (fit := learner.fit_state) is not None and not fit.converged]
        trouble = f"The last fit did not converge: {fits[0].status.advice}" if fits else ""
        return Choice(tuple(int(self._rows[place]) for place in picks), tuple(why), chances, tuple(pushes), point,
                      trouble)

    def _blind_choice(self, picks: Sequence[int], labels: int, trouble: str) -> Choice:
        """Items of which nothing is known."""
        count = len(self.settings.labels)
        chances = (((1.0 / count, 0.0, 1.0),) * count,) * len(picks)
        return Choice(tuple(int(self._rows[place]) for place in picks), ("start",) * len(picks), chances,
                      ({},) * len(picks), CurvePoint(labels, 1.0 - 1.0 / count, float(np.log2(count))), trouble)

    def _pick(self, order: Order, labels: Labels) -> tuple[list[int], list[str]]:
        """Places and reasons: every ``check``-th item at random, the first by a model that knows nothing ("start")."""
        every = self.settings.check
        always = self.settings.score == "random"
        checks = [always or (every > 0 and (order.first + k) % every == every - 1) for k in range(order.size)]
        wanted = order.size - sum(checks)
        asked = self._query(wanted, order, labels) if wanted else []
        at_start = max(INITIAL - len(labels), 0)
        reasons = ["start" if k < at_start else "model" for k in range(wanted)]
        own = iter(zip(asked, reasons, strict=True))
        drawn = iter(self._at_random(sum(checks), order.first, set(asked)))
        both = [(next(drawn), "check") if check else next(own) for check in checks]
        return [place for place, _ in both], [why for _, why in both]

    def _query(self, k: int, order: Order, labels: Labels) -> list[int]:
        """What the models want to know. Several take turns, the one that has the most to learn first."""
        known, skipped = {place for place, _ in labels}, {self._place[row] for row in order.skipped}
        pending = [place for place in self._chosen if place not in known and place not in skipped]
        if self._sides == 1:
            return [int(row) for row in self._learners[0].query(k, exclude=sorted(skipped), pending=pending)]
        turns = sorted(self._learners, key=lambda learner: -learner.uncertainty())
        picks: list[int] = []
        for turn in range(k):
            learner = turns[turn % self._sides]
            picks.append(int(learner.query(1, exclude=sorted(skipped), pending=[*pending, *picks])[0]))
        return picks

    def _at_random(self, k: int, first: int, taken: set[int]) -> list[int]:
        """Items that nobody has chosen yet, in a random order that belongs to this place of the session."""
        if k == 0:
            return []
        shuffled = np.random.default_rng([self.settings.seed, 1, first]).permutation(len(self._rows))
        closed = {*self._chosen, *taken}
        return list(islice((int(place) for place in shuffled if int(place) not in closed), k))

    def _learn(self, labels: Labels) -> None:
        """Bring the learners to these labels."""
        covs = tuple(self._cov(labels, side) for side in range(self._sides))
        if covs != self._covs:
            self._covs = covs
            # Not warm: a fit must depend on the labels alone, not on the way to them.
            self._learners = [ActiveLearner(self._pool, cov=cov, score=self.settings.score, initial=INITIAL, warm=False,
                                            seed=self.settings.seed) for cov in covs]
        for side, learner in enumerate(self._learners):
            _bring(learner, [(place, int(label == side)) for place, label in labels])  # 1 for its own

    def _cov(self, labels: Labels, side: int) -> float:
        """The scale of the prior, by the evidence of the first 10, 20, 40, ... labels: of as many as there are."""
        if len(labels) < FIRST_LOOK:
            return START_COV
        first = labels[: FIRST_LOOK * 2 ** int(np.log2(len(labels) / FIRST_LOOK))]
        if len({label == side for _, label in first}) < 2:
            return START_COV
        if (first, side) not in self._best:
            fits = [self._alone(first, side, cov).fit_state for cov in COVS]
            best = int(np.argmax([-np.inf if fit is None else fit.bound for fit in fits]))
            self._best[first, side] = COVS[best]
        return self._best[first, side]

    def _alone(self, labels: Labels, side: int, cov: float) -> ActiveLearner:
        """A learner that knows the labelled items and no others."""
        learner = ActiveLearner(self._pool[np.array([place for place, _ in labels])], cov=cov)
        learner.teach(np.arange(len(labels)), [float(label == side) for _, label in labels])
        return learner

    def _chances(self, places: Index) -> tuple[tuple[Chance, ...], ...]:
        """Probability of each label with its interval."""
        sides = []
        for learner in self._learners:
            m, v = (part[places] for part in learner.marginals())
            mean = learner.predict_proba()[places, 1]
            sides.append(np.stack([mean, expit(m - Z * np.sqrt(v)), expit(m + Z * np.sqrt(v))], axis=1))
        table = np.stack(sides, axis=1)  # item x side x (mean, lower, upper)
        if self._sides == 1:
            one = table[:, 0]
            table = np.stack([one, 1.0 - one[:, [0, 2, 1]]], axis=1)
        else:
            table[:, :, 0] /= table[:, :, 0].sum(axis=1, keepdims=True)
            table[:, :, 1] = np.minimum(table[:, :, 1], table[:, :, 0])
            table[:, :, 2] = np.maximum(table[:, :, 2], table[:, :, 0])
        return tuple(tuple((float(a), float(b), float(c)) for a, b, c in item) for item in table)

    def _pushes(self, place: int, leading: int) -> Pushes:
        """What each feature adds to the log odds: of the first of two labels, or of the leading one of several."""
        weights = self._per_name(self._learners[0 if self._sides == 1 else leading].weights)
        row = self.items.features[self._rows[place]]
        if hasattr(row, "indices"):
            return dict(zip(row.indices.tolist(), (row.data * weights[row.indices]).tolist(), strict=True))
        return dict(enumerate((row * weights).tolist()))

    def _outlook(self, labels: Labels) -> CurvePoint:
        """What the model expects of the items that are not labelled, and how far it has changed its mind."""
        free = np.ones(len(self._rows), dtype=bool)
        free[[place for place, _ in labels]] = False
        if not free.any():
            return CurvePoint(len(labels), 0.0, 0.0)
        p = self.probabilities()[free]
        entropy = -np.sum(p * np.log2(np.maximum(p, 1e-300)), axis=1)
        point = CurvePoint(len(labels), float(np.mean(1.0 - p.max(axis=1))), float(entropy.mean()))
        if len(labels) < WINDOW + FIRST_LOOK:
            return point
        # How far the last `WINDOW` labels have changed what is predicted for unlabelled items: share, and kappa.
        earlier = labels[:-WINDOW]
        now = self._guesses(self._learners)
        before = self._guesses([self._alone(earlier, side, self._cov(earlier, side)) for side in range(self._sides)])
        return point._replace(changed=float(np.mean((now != before)[free])), agreement=kappa(now[free], before[free]))

    def probabilities(self) -> Array:
        """Of every label (columns) for every item that can be asked (rows), by the labels of the last order."""
        sides = [learner.predict_proba()[:, 1] for learner in self._learners]
        p = np.stack([sides[0], 1.0 - sides[0]] if self._sides == 1 else sides, axis=1)
        return np.asarray(p / p.sum(axis=1, keepdims=True))

    def _guesses(self, learners: list[ActiveLearner]) -> Array:
        """The most probable label of every item, by the posterior means of the weights."""
        scores = [self._pool @ learner.weights + learner.intercept for learner in learners]
        return np.asarray(scores[0] < 0.0 if self._sides == 1 else np.argmax(scores, axis=0))


def _bring(learner: ActiveLearner, wanted: list[tuple[int, int]]) -> None:
    """Teach and forget until the learner knows these labels, in this order."""
    known = list(zip(learner.labelled.tolist(), learner.labels.astype(int).tolist(), strict=True))
    same = next((k for k, (one, other) in enumerate(zip(known, wanted, strict=False)) if one != other),
                min(len(known), len(wanted)))
    if known[same:]:
        learner.forget([place for place, _ in known[same:]])
    if wanted[same:]:
        learner.teach([place for place, _ in wanted[same:]], [float(label) for _, label in wanted[same:]])
