"""A fit as an ArviZ InferenceData, by independent draws of its posterior."""

from __future__ import annotations

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
        return arviz.from_dict(posterior=shaped, coords=coordinates, dims=dimensions)
    return arviz.from_dict({"posterior": shaped}, coords=coordinates, dims=dimensions)  # from version 1 on
