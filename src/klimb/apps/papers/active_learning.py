"""[N] Figure 2: test error against the number of labels, for scores that choose them and for chance.

Random labels first, then blocks of K: within a block each label is known before the next row is chosen, and the model
is fitted once at its end. "batch" chooses all K rows before any of their labels is known.

Strategies that end in "-N" are the paper's own algorithm (section 3, `ConvexLearner`): the local bound, one Lanczos run
a block for the marginals of all rows, one linear system for each inclusion, and an outer iteration whose variances are
the marginals that the inclusions kept valid.
"""

import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from klimb import latents, sites, steps
from klimb.active import ActiveLearner
from klimb.active.batch import best_candidate
from klimb.active.belief import KrylovBelief
from klimb.active.inclusion import include
from klimb.active.marginals import Pending
from klimb.active.pool import as_pool, row_vector, take_rows
from klimb.active.scores import Candidates, as_score
from klimb.apps.papers.data import Library, TrainTest, split_rows
from klimb.apps.papers.experiment import EXPERIMENTS, Experiment, Found, Job, Results, Size, by_parts
from klimb.apps.papers.pictures import BLUE, GREEN, GREY, INK, ORANGE, PINK, PaperTable, letter, panels
from klimb.apps.papers.products import newton
from klimb.infer.loop import infer
from klimb.infer.matrixfree.inner import BoundTarget, Engine, best_mean
from klimb.infer.problem import Problem
from klimb.numerics.arrays import Array, Index
from klimb.numerics.lazy import scipy_sparse

FIRST_OUTER = 5  # outer iterations of the first fit: "we never run more than 5"
GOAL = 1e-4  # of the inner loop, in posterior standard deviations
SITE = sites.SuperGaussian(sites.Logistic())
STRATEGIES = ("random", "cu", "ig", "bald", "batch")
PAPERS_OWN = ("cu-N", "ig-N")
NAMES = {"random": "random", "cu": "classifier uncertainty", "ig": "information gain", "bald": "BALD",
         "batch": "BALD, whole batches", "cu-N": "uncertainty, [N]'s algorithm", "ig-N": "gain, [N]'s algorithm",
         "full": "all labels"}
COLOURS = {"random": GREY, "cu": BLUE, "ig": ORANGE, "bald": GREEN, "batch": PINK, "cu-N": BLUE, "ig-N": ORANGE}
MARKS = {"random": "o", "cu": "s", "ig": "^", "bald": "D", "batch": "v", "cu-N": "", "ig-N": ""}


