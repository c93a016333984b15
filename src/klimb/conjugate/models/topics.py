"""Latent Dirichlet allocation: documents as mixtures of topics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb.conjugate.declare import dirichlet
from klimb.conjugate.families import Dirichlet
from klimb.conjugate.loop import Fitted, Network, fit, prior_state
from klimb.conjugate.observations import topics
from klimb.conjugate.stochastic import Stochastic, fit_batches
from klimb.conjugate.variables import Variable
from klimb.errors import InputError
from klimb.infer.result import Iteration
from klimb.numerics.lazy import scipy_sparse

FRESH = 8  # passes in which documents are fitted from scratch


@final
@dataclass(frozen=True, eq=False)
class LatentDirichlet:
    """A fitted topic model: ``words`` holds one Dirichlet over the vocabulary per topic."""

    fit: Fitted
    words: Dirichlet
    share_prior: float
    _words: Variable

    def shares(self, counts: Any, *, sweeps: int = 100, tol: float = 1e-8) -> Dirichlet:
        """Topic shares of documents, given the topics."""
        K = self.words.plates[0]
        theta = dirichlet(np.full(K, self.share_prior), plates=(counts.shape[0],), name="shares")
        network = Network([topics(theta, self._words).observe(counts)])
        state = prior_state(network.variables)
        state.set(self._words, self.words)
        for _ in range(sweeps):
            old = state[theta].natural[0]
            new = network.optimum(theta, state)
            state.set(theta, Dirichlet.from_natural(new))
            if np.abs(new[0] - old).max() <= tol * (1.0 + np.abs(new[0]).max()):
                break
        found: Dirichlet = state[theta]
        return found

    def top_words(self, count: int = 10) -> Any:
        """Indices of the most probable words of each topic."""
        return np.argsort(-self.words.mean, axis=1)[:, :count]


def latent_dirichlet(counts: Any, n_topics: int, *, share_prior: float | None = None, word_prior: float | None = None,
                     batch: int | None = 4096, seed: int = 0, start: Any = None, tol: float = 1e-6, max_iter: int = 200,
                     callback: Callable[[Iteration], Any] | None = None) -> LatentDirichlet:
    """Topics of a documents x words matrix of counts (dense or sparse).

    Priors default to 1/``n_topics`` for shares and words. ``batch`` documents at a time are fitted before the topics
    move, from scratch in the first passes, so that early topics do not hold them: higher bounds, in fewer passes, than
    sweeps over all data at once (``batch=None``). No learning rate either way.

    >>> import numpy as np
    >>> counts = np.kron(np.eye(2), np.full((5, 4), 3.0))     # two sets of documents with words of their own
    >>> model = latent_dirichlet(counts, 2)
    >>> print(sorted(np.round(model.words.mean[:, :4].sum(1), 2).tolist()))
    [0.03, 0.97]
    """
    matrix = scipy_sparse.csr_array(counts, dtype=float)
    (D, V), K = matrix.shape, int(n_topics)
    if K < 1:
        raise InputError("n_topics must be at least 1", f"{n_topics}", "20 is a common start.")
    a = 1.0 / K if share_prior is None else share_prior
    words = dirichlet(np.full(V, 1.0 / K if word_prior is None else word_prior), plates=(K,), name="words")
    rng = np.random.default_rng(seed)
    first = Dirichlet(rng.gamma(100.0, 0.01, size=(K, V)) if start is None else start)

    def evidence(block: Any) -> Any:
        theta = dirichlet(np.full(K, a), plates=(block.shape[0],), name="shares")
        return topics(theta, words).observe(block)

    if batch is None:
        fitted = fit(evidence(matrix), start={words: first}, tol=tol, max_iter=max_iter, callback=callback)
    else:
        blocks = [matrix[i : i + batch] for i in range(0, D, batch)]
        step = Stochastic(local_sweeps=10, local_tol=1e-9, fresh=FRESH)
        fitted = fit_batches(evidence, blocks, shared=(words,), step=step, start={words: first}, tol=tol,
                             max_iter=max_iter, callback=callback)
    return LatentDirichlet(fitted, fitted[words], a, words)
