"""Likelihoods by name: what a response may be, its link, and the parameters that are estimated with it."""
