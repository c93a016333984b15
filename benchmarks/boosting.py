"""klimb.boost on fifteen targets, and rivals on the same: accuracy against evaluations.

    python -m benchmarks.boosting ours [target ...]                 klimb, in NumPy
    python -m benchmarks.boosting paper                             [G]'s algorithm, as klimb has it
    PYTHON -m benchmarks.rivals.numpyro_svi [target ...]            in an environment with numpyro
    PYTHON -m benchmarks.rivals.pathfinder [target ...]             in an environment with blackjax
    PYTHON -m benchmarks.rivals.pyvbmc [target ...]                 in an environment with pyvbmc
    python -m benchmarks.boosting table                             what was found, side by side

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
    print(target, who, {key: value for key, value in found.items() if key != "trace"}, flush=True)


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


def ours() -> None:
    import klimb

    for name in chosen():
        problem = PROBLEMS[name]()
        start = time.process_time()
        q = klimb.boost(problem.values, problem.dim, gradient=problem.gradient)
        seconds = time.process_time() - start
        trace = [{"n_components": step.n_components, "n_values": step.n_values, "n_gradients": step.n_gradients,
                  "kl": divergence(problem, step.weights, step.parts.means, step.parts.roots)} for step in q.steps]
        found = {"kl": trace[-1]["kl"], "n_components": q.n_components, "n_values": q.n_values,
                 "n_gradients": q.n_gradients, "seconds": seconds, "bound": q.bound - problem.log_evidence,
                 "bound_error": q.bound_error, "khat": q.khat, **moment_errors(problem, q.mean, q.sd)}
        corrected = q.corrected
        better = moment_errors(problem, corrected.mean, np.sqrt(np.diag(corrected.cov)))
        record("klimb", name, {**found, "corrected": better, "trace": trace})


def paper() -> None:
    """[G]'s algorithm on the paper's targets, 30 components."""
    import klimb

    for name in ["Cauchy", "four in 1-D", "five in 2-D", "nodal", "banana"]:
        problem = PROBLEMS[name]()
        start = time.process_time()
        q = klimb.boost(problem.values, problem.dim, component="laplacian", n_components=30, scale=1.0)
        found = {"kl": divergence(problem, q.weights, q.means, q.parts.roots), "n_components": q.n_components,
                 "n_values": q.n_values, "n_gradients": q.n_gradients, "seconds": time.process_time() - start}
        record("[G]", name, {**found, **moment_errors(problem, q.mean, q.sd)})


def at_accuracy(trace: list[dict[str, Any]], kl: float) -> int | None:
    """Evaluations (values and gradients) after which the trace is at least as accurate as ``kl``."""
    for row in trace:
        if row["kl"] <= kl * 1.05 + 1e-3:
            return int(row["n_values"])
    return None


def table() -> None:
    stored = json.loads(RESULTS.read_text())
    rivals = ["[G]", "NumPyro SVI", "Pathfinder", "PyVBMC"]
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
            used = theirs.get("evaluations", theirs.get("n_values"))
            same = at_accuracy(mine["trace"], theirs["kl"])
            ours_at = f"we: {same}" if same else "we: not reached"
            cells.append(f"{theirs['kl']:.3f}, {used}, {theirs['seconds']:.2f} s; {ours_at}")
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    {"ours": ours, "paper": paper, "table": table}[sys.argv[1] if len(sys.argv) > 1 else "table"]()
