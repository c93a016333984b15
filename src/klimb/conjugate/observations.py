"""What data say: observed conjugate variables, counts and zero-ones, sites that are not conjugate, and word counts."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from klimb.conjugate.conditionals import CategoricalGiven, NormalGiven
from klimb.conjugate.families import Beta, Dirichlet, Gamma, Naturals
from klimb.conjugate.means import Predictor, as_predictor, sampled_product
from klimb.conjugate.variables import Evidence, NetworkState, Variable, View, as_view, common_plates
from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, as_float, refuse
from klimb.numerics.lazy import scipy_sparse
from klimb.sites import Site, SuperGaussian


class ObservedVariable(Evidence):
    """Values of a variable that has unknown parents; NaN is missing."""

    def __init__(self, variable: Variable, values: Any) -> None:
        conditional = variable.conditional
        if not isinstance(conditional, NormalGiven | CategoricalGiven):
            raise InputError(f"{variable.name} must be normal or categorical to be observed", f"{variable!r}",
                             "Use poisson(rate), bernoulli(p), mixture(gate, component) or potential(site, predictor).")
        self.conditional, self.variables = conditional, conditional.variables
        x, present = _seen(values, f"the data of {variable.name}")
        plates = common_plates(f"the data of {variable.name}", x.shape, conditional.plates)
        require(plates == conditional.plates, f"the data of {variable.name} must have its plates {conditional.plates}",
                f"shape {x.shape}", "Declare plates=data.shape.")
        self.weight = np.ones(()) if present.all() else np.broadcast_to(present, plates)
        x = np.broadcast_to(x, plates)
        if isinstance(conditional, NormalGiven):
            self.x: Naturals = (x, x * x)
        else:
            K = conditional.dimension
            refuse((x < 0) | (x >= K) | (x != np.floor(x)), x, f"{variable.name} must be a class in 0..{K - 1}",
                   "Number the classes.")
            self.x = (np.eye(K)[x.astype(np.intp)],)

    def expected_log(self, state: NetworkState) -> float:
        if isinstance(self.conditional, NormalGiven):
            each = np.broadcast_to(self.conditional.expected_log(self.x, state), self.conditional.plates)
        else:
            each = (self.conditional.natural(state)[0] * self.x[0]).sum(-1)
        return float((self.weight * each).sum())

    def message(self, to: Variable, state: NetworkState) -> Naturals:
        return self.conditional.message(to, self.x, self.weight, state)


class LinearData(Evidence):
    """Data whose log density is linear in the two mean parameters of one variable: first, second, and the rest."""

    def __init__(self, view: View, weight: Array, first: Array, second: Array, rest: Array) -> None:
        self.view, self.variables = view, (view.variable,)
        plates = common_plates(view.variable.name, view.plates, weight.shape, first.shape, second.shape)
        self.said = tuple(np.broadcast_to(weight * part, plates) for part in (first, second))
        self.constant = float(np.broadcast_to(weight * rest, plates).sum())

    def expected_log(self, state: NetworkState) -> float:
        pairs = zip(self.said, self.view.moments(state), strict=True)
        return float(sum((said * known).sum() for said, known in pairs)) + self.constant

    def message(self, to: Variable, state: NetworkState) -> Naturals:
        return self.view.collect(self.said)


def _seen(values: Any, name: str) -> tuple[Array, Array]:
    """Finite data, zero where they are missing, and 0 or 1 for whether they are there."""
    y = np.asarray(values, dtype=float)
    missing = np.isnan(y)
    return as_float(np.where(missing, 0.0, y), name), (~missing).astype(float)


class Potential(Evidence):
    """A likelihood that is not conjugate, seen through its oracle at the present factors: [A] Eq. (6)-(7).

    A normal observation of f with precision gamma. Where f is a product of variables, the local bound of a
    super-Gaussian site takes the oracle's place: it needs no more than two moments of f.
    """

    exact = False

    def __init__(self, site: Site, predictor: Predictor, values: Any) -> None:
        self.predictor, self.variables = predictor, predictor.variables
        if not predictor.gaussian:
            require(site.super_gaussian, f"{type(site).__name__} on a product of variables needs a super-Gaussian site",
                    "a site without a local bound", "Use Logistic, Binomial, NegativeBinomial, Laplace or StudentT.")
            site = SuperGaussian(site)
        y = np.asarray(values, dtype=float)
        self.kept = np.flatnonzero(~np.isnan(y).ravel())
        require(y.shape == predictor.plates, f"the data must have the shape of the predictor, {predictor.plates}",
                f"{y.shape}", "One value per row of X or per pair of an index.")
        self.site = site
        self.y = site.validate(y.ravel()[self.kept])
        self.constant = float(np.broadcast_to(site.constant(self.y), self.y.shape).sum())

    def _moments(self, state: NetworkState) -> tuple[Array, Array]:
        m, v = self.predictor.moments(state)
        shape = self.predictor.plates
        mean, variance = (np.broadcast_to(part, shape).ravel()[self.kept] for part in (m, v))
        return mean, np.maximum(variance, 0.0)

    def expected_log(self, state: NetworkState) -> float:
        return float(self.site.oracle(self.y, *self._moments(state)).value.sum()) + self.constant

    def message(self, to: Variable, state: NetworkState) -> Naturals:
        m, v = self._moments(state)
        e = self.site.oracle(self.y, m, v)
        J, h = np.zeros(self.predictor.plates), np.zeros(self.predictor.plates)
        J.ravel()[self.kept] = e.gamma
        h.ravel()[self.kept] = e.gamma * m - e.alpha  # -gamma f^2/2 + h f has the slope -alpha at m: [A] Eq. (16)
        return self.predictor.message(to, J, h, state)


class Topics(Evidence):
    """Counts of words in documents, each word's topic summed out: q(z) ~ exp(E log share + E log word)."""

    def __init__(self, shares: Variable, words: Variable, counts: Any) -> None:
        matrix = scipy_sparse.csr_array(counts, dtype=float)
        matrix.eliminate_zeros()
        if np.any(matrix.data < 0) or not np.isfinite(matrix.data).all():
            raise InputError("word counts must be finite and not negative", f"{matrix.data.min()}", "Check the matrix.")
        for variable, role in ((shares, "shares"), (words, "words")):
            require(variable.family is Dirichlet and len(variable.plates) == 1,
                    f"the {role} of topics must be a dirichlet with one plate", f"{variable!r}",
                    "dirichlet(numpy.full(K, a), plates=(n_documents,)) and dirichlet(numpy.full(V, b), plates=(K,)).")
        (D, V), K = matrix.shape, words.plates[0]
        wanted = (D, K), (K, V)
        got = tuple((*v.plates, v.dimension) for v in (shares, words))
        if got != wanted:
            raise InputError(f"shares and words must have shapes {wanted[0]} and {wanted[1]}", f"{got[0]} and {got[1]}",
                             "Documents x topics and topics x words.")
        self.shares, self.words, self.variables = shares, words, (shares, words)
        self.counts = matrix
        self._rows = np.repeat(np.arange(D), np.diff(matrix.indptr))
        self._seen: tuple[Any, Any, Any] | None = None

    def _ratios(self, state: NetworkState) -> tuple[Array, Array, Any, float]:
        """exp E log of both sides, counts / sum over topics as a sparse matrix, and the expected log itself."""
        now = (state[self.shares], state[self.words])
        if self._seen is None or self._seen[0] is not now[0] or self._seen[1] is not now[1]:
            (log_share,), (log_word,) = state[self.shares].moments, state[self.words].moments
            share_top, word_top = log_share.max(1), log_word.max(0)
            share = np.exp(log_share - share_top[:, None])
            word = np.ascontiguousarray(np.exp(log_word - word_top).T)
            total = sampled_product(share, word, self._rows, self.counts.indices)
            np.maximum(total, np.finfo(float).tiny, out=total)
            value = float(self.counts.data @ np.log(total))
            value += float(self.counts.sum(1) @ share_top + self.counts.sum(0) @ word_top)
            ratio = self.counts.copy()
            ratio.data = self.counts.data / total
            self._seen = (*now, (share, word, ratio, value))
        return self._seen[2]

    def expected_log(self, state: NetworkState) -> float:
        return self._ratios(state)[3]

    def message(self, to: Variable, state: NetworkState) -> Naturals:
        share, word, ratio, _ = self._ratios(state)
        if to is self.shares:
            return (share * (ratio @ word),)
        return (np.ascontiguousarray((word * (ratio.T @ share)).T),)