class ConvexLearner:
    """A pool with its ``answers``; weights ~ N(0, cov I), or Laplace of a ``scale``: I is appended to the rows."""

    def __init__(self, pool: Any, answers: Array, *, cov: float, scale: float | None, k: int, score: str,
                 first: Index) -> None:
        n, D = pool.shape
        self._k, self._cov, self._scale, self._score = k, cov, scale, as_score(score)
        self._all, self._prior = as_pool(pool), np.zeros(0, dtype=np.intp)
        if scale is not None:
            both = [scipy_sparse.csr_matrix(pool), scipy_sparse.eye(D)]
            self._all = as_pool(scipy_sparse.vstack(both, format="csr"))
            self._prior = np.arange(n, n + D)
        self._answers, self.labelled, self._free = answers, first, np.arange(n + len(self._prior)) < n
        self._free[first] = False
        problem = self._problem()
        step = steps.DoubleLoop("local", "lanczos", max_outer=FIRST_OUTER, vectors=self._vectors)
        fit = infer(problem.latent, problem.site, problem.y, step=step)
        self.weights, self._gamma = fit.posterior.mean, fit.posterior.gamma

    def _problem(self) -> Problem:
        """The labelled rows, and the sites of a sparsity prior behind them."""
        B: Any = take_rows(self._all, self.labelled)
        y, D = self._answers[self.labelled], B.shape[1]
        if self._scale is None:
            return Problem(latents.Implicit(B, cov=self._cov), SITE, y)
        site = sites.Stack([(SITE, len(y)), (sites.SuperGaussian(sites.Laplace(self._scale)), D)])
        latent = latents.Implicit([B, scipy_sparse.eye(D, format="csr")], cov=None)
        return Problem(latent, site, np.concatenate([y, np.zeros(D)]))

    def belief(self) -> KrylovBelief:
        """The Gaussian of the present sites; its variances take one Lanczos run."""
        return KrylovBelief(self._problem().latent.implicit().precision(self._gamma), self.weights, self._vectors)

    @property
    def _vectors(self) -> int:
        """k; beside one prior variance for all weights the Krylov space ends one vector after the labelled rows."""
        most = self._all.shape[1] if len(self._prior) else len(self.labelled) + 1
        return min(self._k, most, self._all.shape[1])

    def scores(self, m: Array, v: Array, rows: Index) -> Array:
        """Of candidates with these marginals."""
        return self._score.of(Candidates(SITE, m[rows], v[rows]))

    def block(self, size: int) -> None:
        """Choose and include ``size`` rows, then fit all sites with one outer iteration."""
        belief = self.belief()
        (m, v), pending, u, picks = belief.marginals(self._all), Pending(belief), self.weights, list[int]()
        for _ in range(size):
            rows = np.flatnonzero(self._free & (v > 0.0))  # what falls below zero within a block is removed from it
            pick = best_candidate(self.scores(m, v, rows), rows)
            x = row_vector(self._all, pick)
            d = pending.times(x)
            mean, variance = np.array([x @ u]), np.array([x @ d])  # the solution corrects what Lanczos missed
            new = include(SITE, SITE.validate(self._answers[[pick]]), mean, variance)
            kappa = np.exp(new.log_kappa[0])
            c, e = float(new.gamma[0] / kappa), float((new.slope[0] - new.gamma[0] * mean[0]) / kappa)
            w = self._all.times(d)
            m, v, u = m + e * w, v - c * w * w, u + e * d
            v[pick], pending = new.v[0], pending.including(d, c, e)
            self._free[pick] = False
            picks.append(pick)
        self.labelled = np.concatenate([self.labelled, np.array(picks, dtype=np.intp)])
        model = np.concatenate([self.labelled, self._prior])
        lost = model[v[model] <= 0.0]
        if lost.size:  # those of model sites are needed: by solving systems
            v[lost] = pending.variances(self._all.subset(lost))
        self._refit(v[model], u)

    def _refit(self, z: Array, u: Array) -> None:
        """The inner loop at variances ``z``; then every site is what its marginal asks for."""
        target = BoundTarget(self._problem(), "local")
        solver = Engine(target.latent, "lanczos", GOAL, 0, 1).solve
        mean = best_mean(target, z, target.mean_at(u, z), solver, GOAL).mean
        self.weights, self._gamma = mean.u, np.array(mean.e.gamma)


class ActivePanel(NamedTuple):
    """One panel of the figure: data, prior, and how labels come."""
    key: str
    data: str
    title: str
    prior: str  # "gaussian" or "laplace"
    cov: float  # of the weights: the paper's tau_bern^2 times sigma^2
    scale: float  # of a Laplace prior
    initial: int
    block: int  # the paper's K
    most: dict[Size, int]  # labels at the end
    train: int | None = None  # rows of the pool, drawn anew for each seed; None: the official training set
    k: int | None = None  # Lanczos vectors of the paper's algorithm, where it is run


MOST_POINTS = 100  # of a curve
PAPERS_MOST = 1001  # labels that the paper's algorithm is followed to
SEEDS: dict[Size, int] = {"full": 5, "quick": 2, "tiny": 1}
PANELS = tuple(ActivePanel(**panel) for panel in EXPERIMENTS["N-figure2"].settings["panels"])
DATA = EXPERIMENTS["N-figure2"].settings["printed"]


@lru_cache(maxsize=4)
def _rows(name: str, library: Library, size: Size) -> tuple[Any, Array, Any]:
    """Design, labels -1 and +1, and the official training rows; invented rows for the smallest size."""
    if size == "tiny":
        rng = np.random.default_rng(0)
        X = (rng.random((260, 12)) < 0.4) * 1.0
        return X, np.where(X @ rng.standard_normal(12) > 0.3, 1.0, -1.0), np.arange(260) < 200
    found = library.load(name)
    X = tf_idf(found.X) if name in ("imdb", "farm_ads") else found.X
    if name == "rcv1_small":
        X = X[:, np.flatnonzero(X.getnnz(axis=0))]  # words that no text has stay at their prior
    return X, np.where(found.y > 0, 1.0, -1.0), found.train


def tf_idf(counts: Any) -> Any:
    """(1 + log count) log(N / documents with the word), rows of norm 1: features like those of real-sim and rcv1."""
    X = scipy_sparse.csr_matrix(counts, dtype=np.float64)
    X.sum_duplicates()
    X.eliminate_zeros()
    documents = np.bincount(X.indices, minlength=X.shape[1])
    X.data = 1.0 + np.log(X.data)
    X = scipy_sparse.csr_matrix(X.multiply(np.log(X.shape[0] / np.maximum(documents, 1))))
    norms = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    return scipy_sparse.csr_matrix(scipy_sparse.diags(1.0 / np.where(norms > 0.0, norms, 1.0)) @ X)


