"""The model behind a formula: shared weights and grouped ones under priors that move with theta, and a site that may.

    f = X w + t'b_level + offset,    w ~ N(mean, Sigma(theta)),    b_l ~ N(0, Sigma_g(theta)),    y_i ~ site(theta)(f_i)

At the optimum over q the bound changes with theta as if q stood still. For a block of weights with prior N(0, R R') in
each of L copies, and q's second moments M = sum over copies of E[b b'], that is

    d bound = tr(R^-1 dR (W - L I)),    W = R^-1 M R^-T
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, final

import numpy as np

from klimb.errors import InputError
from klimb.infer.hyper import Hypermodel
from klimb.latents.base import Latent, Posterior
from klimb.latents.mixed import ArrowPosterior, Mixed
from klimb.latents.weights import Weights
from klimb.likelihoods.families import Family
from klimb.linalg.matrix import DesignMatrix, as_design
from klimb.models.hyper import Hyper, correlation_root, cut_prior, cutpoints
from klimb.numerics.arrays import Array, as_float
from klimb.numerics.dense import cholesky, row_blocks, triangular_solve
from klimb.priors import Dirichlet
from klimb.sites.base import Site
from klimb.sites.wrappers import Offset, Weighted
from klimb.terms.design import Layout, ProcessTerm, Rows

DIFFERENCE = 1e-5  # in theta, for the derivative of the expected log likelihood
JITTER = 1e-8  # of a process's variance, on the diagonal over its points


@final
@dataclass(frozen=True, eq=False)
class Parts:
    """Which entries of the full parameter vector belong to what."""

    groups: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]  # (sds, correlations) of each group
    smooths: tuple[int, ...]
    processes: tuple[dict[str, int], ...]  # kernel parameter -> place; "variance" is held as a standard deviation
    site: dict[str, int]  # field of the site -> place
    cuts: tuple[int, ...]


@final
@dataclass(frozen=True, eq=False)
class Shared:
    """All of a model that does not move with theta."""

    layout: Layout
    rows: Rows
    family: Family
    constants: Mapping[str, Any]  # of the site, by field: trials
    weights: Array | None
    mean: Array  # prior mean of the shared weights
    sd: Array  # their prior sd, 1 where theta decides
    hypers: tuple[Hyper, ...]
    parts: Parts

    @cached_property
    def free(self) -> Array:
        return np.array([i for i, hyper in enumerate(self.hypers) if hyper.free], dtype=np.intp)

    @cached_property
    def design(self) -> DesignMatrix:
        return as_design(self.rows.X, "X")

    @cached_property
    def sorted(self) -> Mixed:
        """The rows sorted by level, under any prior."""
        arrow = self.layout.arrow
        assert arrow is not None
        return Mixed(self.rows.X, self.rows.codes, self.rows.values, n_levels=len(arrow.levels))


@final
@dataclass(frozen=True, eq=False)
class FormulaModel(Hypermodel):
    """`Shared` at one theta; ``full`` holds every parameter, free or not."""

    shared: Shared
    full: Array

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.shared.hypers[i].name for i in self.shared.free)

    @property
    def theta(self) -> Array:
        return np.asarray(self.full[self.shared.free])

    @property
    def bounds(self) -> tuple[Array, Array]:
        limits = np.array([self.shared.hypers[i].limits for i in self.shared.free]).reshape(-1, 2)
        return limits[:, 0], limits[:, 1]

    def with_theta(self, theta: Any) -> Self:
        values = as_float(theta, "theta", ndim=1)
        if len(values) != len(self.shared.free):
            raise InputError(f"theta must have {len(self.shared.free)} entries ({', '.join(self.names)})",
                             f"{len(values)}", "The order is that of names.")
        full = self.full.copy()
        full[self.shared.free] = values
        return replace(self, full=full)

    # -- what theta stands for

    @cached_property
    def group_roots(self) -> tuple[Array, ...]:
        """R of every grouping factor: a level's coefficients are N(0, R R')."""
        roots = []
        for sds, correlations in self.shared.parts.groups:
            L, _ = correlation_root(self.full[list(correlations)], len(sds))
            roots.append(np.exp(self.full[list(sds)])[:, None] * L)
        return tuple(roots)

    @cached_property
    def kernels(self) -> tuple[Any, ...]:
        return tuple(
            process_kernel(term, {name: float(np.exp(self.full[i])) for name, i in places.items()})
            for term, places in zip(self.shared.layout.processes, self.shared.parts.processes, strict=True)
        )

    @cached_property
    def process_roots(self) -> tuple[Array, ...]:
        """Cholesky factors over the points of every process."""
        return tuple(point_root(kernel, term.points)
                     for kernel, term in zip(self.kernels, self.shared.layout.processes, strict=True))

    def site_values(self, full: Array) -> dict[str, Any]:
        parts = self.shared.parts
        values: dict[str, Any] = {name: float(np.exp(full[i])) for name, i in parts.site.items()}
        if parts.cuts:
            values["cutpoints"] = cutpoints(full[list(parts.cuts)])
        return values

    def plain_site(self, constants: Mapping[str, Any] | None = None) -> Site:
        """The site without weights and offset; ``constants`` (trials) in place of those of the fit."""
        values = self.site_values(self.full)
        return self.shared.family.site({**(self.shared.constants if constants is None else constants), **values})

    def _site_at(self, full: Array) -> Site:
        shared = self.shared
        site = shared.family.site({**shared.constants, **self.site_values(full)})
        if shared.rows.offset.any():
            site = Offset(site, shared.rows.offset)
        return site if shared.weights is None else Weighted(site, shared.weights)

    # -- the contract

    @cached_property
    def site(self) -> Site:
        return self._site_at(self.full)

    @cached_property
    def latent(self) -> Latent:
        shared = self.shared
        mean, cov = self.prior_moments()
        X, slack = shared.rows.X, np.zeros(shared.rows.n)
        if shared.layout.processes:
            X, slack = self.with_features(shared.rows)
        if shared.layout.arrow is None:
            return Weights(X if shared.layout.processes else shared.design, mean, cov, slack)
        number = shared.layout.groups.index(shared.layout.arrow)
        group_cov = self.group_roots[number] @ self.group_roots[number].T
        return shared.sorted.with_prior(mean, cov, group_cov, X=X if shared.layout.processes else None, slack=slack)

    def prior_moments(self) -> tuple[Array, Array]:
        """Prior mean and covariance of the shared weights: a vector of variances, or a matrix where blocks need one."""
        shared = self.shared
        sd = shared.sd.copy()
        for term, place in zip(shared.layout.smooths, shared.parts.smooths, strict=True):
            sd[term.begin : term.begin + term.size] = np.exp(self.full[place])
        blocks = []
        for group, root in zip(shared.layout.groups, self.group_roots, strict=True):
            if group.begin < 0:
                continue
            end = group.begin + group.size * len(group.levels)
            sd[group.begin : end] = np.tile(np.sqrt((root**2).sum(axis=1)), len(group.levels))
            if group.size > 1 and group.correlated:
                blocks.append((group, root @ root.T))
        if not blocks:
            return shared.mean, sd**2
        cov = np.diag(sd**2)
        for group, block in blocks:
            for level in range(len(group.levels)):
                at = slice(group.begin + level * group.size, group.begin + (level + 1) * group.size)
                cov[at, at] = block
        return shared.mean, cov

    def with_features(self, rows: Rows) -> tuple[Array, Array]:
        """Rows with the features of their processes filled in, and the variance that those leave unexplained."""
        X, slack = rows.X.copy(), np.zeros(rows.n)
        for term, kernel, root, inputs in zip(self.shared.layout.processes, self.kernels, self.process_roots,
                                              rows.inputs, strict=True):
            for block in row_blocks(rows.n, 2 * term.size):
                features = triangular_solve(root, kernel.gram(term.points, inputs[block])).T
                X[block, term.begin : term.begin + term.size] = features
                rest = kernel.diag(inputs[block]) - np.einsum("ij,ij->i", features, features)
                slack[block] += np.maximum(rest, 0.0)
        return X, slack

    def weights_of(self, posterior: Posterior) -> ArrowPosterior:
        """The posterior of all weights."""
        latent = posterior.latent
        if isinstance(latent, Mixed):
            return latent.arrow(posterior)
        assert isinstance(latent, Weights)
        none = np.zeros((0, 0))
        root = latent.posterior_root(posterior)
        return ArrowPosterior(posterior.mean, root, none, np.zeros((0, 0, root.shape[1])), np.zeros((0, 0, 0)))

    def gradient(self, posterior: Posterior, y: Any) -> Array:
        shared, q = self.shared, self.weights_of(posterior)
        full = np.zeros(len(self.full))
        for number, (group, (sds, correlations)) in enumerate(
            zip(shared.layout.groups, shared.parts.groups, strict=True)
        ):
            self._add_group(full, number, group_moments(q, group.begin, group.size, len(group.levels)),
                            len(group.levels), sds, correlations)
        for term, place in zip(shared.layout.smooths, shared.parts.smooths, strict=True):
            at = slice(term.begin, term.begin + term.size)
            moment = float((q.root[at] ** 2).sum() + (q.mean[at] ** 2).sum())
            full[place] = moment * np.exp(-2.0 * self.full[place]) - term.size
        for number in range(len(shared.layout.processes)):
            self._add_process(full, number, posterior, q)
        self._add_site(full, posterior, y)
        return np.asarray(full[shared.free])

    def _add_group(self, full: Array, number: int, M: Array, copies: int, sds: tuple[int, ...],
                   correlations: tuple[int, ...]) -> None:
        R, k = self.group_roots[number], len(sds)
        inner = np.linalg.solve(R, np.linalg.solve(R, M).T).T - copies * np.eye(k)  # W - L I
        L, d_L = correlation_root(self.full[list(correlations)], k)
        sd = np.exp(self.full[list(sds)])
        for i, place in enumerate(sds):
            d_R = np.zeros((k, k))
            d_R[i] = sd[i] * L[i]
            full[place] = np.trace(np.linalg.solve(R, d_R) @ inner)
        for place, d in zip(correlations, d_L, strict=True):
            full[place] = np.trace(np.linalg.solve(R, sd[:, None] * d) @ inner)

    def _add_process(self, full: Array, number: int, posterior: Posterior, q: ArrowPosterior) -> None:
        """Through K ~ Phi Phi' with Phi = Kfu L^-T, and through the variance that it leaves.

        d bound / d Phi = a u' - G Cov(f, u), u being the weights of the features.
        """
        shared = self.shared
        term, kernel, root = shared.layout.processes[number], self.kernels[number], self.process_roots[number]
        places, inputs = shared.parts.processes[number], shared.rows.inputs[number]
        at = slice(term.begin, term.begin + term.size)
        u, E = q.mean[at], q.root[at]
        moments = np.outer(u, u) + E @ E.T - np.eye(term.size)  # Phi' (d bound / d Phi)
        half = triangular_solve(root, triangular_solve(root, moments, transpose=True).T, transpose=True)
        d_slack = np.where(posterior.latent.slack > 0, -0.5 * posterior.gamma, 0.0)
        pulled = np.zeros(len(kernel.free))
        X, _ = self.with_features(shared.rows)
        d_points = -0.5 * (half + half.T) * 0.5
        for block in row_blocks(shared.rows.n, 2 * term.size):
            x, code, own = X[block], shared.rows.codes[block], shared.rows.values[block]
            rest = x @ q.root
            for j in range(own.shape[1] if len(q.level_mean) else 0):
                rest -= own[:, j, None] * q.pull[code, j]
            P = np.outer(posterior.a[block], u) - posterior.gamma[block, None] * (rest @ E.T)
            # slack = kff - |phi|^2, with the same Phi
            P -= 2.0 * d_slack[block, None] * x[:, at]
            d_cross = triangular_solve(root, P.T, transpose=True)
            pulled += kernel.cross_parameter_vjp(term.points, inputs[block], d_cross)
            pulled += kernel.diag_vjp(inputs[block], d_slack[block])
            phi = triangular_solve(root, x[:, at].T, transpose=True)
            d_points += (phi * d_slack[block]) @ phi.T
        d_points = 0.5 * (d_points + d_points.T)
        d_points.flat[:: len(d_points) + 1] += JITTER * np.trace(d_points) / len(d_points)
        pulled += kernel.gram_vjp(term.points, d_points)
        for name, value in zip(kernel.free, pulled, strict=True):
            if name in places:
                full[places[name]] = 2.0 * value if name == "variance" else value

    def _add_site(self, full: Array, posterior: Posterior, y: Any) -> None:
        """d/dtheta of sum_i E log p(y_i | f_i), by a central difference of the oracle."""
        for place in (*self.shared.parts.site.values(), *self.shared.parts.cuts):
            if not self.shared.hypers[place].free:
                continue
            sides = []
            for sign in (1.0, -1.0):
                moved = self.full.copy()
                moved[place] += sign * DIFFERENCE
                site = self._site_at(moved)
                clean = site.validate(y)
                sides.append(site.oracle(clean, posterior.m, posterior.v).value + site.constant(clean))
            full[place] = float((sides[0] - sides[1]).sum()) / (2 * DIFFERENCE)

    def log_prior(self) -> tuple[float, Array]:
        total, full = 0.0, np.zeros(len(self.full))
        for i, hyper in enumerate(self.shared.hypers):
            if hyper.free and hyper.shape != "cut":
                value, full[i] = hyper.log_prior(float(self.full[i]))
                total += value
        cuts = list(self.shared.parts.cuts)
        if cuts:
            prior = self.shared.hypers[cuts[0]].prior
            assert isinstance(prior, Dirichlet)
            value, full[cuts] = cut_prior(self.full[cuts], prior, self.shared.family.link.name)
            total += value
        return total, full[self.shared.free]


def group_moments(q: ArrowPosterior, begin: int, size: int, copies: int) -> Array:
    """Sum over levels of E[b b'], k x k."""
    if begin < 0:
        spread = q.level_cov.sum(axis=0) + np.einsum("lib,ljb->ij", q.pull, q.pull)
        return np.asarray(spread + q.level_mean.T @ q.level_mean)
    mean = q.mean[begin : begin + size * copies].reshape(copies, size)
    root = q.root[begin : begin + size * copies].reshape(copies, size, -1)
    return np.asarray(np.einsum("lib,ljb->ij", root, root) + mean.T @ mean)


def process_kernel(term: ProcessTerm, values: Mapping[str, float]) -> Any:
    """The kernel of a process; ``values`` by parameter, "variance" given as a standard deviation."""
    from klimb.kernels import KERNELS

    names = {name.lower(): name for name in KERNELS}
    key = term.kernel.lower().replace("_", "")
    if key not in names:
        raise InputError(f"gp() has the kernels {', '.join(names)}", repr(term.kernel), "Leave it out for matern52.")
    kernel = KERNELS[names[key]]()
    changed = {name: value**2 if name == "variance" else value for name, value in values.items()}
    return kernel.with_parameters(changed) if changed else kernel


def point_root(kernel: Any, points: Array) -> Array:
    """Cholesky factor of the covariance over the points, with a little noise on them."""
    K = np.asfortranarray(kernel.gram(points))
    K.flat[:: len(K) + 1] += JITTER * K.diagonal().mean()
    return cholesky(K)
