"""Conditionally conjugate models by KL proximal-point."""
