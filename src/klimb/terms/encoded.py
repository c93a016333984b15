"""What a formula makes of a data frame: blocks of columns, each with the kind of prior it takes.

The linear predictor is

    f = offset + fixed w + sum over groups of (values of the row)'(coefficients of its level) + smooth bases + processes

and every block but ``fixed`` has variances of its own, learnt from the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from klimb.numerics.arrays import Array

UNSEEN = -1  # code of a level that was not there when the model was fitted


@final
@dataclass(frozen=True, eq=False)
class FixedBlock:
    """Columns with fixed, wide priors: the intercept, covariates, contrasts of factors, interactions."""

    matrix: Any  # (n, p), an array or a sparse matrix
    names: tuple[str, ...]


@final
@dataclass(frozen=True, eq=False)
class GroupBlock:
    """``(1 + x | g)``: every level of g has its own coefficients, normal with one k x k covariance for all levels."""

    name: str  # the grouping as written, "g" or "g:h"
    columns: tuple[str, ...]  # ("Intercept", "x")
    levels: tuple[str, ...]
    codes: npt.NDArray[np.intp]  # (n,): level of each row, or UNSEEN
    values: Array  # (n, k): what multiplies the level's coefficients
    correlated: bool = True  # False for (1 + x || g)


@final
@dataclass(frozen=True, eq=False)
class SmoothBlock:
    """``s(x)``: a basis whose coefficients are independent with one common variance; its straight part is in fixed."""

    name: str  # "s(x)"
    basis: Array  # (n, k)
    columns: tuple[str, ...]


@final
@dataclass(frozen=True, eq=False)
class ProcessBlock:
    """``gp(x, z)``: a Gaussian process over numeric columns."""

    name: str  # "gp(x, z)"
    inputs: Array  # (n, d)
    kernel: str  # a name in klimb.kernels
    columns: tuple[str, ...]
    options: dict[str, Any]


@final
@dataclass(frozen=True, eq=False)
class Encoded:
    """All blocks of one data frame, rows aligned."""

    response: Any  # (n,) or (n, 2) for trials; None where the frame has no response column (prediction)
    fixed: FixedBlock
    groups: tuple[GroupBlock, ...]
    smooths: tuple[SmoothBlock, ...]
    processes: tuple[ProcessBlock, ...]
    offset: Array  # (n,)
    rows: npt.NDArray[np.intp]  # positions of the kept rows in the frame
    dropped: int  # rows left out because a value was missing

    @property
    def n(self) -> int:
        return len(self.rows)
