"""A limit of memory is kept, or the fit is refused before its first pass."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import klimb
from klimb.errors import InputError
from klimb.models.budget import MemoryLimit, as_bytes

FIT = """
import json, multiprocessing, sys, threading, time
from pathlib import Path
import klimb

def held(process="self"):
    try:
        return 1024 * int(Path(f"/proc/{process}/status").read_text().split("RssAnon:")[1].split()[0])
    except (OSError, IndexError):  # it has ended
        return 0

before = held()
peaks = {"self": before}
def look():
    while True:
        for process in ("self", *(child.pid for child in multiprocessing.active_children())):
            peaks[process] = max(peaks.get(process, 0), held(process))
        time.sleep(0.002)

threading.Thread(target=look, daemon=True).start()
fit = klimb.fit(sys.argv[2], sys.argv[1], "bernoulli", memory=sys.argv[3] or None, cells=False, progress=False,
                engine=int(sys.argv[4]) or None)
str(fit)
print(json.dumps([[peak - before for peak in peaks.values()], fit.bound, fit.explain()]))
"""


def run(*words: str) -> Any:
    done = subprocess.run([sys.executable, "-c", FIT, *words], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process as Linux shows it")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_limit_is_kept(workers: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((150_000, 12))
    columns = {**{f"x{j}": X[:, j] for j in range(12)}, "y": rng.random(150_000) < 1 / (1 + np.exp(-X[:, 0]))}
    path, formula = tmp_path / "rows.parquet", "y ~ " + " + ".join(f"x{j}" for j in range(12))
    parquet.write_table(pa.table(columns), path, row_group_size=50_000)
    memory = klimb.fit(formula, columns, "bernoulli", progress=False)
    taken, bound, words = run(str(path), formula, "200 MB", str(workers))
    assert len(taken) == 1 + workers  # each of a process
    assert max(taken) <= 200e6
    assert "of 200.0 MB allowed" in words
    assert bound == pytest.approx(memory.bound, abs=1e-3)
    with pytest.raises(InputError, match=r"each process may take 118.0 MB.*for libraries") as refused:
        klimb.fit(formula, path, "bernoulli", memory="118 MB", cells=False)
    assert "Write memory=" in refused.value.advice


def test_rows_are_fewer_where_memory_is() -> None:
    wide, narrow = MemoryLimit(1e9).rows(50), MemoryLimit(2.4e8).rows(50)
    assert 256 <= narrow < wide
    assert MemoryLimit(2.4e8).worker(50, 0.0, narrow) <= 2.4e8
    with pytest.raises(InputError, match="sums of 100,000 levels beside 50 columns"):
        MemoryLimit(1e9).rows(50, 100_000, 4.2e7 * 10)


def test_rows_in_memory_that_would_take_too_much_are_passed_over_or_refused() -> None:
    rng = np.random.default_rng(0)
    data = {"y": rng.standard_normal(60_000), "x": rng.standard_normal(60_000), "k": rng.integers(0, 300, 60_000)}
    assert klimb.fit("y ~ x", data, memory="1 GB", cells=False).observed.sampled_from == 0
    many = {name: rng.standard_normal(250_000) for name in "yx"}
    assert klimb.fit("y ~ x", many, memory="180 MB", cells=False).observed.sampled_from == 250_000
    with pytest.raises(InputError, match="60,000 rows and 301 columns"):
        klimb.fit("y ~ x + C(k)", data, memory="300 MB", cells=False)


@pytest.mark.parametrize(("text", "size"), [("2 GB", 2e9), ("500MB", 5e8), (3e8, 3e8), ("1 GiB", 2.0**30), ("7", 7.0)])
def test_sizes_are_read_as_people_write_them(text: Any, size: float) -> None:
    assert as_bytes(text) == size


@pytest.mark.parametrize("text", ["much", "2 XB", 0, -1, "", "nan"])
def test_what_is_no_size_is_refused(text: Any) -> None:
    with pytest.raises(InputError, match="memory must be a number of bytes"):
        as_bytes(text)
