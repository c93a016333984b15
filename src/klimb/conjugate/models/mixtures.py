"""Mixtures of Gaussians, hidden Markov models with normal or count emissions, and documents as mixtures of topics."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from klimb.conjugate import Fitted, Stochastic, chain, fit, fit_batches, mixture, normal_gamma, topics
from klimb.conjugate.classes import MarkovChain, MixtureData, without_missing
from klimb.conjugate.conditionals import categorical, dirichlet, gamma, normal_wishart, tied_normal_wishart
from klimb.conjugate.families import Categorical, Dirichlet, Family
from klimb.conjugate.loop import Network, add, prior_state
from klimb.conjugate.variables import Variable
from klimb.errors import InputError, require
from klimb.infer.result import Iteration
from klimb.numerics.arrays import Array, as_float
from klimb.numerics.lazy import scipy_sparse

Shape = Literal["full", "tied", "diagonal"]
SEED_ROWS = 4096  # rows that k-means++ looks at for its first centres
FRESH = 8  # passes in which documents are fitted from scratch


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """A fitted mixture. Components are in order of weight, the heaviest first."""
    fit: Fitted
    weights: Array  # expected weights
    means: Array  # K x D
    concentration: Dirichlet
    components: Family
    shift: Array
    _observed: Callable[[Array], MixtureData]
    _order: Any

    def log_densities(self, X: Any) -> Array:
        """E log of weight times density of each row in each component, N x K."""
        seen = self._observed(as_float(X, "X", ndim=2) - self.shift)
        (log_weights,) = self.concentration.mean_parameters()
        values = seen.log_densities(self.fit.state) + seen.emission.base[:, None] + log_weights
        return np.asarray(values[:, self._order])

    def shares(self, X: Any) -> Array:
        """Probability of each component for each row."""
        return Categorical.from_natural((self.log_densities(X),)).probabilities

    def predict(self, X: Any) -> Array:
        """The most probable component of each row."""
        return np.asarray(self.log_densities(X).argmax(1))


def gaussian_mixture(X: Any, n_components: int, *, covariance: Shape = "full", concentration: float | None = None,
                     mean_precision: float = 1.0, dof: float | None = None, rate: Any = None, batch: int | None = None,
                     seed: int = 0, tol: float = 1e-6, max_iter: int = 500, start: Any = None) -> GaussianMixture:
    """A mixture of at most ``n_components`` normals; a small ``concentration`` (default 1/K) empties the needless ones.

    The prior of a component is centred at the data's mean with ``mean_precision`` prior observations, and expects the
    data's own covariance with ``dof`` (default D) degrees of freedom. ``batch`` rows at a time for data past the cache
    or memory: same optimum, no learning rate. ``start`` may give the first shares (N x K); otherwise k-means++.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = np.vstack([rng.normal(size=(200, 2)), rng.normal(size=(100, 2)) + 6.0])
    >>> model = gaussian_mixture(X, 6, concentration=0.01)
    >>> print(np.round(model.weights, 2) + 0.0)
    [0.67 0.33 0.   0.   0.   0.  ]
    """
    data = as_float(X, "X", ndim=2)
    (N, D), K = data.shape, int(n_components)
    require(1 <= K <= N, f"n_components must lie in 1..{N}, the number of rows", f"{n_components}", "Use fewer.")
    shift = data.mean(0)
    x = data - shift
    spread = x.T @ x / max(N - 1, 1) if rate is None else as_float(rate, "rate", ndim=2)
    spread = spread + (1e-10 * np.trace(spread) / D + 1e-300) * np.eye(D)  # constant columns keep a proper prior
    weights = dirichlet(np.full(K, 1.0 / K if concentration is None else concentration), name="weights")
    kappa, nu, name = mean_precision, float(D if dof is None else dof), "components"
    if covariance == "full":
        component = normal_wishart(np.zeros(D), kappa, nu, nu * spread, plates=(K,), name=name)
    elif covariance == "tied":
        component = tied_normal_wishart(np.zeros((K, D)), kappa, nu, nu * spread, name=name)
    elif covariance == "diagonal":
        component = normal_gamma(0.0, kappa, 0.5 * nu, 0.5 * nu * np.diag(spread), plates=(K, D), name=name)
    else:
        raise InputError('covariance must be "full", "tied" or "diagonal"', f"{covariance!r}", 'Start with "full".')
    shares = as_float(start, "start", ndim=2) if start is not None else np.eye(K)[kmeans(x, K, seed)]
    if shares.shape != (N, K):
        raise InputError(f"start must hold shares of shape {(N, K)}", f"{shares.shape}", "One column per component.")

    def evidence(rows: Any) -> Any:
        return mixture(categorical(weights, plates=(len(rows),), name="class"), component).observe(rows)

    seen = evidence(x)
    first = {component: component.conditional.member(component.conditional.natural({})), seen.gate: Categorical(shares)}
    begin = {component: component.conditional.member(add(first[component].natural, seen.message(component, first))),
             weights: Dirichlet(weights.conditional.natural(first)[0] + shares.sum(0))}
    if batch is None:
        fitted = fit(seen, start=begin, tol=tol, max_iter=max_iter)
    else:
        blocks = [x[i : i + batch] for i in range(0, N, batch)]
        fitted = fit_batches(evidence, blocks, shared=(weights, component), start=begin, tol=tol, max_iter=max_iter)
    mixing, parts = fitted[weights], fitted[component]
    order = np.argsort(-mixing.mean, kind="stable")
    means = (parts.mean + shift)[order]
    return GaussianMixture(fitted, mixing.mean[order], means, mixing, parts, shift, evidence, order)


class HiddenMarkov(NamedTuple):
    """A fitted hidden Markov model; states are in order of their mean (of the first column)."""
    fit: Fitted
    shares: Array  # probability of each state at each time
    transition: Array  # expected transition probabilities
    means: Array  # K x D: expected mean or rate of each state, in the units of the data
    chain: MarkovChain
    emissions: Family

    def path(self) -> Array:
        """The most probable state at each time."""
        return np.asarray(self.shares.argmax(1))


def hidden_markov(y: Any, n_states: int, *, emission: Literal["normal", "poisson"] = "normal", lengths: Any = None,
                  concentration: float = 1.0, stickiness: float = 0.0, seed: int = 0, tol: float = 1e-8,
                  max_iter: int = 1000) -> HiddenMarkov:
    """Sequences laid end to end (``lengths`` of each) whose hidden state jumps between ``n_states`` levels.

    ``y`` is (T,) or (T, D); rows with NaN are missing. ``stickiness`` adds prior counts to staying in a state.

    >>> import numpy as np
    >>> y = np.repeat([0.0, 5.0, 0.0, 5.0], 25) + 0.3 * np.sin(np.arange(100.0) ** 2)
    >>> model = hidden_markov(y, 2)
    >>> print(model.path()[[0, 30, 60, 90]], np.round(model.means.ravel()))
    [0 1 0 1] [0. 5.]
    """
    raw = np.asarray(y, dtype=float)
    raw = raw[:, None] if raw.ndim == 1 else raw
    x, missing = without_missing(raw)
    seen = x if missing is None else x[missing == 0]
    T, D, K = len(raw), raw.shape[1], int(n_states)
    if not 1 <= K <= len(seen):
        raise InputError(f"n_states must lie in 1..{len(seen)}, the number of rows seen", f"{n_states}", "Use fewer.")
    sizes = (T,) if lengths is None else tuple(int(n) for n in np.atleast_1d(lengths))
    require(sum(sizes) == T, f"lengths must add up to the {T} rows of y", sum(sizes), "Lay the sequences end to end.")
    first = dirichlet(np.full(K, concentration), name="first")
    step = dirichlet(concentration + stickiness * np.eye(K), name="step")
    z = chain(first, step, lengths=sizes, name="states")
    if emission == "normal":
        shift, scale = seen.mean(0), np.maximum(seen.std(0), 1e-300)
        data = (raw - shift) / scale
        component = normal_gamma(0.0, 0.1, 1.0, 0.1, plates=(K, D), name="levels")
    elif emission == "poisson":
        shift, scale, data = np.zeros(D), np.ones(D), raw
        component = gamma(1.0, 1.0 / np.maximum(seen.mean(0), 1e-3), plates=(K, D), name="rates")
    else:
        raise InputError('emission must be "normal" or "poisson"', f"{emission!r}", 'Use "poisson" for counts.')
    labels = np.zeros(T, dtype=int)
    standard = (seen - seen.mean(0)) / np.maximum(seen.std(0), 1e-300)
    labels[np.arange(T) if missing is None else missing == 0] = kmeans(standard, K, seed)
    guess = MarkovChain((np.zeros(K), np.zeros((K, K)), 3.0 * np.eye(K)[labels]), sizes)
    fitted = fit(mixture(z, component).observe(data), start={z: guess}, tol=tol, max_iter=max_iter)
    q, levels, steps = fitted[z], fitted[component], fitted[step]
    means = levels.mean * scale + shift
    order = np.argsort(means[:, 0], kind="stable")
    return HiddenMarkov(fitted, q.mean[:, order], steps.mean[np.ix_(order, order)], means[order], q, levels)


def kmeans(X: Array, count: int, seed: int = 0) -> Any:
    """The nearest of ``count`` centres for every row: k-means++ and ten rounds on some rows, then a few on all."""
    from scipy.cluster.vq import kmeans2
    rng = np.random.default_rng(seed)
    some = X if len(X) <= SEED_ROWS else X[rng.choice(len(X), max(SEED_ROWS, count), replace=False)]
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):  # equal rows leave no distances to draw by
        warnings.filterwarnings("ignore", "One of the clusters is empty")  # its centre stays where it was
        centres, nearest = kmeans2(some, count, 10, minit="++", seed=rng)
        return nearest if some is X else kmeans2(X, centres, 3, minit="matrix")[1]


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
        state[self._words] = self.words
        for _ in range(sweeps):
            old = state[theta].natural[0]
            new = network.optimum(theta, state)
            state[theta] = Dirichlet.from_natural(new)
            if np.abs(new[0] - old).max() <= tol * (1.0 + np.abs(new[0]).max()):
                break
        found: Dirichlet = state[theta]
        return found


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
    require(K >= 1, "n_topics must be at least 1", f"{n_topics}", "20 is a common start.")
    a = 1.0 / K if share_prior is None else share_prior
    words = dirichlet(np.full(V, 1.0 / K if word_prior is None else word_prior), plates=(K,), name="words")
    first = Dirichlet(np.random.default_rng(seed).gamma(100.0, 0.01, size=(K, V)) if start is None else start)

    def evidence(block: Any) -> Any:
        return topics(dirichlet(np.full(K, a), plates=(block.shape[0],), name="shares"), words).observe(block)

    if batch is None:
        fitted = fit(evidence(matrix), start={words: first}, tol=tol, max_iter=max_iter, callback=callback)
    else:
        blocks = [matrix[i : i + batch] for i in range(0, D, batch)]
        step = Stochastic(local_sweeps=10, local_tol=1e-9, fresh=FRESH)
        fitted = fit_batches(evidence, blocks, shared=(words,), step=step, start={words: first}, tol=tol,
                             max_iter=max_iter, callback=callback)
    return LatentDirichlet(fitted, fitted[words], a, words)
