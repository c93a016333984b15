"""The front door: ``klimb.fit(formula, data, family)``."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from klimb.errors import InputError, listed, need_columns, require
from klimb.formula import Formula, parse
from klimb.formula.nodes import Name
from klimb.likelihoods import Likelihood, Observed, likelihood, named_site
from klimb.models.budget import MemoryLimit, as_bytes, check_in_memory
from klimb.models.formula_fit import FormulaFit
from klimb.models.linear import LinearModel
from klimb.models.model import HyperMode
from klimb.models.notes import collinear_notes, data_notes, posterior_notes
from klimb.models.prediction import checked_interval
from klimb.models.progress import Watched, reporter
from klimb.models.setup import build, checked_weights
from klimb.models.solution import solve
from klimb.numerics.arrays import Array, as_float
from klimb.numerics.dense import threads_for
from klimb.rows.blocks import BlockEngine, RowTable
from klimb.rows.cells import rounded
from klimb.rows.columns import count
from klimb.rows.engines import as_engine, running
from klimb.rows.frames import Frame
from klimb.rows.gather import OWN_WEIGHTS, Wanted, gather
from klimb.rows.scans import Scan, as_table
from klimb.sites.base import Site
from klimb.terms.encoder import Encoded, Encoder, encode, needed


@threads_for(0)
def fit(formula: str, data: Any, family: Any = "gaussian", *, link: str | None = None,
        priors: Mapping[str, Any] | None = None, hyper: HyperMode = "auto", weights: Any = None,
        missing: str = "drop", interval: float = 0.9, tol: float = 1e-6,
        progress: Any = None, graphs: Mapping[str, Any] | None = None,
        matrices: Mapping[str, Any] | None = None, meshes: Mapping[str, Any] | None = None,
        cells: bool | Sequence[str] | None = None, round: Mapping[str, int] | None = None,
        engine: Any = None, checkpoint: Any = None, memory: Any = None) -> FormulaFit:
    """Fit a Bayesian model by formula.

    Parameters
    ----------
    formula : str
        Such as ``"y ~ x + z + (1 | g)"``: see docs/formula.md.
    data : data frame, dict of columns, path or lazy frame
        pandas, polars, pyarrow, or a dict of arrays; rows that need not fit in memory: a path, a folder or a glob of
        Parquet or CSV files, a lazy frame (polars, DuckDB, Ibis, Spark, Dask), an iterator of Arrow batches.
    family : str, dict, klimb.sites.Site or callable
        ``"gaussian"``, ``"bernoulli"``, ``"poisson"``, ...; ``"student_t(df=4)"`` fixes a parameter; a function is the
        log density of y given f, ``lambda y, f: -abs(y - f)``.
    link : str
        For families with several: ``"logit"``, ``"probit"``, ``"cloglog"``.
    priors : dict
        By name, instead of the defaults: ``{"x": klimb.priors.normal(0, 1), "sd(g)": "half_normal(1)"}``;
        ``"fixed"`` means all coefficients except the intercept.
    hyper : "auto", "optimise", "integrate" or "fixed"
        Whether standard deviations, dispersions and other hyperparameters are integrated out, optimised, or kept at
        their starting values. "auto" integrates out up to 14 of them if that is affordable.
    weights : column name or array
        How often each row counts: 0 leaves the row out, 2 counts it twice.
    missing : "drop", "error" or "predict"
        What to do with rows that have a missing value. "predict" keeps rows without a response out of the likelihood,
        but not out of the terms: ``fit.predict()`` includes them, and levels without any response have their prior.
    interval : float
        Probability of the credible intervals in tables and predictions.
    tol : float
        Tolerance of the fits, as in `klimb.infer`.
    progress : bool or callable
        Whether to show progress on stderr; by default if that is a terminal and the work takes over a second. A
        callable is called instead, and stops the work by returning False.
    graphs, matrices, meshes : dict
        Objects used in terms: ``"y ~ bym2(region, graph=G)"`` with ``graphs={"G": edges}``; see docs/structured.md.
    cells : bool or names of columns
        Whether rows that are equal in all columns of the formula are counted and fitted once: by default if the data
        are not in memory, or if it is cheaper. Names are further columns that keep rows apart, so that fits can be
        compared. See docs/big-data.md.
    round : dict
        Digits to round numeric columns to, by name: ``{"age": 0}`` for fewer distinct rows.
    engine : "ray", "dask", "spark", a number of processes, an executor, a Dask client or a Spark session
        What processes the rows, block by block; the results are bitwise equal. See
        docs/big-data.md.
    checkpoint : path
        A folder for intermediate sums: an interrupted fit resumes from there when it is called again.
    memory : number of bytes, or text such as "2 GB"
        What each process may take beyond what it holds before the fit. Rows are passed over in smaller pieces, and a
        model that cannot be fitted within the limit is refused. `FormulaFit.explain` says what is taken.

    Returns
    -------
    FormulaFit

    Examples
    --------
    >>> import numpy as np, klimb
    >>> rng = np.random.default_rng(1)
    >>> x = rng.standard_normal(100)
    >>> fit = klimb.fit("y ~ x", {"x": x, "y": rng.poisson(np.exp(1 + 0.5 * x))}, family="poisson")
    >>> fit.coefficients["mean"].round(1).tolist()
    [0.9, 0.6]
    >>> fit.predict({"x": [0.0, 1.0]})["mean"].round(1).tolist()
    [2.5, 4.6]
    """
    checked_interval(interval)
    resolved = named_site(family) if isinstance(family, Site) else likelihood(family, link)
    parsed = parse(formula)
    if parsed.response is None:
        raise InputError("a fit needs a response on the left of ~", repr(formula), "Write y ~ ..., say.")
    table = as_table(data)
    given, limit = as_engine(engine), as_bytes(memory)
    frame = _gathered(parsed, table, resolved, weights, cells, round, engine is not None or checkpoint is not None,
                      given, limit)
    for word, some in (("graphs", graphs), ("matrices", matrices), ("meshes", meshes)):
        require(isinstance(some or {}, Mapping), f"{word} must be a dict", type(some).__name__,
                f'Give it the name that the formula has: {word}={{"G": ...}}.')
    objects = {**(graphs or {}), **(matrices or {}), **(meshes or {})}
    if isinstance(frame, RowTable):
        column = OWN_WEIGHTS if OWN_WEIGHTS in frame.columns else weights
        with reporter(progress) as listen, running(given or getattr(frame, "engine", None)) as started:
            return streamed(parsed, frame, resolved, interval, weights=column, priors=priors, hyper=hyper,
                            missing=missing, tol=tol, listen=listen, engine=Watched(started, frame.n, listen),
                            objects=objects, checkpoint=checkpoint, notes=_unread(table),
                            budget=MemoryLimit(limit, alone=started is None))

    def built(frame: Frame, weights: Any) -> tuple[Encoded, list[str], LinearModel, Encoder, Observed, dict[str, str]]:
        encoder, encoded = encode(parsed, frame, missing=missing, weights=_row_weights(weights, frame), objects=objects)
        alike = collinear_notes(encoded, encoder)  # of the columns before they are settled in place
        return encoded, alike, *build(encoder, encoded, resolved, priors, limit)

    try:
        encoded, alike, model, encoder, observed, printed = built(
            frame, OWN_WEIGHTS if OWN_WEIGHTS in frame.columns else weights)
    except InputError as error:
        if frame.copies is None or not re.search(r"\b(row|rows|index)\b", error.got):
            raise
        if frame.whole is not None:
            built(rounded(frame.whole, round or {}), weights)  # which says the same of the caller's own rows
        raise InputError(error.expected, f"{error.got}, counted among the rows that differ", error.advice) from error
    check_in_memory(model, limit)
    if frame.copies is not None:
        observed = replace(observed, copies=frame.copies[observed.places],
                           summed=int((observed.places < frame.summed).sum()))
    notes = (*_unread(table), *data_notes(encoder, encoded, observed, model.likelihood, frame, alike))
    if observed.summed:
        notes += (f"{observed.name} was summed up by cells: the posterior is that of the rows, but no row can be left "
                  "out and nothing be checked. cells=False fits the rows.",)
    del encoded  # as what was read of the columns is not for the fit
    frame.forget()
    with reporter(progress) as listen:
        solution = solve(model, observed, hyper=hyper, tol=tol, listen=listen)
    found = FormulaFit.of(solution, observed, interval=float(interval), notes=notes, encoder=encoder, priors=printed,
                          frame=frame)
    return replace(found, notes=(*found.notes, *posterior_notes(found, priors)))


def streamed(formula: Formula, table: RowTable, family: Likelihood, interval: float, notes: tuple[str, ...],
             **options: Any) -> FormulaFit:
    """A fit by passes over rows that are not in memory."""
    from klimb.models.streamed import fit_streamed

    found = fit_streamed(formula, table, family, **options)
    data = found.sample
    if data.n != data.n_rows:
        notes += (f"leave-one-out and the checks are by a sample of {data.n:,} rows.",)
    known: dict[str, Any] = {"interval": float(interval), "encoder": found.encoder, "priors": found.printed,
                             "frame": found.frame}
    checked = FormulaFit.of(found.alone(), replace(data, sampled_from=0), **known)
    return FormulaFit.of(found.solution, data, notes=(*notes, *found.notes), kept_trust=found.trust,
                         kept_checks=checked.checks, **known)


def _gathered(formula: Formula, table: Frame | Scan, family: Likelihood, weights: Any,
              cells: bool | Sequence[str] | None, digits: Mapping[str, int] | None, passes: bool,
              engine: BlockEngine | None, memory: float) -> Frame | RowTable:
    """The rows that are fitted, or their cells, with the columns that the formula names."""
    _, targets, predictors = needed(formula, table.columns)
    insists = cells if cells is None or isinstance(cells, bool) else True
    more = [cells] if isinstance(cells, str) else [] if cells is None or isinstance(cells, bool) else list(cells)
    named = [weights] if isinstance(weights, str) else []
    need_columns((*named, *more), table.columns)
    summed = isinstance(formula.response, Name) and targets[0] not in predictors
    wanted = Wanted(tuple(dict.fromkeys([*targets, *predictors, *named, *more])), targets[0],
                    family.cell_sums if summed else None, insists, digits or {}, passes, engine, memory)
    given = None if weights is None or named else as_float(weights, "weights", ndim=1)
    return gather(table, wanted, given)


def _unread(table: Frame | Scan) -> tuple[str, ...]:
    """A note of files that were left out."""
    lost = table.left_out if isinstance(table, Scan) else ()
    return (f"without {count(len(lost), 'file')} that could not be read: {listed(lost, 5)}.",) if lost else ()


def _row_weights(weights: Any, frame: Frame) -> Array | None:
    if weights is None:
        return frame.copies
    array = checked_weights(frame.column(weights) if isinstance(weights, str) else weights, frame.n)
    return array if frame.copies is None else array * frame.copies