class Observable(NamedTuple):
    """Something that only data can be: ``observe(values)`` is the evidence of these values; NaN is missing."""
    observe: Callable[[Any], Evidence]


def poisson(rate: Variable | View, exposure: Any = 1.0) -> Observable:
    """Counts with a gamma rate.

    >>> from klimb.conjugate import fit, gamma, poisson
    >>> rate = gamma(1.0, 1.0, plates=(2,))
    >>> result = fit(poisson(rate, exposure=[1.0, 10.0]).observe([3, 30]))  # three an hour, for one hour and for ten
    >>> print(result[rate].mean.round(2), result[rate].variance.round(2))
    [2.   2.82] [1.   0.26]
    """
    view, times = as_view(rate), as_float(exposure, "exposure")
    require(view.variable.family is Gamma, "the rate of poisson must be a gamma variable", f"{view.variable!r}",
            "potential(sites.Poisson(), predictor) takes a linear predictor.")

    def data(values: Any) -> LinearData:
        y, weight = _seen(values, "counts")
        refuse((y < 0) | (y != np.floor(y)), y, "counts must be whole numbers from 0 on", "Round them.")
        return LinearData(view, weight, y, -times, y * np.log(times) - gammaln(y + 1.0))

    return Observable(data)


def bernoulli(probability: Variable | View) -> Observable:
    """Zeros and ones with a beta probability.

    >>> from klimb.conjugate import bernoulli, beta, fit
    >>> p = beta(1.0, 1.0, plates=(2,))
    >>> result = fit(bernoulli(p[[0, 0, 0, 1, 1, 1]]).observe([1, 1, 1, 0, np.nan, 0]))
    >>> print(result[p].mean)  # (1 + 3) / (2 + 3), 1 / (2 + 2)
    [0.8  0.25]
    """
    view = as_view(probability)
    require(view.variable.family is Beta, "the probability of bernoulli must be a beta variable", f"{view.variable!r}",
            "potential(sites.Logistic(), predictor) takes a predictor.")

    def data(values: Any) -> LinearData:
        y, weight = _seen(values, "bernoulli data")
        refuse((y != 0) & (y != 1), y, "bernoulli data must be 0 or 1", "Code them as 0 and 1.")
        return LinearData(view, weight, y, 1.0 - y, np.zeros(()))

    return Observable(data)


