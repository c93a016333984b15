"""Exact factorisations of a `NormalMatrix`: dense in its size, dense in its rows, or by levels of its graph."""

from klimb.linalg.factors.base import Factorisation
from klimb.linalg.factors.selection import Plan, cheapest_plan, factorise

__all__ = ["Factorisation", "Plan", "cheapest_plan", "factorise"]
