"""From encoded blocks to the columns of one linear model, the same way for the data of the fit and for new rows.

The weights that all rows share stand in one matrix: centred fixed columns, smooth bases, the levels of all grouping
factors but the largest, and features of processes. The largest grouping factor keeps its codes (`klimb.latents.Mixed`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError
from klimb.numerics.arrays import Array
from klimb.terms.encoded import UNSEEN, Encoded, GroupBlock

INTERCEPT = "Intercept"
MOST_ENTRIES = 2**27  # of the matrix of shared columns (1 GiB)
MOST_COLUMNS = 5000  # their posterior covariance is a dense matrix
MOST_POINTS = 120  # inducing inputs of a process; with no more distinct inputs than these it is exact


@final
@dataclass(frozen=True, eq=False)
class GroupTerm:
    """A grouping factor as a model knows it: what it is called, its columns and levels, where its weights are."""

    name: str
    columns: tuple[str, ...]
    levels: tuple[str, ...]
    correlated: bool
    begin: int  # first of its shared columns; -1 for the factor that keeps its codes

    @property
    def size(self) -> int:
        return len(self.columns)


@final
@dataclass(frozen=True, eq=False)
class SmoothTerm:
    """A smooth: its basis is divided by ``scale``, so that the coefficients' sd is the typical size of the smooth."""

    name: str
    begin: int
    size: int
    scale: float


