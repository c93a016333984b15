"""The example from beginning to end: fit, table, verdict, predictions with intervals, report, picture."""

import csv
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from klimb.report.text import percent, table

TITLE = "Who reaches the summit?"
FORMULA = "summit ~ wind + days + party + start + route + (1 | guide)"
FAMILY = "bernoulli"
TRIPS: dict[str, list[Any]] = {  # to be predicted: two with a guide that the data know, one with a guide they do not
    "wind": [5.0, 15.0, 5.0], "days": [10.0, 2.0, 10.0], "party": [3.0, 3.0, 3.0], "start": [3.5, 6.0, 3.5],
    "route": ["ridge", "north face", "ridge"], "guide": ["Dawa", "Dawa", "someone new"],
}
LINES = ("import klimb", "from klimb.demo import load_summit", "",
         f'fit = klimb.fit("{FORMULA}", load_summit(), family="{FAMILY}")', "print(fit)")


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


def fit_summit() -> Any:
    """The example fit."""
    from klimb.models.door import fit
    return fit(FORMULA, load_summit(), family=FAMILY)


def run(folder: Path, tell: Callable[[str], None] = print) -> Any:
    """Fit the example, tell what it found, and write report, picture and the table itself into ``folder``."""
    from klimb.report.charts import effect_chart
    from klimb.report.page import page
    from klimb.report.svg import side_by_side
    fit = fit_summit()
    tell(f"{TITLE}\n\n{fit}\n\n{predictions(fit)}\n")
    report = fit.report(title=TITLE, source="summit.csv, which comes with klimb (simulated)", reproduce=LINES)
    places = {"report": folder / "report.html", "picture": folder / "effects.svg", "data": folder / "summit.csv"}
    places["report"].write_text(page(report), encoding="utf-8")
    places["picture"].write_text(side_by_side([effect_chart(curve) for curve in report.effects]), encoding="utf-8")
    places["data"].write_bytes(files("klimb.demo").joinpath("summit.csv").read_bytes())
    tell("\n".join(f"{name + ':':9} {place}" for name, place in places.items()))
    return fit


def predictions(fit: Any) -> str:
    """Three trips and their chances, as a table."""
    found = fit.predict(TRIPS)
    names = ("guide", "route", "wind", "days", "party", "start")  # text to the left of numbers, so that both line up
    cells = [[*(str(value) if isinstance(value := TRIPS[name][i], str) else f"{value:g}" for name in names),
              f"{found['mean'][i]:.2f}", f"{found['lower'][i]:.2f} to {found['upper'][i]:.2f}"] for i in range(3)]
    return table([*names, "P(summit)", f"{percent(fit.interval)} interval"], cells, left=2)