def split(panel: ActivePanel, library: Library, size: Size, seed: int) -> TrainTest:
    """Pool and test rows: drawn by the seed, or the official ones (of which the seed then draws the first labels)."""
    X, y, train = _rows(panel.data, library, size)
    if panel.train is None or size == "tiny":
        return split_rows(X, y, np.flatnonzero(train), np.flatnonzero(~np.asarray(train, dtype=bool)))
    order = np.random.default_rng(seed).permutation(len(y))
    return split_rows(X, y, np.sort(order[: panel.train]), np.sort(order[panel.train :]))


def curve(panel: ActivePanel, library: Library, size: Size, strategy: str, seed: int, _: Results) -> Found:
    """Test error after the first labels and after blocks: every one, or as many as a curve shows."""
    data = split(panel, library, size, seed)
    initial = panel.initial if size != "tiny" else 20
    labels, errors = list[int](), list[float]()
    begin = time.process_time()
    learner, learn = (_paper if strategy in PAPERS_OWN else _ours)(panel, data, strategy, seed, initial)
    most = min(panel.most[size], PAPERS_MOST) if strategy in PAPERS_OWN else panel.most[size]
    blocks = (most - initial) // panel.block
    every = -(-blocks // MOST_POINTS)
    for number in range(blocks + 1):
        if number % every == 0 or number == blocks:
            labels.append(len(learner.labelled))
            errors.append(float(np.mean((data.X_test @ learner.weights > 0.0) != (data.y_test > 0.0))))
        if number < blocks:
            learn()
    inclusions = labels[-1] - initial
    return {"labels": labels, "error": errors, "positive": float(np.mean(data.y[learner.labelled] > 0)),
            "seconds_per_label": (time.process_time() - begin) / inclusions}


def _ours(panel: ActivePanel, data: TrainTest, strategy: str, seed: int, initial: int
          ) -> tuple[ActiveLearner, Callable[[], Any]]:
    """A learner that knows the first labels, and how it learns a block."""
    learner = ActiveLearner(data.X, cov=panel.cov, prior=panel.prior, scale=panel.scale,
                            score="bald" if strategy == "batch" else strategy, intercept=False, initial=initial,
                            warm=True, seed=seed, tol=1e-4)

    def batch(size: int) -> None:
        rows = learner.query(size)
        learner.teach(rows, data.y[rows])

    batch(initial)
    if strategy == "batch":
        return learner, lambda: batch(panel.block)
    return learner, lambda: learner.block(panel.block, lambda row: data.y[row])


def _paper(panel: ActivePanel, data: TrainTest, strategy: str, seed: int, initial: int
           ) -> tuple[ConvexLearner, Callable[[], Any]]:
    """The same by the algorithm of [N], from the same first labels."""
    first = np.random.default_rng(seed).permutation(len(data.y))[:initial]
    learner = ConvexLearner(data.X, data.y, cov=panel.cov, k=panel.k or data.X.shape[1], first=first,
                            scale=panel.scale if panel.prior == "laplace" else None, score=strategy.removesuffix("-N"))
    return learner, lambda: learner.block(panel.block)


def look(library: Library, name: str, _: Results) -> Found:
    """What [N]'s table says of a set."""
    data = library.load(name)
    positive = int((data.y > 0).sum())
    return {"rows": len(data.y), "ratio": positive / (len(data.y) - positive), "columns": data.X.shape[1],
            "nonzeros": int(data.X.count_nonzero())}


def all_labels(panel: ActivePanel, library: Library, size: Size, seed: int, _: Results) -> Found:
    """The line to reach: test error with every label of the pool."""
    data = split(panel, library, size, seed)
    if data.X.shape[1] <= 1000 or panel.prior == "laplace":
        learner = ActiveLearner(data.X, cov=panel.cov, prior=panel.prior, scale=panel.scale, intercept=False, tol=1e-4)
        learner.teach(np.arange(len(data.y)), data.y)
        weights = learner.weights
    else:  # too many rows for an exact covariance: the mode
        X = np.sqrt(panel.cov) * data.X
        weights = np.sqrt(panel.cov) * newton(latents.Implicit(X), X, data.y)[0]
    return {"error": float(np.mean((data.X_test @ weights > 0.0) != (data.y_test > 0.0))), "labels": len(data.y)}


def plan(library: Library, size: Size) -> Sequence[Job]:
    """All seeds of a panel before the next one; the lines first."""
    jobs = [Job(f"data/{name}/0", partial(look, library, name)) for name in DATA]
    jobs += [Job(f"{panel.key}/full/{seed}", partial(all_labels, panel, library, size, seed))
             for seed in range(SEEDS[size]) for panel in PANELS]
    for seed in range(SEEDS[size]):
        jobs += [Job(f"{panel.key}/{strategy}/{seed}", partial(curve, panel, library, size, strategy, seed))
                 for panel in PANELS for strategy in STRATEGIES]
    return jobs + [Job(f"{panel.key}/{strategy}/0", partial(curve, panel, library, size, strategy, 0))
                   for panel in PANELS if panel.k is not None for strategy in PAPERS_OWN]


def _curves(results: Results, panel: str, strategy: str) -> tuple[Array, Array]:
    """Labels, and errors by seed."""
    found = [job for (where, how, _), job in by_parts(results).items() if (where, how) == (panel, strategy)]
    if not found:
        return np.empty(0), np.empty((0, 0))
    return np.array(found[0]["labels"]), np.array([job["error"] for job in found])


def tables(results: Results) -> Sequence[PaperTable]:
    """Errors at the end of each panel, and the labels that chance would have needed for the same."""
    rows = []
    for panel in PANELS:
        _, full = _curves(results, panel.key, "full")
        labels, chance = _curves(results, panel.key, "random")
        if not labels.size:
            continue
        for strategy in STRATEGIES + PAPERS_OWN:
            x, errors = _curves(results, panel.key, strategy)
            if not x.size:
                continue
            last = errors[:, -1]
            spread = f" +- {100 * last.std(ddof=1):.2f}" if len(last) > 1 else ""
            reached = np.flatnonzero(errors.mean(axis=0) <= chance[:, -1].mean())
            at = f"{int(x[reached[0]])}" if reached.size else "-"
            rows.append((panel.title, NAMES[strategy], f"{int(x[-1])}", f"{100 * last.mean():.2f}{spread}", at,
                         f"{100 * full.mean():.2f}"))
    heads = ("data", "score", "labels", "test error, %", "labels for random's last error", "all labels, %")
    sets = []
    for name, (paper, q, ratio, n, nonzeros) in DATA.items():
        found = results[f"data/{name}/0"]
        sets.append((name, paper, f"{found['rows']:,}", f"{q:,}", f"{found['ratio']:.2f}", f"{ratio:.2f}",
                     f"{found['columns']:,}", f"{n:,}", f"{found['nonzeros']:,}", f"{nonzeros:,}"))
    beside = ("set", "in the paper", "q", "paper", "q+ / q-", "paper", "n", "paper", "nonzeros", "paper")
    return [PaperTable("Data: [N] section 5", beside, tuple(sets), left=2),
            PaperTable("Error against labels: [N] Figure 2", heads, tuple(rows), left=2)]


def draw(results: Results, path: Path) -> None:
    """Mean over seeds with a band from the smallest to the largest."""
    shown = [panel for panel in PANELS if _curves(results, panel.key, "random")[0].size]
    with panels(path, 2, 4, (11.8, 5.4)) as (figure, axes):
        for index, (panel, ax) in enumerate(zip(shown, axes.ravel(), strict=False)):
            letter(ax, index, panel.title)
            for strategy in STRATEGIES + PAPERS_OWN:
                x, errors = _curves(results, panel.key, strategy)
                if not x.size:
                    continue
                colour = COLOURS[strategy]
                ax.plot(x, 100 * errors.mean(axis=0), color=colour, marker=MARKS[strategy], markersize=4.5,
                        markevery=max(1, len(x) // 8), label=NAMES[strategy], ls=":" if strategy in PAPERS_OWN else "-")
                ax.fill_between(x, 100 * errors.min(axis=0), 100 * errors.max(axis=0), color=colour, alpha=0.15, lw=0)
            _, full = _curves(results, panel.key, "full")
            if full.size:
                ax.axhline(100 * full.mean(), color=INK, linestyle="--", lw=1.2, label=NAMES["full"])
            ax.set_xlabel("labels")
            ax.set_ylabel("test error, %")
        for ax in axes.ravel()[len(shown) :]:
            ax.axis("off")
        handles, names = axes[0, 0].get_legend_handles_labels()
        axes.ravel()[-1].legend(handles, names, loc="center", fontsize=11)
        figure.align_labels()


FIGURE2 = Experiment(plan, tables, draw)
