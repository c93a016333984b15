"""Terms of a formula: what each kind learns from the data, its columns, its prior, its rows of the table."""

from klimb.terms.base import Coded, Context, Dense, Moving, Reported, Term, WeightsPrior
from klimb.terms.registry import TERMS, register

__all__ = ["TERMS", "Coded", "Context", "Dense", "Moving", "Reported", "Term", "WeightsPrior", "register"]
