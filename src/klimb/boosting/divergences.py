"""Other directions than KL(q || p): KL(p || q) by importance-weighted EM, and the Hellinger distance.

KL(p || q) asks that q be somewhere wherever p is: the draws come from q and from wider mixtures around it.

Universal boosting (Campbell and Li 2019): with f = sqrt(p) and g = sum_k lambda_k g_k, g_k = sqrt(N_k), of unit length,
the squared Hellinger distance is 1 - <f, g>, and q = g^2 is a mixture of all products g_j g_k, Gaussians again.

    <g_j, g_k> = Z_jk (Bhattacharyya),      <f, g_k> = d_k = E_{N_k} exp((log p - log N_k) / 2)

The best weights maximise lambda'd under lambda'Z lambda = 1, lambda >= 0: non-negative least squares. A new component h
maximises the cosine between what f still lacks, f - <f, g> g, and what h has of its own, h - <h, g> g.
"""

import numpy as np

from klimb.boosting.gaussians import BoostStep, Gaussians, Watch, log_mixture, moments, node_set, one_gaussian, step_of
from klimb.boosting.refine import Moves
from klimb.boosting.target import Target
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_optimize
from klimb.numerics.pareto import smooth_log_weights

DRAWS, ROUNDS, SWEEPS = 2048, 5, 10
AROUND = ((0.0, 0.5), (2.0, 0.25), (6.0, 0.25))  # how far outside q draws go, and how many of them
PRIOR = 0.02  # share of a component's present covariance that stays: few draws must not make it collapse
THIN, LEAST_MISSING = 3.0, 1e-3  # more than this share of p, where p is so many times q, gets a component
NODES = 4  # times the usual number of nodes per component: square roots of densities have heavier tails
STARTS = 4  # places from which a component is sought
PATIENCE = 3  # failed searches in a row after which it ends
LARGEST = 0.9  # logarithm of a scale, either way, in one search
ITERATIONS = 40  # of that search
MOST_CROWDED = 8.0  # times the evenest average, beyond which a few nodes carry it
NEGLIGIBLE = 1e-8  # weights of products that are dropped


def inclusive_refined(target: Target, q: Gaussians, seed: int, *, draws: int = DRAWS, rounds: int = ROUNDS,
                      n_components: int | None = None) -> Gaussians:
    """A mixture with a lower KL(p || q), as far as smoothed importance weights can tell.

    Each round draws anew, adds a component where mass is missing (up to ``n_components``), and runs EM; the result is
    kept if draws around it, which its fit has not seen, agree that E_p log q has risen.
    """
    best = current = q
    for round_ in range(rounds + 1):
        X, values, log_r = _draws(target, current, seed + 7 * round_, draws)
        smoothed = smooth_log_weights(values - log_r)
        share = smoothed.normalised
        if round_ == 0 or share @ current.log_density(X) >= share @ best.log_density(X):
            best = current
        if round_ < rounds:
            full = n_components is not None and len(best) >= n_components
            current = _em(best if full else _with_missing(best, X, values - smoothed.log_mean, share), X, share)
    return best


def _draws(target: Target, q: Gaussians, seed: int, n: int) -> tuple[Array, Array, Array]:
    """Points of the mixture and around it, with log p and the log density of all draws together."""
    wide = [(q.widened(far), share) for far, share in AROUND]
    X = np.concatenate([one.draws(int(share * n), seed + j) for j, (one, share) in enumerate(wide)])
    terms = [np.log(share) + one.log_density(X) for one, share in wide]
    return X, target.values(X, far=True), np.logaddexp.reduce(terms, axis=0)


def _with_missing(q: Gaussians, X: Array, log_p: Array, share: Array) -> Gaussians:
    """``q`` with a component at the moments of the mass it lacks, if that is worth one; p is normalised."""
    lacking = np.where(log_p - q.log_density(X) > np.log(THIN), share, 0.0)
    missing = float(lacking.sum())
    if missing < LEAST_MISSING or np.count_nonzero(lacking) < 2 * (q.dim + 1):
        return q
    mean, cov = moments(lacking / missing, X)
    floor = q.covariances[int(np.argmax(q.log_densities(mean[None])[:, 0]))]
    return q.joined(one_gaussian(mean, np.linalg.cholesky((1.0 - PRIOR) * cov + PRIOR * floor)), missing)


