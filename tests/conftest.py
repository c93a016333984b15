"""What every test shares: one BLAS thread, reproducible hypothesis examples, and the way to the larger data sets."""

from __future__ import annotations

import os

# Before numpy is imported: results must not depend on how many threads a machine has.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import numpy as np
import pytest
import threadpoolctl

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, database=None, print_blob=False)
hypothesis.settings.load_profile("fixed")

ROOT = Path(__file__).resolve().parent.parent
collect_ignore = ["references/make_everyday.py"]  # a script that loads JAX, which boosting would then take for granted


class DataSet(NamedTuple):
    """A data set of the data directory: design (dense or CSR), target, and whatever else its file holds."""

    X: Any
    y: np.ndarray
    more: dict[str, np.ndarray]


def pytest_configure(config: pytest.Config) -> None:
    # The libraries may have been loaded before this file was (by a plugin): limit them as well.
    config.stash[_LIMITS] = threadpoolctl.threadpool_limits(limits=1)


LONGEST = {"test_engines.py", "test_transcripts.py"}  # these fork too
BEFORE_JAX = {"test_shell.py", "test_boost.py", "test_expensive.py"}  # forks, and functions that JAX could trace


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no worker ends with them; bridges last.

    Those load other packages: JAX warns at every later fork of the process, and boosting would take it for granted.
    Workers take tests from the end of each other's lists, so that one with bridges behind it finds none of the first.
    """
    items.sort(key=lambda item: ("bridges" in item.path.parts, item.path.name not in LONGEST | BEFORE_JAX))


_LIMITS = pytest.StashKey[threadpoolctl.threadpool_limits]()


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The directory named by KLIMB_DATA (default: ../shared/data beside the repository); skips where it is missing."""
    path = Path(os.environ.get("KLIMB_DATA", ROOT.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"no data directory at {path}: set KLIMB_DATA to run this test")
    return path


@pytest.fixture(scope="session")
def load_data(data_dir: Path) -> Callable[[str], DataSet]:
    """``load_data("sonar")`` reads sonar.npz of the data directory; skips where that file is missing."""

    def load(name: str) -> DataSet:
        path = data_dir / f"{name}.npz"
        if not path.is_file():
            pytest.skip(f"{name}.npz is not in the data directory {data_dir}")
        with np.load(path, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
        y = arrays.pop("y").astype(np.float64)
        if "X" in arrays:
            return DataSet(arrays.pop("X").astype(np.float64), y, arrays)
        from scipy.sparse import csr_matrix

        parts = (arrays.pop("data").astype(np.float64), arrays.pop("indices"), arrays.pop("indptr"))
        return DataSet(csr_matrix(parts, shape=tuple(arrays.pop("shape"))), y, arrays)

    return load
