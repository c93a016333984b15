"""Several classes by passes: the sums of their rows, q from these, and the log weights of draws over all rows.

q takes the classes for independent, but their means move together: with p = softmax(m) and W = diag(p) - p p', a step

    (Sigma^-1 + sum_i W_i (x) x_i x_i') (mean - prior mean) = sum_i (W_i (m_i - mu_i) - alpha_i) (x) x_i

is Newton's at small variances, and leaves a shift common to all classes to the prior, which alone knows of it. Steps of
each class by itself would go twice too far. Where they end does not depend on W. Covariances are those of each class,
from sum_i gamma_ic x_i x_i'. So ``gram`` of the sums has C B rows, the first C B columns for means, and B for those.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import block_diag
from scipy.special import softmax

from klimb.infer.loop import infer
from klimb.infer.rows import SiteSums, few_rows, sums_of
from klimb.latents.base import Posterior
from klimb.latents.outputs import Outputs
from klimb.latents.shocks import Shocks
from klimb.latents.weights_posterior import WeightPosterior
from klimb.likelihoods import Observed
from klimb.linalg.matrix import ColumnDesign
from klimb.models.linear import LinearModel
from klimb.models.linear_parts import LinearRows
from klimb.numerics.arrays import Array, slices
from klimb.numerics.dense import cholesky, row_blocks
from klimb.sites.classes import MOST_COUPLED
from klimb.sites.real import Gaussian
from klimb.terms.base import Placed
from klimb.trust.coupled import JointWeights, shocks_of, whitened_parts

if TYPE_CHECKING:
    from klimb.models.passes import RowPasses

AT_ONCE = 1 << 20  # values of log p that are held at once


def class_sums(model: LinearModel, q: WeightPosterior | None, sharper: float, rough: bool, rows: LinearRows,
               data: Observed) -> SiteSums:
    """The sums of some rows at ``q``, or of sites that match each datum; ``rough`` ones are good to 1e-7."""
    C, site, X = len(model.likelihood.fields), model.site(data), rows.X
    y, value, size = site.validate(data.y), 0.0, 0.0
    if q is None:
        m = np.zeros((C, data.n))
        slope, gamma = (sharper * np.reshape(part, (C, -1)) for part in site.start(y))
    else:
        mean, v = q.at(ColumnDesign(X))
        e = (site.rough() if rough else site).oracle(y, mean, v)
        each = e.value + site.constant(y)
        value, size = float(each.sum()), float(np.abs(each).sum())
        m, slope, gamma = (part.reshape(C, -1) for part in (mean, -e.alpha, e.gamma))
    p = softmax(m, axis=0)
    p_weighed = p if data.weights is None else p * data.weights
    if q is not None:
        slope = slope + p_weighed * (m - (p * m).sum(axis=0))
    else:
        p_weighed = sharper * p_weighed
    design = ColumnDesign(X)
    joint = _blocks(C, design, lambda pair: p_weighed[pair[0]] * ((pair[0] == pair[1]) - p[pair[1]]))
    own = np.vstack([design.weighted_gram(np.ascontiguousarray(one)) for one in gamma])
    return _as_sums((slope @ X).ravel(), np.hstack([joint, own]), value, size, np.zeros(model.theta.size))


def _blocks(C: int, design: ColumnDesign, weights: Callable[[tuple[int, int]], Array]) -> Array:
    """sum_i W_i (x) x_i x_i', class by class, from the weights of every pair."""
    B = design.shape[1]
    total = np.empty((C * B, C * B))
    for c, d in combinations_with_replacement(range(C), 2):
        block = design.weighted_gram(np.ascontiguousarray(weights((c, d))))
        total[c * B : (c + 1) * B, d * B : (d + 1) * B] = total[d * B : (d + 1) * B, c * B : (c + 1) * B] = block
    return total


def _as_sums(pull: Array, gram: Array, value: float, size: float, slopes: Array) -> SiteSums:
    """Sums without levels."""
    none = sums_of(np.zeros((0, 0)), np.zeros(0, dtype=np.intp), np.zeros((0, 0)), np.zeros(0), np.zeros(0))
    return none._replace(pull=pull, gram=gram, value=value, size=size, slopes=slopes)