def _em(q: Gaussians, X: Array, share: Array) -> Gaussians:
    floor = PRIOR * q.covariances
    for _ in range(SWEEPS):
        terms = q.log_densities(X)
        with np.errstate(divide="ignore"):
            r = share * np.exp(terms + np.log(q.weights)[:, None] - log_mixture(q.weights, terms))
        mass = r.sum(axis=1)
        keep = mass > 1e-6
        r, mass, floor = r[keep], mass[keep], floor[keep]
        means = r @ X / mass[:, None]
        centred = X[None] - means[:, None]
        covariances = np.matmul((r[:, :, None] * centred).transpose(0, 2, 1), centred) / mass[:, None, None]
        q = Gaussians(means, np.linalg.cholesky((1.0 - PRIOR) * covariances + floor), mass / mass.sum())
    return q


def hellinger_boosted(target: Target, first: Gaussians, n_components: int, tol: float, seed: int,
                      watch: Watch) -> tuple[Gaussians, list[BoostStep], str]:
    """Grow a mixture from the Gaussians ``first`` while the cosine to the target rises by a quarter of ``tol``."""
    Z = node_set(target.dim, seed, NODES)
    rng = np.random.default_rng(seed)
    parts, log_d = first, np.array([_inner(target, first.take([k]), Z) for k in range(len(first))])
    shift = float(log_d.max())  # inner products with f are kept relative to it
    d = np.exp(log_d - shift)
    lengths = best_lengths(affinities(parts), d)
    few = Z[: max(64, 2 * target.dim + 2)]  # nodes of each product, of which there are many
    steps = [step_of(target, products(lengths, parts), few, watch)]
    previous = float(lengths @ d)
    checks = node_set(target.dim, seed + 1, NODES)
    failures = 0
    while len(parts) < n_components:
        new = _sought(target, lengths, parts, d, shift, Z, rng)
        # Judged by nodes that the search has not seen: it would make one lucky node carry the whole average.
        more, more_d = parts.joined(new), np.append(d, np.exp(_inner(target, new, checks) - shift))
        more_lengths = best_lengths(affinities(more), more_d)
        cosine = float(more_lengths @ more_d)
        if cosine - previous < 0.25 * tol * cosine:
            failures += 1
            if failures == PATIENCE:
                return products(lengths, parts), steps, "gain"
            continue
        parts, d, lengths, previous, failures = more, more_d, more_lengths, cosine, 0
        steps.append(step_of(target, products(lengths, parts), few, watch))
    return products(lengths, parts), steps, "components"


def affinities(parts: Gaussians) -> Array:
    """Bhattacharyya's coefficients <g_j, g_k>, K x K, ones on the diagonal."""
    covariances = parts.covariances
    middle = 0.5 * (covariances[:, None] + covariances[None])
    gap = parts.means[:, None] - parts.means[None]
    distance = np.einsum("jkd,jkd->jk", gap, np.linalg.solve(middle, gap[..., None])[..., 0])
    logdet = np.linalg.slogdet(covariances)[1]
    log_z = -0.125 * distance - 0.5 * (np.linalg.slogdet(middle)[1] - 0.5 * (logdet[:, None] + logdet[None]))
    return np.asarray(np.exp(log_z))


def best_lengths(Z: Array, d: Array) -> Array:
    """lambda >= 0 with lambda'Z lambda = 1 and the largest lambda'd."""
    # min ||R lambda - R^-T d||^2 has the direction of the best lambda: its length is free.
    R = np.linalg.cholesky(Z + 1e-10 * np.eye(len(Z))).T
    found = scipy_optimize.nnls(R, np.linalg.solve(R.T, d))[0]
    return np.asarray(found / np.sqrt(found @ Z @ found))


def products(lengths: Array, parts: Gaussians) -> Gaussians:
    """q = g^2 as a mixture: lambda_j lambda_k Z_jk of every normalised product g_j g_k."""
    used = np.flatnonzero(lengths > 0)
    lengths, parts = lengths[used], parts.take(used)
    j, k = np.triu_indices(len(used))
    weights = np.where(j == k, 1.0, 2.0) * lengths[j] * lengths[k] * affinities(parts)[j, k]
    precisions = np.linalg.inv(parts.covariances)
    covariances = np.linalg.inv(0.5 * (precisions[j] + precisions[k]))
    pulled = np.einsum("kde,ke->kd", precisions, parts.means)
    means = np.einsum("kde,ke->kd", covariances, 0.5 * (pulled[j] + pulled[k]))
    keep = weights > NEGLIGIBLE * weights.max()
    roots = np.linalg.cholesky(0.5 * (covariances + covariances.transpose(0, 2, 1))[keep])
    return Gaussians(means[keep], np.asarray(roots), weights[keep] / weights[keep].sum())


