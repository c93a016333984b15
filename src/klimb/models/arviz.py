"""A fit as an ArviZ InferenceData, by independent draws of its posterior."""

from __future__ import annotations

import sys
from inspect import signature
from typing import TYPE_CHECKING, Any

from klimb.errors import InputError
from klimb.models.tabulate import level_name

if TYPE_CHECKING:
    from klimb.models.formula_fit import FormulaFit


def to_arviz(fit: FormulaFit, draws: int = 1000, chains: int = 4, seed: int = 0) -> Any:
    """Posterior draws of coefficients, parameters and levels of groups."""
    try:
        import arviz
    except ImportError as error:
        raise InputError("to_arviz needs ArviZ", "no such package", "pip install arviz") from error
    posterior = fit.draws(draws * chains, seed=seed)
    shaped = {name: values.reshape(chains, draws, *values.shape[1:]) for name, values in posterior.items()}
    coordinates = {f"{term.name}_level": list(term.levels) for term in fit.groups}
    dimensions = {level_name(term, column): [f"{term.name}_level"] for term in fit.groups for column in term.columns}
    if "posterior" in signature(arviz.from_dict).parameters:
        try:
            return arviz.from_dict(posterior=shaped, coords=coordinates, dims=dimensions)
        except AttributeError as error:
            if "'tree'" not in str(error):
                raise
            where = list(getattr(sys.modules.get("tree"), "__path__", ())) or "a file of that name"
            raise InputError("ArviZ takes a module called tree for the package dm-tree", f"{where}: {error}",
                             "Rename that file or folder, or install dm-tree.") from error
    return arviz.from_dict({"posterior": shaped}, coords=coordinates, dims=dimensions)  # from version 1 on
