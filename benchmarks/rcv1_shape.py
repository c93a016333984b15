"""A synthetic set of rcv1's shape (677,399 x 47,236, 73 nonzeros a row): time, memory, products, and how they scale.

    python -m benchmarks.rcv1_shape [--shares 1/16,1/8,1/4,1/2,1] [--prior gaussian] [--keep]

Words have Zipf's frequencies and tf-idf weights, rows have unit norm, labels come from planted weights on a tenth of
the words. Every share of the rows is a run in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

import klimb
from benchmarks.measure import one_thread, save, table

N, D, PER_ROW = 677_399, 47_236, 73
BLOCK = 1 << 14  # rows made at a time
Array = NDArray[np.float64]


def documents(n_rows: int, per_row: int = PER_ROW, seed: int = 0, n_words: int = D) -> tuple[Any, Array]:
    """(X, y): a CSR matrix with about ``per_row`` nonzeros a row, and labels -1, +1.

    Rows come from one stream of random numbers, so that a smaller set is the beginning of a larger one.
    """
    from scipy.sparse import csr_matrix, vstack

    rng = np.random.default_rng(seed)
    frequency = 1.0 / (np.arange(n_words) + 20.0)  # Zipf's law without the stop words
    steps = np.cumsum(frequency / frequency.sum())
    steps[-1] = 1.0
    idf = np.log(1.0 / np.minimum(1.0, per_row * frequency / frequency.sum())) + 1.0
    planted = np.where(rng.random(n_words) < 0.1, rng.standard_normal(n_words), 0.0)
    blocks, labels = [], []
    for begin in range(0, n_rows, BLOCK):
        draws = np.random.default_rng([seed, begin])
        rows = min(BLOCK, n_rows - begin)
        # Repeated words are merged: ask for some more, so that about per_row different ones remain.
        length = draws.poisson(1.035 * per_row, BLOCK)
        words = np.searchsorted(steps, draws.random(int(length.sum()))).astype(np.int32)
        block = csr_matrix((np.ones(words.size), words, np.r_[0, np.cumsum(length)]), shape=(BLOCK, n_words))
        block.sum_duplicates()
        block = block[:rows]
        block.data = (1.0 + np.log(block.data)) * idf[block.indices]
        counts = np.diff(block.indptr)
        norms = np.sqrt(np.add.reduceat(np.r_[block.data**2, 0.0], block.indptr[:-1]) * (counts > 0))
        block.data /= np.repeat(np.where(norms > 0.0, norms, 1.0), counts)
        logit = 12.0 * (block @ planted)
        labels.append(np.where(draws.random(BLOCK)[:rows] < 1.0 / (1.0 + np.exp(-logit)), 1.0, -1.0))
        blocks.append(block)
    return vstack(blocks, format="csr"), np.concatenate(labels)


def one(n_rows: int, per_row: int, prior: str, options: dict[str, Any]) -> dict[str, Any]:
    """Make a set, fit it, and say what that took."""
    start = time.process_time()
    X, y = documents(n_rows, per_row)
    made = time.process_time() - start
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    with one_thread():
        begin = time.process_time()
        product = X @ np.ones(X.shape[1])
        one_product = time.process_time() - begin
        fit = klimb.sparse_glm(X, y, prior=prior, scale=3.0 if prior == "gaussian" else 1.0, **options)
        seconds = time.process_time() - begin - one_product
    assert np.isfinite(product).all()
    result = fit.result
    return {"rows": n_rows, "nonzeros": int(X.nnz), "per_row": X.nnz / n_rows, "seconds": seconds, "made_in": made,
            "product_seconds": one_product, "products": int(result.n_products), "iterations": result.n_iter,
            "status": fit.status.name, "engine": fit.plan.choice, "bound": fit.bound, "bound_error": result.bound_error,
            "data_megabytes": X.nnz * 12 / 2**20, "made_megabytes": resident,
            "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0}


def measured(n_rows: int, per_row: int, prior: str, options: dict[str, Any]) -> dict[str, Any]:
    """`one` in a process of its own."""
    call = [sys.executable, "-m", "benchmarks.rcv1_shape", "--one", json.dumps([n_rows, per_row, prior, options])]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", default="1/16,1/8,1/4,1/2,1")
    parser.add_argument("--per-row", default="73", help="nonzeros a row; several show how cost grows with them")
    parser.add_argument("--prior", default="gaussian")
    parser.add_argument("--accuracy", type=float, default=None)
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(*json.loads(arguments.one))))
        return
    options = {} if arguments.accuracy is None else {"accuracy": arguments.accuracy}
    rows = []
    for share in arguments.shares.split(","):
        for per_row in arguments.per_row.split(","):
            rows.append(measured(int(N * Fraction(share)), int(per_row), arguments.prior, options))
            table(f"rcv1's shape, {arguments.prior} prior",
                  ["rows", "nonzeros", "CPU s", "ns / (product x nonzero)", "products", "iterations", "peak MB",
                   "status"],
                  [[r["rows"], r["nonzeros"], r["seconds"],
                    1e9 * r["seconds"] / max(r["products"], 1) / r["nonzeros"], r["products"], r["iterations"],
                    r["peak_megabytes"], r["status"]] for r in rows])
            if arguments.keep:
                kind = "" if "," not in arguments.per_row else "-nonzeros"
                save(f"rcv1_shape-{arguments.prior}{kind}", {"runs": rows})


if __name__ == "__main__":
    main()
