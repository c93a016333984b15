"""Exact factorisations of a `NormalMatrix`: dense in its size, dense in its rows, or by levels of its graph."""

from klimb.linalg.factors.forms import Factorisation
from klimb.linalg.factors.selection import FactorPlan, cheapest_plan, factorise

__all__ = ["FactorPlan", "Factorisation", "cheapest_plan", "factorise"]
