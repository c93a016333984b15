"""klimb.boost on seventeen targets, and rivals on the same: accuracy against evaluations.

    python -m benchmarks.boosting ours [target ...]                 klimb, in NumPy
    python -m benchmarks.boosting paper [target ...]                [G]'s algorithm, as klimb has it
    python -m benchmarks.boosting hellinger [target ...]            universal boosting (Campbell and Li)
    python -m benchmarks.boosting inclusive [target ...]            klimb with divergence="inclusive"
    PYTHON -m benchmarks.rivals.numpyro_svi [target ...]            in an environment with numpyro
    PYTHON -m benchmarks.rivals.pathfinder [target ...]             in an environment with blackjax
    PYTHON -m benchmarks.rivals.pyvbmc [target ...]                 in an environment with pyvbmc
    python -m benchmarks.boosting table                             what was found, side by side
    python -m benchmarks.boosting growth                            how it goes with the number of components

Every run adds to benchmarks/results/boosting.json. KL(q || p) is averaged over 50,000 draws of q; evaluations are
points at which the log density (klimb, PyVBMC) or value and gradient (NumPyro) were computed. klimb's gradients, at no
more points than its values, come from central differences in NumPy whose cost is in its CPU seconds; those of the JAX
rivals are of compiled code, compilation apart.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.boosting_targets import PROBLEMS, Problem

RESULTS = Path(__file__).resolve().parent / "results" / "boosting.json"


def record(who: str, target: str, found: dict[str, Any]) -> None:
    """Add one finding to the file of results."""
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    stored.setdefault(target, {})[who] = found
    RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
    print(target, who, {key: value for key, value in found.items() if key not in ("trace", "mean", "cov")}, flush=True)


def divergence(problem: Problem, weights: np.ndarray, means: np.ndarray, roots: np.ndarray, n: int = 50_000) -> float:
    """KL(q || p) of a mixture of Gaussians, by draws."""
    rng = np.random.default_rng(1)
    counts = rng.multinomial(n, weights)
    X = np.concatenate([m + rng.standard_normal((k, len(m))) @ L.T
                        for m, L, k in zip(means, roots, counts, strict=True)])
    log_q = np.full(len(X), -np.inf)
    for w, m, L in zip(weights, means, roots, strict=True):
        white = np.linalg.solve(L, (X - m).T)
        one = -0.5 * (white**2).sum(0) - np.linalg.slogdet(L)[1] - 0.5 * len(m) * np.log(2 * np.pi)
        log_q = np.logaddexp(log_q, np.log(max(w, 1e-300)) + one)
    return float(np.mean(log_q - problem.values(X)) + problem.log_evidence)


def moment_errors(problem: Problem, mean: np.ndarray, sd: np.ndarray) -> dict[str, float]:
    """Largest error of a mean in true standard deviations, and largest relative error of a standard deviation."""
    if problem.mean is None or problem.sd is None:
        return {}
    d = len(problem.mean)
    return {"mean_error": float(np.abs((mean[:d] - problem.mean) / problem.sd).max()),
            "sd_error": float(np.abs(sd[:d] / problem.sd - 1).max())}


def chosen() -> list[str]:
    return [name for name in sys.argv[1:] if name in PROBLEMS] or list(PROBLEMS)


def boosted(problem: Problem, **options: Any) -> tuple[Any, float]:
    """klimb.boost on a problem, and its CPU seconds."""
    import klimb

    start = time.process_time()
    q = klimb.boost(problem.values, problem.dim, gradient=problem.gradient if problem.smooth else None,
                    init=problem.init, **options)
    return q, time.process_time() - start


def divergence_at(problem: Problem, q: Any, weights: np.ndarray, parts: Any) -> float:
    """KL(q || p) of the mixture at a step of q, whatever its coordinates."""
    coordinates = q.target.coordinates
    if coordinates.plain:
        return divergence(problem, weights, parts.means, parts.roots)
    user = lambda U: problem.values(coordinates.to_user(U)[0]) + coordinates.to_user(U)[1]  # noqa: E731
    free = Problem(parts.means.shape[1], lambda xp, U: user(U), problem.log_evidence)
    return divergence(free, weights, parts.means, parts.roots)


def ours() -> None:
    for name in chosen():
        problem = PROBLEMS[name]()
        q, seconds = boosted(problem)
        used = {"n_values": q.n_values, "n_gradients": q.n_gradients}  # before trust adds its own
        trace = [{"n_components": step.n_components, "n_values": step.n_values, "n_gradients": step.n_gradients,
                  "kl": divergence_at(problem, q, step.weights, step.parts)} for step in q.steps]
        found = {"kl": trace[-1]["kl"], "n_components": q.n_components, **used, "seconds": seconds,
                 "bound": q.bound - problem.log_evidence, "bound_error": q.bound_error, "khat": q.khat,
                 "verdict": q.trust.verdict, "missing": q.missing, "gap": q.gap,
                 **moment_errors(problem, q.mean, q.sd)}
        better = moment_errors(problem, q.corrected.mean, q.corrected.sd)
        record("klimb", name, {**found, "corrected": better, "trace": trace})


def other(who: str, names: list[str], **options: Any) -> None:
    """Another algorithm of klimb.boost, with gradients."""
    for name in names:
        problem = PROBLEMS[name]()
        q, seconds = boosted(problem, **options)
        found = {"kl": divergence_at(problem, q, q.weights, q.parts), "n_components": q.n_components,
                 "n_values": q.steps[-1].n_values, "n_gradients": q.n_gradients, "seconds": seconds}
        record(who, name, {**found, **moment_errors(problem, q.mean, q.sd)})


def paper() -> None:
    """[G]'s algorithm, 30 components."""
    smooth = [name for name in chosen() if not name.startswith("half")]
    other("[G]", smooth, component="laplacian", n_components=30)


