"""Draws from a fit: of f at new rows, and of everything that has a name."""

from __future__ import annotations

import numpy as np

from klimb.errors import InputError
from klimb.latents.mixed import sample_arrow
from klimb.models.formula_model import FormulaModel, Shared
from klimb.models.hyper import correlation_root, cutpoints
from klimb.models.predict import Component
from klimb.models.tables import fixed_map
from klimb.numerics.arrays import Array
from klimb.terms.design import INTERCEPT, GroupTerm, Rows


def draw_latents(shared: Shared, components: tuple[Component, ...], rows: Rows, n: int,
                 rng: np.random.Generator) -> Array:
    """``n`` joint draws of f at ``rows``, one a row."""
    if n < 0:
        raise InputError("the number of draws must not be negative", f"{n}", "Ask for n >= 0 draws.")
    counts = rng.multinomial(n, np.array([part.weight for part in components]))
    draws = []
    for part, count in zip(components, counts, strict=True):
        model = FormulaModel(shared, part.full)
        X, slack = model.with_features(rows) if shared.layout.processes else (rows.X, np.zeros(rows.n))
        w = sample_arrow(part.q, int(count), rng)
        B, (L, k) = len(part.q.mean), part.q.level_mean.shape
        f = w[:, :B] @ X.T + rows.offset
        if L:
            levels = w[:, B:].reshape(count, L, k)
            f += np.einsum("nik,ik->ni", levels[:, np.maximum(rows.codes, 0)], rows.values)
        for number, values in rows.unseen:
            f += _new_level_draws(model.group_roots[number], values, int(count), rng)
        draws.append(f + rng.standard_normal(f.shape) * np.sqrt(slack))
    return np.asarray(rng.permutation(np.concatenate(draws)))


def _new_level_draws(root: Array, values: Array, count: int, rng: np.random.Generator) -> Array:
    """Every row with an unseen level is taken for a level of its own."""
    t = values @ root
    return np.asarray(np.einsum("nik,ik->ni", rng.standard_normal((count, *t.shape)), t))


def group_name(term: GroupTerm, column: str) -> str:
    """Of the deviations of a grouping factor among other draws: ``1|g``, or ``x|g`` for slopes."""
    return f"{'1' if column == INTERCEPT else column}|{term.name}"


def draw_posterior(shared: Shared, components: tuple[Component, ...], covariance: Array, n: int,
                   rng: np.random.Generator) -> dict[str, Array]:
    """``n`` joint draws: coefficients and parameters (n,), levels of groups (n, L), by name.

    Parameters behind the coefficients take the values of the components; where they were chosen, they are drawn by the
    curvature there, and the coefficients know nothing of it.
    """
    if n < 0:
        raise InputError("the number of draws must not be negative", f"{n}", "Ask for n >= 0 draws.")
    weights = np.array([part.weight for part in components])
    counts = rng.multinomial(n, weights / weights.sum())
    w = np.concatenate([sample_arrow(part.q, int(count), rng) for part, count in zip(components, counts, strict=True)])
    theta = np.repeat(np.array([part.full for part in components]).reshape(len(components), -1), counts, axis=0)
    if len(components) == 1:
        values, vectors = np.linalg.eigh(covariance)
        theta[:, shared.free] += rng.standard_normal((n, len(values))) @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
    order = rng.permutation(n)
    w, theta = w[order], theta[order]
    B, layout = max(shared.layout.width, 1), shared.layout
    fixed = w[:, :B] @ fixed_map(shared).T
    out = {name: fixed[:, j] for j, name in enumerate(layout.fixed)}
    out |= _parameter_draws(shared, theta, w[:, : len(layout.fixed)] @ layout.centre)
    for term in layout.groups:
        size = term.size * len(term.levels)
        own = w[:, B:] if term.begin < 0 else w[:, term.begin : term.begin + size]
        for j, column in enumerate(term.columns):
            out[group_name(term, column)] = own[:, j :: term.size]
    return out


def _parameter_draws(shared: Shared, theta: Array, shift: Array) -> dict[str, Array]:
    out: dict[str, Array] = {}
    for place, hyper in enumerate(shared.hypers):
        if hyper.free and hyper.shape == "positive":
            out[hyper.name] = np.exp(theta[:, place])
    for sds, places in shared.parts.groups:
        roots = [correlation_root(row[list(places)], len(sds))[0] for row in theta] if places else []
        matrices = np.array([L @ L.T for L in roots])
        for place, i, j in zip(places, *np.tril_indices(len(sds), -1), strict=False):
            out[shared.hypers[place].name] = matrices[:, i, j]
    cuts = list(shared.parts.cuts)
    if cuts:
        values = np.array([cutpoints(row[cuts]) for row in theta]) + shift[:, None]
        out |= {shared.hypers[place].name: values[:, k] for k, place in enumerate(cuts)}
    return out