def solved_classes(model: LinearModel, sums: SiteSums, n: int) -> Posterior:
    """q under the prior of ``model``, where its ``n`` rows say what ``sums`` do."""
    C, B = len(model.likelihood.fields), model.width
    H, own = sums.gram[:, : C * B], sums.gram[:, C * B :].reshape(C, B, B)
    moments = [model.prior_moments(field) for field in range(C)]
    prior = np.concatenate([mean for mean, _ in moments])
    root = block_diag(*(np.diag(np.sqrt(cov)) if cov.ndim == 1 else np.linalg.cholesky(cov) for _, cov in moments))
    lower = cholesky(np.asfortranarray(np.eye(C * B) + root.T @ H @ root))
    u = np.linalg.solve(lower.T, np.linalg.solve(lower, root.T @ (sums.pull - H @ prior)))
    mean = prior + root @ u
    parts, seen = [], []
    for field, (gram, at) in enumerate(zip(own, np.split(mean, C), strict=True)):
        place = slice(field * B, (field + 1) * B)
        pull = sums.pull[place] - (H @ mean)[place] + gram @ at  # what has that mean under the class's own covariance
        X, _, _, y = few_rows(sums._replace(pull=pull, gram=gram, cross=np.zeros((0, 0, B))))
        missing = B - len(y)
        rows = LinearRows(np.vstack([X, np.zeros((missing, B))]), np.full(B, -1), np.zeros((B, 0)),
                          (Placed(),) * len(model.terms), np.zeros(B), stands_for=n)
        parts.append(replace(model, rows=rows, kept={}, passes=None).latent_of(field))
        seen.append(np.append(y, np.zeros(missing)))
    return infer(Outputs(parts), Gaussian(1.0), np.concatenate(seen)).posterior


def coupling_sums(model: LinearModel, q: WeightPosterior, rows: LinearRows, data: Observed) -> SiteSums:
    """sum_i E[diag(p) - p p'] (x) x_i x_i' under ``q``, and how many rows count."""
    C, site = len(model.likelihood.fields), model.site(data)
    m, v = (part.reshape(C, -1) for part in q.at(ColumnDesign(rows.X)))
    y, W = site.validate(data.y), np.empty((C, C, data.n))
    for some in row_blocks(data.n, (2 * C) ** 2):
        coupled: Any = site.rows(some).couplings(y[some], m[:, some].ravel(), v[:, some].ravel())
        W[:, :, some] = np.moveaxis(coupled[:, :C, :C], 0, 2)
    gram = _blocks(C, ColumnDesign(rows.X), W.__getitem__)
    return _as_sums(np.zeros(len(gram)), gram, float(data.counts.sum()), 0.0, np.zeros(0))


def values_and_slopes(model: LinearModel, weights: Array, rows: LinearRows, data: Observed) -> tuple[Array, Array]:
    """sum_i log p(y_i | f_i) of some rows at draws of all weights, one a row, and the gradient in these."""
    S, site = len(weights), model.site(data)
    values, slopes, y = np.empty(S), np.empty(weights.shape), site.validate(data.y)
    for some in slices(S, max(AT_ONCE // (len(model.likelihood.fields) * data.n), 1)):
        f = weights[some].reshape(-1, rows.X.shape[1]) @ rows.X.T  # draw by draw, class by class
        point = site.point(y, f.reshape(some.stop - some.start, -1))
        values[some] = (point.value + site.constant(y)).sum(axis=1)
        slopes[some] = -(point.alpha.reshape(f.shape) @ rows.X).reshape(some.stop - some.start, -1)
    return values, slopes


class PassedWeights(JointWeights):
    """The log weights of draws of all classes together, each set of draws by one pass."""

    def __init__(self, passes: "RowPasses", model: LinearModel, bound: float, found: tuple[Shocks, Array, Array],
                 counted: float) -> None:
        super().__init__(*found, 0.0, bound)
        self._passes, self._model, self._counted = passes, model, counted

    @classmethod
    def of(cls, passes: "RowPasses", model: LinearModel, posterior: Posterior, bound: float) -> "PassedWeights | None":
        """Around q, by one pass over the rows."""
        known: PassedWeights | None = passes.exact.get(posterior)
        parts = whitened_parts(posterior)
        if known is not None or parts is None:
            return known
        C, q = len(parts), posterior.latent.detach(posterior)
        if C <= MOST_COUPLED:
            reader = passes.reader(model)
            work = partial(reader.summed, partial(coupling_sums, reader.model, q))
            sums = passes.summed(work, 0, "couplings", model.at, q)
            gram, counted = sums.gram, sums.value
        else:
            gram, counted = passes.ends[posterior].gram[:, : C * model.width], float(passes.n)
        root = block_diag(*(own for own, _ in parts))
        found = shocks_of(posterior, parts, np.eye(root.shape[1]) + root.T @ gram @ root)
        passes.exact[posterior] = known = cls(passes, model, bound, found, counted)
        return known

    @property
    def work(self) -> int:
        return self._each * round(self._counted)

    def rows_at(self, e: Array) -> tuple[Array, Array]:
        q, passes = self.shocks.q, self._passes
        weights, reader = q.shared + e @ q.root.T, passes.reader(self._model)

        def by_a_pass() -> dict[str, Array]:
            work = partial(reader.each, partial(values_and_slopes, reader.model, weights))
            values, slopes = zip(*(part for own in passes.mapped(work) for part in own), strict=True)
            return {"values": np.sum(values, axis=0), "slopes": np.sum(slopes, axis=0)}

        made = passes.kept(by_a_pass, "draws", self._model.at, weights)
        return made["values"], made["slopes"] @ q.root
