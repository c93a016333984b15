"""Rows of a mixed logistic model that DuckDB makes and counts: CPU and wall seconds, and peak memory, of each part.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.cells 20_000_000            # stored in DuckDB first
    OPENBLAS_NUM_THREADS=1 python -m benchmarks.cells 1_000_000_000 --made  # made row by row while they are counted
    OPENBLAS_NUM_THREADS=1 python -m benchmarks.cells 200_000 --rows        # set beside the fit of the rows themselves

Every row follows from a hash of its number, so that the same rows come at every run.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

import klimb

FORMULA = "bought ~ price + C(member) + (1 | shop)"
# 201 shops, 3 prices, 3 kinds of member, 2 outcomes: at most 3,618 cells.
ROWS = """
    select shop, price, member,
           u < 350000 - 60000 * price + 50000 * (member = 2)::int + 1500 * ((shop * 79) % 201) as bought
    from (select (h % 201)::int as shop, (h // 201 % 3)::int as price, (h // 603 % 3)::int as member,
                 (h // 1809 % 1000003)::int as u
          from (select hash(i) as h from range({n}) as rows(i)))
"""


def peak() -> float:
    """Largest memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def timed(what: str, call: Callable[[], Any]) -> Any:
    wall, cpu = time.perf_counter(), time.process_time()
    found = call()
    print(f"| {what} | {time.process_time() - cpu:.2f} | {time.perf_counter() - wall:.2f} | {peak():.2f} |", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", type=int)
    parser.add_argument("--made", action="store_true", help="do not store the rows")
    parser.add_argument("--rows", action="store_true", help="fit the rows too, in memory")
    options = parser.parse_args()
    import duckdb

    connection = duckdb.connect(config={"threads": 2, "memory_limit": "1GB"})
    query = ROWS.format(n=options.n)
    print(f"{options.n:,} rows; {peak():.2f} GB before\n\n| part | CPU s | wall s | peak GB |\n|---|---|---|---|")
    if not options.made:
        timed("rows made and stored", lambda: connection.execute(f"create table sales as {query}"))
        query = "select * from sales"
    data = connection.sql(query)
    if not options.made:
        timed("group-by alone, in SQL", lambda: connection.sql(
            f"select shop, price, member, bought, count(*) from ({query}) group by all").fetchall())
    fit = timed("klimb.fit by cells", lambda: klimb.fit(FORMULA, data, family="bernoulli"))
    timed("table, trust and checks", lambda: str(fit))
    if options.rows:
        rows = timed("klimb.fit by rows", lambda: klimb.fit(FORMULA, data, family="bernoulli", cells=False))
        pairs = list(zip(fit.table_rows(), rows.table_rows(), strict=True))
        print(f"\nlargest difference of a mean, in sds: {max(abs(a.mean - b.mean) / b.sd for a, b in pairs):.1e}; "
              f"of an sd, in itself: {max(abs(a.sd / b.sd - 1.0) for a, b in pairs):.1e}")
    print(f"\n{fit}")


if __name__ == "__main__":
    main()
