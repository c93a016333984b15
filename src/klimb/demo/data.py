"""Reading the bundled table of summit attempts."""

from __future__ import annotations

import csv
from importlib.resources import files
from typing import Any

import numpy as np


def load_summit() -> dict[str, Any]:
    """Four hundred invented attempts at a mountain: what was known before each, and whether it reached the top.

    A dict of columns, as `klimb.fit` takes it: ``summit`` (0 or 1), ``wind`` (m/s; four are missing), ``days`` of
    acclimatisation, people in the ``party``, hour of the ``start``, ``route`` and ``guide``.

    >>> table = load_summit()
    >>> list(table), len(table["summit"])
    (['summit', 'wind', 'days', 'party', 'start', 'route', 'guide'], 400)
    """
    text = files("klimb.demo").joinpath("summit.csv").read_text(encoding="utf-8")
    header, *rows = csv.reader(text.splitlines())
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    return {name: np.array(values, dtype=object) if name in ("route", "guide")
            else np.array([float(value) if value != "NA" else np.nan for value in values])
            for name, values in columns.items()}