def hellinger() -> None:
    """Universal boosting, up to 10 components."""
    other("Hellinger", chosen(), divergence="hellinger", n_components=10)


def inclusive() -> None:
    """The default with its tails covered."""
    other("inclusive", chosen(), divergence="inclusive")


def at_accuracy(trace: list[dict[str, Any]], kl: float) -> int | None:
    """Evaluations (values and gradients) after which the trace is at least as accurate as ``kl``."""
    for row in trace:
        if row["kl"] <= kl * 1.05 + 1e-3:
            return int(row["n_values"])
    return None


def table() -> None:
    stored = json.loads(RESULTS.read_text())
    rivals = ["[G]", "Hellinger", "NumPyro SVI", "Pathfinder", "PyVBMC"]
    print("| target | klimb: KL (K), evaluations, CPU s | " + " | ".join(rivals) + " |")
    print("|---" * (2 + len(rivals)) + "|")
    for name, found in stored.items():
        if "klimb" not in found:
            continue
        mine = found["klimb"]
        cells = [f"**{mine['kl']:.3f}** ({mine['n_components']}), {mine['n_values']}, {mine['seconds']:.1f}"]
        for rival in rivals:
            if rival not in found:
                cells.append("-")
                continue
            theirs = found[rival]
            if "failed" in theirs:
                cells.append(f"failed ({theirs['failed']})")
                continue
            used = theirs.get("evaluations", theirs.get("n_values"))
            same = at_accuracy(mine["trace"], theirs["kl"])
            ours_at = f"we: {same}" if same else "we: not reached"
            cells.append(f"{theirs['kl']:.3f}, {used}, {theirs['seconds']:.2f} s; {ours_at}")
        print(f"| {name} | " + " | ".join(cells) + " |")


def growth() -> None:
    """KL after 1, 5 and 20 components, moments at the end, and the verdict."""
    stored = json.loads(RESULTS.read_text())
    print("| target | 1 component | up to 5 | up to 20 | means (sd), sds | corrected | k-hat | missing | verdict |")
    print("|---" * 9 + "|")
    for name, found in stored.items():
        if "klimb" not in found:
            continue
        mine = found["klimb"]
        cells = []
        for most in (1, 5, 20):
            rows = [row for row in mine["trace"] if row["n_components"] <= most]
            first = mine["trace"][0]["n_components"]
            cells.append(f"{rows[-1]['kl']:.3f} at {rows[-1]['n_values']}" if rows else f"(begins with {first})")
        for moments in (mine, mine["corrected"]):
            cells.append(f"{moments['mean_error']:.3f}, {moments['sd_error']:.3f}" if "sd_error" in moments else "none")
        cells += [f"{mine['khat']:.2f}", f"{mine['missing']:.1%}", mine["verdict"]]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    commands = {"ours": ours, "paper": paper, "hellinger": hellinger, "inclusive": inclusive, "table": table,
                "growth": growth}
    commands[sys.argv[1] if len(sys.argv) > 1 else "table"]()
