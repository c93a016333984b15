"""Latent Gaussian models fitted by deterministic variational inference."""

__version__ = "0.1.0"