@final
@dataclass(frozen=True, eq=False)
class ProcessTerm:
    """A Gaussian process through the values at ``points``."""

    name: str
    kernel: str
    columns: tuple[str, ...]
    points: Array  # (M, d)
    begin: int
    options: dict[str, Any]

    @property
    def size(self) -> int:
        return len(self.points)


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one frame in the columns of a `Layout`; processes are inputs, because their features move."""

    X: Array  # (n, B), zeros where processes have their features
    codes: npt.NDArray[np.intp]  # (n,) levels of the factor that keeps its codes, -1 where unseen
    values: Array  # (n, k), k = 0 without such a factor
    inputs: tuple[Array, ...]  # one (n, d) array per process
    unseen: tuple[tuple[int, Array], ...]  # (which group, its values where the level is unseen, else 0)
    offset: Array

    @property
    def n(self) -> int:
        return len(self.X)


@final
@dataclass(frozen=True, eq=False)
class Layout:
    """Where everything is. ``centre`` is taken off the fixed columns if there is an intercept (its prior is there)."""

    fixed: tuple[str, ...]
    centre: Array
    groups: tuple[GroupTerm, ...]
    smooths: tuple[SmoothTerm, ...]
    processes: tuple[ProcessTerm, ...]
    width: int

    @property
    def arrow(self) -> GroupTerm | None:
        """The grouping factor that keeps its codes."""
        return next((g for g in self.groups if g.begin < 0), None)

    @property
    def intercept(self) -> int | None:
        return self.fixed.index(INTERCEPT) if INTERCEPT in self.fixed else None

    def rows(self, encoded: Encoded) -> Rows:
        """Encoded data as rows of this layout."""
        n, p = encoded.n, len(self.fixed)
        X = np.zeros((n, max(self.width, 1)))
        wanted = [encoded.fixed.names.index(name) for name in self.fixed]
        X[:, :p] = _dense(encoded.fixed.matrix)[:, wanted] - self.centre
        codes, values = np.full(n, UNSEEN, dtype=np.intp), np.zeros((n, 0))
        unseen: list[tuple[int, Array]] = []
        for number, (term, block) in enumerate(zip(self.groups, encoded.groups, strict=True)):
            known = block.codes >= 0
            if not known.all():
                unseen.append((number, np.where(known[:, None], 0.0, block.values)))
            if term.begin < 0:
                codes, values = block.codes, np.where(known[:, None], block.values, 0.0)
            else:
                at = np.flatnonzero(known)
                for j in range(term.size):
                    X[at, term.begin + block.codes[at] * term.size + j] = block.values[at, j]
        for smooth, basis in zip(self.smooths, encoded.smooths, strict=True):
            X[:, smooth.begin : smooth.begin + smooth.size] = basis.basis / smooth.scale
        inputs = tuple(block.inputs for block in encoded.processes)
        return Rows(X, codes, values, inputs, tuple(unseen), encoded.offset)


def make_layout(encoded: Encoded, *, intercept: bool = True) -> Layout:
    """The layout for the data of a fit; ``intercept`` False drops the intercept (cut points take its part)."""
    names = tuple(n for n in encoded.fixed.names if intercept or n != INTERCEPT)
    matrix = _dense(encoded.fixed.matrix)
    keep = [encoded.fixed.names.index(name) for name in names]
    has_level = INTERCEPT in encoded.fixed.names
    centre = matrix[:, keep].mean(axis=0) if has_level and encoded.n else np.zeros(len(names))
    centre = np.where([name == INTERCEPT for name in names], 0.0, centre)
    position = len(names)
    smooths = []
    for block in encoded.smooths:
        scale = float(np.sqrt(np.mean(np.sum(block.basis**2, axis=1)))) if block.basis.size else 1.0
        smooths.append(SmoothTerm(block.name, position, block.basis.shape[1], scale or 1.0))
        position += block.basis.shape[1]
    groups = []
    largest = max(range(len(encoded.groups)), key=lambda i: _weights(encoded.groups[i]), default=-1)
    for number, group in enumerate(encoded.groups):
        begin = -1 if number == largest else position
        groups.append(GroupTerm(group.name, group.columns, group.levels, group.correlated, begin))
        position += 0 if number == largest else _weights(group)
    processes = []
    for process in encoded.processes:
        term = ProcessTerm(process.name, process.kernel, process.columns,
                           choose_points(process.inputs, process.options), position, dict(process.options))
        processes.append(term)
        position += term.size
    _check_size(encoded, position, groups)
    return Layout(names, centre, tuple(groups), tuple(smooths), tuple(processes), position)


def choose_points(inputs: Array, options: dict[str, Any]) -> Array:
    """All distinct inputs where they are few, else well-spread ones among them."""
    distinct = np.unique(inputs, axis=0)
    most = int(options.get("points", MOST_POINTS))
    if len(distinct) <= most:
        return distinct
    if distinct.shape[1] == 1:  # between equal spacing, which prediction likes, and equal counts, which data like
        share = np.linspace(0.0, 1.0, most)
        low, high = distinct[0, 0], distinct[-1, 0]
        return np.unique(0.5 * (np.quantile(distinct[:, 0], share) + low + (high - low) * share))[:, None]
    from klimb.kernels import RBF
    from klimb.kernels.inducing_points import choose_inducing

    return choose_inducing(RBF(lengthscale=0.3), distinct, most)


def _weights(group: GroupBlock) -> int:
    return len(group.levels) * len(group.columns)


def _dense(matrix: Any) -> Array:
    return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix, dtype=np.float64)


def _check_size(encoded: Encoded, width: int, groups: list[GroupTerm]) -> None:
    if width <= MOST_COLUMNS and width * encoded.n <= MOST_ENTRIES:
        return
    beside = [g for g in groups if g.begin >= 0]
    worst = max(beside, key=lambda g: len(g.levels) * g.size, default=None)
    if worst is not None:
        raise InputError(f"all grouping factors but the largest may have {MOST_COLUMNS} weights in all, and "
                         f"{MOST_ENTRIES:.0e} entries", f"{width} columns for {encoded.n} rows",
                         f"{worst.name!r} has {len(worst.levels)} levels: leave it out, or nest it.")
    raise InputError(f"a model by formula may have {MOST_COLUMNS} columns, and {MOST_ENTRIES:.0e} entries",
                     f"{width} columns for {encoded.n} rows", "Use klimb.latents.Weights with a sparse matrix.")
