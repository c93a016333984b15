"""`klimb.boost`: a mixture of Gaussians for any log density."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from klimb.boosting.ascent import check_proper, finite_starts, meets_edge
from klimb.boosting.divergences import hellinger_boosted, inclusive_refined
from klimb.boosting.edge import box_coordinates, cut_boosted
from klimb.boosting.expensive import UP_TO, sparingly_boosted
from klimb.boosting.gaussians import BoostStep, Gaussians, Watch, node_set, one_gaussian, step_of
from klimb.boosting.loop import Booster, first_gaussian, low_rank_gaussian, with_modes
from klimb.boosting.mixture import Ended, Mixture
from klimb.boosting.paper import laplacian_boosted
from klimb.boosting.refine import EvaluatedMixture
from klimb.boosting.target import LogDensity, Target
from klimb.boosting.transforms import TransformedBlocks, points
from klimb.errors import InputError, require
from klimb.numerics.arrays import as_float

LOW_RANK_FROM = 100  # dimensions from which component="auto" means "lowrank"
WIDE = 10.0  # standard deviation, in units of ``scale``, of the first Gaussian of the paper's algorithm


def boost(log_density: LogDensity, dim: int, *, gradient: LogDensity | None = None, init: Any = None,
          scale: Any = 1.0, transform: Any = None, n_components: int = 20,
          divergence: Literal["exclusive", "inclusive", "hellinger"] = "exclusive",
          component: Literal["auto", "full", "lowrank", "laplacian"] = "auto",
          weights: Literal["joint", "corrective", "newton"] | None = None, tol: float = 0.01,
          max_evaluations: int = 200_000, names: Sequence[str] | None = None,
          callback: Watch | None = None, seed: int = 0) -> Mixture:
    """Approximate the density exp(log_density) / its integral by a mixture of Gaussians.

    ``log_density`` takes a point (length ``dim``) or a batch (n x dim); which is detected. It may return -inf outside
    the support. ``gradient`` likewise; without it finite differences are used, and functions written with JAX are
    differentiated. ``init`` is a point to start from, or rows of them; ``scale`` a rough guess of the size of the
    parameters' uncertainty, used until the first Gaussian is found. ``transform`` declares constraints, block by block
    (`klimb.boosting.Positive` and friends).

    ``max_evaluations`` up to 1000 is for expensive functions: no more than that many points are evaluated, and a
    surrogate is fitted (up to 8 dimensions; without gradients). Above, it ends the search for components.

    Components are added while they raise the bound by more than ``tol`` nats and the estimated divergence exceeds
    ``tol``, at most ``n_components``. The bound never falls. Everything is deterministic for a given ``seed``.

    ``component="laplacian"`` runs [G]'s algorithm instead, with ``n_components`` components and its weights
    (``weights="newton"``, or "corrective" to refit all of them); ``divergence="inclusive"`` lowers KL(p || q): there by
    [G] Alg. 3, in the default by importance-weighted EM after the exclusive fit. ``divergence="hellinger"`` is
    universal boosting (Campbell and Li 2019): components and weights by the Hellinger distance.

    >>> def two_modes(x):  # weights 0.3 and 0.7, forty standard deviations apart
    ...     return np.logaddexp(np.log(0.3) - 0.5 * x[:, 0] ** 2, np.log(0.7) - 0.5 * (x[:, 0] - 40.0) ** 2)
    >>> q = boost(two_modes, 1)
    >>> print(q.means.ravel().round(2) + 0.0, q.weights.round(3), q.mean.round(2))
    [ 0. 40.] [0.3 0.7] [28.]
    >>> print(abs(q.bound - 0.5 * np.log(2 * np.pi)) < 1e-3, q.probability(lambda x: x[:, 0] > 20))
    True 0.699951171875
    """
    _check_options(divergence, component, weights, n_components, tol, max_evaluations)
    require(_is_count(dim), "dim must be a positive integer", repr(dim), "It is the number of parameters.")
    coordinates = TransformedBlocks.of(transform, int(dim))
    labels = tuple(names) if names is not None else tuple(f"x{j}" for j in range(dim))
    require(len(labels) == dim, f"names must have dim = {dim} entries", f"{len(labels)}", "One per parameter.")
    spread = _scales(scale, coordinates.n_free)
    starts = np.zeros((1, coordinates.n_free)) if init is None else coordinates.to_free(points(init, "init", int(dim)))
    watch = callback or (lambda step: None)
    if max_evaluations <= UP_TO:
        target = Target(log_density, int(dim), coordinates=coordinates, near=starts[0], sparing=True)
        return sparingly_boosted(target, starts, spread, n_components, tol, int(max_evaluations), labels, seed, watch)
    target = Target(log_density, int(dim), gradient=gradient, coordinates=coordinates, near=starts[0])

    def answer(q: Gaussians, last: Any, why: str, steps: Sequence[BoostStep], inside: float = 1.0) -> Mixture:
        return Mixture(q, last.bound, last.bound_error, Ended[why.upper()], tuple(steps), target, labels, inside, seed)

    if component == "laplacian":
        require(weights != "joint", "component='laplacian' takes weights 'newton' or 'corrective'", "'joint'",
                "Leave component out for joint refinement.")
        first = one_gaussian(starts[0], np.diag(WIDE * spread))
        q, steps = laplacian_boosted(target, first, n_components, divergence, weights or "newton", seed, watch)
        return answer(q.take(np.flatnonzero(q.weights > 0)), steps[-1], "components", steps)
    target, fit, edge = _first_fit(target, starts, spread, component, tol, seed)
    if edge:
        cut, steps, why = cut_boosted(target, fit.parts, n_components, tol, seed, watch)
        check_proper(target, cut.overall)
        return answer(cut.q, cut, why, steps, cut.inside)
    check_proper(target, fit.parts)
    if n_components > 1:
        fit = with_modes(target, fit, n_components, tol, seed)
    fresh = node_set(target.dim, seed + 5, 4)
    if divergence == "hellinger":
        q, steps, why = hellinger_boosted(target, fit.parts, n_components, tol, seed, watch)
        return answer(q, step_of(target, q, fresh), why, steps)
    booster = Booster(target, fit, tol, seed, watch, joint=weights != "corrective", max_evaluations=max_evaluations)
    why = booster.grow(n_components)
    booster.polish()
    if divergence == "exclusive" and booster.joint and n_components > 1:
        booster.cover(n_components)
    if divergence == "inclusive":
        q = inclusive_refined(target, booster.fit.parts, seed)
        return answer(q, step_of(target, q, fresh), why, booster.steps)
    return answer(booster.fit.parts, booster.steps[-1], why, booster.steps)


def _first_fit(target: Target, starts: Any, spread: Any, component: str, tol: float,
               seed: int) -> tuple[Target, EvaluatedMixture, bool]:
    """The first Gaussian, in coordinates without the edges along axes; whether others remain in its bulk."""
    starts = finite_starts(target, starts, spread, seed)
    low = component == "lowrank" or (component == "auto" and target.dim > LOW_RANK_FROM)
    fit = (low_rank_gaussian if low else first_gaussian)(target, starts, np.diag(spread), tol, seed)
    edge = meets_edge(target, fit)
    box = box_coordinates(target, fit, spread, seed) if edge else None
    if box is not None:
        target = target.within(box[0])
        fit = first_gaussian(target, target.coordinates.to_free(box[1][None]), np.eye(target.dim), tol, seed)
        edge = meets_edge(target, fit)
    return target, fit, edge


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= 1


def _scales(scale: Any, n: int) -> Any:
    values = as_float(scale, "scale")
    if values.ndim > 1 or (values.ndim == 1 and values.shape != (n,)) or not (values > 0).all():
        raise InputError(f"scale must be a positive number or {n} of them", f"{scale!r}",
                         "A rough guess of standard deviations (of free coordinates, after transforms).")
    return np.broadcast_to(values, (n,)).copy()


def _check_options(divergence: str, component: str, weights: str | None, n_components: int, tol: float,
                   max_evaluations: int) -> None:
    for name, value, allowed in (("divergence", divergence, ("exclusive", "inclusive", "hellinger")),
                                 ("component", component, ("auto", "full", "lowrank", "laplacian")),
                                 ("weights", weights, (None, "joint", "corrective", "newton"))):
        require(value in allowed, f"{name} must be one of {', '.join(str(a) for a in allowed)}", repr(value),
                "See help(klimb.boost).")
    require(weights != "newton" or component == "laplacian", "weights='newton' belongs to component='laplacian'",
            repr(component), "Leave weights out, or choose component='laplacian'.")
    if divergence == "hellinger" and (component == "laplacian" or weights is not None):
        raise InputError("divergence='hellinger' has components and weights of its own", f"{component!r}, {weights!r}",
                         "Leave component and weights out.")
    if not _is_count(n_components):
        raise InputError("n_components must be a positive integer", repr(n_components), "1 gives a single Gaussian.")
    if not (np.isfinite(tol) and tol > 0) or not max_evaluations > 0:
        raise InputError("tol and max_evaluations must be positive", f"{tol!r}, {max_evaluations!r}", "tol is in nats.")
