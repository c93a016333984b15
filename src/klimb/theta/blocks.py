"""Blocks of several hyperparameters: the covariance of a grouping factor's coefficients, and cut points."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import betaln, log_expit, log_ndtr

from klimb._stan import StanDefinition, StanPart, literal, said
from klimb._stored import stored
from klimb.numerics.arrays import Array
from klimb.priors import LKJ, Dirichlet, Fixed, PositivePrior, Prior
from klimb.theta.base import ParameterBlock, RowKind, Scale
from klimb.theta.single import PositiveParameter

CUT_LIMITS = (-40.0, 40.0)
CORRELATION_LIMITS = (-6.0, 6.0)  # of atanh of a partial correlation
DIFFERENCE = 1e-5  # in theta, for derivatives of what is printed
SMALLEST = 1e-150  # of an sd


@stored("parameter.cutpoints")
@dataclass(frozen=True, eq=False)
class Cutpoints(ParameterBlock):
    """Rising cut points of an ordinal response: the first one as it is, then the logs of the gaps."""

    cut_names: tuple[str, ...]
    prior: Dirichlet
    link: str  # "logit" or "probit"
    begin: Array  # cut points where a search starts
    kind: RowKind = "cut"

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.cut_names

    def search(self) -> tuple[Array, Array, Array]:
        start = np.concatenate([self.begin[:1], np.log(np.diff(self.begin))])
        return start, np.full(self.size, CUT_LIMITS[0]), np.full(self.size, CUT_LIMITS[1])

    def value(self, theta: Array) -> Array:
        return np.asarray(self.reported(theta[None])[0])

    def pull(self, theta: Array, d_value: Array) -> Array:
        after = np.cumsum(d_value[::-1])[::-1]  # every later cut point moves with a gap
        return np.concatenate([after[:1], after[1:] * np.exp(theta[1:])])

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """The probabilities of the levels at f = 0 are Dirichlet."""
        c, a = self.value(theta), self.prior.concentration
        if self.link == "probit":
            log_density, score = -0.5 * c**2 - 0.5 * math.log(2.0 * math.pi), -c
            log_p = _log_cells(c, log_ndtr)
        else:
            log_density, score = log_expit(c) + log_expit(-c), -np.tanh(0.5 * c)
            log_p = _log_cells(c, log_expit)
        K = len(c) + 1
        value = (a - 1.0) * log_p.sum() + log_density.sum() + theta[1:].sum()
        value += math.lgamma(K * a) - K * math.lgamma(a)
        # d log P_k / d c_k = F'(c_k) / P_k and so on.
        with np.errstate(over="ignore"):
            d_c = score + (a - 1.0) * (np.exp(log_density - log_p[:-1]) - np.exp(log_density - log_p[1:]))
        gradient = self.pull(theta, d_c)
        gradient[1:] += 1.0
        return float(value), gradient

    def reported(self, theta: Array) -> Array:
        with np.errstate(over="ignore"):
            above = np.cumsum(np.exp(theta[:, 1:]), axis=1)
        return np.asarray(theta[:, :1] + np.column_stack([np.zeros(len(theta)), above]))

    def printed(self) -> dict[str, str]:
        return {"cutpoints": f"{self.prior} (probabilities of the levels at f = 0)"}

    def signed(self) -> tuple[bool, ...]:
        return (True,) * self.size

    def alone(self) -> tuple[Callable[[Array], Array] | None, ...]:
        return (None,) * self.size

    def stan(self, name: str) -> StanPart:
        """The probabilities of the levels at f = 0 are Dirichlet, with the Jacobian of the cut points in them."""
        K, a, probit = self.size + 1, self.prior.concentration, self.link == "probit"
        part = StanPart(parameters=(f"ordered[{K - 1}] {name};" + said(", ".join(self.cut_names)),), names=(name,),
                        value=name)
        jacobian = f"std_normal_lpdf({name})" if probit else f"logistic_lpdf({name} | 0, 1)"
        if a == 1.0:  # every set of chances has the density lgamma(K)
            return replace(part, model=(f"target += lgamma({K}) + {jacobian};",))
        cdf, chances = "Phi" if probit else "inv_logit", f"chance_{name}"
        ends = f"append_row({cdf}({name}), 1) - append_row(0, {cdf}({name}))"
        return replace(part, transformed=(StanDefinition(f"vector[{K}]", chances, ends),), model=(
            f"target += dirichlet_lpdf({chances} | rep_vector({literal(a)}, {K})) + {jacobian};",))

    def to_stan(self, theta: Array) -> tuple[Array, ...]:
        return (self.value(theta),)

    def from_stan(self, draws: Sequence[Array]) -> Array:
        return np.hstack([draws[0][:, :1], np.log(np.diff(draws[0], axis=1))])


def _log_cells(c: Array, log_cdf: Any) -> Array:
    """log[F(c_k) - F(c_{k-1})], with F symmetric."""
    low, high = log_cdf(c[:-1]), log_cdf(c[1:])
    upper_low, upper_high = log_cdf(-c[:-1]), log_cdf(-c[1:])
    left = c[1:] + c[:-1] < 0.0  # subtract in the tail that is smaller
    big, small = np.where(left, high, upper_low), np.where(left, low, upper_high)
    with np.errstate(divide="ignore"):
        inner = big + np.log(-np.expm1(np.minimum(small - big, -1e-300)))
    return np.concatenate([log_cdf(c[:1]), inner, log_cdf(-c[-1:])])


@stored("parameter.group_covariance")
@dataclass(frozen=True, eq=False)
class GroupCovariance(ParameterBlock):
    """The sds and correlations of the coefficients that every level of a grouping factor has.

    Theta holds the logs of the free sds (logits between the limits of their priors), then atanh of the partial
    correlations row by row: those of column i with the columns before it. The value is R with R R' the covariance. What
    is printed are correlations, not partial ones.

    With a ``mix`` U theta speaks of the coefficients w of columns X U freed of those marginal to them (slopes are
    centred, then), where their posterior is well behaved: b = U w are the coefficients of the columns as they are
    written, of which the printed sds and correlations are. Default priors act on w; where ``as_printed`` the priors
    act on what is printed, with the Jacobian of one in the other.
    """

    sds: tuple[PositiveParameter, ...]
    correlations: tuple[str, ...]  # their names, row by row; () where the columns are independent
    prior: LKJ = field(default_factory=lambda: LKJ(2.0))
    kind: RowKind = "group"
    mix: Array = field(default_factory=lambda: np.zeros((0, 0)))  # empty where the columns are as written
    as_printed: bool = False

    @cached_property
    def _free(self) -> Any:
        return np.flatnonzero([sd.free for sd in self.sds])

    @cached_property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*(sd.name for sd in self.sds if sd.free), *self.correlations)

    def search(self) -> tuple[Array, Array, Array]:
        correlations = np.repeat([[0.0], *([limit] for limit in CORRELATION_LIMITS)], len(self.correlations), axis=1)
        start, lower, upper = np.hstack([*(sd.search() for sd in self.sds), correlations])
        return start, lower, upper

    def _parts(self, theta: Array) -> tuple[Array, Array, Array]:
        """The sds, the root of the correlation matrix and its derivatives."""
        count = len(self._free)
        sd = np.array([block.prior.value if isinstance(block.prior, Fixed) else 0.0 for block in self.sds])
        sd[self._free] = self._sds(theta[None, :count])[0]
        return sd, *correlation_root(theta[count:], len(self.sds))

    def _sds(self, theta: Array) -> Array:
        """Free sds, of many points at once; none is so small that its square is 0, and a correlation 0 / 0."""
        sds = [self.sds[i].support.value(own) for i, own in zip(self._free, theta.T, strict=True)]
        return np.asarray(np.maximum(np.column_stack([np.zeros((len(theta), 0)), *sds]), SMALLEST))

    def value(self, theta: Array) -> Array:
        sd, L, _ = self._parts(theta)
        return np.asarray(sd[:, None] * L)

    def pull(self, theta: Array, d_value: Array) -> Array:
        sd, L, d_L = self._parts(theta)
        slopes = [self.sds[i].support.slope(own) for i, own in zip(self._free, theta, strict=False)]
        own = (d_value * L).sum(axis=1)[self._free] * slopes
        return np.concatenate([own, np.einsum("cij,ij->c", d_L, d_value * sd[:, None])])

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """Of printed quantities too it is per unit of theta.

        Sigma -> T Sigma T' keeps volume, T being triangular with ones; a unit of theta is worth more or less there.
        """
        if not (self.as_printed and self.mix.size):
            return self._plain_prior(theta)
        steps = DIFFERENCE * np.eye(len(theta))
        written = self._as_written(np.vstack([theta[None], theta + steps, theta - steps]))
        jacobian = (written[1 : len(theta) + 1] - written[len(theta) + 1 :]) / (2.0 * DIFFERENCE)
        (value, slope), (here, there) = self._plain_prior(written[0]), self._log_volume(np.array([theta, written[0]]))
        own, moved = self._volume_slopes(theta), self._volume_slopes(written[0])
        return value + float(here - there), jacobian @ (slope - moved) + own

    def log_density(self, theta: Array) -> float:
        printed = self.sharp_prior(theta[None])
        return self._plain_prior(theta)[0] if printed is None else float(printed[0])

    def sharp_prior(self, theta: Array) -> Array | None:
        """A prior of what is printed, where theta speaks of other columns: correlations near 1 there bend it."""
        if not (self.as_printed and self.mix.size):
            return None
        written = self._as_written(theta)
        sds = sum(self.sds[i].log_densities(own) for i, own in zip(self._free, written.T, strict=False))
        volume = self._log_volume(theta) - self._log_volume(written)
        return np.asarray(sds + self._log_correlations(written[:, len(self._free) :]) + volume)

    @cached_property
    def _depths(self) -> Array:
        """k - 2 - j of the partial correlations with column j."""
        return np.asarray(len(self.sds) - 2.0 - np.tril_indices(len(self.sds), -1)[1])

    def _log_volume(self, theta: Array) -> Array:
        """log |d Sigma / d theta| but for a constant: Sigma_ij = s_i s_j R_ij, R from atanh of partial correlations."""
        count = len(self._free)
        bent = _log_cosh(theta[:, count:]) @ (2.0 + self._depths) if self.correlations else 0.0
        return np.asarray((len(self.sds) + 1.0) * theta[:, :count].sum(axis=1) - bent)

    def _volume_slopes(self, theta: Array) -> Array:
        count = len(self._free)
        correlations = -(2.0 + self._depths) * np.tanh(theta[count:]) if self.correlations else theta[count:]
        return np.append(np.full(count, len(self.sds) + 1.0), correlations)

    def _roots(self, theta: Array) -> Array:
        """Of the covariances of the columns as they are written, at many points: (S, k, k)."""
        count = len(self._free)
        sd = np.tile([sd.prior.value if isinstance(sd.prior, Fixed) else 0.0 for sd in self.sds], (len(theta), 1))
        sd[:, self._free] = self._sds(theta[:, :count])
        inside = sd[:, :, None] * correlation_roots(theta[:, count:], len(self.sds))
        return np.asarray(np.tensordot(inside, self.mix, (1, 1)).swapaxes(1, 2) if self.mix.size else inside)

    def _as_written(self, theta: Array) -> Array:
        """Thetas, one a row, of the coefficients of the columns as they are written."""
        root = self._roots(theta)
        sd = np.sqrt((root**2).sum(axis=2))
        unit = root / sd[:, :, None]
        L = np.linalg.cholesky(unit @ np.swapaxes(unit, 1, 2) + 1e-14 * np.eye(sd.shape[1]))
        return np.hstack([np.log(sd)[:, self._free], partial_correlations(L)])

    @cached_property
    def uncentred(self) -> Array:
        """U: from coefficients of the columns inside to those of the columns as they are written."""
        return self.mix if self.mix.size else np.eye(len(self.sds))

    @cached_property
    def _moved(self) -> Any:
        """Which of the coefficients as written are not those inside."""
        return np.count_nonzero(self.uncentred, axis=1) > 1

    def _plain_prior(self, theta: Array) -> tuple[float, Array]:
        count, total = len(self._free), 0.0
        gradient = np.zeros(len(theta))
        for place, i in enumerate(self._free):
            value, slope = self.sds[i].log_prior(theta[place : place + 1])
            total, gradient[place] = total + value, slope[0]
        if self.correlations:
            gradient[count:] = -2.0 * (self.prior.eta + 0.5 * self._depths) * np.tanh(theta[count:])
        return total + float(self._log_correlations(theta[count:])), gradient

    def _log_correlations(self, theta: Array) -> Array:
        """A partial correlation r has density (1 - r^2)^(b - 1), b = eta + depth; dr = (1 - r^2) dtheta."""
        if not self.correlations:
            return np.zeros(theta.shape[:-1])
        b = self.prior.eta + 0.5 * self._depths
        return np.asarray(-2.0 * _log_cosh(theta) @ b - ((2.0 * b - 1.0) * math.log(2.0) + betaln(b, b)).sum())

    def reported(self, theta: Array) -> Array:
        if not (self.correlations or self.mix.size):
            return self._sds(theta[:, : len(self._free)])
        root = self._roots(theta)
        sd = np.sqrt((root**2).sum(axis=2))
        rows, columns = np.tril_indices(len(self.sds), -1) if self.correlations else (self._free[:0], self._free[:0])
        together = (root[:, rows] * root[:, columns]).sum(axis=2)
        return np.hstack([sd[:, self._free], together / (sd[:, rows] * sd[:, columns])])

    def inside(self, theta: Array) -> Array:
        count = len(self._free)
        return np.hstack([self._sds(theta[:, :count]), np.tanh(theta[:, count:])])

    def priors(self) -> dict[str, Prior | None]:
        return {sd.name: sd.prior for sd in self.sds}

    def printed(self) -> dict[str, str]:
        words = {name: text for sd in self.sds for name, text in sd.printed().items()}
        if not self.as_printed:
            words |= {sd.name: words[sd.name] + " (where slopes' columns are at their means)"
                      for sd, moved in zip(self.sds, self._moved, strict=True) if moved and sd.name in words}
        return words | dict.fromkeys(self.correlations, str(self.prior))

    def signed(self) -> tuple[bool, ...]:
        return (False,) * len(self._free) + (True,) * len(self.correlations)

    def powers(self) -> tuple[float, ...]:
        return (*(power for sd in self.sds for power in sd.powers()), *(0.0,) * len(self.correlations))

    def alone(self) -> tuple[Callable[[Array], Array] | None, ...]:
        """Partial correlations with the first column are correlations; the others depend on those."""
        _, columns = np.tril_indices(len(self.sds), -1)
        own = [np.tanh if column == 0 and not self.mix.size else None for column in columns[: len(self.correlations)]]
        sds = [None if self._moved[i] else self.sds[i].support.value for i in self._free]
        return (*sds, *own)

    def scales(self) -> tuple[Scale, ...]:
        correlations = (lambda r: np.arctanh(np.clip(r, -1 + 1e-12, 1 - 1e-12)), np.tanh)
        sds = [(self.sds[i].support.theta, self.sds[i].support.value) for i in self._free]
        return (*sds, *(correlations,) * len(self.correlations))

    def stan(self, name: str) -> StanPart:
        """``sd`` and the Cholesky factor of the correlations, as theta has them; the value is the root, or one sd."""
        if len(self.sds) == 1:
            return self.sds[0].stan(name)
        tag = name.removeprefix("sd")
        k, count, sd, L, root = len(self.sds), len(self._free), name, f"L{tag}", f"root{tag}"
        names = {int(i): f"{sd}[{place + 1}]" for place, i in enumerate(self._free)}
        whole = [names.get(i, literal(self._parts(np.zeros(count + len(self.correlations)))[0][i])) for i in range(k)]
        sds = sd if count == k else f"[{', '.join(whole)}]'"
        words = said(", ".join(self.sds[i].name for i in self._free))
        declared = [f"vector<{self._stan_limits()}>[{count}] {sd};" + words]
        declared += [f"cholesky_factor_corr[{k}] {L};" + said(", ".join(self.correlations))] * bool(self.correlations)
        value = f"diag_pre_multiply({sds}, {L})" if self.correlations else f"diag_matrix({sds})"
        kept = [*([sd] if count else []), *([L] if self.correlations else [])]
        part = StanPart(parameters=tuple(declared if count else declared[1:]), names=tuple(kept), value=root,
                        transformed=(StanDefinition(f"matrix[{k}, {k}]", root, value),))
        if not self.mix.size:
            printed = (StanDefinition(f"matrix[{k}, {k}]", f"cor{tag}", f"multiply_lower_tri_self_transpose({L})"),)
            return replace(part, model=self._stan_prior(names, L), generated=printed * bool(self.correlations))
        T, cov = f"T{tag}", f"cov{tag}"
        return replace(
            part, data=(f"matrix[{k}, {k}] {T};" + said("to coefficients of the columns as they are written"),),
            values={T: self.uncentred}, model=self._stan_printed(tag) if self.as_printed
            else self._stan_prior(names, L),
            generated=(StanDefinition(f"matrix[{k}, {k}]", cov, f"tcrossprod({T} * {root})"),
                       StanDefinition(f"vector[{k}]", f"printed_sd{tag}", f"sqrt(diagonal({cov}))"),
                       StanDefinition(f"matrix[{k}, {k}]", f"printed_cor{tag}",
                                      f"quad_form_diag({cov}, 1 / sqrt(diagonal({cov})))")))

    def _stan_limits(self) -> str:
        """Those of the sds."""
        supports = [self.sds[i].support for i in self._free]
        if not any(support.bounded for support in supports):
            return "lower=0"
        low = ", ".join(literal(support.low) for support in supports)
        high = ", ".join(literal(support.high) if support.bounded else "positive_infinity()" for support in supports)
        return f"lower=[{low}]', upper=[{high}]'"

    def _stan_prior(self, names: dict[int, str], L: str) -> tuple[str, ...]:
        """The priors of sds by their names in Stan, and of the factor of correlations."""
        priors = [(self.sds[i].prior, own) for i, own in names.items()]
        lines = [f"target += {prior.stan(own)};" for prior, own in priors if isinstance(prior, PositivePrior)]
        last = f"target += lkj_corr_cholesky_lpdf({L} | {literal(self.prior.eta)});"
        return (*lines, *([last] if self.correlations else []))

    def _stan_printed(self, tag: str) -> tuple[str, ...]:
        """Priors of what is printed, per unit of what is inside.

        With k columns the covariance has 2^k prod sd_i^k times the density of (sds, correlations), and these prod_j
        L_jj^(k - j) that of (sds, L); between the covariances the map has determinant 1.
        """
        k, L, W, sd, P = len(self.sds), f"L{tag}", f"written{tag}", f"sd_written{tag}", f"L_written{tag}"
        names = {int(i): f"{sd}[{i + 1}]" for i in self._free}
        free = sd if len(names) == k else f"{sd}[{{{', '.join(str(i + 1) for i in names)}}}]"
        powers = "[" + ", ".join(str(k - j - 1) for j in range(k)) + "]"
        return (f"matrix[{k}, {k}] {W} = cholesky_decompose(tcrossprod(T{tag} * root{tag}));",
                f"vector[{k}] {sd} = sqrt(rows_dot_self({W}));" + said("as printed"),
                f"matrix[{k}, {k}] {P} = diag_pre_multiply(1 / {sd}, {W});",
                *self._stan_prior(names, P),
                f"target += {powers} * (log(diagonal({L})) - log(diagonal({P}))) + {k} * "
                f"(sum(log(sd{tag})) - sum(log({free})));")

    def to_stan(self, theta: Array) -> tuple[Array, ...]:
        count, (sd, L, _) = len(self._free), self._parts(theta)
        if len(self.sds) == 1:
            return self.sds[0].to_stan(theta)
        return (*([sd[self._free]] if count else []), *([L] if self.correlations else []))

    def unconstrained(self, theta: Array) -> Array:
        found = np.array(theta)
        for j, i in enumerate(self._free):
            found[j] = self.sds[i].support.unconstrained(theta[j])
        return found

    def from_stan(self, draws: Sequence[Array]) -> Array:
        if len(self.sds) == 1:
            return self.sds[0].from_stan(draws)
        parts = [np.column_stack([self.sds[i].support.theta(own) for i, own in zip(self._free, draws[0].T, strict=True)]
                                 )] if len(self._free) else []
        if self.correlations:
            parts.append(partial_correlations(draws[-1]))
        return np.hstack(parts)


def _log_cosh(x: Array) -> Array:
    return np.asarray(np.abs(x) + np.log1p(np.exp(-2.0 * np.abs(x))) - math.log(2.0))


def partial_correlations(L: Any) -> Array:
    """The inverse of `correlation_root`, of many points: L (S, k, k), what is found (S, k (k - 1) / 2)."""
    found = []
    for i in range(1, L.shape[1]):
        left = np.ones(len(L))
        for j in range(i):
            r = np.clip(L[:, i, j] / left, -1.0 + 1e-15, 1.0 - 1e-15)
            found.append(np.arctanh(r))
            left = left * np.sqrt(1.0 - r * r)
    return np.column_stack(found) if found else np.zeros((len(L), 0))


def correlation_roots(theta: Array, k: int) -> Array:
    """`correlation_root` of many points at once, without derivatives: (S, k, k)."""
    L = np.zeros((len(theta), k, k))
    L[:, 0, 0] = 1.0
    place = 0
    for i in range(1, k):
        left = np.ones(len(theta))
        for j in range(i if theta.shape[1] else 0):
            L[:, i, j] = np.tanh(theta[:, place + j]) * left
            left = left / np.cosh(theta[:, place + j])
        L[:, i, i] = left
        place += i
    return L


def correlation_root(theta: Array, k: int) -> tuple[Array, Array]:
    """Lower L with unit rows, L L' the correlation matrix, from atanh of partial correlations; and dL/dtheta.

    L_ij = r_ij prod_{c < j} sqrt(1 - r_ic^2); the derivatives are (number of theta, k, k).
    """
    L, d = correlation_roots(theta[None], k)[0], np.zeros((len(theta), k, k))
    place = 0
    for i in range(1, k if len(theta) else 0):
        for c in range(i):
            r = math.tanh(theta[place + c])
            left_c = math.prod(1.0 / math.cosh(theta[place + j]) for j in range(c))
            d[place + c, i, c] = left_c * (1.0 - r * r)
            d[place + c, i, c + 1 : i + 1] = -r * L[i, c + 1 : i + 1]
        place += i
    return L, d