def potential(site: Site, predictor: Any) -> Observable:
    """Data with any site of `klimb.sites` on a linear predictor.

    >>> from klimb.conjugate import dot, fit, gamma, multivariate_normal, potential
    >>> from klimb.sites import Poisson
    >>> w = multivariate_normal(0.0, gamma(1.0, 1.0), dimension=2)  # weights, and their scale
    >>> X = np.column_stack([np.ones(8), np.arange(8.0)])
    >>> result = fit(potential(Poisson(), dot(X, w)).observe([1, 1, 2, 4, 4, 9, 11, 20]))
    >>> print(result[w].mean.round(2), np.sqrt(np.diag(result[w].covariance)).round(2))
    [-0.14  0.44] [0.38 0.07]
    """
    require(isinstance(site, Site), "potential needs a site", f"{type(site).__name__}", "E.g. klimb.sites.Logistic().")
    f = as_predictor(predictor)
    return Observable(lambda y: Potential(site, f, y))


def topics(shares: Variable, words: Variable) -> Observable:
    """Counts of words (documents x words, sparse) from topics: ``shares`` of each document, ``words`` of each topic.

    >>> from klimb.conjugate import dirichlet, fit, topics
    >>> counts = [[3, 2, 0, 0], [4, 3, 0, 0], [0, 0, 2, 5], [0, 0, 3, 3], [2, 1, 1, 2]]  # five documents, four words
    >>> shares = dirichlet([0.5, 0.5], plates=(5,))
    >>> words = dirichlet([[2.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 2.0]])  # what tells the topics apart at first
    >>> print(fit(topics(shares, words).observe(counts))[shares].mean[:, 0].round(1))
    [0.9 0.9 0.1 0.1 0.5]
    """
    return Observable(lambda counts: Topics(shares, words, counts))