def _inner(target: Target, one: Gaussians, Z: Array) -> float:
    """log <f, g> of a single Gaussian, up to the constant of f."""
    X = one.at(Z)[0]
    terms = 0.5 * (target.values(X) - one.log_densities(X)[0])
    top = float(terms.max())
    return top + float(np.log(np.mean(np.exp(terms - top))))


def _sought(target: Target, lengths: Array, parts: Gaussians, d: Array, shift: float, Z: Array,
            rng: np.random.Generator) -> Gaussians:
    """The Gaussian with the largest cosine, by L-BFGS from the best of several places (Campbell and Li, Eq. 8)."""
    q, fg, moves = products(lengths, parts), float(lengths @ d), Moves(1, parts.dim, parts.dim)

    def cosine(x: Array, origin: Gaussians) -> tuple[float, Array]:
        """Minus the log of the cosine, and its gradient; the nodes move with h."""
        a, T = moves.unpacked(np.append(0.0, x))[1:]
        one = origin.moved(a, T)
        X = one.at(Z)[0]
        values, slopes = target.with_slopes(X, one.deviations[0])
        terms = 0.5 * (values - one.log_densities(X)[0]) - shift
        if not np.isfinite(terms).any() or terms.max() > 300:
            return 1e10, np.zeros_like(x)
        e = np.exp(terms) / len(Z)
        fh = float(e.sum())
        crowd = float(e @ e) * len(Z) / fh**2  # 1 where all nodes count alike, as many as there are where one does
        if crowd > MOST_CROWDED:
            return 1e10, np.zeros_like(x)
        overlap, d_overlap = _overlaps(one, parts, lengths)
        lacks, own = fh - fg * overlap, 1.0 - overlap**2
        if lacks <= 1e-300 or own <= 1e-12:
            return 1e10, np.zeros_like(x)
        slopes = np.where(np.isfinite(values)[:, None], slopes, 0.0) @ origin.roots[0]
        # d fh: nodes move with mean and root; log h at its nodes falls by log det T
        d_mean, d_T = 0.5 * e @ slopes, 0.5 * (e[:, None] * slopes).T @ Z
        d_T[np.diag_indices(parts.dim)] += 0.5 * fh / np.diag(T[0])
        o_mean, o_T = d_overlap[0] @ origin.roots[0], origin.roots[0].T @ d_overlap[1]
        factor = -fg / lacks + overlap / own
        g_mean, g_T = d_mean / lacks + factor * o_mean, d_T / lacks + factor * o_T
        return -np.log(lacks) + 0.5 * np.log(own), moves.gradient(np.zeros(1), -g_mean[None], -g_T[None], T)[1:]

    origins = list[Gaussians]()
    for _ in range(STARTS):
        k = rng.choice(len(q), p=q.weights)
        mean = q.means[k] + 2.0 * q.roots[k] @ rng.standard_normal(q.dim)
        origins.append(one_gaussian(mean, q.roots[k]))
    start, box = np.zeros(len(moves.bounds()) - 1), moves.bounds(4.0, LARGEST, 2.0)[1:]  # one weight is no variable
    origins = sorted(origins, key=lambda origin: cosine(start, origin)[0])[:2]
    found = [scipy_optimize.minimize(cosine, start, args=(origin,), jac=True, method="L-BFGS-B", bounds=box,
                                     options={"maxiter": ITERATIONS}) for origin in origins]
    best = min(range(2), key=lambda k: found[k].fun)
    return origins[best].moved(*moves.unpacked(np.append(0.0, found[best].x))[1:])


def _overlaps(one: Gaussians, parts: Gaussians, lengths: Array) -> tuple[float, tuple[Array, Array]]:
    """<h, g> of a Gaussian h, and its gradients in h's mean and root."""
    z = affinities(one.joined(parts))[0, 1:] * lengths
    S, root = one.covariances[0], one.roots[0]
    middle = np.linalg.inv(0.5 * (S + parts.covariances))
    pulled = np.einsum("kde,ke->kd", middle, one.means[0] - parts.means)
    d_mean = -0.25 * z @ pulled
    # d log z / dS = 1/16 (A gap gap' A) - 1/4 A + 1/4 S^-1 with A the inverse of the average covariance
    d_S = np.einsum("k,kd,ke->de", z, pulled, pulled) / 16.0 - 0.25 * np.einsum("k,kde->de", z, middle) \
        + 0.25 * z.sum() * np.linalg.inv(S)
    return float(z.sum()), (d_mean, 2.0 * d_S @ root)
