"""The active learner: a pool, the labels so far, a posterior, and the rows whose labels would teach most."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from klimb._files import whole_file
from klimb.active.batch import Shortlist, greedy_batch, score_rows
from klimb.active.belief import Belief, CrossProducts
from klimb.active.inclusion import include, plain_site
from klimb.active.marginals import Marginals, Snapshot, Targets, WorkCounts
from klimb.active.model import linear_model
from klimb.active.pool import as_pool, check_count, check_rows, fingerprint
from klimb.active.scores import Score, as_score, no_preference
from klimb.errors import InputError, require
from klimb.infer.result import Result
from klimb.linalg.matrix import DesignMatrix
from klimb.numerics.arrays import Array, Index, Mask, as_float
from klimb.sites import Logistic, Prediction, Site

STATE_VERSION = 1
DEFAULT_TARGETS = 100
NO_SITES = np.empty((2, 0))  # slope and gamma of each
START_TOL = 1e-3  # of new sites that a fit starts from


class ActiveLearner:
    """Chooses which rows of a pool to label next, from the posterior of a linear model.

    Parameters
    ----------
    pool : (N, D) array, memory map or scipy.sparse matrix
        The candidates. Dense pools are read in blocks, whatever their number type; up to a million rows and more.
    site : Site
        The likelihood of a label; ``klimb.sites.Logistic()`` unless given. Wrapped in ``klimb.sites.SuperGaussian`` the
        fit and the information gain are those of [N].
    cov : number, (D,) or (D, D) array
        Prior covariance of the weights (for ``prior="gaussian"``).
    prior : "gaussian" or "laplace"
        A Laplace prior (of scale ``scale``) for weights of which few matter; past 4,000 columns by its local bound.
    score : str or Score
        "bald", "ig", "cu", "variance", "epig" or "random": see `klimb.active.scores`.
    targets : (T, D) array or scipy.sparse matrix
        Rows whose predictions matter, for "epig" and "variance"; unless given, 100 rows of the pool.
    intercept : bool
        Adds a column of ones with prior variance 25.
    initial : int
        The first so many rows are taken at random: scores of a posterior that knows nothing prefer outliers.
    refit : int
        Fit all sites again after so many labels; those in between enter by the inclusion algebra of [N], one linear
        system and at most one product with the pool each, and leave the other sites as they are.
    warm : bool
        Start each fit from the last one (with new sites by the inclusion algebra): faster for many labels. Without it
        a fit depends on the labels alone, not on how they were grouped.
    n_lanczos : int
        Estimate variances by so many Lanczos vectors, as [N] does, instead of computing them exactly: cheaper per fit
        where labels are many more than this. The variances of picks are corrected by a solve.
    seed : int
        Decides the random order of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from klimb.active import ActiveLearner
    >>> rng = np.random.default_rng(0)
    >>> pool = rng.standard_normal((500, 3))
    >>> answer = pool @ [2.0, -1.0, 0.0] > 0  # what a person would say
    >>> learner = ActiveLearner(pool)
    >>> for _ in range(10):
    ...     rows = learner.query(3)
    ...     learner.teach(rows, answer[rows])
    >>> right = np.mean((learner.predict_proba()[:, 1] > 0.5) == answer)
    >>> bool(right > 0.95), len(learner.labelled)
    (True, 30)
    """

    def __init__(self, pool: Any, *, site: Site | None = None, cov: Any = 1.0, prior: str = "gaussian",
                 scale: float = 1.0, score: str | Score = "bald", targets: Any = None, intercept: bool = True,
                 initial: int = 5, refit: int = 1, warm: bool = False, n_lanczos: int | None = None, seed: int = 0,
                 tol: float = 1e-6) -> None:
        self._pool = as_pool(pool, intercept=bool(intercept))
        n, columns = self._pool.shape
        self._site = Logistic() if site is None else site
        self._model = linear_model(self._site, columns - bool(intercept), prior=prior, cov=cov, scale=scale,
                                   intercept=bool(intercept), tol=tol, n_lanczos=n_lanczos)
        self._site.check_length(n)
        self._score = as_score(score)
        self._targets = None if targets is None else self._new_rows(targets, "targets")
        self._refit = check_count(refit, "refit", 1, "It is a number of labels.")
        self._initial = check_count(initial, "initial", 0, "It is a number of rows.")
        self._warm, self._seed = bool(warm), check_count(seed, "seed", 0, "It decides the random order of rows.")
        self._order = np.random.default_rng(self._seed).permutation(n)
        self._rows: list[int] = []
        self._open = np.ones(n, dtype=bool)  # not labelled yet
        self._given: list[float] = []  # labels as they came
        self._clean: list[float] = []  # labels as the site has them
        self._sites: Array | None = None  # slope and gamma of the last fit, for a warm start
        self._prior_sites = NO_SITES  # those of a Laplace prior, one per weight
        self._kept = CrossProducts(self._pool, self._model.prior)
        self._shortlist = Shortlist()
        self._result: Result | None = None
        self._belief: Belief | None = None
        self._state: Marginals | None = None  # with every label, included or fitted
        self._before: Snapshot | None = None  # the last marginals of the whole pool before this fit
        self.counts = WorkCounts()  # of work with the pool, since the beginning
        self._fitted = self._included = 0  # labels of the last fit, and those included since
        self._held = False  # whether labels are included whatever ``refit`` says

    @property
    def n_pool(self) -> int:
        """Rows of the pool."""
        return self._pool.shape[0]

    @property
    def labelled(self) -> Index:
        """The labelled rows, in the order in which they were taught."""
        return np.array(self._rows, dtype=np.intp)

    @property
    def labels(self) -> Array:
        """Their labels, as they were given."""
        return np.array(self._given)

    @property
    def unlabelled(self) -> Index:
        """The rows that ``query`` may still give."""
        return np.flatnonzero(self._free())

    def _free(self, *closed: Index) -> Mask:
        """The rows of the pool that are not labelled, nor ``closed``."""
        free = self._open.copy()
        for rows in closed:
            free[rows] = False
        return free

    def teach(self, rows: Any, labels: Any) -> None:
        """Add the ``labels`` of ``rows``; the next question to the posterior fits it once for all of them."""
        index = check_rows(rows, self.n_pool, "rows")
        known = np.flatnonzero(~self._open[index])
        if known.size:
            raise InputError("rows must not be labelled yet", f"row {index[known[0]]} at index {known[0]}",
                             "Call forget(row) first to replace its label.")
        given = np.atleast_1d(as_float(labels, "labels"))
        require(given.shape == index.shape, f"there must be one label per row ({index.size})", f"shape {given.shape}",
                "Pass labels in the order of rows.")
        if self._warm and self._rows and self._n_fitted(index.size) != self._fitted:
            m, v = self._current().at(index)  # the next fit starts from sites for them too
            assert self._sites is not None
            site = self._site.rows(index)
            new = include(site, site.validate(given), m, v, tol=START_TOL)
            self._sites = np.hstack([self._sites, [new.slope, new.gamma]])
        clean = self._site.rows(index).validate(given)
        self._rows += index.tolist()
        self._open[index] = False
        self._given += given.tolist()
        self._clean += clean.tolist()
        if self._fitted != self._n_fitted():
            self._forget_fit()

    def forget(self, rows: Any) -> None:
        """Take the labels of ``rows`` back."""
        index = check_rows(rows, self.n_pool, "rows")
        unknown = np.flatnonzero(self._open[index])
        if unknown.size:
            raise InputError("rows must be labelled", f"row {index[unknown[0]]} at index {unknown[0]}",
                             "learner.labelled lists the rows that are.")
        self._open[index] = True
        keep = np.flatnonzero(~self._open[self._rows]).tolist()
        for name in ("_rows", "_given", "_clean"):
            setattr(self, name, [getattr(self, name)[k] for k in keep])
        self._sites, self._prior_sites = None, NO_SITES
        self._forget_fit()

    @property
    def fit_state(self) -> Result | None:
        """The fit to the labels so far (`klimb.infer`'s Result), or None before the first one."""
        if self._result is None and self._rows:
            self._fitted = n = self._n_fitted()
            start = None if self._sites is None else np.hstack([self._sites[:, :n], self._prior_sites])
            self._result = self._model.fit(self._pool, self.labelled[:n], np.array(self._clean[:n]), start)
            if self._warm:
                q = self._result.posterior
                later = NO_SITES if self._sites is None else self._sites[:, n:]
                self._sites = np.hstack([[(q.a + q.gamma * q.m)[:n], q.gamma[:n]], later])
                self._prior_sites = self._model.prior_sites(q, n)
        return self._result

    def _n_fitted(self, more: int = 0) -> int:
        """How many of the labels, and ``more``, the fit has: all, or the last multiple of ``refit``, or as before."""
        n = len(self._rows) + more
        if self._held:
            return self._fitted
        return n if n < self._refit else n - n % self._refit

    @property
    def belief(self) -> Belief:
        """The Gaussian over the weights of the last fit: ``belief.mean``, and products with its covariance."""
        if self._belief is None:
            fit = self.fit_state
            self._belief = self._model.belief(fit, self._kept, self.labelled[: self._fitted])
        return self._belief

    def _current(self) -> Marginals:
        """The marginals of the pool, with the labels that came after the last fit included one by one."""
        if self._state is None:
            belief = self.belief
            self._state = Marginals.of(self._pool, self._site, belief, self._before, self.counts)
            self._included = 0
        for k in range(self._fitted + self._included, len(self._rows)):
            self._state, new = self._state.include(self._rows[k], self._clean[k])
            self._included += 1
            if self._sites is not None and self._sites.shape[1] == k:
                self._sites = np.hstack([self._sites, [new.slope, new.gamma]])
        return self._state

    @property
    def _mean(self) -> Array:
        """Posterior mean of all weights; no pass over the pool where every label has been fitted."""
        belief = self.belief
        return belief.mean if self._fitted == len(self._rows) else self._current().weights

    @property
    def weights(self) -> Array:
        """Posterior mean of the weights, one per column of the pool."""
        return self._mean[:-1] if self._model.intercept else self._mean

    @property
    def intercept(self) -> float:
        """Posterior mean of the intercept, 0 where there is none."""
        return float(self._mean[-1]) if self._model.intercept else 0.0

    def marginals(self, X: Any = None) -> tuple[Array, Array]:
        """Mean and variance of the latent value of every row of the pool, or of new rows ``X``."""
        if X is not None:
            new, belief = self._new_rows(X, "X"), self.belief
            if self._fitted == len(self._rows):
                return belief.marginals(new)
            now = self._current()
            return new.times(now.weights), now.pending.pool_variances(new)
        now = self._current()
        return now.m, now.v

    def _new_rows(self, X: Any, name: str) -> DesignMatrix:
        new = as_pool(X, intercept=self._model.intercept, name=name)
        if new.shape[1] != self._pool.shape[1]:
            columns = self._pool.shape[1] - self._model.intercept
            raise InputError(f"{name} must have {columns} columns", f"{new.shape[1] - self._model.intercept}",
                             "Use the columns of the pool, in their order.")
        return new

    def predict(self, X: Any = None) -> Prediction:
        """The predictive distribution of the labels of the pool, or of new rows."""
        return plain_site(self._site).predict(*self.marginals(X))

    def predict_proba(self, X: Any = None) -> Array:
        """Class probabilities, one row each: [P(y = 0 or -1), P(y = 1)] for binary sites."""
        return self.predict(X).probabilities()

    def uncertainty(self) -> float:
        """What is left to learn: the error rate that the model expects of itself on the unlabelled rows.

        For sites without classes, the mean variance of their latent values.
        """
        free = self.unlabelled
        if free.size == 0:
            return 0.0
        m, v = (part[free] for part in self.marginals())
        if self._site.response != "classes":
            return float(v.mean())
        return float(np.mean(1.0 - plain_site(self._site).rows(free).class_probabilities(m, v).max(axis=1)))

    def scores(self, strategy: str | Score | None = None) -> Array:
        """The score of every row of the pool; minus infinity where it is labelled."""
        score = self._score if strategy is None else as_score(strategy)
        free = self.unlabelled
        out = np.full(self.n_pool, -np.inf)
        if score.rule is no_preference:
            out[self._order] = -np.arange(self.n_pool) / self.n_pool
            out[self._rows] = -np.inf
        elif free.size:
            out[free] = score_rows(score, self._now(score), free)
        return out

    def query(self, k: int = 1, *, strategy: str | Score | None = None, exclude: Any = (), pending: Any = ()) -> Index:
        """The ``k`` rows to label next, best first; never a labelled one, nor one of ``exclude`` or ``pending``.

        A batch is greedy: each row is the best given that those before it will be labelled, and that rows of
        ``pending`` (which somebody is labelling now) will be. The same labels in the same order give the same rows.
        """
        score = self._score if strategy is None else as_score(strategy)
        waiting = check_rows(pending, self.n_pool, "pending") if len(pending) else np.zeros(0, dtype=np.intp)
        closed = check_rows(exclude, self.n_pool, "exclude") if len(exclude) else np.zeros(0, dtype=np.intp)
        free = self._free(waiting, closed)
        check_count(k)
        self._check_enough(k, free)
        at_random = int(k) if score.rule is no_preference else min(max(self._initial - len(self._rows), 0), int(k))
        first = self._order[free[self._order]][:at_random] if at_random else np.zeros(0, dtype=np.intp)
        if at_random == k:
            return first.astype(np.intp)
        free[first] = False
        chosen = greedy_batch(self._now(score), score, free, int(k) - at_random, waiting, self._shortlist)
        return np.concatenate([first, chosen]).astype(np.intp)

    def block(self, k: int, ask: Callable[[int], Any], *, strategy: str | Score | None = None) -> Index:
        """Query and teach ``k`` rows one by one, with one fit at the end: a block of [N] section 3.

        ``ask(row)`` gives a label, which moves all marginals by the inclusion algebra before the next row is chosen:
        one solve and at most one product with the pool each. Returns the rows.
        """
        require(self._refit <= 1, "block needs a learner with refit=1", f"refit={self._refit}",
                "Use query and teach, which then fit after every so many labels.")
        score = self._score if strategy is None else as_score(strategy)
        if score.rule is no_preference or len(self._rows) < self._initial:
            rows = self.query(k, strategy=strategy)
            self.teach(rows, [float(ask(int(row))) for row in rows])
            return rows
        self._check_enough(check_count(k), self._free())
        self._current()  # the fit that the block begins with, and holds
        self._held = True
        try:
            for _ in range(int(k)):
                row = self.query(1, strategy=strategy)
                self.teach(row, float(ask(int(row[0]))))
        finally:
            self._held = False
            self._forget_fit()
        return self.labelled[-int(k):]

    def _now(self, score: Score) -> Marginals:
        now = self._current()
        if not score.uses_targets:
            return now
        targets = self._targets  # those given, or some of the pool by the seed
        if targets is None:
            targets = self._pool.subset(np.sort(self._order[::-1][:DEFAULT_TARGETS]))
        return replace(now, targets=Targets.of(targets.dense(), now.pending, now.weights))

    @staticmethod
    def _check_enough(k: int, free: Mask) -> None:
        left = int(np.count_nonzero(free))
        require(k <= left, f"k must be at most the number of rows to choose from ({left})", f"{k}",
                "Everything else is labelled." if left else "The whole pool is labelled.")

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on later with the same pool and settings; plain values, ready for JSON."""
        sites, prior = None if self._sites is None else self._sites.tolist(), self._prior_sites.tolist()
        return {"version": STATE_VERSION, "pool": fingerprint(self._pool), "seed": self._seed, "warm": self._warm,
                "refit": self._refit, "site": repr(self._site), "rows": list(self._rows), "labels": list(self._given),
                "sites": sites, "prior_sites": prior}

    def load_state(self, state: dict[str, Any]) -> Self:
        """Take the labels of a ``state_dict`` of a learner like this one; the next query is the same as there."""
        mine = self.state_dict()
        for key in ("version", "pool", "seed", "warm", "refit", "site"):
            require(state.get(key) == mine[key], f"the state must come from a learner with the same {key}",
                    f"{state.get(key)!r} beside {mine[key]!r}", "Build the learner as it was, then load.")
        self._rows, self._given, self._clean, self._sites, self._prior_sites = [], [], [], None, NO_SITES
        self._open[:] = True
        self._forget_fit()
        if state["rows"]:
            warm, self._warm = self._warm, False  # the sites are those of the state, not new ones
            self.teach(state["rows"], state["labels"])
            self._warm = warm
        if state["sites"] is not None:
            self._sites = np.array(state["sites"], dtype=float)
            self._prior_sites = np.array(state.get("prior_sites", ((), ())), dtype=float)
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``state_dict`` to a JSON file, whole or not at all."""
        state = self.state_dict()
        with whole_file(path) as file:
            json.dump(state, file)

    def load(self, path: str | os.PathLike[str]) -> Self:
        """Go on from a file that ``save`` wrote."""
        with Path(path).open(encoding="utf-8") as file:
            return self.load_state(json.load(file))

    def _forget_fit(self) -> None:
        if self._state is not None:
            self._before = self._state.latest
        self._result, self._belief, self._state = None, None, None
        self._fitted = self._included = 0

    def __repr__(self) -> str:
        return (f"ActiveLearner({self.n_pool} rows, {len(self._rows)} labelled, site={self._site}, "
                f"score={self._score.name!r})")
