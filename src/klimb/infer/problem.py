"""One model and its data, as every algorithm sees them: counts, the bound, and the state of a Gaussian q."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np

from klimb.errors import InputError, NotPositiveDefiniteError, require
from klimb.latents.base import Factor, Latent, Posterior, as_latent
from klimb.numerics.arrays import Array, finite_sum, slices
from klimb.numerics.dense import shares, together
from klimb.sites.base import Expectation, Site

Start: TypeAlias = Posterior | Callable[[], Posterior] | None  # functions: nobody holds what was only to begin with
ROUNDING = 64 * np.finfo(float).eps  # of sums of N terms: what a bound may lose without having gone down
BLOCK = 16_384  # sites whose integrals are found together: what they take on the way is no longer than this
SITE_WORK = 16  # columns of a design whose sums take as long as the integral of a site
QUADRATURE = 1e-12  # error of the expectation of a datum with several latent values, which is a sum over nodes


@dataclass(frozen=True, eq=False)
class State:
    """A Gaussian q = (a, gamma) with everything that one evaluation of the bound gives.

    ``objective`` is what a step must not lower. It is the bound, but for point sites, whose gamma does not belong to a
    bound: there it is the penalised log likelihood, while ``bound`` is Laplace's estimate of the log evidence.
    """

    a: Array
    factor: Factor
    m: Array
    held: list[Array]  # the marginal variances, until they are let go of
    expectation: Expectation
    kl: float
    bound: float
    objective: float
    noise: float  # size of rounding errors in the objective
    stationarity: float  # max(sqrt(v) |a + alpha|, v |q.gamma - e.gamma|), site by site
    coupled: Latent | None = None  # the latent, where the site couples several latent values of a datum
    mean_gain: float | None = None  # what the mean may still gain in nats, where the step knows it
    bound_error: float = 0.0  # where the bound is an estimate
    slack: Array | float = 0.0

    def release(self) -> None:
        """Let go of what can be made again from gamma."""
        self.held.clear()
        self.factor.release()

    @property
    def v(self) -> Array:
        if not self.held:
            self.held.append(np.asarray(self.factor.variances() + self.slack))
        return self.held[0]

    @property
    def gamma(self) -> Array:
        return self.factor.gamma

    @property  # as what follows: a sum costs less than vectors of all sites at several iterates
    def mean_residual(self) -> Array:
        """a + alpha: zero at the optimum over means. The gradient in m is minus K times this."""
        return np.asarray(self.a + self.expectation.alpha)

    @property
    def gamma_residual(self) -> Array:
        """q.gamma - e.gamma: zero at the optimum over covariances. [B] supplement Eq. (54), corrected."""
        return np.asarray(self.gamma - self.expectation.gamma)

    @cached_property
    def remaining(self) -> float:
        """What the bound may still gain, in nats, to second order; the site-wise norm says little of it for many data.

        Half of b'Vb for the mean, b = a + alpha; its root bounds the error of any marginal mean in sd. Half the square
        of the relative error for the covariance: that is at most sum_i v_i |d_i|, d = q.gamma - e.gamma, and where all
        gamma_i > 0 at most max_i |d_i| / gamma_i.

        A site that couples the latent values of a datum may not see a common shift of them (softmax does not): there
        only the prior bends the bound, so what b says of such shifts counts with K instead of V.
        """
        distance = np.abs(self.gamma_residual)
        relative = float(self.v @ distance)
        if self.gamma.min() > 0:
            relative = min(relative, float((distance / self.gamma).max()))
        del distance
        if self.mean_gain is not None:
            return self.mean_gain + 0.5 * relative**2
        energy = self.factor.energy(self.mean_residual)
        if self.coupled is not None:
            by_output = self.mean_residual.reshape(self.coupled.n_outputs, -1)
            shift = np.tile(by_output.mean(axis=0), self.coupled.n_outputs)
            energy += float(shift @ self.coupled.mvm(shift))
        return 0.5 * (energy + relative**2)


class Problem:
    """A latent, a site and clean data; counts factorisations and oracle calls."""

    def __init__(self, latent: Latent, site: Site, y: Any, start: Start = None) -> None:
        as_latent(latent)
        if not isinstance(site, Site):
            raise InputError("site must be a klimb site", repr(site), "Use an instance such as klimb.sites.Logistic().")
        self.latent, self.site = latent, site
        if not site.separable and site.n_outputs != latent.n_outputs:
            raise InputError(f"{site} needs a latent with {site.n_outputs} outputs",
                             f"{type(latent).__name__} with {latent.n_outputs}",
                             f"Use klimb.latents.Outputs.shared(latent, {site.n_outputs}), say.")
        self.y = site.validate(y)
        n_data = latent.n_sites // site.n_outputs
        require(len(self.y) == n_data, f"y must have one entry per site ({n_data})", len(self.y),
                "Check that X or K and y match.")
        self.begin(start)
        self.rough = False  # whether another problem, with the exact oracle, goes on from its optimum
        self.constant = float(np.sum(np.broadcast_to(site.constant(self.y), self.y.shape)))
        self.n_factor = 0
        self.n_oracle = 0

    def begin(self, start: Start) -> None:
        """To begin at the sites of another fit, which are held until there is a state."""
        self.start, self.warm = start() if callable(start) else start, start is not None
        if self.start is not None and len(self.start.a) != self.latent.n_sites:
            raise InputError(f"start must be a posterior of {self.latent.n_sites} sites", f"{len(self.start.a)}",
                             "Start from a fit to this y.")

    @property
    def n_products(self) -> int:
        """Products with matrices that are known only by them, so far."""
        return self.latent.n_products

    @property
    def dense_size(self) -> int:
        """The order of its dense factors."""
        return self.latent.dense_size

    def factor(self, gamma: Array) -> Factor:
        self.n_factor += 1
        return self.latent.factor(gamma)

    def oracle(self, m: Array, v: Array) -> Expectation:
        self.n_oracle += 1
        return expectations(self.site, self.y, m, v)

    def state(self, a: Array, m: Array, factor: Factor) -> State:
        """The state of q = (a, factor.gamma), whose mean ``m`` = mu + K a the caller has at hand."""
        latent = self.latent
        spread = factor.variances()
        v = spread + latent.slack if np.any(latent.slack) else spread
        if not (finite_sum(m) and finite_sum(v)):
            raise NotPositiveDefiniteError("the marginals are not finite")
        self.n_oracle += 1
        e, blocks = expectations(self.site, self.y, m, v, sums=True), list(slices(len(m), BLOCK))
        with np.errstate(over="ignore"):  # a hopeless proposal may be worse than float64 can say
            total, size = map(float, e.value.sum(axis=0))
            total += self.constant
            # K a is a sum that may cancel, and a is known to about gamma times the rounding of m.
            loose = latent.cancelled(a) + sum(float(np.abs(factor.gamma[rows]) @ (m[rows] - latent.mean[rows]) ** 2)
                                              for rows in blocks)
        mean_term = sum(float(a[rows] @ (m[rows] - latent.mean[rows])) for rows in blocks)
        variance_term = float(factor.gamma @ spread)
        kl = 0.5 * (mean_term - variance_term + factor.logdet) - latent.log_evidence
        if self.site.uses_variance:
            bound = objective = total - kl
        else:  # Laplace: the mode first; its evidence lacks the -gamma'v/2 of a bound
            objective = total - 0.5 * mean_term
            bound = objective - 0.5 * factor.logdet
        terms = (size, self.constant, mean_term, variance_term, factor.logdet)
        noise = ROUNDING * sum(abs(term) for term in terms) + np.finfo(float).eps * loose
        noise += 0.5 * (factor.log_det_error + factor.log_det_rounding)
        coupled = None if self.site.separable else latent
        noise += 0.0 if coupled is None else QUADRATURE * len(self.y)
        stationarity = max(_stationarity(a[rows], factor.gamma[rows], v[rows], e.alpha[rows], e.gamma[rows])
                           for rows in blocks)
        return State(a, factor, m, [v], e, kl, bound, objective, noise, stationarity, coupled,
                     bound_error=0.5 * factor.log_det_error, slack=latent.slack)

    def at_sites(self, slope: Array, gamma: Array) -> State:
        """The state whose sites are exp(slope f - gamma f^2 / 2): a = (I + G K)^-1 (slope - G mu)."""
        factor = self.factor(gamma)
        a, m = factor.solve(slope - gamma * self.latent.mean)
        m = self.latent.mean + m
        del slope  # a vector of all sites, while the oracle runs
        return self.state(a, m, factor)

    def own_start(self) -> State | None:
        """Where to begin, where the problem knows better than `klimb.infer.start`."""
        return None

    def rules(self, state: State) -> tuple[str, ...]:
        """The targets that a natural step may go to: a Gauss-Newton-like one, always proper, where the true one fails.
        """
        return ("natural", "clipped") if state.expectation.gamma.min() < 0 else ("natural",)

    def stepped(self, state: State, rule: str, step: float) -> State:
        """gamma <- (1 - t) q.gamma + t e.gamma and a <- a - t (I + G K)^-1 (a + alpha), t = ``step``."""
        target = state.expectation.gamma if rule == "natural" else np.maximum(state.expectation.gamma, 0.0)
        gamma = target if step == 1.0 else (1 - step) * state.gamma + step * target
        return self.towards(gamma, state.a, state.m, state.mean_residual, step)

    def towards(self, gamma: Array, a: Array, m: Array, residual: Array, step: float = 1.0) -> State:
        """The state at ``gamma`` with the mean (a, m) moved under the new precision: one factorisation."""
        if not np.isfinite(gamma).all():
            raise NotPositiveDefiniteError("a precision is not finite")
        factor = self.factor(gamma)
        da, dm = factor.solve(residual)
        a, m = a - step * da, m - step * dm
        del residual, da, dm  # vectors of all sites, while the oracle runs
        return self.state(a, m, factor)

    def posterior(self, state: State, *, spread: bool = True) -> Posterior:
        v = state.v if spread else np.zeros_like(state.v)
        return Posterior(self.latent, state.a, state.gamma, state.m, v, state.kl, spread, state.factor)


def expectations(site: Site, y: Array, m: Array, v: Array, *, sums: bool = False) -> Expectation:
    """What the oracle says of many sites, block by block; in place of values, sums of them and of their sizes."""
    n, blocks = len(y), list(slices(len(y), BLOCK))
    if not site.separable or n <= BLOCK:
        e = site.oracle(y, m, v)
        return e._replace(value=_sums(e.value)[None]) if sums else e
    found = Expectation(np.empty((len(blocks), 2) if sums else n), np.empty(n), np.empty(n))

    def fill(share: slice) -> None:
        for number, rows in enumerate(blocks[share], share.start):
            e = site.rows(rows).oracle(y[rows], m[rows], v[rows])
            found.alpha[rows], found.gamma[rows] = e.alpha, e.gamma
            found.value[number if sums else rows] = _sums(e.value) if sums else e.value

    together([partial(fill, share) for share in shares(len(blocks), SITE_WORK * BLOCK)])
    return found


def _sums(values: Array) -> Array:
    with np.errstate(over="ignore"):  # a hopeless proposal may be worse than float64 can say
        return np.array([values.sum(), np.abs(values).sum()])


def _stationarity(a: Array, gamma: Array, v: Array, e_alpha: Array, e_gamma: Array) -> float:
    """max(sqrt(v) |a + alpha|, v |q.gamma - e.gamma|): free of the scale of f, zero exactly at the optimum."""
    with np.errstate(invalid="ignore", over="ignore"):
        mean_part = np.sqrt(v) * np.abs(a + e_alpha)
        worst = max(float(mean_part.max()), float((v * np.abs(gamma - e_gamma)).max()))
    return worst if np.isfinite(worst) else float("inf")
